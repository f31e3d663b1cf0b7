/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of losers over n inputs has nodes 1 .. n - 1; input i stands at leaf n + i, the parent of a node is half its
 * number. A node holds the loser of the match played there and node 0 the winner of all. When the winner steps, only
 * the matches on its way up are played again. An input that is done loses to all others; equal keys go by input.
 *
 * Keys are compared by codes, which say how a key differs from one that is less or equal, its base: how many bytes they
 * have in common and which byte follows. Of two keys with one base, that which has more in common is less, then that
 * with the lesser byte; only where both agree are the keys themselves looked at, from there on. Then the loser's code
 * is made anew, with the winner as its base; otherwise it is right for the winner as it is. So all codes on the way of
 * the last winner have that one as their base, and so has the winner's next key, whose code the table iterator gives.
 */
#include "bundle/merge_walk.h"

#include "base/memory.h"

#include <string.h>

#define DONE UINT64_MAX
#define SAME UINT64_C(0)        /* the key is its base */

/* The code of a key that has `common` bytes in common with its base. A key that ends there is the base. */
static uint64_t code_of(const cf_table_iterator *at, uint64_t common)
{
	if (common == at->key_size)
		return SAME;
	return (UINT32_MAX - common) << 8 | at->key[common];
}

/* The match where the codes are one. */
static bool beats_by_key(cf_merge_walk *walk, uint32_t a, uint32_t b)
{
	uint64_t *codes = walk->codes, common;
	const cf_table_iterator *x, *y;
	if (codes[a] == SAME || codes[a] == DONE)
		return a < b;
	x = &walk->inputs->rows[a].at;
	y = &walk->inputs->rows[b].at;
	common = UINT32_MAX - (codes[a] >> 8) + 1;
	common += cf_key_common(x->key + common, x->key_size - common, y->key + common, y->key_size - common);
	if (common == x->key_size || common == y->key_size ? x->key_size < y->key_size ||
		(x->key_size == y->key_size && a < b) : x->key[common] < y->key[common]) {
		codes[b] = code_of(y, common);
		return true;
	}
	codes[a] = code_of(x, common);
	return false;
}

/* Whether a's key comes before b's; the other one's code is set to have it as base. */
static inline bool beats(cf_merge_walk *walk, uint32_t a, uint32_t b)
{
	uint64_t x = walk->codes[a], y = walk->codes[b];
	return CF_LIKELY(x != y) ? x < y : beats_by_key(walk, a, b);
}

static ckptfmt_status step(cf_merge_walk *walk, uint32_t input, ckptfmt_error *err)
{
	cf_table_iterator *at = &walk->inputs->rows[input].at;
	bool more;
	CF_TRY(cf_table_iterator_next(at, &more, err));
	walk->codes[input] = more ? code_of(at, at->common) : DONE;
	return CKPTFMT_OK;
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
	walk->codes = cf_allocate_zero(inputs->count, sizeof *walk->codes);
	walk->losers = cf_allocate_zero(inputs->count, sizeof *walk->losers);
	if (walk->codes == NULL || walk->losers == NULL)
		return cf_fail_memory(err);
	for (uint32_t i = 0; i < inputs->count; i++) {
		/* The header, which every input was seen to begin with, and the first entry. The header's key is empty: it
		 * can be everybody's base. */
		cf_table_iterator_rewind(&inputs->rows[i].at);
		CF_TRY(step(walk, i, err));
		CF_TRY(step(walk, i, err));
	}
	walk->losers[0] = play(walk, 1);
	return CKPTFMT_OK;
}

ckptfmt_status cf_merge_walk_next(cf_merge_walk *walk, bool *more, ckptfmt_error *err)
{
	*more = false;
	if (walk->begun) {
		CF_TRY(step(walk, walk->losers[0], err));
		replay(walk);
	}
	walk->input = walk->losers[0];
	walk->at = &walk->inputs->rows[walk->input].at;
	walk->same_key = walk->begun && walk->codes[walk->input] == SAME;
	walk->begun = true;
	*more = walk->codes[walk->input] != DONE;
	return CKPTFMT_OK;
}

bool cf_merge_walk_is_done(const cf_merge_walk *walk, uint32_t input)
{
	return walk->codes[input] == DONE;
}

void cf_merge_walk_close(cf_merge_walk *walk)
{
	cf_release(walk->codes);
	cf_release(walk->losers);
	walk->codes = NULL;
	walk->losers = NULL;
}
