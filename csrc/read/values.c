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

ckptfmt_status cf_geometry_check_size(const ckptfmt_stored *stored, int64_t count, uint64_t itemsize,
	ckptfmt_error *err)
{
	uint64_t expected;
	if (itemsize == 0)
		return CKPTFMT_OK;
	if (!cf_mul_u64((uint64_t)count, itemsize, &expected))
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET, "ENT-5: the size in bytes does not fit 64 bits");
	if (stored->raw_size != expected)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET,
			"ENT-5: %lld bytes are stored, dtype and shape take %llu", (long long)stored->raw_size,
			(unsigned long long)expected);
	return CKPTFMT_OK;
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

/* REQUIRES: cf_box_resolve accepts the slice. */
static void resolve(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice, int64_t *starts,
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
	resolve(walk->selection, walk->row, slice, starts, lengths);
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

static ckptfmt_status check_features(const ckptfmt_stored *stored, ckptfmt_error *err)
{
	if (stored->flags & CKPTFMT_STORED_FEATURES)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET,
			"EXT-3: the value is stored in a way that a newer version knows");
	return CKPTFMT_OK;
}

ckptfmt_status cf_geometry_check_storage(const ckptfmt_stored *stored, ckptfmt_error *err)
{
	CF_TRY(check_features(stored, err));
	if ((stored->flags & CKPTFMT_STORED_BAD_CHUNKS) &&
		((stored->flags & CKPTFMT_STORED_COMPRESSED) || stored->broken_rule == 0))
		return cf_entry_broken_chunks(stored->broken_rule, CF_NO_OFFSET, err);
	if (stored->flags & CKPTFMT_STORED_BAD_CHUNKS)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET,
			"EXT-4: the chunk checksums do not fit %lld stored bytes", (long long)stored->size);
	if (stored->flags & CKPTFMT_STORED_ONE_CHUNK)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET,
			"EXT-5: chunk checksums of %lld bytes in a single chunk", (long long)stored->size);
	return CKPTFMT_OK;
}

/* Checked before memory for the raw bytes is allocated. */
ckptfmt_status cf_geometry_check_expansion(const ckptfmt_stored *stored, ckptfmt_error *err)
{
	if (stored->flags & CKPTFMT_STORED_EXPANDS)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
			"CMP-20: %llu stored bytes claim to be %llu, more than limit expansion_max allows",
			(unsigned long long)stored->size, (unsigned long long)stored->raw_size);
	return CKPTFMT_OK;
}

ckptfmt_status cf_fail_codec(ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET,
		"the value is compressed with zstd, which needs a codec: build the library with libzstd, or open the "
		"checkpoint with one");
}

ckptfmt_status cf_geometry_check_byte_order(const ckptfmt_selection *selection, const ckptfmt_stored *stored,
	ckptfmt_error *err)
{
	if ((stored->flags & CKPTFMT_STORED_COMPRESSED) && selection->big_endian)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET, "CMP-9: compressed values of a big-endian bundle");
	return CKPTFMT_OK;
}

ckptfmt_status cf_geometry_check_decodable(const ckptfmt_selection *selection, const ckptfmt_row *row,
	const ckptfmt_stored *stored, ckptfmt_error *err)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(row->dtype);
	if ((stored->flags & CKPTFMT_STORED_COMPRESSED) == 0)
		return CKPTFMT_OK;
	/* CMP-8 */
	if (dtype == NULL)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET,
			"DTY-6: a compressed value of data type %d, which is not known", (int)row->dtype);
	if (dtype->storage == CKPTFMT_STORAGE_VARIANT && selection->big_endian)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET, "VAR-6: variants of a big-endian bundle");
	CF_TRY(check_features(stored, err));
	return cf_geometry_check_byte_order(selection, stored, err);
}

ckptfmt_status cf_geometry_check_value(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice,
	uint64_t itemsize, ckptfmt_error *err)
{
	const ckptfmt_stored *stored =
		slice == CF_WHOLE_TENSOR ? &row->stored : &cf_selection_slices(selection, row)[slice].stored;
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	if (stored->flags & CKPTFMT_STORED_MISSING)
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET, "SLC-7: slice %llu of %lu has no entry of its own",
			(unsigned long long)slice, (unsigned long)row->slice_count);
	if (stored->flags & CKPTFMT_STORED_OTHER_DTYPE)
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET,
			"SLC-8: the entry of slice %llu has another dtype than the tensor", (unsigned long long)slice);
	if (stored->flags & CKPTFMT_STORED_OTHER_SHAPE)
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET,
			"SLC-9: the entry of slice %llu has another shape than the slice", (unsigned long long)slice);
	CF_TRY(cf_geometry_check_decodable(selection, row, stored, err));
	CF_TRY(cf_geometry_check_storage(stored, err));
	/* ENT-3, ENT-4: the fields are signed, and no writer writes negative ones. */
	if (stored->shard < 0 || stored->shard >= selection->num_shards)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET, "ENT-3: shard number %d of %d",
			(int)stored->shard, (int)selection->num_shards);
	if (stored->offset > INT64_MAX || stored->size > INT64_MAX - stored->offset)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET, "ENT-4: offset %lld, size %lld",
			(long long)stored->offset, (long long)stored->size);
	resolve(selection, row, slice, starts, lengths);
	CF_TRY(cf_geometry_check_size(stored, cf_box_count(row->rank, lengths), itemsize, err));
	return cf_geometry_check_expansion(stored, err);
}

ckptfmt_status cf_geometry_plan(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice,
	const int64_t *box, uint64_t itemsize, cf_plan *plan, ckptfmt_error *err)
{
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	const int64_t *dims = cf_selection_dims(selection, row->dims_first);
	resolve(selection, row, slice, starts, lengths);
	return cf_plan_init(plan, row->rank, starts, lengths, box == NULL ? no_starts : box,
		box == NULL ? dims : box + row->rank, itemsize, err);
}
