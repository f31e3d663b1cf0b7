/* SPDX-License-Identifier: Apache-2.0 */
/* Turns a strided array in memory into its row-major bytes, piece by piece, with the byte order and the unused bits as
 * the file wants them. */
#ifndef CKPTFMT_SLICES_GATHER_H
#define CKPTFMT_SLICES_GATHER_H

#include "base/error.h"

#include <stdbool.h>

enum {
	CF_GATHER_LOOPS_MAX = 64,       /* as CF_LOOPS_MAX, for the same reason */
	CF_MASK_NONE = 0xff
};

typedef struct cf_gather_loop {
	uint64_t count;         /* steps, at least 2 */
	int64_t stride;         /* bytes; any sign, and 0 */
	uint64_t index;         /* Invariant: index < count. */
} cf_gather_loop;

/* Owns no memory; about 1.5 KiB, of which only the part in use is written. */
typedef struct cf_gather {
	const uint8_t *data;
	int64_t at;             /* bytes from `data` to the run under work */
	uint64_t run_size;      /* contiguous bytes that stay contiguous */
	uint64_t run_used;      /* of that run; Invariant: run_used < run_size or left is 0 */
	uint64_t size;
	uint64_t left;
	uint32_t loop_count;
	uint32_t itemsize;
	uint32_t swap_size;
	uint8_t mask;
	cf_gather_loop loops[CF_GATHER_LOOPS_MAX];      /* innermost first */
} cf_gather;

/* Begins at the first element. `strides` NULL: row-major without gaps. Strides of dimensions of size 1, and all of them
 * where a size is 0, are ignored, as is `data` then. `swap_size`: 1, or 2, 4 or 8 to reverse each such group of bytes
 * (half an element for complex). `mask` is applied to every byte: CF_MASK_NONE, or the low bits of sub-byte types.
 * INVALID: a shape that cf_shape_count refuses, more than 2^63 - 1 bytes, strides that leave int64.
 * REQUIRES: itemsize >= 1 and a multiple of swap_size; every element is readable as long as the gather is used. */
CF_MUST_CHECK ckptfmt_status cf_gather_init(cf_gather *gather, const uint8_t *data, int32_t rank, const int64_t *dims,
	const int64_t *strides, uint32_t itemsize, uint32_t swap_size, uint8_t mask, ckptfmt_error *err);

/* Writes exactly the next `size` bytes of the row-major form. Pieces of many rows are faster than pieces of one where
 * the array is transposed. REQUIRES: size is a multiple of itemsize and not above cf_gather_left; `to` does not overlap
 * the array. */
void cf_gather_take(cf_gather *gather, uint8_t *to, uint64_t size);

/* Bytes in all, and bytes still to take. */
static inline uint64_t cf_gather_size(const cf_gather *gather)
{
	return gather->size;
}

static inline uint64_t cf_gather_left(const cf_gather *gather)
{
	return gather->left;
}

/* True when the array is already what cf_gather_take would give: then *data and *size are all of it and no copy is
 * needed. Does not move the gather. */
bool cf_gather_contiguous(const cf_gather *gather, const uint8_t **data, uint64_t *size);

/* Reverses each group of swap_size bytes in place. REQUIRES: swap_size is 1, 2, 4 or 8 and divides size. */
void cf_swap_bytes(uint8_t *data, uint64_t size, uint32_t swap_size);

#endif
