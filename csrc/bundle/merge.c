/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Joins bundles by their indexes; tensor bytes stay where they are and their files get second names. All entries of all
 * inputs are read and checked, then the data files are linked under names that no index refers to, then the new index
 * is committed, and only then do inputs go. Killed before the inputs go, they are
 * whole and the merge can be run again; killed while they go, the result is whole and a second run must not be made.
 */
#include "base/memory.h"
#include "bundle/commit.h"
#include "bundle/sorted_keys.h"
#include "bundle/table_reader.h"
#include "bundle/table_writer.h"
#include "codec/box.h"
#include "codec/slice_key.h"

#include <stdio.h>
#include <string.h>

enum { SHARDS_MAX = 1 << 20 };  /* data files of one input */

static const char metadata_name[] = "_CKPTFMT_METADATA";
static const char placeholder_name[] = "_CKPTFMT_SHARD_";

typedef struct input {
	const char *name;           /* the prefix as given */
	cf_prefix prefix;
	cf_directory directory;
	cf_file index;
	cf_file_info info;
	cf_table *table;
	cf_header header;
	int32_t *new_shards;        /* by shard of the input; -1: not referenced */
	uint64_t *sizes;            /* bytes of that data file; UINT64_MAX: not looked at */
} input;

typedef struct merged_entry {
	uint64_t key_offset, key_size;      /* in `bytes` */
	uint64_t value_offset, value_size;
	uint64_t origin;
	uint32_t input;
	int32_t shard;                      /* new */
} merged_entry;

typedef struct merge {
	ckptfmt_merge_options options;
	ckptfmt_limits limits;
	input *inputs;
	uint64_t input_count;
	cf_prefix prefix;
	cf_directory directory;
	cf_commit commit;
	cf_buffer bytes;
	cf_buffer entries;          /* merged_entry */
	int32_t file_count;         /* distinct data files that are referenced */
	int32_t new_count;          /* of the result: with placeholders */
	int32_t linked;             /* data files of the result made so far */
} merge;

static merged_entry *entry_at(const merge *m, uint64_t row)
{
	return (merged_entry *)(void *)m->entries.data + row;
}

static uint64_t entry_count(const merge *m)
{
	return m->entries.size / sizeof(merged_entry);
}

static const uint8_t *key_of(const merge *m, const merged_entry *e)
{
	return m->bytes.data + e->key_offset;
}

/* ---- inputs ---------------------------------------------------------------------------------------------- */

static void close_input(input *in)
{
	cf_table_close(in->table);
	in->table = NULL;
	if (in->index.fd >= 0)
		cf_os_close_quietly(&in->index);
	in->index.fd = -1;
}

static void free_input(input *in)
{
	close_input(in);
	cf_os_directory_close(&in->directory);
	cf_prefix_free(&in->prefix);
	cf_release(in->new_shards);
	cf_release(in->sizes);
}

/* Opens the index of an input; *exists false: there is none. */
static ckptfmt_status open_input(const merge *m, input *in, const char *name, bool *exists, ckptfmt_error *err)
{
	char index_name[CF_NAME_SIZE];
	ckptfmt_status status;
	in->name = name;
	in->directory.fd = -1;
	in->index.fd = -1;
	*exists = false;
	CF_TRY(cf_prefix_split(name, &in->prefix, err));
	status = cf_os_directory_open(in->prefix.directory, false, false, &in->directory, err);
	if (status == CKPTFMT_NOT_FOUND)
		return CKPTFMT_OK;
	CF_TRY(status);
	cf_index_name(in->prefix.base, index_name);
	CF_TRY(cf_os_open(&in->directory, index_name, true, &in->index, &in->info, err));
	if (in->index.fd < 0)
		return CKPTFMT_OK;
	*exists = true;
	return cf_table_open(&in->index, in->prefix.index_path, in->info.size, &m->limits, &in->table, err);
}

static ckptfmt_status read_header(input *in, ckptfmt_error *err)
{
	cf_table_value value;
	bool found;
	uint64_t count;
	CF_TRY(cf_table_get(in->table, (const uint8_t *)"", 0, &value, &found, err));
	if (!found)
		return cf_fail(err, CKPTFMT_FAIL_BAD_HEADER, 0, "HDR-1: the table does not begin with a header");
	CF_TRY(cf_header_decode((cf_bytes_view){value.data, value.size}, value.offset, &in->header, err));
	count = (uint64_t)in->header.num_shards;
	if (count > SHARDS_MAX)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, value.offset, "%llu data files; a merge takes %d an input",
			(unsigned long long)count, SHARDS_MAX);
	in->new_shards = cf_allocate(count * sizeof *in->new_shards);
	in->sizes = cf_allocate(count * sizeof *in->sizes);
	if (in->new_shards == NULL || in->sizes == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < count; i++) {
		in->new_shards[i] = -1;
		in->sizes[i] = UINT64_MAX;
	}
	return CKPTFMT_OK;
}

static bool same_version(const cf_header *a, const cf_header *b)
{
	return a->has_version == b->has_version && a->version.size == b->version.size &&
		(a->version.size == 0 || memcmp(a->version.data, b->version.data, (size_t)a->version.size) == 0);
}

/* MRG-2 and MRG-10, against the inputs before it. */
static ckptfmt_status check_input(const merge *m, const input *in, ckptfmt_error *err)
{
	const input *first = &m->inputs[0];
	for (const input *other = m->inputs; other < in; other++)
		if (other->info.device == in->info.device && other->info.inode == in->info.inode)
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "MRG-10: %.160s and %.160s are one index",
				other->name, in->name);
	if (in->header.endianness != first->header.endianness)
		return cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET,
			"MRG-2: %.160s and %.160s differ in byte order", first->name, in->name);
	if (!same_version(&in->header, &first->header))
		return cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET,
			"MRG-2: %.160s and %.160s differ in version", first->name, in->name);
	return CKPTFMT_OK;
}

/* ---- entries --------------------------------------------------------------------------------------------- */

static ckptfmt_status data_file_size(input *in, int32_t shard, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE], path[sizeof err->path];
	cf_file_info info;
	bool exists;
	ckptfmt_status status;
	if (in->sizes[shard] != UINT64_MAX)
		return CKPTFMT_OK;
	cf_data_name(in->prefix.base, shard, in->header.num_shards, name);
	CF_TRY(cf_os_stat(&in->directory, name, &info, &exists, err));
	if (exists) {
		in->sizes[shard] = info.size;
		return CKPTFMT_OK;
	}
	status = cf_fail(err, CKPTFMT_FAIL_SHARD_MISSING, CF_NO_OFFSET, "NAM-5: the data file is missing");
	cf_join_path(in->prefix.directory, name, path, sizeof path);
	cf_error_path(err, path);
	return status;
}

/* Checks an entry against its data file and gives that its number in the result (MRG-6). */
static ckptfmt_status place_entry(merge *m, input *in, const cf_entry *entry, int32_t *shard, ckptfmt_error *err)
{
	if (entry->shard < 0 || entry->shard >= in->header.num_shards)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, entry->origin, "ENT-3: shard number %d of %d",
			(int)entry->shard, (int)in->header.num_shards);
	CF_TRY(data_file_size(in, entry->shard, err));
	if (entry->slice_count == 0 && (entry->offset < 0 || entry->size < 0 ||
		!cf_range_fits((uint64_t)entry->offset, (uint64_t)entry->size, in->sizes[entry->shard])))
		return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, entry->origin,
			"DAT-2: %lld bytes at %lld, but the data file has %llu", (long long)entry->size,
			(long long)entry->offset, (unsigned long long)in->sizes[entry->shard]);
	if (in->new_shards[entry->shard] < 0) {
		if (m->file_count == INT32_MAX)
			return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET, "too many data files");
		in->new_shards[entry->shard] = m->file_count++;
	}
	*shard = in->new_shards[entry->shard];
	return CKPTFMT_OK;
}

/* EXT-8: placeholders are made anew where the result needs them. */
static bool is_placeholder(const cf_table_iterator *at, const cf_entry *entry)
{
	size_t size = sizeof placeholder_name - 1;
	return at->key_size > size && memcmp(at->key, placeholder_name, size) == 0 && entry->size == 0 &&
		entry->slice_count == 0;
}

static ckptfmt_status take_entry(merge *m, uint32_t number, const cf_table_iterator *at, ckptfmt_error *err)
{
	input *in = &m->inputs[number];
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	merged_entry e;
	CF_TRY(cf_entry_decode((cf_bytes_view){at->value, at->value_size}, at->value_offset, m->limits.slices_max, dims,
		&entry, err));
	if (is_placeholder(at, &entry))
		return CKPTFMT_OK;
	CF_TRY(place_entry(m, in, &entry, &e.shard, err));
	e.key_offset = m->bytes.size;
	e.key_size = at->key_size;
	e.value_offset = m->bytes.size + at->key_size;
	e.value_size = at->value_size;
	e.origin = at->value_offset;
	e.input = number;
	cf_put_bytes(&m->bytes, at->key, at->key_size);
	cf_put_bytes(&m->bytes, at->value, at->value_size);
	cf_put_bytes(&m->entries, &e, sizeof e);
	CF_TRY(cf_buffer_status(&m->bytes, err));
	return cf_buffer_status(&m->entries, err);
}

static ckptfmt_status take_entries(merge *m, uint32_t number, ckptfmt_error *err)
{
	cf_table_iterator at;
	ckptfmt_status status = CKPTFMT_OK;
	bool more = true;
	cf_table_iterator_open(&at, m->inputs[number].table);
	while (status == CKPTFMT_OK) {
		status = cf_table_iterator_next(&at, &more, err);
		if (status != CKPTFMT_OK || !more)
			break;
		if (at.key_size == 0)
			continue;
		status = take_entry(m, number, &at, err);
		if (status != CKPTFMT_OK)
			cf_error_tensor(err, at.key, at.key_size);
	}
	cf_table_iterator_close(&at);
	return status;
}

static ckptfmt_status read_input(merge *m, const char *name, ckptfmt_error *err)
{
	input *in = &m->inputs[m->input_count];
	bool exists;
	ckptfmt_status status = open_input(m, in, name, &exists, err);
	if (status == CKPTFMT_OK && !exists) {
		free_input(in);
		memset(in, 0, sizeof *in);
		if (m->options.allow_missing)
			return CKPTFMT_OK;
		status = cf_fail(err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, CF_NO_OFFSET,
			"MRG-1: an input of the merge does not exist");
		cf_error_path(err, name);
		return status;
	}
	m->input_count++;
	if (status == CKPTFMT_OK)
		status = read_header(in, err);
	if (status == CKPTFMT_OK)
		status = check_input(m, in, err);
	if (status == CKPTFMT_OK)
		status = take_entries(m, (uint32_t)(m->input_count - 1), err);
	cf_error_path(err, in->prefix.index_path);
	return status;
}

/* ---- joining --------------------------------------------------------------------------------------------- */

static ckptfmt_status decode_at(const merge *m, uint64_t row, int64_t *dims, cf_entry *out, ckptfmt_error *err)
{
	const merged_entry *e = entry_at(m, row);
	return cf_entry_decode((cf_bytes_view){m->bytes.data + e->value_offset, e->value_size}, e->origin,
		m->limits.slices_max, dims, out, err);
}

/* Of a slice's key, the tensor it is a slice of. */
static void name_tensor(ckptfmt_error *err, cf_bytes_view key)
{
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	cf_buffer name = CF_BUFFER_EMPTY;
	int32_t rank;
	if (cf_slice_key_looks_like(key.data, key.size) &&
		cf_slice_key_decode(key.data, key.size, &name, &rank, starts, lengths, NULL) == CKPTFMT_OK)
		cf_error_tensor(err, name.data, name.size);
	cf_error_tensor(err, key.data, key.size);
	cf_buffer_free(&name);
}

static ckptfmt_status conflict(const merge *m, uint64_t a, uint64_t b, const char *what, ckptfmt_error *err)
{
	const merged_entry *x = entry_at(m, a), *y = entry_at(m, b);
	ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET, "%s in %.140s and %.140s", what,
		m->inputs[x->input].name, m->inputs[y->input].name);
	name_tensor(err, (cf_bytes_view){key_of(m, y), y->key_size});
	cf_error_path(err, m->inputs[y->input].prefix.index_path);
	return status;
}

static bool same_metadata(const merge *m, const merged_entry *e, const cf_entry *a, const cf_entry *b)
{
	return e->key_size == sizeof metadata_name - 1 && memcmp(key_of(m, e), metadata_name, (size_t)e->key_size) == 0 &&
		a->dtype == b->dtype && a->rank == 0 && b->rank == 0 && a->size == b->size &&
		a->masked_crc == b->masked_crc;
}

/* MRG-5 */
static ckptfmt_status check_disjoint(const merge *m, const cf_sort_key *group, uint64_t count, int32_t rank,
	const int64_t *dims, ckptfmt_error *err)
{
	cf_buffer extents = CF_BUFFER_EMPTY, owners = CF_BUFFER_EMPTY;
	ckptfmt_status status = CKPTFMT_OK;
	uint64_t rows[2] = {0, 0};
	for (uint64_t i = 0; i < count && status == CKPTFMT_OK; i++) {
		int64_t ignored[CKPTFMT_RANK_MAX], extent[2 * CKPTFMT_RANK_MAX];
		cf_slice_walk walk = {0, 0};
		cf_entry entry;
		bool found = true;
		status = decode_at(m, group[i].row, ignored, &entry, err);
		while (status == CKPTFMT_OK) {
			status = cf_entry_next_slice(&entry, &walk, extent, extent + rank, &found, err);
			if (status != CKPTFMT_OK || !found)
				break;
			status = cf_box_resolve(rank, dims, extent, extent + rank, NULL, NULL, err);
			cf_put_bytes(&extents, extent, 2 * (uint64_t)rank * sizeof *extent);
			cf_put_bytes(&owners, &group[i].row, sizeof group[i].row);
		}
	}
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(&extents, err);
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(&owners, err);
	if (status == CKPTFMT_OK) {
		const uint64_t *owner = (const uint64_t *)(const void *)owners.data;
		cf_boxes boxes = {dims, (const int64_t *)(const void *)extents.data, owners.size / sizeof *owner, rank};
		status = cf_boxes_check_disjoint(&boxes, rows, err);
		if (status == CKPTFMT_CORRUPT)
			status = conflict(m, owner[rows[0]], owner[rows[1]], "MRG-5: slices overlap", err);
	}
	cf_buffer_free(&extents);
	cf_buffer_free(&owners);
	return status;
}

/* Appends to `value` what the entries of one key become. `group` holds them in input order. */
static ckptfmt_status join(const merge *m, const cf_sort_key *group, uint64_t count, cf_buffer *value,
	ckptfmt_error *err)
{
	int64_t dims[CKPTFMT_RANK_MAX], other_dims[CKPTFMT_RANK_MAX];
	cf_buffer slices = CF_BUFFER_EMPTY;
	cf_entry first, other;
	ckptfmt_status status = decode_at(m, group[0].row, dims, &first, err);
	for (uint64_t i = 1; i < count && status == CKPTFMT_OK; i++) {
		status = decode_at(m, group[i].row, other_dims, &other, err);
		if (status != CKPTFMT_OK)
			break;
		if (same_metadata(m, entry_at(m, group[0].row), &first, &other))
			continue;
		/* MRG-3, MRG-4 */
		if (first.slice_count == 0 || other.slice_count == 0)
			status = conflict(m, group[0].row, group[i].row, "MRG-3: the tensor is", err);
		else if (first.dtype != other.dtype || first.rank != other.rank ||
			memcmp(dims, other_dims, (size_t)first.rank * sizeof *dims) != 0)
			status = conflict(m, group[0].row, group[i].row, "MRG-4: dtype or shape differ", err);
		else
			status = cf_entry_copy_slices(&slices, &other, err);
	}
	if (status == CKPTFMT_OK && count > 1 && first.slice_count != 0)
		status = check_disjoint(m, group, count, first.rank, dims, err);
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(&slices, err);
	if (status == CKPTFMT_OK)
		status = cf_entry_reencode(value, &first, entry_at(m, group[0].row)->shard,
			(cf_bytes_view){slices.data, slices.size}, err);
	cf_buffer_free(&slices);
	return status;
}

/* Walks the groups of equal keys. Without a table it only checks. */
static ckptfmt_status join_all(const merge *m, const cf_sort_key *keys, uint64_t count, cf_table_writer *table,
	ckptfmt_error *err)
{
	cf_buffer value = CF_BUFFER_EMPTY;
	ckptfmt_status status = CKPTFMT_OK;
	for (uint64_t i = 0, end; i < count && status == CKPTFMT_OK; i = end) {
		end = i + 1;
		while (end < count && cf_compare_keys(&keys[i], &keys[end]) == 0)
			end++;
		if (table == NULL && end == i + 1)
			continue;
		cf_buffer_clear(&value);
		status = join(m, keys + i, end - i, &value, err);
		if (status == CKPTFMT_OK)
			status = cf_buffer_status(&value, err);
		if (status == CKPTFMT_OK && table != NULL)
			status = cf_table_writer_add(table, keys[i].key, keys[i].key_size, value.data, value.size, err);
	}
	cf_buffer_free(&value);
	return status;
}

static ckptfmt_status sort_entries(const merge *m, cf_sort_key **out, ckptfmt_error *err)
{
	uint64_t count = entry_count(m);
	cf_sort_key *keys = cf_allocate(count * sizeof *keys);
	*out = keys;
	if (keys == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < count; i++)
		keys[i] = (cf_sort_key){key_of(m, entry_at(m, i)), entry_at(m, i)->key_size, i};
	cf_sort_keys(keys, count);
	return CKPTFMT_OK;
}

/* ---- the result ------------------------------------------------------------------------------------------ */

/* An entry of a data file that only makes up the number: as if an input had held it. */
static ckptfmt_status add_placeholder(merge *m, int32_t shard, ckptfmt_error *err)
{
	static const int64_t dims[1] = {0};
	char name[64];
	cf_entry_fields fields;
	merged_entry e;
	memset(&fields, 0, sizeof fields);
	memset(&e, 0, sizeof e);
	(void)snprintf(name, sizeof name, "%s%d", placeholder_name, (int)shard);
	fields.dtype = CKPTFMT_FLOAT;
	fields.rank = 1;
	fields.dims = dims;
	fields.masked_crc = ckptfmt_crc32c_mask(0);
	e.shard = shard;
	e.key_offset = m->bytes.size;
	e.key_size = strlen(name);
	cf_put_bytes(&m->bytes, name, e.key_size);
	e.value_offset = m->bytes.size;
	cf_entry_encode(&m->bytes, &fields);
	e.value_size = m->bytes.size - e.value_offset;
	cf_put_bytes(&m->entries, &e, sizeof e);
	CF_TRY(cf_buffer_status(&m->bytes, err));
	return cf_buffer_status(&m->entries, err);
}

/* CMT-3: whoever wrote the input may not have synced it. */
static ckptfmt_status sync_data_file(const merge *m, int32_t shard, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file file;
	ckptfmt_status status;
	cf_data_name(m->prefix.base, shard, m->new_count, name);
	CF_TRY(cf_os_open(&m->directory, name, true, &file, NULL, err));
	if (file.fd < 0)
		return cf_fail(err, CKPTFMT_FAIL_OS, CF_NO_OFFSET, "the data file just named is gone");
	status = cf_os_sync(&file, name, err);
	cf_os_close_quietly(&file);
	return status;
}

static ckptfmt_status link_data_file(merge *m, input *in, int32_t shard, ckptfmt_error *err)
{
	char from[CF_NAME_SIZE], to[CF_NAME_SIZE];
	bool exists;
	cf_data_name(in->prefix.base, shard, in->header.num_shards, from);
	cf_data_name(m->prefix.base, in->new_shards[shard], m->new_count, to);
	CF_TRY(cf_os_link(&in->directory, from, &m->directory, to, &exists, err));
	if (exists)
		return cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET, "another writer made %.120s meanwhile", to);
	return CKPTFMT_OK;
}

static ckptfmt_status make_empty_file(merge *m, int32_t shard, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file file;
	bool exists;
	cf_data_name(m->prefix.base, shard, m->new_count, name);
	CF_TRY(cf_os_create(&m->directory, name, &file, &exists, err));
	if (exists)
		return cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET, "another writer made %.120s meanwhile", name);
	return cf_os_close(&file, name, err);
}

/* Files of the result are made in the order of their numbers, so that `linked` says what to take back. */
static ckptfmt_status make_data_files(merge *m, ckptfmt_error *err)
{
	uint64_t at = 0;
	int32_t shard = 0;
	while (m->linked < m->file_count) {
		input *in = &m->inputs[at];
		if (shard == in->header.num_shards) {
			/* Numbers were given input by input, but within one in the order of keys. */
			at++;
			shard = 0;
			continue;
		}
		if (in->new_shards[shard] != m->linked) {
			shard++;
			continue;
		}
		CF_TRY(link_data_file(m, in, shard, err));
		m->linked++;
		if (m->options.durability == CKPTFMT_DURABILITY_FULL)
			CF_TRY(sync_data_file(m, m->linked - 1, err));
		shard = 0;
	}
	while (m->linked < m->new_count) {
		CF_TRY(make_empty_file(m, m->linked, err));
		m->linked++;
	}
	return CKPTFMT_OK;
}

static void remove_data_files(merge *m)
{
	while (m->linked > 0) {
		char name[CF_NAME_SIZE];
		cf_data_name(m->prefix.base, --m->linked, m->new_count, name);
		(void)!cf_os_unlink(&m->directory, name, NULL);
	}
}

static ckptfmt_status write_table(merge *m, const cf_sort_key *keys, cf_table_writer *table, ckptfmt_error *err)
{
	const cf_header *first = &m->inputs[0].header;
	cf_buffer header = CF_BUFFER_EMPTY;
	uint64_t size;
	ckptfmt_status status;
	cf_header_encode(&header, m->new_count, first->endianness, 0, first->has_version ? &first->version : NULL);
	status = cf_buffer_status(&header, err);
	if (status == CKPTFMT_OK)
		status = cf_table_writer_add(table, (const uint8_t *)"", 0, header.data, header.size, err);
	if (status == CKPTFMT_OK)
		status = join_all(m, keys, entry_count(m), table, err);
	if (status == CKPTFMT_OK)
		status = cf_table_writer_finish(table, &size, err);
	cf_buffer_free(&header);
	return status;
}

static ckptfmt_status write_index(merge *m, const cf_sort_key *keys, cf_file_writer *index, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_table_writer table;
	ckptfmt_status status;
	cf_index_name(m->prefix.base, name);
	CF_TRY(cf_file_writer_open(index, &m->directory, name, err));
	cf_table_writer_open(&table, cf_commit_sink(index));
	status = write_table(m, keys, &table, err);
	cf_table_writer_free(&table);
	CF_TRY(status);
	return cf_file_writer_finish(index, m->options.durability == CKPTFMT_DURABILITY_FULL, err);
}

static ckptfmt_status result_sizes(const merge *m, uint64_t **out, ckptfmt_error *err)
{
	uint64_t *sizes = cf_allocate_zero((uint64_t)m->new_count, sizeof *sizes);
	*out = sizes;
	if (sizes == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < m->input_count; i++)
		for (int32_t shard = 0; shard < m->inputs[i].header.num_shards; shard++)
			if (m->inputs[i].new_shards[shard] >= 0)
				sizes[m->inputs[i].new_shards[shard]] = m->inputs[i].sizes[shard];
	return CKPTFMT_OK;
}

/* MRG-12: the result is there; the inputs' indexes go first, so that none is left without its data. */
static void consume_inputs(merge *m)
{
	char name[CF_NAME_SIZE];
	for (uint64_t i = 0; i < m->input_count; i++) {
		input *in = &m->inputs[i];
		close_input(in);
		cf_index_name(in->prefix.base, name);
		if (cf_os_unlink(&in->directory, name, NULL) != CKPTFMT_OK)
			continue;
		for (int32_t shard = 0; shard < in->header.num_shards; shard++) {
			cf_data_name(in->prefix.base, shard, in->header.num_shards, name);
			(void)!cf_os_unlink(&in->directory, name, NULL);
		}
	}
}

/* MRG-10: the destination's own index must not be an input. */
static ckptfmt_status check_destination(merge *m, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file_info info;
	bool exists;
	cf_index_name(m->prefix.base, name);
	CF_TRY(cf_os_stat(&m->directory, name, &info, &exists, err));
	for (uint64_t i = 0; exists && i < m->input_count; i++)
		if (m->inputs[i].info.device == info.device && m->inputs[i].info.inode == info.inode)
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
				"MRG-10: the destination is also an input: %.200s", m->inputs[i].name);
	return CKPTFMT_OK;
}

static ckptfmt_status prepare(merge *m, const char *destination, ckptfmt_error *err)
{
	CF_TRY(cf_prefix_split(destination, &m->prefix, err));
	CF_TRY(cf_os_directory_open(m->prefix.directory, true, m->options.durability == CKPTFMT_DURABILITY_FULL,
		&m->directory, err));
	CF_TRY(check_destination(m, err));
	m->commit = (cf_commit){&m->prefix, &m->directory, m->options.durability, 0};
	CF_TRY(cf_commit_observe(&m->commit, err));
	CF_TRY(cf_commit_choose_count(&m->commit, m->file_count == 0 ? 1 : m->file_count, true, &m->new_count, err));
	for (int32_t shard = m->file_count; shard < m->new_count; shard++)
		CF_TRY(add_placeholder(m, shard, err));
	return CKPTFMT_OK;
}

static ckptfmt_status publish(merge *m, const char *destination, ckptfmt_error *err)
{
	cf_file_writer index;
	cf_sort_key *keys = NULL;
	uint64_t *sizes = NULL;
	bool committed = false;
	ckptfmt_status status;
	memset(&index, 0, sizeof index);
	status = prepare(m, destination, err);
	if (status == CKPTFMT_OK)
		status = sort_entries(m, &keys, err);
	if (status == CKPTFMT_OK)
		status = result_sizes(m, &sizes, err);
	if (status == CKPTFMT_OK)
		status = make_data_files(m, err);
	if (status == CKPTFMT_OK)
		status = write_index(m, keys, &index, err);
	if (status == CKPTFMT_OK)
		status = cf_commit_index(&m->commit, &index, m->new_count, sizes, &committed, err);
	if (!committed)
		remove_data_files(m);
	else if (status == CKPTFMT_OK && m->options.consume)
		consume_inputs(m);
	cf_file_writer_abandon(&index);
	cf_release(keys);
	cf_release(sizes);
	cf_error_path(err, destination);
	return status;
}

/* Reads and checks all inputs; nothing on disk changes. */
static ckptfmt_status read_inputs(merge *m, const char *const *prefixes, uint64_t count, ckptfmt_error *err)
{
	cf_sort_key *keys = NULL;
	ckptfmt_status status;
	m->inputs = cf_allocate_zero(count, sizeof *m->inputs);
	if (m->inputs == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < count; i++)
		CF_TRY(read_input(m, prefixes[i], err));
	if (m->input_count == 0)
		return cf_fail(err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, CF_NO_OFFSET,
			"MRG-1: none of the inputs of the merge exists");
	status = sort_entries(m, &keys, err);
	if (status == CKPTFMT_OK)
		status = join_all(m, keys, entry_count(m), NULL, err);
	cf_release(keys);
	return status;
}

ckptfmt_status ckptfmt_merge(const char *const *prefixes, uint64_t count, const char *destination,
	const ckptfmt_merge_options *options, ckptfmt_error *err)
{
	merge m = {.directory = {.fd = -1}};
	ckptfmt_status status;
	m.options = options != NULL ? *options : m.options;
	ckptfmt_limits_default(&m.limits);
	if (m.options.limits != NULL)
		m.limits = *m.options.limits;
	status = read_inputs(&m, prefixes, count, err);
	if (status == CKPTFMT_OK)
		status = publish(&m, destination, err);
	for (uint64_t i = 0; i < m.input_count; i++)
		free_input(&m.inputs[i]);
	cf_release(m.inputs);
	cf_buffer_free(&m.bytes);
	cf_buffer_free(&m.entries);
	cf_os_directory_close(&m.directory);
	cf_prefix_free(&m.prefix);
	return status;
}
