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
#endif

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
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

ckptfmt_status cf_local_directory_open(const char *path, bool make, bool sync_parents, cf_directory *out,
	ckptfmt_error *err)
{
	int fd;
	out->fd = -1;
	out->path = path;
	/* A writer will lock the directory. */
	int (*open_it)(int, const char *, int, mode_t) = make ? cf_posix_open_private : cf_posix_open;
	fd = open_it(AT_FDCWD, path, DIRECTORY_FLAGS, 0);
	if (fd < 0 && errno == ENOENT && make) {
		CF_TRY(make_directory(path, sync_parents, err));
		fd = open_it(AT_FDCWD, path, DIRECTORY_FLAGS, 0);
	}
#ifdef O_PATH
	/* Reading files needs permission to search a directory, not to list it. */
	if (fd < 0 && errno == EACCES && !make)
		fd = cf_posix_open(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
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

void cf_local_directory_close(cf_directory *directory)
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

ckptfmt_status cf_local_directory_lock(const cf_directory *directory, uint64_t timeout_ms, ckptfmt_error *err)
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

void cf_local_directory_unlock(const cf_directory *directory)
{
	(void)flock(directory->fd, LOCK_UN);
}

void cf_storage_directory_remove(const ckptfmt_storage *storage, const char *path)
{
	int before = errno;
	if (storage == NULL)
		(void)!unlinkat(AT_FDCWD, path, AT_REMOVEDIR);
	errno = before;
}

ckptfmt_status cf_os_directory_sync(const cf_directory *directory, ckptfmt_error *err)
{
	if (directory->storage == NULL && cf_posix_sync(directory->fd) != 0)
		return cf_fail_os(err, errno, directory->path, "cannot sync the directory");
	return CKPTFMT_OK;
}

ckptfmt_status cf_local_directory_list(const cf_directory *directory, cf_buffer *names, ckptfmt_error *err)
{
	ckptfmt_status status = CKPTFMT_OK;
	const struct dirent *entry;
	/* Opened anew: a duplicate would share its position with other listings. */
	int fd = cf_posix_open(directory->fd, ".", DIRECTORY_FLAGS, 0);
	DIR *stream;
	cf_buffer_clear(names);
	if (fd < 0)
		return cf_fail_os(err, errno, directory->path, "cannot list the directory");
	stream = fdopendir(fd);
	if (stream == NULL) {
		status = cf_fail_os(err, errno, directory->path, "cannot list the directory");
		cf_posix_close_quietly(fd);
		return status;
	}
	for (;;) {
		errno = 0;
		entry = readdir(stream);
		if (entry == NULL && errno == EINTR)
			continue;
		if (entry == NULL)
			break;
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			cf_put_bytes(names, entry->d_name, strlen(entry->d_name) + 1);
	}
	if (errno != 0)
		status = cf_fail_os(err, errno, directory->path, "cannot list the directory");
	else
		status = cf_buffer_status(names, err);
	(void)closedir(stream);
	return status;
}

/* ---- names ---- */

static int rename_at(const cf_directory *from, const char *from_name, const cf_directory *to, const char *to_name)
{
	int result;
	assert(cf_posix_is_name(from_name));
	assert(cf_posix_is_name(to_name));
	do {
		CF_COUNT(renames, 1);
		result = renameat(from->fd, from_name, to->fd, to_name);
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

ckptfmt_status cf_local_rename(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, ckptfmt_error *err)
{
	if (rename_at(from, from_name, to, to_name) != 0)
		return cf_posix_fail(err, errno, to, to_name, "cannot rename a file to this name");
	return CKPTFMT_OK;
}

ckptfmt_status cf_local_link(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, cf_link_result *result, ckptfmt_error *err)
{
	/* A linked symbolic link would resolve differently from another directory. */
	int done = link_at(from, from_name, to, to_name, AT_SYMLINK_FOLLOW);
	*result = CF_LINK_DONE;
	if (done == 0)
		return CKPTFMT_OK;
	switch (errno) {
	case EEXIST:
		*result = CF_LINK_EXISTS;
		return CKPTFMT_OK;
	case ENOENT:
		*result = CF_LINK_NO_SOURCE;
		return CKPTFMT_OK;
	case EXDEV: case EPERM: case EMLINK: case ENOSYS: case EOPNOTSUPP:
		*result = CF_LINK_IMPOSSIBLE;
		return CKPTFMT_OK;
	default:
		return cf_posix_fail(err, errno, to, to_name, "cannot link a file to this name");
	}
}

/* 0, or -1 with errno: ENOSYS or EINVAL if the system or the file system cannot do it. */
static int rename_noreplace(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name)
{
#if defined(__linux__) && defined(SYS_renameat2)
	long result;
	do {
		CF_COUNT(renames, 1);
		result = syscall(SYS_renameat2, from->fd, from_name, to->fd, to_name, RENAME_NOREPLACE);
	} while (result != 0 && errno == EINTR);
	return (int)result;
#else
	(void)from;
	(void)from_name;
	(void)to;
	(void)to_name;
	errno = ENOSYS;
	return -1;
#endif
}

static bool same_file(const cf_directory *a, const char *a_name, const cf_directory *b, const char *b_name)
{
	struct stat a_found, b_found;
	return cf_posix_stat(a->fd, a_name, &a_found, AT_SYMLINK_NOFOLLOW) == 0 &&
		cf_posix_stat(b->fd, b_name, &b_found, AT_SYMLINK_NOFOLLOW) == 0 &&
		a_found.st_dev == b_found.st_dev && a_found.st_ino == b_found.st_ino;
}

/* 0, or -1 with errno and, best effort, nothing changed. */
static int rename_by_link(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name)
{
	if (link_at(from, from_name, to, to_name, 0) != 0) {
		/* Over NFS a link whose reply was lost exists when the request is repeated. */
		if (errno != EEXIST)
			return -1;
		if (!same_file(from, from_name, to, to_name)) {
			errno = EEXIST;
			return -1;
		}
	}
	if (unlink_at(from, from_name) != 0 && errno != ENOENT) {
		int kept = errno;
		(void)unlink_at(to, to_name);
		errno = kept;
		return -1;
	}
	return 0;
}

/* For file systems without links: the process that creates the empty file owns the name and may replace it. */
static int rename_over_empty(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name)
{
	int fd = cf_posix_open(to->fd, to_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666);
	if (fd < 0)
		return -1;
	cf_posix_close_quietly(fd);
	if (rename_at(from, from_name, to, to_name) != 0) {
		int kept = errno;
		(void)unlink_at(to, to_name);
		errno = kept;
		return -1;
	}
	return 0;
}

static bool is_missing_call(int os_errno)
{
	return os_errno == ENOSYS || os_errno == EINVAL || os_errno == EOPNOTSUPP || os_errno == ENOTSUP;
}

ckptfmt_status cf_local_rename_new(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, bool *exists, ckptfmt_error *err)
{
	int result;
	assert(cf_posix_is_name(from_name));
	assert(cf_posix_is_name(to_name));
	result = rename_noreplace(from, from_name, to, to_name);
	if (result != 0 && is_missing_call(errno)) {
		result = rename_by_link(from, from_name, to, to_name);
		/* Linux: EPERM if the file system has no links, EMLINK if the file has too many. */
		if (result != 0 && (is_missing_call(errno) || errno == EPERM || errno == EMLINK))
			result = rename_over_empty(from, from_name, to, to_name);
	}
	*exists = result != 0 && errno == EEXIST;
	if (result != 0 && !*exists)
		return cf_posix_fail(err, errno, to, to_name, "cannot rename a file to this name");
	return CKPTFMT_OK;
}

ckptfmt_status cf_local_unlink(const cf_directory *directory, const char *name, ckptfmt_error *err)
{
	if (unlink_at(directory, name) != 0 && errno != ENOENT)
		return cf_posix_fail(err, errno, directory, name, "cannot remove the file");
	return CKPTFMT_OK;
}
