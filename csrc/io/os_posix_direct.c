/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What io/os.h says of transfers past the page cache: O_DIRECT and the asynchronous requests that the Linux kernel has
 * had for it from the beginning (io_submit). A single thread then prepares one slot while the disk works on others.
 * What either refuses, wholly or for one transfer, is moved by read_at and write_at, O_DIRECT taken off; they tell
 * the failure as well, so that it reads the same.
 *
 * Elsewhere there is none of it, and all of it may be missing on Linux: in sandboxes, and in file systems.
 */
#include "io/os_posix.h"

#include "base/memory.h"
#include "io/pages.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__linux__) && defined(O_DIRECT) && defined(SYS_io_submit) && defined(SYS_io_getevents)
#include <linux/aio_abi.h>
#define HAVE_DIRECT 1
#else
#define HAVE_DIRECT 0
#endif

enum {
	LIVE_MAX = 2,                  /* in a process: 64 MiB */
	LOOKS = 16                     /* pages looked at to tell whether a file is cached */
};

#define MEMORY_SIZE ((uint64_t)CF_DIRECT_SLOTS * CF_DIRECT_SLOT_SIZE)

CF_STATIC_ASSERT(CF_DIRECT_SLOT_SIZE % CF_DIRECT_ALIGNMENT == 0, "whole blocks");

#if HAVE_DIRECT

typedef enum slot_state {
	IDLE = 0,
	STARTED,                       /* the kernel has it */
	ENDED,                         /* and has done with it, `result` says how */
	LEFT                           /* the kernel did not take it */
} slot_state;

typedef struct direct_slot {
	slot_state state;
	uint64_t size;
	uint64_t offset;
	int64_t result;                /* bytes moved, or an errno less than 0 */
	uint8_t *place;                /* NULL: in `memory` */
} direct_slot;

struct cf_direct {
	cf_file file;
	bool writes;                   /* the file is the caller's */
	bool refused;                  /* O_DIRECT is off, for good */
	aio_context_t context;         /* 0: none */
	uint32_t memory_alignment;     /* of what is moved from and to */
	uint8_t *memory;
	direct_slot slots[CF_DIRECT_SLOTS];
};

static _Atomic unsigned live;

static bool set_direct(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);
	if (flags < 0)
		return false;
	return fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* Kernels from 6.1 on say what they ask for; the others are tried. */
static bool alignment_fits(int fd, uint32_t *memory)
{
	*memory = CF_DIRECT_ALIGNMENT;
#if defined(STATX_DIOALIGN)
	struct statx found;
	memset(&found, 0, sizeof found);
	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &found) == 0 && (found.stx_mask & STATX_DIOALIGN) != 0) {
		*memory = found.stx_dio_mem_align;
		return found.stx_dio_mem_align != 0 && found.stx_dio_offset_align != 0 &&
			CF_DIRECT_ALIGNMENT % found.stx_dio_mem_align == 0 &&
			CF_DIRECT_ALIGNMENT % found.stx_dio_offset_align == 0;
	}
#else
	(void)fd;
#endif
	return true;
}

/* ---- beginning and ending ---- */

static void stop(cf_direct *direct)
{
	long result = 0;
	if (direct->context != 0)
		/* Waits for what is under way. */
		result = syscall(SYS_io_destroy, direct->context);
	(void)result;
	direct->context = 0;
}

void cf_os_direct_end(cf_direct *direct)
{
	int kept = errno;
	if (direct == NULL)
		return;
	stop(direct);
	if (!direct->writes)
		cf_os_close_quietly(&direct->file);
	else if (!direct->refused)
		(void)set_direct(direct->file.fd, false);
	cf_pages_unmap(direct->memory, MEMORY_SIZE);
	cf_release(direct);
	(void)atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
	errno = kept;
}

/* All but the file. */
static cf_direct *begin(bool writes)
{
	cf_direct *direct = NULL;
	if (atomic_fetch_add_explicit(&live, 1, memory_order_relaxed) < LIVE_MAX)
		direct = cf_allocate_zero(1, sizeof *direct);
	if (direct == NULL) {
		(void)atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
		return NULL;
	}
	direct->file.fd = -1;
	direct->writes = writes;
	if (cf_pages_map(MEMORY_SIZE, &direct->memory, NULL) == CKPTFMT_OK &&
		syscall(SYS_io_setup, (long)CF_DIRECT_SLOTS, &direct->context) == 0)
		return direct;
	direct->refused = true;
	cf_os_direct_end(direct);
	return NULL;
}

cf_direct *cf_os_direct_write(const cf_file *file)
{
	int kept = errno;
	uint32_t alignment;
	cf_direct *direct = alignment_fits(file->fd, &alignment) ? begin(true) : NULL;
	if (direct != NULL) {
		direct->file = *file;
		direct->memory_alignment = alignment;
		direct->refused = !set_direct(file->fd, true);
		if (direct->refused) {
			cf_os_direct_end(direct);
			direct = NULL;
		}
	}
	errno = kept;
	return direct;
}

/* Whether what the name leads to, opened, is the same file and can be read so. */
static bool open_same(cf_direct *direct, const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file)
{
	cf_file_info wanted, found;
	int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | O_DIRECT | (follow_symlinks ? 0 : O_NOFOLLOW);
	direct->file.fd = cf_posix_open(directory->fd, name, flags, 0);
	return direct->file.fd >= 0 && alignment_fits(direct->file.fd, &direct->memory_alignment) &&
		cf_os_file_info(file, "", &wanted, NULL) == CKPTFMT_OK &&
		cf_os_file_info(&direct->file, "", &found, NULL) == CKPTFMT_OK && found.regular &&
		found.inode == wanted.inode && found.device == wanted.device;
}

cf_direct *cf_os_direct_read(const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file)
{
	int kept = errno;
	cf_direct *direct = begin(false);
	assert(cf_posix_is_name(name));
	if (direct != NULL && !open_same(direct, directory, name, follow_symlinks, file)) {
		cf_os_direct_end(direct);
		direct = NULL;
	}
	errno = kept;
	return direct;
}

/* ---- moving ---- */

uint8_t *cf_os_direct_memory(cf_direct *direct, unsigned slot)
{
	assert(slot < CF_DIRECT_SLOTS);
	if (direct->slots[slot].place != NULL)
		return direct->slots[slot].place;
	return direct->memory + (uint64_t)slot * CF_DIRECT_SLOT_SIZE;
}

bool cf_os_direct_place(cf_direct *direct, unsigned slot, uint8_t *memory)
{
	assert(slot < CF_DIRECT_SLOTS && direct->slots[slot].state == IDLE);
	if ((uintptr_t)memory % direct->memory_alignment != 0)
		return false;
	direct->slots[slot].place = memory;
	return true;
}

static bool submit(cf_direct *direct, unsigned slot)
{
	direct_slot *at = &direct->slots[slot];
	struct iocb request, *requests[1] = {&request};
	long taken;
	memset(&request, 0, sizeof request);
	request.aio_data = slot;
	request.aio_fildes = (uint32_t)direct->file.fd;
	request.aio_lio_opcode = direct->writes ? IOCB_CMD_PWRITE : IOCB_CMD_PREAD;
	request.aio_buf = (uint64_t)(uintptr_t)cf_os_direct_memory(direct, slot);
	request.aio_nbytes = at->size;
	request.aio_offset = (int64_t)at->offset;
	do
		taken = syscall(SYS_io_submit, direct->context, 1L, requests);
	while (taken < 0 && errno == EINTR);
	return taken == 1;
}

void cf_os_direct_start(cf_direct *direct, unsigned slot, uint64_t size, uint64_t offset)
{
	int kept = errno;
	direct_slot *at = &direct->slots[slot];
	assert(slot < CF_DIRECT_SLOTS && at->state == IDLE);
	assert(size > 0 && size <= CF_DIRECT_SLOT_SIZE && size % CF_DIRECT_ALIGNMENT == 0);
	assert(offset % CF_DIRECT_ALIGNMENT == 0);
	at->size = size;
	at->offset = offset;
	at->state = LEFT;
	if (!direct->refused && cf_range_fits(offset, size, (uint64_t)INT64_MAX) && submit(direct, slot)) {
		at->state = STARTED;
		if (direct->writes)
			CF_COUNT(writes, 1);
		else
			CF_COUNT(reads, 1);
	}
	errno = kept;
}

/* Waits for some of what was started. */
static void take_results(cf_direct *direct)
{
	struct io_event events[CF_DIRECT_SLOTS];
	long count;
	do
		count = syscall(SYS_io_getevents, direct->context, 1L, (long)CF_DIRECT_SLOTS, events, NULL);
	while (count < 0 && errno == EINTR);
	for (long i = 0; i < count; i++) {
		direct_slot *at = &direct->slots[events[i].data % CF_DIRECT_SLOTS];
		at->result = events[i].res;
		at->state = ENDED;
	}
	if (count > 0)
		return;
	/* Never seen. Nothing is under way once the requests are given up, and all of it is done again. */
	stop(direct);
	direct->refused = true;
	(void)set_direct(direct->file.fd, false);
	for (unsigned i = 0; i < CF_DIRECT_SLOTS; i++)
		if (direct->slots[i].state == STARTED)
			direct->slots[i].state = LEFT;
}

/* From `done` on. */
static ckptfmt_status move_rest(cf_direct *direct, unsigned slot, uint64_t done, const char *path, uint64_t *got,
	ckptfmt_error *err)
{
	const direct_slot *at = &direct->slots[slot];
	uint8_t *memory = cf_os_direct_memory(direct, slot) + done;
	/* Where a page of the cache, or a block of the file system, is larger than ours, an ordinary write of a part of it
	 * may write the rest as it was before what is under way beside it. */
	for (unsigned i = 0; direct->writes && i < CF_DIRECT_SLOTS; i++)
		while (direct->slots[i].state == STARTED)
			take_results(direct);
	if (!direct->refused)
		(void)set_direct(direct->file.fd, false);
	direct->refused = true;
	if (!direct->writes) {
		ckptfmt_status status = cf_os_read_at(&direct->file, path, memory, at->size - done, at->offset + done,
			got, err);
		*got += done;
		return status;
	}
	*got = at->size;
	return cf_os_write_at(&direct->file, path, memory, at->size - done, at->offset + done, err);
}

ckptfmt_status cf_os_direct_wait(cf_direct *direct, unsigned slot, const char *path, uint64_t *got, ckptfmt_error *err)
{
	int kept = errno;
	direct_slot *at = &direct->slots[slot];
	ckptfmt_status status = CKPTFMT_OK;
	uint64_t done = 0;
	assert(slot < CF_DIRECT_SLOTS);
	*got = 0;
	while (at->state == STARTED)
		take_results(direct);
	if (at->state == IDLE)
		return CKPTFMT_OK;
	if (at->state == ENDED && at->result > 0)
		done = cf_min_u64((uint64_t)at->result, at->size);
	if (direct->writes)
		CF_COUNT(bytes_written, done);
	else
		CF_COUNT(bytes_read, done);
	*got = done;
	if (done < at->size)
		status = move_rest(direct, slot, done, path, got, err);
	at->state = IDLE;
	errno = kept;
	return status;
}

#else

cf_direct *cf_os_direct_write(const cf_file *file)
{
	(void)file;
	return NULL;
}

cf_direct *cf_os_direct_read(const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file)
{
	(void)directory;
	(void)name;
	(void)follow_symlinks;
	(void)file;
	return NULL;
}

uint8_t *cf_os_direct_memory(cf_direct *direct, unsigned slot)
{
	(void)direct;
	(void)slot;
	return NULL;
}

bool cf_os_direct_place(cf_direct *direct, unsigned slot, uint8_t *memory)
{
	(void)direct;
	(void)slot;
	(void)memory;
	return false;
}

void cf_os_direct_start(cf_direct *direct, unsigned slot, uint64_t size, uint64_t offset)
{
	(void)direct;
	(void)slot;
	(void)size;
	(void)offset;
}

ckptfmt_status cf_os_direct_wait(cf_direct *direct, unsigned slot, const char *path, uint64_t *got, ckptfmt_error *err)
{
	(void)direct;
	(void)slot;
	*got = 0;
	return cf_fail_os(err, ENOSYS, path, "cannot move past the page cache");
}

void cf_os_direct_end(cf_direct *direct)
{
	(void)direct;
}

#endif

/* ---- what is cached ---- */

bool cf_os_is_cached(const cf_file *file, uint64_t offset, uint64_t size)
{
#if defined(__linux__)
	int kept = errno;
	uint64_t page = cf_os_page_size(), begin = offset - offset % page, looked = 0, cached = 0;
	uint8_t *data;
	if (size == 0 || !cf_range_fits(offset, size, (uint64_t)PTRDIFF_MAX))
		return true;
	size += offset - begin;
	data = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, file->fd, (off_t)begin);
	if (data != MAP_FAILED) {
		/* Of files of others the kernel says that all is there. */
		for (uint64_t i = 0; i < LOOKS; i++) {
			unsigned char found = 1;
			if (mincore(data + size / LOOKS * i / page * page, (size_t)page, &found) != 0)
				break;
			looked++;
			cached += found & 1;
		}
		(void)munmap(data, (size_t)size);
	}
	errno = kept;
	return looked < LOOKS || cached * 2 >= looked;
#else
	(void)file;
	(void)offset;
	(void)size;
	return true;
#endif
}
