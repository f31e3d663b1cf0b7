/* SPDX-License-Identifier: Apache-2.0 */
/*
 * storage/os.h on POSIX, with Linux extensions: files and their locks. posix_files.c has directories and the names in
 * them.
 *
 * A function makes one kind of system call, in a loop if EINTR or a short transfer is possible. Functions that return
 * void preserve errno.
 */
#include "storage/posix_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/types.h>
#include <unistd.h>

#ifdef __APPLE__
#include <sys/random.h>
#endif

CF_STATIC_ASSERT(sizeof(off_t) == 8, "files beyond 2 GiB need 64-bit offsets: build with _FILE_OFFSET_BITS=64");

enum {
	TRANSFER_BYTES_MAX = 0x7ffff000,   /* what one Linux read or write moves at most */
	EMPTY_WRITES_MAX = 8,              /* consecutive writes of 0 bytes before that is an error */
	PATH_SIZE = sizeof((ckptfmt_error *)0)->path
};

/* ---- counters ---- */

_Atomic uint64_t cf_posix_counters[CF_POSIX_COUNTERS];

void ckptfmt_counters_get(ckptfmt_counters *out)
{
	uint64_t counted[CF_POSIX_COUNTERS];
	for (size_t i = 0; i < CF_POSIX_COUNTERS; i++)
		counted[i] = atomic_load_explicit(&cf_posix_counters[i], memory_order_relaxed);
	memcpy(out, counted, sizeof *out);
}

/* ---- failures ---- */

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

ckptfmt_status cf_posix_fail(ckptfmt_error *err, int os_errno, const cf_directory *directory, const char *name,
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

/* ---- shared with posix_files.c and posix_direct.c ---- */

int cf_posix_open(int directory_fd, const char *name, int flags, mode_t mode)
{
	int fd;
	do {
		CF_COUNT(opens, 1);
		fd = openat(directory_fd, name, flags, mode);
	} while (fd < 0 && errno == EINTR);
	return fd;
}

/* ---- forks ---- */

/* What a forked child does not have: the descriptors that are private to its parent, and direct transfers. */
_Atomic unsigned cf_posix_live_directs;
static _Atomic unsigned process_number; /* cf_posix_process */

/* One bit each; higher descriptors are not recorded. */
enum { PRIVATE_MAX = 1 << 16 };
static _Atomic uint64_t private_fds[PRIVATE_MAX / 64];
/* Held from before a file is opened until its descriptor is recorded; no thread forks in between. */
static pthread_mutex_t private_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t fork_once = PTHREAD_ONCE_INIT;

static void lock_private(void)
{
	(void)pthread_mutex_lock(&private_lock);
}

static void unlock_private(void)
{
	(void)pthread_mutex_unlock(&private_lock);
}

/* Keeps the numbers of descriptors in use: the child's copies of a writer may still name them. */
static void begin_child(void)
{
	int null = cf_posix_open(AT_FDCWD, "/dev/null", O_RDWR | O_CLOEXEC, 0);
	for (int fd = 0; fd < PRIVATE_MAX; fd++) {
		if ((atomic_load(&private_fds[fd / 64]) >> (fd % 64) & 1) == 0)
			continue;
		if (null < 0 || dup2(null, fd) < 0)
			(void)close(fd);
		else
			(void)fcntl(fd, F_SETFD, FD_CLOEXEC);
	}
	if (null >= 0)
		(void)close(null);
	(void)atomic_fetch_add(&process_number, 1);
	atomic_store(&cf_posix_live_directs, 0);
	unlock_private();
}

static void watch_forks(void)
{
	if (pthread_atfork(lock_private, unlock_private, begin_child) == 0)
		atomic_store(&process_number, 1);
}

unsigned cf_posix_process(void)
{
	(void)pthread_once(&fork_once, watch_forks);
	return atomic_load(&process_number);
}

static void record_private(int fd)
{
	if (fd >= 0 && fd < PRIVATE_MAX)
		(void)atomic_fetch_or(&private_fds[fd / 64], UINT64_C(1) << (fd % 64));
}

/* Called before the descriptor is closed. */
static void forget_private(int fd)
{
	if (fd >= 0 && fd < PRIVATE_MAX)
		(void)atomic_fetch_and(&private_fds[fd / 64], ~(UINT64_C(1) << (fd % 64)));
}

int cf_posix_open_private(int directory_fd, const char *name, int flags, mode_t mode)
{
	int fd;
	(void)cf_posix_process();
	lock_private();
	fd = cf_posix_open(directory_fd, name, flags, mode);
	record_private(fd);
	unlock_private();
	return fd;
}

void cf_posix_make_private(int fd)
{
	(void)cf_posix_process();
	lock_private();
	record_private(fd);
	unlock_private();
}

int cf_posix_duplicate_private(int fd)
{
	int copy;
	(void)cf_posix_process();
	lock_private();
	copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	record_private(copy);
	unlock_private();
	return copy;
}

void cf_posix_close_quietly(int fd)
{
	int kept = errno;
	forget_private(fd);
	/* Linux frees the descriptor whatever close returns: a second close could hit another thread's file. */
	(void)close(fd);
	errno = kept;
}

int cf_posix_sync(int fd)
{
	int result;
	do {
		CF_COUNT(syncs, 1);
#if defined(F_FULLFSYNC)
		result = fcntl(fd, F_FULLFSYNC);
#else
		result = fsync(fd);
#endif
	} while (result != 0 && errno == EINTR);
	return result;
}

int cf_posix_stat(int directory_fd, const char *name, struct stat *out, int flags)
{
	int result;
	do
		result = fstatat(directory_fd, name, out, flags);
	while (result != 0 && errno == EINTR);
	return result;
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
	to->permissions = CF_PERMISSIONS | ((uint32_t)from->st_mode & 0777);
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

ckptfmt_status cf_posix_open_file(const cf_directory *directory, const char *name, bool follow_symlinks, cf_file *out,
	cf_file_info *info, ckptfmt_error *err)
{
	struct stat found;
	ckptfmt_status status;
	/* NAM-6. Without O_NONBLOCK, opening a FIFO blocks until another process writes to it. */
	int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow_symlinks ? 0 : O_NOFOLLOW);
	int fd;
	assert(cf_posix_is_name(name));
	*out = (cf_file){.fd = -1};
	if (info != NULL)
		memset(info, 0, sizeof *info);
	fd = cf_posix_open(directory->fd, name, flags, 0);
	if (fd < 0 && errno == ENOENT)
		return CKPTFMT_OK;
	/* NAM-7. EMLINK: FreeBSD. */
	if (fd < 0 && !follow_symlinks && (errno == ELOOP || errno == EMLINK)) {
		char path[PATH_SIZE];
		cf_os_path(directory, name, path, sizeof path);
		status = cf_fail(err, CKPTFMT_FAIL_BAD_PATH, CF_NO_OFFSET, "a symbolic link; links are not followed");
		cf_error_path(err, path);
		return status;
	}
	if (fd < 0)
		return cf_posix_fail(err, errno, directory, name, "cannot open");
	if (stat_fd(fd, &found) != 0)
		status = cf_posix_fail(err, errno, directory, name, "cannot get the file's size");
	else if (S_ISDIR(found.st_mode)) /* NAM-6, as below */
		status = cf_posix_fail(err, EISDIR, directory, name, "cannot open");
	else if (!S_ISREG(found.st_mode))
		status = cf_posix_fail(err, EINVAL, directory, name, "not a regular file");
	else
		status = CKPTFMT_OK;
	if (status != CKPTFMT_OK) {
		cf_posix_close_quietly(fd);
		return status;
	}
	if (info != NULL)
		fill_info(&found, info);
	out->fd = fd;
	return CKPTFMT_OK;
}

/* CMT-15. Takes the shared lock of a file; true if another process has the exclusive lock, to remove the file, or has
 * removed it. */
static bool is_taken_away(const cf_directory *directory, const char *name, int fd)
{
	struct stat found;
	int result;
	do
		result = flock(fd, LOCK_SH | LOCK_NB);
	while (result != 0 && errno == EINTR);
	if (result != 0)
		return errno == EWOULDBLOCK;
	return cf_posix_stat(directory->fd, name, &found, AT_SYMLINK_NOFOLLOW) != 0 && errno == ENOENT;
}

ckptfmt_status cf_posix_create(const cf_directory *directory, const char *name, cf_file *out, bool *exists,
	ckptfmt_error *err)
{
	const mode_t mode = directory->permissions != 0 ? (mode_t)directory->permissions & 0777 : 0666;
	assert(cf_posix_is_name(name));
	*out = (cf_file){.fd = -1};
	/* O_EXCL does not follow links, so a planted link cannot redirect the file. */
	out->fd = cf_posix_open_private(directory->fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOCTTY, mode);
	*exists = out->fd < 0 && errno == EEXIST;
	if (out->fd < 0 && !*exists)
		return cf_posix_fail(err, errno, directory, name, "cannot make the file");
	if (out->fd >= 0 && is_taken_away(directory, name, out->fd)) {
		cf_posix_close_quietly(out->fd);
		out->fd = -1;
		*exists = true;
	}
	if (out->fd >= 0 && directory->permissions != 0) /* those that the umask took */
		(void)!fchmod(out->fd, mode);
	return CKPTFMT_OK;
}

void cf_os_set_permissions(const cf_directory *directory, const char *name, uint32_t permissions)
{
	assert(cf_posix_is_name(name));
	if (cf_os_is_local(directory->storage))
		(void)!fchmodat(directory->fd, name, (mode_t)permissions & 0777, 0);
}

bool cf_os_hold(const cf_directory *directory, const char *name, const cf_file *file)
{
	assert(cf_posix_is_name(name));
	return !cf_os_is_local(directory->storage) || !is_taken_away(directory, name, file->fd);
}

bool cf_os_take(const cf_directory *directory, const char *name, cf_file *out)
{
	const int flags = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
	struct stat opened, named;
	int result;
	assert(cf_posix_is_name(name));
	*out = (cf_file){.fd = cf_posix_open_private(directory->fd, name, flags, 0)};
	if (out->fd < 0)
		return false;
	do
		result = flock(out->fd, LOCK_EX | LOCK_NB);
	while (result != 0 && errno == EINTR);
	if (result == 0 && stat_fd(out->fd, &opened) == 0 && S_ISREG(opened.st_mode) &&
		cf_posix_stat(directory->fd, name, &named, AT_SYMLINK_NOFOLLOW) == 0 &&
		opened.st_dev == named.st_dev && opened.st_ino == named.st_ino)
		return true;
	cf_posix_close(out);
	return false;
}

ckptfmt_status cf_posix_look_up(const cf_directory *directory, const char *name, bool follow_symlinks,
	cf_file_info *info, bool *exists, ckptfmt_error *err)
{
	struct stat found;
	assert(cf_posix_is_name(name));
	memset(info, 0, sizeof *info);
	*exists = cf_posix_stat(directory->fd, name, &found, follow_symlinks ? 0 : AT_SYMLINK_NOFOLLOW) == 0;
	if (*exists)
		fill_info(&found, info);
	else if (errno != ENOENT)
		return cf_posix_fail(err, errno, directory, name, "cannot look up the file");
	return CKPTFMT_OK;
}

ckptfmt_status cf_posix_file_info(const cf_file *file, const char *path, cf_file_info *info, ckptfmt_error *err)
{
	struct stat found;
	memset(info, 0, sizeof *info);
	if (stat_fd(file->fd, &found) != 0)
		return cf_fail_os(err, errno, path, "cannot get the file's size");
	fill_info(&found, info);
	return CKPTFMT_OK;
}

void cf_posix_close(cf_file *file)
{
	if (file->fd >= 0)
		cf_posix_close_quietly(file->fd);
	file->fd = -1;
}

ckptfmt_status cf_posix_close_held(cf_file *file, const char *path, ckptfmt_error *err)
{
	int fd = file->fd, private = cf_posix_duplicate_private(fd);
	if (private < 0)
		return cf_fail_os(err, errno, path, "cannot hold the file");
	file->fd = private;
	forget_private(fd);
	/* EINTR: the file is closed, and no write error was reported. */
	if (close(fd) == 0 || errno == EINTR)
		return CKPTFMT_OK;
	ckptfmt_status status = cf_fail_os(err, errno, path, "cannot close");
	cf_posix_close(file);
	return status;
}

/* ---- reading and writing ---- */

ckptfmt_status cf_posix_read_at(const cf_file *file, const char *path, uint8_t *to, uint64_t size, uint64_t offset,
	uint64_t *got, ckptfmt_error *err)
{
	uint64_t done = 0;
	*got = 0;
	/* No file is longer than an off_t can hold. */
	if (offset > (uint64_t)INT64_MAX)
		return CKPTFMT_OK;
	size = cf_min_u64(size, (uint64_t)INT64_MAX - offset);
	while (done < size) {
		size_t part = (size_t)cf_min_u64(size - done, TRANSFER_BYTES_MAX);
		ssize_t moved = pread(file->fd, to + done, part, (off_t)(offset + done));
		CF_COUNT(reads, 1);
		if (moved < 0 && errno == EINTR)
			continue;
		if (moved < 0)
			return fail_at(err, errno, path, offset + done, "cannot read");
		if (moved == 0)
			break;
		CF_COUNT(bytes_read, (uint64_t)moved);
		done += (uint64_t)moved;
	}
	*got = done;
	return CKPTFMT_OK;
}

/* If the disk is full, reports how much space is missing. */
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

ckptfmt_status cf_posix_write_at(const cf_file *file, const char *path, const uint8_t *from, uint64_t size,
	uint64_t offset, ckptfmt_error *err)
{
	uint64_t done = 0;
	unsigned empty = 0;
	if (!cf_range_fits(offset, size, (uint64_t)INT64_MAX))
		return fail_write(file, path, EFBIG, size, offset, err);
	while (done < size) {
		size_t part = (size_t)cf_min_u64(size - done, TRANSFER_BYTES_MAX);
		ssize_t moved = pwrite(file->fd, from + done, part, (off_t)(offset + done));
		CF_COUNT(writes, 1);
		if (moved < 0 && errno == EINTR)
			continue;
		if (moved < 0)
			return fail_write(file, path, errno, size - done, offset + done, err);
		if (moved == 0 && ++empty == EMPTY_WRITES_MAX)
			return fail_write(file, path, EIO, size - done, offset + done, err);
		if (moved != 0)
			empty = 0;
		CF_COUNT(bytes_written, (uint64_t)moved);
		done += (uint64_t)moved;
	}
	return CKPTFMT_OK;
}

void cf_os_reserve(const cf_file *file, uint64_t size)
{
#if !CKPTFMT_PLAIN_POSIX
	int kept = errno;
	/* Not posix_fallocate, which writes zeros where the file system cannot reserve. */
	if (cf_os_is_local(file->storage) && size > 0 && size <= (uint64_t)INT64_MAX)
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
	if (cf_os_is_local(file->storage) && size <= (uint64_t)INT64_MAX)
		while (ftruncate(file->fd, (off_t)size) != 0 && errno == EINTR)
			continue;
	errno = kept;
}

void cf_os_sync_ahead(const cf_file *file, uint64_t offset, uint64_t size)
{
#if !CKPTFMT_PLAIN_POSIX
	int kept = errno;
	if (cf_os_is_local(file->storage) && size > 0 && cf_range_fits(offset, size, (uint64_t)INT64_MAX))
		/* Only this flag: one that waits would consume the write error that the later sync must report. */
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
	if (cf_os_is_local(file->storage) && cf_posix_sync(file->fd) != 0)
		return cf_fail_os(err, errno, path, "cannot sync");
	return CKPTFMT_OK;
}

/* ---- mappings ---- */

ckptfmt_status cf_posix_map(const cf_file *file, const char *path, uint64_t offset, uint64_t size, const uint8_t **out,
	ckptfmt_error *err)
{
	void *data;
	*out = NULL;
	assert(size > 0);
	assert(offset % cf_os_page_size() == 0);
	if (size > (uint64_t)PTRDIFF_MAX || !cf_range_fits(offset, size, (uint64_t)INT64_MAX))
		return fail_at(err, EOVERFLOW, path, offset, "cannot map");
	CF_COUNT(maps, 1);
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

/* ---- random bytes ---- */

ckptfmt_status cf_os_random(void *to, uint64_t size, ckptfmt_error *err)
{
	enum { ENTROPY_MAX = 256 };
	uint64_t done = 0;
	while (done < size) {
		uint64_t part = cf_min_u64(size - done, ENTROPY_MAX);
		if (getentropy((uint8_t *)to + done, (size_t)part) == 0)
			done += part;
		else if (errno != EINTR)
			return cf_fail_os(err, errno, NULL, "cannot get random bytes");
	}
	return CKPTFMT_OK;
}
