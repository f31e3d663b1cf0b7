/* SPDX-License-Identifier: Apache-2.0 */
/* One tensor at a time: what is asked for by name, tensor after tensor, should cost little more than its bytes. A plain
 * tensor needs no selection to be told, and is read as the only row of one on the stack. */
#include "bundle/reader.h"
#include "codec/slice_key.h"

#include <string.h>

enum { PLAIN_MAX = 64 << 20, DIMS_MAX = sizeof((ckptfmt_found *)NULL)->dims / sizeof(int64_t) };

/* Whether the bytes as they lie there are those of the tensor, but for their order. */
static bool is_plain(const cf_entry *entry, const ckptfmt_row *row)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(row->dtype);
	uint64_t size;
	return entry->slice_count == 0 && entry->feature_flags == 0 && entry->chunk_size == 0 &&
		entry->chunk_crcs.size == 0 && dtype != NULL && dtype->storage == CKPTFMT_STORAGE_FIXED &&
		cf_mul_u64((uint64_t)row->element_count, dtype->size, &size) && size == (uint64_t)entry->size &&
		size != 0 && size <= PLAIN_MAX;
}

/* *plain false: it is another tensor, or there is none. */
static ckptfmt_status find_plain(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size, ckptfmt_found *out,
	bool *plain, ckptfmt_error *err)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_table_value value;
	cf_entry entry;
	*plain = false;
	/* What looks like the key of a slice may be one, and is then no tensor. */
	if (name_size == 0 || cf_slice_key_looks_like(name, name_size))
		return CKPTFMT_OK;
	CF_TRY(cf_table_get(reader->table, name, name_size, &value, plain, err));
	if (!*plain)
		return CKPTFMT_OK;
	*plain = false;
	CF_TRY(cf_entry_decode((cf_bytes_view){value.data, value.size}, value.offset, reader->limits.slices_max, dims,
		&entry, err));
	if (entry.rank > DIMS_MAX)
		return CKPTFMT_OK;
	out->row = cf_row_of(&entry, dims);
	*plain = is_plain(&entry, &out->row);
	cf_stored_place(&entry, &out->row.stored);
	memcpy(out->dims, dims, (size_t)entry.rank * sizeof *dims);
	out->reader_id = reader->id;
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_find(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size, ckptfmt_found *out,
	ckptfmt_error *err)
{
	bool plain;
	memset(out, 0, sizeof *out);
	/* What goes wrong here goes wrong there, and is told with all that is known. */
	if (find_plain(reader, name, name_size, out, &plain, NULL) == CKPTFMT_OK && plain)
		return CKPTFMT_OK;
	memset(out, 0, sizeof *out);
	return ckptfmt_reader_select(reader, name, &name_size, 1, &out->selection, err);
}

ckptfmt_status ckptfmt_reader_read_found(ckptfmt_reader *reader, const ckptfmt_found *found, const int64_t *box,
	uint8_t *destination, uint64_t destination_size, int32_t verify, ckptfmt_error *err)
{
	ckptfmt_found copy = *found;
	ckptfmt_request request = {0, box, destination, destination_size, 0, 0};
	ckptfmt_selection one;
	if (found->selection != NULL)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the tensor is not plain");
	memset(&one, 0, sizeof one);
	one.reader_id = copy.reader_id;
	one.num_shards = reader->header.num_shards;
	one.big_endian = reader->header.endianness == 1;
	one.rows = (cf_buffer){(uint8_t *)&copy.row, sizeof copy.row, sizeof copy.row, false};
	one.dims = (cf_buffer){(uint8_t *)copy.dims, sizeof copy.dims, sizeof copy.dims, false};
	return ckptfmt_reader_read(reader, &one, &request, 1, verify, err);
}
