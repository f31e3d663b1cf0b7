/* SPDX-License-Identifier: Apache-2.0 */
/* Which bytes count as noise; nothing is read past their end. */
#include "test.h"

#include "compress/noise.h"

enum { LARGE = 1 << 20, SMALL = 1 << 15, UNTIDY = 70000 - 8, LEAST = 4096 };

static const uint32_t units[] = {1, 2, 4, 8};

/* Ends at unmapped pages; smaller content is at its end. */
static uint8_t *end;

static uint8_t *noise(uint64_t size)
{
	uint8_t *bytes = end - size;
	for (uint64_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)test_random();
	return bytes;
}

static void test_noise(void)
{
	static const uint64_t sizes[] = {SMALL, LARGE, UNTIDY, SMALL + 8};
	for (size_t s = 0; s < CF_ARRAY_COUNT(sizes); s++)
		for (size_t u = 0; u < CF_ARRAY_COUNT(units); u++)
			for (int rotate = 0; rotate < 2; rotate++)
				CHECK(cf_is_noise(noise(sizes[s]), sizes[s], units[u], rotate != 0));
}

/* All sizes are read within their bounds. Of few bytes nothing is said. */
static void test_sizes(void)
{
	for (uint64_t size = 0; size < LEAST; size += 8)
		CHECK(!cf_is_noise(noise(size), size, 8, false));
	for (uint64_t size = LEAST; size < LEAST + 2048; size += 8)
		for (size_t u = 0; u < CF_ARRAY_COUNT(units); u++)
			(void)cf_is_noise(noise(size), size, units[u], true);
	for (uint64_t size = 64 * LEAST - 64; size < 64 * LEAST + 64; size++)
		(void)cf_is_noise(noise(size), size, 1, false);
}

/* One plane of seven bits is enough. */
static void test_planes(void)
{
	for (size_t u = 0; u < CF_ARRAY_COUNT(units); u++)
		for (uint32_t p = 0; p < units[u]; p++) {
			uint8_t *bytes = noise(LARGE);
			for (uint64_t i = p; i < LARGE; i += units[u])
				bytes[i] &= 0x7f;
			CHECK(!cf_is_noise(bytes, LARGE, units[u], false));
		}
}

/* Of numbers on both sides of zero the sign hides what the exponent tells, and rotating shows it. */
static void test_rotation(void)
{
	uint8_t *bytes = noise(LARGE);
	for (uint64_t i = 1; i < LARGE; i += 2)
		bytes[i] = (uint8_t)((bytes[i] & 0x80) | (test_random() % 8 + 0x38));
	CHECK(!cf_is_noise(bytes, LARGE, 2, true));
	/* Seven bits of sixteen do not vary, and lie in either plane. */
	CHECK(!cf_is_noise(bytes, LARGE, 2, false));
}

/* `count` words of noise, each repeated, in random order. */
static void repeat_words(uint8_t *bytes, uint64_t size, uint64_t word, uint64_t count)
{
	uint8_t words[8192];
	for (uint64_t i = 0; i < word * count; i++)
		words[i] = (uint8_t)test_random();
	for (uint64_t at = 0; size - at >= word; at += word)
		memcpy(bytes + at, words + word * (test_random() % count), word);
}

static void test_repetitions(void)
{
	uint8_t *bytes = noise(LARGE);
	repeat_words(bytes, LARGE, 8, 1000);
	CHECK(!cf_is_noise(bytes, LARGE, 8, false));
	CHECK(!cf_is_noise(bytes, LARGE, 1, false));
	for (uint64_t period = 1000; period < 4000; period += 333) {
		bytes = noise(LARGE);
		for (uint64_t i = period; i < LARGE; i++)
			bytes[i] = bytes[i - period];
		CHECK(!cf_is_noise(bytes, LARGE, 1, false));
		CHECK(!cf_is_noise(bytes, LARGE, 4, false));
	}
	for (uint64_t i = 0; i < LARGE; i++)
		bytes[i] = (uint8_t)i;
	CHECK(!cf_is_noise(bytes, LARGE, 1, false));
	/* A few are no matter. */
	bytes = noise(LARGE);
	memcpy(bytes + 512, bytes, 128);
	CHECK(cf_is_noise(bytes, LARGE, 4, false));
}

/* The pieces that are looked at are spread over all of it. */
static void test_parts(void)
{
	for (uint64_t quarter = 0; quarter < 4; quarter++) {
		uint8_t *bytes = noise(LARGE);
		memset(bytes + quarter * (LARGE / 4), 0, LARGE / 4);
		CHECK(!cf_is_noise(bytes, LARGE, 2, false));
	}
}

int main(void)
{
	test_seed();
	end = test_guarded(LARGE) + LARGE;
	test_noise();
	test_sizes();
	test_planes();
	test_rotation();
	test_repetitions();
	test_parts();
	return test_finish("noise");
}
