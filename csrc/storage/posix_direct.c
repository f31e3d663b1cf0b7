/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transfers by slots (storage/os.h). Past the page cache: O_DIRECT and the asynchronous requests that the Linux
 * kernel has had for it from the beginning (io_submit). A single thread then prepares one slot while the disk works on
 * others. Behind the caller: a thread of ours, which writes one slot after the other to the page cache.
 * What either refuses, wholly or for one transfer, is moved by read_at and write_at, O_DIRECT taken off; they tell
 * the failure as well, so that it reads the same.
 *
 * Asynchronous requests are there on Linux alone, and may be missing there too: in sandboxes, and in file systems.
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

CF_STATIC_ASSERT(CF_DIRECT_SLOT_SIZE % CF_DIRECT_ALIGNMENT == 0, "whole blocks");
CF_STATIC_ASSERT(CF_BEHIND_SLOT_SIZE % CF_DIRECT_ALIGNMENT == 0, "whole blocks");
CF_STATIC_ASSERT((int)CF_BEHIND_SLOTS <= (int)CF_DIRECT_SLOTS, "there are as many at most");

typedef enum slot_state {
	IDLE = 0,
	STARTED,                       /* the kernel has it, or the thread */
	ENDED,                         /* and has done with it, `result` says how */
	LEFT                           /* it was not taken */
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
	bool refused;                  /* O_DIRECT is off, and nothing is started any more */
	unsigned long context;         /* of the kernel; 0: none */
	bool threaded;                 /* there is a thread; then `lock` is for what it shares with the caller: */
	bool leaving;
	unsigned queued, taken;        /* slots put into the queue, and taken from it, since the beginning */
	unsigned queue[CF_DIRECT_SLOTS];
	direct_slot slots[CF_DIRECT_SLOTS];    /* those in the queue */
	pthread_mutex_t lock;
	pthread_cond_t begun, ended;
	pthread_t thread;
	unsigned forks;                /* of the process that has all this */
	unsigned slot_count;
	uint64_t slot_size;
	uint32_t memory_alignment;     /* of what is moved from and to past the page cache */
	uint8_t *memory;               /* of all slots */
};

static _Atomic unsigned live;

uint8_t *cf_os_direct_memory(cf_direct *direct, unsigned slot)
{
	assert(slot < direct->slot_count);
	if (direct->slots[slot].place != NULL)
		return direct->slots[slot].place;
	return direct->memory + slot * direct->slot_size;
}

bool cf_os_direct_place(cf_direct *direct, unsigned slot, uint8_t *memory)
{
	assert(slot < direct->slot_count && direct->slots[slot].state == IDLE);
	/* What the caller may write to meanwhile must not share a page with it: in a process that forks, the page that is
	 * written to may then be another. */
	if (memory != NULL && ((uintptr_t)memory % direct->memory_alignment != 0 ||
		(uintptr_t)memory % CF_DIRECT_ALIGNMENT != 0 || cf_os_page_size() > CF_DIRECT_ALIGNMENT))
		return false;
	direct->slots[slot].place = memory;
	return true;
}

/* ---- asynchronous requests ---- */

#if HAVE_DIRECT

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

static bool make_context(cf_direct *direct)
{
	aio_context_t context = 0;
	if (syscall(SYS_io_setup, (long)CF_DIRECT_SLOTS, &context) != 0)
		return false;
	direct->context = context;
	return true;
}

static void stop_context(cf_direct *direct)
{
	long result = 0;
	if (direct->context != 0)
		/* Waits for what is under way. */
		result = syscall(SYS_io_destroy, direct->context);
	(void)result;
	direct->context = 0;
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
	if (taken != 1)
		return false;
	at->state = STARTED;
	return true;
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
	stop_context(direct);
	direct->refused = true;
	(void)set_direct(direct->file.fd, false);
	for (unsigned i = 0; i < CF_DIRECT_SLOTS; i++)
		if (direct->slots[i].state == STARTED)
			direct->slots[i].state = LEFT;
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

#else

static bool set_direct(int fd, bool on)
{
	(void)fd;
	(void)on;
	return false;
}

static bool alignment_fits(int fd, uint32_t *memory)
{
	(void)fd;
	(void)memory;
	return false;
}

static bool make_context(cf_direct *direct)
{
	(void)direct;
	return false;
}

static void stop_context(cf_direct *direct)
{
	(void)direct;
}

static bool submit(cf_direct *direct, unsigned slot)
{
	(void)direct;
	(void)slot;
	return false;
}

static void take_results(cf_direct *direct)
{
	(void)direct;
}

static bool open_same(cf_direct *direct, const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file)
{
	(void)direct;
	(void)directory;
	(void)name;
	(void)follow_symlinks;
	(void)file;
	return false;
}

#endif

/* ---- a thread ---- */

/* Forks that led to this process, counted since the first transfer; asking for its number would be a call each time. */
static _Atomic unsigned forks;
static pthread_once_t counting = PTHREAD_ONCE_INIT;
static bool counted;

static void count_fork(void)
{
	(void)atomic_fetch_add_explicit(&forks, 1, memory_order_relaxed);
	atomic_store_explicit(&live, 0, memory_order_relaxed);
}

static void count_forks(void)
{
	counted = pthread_atfork(NULL, NULL, count_fork) == 0;
}

/* Writes what is in the queue, until it is to leave. A call a slot: for what that leaves the caller sees. */
static void *write_queued(void *state)
{
	cf_direct *direct = state;
	(void)pthread_mutex_lock(&direct->lock);
	for (;;) {
		direct_slot *at;
		unsigned slot;
		ssize_t written;
		while (direct->taken == direct->queued && !direct->leaving)
			(void)pthread_cond_wait(&direct->begun, &direct->lock);
		if (direct->leaving)
			break;
		slot = direct->queue[direct->taken++ % CF_DIRECT_SLOTS];
		at = &direct->slots[slot];
		(void)pthread_mutex_unlock(&direct->lock);
		written = pwrite(direct->file.fd, cf_os_direct_memory(direct, slot), (size_t)at->size, (off_t)at->offset);
		(void)pthread_mutex_lock(&direct->lock);
		at->result = written;
		at->state = ENDED;
		(void)pthread_cond_signal(&direct->ended);
	}
	(void)pthread_mutex_unlock(&direct->lock);
	return NULL;
}

/* Signals are for threads that know of them. */
static bool start_thread(cf_direct *direct)
{
	sigset_t all, before;
	int failed;
	cf_workers_signals(&all);
	(void)pthread_mutex_init(&direct->lock, NULL);
	(void)pthread_cond_init(&direct->begun, NULL);
	(void)pthread_cond_init(&direct->ended, NULL);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	failed = pthread_create(&direct->thread, NULL, write_queued, direct);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	direct->threaded = failed == 0;
	if (failed == 0)
		return true;
	(void)pthread_cond_destroy(&direct->ended);
	(void)pthread_cond_destroy(&direct->begun);
	(void)pthread_mutex_destroy(&direct->lock);
	return false;
}

static void stop_thread(cf_direct *direct)
{
	if (!direct->threaded)
		return;
	(void)pthread_mutex_lock(&direct->lock);
	direct->leaving = true;
	(void)pthread_cond_signal(&direct->begun);
	(void)pthread_mutex_unlock(&direct->lock);
	(void)pthread_join(direct->thread, NULL);
	(void)pthread_cond_destroy(&direct->ended);
	(void)pthread_cond_destroy(&direct->begun);
	(void)pthread_mutex_destroy(&direct->lock);
}

static bool enqueue(cf_direct *direct, unsigned slot)
{
	(void)pthread_mutex_lock(&direct->lock);
	direct->slots[slot].state = STARTED;
	direct->queue[direct->queued++ % CF_DIRECT_SLOTS] = slot;
	(void)pthread_cond_signal(&direct->begun);
	(void)pthread_mutex_unlock(&direct->lock);
	return true;
}

/* ---- beginning and ending ---- */

void cf_os_direct_end(cf_direct *direct)
{
	int kept = errno;
	if (direct == NULL)
		return;
	/* A process forked meanwhile has neither thread nor requests nor memory of it, and the file's flags are shared. */
	if (direct->forks != atomic_load_explicit(&forks, memory_order_relaxed)) {
		if (!direct->writes)
			cf_os_close_quietly(&direct->file);
		cf_release(direct);
		errno = kept;
		return;
	}
	stop_thread(direct);
	stop_context(direct);
	if (!direct->writes)
		cf_os_close_quietly(&direct->file);
	else if (!direct->refused && !direct->threaded)
		(void)set_direct(direct->file.fd, false);
	cf_pages_unmap(direct->memory, direct->slot_count * direct->slot_size);
	cf_release(direct);
	(void)atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
	errno = kept;
}

/* All but the file, and who moves. */
static cf_direct *begin(bool writes, unsigned slot_count, uint64_t slot_size)
{
	cf_direct *direct = NULL;
	if (pthread_once(&counting, count_forks) != 0 || !counted)
		return NULL;
	if (atomic_fetch_add_explicit(&live, 1, memory_order_relaxed) < LIVE_MAX)
		direct = cf_allocate_zero(1, sizeof *direct);
	if (direct == NULL) {
		(void)atomic_fetch_sub_explicit(&live, 1, memory_order_relaxed);
		return NULL;
	}
	direct->file.fd = -1;
	direct->forks = atomic_load_explicit(&forks, memory_order_relaxed);
	direct->writes = writes;
	direct->slot_count = slot_count;
	direct->slot_size = slot_size;
	if (cf_pages_map(slot_count * slot_size, &direct->memory, NULL) == CKPTFMT_OK)
		return direct;
	direct->refused = true;
	cf_os_direct_end(direct);
	return NULL;
}

/* `direct`, or NULL and nothing is left of it. */
static cf_direct *begun_if(bool good, cf_direct *direct)
{
	if (good || direct == NULL)
		return direct;
	direct->refused = true;
	cf_os_direct_end(direct);
	return NULL;
}

cf_direct *cf_os_direct_write(const cf_file *file)
{
	int kept = errno;
	uint32_t alignment;
	bool fits = alignment_fits(file->fd, &alignment);
	cf_direct *direct = fits ? begin(true, CF_DIRECT_SLOTS, CF_DIRECT_SLOT_SIZE) : NULL;
	if (direct != NULL) {
		direct->file = *file;
		direct->memory_alignment = alignment;
		direct = begun_if(make_context(direct) && set_direct(file->fd, true), direct);
	}
	errno = kept;
	return direct;
}

cf_direct *cf_os_write_behind(const cf_file *file)
{
	int kept = errno;
	cf_direct *direct = begin(true, CF_BEHIND_SLOTS, CF_BEHIND_SLOT_SIZE);
	if (direct != NULL) {
		direct->file = *file;
		direct = begun_if(start_thread(direct), direct);
	}
	errno = kept;
	return direct;
}

cf_direct *cf_os_direct_read(const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file)
{
	int kept = errno;
	cf_direct *direct = begin(false, CF_DIRECT_SLOTS, CF_DIRECT_SLOT_SIZE);
	assert(cf_posix_is_name(name));
	direct = begun_if(direct != NULL && make_context(direct) &&
		open_same(direct, directory, name, follow_symlinks, file), direct);
	errno = kept;
	return direct;
}

/* ---- moving ---- */

void cf_os_direct_start(cf_direct *direct, unsigned slot, uint64_t size, uint64_t offset)
{
	int kept = errno;
	direct_slot *at = &direct->slots[slot];
	assert(slot < direct->slot_count && at->state == IDLE);
	assert(size > 0 && size <= direct->slot_size && size % CF_DIRECT_ALIGNMENT == 0);
	assert(offset % CF_DIRECT_ALIGNMENT == 0);
	at->size = size;
	at->offset = offset;
	at->state = LEFT;
	if (!direct->refused && cf_range_fits(offset, size, (uint64_t)INT64_MAX) &&
		(direct->threaded ? enqueue(direct, slot) : submit(direct, slot))) {
		if (direct->writes)
			CF_COUNT(writes, 1);
		else
			CF_COUNT(reads, 1);
	}
	errno = kept;
}

static void await(cf_direct *direct, const direct_slot *at)
{
	if (direct->threaded)
		(void)pthread_mutex_lock(&direct->lock);
	while (at->state == STARTED)
		if (direct->threaded)
			(void)pthread_cond_wait(&direct->ended, &direct->lock);
		else
			take_results(direct);
	if (direct->threaded)
		(void)pthread_mutex_unlock(&direct->lock);
}

/* From `done` on. */
static ckptfmt_status move_rest(cf_direct *direct, unsigned slot, uint64_t done, const char *path, uint64_t *got,
	ckptfmt_error *err)
{
	const direct_slot *at = &direct->slots[slot];
	uint8_t *memory = cf_os_direct_memory(direct, slot) + done;
	/* Where a page of the cache, or a block of the file system, is larger than ours, an ordinary write of a part of it
	 * may write the rest as it was before what is under way beside it. */
	for (unsigned i = 0; direct->writes && !direct->threaded && i < CF_DIRECT_SLOTS; i++)
		while (direct->slots[i].state == STARTED)
			take_results(direct);
	if (!direct->refused && !direct->threaded)
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
	assert(slot < direct->slot_count);
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
		status = move_rest(direct, slot, done, path, got, err);
	at->state = IDLE;
	errno = kept;
	return status;
}

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
