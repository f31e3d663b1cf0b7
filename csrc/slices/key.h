/* SPDX-License-Identifier: Apache-2.0 */
/* The key of the entry of one slice of a partitioned tensor in the index: the tensor's name and the
 * slice's extents in an order-preserving code. Bytewise order of keys is the order of (name, rank, extents). */
#ifndef CKPTFMT_SLICES_KEY_H
#define CKPTFMT_SLICES_KEY_H

#include "base/buffer.h"

#include <stdbool.h>

/* Appends the key of a slice to `out` (whose sticky failure is the only way to fail). A full dimension has start 0 and
 * length -1. Any start and length can be encoded; the caller checks that they are valid.
 * REQUIRES: 0 <= rank <= CKPTFMT_RANK_MAX. */
void cf_slice_key_encode(cf_buffer *out, const uint8_t *name, uint64_t name_size, int32_t rank, const int64_t *starts,
	const int64_t *lengths);

/* Takes a key apart, accepting exactly what cf_slice_key_encode writes for a slice that can exist: rank 1 to
 * CKPTFMT_RANK_MAX; each dimension full (0, -1) or start >= 0 and length >= 1 with an end that fits int64.
 * `name_out` is emptied and then gets the name; `starts` and `lengths` have room for CKPTFMT_RANK_MAX values.
 * False for any other key, and without memory: then *rank is 0 and the rest is unspecified. */
CF_MUST_CHECK bool cf_slice_key_decode(const uint8_t *key, uint64_t key_size, cf_buffer *name_out, int32_t *rank,
	int64_t *starts, int64_t *lengths);

/* Names the tensor of a key in an error: that of the slice, or the key itself if it is not a slice's. */
void cf_slice_key_error(ckptfmt_error *err, const uint8_t *key, uint64_t key_size);

/* Every slice key begins with a zero byte, but a tensor's name may as well: only a tensor that lists the slice proves
 * that the key is a slice's. */
static inline bool cf_slice_key_looks_like(const uint8_t *key, uint64_t key_size)
{
	return key_size != 0 && key[0] == 0;
}

#endif
