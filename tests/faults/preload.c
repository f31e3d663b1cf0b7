/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a whole Python process, failing on purpose: LD_PRELOAD it, and arm it through ctypes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
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
	THREAD, ANY };

static _Atomic long armed = -1, first, times, count, hits, number, cut;

/* The at-th call of a kind from now, and more after it, fail; with `short_by`, reads and writes are cut short. With an
 * `error` below zero the process is killed instead, before the call. */
void fault_arm(long kind, long at, long more, long error, long short_by);
void fault_arm(long kind, long at, long more, long error, long short_by)
{
	count = hits = 0;
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

static int fails(long kind)
{
	if (armed != kind && armed != ANY)
		return 0;
	long n = ++count;
	if (n < first || n - first >= times)
		return 0;
	hits++;
	if (number < 0)
		raise(SIGKILL);
	errno = (int)number;
	return 1;
}

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

/* A read or write of at most so many bytes. */
#define WRAP_SIZE(kind, type, name, parameters, ...) \
	type name parameters; \
	type name parameters \
	{ \
		REAL(name); \
		if (fails(kind)) { \
			if (cut == 0) \
				return -1; \
			n = n > 1 ? n / 2 : n; \
		} \
		return real(__VA_ARGS__); \
	}

#define WRAP_OPEN(name, parameters, flags, last, ...) \
	int name parameters \
	{ \
		REAL(name); \
		mode_t mode = 0; \
		if ((flags & O_CREAT) != 0) { \
			va_list more; \
			va_start(more, last); \
			mode = va_arg(more, mode_t); \
			va_end(more); \
		} \
		return fails(OPEN) ? -1 : real(__VA_ARGS__, mode); \
	}

WRAP_OPEN(open, (const char *path, int flags, ...), flags, flags, path, flags)
WRAP_OPEN(open64, (const char *path, int flags, ...), flags, flags, path, flags)
WRAP_OPEN(openat, (int at, const char *path, int flags, ...), flags, flags, at, path, flags)
WRAP_OPEN(openat64, (int at, const char *path, int flags, ...), flags, flags, at, path, flags)
WRAP(OPEN, DIR *, NULL, opendir, (const char *path), path)
WRAP(OPEN, DIR *, NULL, fdopendir, (int fd), fd)
WRAP_SIZE(READ, ssize_t, read, (int fd, void *to, size_t n), fd, to, n)
WRAP_SIZE(READ, ssize_t, pread, (int fd, void *to, size_t n, off_t at), fd, to, n, at)
WRAP_SIZE(READ, ssize_t, pread64, (int fd, void *to, size_t n, off64_t at), fd, to, n, at)
WRAP_SIZE(WRITE, ssize_t, write, (int fd, const void *from, size_t n), fd, from, n)
WRAP_SIZE(WRITE, ssize_t, pwrite, (int fd, const void *from, size_t n, off_t at), fd, from, n, at)
WRAP_SIZE(WRITE, ssize_t, pwrite64, (int fd, const void *from, size_t n, off64_t at), fd, from, n, at)
WRAP(SYNC, int, -1, fsync, (int fd), fd)
WRAP(SYNC, int, -1, fdatasync, (int fd), fd)
WRAP(RENAME, int, -1, rename, (const char *a, const char *b), a, b)
WRAP(RENAME, int, -1, renameat, (int at, const char *a, int to, const char *b), at, a, to, b)
WRAP(LINK, int, -1, link, (const char *a, const char *b), a, b)
WRAP(LINK, int, -1, linkat, (int at, const char *a, int to, const char *b, int flags), at, a, to, b, flags)
WRAP(UNLINK, int, -1, unlink, (const char *path), path)
WRAP(UNLINK, int, -1, unlinkat, (int at, const char *path, int flags), at, path, flags)
WRAP(UNLINK, int, -1, rmdir, (const char *path), path)
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

WRAP(RESERVE, int, -1, fallocate, (int fd, int mode, off_t at, off_t size), fd, mode, at, size)
WRAP(MKDIR, int, -1, mkdir, (const char *path, mode_t mode), path, mode)
WRAP(MKDIR, int, -1, mkdirat, (int at, const char *path, mode_t mode), at, path, mode)
WRAP(LIST, struct dirent *, NULL, readdir, (DIR *dir), dir)
WRAP(LIST, struct dirent64 *, NULL, readdir64, (DIR *dir), dir)
int getentropy(void *to, size_t size);
WRAP(RANDOM, int, -1, getentropy, (void *to, size_t size), to, size)
WRAP(TRUNCATE, int, -1, ftruncate, (int fd, off_t size), fd, size)
WRAP(TRUNCATE, int, -1, ftruncate64, (int fd, off64_t size), fd, size)

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
	return what == SYS_renameat2 && fails(RENAME) ? -1 : real(what, a[0], a[1], a[2], a[3], a[4], a[5]);
}
