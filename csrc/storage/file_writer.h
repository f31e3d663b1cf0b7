/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A new file written from front to end under a temporary name and then given its own: every data file and every index
 * file is made by one of these.
 *
 *   open -> put, put_crc, room + advance, zeros -> finish -> link_new or replace
 *   adopt -> link_new
 *   abandon: from any of these states; removes the file if it still has its temporary name
 *
 * A failure while writing is final: whatever reached the file, the writer then repeats the failure until it is
 * abandoned. A file writer belongs to one thread at a time. Every failure names the temporary file, or the target.
 *
 * Until it is abandoned, under whatever name it stands, the file's lock says that its writer lives (CMT-15).
 */
#ifndef CKPTFMT_IO_FILE_WRITER_H
#define CKPTFMT_IO_FILE_WRITER_H

#include "base/progress.h"
#include "storage/os.h"

enum {
	/* As fast as 4 and 8 MiB where the file goes to the page cache (measured), and it stays in the L2 cache
	 * between the copy with its checksum and the write. */
	CF_FILE_WRITER_STAGING_SIZE = 1 << 20,
	/* From this size on a file that will be synced goes past the page cache, where that works. */
	CF_FILE_WRITER_DIRECT_MIN = 64 << 20,
	/* cf_file_writer_room never gives less. */
	CF_FILE_WRITER_ROOM_MIN = 4096,
	CF_FILE_WRITER_NAME_SIZE = 256
};

typedef enum cf_file_writer_state {
	CF_FILE_WRITER_CLOSED = 0,     /* nothing owned, no file */
	CF_FILE_WRITER_WRITING,
	CF_FILE_WRITER_FAILED,         /* only abandon */
	CF_FILE_WRITER_FINISHED,       /* complete and closed but for its lock, still under its temporary name */
	CF_FILE_WRITER_PUBLISHED       /* stands under a name of the caller's; nothing owned but its lock */
} cf_file_writer_state;

/* All zero is closed. Read by callers: position through cf_file_writer_position, the rest only for messages. */
typedef struct cf_file_writer {
	cf_file_writer_state state;
	cf_file file;                   /* of a finished one only the lock counts; -1 when it was let go */
	const cf_directory *directory;  /* borrowed */
	uint8_t *memory;                /* NULL until the first byte is staged */
	uint8_t *staging;               /* in `memory`, at a page boundary, or the memory of a slot */
	uint64_t staged;                /* bytes in staging */
	uint64_t written;               /* bytes in the file, or on their way: where staging[0] goes */
	cf_direct *direct;              /* NULL unless the file goes past the page cache */
	unsigned slot;                  /* of `direct`: the one that is staging */
	uint64_t reserved;              /* bytes wished for */
	uint64_t synced_ahead;          /* what lies before is on its way to the device */
	bool sync_ahead;
	bool adopted;                   /* the file has other names, which are none of ours */
	int32_t os_errno;               /* of the failure that ended it */
	cf_progress *progress;          /* counts what is written; borrowed, NULL: nothing does. Set by the caller */
	cf_file_info info;              /* of the finished file */
	char name[CF_FILE_WRITER_NAME_SIZE];         /* temporary */
	char path[sizeof((ckptfmt_error *)0)->path]; /* of `name`, for messages */
} cf_file_writer;

/* Makes `<final_name>.tempstate<16 hex digits>`, the first of them a letter, a name nobody else uses. `directory` must
 * outlive the writer. On failure *writer is closed. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_open(cf_file_writer *writer, const cf_directory *directory,
	const char *final_name, ckptfmt_error *err);

/* Instead of writing one: gives the file `from_name`, which must be the one that `info` is of and have its size, a
 * second name, temporary as above, and takes it as finished. Its other names stay whatever becomes of this one.
 * *adopted false (nothing done, *writer is closed): it is another file, or there are no links here. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_adopt(cf_file_writer *writer, const cf_directory *directory,
	const char *final_name, const cf_directory *from, const char *from_name, const cf_file_info *info, bool *adopted,
	ckptfmt_error *err);

/* A hint: the file will have `size` bytes. What is reserved and not used is given back at the end. A large file that
 * will be synced gets 32 MiB of memory for writes past the page cache. */
void cf_file_writer_reserve(cf_file_writer *writer, uint64_t size);
/* A wish, for files that will be synced: begins to write to the device while more is put. To be told before the
 * size. */
void cf_file_writer_sync_ahead(cf_file_writer *writer);

/* Bytes put so far: the offset of the next. */
uint64_t cf_file_writer_position(const cf_file_writer *writer);

/* Appends. Much at once goes to the system straight from `bytes`. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_put(cf_file_writer *writer, const void *bytes, uint64_t size,
	ckptfmt_error *err);
/* Appends, and continues *crc (ckptfmt_crc32c) over the bytes as they were copied: what is stored matches the checksum
 * even if another thread changes `bytes` meanwhile. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_put_crc(cf_file_writer *writer, const void *bytes, uint64_t size,
	uint32_t *crc, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_file_writer_zeros(cf_file_writer *writer, uint64_t size, ckptfmt_error *err);

/* Memory to put the next bytes into directly: *room of them, at least CF_FILE_WRITER_ROOM_MIN, at *to, until the next
 * call. Nothing is put before cf_file_writer_advance. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_room(cf_file_writer *writer, uint8_t **to, uint64_t *room,
	ckptfmt_error *err);
/* The first `size` bytes of the room given last are filled. REQUIRES: size <= *room. */
void cf_file_writer_advance(cf_file_writer *writer, uint64_t size);

/* Hands what is staged to the system. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_flush(cf_file_writer *writer, ckptfmt_error *err);
/* Flushes, syncs if asked, closes for writing. The file is complete, under its temporary name. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_finish(cf_file_writer *writer, bool sync, ckptfmt_error *err);

/* Gives the finished file the name `target` if that is free; *exists (nothing done, another name may be tried) is no
 * failure. After a failure too another call may be tried. REQUIRES: finished; of an adopted file published will do, it
 * then loses the name it had. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_link_new(cf_file_writer *writer, const char *target, bool *exists,
	ckptfmt_error *err);
/* Gives the finished file the name `target`, in the place of the file that had it. *unknown, with a failure: it may
 * stand under either name, nobody can tell, and is left alone from here on. REQUIRES: finished. */
CF_MUST_CHECK ckptfmt_status cf_file_writer_replace(cf_file_writer *writer, const char *target, bool *unknown,
	ckptfmt_error *err);

/* Gives the descriptor back, and the lock with it: for who finishes many files. CMT-15 asks for one of them.
 * REQUIRES: finished or published. */
void cf_file_writer_let_go(cf_file_writer *writer);

/* Closes, removes a file that was not published, frees. Leaves errno alone. What cannot be removed stays. */
void cf_file_writer_abandon(cf_file_writer *writer);

#endif
