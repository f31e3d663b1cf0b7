/* SPDX-License-Identifier: Apache-2.0 */
/* One tensor at a time: what is asked for by name, tensor after tensor, should cost little more than its bytes. A plain
 * tensor needs no selection to be told, and is read as the only row of one on the stack. */
#include "read/reader.h"
#include "read/transfer.h"
#include "slices/key.h"

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

static ckptfmt_status find_plain(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size, ckptfmt_found *out,
	bool *plain)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_table_value value;
	cf_entry entry;
	*plain = false;
	/* What looks like the key of a slice may be one, and is then no tensor. */
	if (name_size == 0 || cf_slice_key_looks_like(name, name_size))
		return CKPTFMT_OK;
	CF_TRY(cf_table_get(reader->table, name, name_size, &value, plain, NULL));
	if (!*plain)
		return CKPTFMT_OK;
	*plain = false;
	CF_TRY(cf_entry_decode((cf_bytes_view){value.data, value.size}, value.offset, reader->limits.slices_max, dims,
		&entry, NULL));
	if (entry.rank > DIMS_MAX)
		return CKPTFMT_OK;
	out->row = cf_row_of(&entry, dims);
	*plain = is_plain(&entry, &out->row);
	cf_stored_place(&entry, &out->row.stored);
	for (int32_t d = 0; d < DIMS_MAX; d++)
		out->dims[d] = d < entry.rank ? dims[d] : 0;
	out->reader_id = reader->id;
	out->selection = NULL;
	return CKPTFMT_OK;
}

bool cf_reader_find_plain(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size, ckptfmt_found *out)
{
	bool plain;
	return find_plain(reader, name, name_size, out, &plain) == CKPTFMT_OK && plain;
}

ckptfmt_status ckptfmt_reader_find(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size, ckptfmt_found *out,
	ckptfmt_error *err)
{
	/* What goes wrong here goes wrong there, and is told with all that is known. */
	if (cf_reader_find_plain(reader, name, name_size, out))
		return CKPTFMT_OK;
	memset(out, 0, sizeof *out);
	return ckptfmt_reader_select(reader, name, &name_size, 1, &out->selection, err);
}

/* Reads and checks a small value straight into its place. False: that takes more, or fails. */
static bool read_whole(ckptfmt_reader *reader, const ckptfmt_stored *stored, uint8_t *destination, bool check)
{
	cf_shard_use use;
	uint64_t got = 0;
	if (stored->shard < 0 || stored->shard >= reader->header.num_shards ||
		cf_reader_shard(reader, stored->shard, &use, NULL) != CKPTFMT_OK)
		return false;
	if (!cf_range_fits(stored->offset, stored->size, use.size) ||
		cf_os_read_at(&use.file, "", destination, stored->size, stored->offset, &got, NULL) != CKPTFMT_OK)
		got = 0;
	cf_shards_done(&reader->shards, &use);
	return got == stored->size && (!check || ckptfmt_crc32c(0, destination, got) == stored->crc32c);
}

/* Whether it is worth trying. */
static bool is_usual(const ckptfmt_reader *reader, const ckptfmt_found *found, const int64_t *box, uint64_t size,
	int32_t verify)
{
	return box == NULL && found->reader_id == reader->id && size != 0 && size == found->row.stored.size &&
		size <= CF_WHOLE_CHECK_MAX && size <= reader->limits.tensor_bytes_max && !cf_reader_swaps(reader) &&
		(verify == CKPTFMT_VERIFY_AUTO || verify == CKPTFMT_VERIFY_FULL || verify == CKPTFMT_VERIFY_OFF);
}

ckptfmt_status ckptfmt_reader_read_found(ckptfmt_reader *reader, const ckptfmt_found *found, const int64_t *box,
	uint8_t *destination, uint64_t destination_size, int32_t verify, ckptfmt_error *err)
{
	ckptfmt_found copy;
	ckptfmt_request request = {0, box, destination, destination_size, 0, 0};
	ckptfmt_selection one;
	if (found->selection != NULL)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the tensor is not plain");
	if (is_usual(reader, found, box, destination_size, verify) &&
		read_whole(reader, &found->row.stored, destination, verify != CKPTFMT_VERIFY_OFF))
		return CKPTFMT_OK;
	copy = *found;
	memset(&one, 0, sizeof one);
	one.reader_id = copy.reader_id;
	one.num_shards = reader->header.num_shards;
	one.big_endian = reader->header.endianness == 1;
	one.rows = (cf_buffer){(uint8_t *)&copy.row, sizeof copy.row, sizeof copy.row, false};
	one.dims = (cf_buffer){(uint8_t *)copy.dims, sizeof copy.dims, sizeof copy.dims, false};
	return ckptfmt_reader_read(reader, &one, &request, 1, verify, err);
}
