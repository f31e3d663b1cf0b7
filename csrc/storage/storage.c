/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of storage/os.h that every storage has: each calls the file system (storage/posix_private.h) or the
 * ckptfmt_storage of its directory or file. posix*.c has the others, which do nothing for other storages.
 */
#include "storage/posix_private.h"

#include "base/hash.h"
#include "base/limits.h"
#include "base/pages.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
	NO_DESCRIPTOR = INT_MAX,       /* `fd` of what is open in another storage */
	PATH_SIZE = 4096
};

/* "<directory>/<name>", or the directory alone for an empty name. */
static ckptfmt_status join(const cf_directory *directory, const char *name, char *to, ckptfmt_error *err)
{
	const char *path = strcmp(directory->path, ".") == 0 ? "" : directory->path;
	const char *slash = path[0] == '\0' || name[0] == '\0' || path[strlen(path) - 1] == '/' ? "" : "/";
	int size = snprintf(to, PATH_SIZE, "%s%s%s", path, slash, name);
	if (size < 0 || size >= PATH_SIZE)
		return cf_fail_os(err, ENAMETOOLONG, directory->path, "the path is too long");
	return CKPTFMT_OK;
}

static void fill_info(const ckptfmt_object_info *from, cf_file_info *to)
{
	*to = (cf_file_info){.size = from->size, .inode = from->identity, .link_count = 1, .regular = true};
}

/*
 * Every function of a caller's storage gets an error record of its own, all zero, which cf_fail_from copies: what the
 * function does not fill is never read.
 */

/* What struct_size leaves out is zero: only the functions that a storage need not have come last. */
static ckptfmt_status check_storage(const ckptfmt_storage *from, ckptfmt_error *err)
{
	ckptfmt_storage given;
	CF_TRY(cf_struct_take(&given, sizeof given, from, "ckptfmt_storage", err));
	if (given.info == NULL || given.list == NULL || given.open == NULL || given.read_batch == NULL ||
		given.create == NULL || given.append == NULL || given.finish == NULL || given.object_info == NULL ||
		given.close == NULL || given.adopt == NULL || given.publish == NULL || given.remove == NULL)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"the storage must have every function but lock and unlock");
	if ((given.lock == NULL) != (given.unlock == NULL))
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"the storage must have both of lock and unlock, or neither");
	return CKPTFMT_OK;
}

static bool has_locks(const ckptfmt_storage *storage)
{
	return storage->struct_size >= sizeof *storage && storage->lock != NULL;
}

/* ---- directories ---- */

ckptfmt_status cf_storage_directory_open(const ckptfmt_storage *storage, const char *path, bool make,
	bool sync_parents, cf_directory *out, ckptfmt_error *err)
{
	*out = (cf_directory){.fd = -1};
	if (storage == NULL)
		return cf_local_directory_open(path, make, sync_parents, out, err);
	CF_TRY(check_storage(storage, err));
	*out = (cf_directory){.fd = NO_DESCRIPTOR, .path = path, .storage = storage};
	return CKPTFMT_OK;
}

void cf_os_directory_close(cf_directory *directory)
{
	if (directory->storage == NULL)
		cf_local_directory_close(directory);
	directory->fd = -1;
}

ckptfmt_status cf_os_directory_lock(const cf_directory *directory, uint64_t timeout_ms, ckptfmt_error *err)
{
	const ckptfmt_storage *storage = directory->storage;
	char path[PATH_SIZE];
	if (storage == NULL)
		return cf_local_directory_lock(directory, timeout_ms, err);
	if (!has_locks(storage))
		return CKPTFMT_OK;
	CF_TRY(join(directory, "", path, err));
	ckptfmt_error own = {0};
	return cf_fail_from(storage->lock(storage->state, path, timeout_ms, &own), &own, err);
}

void cf_os_directory_unlock(const cf_directory *directory)
{
	const ckptfmt_storage *storage = directory->storage;
	char path[PATH_SIZE];
	if (storage == NULL)
		cf_local_directory_unlock(directory);
	else if (has_locks(storage) && join(directory, "", path, NULL) == CKPTFMT_OK)
		storage->unlock(storage->state, path);
}

static void put_name(void *to, const char *name)
{
	cf_put_bytes(to, name, strlen(name) + 1);
}

ckptfmt_status cf_os_directory_list(const cf_directory *directory, cf_buffer *names, ckptfmt_error *err)
{
	const ckptfmt_storage *storage = directory->storage;
	char path[PATH_SIZE];
	if (storage == NULL)
		return cf_local_directory_list(directory, names, err);
	cf_buffer_clear(names);
	CF_TRY(join(directory, "", path, err));
	ckptfmt_error own = {0};
	CF_TRY(cf_fail_from(storage->list(storage->state, path, put_name, names, &own), &own, err));
	return cf_buffer_status(names, err);
}

/* ---- opening and closing ---- */

ckptfmt_status cf_os_open(const cf_directory *directory, const char *name, bool follow_symlinks, cf_file *out,
	cf_file_info *info, ckptfmt_error *err)
{
	const ckptfmt_storage *storage = directory->storage;
	ckptfmt_object_info found = {0, 0};
	char path[PATH_SIZE];
	*out = (cf_file){.fd = -1, .storage = storage};
	if (storage == NULL)
		return cf_local_open(directory, name, follow_symlinks, out, info, err);
	CF_TRY(join(directory, name, path, err));
	ckptfmt_error own = {0};
	CF_TRY(cf_fail_from(storage->open(storage->state, path, &out->object, &found, &own), &own, err));
	if (info != NULL)
		fill_info(&found, info);
	if (out->object != NULL)
		out->fd = NO_DESCRIPTOR;
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_create(const cf_directory *directory, const char *name, cf_file *out, bool *exists,
	ckptfmt_error *err)
{
	const ckptfmt_storage *storage = directory->storage;
	int32_t taken = 0;
	char path[PATH_SIZE];
	*out = (cf_file){.fd = -1, .storage = storage};
	if (storage == NULL)
		return cf_local_create(directory, name, out, exists, err);
	CF_TRY(join(directory, name, path, err));
	ckptfmt_error own = {0};
	CF_TRY(cf_fail_from(storage->create(storage->state, path, &out->object, &taken, &own), &own, err));
	*exists = taken != 0;
	if (!*exists)
		out->fd = NO_DESCRIPTOR;
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_stat(const cf_directory *directory, const char *name, cf_file_info *info, bool *exists,
	ckptfmt_error *err)
{
	const ckptfmt_storage *storage = directory->storage;
	static const cf_hash_key key = {{0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f}};
	ckptfmt_object_info found = {0, 0};
	int32_t there = 0;
	char path[PATH_SIZE];
	if (storage == NULL)
		return cf_local_stat(directory, name, info, exists, err);
	*exists = false;
	memset(info, 0, sizeof *info);
	/* A directory is its path. */
	if (strcmp(name, ".") == 0) {
		CF_TRY(join(directory, "", path, err));
		*exists = true;
		info->inode = cf_hash(&key, (const uint8_t *)path, strlen(path));
		return CKPTFMT_OK;
	}
	CF_TRY(join(directory, name, path, err));
	ckptfmt_error own = {0};
	CF_TRY(cf_fail_from(storage->info(storage->state, path, &found, &there, &own), &own, err));
	*exists = there != 0;
	if (*exists)
		fill_info(&found, info);
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_lstat(const cf_directory *directory, const char *name, cf_file_info *info, bool *exists,
	ckptfmt_error *err)
{
	return directory->storage == NULL ? cf_local_lstat(directory, name, info, exists, err)
		: cf_os_stat(directory, name, info, exists, err);
}

ckptfmt_status cf_os_file_info(const cf_file *file, const char *path, cf_file_info *info, ckptfmt_error *err)
{
	ckptfmt_object_info found = {0, 0};
	if (file->storage == NULL)
		return cf_local_file_info(file, path, info, err);
	ckptfmt_error own = {0};
	CF_TRY(cf_fail_from(file->storage->object_info(file->storage->state, file->object, &found, &own), &own, err));
	fill_info(&found, info);
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_close(cf_file *file, const char *path, ckptfmt_error *err)
{
	if (file->storage == NULL)
		return cf_local_close(file, path, err);
	cf_os_close_quietly(file);
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_close_held(cf_file *file, const char *path, ckptfmt_error *err)
{
	if (file->storage == NULL)
		return cf_local_close_held(file, path, err);
	ckptfmt_error own = {0};
	return cf_fail_from(file->storage->finish(file->storage->state, file->object, &own), &own, err);
}

void cf_os_close_quietly(cf_file *file)
{
	if (file->storage == NULL)
		cf_local_close_quietly(file);
	else if (file->fd >= 0)
		file->storage->close(file->storage->state, file->object);
	file->fd = -1;
	file->object = NULL;
}

/* ---- reading and writing ---- */

ckptfmt_status cf_os_read_at(const cf_file *file, const char *path, uint8_t *to, uint64_t size, uint64_t offset,
	uint64_t *got, ckptfmt_error *err)
{
	ckptfmt_object_read read = {file->object, offset, size, to, 0};
	*got = 0;
	if (file->storage == NULL)
		return cf_local_read_at(file, path, to, size, offset, got, err);
	ckptfmt_error own = {0};
	CF_TRY(cf_fail_from(file->storage->read_batch(file->storage->state, &read, 1, &own), &own, err));
	*got = cf_min_u64(read.got, size);
	return CKPTFMT_OK;
}

bool cf_os_has_latency(const cf_directory *directory)
{
	return directory->storage != NULL;
}

ckptfmt_status cf_os_read_batch(const cf_directory *directory, ckptfmt_object_read *reads, uint64_t count,
	ckptfmt_error *err)
{
	const ckptfmt_storage *storage = directory->storage;
	ckptfmt_error own = {0};
	CF_TRY(cf_fail_from(storage->read_batch(storage->state, reads, count, &own), &own, err));
	for (uint64_t i = 0; i < count; i++)
		reads[i].got = cf_min_u64(reads[i].got, reads[i].size);
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_write_at(const cf_file *file, const char *path, const uint8_t *from, uint64_t size,
	uint64_t offset, ckptfmt_error *err)
{
	if (file->storage == NULL)
		return cf_local_write_at(file, path, from, size, offset, err);
	ckptfmt_error own = {0};
	return cf_fail_from(file->storage->append(file->storage->state, file->object, from, size, &own), &own, err);
}

/* ---- names ---- */

static ckptfmt_status publish(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, bool replaces, bool *exists, ckptfmt_error *err)
{
	const ckptfmt_storage *storage = from->storage;
	int32_t taken = 0;
	char path[PATH_SIZE], target[PATH_SIZE];
	*exists = false;
	if (to->storage != storage)
		return cf_fail_os(err, EXDEV, to->path, "cannot move an object to another storage");
	CF_TRY(join(from, from_name, path, err));
	CF_TRY(join(to, to_name, target, err));
	ckptfmt_error own = {0};
	CF_TRY(cf_fail_from(storage->publish(storage->state, path, target, replaces, &taken, &own), &own, err));
	*exists = taken != 0;
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_rename(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, ckptfmt_error *err)
{
	bool exists;
	if (from->storage == NULL && to->storage == NULL)
		return cf_local_rename(from, from_name, to, to_name, err);
	CF_TRY(publish(from, from_name, to, to_name, true, &exists, err));
	if (exists)
		return cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET, "another writer has put %.160s meanwhile", to_name);
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_rename_new(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, bool *exists, ckptfmt_error *err)
{
	if (from->storage == NULL && to->storage == NULL)
		return cf_local_rename_new(from, from_name, to, to_name, exists, err);
	return publish(from, from_name, to, to_name, false, exists, err);
}

ckptfmt_status cf_os_link(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, cf_link_result *result, ckptfmt_error *err)
{
	const ckptfmt_storage *storage = from->storage;
	int32_t answer = CKPTFMT_ADOPT_IMPOSSIBLE;
	char path[PATH_SIZE], target[PATH_SIZE];
	if (storage == NULL && to->storage == NULL)
		return cf_local_link(from, from_name, to, to_name, result, err);
	*result = CF_LINK_IMPOSSIBLE;
	if (to->storage != storage)
		return CKPTFMT_OK;
	CF_TRY(join(from, from_name, path, err));
	CF_TRY(join(to, to_name, target, err));
	ckptfmt_error own = {0};
	CF_TRY(cf_fail_from(storage->adopt(storage->state, path, target, &answer, &own), &own, err));
	*result = answer == CKPTFMT_ADOPT_DONE ? CF_LINK_DONE :
		answer == CKPTFMT_ADOPT_EXISTS ? CF_LINK_EXISTS :
		answer == CKPTFMT_ADOPT_NO_SOURCE ? CF_LINK_NO_SOURCE : CF_LINK_IMPOSSIBLE;
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_unlink(const cf_directory *directory, const char *name, ckptfmt_error *err)
{
	const ckptfmt_storage *storage = directory->storage;
	char path[PATH_SIZE];
	if (storage == NULL)
		return cf_local_unlink(directory, name, err);
	CF_TRY(join(directory, name, path, err));
	ckptfmt_error own = {0};
	return cf_fail_from(storage->remove(storage->state, path, &own), &own, err);
}

/* ---- the rest ---- */

/* Where there are no mappings, a copy. cf_os_unmap frees both. */
ckptfmt_status cf_os_map(const cf_file *file, const char *path, uint64_t offset, uint64_t size, const uint8_t **out,
	ckptfmt_error *err)
{
	ckptfmt_status status;
	uint8_t *copy;
	uint64_t got;
	if (file->storage == NULL)
		return cf_local_map(file, path, offset, size, out, err);
	*out = NULL;
	CF_TRY(cf_pages_map(size, &copy, err));
	status = cf_os_read_at(file, path, copy, size, offset, &got, err);
	if (status == CKPTFMT_OK && got < size)
		status = cf_fail_os(err, EIO, path, "the object has become smaller");
	if (status != CKPTFMT_OK) {
		cf_pages_unmap(copy, size);
		return status;
	}
	*out = copy;
	return CKPTFMT_OK;
}

bool cf_os_can_map(const cf_file *file)
{
	return file->storage == NULL;
}
