/* SPDX-License-Identifier: Apache-2.0 */
#include "read/values.h"

#include "base/memory.h"
#include "slices/box.h"

#include <stdlib.h>

enum {
	ORDERED_MIN = 64,           /* fewer slices are searched one by one */
	ORDER_DIMENSIONS_MAX = 8    /* dimensions tried to find the one with the most distinct starts */
};

static const int64_t no_starts[CKPTFMT_RANK_MAX];

static const int64_t *extents_of(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice)
{
	return cf_selection_dims(selection, cf_selection_slices(selection, row)[slice].extents_first);
}

static bool all_full(int32_t rank, const int64_t *lengths)
{
	for (int32_t d = 0; d < rank; d++)
		if (lengths[d] >= 0)
			return false;
	return true;
}

ckptfmt_status cf_geometry_check_extents(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice,
	int64_t *count, ckptfmt_error *err)
{
	const int64_t *dims = cf_selection_dims(selection, row->dims_first);
	const int64_t *extents = extents_of(selection, row, slice);
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	*count = -1;
	CF_TRY(cf_box_resolve(row->rank, dims, extents, extents + row->rank, starts, lengths, err));
	*count = cf_box_count(row->rank, lengths);
	if (all_full(row->rank, extents + row->rank))
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET, "SLC-5: slice %llu is the whole tensor",
			(unsigned long long)slice);
	return CKPTFMT_OK;
}

void cf_geometry_resolve(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice, int64_t *starts,
	int64_t *lengths)
{
	const int64_t *dims = cf_selection_dims(selection, row->dims_first);
	const int64_t *extents = slice == CF_WHOLE_TENSOR ? NULL : extents_of(selection, row, slice);
	for (int32_t d = 0; d < row->rank; d++) {
		bool full = extents == NULL || extents[row->rank + d] < 0;
		starts[d] = full ? 0 : extents[d];
		lengths[d] = full ? dims[d] : extents[row->rank + d];
	}
}

/* ---- many slices ---- */

void cf_geometry_order_free(cf_slice_order *order)
{
	if (order == NULL)
		return;
	cf_release(order->places);
	cf_release(order);
}

static int compare_places(const void *a, const void *b)
{
	int64_t x = ((const cf_slice_place *)a)->start, y = ((const cf_slice_place *)b)->start;
	return (x > y) - (x < y);
}

/* Puts the slices in the order of one dimension; returns how many different starts there are. */
static uint64_t sort_places(const ckptfmt_selection *selection, const ckptfmt_row *row, int32_t dimension,
	cf_slice_place *places)
{
	uint64_t starts = 1;
	int64_t end_max = 0;
	for (uint64_t i = 0; i < row->slice_count; i++) {
		const int64_t *extents = extents_of(selection, row, i);
		int64_t length = extents[row->rank + dimension];
		if (length < 0)
			length = cf_selection_dims(selection, row->dims_first)[dimension];
		places[i] = (cf_slice_place){extents[dimension], extents[dimension] + length, i};
	}
	qsort(places, row->slice_count, sizeof *places, compare_places);
	for (uint64_t i = 0; i < row->slice_count; i++) {
		starts += i != 0 && places[i].start != places[i - 1].start;
		end_max = places[i].end_max > end_max ? places[i].end_max : end_max;
		places[i].end_max = end_max;
	}
	return starts;
}

static bool starts_differ(const ckptfmt_selection *selection, const ckptfmt_row *row, int32_t dimension)
{
	for (uint64_t i = 1; i < row->slice_count; i++)
		if (extents_of(selection, row, i)[dimension] != extents_of(selection, row, 0)[dimension])
			return true;
	return false;
}

static ckptfmt_status make_order(const ckptfmt_selection *selection, const ckptfmt_row *row, cf_slice_order **out,
	ckptfmt_error *err)
{
	uint64_t best = 0;
	int32_t tried = 0, last = -1;
	cf_slice_order *order = cf_allocate_zero(1, sizeof *order);
	*out = NULL;
	if (order != NULL)
		order->places = cf_allocate(row->slice_count * sizeof *order->places);
	if (order == NULL || order->places == NULL) {
		cf_geometry_order_free(order);
		return cf_fail_memory(err);
	}
	for (int32_t d = 0; d < row->rank && tried < ORDER_DIMENSIONS_MAX; d++) {
		uint64_t starts;
		if (!starts_differ(selection, row, d))
			continue;
		starts = sort_places(selection, row, d, order->places);
		last = d;
		tried++;
		if (starts > best) {
			best = starts;
			order->dimension = d;
		}
	}
	if (last != order->dimension)
		(void)sort_places(selection, row, order->dimension, order->places);
	*out = order;
	return CKPTFMT_OK;
}

static ckptfmt_status need_order(const ckptfmt_selection *selection, const ckptfmt_row *row, ckptfmt_error *err)
{
	_Atomic(cf_slice_order *) *place = &selection->orders[row - cf_selection_row(selection, 0)];
	cf_slice_order *published = atomic_load_explicit(place, memory_order_acquire), *mine;
	if (published != NULL)
		return CKPTFMT_OK;
	CF_TRY(make_order(selection, row, &mine, err));
	/* If another thread published one first, free ours. */
	if (!atomic_compare_exchange_strong_explicit(place, &published, mine, memory_order_acq_rel, memory_order_acquire))
		cf_geometry_order_free(mine);
	return CKPTFMT_OK;
}

/* The first place of the order that starts at or after `start`; or, `by_end`, that begins what may end after it. */
static uint64_t find_place(const cf_slice_order *order, uint64_t count, int64_t start, bool by_end)
{
	uint64_t low = 0, high = count;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		const cf_slice_place *place = &order->places[middle];
		if (by_end ? place->end_max <= start : place->start < start)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

cf_geometry_walk cf_geometry_walk_begin(const ckptfmt_selection *selection, const ckptfmt_row *row, const int64_t *box)
{
	cf_geometry_walk walk = {selection, row, box, NULL, 0, row->slice_count};
	if (box != NULL)
		walk.order = atomic_load_explicit(&selection->orders[row - cf_selection_row(selection, 0)],
			memory_order_acquire);
	if (walk.order != NULL) {
		int32_t d = walk.order->dimension;
		walk.next = find_place(walk.order, walk.end, box[d], true);
		walk.end = find_place(walk.order, walk.end, box[d] + box[row->rank + d], false);
	}
	return walk;
}

static bool intersects(const cf_geometry_walk *walk, uint64_t slice)
{
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	int64_t common_starts[CKPTFMT_RANK_MAX], common_lengths[CKPTFMT_RANK_MAX];
	int32_t rank = walk->row->rank;
	if (walk->box == NULL)
		return walk->row->element_count != 0;
	cf_geometry_resolve(walk->selection, walk->row, slice, starts, lengths);
	return cf_box_intersect(rank, starts, lengths, walk->box, walk->box + rank, common_starts, common_lengths);
}

bool cf_geometry_walk_next(cf_geometry_walk *walk, uint64_t *slice)
{
	while (walk->next < walk->end) {
		*slice = walk->order == NULL ? walk->next : walk->order->places[walk->next].slice;
		walk->next++;
		if (intersects(walk, *slice))
			return true;
	}
	return false;
}

/* SLC-11, looking only at the slices that intersect the box. */
static ckptfmt_status check_ordered_cover(const ckptfmt_selection *selection, const ckptfmt_row *row,
	const int64_t *box, ckptfmt_error *err)
{
	cf_buffer extents = CF_BUFFER_EMPTY;
	uint64_t size = 2 * (uint64_t)row->rank * sizeof(int64_t), slice;
	ckptfmt_status status;
	cf_geometry_walk walk;
	CF_TRY(need_order(selection, row, err));
	walk = cf_geometry_walk_begin(selection, row, box);
	while (cf_geometry_walk_next(&walk, &slice))
		cf_put_bytes(&extents, extents_of(selection, row, slice), size);
	status = cf_buffer_status(&extents, err);
	if (status == CKPTFMT_OK) {
		cf_boxes boxes = {cf_selection_dims(selection, row->dims_first),
			(const int64_t *)cf_buffer_items(&extents), extents.size / size, row->rank};
		status = cf_boxes_cover(&boxes, box, box + row->rank, err);
	}
	cf_buffer_free(&extents);
	return status;
}

ckptfmt_status cf_geometry_check_cover(const ckptfmt_selection *selection, const ckptfmt_row *row, const int64_t *box,
	ckptfmt_error *err)
{
	const int64_t *dims = cf_selection_dims(selection, row->dims_first);
	const int64_t *starts = box == NULL ? no_starts : box;
	const int64_t *lengths = box == NULL ? dims : box + row->rank;
	uint64_t number = (uint64_t)(row - cf_selection_row(selection, 0));
	/* The slices' extents are contiguous in the column. */
	cf_boxes boxes = {dims, extents_of(selection, row, 0), row->slice_count, row->rank};
	if (atomic_load_explicit(&selection->disjoint[number], memory_order_relaxed) == 0) {
		for (uint64_t i = 0; i < row->slice_count; i++) {
			int64_t count;
			CF_TRY(cf_geometry_check_extents(selection, row, i, &count, err));
		}
		CF_TRY(cf_boxes_check_disjoint(&boxes, NULL, err));
		atomic_store_explicit(&selection->disjoint[number], 1, memory_order_relaxed);
	}
	if (box != NULL && row->slice_count >= ORDERED_MIN)
		return check_ordered_cover(selection, row, box, err);
	return cf_boxes_cover(&boxes, starts, lengths, err);
}

ckptfmt_status cf_geometry_plan(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice,
	const int64_t *box, uint64_t itemsize, cf_plan *plan, ckptfmt_error *err)
{
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	const int64_t *dims = cf_selection_dims(selection, row->dims_first);
	cf_geometry_resolve(selection, row, slice, starts, lengths);
	return cf_plan_init(plan, row->rank, starts, lengths, box == NULL ? no_starts : box,
		box == NULL ? dims : box + row->rank, itemsize, err);
}
