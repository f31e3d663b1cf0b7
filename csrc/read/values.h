/* SPDX-License-Identifier: Apache-2.0 */
/* The intersection of a request with a stored value, and whether the stored slices of a tensor fit together (rules
 * SLC). */
#ifndef CKPTFMT_READ_VALUES_H
#define CKPTFMT_READ_VALUES_H

#include "read/reader.h"
#include "slices/plan.h"

#define CF_WHOLE_TENSOR UINT64_MAX      /* instead of a slice's number: the tensor is stored whole */

/* What reading a stored value (`slice` CF_WHOLE_TENSOR: that of a tensor stored whole) takes for granted: it exists, is
 * stored in a way that this version knows, and has a place and the size that dtype and shape say (ENT-3 to ENT-5,
 * SLC-7 to SLC-9, EXT-3 to EXT-5). `itemsize` 0: of any size (strings). BAD_ENTRY, BAD_SLICE, UNSUPPORTED.
 * REQUIRES: of a slice, cf_geometry_check_cover passed. */
CF_MUST_CHECK ckptfmt_status cf_geometry_check_value(const ckptfmt_selection *selection, const ckptfmt_row *row,
	uint64_t slice, uint64_t itemsize, ckptfmt_error *err);

/* EXT-3 to EXT-5 alone: the value is stored in a way that this version knows. BAD_ENTRY, UNSUPPORTED. */
CF_MUST_CHECK ckptfmt_status cf_geometry_check_storage(const ckptfmt_stored *stored, ckptfmt_error *err);
/* What section 4 asks before the rest of a compressed value's entry: DTY-6 (CMP-8), VAR-6, EXT-3, CMP-9; CMP-9 alone;
 * and CMP-20 alone. UNSUPPORTED; LIMIT. */
CF_MUST_CHECK ckptfmt_status cf_geometry_check_decodable(const ckptfmt_selection *selection, const ckptfmt_row *row,
	const ckptfmt_stored *stored, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_geometry_check_byte_order(const ckptfmt_selection *selection,
	const ckptfmt_stored *stored, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_geometry_check_expansion(const ckptfmt_stored *stored, ckptfmt_error *err);
/* The failure for a compressed value that a reader without a codec is to read. UNSUPPORTED. */
CF_MUST_CHECK ckptfmt_status cf_fail_codec(ckptfmt_error *err);
/* ENT-5 alone, of a stored value of `count` elements. BAD_ENTRY, BAD_SHAPE. */
CF_MUST_CHECK ckptfmt_status cf_geometry_check_size(const ckptfmt_stored *stored, int64_t count, uint64_t itemsize,
	ckptfmt_error *err);
/* The extents of one slice, as its tensor lists it: SLC-3 to SLC-5. *count is that of its elements, set also where
 * only SLC-5 is broken; -1 if the slice has no position. BAD_SLICE. */
CF_MUST_CHECK ckptfmt_status cf_geometry_check_extents(const ckptfmt_selection *selection, const ckptfmt_row *row,
	uint64_t slice, int64_t *count, ckptfmt_error *err);

/* SLC-4 to SLC-6, SLC-11: the slices of a partitioned tensor lie inside it, do not overlap, and cover the box (NULL:
 * all of it). All but SLC-11 is checked once per selection; many slices are then sorted, so that finding those of a
 * box takes time in proportion to their number. BAD_SLICE, LIMIT, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_geometry_check_cover(const ckptfmt_selection *selection, const ckptfmt_row *row,
	const int64_t *box, ckptfmt_error *err);

/* Iterates over the slices that intersect the box (NULL: all slices), in no order. */
typedef struct cf_geometry_walk {
	const ckptfmt_selection *selection;
	const ckptfmt_row *row;
	const int64_t *box;
	const cf_slice_order *order;    /* NULL: slices are looked at one after the other */
	uint64_t next, end;             /* places of the order, or slices */
} cf_geometry_walk;

/* REQUIRES: cf_geometry_check_cover passed for the box, which must outlive the walk. Allocates nothing. */
cf_geometry_walk cf_geometry_walk_begin(const ckptfmt_selection *selection, const ckptfmt_row *row,
	const int64_t *box);
bool cf_geometry_walk_next(cf_geometry_walk *walk, uint64_t *slice);
void cf_geometry_order_free(cf_slice_order *order);

/* The plan that delivers the box (NULL: all) from a slice, or from the tensor stored whole. */
CF_MUST_CHECK ckptfmt_status cf_geometry_plan(const ckptfmt_selection *selection, const ckptfmt_row *row,
	uint64_t slice, const int64_t *box, uint64_t itemsize, cf_plan *plan, ckptfmt_error *err);

#endif
