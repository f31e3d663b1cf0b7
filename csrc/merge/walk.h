/* SPDX-License-Identifier: Apache-2.0 */
/* Iterates over the entries of all inputs of a merge by (key, input): a tree of losers over one iterator per input,
 * each with a block in memory. */
#ifndef CKPTFMT_MERGE_WALK_H
#define CKPTFMT_MERGE_WALK_H

#include "merge/inputs.h"

/* An input in the tree, with the code of its current key: see walk.c. */
typedef struct cf_merge_node {
	uint64_t code;
	uint32_t input;
} cf_merge_node;

typedef struct cf_merge_walk {
	cf_merge_inputs *inputs;
	cf_merge_node *nodes;       /* the winner, then the tree */
	uint64_t rivals;            /* the least code among the losers to the winner, if it won twice in a row; else 0 */
	uint32_t input;             /* these four: of the current entry. Its input, */
	cf_table_iterator *at;      /* the entry, a view until the next step, */
	uint64_t common;            /* the length of the prefix that its key shares with the previous key, */
	bool same_key;              /* and whether the two keys are equal */
	bool begun;
} cf_merge_walk;

/* One walk at a time: it uses the inputs' iterators. */
CF_MUST_CHECK ckptfmt_status cf_merge_walk_open(cf_merge_walk *walk, cf_merge_inputs *inputs, ckptfmt_error *err);
/* Steps to the next entry, skipping headers; *more is false past the last. Failures as cf_table_iterator_next. */
static inline CF_MUST_CHECK ckptfmt_status cf_merge_walk_next(cf_merge_walk *walk, bool *more, ckptfmt_error *err);
void cf_merge_walk_close(cf_merge_walk *walk);

#define CF_MERGE_DONE UINT64_MAX
#define CF_MERGE_SAME UINT64_C(0)   /* the key is its base */

/* The code of a key that shares its first `common` bytes with its base. A key that ends there equals the base. */
static inline uint64_t cf_merge_code_of(const cf_table_iterator *at, uint64_t common)
{
	if (common == at->key_size)
		return CF_MERGE_SAME;
	return (UINT32_MAX - common) << 8 | at->key[common];
}

/* Replays the matches of the winner after it has stepped; none before the first entry. */
void cf_merge_walk_replay(cf_merge_walk *walk, bool *more);

static inline ckptfmt_status cf_merge_walk_next(cf_merge_walk *walk, bool *more, ckptfmt_error *err)
{
	uint64_t code = CF_MERGE_DONE, common;
	*more = false;
	if (CF_LIKELY(walk->begun)) {
		CF_TRY(cf_table_iterator_next(walk->at, more, err));
		common = walk->at->common;
		if (*more)
			code = cf_merge_code_of(walk->at, common);
		walk->nodes[0].code = code;
		if (CF_LIKELY(code < walk->rivals && code != CF_MERGE_SAME)) {
			walk->common = common;
			walk->same_key = false;
			return CKPTFMT_OK;
		}
	}
	cf_merge_walk_replay(walk, more);
	return CKPTFMT_OK;
}

#endif
