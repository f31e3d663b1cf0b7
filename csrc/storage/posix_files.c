/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storage/os.h on POSIX: directories, their locks, and the names in them. Conventions as in posix.c.
 */
#include "storage/posix_private.h"

#include "base/memory.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/syscall.h>
#include <sys/vfs.h>
#elif defined(__APPLE__)
#include <sys/mount.h>
#include <sys/param.h>
#endif

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

/* glibc lacks the name that POSIX has for this. */
#if !defined(O_SEARCH) && defined(O_PATH)
#define O_SEARCH O_PATH
#endif

enum { DIRECTORY_FLAGS = O_RDONLY | O_DIRECTORY | O_CLOEXEC };

/* ---- directories ---- */

/* Syncs the parent directory of `path`, which is modified temporarily. */
static ckptfmt_status sync_parent(char *path, ckptfmt_error *err)
{
	char *slash = strrchr(path, '/');
	const char *parent;
	ckptfmt_status status = CKPTFMT_OK;
	char behind = '\0';
	int fd;
	if (slash == NULL) {
		parent = ".";
	} else {
		parent = path;
		slash += slash == path;   /* The parent of "/x" is "/", not "". */
		behind = *slash;
		*slash = '\0';
	}
	fd = cf_posix_open(AT_FDCWD, parent, DIRECTORY_FLAGS, 0);
	if (fd < 0) {
		status = cf_fail_os(err, errno, parent, "cannot open the parent of a new directory");
	} else {
		if (cf_posix_sync(fd) != 0)
			status = cf_fail_os(err, errno, parent, "cannot sync the parent of a new directory");
		cf_posix_close_quietly(fd);
	}
	if (slash != NULL)
		*slash = behind;
	return status;
}

/* The end of the parent's path in a path that ends at `end`; 0 if it names none. */
static size_t parent_end(const char *path, size_t end)
{
	while (end > 0 && path[end - 1] != '/')
		end--;
	while (end > 0 && path[end - 1] == '/')
		end--;
	return end;
}

static int make_one(const char *path)
{
	int result;
	do
		result = mkdir(path, 0777);
	while (result != 0 && errno == EINTR);
	return result;
}

/* Makes the directory that the first `end` bytes of `path` name, and missing parents before it. Those that exist are
 * left alone, even where this process may not write to them. */
static ckptfmt_status make_level(char *path, size_t end, bool sync_parents, ckptfmt_error *err)
{
	ckptfmt_status status = CKPTFMT_OK;
	char behind = path[end];
	size_t parent = parent_end(path, end);
	bool missed_parent;
	int result;
	path[end] = '\0';
	result = make_one(path);
	missed_parent = result != 0 && errno == ENOENT && parent != 0;
	/* The system refuses long paths at once, so there are at most some thousand levels. */
	if (missed_parent) {
		status = make_level(path, parent, sync_parents, err);
		result = status == CKPTFMT_OK ? make_one(path) : 0;
	}
	/* One that exists although its parent was missing was made by another process just now: as unsynced as ours. */
	if (result != 0 && errno != EEXIST)
		status = cf_fail_os(err, errno, path, "cannot make the directory");
	else if (status == CKPTFMT_OK && sync_parents && (result == 0 || missed_parent))
		status = sync_parent(path, err);
	path[end] = behind;
	return status;
}

static ckptfmt_status make_directory(const char *path, bool sync_parents, ckptfmt_error *err)
{
	size_t size = strlen(path);
	char *copy = cf_allocate((uint64_t)size + 1);
	ckptfmt_status status;
	if (copy == NULL)
		return cf_fail_memory(err);
	memcpy(copy, path, size + 1);
	while (size > 1 && copy[size - 1] == '/')
		copy[--size] = '\0';
	status = make_level(copy, size, sync_parents, err);
	cf_release(copy);
	return status;
}

static ckptfmt_status open_directory(const ckptfmt_storage *storage, const char *path, bool make, bool sync_parents,
	cf_directory *out, ckptfmt_error *err)
{
	int fd;
	*out = (cf_directory){.fd = -1, .path = path, .storage = storage};
	/* A writer will lock the directory. */
	int (*open_it)(int, const char *, int, mode_t) = make ? cf_posix_open_private : cf_posix_open;
	fd = open_it(AT_FDCWD, path, DIRECTORY_FLAGS, 0);
	if (fd < 0 && errno == ENOENT && make) {
		CF_TRY(make_directory(path, sync_parents, err));
		fd = open_it(AT_FDCWD, path, DIRECTORY_FLAGS, 0);
	}
#ifdef O_SEARCH
	/* Reading files needs permission to search a directory, not to list it. */
	if (fd < 0 && errno == EACCES && !make)
		fd = cf_posix_open(AT_FDCWD, path, O_SEARCH | O_DIRECTORY | O_CLOEXEC, 0);
#endif
	/* NAM-2: a path that is not a directory counts as missing. */
	if (fd < 0 && (errno == ENOENT || errno == ENOTDIR) && !make) {
		ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, CF_NO_OFFSET,
			"the directory does not exist");
		cf_error_path(err, path);
		return status;
	}
	if (fd < 0)
		return cf_fail_os(err, errno, path, "cannot open the directory");
	out->fd = fd;
	return CKPTFMT_OK;
}

static void close_directory(cf_directory *directory)
{
	if (directory->fd >= 0)
		cf_posix_close_quietly(directory->fd);
	directory->fd = -1;
}

static void pause_ms(uint64_t milliseconds)
{
	struct timespec time = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
	(void)nanosleep(&time, NULL);
}

static ckptfmt_status lock_directory(const cf_directory *directory, uint64_t timeout_ms, ckptfmt_error *err)
{
	enum { PAUSE_MAX = 50 };
	int kept = errno;
	uint64_t waited = 0, pause = 1;
	ckptfmt_status status = CKPTFMT_OK;
	cf_posix_make_private(directory->fd);
	/* A blocking flock has no time limit, and the holder may be stopped. */
	while (flock(directory->fd, LOCK_EX | LOCK_NB) != 0) {
		if (errno == EINTR)
			continue;
		if (errno != EWOULDBLOCK)
			break;
		if (waited >= timeout_ms) {
			status = cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET,
				"another process has held the directory's lock for %llu seconds",
				(unsigned long long)(timeout_ms / 1000));
			cf_error_path(err, directory->path);
			break;
		}
		pause_ms(pause);
		waited += pause;
		pause = cf_min_u64(2 * pause, PAUSE_MAX);
	}
	errno = kept;
	return status;
}

static void unlock_directory(const cf_directory *directory)
{
	(void)flock(directory->fd, LOCK_UN);
}

void cf_storage_directory_remove(const ckptfmt_storage *storage, const char *path)
{
	int before = errno;
	if (cf_os_is_local(storage))
		(void)!unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
	errno = before;
}

ckptfmt_status cf_os_directory_sync(const cf_directory *directory, ckptfmt_error *err)
{
	if (cf_os_is_local(directory->storage) && cf_posix_sync(directory->fd) != 0)
		return cf_fail_os(err, errno, directory->path, "cannot sync the directory");
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_directory_list_first(const cf_directory *directory, uint64_t count_max, cf_buffer *names,
	ckptfmt_error *err)
{
	ckptfmt_status status;
	const struct dirent *entry;
	uint64_t count = 0;
	/* Opened anew: a duplicate would share its position with other listings. */
	int fd = cf_posix_open(directory->fd, ".", DIRECTORY_FLAGS, 0);
	DIR *stream = fd < 0 ? NULL : fdopendir(fd);
	cf_buffer_clear(names);
	if (stream == NULL) {
		status = cf_fail_os(err, errno, directory->path, "cannot list the directory");
		if (fd >= 0)
			cf_posix_close_quietly(fd);
		return status;
	}
	do {
		errno = 0;
		entry = readdir(stream);
		if (entry != NULL && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0) {
			cf_put_bytes(names, entry->d_name, strlen(entry->d_name) + 1);
			count++;
		}
	} while (count <= count_max && (entry != NULL || errno == EINTR));
	if (count > count_max)
		cf_buffer_clear(names);
	if (errno != 0)
		status = cf_fail_os(err, errno, directory->path, "cannot list the directory");
	else
		status = cf_buffer_status(names, err);
	(void)closedir(stream);
	return status;
}

static ckptfmt_status list_directory(const cf_directory *directory, cf_buffer *names, ckptfmt_error *err)
{
	return cf_os_directory_list_first(directory, UINT64_MAX, names, err);
}

bool cf_os_directory_open_in(const cf_directory *directory, const char *name, cf_directory *out)
{
	assert(cf_posix_is_name(name));
	*out = (cf_directory){.fd = cf_posix_open(directory->fd, name, DIRECTORY_FLAGS | O_NOFOLLOW, 0), .path = name};
	return out->fd >= 0;
}

bool cf_os_directory_remove_in(const cf_directory *directory, const char *name)
{
	assert(cf_posix_is_name(name));
	return unlinkat(directory->fd, name, AT_REMOVEDIR) == 0;
}

int32_t ckptfmt_file_system_is_local(int32_t fd)
{
	/* Each system has a call of its own for this. */
#if defined(__linux__)
	static const uint32_t kinds[] = {
		0xef53 /* ext2 to ext4 */, 0x58465342 /* xfs */, 0x9123683e /* btrfs */, 0x01021994 /* tmpfs */,
		0x858458f6 /* ramfs */, 0x794c7630 /* overlayfs */, 0x2fc12fc1 /* zfs */, 0xf2f52010 /* f2fs */,
		0xca451a4e /* bcachefs */, 0x4d44 /* vfat */, 0x2011bab0 /* exfat */, 0x7366746e /* ntfs3 */,
		0x3153464a /* jfs */, 0x52654973 /* reiserfs */, 0x3434 /* nilfs2 */, 0x482b /* hfs+ */,
	};
	struct statfs found;
	int result;
	do
		result = fstatfs(fd, &found);
	while (result != 0 && errno == EINTR);
	for (size_t i = 0; result == 0 && i < sizeof kinds / sizeof *kinds; i++)
		if ((uint32_t)found.f_type == kinds[i])
			return 1;
#elif defined(__APPLE__)
	struct statfs found;
	if (fstatfs(fd, &found) == 0)
		return (found.f_flags & MNT_LOCAL) != 0;
#else
	(void)fd;
#endif
	return 0;
}

/* ---- names ---- */

static int rename_at(const cf_directory *directory, const char *from, const char *to)
{
	int result;
	do {
		CF_COUNT(renames, 1);
		result = renameat(directory->fd, from, directory->fd, to);
	} while (result != 0 && errno == EINTR);
	return result;
}

static int link_at(const cf_directory *from, const char *from_name, const cf_directory *to, const char *to_name,
	int flags)
{
	int result;
	assert(cf_posix_is_name(from_name));
	assert(cf_posix_is_name(to_name));
	do {
		CF_COUNT(links, 1);
		result = linkat(from->fd, from_name, to->fd, to_name, flags);
	} while (result != 0 && errno == EINTR);
	return result;
}

static int unlink_at(const cf_directory *directory, const char *name)
{
	int result;
	assert(cf_posix_is_name(name));
	do {
		CF_COUNT(unlinks, 1);
		result = unlinkat(directory->fd, name, 0);
	} while (result != 0 && errno == EINTR);
	return result;
}

/* Of the system, or of the file system. */
static bool is_unsupported(int os_errno)
{
	return os_errno == ENOSYS || os_errno == EOPNOTSUPP || os_errno == ENOTSUP;
}

static ckptfmt_status link_file(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, cf_link_result *result, ckptfmt_error *err)
{
	*result = cf_os_is_local(from->storage) ? CF_LINK_DONE : CF_LINK_IMPOSSIBLE;
	/* A linked symbolic link would resolve differently from another directory. */
	if (*result != CF_LINK_DONE || link_at(from, from_name, to, to_name, AT_SYMLINK_FOLLOW) == 0)
		return CKPTFMT_OK;
	switch (errno) {
	case EEXIST:
		*result = CF_LINK_EXISTS;
		return CKPTFMT_OK;
	case ENOENT:
		*result = CF_LINK_NO_SOURCE;
		return CKPTFMT_OK;
	case EXDEV: case EPERM: case EMLINK:
		*result = CF_LINK_IMPOSSIBLE;
		return CKPTFMT_OK;
	default:
		*result = CF_LINK_IMPOSSIBLE;
		return is_unsupported(errno) ? CKPTFMT_OK
			: cf_posix_fail(err, errno, to, to_name, "cannot link a file to this name");
	}
}

/* 0, or -1 with errno: ENOSYS or EINVAL if the system or the file system cannot do it. */
static int rename_noreplace(const cf_directory *directory, const char *from, const char *to)
{
#if !CKPTFMT_PLAIN_POSIX
	long result;
	do {
		CF_COUNT(renames, 1);
		result = syscall(SYS_renameat2, directory->fd, from, directory->fd, to, RENAME_NOREPLACE);
	} while (result != 0 && errno == EINTR);
	return (int)result;
#else
	(void)directory;
	(void)from;
	(void)to;
	errno = ENOSYS;
	return -1;
#endif
}

static bool same_file(const cf_directory *directory, const char *a, const char *b)
{
	struct stat a_found, b_found;
	return cf_posix_stat(directory->fd, a, &a_found, AT_SYMLINK_NOFOLLOW) == 0 &&
		cf_posix_stat(directory->fd, b, &b_found, AT_SYMLINK_NOFOLLOW) == 0 &&
		a_found.st_dev == b_found.st_dev && a_found.st_ino == b_found.st_ino;
}

/* Removes the name that a failed rename left, if `failed`. Returns 0, or -1 with errno as it was. */
static int take_back(bool failed, const cf_directory *directory, const char *name)
{
	int kept = errno;
	if (!failed)
		return 0;
	(void)unlink_at(directory, name);
	errno = kept;
	return -1;
}

/* 0, or -1 with errno and, best effort, nothing changed. */
static int rename_by_link(const cf_directory *directory, const char *from, const char *to)
{
	if (link_at(directory, from, directory, to, 0) != 0) {
		/* Over NFS a link whose reply was lost exists when the request is repeated. */
		if (errno != EEXIST)
			return -1;
		if (!same_file(directory, from, to)) {
			errno = EEXIST;
			return -1;
		}
	}
	return take_back(unlink_at(directory, from) != 0 && errno != ENOENT, directory, to);
}

/* For file systems without links: the process that creates the empty file owns the name and may replace it. */
static int rename_over_empty(const cf_directory *directory, const char *from, const char *to)
{
	int fd = cf_posix_open(directory->fd, to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666);
	if (fd < 0)
		return -1;
	cf_posix_close_quietly(fd);
	return take_back(rename_at(directory, from, to) != 0, directory, to);
}

static bool is_missing_call(int os_errno)
{
	return os_errno == EINVAL || is_unsupported(os_errno);
}

static int rename_new(const cf_directory *directory, const char *from, const char *to)
{
	int result = rename_noreplace(directory, from, to);
	if (result != 0 && is_missing_call(errno)) {
		result = rename_by_link(directory, from, to);
		/* Linux: EPERM if the file system has no links, EMLINK if the file has too many. */
		if (result != 0 && (is_missing_call(errno) || errno == EPERM || errno == EMLINK))
			result = rename_over_empty(directory, from, to);
	}
	return result;
}

static ckptfmt_status publish(const cf_directory *directory, const char *from, const char *to, bool replaces,
	bool *exists, ckptfmt_error *err)
{
	int result;
	assert(cf_posix_is_name(from) && cf_posix_is_name(to));
	result = replaces ? rename_at(directory, from, to) : rename_new(directory, from, to);
	*exists = result != 0 && !replaces && errno == EEXIST;
	if (result != 0 && !*exists)
		return cf_posix_fail(err, errno, directory, to, "cannot rename a file to this name");
	return CKPTFMT_OK;
}

static ckptfmt_status unlink_file(const cf_directory *directory, const char *name, ckptfmt_error *err)
{
	if (unlink_at(directory, name) != 0 && errno != ENOENT)
		return cf_posix_fail(err, errno, directory, name, "cannot remove the file");
	return CKPTFMT_OK;
}

const cf_os cf_local = {
	.directory_open = open_directory, .directory_close = close_directory, .directory_lock = lock_directory,
	.directory_unlock = unlock_directory, .directory_list = list_directory, .open = cf_posix_open_file,
	.create = cf_posix_create, .look_up = cf_posix_look_up, .file_info = cf_posix_file_info,
	.close_held = cf_posix_close_held, .close_quietly = cf_posix_close, .read_at = cf_posix_read_at,
	.write_at = cf_posix_write_at, .publish = publish, .link = link_file, .unlink = unlink_file, .map = cf_posix_map,
};
