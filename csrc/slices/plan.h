/* SPDX-License-Identifier: Apache-2.0 */
/* The read plan: which bytes of a stored box go where in a requested one. Both are contiguous row-major arrays, so
 * their intersection is a set of runs of bytes; dimensions are merged to make the runs as long as possible. */
#ifndef CKPTFMT_SLICES_PLAN_H
#define CKPTFMT_SLICES_PLAN_H

#include "base/error.h"

#include <stdbool.h>

/* Merged dimensions have at least 2 steps each and their product fits 63 bits: no more than 62 can be left. */
enum { CF_LOOPS_MAX = 64 };

typedef struct cf_run {
	uint64_t stored_offset;         /* bytes from the start of the stored box */
	uint64_t destination_offset;    /* bytes from the start of the requested box */
	uint64_t size;
} cf_run;

typedef struct cf_plan_loop {
	uint64_t count;                 /* steps, at least 2 */
	uint64_t stored_stride;         /* bytes */
	uint64_t destination_stride;
	uint64_t index;                 /* Invariant: index < count. */
} cf_plan_loop;

/* Owns no memory; about 2 KiB, of which only the part in use is written. */
typedef struct cf_plan {
	cf_run next;
	uint64_t first_byte;
	uint64_t first_destination;
	uint64_t run_count;
	uint64_t runs_left;
	uint64_t stored_begin;                  /* runs are cut to this range */
	uint64_t stored_end;
	uint32_t loop_count;
	cf_plan_loop loops[CF_LOOPS_MAX];       /* innermost first */
} cf_plan;

/* Plans the copy of what two resolved boxes of one tensor share. Boxes without a common cell have
 * no runs, which is not an error. BAD_SHAPE (SHP-4) when the elements or bytes of either box do not fit 63 bits.
 * REQUIRES: 0 <= rank <= CKPTFMT_RANK_MAX; starts and lengths >= 0, their sums fit int64; itemsize >= 1. */
CF_MUST_CHECK ckptfmt_status cf_plan_init(cf_plan *plan, int32_t rank, const int64_t *stored_starts,
	const int64_t *stored_lengths, const int64_t *request_starts, const int64_t *request_lengths,
	uint64_t itemsize, ckptfmt_error *err);

/* The next run, in ascending order of stored_offset (and of destination_offset); false when there are no more. */
bool cf_plan_next(cf_plan *plan, cf_run *run);

/* To the first run that has a byte at or after this stored offset; without a limit. */
void cf_plan_seek(cf_plan *plan, uint64_t stored_offset);

/* Restricts the plan to the stored bytes [begin, end): runs that extend past them are cut.
 * REQUIRES: begin < end < UINT64_MAX. */
void cf_plan_limit(cf_plan *plan, uint64_t stored_begin, uint64_t stored_end);

/* Back to the first run, and without a limit. */
void cf_plan_reset(cf_plan *plan);

/* Runs in all, and bytes in each: they are all of one size, whatever the limit. Both 0 when nothing is shared. */
static inline uint64_t cf_plan_run_count(const cf_plan *plan)
{
	return plan->run_count;
}

static inline uint64_t cf_plan_run_size(const cf_plan *plan)
{
	return plan->next.size;
}

/* Stored offsets of the first and of the last byte (not one past it) that any run touches.
 * REQUIRES: cf_plan_run_count is not 0. */
static inline uint64_t cf_plan_first_byte(const cf_plan *plan)
{
	return plan->first_byte;
}

uint64_t cf_plan_last_byte(const cf_plan *plan);

#endif
