/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a checkpoint becomes visible (rules CMT). Everything is prepared under names that no index refers to; renaming
 * the index is the only commit point:
 *
 *   1 data files are written under temporary names and synced, and so is the index that will name them;
 *   2 each data file gets its final name, which never replaces a file: no data file of the prefix has this N of
 *     "-of-N", so old and new data files never share a name, and the old checkpoint stays whole;
 *   3 the index is read back and compared with the files it names;
 *   4 the directory is synced: all of the above is on the device;
 *   5 the old index, if it has data files, is linked under a temporary name, and the new index is renamed over it;
 *   6 the directory is synced: the rename is on the device, and the save is durable;
 *   7 the data files of the old index are removed, and then its temporary name.
 *
 * 4 to 7 are done under the directory's lock, so that 7 removes what 5 replaced, also with several writers. Under the
 * lock the data files are checked again: if an index is damaged or its data files are missing, other writers may have
 * chosen the same number.
 *
 * A crash before 5 leaves the old checkpoint and orphaned files; after 5 the new checkpoint. A power cut between 5 and
 * 6 leaves either. Orphaned data files have their index beside them under a temporary name, which distinguishes them
 * from files of other programs (CMT-15).
 */
#ifndef CKPTFMT_WRITE_COMMIT_H
#define CKPTFMT_WRITE_COMMIT_H

#include "proto/names.h"
#include "table/writer.h"
#include "ckptfmt_unstable.h"
#include "proto/message.h"
#include "storage/file_writer.h"

/* How long a commit waits for the directory's lock. It is held for a few system calls, the slowest of which syncs a
 * directory. */
enum { CF_COMMIT_LOCK_MS = 300000 };

typedef struct cf_commit {
	const cf_prefix *prefix;
	cf_directory *directory;
	int32_t durability;         /* ckptfmt_durability */
	int32_t old_count;          /* data files of the current checkpoint; 0: none, or unreadable */
} cf_commit;

/* The number of data files by the header of the index `name`; 0 if it does not exist or cannot be read. `permissions`
 * of the index, 0 if it does not exist, may be NULL. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_commit_count(const cf_directory *directory, const char *name, int32_t *out,
	uint32_t *permissions, ckptfmt_error *err);

/* Reads the number of data files of the current checkpoint. Files that are created in the directory from then on get
 * the permissions of its index. IO, NO_MEMORY; OK if its index cannot be read. */
CF_MUST_CHECK ckptfmt_status cf_commit_observe(cf_commit *commit, ckptfmt_error *err);

/* The smallest N from `at_least` on that neither a data file of the prefix nor the current checkpoint has. With `look`
 * false, only the first name is checked on a fresh prefix, and the directory is not listed. */
CF_MUST_CHECK ckptfmt_status cf_commit_choose_count(const cf_commit *commit, int32_t at_least, bool look, int32_t *out,
	ckptfmt_error *err);

/* Whether the prefix has neither an index nor data files (CMT-6); false if that is unknown. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_commit_is_fresh(const cf_commit *commit, bool *fresh, ckptfmt_error *err);

/* The sink of a table that writes to the index file. */
cf_sink cf_commit_sink(cf_file_writer *index);

/* Step 3 (CMT-7): reads the finished index back and checks that its data files have all bytes it names. `data_sizes`
 * are the sizes of the `count` data files. */
CF_MUST_CHECK ckptfmt_status cf_commit_read_back(const cf_commit *commit, const cf_file_writer *index, int32_t count,
	const uint64_t *data_sizes, ckptfmt_error *err);

/* The directory's lock. BUSY. Never take two: two paths may lead to one directory. */
CF_MUST_CHECK ckptfmt_status cf_commit_lock(const cf_commit *commit, ckptfmt_error *err);
void cf_commit_unlock(const cf_commit *commit);

/* Steps 4 to 7, for a finished index file and data files in place. `data_sizes` may be NULL if the data files were
 * checked since the lock was taken. On a failure with *committed false the caller removes the data files. With
 * DURABILITY_UNKNOWN *committed is true: nothing may be removed. BUSY: another process removed a data file.
 * REQUIRES: cf_commit_lock, read back. */
CF_MUST_CHECK ckptfmt_status cf_commit_replace(cf_commit *commit, cf_file_writer *index, int32_t count,
	const uint64_t *data_sizes, bool *committed, ckptfmt_error *err);

/* CMT-11: removes the data files of the prefix that have the number `count`, best effort. REQUIRES: cf_commit_lock, and
 * the current index does not have this number. */
void cf_commit_remove_generation(const cf_commit *commit, int32_t count);

#endif
