/* SPDX-License-Identifier: Apache-2.0 */
#include "write/catalog.h"

#include "base/memory.h"
#include "base/pages.h"
#include "slices/box.h"
#include "slices/key.h"
#include "storage/os.h"
#include "table/keys.h"

#include <string.h>

enum { FIRST_BUCKETS = 64 };

ckptfmt_status cf_catalog_open(cf_catalog *catalog, ckptfmt_error *err)
{
	memset(catalog, 0, sizeof *catalog);
	return cf_os_random(&catalog->hash_key, sizeof catalog->hash_key, err);
}

void cf_catalog_free(cf_catalog *catalog)
{
	cf_buffer_free(&catalog->rows);
	cf_buffer_free(&catalog->keys);
	cf_buffer_free(&catalog->dims);
	cf_buffer_free(&catalog->slices);
	cf_buffer_free(&catalog->messages);
	cf_buffer_free(&catalog->chunk_crcs);
	cf_buffer_free(&catalog->chunk_sizes);
	cf_release(catalog->buckets);
	memset(catalog, 0, sizeof *catalog);
}

static const uint8_t *key_of(const cf_catalog *catalog, const cf_catalog_row *row)
{
	return catalog->keys.data + row->key_offset;
}

/* ---- keys ------------------------------------------------------------------------------------------------ */

/* Most checkpoints come with their names in key order. Then each key is only compared with the one before; the hash set
 * is made for all rows when the first key comes out of order.
 * A bucket holds a row number plus 1 in its low bits and the remaining bits of the key's hash, so that nearly all other
 * keys are told apart without looking at the row. */
enum { ROW_BITS = 40 };
#define ROW_MASK (((uint64_t)1 << ROW_BITS) - 1)

static uint64_t bucket_of(uint64_t hash, uint64_t row)
{
	return (hash & ~ROW_MASK) | (row + 1);
}

/* The bucket that holds the key, or the empty one where it belongs. REQUIRES: there are empty ones. */
static uint64_t *find_bucket(const cf_catalog *catalog, uint64_t hash, const uint8_t *key, uint64_t key_size)
{
	uint64_t mask = catalog->bucket_count - 1;
	for (uint64_t at = hash & mask;; at = (at + 1) & mask) {
		uint64_t *bucket = &catalog->buckets[at];
		const cf_catalog_row *row;
		if (*bucket == 0)
			return bucket;
		if (((*bucket ^ hash) & ~ROW_MASK) != 0)
			continue;
		row = cf_catalog_row_at(catalog, (*bucket & ROW_MASK) - 1);
		if (row->key_size == key_size && memcmp(key_of(catalog, row), key, (size_t)key_size) == 0)
			return bucket;
	}
}

/* Makes the hash set so large that at most half of its buckets are in use with `rows`, and puts all rows into it. */
static ckptfmt_status grow_buckets(cf_catalog *catalog, uint64_t rows, ckptfmt_error *err)
{
	uint64_t count = cf_max_u64(catalog->bucket_count, FIRST_BUCKETS), mask;
	uint64_t *buckets;
	while (count < 2 * rows)
		count *= 2;
	buckets = cf_allocate_zero(count, sizeof *buckets);
	if (buckets == NULL)
		return cf_fail_memory(err);
	cf_release(catalog->buckets);
	catalog->buckets = buckets;
	catalog->bucket_count = count;
	mask = count - 1;
	for (uint64_t i = 0; i < cf_catalog_count(catalog); i++) {
		const cf_catalog_row *row = cf_catalog_row_at(catalog, i);
		uint64_t hash = cf_hash(&catalog->hash_key, key_of(catalog, row), row->key_size), at = hash & mask;
		while (buckets[at] != 0)
			at = (at + 1) & mask;
		buckets[at] = bucket_of(hash, i);
	}
	return CKPTFMT_OK;
}

/* Whether a key is above those of all rows, which are in order. */
static bool is_next(const cf_catalog *catalog, const uint8_t *key, uint64_t key_size)
{
	uint64_t count = cf_catalog_count(catalog);
	const cf_catalog_row *last;
	if (catalog->bucket_count != 0 || count == 0)
		return catalog->bucket_count == 0;
	last = cf_catalog_row_at(catalog, count - 1);
	return cf_key_compare(key_of(catalog, last), last->key_size, key, key_size) < 0;
}

/* The row that has the key. *found false: there is none, and the number of the next row takes it. */
static ckptfmt_status find_row(cf_catalog *catalog, const uint8_t *key, uint64_t key_size, uint64_t *row, bool *found,
	ckptfmt_error *err)
{
	uint64_t hash, *bucket;
	*row = cf_catalog_count(catalog);
	*found = false;
	if (is_next(catalog, key, key_size))
		return CKPTFMT_OK;
	if (catalog->bucket_count < 2 * (*row + 1))
		CF_TRY(grow_buckets(catalog, cf_max_u64(*row + 1, catalog->rows.capacity / sizeof(cf_catalog_row)), err));
	hash = cf_hash(&catalog->hash_key, key, key_size);
	bucket = find_bucket(catalog, hash, key, key_size);
	*found = *bucket != 0;
	if (*found)
		*row = (*bucket & ROW_MASK) - 1;
	else
		*bucket = bucket_of(hash, *row);
	return CKPTFMT_OK;
}

/* Finds the row of the key, which is the last key_size bytes of `keys`, or adds one with all other fields zero. */
static ckptfmt_status find_or_add(cf_catalog *catalog, uint64_t key_size, uint64_t *row, bool *added,
	ckptfmt_error *err)
{
	uint64_t key_offset = catalog->keys.size - key_size;
	cf_catalog_row *fresh;
	bool found;
	*added = false;
	CF_TRY(find_row(catalog, catalog->keys.data + key_offset, key_size, row, &found, err));
	if (found) {
		catalog->keys.size = key_offset;
		return CKPTFMT_OK;
	}
	fresh = cf_buffer_extend(&catalog->rows, sizeof *fresh);
	if (fresh == NULL)
		return cf_fail_memory(err);
	memset(fresh, 0, sizeof *fresh);
	fresh->key_offset = key_offset;
	fresh->key_size = key_size;
	fresh->first_slice = CF_NO_SLICE;
	fresh->last_slice = CF_NO_SLICE;
	*added = true;
	return CKPTFMT_OK;
}

ckptfmt_status cf_catalog_reserve(cf_catalog *catalog, uint64_t rows, uint64_t key_bytes, ckptfmt_error *err)
{
	uint64_t row_bytes;
	if (!cf_mul_u64(rows, sizeof(cf_catalog_row), &row_bytes) || !cf_buffer_reserve(&catalog->rows, row_bytes) ||
		!cf_buffer_reserve(&catalog->keys, key_bytes))
		return cf_fail_memory(err);
	/* In small pages, the faults of 100,000 rows take as long as writing them into the index. */
	cf_pages_want_large(catalog->rows.data, catalog->rows.capacity);
	return CKPTFMT_OK;
}

/* ---- adding ---------------------------------------------------------------------------------------------- */

static ckptfmt_status set_shape(cf_catalog *catalog, cf_catalog_row *row, int32_t dtype, int32_t rank,
	const int64_t *dims, ckptfmt_error *err)
{
	row->dtype = dtype;
	row->rank = rank;
	row->dims_first = catalog->dims.size / sizeof(int64_t);
	cf_put_bytes(&catalog->dims, dims, (uint64_t)rank * sizeof(int64_t));
	return cf_buffer_status(&catalog->dims, err);
}

static const int64_t *dims_of(const cf_catalog *catalog, const cf_catalog_row *row)
{
	return cf_buffer_int64s(&catalog->dims, row->dims_first);
}

static ckptfmt_status add_whole(cf_catalog *catalog, const ckptfmt_source *source, uint64_t *row, ckptfmt_error *err)
{
	bool added;
	cf_put_bytes(&catalog->keys, source->name, source->name_size);
	CF_TRY(cf_buffer_status(&catalog->keys, err));
	CF_TRY(find_or_add(catalog, source->name_size, row, &added, err));
	if (!added)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the name is added twice");
	return set_shape(catalog, cf_catalog_row_at(catalog, *row), source->dtype, source->rank, source->dims, err);
}

static ckptfmt_status append_slice(cf_catalog *catalog, cf_catalog_row *tensor, const ckptfmt_source *source,
	ckptfmt_error *err)
{
	const int64_t *starts = source->slice + source->rank, *lengths = starts + source->rank;
	cf_catalog_slice slice = {CF_NO_SLICE, catalog->messages.size, 0, catalog->dims.size / sizeof(int64_t)};
	uint64_t number = catalog->slices.size / sizeof slice;
	cf_put_slice(&catalog->messages, source->rank, starts, lengths);
	CF_TRY(cf_buffer_status(&catalog->messages, err));
	slice.message_size = catalog->messages.size - slice.message_offset;
	cf_put_bytes(&catalog->dims, starts, 2 * (uint64_t)source->rank * sizeof(int64_t));
	CF_TRY(cf_buffer_status(&catalog->dims, err));
	cf_put_bytes(&catalog->slices, &slice, sizeof slice);
	CF_TRY(cf_buffer_status(&catalog->slices, err));
	if (tensor->first_slice == CF_NO_SLICE)
		tensor->first_slice = number;
	else
		((cf_catalog_slice *)cf_buffer_items(&catalog->slices))[tensor->last_slice].next = number;
	tensor->last_slice = number;
	return CKPTFMT_OK;
}

static ckptfmt_status add_to_tensor(cf_catalog *catalog, const ckptfmt_source *source, ckptfmt_error *err)
{
	cf_catalog_row *tensor;
	uint64_t row;
	bool added;
	cf_put_bytes(&catalog->keys, source->name, source->name_size);
	CF_TRY(cf_buffer_status(&catalog->keys, err));
	CF_TRY(find_or_add(catalog, source->name_size, &row, &added, err));
	tensor = cf_catalog_row_at(catalog, row);
	if (added) {
		CF_TRY(set_shape(catalog, tensor, source->dtype, source->rank, source->slice, err));
	} else {
		if (tensor->first_slice == CF_NO_SLICE)
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
				"a slice is added to a tensor that was added whole");
		if (tensor->dtype != source->dtype || tensor->rank != source->rank ||
			memcmp(dims_of(catalog, tensor), source->slice, (size_t)source->rank * sizeof(int64_t)) != 0)
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
				"slices of one tensor disagree on its dtype or shape");
	}
	return append_slice(catalog, tensor, source, err);
}

ckptfmt_status cf_catalog_add(cf_catalog *catalog, const ckptfmt_source *source, uint64_t *row, ckptfmt_error *err)
{
	uint64_t keys_before;
	bool added;
	if (source->slice == NULL)
		return add_whole(catalog, source, row, err);
	CF_TRY(add_to_tensor(catalog, source, err));
	keys_before = catalog->keys.size;
	cf_slice_key_encode(&catalog->keys, source->name, source->name_size, source->rank, source->slice + source->rank,
		source->slice + 2 * (ptrdiff_t)source->rank);
	CF_TRY(cf_buffer_status(&catalog->keys, err));
	CF_TRY(find_or_add(catalog, catalog->keys.size - keys_before, row, &added, err));
	if (!added)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the slice is added twice");
	return set_shape(catalog, cf_catalog_row_at(catalog, *row), source->dtype, source->rank, source->dims, err);
}

ckptfmt_status cf_catalog_add_entry(cf_catalog *catalog, const ckptfmt_source *source, const cf_entry *entry,
	uint64_t *row, ckptfmt_error *err)
{
	cf_catalog_row *fresh;
	CF_TRY(cf_catalog_add(catalog, source, row, err));
	fresh = cf_catalog_row_at(catalog, *row);
	fresh->entry_offset = catalog->messages.size;
	fresh->entry_size = entry->bytes.size;
	catalog->compressed = catalog->compressed || (entry->feature_flags & CF_FEATURE_COMPRESSED) != 0;
	cf_put_bytes(&catalog->messages, entry->bytes.data, entry->bytes.size);
	return cf_buffer_status(&catalog->messages, err);
}

/* ---- checking -------------------------------------------------------------------------------------------- */

static ckptfmt_status check_disjoint(const cf_catalog *catalog, const cf_catalog_row *row, cf_buffer *extents,
	ckptfmt_error *err)
{
	const cf_catalog_slice *list = (const cf_catalog_slice *)cf_buffer_items(&catalog->slices);
	const int64_t *dims = (const int64_t *)cf_buffer_items(&catalog->dims);
	cf_boxes boxes = {dims_of(catalog, row), NULL, 0, row->rank};
	uint64_t rows[2] = {0, 0};
	ckptfmt_status status;
	cf_buffer_clear(extents);
	for (uint64_t i = row->first_slice; i != CF_NO_SLICE; i = list[i].next, boxes.count++)
		cf_put_bytes(extents, dims + list[i].extents_first, 2 * (uint64_t)row->rank * sizeof *dims);
	CF_TRY(cf_buffer_status(extents, err));
	boxes.extents = (const int64_t *)cf_buffer_items(extents);
	status = cf_boxes_check_disjoint(&boxes, rows, err);
	if (status == CKPTFMT_CORRUPT)
		status = cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "slices %llu and %llu of the tensor overlap",
			(unsigned long long)rows[0], (unsigned long long)rows[1]);
	if (status != CKPTFMT_OK)
		cf_error_tensor(err, key_of(catalog, row), row->key_size);
	return status;
}

ckptfmt_status cf_catalog_check_slices(const cf_catalog *catalog, ckptfmt_error *err)
{
	cf_buffer extents = CF_BUFFER_EMPTY;
	ckptfmt_status status = CKPTFMT_OK;
	if (catalog->slices.size == 0)
		return CKPTFMT_OK;
	for (uint64_t i = 0; i < cf_catalog_count(catalog) && status == CKPTFMT_OK; i++)
		if (cf_catalog_row_at(catalog, i)->first_slice != CF_NO_SLICE)
			status = check_disjoint(catalog, cf_catalog_row_at(catalog, i), &extents, err);
	cf_buffer_free(&extents);
	return status;
}

/* ---- writing --------------------------------------------------------------------------------------------- */

/* The keys of all rows in the order of the table, for the caller to release. */
static ckptfmt_status sort_rows(const cf_catalog *catalog, cf_sort_key **out, ckptfmt_error *err)
{
	uint64_t count = cf_catalog_count(catalog);
	cf_sort_key *keys = cf_allocate(count * sizeof *keys);
	*out = keys;
	if (keys == NULL)
		return cf_fail_memory(err);
	for (uint64_t row = 0; row < count; row++) {
		const cf_catalog_row *r = cf_catalog_row_at(catalog, row);
		keys[row] = (cf_sort_key){key_of(catalog, r), r->key_size, row};
	}
	cf_sort_keys(keys, count);
	return CKPTFMT_OK;
}

/* As a merge does it (MRG-7). */
static ckptfmt_status repeat_entry(const cf_catalog *catalog, const cf_catalog_row *row, cf_buffer *out,
	ckptfmt_error *err)
{
	const cf_bytes_view bytes = {catalog->messages.data + row->entry_offset, row->entry_size}, none = {NULL, 0};
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	cf_buffer_clear(out);
	CF_TRY(cf_entry_decode(bytes, 0, 0, dims, &entry, err));
	return cf_entry_reencode(out, &entry, dims, row->shard, none, NULL, err);
}

static void encode_row(const cf_catalog *catalog, const cf_catalog_row *row, uint32_t chunk_size, cf_buffer *slices,
	cf_buffer *out)
{
	const cf_catalog_slice *list = (const cf_catalog_slice *)cf_buffer_items(&catalog->slices);
	cf_entry_fields fields;
	memset(&fields, 0, sizeof fields);
	fields.dtype = row->dtype;
	fields.rank = row->rank;
	fields.dims = dims_of(catalog, row);
	if (row->first_slice == CF_NO_SLICE) {
		fields.shard = row->shard;
		fields.offset = row->offset;
		fields.size = row->size;
		fields.masked_crc = ckptfmt_crc32c_mask(row->crc32c);
	}
	cf_buffer_clear(slices);
	for (uint64_t i = row->first_slice; i != CF_NO_SLICE; i = list[i].next)
		cf_put_bytes(slices, catalog->messages.data + list[i].message_offset, list[i].message_size);
	fields.slices = (cf_bytes_view){slices->data, slices->size};
	if (row->chunk_count != 0) {
		fields.chunk_size = chunk_size;
		fields.chunk_crcs = (const uint32_t *)cf_buffer_items(&catalog->chunk_crcs) + row->chunks_first;
		fields.chunk_count = row->chunk_count;
	}
	if (row->compressed) {
		fields.compressed = true;
		fields.raw_size = row->raw_size;
		fields.raw_crc32c = row->raw_crc32c;
		fields.chunk_sizes = (const uint64_t *)cf_buffer_items(&catalog->chunk_sizes) + row->sizes_first;
	}
	cf_buffer_clear(out);
	cf_entry_encode(out, &fields);
}

enum {
	BLOCK_SIZE_MAX = 64 << 20,
	ENTRY_SIZE_MAX = BLOCK_SIZE_MAX - 4096      /* the rest of its block */
};

static ckptfmt_status write_row(const cf_catalog *catalog, const cf_catalog_row *row, uint64_t common,
	uint32_t chunk_size, cf_table_writer *table, cf_buffer *slices, cf_buffer *value, ckptfmt_error *err)
{
	const uint8_t *key = key_of(catalog, row);
	if (row->entry_size != 0)
		CF_TRY(repeat_entry(catalog, row, value, err));
	else
		encode_row(catalog, row, chunk_size, slices, value);
	CF_TRY(cf_buffer_status(slices, err));
	CF_TRY(cf_buffer_status(value, err));
	/* BLK-14, as readers have it by default. So many slices, or chunks, are better met now than on reading. */
	if (value->size > ENTRY_SIZE_MAX - cf_min_u64(row->key_size, ENTRY_SIZE_MAX)) {
		ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
			"BLK-14: the entry of a tensor takes %llu bytes, and readers refuse blocks above %d",
			(unsigned long long)value->size, BLOCK_SIZE_MAX);
		cf_error_tensor(err, key, row->key_size);
		return status;
	}
	return cf_table_writer_add_after(table, key, row->key_size, common, value->data, value->size, err);
}

/* After the header, whose key is empty. */
static ckptfmt_status write_sorted(const cf_catalog *catalog, const cf_sort_key *keys, uint32_t chunk_size,
	cf_table_writer *table, cf_buffer *slices, cf_buffer *value, ckptfmt_error *err)
{
	const uint8_t *before = NULL;
	uint64_t before_size = 0, count = cf_catalog_count(catalog);
	for (uint64_t i = 0; i < count; i++) {
		const cf_catalog_row *row = cf_catalog_row_at(catalog, keys[i].row);
		const uint8_t *key = key_of(catalog, row);
		uint64_t common = cf_key_common(before, before_size, key, row->key_size);
		CF_TRY(write_row(catalog, row, common, chunk_size, table, slices, value, err));
		before = key;
		before_size = row->key_size;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_catalog_write(const cf_catalog *catalog, int32_t num_shards, uint32_t chunk_size,
	cf_table_writer *table, ckptfmt_error *err)
{
	cf_buffer slices = CF_BUFFER_EMPTY, value = CF_BUFFER_EMPTY;
	cf_sort_key *keys;
	ckptfmt_status status;
	CF_TRY(sort_rows(catalog, &keys, err));
	cf_header_encode(&value, num_shards, 0, catalog->compressed ? CF_COMPRESSED_VERSION : 0);
	status = cf_buffer_status(&value, err);
	if (status == CKPTFMT_OK)
		status = cf_table_writer_add(table, (const uint8_t *)"", 0, value.data, value.size, err);
	if (status == CKPTFMT_OK)
		status = write_sorted(catalog, keys, chunk_size, table, &slices, &value, err);
	cf_buffer_free(&slices);
	cf_buffer_free(&value);
	cf_release(keys);
	return status;
}
