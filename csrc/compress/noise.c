/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Only samples of large data are examined, so that an estimate takes microseconds. Repetitions are found as fast coders
 * find them, with a table of hash tags, but without positions: the 8-byte word at each multiple of 16 is inserted. At
 * the start of each window the 15 words between are looked up; one of them aligns with an inserted word if data
 * repeats.
 */
#include "compress/noise.h"

#include "base/bytes.h"
#include "compress/planes.h"

enum {
	SAMPLES = 4,
	/* Units whose planes are counted, and the limit of the share of equal pairs among all pairs of bytes: one
	 * in 256 for noise. Bytes where it is below one in 194 (2 to the power of 7.6) cannot be compressed by 5 %. */
	UNITS = 512,
	PAIRS = 208,
	SIZE_MIN = 4096,
	/* Repetitions are searched for in a part of the data, within bounds. */
	SEARCH_PART = 16,
	SEARCH_MIN = 2048,
	SEARCH_MAX = 32768,
	STEP = 16,
	WINDOW = 512,
	SLOT_BITS = 11,
	/* Repetitions below one in this many are ignored. */
	RARE_WORDS = 64,
	RARE_WINDOWS = 32
};

/* Start of piece i of SAMPLES, at a whole unit of any size. */
static uint64_t piece_begin(uint64_t size, uint64_t piece, uint64_t i)
{
	return (size - piece) / (SAMPLES - 1) * i / STEP * STEP;
}

/* Whether equal pairs of bytes are as rare as in noise. */
static bool pairs_rare(const uint8_t *bytes, uint32_t count)
{
	uint16_t counts[256];
	uint32_t pairs = 0;
	memset(counts, 0, sizeof counts);
	for (uint32_t i = 0; i < count; i++)
		pairs += counts[bytes[i]]++;
	return 2 * pairs * PAIRS <= count * (count - 1);
}

static bool planes_are_noise(const uint8_t *raw, uint64_t size, uint32_t unit, bool rotate)
{
	enum { PART = UNITS / SAMPLES };
	uint8_t bytes[CF_PLANES_MAX][UNITS], *to[CF_PLANES_MAX];
	uint64_t units = size / unit;
	for (uint32_t p = 0; p < unit; p++)
		to[p] = bytes[p];
	if (units <= UNITS) {
		cf_planes_split(raw, units, unit, rotate, to);
	} else {
		for (uint64_t i = 0; i < SAMPLES; i++) {
			cf_planes_split(raw + piece_begin(size, (uint64_t)PART * unit, i), PART, unit, rotate, to);
			for (uint32_t p = 0; p < unit; p++)
				to[p] += PART;
		}
	}
	/* The last plane first: it holds the exponents, which repeat most. */
	for (uint32_t p = unit; p-- > 0;)
		if (!pairs_rare(bytes[p], (uint32_t)cf_min_u64(units, UNITS)))
			return false;
	return true;
}

static inline uint64_t hash_of(const uint8_t *word)
{
	return cf_load_u64(word) * UINT64_C(0x9e3779b97f4a7c15);
}

static inline uint32_t tag_of(uint64_t hash)
{
	return (uint32_t)(hash >> 16) | 1;
}

/* Whether 8-byte words repeat. */
static bool repeats(const uint8_t *raw, uint64_t size)
{
	uint32_t tags[1 << SLOT_BITS];
	uint64_t searched = cf_max_u64(cf_min_u64(size / SEARCH_PART, SEARCH_MAX), SEARCH_MIN);
	uint64_t piece = searched >= size ? size : searched / SAMPLES / WINDOW * WINDOW;
	uint64_t pieces = searched >= size ? 1 : SAMPLES, words = 0, again = 0, windows = 0, found = 0;
	memset(tags, 0, sizeof tags);
	for (uint64_t i = 0; i < pieces; i++) {
		const uint8_t *at = raw + (pieces == 1 ? 0 : piece_begin(size, piece, i));
		for (uint64_t done = 0; piece - done >= 2 * STEP; done += STEP) {
			uint64_t hash = hash_of(at + done);
			if (done % WINDOW == 0) {
				bool found_one = false;
				for (unsigned shift = 1; shift < STEP; shift++) {
					uint64_t other = hash_of(at + done + shift);
					found_one = found_one || tags[other >> (64 - SLOT_BITS)] == tag_of(other);
				}
				windows++;
				found += found_one;
			}
			again += tags[hash >> (64 - SLOT_BITS)] == tag_of(hash);
			tags[hash >> (64 - SLOT_BITS)] = tag_of(hash);
			words++;
		}
	}
	return again * RARE_WORDS > words || found * RARE_WINDOWS > windows;
}

bool cf_is_noise(const uint8_t *raw, uint64_t size, uint32_t unit, bool rotate)
{
	return size >= SIZE_MIN && planes_are_noise(raw, size, unit, rotate) && !repeats(raw, size);
}
