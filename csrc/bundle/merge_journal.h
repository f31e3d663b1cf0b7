/* SPDX-License-Identifier: Apache-2.0 */
/* What a merge that removes its inputs leaves on the disk while it does, so that one that was killed can be finished by
 * running it again: `<prefix>.merge-journal`, written before the commit and removed after the inputs (MRG-14). */
#ifndef CKPTFMT_BUNDLE_MERGE_JOURNAL_H
#define CKPTFMT_BUNDLE_MERGE_JOURNAL_H

#include "bundle/commit.h"
#include "bundle/merge_inputs.h"

/* What an index is known by. */
typedef struct cf_index_mark {
	uint64_t size;
	uint32_t crc32c;            /* of the whole file */
} cf_index_mark;

/* Writes the journal. `result` is the index that the merge is about to commit. Synced with durability FULL.
 * REQUIRES: cf_commit_lock. */
CF_MUST_CHECK ckptfmt_status cf_merge_journal_write(const cf_commit *commit, const cf_merge_inputs *inputs,
	cf_index_mark result, ckptfmt_error *err);

/* Removes the inputs: each index if it is still the one that was merged, then its data files, under the directory's
 * lock; what cannot be removed stays. Then the journal. REQUIRES: committed; no lock is held. */
void cf_merge_remove_inputs(const cf_commit *commit, cf_merge_inputs *inputs);

/* If the index at the destination is the result of a merge with a journal: finishes what that merge had begun with
 * those of `prefixes` that it lists. *finished: it was a merge of just these prefixes, and none of them is there any
 * more. Without a journal nothing happens, and a journal that is damaged or of another index counts as none. */
CF_MUST_CHECK ckptfmt_status cf_merge_resume(const char *const *prefixes, uint64_t count, const char *destination,
	int32_t durability, bool *finished, ckptfmt_error *err);

#endif
