/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the bytes of one tensor into a data file (rules DAT, STR, VAR). */
#ifndef CKPTFMT_WRITE_VALUE_H
#define CKPTFMT_WRITE_VALUE_H

#include "write/catalog.h"
#include "slices/gather.h"
#include "storage/file_writer.h"

/* Checks the source's name, dtype, shape and slice. INVALID, LIMIT. */
CF_MUST_CHECK ckptfmt_status cf_source_check(const ckptfmt_source *source, ckptfmt_error *err);
/* Checks only its name. INVALID: it is empty; LIMIT. */
CF_MUST_CHECK ckptfmt_status cf_source_check_name(const ckptfmt_source *source, ckptfmt_error *err);
/* Whether the source is a whole tensor, or a slice of all of it. REQUIRES: cf_source_check passed. */
bool cf_source_is_whole(const ckptfmt_source *source);
/* Elements of the data given. REQUIRES: as above. */
uint64_t cf_source_count(const ckptfmt_source *source);
/* Begins to gather the stored bytes of a source of FIXED storage. REQUIRES: as above. INVALID as cf_gather_init. */
CF_MUST_CHECK ckptfmt_status cf_source_gather(const ckptfmt_source *source, cf_gather *gather, ckptfmt_error *err);
/* Appends the stored form of a source of strings or variants; *crc is its checksum. REQUIRES: as above. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_source_elements(const ckptfmt_source *source, cf_buffer *out, uint32_t *crc,
	ckptfmt_error *err);
/* Bytes of the stored value. REQUIRES: cf_source_check passed. */
uint64_t cf_source_size(const ckptfmt_source *source);

/* Reserves space in the catalog for the value's chunk checksums and sets its place in the row (chunk_size 0: none).
 * REQUIRES: cf_source_check passed. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_value_plan(const ckptfmt_source *source, uint32_t chunk_size, cf_catalog_row *row,
	cf_catalog *catalog, ckptfmt_error *err);
/* Appends the value and sets offset, size and checksums of the row. Threads may write planned values to different files
 * at the same time. REQUIRES: cf_value_plan, with the same chunk size. */
CF_MUST_CHECK ckptfmt_status cf_value_write(cf_file_writer *file, const ckptfmt_source *source, uint32_t chunk_size,
	cf_catalog_row *row, const cf_catalog *catalog, ckptfmt_error *err);

#endif
