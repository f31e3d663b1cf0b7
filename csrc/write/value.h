/* SPDX-License-Identifier: Apache-2.0 */
/* Writes the bytes of one tensor into a data file (rules DAT, STR, VAR). */
#ifndef CKPTFMT_BUNDLE_VALUE_WRITER_H
#define CKPTFMT_BUNDLE_VALUE_WRITER_H

#include "write/catalog.h"
#include "slices/gather.h"
#include "storage/file_writer.h"

/* Checks what can be checked of a source by itself: name, dtype, shape, slice. INVALID, LIMIT. */
CF_MUST_CHECK ckptfmt_status cf_source_check(const ckptfmt_source *source, ckptfmt_error *err);
/* Whether the slice of a source (if it has one) is all of the tensor. REQUIRES: cf_source_check passed. */
bool cf_source_is_whole(const ckptfmt_source *source);
/* Elements of the data given. REQUIRES: as above. */
uint64_t cf_source_count(const ckptfmt_source *source);
/* Begins at the bytes of a source of FIXED storage as they are stored. REQUIRES: as above. INVALID as cf_gather_init
 * says. */
CF_MUST_CHECK ckptfmt_status cf_source_gather(const ckptfmt_source *source, cf_gather *gather, ckptfmt_error *err);
/* Appends the stored form of a source of strings or variants; *crc is its checksum. REQUIRES: as above. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_source_elements(const ckptfmt_source *source, cf_buffer *out, uint32_t *crc,
	ckptfmt_error *err);
/* Bytes of the stored value. REQUIRES: cf_source_check passed. */
uint64_t cf_source_size(const ckptfmt_source *source);

/* Makes room in the catalog for the chunk checksums of the value and sets their place in its row (chunk_size 0: none).
 * REQUIRES: cf_source_check passed. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_value_plan(const ckptfmt_source *source, uint32_t chunk_size, cf_catalog_row *row,
	cf_catalog *catalog, ckptfmt_error *err);
/* Appends the value and sets offset, size and checksums of the row. Threads may write planned values to different files
 * at the same time. REQUIRES: cf_value_plan, with the same chunk size. */
CF_MUST_CHECK ckptfmt_status cf_value_write(cf_file_writer *file, const ckptfmt_source *source, uint32_t chunk_size,
	cf_catalog_row *row, const cf_catalog *catalog, ckptfmt_error *err);

#endif
