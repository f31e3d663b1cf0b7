/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The calls of a whole process, recorded, failing or ended by a kill: LD_PRELOAD it.
 *
 *   CKPTFMT_RECORD=FILE  every change of a file or directory that succeeded is appended to FILE, in order
 *   fault_arm            calls of one kind fail from now on, or kill the process; through ctypes
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { OPEN, READ, WRITE, SYNC, RENAME, LINK, UNLINK, CLOSE, STAT, LOCK, MAP, RESERVE, MKDIR, LIST, RANDOM, TRUNCATE,
	THREAD, ANY, CHANGE };

static _Atomic long armed = -1, first, times, count, hits, number, cut;
static _Atomic uint32_t changes;

/* The at-th call of a kind from now, and more after it, fail; with `short_by`, reads and writes are cut short. With an
 * `error` below zero the process is killed instead, before the call. */
void fault_arm(long kind, long at, long more, long error, long short_by);
void fault_arm(long kind, long at, long more, long error, long short_by)
{
	count = hits = 0;
	changes = 0;
	first = at;
	times = more;
	number = error;
	cut = short_by;
	armed = kind;
}

/* Ends it; returns how many calls failed. */
long fault_disarm(void);
long fault_disarm(void)
{
	armed = -1;
	return hits;
}

/* How many calls of the kind there were since fault_arm. */
long fault_count(void);
long fault_count(void)
{
	return count;
}

static void begin(void);

static int fails(long kind)
{
	if (armed != kind && (armed != ANY || kind == CHANGE))
		return 0;
	long n = ++count;
	if (n < first || n - first >= times)
		return 0;
	hits++;
	if (number < 0) {
		begin(); /* no other thread is between a call and its record */
		raise(SIGKILL);
	}
	errno = (int)number;
	return 1;
}

/* Of a call that changes a file or directory: all of them are one kind, beside their own. */
static int change_fails(long kind)
{
	changes++;
	return fails(kind) || fails(CHANGE);
}

/* ---- recording ---- */

/* Before the bytes of two paths and of the data, whose sizes it has. */
typedef struct record {
	char name[16];
	int64_t offset;
	uint32_t sizes[3];
	uint32_t number;            /* of this call among those of CHANGE since fault_arm, failed ones included */
} record;

static int record_file = -1;
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void open_record(void)
{
	const char *path = getenv("CKPTFMT_RECORD");
	if (path != NULL)
		record_file = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
}

/* Calls are recorded in the order in which they take effect. */
static void begin(void)
{
	if (record_file >= 0)
		(void)pthread_mutex_lock(&order);
}

static void end(void)
{
	if (record_file >= 0)
		(void)pthread_mutex_unlock(&order);
}

/* The full path: of the descriptor without a path. */
static size_t put_path(char *to, int at, const char *path)
{
	char link[64];
	ssize_t size = 0;
	if (path == NULL || path[0] != '/') {
		snprintf(link, sizeof link, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
		size = syscall(SYS_readlinkat, AT_FDCWD, link, to, PATH_MAX);
		if (size < 0)
			abort();
		if (path != NULL)
			to[size++] = '/';
	}
	if (path != NULL) {
		size_t length = strlen(path);
		if (length >= PATH_MAX)
			abort();
		memcpy(to + size, path, length);
		size += (ssize_t)length;
	}
	return (size_t)size;
}

/* Paths are given by a descriptor of a directory and a name in it, or by a descriptor alone. */
static void put(const char *name, int at, const char *path, int other_at, const char *other, const void *data,
	size_t size, int64_t offset)
{
	static char paths[2][2 * PATH_MAX];
	record record = {.offset = offset, .number = changes};
	struct iovec parts[4] = {{&record, sizeof record}, {paths[0], 0}, {paths[1], 0}, {(void *)(uintptr_t)data, size}};
	int before = errno;
	if (record_file < 0)
		return;
	memcpy(record.name, name, strlen(name));
	parts[1].iov_len = put_path(paths[0], at, path);
	parts[2].iov_len = other == NULL ? 0 : put_path(paths[1], other_at, other);
	for (int i = 0; i < 3; i++)
		record.sizes[i] = (uint32_t)parts[i + 1].iov_len;
	if (syscall(SYS_writev, record_file, parts, 4) < 0)
		abort();
	errno = before;
}

/* ---- the calls ---- */

#define REAL(name, ...) \
	static __typeof__(name) *real; \
	if (real == NULL) \
		real = (__typeof__(name) *)dlsym(RTLD_NEXT, #name)

#define WRAP(kind, type, bad, name, parameters, ...) \
	type name parameters; \
	type name parameters \
	{ \
		REAL(name); \
		return fails(kind) ? bad : real(__VA_ARGS__); \
	}

/* A call that changes names or sizes; `recorded` is what put() takes. */
#define UNPACK(...) __VA_ARGS__
#define WRAP_CHANGE(kind, name, parameters, recorded, ...) \
	int name parameters; \
	int name parameters \
	{ \
		REAL(name); \
		int result = -1; \
		if (change_fails(kind)) \
			return -1; \
		begin(); \
		result = real(__VA_ARGS__); \
		if (result == 0) \
			put(UNPACK recorded); \
		end(); \
		return result; \
	}

/* A read or write of at most so many bytes. */
#define CUT(failing) \
	if (failing) { \
		if (cut == 0) \
			return -1; \
		n = n > 1 ? n / 2 : n; \
	}

#define WRAP_READ(name, parameters, ...) \
	ssize_t name parameters; \
	ssize_t name parameters \
	{ \
		REAL(name); \
		CUT(fails(READ)) \
		return real(__VA_ARGS__); \
	}

#define WRAP_WRITE(name, parameters, at, ...) \
	ssize_t name parameters; \
	ssize_t name parameters \
	{ \
		REAL(name); \
		ssize_t done; \
		CUT(change_fails(WRITE)) \
		begin(); \
		done = real(__VA_ARGS__); \
		if (done > 0) \
			put("write", fd, NULL, 0, NULL, from, (size_t)done, at); \
		end(); \
		return done; \
	}

#define WRAP_OPEN(name, parameters, at, ...) \
	int name parameters \
	{ \
		REAL(name); \
		mode_t mode = 0; \
		int fd, existed; \
		if ((flags & (O_CREAT | O_TMPFILE)) != 0) { \
			va_list more; \
			va_start(more, flags); \
			mode = va_arg(more, mode_t); \
			va_end(more); \
		} \
		if ((flags & O_CREAT) != 0 ? change_fails(OPEN) : fails(OPEN)) \
			return -1; \
		begin(); \
		existed = syscall(SYS_faccessat, at, path, F_OK) == 0; \
		fd = real(__VA_ARGS__, mode); \
		if (fd >= 0 && existed && (flags & O_TRUNC) != 0) \
			put("truncate", at, path, 0, NULL, NULL, 0, 0); \
		if (fd >= 0 && !existed && (flags & O_CREAT) != 0) \
			put("create", at, path, 0, NULL, NULL, 0, 0); \
		end(); \
		return fd; \
	}

WRAP_OPEN(open, (const char *path, int flags, ...), AT_FDCWD, path, flags)
WRAP_OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, path, flags)
WRAP_OPEN(openat, (int at, const char *path, int flags, ...), at, at, path, flags)
WRAP_OPEN(openat64, (int at, const char *path, int flags, ...), at, at, path, flags)
WRAP(OPEN, DIR *, NULL, opendir, (const char *path), path)
WRAP(OPEN, DIR *, NULL, fdopendir, (int fd), fd)
WRAP_READ(read, (int fd, void *to, size_t n), fd, to, n)
WRAP_READ(pread, (int fd, void *to, size_t n, off_t at), fd, to, n, at)
WRAP_READ(pread64, (int fd, void *to, size_t n, off64_t at), fd, to, n, at)
WRAP_WRITE(pwrite, (int fd, const void *from, size_t n, off_t at), at, fd, from, n, at)
WRAP_WRITE(pwrite64, (int fd, const void *from, size_t n, off64_t at), at, fd, from, n, at)
WRAP_WRITE(write, (int fd, const void *from, size_t n), -1, fd, from, n)
WRAP_CHANGE(SYNC, fsync, (int fd), ("sync", fd, NULL, 0, NULL, NULL, 0, 0), fd)
WRAP_CHANGE(SYNC, fdatasync, (int fd), ("sync", fd, NULL, 0, NULL, NULL, 0, 0), fd)
WRAP_CHANGE(RENAME, rename, (const char *a, const char *b), ("rename", AT_FDCWD, a, AT_FDCWD, b, NULL, 0, 0), a, b)
WRAP_CHANGE(RENAME, renameat, (int at, const char *a, int to, const char *b), ("rename", at, a, to, b, NULL, 0, 0),
	at, a, to, b)
WRAP_CHANGE(LINK, link, (const char *a, const char *b), ("link", AT_FDCWD, a, AT_FDCWD, b, NULL, 0, 0), a, b)
WRAP_CHANGE(LINK, linkat, (int at, const char *a, int to, const char *b, int flags),
	("link", at, a, to, b, NULL, 0, 0), at, a, to, b, flags)
WRAP_CHANGE(UNLINK, unlink, (const char *path), ("unlink", AT_FDCWD, path, 0, NULL, NULL, 0, 0), path)
WRAP_CHANGE(UNLINK, unlinkat, (int at, const char *path, int flags), ("unlink", at, path, 0, NULL, NULL, 0, 0),
	at, path, flags)
WRAP_CHANGE(UNLINK, rmdir, (const char *path), ("unlink", AT_FDCWD, path, 0, NULL, NULL, 0, 0), path)
WRAP(STAT, int, -1, fstat, (int fd, struct stat *to), fd, to)
WRAP(STAT, int, -1, fstat64, (int fd, struct stat64 *to), fd, to)
WRAP(STAT, int, -1, stat64, (const char *path, struct stat64 *to), path, to)
WRAP(STAT, int, -1, lstat64, (const char *path, struct stat64 *to), path, to)
WRAP(STAT, int, -1, fstatat, (int at, const char *path, struct stat *to, int flags), at, path, to, flags)
WRAP(STAT, int, -1, fstatat64, (int at, const char *path, struct stat64 *to, int flags), at, path, to, flags)
WRAP(STAT, int, -1, statx, (int at, const char *path, int flags, unsigned mask, struct statx *to), at, path, flags,
	mask, to)
/* Unlocking cannot fail. */
int flock(int fd, int operation)
{
	REAL(flock);
	return (operation & LOCK_UN) == 0 && fails(LOCK) ? -1 : real(fd, operation);
}

WRAP_CHANGE(RESERVE, fallocate, (int fd, int mode, off_t at, off_t size),
	("fallocate", fd, NULL, 0, NULL, NULL, 0, mode), fd, mode, at, size)
WRAP_CHANGE(MKDIR, mkdir, (const char *path, mode_t mode), ("mkdir", AT_FDCWD, path, 0, NULL, NULL, 0, 0), path, mode)
WRAP_CHANGE(MKDIR, mkdirat, (int at, const char *path, mode_t mode), ("mkdir", at, path, 0, NULL, NULL, 0, 0),
	at, path, mode)
WRAP(LIST, struct dirent *, NULL, readdir, (DIR *dir), dir)
WRAP(LIST, struct dirent64 *, NULL, readdir64, (DIR *dir), dir)
int getentropy(void *to, size_t size);
WRAP(RANDOM, int, -1, getentropy, (void *to, size_t size), to, size)
WRAP_CHANGE(TRUNCATE, ftruncate, (int fd, off_t size), ("truncate", fd, NULL, 0, NULL, NULL, 0, size), fd, size)
WRAP_CHANGE(TRUNCATE, ftruncate64, (int fd, off64_t size), ("truncate", fd, NULL, 0, NULL, NULL, 0, size), fd, size)
/* What the library does not call; a recording that has one of these cannot be replayed. */
WRAP_CHANGE(LINK, symlink, (const char *a, const char *b), ("symlink", AT_FDCWD, b, 0, NULL, NULL, 0, 0), a, b)
WRAP_CHANGE(TRUNCATE, truncate, (const char *path, off_t size), ("truncate path", AT_FDCWD, path, 0, NULL, NULL, 0, 0),
	path, size)

/* Closed, and then reported as failed, as the kernel does. */
int close(int fd)
{
	REAL(close);
	int result = real(fd);
	return fails(CLOSE) ? -1 : result;
}

void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset);
void *mmap64(void *at, size_t size, int protection, int flags, int fd, off64_t offset)
{
	REAL(mmap64);
	return fd >= 0 && fails(MAP) ? (void *)-1 : real(at, size, protection, flags, fd, offset);
}

void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset);
void *mmap(void *at, size_t size, int protection, int flags, int fd, off_t offset)
{
	return mmap64(at, size, protection, flags, fd, offset);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *), void *argument)
{
	REAL(pthread_create);
	return fails(THREAD) ? errno : real(thread, attributes, run, argument);
}

/* renameat2 is called so where the C library may lack it. */
long syscall(long what, ...)
{
	REAL(syscall);
	va_list more;
	long a[6];
	va_start(more, what);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(more, long);
	va_end(more);
	if (what != SYS_renameat2)
		return real(what, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (change_fails(RENAME))
		return -1;
	begin();
	long result = real(what, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (result == 0)
		put("rename", (int)a[0], (const char *)a[1], (int)a[2], (const char *)a[3], NULL, 0, 0);
	end();
	return result;
}
