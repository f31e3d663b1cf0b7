/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a checkpoint becomes visible (rules CMT). Everything is prepared under names that no index refers to; the one
 * rename of the index is the commit point:
 *
 *   1 data files are written under temporary names and synced;
 *   2 each gets its final name, never over another file; N of "-of-N" is one that no data file of the prefix has, so
 *     old and new data files never share a name, and the old checkpoint stays whole;
 *   3 the index is written under a temporary name, synced, read back and compared with the files it names;
 *   4 the directory is synced: all of the above is on the device;
 *   5 the index is renamed over the old one;
 *   6 the directory is synced: the rename is on the device, and "saved" may be said;
 *   7 the data files of the generation that the old index named are removed.
 *
 * 4 to 7 are done under the directory's lock, so that what 7 removes is what 5 replaced, however many write.
 *
 * A crash before 5 leaves the old checkpoint and files nobody refers to; after 5 the new one. A power cut between 5 and
 * 6 leaves either.
 */
#ifndef CKPTFMT_BUNDLE_COMMIT_H
#define CKPTFMT_BUNDLE_COMMIT_H

#include "bundle/prefix.h"
#include "bundle/table_writer.h"
#include "ckptfmt.h"
#include "codec/message.h"
#include "io/file_writer.h"

typedef struct cf_commit {
	const cf_prefix *prefix;
	const cf_directory *directory;
	int32_t durability;         /* ckptfmt_durability */
	int32_t old_count;          /* data files of the checkpoint that is there; 0: none, or unreadable */
} cf_commit;

/* Sees what is there now. IO and NO_MEMORY; an unreadable old index is no failure. */
CF_MUST_CHECK ckptfmt_status cf_commit_observe(cf_commit *commit, ckptfmt_error *err);

/* The smallest N from `at_least` on that no data file of the prefix has. With `look` false a fresh prefix is believed
 * to be free of them after one look at the first name, and the directory is not listed. */
CF_MUST_CHECK ckptfmt_status cf_commit_choose_count(const cf_commit *commit, int32_t at_least, bool look, int32_t *out,
	ckptfmt_error *err);

/* Where the table of an index goes: into its file. */
cf_sink cf_commit_sink(cf_file_writer *index);

/* Steps 3 (reading back) to 7, for a finished index file and data files in place. `data_sizes` are the sizes of the
 * `count` data files. On failure before the commit point the caller removes the data files; *committed tells. */
CF_MUST_CHECK ckptfmt_status cf_commit_index(cf_commit *commit, cf_file_writer *index, int32_t count,
	const uint64_t *data_sizes, bool *committed, ckptfmt_error *err);

#endif
