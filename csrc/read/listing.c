/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lists every tensor of a checkpoint in one pass over the index, or the tensors with a name prefix in one pass over the
 * part of the index that holds them. The top of selection.c says how slices are distinguished from tensors.
 */
#include "base/memory.h"
#include "read/deferred.h"
#include "read/reader.h"
#include "table/keys.h"
#include "slices/key.h"
#include "base/pages.h"

#include <string.h>

enum {
	/* Columns of this size are worth huge pages: a listing writes each page once, and page faults take longer. */
	LARGE_BYTES = 8 << 20,
	/* Smallest size of a typical entry in the index. */
	ENTRY_BYTES_MIN = 16,
};

typedef struct listing {
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	cf_deferred deferred;
	cf_buffer key;              /* scratch */
	uint64_t key_bytes;         /* of the slices looked for */
	bool reserved;              /* names reserved for the format are listed too */
	cf_buffer *ends;            /* uint64_t, where each name ends; not NULL: names are listed without rows */
	bool needs_rows;            /* a slice, or a key that may be one: only rows tell it from a tensor's name */
} listing;

/* Lets the tensors of rows [first, end) claim their slices. */
static ckptfmt_status claim(listing *list, uint64_t first, uint64_t end, ckptfmt_error *err)
{
	for (uint64_t row = first; row < end; row++) {
		uint32_t slice_count = cf_selection_row(list->selection, row)->slice_count;
		if (slice_count == 0)
			continue;
		CF_TRY(cf_selection_check_slice_keys(list->selection, list->reader, row, &list->key_bytes, err));
		for (uint32_t i = 0; i < slice_count; i++) {
			cf_deferred_entry *c;
			cf_buffer_clear(&list->key);
			cf_selection_slice_key(list->selection, row, i, &list->key);
			CF_TRY(cf_buffer_status(&list->key, err));
			c = cf_deferred_find(&list->deferred, list->key.data, list->key.size);
			if (c == NULL)
				continue;
			c->claimed = true;
			CF_TRY(cf_selection_fill_slice(list->selection, list->reader, row, i,
				cf_deferred_value(&list->deferred, c), c->origin, err));
		}
	}
	return CKPTFMT_OK;
}

/* NO_MEMORY if a column could not grow. */
static ckptfmt_status check_columns(const ckptfmt_selection *selection, ckptfmt_error *err)
{
	CF_TRY(cf_buffer_status(&selection->rows, err));
	CF_TRY(cf_buffer_status(&selection->slices, err));
	CF_TRY(cf_buffer_status(&selection->dims, err));
	return cf_buffer_status(&selection->names, err);
}

/* Reserves memory for a column by its size after the first of `count` blocks, at most `max`. Best effort: the column
 * grows later if needed. */
static void expect(cf_buffer *column, uint64_t count, uint64_t max)
{
	uint64_t size = column->size > max / count ? max : column->size * count;
	size += size / 16;
	if (column->failed || size < LARGE_BYTES || size <= column->size)
		return;
	column->failed = !cf_buffer_reserve(column, size - column->size);
	if (!column->failed)
		cf_pages_want_large(column->data, column->capacity);
	column->failed = false;
}

/* Estimates by the rows of the first block, bounded by what the file could hold. */
static void expect_columns(const listing *list)
{
	uint64_t size = cf_table_size(list->reader->table), count = cf_table_block_count(list->reader->table);
	expect(&list->selection->rows, count, size / ENTRY_BYTES_MIN * sizeof(ckptfmt_row));
	expect(&list->selection->names, count, 2 * size);
	expect(&list->selection->dims, count, size);
	if (list->ends != NULL)
		expect(list->ends, count, size / ENTRY_BYTES_MIN * sizeof(uint64_t));
}

/* EXT-7 */
static bool is_hidden(const listing *list, cf_bytes_view name)
{
	static const char prefix[] = CF_RESERVED_PREFIX;
	return !list->reserved && name.size >= sizeof prefix - 1 && memcmp(name.data, prefix, sizeof prefix - 1) == 0;
}

static ckptfmt_status add_name(listing *list, cf_bytes_view key, cf_bytes_view value, uint64_t origin,
	ckptfmt_error *err)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	uint8_t *name;
	uint64_t *end;
	ckptfmt_status status;
	cf_entry entry;
	list->needs_rows = cf_slice_key_looks_like(key.data, key.size);
	if (list->needs_rows)
		return CKPTFMT_OK;
	status = cf_entry_decode(value, origin, list->reader->limits.slices_max, dims, &entry, err);
	if (status != CKPTFMT_OK) {
		cf_error_tensor(err, key.data, key.size);
		return status;
	}
	list->needs_rows = entry.slice_count != 0;
	name = cf_buffer_extend(&list->selection->names, key.size);
	end = cf_buffer_extend(list->ends, sizeof *end);
	if (name == NULL || end == NULL)
		return cf_fail_memory(err);
	cf_copy_few(name, key.data, key.size);
	*end = list->selection->names.size;
	return CKPTFMT_OK;
}

static ckptfmt_status scan(listing *list, ckptfmt_error *err)
{
	cf_table_iterator entries;
	ckptfmt_status status = CKPTFMT_OK;
	bool more = true, expected = false;
	cf_table_iterator_open(&entries, list->reader->table);
	while (status == CKPTFMT_OK && !list->needs_rows) {
		cf_bytes_view key, value;
		status = cf_table_iterator_next(&entries, &more, err);
		if (status != CKPTFMT_OK || !more)
			break;
		if (CF_UNLIKELY(!expected && entries.next_block > 1)) {
			expect_columns(list);
			expected = true;
		}
		key = (cf_bytes_view){entries.key, entries.key_size};
		value = (cf_bytes_view){entries.value, entries.value_size};
		if (key.size == 0 || is_hidden(list, key))
			continue;
		if (list->ends != NULL)
			status = add_name(list, key, value, entries.value_offset, err);
		else if (cf_slice_key_looks_like(key.data, key.size))
			status = cf_deferred_add(&list->deferred, key, value, entries.value_offset, err);
		else
			status = cf_selection_add(list->selection, list->reader, key, value, entries.value_offset, err);
	}
	cf_table_iterator_close(&entries);
	return status;
}

/* KEY-6, KEY-7, SLC-10: a tensor's name may itself begin with a zero byte, and look like a slice's key. */
static ckptfmt_status add_unclaimed(listing *list, const cf_deferred_place *places, ckptfmt_error *err)
{
	for (uint64_t i = 0; i < cf_deferred_count(&list->deferred); i++) {
		cf_deferred_entry *c = cf_deferred_at(&list->deferred, places[i].row);
		uint64_t row = cf_selection_count(list->selection);
		if (c->claimed)
			continue;
		c->claimed = true;
		CF_TRY(cf_selection_add(list->selection, list->reader, cf_deferred_key(&list->deferred, c),
			cf_deferred_value(&list->deferred, c), c->origin, err));
		CF_TRY(check_columns(list->selection, err));
		CF_TRY(claim(list, row, row + 1, err));
	}
	return CKPTFMT_OK;
}

/* Sorts the rows and their names: names that begin with a zero byte were added last and come first in key order. */
static ckptfmt_status sort_rows(ckptfmt_selection *selection, ckptfmt_error *err)
{
	uint64_t count = cf_selection_count(selection);
	cf_sort_key *order = cf_allocate(count * sizeof *order);
	cf_buffer rows = CF_BUFFER_EMPTY, names = CF_BUFFER_EMPTY;
	if (order == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < count; i++) {
		const ckptfmt_row *row = cf_selection_row(selection, i);
		order[i] = (cf_sort_key){cf_selection_name(selection, row), row->name_size, i};
	}
	cf_sort_keys(order, count);
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_row row = *cf_selection_row(selection, order[i].row);
		row.name_offset = names.size;
		cf_put_bytes(&rows, &row, sizeof row);
		cf_put_bytes(&names, order[i].key, order[i].key_size);
		cf_put_u8(&names, 0);
	}
	cf_release(order);
	cf_buffer_free(&selection->rows);
	cf_buffer_free(&selection->names);
	selection->rows = rows;
	selection->names = names;
	CF_TRY(cf_buffer_status(&rows, err));
	return cf_buffer_status(&names, err);
}

static ckptfmt_status list_all(listing *list, ckptfmt_error *err)
{
	cf_deferred_place *places;
	uint64_t late_first;
	ckptfmt_status status;
	CF_TRY(scan(list, err));
	late_first = cf_selection_count(list->selection);
	CF_TRY(check_columns(list->selection, err));
	if (list->selection->slices.size != 0) /* most checkpoints have no slices: skip a pass over all rows */
		CF_TRY(claim(list, 0, late_first, err));
	CF_TRY(cf_deferred_by_size(&list->deferred, &places, err));
	status = add_unclaimed(list, places, err);
	cf_release(places);
	if (status != CKPTFMT_OK)
		return status;
	if (cf_selection_count(list->selection) != late_first)
		CF_TRY(sort_rows(list->selection, err));
	return cf_selection_finish(list->selection, err);
}

/* Adds the tensors whose names begin with `prefix`. REQUIRES: it does not begin with a zero byte, as slice keys do. */
static ckptfmt_status scan_prefix(listing *list, cf_bytes_view prefix, ckptfmt_error *err)
{
	cf_table_iterator entries;
	ckptfmt_status status = CKPTFMT_OK;
	cf_table_iterator_open_at(&entries, list->reader->table, prefix.data, prefix.size);
	while (status == CKPTFMT_OK) {
		uint64_t common;
		bool more;
		status = cf_table_iterator_next(&entries, &more, err);
		if (status != CKPTFMT_OK || !more)
			break;
		common = cf_key_common(entries.key, entries.key_size, prefix.data, prefix.size);
		if (common == prefix.size && is_hidden(list, (cf_bytes_view){entries.key, entries.key_size}))
			continue;
		if (common == prefix.size)
			status = cf_selection_add(list->selection, list->reader,
				(cf_bytes_view){entries.key, entries.key_size},
				(cf_bytes_view){entries.value, entries.value_size}, entries.value_offset, err);
		else if (common < entries.key_size && entries.key[common] > prefix.data[common])
			break;
	}
	cf_table_iterator_close(&entries);
	return status;
}

static ckptfmt_status list_prefix(listing *list, cf_bytes_view prefix, ckptfmt_error *err)
{
	CF_TRY(scan_prefix(list, prefix, err));
	CF_TRY(check_columns(list->selection, err));
	for (uint64_t row = 0; row < cf_selection_count(list->selection); row++)
		CF_TRY(cf_selection_fill_by_key(list->selection, list->reader, row, &list->key_bytes, &list->key, err));
	return cf_selection_finish(list->selection, err);
}

/* The names of a listing of rows. */
static ckptfmt_status names_of_rows(listing *list, cf_buffer *ends, ckptfmt_error *err)
{
	ckptfmt_selection *selection = list->selection;
	cf_buffer names = CF_BUFFER_EMPTY;
	list->ends = NULL;
	list->needs_rows = false;
	cf_buffer_clear(&selection->names);
	CF_TRY(list_all(list, err));
	cf_buffer_clear(ends);
	cf_put_u64(ends, 0);
	for (uint64_t i = 0; i < cf_selection_count(selection); i++) {
		const ckptfmt_row *row = cf_selection_row(selection, i);
		cf_put_bytes(&names, cf_selection_name(selection, row), row->name_size);
		cf_put_bytes(ends, &names.size, sizeof names.size);
	}
	cf_buffer_free(&selection->names);
	selection->names = names;
	return CKPTFMT_OK;
}

static ckptfmt_status list_names(listing *list, ckptfmt_strings *out, ckptfmt_error *err)
{
	cf_buffer *names = &list->selection->names, ends = CF_BUFFER_EMPTY;
	ckptfmt_status status;
	list->ends = &ends;
	cf_put_u64(&ends, 0);
	status = scan(list, err);
	if (status == CKPTFMT_OK && list->needs_rows)
		status = names_of_rows(list, &ends, err);
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(names, err);
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(&ends, err);
	if (status != CKPTFMT_OK) {
		cf_buffer_free(&ends);
		return status;
	}
	out->count = ends.size / sizeof(uint64_t) - 1;
	out->offsets = (uint64_t *)(void *)ends.data;
	out->bytes = names->data;
	*names = CF_BUFFER_EMPTY;
	return CKPTFMT_OK;
}

/* All tensors for an empty prefix. */
static ckptfmt_status make_listing(ckptfmt_reader *reader, cf_bytes_view prefix, bool reserved,
	ckptfmt_selection **out, ckptfmt_error *err)
{
	listing list;
	ckptfmt_status status;
	*out = NULL;
	memset(&list, 0, sizeof list);
	list.reader = reader;
	list.reserved = reserved;
	list.selection = cf_selection_new(reader);
	if (list.selection == NULL)
		return cf_fail_memory(err);
	status = prefix.size == 0 ? list_all(&list, err) : list_prefix(&list, prefix, err);
	cf_deferred_free(&list.deferred);
	cf_buffer_free(&list.key);
	if (status != CKPTFMT_OK) {
		cf_error_path(err, reader->prefix.index_path);
		ckptfmt_selection_free(list.selection);
		return status;
	}
	*out = list.selection;
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_list(ckptfmt_reader *reader, ckptfmt_selection **out, ckptfmt_error *err)
{
	return make_listing(reader, (cf_bytes_view){NULL, 0}, false, out, err);
}

ckptfmt_status ckptfmt_reader_list_all(ckptfmt_reader *reader, ckptfmt_selection **out, ckptfmt_error *err)
{
	return make_listing(reader, (cf_bytes_view){NULL, 0}, true, out, err);
}

ckptfmt_status ckptfmt_reader_list_prefix(ckptfmt_reader *reader, const uint8_t *prefix, uint64_t prefix_size,
	ckptfmt_selection **out, ckptfmt_error *err)
{
	*out = NULL;
	/* Only a full listing can tell names that begin with a zero byte from slices. */
	if (prefix_size == 0 || prefix[0] == 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"a prefix must not be empty or begin with a zero byte");
	return make_listing(reader, (cf_bytes_view){prefix, prefix_size}, false, out, err);
}

ckptfmt_status ckptfmt_reader_names(ckptfmt_reader *reader, ckptfmt_strings **out, ckptfmt_error *err)
{
	ckptfmt_strings *strings = cf_allocate_zero(1, sizeof *strings);
	listing list;
	ckptfmt_status status;
	*out = NULL;
	memset(&list, 0, sizeof list);
	list.reader = reader;
	list.selection = cf_selection_new(reader);
	status = strings == NULL || list.selection == NULL ? cf_fail_memory(err) : list_names(&list, strings, err);
	cf_deferred_free(&list.deferred);
	cf_buffer_free(&list.key);
	ckptfmt_selection_free(list.selection);
	if (status != CKPTFMT_OK) {
		cf_error_path(err, reader->prefix.index_path);
		cf_release(strings);
		return status;
	}
	*out = strings;
	return CKPTFMT_OK;
}
