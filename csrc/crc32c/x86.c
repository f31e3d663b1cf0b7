/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C on x86-64.
 *
 *   sse42        three streams of CRC32 (8 bytes a cycle at best), joined by tables
 *   vpclmul256   the same beside carry-less folding of 256-bit vectors
 *
 *   fold   Four independent vectors each take VECTOR_SIZE bytes a round. At the end they are folded into one, which
 *          takes the remaining vectors; its two lanes are folded into one, and the CRC instruction reduces that to a
 *          state.
 *   fuse   The CRC instruction and the multiplier are different execution units, so a block is divided into one stream
 *          of four vectors and three streams of the instruction. One loop runs all four; their states are joined at
 *          its end. The vectors come first, so that they are aligned when the block is.
 *
 *          | vectors: rounds * ROUND_SIZE | first: rounds * FUSE_WORDS * 8 | second, as long | third, as long |
 *
 * tools/gen_crc32c_tables.py explains the mathematics. Below ROUND_SIZE bytes each variant is one stream of CRC32.
 * Copies use folding alone, because their stores compete with the scalar streams; copies larger than any cache use
 * non-temporal stores.
 */
#include "crc32c/crc32c.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define STREAMS_TARGET __attribute__((target("sse4.2")))
#define STREAMS_U64(state, word) ((uint32_t)_mm_crc32_u64(state, word))
#define STREAMS_U8(state, byte) _mm_crc32_u8(state, byte)
#include "crc32c/streams.h"

enum {
	LINE_SIZE = 64,
	LANE_SIZE = 16,
	VECTOR_SIZE = 32,
	VECTORS = 4,
	ROUND_SIZE = VECTORS * VECTOR_SIZE,
	FUSE_LEAST = 2048,
	ALIGN_LEAST = 4096,     /* from here on aligned vectors are worth the separate head */
	/* Measured on a Zen 3 with 32 MiB of third-level cache: up to 8 MiB plain stores are a quarter faster and
	 * leave the copy in the cache; at 16 MiB non-temporal stores are equal, at 64 MiB a fifth faster. */
	STREAM_LEAST = 16 << 20
};

enum store { STORE_NONE, STORE_PLAIN, STORE_STREAM };

#define TARGET __attribute__((target("sse4.2,pclmul,avx2,vpclmulqdq")))

static STREAMS_TARGET uint32_t small_update(uint32_t state, uint8_t *to, const uint8_t *from, size_t size)
{
	if (to == NULL)
		return one_stream(state, NULL, from, 0, size, false);
	return one_stream(state, to, from, 0, size, true);
}

/* ---- lanes of 128 bits ----------------------------------------------------------------------------------- */

CF_CRC32C_INLINE TARGET __m128i take_lane(uint8_t *to, const uint8_t *from, size_t at, bool copy)
{
	__m128i lane = _mm_loadu_si128((const __m128i *)(const void *)(from + at));
	if (copy) {
		__asm__("" : "+x"(lane));       /* as CF_CRC32C_PIN */
		_mm_storeu_si128((__m128i *)(void *)(to + at), lane);
	}
	return lane;
}

/* A row of cf_crc32c_fold. */
CF_CRC32C_INLINE TARGET __m128i lane_key(unsigned row)
{
	return _mm_set_epi64x(cf_crc32c_fold[row][1], cf_crc32c_fold[row][0]);
}

CF_CRC32C_INLINE TARGET __m128i fold_lane(__m128i lane, __m128i next)
{
	__m128i key = lane_key(CF_CRC32C_FOLD_16);
	__m128i low = _mm_clmulepi64_si128(lane, key, 0x00);
	__m128i high = _mm_clmulepi64_si128(lane, key, 0x11);
	return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* The state after the 16 bytes of a lane, starting from state 0. */
CF_CRC32C_INLINE TARGET uint32_t reduce_lane(__m128i lane)
{
	uint32_t state = STREAMS_U64(0, (uint64_t)_mm_cvtsi128_si64(lane));
	return STREAMS_U64(state, (uint64_t)_mm_extract_epi64(lane, 1));
}

CF_CRC32C_INLINE TARGET uint64_t multiply_registers(uint32_t a, uint32_t b)
{
	__m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0);
	return (uint64_t)_mm_cvtsi128_si64(product);
}

static TARGET uint32_t shift_pclmul(uint32_t state, uint64_t size)
{
	uint32_t rest = (uint32_t)(size % CF_CRC32C_ORDER);
	for (unsigned k = 0; rest != 0; k++, rest >>= 1) {
		if (rest & 1)
			state = STREAMS_U64(0, multiply_registers(state, cf_crc32c_power_join[k]));
	}
	return state;
}

/* ---- vectors of 256 bits --------------------------------------------------------------------------------- */

CF_CRC32C_INLINE TARGET __m256i take_vector(uint8_t *to, const uint8_t *from, size_t at, enum store store)
{
	__m256i vector = _mm256_loadu_si256((const __m256i *)(const void *)(from + at));
	if (store != STORE_NONE)
		__asm__("" : "+x"(vector));     /* as CF_CRC32C_PIN */
	if (store == STORE_PLAIN)
		_mm256_storeu_si256((__m256i *)(void *)(to + at), vector);
	if (store == STORE_STREAM)
		_mm256_stream_si256((__m256i *)(void *)(to + at), vector);
	return vector;
}

/* A row of cf_crc32c_fold in both lanes. */
CF_CRC32C_INLINE TARGET __m256i vector_key(unsigned row)
{
	return _mm256_broadcastsi128_si256(lane_key(row));
}

CF_CRC32C_INLINE TARGET __m256i fold_vector(__m256i v, __m256i key, __m256i next)
{
	__m256i low = _mm256_clmulepi64_epi128(v, key, 0x00);
	__m256i high = _mm256_clmulepi64_epi128(v, key, 0x11);
	return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

/* Folds consecutive vectors into one. */
CF_CRC32C_INLINE TARGET __m256i gather(const __m256i v[VECTORS])
{
	__m256i key = vector_key(CF_CRC32C_FOLD_32), result = v[0];
	CF_CRC32C_UNROLL
	for (unsigned i = 1; i < VECTORS; i++)
		result = fold_vector(result, key, v[i]);
	return result;
}

CF_CRC32C_INLINE TARGET __m128i fold_lanes(__m256i v)
{
	return fold_lane(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
}

/* REQUIRES: size >= ROUND_SIZE; for STORE_STREAM `to` is a multiple of VECTOR_SIZE. */
CF_CRC32C_INLINE TARGET uint32_t fold(uint32_t state, uint8_t *to, const uint8_t *from, size_t size, enum store store)
{
	__m256i v[VECTORS], all, key = vector_key(CF_CRC32C_FOLD_128);
	__m128i lane;
	size_t at = ROUND_SIZE;
	CF_CRC32C_UNROLL
	for (unsigned i = 0; i < VECTORS; i++)
		v[i] = take_vector(to, from, i * VECTOR_SIZE, store);
	v[0] = _mm256_xor_si256(v[0], _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)state)));
	for (; size - at >= ROUND_SIZE; at += ROUND_SIZE) {
		CF_CRC32C_UNROLL
		for (unsigned i = 0; i < VECTORS; i++)
			v[i] = fold_vector(v[i], key, take_vector(to, from, at + i * VECTOR_SIZE, store));
	}
	all = gather(v);
	for (; size - at >= VECTOR_SIZE; at += VECTOR_SIZE)
		all = fold_vector(all, vector_key(CF_CRC32C_FOLD_32), take_vector(to, from, at, store));
	lane = fold_lanes(all);
	for (; size - at >= LANE_SIZE; at += LANE_SIZE)
		lane = fold_lane(lane, take_lane(to, from, at, store != STORE_NONE));
	if (store == STORE_STREAM)
		_mm_sfence();
	return one_stream(reduce_lane(lane), to, from, at, size, store != STORE_NONE);
}

/* One block. REQUIRES: 1 <= rounds <= CF_CRC32C_FUSE_ROUNDS. */
CF_CRC32C_INLINE TARGET uint32_t fuse_block(uint32_t state, const uint8_t *from, size_t rounds)
{
	const uint32_t *joins = cf_crc32c_fuse[rounds - 1];
	const size_t part = rounds * CF_CRC32C_FUSE_WORDS * 8;
	const uint8_t *words = from + rounds * ROUND_SIZE, *end = words + part;
	uint32_t first = 0, second = 0, third = 0;
	__m256i v[VECTORS] = {_mm256_setzero_si256(), _mm256_setzero_si256(), _mm256_setzero_si256(),
		_mm256_setzero_si256()};
	__m256i key = vector_key(CF_CRC32C_FOLD_128);
	for (; words < end; from += ROUND_SIZE) {
		CF_CRC32C_UNROLL
		for (unsigned i = 0; i < VECTORS; i++)
			v[i] = fold_vector(v[i], key, take_vector(NULL, from, i * VECTOR_SIZE, STORE_NONE));
		CF_CRC32C_UNROLL
		for (unsigned i = 0; i < CF_CRC32C_FUSE_WORDS; i++, words += 8) {
			first = STREAMS_U64(first, cf_load_u64(words));
			second = STREAMS_U64(second, cf_load_u64(words + part));
			third = STREAMS_U64(third, cf_load_u64(words + 2 * part));
		}
	}
	/* The state is joined like the streams instead of starting the vectors, so that no block waits for the previous
	 * one. */
	return third ^ STREAMS_U64(0, multiply_registers(state, joins[0]) ^
		multiply_registers(reduce_lane(fold_lanes(gather(v))), joins[1]) ^ multiply_registers(first, joins[2]) ^
		multiply_registers(second, joins[3]));
}

static TARGET uint32_t update_vectors(uint32_t state, uint8_t *to, const uint8_t *from, size_t size)
{
	if (size >= ALIGN_LEAST) {
		size_t head = -(uintptr_t)(to == NULL ? from : to) % LINE_SIZE;
		state = small_update(state, to, from, head);
		to = to == NULL ? NULL : to + head;
		from += head;
		size -= head;
	}
	while (to == NULL && size >= FUSE_LEAST) {
		size_t round = ROUND_SIZE + 3 * 8 * CF_CRC32C_FUSE_WORDS;
		size_t rounds = (size_t)cf_min_u64(size / round, CF_CRC32C_FUSE_ROUNDS);
		state = fuse_block(state, from, rounds);
		from += rounds * round;
		size -= rounds * round;
	}
	if (size < ROUND_SIZE)
		return small_update(state, to, from, size);
	if (to == NULL)
		return fold(state, NULL, from, size, STORE_NONE);
	return size < STREAM_LEAST ? fold(state, to, from, size, STORE_PLAIN) : fold(state, to, from, size, STORE_STREAM);
}

/* ---- the table ------------------------------------------------------------------------------------------- */

/* The compiler's runtime queries CPUID and, for wide registers, XGETBV (does the system save them?). */
static bool has_sse42(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("sse4.2");
}

static bool has_vpclmul256(void)
{
	return has_sse42() && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("avx2") &&
		__builtin_cpu_supports("vpclmulqdq");
}

const cf_crc32c_variant cf_crc32c_x86[CF_CRC32C_X86_COUNT] = {
	{"sse42", "sse42", has_sse42, update_streams, cf_crc32c_shift_portable},
	{"vpclmul256", "avx2", has_vpclmul256, update_vectors, shift_pclmul},
};

#endif
