/* SPDX-License-Identifier: Apache-2.0 */
/* Goes over the entries of all inputs of a merge in the order of (key, input): a tree of losers over one iterator an
 * input. Holds a block an input. */
#ifndef CKPTFMT_BUNDLE_MERGE_WALK_H
#define CKPTFMT_BUNDLE_MERGE_WALK_H

#include "bundle/merge_inputs.h"

struct cf_merge_node;

typedef struct cf_merge_walk {
	cf_merge_inputs *inputs;
	struct cf_merge_node *nodes;        /* the tree: see merge_walk.c */
	uint64_t rivals;            /* the least code that the winner can meet, if it won twice in a row; else 0 */
	uint32_t input;             /* these four: of the current entry. Its input, */
	const cf_table_iterator *at;        /* the entry, a view until the next step, */
	uint64_t common;            /* the bytes that its key has in common with the one of the entry before, */
	bool same_key;              /* and whether that is all of it: the keys are one */
	bool begun;
} cf_merge_walk;

/* One walk at a time: it uses the inputs' iterators. */
CF_MUST_CHECK ckptfmt_status cf_merge_walk_open(cf_merge_walk *walk, cf_merge_inputs *inputs, ckptfmt_error *err);
/* To the next entry, headers left out; *more is false past the last. Failures as cf_table_iterator_next. */
CF_MUST_CHECK ckptfmt_status cf_merge_walk_next(cf_merge_walk *walk, bool *more, ckptfmt_error *err);
void cf_merge_walk_close(cf_merge_walk *walk);

#endif
