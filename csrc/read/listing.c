/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every tensor of a checkpoint in one pass over the index, or those whose names begin alike in one over a part of it,
 * or nothing but the names. See the top of selection.c for how slices are told from tensors.
 */
#include "base/memory.h"
#include "read/held.h"
#include "read/reader.h"
#include "table/keys.h"
#include "slices/key.h"
#include "base/pages.h"

#include <string.h>

enum {
	/* Columns of this size are worth large pages: a listing writes each page once, and is longer in getting it. */
	LARGE_BYTES = 8 << 20,
	/* No usual entry takes less of an index. */
	ENTRY_BYTES_MIN = 16,
};

typedef struct listing {
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	cf_held held;
	cf_buffer key;              /* scratch */
	uint64_t key_bytes;         /* of the slices looked for */
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
			cf_held_entry *c;
			cf_buffer_clear(&list->key);
			cf_selection_slice_key(list->selection, row, i, &list->key);
			CF_TRY(cf_buffer_status(&list->key, err));
			c = cf_held_find(&list->held, list->key.data, list->key.size);
			if (c == NULL)
				continue;
			c->claimed = true;
			CF_TRY(cf_selection_fill_slice(list->selection, list->reader, row, i,
				cf_held_value(&list->held, c), c->origin, err));
		}
	}
	return CKPTFMT_OK;
}

/* Whether all of what the rows point to is there. */
static ckptfmt_status check_columns(const ckptfmt_selection *selection, ckptfmt_error *err)
{
	CF_TRY(cf_buffer_status(&selection->rows, err));
	CF_TRY(cf_buffer_status(&selection->slices, err));
	CF_TRY(cf_buffer_status(&selection->dims, err));
	return cf_buffer_status(&selection->names, err);
}

/* Room for a column of which `size` bytes were filled from one block of `count`, at most `max`. It is no failure if
 * there is none: the column grows as it must. */
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

/* By the rows of the first block, and by no more than the file could hold of them. */
static void expect_columns(const listing *list)
{
	uint64_t size = cf_table_size(list->reader->table), count = cf_table_block_count(list->reader->table);
	expect(&list->selection->rows, count, size / ENTRY_BYTES_MIN * sizeof(ckptfmt_row));
	expect(&list->selection->names, count, 2 * size);
	expect(&list->selection->dims, count, size);
}

static ckptfmt_status scan(listing *list, ckptfmt_error *err)
{
	cf_table_iterator entries;
	ckptfmt_status status = CKPTFMT_OK;
	bool more = true, expected = false;
	cf_table_iterator_open(&entries, list->reader->table);
	while (status == CKPTFMT_OK) {
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
		if (key.size == 0)
			continue;
		if (cf_slice_key_looks_like(key.data, key.size))
			status = cf_held_add(&list->held, key, value, entries.value_offset, err);
		else
			status = cf_selection_add(list->selection, list->reader, key, value, entries.value_offset, err);
	}
	cf_table_iterator_close(&entries);
	return status;
}

/* KEY-6, KEY-7, SLC-10: a tensor's name may itself begin with a zero byte, and look like a slice's key. */
static ckptfmt_status add_unclaimed(listing *list, const cf_held_place *places, ckptfmt_error *err)
{
	for (uint64_t i = 0; i < cf_held_count(&list->held); i++) {
		cf_held_entry *c = cf_held_at(&list->held, places[i].row);
		uint64_t row = cf_selection_count(list->selection);
		if (c->claimed)
			continue;
		c->claimed = true;
		CF_TRY(cf_selection_add(list->selection, list->reader, cf_held_key(&list->held, c),
			cf_held_value(&list->held, c), c->origin, err));
		CF_TRY(check_columns(list->selection, err));
		CF_TRY(claim(list, row, row + 1, err));
	}
	return CKPTFMT_OK;
}

/* The names in the order of the rows, each followed by a zero byte. */
static ckptfmt_status restore_names(ckptfmt_selection *selection, ckptfmt_error *err)
{
	ckptfmt_row *rows = (ckptfmt_row *)(void *)selection->rows.data;
	cf_buffer names = CF_BUFFER_EMPTY;
	ckptfmt_status status;
	for (uint64_t i = 0; i < cf_selection_count(selection); i++) {
		uint64_t offset = names.size;
		cf_put_bytes(&names, cf_selection_name(selection, &rows[i]), rows[i].name_size);
		cf_put_u8(&names, 0);
		rows[i].name_offset = offset;
	}
	status = cf_buffer_status(&names, err);
	cf_buffer_free(&selection->names);
	selection->names = names;
	return status;
}

/* Names that begin with a zero byte were added last, by size. They belong first, in order. There are hardly ever
 * any. */
static ckptfmt_status restore_order(ckptfmt_selection *selection, uint64_t late_first, ckptfmt_error *err)
{
	ckptfmt_row *rows = (ckptfmt_row *)(void *)selection->rows.data;
	uint64_t late_count = cf_selection_count(selection) - late_first;
	cf_sort_key *names;
	ckptfmt_row *late;
	if (late_count == 0)
		return CKPTFMT_OK;
	names = cf_allocate(late_count * sizeof *names);
	late = cf_allocate(late_count * sizeof *late);
	if (names == NULL || late == NULL) {
		cf_release(names);
		cf_release(late);
		return cf_fail_memory(err);
	}
	memcpy(late, rows + late_first, (size_t)late_count * sizeof *late);
	for (uint64_t i = 0; i < late_count; i++)
		names[i] = (cf_sort_key){cf_selection_name(selection, &late[i]), late[i].name_size, i};
	cf_sort_keys(names, late_count);
	memmove(rows + late_count, rows, (size_t)late_first * sizeof *rows);
	for (uint64_t i = 0; i < late_count; i++)
		rows[i] = late[names[i].row];
	cf_release(names);
	cf_release(late);
	return restore_names(selection, err);
}

static ckptfmt_status list_all(listing *list, ckptfmt_error *err)
{
	cf_held_place *places;
	uint64_t late_first;
	ckptfmt_status status;
	CF_TRY(scan(list, err));
	late_first = cf_selection_count(list->selection);
	CF_TRY(check_columns(list->selection, err));
	CF_TRY(claim(list, 0, late_first, err));
	CF_TRY(cf_held_by_size(&list->held, &places, err));
	status = add_unclaimed(list, places, err);
	cf_release(places);
	if (status != CKPTFMT_OK)
		return status;
	CF_TRY(cf_selection_finish(list->selection, err));
	return restore_order(list->selection, late_first, err);
}

/* Adds the tensors whose names begin so. None of the keys is that of a slice. */
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

/* All tensors for an empty prefix. */
static ckptfmt_status make_listing(ckptfmt_reader *reader, cf_bytes_view prefix, ckptfmt_selection **out,
	ckptfmt_error *err)
{
	listing list;
	ckptfmt_status status;
	*out = NULL;
	memset(&list, 0, sizeof list);
	list.reader = reader;
	list.selection = cf_selection_new(reader);
	if (list.selection == NULL)
		return cf_fail_memory(err);
	status = prefix.size == 0 ? list_all(&list, err) : list_prefix(&list, prefix, err);
	cf_held_free(&list.held);
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
	return make_listing(reader, (cf_bytes_view){NULL, 0}, out, err);
}

ckptfmt_status ckptfmt_reader_list_prefix(ckptfmt_reader *reader, const uint8_t *prefix, uint64_t prefix_size,
	ckptfmt_selection **out, ckptfmt_error *err)
{
	*out = NULL;
	/* Among keys that begin with a zero byte only a listing of all tells names from slices. */
	if (prefix_size == 0 || prefix[0] == 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "a prefix is not empty and begins with no zero byte");
	return make_listing(reader, (cf_bytes_view){prefix, prefix_size}, out, err);
}

/* ---- names alone ----------------------------------------------------------------------------------------- */

void cf_name_walk_open(cf_name_walk *walk, ckptfmt_reader *reader)
{
	memset(walk, 0, sizeof *walk);
	walk->reader = reader;
	walk->names = CF_BUFFER_EMPTY;
	walk->ends = CF_BUFFER_EMPTY;
	cf_table_iterator_open(&walk->entries, reader->table);
}

void cf_name_walk_close(cf_name_walk *walk)
{
	cf_table_iterator_close(&walk->entries);
	cf_buffer_free(&walk->names);
	cf_buffer_free(&walk->ends);
}

/* EXT-7 */
static bool is_reserved(const cf_table_iterator *entry)
{
	static const char prefix[] = CF_RESERVED_PREFIX;
	return entry->key_size >= sizeof prefix - 1 && memcmp(entry->key, prefix, sizeof prefix - 1) == 0;
}

/* Takes the name. */
static inline void put_name(cf_name_walk *walk)
{
	const cf_table_iterator *at = &walk->entries;
	cf_buffer *names = &walk->names, *ends = &walk->ends;
	if (CF_UNLIKELY(at->key[0] == CF_RESERVED_PREFIX[0]) && is_reserved(at))
		return;
	if (CF_LIKELY(names->capacity - names->size >= at->key_size && ends->capacity - ends->size >= sizeof names->size)) {
		cf_copy_few(names->data + names->size, at->key, at->key_size);
		names->size += at->key_size;
		memcpy(ends->data + ends->size, &names->size, sizeof names->size);
		ends->size += sizeof names->size;
		return;
	}
	cf_put_bytes(names, at->key, at->key_size);
	cf_put_bytes(ends, &names->size, sizeof names->size);
}

/* Checks the entry and takes its name. */
static inline ckptfmt_status take_name(cf_name_walk *walk, ckptfmt_error *err)
{
	const cf_table_iterator *at = &walk->entries;
	const cf_bytes_view value = {at->value, at->value_size};
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_plain_entry plain;
	cf_entry entry;
	ckptfmt_status status;
	if (CF_UNLIKELY(!cf_entry_scan_plain(value, dims, &plain))) {
		status = cf_entry_decode(value, at->value_offset, walk->reader->limits.slices_max, dims, &entry, err);
		if (status != CKPTFMT_OK) {
			cf_error_tensor(err, at->key, at->key_size);
			return status;
		}
		walk->partitioned = entry.slice_count != 0;
	}
	put_name(walk);
	return CKPTFMT_OK;
}

ckptfmt_status cf_name_walk_next(cf_name_walk *walk, uint64_t count, ckptfmt_error *err)
{
	ckptfmt_status status = CKPTFMT_OK;
	bool more = true;
	cf_buffer_clear(&walk->names);
	cf_buffer_clear(&walk->ends);
	while (status == CKPTFMT_OK && !walk->partitioned && walk->ends.size < count * sizeof(uint64_t)) {
		status = cf_table_iterator_next(&walk->entries, &more, err);
		if (status != CKPTFMT_OK || !more)
			break;
		if (cf_slice_key_looks_like(walk->entries.key, walk->entries.key_size))
			walk->partitioned = true;
		else if (walk->entries.key_size != 0)
			status = take_name(walk, err);
	}
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(&walk->names, err);
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(&walk->ends, err);
	if (status != CKPTFMT_OK)
		cf_error_path(err, walk->reader->prefix.index_path);
	return status;
}
