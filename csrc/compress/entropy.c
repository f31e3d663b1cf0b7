/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of large data some pieces are looked at, so that it costs microseconds whatever there is. Repetitions are found with
 * a table of tags by hash, as fast coders find them, but without places: eight bytes at each multiple of sixteen go in,
 * and those between are looked up in windows, where one of sixteen in a row meets what went in.
 */
#include "compress/entropy.h"

#include "base/bytes.h"
#include "compress/planes.h"

enum {
	SAMPLES = 4,
	SAMPLE_SIZE = 512,
	SAMPLE_MAX = SAMPLES * SAMPLE_SIZE,
	/* Units of which the planes are counted, and which part of all pairs of bytes may be pairs of like ones: of noise
	 * it is one in 256. No coder takes a twentieth from bytes of which it is less than one in 194, 2 to the power of
	 * 7.6. */
	UNITS = 512,
	PAIRS = 208,
	DENSE_MIN = 4096,
	/* Repetitions are looked for in a part of the data, but within bounds. */
	LOOKED_PART = 16,
	LOOKED_MIN = 2048,
	LOOKED_MAX = 32768,
	STEP = 16,
	WINDOW = 512,
	SLOT_BITS = 11,
	/* Fewer repetitions than one part of these many do not matter. */
	RARE_WORDS = 64,
	RARE_WINDOWS = 32
};

/* 256 times the logarithm of a number of at most SAMPLE_MAX to the base of 2, to within a hundredth. */
static uint32_t log_256(uint32_t value)
{
	uint32_t whole = 31 - (uint32_t)__builtin_clz(value), rest = ((value << 8) >> whole) - 256;
	/* log2(1 + x) is nearly x + 0.34 x (1 - x) */
	return (whole << 8) + rest + (rest * (256 - rest) * 88 >> 16);
}

uint32_t cf_entropy(const uint8_t *bytes, uint64_t size)
{
	uint16_t counts[256];
	uint64_t step = size <= SAMPLE_MAX ? size : (size - SAMPLE_SIZE) / (SAMPLES - 1), sum = 0;
	uint32_t total = (uint32_t)cf_min_u64(size, SAMPLE_MAX), distinct = 0;
	if (total == 0)
		return 0;
	memset(counts, 0, sizeof counts);
	if (size <= SAMPLE_MAX)
		for (uint64_t i = 0; i < size; i++)
			counts[bytes[i]]++;
	else
		for (uint64_t s = 0; s < SAMPLES; s++)
			for (uint64_t i = 0; i < SAMPLE_SIZE; i++)
				counts[bytes[s * step + i]]++;
	for (uint32_t i = 0; i < 256; i++)
		if (counts[i] != 0) {
			sum += (uint64_t)counts[i] * log_256(counts[i]);
			distinct++;
		}
	/* A sample shows less than there is: half a bit of information a value, over the sample (Miller and Madow). */
	return log_256(total) - (uint32_t)(sum / total) + (distinct - 1) * 185 / total;
}

/* Where piece i of SAMPLES begins, at a unit of whatever kind. */
static uint64_t piece_begin(uint64_t size, uint64_t piece, uint64_t i)
{
	return (size - piece) / (SAMPLES - 1) * i / STEP * STEP;
}

/* Whether pairs of like bytes are as rare as in noise; several times as fast as the entropy, which is no less. */
static bool pairs_rare(const uint8_t *bytes, uint32_t count)
{
	uint16_t counts[256];
	uint32_t pairs = 0;
	memset(counts, 0, sizeof counts);
	for (uint32_t i = 0; i < count; i++)
		pairs += counts[bytes[i]]++;
	return 2 * pairs * PAIRS <= count * (count - 1);
}

static bool planes_dense(const uint8_t *raw, uint64_t size, uint32_t unit, bool rotate)
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
	/* The last plane first: of numbers that is where they are alike. */
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

/* `most`: bytes that are looked at. */
static bool comes_again(const uint8_t *raw, uint64_t size, uint64_t most)
{
	uint32_t tags[1 << SLOT_BITS];
	uint64_t looked = cf_max_u64(cf_min_u64(size / LOOKED_PART, most), LOOKED_MIN);
	uint64_t piece = looked >= size ? size : looked / SAMPLES / WINDOW * WINDOW;
	uint64_t pieces = looked >= size ? 1 : SAMPLES, words = 0, again = 0, windows = 0, found = 0;
	memset(tags, 0, sizeof tags);
	for (uint64_t i = 0; i < pieces; i++) {
		const uint8_t *at = raw + (pieces == 1 ? 0 : piece_begin(size, piece, i));
		for (uint64_t done = 0; piece - done >= 2 * STEP; done += STEP) {
			uint64_t hash = hash_of(at + done);
			if (done % WINDOW == 0) {
				bool met = false;
				for (unsigned shift = 1; shift < STEP; shift++) {
					uint64_t other = hash_of(at + done + shift);
					met = met || tags[other >> (64 - SLOT_BITS)] == tag_of(other);
				}
				windows++;
				found += met;
			}
			again += tags[hash >> (64 - SLOT_BITS)] == tag_of(hash);
			tags[hash >> (64 - SLOT_BITS)] = tag_of(hash);
			words++;
		}
	}
	return again * RARE_WORDS > words || found * RARE_WINDOWS > windows;
}

bool cf_is_incompressible(const uint8_t *raw, uint64_t size, uint32_t unit, bool rotate)
{
	return size >= DENSE_MIN && planes_dense(raw, size, unit, rotate) &&
		!comes_again(raw, size, LOOKED_MAX);
}

bool cf_seems_incompressible(const uint8_t *raw, uint64_t size, uint32_t unit, bool rotate)
{
	return size >= DENSE_MIN && planes_dense(raw, size, unit, rotate) && !comes_again(raw, size, LOOKED_MIN);
}
