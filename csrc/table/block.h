/* SPDX-License-Identifier: Apache-2.0 */
/* One decoded block of a table: sorted entries with prefix compression of keys (rules BLK, TAB-1). A builder and a
 * checked iterator. Checksums and compression of blocks are in footer.h and snappy.h. */
#ifndef CKPTFMT_TABLE_BLOCK_H
#define CKPTFMT_TABLE_BLOCK_H

#include "base/buffer.h"
#include "base/cursor.h"
#include "base/error.h"
#include "table/keys.h"

#include <assert.h>

enum {
	CF_BLOCK_SIZE_MIN = 4,
	CF_RESTART_SIZE = 4,
	CF_SHORT_HEAD_SIZE = 3,        /* a short entry has three sizes of one byte each; nearly all have */
	CF_SHORT_SIZE_MAX = 0x7f
};

/* ---- building ---- */

typedef struct cf_block_builder {
	cf_buffer bytes;
	cf_buffer restarts;            /* u32 each, as the block will store them */
	cf_buffer last_key;
	uint64_t entry_count;
	uint32_t restart_interval;
	uint32_t since_restart;
	uint32_t short_until;          /* while since_restart is below, there is room for another short entry */
} cf_block_builder;

/* REQUIRES: restart_interval >= 1. Allocates nothing. */
void cf_block_builder_init(cf_block_builder *builder, uint32_t restart_interval);
/* REQUIRES: the key is greater than the last one. LIMIT where a size does not fit the format's 32 bits, NO_MEMORY;
 * after a failure only reset and free. */
CF_MUST_CHECK ckptfmt_status cf_block_builder_add(cf_block_builder *builder, const uint8_t *key, uint64_t key_size,
	const uint8_t *value, uint64_t value_size, ckptfmt_error *err);
/* The same with the size of the prefix that the key has in common with the last one, which is ignored for the first
 * entry of a block. */
CF_MUST_CHECK ckptfmt_status cf_block_builder_add_after(cf_block_builder *builder, const uint8_t *key,
	uint64_t key_size, uint64_t common, const uint8_t *value, uint64_t value_size, ckptfmt_error *err);

/* Fast path for a short entry that is not at a restart: returns where the caller must put the value's bytes. NULL: the
 * entry is not a short one, and nothing was done. */
static inline uint8_t *cf_block_builder_place(cf_block_builder *builder, const uint8_t *key, uint64_t key_size,
	uint64_t common, uint64_t value_size)
{
	uint64_t unshared = key_size - common;
	uint8_t *to;
	if (CF_UNLIKELY(builder->since_restart >= builder->short_until ||
		(common | unshared | value_size) > CF_SHORT_SIZE_MAX))
		return NULL;
	assert(common < key_size && (common == builder->last_key.size ||
		(common < builder->last_key.size && builder->last_key.data[common] < key[common])));
	to = builder->bytes.data + builder->bytes.size;
	to[0] = (uint8_t)common;
	to[1] = (uint8_t)unshared;
	to[2] = (uint8_t)value_size;
	to += CF_SHORT_HEAD_SIZE;
	cf_copy_few(to, key + common, unshared);
	cf_copy_few(builder->last_key.data + common, key + common, unshared);
	builder->bytes.size += CF_SHORT_HEAD_SIZE + unshared + value_size;
	builder->last_key.size = key_size;
	builder->since_restart++;
	builder->entry_count++;
	return to + unshared;
}

/* The size of the block if it were finished now. */
static inline uint64_t cf_block_builder_size(const cf_block_builder *builder)
{
	/* The first restart is written with the first entry, but counts from the start. */
	return builder->bytes.size + cf_max_u64(builder->restarts.size, CF_RESTART_SIZE) + CF_RESTART_SIZE;
}
/* Appends the restarts: builder->bytes then holds the block, until reset or free. LIMIT, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_block_builder_finish(cf_block_builder *builder, ckptfmt_error *err);
/* Starts the next block, keeping the memory. */
void cf_block_builder_reset(cf_block_builder *builder);
void cf_block_builder_free(cf_block_builder *builder);

/* ---- reading ---- */

/* A view of a block's decoded bytes. Immutable once open: any number of threads may iterate over it. */
typedef struct cf_block {
	const uint8_t *bytes;
	uint64_t size;
	uint64_t entries_size;         /* the restarts begin here; 0 with a restart count of 0 */
	uint64_t origin;               /* file offset of the block */
	uint64_t key_bytes_max;
	uint32_t restart_count;
	bool decompressed;             /* its bytes have no file offsets of their own */
	bool is_index;                 /* for messages: keys are separators; false at first */
} cf_block;

/* Checks the tail: restart count, room for the restarts, a first restart of 0. `bytes` stays the caller's and must
 * outlive the block. BAD_BLOCK. */
CF_MUST_CHECK ckptfmt_status cf_block_open(const uint8_t *bytes, uint64_t size, uint64_t origin, bool decompressed,
	uint64_t key_bytes_max, cf_block *out, ckptfmt_error *err);
/* The file offset to report for a position in the block: that of the block, if it was compressed. */
static inline uint64_t cf_block_offset(const cf_block *block, uint64_t position)
{
	return block->decompressed ? block->origin : block->origin + position;
}

/* The position of a restart in the block; the position that it names. REQUIRES: index < restart_count. */
static inline uint64_t cf_block_restart_position(const cf_block *block, uint32_t index)
{
	return block->entries_size + (uint64_t)index * CF_RESTART_SIZE;
}

static inline uint64_t cf_block_restart(const cf_block *block, uint32_t index)
{
	assert(index < block->restart_count);
	return cf_load_u32(block->bytes + cf_block_restart_position(block, index));
}

/* The same as the origin of a cursor over bytes that begin there. */
static inline uint64_t cf_block_origin(const cf_block *block, uint64_t position)
{
	return block->decompressed ? block->origin | CF_ONE_OFFSET : block->origin + position;
}

/* A position in a block. Every step checks what it walks over (sizes, restarts, order), in time linear in the bytes
 * walked over. After a failure the iterator takes only open and free. */
typedef struct cf_block_iterator {
	const cf_block *block;
	cf_buffer key;                 /* of the current entry; after the end that of the last one */
	const uint8_t *value;          /* in the block */
	uint64_t value_size;
	uint64_t value_position;       /* in the block */
	uint64_t entry_position;       /* in the block */
	uint64_t row;                  /* of the entry, counted from where the walk began */
	uint64_t shared;               /* size of the prefix that is stored with the previous entry, */
	uint64_t common;               /* and of the longest common prefix of the two keys; 0 where the walk began */
	const uint8_t *first_key;      /* key at which the walk began, in the block */
	uint64_t first_key_size;
	cf_cursor entries;             /* at the next entry */
	uint32_t restart;              /* first restart at or after the next entry */
	uint64_t restart_at;           /* its position; UINT64_MAX: there is none */
	uint64_t short_before;         /* entries that begin before it may take the fast path; 0: none may */
	bool at_restart;               /* the current entry is one */
	bool walking;                  /* there was an entry before in this walk */
	bool valid;                    /* there is a current entry */
} cf_block_iterator;

/* Allocates nothing. */
void cf_block_iterator_init(cf_block_iterator *iterator);
/* Moves to another block, which must outlive the iteration, and keeps the memory. Not yet at an entry. */
void cf_block_iterator_open(cf_block_iterator *iterator, const cf_block *block);
/* To the first entry; to the one after. Past the last, `valid` is false. BAD_BLOCK, BAD_ORDER, LIMIT (a key above
 * key_bytes_max), NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_block_first(cf_block_iterator *iterator, ckptfmt_error *err);
static inline CF_MUST_CHECK ckptfmt_status cf_block_next(cf_block_iterator *iterator, ckptfmt_error *err);
void cf_block_iterator_free(cf_block_iterator *iterator);

enum {
	CF_SHORT_KEY_MAX = 2 * CF_SHORT_SIZE_MAX,
	/* Bytes copied at once from a key, even if it is shorter. */
	CF_SHORT_COPY = 16,
	CF_SHORT_ROOM = CF_SHORT_KEY_MAX + CF_SHORT_COPY,
	CF_BLOCK_PREFETCH = 64
};

/* For merges, which alternate between many blocks: hardware prefetching does not help there. */
static inline void cf_block_prefetch(const cf_block_iterator *iterator)
{
	const uint64_t address = (uintptr_t)iterator->value + iterator->value_size + CF_BLOCK_PREFETCH;
	__builtin_prefetch((const void *)(uintptr_t)address);
}

/* Fast path of a step: sizes of one byte each, not at a restart, and a key that differs from the previous one right
 * after the shared prefix (canonical writers share as much as they can). False: the entry is another kind, and nothing
 * was taken. An entry before `short_before` follows another one, is before the next restart, has enough bytes behind it
 * to read, is within the limit on key sizes, and fits the memory of the key. */
static inline bool cf_block_take_short(cf_block_iterator *iterator)
{
	uint64_t start = iterator->entries.position, shared, unshared, value_size;
	const uint8_t *rest;
	cf_buffer *key = &iterator->key;
	uint32_t head;
	if (CF_UNLIKELY(start >= iterator->short_before))
		return false;
	rest = iterator->entries.base + start + CF_SHORT_HEAD_SIZE;
	head = cf_load_u32(rest - CF_SHORT_HEAD_SIZE);
	shared = head & 0xff;
	unshared = head >> 8 & 0xff;
	value_size = head >> 16 & 0xff;
	if ((head & 0x808080) != 0 || unshared == 0 ||
		unshared + value_size > iterator->entries.size - start - CF_SHORT_HEAD_SIZE || shared > key->size ||
		(shared < key->size && key->data[shared] >= rest[0]))
		return false;
	if (CF_UNLIKELY(unshared > CF_SHORT_COPY))
		memcpy(key->data + shared, rest, (size_t)unshared);
	else
		memcpy(key->data + shared, rest, CF_SHORT_COPY);
	key->size = shared + unshared;
	iterator->at_restart = false;
	iterator->common = iterator->shared = shared;
	iterator->entry_position = start;
	iterator->value = rest + unshared;
	iterator->value_position = start + CF_SHORT_HEAD_SIZE + unshared;
	iterator->value_size = value_size;
	iterator->entries.position = (size_t)(iterator->value_position + value_size);
	iterator->row++;
	cf_block_prefetch(iterator);
	return true;
}

/* The step to any entry, or past the last. */
CF_MUST_CHECK ckptfmt_status cf_block_next_any(cf_block_iterator *iterator, ckptfmt_error *err);

static inline ckptfmt_status cf_block_next(cf_block_iterator *iterator, ckptfmt_error *err)
{
	return CF_LIKELY(cf_block_take_short(iterator)) ? CKPTFMT_OK : cf_block_next_any(iterator, err);
}

/* Finds the value of a key. In a block that passed cf_block_check the result is that of iterating; in any other it is
 * unspecified, but nothing is read outside of the block. *found false: there is no such key, and the other outputs are
 * unchanged. Allocates nothing. BAD_BLOCK. */
CF_MUST_CHECK ckptfmt_status cf_block_find(const cf_block *block, const uint8_t *target, uint64_t target_size,
	uint64_t *value_position, uint64_t *value_size, bool *found, ckptfmt_error *err);

/* What a walk over a whole block found. */
typedef struct cf_block_report {
	uint64_t entry_count;
	uint64_t key_bytes;            /* of all keys, unshared */
	uint64_t restart_interval_max; /* entries in the longest restart interval */
} cf_block_report;

/* Walks the whole block. Afterwards the iterator's first_key and key are those of the first and the last entry.
 * Failures as cf_block_next. */
CF_MUST_CHECK ckptfmt_status cf_block_check(cf_block_iterator *iterator, const cf_block *block, cf_block_report *out,
	ckptfmt_error *err);

#endif
