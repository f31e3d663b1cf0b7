/* SPDX-License-Identifier: Apache-2.0 */
/* The whole file: its regions, and the check of every data block. */
#include "table/private.h"

static uint64_t footer_offset(const cf_table *table)
{
	return table->size - CF_FOOTER_SIZE;
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
	region->crc_good = region->crc32c == cf_trailer_crc_computed(memory->stored, handle.size);
	status = cf_table_block_decode(&list->table->limits, handle, memory, err);
	if (status == CKPTFMT_OK) {
		status = cf_block_check(&list->entries, &memory->block, &report, err);
		region->entry_count = status == CKPTFMT_OK ? report.entry_count : 0;
	}
	return status == CKPTFMT_NO_MEMORY ? status : CKPTFMT_OK;
}

/* The metaindex, if it fits between the last region and `next`. Opening a table does not check its handle. */
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
	cf_block_iterator_init(&check->entries);
	cf_table_block_init(&check->memory);
}

static ckptfmt_status check_block(cf_table_check *check, uint64_t row, ckptfmt_error *err)
{
	cf_table *table = check->table;
	cf_handle handle = table->rows[row].handle;
	cf_block_report report;
	check->offset = handle.offset;
	CF_TRY(cf_table_block_read(table, handle, &check->memory, err));
	check->size = handle.size + CF_TRAILER_SIZE;
	CF_TRY(cf_table_block_check(table, row, &check->memory, &check->entries, &report, err));
	check->entry_count = report.entry_count;
	return CKPTFMT_OK;
}

ckptfmt_status cf_table_check_next(cf_table_check *check, bool *more, ckptfmt_error *err)
{
	ckptfmt_status status;
	check->offset = check->size = check->entry_count = 0;
	*more = check->step < check->table->row_count;
	if (!*more)
		return CKPTFMT_OK;
	status = check_block(check, check->step++, err);
	if (status != CKPTFMT_OK)
		cf_error_path(err, check->table->path);
	return status;
}

void cf_table_check_close(cf_table_check *check)
{
	cf_block_iterator_free(&check->entries);
	cf_table_block_free(&check->memory);
}
