/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operating-system seam, failing on purpose. Link tests/c/os_fault.c (with -pthread) in the place of
 * csrc/storage/posix*.c, which it contains: without a plan it is the real thing.
 *
 * Two levels:
 *   calls    the functions of storage/os.h. The at-th one fails, is cut short, or is the moment of a crash.
 *   system   what these call below them, kind by kind: EINTR, ENOSPC, a file system without renameat2, short
 *            transfers. This tests their loops and fallbacks.
 *
 * The usual loop:
 *   for (n = 1, failed = true; failed; n++) {
 *           os_fault_set(&(os_fault_plan){.at = n, .os_errno = ENOSPC});
 *           failed = call() != CKPTFMT_OK;      // a typed error, nothing leaked, the old checkpoint intact
 *           os_fault_clear();
 *   }
 * End it by os_fault_hits() == 0 where a call may succeed in spite of a fault.
 */
#ifndef CKPTFMT_TESTS_OS_FAULT_H
#define CKPTFMT_TESTS_OS_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* Functions of storage/os.h that can fail, and those with an effect on the disk. Closing what was only read, unmapping
 * and page size always work and are not counted. DIRECT: beginning what cf_os_direct_write and cf_os_direct_read
 * begin; what is started there counts as WRITE and READ. */
typedef enum os_fault_kind {
	OS_FAULT_ANY = 0, OS_FAULT_DIRECTORY_OPEN, OS_FAULT_DIRECTORY_SYNC, OS_FAULT_DIRECTORY_LIST, OS_FAULT_OPEN,
	OS_FAULT_CREATE, OS_FAULT_STAT, OS_FAULT_FILE_INFO, OS_FAULT_CLOSE, OS_FAULT_READ, OS_FAULT_WRITE,
	OS_FAULT_RESERVE, OS_FAULT_TRIM, OS_FAULT_SYNC_AHEAD, OS_FAULT_SYNC, OS_FAULT_RENAME, OS_FAULT_LINK,
	OS_FAULT_RENAME_NEW, OS_FAULT_UNLINK, OS_FAULT_MAP, OS_FAULT_RANDOM, OS_FAULT_DIRECT,
	OS_FAULT_KIND_COUNT
} os_fault_kind;

typedef struct os_fault_plan {
	os_fault_kind kind;    /* the calls that count; ANY: all */
	uint64_t at;           /* the at-th of them from now fails, 1 is the next; 0: none */
	bool forever;          /* and every later one that counts */
	bool crash;            /* and every later one of any kind: nothing more reaches the disk */
	bool after;            /* the call is carried out and then reported as failed */
	bool silent;           /* a failing write reports success and writes `partial` bytes; a failing sync reports
	                        * success and syncs nothing */
	int os_errno;          /* 0: EIO */
	void (*meanwhile)(void); /* instead of failing: called before the at-th call, with no plan in force, as another
	                        * process would do something just then */
	uint64_t partial;      /* bytes that a failing write writes; a failing read gives at most so many (if not 0),
	                        * and success */
} os_fault_plan;

/* Starts counting from 0 under this plan. */
void os_fault_set(const os_fault_plan *plan);
/* Stops all failures, on both levels. The log remains. */
void os_fault_clear(void);
/* Calls that counted, and calls made to fail, since os_fault_set. */
uint64_t os_fault_calls(void);
uint64_t os_fault_hits(void);

/* ---- log ---- */

typedef struct os_fault_record {
	os_fault_kind kind;
	bool failed;           /* on purpose */
	char name[256];        /* of the file: the last part of its path; of a rename or link the old one */
	char target[256];      /* of a rename or link: the new one */
	uint64_t offset;
	uint64_t size;
} os_fault_record;

/* Every call since the last os_fault_log_clear, in order. The view is valid until the next call. */
uint64_t os_fault_log_count(void);
const os_fault_record *os_fault_log_at(uint64_t row);
/* The number of calls of one kind. */
uint64_t os_fault_log_count_of(os_fault_kind kind);
/* Frees the log; needed at the end of a program that checks for leaks. */
void os_fault_log_clear(void);
const char *os_fault_kind_name(os_fault_kind kind);

/* ---- the system below ---- */

typedef enum os_system_kind {
	OS_SYSTEM_OPEN = 0, OS_SYSTEM_MKDIR, OS_SYSTEM_FSTAT, OS_SYSTEM_FSTATAT, OS_SYSTEM_CLOSE, OS_SYSTEM_PREAD,
	OS_SYSTEM_PWRITE, OS_SYSTEM_FSYNC, OS_SYSTEM_FALLOCATE, OS_SYSTEM_FTRUNCATE, OS_SYSTEM_RENAME,
	OS_SYSTEM_RENAME_NOREPLACE, OS_SYSTEM_RENAME_LINK, OS_SYSTEM_LINK, OS_SYSTEM_UNLINK, OS_SYSTEM_MMAP,
	OS_SYSTEM_OPENDIR, OS_SYSTEM_READDIR, OS_SYSTEM_RANDOM, OS_SYSTEM_FLOCK, OS_SYSTEM_FSTATFS, OS_SYSTEM_THREAD,
	OS_SYSTEM_KIND_COUNT
} os_system_kind;

/* The at-th system call of the kind from now (1: the next) and the `count` - 1 after it fail with `os_errno`; 0 as
 * errno: a transfer that moves nothing. Kinds add up until os_fault_clear. A failing close closes. */
void os_system_set(os_system_kind kind, uint64_t at, uint64_t count, int os_errno);
uint64_t os_system_calls(os_system_kind kind);
/* One transfer moves at most so many bytes; 0: no bound. */
void os_system_transfer_max(uint64_t bytes);
/* Every other system call (close and fdopendir excepted) fails with EINTR. */
void os_system_interrupt(bool on);
/* Report every file as not cached. */
void os_fault_uncached(bool on);

#endif
