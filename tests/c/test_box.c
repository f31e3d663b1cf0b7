/* SPDX-License-Identifier: Apache-2.0 */
/* Boxes: edges of the counting rule, and every answer about random layouts against a count cell by cell. */
#include "test.h"

#include "slices/box.h"

enum { RANK = CKPTFMT_RANK_MAX, CELLS_MAX = 4096, BOXES_MAX = 64, AXES_MAX = 6 };

#define POWER(n) ((int64_t)1 << (n))

static void check_count(int32_t rank, const int64_t *dims, bool accepted, int64_t expected)
{
	int64_t count = 77;
	CHECK_EQ(cf_shape_count(rank, dims, &count), accepted);
	CHECK_EQ(count, expected);
}

static void test_shape_count(void)
{
	static int64_t ones[RANK + 1];
	for (int i = 0; i <= RANK; i++)
		ones[i] = 1;
	check_count(0, NULL, true, 1);
	check_count(1, (int64_t[]){0}, true, 0);
	check_count(3, (int64_t[]){2, 3, 4}, true, 24);
	check_count(3, (int64_t[]){0, POWER(62), POWER(62)}, true, 0);
	check_count(3, (int64_t[]){POWER(62), POWER(62), 0}, false, 0);
	check_count(3, (int64_t[]){POWER(62), 0, POWER(62)}, true, 0);
	check_count(1, (int64_t[]){INT64_MAX}, true, INT64_MAX);
	check_count(2, (int64_t[]){POWER(62), 2}, false, 0);
	check_count(2, (int64_t[]){POWER(32), POWER(32)}, false, 0);
	check_count(2, (int64_t[]){POWER(31), POWER(31)}, true, POWER(62));
	check_count(3, (int64_t[]){4194305, 4194305, 211106198978564}, false, 0);
	check_count(2, (int64_t[]){3, -1}, false, 0);
	check_count(2, (int64_t[]){0, -1}, false, 0);
	check_count(1, (int64_t[]){INT64_MIN}, false, 0);
	check_count(RANK, ones, true, 1);
	check_count(RANK + 1, ones, false, 0);
	check_count(-1, ones, false, 0);
}

static void refuse_box(int64_t dim, int64_t start, int64_t length, const char *rule)
{
	ckptfmt_error err;
	int64_t dims[2] = {5, dim}, starts[2] = {0, start}, lengths[2] = {-1, length};
	CHECK_FAILS(cf_box_resolve(2, dims, starts, lengths, NULL, NULL, &err), err, CKPTFMT_FAIL_BAD_SLICE, rule);
	CHECK(strstr(err.message, "dimension 1 ") != NULL);
	CHECK(cf_box_resolve(2, dims, starts, lengths, NULL, NULL, NULL) == CKPTFMT_CORRUPT);
}

static void test_resolve(void)
{
	ckptfmt_error err;
	int64_t dims[3] = {4, 0, INT64_MAX}, starts[3] = {1, 0, INT64_MAX - 1}, lengths[3] = {3, -1, 1};
	int64_t s[3], l[3];
	CHECK_OK(cf_box_resolve(3, dims, starts, lengths, s, l, &err), err);
	CHECK(s[0] == 1 && s[1] == 0 && s[2] == INT64_MAX - 1);
	CHECK(l[0] == 3 && l[1] == 0 && l[2] == 1);
	CHECK_OK(cf_box_resolve(0, NULL, NULL, NULL, NULL, NULL, &err), err);
	refuse_box(4, 1, -1, "SLC-3");
	refuse_box(4, -1, -1, "SLC-3");
	refuse_box(4, -1, 2, "SLC-4");
	refuse_box(4, 0, 0, "SLC-4");
	refuse_box(4, 0, -2, "SLC-4");
	refuse_box(4, 0, INT64_MIN, "SLC-4");
	refuse_box(4, 0, 5, "SLC-4");
	refuse_box(4, 4, 1, "SLC-4");
	refuse_box(4, 5, 1, "SLC-4");
	refuse_box(0, 0, 1, "SLC-4");
	refuse_box(10, INT64_MAX, 1, "SLC-4");
	refuse_box(10, 7954877770267194415, 7954877770267194415, "SLC-4");
	refuse_box(INT64_MAX, INT64_MAX, 1, "SLC-4");
}

static void test_request(void)
{
	ckptfmt_error err;
	int64_t dims[2] = {4, 0};
	CHECK_OK(cf_box_check_request(2, dims, (int64_t[]){4, 0}, (int64_t[]){0, 0}, &err), err);
	CHECK_OK(cf_box_check_request(2, dims, (int64_t[]){1, 0}, (int64_t[]){3, 0}, &err), err);
	CHECK_FAILS(cf_box_check_request(2, dims, (int64_t[]){1, 0}, (int64_t[]){4, 0}, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "TXT-6: dimension 0 ");
	CHECK_FAILS(cf_box_check_request(2, dims, (int64_t[]){-1, 0}, (int64_t[]){1, 0}, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "TXT-6: dimension 0 ");
	CHECK_FAILS(cf_box_check_request(2, dims, (int64_t[]){0, 0}, (int64_t[]){0, -1}, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "TXT-6: dimension 1 ");
	CHECK_FAILS(cf_box_check_request(2, dims, (int64_t[]){0, 1}, (int64_t[]){0, 0}, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "TXT-6: dimension 1 ");
	CHECK_FAILS(cf_box_check_request(1, dims, (int64_t[]){INT64_MAX}, (int64_t[]){INT64_MAX}, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "TXT-6: dimension 0 ");
}

/* ---- a layout and its cells ---- */

typedef struct layout {
	int64_t dims[AXES_MAX];
	int64_t extents[BOXES_MAX * 2 * AXES_MAX];
	cf_boxes boxes;
} layout;

static int64_t *box_of(layout *l, uint64_t row)
{
	return l->extents + row * 2 * (uint64_t)l->boxes.rank;
}

static void add_box(layout *l, const int64_t *starts, const int64_t *lengths)
{
	int64_t *box = box_of(l, l->boxes.count++);
	for (int32_t d = 0; d < l->boxes.rank; d++) {
		box[d] = starts[d];
		box[l->boxes.rank + d] = lengths[d];
		/* Both spellings of a full dimension. */
		if (starts[d] == 0 && lengths[d] == l->dims[d] && test_random_below(2))
			box[l->boxes.rank + d] = -1;
	}
}

static void begin_layout(layout *l, int32_t rank)
{
	int64_t cells = 1;
	for (int32_t d = 0; d < rank; d++) {
		int64_t most = rank > 3 ? 4 : 9;
		l->dims[d] = (int64_t)test_random_below((uint64_t)most) + 1;
		while (cells * l->dims[d] > CELLS_MAX)
			l->dims[d]--;
		cells *= l->dims[d];
	}
	l->boxes = (cf_boxes){l->dims, l->extents, 0, rank};
}

/* Cuts the box at random places until it is small or luck ends it; some parts are left out. */
static void add_cut(layout *l, int64_t *starts, int64_t *lengths, unsigned holes)
{
	int32_t axis = l->boxes.rank == 0 ? 0 : (int32_t)test_random_below((uint64_t)l->boxes.rank);
	if (l->boxes.rank == 0 || lengths[axis] < 2 || test_random_below(6) == 0) {
		if (l->boxes.count < BOXES_MAX && (holes == 0 || test_random_below(holes) != 0))
			add_box(l, starts, lengths);
		return;
	}
	int64_t whole = lengths[axis], start = starts[axis];
	int64_t at = (int64_t)test_random_below((uint64_t)whole - 1) + 1;
	int64_t saved_starts[AXES_MAX], saved_lengths[AXES_MAX];
	memcpy(saved_starts, starts, sizeof saved_starts);
	memcpy(saved_lengths, lengths, sizeof saved_lengths);
	lengths[axis] = at;
	add_cut(l, starts, lengths, holes);
	memcpy(starts, saved_starts, sizeof saved_starts);
	memcpy(lengths, saved_lengths, sizeof saved_lengths);
	starts[axis] = start + at;
	lengths[axis] = whole - at;
	add_cut(l, starts, lengths, holes);
}

static void random_box(const layout *l, int64_t *starts, int64_t *lengths, int64_t length_min)
{
	for (int32_t d = 0; d < l->boxes.rank; d++) {
		int64_t dim = l->dims[d];
		starts[d] = (int64_t)test_random_below((uint64_t)(dim + 1 - length_min));
		lengths[d] = length_min + (int64_t)test_random_below((uint64_t)(dim - starts[d] - length_min) + 1);
	}
}

static void shuffle(layout *l)
{
	size_t size = 2 * (size_t)l->boxes.rank * sizeof(int64_t);
	for (uint64_t i = l->boxes.count; i > 1; i--) {
		int64_t box[2 * AXES_MAX];
		uint64_t other = test_random_below(i);
		memcpy(box, box_of(l, i - 1), size);
		memcpy(box_of(l, i - 1), box_of(l, other), size);
		memcpy(box_of(l, other), box, size);
	}
}

/* Whether box `row` holds the cell. */
static bool holds(layout *l, uint64_t row, const int64_t *cell)
{
	const int64_t *box = box_of(l, row);
	for (int32_t d = 0; d < l->boxes.rank; d++) {
		int64_t length = box[l->boxes.rank + d] == -1 ? l->dims[d] : box[l->boxes.rank + d];
		if (cell[d] < box[d] || cell[d] >= box[d] + length)
			return false;
	}
	return true;
}

/* The next cell of a box in row-major order; false after the last. */
static bool step(int32_t rank, const int64_t *starts, const int64_t *lengths, int64_t *cell)
{
	for (int32_t d = rank - 1; d >= 0; d--) {
		if (++cell[d] < starts[d] + lengths[d])
			return true;
		cell[d] = starts[d];
	}
	return false;
}

static bool cells_disjoint(layout *l)
{
	int64_t zeros[AXES_MAX] = {0}, cell[AXES_MAX] = {0};
	do {
		int found = 0;
		for (uint64_t i = 0; i < l->boxes.count; i++)
			found += holds(l, i, cell);
		if (found > 1)
			return false;
	} while (step(l->boxes.rank, zeros, l->dims, cell));
	return true;
}

static bool rows_overlap(layout *l, uint64_t a, uint64_t b)
{
	int64_t zeros[AXES_MAX] = {0}, cell[AXES_MAX] = {0};
	do
		if (holds(l, a, cell) && holds(l, b, cell))
			return true;
	while (step(l->boxes.rank, zeros, l->dims, cell));
	return false;
}

static void check_disjoint(layout *l)
{
	ckptfmt_error err;
	uint64_t rows[2];
	if (cells_disjoint(l)) {
		CHECK_OK(cf_boxes_check_disjoint(&l->boxes, rows, &err), err);
		return;
	}
	CHECK_FAILS(cf_boxes_check_disjoint(&l->boxes, rows, &err), err, CKPTFMT_FAIL_BAD_SLICE, "SLC-6: slices ");
	CHECK(rows[0] < rows[1] && rows[1] < l->boxes.count);
	CHECK(rows_overlap(l, rows[0], rows[1]));
	CHECK(cf_boxes_check_disjoint(&l->boxes, NULL, NULL) == CKPTFMT_CORRUPT);
}

static bool is_held(layout *l, const int64_t *cell)
{
	for (uint64_t i = 0; i < l->boxes.count; i++)
		if (holds(l, i, cell))
			return true;
	return false;
}

static void check_cover(layout *l, const int64_t *starts, const int64_t *lengths)
{
	ckptfmt_error err;
	int64_t cell[AXES_MAX];
	long long missing = 0, total = 0, first = 0, end = 0;
	char expected[128];
	if (cf_box_count(l->boxes.rank, lengths) != 0) {
		memcpy(cell, starts, sizeof cell);
		do {
			total++;
			if (is_held(l, cell))
				continue;
			if (missing++ == 0)
				first = end = cell[0];
			end += cell[0] == end;
		} while (step(l->boxes.rank, starts, lengths, cell));
	}
	CHECK_EQ(cf_box_count(l->boxes.rank, lengths), total);
	if (missing == 0) {
		CHECK_OK(cf_boxes_cover(&l->boxes, starts, lengths, &err), err);
		return;
	}
	(void)snprintf(expected, sizeof expected, "SLC-11: %lld of the %lld elements are missing, the first in [%lld:%lld]",
		missing, total, l->boxes.rank == 0 ? 0 : first, l->boxes.rank == 0 ? 0 : end);
	CHECK_FAILS(cf_boxes_cover(&l->boxes, starts, lengths, &err), err,
		CKPTFMT_FAIL_BAD_SLICE, expected);
	CHECK(cf_boxes_cover(&l->boxes, starts, lengths, NULL) == CKPTFMT_CORRUPT);
}

static void test_random_layouts(void)
{
	static layout l;
	for (int round = 0; round < 3000; round++) {
		int64_t starts[AXES_MAX] = {0}, lengths[AXES_MAX];
		begin_layout(&l, (int32_t)test_random_below(AXES_MAX + 1));
		memcpy(lengths, l.dims, sizeof lengths);
		add_cut(&l, starts, lengths, (unsigned)test_random_below(3) * 4);
		/* Sometimes one or many boxes that do not care for the others. */
		for (uint64_t extra = test_random_below(4) == 0 ? 1 + test_random_below(6) : 0; extra > 0; extra--) {
			random_box(&l, starts, lengths, 1);
			if (l.boxes.count < BOXES_MAX)
				add_box(&l, starts, lengths);
		}
		shuffle(&l);
		check_disjoint(&l);
		if (!cells_disjoint(&l))
			continue;
		memset(starts, 0, sizeof starts);
		check_cover(&l, starts, l.dims);
		for (int i = 0; i < 3; i++) {
			random_box(&l, starts, lengths, 0);
			check_cover(&l, starts, lengths);
		}
	}
}

/* Five boxes around a middle: no plane separates any of them. */
static void test_pinwheel(void)
{
	static int64_t extents[] = {
		0, 0, 2, 1,
		2, 0, 1, 2,
		1, 2, 2, 1,
		0, 1, 1, 2,
		1, 1, 1, 1,
	};
	int64_t dims[2] = {3, 3}, zeros[2] = {0, 0};
	cf_boxes boxes = {dims, extents, 5, 2};
	ckptfmt_error err;
	CHECK_OK(cf_boxes_check_disjoint(&boxes, NULL, &err), err);
	CHECK_OK(cf_boxes_cover(&boxes, zeros, dims, &err), err);
	boxes.count = 4;
	CHECK_FAILS(cf_boxes_cover(&boxes, zeros, dims, &err), err, CKPTFMT_FAIL_BAD_SLICE,
		"SLC-11: 1 of the 9 elements are missing");
}

/* No element at all: the same slice twice is still one too many, and everything is covered. */
static void test_empty_tensor(void)
{
	int64_t dims[2] = {0, 6}, zeros[2] = {0, 0};
	int64_t extents[] = {0, 0, -1, 3, 0, 3, -1, 3, 0, 2, -1, 2};
	cf_boxes boxes = {dims, extents, 2, 2};
	uint64_t rows[2];
	ckptfmt_error err;
	CHECK_OK(cf_boxes_check_disjoint(&boxes, rows, &err), err);
	CHECK_OK(cf_boxes_cover(&boxes, zeros, dims, &err), err);
	boxes.count = 3;
	CHECK_FAILS(cf_boxes_check_disjoint(&boxes, rows, &err), err, CKPTFMT_FAIL_BAD_SLICE, "SLC-6: slices ");
	CHECK_EQ(rows[1], 2);
	boxes.count = 0;
	CHECK_OK(cf_boxes_check_disjoint(&boxes, rows, &err), err);
	CHECK_OK(cf_boxes_cover(&boxes, zeros, dims, &err), err);
}

static void test_scalar(void)
{
	cf_boxes boxes = {NULL, NULL, 1, 0};
	int64_t none = 0;
	ckptfmt_error err;
	CHECK_OK(cf_boxes_check_disjoint(&boxes, NULL, &err), err);
	CHECK_OK(cf_boxes_cover(&boxes, &none, &none, &err), err);
	boxes.count = 2;
	CHECK_FAILS(cf_boxes_check_disjoint(&boxes, NULL, &err), err, CKPTFMT_FAIL_BAD_SLICE,
		"SLC-6: slices 0 and 1 overlap");
	boxes.count = 0;
	CHECK_FAILS(cf_boxes_cover(&boxes, &none, &none, &err), err, CKPTFMT_FAIL_BAD_SLICE,
		"SLC-11: 1 of the 1 elements are missing");
}

/* Extents near 2^63: nothing wraps. */
static void test_huge(void)
{
	int64_t dims[1] = {INT64_MAX}, zero = 0;
	int64_t extents[] = {INT64_MAX - 1, 1, 0, INT64_MAX - 2};
	cf_boxes boxes = {dims, extents, 2, 1};
	ckptfmt_error err;
	CHECK_OK(cf_boxes_check_disjoint(&boxes, NULL, &err), err);
	CHECK_FAILS(cf_boxes_cover(&boxes, &zero, dims, &err), err, CKPTFMT_FAIL_BAD_SLICE,
		"SLC-11: 1 of the 9223372036854775807 elements are missing");
	extents[3] = INT64_MAX;
	CHECK_FAILS(cf_boxes_check_disjoint(&boxes, NULL, &err), err, CKPTFMT_FAIL_BAD_SLICE,
		"SLC-6: slices 0 and 1 overlap");
	/* Not disjoint, against the contract: still an answer, not an overflow. */
	CHECK_FAILS(cf_boxes_cover(&boxes, &zero, dims, &err), err, CKPTFMT_FAIL_BAD_SLICE, "SLC-6");
}

/* Many boxes: a shuffled grid is fast, also with one wrong box. */
static void test_many(void)
{
	enum { SIDE = 128, COUNT = SIDE * SIDE };
	int64_t *extents = calloc(COUNT * 4, sizeof *extents);
	int64_t dims[2] = {SIDE * 3, SIDE * 2}, zeros[2] = {0, 0};
	cf_boxes boxes = {dims, extents, COUNT, 2};
	uint64_t rows[2];
	ckptfmt_error err;
	for (int i = 0; i < COUNT; i++) {
		int cell = (int)(((long long)i * 7919) % COUNT);
		extents[4 * i] = cell / SIDE * 3;
		extents[4 * i + 1] = cell % SIDE * 2;
		extents[4 * i + 2] = 3;
		extents[4 * i + 3] = 2;
	}
	CHECK_OK(cf_boxes_check_disjoint(&boxes, rows, &err), err);
	CHECK_OK(cf_boxes_cover(&boxes, zeros, dims, &err), err);
	boxes.count = COUNT - 1;
	CHECK_FAILS(cf_boxes_cover(&boxes, zeros, dims, &err), err, CKPTFMT_FAIL_BAD_SLICE,
		"SLC-11: 6 of the 98304 elements are missing");
	boxes.count = COUNT;
	memcpy(extents + 4 * 9000, extents + 4 * 77, 4 * sizeof *extents);
	CHECK_FAILS(cf_boxes_check_disjoint(&boxes, rows, &err), err, CKPTFMT_FAIL_BAD_SLICE,
		"SLC-6: slices 77 and 9000 overlap");
	CHECK(rows[0] == 77 && rows[1] == 9000);
	free(extents);
}

/* Rods along three axes: on each axis nearly all pairs intersect. */
static void test_limit(void)
{
	enum { SIDE = 160, COUNT = 3 * SIDE * SIDE };
	int64_t *extents = calloc(COUNT * 6, sizeof *extents);
	int64_t dims[3] = {2 * SIDE, 2 * SIDE, 2 * SIDE};
	cf_boxes boxes = {dims, extents, COUNT, 3};
	ckptfmt_error err;
	int64_t *box = extents;
	for (int axis = 0; axis < 3; axis++) {
		for (int i = 0; i < SIDE * SIDE; i++, box += 6) {
			int next = (axis + 1) % 3, last = (axis + 2) % 3;
			box[axis] = 0;
			box[3 + axis] = 2 * SIDE;
			/* Even, odd: an axis' rods pass through what the next one's leave. */
			box[next] = 2 * (i / SIDE);
			box[last] = 2 * (i % SIDE) + 1;
			box[3 + next] = box[3 + last] = 1;
		}
	}
	CHECK_FAILS(cf_boxes_check_disjoint(&boxes, NULL, &err), err, CKPTFMT_FAIL_LIMIT, "SLC-6: checking 76800 slices");
	boxes.count = 1000;
	CHECK_OK(cf_boxes_check_disjoint(&boxes, NULL, &err), err);
	free(extents);
}

static void test_full_rank(void)
{
	static int64_t dims[RANK], zeros[RANK], extents[4 * RANK];
	cf_boxes boxes = {dims, extents, 2, RANK};
	ckptfmt_error err;
	for (int d = 0; d < RANK; d++) {
		dims[d] = d % 40 == 5 ? 2 : 1;
		extents[RANK + d] = extents[3 * RANK + d] = -1;
	}
	extents[RANK + 245] = extents[3 * RANK + 245] = 1;
	extents[2 * RANK + 245] = 1;
	CHECK_OK(cf_boxes_check_disjoint(&boxes, NULL, &err), err);
	CHECK_OK(cf_boxes_cover(&boxes, zeros, dims, &err), err);
	boxes.count = 1;
	CHECK_FAILS(cf_boxes_cover(&boxes, zeros, dims, &err), err, CKPTFMT_FAIL_BAD_SLICE,
		"SLC-11: 64 of the 128 elements are missing");
}

int main(void)
{
	test_seed();
	test_shape_count();
	test_resolve();
	test_request();
	test_random_layouts();
	test_pinwheel();
	test_empty_tensor();
	test_scalar();
	test_huge();
	test_many();
	test_limit();
	test_full_rank();
	return test_finish("box");
}
