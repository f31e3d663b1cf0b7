/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Strict mode: deviations from what a canonical writer writes, found by re-encoding and comparing bytes.
 *
 * Each message of the index is compared with its canonical form, and the index file with the one that table/writer.h
 * writes for the same entries. A file that passes is byte for byte what a canonical writer writes for its content.
 */
#include "verify/private.h"

#include "proto/canonical.h"

#include <string.h>

/* ---- messages -------------------------------------------------------------------------------------------- */

static bool differs(const cf_buffer *form, uint64_t start, cf_bytes_view from)
{
	return form->size - start != from.size || (from.size != 0 && memcmp(form->data + start, from.data, from.size) != 0);
}

/* Compares with the form that keeps unknown fields, and that with the form without them. */
static void check_message(cf_verifier *v, const cf_schema *schema, cf_bytes_view bytes,
	const cf_verify_place *place)
{
	cf_buffer *form = &v->key;
	uint64_t size;
	ckptfmt_error error;
	/* Most messages are what a canonical writer writes: no second form is needed. */
	cf_buffer_clear(form);
	if (cf_canonical_put(form, schema, CF_FORM_STRICT, bytes, place->offset, NULL) == CKPTFMT_OK &&
		cf_buffer_status(form, NULL) == CKPTFMT_OK && !differs(form, 0, bytes))
		return;
	cf_buffer_clear(form);
	/* Fields that the lenient decoder skips, such as the content of slices, are reported where they are used. */
	if (cf_canonical_put(form, schema, CF_FORM_KEPT, bytes, place->offset, NULL) == CKPTFMT_CORRUPT)
		return;
	if (!cf_verify_ok(v, cf_buffer_status(form, &error), &error, place))
		return;
	if (differs(form, 0, bytes))
		cf_verify_note(v, CF_VERIFY_NOT_CANONICAL, place,
			"MSG-15: not in canonical form: fields are repeated, out of order, at their default or not in the fewest "
			"bytes");
	size = form->size;
	if (cf_canonical_put(form, schema, CF_FORM_STRICT, bytes, place->offset, NULL) != CKPTFMT_CORRUPT &&
		cf_verify_ok(v, cf_buffer_status(form, &error), &error, place) &&
		differs(form, size, (cf_bytes_view){form->data, size}))
		cf_verify_note(v, CF_VERIFY_UNKNOWN, place, "MSG-8: has fields that this version does not write");
}

void cf_verify_strict_header(cf_verifier *v, cf_bytes_view bytes, const cf_verify_place *place)
{
	check_message(v, &cf_header_schema, bytes, place);
}

/* SLC-3: a full extent has neither start nor length. */
static void check_slices(cf_verifier *v, const cf_entry *entry, const cf_verify_place *place)
{
	int64_t extents[2 * CKPTFMT_RANK_MAX];
	uint64_t position = 0;
	cf_buffer *both = &v->key;
	uint64_t size;
	bool found = true;
	ckptfmt_error error;
	cf_buffer_clear(both);
	while (found) {
		if (cf_entry_next_slice(entry, &position, extents, extents + entry->rank, &found, NULL) != CKPTFMT_OK)
			return;
		if (found)
			cf_put_slice(both, entry->rank, extents, extents + entry->rank);
	}
	size = both->size;
	if (cf_entry_copy_slices(both, entry, NULL) != CKPTFMT_CORRUPT &&
		cf_verify_ok(v, cf_buffer_status(both, &error), &error, place) &&
		differs(both, size, (cf_bytes_view){both->data, size}))
		cf_verify_note(v, CF_VERIFY_NOT_CANONICAL, place, "MSG-15: slices that are not in canonical form");
}

void cf_verify_strict_entry(cf_verifier *v, const cf_entry *entry, const cf_verify_place *place)
{
	check_message(v, &cf_entry_schema, entry->bytes, place);
	if (entry->slice_count != 0)
		check_slices(v, entry, place);
	/* ENT-2 */
	if (!entry->has_shape)
		cf_verify_note(v, CF_VERIFY_NO_SHAPE, place, "ENT-2: an entry without a shape");
	/* DTY-6 */
	if (cf_dtype_check(entry->dtype, CF_NO_OFFSET, NULL) == CKPTFMT_OK && ckptfmt_dtype_find(entry->dtype) == NULL)
		cf_verify_note(v, CF_VERIFY_UNKNOWN_DTYPE, place, "DTY-6: data type %d, which this version does not know",
			(int)entry->dtype);
}

/* ---- the table ------------------------------------------------------------------------------------------- */

/* The sink of the writer: the bytes must be those of the file at the same offset. */
static ckptfmt_status compare(void *state, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	cf_verifier *v = state;
	uint8_t piece[4096];
	uint64_t file_size = cf_table_size(v->reader->table);
	for (uint64_t done = 0; done < size && !v->table_differs;) {
		uint64_t count = cf_min_u64(sizeof piece, size - done), same = 0;
		count = cf_min_u64(count, file_size - v->table_same);
		CF_TRY(cf_table_read_at(v->reader->table, piece, count, v->table_same, err));
		while (same < count && piece[same] == bytes[done + same])
			same++;
		v->table_same += same;
		v->table_differs = same < count || count == 0;
		done += same;
	}
	return CKPTFMT_OK;
}

void cf_verify_table_begin(cf_verifier *v)
{
	cf_table_writer_open(&v->writer, (cf_sink){compare, v});
	v->writing = true;
}

void cf_verify_table_abandon(cf_verifier *v)
{
	if (v->writing)
		cf_table_writer_free(&v->writer);
	v->writing = false;
}

void cf_verify_table_entry(cf_verifier *v, cf_bytes_view key, cf_bytes_view value)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, CF_NO_OFFSET};
	ckptfmt_error error;
	if (v->writing && !v->table_differs && !cf_verify_ok(v, cf_table_writer_add(&v->writer, key.data, key.size,
		value.data, value.size, &error), &error, &place))
		cf_verify_table_abandon(v);
}

static bool inside(cf_handle handle, uint64_t offset)
{
	uint64_t from_start = offset - handle.offset;
	return offset >= handle.offset && (from_start < CF_TRAILER_SIZE || from_start - CF_TRAILER_SIZE < handle.size);
}

/* The data block with the byte; the number of blocks if there is none. */
static uint64_t block_of(const cf_table *table, uint64_t offset)
{
	uint64_t block = 0;
	while (block < cf_table_block_count(table) && !inside(cf_table_block_handle(table, block), offset))
		block++;
	return block;
}

static void report_block(cf_verifier *v, cf_handle handle, cf_verify_place *place)
{
	uint8_t type = CF_COMPRESSION_RAW;
	ckptfmt_error error;
	if (!cf_verify_ok(v, cf_table_read_at(v->reader->table, &type, 1, handle.offset + handle.size, &error), &error,
		place))
		return;
	/* SNP-1 */
	if (type == CF_COMPRESSION_SNAPPY) {
		place->offset = handle.offset;
		cf_verify_note(v, CF_VERIFY_SNAPPY, place, "SNP-1: a Snappy block");
		return;
	}
	/* BLK-5, BLK-11, BLK-12, TAB-9 */
	cf_verify_note(v, CF_VERIFY_BLOCK, place,
		"BLK-11: restart points, shared prefixes or the end of the block are not as a canonical writer writes them");
}

/* The first difference says how the file deviates. Later bytes are not compared: most would be at other offsets. */
static void report_difference(cf_verifier *v)
{
	const cf_table *table = v->reader->table;
	cf_footer footer = cf_table_footer(table);
	uint64_t at = v->table_same, block = block_of(table, at);
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, at};
	if (block < cf_table_block_count(table))
		report_block(v, cf_table_block_handle(table, block), &place);
	else if (inside(footer.metaindex, at))
		cf_verify_note(v, CF_VERIFY_METAINDEX, &place, "TAB-10: the metaindex block is not the empty one");
	else if (inside(footer.index, at))
		cf_verify_note(v, CF_VERIFY_SEPARATOR, &place,
			"TAB-7: the index block is not as a canonical writer writes it: separators, handles or restart points");
	else if (at >= cf_table_size(table) - CF_FOOTER_SIZE)
		cf_verify_note(v, CF_VERIFY_FOOTER, &place, "FTR-4: the footer is not as a canonical writer writes it");
	else
		cf_verify_note(v, CF_VERIFY_GAP, &place, "TAB-11: bytes that belong to no block");
}

void cf_verify_table_end(cf_verifier *v)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, CF_NO_OFFSET};
	uint64_t size;
	ckptfmt_error error;
	if (!v->writing)
		return;
	if (!v->table_differs && !cf_verify_ok(v, cf_table_writer_finish(&v->writer, &size, &error), &error, &place)) {
		cf_verify_table_abandon(v);
		return;
	}
	/* A longer file has its footer at another offset, so it has differed before. */
	if (v->table_differs)
		report_difference(v);
	cf_verify_table_abandon(v);
}
