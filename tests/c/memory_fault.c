/* SPDX-License-Identifier: Apache-2.0 */
#include "memory_fault.h"

#include "base/arith.h"
#include "base/memory.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static _Atomic uint64_t fail_at, calls, hits, live, live_bytes, peak_bytes;
static _Atomic bool fail_forever;

void memory_fault_set(uint64_t at, bool forever)
{
	calls = 0;
	hits = 0;
	peak_bytes = (uint64_t)live_bytes;
	fail_forever = forever;
	fail_at = at;
}

void memory_fault_clear(void)
{
	fail_at = 0;
	peak_bytes = (uint64_t)live_bytes;
}

uint64_t memory_fault_calls(void)
{
	return calls;
}

uint64_t memory_fault_hits(void)
{
	return hits;
}

uint64_t memory_fault_live(void)
{
	return live;
}

uint64_t memory_fault_live_bytes(void)
{
	return live_bytes;
}

uint64_t memory_fault_peak_bytes(void)
{
	return peak_bytes;
}

static bool refused(uint64_t size)
{
	uint64_t call = atomic_fetch_add(&calls, 1) + 1;
	uint64_t at = fail_at;
	if (at != 0 && (call == at || (fail_forever && call > at))) {
		hits++;
		return true;
	}
	return size > (uint64_t)PTRDIFF_MAX;
}

static void *born(void *memory)
{
	uint64_t bytes, peak;
	if (memory == NULL)
		return NULL;
	live++;
	bytes = atomic_fetch_add(&live_bytes, malloc_usable_size(memory)) + malloc_usable_size(memory);
	peak = peak_bytes;
	while (bytes > peak && !atomic_compare_exchange_weak(&peak_bytes, &peak, bytes))
		continue;
	return memory;
}

static void gone(uint64_t bytes)
{
	live--;
	live_bytes -= bytes;
}

void *cf_allocate(uint64_t size)
{
	return refused(size) ? NULL : born(malloc(size == 0 ? 1 : (size_t)size));
}

void *cf_allocate_zero(uint64_t count, uint64_t size)
{
	uint64_t total;
	if (!cf_mul_u64(count, size, &total))
		total = UINT64_MAX;
	return refused(total) ? NULL : born(calloc(1, total == 0 ? 1 : (size_t)total));
}

/* Always moves, so that a pointer kept into the old memory is found out. */
void *cf_reallocate(void *memory, uint64_t size)
{
	uint64_t old_bytes = memory == NULL ? 0 : malloc_usable_size(memory);
	uint64_t kept_bytes = cf_min_u64(old_bytes, size);
	void *moved;
	if (refused(size))
		return NULL;
	moved = born(malloc(size == 0 ? 1 : (size_t)size));
	if (moved == NULL || memory == NULL)
		return moved;
	memcpy(moved, memory, (size_t)kept_bytes);
	gone(old_bytes);
	free(memory);
	return moved;
}

void cf_release(void *memory)
{
	if (memory == NULL)
		return;
	gone(malloc_usable_size(memory));
	free(memory);
}
