/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storage on the file system of this machine, for storage.c and posix*.c alone. tests/c/os_fault.c replaces the
 * functions named cf_local_* and fails on purpose.
 *
 * A function that returns int returns the result of the system call, -1 with errno set, and retries after EINTR.
 */
#ifndef CKPTFMT_STORAGE_POSIX_PRIVATE_H
#define CKPTFMT_STORAGE_POSIX_PRIVATE_H

#include "storage/os.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

/* ---- the POSIX side of storage.c ---- */

/* Each is the function cf_os_* of the same name in storage/os.h, for directories and files whose `storage` is NULL. */
#define CF_LOCAL(name) CF_MUST_CHECK __typeof__(cf_os_##name) cf_local_##name
CF_LOCAL(directory_lock);
CF_LOCAL(directory_list);
CF_LOCAL(open);
CF_LOCAL(create);
CF_LOCAL(stat);
CF_LOCAL(lstat);
CF_LOCAL(file_info);
CF_LOCAL(close);
CF_LOCAL(close_held);
CF_LOCAL(read_at);
CF_LOCAL(write_at);
CF_LOCAL(rename);
CF_LOCAL(rename_new);
CF_LOCAL(link);
CF_LOCAL(unlink);
CF_LOCAL(map);
#undef CF_LOCAL
CF_MUST_CHECK ckptfmt_status cf_local_directory_open(const char *path, bool make, bool sync_parents, cf_directory *out,
	ckptfmt_error *err);
void cf_local_directory_close(cf_directory *directory);
void cf_local_directory_unlock(const cf_directory *directory);
void cf_local_close_quietly(cf_file *file);

/* ---- shared by posix*.c ---- */

/* What ckptfmt_counters_get reports. */
extern struct cf_posix_counters {
	_Atomic uint64_t opens, reads, bytes_read, writes, bytes_written, syncs, renames, links, unlinks, maps;
} cf_posix_counters;

#define CF_COUNT(field, amount) \
	((void)atomic_fetch_add_explicit(&cf_posix_counters.field, (amount), memory_order_relaxed))

/* Names are chosen by us, never read from a file. */
static inline bool cf_posix_is_name(const char *name)
{
	return name[0] != '\0' && strchr(name, '/') == NULL;
}

/* The failure of a call on `name` in `directory`. */
CF_MUST_CHECK ckptfmt_status cf_posix_fail(ckptfmt_error *err, int os_errno, const cf_directory *directory,
	const char *name, const char *message);
/* Every open goes through here. `mode` counts only with O_CREAT. */
int cf_posix_open(int directory_fd, const char *name, int flags, mode_t mode);
/* As cf_posix_open, for a file that this process locks: flock is shared with forked children, and a child would keep
 * the lock after the death of this process. The descriptor becomes one of /dev/null in a forked child. */
int cf_posix_open_private(int directory_fd, const char *name, int flags, mode_t mode);
/* Makes an open descriptor private to this process in the same way. */
void cf_posix_make_private(int fd);
/* As F_DUPFD_CLOEXEC; the duplicate is private too. */
int cf_posix_duplicate_private(int fd);
/* A number that a forked child does not share with this process; getpid would be a system call each time. 0: forks go
 * unnoticed here. */
unsigned cf_posix_process(void);
/* Of this process: 0 at first, also in a forked child. */
extern _Atomic unsigned cf_posix_live_directs;
/* Preserves errno. */
void cf_posix_close_quietly(int fd);
int cf_posix_sync(int fd);
int cf_posix_stat(int directory_fd, const char *name, struct stat *out, int flags);

#endif
