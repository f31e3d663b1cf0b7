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

/* ---- the functions cf_os_* of files and directories that have no other storage; see storage/os.h ---- */

CF_MUST_CHECK ckptfmt_status cf_local_directory_open(const char *path, bool make, bool sync_parents, cf_directory *out,
	ckptfmt_error *err);
void cf_local_directory_close(cf_directory *directory);
CF_MUST_CHECK ckptfmt_status cf_local_directory_lock(const cf_directory *directory, uint64_t timeout_ms,
	ckptfmt_error *err);
void cf_local_directory_unlock(const cf_directory *directory);
CF_MUST_CHECK ckptfmt_status cf_local_directory_list(const cf_directory *directory, cf_buffer *names,
	ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_open(const cf_directory *directory, const char *name, bool follow_symlinks,
	cf_file *out, cf_file_info *info, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_create(const cf_directory *directory, const char *name, cf_file *out,
	bool *exists, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_stat(const cf_directory *directory, const char *name, cf_file_info *info,
	bool *exists, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_file_info(const cf_file *file, const char *path, cf_file_info *info,
	ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_close(cf_file *file, const char *path, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_close_held(cf_file *file, const char *path, ckptfmt_error *err);
void cf_local_close_quietly(cf_file *file);
CF_MUST_CHECK ckptfmt_status cf_local_read_at(const cf_file *file, const char *path, uint8_t *to, uint64_t size,
	uint64_t offset, uint64_t *got, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_write_at(const cf_file *file, const char *path, const uint8_t *from,
	uint64_t size, uint64_t offset, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_rename(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_link(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, cf_link_result *result, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_rename_new(const cf_directory *from, const char *from_name,
	const cf_directory *to, const char *to_name, bool *exists, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_unlink(const cf_directory *directory, const char *name, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_local_map(const cf_file *file, const char *path, uint64_t offset, uint64_t size,
	const uint8_t **out, ckptfmt_error *err);

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
/* Leaves errno as it was. */
void cf_posix_close_quietly(int fd);
int cf_posix_sync(int fd);
int cf_posix_stat(int directory_fd, const char *name, struct stat *out, int flags);
/* CMT-15. Takes the shared lock of a file just created; true if another process has the exclusive one, to remove the
 * file, or has removed it. */
bool cf_posix_is_taken_away(const cf_directory *directory, const char *name, int fd);

#endif
