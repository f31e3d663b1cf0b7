/* SPDX-License-Identifier: Apache-2.0 */
/* Geometry of slices: boxes of cells in the index space of a tensor. A box is `rank` starts and `rank` lengths; as
 * stored, a full dimension is start 0 and length -1. */
#ifndef CKPTFMT_SLICES_BOX_H
#define CKPTFMT_SLICES_BOX_H

#include "base/error.h"

#include <stdbool.h>

/* The number of elements of a shape (SHP-2 to SHP-4): false for a rank outside 0 to CKPTFMT_RANK_MAX, a negative size,
 * or a running product, taken from the left, that does not fit int64. A zero stops the growth of the product but not
 * the checks. Rank 0 has one element. */
CF_MUST_CHECK bool cf_shape_count(int32_t rank, const int64_t *dims, int64_t *count);

/* Checks one stored slice against the shape (SLC-3, SLC-4: a length is -1 with start 0, or >= 1 and inside the shape)
 * and writes it with its full dimensions resolved to starts_out and lengths_out (may be NULL, may be the inputs).
 * BAD_SLICE with the dimension; no offset. REQUIRES: cf_shape_count accepts the shape. */
CF_MUST_CHECK ckptfmt_status cf_box_resolve(int32_t rank, const int64_t *dims, const int64_t *starts,
	const int64_t *lengths, int64_t *starts_out, int64_t *lengths_out, ckptfmt_error *err);

/* Checks a box that a caller asks for: start >= 0, length >= 0, inside the shape. INVALID. */
CF_MUST_CHECK ckptfmt_status cf_box_check_request(int32_t rank, const int64_t *dims, const int64_t *starts,
	const int64_t *lengths, ckptfmt_error *err);

/* The number of cells of a resolved box. REQUIRES: it is inside a shape that cf_shape_count accepts. */
int64_t cf_box_count(int32_t rank, const int64_t *lengths);

/* The common part of two resolved boxes; false, and unspecified outputs, when there is none. */
bool cf_box_intersect(int32_t rank, const int64_t *starts_a, const int64_t *lengths_a, const int64_t *starts_b,
	const int64_t *lengths_b, int64_t *starts, int64_t *lengths);

/* The slices of one tensor: box number i is `rank` starts, then `rank` lengths, at extents + i * 2 * rank. A length of
 * -1 is resolved by `dims`.
 * REQUIRES of every function below: cf_box_resolve accepts each box, cf_shape_count the shape. */
typedef struct cf_boxes {
	const int64_t *dims;
	const int64_t *extents;
	uint64_t count;
	int32_t rank;
} cf_boxes;

/* SLC-6. BAD_SLICE: two boxes share a cell; the message names their rows, and `rows` (may be NULL) gets them, the lower
 * first. In a dimension of size 0 all boxes count as intersecting, so that the same slice twice is found there too, as
 * TensorFlow finds it. Takes 32 bytes a box and compares the pairs that intersect on one axis, so a grid of n boxes in
 * two dimensions takes n * sqrt(n) steps. LIMIT: more than 2^27 steps (a second). NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_boxes_check_disjoint(const cf_boxes *boxes, uint64_t rows[2], ckptfmt_error *err);

/* SLC-11: the boxes cover the request (resolved, lengths >= 0). BAD_SLICE otherwise, with the number of cells outside
 * of all boxes and the first indexes that lack some, in dimension 0. REQUIRES: the boxes are disjoint. One pass over
 * them, which allocates nothing unless cells are missing. */
CF_MUST_CHECK ckptfmt_status cf_boxes_cover(const cf_boxes *boxes, const int64_t *request_starts,
	const int64_t *request_lengths, ckptfmt_error *err);

#endif
