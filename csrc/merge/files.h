/* SPDX-License-Identifier: Apache-2.0 */
/* The data files of a merge's result: second names (hard links) of those of the inputs or, where the file system cannot
 * link them, copies; and empty files for placeholders. A link that a killed merge made is reused, so that running the
 * merge again ends with the same files. Unreferenced files of a killed merge are removed if its intent lists them. */
#ifndef CKPTFMT_MERGE_FILES_H
#define CKPTFMT_MERGE_FILES_H

#include "write/commit.h"
#include "merge/inputs.h"

typedef struct cf_merge_source {
	cf_merge_input *input;      /* NULL: an empty file */
	int32_t shard;              /* of the input */
	bool made;                  /* by this merge, which may undo it */
} cf_merge_source;

typedef struct cf_merge_files {
	const cf_commit *commit;
	cf_progress *progress;      /* counts the data files' bytes when they are copied or need no copy */
	cf_merge_source *sources;   /* by number in the result; `room` of them */
	cf_file_writer *copies;     /* NULL unless copying; one a source, closed where it is not needed */
	cf_file_writer *empties;    /* those beyond file_count; */
	int32_t empty_count;        /* open ones */
	int32_t file_count;         /* without the empty ones */
	int32_t new_count;          /* with the empty ones; 0 until chosen */
	int32_t room;
	int32_t holder;             /* the copy whose lock protects all (CMT-15) */
	bool moves;                 /* the inputs are removed: their data files become those of the result */
	bool clears;                /* the number chosen has files of a killed merge, to be removed */
} cf_merge_files;

/* REQUIRES: cf_merge_join. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_merge_files_open(cf_merge_files *files, cf_merge_inputs *inputs, int32_t file_count,
	const cf_commit *commit, ckptfmt_error *err);
void cf_merge_files_close(cf_merge_files *files);

/* CMT-5: the number of data files of the result. It is the same each time while nothing in the directory changes, and
 * after a merge that removes its inputs was killed: the files of that merge do not count as taken. */
CF_MUST_CHECK ckptfmt_status cf_merge_files_choose_count(cf_merge_files *files, int32_t *out, ckptfmt_error *err);

/* CMT-3: the writer of the inputs may not have synced them. BUSY if a file is not the one that was checked. */
CF_MUST_CHECK ckptfmt_status cf_merge_files_sync(cf_merge_files *files, ckptfmt_error *err);
/* Copies files that cannot be linked to temporary names: all if `all`, else those on another device. */
CF_MUST_CHECK ckptfmt_status cf_merge_files_copy(cf_merge_files *files, bool all, ckptfmt_error *err);

/* Makes the empty data files of new_count anew, under temporary names. Comes before the index is written, so that the
 * index is the youngest file (CMT-15). */
CF_MUST_CHECK ckptfmt_status cf_merge_files_fill(cf_merge_files *files, ckptfmt_error *err);

typedef enum cf_naming {
	CF_NAMED,
	CF_NAMES_TAKEN,         /* another writer has one: another number must be chosen */
	CF_NAMES_NOT_LINKED     /* links are not supported: cf_merge_files_copy is needed first */
} cf_naming;

/* Gives all files their names if *out is CF_NAMED; otherwise, and after a failure, none was made. BUSY: an input was
 * changed. REQUIRES: cf_merge_files_fill; cf_commit_lock. */
CF_MUST_CHECK ckptfmt_status cf_merge_files_name(cf_merge_files *files, cf_naming *out, ckptfmt_error *err);
/* Removes the names that cf_merge_files_name made, copies included; best effort.
 * REQUIRES: cf_commit_lock, and no index in force names them. */
void cf_merge_files_undo(cf_merge_files *files);

/* The identity of data file `row` of the result; all zero for an empty file that does not exist yet. */
cf_file_info cf_merge_files_info(const cf_merge_files *files, int32_t row);

#endif
