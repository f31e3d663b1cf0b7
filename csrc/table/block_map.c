/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A search by halves touches a dozen places in a block, most of them not in the cache; a slot of the map is one, and
 * names the place where the search ends. Slots are tried one after the other from where the hash says, up to an empty
 * one. The hash is one for all, so that keys can be made of which many have the same: what those cost is bounded.
 */
#include "table/block_map.h"

#include "base/memory.h"

enum {
	EMPTY = UINT16_MAX,
	TRIES_MAX = 1024,           /* slots in a row that are taken: keys chosen for that would take for ever */
	WALKS_MAX = 4               /* where only the marks are the same, which one lookup in thousands meets once */
};

typedef struct slot {
	uint16_t mark;              /* of the hash, what does not say the place */
	uint16_t restart;           /* EMPTY: none */
} slot;

struct cf_block_map {
	uint64_t mask;              /* slots - 1, a power of two */
	slot slots[];
};

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 32;
}

static uint64_t hash_of(const uint8_t *key, uint64_t size)
{
	uint64_t hash = mix(0, size), last = 0;
	for (; size >= sizeof last; size -= sizeof last, key += sizeof last)
		hash = mix(hash, cf_load_u64(key));
	for (uint64_t i = 0; i < size; i++)
		last |= (uint64_t)key[i] << 8 * i;
	return mix(hash, last);
}

static uint16_t mark_of(uint64_t hash)
{
	return (uint16_t)(hash >> 48);
}

/* The restart goes into the first free slot; false if that is too far. */
static bool put(cf_block_map *map, uint64_t hash, uint16_t restart)
{
	for (uint64_t i = 0; i < TRIES_MAX; i++) {
		slot *s = &map->slots[(hash + i) & map->mask];
		if (s->restart == EMPTY) {
			*s = (slot){mark_of(hash), restart};
			return true;
		}
	}
	return false;
}

static bool put_all(cf_block_map *map, const cf_block *block)
{
	cf_block_iterator entry;
	ckptfmt_status status;
	uint64_t restart = 0;
	bool fits = true;
	cf_block_iterator_init(&entry);
	cf_block_iterator_open(&entry, block);
	for (status = cf_block_first(&entry, NULL); status == CKPTFMT_OK && entry.valid && fits;
		status = cf_block_next(&entry, NULL)) {
		while (restart + 1 < block->restart_count &&
			cf_block_restart(block, (uint32_t)restart + 1) <= entry.entry_position)
			restart++;
		fits = put(map, hash_of(entry.key.data, entry.key.size), (uint16_t)restart);
	}
	cf_block_iterator_free(&entry);
	return fits && status == CKPTFMT_OK;
}

void cf_block_map_make(const cf_block *block, uint64_t entry_count, cf_block_map **out)
{
	uint64_t slots = 4;
	cf_block_map *map;
	*out = NULL;
	/* At most three quarters are taken. */
	while (slots / 4 * 3 < entry_count && slots <= block->size)
		slots *= 2;
	if (block->restart_count >= EMPTY || slots * sizeof(slot) > block->size)
		return;
	map = cf_allocate(sizeof *map + slots * sizeof(slot));
	if (map == NULL)
		return;
	map->mask = slots - 1;
	for (uint64_t i = 0; i < slots; i++)
		map->slots[i] = (slot){0, EMPTY};
	if (put_all(map, block))
		*out = map;
	else
		cf_release(map);
}

void cf_block_map_free(cf_block_map *map)
{
	cf_release(map);
}

/* Where the entries from a restart on end, those of the next left out. */
static uint64_t stretch_end(const cf_block *block, uint32_t restart)
{
	return restart + 1 < block->restart_count ? cf_block_restart(block, restart + 1) : block->entries_size;
}

ckptfmt_status cf_block_map_find(const cf_block_map *map, const cf_block *block, const uint8_t *target,
	uint64_t target_size, uint64_t *value_position, uint64_t *value_size, bool *found, ckptfmt_error *err)
{
	uint64_t hash = hash_of(target, target_size);
	int walks = 0;
	*found = false;
	for (uint64_t i = 0; i <= TRIES_MAX && !*found; i++) {
		slot s = map->slots[(hash + i) & map->mask];
		if (s.restart == EMPTY)
			break;
		if (s.mark != mark_of(hash))
			continue;
		if (walks++ == WALKS_MAX)
			return cf_block_find(block, target, target_size, value_position, value_size, found, err);
		CF_TRY(cf_block_find_between(block, cf_block_restart(block, s.restart), stretch_end(block, s.restart), target,
			target_size, value_position, value_size, found, err));
	}
	return CKPTFMT_OK;
}
