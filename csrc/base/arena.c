/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arena.h"

#include "base/arith.h"
#include "base/memory.h"
#include "base/pages.h"

#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>

enum { FIRST_SIZE = 16 << 10, LAST_SIZE = 64 << 20 };

struct cf_arena_chunk {
	cf_arena_chunk *before;
	uint64_t size;              /* all of it, this struct included */
	uint64_t used;
};

static uint64_t aligned(uint64_t size)
{
	return size + (alignof(max_align_t) - size % alignof(max_align_t)) % alignof(max_align_t);
}

static cf_arena_chunk *new_chunk(uint64_t size)
{
	cf_arena_chunk *chunk = cf_allocate(size);
	if (chunk == NULL)
		return NULL;
	cf_pages_want_large(chunk, size);
	*chunk = (cf_arena_chunk){.size = size, .used = aligned(sizeof *chunk)};
	return chunk;
}

static bool add_chunk(cf_arena *arena, uint64_t size)
{
	uint64_t preferred = arena->last == NULL ? FIRST_SIZE : cf_min_u64(arena->last->size * 4, LAST_SIZE), needed;
	cf_arena_chunk *chunk;
	if (!cf_add_u64(size, aligned(sizeof *chunk), &needed))
		return false;
	chunk = new_chunk(cf_max_u64(preferred, needed));
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
		cf_release(chunk);
	}
}
