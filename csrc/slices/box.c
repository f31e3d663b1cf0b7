/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Disjointness: the boxes are sorted along one axis, and only pairs whose intervals on it intersect are compared. The
 * axis is the one on which the fewest do. A number of slices that real checkpoints have takes milliseconds; a work
 * limit ends hostile ones.
 *
 * Coverage is a sum: disjoint boxes cover a request exactly when the cells they share with it add up to its own. The
 * same holds for each index of dimension 0.
 */
#include "slices/box.h"

#include "base/memory.h"

#include <string.h>

/* Boxes or pairs of boxes that are compared on all axes, times the number of axes: a second or less. */
enum { WORK_MAX = 1 << 27 };

typedef struct item {
	int64_t start;          /* on the axis sorted by */
	uint64_t row;           /* or, for coverage, by how much the cells that are shared there grow */
} item;

bool cf_shape_count(int32_t rank, const int64_t *dims, int64_t *count)
{
	int64_t product = 1;
	*count = 0;
	if (rank < 0 || rank > CKPTFMT_RANK_MAX)
		return false;
	for (int32_t d = 0; d < rank; d++)
		if (dims[d] < 0 || !cf_mul_i64(product, dims[d], &product))
			return false;
	*count = product;
	return true;
}

ckptfmt_status cf_box_resolve(int32_t rank, const int64_t *dims, const int64_t *starts, const int64_t *lengths,
	int64_t *starts_out, int64_t *lengths_out, ckptfmt_error *err)
{
	for (int32_t d = 0; d < rank; d++) {
		int64_t start = starts[d];
		int64_t length = lengths[d];
		if (length == -1 && start != 0)
			return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET,
				"SLC-3: dimension %d of a slice is full but starts at %lld", d, (long long)start);
		if (length != -1 && (start < 0 || length < 1 || start > dims[d] || length > dims[d] - start))
			return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET,
				"SLC-4: dimension %d of a slice has start %lld and length %lld in a size of %lld", d,
				(long long)start, (long long)length, (long long)dims[d]);
		if (starts_out != NULL)
			starts_out[d] = start;
		if (lengths_out != NULL)
			lengths_out[d] = length == -1 ? dims[d] : length;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_box_check_request(int32_t rank, const int64_t *dims, const int64_t *starts, const int64_t *lengths,
	ckptfmt_error *err)
{
	for (int32_t d = 0; d < rank; d++)
		if (starts[d] < 0 || lengths[d] < 0 || starts[d] > dims[d] || lengths[d] > dims[d] - starts[d])
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
				"TXT-6: dimension %d of the box has start %lld and length %lld in a size of %lld", d,
				(long long)starts[d], (long long)lengths[d], (long long)dims[d]);
	return CKPTFMT_OK;
}

int64_t cf_box_count(int32_t rank, const int64_t *lengths)
{
	int64_t count = 1;
	/* Zeros first: the product of the sizes before one may overflow. */
	for (int32_t d = 0; d < rank; d++)
		if (lengths[d] == 0)
			return 0;
	for (int32_t d = 0; d < rank; d++)
		count *= lengths[d];
	return count;
}

/* Returns the length of the common part of two intervals, 0 or less if there is none. */
static int64_t intersect(int64_t start_a, int64_t length_a, int64_t start_b, int64_t length_b, int64_t *start)
{
	int64_t end_a = start_a + length_a;
	int64_t end_b = start_b + length_b;
	*start = start_a > start_b ? start_a : start_b;
	return (end_a < end_b ? end_a : end_b) - *start;
}

bool cf_box_intersect(int32_t rank, const int64_t *starts_a, const int64_t *lengths_a, const int64_t *starts_b,
	const int64_t *lengths_b, int64_t *starts, int64_t *lengths)
{
	for (int32_t d = 0; d < rank; d++) {
		int64_t start;
		int64_t length = intersect(starts_a[d], lengths_a[d], starts_b[d], lengths_b[d], &start);
		if (length <= 0)
			return false;
		starts[d] = start;
		lengths[d] = length;
	}
	return true;
}

/* ---- access to the column ---- */

static const int64_t *starts_of(const cf_boxes *boxes, uint64_t row)
{
	return boxes->extents + row * 2 * (uint64_t)boxes->rank;
}

static int64_t length_at(const cf_boxes *boxes, uint64_t row, int32_t axis)
{
	int64_t length = starts_of(boxes, row)[boxes->rank + axis];
	return length == -1 ? boxes->dims[axis] : length;
}

static int64_t start_at(const cf_boxes *boxes, uint64_t row, int32_t axis)
{
	return starts_of(boxes, row)[axis];
}

/* Where a box ends for the test of overlap: on an axis of size 0, all boxes have one cell in common. */
static int64_t end_at(const cf_boxes *boxes, uint64_t row, int32_t axis)
{
	int64_t length = length_at(boxes, row, axis);
	return start_at(boxes, row, axis) + (length == 0 ? 1 : length);
}

/* ---- disjointness ---- */

/* Bottom-up merge sort by start. */
static void sort_items(item *items, item *scratch, uint64_t count)
{
	for (uint64_t width = 1; width < count; width *= 2) {
		for (uint64_t low = 0; width < count - low && low < count; low += 2 * width) {
			uint64_t middle = low + width, high = cf_min_u64(middle + width, count);
			uint64_t left = 0, right = middle, to = low;
			memcpy(scratch, items + low, (size_t)(width * sizeof *items));
			while (left < width && right < high)
				items[to++] = scratch[left].start <= items[right].start ? scratch[left++] : items[right++];
			memcpy(items + to, scratch + left, (size_t)((width - left) * sizeof *items));
		}
	}
}

/* How many boxes contain a point of the axis, on average. */
static double depth_of(const cf_boxes *boxes, int32_t axis)
{
	int64_t low = INT64_MAX, high = 0;
	double sum = 0;
	for (uint64_t row = 0; row < boxes->count; row++) {
		int64_t start = start_at(boxes, row, axis), end = end_at(boxes, row, axis);
		low = start < low ? start : low;
		high = end > high ? end : high;
		sum += (double)(end - start);
	}
	return sum / (double)(high - low);
}

/* The axis on which the fewest pairs of boxes intersect. REQUIRES: rank > 0. */
static int32_t thinnest_axis(const cf_boxes *boxes)
{
	int32_t axis = 0;
	double least = depth_of(boxes, 0);
	for (int32_t d = 1; d < boxes->rank; d++) {
		double depth = depth_of(boxes, d);
		if (depth < least) {
			axis = d;
			least = depth;
		}
	}
	return axis;
}

static bool overlap(const cf_boxes *boxes, uint64_t a, uint64_t b)
{
	for (int32_t d = 0; d < boxes->rank; d++)
		if (start_at(boxes, a, d) >= end_at(boxes, b, d) || start_at(boxes, b, d) >= end_at(boxes, a, d))
			return false;
	return true;
}

static CF_MUST_CHECK ckptfmt_status found_overlap(uint64_t a, uint64_t b, uint64_t rows[2], ckptfmt_error *err)
{
	uint64_t low = cf_min_u64(a, b), high = cf_max_u64(a, b);
	if (rows != NULL) {
		rows[0] = low;
		rows[1] = high;
	}
	return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET, "SLC-6: slices %llu and %llu overlap",
		(unsigned long long)low, (unsigned long long)high);
}

/* Compares the pairs of sorted items that intersect on the axis. */
static CF_MUST_CHECK ckptfmt_status check_pairs(const cf_boxes *boxes, const item *items, int32_t axis,
	uint64_t rows[2], ckptfmt_error *err)
{
	uint64_t left = WORK_MAX / (uint64_t)boxes->rank;
	for (uint64_t i = 0; i < boxes->count; i++) {
		int64_t end = end_at(boxes, items[i].row, axis);
		for (uint64_t j = i + 1; j < boxes->count && items[j].start < end; j++) {
			if (left-- == 0)
				return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
					"SLC-6: checking %llu slices for overlap exceeds the work limit",
					(unsigned long long)boxes->count);
			if (overlap(boxes, items[i].row, items[j].row))
				return found_overlap(items[i].row, items[j].row, rows, err);
		}
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_boxes_check_disjoint(const cf_boxes *boxes, uint64_t rows[2], ckptfmt_error *err)
{
	ckptfmt_status status;
	item *items;
	int32_t axis;
	if (rows != NULL)
		rows[0] = rows[1] = 0;
	if (boxes->count < 2)
		return CKPTFMT_OK;
	if (boxes->rank == 0)
		return found_overlap(0, 1, rows, err);
	items = cf_allocate_zero(boxes->count, 2 * sizeof *items);
	if (items == NULL)
		return cf_fail_memory(err);
	axis = thinnest_axis(boxes);
	for (uint64_t row = 0; row < boxes->count; row++)
		items[row] = (item){start_at(boxes, row, axis), row};
	sort_items(items, items + boxes->count, boxes->count);
	status = check_pairs(boxes, items, axis, rows, err);
	cf_release(items);
	return status;
}

/* ---- coverage ---- */

/* Cells that box `row` shares with the resolved box. */
static int64_t shared_cells(const cf_boxes *boxes, uint64_t row, const int64_t *starts, const int64_t *lengths)
{
	int64_t cells = 1;
	for (int32_t d = 0; d < boxes->rank; d++) {
		int64_t start;
		int64_t length = intersect(start_at(boxes, row, d), length_at(boxes, row, d), starts[d], lengths[d], &start);
		if (length <= 0)
			return 0;
		cells *= length;
	}
	return cells;
}

/* The first indexes in dimension 0 at which the request has cells outside of all boxes; all of its own if there is no
 * memory to find them. REQUIRES: there are such cells. */
static void find_missing(const cf_boxes *boxes, const int64_t *starts, const int64_t *lengths, int64_t *first,
	int64_t *end)
{
	uint64_t wanted, covered = 0, count = 0, next = 0;
	int64_t at = starts[0], last = starts[0] + lengths[0];
	item *items = cf_allocate_zero(boxes->count, 4 * sizeof *items);
	for (uint64_t i = 0; i < boxes->count && items != NULL; i++) {
		uint64_t cells = (uint64_t)shared_cells(boxes, i, starts, lengths);
		int64_t start, length = intersect(start_at(boxes, i, 0), length_at(boxes, i, 0), starts[0], lengths[0], &start);
		if (cells == 0)
			continue;
		cells /= (uint64_t)length;
		items[count++] = (item){start, cells};
		items[count++] = (item){start + length, 0 - cells};
	}
	if (count != 0)
		sort_items(items, items + count, count);
	wanted = (uint64_t)cf_box_count(boxes->rank - 1, lengths + 1);
	for (*first = last; at < last; at = next < count ? items[next].start : last) {
		for (; next < count && items[next].start == at; next++)
			covered += items[next].row;
		if (covered == wanted && *first < last)
			break;
		if (covered != wanted && *first == last)
			*first = at;
	}
	*end = at;
	cf_release(items);
}

ckptfmt_status cf_boxes_cover(const cf_boxes *boxes, const int64_t *request_starts, const int64_t *request_lengths,
	ckptfmt_error *err)
{
	uint64_t wanted = (uint64_t)cf_box_count(boxes->rank, request_lengths);
	uint64_t covered = 0;
	int64_t first = 0, end = 0;
	for (uint64_t i = 0; i < boxes->count && wanted != 0; i++) {
		uint64_t shared = (uint64_t)shared_cells(boxes, i, request_starts, request_lengths);
		/* The caller's boxes are not disjoint. */
		if (!cf_add_u64(covered, shared, &covered) || covered > wanted)
			return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET,
				"SLC-6: slices overlap, slice %llu or one before it", (unsigned long long)i);
	}
	if (covered >= wanted)
		return CKPTFMT_OK;
	if (boxes->rank != 0)
		find_missing(boxes, request_starts, request_lengths, &first, &end);
	return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET,
		"SLC-11: %llu of the %llu elements are missing, the first in [%lld:%lld]: another part was not merged",
		(unsigned long long)(wanted - covered), (unsigned long long)wanted, (long long)first, (long long)end);
}
