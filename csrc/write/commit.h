/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a checkpoint becomes visible (rules CMT). Everything is prepared under names that no index refers to; the one
 * rename of the index is the commit point:
 *
 *   1 data files are written under temporary names and synced, and so is the index that will name them;
 *   2 each data file gets its final name, never over another file; N of "-of-N" is one that no data file of the prefix
 *     has, so old and new data files never share a name, and the old checkpoint stays whole;
 *   3 the index is read back and compared with the files it names;
 *   4 the directory is synced: all of the above is on the device;
 *   5 the index is renamed over the old one, which got a second, temporary name before if it names a generation;
 *   6 the directory is synced: the rename is on the device, and "saved" may be said;
 *   7 the data files of the generation that the old index named are removed, and then its second name.
 *
 * 4 to 7 are done under the directory's lock, so that what 7 removes is what 5 replaced, however many write. Under it
 * the data files are looked at once more: where an index is damaged or its data files are gone, other writers may have
 * chosen the same number.
 *
 * A crash before 5 leaves the old checkpoint and files nobody refers to; after 5 the new one. A power cut between 5 and
 * 6 leaves either. Data files that a crash leaves have an index of theirs beside them under a temporary name, by which
 * they can be told from somebody else's (CMT-15).
 */
#ifndef CKPTFMT_BUNDLE_COMMIT_H
#define CKPTFMT_BUNDLE_COMMIT_H

#include "proto/names.h"
#include "table/writer.h"
#include "ckptfmt_unstable.h"
#include "proto/message.h"
#include "storage/file_writer.h"

/* How long a commit waits for others of the same directory. They hold the lock for a few system calls, of which the
 * slowest syncs a directory. */
enum { CF_COMMIT_LOCK_MS = 300000 };

typedef struct cf_commit {
	const cf_prefix *prefix;
	const cf_directory *directory;
	int32_t durability;         /* ckptfmt_durability */
	int32_t old_count;          /* data files of the checkpoint that is there; 0: none, or unreadable */
} cf_commit;

/* The number of data files by the header of the index `name`; 0 if it does not exist or cannot be read. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_commit_count(const cf_directory *directory, const char *name, int32_t *out,
	ckptfmt_error *err);

/* Sees what is there now. IO and NO_MEMORY; an unreadable old index is no failure. */
CF_MUST_CHECK ckptfmt_status cf_commit_observe(cf_commit *commit, ckptfmt_error *err);

/* The smallest N from `at_least` on that no data file of the prefix has, nor the checkpoint that is there. With `look`
 * false a fresh prefix is believed to be free of them after one look at the first name, and the directory is not
 * listed. */
CF_MUST_CHECK ckptfmt_status cf_commit_choose_count(const cf_commit *commit, int32_t at_least, bool look, int32_t *out,
	ckptfmt_error *err);

/* Whether the prefix has neither an index nor data files (CMT-6); no where that cannot be seen. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_commit_is_fresh(const cf_commit *commit, bool *fresh, ckptfmt_error *err);

/* Where the table of an index goes: into its file. */
cf_sink cf_commit_sink(cf_file_writer *index);

/* Step 3, reading back (CMT-7): the finished index names only bytes that its data files have. `data_sizes` are the
 * sizes of the `count` data files. */
CF_MUST_CHECK ckptfmt_status cf_commit_read_back(const cf_commit *commit, const cf_file_writer *index, int32_t count,
	const uint64_t *data_sizes, ckptfmt_error *err);

/* The directory's lock. BUSY. Never take two: two directories may be one. */
CF_MUST_CHECK ckptfmt_status cf_commit_lock(const cf_commit *commit, ckptfmt_error *err);
void cf_commit_unlock(const cf_commit *commit);

/* Steps 4 to 7, for a finished index file and data files in place. `data_sizes` may be NULL where these were seen in
 * place since the lock was taken. On a failure with *committed false the caller
 * removes the data files. With DURABILITY_UNKNOWN *committed is true: nobody may remove anything. BUSY: somebody
 * removed a data file meanwhile. REQUIRES: cf_commit_lock, read back. */
CF_MUST_CHECK ckptfmt_status cf_commit_replace(cf_commit *commit, cf_file_writer *index, int32_t count,
	const uint64_t *data_sizes, bool *committed, ckptfmt_error *err);

/* CMT-11: removes the data files of the prefix that have the number `count`; what cannot be removed stays. REQUIRES:
 * cf_commit_lock, and the index in force does not have this number. */
void cf_commit_remove_generation(const cf_commit *commit, int32_t count);

#endif
