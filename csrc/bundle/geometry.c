/* SPDX-License-Identifier: Apache-2.0 */
#include "bundle/geometry.h"

#include "codec/box.h"

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
		return cf_fail(err, CKPTFMT_FAIL_BAD_SHAPE, CF_NO_OFFSET, "ENT-5: the size in bytes does not fit 64 bits");
	if (stored->size != expected)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET,
			"ENT-5: %lld bytes are stored, dtype and shape take %llu", (long long)stored->size,
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

ckptfmt_status cf_geometry_check_cover(const ckptfmt_selection *selection, const ckptfmt_row *row, const int64_t *box,
	ckptfmt_error *err)
{
	const int64_t *dims = cf_selection_dims(selection, row->dims_first);
	const int64_t *starts = box == NULL ? no_starts : box;
	const int64_t *lengths = box == NULL ? dims : box + row->rank;
	uint64_t number = (uint64_t)(row - cf_selection_row(selection, 0));
	/* The slices' extents stand one after the other in the column. */
	cf_boxes boxes = {dims, extents_of(selection, row, 0), row->slice_count, row->rank};
	if (atomic_load_explicit(&selection->disjoint[number], memory_order_relaxed) == 0) {
		for (uint64_t i = 0; i < row->slice_count; i++) {
			int64_t count;
			CF_TRY(cf_geometry_check_extents(selection, row, i, &count, err));
		}
		CF_TRY(cf_boxes_check_disjoint(&boxes, NULL, err));
		atomic_store_explicit(&selection->disjoint[number], 1, memory_order_relaxed);
	}
	return cf_boxes_cover(&boxes, starts, lengths, NULL, NULL, err);
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

ckptfmt_status cf_geometry_check_storage(const ckptfmt_stored *stored, ckptfmt_error *err)
{
	if (stored->flags & CKPTFMT_STORED_FEATURES)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET,
			"EXT-3: the value is stored in a way that a newer version knows");
	if (stored->flags & CKPTFMT_STORED_BAD_CHUNKS)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET,
			"EXT-4: the chunk checksums do not fit %lld stored bytes", (long long)stored->size);
	if (stored->flags & CKPTFMT_STORED_ONE_CHUNK)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET,
			"EXT-5: chunk checksums of %lld bytes in a single chunk", (long long)stored->size);
	return CKPTFMT_OK;
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
	CF_TRY(cf_geometry_check_storage(stored, err));
	/* ENT-3, ENT-4: the fields are signed, and nobody writes negative ones. */
	if (stored->shard < 0 || stored->shard >= selection->num_shards)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET, "ENT-3: shard number %d of %d",
			(int)stored->shard, (int)selection->num_shards);
	if (stored->offset > INT64_MAX || stored->size > INT64_MAX - stored->offset)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET, "ENT-4: offset %lld, size %lld",
			(long long)stored->offset, (long long)stored->size);
	resolve(selection, row, slice, starts, lengths);
	return cf_geometry_check_size(stored, cf_box_count(row->rank, lengths), itemsize, err);
}

bool cf_geometry_meets(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice, const int64_t *box)
{
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	int64_t common_starts[CKPTFMT_RANK_MAX], common_lengths[CKPTFMT_RANK_MAX];
	if (box == NULL)
		return true;
	resolve(selection, row, slice, starts, lengths);
	return cf_box_intersect(row->rank, starts, lengths, box, box + row->rank, common_starts, common_lengths);
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
