/* SPDX-License-Identifier: Apache-2.0 */
/* Stored chunks and the frames in them: every part of a sound one changed, cut and lengthened; and built ones read. */
#include "test.h"

#include "base/bytes.h"
#include "base/error.h"
#include "compress/chunk.h"
#include "proto/message.h"
#include "hex.h"

enum { RAW_SIZE = 64, ORIGIN = 1000 };

static ckptfmt_error err;

/* ---- frames ---------------------------------------------------------------------------------------------- */

static void test_frames(void)
{
	static const struct {
		const char *frame, *message;
		uint64_t content_size;
	} cases[] = {
		{"28 b5 2f fd 20 05 29 00 00 61 62 63 64 65", NULL, 5},
		{"28 b5 2f fd 20 05 2b 00 00 61", NULL, 5},
		/* Two blocks; a window of its own; a dictionary of number 0; a checksum; a size of two bytes. */
		{"28 b5 2f fd 20 05 10 00 00 61 62 19 00 00 63 64 65", NULL, 5},
		{"28 b5 2f fd 80 70 05 00 00 00 2b 00 00 61", NULL, 5},
		{"28 b5 2f fd 21 00 05 2b 00 00 61", NULL, 5},
		{"28 b5 2f fd 24 05 2b 00 00 61 01 02 03 04", NULL, 5},
		{"28 b5 2f fd 60 2c 00 63 09 00 61", NULL, 300},
		/* What is coded the decoder checks. */
		{"28 b5 2f fd 20 05 15 00 00 61 62", NULL, 5},
		{"", "must start with a zstd frame", 5},
		{"28 b5 2f fd", "must start with a zstd frame", 5},
		{"50 2a 4d 18 01 00 00 00 00", "must start with a zstd frame", 5},
		{"28 b5 2f fd 28 05 2b 00 00 61", "a reserved bit of a zstd frame is set", 5},
		{"28 b5 2f fd 21 07 05 2b 00 00 61", "a zstd frame must not use a dictionary", 5},
		{"28 b5 2f fd 22 00", "a zstd frame ends in its header", 5},
		{"28 b5 2f fd 00 70 2b 00 00 61", "a zstd frame does not declare its content size", 5},
		{"28 b5 2f fd 80", "a zstd frame ends in its header", 5},
		{"28 b5 2f fd a0 05 00", "a zstd frame ends in its header", 5},
		{"28 b5 2f fd 20 06 2b 00 00 61", "a zstd frame declares 6 bytes, expected 5", 5},
		{"28 b5 2f fd 80 71 05 00 00 00 2b 00 00 61",
			"a zstd frame has a window of 18874368 bytes", 5},
		{"28 b5 2f fd 20 05 2f 00 00 61", "a malformed block of a zstd frame", 5},
		{"28 b5 2f fd 20 05 33 00 00 61", "a malformed block of a zstd frame", 5},
		{"28 b5 2f fd 20 05 29 00 00 61 62 63 64", "a zstd frame is cut short", 5},
		{"28 b5 2f fd 20 05 28 00 00 61 62 63 64 65", "a zstd frame is cut short", 5},
		{"28 b5 2f fd 20 05 2a 00 00 61 0b 00 00 61", "a zstd frame contains more than it declares", 5},
		{"28 b5 2f fd 20 05 23 00 00 61", "a zstd frame contains less than it declares", 5},
		{"28 b5 2f fd 24 05 2b 00 00 61 01 02 03", "a zstd frame is cut short", 5},
		{"28 b5 2f fd 20 05 2b 00 00 61 00", "bytes after a zstd frame", 5},
		{"28 b5 2f fd 20 05 2b 00 00 61 28 b5 2f fd 20 05 2b 00 00 61", "bytes after a zstd frame", 5},
	};
	for (size_t i = 0; i < CF_ARRAY_COUNT(cases); i++) {
		cf_bytes_view frame = hex(cases[i].frame);
		const uint8_t *bytes = test_guarded_copy(frame.data, frame.size);
		char message[128];
		if (cases[i].message == NULL) {
			CHECK_OK(cf_zstd_frame_check(bytes, frame.size, cases[i].content_size, ORIGIN, &err), err);
			continue;
		}
		(void)snprintf(message, sizeof message, "CMP-18: %s", cases[i].message);
		CHECK_FAILS(cf_zstd_frame_check(bytes, frame.size, cases[i].content_size, ORIGIN, &err), err,
			CKPTFMT_FAIL_BAD_CHUNK, message);
		CHECK(err.offset >= ORIGIN && err.offset <= ORIGIN + frame.size);
	}
}

/* ---- chunks ---------------------------------------------------------------------------------------------- */

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

/* Any byte less, any more, and any other number at the front. */
static void test_damaged(void)
{
	uint64_t size = build(CF_CHUNK_PLANES, 2);
	cf_chunk chunk;
	for (uint64_t cut = 0; cut < size; cut++)
		CHECK(cf_chunk_parse(test_guarded_copy(stored, cut), cut, RAW_SIZE, 2, ORIGIN, &chunk, &err) ==
			CKPTFMT_CORRUPT && err.failure == CKPTFMT_FAIL_BAD_CHUNK);
	CHECK_FAILS(cf_chunk_parse(stored, size + 1, RAW_SIZE, 2, ORIGIN, &chunk, &err), err, CKPTFMT_FAIL_BAD_CHUNK,
		"CMP-16: bytes after the planes of a chunk");
	CHECK_EQ(err.offset, ORIGIN + size);
	CHECK_FAILS(cf_chunk_parse(stored, size, RAW_SIZE + 1, 2, ORIGIN, &chunk, &err), err, CKPTFMT_FAIL_BAD_CHUNK,
		"CMP-15: 65 bytes are not a multiple of the unit of 2");
	CHECK_FAILS(cf_chunk_parse(stored, 0, RAW_SIZE, 2, ORIGIN, &chunk, &err), err, CKPTFMT_FAIL_BAD_CHUNK,
		"CMP-12: an empty chunk");
	for (unsigned method = 4; method < 256; method++) {
		stored[0] = (uint8_t)method;
		CHECK_FAILS(cf_chunk_parse(stored, size, RAW_SIZE, 2, ORIGIN, &chunk, &err), err,
			CKPTFMT_FAIL_BAD_CHUNK, "CMP-12: unknown chunk method");
		CHECK_EQ(err.offset, ORIGIN);
	}
	stored[0] = CF_CHUNK_RAW;
	CHECK_FAILS(cf_chunk_parse(stored, RAW_SIZE, RAW_SIZE, 2, ORIGIN, &chunk, &err), err, CKPTFMT_FAIL_BAD_CHUNK,
		"CMP-13: a chunk stores 63 raw bytes, expected 64");
	stored[0] = CF_CHUNK_ROTATED_PLANES;
	stored[1] = RAW_SIZE - 2;
	CHECK_FAILS(cf_chunk_parse(stored, size, RAW_SIZE, 2, ORIGIN, &chunk, &err), err, CKPTFMT_FAIL_BAD_CHUNK,
		"CMP-16: plane 0 stores 31 raw bytes, expected 32");
	memset(stored + 1, 0xff, 10);
	CHECK_FAILS(cf_chunk_parse(stored, size, RAW_SIZE, 2, ORIGIN, &chunk, &err), err, CKPTFMT_FAIL_BAD_CHUNK,
		"CMP-15: the sizes of the planes are malformed");
	stored[9] = 0x7f;
	stored[10] = 0;
	CHECK_FAILS(cf_chunk_parse(stored, size, RAW_SIZE, 2, ORIGIN, &chunk, &err), err, CKPTFMT_FAIL_BAD_CHUNK,
		"CMP-16: plane 0 of");
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
	test_frames();
	test_built();
	test_damaged();
	test_random_bytes();
	return test_finish("chunk");
}
