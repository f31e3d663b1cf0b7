/* SPDX-License-Identifier: Apache-2.0 */
/*
 * journal  "ckptfmt merge 1\n"  u64 size  u32 crc32c (of the result's index)  u32 data files of the result  file*
 *          u64 inputs  input*  u32 crc32c of all before
 * input    file (its index)  u64 inode (of its directory)  u32 name size  name  u32 num_shards  u64 data files
 *          (u32 shard  file)*
 * file     u64 inode  u64 size  u64 seconds  u64 nanoseconds
 *
 * Little-endian. It is read on the machine that wrote it, perhaps after a reboot, and says of files what stays. Nothing
 * is removed that it names but what the caller names as well.
 */
#include "merge/journal.h"

#include "base/cursor.h"
#include "base/memory.h"
#include "base/workers.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
	MAGIC_SIZE = 16,
	FILE_SIZE = 4 * 8,
	INPUT_SIZE_MIN = FILE_SIZE + 8 + 4 + 4 + 8,
	JOURNAL_SIZE_MAX = 1 << 26,         /* some hundred thousand inputs */
	LOCKED_MAX = 256,                   /* inputs removed under one lock: not for long */
	SHARED_MIN = 64,                    /* so many are worth a second thread */
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
	cf_put_u64(out, info->inode);
	cf_put_u64(out, info->size);
	cf_put_u64(out, (uint64_t)info->mtime_seconds);
	cf_put_u64(out, (uint64_t)info->mtime_nanoseconds);
}

static ckptfmt_status put_input(cf_buffer *out, cf_merge_input *in, ckptfmt_error *err)
{
	const cf_directory *directory;
	const cf_merge_file *file;
	uint64_t known = 0;
	for (int32_t shard = 0; cf_merge_input_next_file(in, &shard) != NULL; shard++)
		known++;
	CF_TRY(cf_merge_input_directory(in, &directory, err));
	put_file(out, &in->info);
	cf_put_u64(out, in->all->place.inode);
	cf_put_u32(out, (uint32_t)strlen(in->name));
	cf_put_bytes(out, in->name, strlen(in->name));
	cf_put_u32(out, (uint32_t)in->header.num_shards);
	cf_put_u64(out, known);
	for (int32_t shard = 0; (file = cf_merge_input_next_file(in, &shard)) != NULL; shard++) {
		cf_put_u32(out, (uint32_t)shard);
		put_file(out, &file->info);
	}
	return CKPTFMT_OK;
}

static ckptfmt_status put_journal(cf_buffer *out, const cf_merge_inputs *inputs, cf_index_mark result,
	const cf_file_info *files, int32_t count, ckptfmt_error *err)
{
	cf_put_bytes(out, magic, MAGIC_SIZE);
	cf_put_u64(out, result.size);
	cf_put_u32(out, result.crc32c);
	cf_put_u32(out, (uint32_t)count);
	for (int32_t i = 0; i < count; i++)
		put_file(out, &files[i]);
	cf_put_u64(out, inputs->count);
	for (uint64_t i = 0; i < inputs->count; i++)
		CF_TRY(put_input(out, &inputs->rows[i], err));
	CF_TRY(cf_buffer_status(out, err));
	cf_put_u32(out, ckptfmt_crc32c(0, out->data, out->size));
	if (out->size > JOURNAL_SIZE_MAX)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET, "MRG-14: a merge that removes its inputs takes fewer");
	return cf_buffer_status(out, err);
}

ckptfmt_status cf_merge_journal_write(const cf_commit *commit, const cf_merge_inputs *inputs, cf_index_mark result,
	const cf_file_info *files, int32_t count, cf_file_writer *file, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_buffer text = CF_BUFFER_EMPTY;
	ckptfmt_status status = put_journal(&text, inputs, result, files, count, err);
	journal_name(commit, name);
	if (status == CKPTFMT_OK)
		status = cf_file_writer_open(file, commit->directory, name, err);
	if (status == CKPTFMT_OK)
		status = cf_file_writer_put(file, text.data, text.size, err);
	if (status == CKPTFMT_OK)
		status = cf_file_writer_finish(file, commit->durability == CKPTFMT_DURABILITY_FULL, err);
	cf_buffer_free(&text);
	return status;
}

/* ---- reading --------------------------------------------------------------------------------------------- */

typedef struct listed_input {
	cf_file_info info;
	uint64_t directory_inode;
	const char *name;           /* not terminated */
	uint32_t name_size;
	int32_t num_shards;
	const uint8_t *files;       /* u32 and FILE_SIZE bytes each */
	uint64_t file_count;
	bool gone;                  /* seen to have no index any more */
} listed_input;

typedef struct journal {
	char name[CF_NAME_SIZE];
	cf_buffer text;
	cf_file_info info;          /* of the journal itself */
	cf_index_mark result;
	const uint8_t *results;     /* FILE_SIZE bytes each: the result's data files */
	int32_t data_count;
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
	if (!cf_take_u64(at, &out->inode) || !cf_take_u64(at, &out->size) || !cf_take_u64(at, &seconds) ||
		!cf_take_u64(at, &nanoseconds))
		return false;
	out->mtime_seconds = (int64_t)seconds;
	out->mtime_nanoseconds = (int64_t)nanoseconds;
	return true;
}

static bool take_count(cf_cursor *at, int32_t *out)
{
	uint32_t value;
	if (!cf_take_u32(at, &value) || value > INT32_MAX)
		return false;
	*out = (int32_t)value;
	return true;
}

static bool take_input(cf_cursor *at, listed_input *out)
{
	const uint8_t *name;
	if (!take_file(at, &out->info) || !cf_take_u64(at, &out->directory_inode) || !cf_take_u32(at, &out->name_size) ||
		!cf_take_bytes(at, out->name_size, &name) || !take_count(at, &out->num_shards) ||
		!cf_take_u64(at, &out->file_count) || out->file_count > cf_cursor_left(at) / (4 + FILE_SIZE))
		return false;
	out->name = (const char *)name;
	return cf_take_bytes(at, out->file_count * (4 + FILE_SIZE), &out->files);
}

/* False: it is none. NO_MEMORY counts as that too: the merge then says what is wrong. */
static bool parse_journal(journal *j)
{
	cf_cursor at;
	const uint8_t *start;
	uint64_t size = j->text.size;
	if (size < MAGIC_SIZE + 4 || ckptfmt_crc32c(0, j->text.data, size - 4) != cf_load_u32(j->text.data + size - 4))
		return false;
	at = cf_cursor_over(j->text.data, (size_t)(size - 4), 0);
	if (!cf_take_bytes(&at, MAGIC_SIZE, &start) || !cf_take_u64(&at, &j->result.size) ||
		!cf_take_u32(&at, &j->result.crc32c) || !take_count(&at, &j->data_count) ||
		!cf_take_bytes(&at, (uint64_t)j->data_count * FILE_SIZE, &j->results) || !cf_take_u64(&at, &j->count) ||
		j->count > cf_cursor_left(&at) / INPUT_SIZE_MIN)
		return false;
	j->inputs = cf_allocate_zero(j->count, sizeof *j->inputs);
	if (j->inputs == NULL)
		return false;
	for (uint64_t i = 0; i < j->count; i++)
		if (!take_input(&at, &j->inputs[i]))
			return false;
	return cf_cursor_left(&at) == 0;
}

static cf_file_info result_file(const journal *j, int32_t shard)
{
	cf_cursor at = cf_cursor_over(j->results + (uint64_t)shard * FILE_SIZE, FILE_SIZE, 0);
	cf_file_info info;
	(void)!take_file(&at, &info);
	return info;
}

/* The journal's bytes, if it begins like one and has a size that one may have. */
static ckptfmt_status read_bytes(const cf_file *file, const char *name, journal *j, bool *is, ckptfmt_error *err)
{
	uint8_t begin[MAGIC_SIZE], *to;
	uint64_t got;
	*is = false;
	CF_TRY(cf_os_read_at(file, name, begin, MAGIC_SIZE, 0, &got, err));
	if (got < MAGIC_SIZE || memcmp(begin, magic, MAGIC_SIZE) != 0 || j->info.size > JOURNAL_SIZE_MAX)
		return CKPTFMT_OK;
	to = cf_buffer_extend(&j->text, j->info.size);
	if (to == NULL)
		return cf_fail_memory(err);
	CF_TRY(cf_os_read_at(file, name, to, j->info.size, 0, &got, err));
	*is = got == j->info.size;
	return CKPTFMT_OK;
}

/* *found false: there is no journal of this name, or none that can be used. */
static ckptfmt_status read_journal(const cf_commit *commit, const char *name, journal *j, bool *found,
	ckptfmt_error *err)
{
	cf_file file;
	bool exists;
	ckptfmt_status status;
	*found = false;
	(void)snprintf(j->name, sizeof j->name, "%s", name);
	CF_TRY(cf_os_stat(commit->directory, name, &j->info, &exists, err));
	if (!exists || !j->info.regular)
		return CKPTFMT_OK;
	CF_TRY(cf_os_open(commit->directory, name, false, &file, &j->info, err));
	if (file.fd < 0)
		return CKPTFMT_OK;
	status = read_bytes(&file, name, j, found, err);
	cf_os_close_quietly(&file);
	*found = status == CKPTFMT_OK && *found && parse_journal(j);
	return status;
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

/* Whether the data files of the result have the sizes that they were made with; with durability FULL they, the index
 * and the directory are synced then. The merge was killed, and what it had written may never have come to the
 * device. */
static ckptfmt_status settle_result(const cf_commit *commit, const journal *j, bool *whole, ckptfmt_error *err)
{
	bool full = commit->durability == CKPTFMT_DURABILITY_FULL;
	char name[CF_NAME_SIZE];
	*whole = false;
	for (int32_t shard = 0; shard < j->data_count; shard++) {
		cf_file_info info;
		bool exists;
		cf_data_name(commit->prefix->base, shard, j->data_count, name);
		CF_TRY(cf_os_stat(commit->directory, name, &info, &exists, err));
		if (!exists || info.size != result_file(j, shard).size)
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

/* ---- what was left --------------------------------------------------------------------------------------- */

static ckptfmt_status is_left_of(const cf_commit *commit, const journal *j, const cf_generation_file *group,
	uint64_t count, bool *is, ckptfmt_error *err)
{
	*is = j->data_count == group[0].count;
	for (uint64_t i = 0; i < count && *is; i++) {
		char name[CF_NAME_SIZE];
		cf_file_info known, info;
		*is = group[i].usual;
		if (!*is)
			break;
		known = result_file(j, group[i].shard);
		cf_data_name(commit->prefix->base, group[i].shard, group[i].count, name);
		CF_TRY(cf_os_stat(commit->directory, name, &info, is, err));
		*is = *is && info.regular && (known.inode == 0 ? info.size == 0 : cf_same_state(&info, &known));
	}
	return CKPTFMT_OK;
}

/* The next name, from *at on, of a journal that did not get its own; NULL if there is none. */
static const char *next_unnamed(const cf_commit *commit, const cf_buffer *names, uint64_t *at)
{
	char begin[CF_NAME_SIZE];
	size_t size;
	journal_name(commit, begin);
	size = strlen(begin);
	while (*at < names->size) {
		const char *name = (const char *)names->data + *at;
		*at += strlen(name) + 1;
		if (strncmp(name, begin, size) == 0 && strncmp(name + size, ".tempstate", 10) == 0)
			return name;
	}
	return NULL;
}

ckptfmt_status cf_merge_journal_left(const cf_commit *commit, const cf_generation_file *group, uint64_t count,
	bool *left, ckptfmt_error *err)
{
	cf_buffer names = CF_BUFFER_EMPTY;
	ckptfmt_status status = cf_os_directory_list(commit->directory, &names, err);
	const char *name;
	uint64_t at = 0;
	*left = false;
	while (status == CKPTFMT_OK && !*left && (name = next_unnamed(commit, &names, &at)) != NULL) {
		journal j = {.count = 0};
		bool usable;
		status = read_journal(commit, name, &j, &usable, err);
		if (status == CKPTFMT_OK && usable)
			status = is_left_of(commit, &j, group, count, left, err);
		free_journal(&j);
	}
	cf_buffer_free(&names);
	return status;
}

/* ---- removing -------------------------------------------------------------------------------------------- */

/* Removes the file if it is (still) the one described. */
static void remove_file(const cf_directory *directory, const char *name, const cf_file_info *known)
{
	cf_file_info info;
	bool exists;
	if (cf_os_stat(directory, name, &info, &exists, NULL) == CKPTFMT_OK && exists && cf_same_state(&info, known))
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
	const cf_merge_file *file;
	bool mine;
	remove_index(directory, in->prefix.base, &in->info, &mine);
	for (int32_t shard = 0; mine && (file = cf_merge_input_next_file(in, &shard)) != NULL; shard++) {
		cf_data_name(in->prefix.base, shard, in->header.num_shards, name);
		remove_file(directory, name, &file->info);
	}
}

/* Inputs of one directory, which threads take one by one. */
typedef struct removal {
	const cf_directory *directory;
	const cf_merge_input *rows;
	uint64_t count;
	_Atomic uint64_t next;
} removal;

static void *remove_some(void *argument)
{
	removal *job = argument;
	uint64_t row;
	while ((row = atomic_fetch_add(&job->next, 1)) < job->count)
		remove_open_input(job->directory, &job->rows[row]);
	return NULL;
}

static void remove_open_inputs(const cf_directory *directory, const cf_merge_input *rows, uint64_t count)
{
	removal job = {.directory = directory, .rows = rows, .count = count};
	/* Most of the time goes into giving back what the files had, which needs no lock of the file system's. */
	cf_workers_run(count < SHARED_MIN ? 1 : 2, remove_some, &job);
}

static void remove_listed_input(const cf_directory *directory, const char *base, const listed_input *listed)
{
	char name[CF_NAME_SIZE];
	bool mine;
	remove_index(directory, base, &listed->info, &mine);
	for (uint64_t i = 0; mine && i < listed->file_count; i++) {
		cf_cursor at = cf_cursor_over(listed->files + i * (4 + FILE_SIZE), 4 + FILE_SIZE, 0);
		cf_file_info info;
		int32_t shard;
		if (!take_count(&at, &shard) || !take_file(&at, &info))
			return;
		cf_data_name(base, shard, listed->num_shards, name);
		remove_file(directory, name, &info);
	}
}

/* Only the journal that was read or written: another merge may have put its own there. */
static void remove_journal(const cf_commit *commit, const char *name, uint64_t inode)
{
	cf_file_info info;
	bool exists;
	if (cf_commit_lock(commit, NULL) != CKPTFMT_OK)
		return;
	if (cf_os_stat(commit->directory, name, &info, &exists, NULL) == CKPTFMT_OK && exists && info.inode == inode)
		(void)!cf_os_unlink(commit->directory, name, NULL);
	cf_commit_unlock(commit);
}

static ckptfmt_status name_journal(const cf_commit *commit, cf_file_writer *file, const char *name, ckptfmt_error *err)
{
	ckptfmt_error why;
	cf_file_info info;
	bool unknown, exists;
	ckptfmt_status status = cf_file_writer_replace(file, name, &unknown, &why);
	if (status == CKPTFMT_OK)
		return status;
	/* The same merge, run by somebody else just now, may have finished this one, journal and all. */
	if (!unknown && cf_os_stat(commit->directory, file->name, &info, &exists, NULL) == CKPTFMT_OK && !exists)
		return CKPTFMT_OK;
	if (err != NULL)
		*err = why;
	return status;
}

ckptfmt_status cf_merge_remove_inputs(const cf_commit *commit, cf_merge_inputs *inputs, cf_file_writer *file,
	ckptfmt_error *err)
{
	bool full = commit->durability == CKPTFMT_DURABILITY_FULL;
	char name[CF_NAME_SIZE];
	uint64_t inode = file->info.inode;
	journal_name(commit, name);
	CF_TRY(name_journal(commit, file, name, err));
	if (full)
		CF_TRY(cf_os_directory_sync(commit->directory, err));
	for (uint64_t i = 0, end; i < inputs->count; i = end) {
		cf_merge_input *in = &inputs->rows[i];
		const cf_directory *directory;
		/* Inputs of one directory mostly stand together: one lock for them, and one sync. */
		for (end = i + 1; end < inputs->count && end - i < LOCKED_MAX; end++)
			if (strcmp(inputs->rows[end].prefix.directory, in->prefix.directory) != 0)
				break;
		if (cf_merge_input_directory(in, &directory, NULL) != CKPTFMT_OK)
			continue;
		/* Who holds a lock so long holds it longer. The journal stays, and the inputs can go another time. */
		if (cf_os_directory_lock(directory, CF_COMMIT_LOCK_MS, NULL) != CKPTFMT_OK)
			return CKPTFMT_OK;
		remove_open_inputs(directory, in, end - i);
		cf_os_directory_unlock(directory);
		/* All removals are on the device before the journal goes. */
		if (full)
			(void)!cf_os_directory_sync(directory, NULL);
	}
	remove_journal(commit, name, inode);
	return CKPTFMT_OK;
}

/* ---- resuming -------------------------------------------------------------------------------------------- */

ckptfmt_status cf_merge_look(const cf_commit *commit, cf_merge_before *out, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_index_name(commit->prefix->base, name);
	return cf_os_stat(commit->directory, name, &out->info, &out->exists, err);
}

static bool is_text(const listed_input *listed, uint64_t size, const char *text)
{
	return strlen(text) == size && memcmp(text, listed->name, (size_t)size) == 0;
}

/* Whether the caller's prefix means this input: it says the same, or names its directory (where the checkpoint was
 * found by other means, as long as it was there), or it has the same base name in the same directory. */
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

/* Both lists may be long: an input that stands at the same place in both, the usual case, is found at once. */
static listed_input *find_listed(const journal *j, uint64_t row, const char *name, const cf_prefix *prefix,
	const cf_file_info *place)
{
	if (row < j->count && is_meant(&j->inputs[row], name, prefix, place))
		return &j->inputs[row];
	for (uint64_t i = 0; i < j->count; i++)
		if (is_meant(&j->inputs[i], name, prefix, place))
			return &j->inputs[i];
	return NULL;
}

/* One of the caller's prefixes in its directory (fd -1: gone). `remove`: what the journal lists of it goes. *gone: it
 * has no index now. */
static ckptfmt_status resume_input(const journal *j, uint64_t row, const char *name, const cf_prefix *prefix,
	const cf_directory *directory, bool remove, bool *gone, ckptfmt_error *err)
{
	char index_name[CF_NAME_SIZE];
	cf_file_info place, info;
	listed_input *listed;
	bool exists;
	memset(&place, 0, sizeof place);
	if (directory->fd >= 0)
		CF_TRY(cf_os_stat(directory, ".", &place, &exists, err));
	listed = find_listed(j, row, name, prefix, &place);
	*gone = true;
	if (directory->fd >= 0) {
		if (listed != NULL && remove) {
			CF_TRY(cf_os_directory_lock(directory, CF_COMMIT_LOCK_MS, err));
			remove_listed_input(directory, prefix->base, listed);
			cf_os_directory_unlock(directory);
		}
		cf_index_name(prefix->base, index_name);
		CF_TRY(cf_os_stat(directory, index_name, &info, &exists, err));
		*gone = !exists;
	}
	if (listed != NULL)
		listed->gone = *gone;
	return CKPTFMT_OK;
}

static ckptfmt_status resume_prefix(const journal *j, uint64_t row, const char *name, bool remove, bool full,
	bool *gone, ckptfmt_error *err)
{
	cf_prefix prefix;
	cf_directory directory = {-1, NULL};
	ckptfmt_error why;
	ckptfmt_status status;
	CF_TRY(cf_prefix_split(name, &prefix, err));
	status = cf_os_directory_open(prefix.directory, false, false, &directory, &why);
	if (status != CKPTFMT_OK && status != CKPTFMT_NOT_FOUND && err != NULL)
		*err = why;
	if (status == CKPTFMT_OK || status == CKPTFMT_NOT_FOUND)
		status = resume_input(j, row, name, &prefix, &directory, remove, gone, err);
	if (status == CKPTFMT_OK && remove && full && directory.fd >= 0)
		(void)!cf_os_directory_sync(&directory, NULL);
	cf_os_directory_close(&directory);
	cf_prefix_free(&prefix);
	return status;
}

static ckptfmt_status resume_prefixes(const cf_commit *commit, const journal *j, const char *const *prefixes,
	uint64_t count, bool remove, bool *finished, ckptfmt_error *err)
{
	uint64_t missing = 0;
	const char *name = "";
	bool all_listed = true;
	ckptfmt_status status;
	for (uint64_t i = 0; i < count; i++) {
		bool gone;
		CF_TRY(resume_prefix(j, i, prefixes[i], remove, commit->durability == CKPTFMT_DURABILITY_FULL, &gone, err));
		missing += gone;
		if (gone)
			name = prefixes[i];
	}
	for (uint64_t i = 0; i < j->count; i++)
		all_listed = all_listed && j->inputs[i].gone;
	*finished = remove && missing == count && all_listed;
	if (*finished)
		remove_journal(commit, j->name, j->info.inode);
	if (missing == 0 || missing == count)
		return CKPTFMT_OK;
	/* Going on would put the others in the place of what was merged, which is nowhere else any more. */
	status = cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET,
		"MRG-14: the destination has what a merge that was killed had taken from its inputs, and %s is gone",
		cf_merge_name(name));
	cf_error_path(err, commit->prefix->index_path);
	return status;
}

/* The journal of this name, if its index is in force. */
static ckptfmt_status read_if_in_force(const cf_commit *commit, const char *name, journal *j, bool *is,
	ckptfmt_error *err)
{
	ckptfmt_status status = read_journal(commit, name, j, is, err);
	if (status == CKPTFMT_OK && *is)
		status = is_in_force(commit, j, is, err);
	if (status != CKPTFMT_OK || !*is) {
		free_journal(j);
		memset(j, 0, sizeof *j);
	}
	return status;
}

/* The journal whose index is in force, also where the merge was killed before it gave that its name. */
static ckptfmt_status find_journal(const cf_commit *commit, journal *j, bool *found, ckptfmt_error *err)
{
	char usual[CF_NAME_SIZE];
	cf_buffer names = CF_BUFFER_EMPTY;
	const char *name;
	uint64_t at = 0;
	ckptfmt_status status;
	journal_name(commit, usual);
	status = read_if_in_force(commit, usual, j, found, err);
	if (status == CKPTFMT_OK && !*found)
		status = cf_os_directory_list(commit->directory, &names, err);
	while (status == CKPTFMT_OK && !*found && (name = next_unnamed(commit, &names, &at)) != NULL)
		status = read_if_in_force(commit, name, j, found, err);
	cf_buffer_free(&names);
	return status;
}

static ckptfmt_status resume(cf_commit *commit, const char *const *prefixes, uint64_t count, bool consume,
	bool *finished, ckptfmt_error *err)
{
	journal j = {.count = 0};
	bool found = false, whole = false;
	ckptfmt_status status;
	CF_TRY(cf_commit_lock(commit, err));
	status = find_journal(commit, &j, &found, err);
	if (status == CKPTFMT_OK && found)
		status = settle_result(commit, &j, &whole, err);
	cf_commit_unlock(commit);
	if (status == CKPTFMT_OK && found)
		status = resume_prefixes(commit, &j, prefixes, count, consume && whole, finished, err);
	free_journal(&j);
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
	status = cf_os_directory_open(prefix.directory, false, false, &directory, &why);
	if (status == CKPTFMT_OK)
		status = cf_merge_look(&commit, before, err);
	else if (status != CKPTFMT_NOT_FOUND && err != NULL)
		*err = why;
	if (status == CKPTFMT_OK)
		status = resume(&commit, prefixes, count, options->consume != 0, finished, err);
	cf_os_directory_close(&directory);
	cf_prefix_free(&prefix);
	return status == CKPTFMT_NOT_FOUND ? CKPTFMT_OK : status;
}
