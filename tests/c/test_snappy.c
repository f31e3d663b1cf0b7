/* SPDX-License-Identifier: Apache-2.0 */
/* The Snappy decoder: rules SNP-2 to SNP-9. */
#include "test.h"

#include "base/bytes.h"
#include "table/snappy.h"

enum { AT = 300, SIZE_MAX_TRIED = 64 };

static ckptfmt_error err;

static void check_decodes(const void *stream, size_t size, const void *wanted, size_t wanted_size)
{
	uint8_t *from = test_guarded_copy(stream, size), *to = test_guarded(wanted_size);
	uint64_t declared;
	CHECK_OK(cf_snappy_size(from, size, AT, &declared, &err), err);
	CHECK_EQ(declared, wanted_size);
	CHECK_OK(cf_snappy_decode(from, size, AT, to, wanted_size, &err), err);
	CHECK(wanted_size == 0 || memcmp(to, wanted, wanted_size) == 0);
}

static void check_fails(const void *stream, size_t size, const char *rule, uint64_t offset)
{
	uint8_t *from = test_guarded_copy(stream, size), *to;
	uint64_t declared;
	ckptfmt_status status = cf_snappy_size(from, size, AT, &declared, &err);
	if (status == CKPTFMT_OK) {
		to = test_guarded((size_t)declared);
		status = cf_snappy_decode(from, size, AT, to, declared, &err);
	}
	CHECK_FAILS(status, err, CKPTFMT_FAIL_BAD_BLOCK, rule);
	CHECK_EQ(err.offset, AT + offset);
}

static void test_elements(void)
{
	static uint8_t repeated[1 + 64 * 4];
	uint8_t sized[3 + 70];
	check_decodes("\0", 1, "", 0);
	check_decodes("\1\0a", 3, "a", 1);
	check_decodes("\4\x0c" "abcd", 6, "abcd", 4);
	/* The three copies; the middle one as long as can be. */
	check_decodes("\x0f\x0c" "abcd\x1d\4", 8, "abcdabcdabcdabc", 15);
	check_decodes("\6\x0c" "abcd\6\3\0", 9, "abcdbc", 6);
	check_decodes("\6\x0c" "abcd\7\4\0\0\0", 11, "abcdab", 6);
	memset(repeated, 'a', sizeof repeated);
	check_decodes("\x81\2\0a\xfe\1\0\xfe\1\0\xfe\1\0\xfe\1\0", 16, repeated, sizeof repeated);
	memcpy(sized, "\x46\xf0\x45", 3);
	memset(sized + 3, 'a', 70);
	check_decodes(sized, sizeof sized, repeated, 70);
	check_decodes("\2\xf4\1\0ab", 6, "ab", 2);
	check_decodes("\2\xf8\1\0\0ab", 7, "ab", 2);
	check_decodes("\2\xfc\1\0\0\0ab", 8, "ab", 2);
	/* A short copy whose distance has more than eight bits: 300 bytes of literal, then 4 from 300 back. */
	uint8_t far[2 + 3 + 300 + 2] = {0xb0, 2, 0xf4, 0x2b, 1};
	uint8_t wanted[304];
	for (int i = 0; i < 300; i++)
		far[5 + i] = wanted[i] = (uint8_t)i;
	memcpy(wanted + 300, wanted, 4);
	far[305] = 1 | 1 << 5;
	far[306] = 300 - 256;
	check_decodes(far, sizeof far, wanted, sizeof wanted);
}

static void test_bad(void)
{
	check_fails("", 0, "SNP-2: ", 0);
	check_fails("\x80\x80", 2, "SNP-2: ", 0);
	check_fails("\xff\xff\xff\xff\x10", 5, "SNP-2: ", 0);
	check_fails("\xf0\xff\xff\xff\x0f\0a", 7, "SNP-3: ", 0);
	check_fails("\5\0a\1\0", 5, "SNP-6: ", 3);
	check_fails("\5\0a\1\2", 5, "SNP-6: ", 3);
	check_fails("\5\0a\xfe\0\0", 6, "SNP-9: ", 3);
	check_fails("\x41\0a\xfe\0\0", 6, "SNP-6: ", 3);
	check_fails("\x04\1\1", 3, "SNP-3: ", 0);
	check_fails("\x0a\1\1\1\1\1\1", 7, "SNP-6: ", 1);
	check_fails("\5\0a\xfe\1", 5, "SNP-8: ", 3);
	check_fails("\5\0a\x03\1\0\0", 7, "SNP-8: ", 3);
	check_fails("\5\0a\1", 4, "SNP-3: ", 0);
	check_fails("\2\0a\1", 4, "SNP-8: ", 3);
	check_fails("\5\x10" "abc", 5, "SNP-8: ", 1);
	check_fails("\3\x10" "abcd", 6, "SNP-9: ", 1);
	check_fails("\5\0a\x08" "abc", 7, "SNP-9: ", 7);
	check_fails("\x12\xf0\x11" "abcd\x05\1", 9, "SNP-8: ", 1);
	check_fails("\5\0a\xf4\1", 5, "SNP-8: ", 3);
	check_fails("\3\0a", 3, "SNP-3: ", 0);
	check_fails("\0\0a", 3, "SNP-9: ", 1);
}

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
	test_elements();
	test_bad();
	test_other_size();
	test_bound();
	test_random_streams();
	return test_finish("test_snappy");
}
