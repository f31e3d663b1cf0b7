/* SPDX-License-Identifier: Apache-2.0 */
/* The intent of a merge that removes its inputs, `<prefix>.merge-intent` (MRG-14): the index that it is about to commit
 * and the inputs that it will remove after that. It is written before the commit and removed after the inputs, so that
 * running a killed merge again finishes it. */
#ifndef CKPTFMT_MERGE_INTENT_H
#define CKPTFMT_MERGE_INTENT_H

#include "merge/inputs.h"
#include "write/commit.h"
#include "write/generations.h"

/* Identifies an index. */
typedef struct cf_index_mark {
	uint64_t size;
	uint32_t crc32c;            /* of the whole file */
} cf_index_mark;

/* The file of an intent that was written. */
typedef struct cf_merge_intent {
	uint64_t inode;             /* 0: none */
	bool has_older;             /* it also has an intent in force */
} cf_merge_intent;

/* Writes the intent of committing the index `result` with `count` data files, of which `files` has the identities, all
 * zero for an empty file that does not exist yet. An intent in force, of another merge, stays in the file behind the
 * new one. REQUIRES: cf_commit_lock. LIMIT, IO, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_merge_intent_write(const cf_commit *commit, const cf_merge_inputs *inputs,
	cf_index_mark result, const cf_file_info *files, int32_t count, cf_merge_intent *out, ckptfmt_error *err);
/* Removes the intent of a commit that failed. REQUIRES: cf_commit_lock. */
void cf_merge_intent_withdraw(const cf_commit *commit, const cf_merge_intent *written);

/* Whether all these data files of one generation were left by a merge that was killed before its commit: an intent
 * lists them. (A merge that is running and has named files holds the lock.) REQUIRES: they are not those of the index
 * in force; cf_commit_lock before they are removed. */
CF_MUST_CHECK ckptfmt_status cf_merge_intent_left(const cf_commit *commit, const cf_generation_file *group,
	uint64_t count, bool *left, ckptfmt_error *err);

/* Removes the inputs, under the locks of their directories: of each input whose index is still the one that was merged
 * the data files, then the index; with `directories` then the directories that are empty; last the intent. NOT_REMOVED:
 * an input cannot be removed; what comes after it and the intent stay. REQUIRES: committed; no lock is held. */
CF_MUST_CHECK ckptfmt_status cf_merge_remove_inputs(const cf_commit *commit, cf_merge_inputs *inputs, bool directories,
	const cf_merge_intent *written, ckptfmt_error *err);

/* The destination when a merge began. */
typedef struct cf_merge_before {
	cf_file_info info;          /* of the index, */
	bool exists;                /* if there was one */
} cf_merge_before;

CF_MUST_CHECK ckptfmt_status cf_merge_look(const cf_commit *commit, cf_merge_before *out, ckptfmt_error *err);

/* Looks at the destination. If the index in force is that of an intent and options->consume is set, finishes what that
 * merge had begun with those of `prefixes` that the intent lists, once the result's data files are seen to be whole
 * (and synced, with durability FULL). *finished: it was a merge of just these, and none of them exists any more.
 * MERGE_CONFLICT: some of `prefixes` are gone and others are not, so that a merge of these would replace the only copy
 * of what is gone. An intent that is damaged, or not of the index in force, is ignored. */
CF_MUST_CHECK ckptfmt_status cf_merge_resume(const char *const *prefixes, uint64_t count, const char *destination,
	const ckptfmt_merge_options *options, cf_merge_before *before, bool *finished, ckptfmt_error *err);

#endif
