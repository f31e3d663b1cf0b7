/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers by slots (storage/os.h) with O_DIRECT. A disk is fast only with several requests at a time, so several
 * threads take started slots from a queue and transfer each by one pread or pwrite. If that call fails or transfers
 * less, the waiting caller transfers the rest by cf_posix_read_at or cf_posix_write_at without O_DIRECT, which also
 * report the failure.
 */
#include "storage/posix_private.h"

#include "base/memory.h"
#include "base/pages.h"
#include "base/workers.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
	LIVE_MAX = 2,                  /* in a process: 64 MiB */
	MEMORY_SIZE = CF_DIRECT_SLOTS * CF_DIRECT_SLOT_SIZE,
	DIRECT_THREADS = 4,            /* no slower than asynchronous requests of the kernel (measured) */
	LOOKS = 16                     /* pages sampled to find out whether a file is cached */
};

CF_STATIC_ASSERT(CF_DIRECT_SLOT_SIZE % CF_DIRECT_ALIGNMENT == 0, "whole blocks");

typedef enum slot_state {
	IDLE = 0,
	STARTED,                       /* in the queue, or a thread has it */
	ENDED,                         /* `result` says how */
	LEFT                           /* not started: the caller transfers it */
} slot_state;

typedef struct direct_slot {
	slot_state state;
	uint64_t size;
	uint64_t offset;
	int64_t result;                /* bytes transferred, or negative */
	uint8_t *place;                /* NULL: in `memory` */
} direct_slot;

struct cf_direct {
	cf_file file;
	bool writes;                   /* the file is the caller's */
	bool past_cache;               /* O_DIRECT is set */
	bool refused;                  /* no more transfers are started */
	unsigned process;              /* cf_posix_process, of the process that began this */
	uint32_t memory_alignment;     /* of what is transferred past the page cache */
	uint8_t *memory;               /* of all slots */
	unsigned thread_count;
	pthread_t threads[DIRECT_THREADS];
	/* Shared with the threads, under the lock: */
	pthread_mutex_t lock;
	pthread_cond_t begun, ended;
	bool leaving;
	unsigned queued, taken;        /* slots put into the queue, and taken from it, since the beginning */
	unsigned queue[CF_DIRECT_SLOTS];
	direct_slot slots[CF_DIRECT_SLOTS];
};

uint8_t *cf_os_direct_memory(cf_direct *direct, unsigned slot)
{
	assert(slot < CF_DIRECT_SLOTS);
	if (direct->slots[slot].place != NULL)
		return direct->slots[slot].place;
	return direct->memory + (size_t)slot * CF_DIRECT_SLOT_SIZE;
}

bool cf_os_direct_place(cf_direct *direct, unsigned slot, uint8_t *memory)
{
	assert(slot < CF_DIRECT_SLOTS && direct->slots[slot].state == IDLE);
	/* It must not share a page with memory that the caller may write to during the transfer: after a fork such a write
	 * may move the page. */
	if (memory != NULL && ((uintptr_t)memory % direct->memory_alignment != 0 ||
		(uintptr_t)memory % CF_DIRECT_ALIGNMENT != 0 || cf_os_page_size() > CF_DIRECT_ALIGNMENT))
		return false;
	direct->slots[slot].place = memory;
	return true;
}

/* ---- O_DIRECT ---- */

#if !CKPTFMT_PLAIN_POSIX

static bool set_direct(int fd, bool on)
{
	int flags = fcntl(fd, F_GETFL);
	return flags >= 0 && fcntl(fd, F_SETFL, on ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

/* Kernels from 6.1 on report the alignment they need; others refuse a transfer that does not have it. */
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

#else

static bool set_direct(int fd, bool on)
{
	(void)fd;
	return !on;
}

static bool alignment_fits(int fd, uint32_t *memory)
{
	(void)fd;
	(void)memory;
	return false;
}

#endif

/* Whether `name` leads to the same file as `file`, which is then open as direct->file. */
static bool open_same(cf_direct *direct, const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file)
{
	cf_file_info wanted, found;
	int flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY | (follow_symlinks ? 0 : O_NOFOLLOW);
	direct->file.fd = cf_posix_open(directory->fd, name, flags, 0);
	return direct->file.fd >= 0 && cf_posix_file_info(file, "", &wanted, NULL) == CKPTFMT_OK &&
		cf_posix_file_info(&direct->file, "", &found, NULL) == CKPTFMT_OK && found.regular &&
		found.inode == wanted.inode && found.device == wanted.device;
}

/* ---- threads ---- */

static int64_t transfer(const cf_direct *direct, uint8_t *memory, uint64_t size, uint64_t offset)
{
	if (direct->writes)
		return pwrite(direct->file.fd, memory, (size_t)size, (off_t)offset);
	return pread(direct->file.fd, memory, (size_t)size, (off_t)offset);
}

/* One system call a slot; the caller transfers what it leaves. */
static void *work(void *state)
{
	cf_direct *direct = state;
	(void)pthread_mutex_lock(&direct->lock);
	for (;;) {
		direct_slot *at;
		unsigned slot;
		int64_t result;
		while (direct->taken == direct->queued && !direct->leaving)
			(void)pthread_cond_wait(&direct->begun, &direct->lock);
		if (direct->leaving)
			break;
		slot = direct->queue[direct->taken++ % CF_DIRECT_SLOTS];
		at = &direct->slots[slot];
		(void)pthread_mutex_unlock(&direct->lock);
		result = transfer(direct, cf_os_direct_memory(direct, slot), at->size, at->offset);
		(void)pthread_mutex_lock(&direct->lock);
		at->result = result;
		at->state = ENDED;
		(void)pthread_cond_signal(&direct->ended);
	}
	(void)pthread_mutex_unlock(&direct->lock);
	return NULL;
}

/* Starts up to DIRECT_THREADS threads, at least one. They block signals, which are for the program's own threads. */
static bool start_threads(cf_direct *direct)
{
	sigset_t all, before;
	cf_workers_signals(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	while (direct->thread_count < DIRECT_THREADS &&
		pthread_create(&direct->threads[direct->thread_count], NULL, work, direct) == 0)
		direct->thread_count++;
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return direct->thread_count > 0;
}

static void stop_threads(cf_direct *direct)
{
	(void)pthread_mutex_lock(&direct->lock);
	direct->leaving = true;
	(void)pthread_cond_broadcast(&direct->begun);
	(void)pthread_mutex_unlock(&direct->lock);
	while (direct->thread_count > 0)
		(void)pthread_join(direct->threads[--direct->thread_count], NULL);
}

/* ---- beginning and ending ---- */

static void take_direct_off(cf_direct *direct)
{
	if (direct->past_cache)
		(void)set_direct(direct->file.fd, false);
	direct->past_cache = false;
}

void cf_os_direct_end(cf_direct *direct)
{
	int kept = errno;
	bool whole;
	if (direct == NULL)
		return;
	/* A forked child has neither the threads nor the memory, and shares the file's flags. */
	whole = direct->process == cf_posix_process();
	if (whole) {
		stop_threads(direct);
		(void)pthread_cond_destroy(&direct->ended);
		(void)pthread_cond_destroy(&direct->begun);
		(void)pthread_mutex_destroy(&direct->lock);
	}
	if (!direct->writes)
		cf_posix_close(&direct->file);
	else if (whole)
		take_direct_off(direct);
	if (whole) {
		cf_pages_unmap(direct->memory, MEMORY_SIZE);
		(void)atomic_fetch_sub_explicit(&cf_posix_live_directs, 1, memory_order_relaxed);
	}
	cf_release(direct);
	errno = kept;
}

/* All but the file and the threads. */
static cf_direct *allocate(bool writes)
{
	cf_direct *direct = NULL;
	unsigned process = cf_posix_process();
	if (process == 0)
		return NULL;
	if (atomic_fetch_add_explicit(&cf_posix_live_directs, 1, memory_order_relaxed) < LIVE_MAX)
		direct = cf_allocate_zero(1, sizeof *direct);
	if (direct == NULL) {
		(void)atomic_fetch_sub_explicit(&cf_posix_live_directs, 1, memory_order_relaxed);
		return NULL;
	}
	direct->file.fd = -1;
	direct->process = process;
	direct->writes = writes;
	(void)pthread_mutex_init(&direct->lock, NULL);
	(void)pthread_cond_init(&direct->begun, NULL);
	(void)pthread_cond_init(&direct->ended, NULL);
	return direct;
}

/* Without a name: writes. */
static cf_direct *begin(const cf_file *file, const cf_directory *directory, const char *name, bool follow_symlinks)
{
	int kept = errno;
	cf_direct *direct = cf_os_is_local(file->storage) ? allocate(name == NULL) : NULL;
	bool good = direct != NULL && cf_pages_map(MEMORY_SIZE, &direct->memory, NULL) == CKPTFMT_OK;
	if (good && name == NULL)
		direct->file = *file;
	else
		good = good && open_same(direct, directory, name, follow_symlinks, file);
	if (good && alignment_fits(direct->file.fd, &direct->memory_alignment))
		direct->past_cache = set_direct(direct->file.fd, true);
	if (!good || !direct->past_cache || !start_threads(direct)) {
		cf_os_direct_end(direct);
		direct = NULL;
	}
	errno = kept;
	return direct;
}

cf_direct *cf_os_direct_write(const cf_file *file)
{
	return begin(file, NULL, NULL, false);
}

cf_direct *cf_os_direct_read(const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file)
{
	assert(cf_posix_is_name(name));
	return begin(file, directory, name, follow_symlinks);
}

/* ---- transferring ---- */

void cf_os_direct_start(cf_direct *direct, unsigned slot, uint64_t size, uint64_t offset)
{
	direct_slot *at = &direct->slots[slot];
	assert(slot < CF_DIRECT_SLOTS && at->state == IDLE);
	assert(size > 0 && size <= CF_DIRECT_SLOT_SIZE && size % CF_DIRECT_ALIGNMENT == 0);
	assert(offset % CF_DIRECT_ALIGNMENT == 0);
	at->size = size;
	at->offset = offset;
	at->state = LEFT;
	if (direct->refused || !cf_range_fits(offset, size, (uint64_t)INT64_MAX))
		return;
	(void)pthread_mutex_lock(&direct->lock);
	at->state = STARTED;
	direct->queue[direct->queued++ % CF_DIRECT_SLOTS] = slot;
	(void)pthread_cond_signal(&direct->begun);
	(void)pthread_mutex_unlock(&direct->lock);
	if (direct->writes)
		CF_COUNT(writes, 1);
	else
		CF_COUNT(reads, 1);
}

static void await(cf_direct *direct, const direct_slot *at)
{
	(void)pthread_mutex_lock(&direct->lock);
	while (at->state == STARTED)
		(void)pthread_cond_wait(&direct->ended, &direct->lock);
	(void)pthread_mutex_unlock(&direct->lock);
}

/* From `done` on. */
static ckptfmt_status transfer_rest(cf_direct *direct, unsigned slot, uint64_t done, const char *path, uint64_t *got,
	ckptfmt_error *err)
{
	const direct_slot *at = &direct->slots[slot];
	uint8_t *memory = cf_os_direct_memory(direct, slot) + done;
	/* If a page of the cache or a block of the file system is larger than ours, a buffered write to part of it may
	 * overwrite a direct write to the rest that is still running. */
	for (unsigned i = 0; direct->writes && i < CF_DIRECT_SLOTS; i++)
		await(direct, &direct->slots[i]);
	take_direct_off(direct);
	direct->refused = true;
	if (!direct->writes) {
		ckptfmt_status status = cf_posix_read_at(&direct->file, path, memory, at->size - done, at->offset + done,
			got, err);
		*got += done;
		return status;
	}
	*got = at->size;
	return cf_posix_write_at(&direct->file, path, memory, at->size - done, at->offset + done, err);
}

ckptfmt_status cf_os_direct_wait(cf_direct *direct, unsigned slot, const char *path, uint64_t *got, ckptfmt_error *err)
{
	int kept = errno;
	direct_slot *at = &direct->slots[slot];
	ckptfmt_status status = CKPTFMT_OK;
	uint64_t done = 0;
	assert(slot < CF_DIRECT_SLOTS);
	*got = 0;
	await(direct, at);
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
		status = transfer_rest(direct, slot, done, path, got, err);
	at->state = IDLE;
	errno = kept;
	return status;
}

/* ---- what is cached ---- */

bool cf_os_is_cached(const cf_file *file, uint64_t offset, uint64_t size)
{
#if !CKPTFMT_PLAIN_POSIX
	int kept = errno;
	uint64_t page = cf_os_page_size(), begin = offset - offset % page, looked = 0, cached = 0;
	uint8_t *data;
	if (!cf_os_is_local(file->storage) || size == 0 || !cf_range_fits(offset, size, (uint64_t)PTRDIFF_MAX))
		return true;
	size += offset - begin;
	data = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, file->fd, (off_t)begin);
	if (data != MAP_FAILED) {
		/* For files of other users the kernel reports all pages as cached. */
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
