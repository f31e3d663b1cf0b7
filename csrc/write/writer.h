/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ckptfmt_writer, for writer.c and keep.c. */
#ifndef CKPTFMT_BUNDLE_WRITER_H
#define CKPTFMT_BUNDLE_WRITER_H

#include "write/catalog.h"
#include "write/commit.h"

typedef struct cf_data_file {
	cf_file_writer file;
	uint64_t size;              /* with all values that were assigned to it, and their padding */
	uint64_t tensor_count;      /* of these */
	char name[CF_NAME_SIZE];    /* the one it has now, once it has a final one */
} cf_data_file;

struct ckptfmt_writer {
	cf_prefix prefix;
	cf_directory directory;
	ckptfmt_write_options options;
	cf_commit commit;
	cf_catalog catalog;
	cf_data_file *files;        /* by shard number */
	int32_t file_count;
	/* Data files of other checkpoints, linked under temporary names. Until cf_keep_settle the shard of a tensor in
	 * number k of them is -1 - k. */
	cf_data_file *kept;
	int32_t kept_count;
	bool keeps;                 /* the number of data files is settled at the end */
	ckptfmt_codec codec;        /* a copy of the one in the options, which point to it */
	bool failed;
};

/* ---- writer.c ---- */

/* INVALID: the writer has failed. */
CF_MUST_CHECK ckptfmt_status cf_writer_check_state(const ckptfmt_writer *writer, ckptfmt_error *err);

/* ---- keep.c ---- */

/* Joins the files written and those kept that have a tensor, the kept ones first, and numbers them. There is one at
 * least. REQUIRES: writer->keeps. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_keep_settle(ckptfmt_writer *writer, ckptfmt_error *err);
/* Removes the names of files that were kept and not settled. */
void cf_keep_abandon(ckptfmt_writer *writer);

#endif
