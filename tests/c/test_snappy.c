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

static uint8_t wanted[1 << 17], body[1 << 17], stream[(1 << 17) + 5], to[1 << 17];

/* A literal or a copy, in any of the ways to write it. */
static size_t put_element(size_t size, size_t *body_size)
{
	uint8_t *at = body + *body_size;
	uint64_t count = test_random_below(60) + 1, distance;
	if (size == 0 || test_random_below(3) == 0) {
		uint32_t extra = (uint32_t)test_random_below(5);
		if (extra == 0) {
			*at++ = (uint8_t)((count - 1) << 2);
		} else {
			count = test_random_below(extra == 1 ? 256 : 3000) + 1;
			*at++ = (uint8_t)((59 + extra) << 2);
			for (uint32_t i = 0; i < extra; i++)
				*at++ = (uint8_t)((count - 1) >> 8 * i);
		}
		for (uint64_t j = 0; j < count; j++)
			*at++ = wanted[size++] = (uint8_t)test_random();
		*body_size = (size_t)(at - body);
		return size;
	}
	distance = test_random_below(size) + 1;
	if (distance < 2048 && test_random_below(2) == 0) {
		count = 4 + count % 8;
		*at++ = (uint8_t)(1 | (count - 4) << 2 | distance >> 8 << 5);
		*at++ = (uint8_t)distance;
	} else {
		uint32_t bytes = distance < 65536 && test_random_below(2) == 0 ? 2 : 4;
		*at++ = (uint8_t)((count - 1) << 2 | (bytes == 2 ? 2 : 3));
		for (uint32_t i = 0; i < bytes; i++)
			*at++ = (uint8_t)(distance >> 8 * i);
	}
	for (uint64_t j = 0; j < count; j++, size++)
		wanted[size] = wanted[size - distance];
	*body_size = (size_t)(at - body);
	return size;
}

/* Streams of random elements against bytes kept beside them. */
static void test_random_streams(void)
{
	for (int round = 0; round < 2000; round++) {
		size_t size = 0, body_size = 0, head, cut;
		for (uint64_t i = test_random_below(round % 100 == 0 ? 80 : 20) + 1; i > 0 && size < 100000; i--)
			size = put_element(size, &body_size);
		head = cf_store_varint(stream, size);
		memcpy(stream + head, body, body_size);
		/* The last byte must stay as it is. */
		to[size] = 0xa5;
		CHECK_OK(cf_snappy_decode(stream, head + body_size, AT, to, size, &err), err);
		CHECK(memcmp(to, wanted, size) == 0 && to[size] == 0xa5);
		/* Cut anywhere it is bad. */
		cut = test_random_below(head + body_size);
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
