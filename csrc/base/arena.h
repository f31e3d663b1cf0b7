/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is taken piece by piece and given back all at once. It grows by doubling, so that a little stays little
 * and much comes in large pages, which cost a fraction of the time to get. */
#ifndef CKPTFMT_IO_ARENA_H
#define CKPTFMT_IO_ARENA_H

#include <stdint.h>

typedef struct cf_arena_chunk cf_arena_chunk;

typedef struct cf_arena {
	cf_arena_chunk *last;
} cf_arena;

#define CF_ARENA_EMPTY ((cf_arena){NULL})

/* Unset bytes, which stay where they are; aligned for any plain type. NULL: there is no memory. */
void *cf_arena_take(cf_arena *arena, uint64_t size);
void cf_arena_free(cf_arena *arena);

#endif
