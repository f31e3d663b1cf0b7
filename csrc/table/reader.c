/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table  data blocks  metaindex block  index block  footer; each block with its trailer (table/footer.c)
 *
 * Opening reads the end of the file at once, the footer and usually the index block, and turns the index block into
 * rows: separator and handle of each data block. All later steps rely on rows that are in order and do not overlap.
 */
#include "table/private.h"

#include "base/memory.h"
#include "table/snappy.h"

#include <assert.h>
#include <inttypes.h>

/* Holds all of a small index file, and the index block of one of 100 MB. */
enum { TAIL_SIZE = 16384 };

/* ---- bytes ---- */

/* REQUIRES: the range is within the size that the file had when it was opened. */
static ckptfmt_status read_at(const cf_table *table, uint8_t *to, uint64_t size, uint64_t offset, ckptfmt_error *err)
{
	uint64_t got;
	CF_TRY(table->read(table->state, table->path, to, size, offset, &got, err));
	/* FTR-5 */
	if (got < size)
		return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, offset + got,
			"FTR-5: the index file ends here, and had %" PRIu64 " bytes when it was opened", table->size);
	return CKPTFMT_OK;
}

/* ---- blocks ---- */

void cf_table_block_init(cf_table_block *block)
{
	memset(block, 0, sizeof *block);
	block->own = CF_BUFFER_EMPTY;
	block->decoded = CF_BUFFER_EMPTY;
}

void cf_table_block_free(cf_table_block *block)
{
	block->stored = NULL;
	cf_buffer_free(&block->own);
	cf_buffer_free(&block->decoded);
}

static ckptfmt_status check_block_size(const ckptfmt_limits *limits, uint64_t size, uint64_t offset,
	ckptfmt_error *err)
{
	/* BLK-14 */
	if (size <= limits->block_bytes_max)
		return CKPTFMT_OK;
	return cf_fail(err, CKPTFMT_FAIL_LIMIT, offset,
		"BLK-14: a block of %" PRIu64 " bytes, above limit block_bytes_max (%" PRIu64 ")", size,
		limits->block_bytes_max);
}

ckptfmt_status cf_table_block_read(const cf_table *table, cf_handle handle, cf_table_block *block,
	ckptfmt_error *err)
{
	uint64_t size = handle.size + CF_TRAILER_SIZE;
	uint8_t *to;
	CF_TRY(check_block_size(&table->limits, handle.size, handle.offset, err));
	assert(cf_range_fits(handle.offset, size, table->size));
	if (table->bytes != NULL) {
		block->stored = table->bytes + handle.offset;
		return CKPTFMT_OK;
	}
	if (handle.offset >= table->tail_offset) {
		block->stored = table->tail.data + (handle.offset - table->tail_offset);
		return CKPTFMT_OK;
	}
	cf_buffer_clear(&block->own);
	to = cf_buffer_extend(&block->own, size);
	if (to == NULL)
		return cf_fail_memory(err);
	block->stored = to;
	return read_at(table, to, size, handle.offset, err);
}

static ckptfmt_status decompress(const ckptfmt_limits *limits, cf_handle handle, cf_table_block *block,
	ckptfmt_error *err)
{
	uint64_t size;
	CF_TRY(cf_snappy_size(block->stored, handle.size, handle.offset, &size, err));
	CF_TRY(check_block_size(limits, size, handle.offset, err));
	cf_buffer_clear(&block->decoded);
	/* One more, so that the address of an empty block is not NULL. */
	if (!cf_buffer_reserve(&block->decoded, size + 1))
		return cf_fail_memory(err);
	block->decoded.size = size;
	CF_TRY(cf_snappy_decode(block->stored, handle.size, handle.offset, block->decoded.data, size, err));
	return cf_block_open(block->decoded.data, size, handle.offset, true, limits->key_bytes_max, &block->block, err);
}

ckptfmt_status cf_table_block_decode(const ckptfmt_limits *limits, cf_handle handle, cf_table_block *block,
	ckptfmt_error *err)
{
	CF_TRY(check_block_size(limits, handle.size, handle.offset, err));
	CF_TRY(cf_trailer_check(block->stored, handle.size, handle.offset, &block->compression, err));
	if (block->compression == CF_COMPRESSION_SNAPPY)
		return decompress(limits, handle, block, err);
	return cf_block_open(block->stored, handle.size, handle.offset, false, limits->key_bytes_max, &block->block,
		err);
}

/* ---- opening ---- */

static ckptfmt_status read_tail(cf_table *table, ckptfmt_error *err)
{
	uint64_t size = table->bytes != NULL ? 0 : cf_min_u64(table->size, TAIL_SIZE);
	uint8_t *to = cf_buffer_extend(&table->tail, size);
	table->tail_offset = table->size - size;
	if (size == 0)
		return CKPTFMT_OK;
	return to == NULL ? cf_fail_memory(err) : read_at(table, to, size, table->tail_offset, err);
}

static ckptfmt_status read_footer(cf_table *table, ckptfmt_error *err)
{
	uint64_t footer_offset;
	const uint8_t *footer;
	/* TAB-13 */
	if (table->size > table->limits.index_bytes_max)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
			"TAB-13: an index file of %" PRIu64 " bytes, above limit index_bytes_max (%" PRIu64 ")", table->size,
			table->limits.index_bytes_max);
	/* FTR-1 */
	if (table->size < CF_FOOTER_SIZE)
		return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, table->size,
			"FTR-1: an index file of %" PRIu64 " bytes is too short for its footer", table->size);
	footer_offset = table->size - CF_FOOTER_SIZE;
	CF_TRY(read_tail(table, err));
	footer = table->bytes != NULL ? table->bytes + footer_offset
		: table->tail.data + (footer_offset - table->tail_offset);
	CF_TRY(cf_footer_decode(footer, footer_offset, &table->footer, err));
	return cf_handle_check(table->footer.index, footer_offset, footer_offset, err);
}

static uint64_t block_end(cf_handle handle)
{
	return handle.offset + handle.size + CF_TRAILER_SIZE;
}

/* Decodes and checks the handle of the current index entry. `before` is the end of the previous block. */
static ckptfmt_status take_handle(cf_table *table, const cf_block_iterator *entry, uint64_t before, cf_handle *out,
	ckptfmt_error *err)
{
	uint64_t offset = cf_block_offset(&table->index.block, entry->value_position);
	cf_cursor value = cf_cursor_over(entry->value, (size_t)entry->value_size, offset);
	/* TAB-2 */
	if (!cf_handle_take(&value, out))
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, offset, "TAB-2: a block handle in the index cannot be read");
	CF_TRY(cf_handle_check(*out, table->size - CF_FOOTER_SIZE, offset, err));
	/* TAB-4 */
	if (out->offset < before)
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, offset,
			"TAB-4: the block at %" PRIu64 " begins before the end of the previous block, at %" PRIu64, out->offset,
			before);
	if (block_end(*out) > table->footer.index.offset)
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, offset,
			"TAB-4: the block at %" PRIu64 " ends after the index block begins, at %" PRIu64, out->offset,
			table->footer.index.offset);
	return CKPTFMT_OK;
}

uint64_t cf_keys_bytes_max(const ckptfmt_limits *limits, uint64_t size)
{
	uint64_t by_size;
	if (!cf_mul_u64(limits->keys_bytes_factor, size, &by_size))
		by_size = UINT64_MAX;
	return cf_max_u64(by_size, limits->keys_bytes_floor);
}

uint64_t cf_table_keys_bytes_max(const cf_table *table)
{
	return cf_keys_bytes_max(&table->limits, table->size);
}

ckptfmt_status cf_too_many_key_bytes(uint64_t allowed, uint64_t offset, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_LIMIT, offset,
		"TAB-13: the keys have more bytes in all than limit keys_bytes_floor (%" PRIu64 ")", allowed);
}

/* A separator that the index block stores whole, right before its value, is used in place, as are all in a canonical
 * index. One with a shared prefix is copied; its address is set when no more copies can move the memory. */
static ckptfmt_status take_separator(cf_table *table, const cf_block_iterator *entry, cf_table_row *row,
	ckptfmt_error *err)
{
	row->separator_size = entry->key.size;
	row->separator = NULL;
	if (entry->shared == 0) {
		row->separator = entry->value - entry->key.size;
		return CKPTFMT_OK;
	}
	if (entry->key.size > cf_table_keys_bytes_max(table) - table->separators.size)
		return cf_too_many_key_bytes(cf_table_keys_bytes_max(table),
			cf_block_offset(&table->index.block, entry->entry_position), err);
	cf_put_bytes(&table->separators, entry->key.data, entry->key.size);
	return cf_buffer_status(&table->separators, err);
}

static ckptfmt_status take_rows(cf_table *table, cf_block_iterator *entry, cf_buffer *rows, ckptfmt_error *err)
{
	ckptfmt_status status;
	uint64_t before = 0;
	for (status = cf_block_first(entry, err); status == CKPTFMT_OK && entry->valid;
		status = cf_block_next(entry, err)) {
		cf_table_row row;
		CF_TRY(take_handle(table, entry, before, &row.handle, err));
		before = block_end(row.handle);
		CF_TRY(take_separator(table, entry, &row, err));
		cf_put_bytes(rows, &row, sizeof row);
		CF_TRY(cf_buffer_status(rows, err));
	}
	return status;
}

static ckptfmt_status read_index(cf_table *table, ckptfmt_error *err)
{
	ckptfmt_status status;
	cf_block_iterator entry;
	cf_buffer rows = CF_BUFFER_EMPTY;
	uint64_t copied = 0;
	CF_TRY(cf_table_block_read(table, table->footer.index, &table->index, err));
	CF_TRY(cf_table_block_decode(&table->limits, table->footer.index, &table->index, err));
	table->index.block.is_index = true;
	cf_block_iterator_init(&entry);
	cf_block_iterator_open(&entry, &table->index.block);
	status = take_rows(table, &entry, &rows, err);
	cf_block_iterator_free(&entry);
	/* The table owns the rows from here on, failed or not. */
	table->rows = (cf_table_row *)(void *)rows.data;
	table->row_count = rows.size / sizeof *table->rows;
	if (status != CKPTFMT_OK)
		return status;
	for (uint64_t i = 0; i < table->row_count; i++) {
		if (table->rows[i].separator == NULL) {
			table->rows[i].separator = table->separators.data + copied;
			copied += table->rows[i].separator_size;
		}
	}
	table->blocks = cf_allocate_zero(table->row_count, sizeof *table->blocks);
	return table->blocks == NULL ? cf_fail_memory(err) : CKPTFMT_OK;
}

/* `how` has the source of the bytes, path, size and limits. */
static ckptfmt_status open_table(const cf_table *how, cf_table **out, ckptfmt_error *err)
{
	ckptfmt_status status;
	cf_table *table = cf_allocate_zero(1, sizeof *table);
	*out = NULL;
	if (table == NULL)
		return cf_fail_memory(err);
	table->bytes = how->bytes;
	table->read = how->read;
	table->state = how->state;
	table->path = how->path;
	table->size = how->size;
	table->limits = how->limits;
	table->tail = CF_BUFFER_EMPTY;
	table->separators = CF_BUFFER_EMPTY;
	cf_table_block_init(&table->index);
	status = read_footer(table, err);
	if (status == CKPTFMT_OK)
		status = read_index(table, err);
	if (status != CKPTFMT_OK) {
		cf_error_path(err, table->path);
		cf_table_close(table);
		return status;
	}
	*out = table;
	return CKPTFMT_OK;
}

ckptfmt_status cf_table_open(cf_table_read read, const void *state, const char *path, uint64_t size,
	const ckptfmt_limits *limits, cf_table **out, ckptfmt_error *err)
{
	cf_table how = {.read = read, .state = state, .path = path, .size = size, .limits = *limits};
	return open_table(&how, out, err);
}

ckptfmt_status cf_table_open_memory(const uint8_t *bytes, const char *path, uint64_t size,
	const ckptfmt_limits *limits, cf_table **out, ckptfmt_error *err)
{
	cf_table how = {.bytes = bytes, .path = path, .size = size, .limits = *limits};
	return open_table(&how, out, err);
}

void cf_table_close(cf_table *table)
{
	if (table == NULL)
		return;
	if (table->blocks != NULL) {
		for (uint64_t i = 0; i < table->row_count; i++) {
			cf_table_block *block = atomic_load_explicit(&table->blocks[i], memory_order_acquire);
			if (block != NULL)
				cf_table_block_free(block);
			cf_release(block);
		}
	}
	cf_release(table->blocks);
	cf_release(table->rows);
	cf_table_block_free(&table->index);
	cf_buffer_free(&table->separators);
	cf_buffer_free(&table->tail);
	cf_release(table);
}

/* *same stays as it is where the bytes are those at `offset`. */
static ckptfmt_status compare_bytes(const cf_table *table, const void *state, const uint8_t *bytes, uint64_t count,
	uint64_t offset, bool *same, ckptfmt_error *err)
{
	uint8_t piece[4096];
	for (uint64_t done = 0; done < count && *same;) {
		uint64_t size = cf_min_u64(sizeof piece, count - done), got;
		CF_TRY(table->read(state, table->path, piece, size, offset + done, &got, err));
		*same = got == size && memcmp(piece, bytes + done, (size_t)size) == 0;
		done += size;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_table_same_end(const cf_table *table, const void *state, bool *same, ckptfmt_error *err)
{
	*same = true;
	CF_TRY(compare_bytes(table, state, table->tail.data, table->tail.size, table->tail_offset, same, err));
	return compare_bytes(table, state, table->index.stored, table->footer.index.size + CF_TRAILER_SIZE,
		table->footer.index.offset, same, err);
}

uint64_t cf_table_size(const cf_table *table)
{
	return table->size;
}

uint64_t cf_table_block_count(const cf_table *table)
{
	return table->row_count;
}

cf_footer cf_table_footer(const cf_table *table)
{
	return table->footer;
}

cf_handle cf_table_block_handle(const cf_table *table, uint64_t block)
{
	assert(block < table->row_count);
	return table->rows[block].handle;
}

ckptfmt_status cf_table_read_at(const cf_table *table, uint8_t *to, uint64_t size, uint64_t offset, ckptfmt_error *err)
{
	ckptfmt_status status;
	assert(cf_range_fits(offset, size, table->size));
	if (table->bytes != NULL) {
		memcpy(to, table->bytes + offset, (size_t)size);
		return CKPTFMT_OK;
	}
	status = read_at(table, to, size, offset, err);
	if (status != CKPTFMT_OK)
		cf_error_path(err, table->path);
	return status;
}
