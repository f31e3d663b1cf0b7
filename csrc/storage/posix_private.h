/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Storage on the file system of this machine, for posix*.c alone. tests/c/os_fault.c replaces `cf_local` and fails on
 * purpose.
 *
 * A function that returns int returns the result of the system call, -1 with errno set, and retries after EINTR.
 */
#ifndef CKPTFMT_STORAGE_POSIX_PRIVATE_H
#define CKPTFMT_STORAGE_POSIX_PRIVATE_H

#include "ckptfmt_unstable.h"

#include "base/system.h"
#include "storage/os.h"

#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

/* The functions of `cf_local` that posix.c has; its others are in posix_files.c. */
__typeof__(*cf_local.open) cf_posix_open_file;
__typeof__(*cf_local.create) cf_posix_create;
__typeof__(*cf_local.look_up) cf_posix_look_up;
__typeof__(*cf_local.file_info) cf_posix_file_info;
__typeof__(*cf_local.close_held) cf_posix_close_held;
__typeof__(*cf_local.close_quietly) cf_posix_close;
__typeof__(*cf_local.read_at) cf_posix_read_at;
__typeof__(*cf_local.write_at) cf_posix_write_at;
__typeof__(*cf_local.map) cf_posix_map;

/* What ckptfmt_counters_get reports, in the order of its fields. */
enum { CF_POSIX_COUNTERS = sizeof(ckptfmt_counters) / sizeof(uint64_t) };
extern _Atomic uint64_t cf_posix_counters[CF_POSIX_COUNTERS];
#define CF_COUNT(field, amount) \
	((void)atomic_fetch_add_explicit(&cf_posix_counters[offsetof(ckptfmt_counters, field) / sizeof(uint64_t)], \
		(amount), memory_order_relaxed))

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
