/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files os_posix*.c lend each other. Nobody else includes this.
 *
 * What gives an int gives what the system call gives, -1 with errno set, and has asked again after EINTR.
 */
#ifndef CKPTFMT_IO_OS_POSIX_H
#define CKPTFMT_IO_OS_POSIX_H

#include "storage/local.h"

#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>

/* What ckptfmt_counters_get tells. */
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
/* Leaves errno as it was. */
void cf_posix_close_quietly(int fd);
int cf_posix_sync(int fd);
int cf_posix_stat(int directory_fd, const char *name, struct stat *out, int flags);
/* CMT-15. Takes the shared lock of a file just made; true if somebody has the exclusive one, to remove the file, or did
 * remove it. */
bool cf_posix_is_taken_away(const cf_directory *directory, const char *name, int fd);

#endif
