/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From entries to rows. A partitioned tensor is one entry under its name, with its slices listed, and one entry for
 * each slice under a binary key that begins with a zero byte. Nothing in a slice's entry says that it is one; it is one
 * if some tensor lists it. In key order slice keys come before nearly all names. So a listing first defers entries with
 * such keys and takes every other entry as a tensor; then tensors claim their slices, and the deferred entries that
 * nothing claims are tensors too.
 */
#include "base/memory.h"
#include "read/values.h"
#include "read/reader.h"
#include "table/keys.h"
#include "slices/key.h"

#include <string.h>

ckptfmt_selection *cf_selection_new(const ckptfmt_reader *reader)
{
	ckptfmt_selection *selection = cf_allocate_zero(1, sizeof *selection);
	if (selection != NULL) {
		selection->reader_id = reader->id;
		selection->num_shards = reader->header.num_shards;
		selection->big_endian = reader->header.endianness == 1;
	}
	return selection;
}

/* ---- rows ------------------------------------------------------------------------------------------------ */

static void add_chunk_crcs(ckptfmt_selection *selection, const cf_entry *entry, ckptfmt_stored *out)
{
	out->chunk_size = (uint32_t)entry->chunk_size;
	out->chunks_first = selection->chunk_crcs.size / sizeof(uint32_t);
	for (uint64_t i = 0; i < entry->chunk_crcs.size; i += 4) {
		uint32_t crc = cf_load_u32(entry->chunk_crcs.data + i);
		cf_put_bytes(&selection->chunk_crcs, &crc, sizeof crc);
	}
}

/* Where an entry says that its bytes are, as if they were stored uncompressed. */
static void set_place(const cf_entry *entry, ckptfmt_stored *out)
{
	out->offset = (uint64_t)entry->offset;
	out->size = out->raw_size = (uint64_t)entry->size;
	out->shard = entry->shard;
	out->crc32c = out->raw_crc32c = ckptfmt_crc32c_unmask(entry->masked_crc);
}

/* What cannot be read is marked here and refused when it is read: other tensors can still be listed and read. */
static void set_stored(ckptfmt_selection *selection, const ckptfmt_limits *limits, const cf_entry *entry,
	ckptfmt_stored *out)
{
	uint64_t allowed;
	set_place(entry, out);
	if (!entry->has_extension)
		return;
	out->ends_first = selection->chunk_ends.size / sizeof(uint64_t);
	out->broken_rule = cf_entry_form(entry, &selection->chunk_ends);
	if (entry->feature_flags & CF_FEATURE_COMPRESSED) {
		out->flags |= CKPTFMT_STORED_COMPRESSED;
		out->raw_size = entry->raw_size;
		out->raw_crc32c = entry->raw_crc32c;
	}
	if (out->broken_rule != CF_STORED_SOUND)
		return;
	if (entry->chunk_size != 0)
		add_chunk_crcs(selection, entry, out);
	/* CMP-20 */
	if ((out->flags & CKPTFMT_STORED_COMPRESSED) &&
		cf_mul_u64(limits->expansion_max, out->size + entry->bytes.size, &allowed) && out->raw_size > allowed)
		out->flags |= CKPTFMT_STORED_EXPANDS;
}

static ckptfmt_status add_slices(ckptfmt_selection *selection, const cf_entry *entry, ckptfmt_error *err)
{
	int64_t extents[2 * CKPTFMT_RANK_MAX];
	uint64_t position = 0;
	bool found;
	for (;;) {
		ckptfmt_slice_row *slice;
		uint64_t first = selection->dims.size / sizeof(int64_t);
		CF_TRY(cf_entry_next_slice(entry, &position, extents, extents + entry->rank, &found, err));
		if (!found)
			return CKPTFMT_OK;
		cf_put_bytes(&selection->dims, extents, 2 * (uint64_t)entry->rank * sizeof(int64_t));
		slice = cf_buffer_extend(&selection->slices, sizeof *slice);
		if (slice == NULL)
			return cf_fail_memory(err);
		memset(slice, 0, sizeof *slice);
		slice->extents_first = first;
		slice->stored.flags = CKPTFMT_STORED_MISSING;
	}
}

static inline void fill_row(ckptfmt_row *row, const cf_entry *entry)
{
	ckptfmt_stored *stored = &row->stored;
	row->name_offset = row->dims_first = row->slices_first = 0;
	row->name_size = 0;
	row->slice_count = (uint32_t)entry->slice_count;
	row->dtype = entry->dtype;
	row->rank = entry->rank;
	row->element_count = entry->element_count;
	row->entry_offset = cf_plain_offset(entry->origin);
	stored->offset = stored->size = stored->chunks_first = stored->ends_first = stored->raw_size = 0;
	stored->shard = 0;
	stored->crc32c = stored->raw_crc32c = stored->chunk_size = stored->flags = stored->broken_rule = 0;
}

static ckptfmt_status add_row(ckptfmt_selection *selection, const ckptfmt_limits *limits, const cf_entry *entry,
	const int64_t *dims, cf_bytes_view name, ckptfmt_error *err)
{
	uint64_t name_offset = selection->names.size, dims_first = selection->dims.size / sizeof(int64_t);
	uint8_t *text = cf_buffer_extend(&selection->names, name.size + 1);
	int64_t *shape = entry->rank == 0 ? NULL
		: cf_buffer_extend(&selection->dims, (uint64_t)entry->rank * sizeof(int64_t));
	ckptfmt_row *row;
	ckptfmt_status status;
	if (text == NULL || (shape == NULL && entry->rank != 0))
		return cf_fail_memory(err);
	row = cf_buffer_extend(&selection->rows, sizeof *row);
	if (row == NULL)
		return cf_fail_memory(err);
	cf_copy_few(text, name.data, name.size);
	text[name.size] = 0;
	for (int32_t d = 0; d < entry->rank; d++)
		shape[d] = dims[d];
	fill_row(row, entry);
	row->name_offset = name_offset;
	row->name_size = (uint32_t)name.size;
	row->dims_first = dims_first;
	row->slices_first = selection->slices.size / sizeof(ckptfmt_slice_row);
	if (entry->slice_count == 0) {
		set_stored(selection, limits, entry, &row->stored);
		return CKPTFMT_OK;
	}
	status = add_slices(selection, entry, err);
	/* A verifier continues without this row. */
	if (status != CKPTFMT_OK)
		selection->rows.size -= sizeof *row;
	return status;
}

ckptfmt_status cf_selection_add(ckptfmt_selection *selection, const ckptfmt_reader *reader, cf_bytes_view name,
	cf_bytes_view value, uint64_t origin, ckptfmt_error *err)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	ckptfmt_status status = cf_entry_decode(value, origin, reader->limits.slices_max, dims, &entry, err);
	selection->num_shards = reader->header.num_shards;
	selection->big_endian = reader->header.endianness == 1;
	if (status == CKPTFMT_OK)
		status = add_row(selection, &reader->limits, &entry, dims, name, err);
	if (status != CKPTFMT_OK) {
		cf_error_tensor(err, name.data, name.size);
		cf_error_path(err, reader->prefix.index_path);
	}
	return status;
}

ckptfmt_status cf_selection_check_slice_keys(const ckptfmt_selection *selection, const ckptfmt_reader *reader,
	uint64_t row, uint64_t *key_bytes, ckptfmt_error *err)
{
	const ckptfmt_row *tensor = cf_selection_row(selection, row);
	uint64_t size = (uint64_t)tensor->slice_count * tensor->name_size;
	uint64_t allowed = cf_table_keys_bytes_max(reader->table);
	if (size > allowed - *key_bytes) {
		ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_LIMIT, tensor->entry_offset,
			"TAB-13: the keys of %lu slices with a name of %lu bytes, above limit keys_bytes_floor (%llu)",
			(unsigned long)tensor->slice_count, (unsigned long)tensor->name_size,
			(unsigned long long)allowed);
		cf_error_tensor(err, cf_selection_name(selection, tensor), tensor->name_size);
		cf_error_path(err, reader->prefix.index_path);
		return status;
	}
	*key_bytes += size;
	return CKPTFMT_OK;
}

/* KEY-5: a full dimension starts at 0 in the key, whatever start the message has. */
static void starts_in_key(int32_t rank, const int64_t *extents, int64_t *starts)
{
	for (int32_t d = 0; d < rank; d++)
		starts[d] = extents[rank + d] == -1 ? 0 : extents[d];
}

void cf_selection_slice_key(const ckptfmt_selection *selection, uint64_t row, uint64_t slice, cf_buffer *key)
{
	const ckptfmt_row *tensor = cf_selection_row(selection, row);
	const ckptfmt_slice_row *part = cf_selection_slices(selection, tensor) + slice;
	const int64_t *extents = cf_selection_dims(selection, part->extents_first);
	int64_t starts[CKPTFMT_RANK_MAX];
	starts_in_key(tensor->rank, extents, starts);
	cf_slice_key_encode(key, cf_selection_name(selection, tensor), tensor->name_size, tensor->rank, starts,
		extents + tensor->rank);
}

/* SLC-8, SLC-9: the entry of a slice has the tensor's dtype and the extent's shape. */
static uint32_t slice_flags(const ckptfmt_selection *selection, const ckptfmt_row *row, const ckptfmt_slice_row *slice,
	const cf_entry *entry, const int64_t *dims)
{
	const int64_t *full = cf_selection_dims(selection, row->dims_first);
	const int64_t *lengths = cf_selection_dims(selection, slice->extents_first) + row->rank;
	if (entry->dtype != row->dtype)
		return CKPTFMT_STORED_OTHER_DTYPE;
	if (entry->rank != row->rank)
		return CKPTFMT_STORED_OTHER_SHAPE;
	for (int32_t d = 0; d < row->rank; d++)
		if (dims[d] != (lengths[d] < 0 ? full[d] : lengths[d]))
			return CKPTFMT_STORED_OTHER_SHAPE;
	return 0;
}

ckptfmt_status cf_selection_fill_slice(ckptfmt_selection *selection, const ckptfmt_reader *reader, uint64_t row,
	uint64_t slice, cf_bytes_view value, uint64_t origin, ckptfmt_error *err)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	const ckptfmt_row *tensor = cf_selection_row(selection, row);
	ckptfmt_slice_row *part =
		(ckptfmt_slice_row *)cf_buffer_items(&selection->slices) + tensor->slices_first + slice;
	cf_entry entry;
	ckptfmt_status status = cf_entry_decode(value, origin, reader->limits.slices_max, dims, &entry, err);
	if (status == CKPTFMT_OK) {
		part->stored.flags = slice_flags(selection, tensor, part, &entry, dims);
		set_stored(selection, &reader->limits, &entry, &part->stored);
	}
	if (status != CKPTFMT_OK) {
		cf_error_tensor(err, cf_selection_name(selection, tensor), tensor->name_size);
		cf_error_path(err, reader->prefix.index_path);
	}
	return status;
}

ckptfmt_status cf_selection_finish(ckptfmt_selection *selection, ckptfmt_error *err)
{
	CF_TRY(cf_buffer_status(&selection->rows, err));
	CF_TRY(cf_buffer_status(&selection->slices, err));
	CF_TRY(cf_buffer_status(&selection->dims, err));
	CF_TRY(cf_buffer_status(&selection->names, err));
	CF_TRY(cf_buffer_status(&selection->chunk_crcs, err));
	CF_TRY(cf_buffer_status(&selection->chunk_ends, err));
	if (selection->slices.size == 0)
		return CKPTFMT_OK;
	selection->disjoint = cf_allocate_zero(cf_selection_count(selection), sizeof *selection->disjoint);
	selection->orders = cf_allocate_zero(cf_selection_count(selection), sizeof *selection->orders);
	return selection->disjoint == NULL || selection->orders == NULL ? cf_fail_memory(err) : CKPTFMT_OK;
}

void ckptfmt_selection_columns(const ckptfmt_selection *selection, ckptfmt_columns *out)
{
	out->rows = (const ckptfmt_row *)(const void *)selection->rows.data;
	out->slices = (const ckptfmt_slice_row *)(const void *)selection->slices.data;
	out->dims = (const int64_t *)(const void *)selection->dims.data;
	out->names = selection->names.data;
	out->chunk_crcs = (const uint32_t *)(const void *)selection->chunk_crcs.data;
	out->chunk_ends = (const uint64_t *)(const void *)selection->chunk_ends.data;
	out->row_count = cf_selection_count(selection);
	out->slice_count = selection->slices.size / sizeof(ckptfmt_slice_row);
	out->dims_count = selection->dims.size / sizeof(int64_t);
	out->names_size = selection->names.size;
	out->chunk_count = selection->chunk_crcs.size / sizeof(uint32_t);
	out->end_count = selection->chunk_ends.size / sizeof(uint64_t);
}

void ckptfmt_selection_free(ckptfmt_selection *selection)
{
	if (selection == NULL)
		return;
	for (uint64_t row = 0; selection->orders != NULL && row < cf_selection_count(selection); row++)
		cf_geometry_order_free(atomic_load_explicit(&selection->orders[row], memory_order_acquire));
	cf_release((void *)selection->orders);
	cf_buffer_free(&selection->rows);
	cf_buffer_free(&selection->slices);
	cf_buffer_free(&selection->dims);
	cf_buffer_free(&selection->names);
	cf_buffer_free(&selection->chunk_crcs);
	cf_buffer_free(&selection->chunk_ends);
	cf_release((void *)selection->disjoint);
	cf_release(selection);
}

ckptfmt_status cf_selection_check_row(const ckptfmt_selection *selection, uint64_t row, ckptfmt_error *err)
{
	if (row < cf_selection_count(selection))
		return CKPTFMT_OK;
	return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "row %llu of %llu", (unsigned long long)row,
		(unsigned long long)cf_selection_count(selection));
}

void cf_reader_error(const ckptfmt_reader *reader, const ckptfmt_selection *selection, const ckptfmt_row *row,
	ckptfmt_error *err)
{
	cf_error_tensor(err, cf_selection_name(selection, row), row->name_size);
	cf_error_path(err, reader->prefix.index_path);
	if (err != NULL && err->status == CKPTFMT_CORRUPT)
		cf_error_offset(err, row->entry_offset);
}

/* ---- by name --------------------------------------------------------------------------------------------- */

ckptfmt_status cf_selection_fill_by_key(ckptfmt_selection *selection, ckptfmt_reader *reader, uint64_t row,
	uint64_t *key_bytes, cf_buffer *key, ckptfmt_error *err)
{
	uint32_t slice_count = cf_selection_row(selection, row)->slice_count;
	CF_TRY(cf_selection_check_slice_keys(selection, reader, row, key_bytes, err));
	for (uint64_t i = 0; i < slice_count; i++) {
		cf_table_value value;
		bool found;
		cf_buffer_clear(key);
		cf_selection_slice_key(selection, row, i, key);
		CF_TRY(cf_buffer_status(key, err));
		CF_TRY(cf_table_get(reader->table, key->data, key->size, &value, &found, err));
		if (found)
			CF_TRY(cf_selection_fill_slice(selection, reader, row, i, (cf_bytes_view){value.data, value.size},
				value.offset, err));
	}
	return CKPTFMT_OK;
}
