/* SPDX-License-Identifier: Apache-2.0 */
/* Compiler attributes and arithmetic on sizes that reports overflow. Sizes from a file are added and multiplied
 * only through these. */
#ifndef CKPTFMT_BASE_ARITH_H
#define CKPTFMT_BASE_ARITH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CF_ARRAY_COUNT(array) (sizeof(array) / sizeof((array)[0]))
#define CF_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#define CF_PRINTF(format_at, values_at) __attribute__((format(printf, format_at, values_at)))
#define CF_MUST_CHECK __attribute__((warn_unused_result))
#define CF_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define CF_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Each returns false, with *out unspecified, if the result overflows. */
static inline CF_MUST_CHECK bool cf_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
	return !__builtin_add_overflow(a, b, out);
}

static inline CF_MUST_CHECK bool cf_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
	return !__builtin_mul_overflow(a, b, out);
}

static inline CF_MUST_CHECK bool cf_add_i64(int64_t a, int64_t b, int64_t *out)
{
	return !__builtin_add_overflow(a, b, out);
}

static inline CF_MUST_CHECK bool cf_mul_i64(int64_t a, int64_t b, int64_t *out)
{
	return !__builtin_mul_overflow(a, b, out);
}

/* Rounds `value` up to a multiple of `unit`. REQUIRES: unit > 0. */
static inline CF_MUST_CHECK bool cf_align_u64(uint64_t value, uint64_t unit, uint64_t *out)
{
	uint64_t rest = value % unit;
	return cf_add_u64(value, rest == 0 ? 0 : unit - rest, out);
}

static inline uint64_t cf_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t cf_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

/* Whether [offset, offset + size) is within `total` bytes. */
static inline bool cf_range_fits(uint64_t offset, uint64_t size, uint64_t total)
{
	return offset <= total && size <= total - offset;
}

#endif
