/* SPDX-License-Identifier: Apache-2.0 */
#include "write/catalog.h"

#include "base/memory.h"
#include "table/keys.h"
#include "slices/box.h"
#include "slices/key.h"
#include "base/kept.h"
#include "storage/os.h"
#include "base/pages.h"

#include <string.h>

enum {
	FIRST_ROWS = 16,
	FIRST_BUCKETS = 64,
	LOOK_AHEAD = 8,                     /* rows */
	CACHE_LINE = 64,
	MAPPED_FROM = 2 * CF_PAGES_UNIT     /* bytes of rows; so many small pages cost more than all else here */
};

ckptfmt_status cf_catalog_open(cf_catalog *catalog, ckptfmt_error *err)
{
	memset(catalog, 0, sizeof *catalog);
	return cf_os_random(&catalog->hash_key, sizeof catalog->hash_key, err);
}

static void release_rows(cf_catalog *catalog)
{
	if (catalog->rows_mapped)
		cf_kept_give(catalog->rows.data, catalog->rows.capacity);
	else
		cf_release(catalog->rows.data);
}

void cf_catalog_free(cf_catalog *catalog)
{
	release_rows(catalog);
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

/* Room for so many more. */
static ckptfmt_status grow_rows(cf_catalog *catalog, uint64_t count, ckptfmt_error *err)
{
	cf_buffer *rows = &catalog->rows;
	uint64_t size, wanted;
	uint8_t *data;
	if (!cf_mul_u64(count, sizeof(cf_catalog_row), &size) || !cf_add_u64(rows->size, size, &wanted) ||
		wanted > INT64_MAX / 2)
		return cf_fail_memory(err);
	if (wanted <= rows->capacity)
		return CKPTFMT_OK;
	wanted = cf_max_u64(cf_max_u64(wanted, 2 * rows->capacity), FIRST_ROWS * sizeof(cf_catalog_row));
	if (wanted >= MAPPED_FROM) {
		wanted += CF_PAGES_UNIT - wanted % CF_PAGES_UNIT;
		CF_TRY(cf_kept_take(wanted, &data, err));
		if (rows->size != 0)
			memcpy(data, rows->data, (size_t)rows->size);
		release_rows(catalog);
		catalog->rows_mapped = true;
	} else {
		data = cf_reallocate(rows->data, wanted);
		if (data == NULL)
			return cf_fail_memory(err);
	}
	rows->data = data;
	rows->capacity = wanted;
	return CKPTFMT_OK;
}

/* A bucket: so many low bits are the row and one, the others those of the hash. Two keys whose bits are the same are
 * compared, and hardly ever any others. */
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
		if (row->hash == hash && row->key_size == key_size &&
			memcmp(key_of(catalog, row), key, (size_t)key_size) == 0)
			return bucket;
	}
}

static void refill_buckets(cf_catalog *catalog)
{
	uint64_t mask = catalog->bucket_count - 1;
	memset(catalog->buckets, 0, (size_t)catalog->bucket_count * sizeof *catalog->buckets);
	for (uint64_t i = 0; i < cf_catalog_count(catalog); i++) {
		uint64_t hash = cf_catalog_row_at(catalog, i)->hash, at = hash & mask;
		while (catalog->buckets[at] != 0)
			at = (at + 1) & mask;
		catalog->buckets[at] = bucket_of(hash, i);
	}
}

/* Buckets of which at most half are ever full, for so many rows at least. */
static ckptfmt_status make_buckets(cf_catalog *catalog, uint64_t rows, ckptfmt_error *err)
{
	uint64_t count = cf_max_u64(catalog->bucket_count, FIRST_BUCKETS);
	uint64_t *buckets;
	while (count < 2 * rows)
		count *= 2;
	if (count == catalog->bucket_count)
		return CKPTFMT_OK;
	buckets = cf_allocate_zero(count, sizeof *buckets);
	if (buckets == NULL)
		return cf_fail_memory(err);
	cf_release(catalog->buckets);
	catalog->buckets = buckets;
	catalog->bucket_count = count;
	refill_buckets(catalog);
	return CKPTFMT_OK;
}

/* The first buckets: until now each key was above the one before, but for a late one. */
static ckptfmt_status begin_buckets(cf_catalog *catalog, ckptfmt_error *err)
{
	for (uint64_t i = 0; i < cf_catalog_count(catalog); i++) {
		cf_catalog_row *row = cf_catalog_row_at(catalog, i);
		row->hash = cf_hash(&catalog->hash_key, key_of(catalog, row), row->key_size);
	}
	CF_TRY(make_buckets(catalog, catalog->rows.capacity / sizeof(cf_catalog_row) + 1, err));
	catalog->has_late = false;
	return CKPTFMT_OK;
}

static bool is_above_all(const cf_catalog *catalog, const uint8_t *key, uint64_t key_size)
{
	const cf_catalog_row *last;
	if (cf_catalog_count(catalog) == 0)
		return true;
	last = cf_catalog_row_at(catalog, cf_catalog_count(catalog) - 1);
	return cf_key_compare(key_of(catalog, last), last->key_size, key, key_size) < 0;
}

/* The first row whose key is not below this one. REQUIRES: all ascend. */
static uint64_t find_place(const cf_catalog *catalog, const uint8_t *key, uint64_t key_size)
{
	uint64_t first = 0, last = cf_catalog_count(catalog);
	while (first < last) {
		uint64_t middle = first + (last - first) / 2;
		const cf_catalog_row *row = cf_catalog_row_at(catalog, middle);
		if (cf_key_compare(key_of(catalog, row), row->key_size, key, key_size) < 0)
			first = middle + 1;
		else
			last = middle;
	}
	return first;
}

/* Finds the key's row, or makes one whose key is the last key_size bytes of `keys` and the rest zero. */
static ckptfmt_status find_or_make(cf_catalog *catalog, uint64_t key_size, uint64_t *row, bool *made,
	ckptfmt_error *err)
{
	uint64_t key_offset = catalog->keys.size - key_size, hash = 0, *bucket = NULL;
	const uint8_t *key = catalog->keys.data + key_offset;
	cf_catalog_row *fresh;
	bool late = false;
	*row = cf_catalog_count(catalog);
	*made = false;
	if (catalog->buckets == NULL && catalog->has_late) {
		CF_TRY(begin_buckets(catalog, err));
	} else if (catalog->buckets == NULL && !is_above_all(catalog, key, key_size)) {
		uint64_t place = find_place(catalog, key, key_size);
		const cf_catalog_row *there = cf_catalog_row_at(catalog, place);
		if (cf_key_compare(key_of(catalog, there), there->key_size, key, key_size) == 0) {
			catalog->keys.size = key_offset;
			*row = place;
			return CKPTFMT_OK;
		}
		late = true;
		catalog->late_place = place;
	}
	if (catalog->buckets != NULL) {
		CF_TRY(make_buckets(catalog, *row + 1, err));
		hash = cf_hash(&catalog->hash_key, key, key_size);
		bucket = find_bucket(catalog, hash, key, key_size);
		if (*bucket != 0) {
			catalog->keys.size = key_offset;
			*row = (*bucket & ROW_MASK) - 1;
			return CKPTFMT_OK;
		}
	}
	*made = true;
	CF_TRY(grow_rows(catalog, 1, err));
	catalog->has_late = late;
	fresh = cf_catalog_row_at(catalog, *row);
	catalog->rows.size += sizeof *fresh;
	memset(fresh, 0, sizeof *fresh);
	fresh->hash = hash;
	fresh->key_offset = key_offset;
	fresh->key_size = key_size;
	fresh->first_slice = CF_NO_SLICE;
	fresh->last_slice = CF_NO_SLICE;
	if (bucket != NULL)
		*bucket = bucket_of(hash, *row);
	return CKPTFMT_OK;
}

ckptfmt_status cf_catalog_reserve(cf_catalog *catalog, uint64_t rows, uint64_t key_bytes, ckptfmt_error *err)
{
	CF_TRY(grow_rows(catalog, rows, err));
	if (!cf_buffer_reserve(&catalog->keys, key_bytes))
		return cf_fail_memory(err);
	return catalog->buckets == NULL ? CKPTFMT_OK : make_buckets(catalog, cf_catalog_count(catalog) + rows, err);
}

void cf_catalog_expect(const cf_catalog *catalog, const uint8_t *key, uint64_t key_size)
{
	if (catalog->buckets != NULL)
		__builtin_prefetch(&catalog->buckets[cf_hash(&catalog->hash_key, key, key_size) &
			(catalog->bucket_count - 1)], 1);
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
	return (const int64_t *)(const void *)catalog->dims.data + row->dims_first;
}

static ckptfmt_status add_whole(cf_catalog *catalog, const ckptfmt_source *source, uint64_t *row, ckptfmt_error *err)
{
	bool made;
	cf_put_bytes(&catalog->keys, source->name, source->name_size);
	CF_TRY(cf_buffer_status(&catalog->keys, err));
	CF_TRY(find_or_make(catalog, source->name_size, row, &made, err));
	if (!made)
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
		((cf_catalog_slice *)(void *)catalog->slices.data)[tensor->last_slice].next = number;
	tensor->last_slice = number;
	return CKPTFMT_OK;
}

static ckptfmt_status add_to_tensor(cf_catalog *catalog, const ckptfmt_source *source, ckptfmt_error *err)
{
	cf_catalog_row *tensor;
	uint64_t row;
	bool made;
	cf_put_bytes(&catalog->keys, source->name, source->name_size);
	CF_TRY(cf_buffer_status(&catalog->keys, err));
	CF_TRY(find_or_make(catalog, source->name_size, &row, &made, err));
	tensor = cf_catalog_row_at(catalog, row);
	if (made) {
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
	bool made;
	if (source->slice == NULL)
		return add_whole(catalog, source, row, err);
	CF_TRY(add_to_tensor(catalog, source, err));
	keys_before = catalog->keys.size;
	cf_slice_key_encode(&catalog->keys, source->name, source->name_size, source->rank, source->slice + source->rank,
		source->slice + 2 * (ptrdiff_t)source->rank);
	CF_TRY(cf_buffer_status(&catalog->keys, err));
	CF_TRY(find_or_make(catalog, catalog->keys.size - keys_before, row, &made, err));
	if (!made)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the slice is added twice");
	return set_shape(catalog, cf_catalog_row_at(catalog, *row), source->dtype, source->rank, source->dims, err);
}

ckptfmt_status cf_catalog_add_entry(cf_catalog *catalog, cf_bytes_view name, const cf_entry *entry,
	const int64_t *dims, uint64_t *row, ckptfmt_error *err)
{
	cf_catalog_row *added;
	bool made;
	cf_put_bytes(&catalog->keys, name.data, name.size);
	CF_TRY(cf_buffer_status(&catalog->keys, err));
	CF_TRY(find_or_make(catalog, name.size, row, &made, err));
	if (!made)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the name is added twice");
	added = cf_catalog_row_at(catalog, *row);
	added->entry_offset = catalog->messages.size;
	added->entry_size = entry->bytes.size;
	catalog->compressed = catalog->compressed || (entry->feature_flags & CF_FEATURE_COMPRESSED) != 0;
	cf_put_bytes(&catalog->messages, entry->bytes.data, entry->bytes.size);
	CF_TRY(cf_buffer_status(&catalog->messages, err));
	return set_shape(catalog, added, entry->dtype, entry->rank, dims, err);
}

/* ---- checking -------------------------------------------------------------------------------------------- */

static ckptfmt_status check_disjoint(const cf_catalog *catalog, const cf_catalog_row *row, cf_buffer *extents,
	ckptfmt_error *err)
{
	const cf_catalog_slice *list = (const cf_catalog_slice *)(const void *)catalog->slices.data;
	const int64_t *dims = (const int64_t *)(const void *)catalog->dims.data;
	cf_boxes boxes = {dims_of(catalog, row), NULL, 0, row->rank};
	uint64_t rows[2] = {0, 0};
	ckptfmt_status status;
	cf_buffer_clear(extents);
	for (uint64_t i = row->first_slice; i != CF_NO_SLICE; i = list[i].next, boxes.count++)
		cf_put_bytes(extents, dims + list[i].extents_first, 2 * (uint64_t)row->rank * sizeof *dims);
	CF_TRY(cf_buffer_status(extents, err));
	boxes.extents = (const int64_t *)(const void *)extents->data;
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

/* ---- going back ------------------------------------------------------------------------------------------ */

cf_catalog_mark cf_catalog_here(const cf_catalog *catalog)
{
	return (cf_catalog_mark){catalog->rows.size, catalog->keys.size, catalog->dims.size, catalog->slices.size,
		catalog->messages.size, catalog->chunk_crcs.size};
}

void cf_catalog_rollback(cf_catalog *catalog, const cf_catalog_mark *mark)
{
	uint64_t slices_kept = mark->slices / sizeof(cf_catalog_slice);
	cf_catalog_slice *slices = (cf_catalog_slice *)(void *)catalog->slices.data;
	if (mark->rows < catalog->rows.size)
		catalog->has_late = false;
	catalog->rows.size = mark->rows;
	catalog->keys.size = mark->keys;
	catalog->dims.size = mark->dims;
	catalog->slices.size = mark->slices;
	catalog->messages.size = mark->messages;
	catalog->chunk_crcs.size = mark->chunk_crcs;
	for (uint64_t i = 0; i < cf_catalog_count(catalog); i++) {
		cf_catalog_row *row = cf_catalog_row_at(catalog, i);
		if (row->last_slice == CF_NO_SLICE || row->last_slice < slices_kept)
			continue;
		/* The list grew only at its end, so its beginning is what was there before. */
		row->last_slice = row->first_slice;
		while (slices[row->last_slice].next < slices_kept)
			row->last_slice = slices[row->last_slice].next;
		slices[row->last_slice].next = CF_NO_SLICE;
	}
	if (catalog->buckets != NULL)
		refill_buckets(catalog);
}

/* ---- writing --------------------------------------------------------------------------------------------- */

/* *out is NULL where the rows are in order already, but for a late one. */
static ckptfmt_status sort_rows(const cf_catalog *catalog, cf_sort_key **out, ckptfmt_error *err)
{
	uint64_t count = cf_catalog_count(catalog);
	cf_sort_key *keys;
	*out = NULL;
	if (catalog->buckets == NULL)
		return CKPTFMT_OK;
	keys = cf_allocate(count * sizeof *keys);
	if (keys == NULL)
		return cf_fail_memory(err);
	for (uint64_t row = 0; row < count; row++) {
		const cf_catalog_row *r = cf_catalog_row_at(catalog, row);
		keys[row] = (cf_sort_key){key_of(catalog, r), r->key_size, row};
	}
	cf_sort_keys(keys, count);
	*out = keys;
	return CKPTFMT_OK;
}

/* The row of the i-th key in order. */
static inline uint64_t row_of_rank(const cf_catalog *catalog, const cf_sort_key *keys, uint64_t i)
{
	if (keys != NULL)
		return keys[i].row;
	if (!catalog->has_late || i < catalog->late_place)
		return i;
	return i == catalog->late_place ? cf_catalog_count(catalog) - 1 : i - 1;
}

/* Rows that are met in no order are not in the cache, nor are their keys. */
static void expect_row(const cf_catalog *catalog, const cf_sort_key *key)
{
	const uint8_t *row = (const uint8_t *)cf_catalog_row_at(catalog, key->row);
	for (uint64_t at = 0; at < sizeof(cf_catalog_row); at += CACHE_LINE)
		__builtin_prefetch(row + at);
	__builtin_prefetch(key->key);
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
	return cf_entry_reencode(out, &entry, dims, row->shard, none, err);
}

static void encode_row(const cf_catalog *catalog, const cf_catalog_row *row, uint32_t chunk_size, cf_buffer *slices,
	cf_buffer *out)
{
	const cf_catalog_slice *list = (const cf_catalog_slice *)(const void *)catalog->slices.data;
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
		fields.chunk_crcs = (const uint32_t *)(const void *)catalog->chunk_crcs.data + row->chunks_first;
		fields.chunk_count = row->chunk_count;
	}
	if (row->compressed) {
		fields.compressed = true;
		fields.raw_size = row->raw_size;
		fields.raw_crc32c = row->raw_crc32c;
		fields.chunk_sizes = (const uint64_t *)(const void *)catalog->chunk_sizes.data + row->sizes_first;
	}
	cf_buffer_clear(out);
	cf_entry_encode(out, &fields);
}

enum {
	BLOCK_SIZE_MAX = 64 << 20,
	ENTRY_SIZE_MAX = BLOCK_SIZE_MAX - 4096,     /* the rest of its block */
	WHOLE_KEY_MAX = 1 << 16
};

/* What nearly all rows are: nothing but a value stored whole, under no name that the limits could mean. */
static inline bool is_whole(const cf_catalog_row *row)
{
	return row->first_slice == CF_NO_SLICE && row->entry_size == 0 && row->chunk_count == 0 && !row->compressed &&
		row->rank <= CF_WHOLE_RANK_MAX && row->key_size <= WHOLE_KEY_MAX;
}

/* `common` is what the key has in common with the one before. */
static inline ckptfmt_status write_whole(const cf_catalog *catalog, const cf_catalog_row *row, uint64_t common,
	cf_table_writer *table, ckptfmt_error *err)
{
	uint8_t value[CF_WHOLE_SIZE_MAX];
	uint64_t size = cf_entry_store_whole(value, row->dtype, row->rank, dims_of(catalog, row), row->shard,
		(int64_t)row->offset, (int64_t)row->size, ckptfmt_crc32c_mask(row->crc32c));
	return cf_table_writer_add_after(table, key_of(catalog, row), row->key_size, common, value, size, err);
}

static ckptfmt_status write_any(const cf_catalog *catalog, const cf_catalog_row *row, uint64_t common,
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
		const cf_catalog_row *row = cf_catalog_row_at(catalog, row_of_rank(catalog, keys, i));
		const uint8_t *key = key_of(catalog, row);
		uint64_t common = cf_key_common(before, before_size, key, row->key_size);
		if (keys != NULL && i + LOOK_AHEAD < count)
			expect_row(catalog, &keys[i + LOOK_AHEAD]);
		CF_TRY(CF_LIKELY(is_whole(row)) ? write_whole(catalog, row, common, table, err)
			: write_any(catalog, row, common, chunk_size, table, slices, value, err));
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
