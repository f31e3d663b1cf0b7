/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storage seam: every access to files goes through these functions, and only storage/ sees errno. A directory
 * belongs to the file system of this machine (storage/posix.c), or to a ckptfmt_storage: of a program, or in memory
 * (storage/memory.c). Files belong to the storage of their directory. Nothing above storage/ knows which one it uses.
 *
 * Names are relative to an open directory, so that a directory renamed or replaced mid-way cannot redirect a call.
 * REQUIRES of every name: not empty, no '/'. Every call retries EINTR (close excepted, which must not be retried) and
 * handles short transfers. A `path` next to a file, and the path of a directory, are only for messages. Every failure
 * carries the file's path and errno. What returns nothing leaves errno as it was.
 */
#ifndef CKPTFMT_IO_OS_H
#define CKPTFMT_IO_OS_H

#include "base/buffer.h"
#include "base/error.h"

typedef struct cf_file_info {
	uint64_t size;
	uint64_t device, inode;
	int64_t mtime_seconds;
	int64_t mtime_nanoseconds;
	uint64_t link_count;
	bool regular;           /* a file of bytes, no directory, FIFO or device */
} cf_file_info;

typedef struct cf_directory {
	int fd;                 /* -1: not open */
	const char *path;       /* borrowed, "." for the current one */
	const ckptfmt_storage *storage;     /* borrowed; NULL: the file system, and `fd` is a descriptor */
} cf_directory;

typedef struct cf_file {
	int fd;                 /* -1: not open */
	const ckptfmt_storage *storage;     /* of its directory */
	void *object;           /* of `storage`, if that is not NULL */
} cf_file;

/* Writes "<directory>/<name>", the path for messages, to `to`; of one too long its end. NUL-terminated.
 * REQUIRES: size > 0. */
void cf_os_path(const cf_directory *directory, const char *name, char *to, uint64_t size);

/* Opens the directory `path`. With `make`, makes it and missing parents first (mode 0777 less the umask), and with
 * `sync_parents` syncs the parent of each level it made. `path` must outlive the result.
 * Without `make` a missing directory is CHECKPOINT_NOT_FOUND, and one that may only be searched is opened all the same:
 * listing and syncing it then fail. */
CF_MUST_CHECK ckptfmt_status cf_os_directory_open(const char *path, bool make, bool sync_parents, cf_directory *out,
	ckptfmt_error *err);
/* The directory `path` of a storage; NULL: as cf_os_directory_open. Other storages have no directories of their own:
 * there a directory is the beginning of a path, nothing is made, and it is always there. */
CF_MUST_CHECK ckptfmt_status cf_storage_directory_open(const ckptfmt_storage *storage, const char *path, bool make,
	bool sync_parents, cf_directory *out, ckptfmt_error *err);
void cf_os_directory_close(cf_directory *directory);
/* Removes an empty directory of the storage, if it has any. One that is not empty, or cannot be removed, stays. */
void cf_storage_directory_remove(const ckptfmt_storage *storage, const char *path);
CF_MUST_CHECK ckptfmt_status cf_os_directory_sync(const cf_directory *directory, ckptfmt_error *err);
/* Waits until no other holder of this directory's lock is left, at most about `timeout_ms`; then BUSY. Only those who
 * ask for the lock keep out of each other's way, a second open of the same directory among them, and it goes with the
 * process. Where the file system has no locks nothing is locked, and that is OK. */
CF_MUST_CHECK ckptfmt_status cf_os_directory_lock(const cf_directory *directory, uint64_t timeout_ms,
	ckptfmt_error *err);
void cf_os_directory_unlock(const cf_directory *directory);
/* The names in the directory, each followed by a NUL, "." and ".." left out, in no order. `names` is cleared first. */
CF_MUST_CHECK ckptfmt_status cf_os_directory_list(const cf_directory *directory, cf_buffer *names, ckptfmt_error *err);

/* Opens a regular file for reading; never blocks (a FIFO, a device, a directory is IO). A missing file, or a link that
 * leads to none, is OK with out->fd == -1, so that callers decide what it means. With follow_symlinks false a link is
 * BAD_PATH. `info` may be NULL. */
CF_MUST_CHECK ckptfmt_status cf_os_open(const cf_directory *directory, const char *name, bool follow_symlinks,
	cf_file *out, cf_file_info *info, ckptfmt_error *err);
/* Makes a new file for reading and writing, mode 0666 less the umask, and takes its shared lock: until all opens of it
 * are closed, whoever looks for files of dead writers sees that this one lives (CMT-15). Where the file system has no
 * locks there is none. *exists (then not opened) is no failure; a symbolic link, wherever it leads, exists, and so does
 * a file that such a look removes just now. */
CF_MUST_CHECK ckptfmt_status cf_os_create(const cf_directory *directory, const char *name, cf_file *out, bool *exists,
	ckptfmt_error *err);
/* Takes the shared lock that cf_os_create takes, of a file that stands at `name` and was opened since it does. False
 * if somebody removes it just now; true also where there are no locks. */
bool cf_os_hold(const cf_directory *directory, const char *name, const cf_file *file);
/* Of the file itself or, for a symbolic link, of what it leads to. *exists false is no failure. Of a directory or a
 * device too. */
CF_MUST_CHECK ckptfmt_status cf_os_stat(const cf_directory *directory, const char *name, cf_file_info *info,
	bool *exists, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_os_file_info(const cf_file *file, const char *path, cf_file_info *info,
	ckptfmt_error *err);
/* Reports what closing reports (a write error on NFS). The file is closed whatever is returned. */
CF_MUST_CHECK ckptfmt_status cf_os_close(cf_file *file, const char *path, ckptfmt_error *err);
/* The same, but the file and its lock stay open: closed for what was written, held for who is to see it. After a
 * failure it is closed, or still open where there was no descriptor for this. */
CF_MUST_CHECK ckptfmt_status cf_os_close_held(cf_file *file, const char *path, ckptfmt_error *err);
/* The same where nothing was written. */
void cf_os_close_quietly(cf_file *file);

/* Reads up to `size` bytes; *got below `size` means the file ended. A failure tells the offset it happened at. */
CF_MUST_CHECK ckptfmt_status cf_os_read_at(const cf_file *file, const char *path, uint8_t *to, uint64_t size,
	uint64_t offset, uint64_t *got, ckptfmt_error *err);
/* Writes all of it. A failure tells the offset it happened at; what lies before it may have been written.
 * REQUIRES: `offset` is the end of what was written before, unless the file is on the file system. */
CF_MUST_CHECK ckptfmt_status cf_os_write_at(const cf_file *file, const char *path, const uint8_t *from, uint64_t size,
	uint64_t offset, ckptfmt_error *err);
/* Tells the file system how long the file will be; a wish, never a failure. The size does not change. */
void cf_os_reserve(const cf_file *file, uint64_t size);
/* Makes this the file's size; a wish: to give back what was reserved beyond, or so that writes need not do it. */
void cf_os_trim(const cf_file *file, uint64_t size);
/* Begins to write these bytes to the device and does not wait: a later cf_os_sync has less to do. A wish, no sync. */
void cf_os_sync_ahead(const cf_file *file, uint64_t offset, uint64_t size);
/* Forces data and size to the device. An error is final: never sync the same file again. */
CF_MUST_CHECK ckptfmt_status cf_os_sync(const cf_file *file, const char *path, ckptfmt_error *err);

/* Replaces the target atomically. */
CF_MUST_CHECK ckptfmt_status cf_os_rename(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, ckptfmt_error *err);
typedef enum cf_link_result {
	CF_LINK_DONE,
	CF_LINK_EXISTS,         /* the new name is taken; nothing done */
	CF_LINK_NO_SOURCE,      /* there is no such file, or the directory of the new name is gone; nothing done */
	CF_LINK_IMPOSSIBLE      /* another device, a file system without links or with no more of them, somebody else's
	                         * file; nothing done */
} cf_link_result;
/* Gives the file (of a symbolic link: what it leads to) a second name. Whatever *result says is no failure. */
CF_MUST_CHECK ckptfmt_status cf_os_link(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, cf_link_result *result, ckptfmt_error *err);
/* As rename, but never over another file: *exists (nothing done) is no failure. Where the file system has no such call,
 * link and unlink; where it has no links either, an empty file is made to hold the name and then replaced. After a
 * failure the file stands under its old name, and the new one is free unless removing it failed as well. */
CF_MUST_CHECK ckptfmt_status cf_os_rename_new(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, bool *exists, ckptfmt_error *err);
/* A missing file is no failure. */
CF_MUST_CHECK ckptfmt_status cf_os_unlink(const cf_directory *directory, const char *name, ckptfmt_error *err);

/* A read-only mapping of the file. REQUIRES: `offset` is a multiple of cf_os_page_size, size > 0, both inside the
 * file. The caller unmaps the same `size`. The mapping outlives the file. */
CF_MUST_CHECK ckptfmt_status cf_os_map(const cf_file *file, const char *path, uint64_t offset, uint64_t size,
	const uint8_t **out, ckptfmt_error *err);
void cf_os_unmap(const uint8_t *data, uint64_t size);
/* False if cf_os_map of this file returns a private copy. */
bool cf_os_can_map(const cf_file *file);
uint64_t cf_os_page_size(void);

/* ---- several transfers under way ---- */

enum {
	CF_DIRECT_ALIGNMENT = 4096,      /* of offsets and sizes */
	CF_DIRECT_SLOTS = 8,             /* with this many under way a disk is busy throughout (measured) */
	CF_DIRECT_SLOT_SIZE = 4 << 20
};

/* Transfers past the page cache between a file and memory of its own, several at once, each by a slot. What cannot be
 * transferred so goes through the page cache, without a failure. Belongs to one thread at a time. */
typedef struct cf_direct cf_direct;

/* For writing past the page cache a file that nobody else has open; until cf_os_direct_end all goes through this. NULL:
 * it does not work here, or the process has enough of these (memory is bounded); nothing has changed. */
cf_direct *cf_os_direct_write(const cf_file *file);
/* For reading past the page cache the file `name` if that is still the one that is open as `file`; NULL as above. */
cf_direct *cf_os_direct_read(const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file);
/* CF_DIRECT_SLOT_SIZE bytes, not to be touched between start and wait. REQUIRES: slot < CF_DIRECT_SLOTS. */
uint8_t *cf_os_direct_memory(cf_direct *direct, unsigned slot);
/* Until it is called again the slot is this memory of the caller, CF_DIRECT_SLOT_SIZE bytes or as many as are moved;
 * NULL: the memory that comes with it. False, and nothing is changed, where the file system wants other addresses.
 * REQUIRES: the slot was waited for. */
bool cf_os_direct_place(cf_direct *direct, unsigned slot, uint8_t *memory);
/* Begins to move the first `size` bytes of the slot to or from the file. REQUIRES: the slot was waited for. */
void cf_os_direct_start(cf_direct *direct, unsigned slot, uint64_t size, uint64_t offset);
/* Waits for what was started last, if anything was. *got, when reading, below the size means that the file ended. A
 * failure is told as by cf_os_read_at and cf_os_write_at. */
CF_MUST_CHECK ckptfmt_status cf_os_direct_wait(cf_direct *direct, unsigned slot, const char *path, uint64_t *got,
	ckptfmt_error *err);
/* Waits for what is being moved; what was not waited for before may not have been moved. NULL is no failure. In a
 * process forked since the beginning this only gives up what that process has of it, and nothing else is to be called
 * there. */
void cf_os_direct_end(cf_direct *direct);

/* Whether most of this part of the file is in memory, by a look at some of its pages. True also where nobody can
 * tell. */
bool cf_os_is_cached(const cf_file *file, uint64_t offset, uint64_t size);

/* Bytes that no other process can predict. */
CF_MUST_CHECK ckptfmt_status cf_os_random(void *to, uint64_t size, ckptfmt_error *err);

#endif
