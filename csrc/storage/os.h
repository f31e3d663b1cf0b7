/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The storage seam: every access to files goes through these functions, and only storage/ sees errno. A directory
 * belongs to the file system of this machine (storage/posix.c), or to a ckptfmt_storage: of a program, or in memory
 * (storage/memory.c). Files belong to the storage of their directory. Nothing above storage/ knows which one it uses.
 *
 * Names are relative to an open directory, so that renaming or replacing the directory cannot redirect a call.
 * REQUIRES of every name: not empty, no '/'. Every call handles short transfers and retries after EINTR, except close,
 * which must not be retried. The `path` beside a file, and the path of a directory, are only for messages. Every error
 * has the file's path and errno. Functions that return void preserve errno.
 */
#ifndef CKPTFMT_STORAGE_OS_H
#define CKPTFMT_STORAGE_OS_H

#include "base/buffer.h"
#include "base/error.h"

enum { CF_PERMISSIONS = 01000 };

typedef struct cf_file_info {
	uint64_t size;
	uint64_t device, inode;
	int64_t mtime_seconds;
	int64_t mtime_nanoseconds;
	uint64_t link_count;
	uint32_t permissions;   /* CF_PERMISSIONS and the bits of rwxrwxrwx; 0 where there are none */
	bool regular;           /* a regular file: not a directory, symbolic link, FIFO or device */
} cf_file_info;

typedef struct cf_directory {
	int fd;                 /* -1: not open */
	const char *path;       /* borrowed, "." for the current one */
	const ckptfmt_storage *storage;     /* borrowed; NULL: the file system, and `fd` is a descriptor */
	uint32_t permissions;   /* of files that are created in it; 0: 0666 less the umask */
} cf_directory;

typedef struct cf_file {
	int fd;                 /* -1: not open */
	const ckptfmt_storage *storage;     /* of its directory */
	void *object;           /* of `storage`, if that is not NULL */
} cf_file;

typedef enum cf_link_result {
	CF_LINK_DONE,
	/* Nothing was done: */
	CF_LINK_EXISTS,         /* the new name is taken */
	CF_LINK_NO_SOURCE,      /* the file, or the directory of the new name, is missing */
	CF_LINK_IMPOSSIBLE      /* another device, no links (left) in this file system, or not permitted */
} cf_link_result;

/* What every storage does. Each function is called by the macro cf_os_* of its name, below. */
typedef struct cf_os {
	/* Opens the directory `path`, which must outlive the result.
	 * With `make` the file system first creates it and missing parents (mode 0777 less the umask), and with
	 * `sync_parents` syncs the parent of each new directory. Without `make` a missing directory is
	 * CHECKPOINT_NOT_FOUND, and one with search permission alone is opened: listing and syncing it then fail.
	 * Other storages have no directories: there a directory is the beginning of a path, and always exists. */
	CF_MUST_CHECK ckptfmt_status (*directory_open)(const ckptfmt_storage *storage, const char *path, bool make,
		bool sync_parents, cf_directory *out, ckptfmt_error *err);
	void (*directory_close)(cf_directory *directory);
	/* Takes the directory's advisory lock; BUSY if that takes longer than about `timeout_ms`. It excludes every other
	 * open of the directory, those of this process too, and ends with the process. OK also if there are no locks. */
	CF_MUST_CHECK ckptfmt_status (*directory_lock)(const cf_directory *directory, uint64_t timeout_ms,
		ckptfmt_error *err);
	void (*directory_unlock)(const cf_directory *directory);
	/* Lists the names in the directory without "." and "..", each followed by a NUL, in any order. Clears `names`
	 * first. */
	CF_MUST_CHECK ckptfmt_status (*directory_list)(const cf_directory *directory, cf_buffer *names, ckptfmt_error *err);
	/* Opens a regular file for reading; never blocks (a FIFO, a device, a directory is IO). A missing file or a
	 * dangling link is OK with out->fd == -1: the caller decides what that means. With follow_symlinks false a link is
	 * BAD_PATH. `info` may be NULL. */
	CF_MUST_CHECK ckptfmt_status (*open)(const cf_directory *directory, const char *name, bool follow_symlinks,
		cf_file *out, cf_file_info *info, ckptfmt_error *err);
	/* Creates a file for reading and writing, with the permissions that the directory says or, where the file system
	 * cannot set them, fewer, and takes its shared lock (if the file system has locks). Until the file is closed, a
	 * process that looks for orphaned files sees that its writer is alive (CMT-15). If the name exists, sets *exists
	 * and opens nothing; symbolic links exist, and so do files that such a process is removing. */
	CF_MUST_CHECK ckptfmt_status (*create)(const cf_directory *directory, const char *name, cf_file *out, bool *exists,
		ckptfmt_error *err);
	/* Describes a file, directory or device; of a symbolic link its target or, with follow_symlinks false, the link,
	 * which is not regular. OK with *exists false if there is none. */
	CF_MUST_CHECK ckptfmt_status (*look_up)(const cf_directory *directory, const char *name, bool follow_symlinks,
		cf_file_info *info, bool *exists, ckptfmt_error *err);
	CF_MUST_CHECK ckptfmt_status (*file_info)(const cf_file *file, const char *path, cf_file_info *info,
		ckptfmt_error *err);
	/* Reports write errors as closing does (a failure to close can be one, over NFS), but keeps the file and its lock
	 * open. After a failure the file is closed, or still open if there was no descriptor for this. */
	CF_MUST_CHECK ckptfmt_status (*close_held)(cf_file *file, const char *path, ckptfmt_error *err);
	/* Closes a file that was not written to. */
	void (*close_quietly)(cf_file *file);
	/* Reads up to `size` bytes; *got below `size` means the file ended. An error has its offset. */
	CF_MUST_CHECK ckptfmt_status (*read_at)(const cf_file *file, const char *path, uint8_t *to, uint64_t size,
		uint64_t offset, uint64_t *got, ckptfmt_error *err);
	/* Writes all bytes. An error has its offset; bytes before it may have been written.
	 * REQUIRES: `offset` is the end of what was written before, unless the file is on the file system. */
	CF_MUST_CHECK ckptfmt_status (*write_at)(const cf_file *file, const char *path, const uint8_t *from, uint64_t size,
		uint64_t offset, ckptfmt_error *err);
	/* Renames a file. With `replaces` the target is replaced atomically; otherwise it never is: OK with *exists if the
	 * name is taken. File systems without that call link and unlink; those without links create an empty file of the
	 * new name and replace it. After a failure the file has its old name. The target is then as it was: the old one
	 * with `replaces`, else free, unless removing it failed as well. */
	CF_MUST_CHECK ckptfmt_status (*publish)(const cf_directory *directory, const char *from, const char *to,
		bool replaces, bool *exists, ckptfmt_error *err);
	/* Hard-links a file (of a symbolic link: its target). OK for every *result. */
	CF_MUST_CHECK ckptfmt_status (*link)(const cf_directory *from, const char *from_name, const cf_directory *to,
		const char *to_name, cf_link_result *result, ckptfmt_error *err);
	/* OK if there is no such file. */
	CF_MUST_CHECK ckptfmt_status (*unlink)(const cf_directory *directory, const char *name, ckptfmt_error *err);
	/* A read-only mapping of the file or, of other storages, a copy of its bytes. REQUIRES: `offset` is a multiple of
	 * cf_os_page_size, size > 0, both inside the file. The caller unmaps the same `size`. It outlives the file. */
	CF_MUST_CHECK ckptfmt_status (*map)(const cf_file *file, const char *path, uint64_t offset, uint64_t size,
		const uint8_t **out, ckptfmt_error *err);
} cf_os;

extern const cf_os cf_local;       /* the file system: storage/posix*.c */
extern const cf_os cf_objects;     /* a ckptfmt_storage: storage/objects.c */

/* Whether this is the file system. Only it has directories, links, descriptors and mappings: the functions that need
 * them do nothing for other storages. */
static inline bool cf_os_is_local(const ckptfmt_storage *storage)
{
	return storage == NULL;
}

#define CF_OS(storage) (cf_os_is_local(storage) ? &cf_local : &cf_objects)
#define cf_storage_directory_open(storage, ...) CF_OS(storage)->directory_open(storage, __VA_ARGS__)
#define cf_os_directory_close(directory) CF_OS((directory)->storage)->directory_close(directory)
#define cf_os_directory_lock(directory, ...) CF_OS((directory)->storage)->directory_lock(directory, __VA_ARGS__)
#define cf_os_directory_unlock(directory) CF_OS((directory)->storage)->directory_unlock(directory)
#define cf_os_directory_list(directory, ...) CF_OS((directory)->storage)->directory_list(directory, __VA_ARGS__)
#define cf_os_open(directory, ...) CF_OS((directory)->storage)->open(directory, __VA_ARGS__)
#define cf_os_create(directory, ...) CF_OS((directory)->storage)->create(directory, __VA_ARGS__)
#define cf_os_stat(directory, name, ...) CF_OS((directory)->storage)->look_up(directory, name, true, __VA_ARGS__)
#define cf_os_lstat(directory, name, ...) CF_OS((directory)->storage)->look_up(directory, name, false, __VA_ARGS__)
#define cf_os_file_info(file, ...) CF_OS((file)->storage)->file_info(file, __VA_ARGS__)
#define cf_os_close_held(file, ...) CF_OS((file)->storage)->close_held(file, __VA_ARGS__)
#define cf_os_close_quietly(file) CF_OS((file)->storage)->close_quietly(file)
#define cf_os_read_at(file, ...) CF_OS((file)->storage)->read_at(file, __VA_ARGS__)
#define cf_os_write_at(file, ...) CF_OS((file)->storage)->write_at(file, __VA_ARGS__)
#define cf_os_publish(directory, ...) CF_OS((directory)->storage)->publish(directory, __VA_ARGS__)
/* For two storages, the one of the target. */
#define cf_os_link(from, from_name, to, ...) CF_OS((to)->storage)->link(from, from_name, to, __VA_ARGS__)
#define cf_os_unlink(directory, ...) CF_OS((directory)->storage)->unlink(directory, __VA_ARGS__)
#define cf_os_map(file, ...) CF_OS((file)->storage)->map(file, __VA_ARGS__)
/* False if cf_os_map of this file returns a private copy. */
#define cf_os_can_map(file) cf_os_is_local((file)->storage)

/* Writes "<directory>/<name>", the path for messages, to `to`, NUL-terminated; of a path that does not fit, the end.
 * REQUIRES: size > 0. */
void cf_os_path(const cf_directory *directory, const char *name, char *to, uint64_t size);

/* Removes an empty directory, best effort. Does nothing if the storage has no directories. */
void cf_storage_directory_remove(const ckptfmt_storage *storage, const char *path);
CF_MUST_CHECK ckptfmt_status cf_os_directory_sync(const cf_directory *directory, ckptfmt_error *err);
/* Gives a file other permissions, best effort. Does nothing if the storage has none. */
void cf_os_set_permissions(const cf_directory *directory, const char *name, uint32_t permissions);
/* Takes the shared lock that cf_os_create takes, of an open file that has this name. False if another process is
 * removing the file; true also where the file system has no locks. */
bool cf_os_hold(const cf_directory *directory, const char *name, const cf_file *file);

/* ---- the remover of CMT-15, on the file system ---- */

/* As cf_os_directory_list; of a directory with more than `count_max` names, which is not read to the end, none. */
CF_MUST_CHECK ckptfmt_status cf_os_directory_list_first(const cf_directory *directory, uint64_t count_max,
	cf_buffer *names, ckptfmt_error *err);
/* Opens the regular file that has this name and takes its exclusive lock, without waiting. False, and nothing open, if
 * that is not possible: its writer is alive, it is not a regular file, another file has taken its name meanwhile, or
 * the system reports an error. */
bool cf_os_take(const cf_directory *directory, const char *name, cf_file *out);
/* Opens a directory in a directory; links are not followed. False if that is not possible. */
bool cf_os_directory_open_in(const cf_directory *directory, const char *name, cf_directory *out);
/* Removes an empty directory in a directory; whether it is removed. */
bool cf_os_directory_remove_in(const cf_directory *directory, const char *name);

/* Whether a read of a file of this directory may be a round trip to a server. False of the file system. */
static inline bool cf_os_has_latency(const cf_directory *directory)
{
	return !cf_os_is_local(directory->storage);
}
/* Reads ranges of objects of the directory's storage. REQUIRES: cf_os_has_latency. */
CF_MUST_CHECK ckptfmt_status cf_os_read_batch(const cf_directory *directory, ckptfmt_object_read *reads, uint64_t count,
	ckptfmt_error *err);
/* A hint, best effort: reserves space for so many bytes. The file's size does not change. */
void cf_os_reserve(const cf_file *file, uint64_t size);
/* A hint, best effort: sets the file's size, which releases space that was reserved beyond it. */
void cf_os_trim(const cf_file *file, uint64_t size);
/* A hint, best effort: starts write-back of these bytes, so that a later cf_os_sync has less to do. Does not sync. */
void cf_os_sync_ahead(const cf_file *file, uint64_t offset, uint64_t size);
/* Writes data and size to the device. After an error the file must not be synced again. */
CF_MUST_CHECK ckptfmt_status cf_os_sync(const cf_file *file, const char *path, ckptfmt_error *err);

void cf_os_unmap(const uint8_t *data, uint64_t size);
uint64_t cf_os_page_size(void);

/* ---- several transfers under way ---- */

enum {
	CF_DIRECT_ALIGNMENT = 4096,      /* of offsets and sizes */
	CF_DIRECT_SLOTS = 8,             /* with this many under way a disk is busy throughout (measured) */
	CF_DIRECT_SLOT_SIZE = 4 << 20
};

/* Direct I/O (past the page cache) between a file and slots of memory, several transfers at once. What cannot be
 * transferred so falls back to the page cache. Belongs to one thread at a time. */
typedef struct cf_direct cf_direct;

/* Begins direct writes to a file that is open only here; until cf_os_direct_end all writes go through this. NULL:
 * direct I/O does not work here, or the process has too many of these (memory is bounded). */
cf_direct *cf_os_direct_write(const cf_file *file);
/* Begins direct reads of the file `name`; NULL as above, or if that is no longer the open file. */
cf_direct *cf_os_direct_read(const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file);
/* The slot's CF_DIRECT_SLOT_SIZE bytes; not to be used between start and wait. REQUIRES: slot < CF_DIRECT_SLOTS. */
uint8_t *cf_os_direct_memory(cf_direct *direct, unsigned slot);
/* Makes the slot use this memory of the caller (as many bytes as are transferred) until the next call; NULL: its own
 * memory. False, with nothing changed, if the address does not have the alignment that direct I/O needs.
 * REQUIRES: the slot was waited for. */
bool cf_os_direct_place(cf_direct *direct, unsigned slot, uint8_t *memory);
/* Starts the transfer of the first `size` bytes of the slot. REQUIRES: the slot was waited for. */
void cf_os_direct_start(cf_direct *direct, unsigned slot, uint64_t size, uint64_t offset);
/* Waits for the slot's last transfer, if any. After a read, *got below the size means that the file ended. Errors are
 * those of cf_os_read_at and cf_os_write_at. */
CF_MUST_CHECK ckptfmt_status cf_os_direct_wait(cf_direct *direct, unsigned slot, const char *path, uint64_t *got,
	ckptfmt_error *err);
/* Waits for transfers that are running and frees `direct`, which may be NULL. Transfers that were not waited for may
 * not have happened. In a child forked since the beginning this is the only function to call; it frees the child's
 * copy. */
void cf_os_direct_end(cf_direct *direct);

/* Whether most of this range is in the page cache, by a sample of its pages. True also if that is unknown. */
bool cf_os_is_cached(const cf_file *file, uint64_t offset, uint64_t size);

/* Bytes that no other process can predict. */
CF_MUST_CHECK ckptfmt_status cf_os_random(void *to, uint64_t size, ckptfmt_error *err);

#endif
