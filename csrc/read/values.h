/* SPDX-License-Identifier: Apache-2.0 */
/* The intersection of a request with a stored value, and whether the stored slices of a tensor fit together (rules
 * SLC). */
#ifndef CKPTFMT_READ_VALUES_H
#define CKPTFMT_READ_VALUES_H

#include "read/reader.h"
#include "slices/plan.h"

#define CF_WHOLE_TENSOR UINT64_MAX      /* instead of a slice's number: the tensor is stored whole */

/* The extents of one slice, as its tensor lists it: SLC-3 to SLC-5. *count is that of its elements, set also where
 * only SLC-5 is broken; -1 if the slice has no position. BAD_SLICE. */
CF_MUST_CHECK ckptfmt_status cf_geometry_check_extents(const ckptfmt_selection *selection, const ckptfmt_row *row,
	uint64_t slice, int64_t *count, ckptfmt_error *err);

/* Where a slice, or the tensor stored whole, is in its tensor; without full dimensions.
 * REQUIRES: cf_geometry_check_extents accepts the slice, except for SLC-5. */
void cf_geometry_resolve(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice, int64_t *starts,
	int64_t *lengths);

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
