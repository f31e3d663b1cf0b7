/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Links the data files of an open checkpoint, the base, into the one that is being written, and copies their entries
 * with new shard numbers (CMT-16 to CMT-18).
 *
 * Files are linked at once, under temporary names, so that the base may be removed afterwards. The base may have been
 * replaced already: a link is used only if it leads to the file that the reader has open. Tensors that cannot be linked
 * are reported to the caller, which writes them.
 */
#ifndef CKPTFMT_WRITE_BASE_FILES_H
#define CKPTFMT_WRITE_BASE_FILES_H

#include "write/catalog.h"
#include "write/commit.h"

/* A data file of the checkpoint that is being written. */
typedef struct cf_data_file {
	cf_file_writer file;
	uint64_t size;              /* with all values assigned to it, and their padding */
	uint64_t tensor_count;      /* of these */
	char name[CF_NAME_SIZE];    /* its current name, once it is finished */
} cf_data_file;

/* The linked files, and the checkpoint that is being written. */
typedef struct cf_base_files {
	const cf_commit *commit;
	cf_catalog *catalog;        /* until cf_base_files_settle a tensor in linked[k] has shard -1 - k */
	bool plain;                 /* entries have no extensions */
	cf_data_file *linked;
	int32_t count;              /* of `linked` */
} cf_base_files;

/* Links and copies for ckptfmt_writer_keep. After a failure `kept` is undefined, and `base` and the catalog can only be
 * freed. REQUIRES: cf_reader_check_call succeeded, the reader's checkpoint is little-endian, `kept` is zeroed. */
CF_MUST_CHECK ckptfmt_status cf_base_files_keep(cf_base_files *base, ckptfmt_reader *reader,
	const ckptfmt_selection *selection, const uint64_t *rows, uint64_t count, const ckptfmt_bytes *names,
	uint8_t *kept, ckptfmt_error *err);
/* Joins the linked files and `*files` into a new `*files`: those that have a tensor, at least one file, numbered.
 * NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_base_files_settle(cf_base_files *base, cf_data_file **files, int32_t *file_count,
	ckptfmt_error *err);
/* Unlinks the linked files, if they were not joined. `base` must not be used again. */
void cf_base_files_abandon(cf_base_files *base);

#endif
