/* SPDX-License-Identifier: Apache-2.0 */
/*
 * file     intent  (the same of an earlier merge that is in force)
 * intent   "ckptfmt merge 2\n"  u64 size (of the intent)  u64 size  u32 crc32c (of the result's index)
 *          u32 data files of the result  identity*  u64 inputs  input*  u32 crc32c (of all before)
 * input    identity (of the index)  u64 inode (of the directory)  u32 name size  name
 * identity u64 inode  u64 size  u64 seconds  u64 nanoseconds
 *
 * Little-endian. It is read on the machine that wrote it, perhaps after a reboot, so that it has no device numbers.
 * Only inputs that the caller names as well are removed, whatever the file says.
 */
#include "merge/intent.h"

#include "base/cursor.h"
#include "base/memory.h"

#include <stdio.h>
#include <string.h>

enum {
	MAGIC_SIZE = 16,
	SIZE_AT = MAGIC_SIZE,               /* offset of the intent's size */
	HEAD_SIZE = MAGIC_SIZE + 8,
	IDENTITY_SIZE = 4 * 8,
	INPUT_SIZE_MIN = IDENTITY_SIZE + 8 + 4,
	INTENT_SIZE_MAX = 1 << 26,          /* several hundred thousand inputs */
	LOCKED_MAX = 256,                   /* inputs removed under one lock, so that others do not wait long */
	READ_SIZE = 1 << 18
};
static const char magic[MAGIC_SIZE + 1] = "ckptfmt merge 2\n";

static void intent_name(const cf_commit *commit, char *name)
{
	(void)snprintf(name, CF_NAME_SIZE, "%s.merge-intent", commit->prefix->base);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

typedef struct listed_input {
	cf_file_info info;          /* of the index */
	uint64_t directory_inode;
	const char *name;           /* not terminated */
	uint32_t name_size;
	bool gone;                  /* has no index any more */
} listed_input;

typedef struct intent {
	const uint8_t *bytes;       /* all of it */
	uint64_t size;
	cf_index_mark result;
	const uint8_t *files;       /* identities of the result's data files */
	int32_t file_count;
	listed_input *inputs;
	uint64_t count;
} intent;

static bool take_identity(cf_cursor *at, cf_file_info *out)
{
	uint64_t seconds, nanoseconds;
	memset(out, 0, sizeof *out);
	if (!cf_take_u64(at, &out->inode) || !cf_take_u64(at, &out->size) || !cf_take_u64(at, &seconds) ||
		!cf_take_u64(at, &nanoseconds))
		return false;
	out->mtime_seconds = (int64_t)seconds;
	out->mtime_nanoseconds = (int64_t)nanoseconds;
	return true;
}

static bool take_input(cf_cursor *at, listed_input *out)
{
	const uint8_t *name;
	if (!take_identity(at, &out->info) || !cf_take_u64(at, &out->directory_inode) ||
		!cf_take_u32(at, &out->name_size) || !cf_take_bytes(at, out->name_size, &name))
		return false;
	out->name = (const char *)name;
	return true;
}

static bool take_fields(cf_cursor *at, intent *out)
{
	const uint8_t *head;
	uint32_t file_count;
	if (!cf_take_bytes(at, HEAD_SIZE, &head) || !cf_take_u64(at, &out->result.size) ||
		!cf_take_u32(at, &out->result.crc32c) || !cf_take_u32(at, &file_count) || file_count > INT32_MAX ||
		!cf_take_bytes(at, (uint64_t)file_count * IDENTITY_SIZE, &out->files) || !cf_take_u64(at, &out->count) ||
		out->count > cf_cursor_left(at) / INPUT_SIZE_MIN)
		return false;
	out->file_count = (int32_t)file_count;
	out->inputs = cf_allocate_zero(out->count, sizeof *out->inputs);
	for (uint64_t i = 0; out->inputs != NULL && i < out->count; i++)
		if (!take_input(at, &out->inputs[i]))
			return false;
	return out->inputs != NULL && cf_cursor_left(at) == 0;
}

/* The intent at *at of the file; *at moves to its end. False: there is none, it is damaged, or there is no memory,
 * which the merge then reports. */
static bool next_intent(const cf_buffer *file, uint64_t *at, intent *out)
{
	const uint8_t *bytes;
	uint64_t left = file->size - *at;
	cf_cursor fields;
	memset(out, 0, sizeof *out);
	if (left < HEAD_SIZE + 4)
		return false;
	bytes = file->data + *at;
	if (memcmp(bytes, magic, MAGIC_SIZE) != 0)
		return false;
	out->bytes = bytes;
	out->size = cf_load_u64(bytes + SIZE_AT);
	if (out->size < HEAD_SIZE + 4 || out->size > left ||
		ckptfmt_crc32c(0, bytes, out->size - 4) != cf_load_u32(bytes + out->size - 4))
		return false;
	fields = cf_cursor_over(bytes, (size_t)(out->size - 4), 0);
	*at += out->size;
	if (take_fields(&fields, out))
		return true;
	cf_release(out->inputs);
	return false;
}

/* Reads the file; *bytes stays empty if there is none, or if it does not begin with an intent. */
static ckptfmt_status read_file(const cf_commit *commit, cf_buffer *bytes, uint64_t *inode, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	uint8_t begin[MAGIC_SIZE], *to;
	cf_file file;
	cf_file_info info;
	bool exists;
	uint64_t got;
	ckptfmt_status status;
	intent_name(commit, name);
	CF_TRY(cf_os_stat(commit->directory, name, &info, &exists, err));
	if (!exists || !info.regular)
		return CKPTFMT_OK;
	CF_TRY(cf_os_open(commit->directory, name, false, &file, &info, err));
	if (file.fd < 0)
		return CKPTFMT_OK;
	*inode = info.inode;
	status = cf_os_read_at(&file, name, begin, MAGIC_SIZE, 0, &got, err);
	if (status == CKPTFMT_OK && got == MAGIC_SIZE && memcmp(begin, magic, MAGIC_SIZE) == 0 &&
		info.size <= INTENT_SIZE_MAX) {
		to = cf_buffer_extend(bytes, info.size);
		status = to == NULL ? cf_fail_memory(err) : cf_os_read_at(&file, name, to, info.size, 0, &got, err);
		if (status != CKPTFMT_OK || got < info.size)
			cf_buffer_clear(bytes);
	}
	cf_os_close_quietly(&file);
	return status;
}

static ckptfmt_status mark_index(const cf_commit *commit, cf_index_mark *out, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file file;
	cf_file_info info;
	cf_buffer bytes = CF_BUFFER_EMPTY;
	uint64_t got = 1;
	ckptfmt_status status = CKPTFMT_OK;
	*out = (cf_index_mark){0, 0};
	cf_index_name(commit->prefix->base, name);
	CF_TRY(cf_os_open(commit->directory, name, true, &file, &info, err));
	if (file.fd < 0)
		return CKPTFMT_OK;
	if (!cf_buffer_reserve(&bytes, READ_SIZE))
		status = cf_fail_memory(err);
	while (status == CKPTFMT_OK && got > 0) {
		status = cf_os_read_at(&file, commit->prefix->index_path, bytes.data, READ_SIZE, out->size, &got, err);
		if (status == CKPTFMT_OK) {
			out->crc32c = ckptfmt_crc32c(out->crc32c, bytes.data, got);
			out->size += got;
		}
	}
	cf_os_close_quietly(&file);
	cf_buffer_free(&bytes);
	return status;
}

/* The intent of the index in force. */
static ckptfmt_status find_in_force(const cf_commit *commit, const cf_buffer *bytes, intent *out, bool *found,
	ckptfmt_error *err)
{
	cf_index_mark mark;
	uint64_t at = 0;
	*found = false;
	if (bytes->size == 0)
		return CKPTFMT_OK;
	CF_TRY(mark_index(commit, &mark, err));
	while (!*found && next_intent(bytes, &at, out)) {
		*found = mark.size != 0 && out->result.size == mark.size && out->result.crc32c == mark.crc32c;
		if (!*found)
			cf_release(out->inputs);
	}
	return CKPTFMT_OK;
}

/* ---- writing --------------------------------------------------------------------------------------------- */

static void put_identity(cf_buffer *out, const cf_file_info *info)
{
	cf_put_u64(out, info->inode);
	cf_put_u64(out, info->size);
	cf_put_u64(out, (uint64_t)info->mtime_seconds);
	cf_put_u64(out, (uint64_t)info->mtime_nanoseconds);
}

static ckptfmt_status put_intent(cf_buffer *out, const cf_merge_inputs *inputs, cf_index_mark result,
	const cf_file_info *files, int32_t count, ckptfmt_error *err)
{
	uint8_t *size;
	cf_put_bytes(out, magic, MAGIC_SIZE);
	cf_put_u64(out, 0);
	cf_put_u64(out, result.size);
	cf_put_u32(out, result.crc32c);
	cf_put_u32(out, (uint32_t)count);
	for (int32_t i = 0; i < count; i++)
		put_identity(out, &files[i]);
	cf_put_u64(out, inputs->count);
	for (uint64_t i = 0; i < inputs->count; i++) {
		cf_merge_input *in = &inputs->rows[i];
		const cf_directory *directory;
		CF_TRY(cf_merge_input_directory(in, &directory, err));
		put_identity(out, &in->info);
		cf_put_u64(out, inputs->place.inode);
		cf_put_u32(out, (uint32_t)strlen(in->name));
		cf_put_bytes(out, in->name, strlen(in->name));
	}
	CF_TRY(cf_buffer_status(out, err));
	if (out->size > INTENT_SIZE_MAX / 2)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
			"a merge that removes its inputs cannot take this many; merge them in several steps");
	size = out->data + SIZE_AT;
	for (int i = 0; i < 8; i++)
		size[i] = (uint8_t)((out->size + 4) >> 8 * i);
	cf_put_u32(out, ckptfmt_crc32c(0, out->data, out->size));
	return cf_buffer_status(out, err);
}

static ckptfmt_status write_file(const cf_commit *commit, const cf_buffer *bytes, uint64_t *inode, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file_writer file;
	bool unknown;
	ckptfmt_status status;
	intent_name(commit, name);
	CF_TRY(cf_file_writer_open(&file, commit->directory, name, err));
	status = cf_file_writer_put(&file, bytes->data, bytes->size, err);
	if (status == CKPTFMT_OK)
		status = cf_file_writer_finish(&file, commit->durability == CKPTFMT_DURABILITY_FULL, err);
	*inode = file.info.inode;
	if (status == CKPTFMT_OK)
		status = cf_file_writer_replace(&file, name, &unknown, err);
	cf_file_writer_abandon(&file);
	return status;
}

ckptfmt_status cf_merge_intent_write(const cf_commit *commit, const cf_merge_inputs *inputs, cf_index_mark result,
	const cf_file_info *files, int32_t count, cf_merge_intent *out, ckptfmt_error *err)
{
	cf_buffer before = CF_BUFFER_EMPTY, bytes = CF_BUFFER_EMPTY;
	intent old;
	uint64_t ignored;
	bool found = false;
	ckptfmt_status status = put_intent(&bytes, inputs, result, files, count, err);
	if (status == CKPTFMT_OK)
		status = read_file(commit, &before, &ignored, err);
	if (status == CKPTFMT_OK)
		status = find_in_force(commit, &before, &old, &found, err);
	if (found) {
		if (old.size <= INTENT_SIZE_MAX / 2)
			cf_put_bytes(&bytes, old.bytes, old.size);
		cf_release(old.inputs);
		status = cf_buffer_status(&bytes, err);
	}
	out->has_older = found;
	if (status == CKPTFMT_OK)
		status = write_file(commit, &bytes, &out->inode, err);
	cf_buffer_free(&before);
	cf_buffer_free(&bytes);
	return status;
}

/* Removes the intent unless another merge has replaced it. REQUIRES: cf_commit_lock. */
static void remove_file(const cf_commit *commit, uint64_t inode)
{
	char name[CF_NAME_SIZE];
	cf_file_info info;
	bool exists;
	intent_name(commit, name);
	if (cf_os_stat(commit->directory, name, &info, &exists, NULL) == CKPTFMT_OK && exists && info.inode == inode)
		(void)!cf_os_unlink(commit->directory, name, NULL);
}

void cf_merge_intent_withdraw(const cf_commit *commit, const cf_merge_intent *written)
{
	if (!written->has_older)
		remove_file(commit, written->inode);
}

/* ---- data files of a merge that was killed before its commit ---------------------------------------------- */

static ckptfmt_status lists_files(const cf_commit *commit, const intent *one, const cf_generation_file *group,
	uint64_t count, bool *lists, ckptfmt_error *err)
{
	*lists = one->file_count == group[0].count;
	for (uint64_t i = 0; i < count && *lists; i++) {
		char name[CF_NAME_SIZE];
		cf_file_info known, info;
		cf_cursor at;
		*lists = group[i].canonical;
		if (!*lists)
			break;
		at = cf_cursor_over(one->files + (uint64_t)group[i].shard * IDENTITY_SIZE, IDENTITY_SIZE, 0);
		(void)!take_identity(&at, &known);
		cf_data_name(commit->prefix->base, group[i].shard, group[i].count, name);
		CF_TRY(cf_os_lstat(commit->directory, name, &info, lists, err));
		*lists = *lists && info.regular && (known.inode == 0 ? info.size == 0 : cf_same_state(&info, &known));
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_merge_intent_left(const cf_commit *commit, const cf_generation_file *group, uint64_t count,
	bool *left, ckptfmt_error *err)
{
	cf_buffer bytes = CF_BUFFER_EMPTY;
	uint64_t inode, at = 0;
	intent one;
	ckptfmt_status status = read_file(commit, &bytes, &inode, err);
	*left = false;
	while (status == CKPTFMT_OK && !*left && next_intent(&bytes, &at, &one)) {
		status = lists_files(commit, &one, group, count, left, err);
		cf_release(one.inputs);
	}
	cf_buffer_free(&bytes);
	return status;
}

/* ---- removing -------------------------------------------------------------------------------------------- */

/* Removes an input if its index is still `known`. The index is removed last: until then it gives the number of data
 * files. num_shards < 0: as the index says. */
static ckptfmt_status remove_input(const cf_directory *directory, const char *base, const cf_file_info *known,
	int32_t num_shards, ckptfmt_error *err)
{
	char index[CF_NAME_SIZE], name[CF_NAME_SIZE];
	cf_file_info info;
	bool exists;
	cf_index_name(base, index);
	CF_TRY(cf_os_stat(directory, index, &info, &exists, err));
	if (!exists || !cf_same_state(&info, known))
		return CKPTFMT_OK;
	if (num_shards < 0)
		CF_TRY(cf_commit_count(directory, index, &num_shards, NULL, err));
	for (int32_t shard = 0; shard < num_shards; shard++) {
		cf_data_name(base, shard, num_shards, name);
		CF_TRY(cf_os_unlink(directory, name, err));
	}
	return cf_os_unlink(directory, index, err);
}

/* The error of a merge whose result is in place, and whose inputs, of which this is one, could not all be removed. */
static ckptfmt_status not_removed(const cf_prefix *input, const ckptfmt_error *why, ckptfmt_error *err)
{
	ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_NOT_REMOVED, CF_NO_OFFSET,
		"the result is in place, but this input could not be removed: make the same call again when it can be (%.300s)",
		why->message);
	if (err != NULL)
		err->os_errno = why->os_errno;
	cf_error_path(err, input->index_path);
	return status;
}

static void remove_intent(const cf_commit *commit, uint64_t inode)
{
	if (cf_commit_lock(commit, NULL) != CKPTFMT_OK)
		return;
	remove_file(commit, inode);
	cf_commit_unlock(commit);
}

/* Removes the inputs from `begin` to `end`, which are in one directory, under its lock. */
static ckptfmt_status remove_some(cf_merge_inputs *inputs, uint64_t begin, uint64_t end, bool sync, ckptfmt_error *err)
{
	const cf_directory *directory;
	ckptfmt_error why = {.status = CKPTFMT_OK};
	uint64_t i = begin;
	ckptfmt_status status = cf_merge_input_directory(&inputs->rows[begin], &directory, &why);
	if (status == CKPTFMT_NOT_FOUND)
		return CKPTFMT_OK;
	if (status == CKPTFMT_OK)
		status = cf_os_directory_lock(directory, CF_COMMIT_LOCK_MS, &why);
	if (status != CKPTFMT_OK)
		return not_removed(&inputs->rows[begin].prefix, &why, err);
	for (; i < end && status == CKPTFMT_OK; i++) {
		const cf_merge_input *in = &inputs->rows[i];
		status = remove_input(directory, in->prefix.base, &in->info, in->header.num_shards, &why);
	}
	cf_os_directory_unlock(directory);
	/* The inputs must be removed on the device before the intent is. */
	if (status == CKPTFMT_OK && sync)
		status = cf_os_directory_sync(directory, &why);
	return status == CKPTFMT_OK ? CKPTFMT_OK : not_removed(&inputs->rows[i - 1].prefix, &why, err);
}

ckptfmt_status cf_merge_remove_inputs(const cf_commit *commit, cf_merge_inputs *inputs, bool directories,
	const cf_merge_intent *written, ckptfmt_error *err)
{
	const bool sync = commit->durability == CKPTFMT_DURABILITY_FULL;
	ckptfmt_status status = CKPTFMT_OK;
	for (uint64_t i = 0, end; i < inputs->count && status == CKPTFMT_OK; i = end) {
		const char *place = inputs->rows[i].prefix.directory;
		for (end = i + 1; end < inputs->count && end - i < LOCKED_MAX; end++)
			if (strcmp(inputs->rows[end].prefix.directory, place) != 0)
				break;
		status = remove_some(inputs, i, end, sync, err);
		if (directories)
			cf_storage_directory_remove(inputs->storage, place);
	}
	if (status == CKPTFMT_OK)
		remove_intent(commit, written->inode);
	return status;
}

/* ---- resuming -------------------------------------------------------------------------------------------- */

ckptfmt_status cf_merge_look(const cf_commit *commit, cf_merge_before *out, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_index_name(commit->prefix->base, name);
	return cf_os_stat(commit->directory, name, &out->info, &out->exists, err);
}

static ckptfmt_status sync_file(const cf_directory *directory, const char *name, ckptfmt_error *err)
{
	cf_file file;
	ckptfmt_status status;
	CF_TRY(cf_os_open(directory, name, true, &file, NULL, err));
	if (file.fd < 0)
		return CKPTFMT_OK;
	status = cf_os_sync(&file, name, err);
	cf_os_close_quietly(&file);
	return status;
}

/* Whether the data files of the result have the sizes that the intent lists, and none was replaced by a symbolic link,
 * perhaps to an input that would be removed. With durability FULL they, the index and
 * the directory are then synced: the merge was killed before all that it wrote had reached the device. */
static ckptfmt_status settle_result(const cf_commit *commit, const intent *one, bool *whole, ckptfmt_error *err)
{
	bool full = commit->durability == CKPTFMT_DURABILITY_FULL;
	char name[CF_NAME_SIZE];
	cf_cursor at = cf_cursor_over(one->files, (size_t)one->file_count * IDENTITY_SIZE, 0);
	*whole = false;
	for (int32_t shard = 0; shard < one->file_count; shard++) {
		cf_file_info info, known;
		bool exists;
		cf_data_name(commit->prefix->base, shard, one->file_count, name);
		CF_TRY(cf_os_lstat(commit->directory, name, &info, &exists, err));
		if (!take_identity(&at, &known) || !exists || !info.regular || info.size != known.size)
			return CKPTFMT_OK;
		if (full)
			CF_TRY(sync_file(commit->directory, name, err));
	}
	*whole = true;
	if (!full)
		return CKPTFMT_OK;
	cf_index_name(commit->prefix->base, name);
	CF_TRY(sync_file(commit->directory, name, err));
	return cf_os_directory_sync(commit->directory, err);
}

static bool is_text(const listed_input *listed, uint64_t size, const char *text)
{
	return strlen(text) == size && memcmp(text, listed->name, (size_t)size) == 0;
}

/* Whether the caller's prefix means this input: it has the same text, or names its directory (where the checkpoint was
 * located while it existed), or it has the same base name in the same directory. */
static bool is_meant(const listed_input *listed, const char *name, const cf_prefix *prefix, const cf_file_info *place)
{
	uint64_t directory_size = listed->name_size, base_size = strlen(prefix->base);
	while (directory_size > 0 && listed->name[directory_size - 1] != '/')
		directory_size--;
	if (is_text(listed, listed->name_size, name) || is_text(listed, directory_size, name) ||
		(directory_size > 1 && is_text(listed, directory_size - 1, name)))
		return true;
	return place->inode == listed->directory_inode && listed->name_size - directory_size == base_size &&
		memcmp(listed->name + directory_size, prefix->base, (size_t)base_size) == 0;
}

/* A repeated call has each input at the same position, which is tried first. */
static listed_input *find_listed(const intent *one, uint64_t row, const char *name, const cf_prefix *prefix,
	const cf_file_info *place)
{
	if (row < one->count && is_meant(&one->inputs[row], name, prefix, place))
		return &one->inputs[row];
	for (uint64_t i = 0; i < one->count; i++)
		if (is_meant(&one->inputs[i], name, prefix, place))
			return &one->inputs[i];
	return NULL;
}

typedef struct resuming {
	const cf_commit *commit;
	const intent *one;
	bool remove, directories;
} resuming;

/* Handles the caller's prefix `row` in its directory (fd -1: the directory is gone). *gone: it has no index now. */
static ckptfmt_status resume_input(const resuming *r, uint64_t row, const char *name, const cf_prefix *prefix,
	const cf_directory *directory, bool *gone, ckptfmt_error *err)
{
	char index_name[CF_NAME_SIZE];
	cf_file_info place, info;
	listed_input *listed;
	ckptfmt_error why = {.status = CKPTFMT_OK};
	ckptfmt_status removed;
	bool exists = false;
	memset(&place, 0, sizeof place);
	if (directory->fd >= 0)
		CF_TRY(cf_os_stat(directory, ".", &place, &exists, err));
	listed = find_listed(r->one, row, name, prefix, &place);
	if (directory->fd >= 0) {
		if (listed != NULL && r->remove) {
			removed = cf_os_directory_lock(directory, CF_COMMIT_LOCK_MS, &why);
			if (removed == CKPTFMT_OK) {
				removed = remove_input(directory, prefix->base, &listed->info, -1, &why);
				cf_os_directory_unlock(directory);
			}
			if (removed != CKPTFMT_OK)
				return not_removed(prefix, &why, err);
		}
		cf_index_name(prefix->base, index_name);
		CF_TRY(cf_os_stat(directory, index_name, &info, &exists, err));
	}
	*gone = !exists;
	if (listed != NULL)
		listed->gone = *gone;
	return CKPTFMT_OK;
}

static ckptfmt_status resume_prefix(const resuming *r, uint64_t row, const char *name, bool *gone, ckptfmt_error *err)
{
	cf_prefix prefix;
	cf_directory directory = {.fd = -1};
	ckptfmt_error why;
	ckptfmt_status status;
	CF_TRY(cf_prefix_split(name, &prefix, err));
	status = cf_storage_directory_open(r->commit->directory->storage, prefix.directory, false, false, &directory, &why);
	if (status != CKPTFMT_OK && status != CKPTFMT_NOT_FOUND && err != NULL)
		*err = why;
	if (status == CKPTFMT_OK || status == CKPTFMT_NOT_FOUND)
		status = resume_input(r, row, name, &prefix, &directory, gone, err);
	if (status == CKPTFMT_OK && r->remove && directory.fd >= 0) {
		if (r->commit->durability == CKPTFMT_DURABILITY_FULL &&
			cf_os_directory_sync(&directory, &why) != CKPTFMT_OK)
			status = not_removed(&prefix, &why, err);
		if (r->directories)
			cf_storage_directory_remove(directory.storage, prefix.directory);
	}
	cf_os_directory_close(&directory);
	cf_prefix_free(&prefix);
	return status;
}

static ckptfmt_status resume_prefixes(const resuming *r, const char *const *prefixes, uint64_t count, bool *finished,
	ckptfmt_error *err)
{
	uint64_t missing = 0;
	const char *name = "";
	bool all_listed = true;
	ckptfmt_status status;
	for (uint64_t i = 0; i < count; i++) {
		bool gone = false;
		CF_TRY(resume_prefix(r, i, prefixes[i], &gone, err));
		missing += gone;
		if (gone)
			name = prefixes[i];
	}
	for (uint64_t i = 0; i < r->one->count; i++)
		all_listed = all_listed && r->one->inputs[i].gone;
	*finished = r->remove && missing == count && all_listed;
	if (missing == 0 || missing == count)
		return CKPTFMT_OK;
	status = cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET,
		"MRG-14: a merge that was killed has moved %s into the destination, which this merge would replace",
		cf_merge_name(name));
	cf_error_path(err, r->commit->prefix->index_path);
	return status;
}

static ckptfmt_status resume(cf_commit *commit, const char *const *prefixes, uint64_t count,
	const ckptfmt_merge_options *options, bool *finished, ckptfmt_error *err)
{
	cf_buffer bytes = CF_BUFFER_EMPTY;
	intent one = {.count = 0};
	uint64_t inode = 0;
	bool found = false, whole = false;
	ckptfmt_status status;
	CF_TRY(cf_commit_lock(commit, err));
	status = read_file(commit, &bytes, &inode, err);
	if (status == CKPTFMT_OK)
		status = find_in_force(commit, &bytes, &one, &found, err);
	if (status == CKPTFMT_OK && found)
		status = settle_result(commit, &one, &whole, err);
	cf_commit_unlock(commit);
	if (found) {
		const resuming r = {commit, &one, options->consume && whole, options->remove_directories != 0};
		if (status == CKPTFMT_OK)
			status = resume_prefixes(&r, prefixes, count, finished, err);
		if (status == CKPTFMT_OK && *finished)
			remove_intent(commit, inode);
		cf_release(one.inputs);
	}
	cf_buffer_free(&bytes);
	return status;
}

ckptfmt_status cf_merge_resume(const char *const *prefixes, uint64_t count, const char *destination,
	const ckptfmt_merge_options *options, cf_merge_before *before, bool *finished, ckptfmt_error *err)
{
	cf_prefix prefix;
	cf_directory directory;
	cf_commit commit = {&prefix, &directory, options->durability, 0};
	ckptfmt_error why;
	ckptfmt_status status;
	*finished = false;
	memset(before, 0, sizeof *before);
	CF_TRY(cf_prefix_split(destination, &prefix, err));
	status = cf_storage_directory_open(options->storage, prefix.directory, false, false, &directory, &why);
	if (status == CKPTFMT_OK)
		status = cf_merge_look(&commit, before, err);
	else if (status != CKPTFMT_NOT_FOUND && err != NULL)
		*err = why;
	if (status == CKPTFMT_OK)
		status = resume(&commit, prefixes, count, options, finished, err);
	cf_os_directory_close(&directory);
	cf_prefix_free(&prefix);
	return status == CKPTFMT_NOT_FOUND ? CKPTFMT_OK : status;
}
