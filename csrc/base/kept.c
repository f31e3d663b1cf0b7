/* SPDX-License-Identifier: Apache-2.0 */
#include "base/kept.h"

#include "base/memory.h"
#include "base/pages.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define HEAP_ONLY 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define HEAP_ONLY 1
#endif
#ifndef HEAP_ONLY
#define HEAP_ONLY 0
#endif

enum {
	RANGES_MAX = 256,
	EXCESS_PART = 8             /* a range may be larger than what is wanted by an eighth, which is cut off */
};

typedef struct range {
	uint8_t *data;
	uint64_t size;
} range;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic uint64_t live;       /* bytes that are in use */
/* Under the lock: */
static uint64_t live_max;           /* as of each time that less came to be in use */
static range ranges[RANGES_MAX];    /* the oldest first */
static uint32_t range_count;
static uint64_t kept;               /* their bytes */

static uint64_t whole_pages(uint64_t size)
{
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), rounded;
	return cf_align_u64(size, page, &rounded) ? rounded : UINT64_MAX;
}

static range remove_range(uint32_t row)
{
	range found = ranges[row];
	kept -= found.size;
	range_count--;
	for (uint32_t i = row; i < range_count; i++)
		ranges[i] = ranges[i + 1];
	return found;
}

static void drop_oldest(void)
{
	range oldest = remove_range(0);
	cf_pages_unmap(oldest.data, oldest.size);
}

/* Drops what is kept beyond the bounds, or all that there is. */
static void keep_within(uint64_t most)
{
	while (range_count > 0 && kept > most)
		drop_oldest();
}

/* A quarter of the machine's memory; asking takes a call of the system, so it is asked once. */
static uint64_t part_of_memory(void)
{
	static _Atomic uint64_t known;
	uint64_t part = atomic_load_explicit(&known, memory_order_relaxed);
	if (part == 0) {
		long pages = sysconf(_SC_PHYS_PAGES);
		part = pages < 0 ? 0 : (uint64_t)pages / 4 * (uint64_t)sysconf(_SC_PAGESIZE);
		atomic_store_explicit(&known, part, memory_order_relaxed);
	}
	return part;
}

/* What may be kept beside what is in use. */
static uint64_t kept_max(void)
{
	uint64_t used = atomic_load_explicit(&live, memory_order_relaxed);
	return used >= live_max ? 0 : cf_min_u64(live_max - used, part_of_memory());
}

/* The smallest that has room without much to spare; of the same size the latest, which the system has had the least
 * time to take. */
static uint8_t *take_kept(uint64_t size)
{
	uint32_t best = RANGES_MAX;
	range found;
	for (uint32_t i = 0; i < range_count; i++)
		if (ranges[i].size >= size && ranges[i].size - size <= size / EXCESS_PART &&
			(best == RANGES_MAX || ranges[i].size <= ranges[best].size))
			best = i;
	if (best == RANGES_MAX)
		return NULL;
	found = remove_range(best);
	if (found.size > size)
		cf_pages_unmap(found.data + size, found.size - size);
	return found.data;
}

static ckptfmt_status map_new(uint64_t size, uint8_t **out, ckptfmt_error *err)
{
	ckptfmt_status status = cf_pages_map_aligned(size, out, err);
	/* Address space, or what the system promises in all, may be what is kept. */
	if (status == CKPTFMT_NO_MEMORY && cf_kept_release() > 0)
		status = cf_pages_map_aligned(size, out, err);
	return status;
}

ckptfmt_status cf_kept_take(uint64_t size, uint8_t **out, ckptfmt_error *err)
{
	*out = NULL;
	if (HEAP_ONLY) {
		*out = cf_allocate(size);
		return *out == NULL ? cf_fail_memory(err) : CKPTFMT_OK;
	}
	size = whole_pages(size);
	(void)atomic_fetch_add_explicit(&live, size, memory_order_relaxed);
	if (pthread_mutex_trylock(&lock) == 0) {
		*out = take_kept(size);
		keep_within(kept_max());
		(void)pthread_mutex_unlock(&lock);
	}
	if (*out == NULL) {
		ckptfmt_status status = map_new(size, out, err);
		if (status != CKPTFMT_OK)
			(void)atomic_fetch_sub_explicit(&live, size, memory_order_relaxed);
		return status;
	}
	return CKPTFMT_OK;
}

void cf_kept_give(uint8_t *data, uint64_t size)
{
	bool taken = false;
	uint64_t used;
	if (HEAP_ONLY) {
		cf_release(data);
		return;
	}
	size = whole_pages(size);
	used = atomic_fetch_sub_explicit(&live, size, memory_order_relaxed);
	if (pthread_mutex_trylock(&lock) == 0) {
		uint64_t most;
		live_max = cf_max_u64(live_max, used);
		most = kept_max();
		taken = size <= most;
		if (taken) {
			keep_within(most - size);
			if (range_count == RANGES_MAX)
				drop_oldest();
			cf_pages_lend(data, size);
			ranges[range_count++] = (range){data, size};
			kept += size;
		}
		(void)pthread_mutex_unlock(&lock);
	}
	if (!taken)
		cf_pages_unmap(data, size);
}

uint64_t cf_kept_release(void)
{
	uint64_t released = 0;
	if (pthread_mutex_trylock(&lock) == 0) {
		released = kept;
		keep_within(0);
		(void)pthread_mutex_unlock(&lock);
	}
	return released;
}
