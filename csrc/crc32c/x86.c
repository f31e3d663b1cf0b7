/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C on x86-64.
 *
 *   sse42        three streams of CRC32 (8 bytes a cycle at best), joined by tables
 *   pclmul       the same beside 128-bit folding
 *   vpclmul256   the same beside 256-bit folding: CPUs with VPCLMULQDQ but without AVX-512
 *   vpclmul512   the same beside 512-bit folding
 *
 * Below 128 bytes each variant is one stream of CRC32. Copies use folding alone, because their stores compete with the
 * scalar streams; with 128 bits the streams alone are faster. Copies larger than any cache use non-temporal stores.
 *
 * A variant uses only its own extensions: valgrind, for example, does not support AVX-512.
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
	ALIGN_LEAST = 4096,
	/* Measured on a Zen 3 with 32 MiB of third-level cache: up to 8 MiB plain stores are a quarter faster and
	 * leave the copy in the cache; at 16 MiB non-temporal stores are equal, at 64 MiB a fifth faster. */
	STREAM_LEAST = 16 << 20
};

enum store { STORE_NONE, STORE_PLAIN, STORE_STREAM };

#define TARGET_128 __attribute__((target("sse4.2,pclmul")))
#define TARGET_256 __attribute__((target("sse4.2,pclmul,avx2,vpclmulqdq")))
#define TARGET_512 __attribute__((target("sse4.2,pclmul,avx2,vpclmulqdq,avx512f")))

static STREAMS_TARGET uint32_t small_update(uint32_t state, uint8_t *to, const uint8_t *from, size_t size)
{
	if (to == NULL)
		return one_stream(state, NULL, from, 0, size, false);
	return one_stream(state, to, from, 0, size, true);
}

/* ---- 128 bits -------------------------------------------------------------------------------------------- */

CF_CRC32C_INLINE TARGET_128 __m128i take_lane(uint8_t *to, const uint8_t *from, size_t at, bool copy)
{
	__m128i lane = _mm_loadu_si128((const __m128i *)(const void *)(from + at));
	if (copy) {
		__asm__("" : "+x"(lane));
		_mm_storeu_si128((__m128i *)(void *)(to + at), lane);
	}
	return lane;
}

CF_CRC32C_INLINE TARGET_128 __m128i lane_key(unsigned row)
{
	return _mm_set_epi64x(cf_crc32c_fold[row][1], cf_crc32c_fold[row][0]);
}

CF_CRC32C_INLINE TARGET_128 __m128i fold_step(__m128i lane, __m128i key, __m128i next)
{
	__m128i low = _mm_clmulepi64_si128(lane, key, 0x00);
	__m128i high = _mm_clmulepi64_si128(lane, key, 0x11);
	return _mm_xor_si128(_mm_xor_si128(low, high), next);
}

/* The state after the 16 bytes of a lane, starting from state 0. */
CF_CRC32C_INLINE TARGET_128 uint32_t reduce_lane(__m128i lane)
{
	uint32_t state = STREAMS_U64(0, (uint64_t)_mm_cvtsi128_si64(lane));
	return STREAMS_U64(state, (uint64_t)_mm_extract_epi64(lane, 1));
}

CF_CRC32C_INLINE TARGET_128 uint64_t multiply_registers(uint32_t a, uint32_t b)
{
	__m128i product = _mm_clmulepi64_si128(_mm_cvtsi32_si128((int)a), _mm_cvtsi32_si128((int)b), 0);
	return (uint64_t)_mm_cvtsi128_si64(product);
}

static TARGET_128 uint32_t shift_pclmul(uint32_t state, uint64_t size)
{
	uint32_t rest = (uint32_t)(size % CF_CRC32C_ORDER);
	for (unsigned k = 0; rest != 0; k++, rest >>= 1) {
		if (rest & 1)
			state = STREAMS_U64(0, multiply_registers(state, cf_crc32c_power_join[k]));
	}
	return state;
}

#define FOLD_NAME(name) name##_128
#define FOLD_TARGET TARGET_128
#define FOLD_VECTOR __m128i
#define FOLD_SIZE 16
#define FOLD_LOAD(from) _mm_loadu_si128((const __m128i *)(const void *)(from))
#define FOLD_STORE(to, v) _mm_storeu_si128((__m128i *)(void *)(to), v)
#define FOLD_STREAM(to, v) _mm_stream_si128((__m128i *)(void *)(to), v)
#define FOLD_PIN(v) __asm__("" : "+x"(v))
#define FOLD_ZERO _mm_setzero_si128()
#define FOLD_KEY(row) lane_key(row)
#define FOLD_STEP(v, key, next) fold_step(v, key, next)
#define FOLD_BEGIN(v, state) _mm_xor_si128(v, _mm_cvtsi32_si128((int)(state)))
#define FOLD_LANES(v) (v)
#define FOLD_ROW_1 CF_CRC32C_FOLD_16
#define FOLD_ROW_2 CF_CRC32C_FOLD_32
#define FOLD_ROW_4 CF_CRC32C_FOLD_64
#define FOLD_WORDS CF_CRC32C_FUSE_WORDS_16
#define FOLD_JOINS cf_crc32c_fuse_16
#define FOLD_LEAST 128
#define FUSE_LEAST 512
#define FOLD_SMALL(state, to, from, size) small_update(state, to, from, size)
#define FOLD_COPY(state, to, from, size) three_streams(state, to, from, size, true)
#include "crc32c/fold.h"

/* ---- 256 bits -------------------------------------------------------------------------------------------- */

CF_CRC32C_INLINE TARGET_256 __m256i fold_step_256(__m256i v, __m256i key, __m256i next)
{
	__m256i low = _mm256_clmulepi64_epi128(v, key, 0x00);
	__m256i high = _mm256_clmulepi64_epi128(v, key, 0x11);
	return _mm256_xor_si256(_mm256_xor_si256(low, high), next);
}

CF_CRC32C_INLINE TARGET_256 __m128i fold_lanes_256(__m256i v)
{
	return fold_step(_mm256_castsi256_si128(v), lane_key(CF_CRC32C_FOLD_16), _mm256_extracti128_si256(v, 1));
}

#define FOLD_NAME(name) name##_256
#define FOLD_TARGET TARGET_256
#define FOLD_VECTOR __m256i
#define FOLD_SIZE 32
#define FOLD_LOAD(from) _mm256_loadu_si256((const __m256i *)(const void *)(from))
#define FOLD_STORE(to, v) _mm256_storeu_si256((__m256i *)(void *)(to), v)
#define FOLD_STREAM(to, v) _mm256_stream_si256((__m256i *)(void *)(to), v)
#define FOLD_PIN(v) __asm__("" : "+x"(v))
#define FOLD_ZERO _mm256_setzero_si256()
#define FOLD_KEY(row) _mm256_broadcastsi128_si256(lane_key(row))
#define FOLD_STEP(v, key, next) fold_step_256(v, key, next)
#define FOLD_BEGIN(v, state) _mm256_xor_si256(v, _mm256_zextsi128_si256(_mm_cvtsi32_si128((int)(state))))
#define FOLD_LANES(v) fold_lanes_256(v)
#define FOLD_ROW_1 CF_CRC32C_FOLD_32
#define FOLD_ROW_2 CF_CRC32C_FOLD_64
#define FOLD_ROW_4 CF_CRC32C_FOLD_128
#define FOLD_WORDS CF_CRC32C_FUSE_WORDS_32
#define FOLD_JOINS cf_crc32c_fuse_32
#define FOLD_LEAST 128
#define FUSE_LEAST 2048
#define FOLD_SMALL(state, to, from, size) small_update(state, to, from, size)
#define FOLD_COPY(state, to, from, size) fold_256(state, to, from, size, STORE_PLAIN)
#include "crc32c/fold.h"

/* ---- 512 bits -------------------------------------------------------------------------------------------- */

CF_CRC32C_INLINE TARGET_512 __m512i fold_step_512(__m512i v, __m512i key, __m512i next)
{
	enum { XOR_OF_THREE = 0x96 };
	__m512i low = _mm512_clmulepi64_epi128(v, key, 0x00);
	__m512i high = _mm512_clmulepi64_epi128(v, key, 0x11);
	return _mm512_ternarylogic_epi64(low, high, next, XOR_OF_THREE);
}

CF_CRC32C_INLINE TARGET_512 __m128i fold_lanes_512(__m512i v)
{
	__m128i lane = _mm512_extracti32x4_epi32(v, 3);
	lane = fold_step(_mm512_castsi512_si128(v), lane_key(CF_CRC32C_FOLD_48), lane);
	lane = fold_step(_mm512_extracti32x4_epi32(v, 1), lane_key(CF_CRC32C_FOLD_32), lane);
	return fold_step(_mm512_extracti32x4_epi32(v, 2), lane_key(CF_CRC32C_FOLD_16), lane);
}

#define FOLD_NAME(name) name##_512
#define FOLD_TARGET TARGET_512
#define FOLD_VECTOR __m512i
#define FOLD_SIZE 64
#define FOLD_LOAD(from) _mm512_loadu_si512(from)
#define FOLD_STORE(to, v) _mm512_storeu_si512(to, v)
#define FOLD_STREAM(to, v) _mm512_stream_si512((__m512i *)(void *)(to), v)
#define FOLD_PIN(v) __asm__("" : "+v"(v))
#define FOLD_ZERO _mm512_setzero_si512()
#define FOLD_KEY(row) _mm512_broadcast_i32x4(lane_key(row))
#define FOLD_STEP(v, key, next) fold_step_512(v, key, next)
#define FOLD_BEGIN(v, state) _mm512_xor_si512(v, _mm512_zextsi128_si512(_mm_cvtsi32_si128((int)(state))))
#define FOLD_LANES(v) fold_lanes_512(v)
#define FOLD_ROW_1 CF_CRC32C_FOLD_64
#define FOLD_ROW_2 CF_CRC32C_FOLD_128
#define FOLD_ROW_4 CF_CRC32C_FOLD_256
#define FOLD_WORDS CF_CRC32C_FUSE_WORDS_64
#define FOLD_JOINS cf_crc32c_fuse_64
#define FOLD_LEAST 256
#define FUSE_LEAST 4096
#define FOLD_SMALL(state, to, from, size) update_256(state, to, from, size)
#define FOLD_COPY(state, to, from, size) fold_512(state, to, from, size, STORE_PLAIN)
#include "crc32c/fold.h"

/* ---- the table ------------------------------------------------------------------------------------------- */

/* The compiler's runtime queries CPUID and, for wide registers, XGETBV (does the system save them?). */
static bool has_sse42(void)
{
	__builtin_cpu_init();
	return __builtin_cpu_supports("sse4.2");
}

static bool has_pclmul(void)
{
	return has_sse42() && __builtin_cpu_supports("pclmul");
}

static bool has_vpclmul256(void)
{
	return has_pclmul() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("vpclmulqdq");
}

static bool has_vpclmul512(void)
{
	return has_vpclmul256() && __builtin_cpu_supports("avx512f");
}

const cf_crc32c_variant cf_crc32c_x86[CF_CRC32C_X86_COUNT] = {
	{"sse42", "sse42", has_sse42, update_streams, cf_crc32c_shift_portable},
	{"pclmul", "pclmul", has_pclmul, update_128, shift_pclmul},
	{"vpclmul256", "avx2", has_vpclmul256, update_256, shift_pclmul},
	{"vpclmul512", "avx512", has_vpclmul512, update_512, shift_pclmul},
};

#endif
