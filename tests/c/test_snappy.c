/* SPDX-License-Identifier: Apache-2.0 */
/* The Snappy decoder: the bound of SNP-3, and random streams. Each damage: the vectors snp-*. */
#include "test.h"

#include "base/bytes.h"
#include "table/snappy.h"

enum { AT = 300, SIZE_MAX_TRIED = 64 };

static ckptfmt_error err;

/* What the decoder says it was given, and what it is told to fill, must agree. */
static void test_other_size(void)
{
	uint8_t to[4];
	CHECK_FAILS(cf_snappy_decode((const uint8_t *)"\1\0a", 3, AT, to, 4, &err), err, CKPTFMT_FAIL_BAD_BLOCK,
		"SNP-9: ");
}

/* SNP-3 by search: the most that n bytes of elements can give, from the most that fewer can. */
static void test_bound(void)
{
	static uint64_t most[SIZE_MAX_TRIED + 1];
	for (size_t n = 0; n <= SIZE_MAX_TRIED; n++) {
		uint8_t stream[5 + SIZE_MAX_TRIED] = {0};
		uint64_t declared;
		size_t head;
		most[n] = 0;
		for (size_t literal = 2; literal <= n && literal <= 61; literal++) {
			/* One literal, or one after what fewer bytes gave, or a copy after them. */
			most[n] = most[n] > literal - 1 ? most[n] : literal - 1;
			if (most[n - literal] + literal - 1 > most[n])
				most[n] = most[n - literal] + literal - 1;
		}
		if (n >= 4 && most[n - 2] + 11 > most[n])
			most[n] = most[n - 2] + 11;
		if (n >= 5 && most[n - 3] + 64 > most[n])
			most[n] = most[n - 3] + 64;
		head = cf_store_varint(stream, most[n]);
		CHECK_OK(cf_snappy_size(stream, head + n, AT, &declared, &err), err);
		head = cf_store_varint(stream, most[n] + 1);
		CHECK_FAILS(cf_snappy_size(stream, head + n, AT, &declared, &err), err, CKPTFMT_FAIL_BAD_BLOCK, "SNP-3: ");
		CHECK_EQ(declared, 0);
		CHECK(most[n] <= 22 * (n + 1));
	}
}

/* Streams of random elements against bytes kept beside them. */
static void test_random_streams(void)
{
	for (int round = 0; round < 2000; round++) {
		static uint8_t wanted[4096], body[4096], stream[4200];
		size_t size = 0, body_size = 0, head;
		for (uint64_t i = test_random_below(20) + 1; i > 0; i--) {
			uint64_t count = test_random_below(60) + 1;
			if (size == 0 || test_random_below(2) == 0) {
				body[body_size++] = (uint8_t)((count - 1) << 2);
				for (uint64_t j = 0; j < count; j++)
					body[body_size++] = wanted[size++] = (uint8_t)test_random();
				continue;
			}
			uint64_t distance = test_random_below(size) + 1;
			body[body_size++] = (uint8_t)((count - 1) << 2 | 2);
			body[body_size++] = (uint8_t)distance;
			body[body_size++] = (uint8_t)(distance >> 8);
			for (uint64_t j = 0; j < count; j++, size++)
				wanted[size] = wanted[size - distance];
		}
		head = cf_store_varint(stream, size);
		memcpy(stream + head, body, body_size);
		uint8_t to[4096];
		CHECK_OK(cf_snappy_decode(stream, head + body_size, AT, to, size, &err), err);
		CHECK(memcmp(to, wanted, size) == 0);
		/* Cut anywhere it is bad. */
		size_t cut = test_random_below(head + body_size);
		CHECK(cf_snappy_decode(stream, cut, AT, to, size, &err) == CKPTFMT_CORRUPT);
	}
}

int main(void)
{
	test_seed();
	test_other_size();
	test_bound();
	test_random_streams();
	return test_finish("test_snappy");
}
