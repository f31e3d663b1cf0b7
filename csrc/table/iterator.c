/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lookup and iteration. Looking up loads a block on its first use, checks all of it, and publishes it with one
 * compare-and-swap; a thread that loses that race frees its copy. A published block is immutable and stays until the
 * table is closed. A block with long restart intervals, which a lookup would have to scan entry by entry, is rebuilt
 * first: looking up all its keys would otherwise take time quadratic in its size.
 * Iterating checks the blocks as it goes and publishes none, so that a listing of a large index needs the memory of one
 * block.
 */
#include "table/private.h"

#include "base/memory.h"
#include "table/writer.h"

#include <inttypes.h>

/* Other writers choose other restart intervals than 16; up to here a block is used as it is. */
enum { RESTART_INTERVAL_MAX = 64 };

/* ---- separators ---- */

static ckptfmt_status bad_separator(const cf_table *table, uint64_t row, const char *text, const uint8_t *key,
	uint64_t key_size, ckptfmt_error *err)
{
	ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_BAD_ORDER, table->rows[row].handle.offset, "%s", text);
	cf_error_tensor(err, key, key_size);
	return status;
}

static ckptfmt_status check_first(const cf_table *table, uint64_t row, const uint8_t *first, uint64_t first_size,
	ckptfmt_error *err)
{
	const cf_table_row *before = &table->rows[row == 0 ? 0 : row - 1];
	/* TAB-5 */
	if (row != 0 && cf_key_compare(before->separator, before->separator_size, first, first_size) >= 0)
		return bad_separator(table, row, "TAB-5: the first key of a block is not above the index key before it",
			first, first_size, err);
	return CKPTFMT_OK;
}

static ckptfmt_status check_last(const cf_table *table, uint64_t row, const uint8_t *last, uint64_t last_size,
	ckptfmt_error *err)
{
	const cf_table_row *own = &table->rows[row];
	/* TAB-5 */
	if (cf_key_compare(last, last_size, own->separator, own->separator_size) > 0)
		return bad_separator(table, row, "TAB-5: the last key of a block is above its index key", last, last_size,
			err);
	return CKPTFMT_OK;
}

ckptfmt_status cf_table_block_check(const cf_table *table, uint64_t row, cf_table_block *block,
	cf_block_iterator *entries, cf_block_report *out, ckptfmt_error *err)
{
	CF_TRY(cf_table_block_decode(&table->limits, table->rows[row].handle, block, err));
	CF_TRY(cf_block_check(entries, &block->block, out, err));
	if (out->entry_count == 0)
		return CKPTFMT_OK;
	CF_TRY(check_first(table, row, entries->first_key, entries->first_key_size, err));
	return check_last(table, row, entries->key.data, entries->key.size, err);
}

/* ---- lookup ---- */

/* The same entries with the canonical restart interval. */
static ckptfmt_status rebuild_entries(const cf_block *block, cf_block_builder *builder, ckptfmt_error *err)
{
	cf_block_iterator entry;
	ckptfmt_status status;
	cf_block_iterator_init(&entry);
	cf_block_iterator_open(&entry, block);
	status = cf_block_first(&entry, err);
	while (status == CKPTFMT_OK && entry.valid) {
		status = cf_block_builder_add(builder, entry.key.data, entry.key.size, entry.value, entry.value_size, err);
		if (status == CKPTFMT_OK)
			status = cf_block_next(&entry, err);
	}
	cf_block_iterator_free(&entry);
	return status == CKPTFMT_OK ? cf_block_builder_finish(builder, err) : status;
}

/* The key at a restart is stored whole, so a block may grow by up to all its keys. Their total over the table is
 * bounded by the limit on all key bytes, as in a listing. */
static ckptfmt_status rebuild(const cf_table *table, uint64_t key_bytes, cf_table_block *block, ckptfmt_error *err)
{
	uint64_t taken = atomic_load_explicit(&table->rebuilt_bytes, memory_order_relaxed);
	uint64_t allowed = cf_table_keys_bytes_max(table);
	cf_block before = block->block;
	cf_block_builder builder;
	ckptfmt_status status;
	/* TAB-13 */
	if (taken > allowed || key_bytes > allowed - taken)
		return cf_too_many_key_bytes(allowed, before.origin, err);
	cf_block_builder_init(&builder, CF_TABLE_RESTART_INTERVAL);
	status = rebuild_entries(&before, &builder, err);
	if (status == CKPTFMT_OK)
		status = cf_block_open(builder.bytes.data, builder.bytes.size, before.origin, true, before.key_bytes_max,
			&block->block, err);
	if (status == CKPTFMT_OK) {
		cf_table_block_free(block);
		block->decoded = builder.bytes;
		builder.bytes = CF_BUFFER_EMPTY;
		block->rebuilt_bytes = key_bytes;
	}
	cf_block_builder_free(&builder);
	return status;
}

/* Reads a data block and checks all of it, so that what lookups find in it, and what they do not, can be relied on. */
static ckptfmt_status load(const cf_table *table, uint64_t row, cf_table_block *block, ckptfmt_error *err)
{
	cf_handle handle = table->rows[row].handle;
	cf_block_iterator entries;
	cf_block_report report;
	ckptfmt_status status;
	CF_TRY(cf_table_block_read(table, handle, block, err));
	cf_block_iterator_init(&entries);
	status = cf_table_block_check(table, row, block, &entries, &report, err);
	cf_block_iterator_free(&entries);
	if (block->compression != CF_COMPRESSION_RAW)
		cf_buffer_free(&block->own);
	if (status == CKPTFMT_OK && report.restart_interval_max > RESTART_INTERVAL_MAX)
		status = rebuild(table, report.key_bytes, block, err);
	return status;
}

static ckptfmt_status load_once(cf_table *table, uint64_t row, cf_table_block **out, ckptfmt_error *err)
{
	cf_table_block *published = atomic_load_explicit(&table->blocks[row], memory_order_acquire);
	cf_table_block *mine;
	ckptfmt_status status;
	*out = published;
	if (CF_LIKELY(published != NULL))
		return CKPTFMT_OK;
	mine = cf_allocate(sizeof *mine);
	if (mine == NULL)
		return cf_fail_memory(err);
	cf_table_block_init(mine);
	status = load(table, row, mine, err);
	if (status == CKPTFMT_OK && atomic_compare_exchange_strong_explicit(&table->blocks[row], &published, mine,
		memory_order_acq_rel, memory_order_acquire)) {
		(void)atomic_fetch_add_explicit(&table->rebuilt_bytes, mine->rebuilt_bytes, memory_order_relaxed);
		*out = mine;
		return CKPTFMT_OK;
	}
	cf_table_block_free(mine);
	cf_release(mine);
	*out = published;
	return status;
}

/* The only row whose block may hold the key: the first whose separator is not less; row_count if there is none. */
static uint64_t find_row(const cf_table *table, const uint8_t *key, uint64_t key_size)
{
	uint64_t low = 0, high = table->row_count;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		const cf_table_row *row = &table->rows[middle];
		if (cf_key_compare(row->separator, row->separator_size, key, key_size) < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static ckptfmt_status get(cf_table *table, const uint8_t *key, uint64_t key_size, cf_table_value *out, bool *found,
	ckptfmt_error *err)
{
	uint64_t row = find_row(table, key, key_size), position;
	cf_table_block *block;
	if (row == table->row_count)
		return CKPTFMT_OK;
	CF_TRY(load_once(table, row, &block, err));
	CF_TRY(cf_block_find(&block->block, key, key_size, &position, &out->size, found, err));
	if (*found) {
		out->data = block->block.bytes + position;
		out->offset = cf_block_origin(&block->block, position);
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_table_get(cf_table *table, const uint8_t *key, uint64_t key_size, cf_table_value *out, bool *found,
	ckptfmt_error *err)
{
	ckptfmt_status status;
	*out = (cf_table_value){NULL, 0, CF_NO_OFFSET};
	*found = false;
	status = get(table, key, key_size, out, found, err);
	if (status != CKPTFMT_OK)
		cf_error_path(err, table->path);
	return status;
}

/* ---- iteration ---- */

void cf_table_iterator_open(cf_table_iterator *iterator, cf_table *table)
{
	memset(iterator, 0, sizeof *iterator);
	iterator->table = table;
	iterator->key_bytes_max = cf_table_keys_bytes_max(table);
	iterator->last_key = CF_BUFFER_EMPTY;
	cf_block_iterator_init(&iterator->entries);
	cf_table_block_init(&iterator->memory);
}

void cf_table_iterator_open_at(cf_table_iterator *iterator, cf_table *table, const uint8_t *key, uint64_t key_size)
{
	cf_table_iterator_open(iterator, table);
	iterator->next_block = find_row(table, key, key_size);
}

void cf_table_iterator_rewind(cf_table_iterator *iterator)
{
	iterator->entry_count = iterator->next_block = iterator->key_bytes = 0;
	iterator->in_block = false;
	cf_buffer_clear(&iterator->last_key);
}

/* To the first entry of the next block. */
static ckptfmt_status enter_block(cf_table_iterator *iterator, ckptfmt_error *err)
{
	cf_table *table = iterator->table;
	uint64_t row = iterator->next_block++;
	cf_block_iterator *entries = &iterator->entries;
	const cf_table_block *block = atomic_load_explicit(&table->blocks[row], memory_order_acquire);
	iterator->in_block = true;
	if (block == NULL) {
		if (!iterator->keeps_block) {
			CF_TRY(cf_table_block_read(table, table->rows[row].handle, &iterator->memory, err));
			CF_TRY(cf_table_block_decode(&table->limits, table->rows[row].handle, &iterator->memory, err));
		}
		iterator->keeps_block = table->row_count == 1;
		block = &iterator->memory;
	}
	cf_block_iterator_open(entries, &block->block);
	CF_TRY(cf_block_first(entries, err));
	if (entries->valid)
		iterator->common = cf_key_common(iterator->last_key.data, iterator->last_key.size, entries->key.data,
			entries->key.size);
	if (entries->valid)
		return check_first(table, row, entries->first_key, entries->first_key_size, err);
	return CKPTFMT_OK;
}

static ckptfmt_status leave_block(cf_table_iterator *iterator, ckptfmt_error *err)
{
	const cf_buffer *last = &iterator->entries.key;
	iterator->in_block = false;
	if (!iterator->entries.walking)
		return CKPTFMT_OK;
	CF_TRY(check_last(iterator->table, iterator->next_block - 1, last->data, last->size, err));
	cf_buffer_clear(&iterator->last_key);
	cf_put_bytes(&iterator->last_key, last->data, last->size);
	return cf_buffer_status(&iterator->last_key, err);
}

/* Makes the entry at which the block's iterator is the current one, if the limits allow it. */
static ckptfmt_status show_entry(cf_table_iterator *iterator, ckptfmt_error *err)
{
	const cf_block_iterator *entry = &iterator->entries;
	/* TAB-13 */
	if (iterator->entry_count == iterator->table->limits.entries_max)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, cf_block_offset(entry->block, entry->entry_position),
			"TAB-13: more entries than limit entries_max (%" PRIu64 ")", iterator->table->limits.entries_max);
	if (entry->key.size > iterator->key_bytes_max - iterator->key_bytes)
		return cf_too_many_key_bytes(iterator->key_bytes_max,
			cf_block_offset(entry->block, entry->entry_position), err);
	iterator->entry_count++;
	iterator->key_bytes += entry->key.size;
	iterator->key = entry->key.data;
	iterator->key_size = entry->key.size;
	iterator->value = entry->value;
	iterator->value_size = entry->value_size;
	iterator->value_offset = cf_block_origin(entry->block, entry->value_position);
	return CKPTFMT_OK;
}

static ckptfmt_status step(cf_table_iterator *iterator, bool *more, ckptfmt_error *err)
{
	for (;;) {
		if (iterator->in_block) {
			CF_TRY(cf_block_next(&iterator->entries, err));
			iterator->common = iterator->entries.common;
		} else if (iterator->next_block == iterator->table->row_count) {
			return CKPTFMT_OK;
		} else {
			CF_TRY(enter_block(iterator, err));
		}
		*more = iterator->entries.valid;
		if (*more)
			return show_entry(iterator, err);
		CF_TRY(leave_block(iterator, err));
	}
}

ckptfmt_status cf_table_iterator_next(cf_table_iterator *iterator, bool *more, ckptfmt_error *err)
{
	ckptfmt_status status;
	*more = false;
	status = step(iterator, more, err);
	if (status != CKPTFMT_OK)
		cf_error_path(err, iterator->table->path);
	return status;
}

void cf_table_iterator_close(cf_table_iterator *iterator)
{
	cf_block_iterator_free(&iterator->entries);
	cf_table_block_free(&iterator->memory);
	cf_buffer_free(&iterator->last_key);
}
