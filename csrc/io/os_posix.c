/* SPDX-License-Identifier: Apache-2.0 */
/*
 * io/os.h on POSIX, with what Linux adds where it is compiled for Linux.
 *
 * Order of the file: counters, failures, directories, opening, reading and writing, names, the rest. A function makes
 * one kind of system call, in a loop where EINTR or a short transfer can ask for another. What returns nothing leaves
 * errno as it was.
 */
#include "io/os.h"

#include "base/memory.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__
#include <sys/random.h>
#include <sys/syscall.h>
#endif

#ifndef RENAME_NOREPLACE
#define RENAME_NOREPLACE 1
#endif

CF_STATIC_ASSERT(sizeof(off_t) == 8, "files beyond 2 GiB need 64-bit offsets: build with _FILE_OFFSET_BITS=64");

enum {
	TRANSFER_BYTES_MAX = 0x7ffff000,   /* what one Linux read or write moves at most */
	EMPTY_WRITES_MAX = 8,              /* writes of 0 bytes in a row before we give up */
	PATH_SIZE = sizeof((ckptfmt_error *)0)->path,
	DIRECTORY_FLAGS = O_RDONLY | O_DIRECTORY | O_CLOEXEC
};

/* ---- counters ---- */

static struct {
	_Atomic uint64_t opens, reads, bytes_read, writes, bytes_written, syncs, renames, links, unlinks, maps;
} counters;

#define COUNT(field, amount) ((void)atomic_fetch_add_explicit(&counters.field, (amount), memory_order_relaxed))
#define COUNTED(field) atomic_load_explicit(&counters.field, memory_order_relaxed)

void ckptfmt_counters_get(ckptfmt_counters *out)
{
	out->opens = COUNTED(opens);
	out->reads = COUNTED(reads);
	out->bytes_read = COUNTED(bytes_read);
	out->writes = COUNTED(writes);
	out->bytes_written = COUNTED(bytes_written);
	out->syncs = COUNTED(syncs);
	out->renames = COUNTED(renames);
	out->links = COUNTED(links);
	out->unlinks = COUNTED(unlinks);
	out->maps = COUNTED(maps);
}

/* ---- failures ---- */

/* Names are chosen by us, never read from a file. */
static inline bool is_name(const char *name)
{
	return name[0] != '\0' && strchr(name, '/') == NULL;
}

/* Puts the end of `text`, as much as fits, before `end`; returns where it begins. */
static char *put_before(const char *start, char *end, const char *text)
{
	size_t size = strlen(text);
	size_t room = (size_t)(end - start);
	size_t kept = size < room ? size : room;
	memcpy(end - kept, text + size - kept, kept);
	return end - kept;
}

void cf_os_path(const cf_directory *directory, const char *name, char *to, uint64_t size)
{
	const char *path = directory->path;
	char *begin = to + size - 1;
	assert(size > 0);
	*begin = '\0';
	begin = put_before(to, begin, name);
	if (strcmp(path, ".") != 0) {
		if (path[0] != '\0' && path[strlen(path) - 1] != '/')
			begin = put_before(to, begin, "/");
		begin = put_before(to, begin, path);
	}
	memmove(to, begin, (size_t)(to + size - begin));
}

static ckptfmt_status fail_named(ckptfmt_error *err, int os_errno, const cf_directory *directory, const char *name,
	const char *message)
{
	char path[PATH_SIZE];
	cf_os_path(directory, name, path, sizeof path);
	return cf_fail_os(err, os_errno, path, "%s", message);
}

static ckptfmt_status fail_at(ckptfmt_error *err, int os_errno, const char *path, uint64_t offset, const char *message)
{
	ckptfmt_status status = cf_fail_os(err, os_errno, path, "%s", message);
	cf_error_offset(err, offset);
	return status;
}

/* Every open goes through here. `mode` counts only with O_CREAT. */
static int open_at(int directory_fd, const char *name, int flags, mode_t mode)
{
	int fd;
	do {
		COUNT(opens, 1);
		fd = openat(directory_fd, name, flags, mode);
	} while (fd < 0 && errno == EINTR);
	return fd;
}

/* Linux frees the descriptor whatever close returns: a second close could hit another thread's file. */
static void close_quietly(int fd)
{
	int kept = errno;
	(void)close(fd);
	errno = kept;
}

static int sync_fd(int fd)
{
	int result;
	do {
		COUNT(syncs, 1);
#if defined(F_FULLFSYNC)
		result = fcntl(fd, F_FULLFSYNC);
#else
		result = fsync(fd);
#endif
	} while (result != 0 && errno == EINTR);
	return result;
}

/* ---- directories ---- */

/* Syncs the directory that the last part of `path` stands in. `path` is cut for a moment. */
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
	fd = open_at(AT_FDCWD, parent, DIRECTORY_FLAGS, 0);
	if (fd < 0) {
		status = cf_fail_os(err, errno, parent, "cannot open the parent of a new directory");
	} else {
		if (sync_fd(fd) != 0)
			status = cf_fail_os(err, errno, parent, "cannot sync the parent of a new directory");
		close_quietly(fd);
	}
	if (slash != NULL)
		*slash = behind;
	return status;
}

/* The end of the part of `path` that comes before the one ending at `end`; 0 if there is none. */
static size_t part_before(const char *path, size_t end)
{
	while (end > 0 && path[end - 1] != '/')
		end--;
	while (end > 0 && path[end - 1] == '/')
		end--;
	return end;
}

/* The end of the part of `path` that comes after `end`. */
static size_t part_after(const char *path, size_t end, size_t size)
{
	while (end < size && path[end] == '/')
		end++;
	while (end < size && path[end] != '/')
		end++;
	return end;
}

/* Makes the directory that the first `end` bytes of `path` name; *no_parent (then not made) is no failure. On the way
 * down one that is there already was made by another process just now, so it is as unsynced as one of ours. */
static ckptfmt_status make_level(char *path, size_t end, bool way_down, bool sync_parents, bool *no_parent,
	ckptfmt_error *err)
{
	ckptfmt_status status = CKPTFMT_OK;
	char behind = path[end];
	int result;
	path[end] = '\0';
	do
		result = mkdir(path, 0777);
	while (result != 0 && errno == EINTR);
	*no_parent = result != 0 && errno == ENOENT;
	if (result != 0 && errno != ENOENT && errno != EEXIST)
		status = cf_fail_os(err, errno, path, "cannot make the directory");
	else if (sync_parents && (result == 0 || (way_down && !*no_parent)))
		status = sync_parent(path, err);
	path[end] = behind;
	return status;
}

/* Makes `path`, of `size` bytes without a slash at its end, and what is missing above it. First up, to the nearest
 * level whose parent is there, then down: levels that exist are left alone, even where nobody may write to them. */
static ckptfmt_status make_levels(char *path, size_t size, bool sync_parents, ckptfmt_error *err)
{
	size_t end = size;
	bool no_parent;
	CF_TRY(make_level(path, end, false, sync_parents, &no_parent, err));
	while (no_parent && part_before(path, end) != 0) {
		end = part_before(path, end);
		CF_TRY(make_level(path, end, false, sync_parents, &no_parent, err));
	}
	while (end < size && !no_parent) {
		end = part_after(path, end, size);
		CF_TRY(make_level(path, end, true, sync_parents, &no_parent, err));
	}
	/* A link that leads nowhere on the way, or a level removed behind us. */
	return no_parent ? cf_fail_os(err, ENOENT, path, "cannot make the directory") : CKPTFMT_OK;
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
	status = make_levels(copy, size, sync_parents, err);
	cf_release(copy);
	return status;
}

ckptfmt_status cf_os_directory_open(const char *path, bool make, bool sync_parents, cf_directory *out,
	ckptfmt_error *err)
{
	int fd;
	out->fd = -1;
	out->path = path;
	fd = open_at(AT_FDCWD, path, DIRECTORY_FLAGS, 0);
	if (fd < 0 && errno == ENOENT && make) {
		CF_TRY(make_directory(path, sync_parents, err));
		fd = open_at(AT_FDCWD, path, DIRECTORY_FLAGS, 0);
	}
#ifdef O_PATH
	/* Reading files takes the right to search a directory, not the one to list it. */
	if (fd < 0 && errno == EACCES && !make)
		fd = open_at(AT_FDCWD, path, O_PATH | O_DIRECTORY | O_CLOEXEC, 0);
#endif
	if (fd < 0 && errno == ENOENT && !make) {
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

void cf_os_directory_close(cf_directory *directory)
{
	if (directory->fd >= 0)
		close_quietly(directory->fd);
	directory->fd = -1;
}

static void pause_ms(uint64_t milliseconds)
{
	struct timespec time = {(time_t)(milliseconds / 1000), (long)(milliseconds % 1000) * 1000000};
	(void)nanosleep(&time, NULL);
}

ckptfmt_status cf_os_directory_lock(const cf_directory *directory, uint64_t timeout_ms, ckptfmt_error *err)
{
	enum { PAUSE_MAX = 50 };
	int kept = errno;
	uint64_t waited = 0, pause = 1;
	ckptfmt_status status = CKPTFMT_OK;
	/* flock that waits has no time limit, and a holder may be stopped. */
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

void cf_os_directory_unlock(const cf_directory *directory)
{
	(void)flock(directory->fd, LOCK_UN);
}

ckptfmt_status cf_os_directory_sync(const cf_directory *directory, ckptfmt_error *err)
{
	if (sync_fd(directory->fd) != 0)
		return cf_fail_os(err, errno, directory->path, "cannot sync the directory");
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_directory_list(const cf_directory *directory, cf_buffer *names, ckptfmt_error *err)
{
	ckptfmt_status status = CKPTFMT_OK;
	const struct dirent *entry;
	/* An open of its own: a duplicate would share the position with every other listing. */
	int fd = open_at(directory->fd, ".", DIRECTORY_FLAGS, 0);
	DIR *stream;
	cf_buffer_clear(names);
	if (fd < 0)
		return cf_fail_os(err, errno, directory->path, "cannot list the directory");
	stream = fdopendir(fd);
	if (stream == NULL) {
		status = cf_fail_os(err, errno, directory->path, "cannot list the directory");
		close_quietly(fd);
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

/* ---- opening and closing ---- */

static void fill_info(const struct stat *from, cf_file_info *to)
{
	to->size = (uint64_t)from->st_size;
	to->device = (uint64_t)from->st_dev;
	to->inode = (uint64_t)from->st_ino;
#ifdef __APPLE__
	to->mtime_seconds = (int64_t)from->st_mtimespec.tv_sec;
	to->mtime_nanoseconds = (int64_t)from->st_mtimespec.tv_nsec;
#else
	to->mtime_seconds = (int64_t)from->st_mtim.tv_sec;
	to->mtime_nanoseconds = (int64_t)from->st_mtim.tv_nsec;
#endif
	to->link_count = (uint64_t)from->st_nlink;
	to->regular = S_ISREG(from->st_mode);
}

static int stat_fd(int fd, struct stat *out)
{
	int result;
	do
		result = fstat(fd, out);
	while (result != 0 && errno == EINTR);
	return result;
}

static int stat_at(int directory_fd, const char *name, struct stat *out, int flags)
{
	int result;
	do
		result = fstatat(directory_fd, name, out, flags);
	while (result != 0 && errno == EINTR);
	return result;
}

ckptfmt_status cf_os_open(const cf_directory *directory, const char *name, bool follow_symlinks, cf_file *out,
	cf_file_info *info, ckptfmt_error *err)
{
	struct stat found;
	ckptfmt_status status;
	/* NAM-6. Without O_NONBLOCK, a FIFO of that name would hold us until somebody writes to it. */
	int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow_symlinks ? 0 : O_NOFOLLOW);
	int fd;
	assert(is_name(name));
	out->fd = -1;
	if (info != NULL)
		memset(info, 0, sizeof *info);
	fd = open_at(directory->fd, name, flags, 0);
	if (fd < 0 && errno == ENOENT)
		return CKPTFMT_OK;
	/* NAM-7. The name is one part of a path, so with O_NOFOLLOW no other link can be meant. EMLINK: FreeBSD. */
	if (fd < 0 && !follow_symlinks && (errno == ELOOP || errno == EMLINK)) {
		char path[PATH_SIZE];
		cf_os_path(directory, name, path, sizeof path);
		status = cf_fail(err, CKPTFMT_FAIL_BAD_PATH, CF_NO_OFFSET, "a symbolic link; links are not followed");
		cf_error_path(err, path);
		return status;
	}
	if (fd < 0)
		return fail_named(err, errno, directory, name, "cannot open");
	if (stat_fd(fd, &found) != 0)
		status = fail_named(err, errno, directory, name, "cannot tell the size");
	else if (S_ISDIR(found.st_mode)) /* NAM-6, as below */
		status = fail_named(err, EISDIR, directory, name, "cannot open");
	else if (!S_ISREG(found.st_mode))
		status = fail_named(err, EINVAL, directory, name, "cannot open what is no regular file");
	else
		status = CKPTFMT_OK;
	if (status != CKPTFMT_OK) {
		close_quietly(fd);
		return status;
	}
	if (info != NULL)
		fill_info(&found, info);
	out->fd = fd;
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_create(const cf_directory *directory, const char *name, cf_file *out, bool *exists,
	ckptfmt_error *err)
{
	assert(is_name(name));
	/* O_EXCL follows no link, so a name planted beside the checkpoint cannot lead us elsewhere. */
	out->fd = open_at(directory->fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666);
	*exists = out->fd < 0 && errno == EEXIST;
	if (out->fd < 0 && !*exists)
		return fail_named(err, errno, directory, name, "cannot make the file");
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_stat(const cf_directory *directory, const char *name, cf_file_info *info, bool *exists,
	ckptfmt_error *err)
{
	struct stat found;
	assert(is_name(name));
	memset(info, 0, sizeof *info);
	*exists = false;
	if (stat_at(directory->fd, name, &found, 0) != 0) {
		if (errno != ENOENT)
			return fail_named(err, errno, directory, name, "cannot tell whether the file is there");
		return CKPTFMT_OK;
	}
	fill_info(&found, info);
	*exists = true;
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_file_info(const cf_file *file, const char *path, cf_file_info *info, ckptfmt_error *err)
{
	struct stat found;
	memset(info, 0, sizeof *info);
	if (stat_fd(file->fd, &found) != 0)
		return cf_fail_os(err, errno, path, "cannot tell the size");
	fill_info(&found, info);
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_close(cf_file *file, const char *path, ckptfmt_error *err)
{
	int fd = file->fd;
	if (fd < 0)
		return CKPTFMT_OK;
	file->fd = -1;
	/* EINTR: closed all the same, and nothing was said about the data. */
	if (close(fd) != 0 && errno != EINTR)
		return cf_fail_os(err, errno, path, "cannot close");
	return CKPTFMT_OK;
}

void cf_os_close_quietly(cf_file *file)
{
	if (file->fd >= 0)
		close_quietly(file->fd);
	file->fd = -1;
}

/* ---- reading and writing ---- */

ckptfmt_status cf_os_read_at(const cf_file *file, const char *path, uint8_t *to, uint64_t size, uint64_t offset,
	uint64_t *got, ckptfmt_error *err)
{
	uint64_t done = 0;
	*got = 0;
	/* No file reaches beyond what an off_t can say. */
	if (offset > (uint64_t)INT64_MAX)
		return CKPTFMT_OK;
	size = cf_min_u64(size, (uint64_t)INT64_MAX - offset);
	while (done < size) {
		size_t part = (size_t)cf_min_u64(size - done, TRANSFER_BYTES_MAX);
		ssize_t moved = pread(file->fd, to + done, part, (off_t)(offset + done));
		COUNT(reads, 1);
		if (moved < 0 && errno == EINTR)
			continue;
		if (moved < 0)
			return fail_at(err, errno, path, offset + done, "cannot read");
		if (moved == 0)
			break;
		COUNT(bytes_read, (uint64_t)moved);
		done += (uint64_t)moved;
	}
	*got = done;
	return CKPTFMT_OK;
}

/* A full disk is the operator's to empty: say how much is asked for. */
static ckptfmt_status fail_write(const cf_file *file, const char *path, int os_errno, uint64_t left, uint64_t offset,
	ckptfmt_error *err)
{
	struct statvfs system;
	ckptfmt_status status;
	if (os_errno == ENOSPC && fstatvfs(file->fd, &system) == 0)
		status = cf_fail_os(err, os_errno, path, "cannot write %llu bytes with %llu free",
			(unsigned long long)left,
			(unsigned long long)system.f_bavail * (unsigned long long)system.f_frsize);
	else
		status = cf_fail_os(err, os_errno, path, "cannot write %llu bytes", (unsigned long long)left);
	cf_error_offset(err, offset);
	return status;
}

ckptfmt_status cf_os_write_at(const cf_file *file, const char *path, const uint8_t *from, uint64_t size,
	uint64_t offset, ckptfmt_error *err)
{
	uint64_t done = 0;
	unsigned empty = 0;
	if (!cf_range_fits(offset, size, (uint64_t)INT64_MAX))
		return fail_write(file, path, EFBIG, size, offset, err);
	while (done < size) {
		size_t part = (size_t)cf_min_u64(size - done, TRANSFER_BYTES_MAX);
		ssize_t moved = pwrite(file->fd, from + done, part, (off_t)(offset + done));
		COUNT(writes, 1);
		if (moved < 0 && errno == EINTR)
			continue;
		if (moved < 0)
			return fail_write(file, path, errno, size - done, offset + done, err);
		if (moved == 0 && ++empty == EMPTY_WRITES_MAX)
			return fail_write(file, path, EIO, size - done, offset + done, err);
		if (moved != 0)
			empty = 0;
		COUNT(bytes_written, (uint64_t)moved);
		done += (uint64_t)moved;
	}
	return CKPTFMT_OK;
}

void cf_os_reserve(const cf_file *file, uint64_t size)
{
#if defined(__linux__) && defined(FALLOC_FL_KEEP_SIZE)
	int kept = errno;
	/* Not posix_fallocate, which writes zeros where the file system cannot reserve. */
	if (size > 0 && size <= (uint64_t)INT64_MAX)
		while (fallocate(file->fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)size) != 0 && errno == EINTR)
			continue;
	errno = kept;
#else
	(void)file;
	(void)size;
#endif
}

void cf_os_trim(const cf_file *file, uint64_t size)
{
	int kept = errno;
	if (size <= (uint64_t)INT64_MAX)
		while (ftruncate(file->fd, (off_t)size) != 0 && errno == EINTR)
			continue;
	errno = kept;
}

void cf_os_sync_ahead(const cf_file *file, uint64_t offset, uint64_t size)
{
#if defined(__linux__) && defined(SYNC_FILE_RANGE_WRITE)
	int kept = errno;
	if (size > 0 && cf_range_fits(offset, size, (uint64_t)INT64_MAX))
		/* Only this flag: one that waits would take the write error away from the sync to come. */
		(void)sync_file_range(file->fd, (off_t)offset, (off_t)size, SYNC_FILE_RANGE_WRITE);
	errno = kept;
#else
	(void)file;
	(void)offset;
	(void)size;
#endif
}

ckptfmt_status cf_os_sync(const cf_file *file, const char *path, ckptfmt_error *err)
{
	if (sync_fd(file->fd) != 0)
		return cf_fail_os(err, errno, path, "cannot sync");
	return CKPTFMT_OK;
}

/* ---- names ---- */

static int rename_at(const cf_directory *from, const char *from_name, const cf_directory *to, const char *to_name)
{
	int result;
	assert(is_name(from_name));
	assert(is_name(to_name));
	do {
		COUNT(renames, 1);
		result = renameat(from->fd, from_name, to->fd, to_name);
	} while (result != 0 && errno == EINTR);
	return result;
}

static int link_at(const cf_directory *from, const char *from_name, const cf_directory *to, const char *to_name,
	int flags)
{
	int result;
	assert(is_name(from_name));
	assert(is_name(to_name));
	do {
		COUNT(links, 1);
		result = linkat(from->fd, from_name, to->fd, to_name, flags);
	} while (result != 0 && errno == EINTR);
	return result;
}

static int unlink_at(const cf_directory *directory, const char *name)
{
	int result;
	assert(is_name(name));
	do {
		COUNT(unlinks, 1);
		result = unlinkat(directory->fd, name, 0);
	} while (result != 0 && errno == EINTR);
	return result;
}

ckptfmt_status cf_os_rename(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, ckptfmt_error *err)
{
	if (rename_at(from, from_name, to, to_name) != 0)
		return fail_named(err, errno, to, to_name, "cannot rename a file to this name");
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_link(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, cf_link_result *result, ckptfmt_error *err)
{
	/* A link to a symbolic link would lead elsewhere from another directory. */
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
		return fail_named(err, errno, to, to_name, "cannot link a file to this name");
	}
}

/* 0, or -1 with errno: ENOSYS or EINVAL where system or file system cannot. */
static int rename_noreplace(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name)
{
#if defined(__linux__) && defined(SYS_renameat2)
	long result;
	do {
		COUNT(renames, 1);
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
	return stat_at(a->fd, a_name, &a_found, AT_SYMLINK_NOFOLLOW) == 0 &&
		stat_at(b->fd, b_name, &b_found, AT_SYMLINK_NOFOLLOW) == 0 &&
		a_found.st_dev == b_found.st_dev && a_found.st_ino == b_found.st_ino;
}

/* 0, or -1 with errno. All or nothing as far as the system lets us. */
static int rename_by_link(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name)
{
	if (link_at(from, from_name, to, to_name, 0) != 0) {
		/* Over NFS a link that was made and whose answer was lost exists when it is asked for again. */
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

/* For file systems without links: whoever makes the empty file owns the name and may replace it. */
static int rename_by_claim(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name)
{
	int fd = open_at(to->fd, to_name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, 0666);
	if (fd < 0)
		return -1;
	close_quietly(fd);
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

ckptfmt_status cf_os_rename_new(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, bool *exists, ckptfmt_error *err)
{
	int result;
	assert(is_name(from_name));
	assert(is_name(to_name));
	result = rename_noreplace(from, from_name, to, to_name);
	if (result != 0 && is_missing_call(errno)) {
		result = rename_by_link(from, from_name, to, to_name);
		/* EPERM is what Linux says of a file system that has no links, EMLINK of one out of them. */
		if (result != 0 && (is_missing_call(errno) || errno == EPERM || errno == EMLINK))
			result = rename_by_claim(from, from_name, to, to_name);
	}
	*exists = result != 0 && errno == EEXIST;
	if (result != 0 && !*exists)
		return fail_named(err, errno, to, to_name, "cannot rename a file to this name");
	return CKPTFMT_OK;
}

ckptfmt_status cf_os_unlink(const cf_directory *directory, const char *name, ckptfmt_error *err)
{
	if (unlink_at(directory, name) != 0 && errno != ENOENT)
		return fail_named(err, errno, directory, name, "cannot remove the file");
	return CKPTFMT_OK;
}

/* ---- mappings ---- */

ckptfmt_status cf_os_map(const cf_file *file, const char *path, uint64_t offset, uint64_t size, const uint8_t **out,
	ckptfmt_error *err)
{
	void *data;
	*out = NULL;
	assert(size > 0);
	assert(offset % cf_os_page_size() == 0);
	if (size > (uint64_t)PTRDIFF_MAX || !cf_range_fits(offset, size, (uint64_t)INT64_MAX))
		return fail_at(err, EOVERFLOW, path, offset, "cannot map");
	COUNT(maps, 1);
	data = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, file->fd, (off_t)offset);
	if (data == MAP_FAILED)
		return fail_at(err, errno, path, offset, "cannot map");
	*out = data;
	return CKPTFMT_OK;
}

void cf_os_unmap(const uint8_t *data, uint64_t size)
{
	int kept = errno;
	int result;
	if (data == NULL)
		return;
	result = munmap((void *)(uintptr_t)data, (size_t)size);
	assert(result == 0);
	(void)result;
	errno = kept;
}

uint64_t cf_os_page_size(void)
{
	return (uint64_t)sysconf(_SC_PAGESIZE);
}

/* ---- chance ---- */

static ckptfmt_status random_from_device(uint8_t *to, uint64_t size, ckptfmt_error *err)
{
	static const char path[] = "/dev/urandom";
	ckptfmt_status status = CKPTFMT_OK;
	int fd = open_at(AT_FDCWD, path, O_RDONLY | O_CLOEXEC | O_NOCTTY, 0);
	if (fd < 0)
		return cf_fail_os(err, errno, path, "cannot open the source of random bytes");
	while (size > 0) {
		ssize_t moved = read(fd, to, (size_t)cf_min_u64(size, TRANSFER_BYTES_MAX));
		if (moved < 0 && errno == EINTR)
			continue;
		if (moved <= 0) {
			status = cf_fail_os(err, moved < 0 ? errno : EIO, path, "cannot read random bytes");
			break;
		}
		to += moved;
		size -= (uint64_t)moved;
	}
	close_quietly(fd);
	return status;
}

ckptfmt_status cf_os_random(void *to, uint64_t size, ckptfmt_error *err)
{
	uint8_t *at = to;
#ifdef __linux__
	while (size > 0) {
		/* Requests of up to 256 bytes are neither cut nor interrupted once the system has booted. */
		ssize_t moved = getrandom(at, (size_t)cf_min_u64(size, 256), 0);
		if (moved < 0 && errno == EINTR)
			continue;
		if (moved <= 0)
			break;
		at += moved;
		size -= (uint64_t)moved;
	}
#endif
	/* An old kernel, or a sandbox that forbids the call. */
	return size == 0 ? CKPTFMT_OK : random_from_device(at, size, err);
}
