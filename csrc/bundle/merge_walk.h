/* SPDX-License-Identifier: Apache-2.0 */
/* Goes over the entries of all inputs of a merge in the order of (key, input): a tree of losers over one iterator an
 * input. Holds a block an input. */
#ifndef CKPTFMT_BUNDLE_MERGE_WALK_H
#define CKPTFMT_BUNDLE_MERGE_WALK_H

#include "bundle/merge_inputs.h"

typedef struct cf_merge_walk {
	cf_merge_inputs *inputs;
	uint64_t *codes;            /* of each input's current key: see merge_walk.c */
	uint32_t *losers;           /* [0] is the winner */
	uint32_t input;             /* these three: of the current entry. Its input, */
	const cf_table_iterator *at;        /* the entry, a view until the next step, */
	bool same_key;              /* and whether its key is that of the entry before */
	bool begun;
} cf_merge_walk;

/* One walk at a time: it uses the inputs' iterators. */
CF_MUST_CHECK ckptfmt_status cf_merge_walk_open(cf_merge_walk *walk, cf_merge_inputs *inputs, ckptfmt_error *err);
/* To the next entry, headers left out; *more is false past the last. Failures as cf_table_iterator_next. */
CF_MUST_CHECK ckptfmt_status cf_merge_walk_next(cf_merge_walk *walk, bool *more, ckptfmt_error *err);
/* Whether the input has no more entries. */
bool cf_merge_walk_is_done(const cf_merge_walk *walk, uint32_t input);
void cf_merge_walk_close(cf_merge_walk *walk);

#endif
