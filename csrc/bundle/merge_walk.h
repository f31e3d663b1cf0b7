/* SPDX-License-Identifier: Apache-2.0 */
/* Goes over the entries of all inputs of a merge in the order of (key, input): a tree of losers over one cursor an
 * input. Holds a block an input. */
#ifndef CKPTFMT_BUNDLE_MERGE_WALK_H
#define CKPTFMT_BUNDLE_MERGE_WALK_H

#include "bundle/merge_inputs.h"

typedef struct cf_merge_cursor {
	cf_table_iterator at;
	uint64_t head;              /* the first bytes of the key, for comparing: see merge_walk.c */
	bool done;
} cf_merge_cursor;

typedef struct cf_merge_walk {
	cf_merge_inputs *inputs;
	cf_merge_cursor *cursors;
	uint32_t *losers;           /* [0] is the winner */
	bool begun;
} cf_merge_walk;

CF_MUST_CHECK ckptfmt_status cf_merge_walk_open(cf_merge_walk *walk, cf_merge_inputs *inputs, ckptfmt_error *err);
/* To the next entry, headers left out; *more is false past the last. *input is its input and *at the entry, a view
 * until the next call. Failures as cf_table_iterator_next. */
CF_MUST_CHECK ckptfmt_status cf_merge_walk_next(cf_merge_walk *walk, uint32_t *input, const cf_table_iterator **at,
	bool *more, ckptfmt_error *err);
void cf_merge_walk_close(cf_merge_walk *walk);

#endif
