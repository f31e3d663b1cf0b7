/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data files of a checkpoint that is open as the data files of one that is being written: a second name for each, and
 * the entries as they are but for the shard number (CMT-16 to CMT-18).
 *
 * The second name is made at once, under a temporary name, so that from then on it does not matter what becomes of the
 * other checkpoint. It may have been replaced already: the file that got the name counts only if it is the very one
 * that the reader has open. What cannot be taken over, for whatever reason, is told, and is the caller's to write.
 */
#include "base/memory.h"
#include "read/reader.h"
#include "write/writer.h"

#include <stdlib.h>
#include <string.h>

enum {
	/* A file of more names is written anew: file systems have a limit, and the names of one at a time must fit. */
	LINKS_MAX = 1000,
	NOT_TRIED = -1,
	NO_LINK = -2
};

/* A row to keep, with its place in the caller's list. */
typedef struct wish {
	int32_t shard;
	uint64_t row;
	uint64_t number;
} wish;

typedef struct keeping {
	ckptfmt_writer *writer;
	ckptfmt_reader *reader;
	const ckptfmt_selection *selection;
	uint8_t *kept;
} keeping;

/* ---- files ----------------------------------------------------------------------------------------------- */

/* Only a lack of memory is a failure of the save; any other means that the file cannot be taken over. */
static ckptfmt_status forgive(ckptfmt_status status, ckptfmt_error *err)
{
	return status == CKPTFMT_NO_MEMORY ? cf_fail_memory(err) : CKPTFMT_OK;
}

static int32_t find_kept(const ckptfmt_writer *writer, const cf_file_info *info)
{
	for (int32_t i = 0; i < writer->kept_count; i++) {
		const cf_file_info *other = &writer->kept[i].file.info;
		if (other->device == info->device && other->inode == info->inode)
			return i;
	}
	return NOT_TRIED;
}

static ckptfmt_status make_room(ckptfmt_writer *writer, ckptfmt_error *err)
{
	cf_data_file *files = cf_reallocate(writer->kept, ((uint64_t)writer->kept_count + 1) * sizeof *files);
	if (files == NULL)
		return cf_fail_memory(err);
	writer->kept = files;
	memset(&files[writer->kept_count], 0, sizeof *files);
	return CKPTFMT_OK;
}

/* CMT-3: whoever wrote the file may not have synced it. */
static bool is_durable(const keeping *k, const cf_shard_use *use, const char *path)
{
	return k->writer->options.durability != CKPTFMT_DURABILITY_FULL ||
		cf_os_sync(&use->file, path, NULL) == CKPTFMT_OK;
}

/* CMT-17: the file that is open gets a name here. *place is its number among those kept, or NO_LINK. */
static ckptfmt_status link_open(const keeping *k, int32_t shard, const cf_shard_use *use, int32_t *place,
	ckptfmt_error *err)
{
	ckptfmt_writer *writer = k->writer;
	char path[CF_NAME_SIZE], from[CF_NAME_SIZE], to[CF_NAME_SIZE];
	cf_file_info info;
	bool adopted;
	*place = NO_LINK;
	cf_reader_data_path(k->reader, shard, path, sizeof path);
	CF_TRY(cf_os_file_info(&use->file, path, &info, err));
	if (info.size != use->size || info.link_count >= LINKS_MAX)
		return CKPTFMT_OK;
	*place = find_kept(writer, &info);
	if (*place >= 0)
		return CKPTFMT_OK;
	*place = NO_LINK;
	CF_TRY(make_room(writer, err));
	cf_data_name(k->reader->prefix.base, shard, k->reader->header.num_shards, from);
	cf_data_name(writer->prefix.base, writer->kept_count, writer->kept_count + 1, to);
	CF_TRY(cf_file_writer_adopt(&writer->kept[writer->kept_count].file, &writer->directory, to,
		&k->reader->directory, from, &info, &adopted, err));
	if (!adopted)
		return CKPTFMT_OK;
	if (!is_durable(k, use, path)) {
		cf_file_writer_abandon(&writer->kept[writer->kept_count].file);
		return CKPTFMT_OK;
	}
	*place = writer->kept_count++;
	/* CMT-15: there may be more of these than descriptors. The lock of one tells of the others. */
	if (*place != 0)
		cf_file_writer_let_go(&writer->kept[*place].file);
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

static bool is_reserved(const uint8_t *name, uint64_t size)
{
	const uint64_t prefix = sizeof CF_PLACEHOLDER_PREFIX - 1;
	return size > prefix && memcmp(name, CF_PLACEHOLDER_PREFIX, (size_t)prefix) == 0;
}

/* CMT-18: a value stored whole, in a way that is known; and for a writer that adds no extensions, one without. */
static bool is_simple(const keeping *k, const ckptfmt_row *row, const cf_entry *entry)
{
	bool plain = k->writer->options.chunk_size == 0;
	return entry->slice_count == 0 && (entry->feature_flags & ~CF_FEATURE_COMPRESSED) == 0 &&
		(row->stored.flags & ~(uint32_t)CKPTFMT_STORED_COMPRESSED) == 0 &&
		entry->shard == row->stored.shard && !(plain && entry->has_extension) &&
		!is_reserved(cf_selection_name(k->selection, row), row->name_size);
}

static ckptfmt_status find_entry(const keeping *k, const ckptfmt_row *row, int64_t *dims, cf_entry *entry, bool *good,
	ckptfmt_error *err)
{
	cf_table_value value;
	CF_TRY(cf_table_get(k->reader->table, cf_selection_name(k->selection, row), row->name_size, &value, good, err));
	if (!*good)
		return CKPTFMT_OK;
	CF_TRY(cf_entry_decode((cf_bytes_view){value.data, value.size}, value.offset, k->reader->limits.slices_max, dims,
		entry, err));
	*good = is_simple(k, row, entry);
	return CKPTFMT_OK;
}

static ckptfmt_status keep_row(const keeping *k, const wish *w, int32_t *place, ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(k->selection, w->row);
	const cf_bytes_view name = {cf_selection_name(k->selection, row), row->name_size};
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	uint64_t added;
	bool good;
	CF_TRY(find_entry(k, row, dims, &entry, &good, err));
	if (!good)
		return CKPTFMT_OK;
	if (*place == NOT_TRIED)
		CF_TRY(link_file(k, w->shard, place, err));
	if (*place == NO_LINK || !cf_entry_fits(&entry, k->writer->kept[*place].file.info.size))
		return CKPTFMT_OK;
	CF_TRY(cf_catalog_add_entry(&k->writer->catalog, name, &entry, dims, &added, err));
	cf_catalog_row_at(&k->writer->catalog, added)->shard = -1 - *place;
	k->kept[w->number] = 1;
	return CKPTFMT_OK;
}

static ckptfmt_status keep_rows(const keeping *k, const wish *wishes, uint64_t count, ckptfmt_error *err)
{
	int32_t place = NOT_TRIED;
	for (uint64_t i = 0; i < count; i++) {
		const ckptfmt_row *row = cf_selection_row(k->selection, wishes[i].row);
		ckptfmt_status status;
		if (i != 0 && wishes[i].shard != wishes[i - 1].shard)
			place = NOT_TRIED;
		status = keep_row(k, &wishes[i], &place, err);
		if (status != CKPTFMT_OK) {
			cf_error_tensor(err, cf_selection_name(k->selection, row), row->name_size);
			cf_error_path(err, k->reader->prefix.index_path);
			return status;
		}
	}
	return CKPTFMT_OK;
}

/* ---- the call -------------------------------------------------------------------------------------------- */

static int compare_wishes(const void *a, const void *b)
{
	const wish *x = a, *y = b;
	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	return (x->number > y->number) - (x->number < y->number);
}

/* Those that may be kept, by data file. */
static ckptfmt_status list_wishes(const keeping *k, const uint64_t *rows, uint64_t count, wish *wishes,
	uint64_t *wish_count, ckptfmt_error *err)
{
	uint64_t row_count = cf_selection_count(k->selection);
	*wish_count = 0;
	for (uint64_t i = 0; i < count; i++) {
		const ckptfmt_row *row;
		if (rows[i] >= row_count)
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "row %llu of %llu",
				(unsigned long long)rows[i], (unsigned long long)row_count);
		row = cf_selection_row(k->selection, rows[i]);
		if (row->slice_count == 0 && row->stored.shard >= 0 && row->stored.shard < k->reader->header.num_shards)
			wishes[(*wish_count)++] = (wish){row->stored.shard, rows[i], i};
	}
	if (*wish_count != 0)
		qsort(wishes, (size_t)*wish_count, sizeof *wishes, compare_wishes);
	return CKPTFMT_OK;
}

/* An older checkpoint in place makes a writer begin several data files, to have a number of its own. With others to
 * come that is settled at the end. */
static void begin_keeping(ckptfmt_writer *writer)
{
	writer->keeps = true;
	if (cf_catalog_count(&writer->catalog) != 0)
		return;
	while (writer->file_count > 1)
		cf_file_writer_abandon(&writer->files[--writer->file_count].file);
}

ckptfmt_status ckptfmt_writer_keep(ckptfmt_writer *writer, ckptfmt_reader *reader, const ckptfmt_selection *selection,
	const uint64_t *rows, uint64_t count, uint8_t *kept, ckptfmt_error *err)
{
	keeping k = {writer, reader, selection, kept};
	wish *wishes;
	uint64_t wish_count;
	ckptfmt_status status;
	if (count != 0)
		memset(kept, 0, (size_t)count);
	CF_TRY(cf_writer_check_state(writer, err));
	CF_TRY(cf_reader_check_call(reader, selection, CKPTFMT_VERIFY_AUTO, err));
	/* DAT-7: what is written is little-endian. */
	if (reader->header.endianness != 0)
		return CKPTFMT_OK;
	wishes = cf_allocate(count * sizeof *wishes);
	if (wishes == NULL)
		return cf_fail_memory(err);
	status = list_wishes(&k, rows, count, wishes, &wish_count, err);
	if (status == CKPTFMT_OK) {
		begin_keeping(writer);
		status = keep_rows(&k, wishes, wish_count, err);
	}
	cf_release(wishes);
	if (status == CKPTFMT_OK)
		return CKPTFMT_OK;
	if (count != 0)
		memset(kept, 0, (size_t)count);
	writer->failed = true;
	return status;
}

/* ---- settling -------------------------------------------------------------------------------------------- */

/* The file of a tensor: a slice's row and a whole tensor's own one, a partitioned tensor's none. */
static cf_data_file *file_of(const ckptfmt_writer *writer, const cf_catalog_row *row)
{
	if (row->first_slice != CF_NO_SLICE)
		return NULL;
	return row->shard < 0 ? &writer->kept[-1 - row->shard] : &writer->files[row->shard];
}

static void count_tensors(ckptfmt_writer *writer)
{
	for (int32_t i = 0; i < writer->kept_count; i++)
		writer->kept[i].tensor_count = 0;
	for (int32_t i = 0; i < writer->file_count; i++)
		writer->files[i].tensor_count = 0;
	for (uint64_t i = 0; i < cf_catalog_count(&writer->catalog); i++) {
		cf_data_file *file = file_of(writer, cf_catalog_row_at(&writer->catalog, i));
		if (file != NULL)
			file->tensor_count++;
	}
}

/* Moves the files that have a tensor behind those at `to`, notes their numbers there, and ends the others. */
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

static void renumber(ckptfmt_writer *writer, const int32_t *kept_numbers, const int32_t *numbers)
{
	for (uint64_t i = 0; i < cf_catalog_count(&writer->catalog); i++) {
		cf_catalog_row *row = cf_catalog_row_at(&writer->catalog, i);
		if (row->first_slice == CF_NO_SLICE)
			row->shard = row->shard < 0 ? kept_numbers[-1 - row->shard] : numbers[row->shard];
	}
}

ckptfmt_status cf_keep_settle(ckptfmt_writer *writer, ckptfmt_error *err)
{
	uint64_t most = (uint64_t)writer->kept_count + (uint64_t)writer->file_count;
	cf_data_file *files = cf_allocate_zero(most, sizeof *files);
	int32_t *numbers = cf_allocate_zero(most, sizeof *numbers);
	int32_t count;
	if (files == NULL || numbers == NULL) {
		cf_release(files);
		cf_release(numbers);
		return cf_fail_memory(err);
	}
	count_tensors(writer);
	/* Of files without tensors one stays, the first, where there is nothing else. */
	count = move_files(writer->kept, writer->kept_count, files, 0, numbers);
	if (count == 0 && !has_tensors(writer->files, writer->file_count))
		files[count++] = writer->files[0];
	else
		count = move_files(writer->files, writer->file_count, files, count, numbers + writer->kept_count);
	renumber(writer, numbers, numbers + writer->kept_count);
	cf_release(numbers);
	cf_release(writer->kept);
	cf_release(writer->files);
	writer->kept = NULL;
	writer->kept_count = 0;
	writer->files = files;
	writer->file_count = count;
	return CKPTFMT_OK;
}

void cf_keep_abandon(ckptfmt_writer *writer)
{
	for (int32_t i = 0; i < writer->kept_count; i++)
		cf_file_writer_abandon(&writer->kept[i].file);
	cf_release(writer->kept);
	writer->kept = NULL;
	writer->kept_count = 0;
}
