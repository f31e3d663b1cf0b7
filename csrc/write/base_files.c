/* SPDX-License-Identifier: Apache-2.0 */
#include "write/base_files.h"

#include "base/memory.h"
#include "read/reader.h"
#include "write/value.h"

#include <stdlib.h>
#include <string.h>

enum {
	/* File systems limit the links of a file. A file with more than this is written anew. */
	LINKS_MAX = 1000,
	NO_LINK = -1
};

/* A row whose entry is copied. */
typedef struct pick {
	uint64_t row;
	uint64_t number;            /* in the caller's list */
} pick;

typedef struct shard_link {
	int32_t shard;
	int32_t place;              /* its index in `linked`, or NO_LINK */
} shard_link;

typedef struct keeping {
	cf_base_files *base;
	ckptfmt_reader *reader;
	const ckptfmt_selection *selection;
	const ckptfmt_bytes *names; /* in the new checkpoint; NULL: the same */
	uint8_t *kept;
	cf_buffer links;            /* shard_link: sorted by shard, with duplicates */
} keeping;

/* ---- files ----------------------------------------------------------------------------------------------- */

/* Any failure except NO_MEMORY means that the file is not linked. */
static ckptfmt_status forgive(ckptfmt_status status, ckptfmt_error *err)
{
	return status == CKPTFMT_NO_MEMORY ? cf_fail_memory(err) : CKPTFMT_OK;
}

static int32_t find_linked(const cf_base_files *base, const cf_file_info *info)
{
	for (int32_t i = 0; i < base->count; i++) {
		const cf_file_info *other = &base->linked[i].file.info;
		if (other->device == info->device && other->inode == info->inode)
			return i;
	}
	return NO_LINK;
}

static ckptfmt_status make_room(cf_base_files *base, ckptfmt_error *err)
{
	cf_data_file *files = cf_reallocate(base->linked, ((uint64_t)base->count + 1) * sizeof *files);
	if (files == NULL)
		return cf_fail_memory(err);
	base->linked = files;
	memset(&files[base->count], 0, sizeof *files);
	return CKPTFMT_OK;
}

/* CMT-3: the file may not have been synced by its writer. */
static bool is_durable(const keeping *k, const cf_shard_use *use, const char *path)
{
	return k->base->commit->durability != CKPTFMT_DURABILITY_FULL ||
		cf_os_sync(&use->file, path, NULL) == CKPTFMT_OK;
}

/* CMT-17: links the open file. *place is its index in `linked`, or NO_LINK. */
static ckptfmt_status link_open(const keeping *k, int32_t shard, const cf_shard_use *use, int32_t *place,
	ckptfmt_error *err)
{
	cf_base_files *base = k->base;
	char path[CF_NAME_SIZE], from[CF_NAME_SIZE], to[CF_NAME_SIZE];
	cf_file_info info;
	bool adopted;
	*place = NO_LINK;
	cf_reader_data_path(k->reader, shard, path, sizeof path);
	CF_TRY(cf_os_file_info(&use->file, path, &info, err));
	*place = find_linked(base, &info);
	if (*place != NO_LINK || info.link_count >= LINKS_MAX)
		return CKPTFMT_OK;
	CF_TRY(make_room(base, err));
	cf_data_name(k->reader->prefix.base, shard, k->reader->header.num_shards, from);
	cf_data_name(base->commit->prefix->base, base->count, base->count + 1, to);
	CF_TRY(cf_file_writer_adopt(&base->linked[base->count].file, base->commit->directory, to,
		&k->reader->directory, from, &info, &adopted, err));
	if (!adopted)
		return CKPTFMT_OK;
	if (!is_durable(k, use, path)) {
		cf_file_writer_abandon(&base->linked[base->count].file);
		return CKPTFMT_OK;
	}
	*place = base->count++;
	/* CMT-15: there may be more files than descriptors, and the lock of one protects all. */
	if (*place != 0)
		cf_file_writer_unlock(&base->linked[*place].file);
	return CKPTFMT_OK;
}

static ckptfmt_status link_file(const keeping *k, int32_t shard, int32_t *place, ckptfmt_error *err)
{
	cf_shard_use use;
	ckptfmt_error why;
	ckptfmt_status status = cf_reader_shard(k->reader, shard, &use, &why);
	*place = NO_LINK;
	if (status != CKPTFMT_OK)
		return forgive(status, err);
	status = link_open(k, shard, &use, place, &why);
	cf_shards_done(&k->reader->shards, &use);
	return forgive(status, err);
}

/* ---- entries --------------------------------------------------------------------------------------------- */

static bool is_placeholder(const uint8_t *name, uint64_t size)
{
	const uint64_t prefix = sizeof CF_PLACEHOLDER_PREFIX - 1;
	return size > prefix && memcmp(name, CF_PLACEHOLDER_PREFIX, (size_t)prefix) == 0;
}

/* CMT-18: a value without unknown features, and without extensions if this writer writes none. */
static bool is_simple(const keeping *k, const ckptfmt_stored *stored, const cf_entry *entry)
{
	return entry->slice_count == 0 && stored->broken_rule == 0 &&
		(stored->flags & ~(uint32_t)CKPTFMT_STORED_COMPRESSED) == 0 && !(k->base->plain && entry->has_extension);
}

/* A stored value whose data file is linked. `dims` are those of the entry. */
typedef struct linked_value {
	cf_entry entry;
	int64_t dims[CKPTFMT_RANK_MAX];
	int32_t place;              /* NO_LINK: it cannot be linked */
} linked_value;

static int compare_shards(const void *a, const void *b)
{
	const shard_link *x = a, *y = b;
	return (x->shard > y->shard) - (x->shard < y->shard);
}

static ckptfmt_status find_value(const keeping *k, const uint8_t *key, uint64_t key_size, const ckptfmt_stored *stored,
	linked_value *out, ckptfmt_error *err)
{
	cf_table_value value;
	const shard_link *link;
	bool found;
	out->place = NO_LINK;
	CF_TRY(cf_table_get(k->reader->table, key, key_size, &value, &found, err));
	if (!found)
		return CKPTFMT_OK;
	CF_TRY(cf_entry_decode((cf_bytes_view){value.data, value.size}, value.offset, k->reader->limits.slices_max,
		out->dims, &out->entry, err));
	link = bsearch((&(shard_link){out->entry.shard, NO_LINK}), cf_buffer_items(&k->links),
		(size_t)(k->links.size / sizeof *link), sizeof *link, compare_shards);
	if (link != NULL && link->place != NO_LINK && is_simple(k, stored, &out->entry) &&
		cf_entry_fits(&out->entry, true, k->base->linked[link->place].file.info.size))
		out->place = link->place;
	return CKPTFMT_OK;
}

static ckptfmt_status add_value(const keeping *k, const ckptfmt_source *source, const linked_value *value,
	ckptfmt_error *err)
{
	uint64_t added;
	if (k->names != NULL)
		CF_TRY(cf_source_check_name(source, err));
	CF_TRY(cf_catalog_add_entry(k->base->catalog, source, &value->entry, &added, err));
	cf_catalog_row_at(k->base->catalog, added)->shard = -1 - value->place;
	return CKPTFMT_OK;
}

static ckptfmt_status keep_whole(const keeping *k, const pick *w, ckptfmt_source *source, ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(k->selection, w->row);
	linked_value value;
	CF_TRY(find_value(k, cf_selection_name(k->selection, row), row->name_size, &row->stored, &value, err));
	if (value.place == NO_LINK)
		return CKPTFMT_OK;
	source->dims = value.dims;
	CF_TRY(add_value(k, source, &value, err));
	k->kept[w->number] = 1;
	return CKPTFMT_OK;
}

/* Adds the slices, unless `only_look`. *good: the data files of all slices are linked. */
static ckptfmt_status keep_slices(const keeping *k, const pick *w, ckptfmt_source *source, bool only_look,
	cf_buffer *key, bool *good, ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(k->selection, w->row);
	const ckptfmt_slice_row *slices = cf_selection_slices(k->selection, row);
	int64_t box[3 * CKPTFMT_RANK_MAX];
	size_t size = (size_t)row->rank * sizeof *box;
	*good = true;
	source->slice = box;
	memcpy(box, cf_selection_dims(k->selection, row->dims_first), size);
	for (uint64_t i = 0; i < row->slice_count && *good; i++) {
		linked_value value;
		cf_buffer_clear(key);
		cf_selection_slice_key(k->selection, w->row, i, key);
		CF_TRY(cf_buffer_status(key, err));
		CF_TRY(find_value(k, key->data, key->size, &slices[i].stored, &value, err));
		*good = value.place != NO_LINK;
		if (only_look)
			continue;
		memcpy(box + row->rank, cf_selection_dims(k->selection, slices[i].extents_first), 2 * size);
		source->dims = value.dims;
		CF_TRY(add_value(k, source, &value, err));
	}
	return CKPTFMT_OK;
}

/* CMT-18: keeps all slices of a tensor or none. */
static ckptfmt_status keep_partitioned(const keeping *k, const pick *w, ckptfmt_source *source, ckptfmt_error *err)
{
	cf_buffer key = CF_BUFFER_EMPTY;
	bool good;
	ckptfmt_status status = keep_slices(k, w, source, true, &key, &good, err);
	if (status == CKPTFMT_OK && good) {
		status = keep_slices(k, w, source, false, &key, &good, err);
		k->kept[w->number] = 1;
	}
	cf_buffer_free(&key);
	return status;
}

static ckptfmt_status keep_row(const keeping *k, const pick *w, ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(k->selection, w->row);
	ckptfmt_source source;
	memset(&source, 0, sizeof source);
	source.name = cf_selection_name(k->selection, row);
	source.name_size = row->name_size;
	source.dtype = row->dtype;
	source.rank = row->rank;
	if (k->names != NULL) {
		source.name = k->names[w->number].data;
		source.name_size = k->names[w->number].size;
	}
	return row->slice_count == 0 ? keep_whole(k, w, &source, err) : keep_partitioned(k, w, &source, err);
}

static ckptfmt_status keep_rows(const keeping *k, const pick *picks, uint64_t count, ckptfmt_error *err)
{
	for (uint64_t i = 0; i < count; i++) {
		const ckptfmt_row *row = cf_selection_row(k->selection, picks[i].row);
		ckptfmt_status status = keep_row(k, &picks[i], err);
		if (status != CKPTFMT_OK) {
			cf_error_tensor(err, cf_selection_name(k->selection, row), row->name_size);
			cf_error_path(err, k->reader->prefix.index_path);
			return status;
		}
	}
	return CKPTFMT_OK;
}

/* ---- the call -------------------------------------------------------------------------------------------- */

static void add_shard(keeping *k, const ckptfmt_stored *stored)
{
	shard_link link = {stored->shard, NO_LINK};
	cf_put_bytes(&k->links, &link, sizeof link);
}

/* CMT-19: links the data files of all rows, in the order of their numbers. Each is tried once, so that all slices of a
 * tensor see the same result. */
static ckptfmt_status link_files(keeping *k, const pick *picks, uint64_t count, ckptfmt_error *err)
{
	shard_link *links;
	uint64_t total;
	for (uint64_t i = 0; i < count; i++) {
		const ckptfmt_row *row = cf_selection_row(k->selection, picks[i].row);
		const ckptfmt_slice_row *slices = cf_selection_slices(k->selection, row);
		if (row->slice_count == 0)
			add_shard(k, &row->stored);
		for (uint64_t s = 0; s < row->slice_count; s++)
			add_shard(k, &slices[s].stored);
	}
	CF_TRY(cf_buffer_status(&k->links, err));
	links = (shard_link *)cf_buffer_items(&k->links);
	total = k->links.size / sizeof *links;
	qsort(links, (size_t)total, sizeof *links, compare_shards);
	for (uint64_t i = 0; i < total; i++)
		if (i != 0 && links[i].shard == links[i - 1].shard)
			links[i].place = links[i - 1].place;
		else if (links[i].shard >= 0 && links[i].shard < k->reader->header.num_shards)
			CF_TRY(link_file(k, links[i].shard, &links[i].place, err));
	return CKPTFMT_OK;
}

/* Lists the rows that can be linked. */
static ckptfmt_status list_picks(const keeping *k, const uint64_t *rows, uint64_t count, pick *picks,
	uint64_t *pick_count, ckptfmt_error *err)
{
	uint64_t row_count = cf_selection_count(k->selection);
	*pick_count = 0;
	for (uint64_t i = 0; i < count; i++) {
		const ckptfmt_row *row;
		if (rows[i] >= row_count)
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "row %llu of %llu",
				(unsigned long long)rows[i], (unsigned long long)row_count);
		row = cf_selection_row(k->selection, rows[i]);
		if (!is_placeholder(cf_selection_name(k->selection, row), row->name_size))
			picks[(*pick_count)++] = (pick){rows[i], i};
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_base_files_keep(cf_base_files *base, ckptfmt_reader *reader, const ckptfmt_selection *selection,
	const uint64_t *rows, uint64_t count, const ckptfmt_bytes *names, uint8_t *kept, ckptfmt_error *err)
{
	keeping k = {base, reader, selection, names, kept, CF_BUFFER_EMPTY};
	uint64_t pick_count;
	ckptfmt_status status;
	pick *picks = cf_allocate(count * sizeof *picks);
	if (picks == NULL)
		return cf_fail_memory(err);
	status = list_picks(&k, rows, count, picks, &pick_count, err);
	if (status == CKPTFMT_OK)
		status = link_files(&k, picks, pick_count, err);
	if (status == CKPTFMT_OK)
		status = keep_rows(&k, picks, pick_count, err);
	cf_buffer_free(&k.links);
	cf_release(picks);
	return status;
}

/* ---- settling -------------------------------------------------------------------------------------------- */

/* The file with the bytes of this row. NULL: a partitioned tensor, whose slices have rows of their own. */
static cf_data_file *file_of(const cf_base_files *base, cf_data_file *files, const cf_catalog_row *row)
{
	if (row->first_slice != CF_NO_SLICE)
		return NULL;
	return row->shard < 0 ? &base->linked[-1 - row->shard] : &files[row->shard];
}

static void count_tensors(const cf_base_files *base, cf_data_file *files, int32_t file_count)
{
	for (int32_t i = 0; i < base->count; i++)
		base->linked[i].tensor_count = 0;
	for (int32_t i = 0; i < file_count; i++)
		files[i].tensor_count = 0;
	for (uint64_t i = 0; i < cf_catalog_count(base->catalog); i++) {
		cf_data_file *file = file_of(base, files, cf_catalog_row_at(base->catalog, i));
		if (file != NULL)
			file->tensor_count++;
	}
}

/* Appends the files that have a tensor to the first `done` of `to`, numbers them, and abandons the others. */
static int32_t move_files(cf_data_file *from, int32_t count, cf_data_file *to, int32_t done, int32_t *numbers)
{
	for (int32_t i = 0; i < count; i++) {
		numbers[i] = done;
		if (from[i].tensor_count != 0)
			to[done++] = from[i];
		else
			cf_file_writer_abandon(&from[i].file);
	}
	return done;
}

static bool has_tensors(const cf_data_file *files, int32_t count)
{
	for (int32_t i = 0; i < count; i++)
		if (files[i].tensor_count != 0)
			return true;
	return false;
}

static void renumber(const cf_catalog *catalog, const int32_t *kept_numbers, const int32_t *numbers)
{
	for (uint64_t i = 0; i < cf_catalog_count(catalog); i++) {
		cf_catalog_row *row = cf_catalog_row_at(catalog, i);
		if (row->first_slice == CF_NO_SLICE)
			row->shard = row->shard < 0 ? kept_numbers[-1 - row->shard] : numbers[row->shard];
	}
}

ckptfmt_status cf_base_files_settle(cf_base_files *base, cf_data_file **files, int32_t *file_count, ckptfmt_error *err)
{
	uint64_t most = (uint64_t)base->count + (uint64_t)*file_count;
	cf_data_file *joined = cf_allocate_zero(most, sizeof *joined);
	int32_t *numbers = cf_allocate_zero(most, sizeof *numbers);
	int32_t count;
	if (joined == NULL || numbers == NULL) {
		cf_release(joined);
		cf_release(numbers);
		return cf_fail_memory(err);
	}
	count_tensors(base, *files, *file_count);
	/* Without any tensors, keep the first file. */
	count = move_files(base->linked, base->count, joined, 0, numbers);
	if (count == 0 && !has_tensors(*files, *file_count))
		joined[count++] = (*files)[0];
	else
		count = move_files(*files, *file_count, joined, count, numbers + base->count);
	renumber(base->catalog, numbers, numbers + base->count);
	cf_release(numbers);
	cf_release(base->linked);
	cf_release(*files);
	base->linked = NULL;
	base->count = 0;
	*files = joined;
	*file_count = count;
	return CKPTFMT_OK;
}

void cf_base_files_abandon(cf_base_files *base)
{
	for (int32_t i = 0; i < base->count; i++)
		cf_file_writer_abandon(&base->linked[i].file);
	cf_release(base->linked);
}
