/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tree of losers over n inputs has nodes 1 .. n - 1; input i is at leaf n + i, and the parent of a node is half its
 * number. A node holds the loser of the match played there, and node 0 the winner of all. When the winner steps, only
 * the matches on its path to the root are replayed. An exhausted input loses to all others; of equal keys the first
 * input wins.
 *
 * Keys are compared by codes (offset-value coding). A code says how a key differs from a key that is less or equal, its
 * base: the length of their shared prefix and the byte that follows. Of two keys with the same base, the one with the
 * longer shared prefix is less, then the one with the lesser byte; only if both are equal are the keys themselves
 * compared, from there on. Then the loser's code is computed anew with the winner as its base; otherwise it is already
 * valid for the winner. So all codes on the path of the last winner have its key as their base, and so has the winner's
 * next key, whose code comes from the table iterator.
 */
#include "merge/walk.h"

#include "base/memory.h"

#include <string.h>

#define DONE CF_MERGE_DONE
#define SAME CF_MERGE_SAME

typedef cf_merge_node node;

static uint64_t common_of(uint64_t code)
{
	return UINT32_MAX - (code >> 8);
}

/* The match of equal codes. */
static bool beats_by_key(const cf_merge_walk *walk, node *a, node *b)
{
	uint64_t common;
	const cf_table_iterator *x, *y;
	if (a->code == SAME || a->code == DONE)
		return a->input < b->input;
	x = &walk->inputs->rows[a->input].at;
	y = &walk->inputs->rows[b->input].at;
	common = common_of(a->code) + 1;
	common += cf_key_common(x->key + common, x->key_size - common, y->key + common, y->key_size - common);
	if (common == x->key_size || common == y->key_size ? x->key_size < y->key_size ||
		(x->key_size == y->key_size && a->input < b->input) : x->key[common] < y->key[common]) {
		b->code = cf_merge_code_of(y, common);
		return true;
	}
	a->code = cf_merge_code_of(x, common);
	return false;
}

/* Whether a's key comes before b's. The loser's code gets the winner as its base. */
static inline bool beats(const cf_merge_walk *walk, node *a, node *b)
{
	return CF_LIKELY(a->code != b->code) ? a->code < b->code : beats_by_key(walk, a, b);
}

static ckptfmt_status step(cf_merge_walk *walk, node *winner, ckptfmt_error *err)
{
	cf_table_iterator *at = &walk->inputs->rows[winner->input].at;
	bool more;
	CF_TRY(cf_table_iterator_next(at, &more, err));
	winner->code = more ? cf_merge_code_of(at, at->common) : DONE;
	return CKPTFMT_OK;
}

/* Plays all matches at and below node `row`, storing the losers. Returns the winner. */
static node play(cf_merge_walk *walk, const node *leaves, uint64_t row)
{
	uint64_t count = walk->inputs->count;
	node left, right;
	if (row >= count)
		return leaves[row - count];
	left = play(walk, leaves, 2 * row);
	right = play(walk, leaves, 2 * row + 1);
	if (beats(walk, &right, &left)) {
		walk->nodes[row] = left;
		return right;
	}
	walk->nodes[row] = right;
	return left;
}

static void replay(cf_merge_walk *walk)
{
	node *nodes = walk->nodes, winner = nodes[0];
	uint64_t least = UINT64_MAX;
	for (uint64_t row = (walk->inputs->count + winner.input) / 2; row >= 1; row /= 2) {
		if (beats(walk, &nodes[row], &winner)) {
			node loser = winner;
			winner = nodes[row];
			nodes[row] = loser;
		}
		least = cf_min_u64(least, nodes[row].code);
	}
	/* An input that won again stays the winner while its code is below those on its path. */
	walk->rivals = winner.input == nodes[0].input ? least : 0;
	nodes[0] = winner;
}

static ckptfmt_status open_leaves(cf_merge_walk *walk, node *leaves, ckptfmt_error *err)
{
	for (uint32_t i = 0; i < walk->inputs->count; i++) {
		leaves[i].input = i;
		/* The header, which was found in every input, and the first entry. The empty key of the header is the common
		 * base. */
		cf_table_iterator_rewind(&walk->inputs->rows[i].at);
		CF_TRY(step(walk, &leaves[i], err));
		CF_TRY(step(walk, &leaves[i], err));
	}
	walk->nodes[0] = play(walk, leaves, 1);
	return CKPTFMT_OK;
}

ckptfmt_status cf_merge_walk_open(cf_merge_walk *walk, cf_merge_inputs *inputs, ckptfmt_error *err)
{
	node *leaves = cf_allocate_zero(inputs->count, sizeof *leaves);
	ckptfmt_status status;
	memset(walk, 0, sizeof *walk);
	walk->inputs = inputs;
	walk->nodes = cf_allocate_zero(inputs->count, sizeof *walk->nodes);
	status = leaves == NULL || walk->nodes == NULL ? cf_fail_memory(err) : open_leaves(walk, leaves, err);
	cf_release(leaves);
	return status;
}

void cf_merge_walk_replay(cf_merge_walk *walk, bool *more)
{
	const node *winner = &walk->nodes[0];
	if (walk->begun && winner->code >= walk->rivals)
		replay(walk);
	walk->input = winner->input;
	walk->at = &walk->inputs->rows[walk->input].at;
	walk->same_key = walk->begun && winner->code == SAME;
	walk->common = winner->code == SAME ? walk->at->key_size : common_of(winner->code);
	walk->begun = true;
	*more = winner->code != DONE;
}

void cf_merge_walk_close(cf_merge_walk *walk)
{
	cf_release(walk->nodes);
	walk->nodes = NULL;
}
