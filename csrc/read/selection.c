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

/* EXT-4: one checksum for each chunk, no more and no fewer. */
static bool chunks_fit(const cf_entry *entry)
{
	uint64_t size = (uint64_t)entry->size, chunk = entry->chunk_size;
	return entry->size >= 0 && chunk != 0 && chunk <= UINT32_MAX &&
		entry->chunk_crcs.size / 4 == size / chunk + (size % chunk != 0);
}

static void add_chunk_crcs(ckptfmt_selection *selection, const cf_entry *entry, ckptfmt_stored *out)
{
	out->chunk_size = (uint32_t)entry->chunk_size;
	out->chunks_first = selection->chunk_crcs.size / sizeof(uint32_t);
	for (uint64_t i = 0; i < entry->chunk_crcs.size; i += 4) {
		uint32_t crc = cf_load_u32(entry->chunk_crcs.data + i);
		cf_put_bytes(&selection->chunk_crcs, &crc, sizeof crc);
	}
}

static void set_compressed(ckptfmt_selection *selection, const ckptfmt_limits *limits, const cf_entry *entry,
	ckptfmt_stored *out)
{
	uint64_t allowed;
	uint32_t rule;
	out->flags |= CKPTFMT_STORED_COMPRESSED;
	out->raw_size = entry->raw_size;
	out->raw_crc32c = entry->raw_crc32c;
	out->ends_first = selection->chunk_ends.size / sizeof(uint64_t);
	if (cf_entry_check_chunks(entry, &selection->chunk_ends, &rule, NULL) != CKPTFMT_OK) {
		out->flags |= CKPTFMT_STORED_BAD_CHUNKS;
		out->broken_rule = rule;
		return;
	}
	add_chunk_crcs(selection, entry, out);
	/* CMP-20 */
	if (cf_mul_u64(limits->expansion_max, out->size + entry->bytes.size, &allowed) && out->raw_size > allowed)
		out->flags |= CKPTFMT_STORED_EXPANDS;
}

/* Where an entry says that its bytes are, as if they were stored uncompressed. */
static void set_place(const cf_entry *entry, ckptfmt_stored *out)
{
	out->offset = (uint64_t)entry->offset;
	out->size = out->raw_size = (uint64_t)entry->size;
	out->shard = entry->shard;
	out->crc32c = out->raw_crc32c = ckptfmt_crc32c_unmask(entry->masked_crc);
}

static void set_stored(ckptfmt_selection *selection, const ckptfmt_limits *limits, const cf_entry *entry,
	ckptfmt_stored *out)
{
	set_place(entry, out);
	/* What cannot be read is marked here and refused when read: other tensors can still be listed and read. */
	if (entry->feature_flags & ~CF_FEATURE_COMPRESSED) {
		out->flags |= CKPTFMT_STORED_FEATURES;
		return;
	}
	if (entry->feature_flags & CF_FEATURE_COMPRESSED) {
		set_compressed(selection, limits, entry, out);
		return;
	}
	if (entry->chunk_size == 0 && entry->chunk_crcs.size == 0)
		return;
	/* EXT-2, EXT-5, EXT-4 */
	if (entry->chunk_crcs.size % 4 != 0)
		out->flags |= CKPTFMT_STORED_BAD_CHUNKS;
	else if (entry->size >= 0 && entry->chunk_size >= (uint64_t)entry->size)
		out->flags |= CKPTFMT_STORED_ONE_CHUNK;
	else if (!chunks_fit(entry)) {
		out->flags |= CKPTFMT_STORED_BAD_CHUNKS;
		out->broken_rule = 4;
	}
	if ((out->flags & (CKPTFMT_STORED_ONE_CHUNK | CKPTFMT_STORED_BAD_CHUNKS)) == 0)
		add_chunk_crcs(selection, entry, out);
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
			"TAB-13: the keys of %lu slices with a name of %lu bytes, where all keys may have %llu",
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

/* Adds the tensor of this name without its slices. *found false: no entry has this name. */
static ckptfmt_status add_by_name(ckptfmt_reader *reader, ckptfmt_selection *selection, cf_bytes_view name,
	bool *found, ckptfmt_error *err)
{
	cf_table_value value = {NULL, 0, 0};
	*found = false;
	if (name.size != 0)
		CF_TRY(cf_table_get(reader->table, name.data, name.size, &value, found, err));
	if (!*found)
		return CKPTFMT_OK;
	CF_TRY(cf_selection_add(selection, reader, name, (cf_bytes_view){value.data, value.size}, value.offset, err));
	CF_TRY(cf_buffer_status(&selection->dims, err));
	CF_TRY(cf_buffer_status(&selection->names, err));
	return cf_buffer_status(&selection->rows, err);
}

/* Distinguishes slice keys from tensor names. Looking up each key alone costs the slice count of its tensor, which a
 * hostile index makes quadratic. Keys of one tensor mostly come together, so the last tensor is cached and its slices
 * are sorted at the second lookup. */
typedef struct key_test {
	ckptfmt_reader *reader;
	cf_buffer name;                 /* of the tensor that the current key would be a slice of */
	ckptfmt_selection *tensor;      /* the last one; without a row if it does not exist; NULL at first */
	cf_buffer tensor_name;
	cf_sort_key *slices;            /* sorted by extents; NULL: not yet */
	bool known, nested;             /* whether the last tensor is itself a slice (SLC-10); valid if known */
} key_test;

static void forget_tensor(key_test *test)
{
	ckptfmt_selection_free(test->tensor);
	test->tensor = NULL;
	cf_release(test->slices);
	test->slices = NULL;
	test->known = false;
}

static void free_key_test(key_test *test)
{
	forget_tensor(test);
	cf_buffer_free(&test->name);
	cf_buffer_free(&test->tensor_name);
}

/* Converts the extents of the listed slices to the form that keys have. */
static void take_starts_of_keys(const ckptfmt_selection *tensor)
{
	const ckptfmt_row *row = cf_selection_row(tensor, 0);
	for (uint64_t i = 0; i < row->slice_count; i++) {
		int64_t *extents = (int64_t *)cf_buffer_items(&tensor->dims) +
			cf_selection_slices(tensor, row)[i].extents_first;
		starts_in_key(row->rank, extents, extents);
	}
}

static ckptfmt_status take_tensor(key_test *test, ckptfmt_error *err)
{
	bool found;
	ckptfmt_status status;
	forget_tensor(test);
	cf_buffer_clear(&test->tensor_name);
	cf_put_bytes(&test->tensor_name, test->name.data, test->name.size);
	CF_TRY(cf_buffer_status(&test->tensor_name, err));
	test->tensor = cf_selection_new(test->reader);
	if (test->tensor == NULL)
		return cf_fail_memory(err);
	status = add_by_name(test->reader, test->tensor, (cf_bytes_view){test->name.data, test->name.size}, &found, err);
	if (status != CKPTFMT_OK)
		forget_tensor(test);
	else if (found)
		take_starts_of_keys(test->tensor);
	return status;
}

static cf_sort_key extents_key(const key_test *test, const ckptfmt_row *row, uint64_t slice)
{
	const int64_t *extents =
		cf_selection_dims(test->tensor, cf_selection_slices(test->tensor, row)[slice].extents_first);
	return (cf_sort_key){(const uint8_t *)extents, 2 * (uint64_t)row->rank * sizeof *extents, slice};
}

static ckptfmt_status sort_slices(key_test *test, const ckptfmt_row *row, ckptfmt_error *err)
{
	test->slices = cf_allocate(row->slice_count * sizeof *test->slices);
	if (test->slices == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < row->slice_count; i++)
		test->slices[i] = extents_key(test, row, i);
	cf_sort_keys(test->slices, row->slice_count);
	return CKPTFMT_OK;
}

static bool find_slice(const key_test *test, const ckptfmt_row *row, const cf_sort_key *wanted)
{
	uint64_t low = 0, high = row->slice_count;
	if (test->slices == NULL) {
		for (uint64_t i = 0; i < row->slice_count; i++) {
			cf_sort_key slice = extents_key(test, row, i);
			if (cf_compare_keys(&slice, wanted) == 0)
				return true;
		}
		return false;
	}
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		int order = cf_compare_keys(&test->slices[middle], wanted);
		if (order == 0)
			return true;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return false;
}

/* Whether the key is that of a slice which the entry of the name in it lists. */
static ckptfmt_status is_listed(key_test *test, cf_bytes_view key, bool *slice, ckptfmt_error *err)
{
	int64_t extents[2 * CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	int32_t rank;
	const ckptfmt_row *row;
	cf_sort_key wanted;
	ckptfmt_status status;
	*slice = false;
	if (!cf_slice_key_looks_like(key.data, key.size))
		return CKPTFMT_OK;
	status = cf_slice_key_split(key.data, key.size, &test->name, &rank, extents, lengths, NULL);
	if (status != CKPTFMT_OK)
		return status == CKPTFMT_NO_MEMORY ? cf_fail_memory(err) : CKPTFMT_OK;
	memcpy(extents + rank, lengths, (size_t)rank * sizeof *lengths);
	if (test->tensor == NULL || test->name.size != test->tensor_name.size ||
		(test->name.size != 0 && memcmp(test->name.data, test->tensor_name.data, (size_t)test->name.size) != 0))
		CF_TRY(take_tensor(test, err));
	else if (test->slices == NULL && cf_selection_count(test->tensor) != 0 &&
		cf_selection_row(test->tensor, 0)->slice_count != 0)
		CF_TRY(sort_slices(test, cf_selection_row(test->tensor, 0), err));
	if (cf_selection_count(test->tensor) == 0)
		return CKPTFMT_OK;
	row = cf_selection_row(test->tensor, 0);
	wanted = (cf_sort_key){(const uint8_t *)extents, 2 * (uint64_t)rank * sizeof *extents, 0};
	*slice = rank == row->rank && find_slice(test, row, &wanted);
	return CKPTFMT_OK;
}

/* Whether the last tensor is itself a slice. Its name may be a slice's key, which contains a shorter name, which may be
 * one again. The shortest of these names is a tensor; what it lists are slices, what a slice lists are not, and so on
 * alternately. */
static ckptfmt_status check_nested(key_test *test, ckptfmt_error *err)
{
	key_test up = {.reader = test->reader};
	cf_buffer name = CF_BUFFER_EMPTY;
	bool listed = true;
	ckptfmt_status status;
	cf_put_bytes(&name, test->tensor_name.data, test->tensor_name.size);
	status = cf_buffer_status(&name, err);
	test->nested = false;
	while (status == CKPTFMT_OK && listed) {
		status = is_listed(&up, (cf_bytes_view){name.data, name.size}, &listed, err);
		if (status != CKPTFMT_OK || !listed)
			break;
		test->nested = !test->nested;
		cf_buffer_clear(&name);
		cf_put_bytes(&name, up.tensor_name.data, up.tensor_name.size);
		status = cf_buffer_status(&name, err);
	}
	test->known = status == CKPTFMT_OK;
	cf_buffer_free(&name);
	free_key_test(&up);
	return status;
}

/* KEY-6, SLC-10: whether a key is that of a slice which a tensor lists. What a slice's own entry lists is ignored. */
static ckptfmt_status is_slice(key_test *test, cf_bytes_view key, bool *slice, ckptfmt_error *err)
{
	CF_TRY(is_listed(test, key, slice, err));
	if (*slice && !test->known)
		CF_TRY(check_nested(test, err));
	*slice = *slice && !test->nested;
	return CKPTFMT_OK;
}

static ckptfmt_status select_one(key_test *test, ckptfmt_selection *selection, cf_bytes_view name, cf_buffer *key,
	ckptfmt_error *err)
{
	bool found = false, slice;
	uint64_t key_bytes = 0;
	ckptfmt_status status;
	CF_TRY(is_slice(test, name, &slice, err));
	if (!slice)
		CF_TRY(add_by_name(test->reader, selection, name, &found, err));
	if (found)
		return cf_selection_fill_by_key(selection, test->reader, cf_selection_count(selection) - 1, &key_bytes, key,
			err);
	status = cf_fail(err, CKPTFMT_FAIL_TENSOR_NOT_FOUND, CF_NO_OFFSET, "not found in checkpoint");
	cf_error_tensor(err, name.data, name.size);
	cf_error_path(err, test->reader->prefix.index_path);
	return status;
}

ckptfmt_status ckptfmt_reader_select(ckptfmt_reader *reader, const uint8_t *names, const uint64_t *name_sizes,
	uint64_t count, ckptfmt_selection **out, ckptfmt_error *err)
{
	cf_buffer key = CF_BUFFER_EMPTY;
	key_test test = {.reader = reader};
	ckptfmt_status status = CKPTFMT_OK;
	ckptfmt_selection *selection;
	*out = NULL;
	selection = cf_selection_new(reader);
	if (selection == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < count && status == CKPTFMT_OK; i++) {
		status = select_one(&test, selection, (cf_bytes_view){names, name_sizes[i]}, &key, err);
		names += name_sizes[i];
	}
	if (status == CKPTFMT_OK)
		status = cf_selection_finish(selection, err);
	cf_buffer_free(&key);
	free_key_test(&test);
	if (status != CKPTFMT_OK) {
		cf_error_path(err, reader->prefix.index_path);
		ckptfmt_selection_free(selection);
		return status;
	}
	*out = selection;
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_contains(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size, int32_t *found,
	ckptfmt_error *err)
{
	cf_table_value value;
	key_test test = {.reader = reader};
	bool exists = false, slice = false;
	ckptfmt_status status = CKPTFMT_OK;
	*found = 0;
	if (name_size != 0)
		status = cf_table_get(reader->table, name, name_size, &value, &exists, err);
	if (status == CKPTFMT_OK && exists)
		status = is_slice(&test, (cf_bytes_view){name, name_size}, &slice, err);
	free_key_test(&test);
	if (status != CKPTFMT_OK) {
		cf_error_path(err, reader->prefix.index_path);
		return status;
	}
	*found = exists && !slice;
	return CKPTFMT_OK;
}
