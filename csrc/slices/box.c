/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Disjointness of many boxes. Boxes that leave a gap on any one axis are disjoint, so a group of boxes is sorted along
 * an axis and cut wherever no interval reaches over; each part is treated the same way on its own until it holds one
 * box. A grid falls apart within as many rounds as it has axes. A group that no axis can cut (boxes laid like a
 * pinwheel, or boxes that do overlap) is compared pair by pair, but only pairs whose intervals meet on the axis where
 * they are shortest.
 *
 * Order of work: `items` is a permutation of the rows, `first[i]` marks where a group begins. The group under
 * work is the leftmost that is not finished; cutting it only adds marks, so no stack is needed.
 *
 * Coverage is a sum: disjoint boxes cover a request exactly when the cells they share with it add up to its own.
 */
#include "slices/box.h"

#include "base/memory.h"

#include <string.h>

typedef struct item {
	int64_t start;          /* on the axis sorted by */
	uint32_t row;
} item;

typedef struct separation {
	const cf_boxes *boxes;
	item *items;
	item *scratch;
	uint8_t *first;
	uint64_t work_left;
} separation;

enum {
	/* Steps of a nanosecond or a few: the budget of everything that is not near-linear. */
	PAIR_WORK_MAX = 1 << 27,
	WORK_PER_EXTENT = 128
};

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
	/* A zero anywhere first: behind large sizes it would come too late for the product. */
	for (int32_t d = 0; d < rank; d++)
		if (lengths[d] == 0)
			return 0;
	for (int32_t d = 0; d < rank; d++)
		count *= lengths[d];
	return count;
}

/* The common part of two intervals; its length is 0 or less when there is none. */
static int64_t meet(int64_t start_a, int64_t length_a, int64_t start_b, int64_t length_b, int64_t *start)
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
		int64_t length = meet(starts_a[d], lengths_a[d], starts_b[d], lengths_b[d], &start);
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

/* Where a box ends for the test of overlap: an axis of size 0 counts as one cell that all boxes hold. */
static int64_t reach_at(const cf_boxes *boxes, uint64_t row, int32_t axis)
{
	int64_t length = length_at(boxes, row, axis);
	return start_at(boxes, row, axis) + (length == 0 ? 1 : length);
}

/* ---- disjointness ---- */

static bool spend(separation *s, uint64_t steps)
{
	if (steps > s->work_left)
		return false;
	s->work_left -= steps;
	return true;
}

/* Merge sort by start, bottom-up; gives the steps it took. Neighbours already in order are left as they are, so that
 * sorted input, which groups mostly are, takes no more than `count`. */
static uint64_t sort_items(item *items, item *scratch, uint64_t count)
{
	uint64_t steps = 0;
	for (uint64_t width = 1; width < count; width *= 2) {
		for (uint64_t low = 0; width < count - low; low += 2 * width) {
			uint64_t middle = low + width;
			uint64_t high = count - middle < width ? count : middle + width;
			uint64_t left = 0, left_size = width, right = middle, to = low;
			steps++;
			if (items[middle - 1].start <= items[middle].start) {
				if (high == count)
					break;
				continue;
			}
			steps += high - low;
			memcpy(scratch, items + low, (size_t)(width * sizeof *items));
			while (left < left_size && right < high)
				items[to++] = scratch[left].start <= items[right].start ? scratch[left++]
					: items[right++];
			memcpy(items + to, scratch + left, (size_t)((left_size - left) * sizeof *items));
			if (high == count)
				break;
		}
	}
	return steps;
}

/* The largest of the parts into which the sorted items fall on the axis; with `first` not NULL marks each part. */
static uint64_t cut(const cf_boxes *boxes, const item *items, uint64_t count, int32_t axis, uint8_t *first)
{
	int64_t reach = reach_at(boxes, items[0].row, axis);
	uint64_t begin = 0, largest = 0;
	for (uint64_t i = 1; i < count; i++) {
		int64_t end = reach_at(boxes, items[i].row, axis);
		if (items[i].start >= reach) {
			largest = cf_max_u64(largest, i - begin);
			begin = i;
			if (first != NULL)
				first[i] = 1;
		}
		if (end > reach)
			reach = end;
	}
	return cf_max_u64(largest, count - begin);
}

/* False when the budget is spent. */
static CF_MUST_CHECK bool sort_along(separation *s, item *items, uint64_t count, int32_t axis)
{
	for (uint64_t i = 0; i < count; i++)
		items[i].start = start_at(s->boxes, items[i].row, axis);
	return spend(s, count + sort_items(items, s->scratch, count));
}

/* How many boxes deep the axis is on average: the lower, the fewer pairs meet on it. */
static double depth_of(const cf_boxes *boxes, const item *items, uint64_t count, int32_t axis)
{
	int64_t low = INT64_MAX, high = 0;
	double sum = 0;
	for (uint64_t i = 0; i < count; i++) {
		int64_t start = start_at(boxes, items[i].row, axis);
		int64_t reach = reach_at(boxes, items[i].row, axis);
		low = start < low ? start : low;
		high = reach > high ? reach : high;
		sum += (double)(reach - start);
	}
	return sum / (double)(high - low);
}

/* Whether every box of the group has the same interval on the axis: then it can tell none of them apart. */
static bool is_level(const cf_boxes *boxes, const item *items, uint64_t count, int32_t axis)
{
	int64_t start = start_at(boxes, items[0].row, axis);
	int64_t length = length_at(boxes, items[0].row, axis);
	for (uint64_t i = 1; i < count; i++)
		if (start_at(boxes, items[i].row, axis) != start || length_at(boxes, items[i].row, axis) != length)
			return false;
	return true;
}

static CF_MUST_CHECK ckptfmt_status too_much_work(const cf_boxes *boxes, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
		"SLC-6: %llu slices lie so entangled that checking them for overlap would take too long",
		(unsigned long long)boxes->count);
}

static bool overlap(const cf_boxes *boxes, uint64_t a, uint64_t b)
{
	for (int32_t d = 0; d < boxes->rank; d++)
		if (start_at(boxes, a, d) >= reach_at(boxes, b, d) || start_at(boxes, b, d) >= reach_at(boxes, a, d))
			return false;
	return true;
}

static CF_MUST_CHECK ckptfmt_status found_overlap(uint64_t a, uint64_t b, uint64_t rows[2], ckptfmt_error *err)
{
	uint64_t low = cf_min_u64(a, b);
	uint64_t high = cf_max_u64(a, b);
	if (rows != NULL) {
		rows[0] = low;
		rows[1] = high;
	}
	return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET, "SLC-6: slices %llu and %llu overlap",
		(unsigned long long)low, (unsigned long long)high);
}

/* The last resort: all pairs that meet on the axis where fewest do. */
static CF_MUST_CHECK ckptfmt_status check_pairs(separation *s, item *items, uint64_t count, uint64_t rows[2],
	ckptfmt_error *err)
{
	const cf_boxes *boxes = s->boxes;
	int32_t axis = 0;
	double least = 0;
	if (boxes->rank == 0)
		return found_overlap(items[0].row, items[1].row, rows, err);
	if (!spend(s, 4 * count * (uint64_t)boxes->rank))
		return too_much_work(boxes, err);
	for (int32_t d = 0; d < boxes->rank; d++) {
		double depth = depth_of(boxes, items, count, d);
		if (d == 0 || depth < least) {
			axis = d;
			least = depth;
		}
	}
	if (!sort_along(s, items, count, axis))
		return too_much_work(boxes, err);
	for (uint64_t i = 0; i < count; i++) {
		int64_t reach = reach_at(boxes, items[i].row, axis);
		for (uint64_t j = i + 1; j < count && items[j].start < reach; j++) {
			if (!spend(s, (uint64_t)boxes->rank))
				return too_much_work(boxes, err);
			if (overlap(boxes, items[i].row, items[j].row))
				return found_overlap(items[i].row, items[j].row, rows, err);
		}
	}
	return CKPTFMT_OK;
}

/* Cuts one group on the axis that leaves the smallest largest part, or gives *done when no axis cuts it. */
static CF_MUST_CHECK ckptfmt_status cut_group(separation *s, uint64_t low, uint64_t count, bool *done,
	ckptfmt_error *err)
{
	item *items = s->items + low;
	int32_t best = -1, sorted_by = -1;
	uint64_t least = count;
	*done = false;
	for (int32_t d = 0; d < s->boxes->rank; d++) {
		uint64_t largest;
		if (!spend(s, count))
			return too_much_work(s->boxes, err);
		if (is_level(s->boxes, items, count, d))
			continue;
		if (!sort_along(s, items, count, d))
			return too_much_work(s->boxes, err);
		sorted_by = d;
		largest = cut(s->boxes, items, count, d, NULL);
		if (largest < least) {
			least = largest;
			best = d;
		}
		/* Good enough: halving bounds the number of rounds by a logarithm. */
		if (largest <= count / 2)
			break;
	}
	if (best < 0) {
		*done = true;
		return CKPTFMT_OK;
	}
	if (sorted_by != best && !sort_along(s, items, count, best))
		return too_much_work(s->boxes, err);
	(void)cut(s->boxes, items, count, best, s->first + low);
	return CKPTFMT_OK;
}

static CF_MUST_CHECK ckptfmt_status separate(separation *s, uint64_t rows[2], ckptfmt_error *err)
{
	uint64_t low = 0;
	while (low < s->boxes->count) {
		uint64_t high = low + 1;
		bool done;
		while (high < s->boxes->count && !s->first[high])
			high++;
		if (high - low == 1) {
			low = high;
			continue;
		}
		CF_TRY(cut_group(s, low, high - low, &done, err));
		if (done) {
			CF_TRY(check_pairs(s, s->items + low, high - low, rows, err));
			low = high;
		}
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_boxes_check_disjoint(const cf_boxes *boxes, uint64_t rows[2], ckptfmt_error *err)
{
	ckptfmt_status status;
	separation s = {boxes, NULL, NULL, NULL, 0};
	uint64_t extents;
	if (rows != NULL)
		rows[0] = rows[1] = 0;
	if (boxes->count < 2)
		return CKPTFMT_OK;
	if (boxes->count > UINT32_MAX || !cf_mul_u64(boxes->count, (uint64_t)boxes->rank, &extents))
		return too_much_work(boxes, err);
	s.work_left = PAIR_WORK_MAX + WORK_PER_EXTENT * extents;
	s.items = cf_allocate(boxes->count * sizeof *s.items);
	s.scratch = cf_allocate(boxes->count * sizeof *s.scratch);
	s.first = cf_allocate_zero(boxes->count, 1);
	if (s.items == NULL || s.scratch == NULL || s.first == NULL) {
		status = cf_fail_memory(err);
		goto out;
	}
	for (uint64_t i = 0; i < boxes->count; i++)
		s.items[i] = (item){0, (uint32_t)i};
	status = separate(&s, rows, err);
out:
	cf_release(s.first);
	cf_release(s.scratch);
	cf_release(s.items);
	return status;
}

/* ---- coverage ---- */

/* Cells that box `row` shares with the resolved box. */
static int64_t shared_cells(const cf_boxes *boxes, uint64_t row, const int64_t *starts, const int64_t *lengths)
{
	int64_t cells = 1;
	for (int32_t d = 0; d < boxes->rank; d++) {
		int64_t start;
		int64_t length = meet(start_at(boxes, row, d), length_at(boxes, row, d), starts[d], lengths[d], &start);
		if (length <= 0)
			return 0;
		cells *= length;
	}
	return cells;
}

ckptfmt_status cf_boxes_cover(const cf_boxes *boxes, const int64_t *request_starts, const int64_t *request_lengths,
	ckptfmt_error *err)
{
	uint64_t wanted = (uint64_t)cf_box_count(boxes->rank, request_lengths);
	uint64_t covered = 0;
	for (uint64_t i = 0; i < boxes->count && wanted != 0; i++) {
		uint64_t shared = (uint64_t)shared_cells(boxes, i, request_starts, request_lengths);
		/* More than all: the boxes overlap, against the contract. */
		if (!cf_add_u64(covered, shared, &covered) || covered > wanted)
			return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET,
				"SLC-6: slices overlap, slice %llu or one before it", (unsigned long long)i);
	}
	if (covered < wanted)
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET,
			"SLC-11: the slices lack %llu of the %llu elements", (unsigned long long)(wanted - covered),
			(unsigned long long)wanted);
	return CKPTFMT_OK;
}
