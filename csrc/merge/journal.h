/* SPDX-License-Identifier: Apache-2.0 */
/* What a merge that removes its inputs leaves on the disk while it does, so that one that was killed can be finished by
 * running it again: `<prefix>.merge-journal` (MRG-14). It is written before the commit under a temporary name, since
 * the journal of another merge may be in force until then, gets its name after the commit, and goes after the
 * inputs. */
#ifndef CKPTFMT_BUNDLE_MERGE_JOURNAL_H
#define CKPTFMT_BUNDLE_MERGE_JOURNAL_H

#include "write/commit.h"
#include "write/generations.h"
#include "merge/inputs.h"

/* What an index is known by. */
typedef struct cf_index_mark {
	uint64_t size;
	uint32_t crc32c;            /* of the whole file */
} cf_index_mark;

/* Writes the journal of a merge that is about to commit the index `result` with `count` data files, of which `files`
 * says what they are, all zero where it is not made yet and will be empty. *file is the finished file, synced with
 * durability FULL. LIMIT, IO, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_merge_journal_write(const cf_commit *commit, const cf_merge_inputs *inputs,
	cf_index_mark result, const cf_file_info *files, int32_t count, cf_file_writer *file, ckptfmt_error *err);

/* Whether all these data files of one generation were left by a merge that was killed before its commit, as a journal
 * without its name tells. (A merge that is alive and has named files holds the lock.) REQUIRES: they are not those of
 * the index in force, and before they are removed: cf_commit_lock. */
CF_MUST_CHECK ckptfmt_status cf_merge_journal_left(const cf_commit *commit, const cf_generation_file *group,
	uint64_t count, bool *left, ckptfmt_error *err);

/* Gives the journal its name and removes the inputs: each index if it is still the one that was merged, then its data
 * files, under the directory's lock; what cannot be removed stays. Then the journal goes. After a failure no input was
 * touched. REQUIRES: committed; no lock is held. */
CF_MUST_CHECK ckptfmt_status cf_merge_remove_inputs(const cf_commit *commit, cf_merge_inputs *inputs,
	cf_file_writer *file, ckptfmt_error *err);

/* What stood at the destination when a merge began. */
typedef struct cf_merge_before {
	cf_file_info info;          /* of the index, */
	bool exists;                /* if there was one */
} cf_merge_before;

CF_MUST_CHECK ckptfmt_status cf_merge_look(const cf_commit *commit, cf_merge_before *out, ckptfmt_error *err);

/* Looks at the destination. If its index is the result of a merge with a journal, named yet or not: with `consume`,
 * finishes what that merge had begun with those of `prefixes` that it lists, once the result's files are seen to be
 * whole (and synced, with durability FULL). *finished: it was a merge of just these, and none of them is there any
 * more. MERGE_CONFLICT: some of `prefixes` are gone and others are not, so that a merge of these would replace what is
 * nowhere else. Without a journal nothing happens, and one that is damaged or of another index counts as none. */
CF_MUST_CHECK ckptfmt_status cf_merge_resume(const char *const *prefixes, uint64_t count, const char *destination,
	const ckptfmt_merge_options *options, cf_merge_before *before, bool *finished, ckptfmt_error *err);

#endif
