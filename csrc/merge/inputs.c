/* SPDX-License-Identifier: Apache-2.0 */
#include "merge/inputs.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum {
	SHARDS_MAX = 1 << 20,   /* data files of one input */
	WHOLE_MAX = 320 << 10   /* bytes of an index that is read at once: about one block of a larger one */
};

/* ---- files ----------------------------------------------------------------------------------------------- */

ckptfmt_status cf_merge_input_directory(cf_merge_input *in, const cf_directory **out, ckptfmt_error *err)
{
	cf_merge_inputs *all = in->all;
	bool exists;
	*out = &all->directory;
	if (all->directory.fd >= 0 && strcmp(all->directory.path, in->prefix.directory) == 0)
		return CKPTFMT_OK;
	cf_os_directory_close(&all->directory);
	CF_TRY(cf_storage_directory_open(all->storage, in->prefix.directory, false, false, &all->directory, err));
	return cf_os_stat(&all->directory, ".", &all->place, &exists, err);
}

const char *cf_merge_name(const char *name)
{
	const size_t most = 140;
	size_t size = strlen(name);
	return size > most ? name + (size - most) : name;
}

static ckptfmt_status changed(const cf_merge_input *in, ckptfmt_error *err)
{
	ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET,
		"MRG-11: an input was changed during the merge");
	cf_error_path(err, in->prefix.index_path);
	return status;
}

ckptfmt_status cf_merge_input_check_unchanged(cf_merge_input *in, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	const cf_directory *directory;
	cf_file_info info;
	bool exists;
	CF_TRY(cf_merge_input_directory(in, &directory, err));
	cf_index_name(in->prefix.base, name);
	CF_TRY(cf_os_stat(directory, name, &info, &exists, err));
	return exists && cf_same_state(&info, &in->info) ? CKPTFMT_OK : changed(in, err);
}

/* Reads bytes of an index from the open file, or opens it for this call. */
static ckptfmt_status read_index(const void *state, const char *path, uint8_t *to, uint64_t size, uint64_t offset,
	uint64_t *got, ckptfmt_error *err)
{
	/* Reading changes only which directory is open. */
	cf_merge_input *in = (cf_merge_input *)(uintptr_t)state;
	char name[CF_NAME_SIZE];
	const cf_directory *directory;
	cf_file_info info;
	cf_file file;
	ckptfmt_status status;
	*got = 0;
	if (in->index.fd >= 0)
		return cf_os_read_at(&in->index, path, to, size, offset, got, err);
	CF_TRY(cf_merge_input_directory(in, &directory, err));
	cf_index_name(in->prefix.base, name);
	CF_TRY(cf_os_open(directory, name, true, &file, &info, err));
	if (file.fd < 0)
		return changed(in, err);
	status = cf_same_state(&info, &in->info) ? cf_os_read_at(&file, path, to, size, offset, got, err)
		: changed(in, err);
	cf_os_close_quietly(&file);
	return status;
}

static ckptfmt_status find_file(cf_merge_input *in, int32_t shard, cf_merge_file **out, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	const cf_directory *directory;
	cf_file_info info;
	cf_merge_page **page = &in->pages[shard / CF_MERGE_PAGE_SIZE];
	bool exists;
	*out = NULL;
	CF_TRY(cf_merge_input_directory(in, &directory, err));
	cf_data_name(in->prefix.base, shard, in->header.num_shards, name);
	CF_TRY(cf_os_stat(directory, name, &info, &exists, err));
	if (!exists)
		return CKPTFMT_OK;
	if (!info.regular)
		return cf_fail(err, CKPTFMT_FAIL_OS, CF_NO_OFFSET, "NAM-6: data file %d is not a regular file", (int)shard);
	if (*page == NULL)
		*page = cf_allocate_zero(1, sizeof **page);
	if (*page == NULL)
		return cf_fail_memory(err);
	*out = &(*page)->files[shard % CF_MERGE_PAGE_SIZE];
	(*out)->info = info;
	(*out)->new_shard = -1;
	(*out)->known = true;
	return CKPTFMT_OK;
}

ckptfmt_status cf_merge_input_file(cf_merge_input *in, int32_t shard, cf_merge_file **out, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE], path[sizeof err->path];
	ckptfmt_status status;
	*out = cf_merge_input_known_file(in, shard);
	if (CF_LIKELY(*out != NULL))
		return CKPTFMT_OK;
	CF_TRY(find_file(in, shard, out, err));
	if (*out != NULL)
		return CKPTFMT_OK;
	CF_TRY(cf_merge_input_check_unchanged(in, err));
	status = cf_fail(err, CKPTFMT_FAIL_SHARD_MISSING, CF_NO_OFFSET, "NAM-5: the data file is missing");
	cf_data_name(in->prefix.base, shard, in->header.num_shards, name);
	cf_join_path(in->prefix.directory, name, path, sizeof path);
	cf_error_path(err, path);
	return status;
}

/* ---- opening --------------------------------------------------------------------------------------------- */

static int32_t page_count(const cf_merge_input *in)
{
	return in->header.num_shards / CF_MERGE_PAGE_SIZE + 1;
}

static void close_input(cf_merge_input *in)
{
	if (in->table != NULL)
		cf_table_iterator_close(&in->at);
	cf_table_close(in->table);
	if (in->index.fd >= 0)
		cf_os_close_quietly(&in->index);
	cf_prefix_free(&in->prefix);
	cf_buffer_free(&in->header_bytes);
	for (int32_t i = 0; in->pages != NULL && i < page_count(in); i++)
		cf_release(in->pages[i]);
	cf_release(in->pages);
	cf_buffer_free(&in->order);
}

/* in->index.fd < 0: there is no index. */
static ckptfmt_status open_index(cf_merge_input *in, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	const cf_directory *directory;
	ckptfmt_error why;
	ckptfmt_status status = cf_merge_input_directory(in, &directory, &why);
	if (status == CKPTFMT_NOT_FOUND)
		return CKPTFMT_OK;
	if (status != CKPTFMT_OK && err != NULL)
		*err = why;
	CF_TRY(status);
	cf_index_name(in->prefix.base, name);
	return cf_os_open(directory, name, true, &in->index, &in->info, err);
}

static ckptfmt_status open_table(cf_merge_input *in, ckptfmt_error *err)
{
	const char *path = in->prefix.index_path;
	const ckptfmt_limits *limits = &in->all->limits;
	uint64_t size = in->info.size, got;
	uint8_t *bytes;
	if (size > WHOLE_MAX)
		return cf_table_open(read_index, in, path, size, limits, &in->table, err);
	bytes = cf_arena_take(&in->all->memory, size);
	if (bytes == NULL)
		return cf_fail_memory(err);
	CF_TRY(cf_os_read_at(&in->index, path, bytes, size, 0, &got, err));
	return got < size ? changed(in, err) : cf_table_open_memory(bytes, path, size, limits, &in->table, err);
}

static ckptfmt_status read_header(cf_merge_input *in, ckptfmt_error *err)
{
	cf_table_iterator *at = &in->at;
	bool more;
	cf_table_iterator_open(at, in->table);
	CF_TRY(cf_table_iterator_next(at, &more, err));
	if (!more || at->key_size != 0)
		return cf_fail(err, CKPTFMT_FAIL_BAD_HEADER, 0, "HDR-1: the table does not begin with a header");
	CF_TRY(cf_header_decode((cf_bytes_view){at->value, at->value_size}, at->value_offset, &in->header, err));
	if (in->header.num_shards > SHARDS_MAX)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, at->value_offset, "%d data files; a merge takes at most %d per input",
			(int)in->header.num_shards, SHARDS_MAX);
	in->pages = cf_allocate_zero((uint64_t)page_count(in), sizeof *in->pages);
	if (in->pages == NULL)
		return cf_fail_memory(err);
	cf_put_bytes(&in->header_bytes, in->header.bytes.data, in->header.bytes.size);
	in->header.bytes.data = in->header_bytes.data;
	return cf_buffer_status(&in->header_bytes, err);
}

/* MRG-1. An input that does not exist is left out if that is allowed. */
static ckptfmt_status open_input(cf_merge_inputs *inputs, const char *name, bool allow_missing, ckptfmt_error *err)
{
	cf_merge_input *in = &inputs->rows[inputs->count];
	ckptfmt_status status;
	memset(in, 0, sizeof *in);
	in->all = inputs;
	in->name = name;
	in->index.fd = -1;
	in->header_bytes = in->order = CF_BUFFER_EMPTY;
	status = cf_prefix_split(name, &in->prefix, err);
	if (status == CKPTFMT_OK)
		status = open_index(in, err);
	if (status == CKPTFMT_OK && in->index.fd < 0 && !allow_missing)
		status = cf_fail(err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, CF_NO_OFFSET,
			"MRG-1: an input of the merge did not exist");
	if (status == CKPTFMT_OK && in->index.fd >= 0) {
		inputs->count++;
		status = open_table(in, err);
		if (status == CKPTFMT_OK)
			status = read_header(in, err);
		if (status != CKPTFMT_OK)
			cf_error_path(err, in->prefix.index_path);
		cf_os_close_quietly(&in->index);
		return status;
	}
	if (status != CKPTFMT_OK)
		cf_error_path(err, name);
	close_input(in);
	/* Its path belonged to the input. */
	cf_os_directory_close(&inputs->directory);
	return status;
}

/* ---- all inputs ------------------------------------------------------------------------------------------ */

static int compare_inodes(const void *a, const void *b)
{
	const cf_merge_input *x = *(cf_merge_input *const *)a, *y = *(cf_merge_input *const *)b;
	if (x->info.device != y->info.device)
		return x->info.device < y->info.device ? -1 : 1;
	if (x->info.inode != y->info.inode)
		return x->info.inode < y->info.inode ? -1 : 1;
	return x < y ? -1 : x > y;
}

/* MRG-10 */
static ckptfmt_status check_distinct(const cf_merge_inputs *inputs, ckptfmt_error *err)
{
	const cf_merge_input **sorted = cf_allocate(inputs->count * sizeof *sorted);
	ckptfmt_status status = CKPTFMT_OK;
	if (sorted == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < inputs->count; i++)
		sorted[i] = &inputs->rows[i];
	qsort((void *)sorted, (size_t)inputs->count, sizeof *sorted, compare_inodes);
	for (uint64_t i = 1; i < inputs->count && status == CKPTFMT_OK; i++) {
		const cf_merge_input *first = sorted[i - 1], *second = sorted[i];
		if (!cf_same_file(&first->info, &second->info))
			continue;
		status = strcmp(first->name, second->name) == 0
			? cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "MRG-10: input %s is given twice",
				cf_merge_name(first->name))
			: cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "MRG-10: inputs %s and %s are the same checkpoint",
				cf_merge_name(first->name), cf_merge_name(second->name));
		cf_error_path(err, second->prefix.index_path);
	}
	cf_release((void *)sorted);
	return status;
}

/* MRG-2. Equality is transitive, so comparing with the first input is enough. `compressed`: an input has compressed
 * values, so producer and min_consumer may differ (MRG-15). */
static ckptfmt_status check_header(const cf_merge_input *in, bool compressed, ckptfmt_error *err)
{
	const cf_merge_input *first = in->all->rows;
	bool same = in->header.endianness == first->header.endianness;
	ckptfmt_status status = CKPTFMT_OK;
	if (!same)
		status = cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET, "MRG-2: %s and %s differ in byte order",
			cf_merge_name(first->name), cf_merge_name(in->name));
	if (status == CKPTFMT_OK)
		status = cf_header_same_version(&in->header, &first->header, compressed, &same, err);
	if (status == CKPTFMT_OK && !same)
		status = cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET, "MRG-2: %s and %s differ in version",
			cf_merge_name(first->name), cf_merge_name(in->name));
	if (status != CKPTFMT_OK)
		cf_error_path(err, in->prefix.index_path);
	return status;
}

/* HDR-11: the header of a bundle with compressed values has this min_consumer. */
static bool has_compressed(const cf_merge_inputs *inputs)
{
	for (uint64_t i = 0; i < inputs->count; i++)
		if (inputs->rows[i].header.min_consumer >= CF_COMPRESSED_VERSION)
			return true;
	return false;
}

ckptfmt_status cf_merge_inputs_open(cf_merge_inputs *inputs, const char *const *prefixes, uint64_t count,
	bool allow_missing, ckptfmt_error *err)
{
	bool compressed;
	inputs->count = 0;
	inputs->memory = CF_ARENA_EMPTY;
	inputs->directory.fd = -1;
	inputs->rows = cf_allocate_zero(count, sizeof *inputs->rows);
	if (inputs->rows == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < count; i++) {
		CF_TRY(cf_progress_check(inputs->progress, err));
		CF_TRY(open_input(inputs, prefixes[i], allow_missing, err));
	}
	if (inputs->count == 0) {
		ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, CF_NO_OFFSET,
			"MRG-1: At least one prefix checkpoint file must exist, but none existed");
		cf_error_path(err, count == 0 ? NULL : prefixes[0]);
		return status;
	}
	CF_TRY(check_distinct(inputs, err));
	compressed = has_compressed(inputs);
	for (uint64_t i = 1; i < inputs->count; i++)
		CF_TRY(check_header(&inputs->rows[i], compressed, err));
	return CKPTFMT_OK;
}

void cf_merge_inputs_close(cf_merge_inputs *inputs)
{
	for (uint64_t i = 0; i < inputs->count; i++)
		close_input(&inputs->rows[i]);
	cf_arena_free(&inputs->memory);
	cf_os_directory_close(&inputs->directory);
	cf_release(inputs->rows);
	inputs->rows = NULL;
	inputs->count = 0;
}
