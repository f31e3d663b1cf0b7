/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors by name: each is looked up in the index, which a checkpoint of a million names is then not listed for. */
#include "base/memory.h"
#include "read/reader.h"
#include "slices/key.h"
#include "table/keys.h"

/* Whether the listing has a tensor of this name. */
static bool is_listed(const ckptfmt_selection *listing, cf_bytes_view name)
{
	cf_sort_key wanted = {name.data, name.size, 0};
	uint64_t low = 0, high = cf_selection_count(listing);
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		const ckptfmt_row *row = cf_selection_row(listing, middle);
		cf_sort_key key = {cf_selection_name(listing, row), row->name_size, 0};
		int order = cf_compare_keys(&key, &wanted);
		if (order == 0)
			return true;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return false;
}

/* KEY-6, SLC-10: whether an entry under this key is a tensor's and not a slice's. Only a full listing can tell that of
 * a key that looks like a slice's; the reader keeps it, so that many such names take no longer than one. */
static ckptfmt_status is_tensor(ckptfmt_reader *reader, cf_bytes_view name, bool *tensor, ckptfmt_error *err)
{
	ckptfmt_selection *listing, *first = NULL;
	*tensor = true;
	if (!cf_slice_key_looks_like(name.data, name.size))
		return CKPTFMT_OK;
	listing = atomic_load(&reader->listing);
	if (listing == NULL) {
		CF_TRY(ckptfmt_reader_list_all(reader, &listing, err));
		if (!atomic_compare_exchange_strong(&reader->listing, &first, listing)) {
			ckptfmt_selection_free(listing); /* another thread was first */
			listing = first;
		}
	}
	*tensor = is_listed(listing, name);
	return CKPTFMT_OK;
}

/* The entry of a tensor of this name. */
static ckptfmt_status find_tensor(ckptfmt_reader *reader, cf_bytes_view name, cf_table_value *value, bool *found,
	ckptfmt_error *err)
{
	*found = false;
	if (name.size == 0)
		return CKPTFMT_OK;
	CF_TRY(cf_table_get(reader->table, name.data, name.size, value, found, err));
	return *found ? is_tensor(reader, name, found, err) : CKPTFMT_OK;
}

static ckptfmt_status select_one(ckptfmt_reader *reader, ckptfmt_selection *selection, cf_bytes_view name,
	cf_buffer *key, ckptfmt_error *err)
{
	cf_table_value value;
	bool found;
	uint64_t key_bytes = 0;
	CF_TRY(find_tensor(reader, name, &value, &found, err));
	if (!found) {
		ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_TENSOR_NOT_FOUND, CF_NO_OFFSET, "not found in checkpoint");
		cf_error_tensor(err, name.data, name.size);
		return status;
	}
	CF_TRY(cf_selection_add(selection, reader, name, (cf_bytes_view){value.data, value.size}, value.offset, err));
	CF_TRY(cf_buffer_status(&selection->dims, err));
	CF_TRY(cf_buffer_status(&selection->names, err));
	CF_TRY(cf_buffer_status(&selection->rows, err));
	return cf_selection_fill_by_key(selection, reader, cf_selection_count(selection) - 1, &key_bytes, key, err);
}

ckptfmt_status ckptfmt_reader_select(ckptfmt_reader *reader, const uint8_t *names, const uint64_t *name_sizes,
	uint64_t count, ckptfmt_selection **out, ckptfmt_error *err)
{
	cf_buffer key = CF_BUFFER_EMPTY;
	ckptfmt_status status = CKPTFMT_OK;
	ckptfmt_selection *selection;
	*out = NULL;
	selection = cf_selection_new(reader);
	if (selection == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < count && status == CKPTFMT_OK; i++) {
		status = select_one(reader, selection, (cf_bytes_view){names, name_sizes[i]}, &key, err);
		names += name_sizes[i];
	}
	if (status == CKPTFMT_OK)
		status = cf_selection_finish(selection, err);
	cf_buffer_free(&key);
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
	bool exists;
	ckptfmt_status status = find_tensor(reader, (cf_bytes_view){name, name_size}, &value, &exists, err);
	*found = status == CKPTFMT_OK && exists;
	if (status != CKPTFMT_OK)
		cf_error_path(err, reader->prefix.index_path);
	return status;
}
