/* SPDX-License-Identifier: Apache-2.0 */
/* The data files of a merge's result: second names (hard links) of those of the inputs or, where the file system has no
 * links between the two places, copies; and empty files for placeholders. A link that stands under its name already,
 * left by a merge that was killed, is taken as it is, so that running the merge again ends in the same files. Files
 * that a killed merge left and that nothing refers to are removed if its journal tells of them. */
#ifndef CKPTFMT_BUNDLE_MERGE_FILES_H
#define CKPTFMT_BUNDLE_MERGE_FILES_H

#include "write/commit.h"
#include "merge/inputs.h"

typedef struct cf_merge_source {
	cf_merge_input *input;      /* NULL: an empty file */
	int32_t shard;              /* of the input */
	bool made;                  /* by this merge, which may take it back */
} cf_merge_source;

typedef struct cf_merge_files {
	const cf_commit *commit;
	cf_progress *progress;      /* counts the data files' bytes when they are copied or need no copy */
	cf_merge_source *sources;   /* by number in the result; `room` of them */
	cf_file_writer *copies;     /* NULL unless copying; one a source, closed where it is not needed */
	cf_file_writer *empties;    /* those beyond file_count; */
	int32_t empty_count;        /* so many are open */
	int32_t file_count;         /* those that are data files of inputs */
	int32_t new_count;          /* with the empty ones; 0 until chosen */
	int32_t room;
	int32_t holder;             /* the copy that holds its lock for all (CMT-15) */
	bool clears;                /* the number chosen has files of a killed merge, to be removed */
} cf_merge_files;

/* REQUIRES: cf_merge_check gave the numbers. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_merge_files_open(cf_merge_files *files, cf_merge_inputs *inputs, int32_t file_count,
	const cf_commit *commit, ckptfmt_error *err);
void cf_merge_files_close(cf_merge_files *files);

/* CMT-5: the number of data files of the result. The same each time as long as nothing in the directory changes, and
 * after a merge that removes its inputs was killed: files that one left are in nobody's way. */
CF_MUST_CHECK ckptfmt_status cf_merge_files_choose_count(cf_merge_files *files, int32_t *out, ckptfmt_error *err);

/* CMT-3: whoever wrote the inputs may not have synced them. BUSY where a file is not the one that was looked at. */
CF_MUST_CHECK ckptfmt_status cf_merge_files_sync(cf_merge_files *files, ckptfmt_error *err);
/* Copies, under temporary names, what cannot be linked: all if `all`, else what lies on another device. */
CF_MUST_CHECK ckptfmt_status cf_merge_files_copy(cf_merge_files *files, bool all, ckptfmt_error *err);

/* Makes the empty data files of new_count, under temporary names, anew: before the index is written, since what it
 * proves is not younger (CMT-15). */
CF_MUST_CHECK ckptfmt_status cf_merge_files_fill(cf_merge_files *files, ckptfmt_error *err);

typedef enum cf_naming {
	CF_NAMED,
	CF_NAMES_TAKEN,         /* one belongs to somebody else: another number must be chosen */
	CF_NAMES_NOT_LINKED     /* there are no links here: cf_merge_files_copy must go before */
} cf_naming;

/* Gives all files their names, if *out says so; otherwise, and after a failure, nothing was made. BUSY: an input was
 * changed. REQUIRES: cf_merge_files_fill; cf_commit_lock. */
CF_MUST_CHECK ckptfmt_status cf_merge_files_name(cf_merge_files *files, cf_naming *out, ckptfmt_error *err);
/* Takes back the names that cf_merge_files_name gave, copies included. What cannot be removed stays.
 * REQUIRES: cf_commit_lock, and no index in force names them. */
void cf_merge_files_undo(cf_merge_files *files);

/* What data file `row` of the result is, or will be; all zero for an empty file that is not made yet. */
cf_file_info cf_merge_files_info(const cf_merge_files *files, int32_t row);

#endif
