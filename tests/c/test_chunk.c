/* SPDX-License-Identifier: Apache-2.0 */
/* Stored chunks: built ones are read back, and random bytes give parts within them. Each damage: the vectors cmp-*. */
#include "test.h"

#include "base/bytes.h"
#include "base/error.h"
#include "compress/chunk.h"
#include "proto/message.h"
#include "hex.h"

enum { RAW_SIZE = 64, ORIGIN = 1000 };

static ckptfmt_error err;

static uint8_t raw[RAW_SIZE], planes[RAW_SIZE], stored[RAW_SIZE + CF_CHUNK_HEAD_MAX];

/* A frame of `size` bytes that are all the same. */
static ckptfmt_bytes run_frame(uint8_t *to, uint8_t size, uint8_t byte)
{
	static const uint8_t head[] = {0x28, 0xb5, 0x2f, 0xfd, 0x20};
	memcpy(to, head, sizeof head);
	to[5] = size;
	to[6] = (uint8_t)(size << 3 | 3);
	to[7] = (uint8_t)(size >> 5);
	to[8] = 0;
	to[9] = byte;
	return (ckptfmt_bytes){to, 10};
}

/* Numbers of which all bytes but the lowest are the same. */
static void make_raw(uint32_t unit)
{
	for (uint32_t i = 0; i < RAW_SIZE; i++)
		raw[i] = i % unit == 0 ? (uint8_t)test_random() : 7;
}

static uint64_t build(int32_t method, uint32_t unit)
{
	static uint8_t frames[CF_PLANES_MAX][16];
	ckptfmt_bytes given[CF_PLANES_MAX] = {{NULL, 0}};
	uint8_t *to[CF_PLANES_MAX];
	uint32_t count = RAW_SIZE / unit;
	if (method == CF_CHUNK_ZSTD) {
		memset(raw, 7, sizeof raw);
		given[0] = run_frame(frames[0], RAW_SIZE, 7);
		return cf_chunk_build(method, raw, raw, RAW_SIZE, unit, given, stored);
	}
	make_raw(unit);
	for (uint32_t p = 0; p < unit; p++) {
		to[p] = planes + p * count;
		given[p] = p == 0 ? (ckptfmt_bytes){NULL, 0} : run_frame(frames[p], (uint8_t)count, 7);
	}
	cf_planes_split(raw, count, unit, false, to);
	return cf_chunk_build(method, raw, planes, RAW_SIZE, unit, given, stored);
}

static void read_back(uint64_t size, uint32_t unit, const uint8_t *const *decoded)
{
	uint8_t back[RAW_SIZE];
	cf_chunk chunk;
	CHECK_OK(cf_chunk_parse(test_guarded_copy(stored, size), size, RAW_SIZE, unit, ORIGIN, &chunk, &err), err);
	cf_chunk_join(&chunk, stored, decoded, unit, back, RAW_SIZE);
	CHECK(memcmp(back, raw, RAW_SIZE) == 0);
}

static void test_built(void)
{
	static uint8_t sevens[RAW_SIZE];
	const uint8_t *decoded[CF_PLANES_MAX];
	uint64_t size;
	memset(sevens, 7, sizeof sevens);
	for (uint32_t p = 0; p < CF_PLANES_MAX; p++)
		decoded[p] = sevens;
	size = build(CF_CHUNK_ZSTD, 1);
	CHECK_EQ(size, 11);
	read_back(size, 1, decoded);
	size = build(CF_CHUNK_PLANES, 2);
	CHECK_EQ(size, 1 + 2 + RAW_SIZE / 2 + 10);
	CHECK(stored[0] == CF_CHUNK_PLANES && stored[1] == RAW_SIZE && stored[2] == 21);
	read_back(size, 2, decoded);
	/* Frames that gain less than a twentieth are left out, and a chunk without any is raw. */
	CHECK_EQ(build(CF_CHUNK_PLANES, 8), 1 + RAW_SIZE);
	CHECK_EQ(stored[0], CF_CHUNK_RAW);
	read_back(1 + RAW_SIZE, 8, decoded);
}

/* For random bytes, the parts reported are within them. */
static void test_random_bytes(void)
{
	for (int i = 0; i < 20000; i++) {
		uint64_t size = build(CF_CHUNK_PLANES, 2);
		uint8_t *bytes = stored;
		cf_chunk chunk;
		for (uint64_t changes = test_random_below(4); changes > 0; changes--)
			bytes[test_random_below(size)] = (uint8_t)test_random();
		if (cf_chunk_parse(bytes, size, RAW_SIZE, 2, ORIGIN, &chunk, &err) != CKPTFMT_OK)
			continue;
		for (uint32_t p = 0; p < chunk.part_count; p++)
			CHECK(cf_range_fits(chunk.parts[p].offset, chunk.parts[p].size, size) &&
				chunk.parts[p].raw_size <= RAW_SIZE);
	}
}

int main(void)
{
	test_seed();
	test_built();
	test_random_bytes();
	return test_finish("chunk");
}
