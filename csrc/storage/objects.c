/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storage/os.h on a ckptfmt_storage, whose objects are named by paths: "<path of the directory>/<name>".
 */
#include "storage/os.h"

#include "base/hash.h"
#include "base/limits.h"
#include "base/pages.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

enum {
	NO_DESCRIPTOR = INT_MAX,       /* `fd` of what is open */
	PATH_SIZE = 4096
};

/* Calls a function of the storage that `of` belongs to; a failure leaves the caller. The function gets an error record
 * of its own, all zero, which cf_fail_from copies: what the function does not fill is never read. */
#define TRY_CALL(of, function, ...) \
	do { \
		ckptfmt_error own = {0}; \
		CF_TRY(cf_fail_from((of)->storage->function((of)->storage->state, __VA_ARGS__, &own), &own, err)); \
	} while (0)

/* The path of an object, or of the directory for an empty name. */
static ckptfmt_status join(const cf_directory *directory, const char *name, char *to, ckptfmt_error *err)
{
	const char *path = strcmp(directory->path, ".") == 0 ? "" : directory->path;
	const char *slash = path[0] == '\0' || name[0] == '\0' || path[strlen(path) - 1] == '/' ? "" : "/";
	int size = snprintf(to, PATH_SIZE, "%s%s%s", path, slash, name);
	if (size < 0 || size >= PATH_SIZE)
		return cf_fail_os(err, ENAMETOOLONG, directory->path, "the path is too long");
	return CKPTFMT_OK;
}

static cf_file_info info_of(const ckptfmt_object_info *found)
{
	return (cf_file_info){.size = found->size, .inode = found->identity, .link_count = 1, .regular = true};
}

/* ---- directories ---- */

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

static ckptfmt_status open_directory(const ckptfmt_storage *storage, const char *path, bool make, bool sync_parents,
	cf_directory *out, ckptfmt_error *err)
{
	(void)make;
	(void)sync_parents;
	*out = (cf_directory){.fd = -1};
	CF_TRY(check_storage(storage, err));
	*out = (cf_directory){.fd = NO_DESCRIPTOR, .path = path, .storage = storage};
	return CKPTFMT_OK;
}

static void close_directory(cf_directory *directory)
{
	directory->fd = -1;
}

static ckptfmt_status lock_directory(const cf_directory *directory, uint64_t timeout_ms, ckptfmt_error *err)
{
	char path[PATH_SIZE];
	if (!has_locks(directory->storage))
		return CKPTFMT_OK;
	CF_TRY(join(directory, "", path, err));
	TRY_CALL(directory, lock, path, timeout_ms);
	return CKPTFMT_OK;
}

static void unlock_directory(const cf_directory *directory)
{
	char path[PATH_SIZE];
	if (has_locks(directory->storage) && join(directory, "", path, NULL) == CKPTFMT_OK)
		directory->storage->unlock(directory->storage->state, path);
}

static void put_name(void *to, const char *name)
{
	cf_put_bytes(to, name, strlen(name) + 1);
}

static ckptfmt_status list_directory(const cf_directory *directory, cf_buffer *names, ckptfmt_error *err)
{
	char path[PATH_SIZE];
	cf_buffer_clear(names);
	CF_TRY(join(directory, "", path, err));
	TRY_CALL(directory, list, path, put_name, names);
	return cf_buffer_status(names, err);
}

/* ---- objects ---- */

static ckptfmt_status open_object(const cf_directory *directory, const char *name, bool follow_symlinks, cf_file *out,
	cf_file_info *info, ckptfmt_error *err)
{
	ckptfmt_object_info found = {0, 0};
	char path[PATH_SIZE];
	(void)follow_symlinks;
	*out = (cf_file){.fd = -1, .storage = directory->storage};
	CF_TRY(join(directory, name, path, err));
	TRY_CALL(directory, open, path, &out->object, &found);
	if (info != NULL)
		*info = info_of(&found);
	if (out->object != NULL)
		out->fd = NO_DESCRIPTOR;
	return CKPTFMT_OK;
}

static ckptfmt_status create_object(const cf_directory *directory, const char *name, cf_file *out, bool *exists,
	ckptfmt_error *err)
{
	int32_t taken = 0;
	char path[PATH_SIZE];
	*out = (cf_file){.fd = -1, .storage = directory->storage};
	CF_TRY(join(directory, name, path, err));
	TRY_CALL(directory, create, path, &out->object, &taken);
	*exists = taken != 0;
	if (!*exists)
		out->fd = NO_DESCRIPTOR;
	return CKPTFMT_OK;
}

static ckptfmt_status look_up(const cf_directory *directory, const char *name, bool follow_symlinks, cf_file_info *info,
	bool *exists, ckptfmt_error *err)
{
	static const cf_hash_key key = {{0x9e3779b97f4a7c15, 0xc2b2ae3d27d4eb4f}};
	ckptfmt_object_info found = {0, 0};
	bool itself = strcmp(name, ".") == 0;
	int32_t there = itself;
	char path[PATH_SIZE];
	(void)follow_symlinks;
	*exists = false;
	memset(info, 0, sizeof *info);
	CF_TRY(join(directory, itself ? "" : name, path, err));
	if (!itself)
		TRY_CALL(directory, info, path, &found, &there);
	*exists = there != 0;
	if (itself) /* A directory is its path. */
		info->inode = cf_hash(&key, (const uint8_t *)path, strlen(path));
	else if (*exists)
		*info = info_of(&found);
	return CKPTFMT_OK;
}

static ckptfmt_status object_info(const cf_file *file, const char *path, cf_file_info *info, ckptfmt_error *err)
{
	ckptfmt_object_info found = {0, 0};
	(void)path;
	TRY_CALL(file, object_info, file->object, &found);
	*info = info_of(&found);
	return CKPTFMT_OK;
}

static ckptfmt_status finish_object(cf_file *file, const char *path, ckptfmt_error *err)
{
	(void)path;
	TRY_CALL(file, finish, file->object);
	return CKPTFMT_OK;
}

static void close_object(cf_file *file)
{
	if (file->fd >= 0)
		file->storage->close(file->storage->state, file->object);
	file->fd = -1;
	file->object = NULL;
}

ckptfmt_status cf_os_read_batch(const cf_directory *directory, ckptfmt_object_read *reads, uint64_t count,
	ckptfmt_error *err)
{
	TRY_CALL(directory, read_batch, reads, count);
	for (uint64_t i = 0; i < count; i++)
		reads[i].got = cf_min_u64(reads[i].got, reads[i].size);
	return CKPTFMT_OK;
}

static ckptfmt_status read_object(const cf_file *file, const char *path, uint8_t *to, uint64_t size, uint64_t offset,
	uint64_t *got, ckptfmt_error *err)
{
	ckptfmt_object_read read = {file->object, offset, size, to, 0};
	(void)path;
	*got = 0;
	TRY_CALL(file, read_batch, &read, 1);
	*got = cf_min_u64(read.got, size);
	return CKPTFMT_OK;
}

static ckptfmt_status append_object(const cf_file *file, const char *path, const uint8_t *from, uint64_t size,
	uint64_t offset, ckptfmt_error *err)
{
	(void)path;
	(void)offset;
	TRY_CALL(file, append, file->object, from, size);
	return CKPTFMT_OK;
}

/* ---- names ---- */

static ckptfmt_status publish_object(const cf_directory *directory, const char *from, const char *to, bool replaces,
	bool *exists, ckptfmt_error *err)
{
	int32_t taken = 0;
	char path[PATH_SIZE], target[PATH_SIZE];
	*exists = false;
	CF_TRY(join(directory, from, path, err));
	CF_TRY(join(directory, to, target, err));
	TRY_CALL(directory, publish, path, target, replaces, &taken);
	*exists = taken != 0;
	if (*exists && replaces)
		return cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET, "another writer has put %.160s meanwhile", to);
	return CKPTFMT_OK;
}

static ckptfmt_status adopt_object(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, cf_link_result *result, ckptfmt_error *err)
{
	int32_t answer = CKPTFMT_ADOPT_IMPOSSIBLE;
	char path[PATH_SIZE], target[PATH_SIZE];
	*result = CF_LINK_IMPOSSIBLE;
	if (to->storage != from->storage)
		return CKPTFMT_OK;
	CF_TRY(join(from, from_name, path, err));
	CF_TRY(join(to, to_name, target, err));
	TRY_CALL(from, adopt, path, target, &answer);
	*result = answer == CKPTFMT_ADOPT_DONE ? CF_LINK_DONE :
		answer == CKPTFMT_ADOPT_EXISTS ? CF_LINK_EXISTS :
		answer == CKPTFMT_ADOPT_NO_SOURCE ? CF_LINK_NO_SOURCE : CF_LINK_IMPOSSIBLE;
	return CKPTFMT_OK;
}

static ckptfmt_status remove_object(const cf_directory *directory, const char *name, ckptfmt_error *err)
{
	char path[PATH_SIZE];
	CF_TRY(join(directory, name, path, err));
	TRY_CALL(directory, remove, path);
	return CKPTFMT_OK;
}

/* A copy; cf_os_unmap frees it as it does a mapping. */
static ckptfmt_status copy_object(const cf_file *file, const char *path, uint64_t offset, uint64_t size,
	const uint8_t **out, ckptfmt_error *err)
{
	ckptfmt_status status;
	uint8_t *copy;
	uint64_t got;
	*out = NULL;
	CF_TRY(cf_pages_map(size, &copy, err));
	status = read_object(file, path, copy, size, offset, &got, err);
	if (status == CKPTFMT_OK && got < size)
		status = cf_fail_os(err, EIO, path, "the object has become smaller");
	if (status == CKPTFMT_OK)
		*out = copy;
	else
		cf_pages_unmap(copy, size);
	return status;
}

const cf_os cf_objects = {
	.directory_open = open_directory, .directory_close = close_directory, .directory_lock = lock_directory,
	.directory_unlock = unlock_directory, .directory_list = list_directory, .open = open_object,
	.create = create_object, .look_up = look_up, .file_info = object_info, .close_held = finish_object,
	.close_quietly = close_object, .read_at = read_object, .write_at = append_object, .publish = publish_object,
	.link = adopt_object, .unlink = remove_object, .map = copy_object,
};
