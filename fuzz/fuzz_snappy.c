/* SPDX-License-Identifier: Apache-2.0 */
/* Property: any bytes as a Snappy stream either decode or fail as BAD_BLOCK; nothing outside them and the output is
 * touched; the output is never larger than 22 times the input; and a second decoder, written as plainly as can be,
 * agrees on which streams are good and on every byte of the output. */
#include "repair.h"

#include "table/snappy.h"

#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	(void)seed;
	return LLVMFuzzerMutate(data, size, capacity);
}

static int take(const uint8_t *bytes, size_t size, size_t *at, int count, uint64_t *out)
{
	*out = 0;
	for (int i = 0; i < count; i++) {
		if (*at == size)
			return 0;
		*out |= (uint64_t)bytes[(*at)++] << (8 * i);
	}
	return 1;
}

/* 1 if the elements from `at` on decode to exactly `to_size` bytes. */
static int plain_decode(const uint8_t *bytes, size_t size, size_t at, uint8_t *to, size_t to_size)
{
	size_t done = 0;
	while (at < size) {
		uint64_t tag = bytes[at++], count, distance;
		int literal = (tag & 3) == 0;
		if (literal) {
			count = tag >> 2;
			if (count >= 60 && !take(bytes, size, &at, (int)count - 59, &count))
				return 0;
			count++;
			distance = 0;
		} else if ((tag & 3) == 1) {
			count = 4 + ((tag >> 2) & 7);
			if (!take(bytes, size, &at, 1, &distance))
				return 0;
			distance += (tag >> 5) * 256;
		} else {
			count = 1 + (tag >> 2);
			if (!take(bytes, size, &at, (tag & 3) == 2 ? 2 : 4, &distance))
				return 0;
		}
		while (count-- > 0) {
			if (done == to_size || (literal ? at == size : distance == 0 || distance > done))
				return 0;
			to[done] = literal ? bytes[at++] : to[done - distance];
			done++;
		}
	}
	return done == to_size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint64_t declared = 0, decoded_size, plain_size = 0;
	size_t at = 0;
	uint8_t *decoded, *plain;
	ckptfmt_error err;
	int good, plain_good;
	while (at < size && at < 5 && data[at] >= 0x80)
		at++;
	if (at < size && at < 5) {
		for (size_t i = 0; i <= at; i++)
			plain_size |= (uint64_t)(data[i] & 0x7f) << (7 * i);
		declared = plain_size;
		at++;
	} else {
		at = size + 1;
	}
	if (cf_snappy_size(data, size, 0, &decoded_size, &err) != CKPTFMT_OK) {
		FUZZ_CHECK(err.failure == CKPTFMT_FAIL_BAD_BLOCK);
		if (at > size || declared > 22 * (uint64_t)size)
			return 0;
		decoded_size = declared;
		good = 0;
	} else {
		FUZZ_CHECK(at <= size && decoded_size == declared && decoded_size <= 22 * (uint64_t)size);
		good = 1;
	}
	decoded = malloc((size_t)decoded_size + 1);
	plain = malloc((size_t)decoded_size + 1);
	FUZZ_CHECK(decoded != NULL && plain != NULL);
	if (good && cf_snappy_decode(data, size, 0, decoded, decoded_size, &err) != CKPTFMT_OK) {
		FUZZ_CHECK(err.failure == CKPTFMT_FAIL_BAD_BLOCK && err.offset <= size);
		good = 0;
	}
	plain_good = plain_decode(data, size, at, plain, (size_t)decoded_size);
	FUZZ_CHECK(good == plain_good);
	if (good)
		FUZZ_CHECK(memcmp(decoded, plain, (size_t)decoded_size) == 0);
	free(decoded);
	free(plain);
	return 0;
}
