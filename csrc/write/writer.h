/* SPDX-License-Identifier: Apache-2.0 */
/* The inside of ckptfmt_writer, for writer.c and tensor.c. */
#ifndef CKPTFMT_WRITE_WRITER_H
#define CKPTFMT_WRITE_WRITER_H

#include "write/base_files.h"

struct ckptfmt_writer {
	cf_prefix prefix;
	cf_directory directory;
	ckptfmt_write_options options;
	cf_commit commit;
	cf_catalog catalog;
	cf_data_file *files;        /* by shard number */
	int32_t file_count;
	cf_base_files base;
	bool has_base;              /* commit chooses the number of data files */
	ckptfmt_codec codec;        /* a copy of the one in the options, which point to it */
	cf_progress progress;
	bool failed;
};

/* INVALID: the writer has failed. */
static inline CF_MUST_CHECK ckptfmt_status cf_writer_check_state(const ckptfmt_writer *writer, ckptfmt_error *err)
{
	if (writer->failed)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"an earlier call of this writer failed, so that it can only be abandoned; start again with a new writer");
	return CKPTFMT_OK;
}

/* Adds the tensor and the path to the failure `status` of adding `source`, marks the writer as failed, and returns
 * `status`. */
CF_MUST_CHECK ckptfmt_status cf_writer_refuse(ckptfmt_writer *writer, const ckptfmt_source *source,
	ckptfmt_status status, ckptfmt_error *err);

#endif
