/* SPDX-License-Identifier: Apache-2.0 */
/* Where the keys of a block are, by hash: for one that is looked into often. Of each key the map knows the stretch from
 * a restart to the next that it stands in; whether it is there, the block itself tells. */
#ifndef CKPTFMT_CODEC_BLOCK_MAP_H
#define CKPTFMT_CODEC_BLOCK_MAP_H

#include "table/block.h"

typedef struct cf_block_map cf_block_map;

/* *out NULL: the block is better off without, for the number of its restarts or entries, for what the map would take
 * beside it (more than its own bytes), for keys made to have one hash, or there is no memory.
 * REQUIRES: cf_block_check passed, and found so many entries. */
void cf_block_map_make(const cf_block *block, uint64_t entry_count, cf_block_map **out);
/* NULL is allowed. */
void cf_block_map_free(cf_block_map *map);

/* As cf_block_find of the block that it was made of. Whatever the keys are, it looks at no more than a thousand slots
 * and a few stretches beside. */
CF_MUST_CHECK ckptfmt_status cf_block_map_find(const cf_block_map *map, const cf_block *block, const uint8_t *target,
	uint64_t target_size, uint64_t *value_position, uint64_t *value_size, bool *found, ckptfmt_error *err);

#endif
