/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of the result: one per key, that of the first input which has it, with the slices of all inputs (MRG-3 to
 * MRG-7). One pass over the inputs checks everything, finds the data files that are needed and keeps the entries of the
 * result in memory. */
#ifndef CKPTFMT_MERGE_JOIN_H
#define CKPTFMT_MERGE_JOIN_H

#include "merge/inputs.h"
#include "table/writer.h"

typedef struct cf_merge_entry cf_merge_entry;

/* All zero before cf_merge_join. */
typedef struct cf_merge_joined {
	cf_arena memory;
	cf_merge_entry *first, *last;   /* a list of the result's entries, by key */
	int32_t file_count;         /* data files of inputs that the result needs */
} cf_merge_joined;

/* Checks all entries and their data files, and numbers the data files of the result, from 0 on.
 * MERGE_CONFLICT names both inputs; otherwise fails as entries, slices, tables and data files do. BAD_SLICE, unless
 * `partial`: slices do not cover their tensor (SLC-11); names the first one and says how many more there are. */
CF_MUST_CHECK ckptfmt_status cf_merge_join(cf_merge_inputs *inputs, bool partial, cf_merge_joined *joined,
	ckptfmt_error *err);
void cf_merge_joined_free(cf_merge_joined *joined);

/* Writes header and entries of the result, which has `new_count` data files; those from joined->file_count on get
 * placeholders (EXT-8). MERGE_CONFLICT if an input has a tensor with a placeholder's name. */
CF_MUST_CHECK ckptfmt_status cf_merge_write(const cf_merge_inputs *inputs, const cf_merge_joined *joined,
	int32_t new_count, cf_table_writer *table, ckptfmt_error *err);

#endif
