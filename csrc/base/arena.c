/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include "base/arith.h"
#include "base/memory.h"
#include "base/kept.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>

enum { FIRST_SIZE = 16 << 10, LARGE_SIZE = 4 << 20, LAST_SIZE = 64 << 20 };

struct cf_arena_chunk {
	cf_arena_chunk *before;
	uint64_t size;              /* all of it, this struct included, */
	uint64_t used;
	bool large;                 /* and whether it came from cf_kept_take */
};

static uint64_t aligned(uint64_t size)
{
	return size + (alignof(max_align_t) - size % alignof(max_align_t)) % alignof(max_align_t);
}

static cf_arena_chunk *new_chunk(uint64_t size)
{
	cf_arena_chunk *chunk = NULL;
	bool large = size >= LARGE_SIZE;
	uint8_t *memory;
	if (!large)
		chunk = cf_allocate(size);
	else if (cf_kept_take(size, &memory, NULL) == CKPTFMT_OK)
		chunk = (cf_arena_chunk *)(void *)memory;
	if (chunk != NULL)
		*chunk = (cf_arena_chunk){.size = size, .used = aligned(sizeof *chunk), .large = large};
	return chunk;
}

static bool add_chunk(cf_arena *arena, uint64_t size)
{
	uint64_t usual = arena->last == NULL ? FIRST_SIZE : cf_min_u64(arena->last->size * 4, LAST_SIZE), needed;
	cf_arena_chunk *chunk;
	if (!cf_add_u64(size, aligned(sizeof *chunk), &needed))
		return false;
	chunk = new_chunk(cf_max_u64(usual, needed));
	if (chunk == NULL)
		return false;
	chunk->before = arena->last;
	arena->last = chunk;
	return true;
}

void *cf_arena_take(cf_arena *arena, uint64_t size)
{
	cf_arena_chunk *chunk = arena->last;
	uint8_t *taken;
	if (size > (uint64_t)PTRDIFF_MAX)
		return NULL;
	size = aligned(size);
	if (chunk == NULL || size > chunk->size - chunk->used) {
		if (!add_chunk(arena, size))
			return NULL;
		chunk = arena->last;
	}
	taken = (uint8_t *)chunk + chunk->used;
	chunk->used += size;
	return taken;
}

void cf_arena_free(cf_arena *arena)
{
	while (arena->last != NULL) {
		cf_arena_chunk *chunk = arena->last;
		arena->last = chunk->before;
		if (chunk->large)
			cf_kept_give((uint8_t *)chunk, chunk->size);
		else
			cf_release(chunk);
	}
}
