/* SPDX-License-Identifier: Apache-2.0 */
/* Byte planes with AVX2: 64 bytes of units of 2, 128 of units of 4. Other units use the portable code. */
#include "compress/planes.h"

#if defined(__x86_64__)

#include <immintrin.h>

#define TARGET __attribute__((target("avx2")))
#define INLINE static inline __attribute__((always_inline)) TARGET

INLINE __m256i load(const uint8_t *from)
{
	return _mm256_loadu_si256((const __m256i *)(const void *)from);
}

INLINE void store(uint8_t *to, __m256i value)
{
	_mm256_storeu_si256((__m256i *)(void *)to, value);
}

INLINE __m256i left_2(__m256i v, bool rotate)
{
	return rotate ? _mm256_or_si256(_mm256_slli_epi16(v, 1), _mm256_srli_epi16(v, 15)) : v;
}

INLINE __m256i right_2(__m256i v, bool rotate)
{
	return rotate ? _mm256_or_si256(_mm256_srli_epi16(v, 1), _mm256_slli_epi16(v, 15)) : v;
}

INLINE __m256i left_4(__m256i v, bool rotate)
{
	return rotate ? _mm256_or_si256(_mm256_slli_epi32(v, 1), _mm256_srli_epi32(v, 31)) : v;
}

INLINE __m256i right_4(__m256i v, bool rotate)
{
	return rotate ? _mm256_or_si256(_mm256_srli_epi32(v, 1), _mm256_slli_epi32(v, 31)) : v;
}

INLINE uint64_t split_2(const uint8_t *from, uint64_t count, bool rotate, uint8_t *const *planes)
{
	const __m256i low = _mm256_set1_epi16(0xff);
	uint64_t at = 0;
	for (; count - at >= 32; at += 32) {
		__m256i a = left_2(load(from + 2 * at), rotate), b = left_2(load(from + 2 * at + 32), rotate);
		__m256i even = _mm256_packus_epi16(_mm256_and_si256(a, low), _mm256_and_si256(b, low));
		__m256i odd = _mm256_packus_epi16(_mm256_srli_epi16(a, 8), _mm256_srli_epi16(b, 8));
		store(planes[0] + at, _mm256_permute4x64_epi64(even, 0xd8));
		store(planes[1] + at, _mm256_permute4x64_epi64(odd, 0xd8));
	}
	return at;
}

INLINE uint64_t join_2(uint8_t *to, uint64_t count, bool rotate, const uint8_t *const *planes)
{
	uint64_t at = 0;
	for (; count - at >= 32; at += 32) {
		__m256i even = _mm256_permute4x64_epi64(load(planes[0] + at), 0xd8);
		__m256i odd = _mm256_permute4x64_epi64(load(planes[1] + at), 0xd8);
		store(to + 2 * at, right_2(_mm256_unpacklo_epi8(even, odd), rotate));
		store(to + 2 * at + 32, right_2(_mm256_unpackhi_epi8(even, odd), rotate));
	}
	return at;
}

/* Transposes a 4x4 matrix of 64-bit lanes. */
INLINE void transpose_lanes(__m256i v[4])
{
	__m256i a = _mm256_unpacklo_epi64(v[0], v[1]), b = _mm256_unpackhi_epi64(v[0], v[1]);
	__m256i c = _mm256_unpacklo_epi64(v[2], v[3]), d = _mm256_unpackhi_epi64(v[2], v[3]);
	v[0] = _mm256_permute2x128_si256(a, c, 0x20);
	v[1] = _mm256_permute2x128_si256(b, d, 0x20);
	v[2] = _mm256_permute2x128_si256(a, c, 0x31);
	v[3] = _mm256_permute2x128_si256(b, d, 0x31);
}

INLINE __m256i group_order(void)
{
	return _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10,
		14, 3, 7, 11, 15);
}

INLINE uint64_t split_4(const uint8_t *from, uint64_t count, bool rotate, uint8_t *const *planes)
{
	const __m256i halves = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
	uint64_t at = 0;
	for (; count - at >= 32; at += 32) {
		__m256i v[4];
		for (unsigned i = 0; i < 4; i++) {
			v[i] = _mm256_shuffle_epi8(left_4(load(from + 4 * at + 32 * i), rotate), group_order());
			v[i] = _mm256_permutevar8x32_epi32(v[i], halves);
		}
		transpose_lanes(v);
		for (unsigned p = 0; p < 4; p++)
			store(planes[p] + at, v[p]);
	}
	return at;
}

INLINE uint64_t join_4(uint8_t *to, uint64_t count, bool rotate, const uint8_t *const *planes)
{
	const __m256i halves = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7);
	uint64_t at = 0;
	for (; count - at >= 32; at += 32) {
		__m256i v[4];
		for (unsigned p = 0; p < 4; p++)
			v[p] = load(planes[p] + at);
		transpose_lanes(v);
		for (unsigned i = 0; i < 4; i++) {
			v[i] = _mm256_permutevar8x32_epi32(v[i], halves);
			/* The byte order of a 4x4 transposition is its own inverse. */
			v[i] = _mm256_shuffle_epi8(v[i], group_order());
			store(to + 4 * at + 32 * i, right_4(v[i], rotate));
		}
	}
	return at;
}

static bool has_avx2(void)
{
	return __builtin_cpu_supports("avx2");
}

static TARGET void split_avx2(const uint8_t *from, uint64_t count, uint32_t unit, bool rotate, uint8_t *const *planes)
{
	uint64_t done;
	if (unit == 2)
		done = rotate ? split_2(from, count, true, planes) : split_2(from, count, false, planes);
	else if (unit == 4)
		done = rotate ? split_4(from, count, true, planes) : split_4(from, count, false, planes);
	else {
		cf_planes_portable.split(from, count, unit, rotate, planes);
		return;
	}
	cf_planes_split_rest(from, done, count, unit, rotate, planes);
}

static TARGET void join_avx2(uint8_t *to, uint64_t count, uint32_t unit, bool rotate, const uint8_t *const *planes)
{
	uint64_t done;
	if (unit == 2)
		done = rotate ? join_2(to, count, true, planes) : join_2(to, count, false, planes);
	else if (unit == 4)
		done = rotate ? join_4(to, count, true, planes) : join_4(to, count, false, planes);
	else {
		cf_planes_portable.join(to, count, unit, rotate, planes);
		return;
	}
	cf_planes_join_rest(to, done, count, unit, rotate, planes);
}

const cf_planes_variant cf_planes_avx2 = {"avx2", "avx2", has_avx2, split_avx2, join_avx2};

#endif
