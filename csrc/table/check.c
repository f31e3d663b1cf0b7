/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The file seen whole: its regions, and the check of everything in it against what a canonical writer would have
 * written. A file that passes every step of the check without an oddity is the very file that table_writer.c makes of
 * its entries; the fuzzer holds it to that.
 */
#include "table/private.h"
#include "table/writer.h"

enum { EMPTY_BLOCK_SIZE = 8 };

static uint64_t footer_offset(const cf_table *table)
{
	return table->size - CF_FOOTER_SIZE;
}

static uint64_t block_end(cf_handle handle)
{
	return handle.offset + handle.size + CF_TRAILER_SIZE;
}

/* ---- regions ---- */

typedef struct region_list {
	cf_table *table;
	ckptfmt_region *regions;
	uint64_t capacity;
	uint64_t count;
	uint64_t end;                  /* of the last region */
	cf_table_block memory;
	cf_block_iterator entries;
} region_list;

static void list_region(region_list *list, uint64_t offset, uint64_t size, ckptfmt_region_kind kind)
{
	if (list->count < list->capacity) {
		ckptfmt_region *region = &list->regions[list->count];
		memset(region, 0, sizeof *region);
		region->offset = offset;
		region->size = size;
		region->kind = (int32_t)kind;
		region->compression = -1;
	}
	list->count++;
	list->end = offset + size;
}

static void list_gap(region_list *list, uint64_t until)
{
	if (list->end < until)
		list_region(list, list->end, until - list->end, CKPTFMT_REGION_GAP);
}

static ckptfmt_status list_block(region_list *list, cf_handle handle, ckptfmt_region_kind kind, ckptfmt_error *err)
{
	cf_table_block *memory = &list->memory;
	cf_block_report report;
	ckptfmt_region *region;
	ckptfmt_status status;
	list_gap(list, handle.offset);
	list_region(list, handle.offset, handle.size + CF_TRAILER_SIZE, kind);
	if (list->count > list->capacity)
		return CKPTFMT_OK;
	region = &list->regions[list->count - 1];
	CF_TRY(cf_table_block_read(list->table, handle, memory, err));
	region->compression = memory->stored[handle.size];
	region->crc32c = cf_trailer_crc(memory->stored, handle.size);
	region->crc_good = region->crc32c == cf_trailer_crc_wanted(memory->stored, handle.size);
	status = cf_table_block_decode(list->table, handle, memory, err);
	if (status == CKPTFMT_OK) {
		status = cf_block_check(&list->entries, &memory->block, CF_TABLE_RESTART_INTERVAL, &report, err);
		region->entry_count = status == CKPTFMT_OK ? report.entry_count : 0;
	}
	return status == CKPTFMT_NO_MEMORY ? status : CKPTFMT_OK;
}

/* The metaindex, if it fits between what is listed and `next`. Its handle is never checked when a table is opened. */
static ckptfmt_status list_metaindex(region_list *list, uint64_t next, ckptfmt_error *err)
{
	cf_handle handle = list->table->footer.metaindex;
	if (cf_handle_check(handle, next, 0, NULL) != CKPTFMT_OK || handle.offset < list->end)
		return CKPTFMT_OK;
	return list_block(list, handle, CKPTFMT_REGION_METAINDEX, err);
}

static ckptfmt_status list_all(region_list *list, ckptfmt_error *err)
{
	const cf_table *table = list->table;
	for (uint64_t i = 0; i < table->row_count; i++) {
		CF_TRY(list_metaindex(list, table->rows[i].handle.offset, err));
		CF_TRY(list_block(list, table->rows[i].handle, CKPTFMT_REGION_DATA, err));
	}
	CF_TRY(list_metaindex(list, table->footer.index.offset, err));
	CF_TRY(list_block(list, table->footer.index, CKPTFMT_REGION_INDEX, err));
	CF_TRY(list_metaindex(list, footer_offset(table), err));
	list_gap(list, footer_offset(table));
	list_region(list, footer_offset(table), CF_FOOTER_SIZE, CKPTFMT_REGION_FOOTER);
	return CKPTFMT_OK;
}

ckptfmt_status cf_table_regions(cf_table *table, ckptfmt_region *regions, uint64_t capacity, uint64_t *count,
	ckptfmt_error *err)
{
	region_list list = {.table = table, .regions = regions, .capacity = capacity};
	ckptfmt_status status;
	*count = 0;
	cf_table_block_init(&list.memory);
	cf_block_iterator_init(&list.entries);
	status = list_all(&list, err);
	cf_table_block_free(&list.memory);
	cf_block_iterator_free(&list.entries);
	if (status != CKPTFMT_OK) {
		cf_error_path(err, table->path);
		return status;
	}
	*count = list.count;
	return CKPTFMT_OK;
}

/* ---- check ---- */

void cf_table_check_open(cf_table_check *check, cf_table *table)
{
	memset(check, 0, sizeof *check);
	check->table = table;
	check->last_key = CF_BUFFER_EMPTY;
	check->scratch = CF_BUFFER_EMPTY;
	cf_block_iterator_init(&check->entries);
	cf_table_block_init(&check->memory);
}

static ckptfmt_status check_block(cf_table_check *check, cf_handle handle, cf_block_report *report,
	ckptfmt_error *err)
{
	CF_TRY(cf_table_block_read(check->table, handle, &check->memory, err));
	check->size = handle.size + CF_TRAILER_SIZE;
	CF_TRY(cf_table_block_decode(check->table, handle, &check->memory, err));
	CF_TRY(cf_block_check(&check->entries, &check->memory.block, CF_TABLE_RESTART_INTERVAL, report, err));
	check->entry_count = report->entry_count;
	check->oddities |= report->oddities;
	return CKPTFMT_OK;
}

/* TAB-9: whether this block begins and ends where a canonical writer's would. */
static void flush_rule_check(cf_table_check *check, bool last_known, const cf_block_report *report)
{
	bool began_early = last_known && !check->last_full && report->first_entry_size < CF_TABLE_LARGE_ENTRY;
	if (report->entry_count == 0 || began_early || report->size_before_last >= CF_TABLE_BLOCK_SIZE ||
		report->later_entry_size_max >= CF_TABLE_LARGE_ENTRY)
		check->oddities |= CF_ODD_BLOCK_SIZE;
}

/* TAB-7, TAB-8: `scratch` holds what a canonical writer would have as the index key of the row. */
static ckptfmt_status separator_check(cf_table_check *check, uint64_t row, ckptfmt_error *err)
{
	const cf_table_row *given = &check->table->rows[row];
	CF_TRY(cf_buffer_status(&check->scratch, err));
	if (cf_key_compare(check->scratch.data, check->scratch.size, given->separator, given->separator_size) != 0)
		check->oddities |= CF_ODD_SEPARATOR;
	cf_buffer_clear(&check->scratch);
	return CKPTFMT_OK;
}

static ckptfmt_status check_data_block(cf_table_check *check, uint64_t row, ckptfmt_error *err)
{
	cf_table *table = check->table;
	cf_block_iterator *entries = &check->entries;
	cf_buffer *last_key = &check->last_key;
	cf_block_report report;
	bool last_known = check->last_known;
	check->offset = table->rows[row].handle.offset;
	check->last_known = false;
	CF_TRY(check_block(check, table->rows[row].handle, &report, err));
	flush_rule_check(check, last_known, &report);
	if (report.entry_count == 0)
		return CKPTFMT_OK;
	CF_TRY(cf_table_first_check(table, row, entries->first_key, entries->first_key_size, err));
	CF_TRY(cf_table_last_check(table, row, entries->key.data, entries->key.size, err));
	cf_buffer_clear(&check->scratch);
	if (last_known) {
		cf_separator_between(last_key->data, last_key->size, entries->first_key, entries->first_key_size,
			&check->scratch);
		CF_TRY(separator_check(check, row - 1, err));
	}
	if (row + 1 == table->row_count) {
		cf_separator_after(entries->key.data, entries->key.size, &check->scratch);
		CF_TRY(separator_check(check, row, err));
	}
	cf_buffer_clear(last_key);
	cf_put_bytes(last_key, entries->key.data, entries->key.size);
	CF_TRY(cf_buffer_status(last_key, err));
	check->last_full = check->memory.block.size >= CF_TABLE_BLOCK_SIZE;
	check->last_known = true;
	return CKPTFMT_OK;
}

/* TAB-10. No reader needs it, so whatever is wrong with it is odd and no more. */
static ckptfmt_status check_metaindex(cf_table_check *check, ckptfmt_error *err)
{
	static const uint8_t empty[EMPTY_BLOCK_SIZE] = {0, 0, 0, 0, 1, 0, 0, 0};
	const cf_table *table = check->table;
	cf_handle handle = table->footer.metaindex;
	cf_table_block *memory = &check->memory;
	ckptfmt_status status;
	check->offset = handle.offset;
	check->oddities = CF_ODD_METAINDEX;
	if (cf_handle_check(handle, footer_offset(table), footer_offset(table), NULL) != CKPTFMT_OK ||
		handle.size != EMPTY_BLOCK_SIZE)
		return CKPTFMT_OK;
	CF_TRY(cf_table_block_read(table, handle, memory, err));
	check->size = handle.size + CF_TRAILER_SIZE;
	status = cf_table_block_decode(table, handle, memory, err);
	if (status == CKPTFMT_NO_MEMORY)
		return status;
	if (status == CKPTFMT_OK && memory->compression == CF_COMPRESSION_RAW &&
		memcmp(memory->stored, empty, sizeof empty) == 0)
		check->oddities = 0;
	return CKPTFMT_OK;
}

/* TAB-11 and what opening the table found. */
static void check_layout(cf_table_check *check)
{
	const cf_table *table = check->table;
	uint64_t end = 0;
	bool gap = false;
	for (uint64_t i = 0; i < table->row_count; i++) {
		gap |= table->rows[i].handle.offset != end;
		end = block_end(table->rows[i].handle);
	}
	gap |= table->footer.metaindex.offset != end;
	if (cf_handle_check(table->footer.metaindex, footer_offset(table), 0, NULL) == CKPTFMT_OK)
		end = block_end(table->footer.metaindex);
	gap |= table->footer.index.offset != end;
	gap |= footer_offset(table) != block_end(table->footer.index);
	check->offset = table->footer.index.offset;
	check->size = table->size - check->offset;
	check->entry_count = table->row_count;
	check->oddities = table->oddities | (gap ? CF_ODD_TABLE_GAP : 0);
}

ckptfmt_status cf_table_check_next(cf_table_check *check, bool *more, ckptfmt_error *err)
{
	cf_table *table = check->table;
	ckptfmt_status status = CKPTFMT_OK;
	uint64_t step = check->step;
	check->offset = 0;
	check->size = 0;
	check->entry_count = 0;
	check->oddities = 0;
	*more = step < table->row_count + 2;
	if (!*more)
		return CKPTFMT_OK;
	check->step++;
	if (step < table->row_count)
		status = check_data_block(check, step, err);
	else if (step == table->row_count)
		status = check_metaindex(check, err);
	else
		check_layout(check);
	if (status != CKPTFMT_OK)
		cf_error_path(err, table->path);
	return status;
}

void cf_table_check_close(cf_table_check *check)
{
	cf_block_iterator_free(&check->entries);
	cf_table_block_free(&check->memory);
	cf_buffer_free(&check->last_key);
	cf_buffer_free(&check->scratch);
}
