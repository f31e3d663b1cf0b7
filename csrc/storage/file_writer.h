/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes a new file sequentially under a temporary name and then renames it. All data files and index files are written
 * this way.
 *
 *   open -> put, put_crc, room + advance, zeros -> finish -> link_new or replace
 *   adopt -> link_new
 *   abandon: from any of these states; removes the file if it still has its temporary name
 *
 * A failure while writing is final: the writer repeats it until it is abandoned. A file writer belongs to one thread at
 * a time. Every error names the temporary file, or the target.
 *
 * Until it is abandoned, the file's lock shows other processes that its writer is alive (CMT-15).
 */
#ifndef CKPTFMT_STORAGE_FILE_WRITER_H
#define CKPTFMT_STORAGE_FILE_WRITER_H

#include "base/progress.h"
#include "storage/os.h"

enum {
	/* As fast as 4 and 8 MiB for writes to the page cache (measured); the bytes stay in the L2 cache between
	 * copying, checksumming and writing. */
	CF_FILE_WRITER_STAGING_SIZE = 1 << 20,
	/* Files of at least this size that will be synced use direct I/O, where that works. */
	CF_FILE_WRITER_DIRECT_MIN = 64 << 20,
	/* The least that cf_file_writer_room returns. */
	CF_FILE_WRITER_ROOM_MIN = 4096,
	CF_FILE_WRITER_NAME_SIZE = 256
};

typedef enum cf_file_writer_state {
	CF_FILE_WRITER_CLOSED = 0,     /* nothing owned, no file */
	CF_FILE_WRITER_WRITING,
	CF_FILE_WRITER_FAILED,         /* only abandon */
	CF_FILE_WRITER_FINISHED,       /* complete and closed but for its lock, still under its temporary name */
	CF_FILE_WRITER_PUBLISHED       /* has a name that the caller chose; nothing owned but its lock */
} cf_file_writer_state;

/* All zero is closed. Read by callers: position through cf_file_writer_position, the rest only for messages. */
typedef struct cf_file_writer {
	cf_file_writer_state state;
	cf_file file;                   /* when finished only the lock matters; -1 after cf_file_writer_unlock */
	const cf_directory *directory;  /* borrowed */
	uint8_t *memory;                /* NULL until the first byte is staged */
	uint8_t *staging;               /* in `memory`, at a page boundary, or the memory of a slot */
	uint64_t staged;                /* bytes in staging */
	uint64_t written;               /* bytes written, or being written: the offset of staging[0] */
	cf_direct *direct;              /* NULL: no direct I/O */
	unsigned slot;                  /* of `direct`: the one that is staging */
	uint64_t reserved;              /* bytes that the file system was asked to reserve */
	uint64_t synced_ahead;          /* write-back was started for the bytes before */
	bool sync_ahead;
	bool adopted;                   /* the file has other names, which are not this writer's */
	int32_t os_errno;               /* of the failure that ended it */
	cf_progress *progress;          /* counts what is written; borrowed, NULL: nothing does. Set by the caller */
	cf_file_info info;              /* of the finished file */
	char name[CF_FILE_WRITER_NAME_SIZE];         /* temporary */
	char path[sizeof((ckptfmt_error *)0)->path]; /* of `name`, for messages */
} cf_file_writer;

/* Creates `<final_name>.tempstate<16 hex digits>`, the first of them a letter, a name that does not exist. `directory`
 * must outlive the writer. On failure *writer is closed. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_open(cf_file_writer *writer, const cf_directory *directory,
	const char *final_name, ckptfmt_error *err);

/* Instead of writing a file, links an existing one, `from_name`, under a temporary name as above and takes it as
 * finished. Its other names stay. *adopted false (nothing done, *writer is closed): it is not the file that `info`
 * describes, or it cannot be linked. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_adopt(cf_file_writer *writer, const cf_directory *directory,
	const char *final_name, const cf_directory *from, const char *from_name, const cf_file_info *info, bool *adopted,
	ckptfmt_error *err);

/* A hint: the file will have `size` bytes. Space that is reserved and not used is released at the end. A large file
 * that will be synced gets 32 MiB of memory for direct I/O. */
void cf_file_writer_reserve(cf_file_writer *writer, uint64_t size);
/* A hint: the file will be synced, so write-back starts while it is being written. Call it before
 * cf_file_writer_reserve. */
void cf_file_writer_sync_ahead(cf_file_writer *writer);

/* Bytes put so far: the offset of the next. */
uint64_t cf_file_writer_position(const cf_file_writer *writer);

/* Appends. Large writes are not staged. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_put(cf_file_writer *writer, const void *bytes, uint64_t size,
	ckptfmt_error *err);
/* Appends, and extends *crc (ckptfmt_crc32c) by the bytes as they were copied, so that it is the checksum of the stored
 * bytes even if another thread changes `bytes` at the same time. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_put_crc(cf_file_writer *writer, const void *bytes, uint64_t size,
	uint32_t *crc, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_file_writer_zeros(cf_file_writer *writer, uint64_t size, ckptfmt_error *err);

/* Returns memory for the next bytes: *room of them, at least CF_FILE_WRITER_ROOM_MIN, at *to, valid until the next
 * call. They are appended by cf_file_writer_advance. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_room(cf_file_writer *writer, uint8_t **to, uint64_t *room,
	ckptfmt_error *err);
/* Appends the first `size` bytes of that memory. REQUIRES: size <= *room. */
void cf_file_writer_advance(cf_file_writer *writer, uint64_t size);

/* Writes the staged bytes to the file. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_flush(cf_file_writer *writer, ckptfmt_error *err);
/* Flushes, syncs if asked, and reports write errors. The file is then complete, under its temporary name. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_finish(cf_file_writer *writer, bool sync, ckptfmt_error *err);

/* Renames the finished file to `target` if that name is free; OK with *exists if it is taken. Can be called again with
 * another name, also after a failure. REQUIRES: finished; an adopted file may be published, and loses that name. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_link_new(cf_file_writer *writer, const char *target, bool *exists,
	ckptfmt_error *err);
/* Renames the finished file to `target`, replacing the file of that name. *unknown, with a failure: the file has one of
 * the two names, it is unknown which, and it stays. REQUIRES: finished. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_replace(cf_file_writer *writer, const char *target, bool *unknown,
	ckptfmt_error *err);

/* Closes the descriptor, which releases the lock, for callers with many finished files: by CMT-15 one lock is enough.
 * REQUIRES: finished or published. */
void cf_file_writer_unlock(cf_file_writer *writer);

/* Closes, removes a file that was not published (best effort), frees. Preserves errno. */
void cf_file_writer_abandon(cf_file_writer *writer);

#endif
