/* SPDX-License-Identifier: Apache-2.0 */
/* The open table and the loading of its blocks, shared by reader.c, iterator.c and check.c only. */
#ifndef CKPTFMT_TABLE_PRIVATE_H
#define CKPTFMT_TABLE_PRIVATE_H

#include "table/table.h"
#include "table/footer.h"

#include <stdatomic.h>

/* One data block. */
typedef struct cf_table_row {
	const uint8_t *separator;      /* in the index block, or in `separators` */
	uint64_t separator_size;
	cf_handle handle;
} cf_table_row;

struct cf_table {
	const uint8_t *bytes;          /* the file in memory, or NULL: */
	cf_table_read read;            /* then where the bytes come from */
	const void *state;
	const char *path;              /* for errors, or NULL */
	uint64_t size;
	ckptfmt_limits limits;
	cf_buffer tail;                /* the last bytes of a file, read at once with the footer */
	uint64_t tail_offset;
	cf_footer footer;
	cf_table_block index;
	cf_buffer separators;          /* copies of those that the index block does not store whole */
	cf_table_row *rows;            /* ascending by separator and by offset, which do not overlap */
	_Atomic(cf_table_block *) *blocks;   /* one a row, NULL until the first lookup in it */
	_Atomic uint64_t rebuilt_bytes;      /* keys of the rebuilt blocks among them */
	uint64_t row_count;
};

/* Reads the stored bytes and the trailer. REQUIRES: the handle was checked. TRUNCATED, LIMIT, IO, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_table_block_read(const cf_table *table, cf_handle handle, cf_table_block *block,
	ckptfmt_error *err);
/* Decodes a data block that cf_table_block_read read, walks it, and checks its first and last key against the index
 * block (TAB-5); `entries` is then at its end. Failures as cf_table_block_decode and cf_block_check, BAD_ORDER. */
CF_MUST_CHECK ckptfmt_status cf_table_block_check(const cf_table *table, uint64_t row, cf_table_block *block,
	cf_block_iterator *entries, cf_block_report *out, ckptfmt_error *err);

#endif
