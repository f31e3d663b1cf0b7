/* SPDX-License-Identifier: Apache-2.0 */
/* An arena: memory that is allocated piece by piece and freed all at once. Its chunks grow, so that large arenas
 * consist of large pages, which the system provides faster. */
#ifndef CKPTFMT_BASE_ARENA_H
#define CKPTFMT_BASE_ARENA_H

#include <stdint.h>

typedef struct cf_arena_chunk cf_arena_chunk;

typedef struct cf_arena {
	cf_arena_chunk *last;
} cf_arena;

#define CF_ARENA_EMPTY ((cf_arena){NULL})

/* Returns uninitialised bytes at a stable address, aligned for any type; NULL if out of memory. */
void *cf_arena_take(cf_arena *arena, uint64_t size);
void cf_arena_free(cf_arena *arena);

#endif
