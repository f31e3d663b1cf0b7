/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of losers over n cursors has nodes 1 .. n - 1; cursor i stands at leaf n + i, the parent of a node is half
 * its number. A node holds the loser of the match played there and node 0 the winner of all. When the winner steps,
 * only the matches on its way up are played again. A cursor that is done loses to all others; equal keys go by input.
 *
 * Most matches are decided by the first 8 bytes of the keys, held with the cursor as a big-endian number.
 */
#include "bundle/merge_walk.h"

#include "base/memory.h"

#include <string.h>

static uint64_t head_of(const uint8_t *key, uint64_t size)
{
	uint64_t head = 0;
	for (uint64_t i = 0; i < 8; i++)
		head = head << 8 | (i < size ? key[i] : 0);
	return head;
}

static ckptfmt_status step(cf_merge_cursor *cursor, ckptfmt_error *err)
{
	bool more;
	CF_TRY(cf_table_iterator_next(&cursor->at, &more, err));
	cursor->done = !more;
	if (more)
		cursor->head = cursor->at.key_size >= 8 ? cf_load_big_u64(cursor->at.key)
			: head_of(cursor->at.key, cursor->at.key_size);
	return CKPTFMT_OK;
}

static bool beats(const cf_merge_walk *walk, uint32_t a, uint32_t b)
{
	const cf_merge_cursor *x = &walk->cursors[a], *y = &walk->cursors[b];
	int order;
	if (x->done || y->done)
		return x->done == y->done ? a < b : y->done;
	if (x->head != y->head)
		return x->head < y->head;
	order = cf_key_compare(x->at.key, x->at.key_size, y->at.key, y->at.key_size);
	return order == 0 ? a < b : order < 0;
}

/* Plays all matches below `node` and leaves their losers; returns the winner. */
static uint32_t play(cf_merge_walk *walk, uint64_t node)
{
	uint64_t count = walk->inputs->count;
	uint32_t left, right;
	if (node >= count)
		return (uint32_t)(node - count);
	left = play(walk, 2 * node);
	right = play(walk, 2 * node + 1);
	if (beats(walk, right, left)) {
		walk->losers[node] = left;
		return right;
	}
	walk->losers[node] = right;
	return left;
}

static void replay(cf_merge_walk *walk)
{
	uint32_t winner = walk->losers[0];
	for (uint64_t node = (walk->inputs->count + winner) / 2; node >= 1; node /= 2) {
		uint32_t loser = walk->losers[node];
		if (beats(walk, loser, winner)) {
			walk->losers[node] = winner;
			winner = loser;
		}
	}
	walk->losers[0] = winner;
}

ckptfmt_status cf_merge_walk_open(cf_merge_walk *walk, cf_merge_inputs *inputs, ckptfmt_error *err)
{
	memset(walk, 0, sizeof *walk);
	walk->inputs = inputs;
	walk->cursors = cf_allocate_zero(inputs->count, sizeof *walk->cursors);
	walk->losers = cf_allocate_zero(inputs->count, sizeof *walk->losers);
	if (walk->cursors == NULL || walk->losers == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < inputs->count; i++)
		cf_table_iterator_open(&walk->cursors[i].at, inputs->rows[i].table);
	for (uint64_t i = 0; i < inputs->count; i++) {
		/* The header, which every input was seen to begin with, and the first entry. */
		CF_TRY(step(&walk->cursors[i], err));
		CF_TRY(step(&walk->cursors[i], err));
	}
	walk->losers[0] = play(walk, 1);
	return CKPTFMT_OK;
}

ckptfmt_status cf_merge_walk_next(cf_merge_walk *walk, uint32_t *input, const cf_table_iterator **at, bool *more,
	ckptfmt_error *err)
{
	const cf_merge_cursor *cursor;
	*more = false;
	if (walk->begun) {
		CF_TRY(step(&walk->cursors[walk->losers[0]], err));
		replay(walk);
	}
	walk->begun = true;
	cursor = &walk->cursors[walk->losers[0]];
	*input = walk->losers[0];
	*at = &cursor->at;
	*more = !cursor->done;
	return CKPTFMT_OK;
}

void cf_merge_walk_close(cf_merge_walk *walk)
{
	for (uint64_t i = 0; walk->cursors != NULL && i < walk->inputs->count; i++)
		cf_table_iterator_close(&walk->cursors[i].at);
	cf_release(walk->cursors);
	cf_release(walk->losers);
	walk->cursors = NULL;
	walk->losers = NULL;
}
