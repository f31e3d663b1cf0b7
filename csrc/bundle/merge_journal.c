/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal  "ckptfmt merge 1\n"  u64 size  u32 crc32c (of the result's index)  u32 data files of the checkpoint replaced
 *          u64 inputs  input*  u32 crc32c of all before
 * input    file (its index)  u32 name size  name  u32 num_shards  u64 data files  (u32 shard  file)*
 * file     u64 device  u64 inode  u64 size  u64 seconds  u64 nanoseconds
 *
 * Little-endian. It is read on the machine that wrote it, and says of files only what a rename keeps. Nothing is
 * removed that it names but what the caller names as well.
 */
#include "bundle/merge_journal.h"

#include "base/cursor.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

enum {
	MAGIC_SIZE = 16,
	FILE_SIZE = 5 * 8,
	INPUT_SIZE_MIN = FILE_SIZE + 4 + 4 + 8,
	READ_SIZE = 1 << 18
};
static const char magic[MAGIC_SIZE + 1] = "ckptfmt merge 1\n";

static void journal_name(const cf_commit *commit, char *name)
{
	(void)snprintf(name, CF_NAME_SIZE, "%s.merge-journal", commit->prefix->base);
}

/* ---- writing --------------------------------------------------------------------------------------------- */

static void put_file(cf_buffer *out, const cf_file_info *info)
{
	cf_put_u64(out, info->device);
	cf_put_u64(out, info->inode);
	cf_put_u64(out, info->size);
	cf_put_u64(out, (uint64_t)info->mtime_seconds);
	cf_put_u64(out, (uint64_t)info->mtime_nanoseconds);
}

static void put_input(cf_buffer *out, const cf_merge_input *in)
{
	uint64_t count = in->files.size / sizeof(cf_merge_file), known = 0;
	for (uint64_t i = 0; i < count; i++)
		known += cf_merge_input_known_file(in, (int32_t)i) != NULL;
	put_file(out, &in->info);
	cf_put_u32(out, (uint32_t)strlen(in->name));
	cf_put_bytes(out, in->name, strlen(in->name));
	cf_put_u32(out, (uint32_t)in->header.num_shards);
	cf_put_u64(out, known);
	for (uint64_t i = 0; i < count; i++) {
		const cf_merge_file *file = cf_merge_input_known_file(in, (int32_t)i);
		if (file == NULL)
			continue;
		cf_put_u32(out, (uint32_t)i);
		put_file(out, &file->info);
	}
}

ckptfmt_status cf_merge_journal_write(const cf_commit *commit, const cf_merge_inputs *inputs, cf_index_mark result,
	ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_buffer text = CF_BUFFER_EMPTY;
	cf_file_writer file;
	bool unknown;
	ckptfmt_status status;
	memset(&file, 0, sizeof file);
	journal_name(commit, name);
	cf_put_bytes(&text, magic, MAGIC_SIZE);
	cf_put_u64(&text, result.size);
	cf_put_u32(&text, result.crc32c);
	cf_put_u32(&text, (uint32_t)commit->old_count);
	cf_put_u64(&text, inputs->count);
	for (uint64_t i = 0; i < inputs->count; i++)
		put_input(&text, &inputs->rows[i]);
	status = cf_buffer_status(&text, err);
	if (status == CKPTFMT_OK) {
		cf_put_u32(&text, ckptfmt_crc32c(0, text.data, text.size));
		status = cf_buffer_status(&text, err);
	}
	if (status == CKPTFMT_OK)
		status = cf_file_writer_open(&file, commit->directory, name, err);
	if (status == CKPTFMT_OK)
		status = cf_file_writer_put(&file, text.data, text.size, err);
	if (status == CKPTFMT_OK)
		status = cf_file_writer_finish(&file, commit->durability == CKPTFMT_DURABILITY_FULL, err);
	if (status == CKPTFMT_OK)
		status = cf_file_writer_replace(&file, name, &unknown, err);
	cf_file_writer_abandon(&file);
	cf_buffer_free(&text);
	return status;
}

/* ---- reading --------------------------------------------------------------------------------------------- */

typedef struct listed_input {
	cf_file_info info;
	const char *name;           /* not terminated */
	uint32_t name_size;
	int32_t num_shards;
	const uint8_t *files;       /* u32 and FILE_SIZE bytes each */
	uint64_t file_count;
} listed_input;

typedef struct journal {
	cf_buffer text;
	cf_file_info info;          /* of the journal itself */
	cf_index_mark result;
	int32_t old_count;
	listed_input *inputs;
	uint64_t count;
} journal;

static void free_journal(journal *j)
{
	cf_buffer_free(&j->text);
	cf_release(j->inputs);
}

static bool take_file(cf_cursor *at, cf_file_info *out)
{
	uint64_t seconds, nanoseconds;
	memset(out, 0, sizeof *out);
	if (!cf_take_u64(at, &out->device) || !cf_take_u64(at, &out->inode) || !cf_take_u64(at, &out->size) ||
		!cf_take_u64(at, &seconds) || !cf_take_u64(at, &nanoseconds))
		return false;
	out->mtime_seconds = (int64_t)seconds;
	out->mtime_nanoseconds = (int64_t)nanoseconds;
	return true;
}

static bool take_input(cf_cursor *at, listed_input *out)
{
	const uint8_t *name;
	uint32_t shards;
	if (!take_file(at, &out->info) || !cf_take_u32(at, &out->name_size) || !cf_take_bytes(at, out->name_size, &name) ||
		!cf_take_u32(at, &shards) || shards > INT32_MAX || !cf_take_u64(at, &out->file_count) ||
		out->file_count > cf_cursor_left(at) / (4 + FILE_SIZE))
		return false;
	out->name = (const char *)name;
	out->num_shards = (int32_t)shards;
	return cf_take_bytes(at, out->file_count * (4 + FILE_SIZE), &out->files);
}

/* False: it is none. NO_MEMORY counts as that too: the merge then says what is wrong. */
static bool parse_journal(journal *j)
{
	cf_cursor at;
	const uint8_t *start;
	uint32_t old_count;
	uint64_t size = j->text.size;
	if (size < MAGIC_SIZE + 4 || ckptfmt_crc32c(0, j->text.data, size - 4) != cf_load_u32(j->text.data + size - 4))
		return false;
	at = cf_cursor_over(j->text.data, (size_t)(size - 4), 0);
	if (!cf_take_bytes(&at, MAGIC_SIZE, &start) || memcmp(start, magic, MAGIC_SIZE) != 0 ||
		!cf_take_u64(&at, &j->result.size) || !cf_take_u32(&at, &j->result.crc32c) ||
		!cf_take_u32(&at, &old_count) || old_count > INT32_MAX || !cf_take_u64(&at, &j->count) ||
		j->count > cf_cursor_left(&at) / INPUT_SIZE_MIN)
		return false;
	j->old_count = (int32_t)old_count;
	j->inputs = cf_allocate_zero(j->count, sizeof *j->inputs);
	if (j->inputs == NULL)
		return false;
	for (uint64_t i = 0; i < j->count; i++)
		if (!take_input(&at, &j->inputs[i]))
			return false;
	return cf_cursor_left(&at) == 0;
}

/* *found false: there is no journal, or none that can be used. */
static ckptfmt_status read_journal(const cf_commit *commit, journal *j, bool *found, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file file;
	uint64_t got = 0;
	uint8_t *to;
	ckptfmt_status status;
	*found = false;
	journal_name(commit, name);
	CF_TRY(cf_os_open(commit->directory, name, false, &file, &j->info, err));
	if (file.fd < 0)
		return CKPTFMT_OK;
	to = cf_buffer_extend(&j->text, j->info.size);
	status = to == NULL ? cf_fail_memory(err) : cf_os_read_at(&file, name, to, j->info.size, 0, &got, err);
	cf_os_close_quietly(&file);
	CF_TRY(status);
	*found = got == j->info.size && parse_journal(j);
	return CKPTFMT_OK;
}

/* Whether the index in force is that of the journal. */
static ckptfmt_status is_in_force(const cf_commit *commit, const journal *j, bool *is, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file file;
	cf_file_info info;
	cf_buffer bytes = CF_BUFFER_EMPTY;
	uint32_t crc = 0;
	ckptfmt_status status = CKPTFMT_OK;
	*is = false;
	cf_index_name(commit->prefix->base, name);
	CF_TRY(cf_os_open(commit->directory, name, true, &file, &info, err));
	if (file.fd < 0)
		return CKPTFMT_OK;
	if (info.size == j->result.size && !cf_buffer_reserve(&bytes, READ_SIZE))
		status = cf_fail_memory(err);
	for (uint64_t at = 0, got; info.size == j->result.size && status == CKPTFMT_OK && at < info.size; at += got) {
		status = cf_os_read_at(&file, commit->prefix->index_path, bytes.data, READ_SIZE, at, &got, err);
		if (got == 0)
			break;
		crc = ckptfmt_crc32c(crc, bytes.data, got);
	}
	*is = status == CKPTFMT_OK && info.size == j->result.size && crc == j->result.crc32c;
	cf_os_close_quietly(&file);
	cf_buffer_free(&bytes);
	return status;
}

/* ---- removing -------------------------------------------------------------------------------------------- */

/* Removes the file if it is (still) the one described. */
static void remove_file(const cf_directory *directory, const char *name, const cf_file_info *known)
{
	cf_file_info info;
	bool exists;
	if (cf_os_stat(directory, name, &info, &exists, NULL) == CKPTFMT_OK && exists && cf_same_file(&info, known))
		(void)!cf_os_unlink(directory, name, NULL);
}

/* *mine: the index was the one that was merged, or there is none; it is gone now. */
static void remove_index(const cf_directory *directory, const char *base, const cf_file_info *known, bool *mine)
{
	char name[CF_NAME_SIZE];
	cf_file_info info;
	bool exists;
	cf_index_name(base, name);
	*mine = false;
	if (cf_os_stat(directory, name, &info, &exists, NULL) != CKPTFMT_OK)
		return;
	*mine = !exists || (cf_same_state(&info, known) && cf_os_unlink(directory, name, NULL) == CKPTFMT_OK);
}

/* The index goes first, so that no reader finds an index without data. */
static void remove_open_input(const cf_directory *directory, const cf_merge_input *in)
{
	char name[CF_NAME_SIZE];
	bool mine;
	remove_index(directory, in->prefix.base, &in->info, &mine);
	for (uint64_t i = 0; mine && i < in->files.size / sizeof(cf_merge_file); i++) {
		const cf_merge_file *file = cf_merge_input_known_file(in, (int32_t)i);
		if (file == NULL)
			continue;
		cf_data_name(in->prefix.base, (int32_t)i, in->header.num_shards, name);
		remove_file(directory, name, &file->info);
	}
}

static void remove_listed_input(const cf_directory *directory, const cf_prefix *prefix, const listed_input *listed)
{
	char name[CF_NAME_SIZE];
	bool mine;
	remove_index(directory, prefix->base, &listed->info, &mine);
	for (uint64_t i = 0; mine && i < listed->file_count; i++) {
		cf_cursor at = cf_cursor_over(listed->files + i * (4 + FILE_SIZE), 4 + FILE_SIZE, 0);
		cf_file_info info;
		uint32_t shard;
		if (!cf_take_u32(&at, &shard) || !take_file(&at, &info) || shard > INT32_MAX)
			return;
		cf_data_name(prefix->base, (int32_t)shard, listed->num_shards, name);
		remove_file(directory, name, &info);
	}
}

/* Only the journal that was read or written: another merge may have put its own there. */
static void remove_journal(const cf_commit *commit, const cf_file_info *known)
{
	char name[CF_NAME_SIZE];
	journal_name(commit, name);
	if (cf_commit_lock(commit, NULL) != CKPTFMT_OK)
		return;
	remove_file(commit->directory, name, known);
	cf_commit_unlock(commit);
}

void cf_merge_remove_inputs(const cf_commit *commit, cf_merge_inputs *inputs)
{
	bool full = commit->durability == CKPTFMT_DURABILITY_FULL;
	char name[CF_NAME_SIZE];
	cf_file_info info;
	bool exists;
	journal_name(commit, name);
	if (cf_os_stat(commit->directory, name, &info, &exists, NULL) != CKPTFMT_OK)
		exists = false;
	for (uint64_t i = 0; i < inputs->count; i++) {
		cf_merge_input *in = &inputs->rows[i];
		const cf_directory *directory;
		if (cf_merge_input_directory(in, &directory, NULL) != CKPTFMT_OK ||
			cf_os_directory_lock(directory, CF_COMMIT_LOCK_MS, NULL) != CKPTFMT_OK)
			continue;
		remove_open_input(directory, in);
		cf_os_directory_unlock(directory);
		/* All removals are on the device before the journal goes. Inputs of one directory mostly stand together. */
		if (full && (i + 1 == inputs->count ||
			strcmp(in->prefix.directory, inputs->rows[i + 1].prefix.directory) != 0))
			(void)!cf_os_directory_sync(directory, NULL);
	}
	if (exists)
		remove_journal(commit, &info);
}

/* ---- resuming -------------------------------------------------------------------------------------------- */

static bool is_name(const listed_input *listed, const char *name)
{
	return strlen(name) == listed->name_size && memcmp(name, listed->name, listed->name_size) == 0;
}

/* Finishes one input. *gone: it has no index now; otherwise it was saved again, or cannot be removed. */
static ckptfmt_status resume_input(const char *name, const listed_input *listed, bool *gone, ckptfmt_error *err)
{
	char index_name[CF_NAME_SIZE];
	cf_prefix prefix;
	cf_directory directory;
	cf_file_info info;
	bool exists = true;
	ckptfmt_status status;
	*gone = false;
	CF_TRY(cf_prefix_split(name, &prefix, err));
	status = cf_os_directory_open(prefix.directory, false, false, &directory, err);
	if (status == CKPTFMT_NOT_FOUND) {
		*gone = true;
		status = CKPTFMT_OK;
	} else if (status == CKPTFMT_OK) {
		status = cf_os_directory_lock(&directory, CF_COMMIT_LOCK_MS, err);
		if (status == CKPTFMT_OK) {
			if (listed != NULL)
				remove_listed_input(&directory, &prefix, listed);
			cf_os_directory_unlock(&directory);
			cf_index_name(prefix.base, index_name);
			status = cf_os_stat(&directory, index_name, &info, &exists, err);
			*gone = !exists;
		}
	}
	cf_os_directory_close(&directory);
	cf_prefix_free(&prefix);
	return status;
}

/* The input of the journal with this name. Both lists may be long: one that stands at the same place in both, the usual
 * case, is found at once. */
static const listed_input *find_listed(const journal *j, uint64_t row, const char *name)
{
	if (row < j->count && is_name(&j->inputs[row], name))
		return &j->inputs[row];
	for (uint64_t i = 0; i < j->count; i++)
		if (is_name(&j->inputs[i], name))
			return &j->inputs[i];
	return NULL;
}

static ckptfmt_status resume_inputs(const cf_commit *commit, const journal *j, const char *const *prefixes,
	uint64_t count, bool *finished, ckptfmt_error *err)
{
	uint64_t merged = 0, again = 0, other = 0;
	const char *name = "";
	ckptfmt_status status;
	for (uint64_t i = 0; i < count; i++) {
		const listed_input *listed = find_listed(j, i, prefixes[i]);
		bool gone;
		CF_TRY(resume_input(prefixes[i], listed, &gone, err));
		if (listed != NULL && gone)
			name = prefixes[i];
		merged += listed != NULL && gone;
		again += listed != NULL && !gone;
		other += listed == NULL && !gone;
	}
	*finished = again == 0 && other == 0 && merged == j->count;
	if (*finished)
		remove_journal(commit, &j->info);
	if (merged == 0 || again != 0 || other == 0)
		return CKPTFMT_OK;
	/* Going on would put the others in the place of what was merged, which is nowhere else any more. */
	status = cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET,
		"MRG-14: %.200s was merged into the destination by a merge of other inputs", name);
	cf_error_path(err, commit->prefix->index_path);
	return status;
}

static ckptfmt_status resume(cf_commit *commit, const char *const *prefixes, uint64_t count, bool *finished,
	ckptfmt_error *err)
{
	journal j = {.count = 0};
	bool usable, in_force = false;
	ckptfmt_status status = read_journal(commit, &j, &usable, err);
	if (status == CKPTFMT_OK && usable)
		status = cf_commit_lock(commit, err);
	if (status == CKPTFMT_OK && usable) {
		status = cf_commit_observe(commit, err);
		if (status == CKPTFMT_OK)
			status = is_in_force(commit, &j, &in_force, err);
		if (in_force && j.old_count != 0 && j.old_count != commit->old_count)
			cf_commit_remove_generation(commit, j.old_count);
		cf_commit_unlock(commit);
	}
	if (status == CKPTFMT_OK && in_force)
		status = resume_inputs(commit, &j, prefixes, count, finished, err);
	free_journal(&j);
	return status;
}

ckptfmt_status cf_merge_resume(const char *const *prefixes, uint64_t count, const char *destination,
	int32_t durability, bool *finished, ckptfmt_error *err)
{
	cf_prefix prefix;
	cf_directory directory;
	cf_commit commit = {&prefix, &directory, durability, 0};
	ckptfmt_status status;
	*finished = false;
	CF_TRY(cf_prefix_split(destination, &prefix, err));
	status = cf_os_directory_open(prefix.directory, false, false, &directory, err);
	if (status == CKPTFMT_OK)
		status = resume(&commit, prefixes, count, finished, err);
	else if (status == CKPTFMT_NOT_FOUND)
		status = CKPTFMT_OK;
	cf_os_directory_close(&directory);
	cf_prefix_free(&prefix);
	return status;
}
