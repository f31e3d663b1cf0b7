/* SPDX-License-Identifier: Apache-2.0 */
#include "write/commit.h"
#include "base/limits.h"
#include "read/index.h"

#include "write/generations.h"
#include "table/table.h"

#include <string.h>

/* The most data files of a generation that is removed without a listing. */
enum { UNLISTED_MAX = 1024 };

/* ---- the older checkpoint --------------------------------------------------------------------------------- */

ckptfmt_status cf_commit_count(const cf_directory *directory, const char *name, int32_t *out, uint32_t *permissions,
	ckptfmt_error *err)
{
	ckptfmt_limits limits;
	cf_file file = {.fd = -1};
	cf_file_info info;
	cf_table *table = NULL;
	cf_table_value value;
	cf_header header;
	ckptfmt_status status;
	bool found = false, exists;
	*out = 0;
	cf_limits_default(&limits);
	status = cf_os_open(directory, name, true, &file, &info, NULL);
	if (permissions != NULL) {
		/* An index that may not be read has permissions as well. */
		if (status == CKPTFMT_OK)
			exists = file.fd >= 0;
		else if (cf_os_stat(directory, name, &info, &exists, NULL) != CKPTFMT_OK)
			exists = false;
		*permissions = exists ? info.permissions : 0;
	}
	if (status == CKPTFMT_OK && file.fd >= 0)
		status = cf_index_open(&file, name, info.size, &limits, &table, NULL);
	if (status == CKPTFMT_OK && file.fd >= 0)
		status = cf_table_get(table, (const uint8_t *)"", 0, &value, &found, NULL);
	if (status == CKPTFMT_OK && found &&
		cf_header_decode((cf_bytes_view){value.data, value.size}, value.offset, &header, NULL) == CKPTFMT_OK)
		*out = header.num_shards;
	cf_table_close(table);
	if (file.fd >= 0)
		cf_os_close_quietly(&file);
	return status == CKPTFMT_NO_MEMORY ? cf_fail_memory(err) : CKPTFMT_OK;
}

ckptfmt_status cf_commit_observe(cf_commit *commit, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_index_name(commit->prefix->base, name);
	return cf_commit_count(commit->directory, name, &commit->old_count, &commit->directory->permissions, err);
}

ckptfmt_status ckptfmt_index_count(const ckptfmt_storage *storage, const char *path, int32_t *count,
	ckptfmt_error *err)
{
	cf_prefix parts;
	cf_directory directory = {.fd = -1};
	ckptfmt_status status;
	*count = 0;
	CF_TRY(cf_prefix_split(path, &parts, err));
	if (parts.base[0] == '\0') {
		cf_prefix_free(&parts);
		return cf_fail(err, CKPTFMT_FAIL_BAD_PATH, CF_NO_OFFSET, "the path of an index file ends with a name");
	}
	status = cf_storage_directory_open(storage, parts.directory, false, false, &directory, err);
	if (status == CKPTFMT_OK)
		status = cf_commit_count(&directory, parts.base, count, NULL, err);
	cf_os_directory_close(&directory);
	cf_prefix_free(&parts);
	return status;
}

ckptfmt_status cf_commit_choose_count(const cf_commit *commit, int32_t at_least, bool look, int32_t *out,
	ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file_info info;
	cf_generations there;
	uint64_t taken;
	bool exists;
	*out = at_least;
	/* A fresh prefix is the common case, and listing a directory of a million files is expensive. It is enough to look
	 * for the first data file: it is the last one of a generation to be removed. If another file has the number,
	 * renaming finds out, and the next choice lists the directory. */
	if (commit->old_count == 0 && !look) {
		cf_data_name(commit->prefix->base, 0, at_least, name);
		CF_TRY(cf_os_stat(commit->directory, name, &info, &exists, err));
		if (!exists)
			return CKPTFMT_OK;
	}
	CF_TRY(cf_generations_list(&there, commit->directory, commit->prefix->base, err));
	/* The number of the current index is taken even if its data files are missing: the index would name ours. */
	while (*out == commit->old_count || (cf_generations_find(&there, *out, &taken), taken != 0))
		(*out)++;
	cf_generations_free(&there);
	if (*out - at_least > CF_GENERATIONS_MAX)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
			"CMT-5: %d consecutive numbers of data files are taken", CF_GENERATIONS_MAX);
	return CKPTFMT_OK;
}

ckptfmt_status cf_commit_is_fresh(const cf_commit *commit, bool *fresh, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file_info info;
	cf_generations there;
	ckptfmt_status status;
	bool exists;
	*fresh = false;
	cf_index_name(commit->prefix->base, name);
	if (cf_os_stat(commit->directory, name, &info, &exists, NULL) != CKPTFMT_OK || exists)
		return CKPTFMT_OK;
	status = cf_generations_list(&there, commit->directory, commit->prefix->base, NULL);
	if (status != CKPTFMT_OK)
		return status == CKPTFMT_NO_MEMORY ? cf_fail_memory(err) : CKPTFMT_OK;
	*fresh = there.files.size == 0;
	cf_generations_free(&there);
	return CKPTFMT_OK;
}

/* ---- the index ------------------------------------------------------------------------------------------- */

static ckptfmt_status put_to_file(void *state, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	return cf_file_writer_put(state, bytes, size, err);
}

cf_sink cf_commit_sink(cf_file_writer *index)
{
	return (cf_sink){put_to_file, index};
}

static ckptfmt_status check_entry(const cf_table_iterator *at, int32_t count, const uint64_t *data_sizes,
	ckptfmt_error *err)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	CF_TRY(cf_entry_decode((cf_bytes_view){at->value, at->value_size}, at->value_offset, UINT64_MAX, dims, &entry,
		err));
	if (entry.shard < 0 || entry.shard >= count)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, at->value_offset, "ENT-3: shard number %d of %d",
			(int)entry.shard, (int)count);
	if (!cf_entry_fits(&entry, entry.slice_count == 0, data_sizes[entry.shard]))
		return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, at->value_offset,
			"DAT-2: an entry names bytes that its data file does not have");
	return CKPTFMT_OK;
}

/* A bad disk, a full disk without an error and our own bugs show here, while the old checkpoint is still in place. */
ckptfmt_status cf_commit_read_back(const cf_commit *commit, const cf_file_writer *index, int32_t count,
	const uint64_t *data_sizes, ckptfmt_error *err)
{
	ckptfmt_limits limits;
	cf_file file = {.fd = -1};
	cf_file_info info;
	cf_table *table = NULL;
	cf_table_iterator entries;
	ckptfmt_status status;
	bool more = true;
	cf_limits_default(&limits);
	/* A reader's limits do not apply to a save. */
	limits.index_bytes_max = limits.block_bytes_max = limits.key_bytes_max = UINT64_MAX;
	limits.entries_max = limits.keys_bytes_floor = UINT64_MAX;
	CF_TRY(cf_os_open(commit->directory, index->name, false, &file, &info, err));
	if (file.fd < 0)
		return cf_fail(err, CKPTFMT_FAIL_OS, CF_NO_OFFSET, "another process removed the index that was just written");
	status = cf_index_open(&file, index->path, info.size, &limits, &table, err);
	if (status == CKPTFMT_OK) {
		cf_table_iterator_open(&entries, table);
		while (status == CKPTFMT_OK) {
			status = cf_table_iterator_next(&entries, &more, err);
			if (status != CKPTFMT_OK || !more)
				break;
			if (entries.key_size != 0)
				status = check_entry(&entries, count, data_sizes, err);
		}
		cf_table_iterator_close(&entries);
	}
	cf_table_close(table);
	cf_os_close_quietly(&file);
	if (status != CKPTFMT_OK)
		cf_error_path(err, index->path);
	return status;
}

/* ---- replacing ------------------------------------------------------------------------------------------- */

ckptfmt_status cf_commit_lock(const cf_commit *commit, ckptfmt_error *err)
{
	return cf_os_directory_lock(commit->directory, CF_COMMIT_LOCK_MS, err);
}

void cf_commit_unlock(const cf_commit *commit)
{
	cf_os_directory_unlock(commit->directory);
}

static void remove_data_file(const cf_commit *commit, int32_t shard, int32_t count)
{
	char name[CF_NAME_SIZE];
	cf_data_name(commit->prefix->base, shard, count, name);
	(void)!cf_os_unlink(commit->directory, name, NULL);
}

/* Removes only files that are listed, whatever number the old index claims. The first one is removed last: while it
 * exists, writers see the number as taken. Without a listing (no free descriptor), removes by name. */
void cf_commit_remove_generation(const cf_commit *commit, int32_t count)
{
	cf_generations there;
	uint64_t file_count = 0;
	const cf_generation_file *files = NULL;
	bool listed = cf_generations_list(&there, commit->directory, commit->prefix->base, NULL) == CKPTFMT_OK;
	if (listed)
		files = cf_generations_find(&there, count, &file_count);
	for (int32_t i = listed || count > UNLISTED_MAX ? 0 : count; i > 0; i--)
		remove_data_file(commit, i - 1, count);
	for (uint64_t i = file_count; i > 0; i--)
		if (files[i - 1].canonical)
			remove_data_file(commit, files[i - 1].shard, count);
	cf_generations_free(&there);
}

/* CMT-7, second half. */
static ckptfmt_status check_data_files(const cf_commit *commit, int32_t count, const uint64_t *data_sizes,
	ckptfmt_error *err)
{
	for (int32_t shard = 0; shard < count && data_sizes != NULL; shard++) {
		char name[CF_NAME_SIZE];
		cf_file_info info;
		bool exists;
		cf_data_name(commit->prefix->base, shard, count, name);
		CF_TRY(cf_os_stat(commit->directory, name, &info, &exists, err));
		if (!exists || info.size != data_sizes[shard])
			return cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET,
				"CMT-7: another writer %s %.160s meanwhile", exists ? "changed" : "removed", name);
	}
	return CKPTFMT_OK;
}

static ckptfmt_status unknown(const cf_commit *commit, const char *text, const ckptfmt_error *why, ckptfmt_error *err)
{
	ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_DURABILITY_UNKNOWN, CF_NO_OFFSET, "%s (%s)", text,
		why->message);
	if (err != NULL)
		err->os_errno = why->os_errno;
	cf_error_path(err, commit->prefix->index_path);
	return status;
}

/* CMT-15: links the index that will be replaced under a temporary name, by which its data files are recognised as
 * orphaned after a kill. Best effort: without it they would stay. */
static void link_old_index(const cf_commit *commit, int32_t count, const char *name, cf_file_writer *old)
{
	cf_file_info info;
	bool exists, ignored;
	if (commit->old_count == 0 || commit->old_count == count)
		return;
	if (cf_os_stat(commit->directory, name, &info, &exists, NULL) == CKPTFMT_OK && exists)
		(void)!cf_file_writer_adopt(old, commit->directory, name, commit->directory, name, &info, &ignored, NULL);
}

static ckptfmt_status replace(cf_commit *commit, cf_file_writer *index, int32_t count, cf_file_writer *old,
	bool *committed, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	ckptfmt_error why;
	ckptfmt_status status;
	bool lost;
	cf_index_name(commit->prefix->base, name);
	link_old_index(commit, count, name, old);
	if (commit->durability == CKPTFMT_DURABILITY_FULL)
		CF_TRY(cf_os_directory_sync(commit->directory, err));
	status = cf_file_writer_replace(index, name, &lost, &why);
	*committed = status == CKPTFMT_OK || lost;
	if (lost)
		return unknown(commit, "it is unknown whether the old or the new checkpoint is in place", &why, err);
	if (status != CKPTFMT_OK && err != NULL)
		*err = why;
	CF_TRY(status);
	if (commit->durability == CKPTFMT_DURABILITY_FULL &&
		cf_os_directory_sync(commit->directory, &why) != CKPTFMT_OK)
		return unknown(commit, "the new checkpoint is in place, but a power cut may still bring the old one back",
			&why, err);
	if (commit->old_count != 0 && commit->old_count != count)
		cf_commit_remove_generation(commit, commit->old_count);
	return CKPTFMT_OK;
}

ckptfmt_status cf_commit_replace(cf_commit *commit, cf_file_writer *index, int32_t count, const uint64_t *data_sizes,
	bool *committed, ckptfmt_error *err)
{
	cf_file_writer old;
	ckptfmt_status status;
	memset(&old, 0, sizeof old);
	*committed = false;
	/* Another writer may have committed since this one began: then its generation is replaced. */
	CF_TRY(cf_commit_observe(commit, err));
	CF_TRY(check_data_files(commit, count, data_sizes, err));
	status = replace(commit, index, count, &old, committed, err);
	cf_file_writer_abandon(&old);
	return status;
}
