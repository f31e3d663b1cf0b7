/* SPDX-License-Identifier: Apache-2.0 */
/* What the entries of the inputs become: one entry a key, that of the first input which has it, with the slices of all
 * (MRG-3 to MRG-7). One pass over the inputs checks everything and finds out which data files are needed; another
 * writes, unless the first could draft the result already. */
#ifndef CKPTFMT_BUNDLE_MERGE_JOIN_H
#define CKPTFMT_BUNDLE_MERGE_JOIN_H

#include "merge/inputs.h"
#include "table/writer.h"

/* An index of the result in memory, made while checking, with a data file an input as nearly all inputs have. */
typedef struct cf_merge_draft {
	uint8_t *pages;             /* for about as much as the inputs have, where that is a lot, */
	uint64_t pages_size, pages_used;
	cf_arena memory;            /* and what more it takes */
	cf_buffer pieces;           /* cf_bytes_view */
	uint64_t size;              /* of all */
	bool good;                  /* it came out as the result is to be, for as many data files as are referenced */
} cf_merge_draft;

/* Checks all entries, looks at their data files, and gives these their numbers in the result, 0 to *file_count - 1.
 * MERGE_CONFLICT names both inputs; else what entries, slices, tables and data files fail with. */
CF_MUST_CHECK ckptfmt_status cf_merge_check(cf_merge_inputs *inputs, int32_t *file_count, cf_merge_draft *draft,
	ckptfmt_error *err);
void cf_merge_draft_free(cf_merge_draft *draft);

/* Writes header and entries of the result, which has `new_count` data files; those from `file_count` on get
 * placeholders (EXT-8). REQUIRES: cf_merge_check passed. MERGE_CONFLICT where an input has a tensor of a placeholder's
 * name, BUSY where an input changed since, and what the table fails with. */
CF_MUST_CHECK ckptfmt_status cf_merge_write(cf_merge_inputs *inputs, int32_t file_count, int32_t new_count,
	cf_table_writer *table, ckptfmt_error *err);

#endif
