/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The functions of storage/os.h that every storage has: each calls the file system (storage/posix_private.h) or the
 * ckptfmt_storage of its directory or file. posix*.c has the others, which do nothing for other storages.
 */
#include "storage/posix_private.h"

#include "base/hash.h"
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

/* ---- directories ---- */

ckptfmt_status cf_storage_directory_open(const ckptfmt_storage *storage, const char *path, bool make,
	bool sync_parents, cf_directory *out, ckptfmt_error *err)
{
	*out = (cf_directory){.fd = -1};
	if (storage == NULL)
		return cf_local_directory_open(path, make, sync_parents, out, err);
	if (storage->struct_size < sizeof *storage)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "struct_size of the storage is %llu, not %llu",
			(unsigned long long)storage->struct_size, (unsigned long long)sizeof *storage);
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
	if (storage->lock == NULL)
		return CKPTFMT_OK;
	CF_TRY(join(directory, "", path, err));
	return storage->lock(storage->state, path, timeout_ms, err);
}

void cf_os_directory_unlock(const cf_directory *directory)
{
	const ckptfmt_storage *storage = directory->storage;
	char path[PATH_SIZE];
	if (storage == NULL)
		cf_local_directory_unlock(directory);
	else if (storage->unlock != NULL && join(directory, "", path, NULL) == CKPTFMT_OK)
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
	CF_TRY(storage->list(storage->state, path, put_name, names, err));
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
	CF_TRY(storage->open(storage->state, path, &out->object, &found, err));
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
	CF_TRY(storage->create(storage->state, path, &out->object, &taken, err));
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
	CF_TRY(storage->info(storage->state, path, &found, &there, err));
	*exists = there != 0;
	if (*exists)
		fill_info(&found, info);
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_file_info(const cf_file *file, const char *path, cf_file_info *info, ckptfmt_error *err)
{
	ckptfmt_object_info found = {0, 0};
	if (file->storage == NULL)
		return cf_local_file_info(file, path, info, err);
	CF_TRY(file->storage->object_info(file->storage->state, file->object, &found, err));
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
	return file->storage->finish(file->storage->state, file->object, err);
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
	CF_TRY(file->storage->read_batch(file->storage->state, &read, 1, err));
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
	return directory->storage->read_batch(directory->storage->state, reads, count, err);
}

ckptfmt_status cf_os_write_at(const cf_file *file, const char *path, const uint8_t *from, uint64_t size,
	uint64_t offset, ckptfmt_error *err)
{
	if (file->storage == NULL)
		return cf_local_write_at(file, path, from, size, offset, err);
	return file->storage->append(file->storage->state, file->object, from, size, err);
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
	CF_TRY(storage->publish(storage->state, path, target, replaces, &taken, err));
	*exists = taken != 0;
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_rename(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, ckptfmt_error *err)
{
	bool ignored;
	if (from->storage == NULL && to->storage == NULL)
		return cf_local_rename(from, from_name, to, to_name, err);
	return publish(from, from_name, to, to_name, true, &ignored, err);
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
	CF_TRY(storage->adopt(storage->state, path, target, &answer, err));
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
	return storage->remove(storage->state, path, err);
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
