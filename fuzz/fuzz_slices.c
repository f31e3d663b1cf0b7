/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Property: for a tensor of at most 256 cells, any list of slices and any query, what the geometry says (valid slices,
 * disjoint, covered, runs of elements, keys) is what counting cell by cell says.
 *
 * Input: a byte each for rank, every dimension, item size less 1 and number of slices, then start and length, a byte
 * each, for every dimension of every slice and of the query. Bytes that are not there are 0. A byte gives a small
 * number; some values give extreme ones.
 */
#include "repair.h"

#include "base/buffer.h"
#include "slices/box.h"
#include "slices/plan.h"
#include "slices/key.h"

#include <string.h>

enum { AXES_MAX = 6, CELLS_MAX = 256, SLICES_MAX = 16, ITEMSIZE_MAX = 16 };

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	(void)seed;
	return LLVMFuzzerMutate(data, size, capacity);
}

typedef struct input {
	const uint8_t *data;
	size_t left;
} input;

static uint8_t take(input *in)
{
	if (in->left == 0)
		return 0;
	in->left--;
	return *in->data++;
}

static int64_t take_number(input *in)
{
	uint8_t byte = take(in);
	switch (byte) {
	case 0xff:
		return -1;
	case 0xfe:
		return INT64_MAX;
	case 0xfd:
		return INT64_MIN;
	case 0xfc:
		return (int64_t)1 << 62;
	default:
		return byte % 20;
	}
}

typedef struct world {
	int32_t rank;
	int64_t dims[AXES_MAX];
	int64_t cell_count;
	int64_t extents[SLICES_MAX * 2 * AXES_MAX];
	cf_boxes boxes;
	int64_t cells[CELLS_MAX][AXES_MAX];     /* the coordinates of each cell */
	uint32_t owners[CELLS_MAX];             /* a bit for each slice that holds the cell */
} world;

static const int64_t *starts_of(const world *w, uint64_t row)
{
	return w->extents + row * 2 * (uint64_t)w->rank;
}

static const int64_t *lengths_of(const world *w, uint64_t row)
{
	return starts_of(w, row) + w->rank;
}

/* Coordinates of the cells, one after the other. */
static void list_cells(world *w)
{
	for (int64_t n = 0; n < w->cell_count; n++) {
		int64_t rest = n;
		for (int32_t d = w->rank - 1; d >= 0; d--) {
			w->cells[n][d] = rest % w->dims[d];
			rest /= w->dims[d];
		}
	}
}

/* Row-major position in a box whose full dimensions may be -1; -1 outside. */
static int64_t position(const world *w, const int64_t *starts, const int64_t *lengths, const int64_t *cell)
{
	int64_t at = 0;
	for (int32_t d = 0; d < w->rank; d++) {
		int64_t length = lengths[d] == -1 ? w->dims[d] : lengths[d];
		if (cell[d] < starts[d] || cell[d] - starts[d] >= length)
			return -1;
		at = at * length + cell[d] - starts[d];
	}
	return at;
}

static void take_shape(world *w, input *in)
{
	int64_t count;
	w->rank = take(in) % (AXES_MAX + 1);
	w->cell_count = 1;
	for (int32_t d = 0; d < w->rank; d++) {
		int64_t room = CELLS_MAX / (w->cell_count == 0 ? 1 : w->cell_count);
		int64_t dim = take(in) % 17;
		w->dims[d] = dim > room ? room : dim;
		w->cell_count *= w->dims[d];
	}
	FUZZ_CHECK(cf_shape_count(w->rank, w->dims, &count) && count == w->cell_count);
}

/* By the definition, in arithmetic wide enough for any int64. */
static bool is_valid(const world *w, const int64_t *starts, const int64_t *lengths)
{
	for (int32_t d = 0; d < w->rank; d++) {
		__int128 end = (__int128)starts[d] + lengths[d];
		bool full = starts[d] == 0 && lengths[d] == -1;
		if (!full && (starts[d] < 0 || lengths[d] < 1 || end > w->dims[d]))
			return false;
	}
	return true;
}

/* A slice that is accepted comes back from its key; any slice's key is refused or comes back. */
static void check_key(const world *w, const int64_t *starts, const int64_t *lengths, bool valid)
{
	static int64_t found_starts[CKPTFMT_RANK_MAX], found_lengths[CKPTFMT_RANK_MAX];
	cf_buffer key = CF_BUFFER_EMPTY, name = CF_BUFFER_EMPTY;
	int32_t rank;
	bool decoded;
	cf_slice_key_encode(&key, (const uint8_t *)"a\0\xff", 3, w->rank, starts, lengths);
	decoded = cf_slice_key_decode(key.data, key.size, &name, &rank, found_starts, found_lengths);
	FUZZ_CHECK(decoded || !valid || w->rank == 0);
	if (decoded) {
		FUZZ_CHECK(rank == w->rank && name.size == 3 && memcmp(name.data, "a\0\xff", 3) == 0);
		FUZZ_CHECK(memcmp(found_starts, starts, (size_t)rank * sizeof *starts) == 0);
		FUZZ_CHECK(memcmp(found_lengths, lengths, (size_t)rank * sizeof *lengths) == 0);
	}
	cf_buffer_free(&key);
	cf_buffer_free(&name);
}

/* Adds one slice if the shape admits it. */
static void take_slice(world *w, input *in)
{
	int64_t *starts = w->extents + w->boxes.count * 2 * (uint64_t)w->rank;
	int64_t *lengths = starts + w->rank;
	int64_t resolved_starts[AXES_MAX], resolved_lengths[AXES_MAX];
	bool valid;
	for (int32_t d = 0; d < w->rank; d++) {
		starts[d] = take_number(in);
		lengths[d] = take_number(in);
	}
	valid = is_valid(w, starts, lengths);
	/* Of one slice only: keys are most of the work, and the others are like it. */
	if (w->boxes.count == 0)
		check_key(w, starts, lengths, valid);
	FUZZ_CHECK(valid == (cf_box_resolve(w->rank, w->dims, starts, lengths, resolved_starts, resolved_lengths, NULL) ==
		CKPTFMT_OK));
	if (!valid)
		return;
	for (int32_t d = 0; d < w->rank; d++)
		FUZZ_CHECK(resolved_starts[d] == starts[d] &&
			resolved_lengths[d] == (lengths[d] == -1 ? w->dims[d] : lengths[d]));
	w->boxes.count++;
}

static void find_owners(world *w)
{
	for (int64_t n = 0; n < w->cell_count; n++) {
		w->owners[n] = 0;
		for (uint32_t i = 0; i < w->boxes.count; i++)
			if (position(w, starts_of(w, i), lengths_of(w, i), w->cells[n]) >= 0)
				w->owners[n] |= UINT32_C(1) << i;
	}
}

static bool share_a_cell(const world *w, uint64_t a, uint64_t b)
{
	uint32_t both = UINT32_C(1) << a | UINT32_C(1) << b;
	for (int64_t n = 0; n < w->cell_count; n++)
		if ((w->owners[n] & both) == both)
			return true;
	return false;
}

static bool check_disjoint(const world *w)
{
	uint64_t rows[2];
	ckptfmt_status status = cf_boxes_check_disjoint(&w->boxes, rows, NULL);
	bool disjoint = true;
	FUZZ_CHECK(status == CKPTFMT_OK || status == CKPTFMT_CORRUPT);
	/* Without cells there is nothing to count; the rule for such tensors has its own unit test. */
	if (w->cell_count == 0)
		return status == CKPTFMT_OK;
	for (int64_t n = 0; n < w->cell_count; n++)
		disjoint = disjoint && (w->owners[n] & (w->owners[n] - 1)) == 0;
	FUZZ_CHECK(disjoint == (status == CKPTFMT_OK));
	if (!disjoint)
		FUZZ_CHECK(rows[0] < rows[1] && rows[1] < w->boxes.count && share_a_cell(w, rows[0], rows[1]));
	return disjoint;
}

static void check_cover(const world *w, const int64_t *starts, const int64_t *lengths)
{
	bool covered = true;
	ckptfmt_status status = cf_boxes_cover(&w->boxes, starts, lengths, NULL);
	for (int64_t n = 0; n < w->cell_count; n++)
		if (w->owners[n] == 0 && position(w, starts, lengths, w->cells[n]) >= 0)
			covered = false;
	FUZZ_CHECK(status == (covered ? CKPTFMT_OK : CKPTFMT_CORRUPT));
}

/* Marks each element of the query with the stored element that a run brings. Runs hold whole elements. */
static void run_plan(cf_plan *plan, int64_t *from, uint64_t query_count, uint64_t stored_count, uint64_t itemsize)
{
	cf_run run;
	uint64_t end = 0, count = 0;
	memset(from, 0xff, query_count * sizeof *from);
	while (cf_plan_next(plan, &run)) {
		FUZZ_CHECK(run.size != 0 && cf_range_fits(run.stored_offset, run.size, stored_count * itemsize));
		FUZZ_CHECK(cf_range_fits(run.destination_offset, run.size, query_count * itemsize));
		FUZZ_CHECK(run.size % itemsize == 0 && run.stored_offset % itemsize == 0 &&
			run.destination_offset % itemsize == 0);
		FUZZ_CHECK(count == 0 || run.stored_offset >= end);
		end = run.stored_offset + run.size;
		FUZZ_CHECK(run.stored_offset >= cf_plan_first_byte(plan) && end - 1 <= cf_plan_last_byte(plan));
		for (uint64_t i = 0; i < run.size / itemsize; i++)
			from[run.destination_offset / itemsize + i] = (int64_t)(run.stored_offset / itemsize + i);
		count++;
	}
	FUZZ_CHECK(count == cf_plan_run_count(plan));
	FUZZ_CHECK(count == 0 || end - 1 == cf_plan_last_byte(plan));
}

static void check_plan(const world *w, uint64_t row, const int64_t *starts, const int64_t *lengths, uint64_t itemsize)
{
	int64_t from[CELLS_MAX], stored_lengths[AXES_MAX];
	cf_plan plan;
	FUZZ_CHECK(cf_box_resolve(w->rank, w->dims, starts_of(w, row), lengths_of(w, row), NULL, stored_lengths, NULL) ==
		CKPTFMT_OK);
	FUZZ_CHECK(cf_plan_init(&plan, w->rank, starts_of(w, row), stored_lengths, starts, lengths, itemsize, NULL) ==
		CKPTFMT_OK);
	run_plan(&plan, from, (uint64_t)cf_box_count(w->rank, lengths), (uint64_t)cf_box_count(w->rank, stored_lengths),
		itemsize);
	for (int64_t n = 0; n < w->cell_count; n++) {
		int64_t to = position(w, starts, lengths, w->cells[n]);
		if (to >= 0)
			FUZZ_CHECK(from[to] == position(w, starts_of(w, row), stored_lengths, w->cells[n]));
	}
}

/* Any box inside the shape, empty ones too; false if the bytes give none. */
static bool take_query(const world *w, input *in, int64_t *starts, int64_t *lengths)
{
	bool valid = true;
	for (int32_t d = 0; d < w->rank; d++) {
		starts[d] = take_number(in);
		lengths[d] = take_number(in);
		valid = valid && starts[d] >= 0 && lengths[d] >= 0 &&
			(__int128)starts[d] + lengths[d] <= (__int128)w->dims[d];
	}
	FUZZ_CHECK(valid == (cf_box_check_request(w->rank, w->dims, starts, lengths, NULL) == CKPTFMT_OK));
	return valid;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static world w;
	input in = {data, size};
	int64_t starts[AXES_MAX] = {0}, lengths[AXES_MAX];
	uint64_t itemsize, wanted;
	bool disjoint;
	take_shape(&w, &in);
	itemsize = take(&in) % ITEMSIZE_MAX + 1u;
	w.boxes = (cf_boxes){w.dims, w.extents, 0, w.rank};
	wanted = take(&in) % (SLICES_MAX + 1u);
	for (uint64_t i = 0; i < wanted; i++)
		take_slice(&w, &in);
	list_cells(&w);
	find_owners(&w);
	disjoint = check_disjoint(&w);
	if (!take_query(&w, &in, starts, lengths)) {
		memset(starts, 0, sizeof starts);
		memcpy(lengths, w.dims, sizeof lengths);
	}
	if (disjoint)
		check_cover(&w, starts, lengths);
	for (uint64_t i = 0; i < w.boxes.count; i++)
		check_plan(&w, i, starts, lengths, itemsize);
	return 0;
}
