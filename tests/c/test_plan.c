/* SPDX-License-Identifier: Apache-2.0 */
/* The read plan: random pairs of boxes against a copy element by element, and the length of the runs. */
#include "test.h"

#include "slices/plan.h"

enum { RANK = CKPTFMT_RANK_MAX, AXES_MAX = 6, BYTES_MAX = 1 << 16 };

typedef struct box {
	int64_t starts[RANK];
	int64_t lengths[RANK];
} box;

static box stored, request;
static int32_t rank;

static int64_t volume(const box *b)
{
	int64_t count = 1;
	for (int32_t d = 0; d < rank; d++)
		count *= b->lengths[d];
	return count;
}

/* Row-major position of a cell in a box, -1 outside. */
static int64_t position(const box *b, const int64_t *cell)
{
	int64_t at = 0;
	for (int32_t d = 0; d < rank; d++) {
		int64_t inside = cell[d] - b->starts[d];
		if (inside < 0 || inside >= b->lengths[d])
			return -1;
		at = at * b->lengths[d] + inside;
	}
	return at;
}

/* origin[i]: which stored byte the byte i of the request comes from, -1 for none. */
static int64_t origin[BYTES_MAX], planned[BYTES_MAX];

static int64_t fill_origin(int64_t itemsize)
{
	int64_t cell[RANK], count = volume(&request), shared = 0;
	memcpy(cell, request.starts, (size_t)rank * sizeof *cell);
	for (int64_t i = 0; i < count; i++) {
		int64_t from = position(&stored, cell);
		shared += from >= 0;
		for (int64_t b = 0; b < itemsize; b++)
			origin[i * itemsize + b] = from < 0 ? -1 : from * itemsize + b;
		for (int32_t d = rank - 1; d >= 0; d--) {
			if (++cell[d] < request.starts[d] + request.lengths[d])
				break;
			cell[d] = request.starts[d];
		}
	}
	return shared * itemsize;
}

/* Runs the plan into `planned`; checks order, bounds and the totals on the way. */
static void run_plan(cf_plan *plan, int64_t request_size, int64_t stored_size)
{
	cf_run run;
	uint64_t count = 0, end = 0, first = 0, last = 0, destination_end = 0;
	for (int64_t i = 0; i < request_size; i++)
		planned[i] = -1;
	while (cf_plan_next(plan, &run)) {
		CHECK(run.size == cf_plan_run_size(plan) && run.size > 0);
		CHECK(count == 0 || run.stored_offset >= end);
		CHECK(count == 0 || run.destination_offset >= destination_end);
		/* Two runs that touch on both sides should have been one. */
		CHECK(count == 0 || run.stored_offset != end || run.destination_offset != destination_end);
		CHECK(run.stored_offset + run.size <= (uint64_t)stored_size);
		CHECK(run.destination_offset + run.size <= (uint64_t)request_size);
		if (run.destination_offset + run.size > (uint64_t)request_size)
			return;
		for (uint64_t b = 0; b < run.size; b++)
			planned[run.destination_offset + b] = (int64_t)(run.stored_offset + b);
		first = count == 0 ? run.stored_offset : first;
		end = run.stored_offset + run.size;
		destination_end = run.destination_offset + run.size;
		last = end - 1;
		count++;
	}
	CHECK(!cf_plan_next(plan, &run));
	CHECK_EQ(cf_plan_run_count(plan), count);
	if (count != 0) {
		CHECK_EQ(cf_plan_first_byte(plan), first);
		CHECK_EQ(cf_plan_last_byte(plan), last);
	}
}

static void check_plan(int64_t itemsize)
{
	cf_plan plan;
	ckptfmt_error err;
	int64_t request_size = volume(&request) * itemsize;
	int64_t shared = fill_origin(itemsize);
	memset(&plan, 0xee, sizeof plan);
	CHECK_OK(cf_plan_init(&plan, rank, stored.starts, stored.lengths, request.starts, request.lengths,
		(uint64_t)itemsize, &err), err);
	CHECK_EQ(cf_plan_run_count(&plan) * cf_plan_run_size(&plan), shared);
	for (int turn = 0; turn < 2; turn++) {
		run_plan(&plan, request_size, volume(&stored) * itemsize);
		CHECK(memcmp(planned, origin, (size_t)request_size * sizeof *origin) == 0);
		cf_plan_reset(&plan);
	}
	/* A reset in the middle. */
	if (cf_plan_run_count(&plan) > 2) {
		cf_run run;
		CHECK(cf_plan_next(&plan, &run) && cf_plan_next(&plan, &run));
		cf_plan_reset(&plan);
		run_plan(&plan, request_size, volume(&stored) * itemsize);
		CHECK(memcmp(planned, origin, (size_t)request_size * sizeof *origin) == 0);
	}
}

/* Pieces of the stored bytes, one after the other: together all of it, and each by itself nothing else. */
static void check_limits(int64_t itemsize)
{
	cf_plan plan, before;
	cf_run run;
	ckptfmt_error err;
	int64_t request_size = volume(&request) * itemsize;
	uint64_t stored_size = (uint64_t)(volume(&stored) * itemsize), at = 0;
	(void)fill_origin(itemsize);
	CHECK_OK(cf_plan_init(&plan, rank, stored.starts, stored.lengths, request.starts, request.lengths,
		(uint64_t)itemsize, &err), err);
	before = plan;
	for (int64_t i = 0; i < request_size; i++)
		planned[i] = -1;
	while (at < stored_size) {
		uint64_t end = at + 1 + test_random_below(stored_size - at + 3), left_at = at;
		cf_plan_limit(&plan, at, end);
		while (cf_plan_next(&plan, &run)) {
			CHECK(run.size > 0 && run.stored_offset >= left_at && run.stored_offset + run.size <= end);
			CHECK(run.destination_offset + run.size <= (uint64_t)request_size);
			for (uint64_t b = 0; b < run.size; b++)
				planned[run.destination_offset + b] = (int64_t)(run.stored_offset + b);
			left_at = run.stored_offset + run.size;
		}
		CHECK(!cf_plan_next(&plan, &run));
		at = end;
	}
	CHECK(memcmp(planned, origin, (size_t)request_size * sizeof *origin) == 0);
	cf_plan_reset(&plan);
	CHECK_EQ(plan.stored_end, before.stored_end);
	CHECK_EQ(plan.runs_left, before.runs_left);
}

static void random_boxes(void)
{
	int64_t most = rank > 3 ? 3 : 7;
	for (int32_t d = 0; d < rank; d++) {
		box *both[2] = {&stored, &request};
		int64_t dim = (int64_t)test_random_below((uint64_t)most) + (test_random_below(30) != 0);
		for (int i = 0; i < 2; i++) {
			int64_t start = (int64_t)test_random_below((uint64_t)dim + 1);
			bool full = test_random_below(2) != 0;
			both[i]->starts[d] = full ? 0 : start;
			both[i]->lengths[d] = full ? dim : (int64_t)test_random_below((uint64_t)(dim - start) + 1);
			if (!full && both[i]->lengths[d] == 0 && start < dim && test_random_below(8) != 0)
				both[i]->lengths[d] = 1;
		}
	}
}

static void test_random_boxes(void)
{
	static const int64_t itemsizes[] = {1, 2, 3, 4, 8, 16, 7};
	for (int round = 0; round < 20000; round++) {
		rank = (int32_t)test_random_below(AXES_MAX + 1);
		random_boxes();
		check_plan(itemsizes[test_random_below(CF_ARRAY_COUNT(itemsizes))]);
		check_limits(itemsizes[test_random_below(CF_ARRAY_COUNT(itemsizes))]);
	}
}

static void set_box(box *b, const int64_t *starts, const int64_t *lengths)
{
	memcpy(b->starts, starts, (size_t)rank * sizeof *starts);
	memcpy(b->lengths, lengths, (size_t)rank * sizeof *lengths);
}

static void check_runs(uint64_t itemsize, uint64_t count, uint64_t size, uint64_t first, uint64_t last)
{
	cf_plan plan;
	ckptfmt_error err;
	CHECK_OK(cf_plan_init(&plan, rank, stored.starts, stored.lengths, request.starts, request.lengths, itemsize,
		&err), err);
	CHECK_EQ(cf_plan_run_count(&plan), count);
	CHECK_EQ(cf_plan_run_size(&plan), size);
	CHECK_EQ(cf_plan_first_byte(&plan), first);
	CHECK_EQ(cf_plan_last_byte(&plan), last);
}

static void test_run_lengths(void)
{
	rank = 3;
	/* A whole box is one run. */
	set_box(&stored, (int64_t[]){2, 0, 5}, (int64_t[]){4, 3, 6});
	request = stored;
	check_runs(4, 1, 288, 0, 287);
	/* Leading rows of it: still one. */
	request.starts[0] = 3;
	request.lengths[0] = 2;
	check_runs(4, 1, 144, 72, 215);
	/* Full trailing dimensions merge, a cut middle does not. */
	request.starts[1] = 1;
	request.lengths[1] = 1;
	check_runs(4, 2, 24, 96, 191);
	/* A cut last dimension: the two outer ones merge into one loop of 6 steps. */
	set_box(&request, (int64_t[]){2, 0, 6}, (int64_t[]){4, 3, 2});
	check_runs(4, 12, 8, 4, 275);
	/* Rank 0. */
	rank = 0;
	check_runs(8, 1, 8, 0, 7);
}

static void test_nothing_shared(void)
{
	cf_plan plan;
	cf_run run;
	ckptfmt_error err;
	rank = 2;
	set_box(&stored, (int64_t[]){0, 0}, (int64_t[]){4, 3});
	set_box(&request, (int64_t[]){4, 0}, (int64_t[]){1, 3});
	for (int i = 0; i < 3; i++) {
		CHECK_OK(cf_plan_init(&plan, rank, stored.starts, stored.lengths, request.starts, request.lengths, 4,
			&err), err);
		CHECK_EQ(cf_plan_run_count(&plan), 0);
		CHECK_EQ(cf_plan_run_size(&plan), 0);
		CHECK(!cf_plan_next(&plan, &run));
		cf_plan_reset(&plan);
		CHECK(!cf_plan_next(&plan, &run));
		/* Touching, then empty in one dimension, then empty inside the other box. */
		set_box(&request, (int64_t[]){0, 0}, i == 0 ? (int64_t[]){0, INT64_MAX} : (int64_t[]){4, 0});
		request.starts[1] = i;
		if (i == 0)
			request.starts[1] = 0;
	}
}

static void refuse(uint64_t itemsize)
{
	cf_plan plan;
	ckptfmt_error err;
	CHECK_FAILS(cf_plan_init(&plan, rank, stored.starts, stored.lengths, request.starts, request.lengths, itemsize,
		&err), err, CKPTFMT_FAIL_BAD_SHAPE, "SHP-4: a slice of more than 2^63 - 1 bytes");
	CHECK_EQ(cf_plan_run_count(&plan), 0);
}

static void test_overflow(void)
{
	int64_t half = (int64_t)1 << 62;
	rank = 1;
	set_box(&stored, (int64_t[]){0}, (int64_t[]){INT64_MAX});
	request = stored;
	check_runs(1, 1, INT64_MAX, 0, INT64_MAX - 1);
	refuse(2);
	request.lengths[0] = 1;
	refuse(2);
	set_box(&stored, (int64_t[]){0}, (int64_t[]){half});
	refuse(2);
	check_runs(1, 1, 1, 0, 0);
	/* The request alone is too large. */
	set_box(&request, (int64_t[]){0}, (int64_t[]){half});
	set_box(&stored, (int64_t[]){half - 1}, (int64_t[]){1});
	refuse(8);
	/* The last element of a vast tensor. */
	set_box(&stored, (int64_t[]){0}, (int64_t[]){half / 4});
	set_box(&request, (int64_t[]){half / 4 - 1}, (int64_t[]){1});
	check_runs(4, 1, 4, (uint64_t)half - 4, (uint64_t)half - 1);
	rank = 3;
	set_box(&stored, (int64_t[]){0, 0, 0}, (int64_t[]){(int64_t)1 << 30, (int64_t)1 << 30, 8});
	request = stored;
	refuse(1);
}

static void test_full_rank(void)
{
	rank = RANK;
	memset(&stored, 0, sizeof stored);
	for (int d = 0; d < RANK; d++)
		stored.lengths[d] = d % 30 == 7 ? 2 : 1;
	request = stored;
	check_runs(4, 1, 4 << 9, 0, (4 << 9) - 1);
	check_plan(4);
	request.starts[127] = 1;
	request.lengths[127] = 1;
	request.lengths[247] = 1;
	check_plan(4);
	/* The most loops that fit: two of three steps along 39 dimensions, the last of them in the run. */
	for (int d = 0; d < RANK; d++) {
		stored.starts[d] = request.starts[d] = 0;
		stored.lengths[d] = d < 39 ? 3 : 1;
		request.lengths[d] = d < 39 ? 2 : 1;
	}
	{
		cf_plan plan;
		ckptfmt_error err;
		CHECK_OK(cf_plan_init(&plan, rank, stored.starts, stored.lengths, request.starts, request.lengths, 2,
			&err), err);
		CHECK_EQ(cf_plan_run_count(&plan), (uint64_t)1 << 38);
		CHECK_EQ(cf_plan_run_size(&plan), 4);
	}
}

int main(void)
{
	test_seed();
	test_random_boxes();
	test_run_lengths();
	test_nothing_shared();
	test_overflow();
	test_full_rank();
	return test_finish("plan");
}
