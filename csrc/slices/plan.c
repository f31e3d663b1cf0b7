/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A copy between two row-major arrays is a nest of loops, one a dimension, each with a stride in either array. Walking
 * the dimensions from the innermost, a dimension of one step disappears; one whose strides continue the run in both
 * arrays lengthens the run; one whose strides continue the loop below in both arrays multiplies that loop's steps; any
 * other becomes a loop. The loops are stepped like an odometer.
 */
#include "slices/plan.h"

#include <assert.h>
#include <string.h>

/* One dimension of the nest, before merging. */
static void add_dimension(cf_plan *plan, uint64_t count, uint64_t stored_stride, uint64_t destination_stride)
{
	cf_plan_loop *below = plan->loop_count == 0 ? NULL : &plan->loops[plan->loop_count - 1];
	if (count == 1)
		return;
	if (below == NULL && stored_stride == plan->next.size && destination_stride == plan->next.size) {
		plan->next.size *= count;
		return;
	}
	if (below != NULL && stored_stride == below->count * below->stored_stride &&
		destination_stride == below->count * below->destination_stride) {
		below->count *= count;
		return;
	}
	assert(plan->loop_count < CF_LOOPS_MAX);
	plan->loops[plan->loop_count++] = (cf_plan_loop){count, stored_stride, destination_stride, 0};
}

/* Bytes of a box, which every offset below is less than. */
static CF_MUST_CHECK bool byte_count(int32_t rank, const int64_t *lengths, uint64_t itemsize, uint64_t *out)
{
	*out = itemsize;
	for (int32_t d = 0; d < rank; d++)
		if (!cf_mul_u64(*out, (uint64_t)lengths[d], out))
			return false;
	return *out <= (uint64_t)INT64_MAX;
}

static bool share_cells(int32_t rank, const int64_t *starts_a, const int64_t *lengths_a, const int64_t *starts_b,
	const int64_t *lengths_b)
{
	for (int32_t d = 0; d < rank; d++)
		if (lengths_a[d] == 0 || lengths_b[d] == 0 || starts_a[d] >= starts_b[d] + lengths_b[d] ||
			starts_b[d] >= starts_a[d] + lengths_a[d])
			return false;
	return true;
}

static int64_t larger(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

ckptfmt_status cf_plan_init(cf_plan *plan, int32_t rank, const int64_t *stored_starts, const int64_t *stored_lengths,
	const int64_t *request_starts, const int64_t *request_lengths, uint64_t itemsize, ckptfmt_error *err)
{
	uint64_t stored_stride = itemsize, destination_stride = itemsize, bytes;
	assert(rank >= 0 && rank <= CKPTFMT_RANK_MAX);
	assert(itemsize >= 1);
	plan->loop_count = 0;
	plan->run_count = 0;
	plan->runs_left = 0;
	plan->stored_begin = 0;
	plan->stored_end = UINT64_MAX;
	plan->next = (cf_run){0, 0, 0};
	plan->first_byte = 0;
	plan->first_destination = 0;
	if (!share_cells(rank, stored_starts, stored_lengths, request_starts, request_lengths))
		return CKPTFMT_OK;
	if (!byte_count(rank, stored_lengths, itemsize, &bytes) || !byte_count(rank, request_lengths, itemsize, &bytes))
		return cf_fail(err, CKPTFMT_FAIL_BAD_SHAPE, CF_NO_OFFSET, "SHP-4: a slice of more than 2^63 - 1 bytes");
	plan->run_count = 1;
	plan->next.size = itemsize;
	for (int32_t d = rank - 1; d >= 0; d--) {
		int64_t start = larger(stored_starts[d], request_starts[d]);
		int64_t end = smaller(stored_starts[d] + stored_lengths[d], request_starts[d] + request_lengths[d]);
		plan->first_byte += (uint64_t)(start - stored_starts[d]) * stored_stride;
		plan->first_destination += (uint64_t)(start - request_starts[d]) * destination_stride;
		add_dimension(plan, (uint64_t)(end - start), stored_stride, destination_stride);
		stored_stride *= (uint64_t)stored_lengths[d];
		destination_stride *= (uint64_t)request_lengths[d];
	}
	for (uint32_t i = 0; i < plan->loop_count; i++)
		plan->run_count *= plan->loops[i].count;
	cf_plan_reset(plan);
	return CKPTFMT_OK;
}

void cf_plan_reset(cf_plan *plan)
{
	plan->next.stored_offset = plan->first_byte;
	plan->next.destination_offset = plan->first_destination;
	plan->runs_left = plan->run_count;
	plan->stored_begin = 0;
	plan->stored_end = UINT64_MAX;
	for (uint32_t i = 0; i < plan->loop_count; i++)
		plan->loops[i].index = 0;
}

/* From the outermost loop inwards, takes the last step that begins at or before the offset. If the run found there ends
 * before the offset, the next one is the first behind it. */
void cf_plan_seek(cf_plan *plan, uint64_t stored_offset)
{
	uint64_t left, number = 0;
	cf_run skipped;
	cf_plan_reset(plan);
	if (plan->run_count == 0 || stored_offset <= plan->first_byte)
		return;
	left = stored_offset - plan->first_byte;
	for (uint32_t i = plan->loop_count; i-- > 0;) {
		cf_plan_loop *loop = &plan->loops[i];
		loop->index = left / loop->stored_stride;
		if (loop->index >= loop->count)
			loop->index = loop->count - 1;
		left -= loop->index * loop->stored_stride;
		plan->next.stored_offset += loop->index * loop->stored_stride;
		plan->next.destination_offset += loop->index * loop->destination_stride;
		number = number * loop->count + loop->index;
	}
	plan->runs_left = plan->run_count - number;
	if (left >= plan->next.size)
		(void)cf_plan_next(plan, &skipped);
}

void cf_plan_limit(cf_plan *plan, uint64_t stored_begin, uint64_t stored_end)
{
	cf_plan_seek(plan, stored_begin);
	plan->stored_begin = stored_begin;
	plan->stored_end = stored_end;
}

/* False: it is past the limit, like all that follow. */
static bool cut_run(const cf_plan *plan, cf_run *run)
{
	uint64_t before = run->stored_offset < plan->stored_begin ? plan->stored_begin - run->stored_offset : 0;
	if (run->stored_offset >= plan->stored_end)
		return false;
	run->stored_offset += before;
	run->destination_offset += before;
	run->size = cf_min_u64(run->size - before, plan->stored_end - run->stored_offset);
	return true;
}

bool cf_plan_next(cf_plan *plan, cf_run *run)
{
	if (plan->runs_left == 0)
		return false;
	*run = plan->next;
	if (CF_UNLIKELY(plan->stored_end != UINT64_MAX) && !cut_run(plan, run))
		return false;
	plan->runs_left--;
	for (uint32_t i = 0; i < plan->loop_count; i++) {
		cf_plan_loop *loop = &plan->loops[i];
		plan->next.stored_offset += loop->stored_stride;
		plan->next.destination_offset += loop->destination_stride;
		if (++loop->index < loop->count)
			break;
		plan->next.stored_offset -= loop->count * loop->stored_stride;
		plan->next.destination_offset -= loop->count * loop->destination_stride;
		loop->index = 0;
	}
	return true;
}

uint64_t cf_plan_last_byte(const cf_plan *plan)
{
	uint64_t last = plan->first_byte + plan->next.size - 1;
	assert(plan->run_count != 0);
	for (uint32_t i = 0; i < plan->loop_count; i++)
		last += (plan->loops[i].count - 1) * plan->loops[i].stored_stride;
	return last;
}
