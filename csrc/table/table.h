/* SPDX-License-Identifier: Apache-2.0 */
/* Reads a table file (an index): opening, lookup, iteration, checking. Rules FTR, BLK, SNP, TAB.
 *
 * A table may be used by any number of threads at once; an iterator and a check belong to one thread at a time. Every
 * failure that concerns the file carries its path and, where one is known, the offset in it. Nothing is allocated that
 * the bytes present do not justify, and no block is parsed before its checksum is checked. */
#ifndef CKPTFMT_TABLE_TABLE_H
#define CKPTFMT_TABLE_TABLE_H

#include "table/block.h"
#include "table/footer.h"

typedef struct cf_table cf_table;

/* Source of a table's bytes; *got below `size` means end of file. */
typedef ckptfmt_status (*cf_table_read)(const void *state, const char *path, uint8_t *to, uint64_t size,
	uint64_t offset, uint64_t *got, ckptfmt_error *err);

/* Reads the footer and the index block through `read`; `state` and `path` stay the caller's and must outlive the table.
 * `size` is that of the file when it was opened (a file that shrinks later is TRUNCATED). `limits` is copied.
 * TRUNCATED, BAD_MAGIC, UNSUPPORTED, CHECKSUM, BAD_BLOCK, BAD_ORDER, LIMIT, IO, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_table_open(cf_table_read read, const void *state, const char *path, uint64_t size,
	const ckptfmt_limits *limits, cf_table **out, ckptfmt_error *err);
/* The same over bytes in memory, which must outlive the table and not change; blocks are used in place.
 * `path` is for errors and may be NULL. */
CF_MUST_CHECK ckptfmt_status cf_table_open_memory(const uint8_t *bytes, const char *path, uint64_t size,
	const ckptfmt_limits *limits, cf_table **out, ckptfmt_error *err);
void cf_table_close(cf_table *table);

/* Whether another file, which `read` reads through `state`, ends as the table did when it was opened: footer, index
 * block and the bytes read with them (all of a small table). REQUIRES: cf_table_open made the table, the file has its
 * size. IO. */
CF_MUST_CHECK ckptfmt_status cf_table_same_end(const cf_table *table, const void *state, bool *same,
	ckptfmt_error *err);

uint64_t cf_table_size(const cf_table *table);
/* Number of data blocks. */
uint64_t cf_table_block_count(const cf_table *table);
cf_footer cf_table_footer(const cf_table *table);
/* Where a data block is stored. REQUIRES: block < cf_table_block_count. */
cf_handle cf_table_block_handle(const cf_table *table, uint64_t block);
/* Reads bytes of the file as they are stored. REQUIRES: the range is within cf_table_size. TRUNCATED, IO. */
CF_MUST_CHECK ckptfmt_status cf_table_read_at(const cf_table *table, uint8_t *to, uint64_t size, uint64_t offset,
	ckptfmt_error *err);
/* The limit on the bytes of all decoded keys (TAB-13) of a table; of an index file of this size; the failure of passing
 * it. */
uint64_t cf_table_keys_bytes_max(const cf_table *table);
uint64_t cf_keys_bytes_max(const ckptfmt_limits *limits, uint64_t size);
CF_MUST_CHECK ckptfmt_status cf_too_many_key_bytes(uint64_t allowed, uint64_t offset, ckptfmt_error *err);

/* A value, valid until cf_table_close. `offset` is its file offset; for a value in a compressed block, or in one that
 * was rebuilt because it has too few restarts, that of the block, with CF_ONE_OFFSET. */
typedef struct cf_table_value {
	const uint8_t *data;
	uint64_t size;
	uint64_t offset;
} cf_table_value;

/* Finds a key. A missing one is OK with *found false. A block is read, checked whole and cached on its first use, and
 * stays cached until close: the memory is bounded by what the file decodes to. A block with long restart intervals is
 * rebuilt with the canonical interval, so that no lookup scans far. Takes no lock.
 * CHECKSUM, BAD_BLOCK, BAD_ORDER, TRUNCATED, LIMIT, IO, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_table_get(cf_table *table, const uint8_t *key, uint64_t key_size,
	cf_table_value *out, bool *found, ckptfmt_error *err);

/* A block in memory: stored bytes, decoded bytes, and the view of them. */
typedef struct cf_table_block {
	cf_block block;
	const uint8_t *stored;     /* with the trailer: in `own`, or among bytes that the table has in memory */
	cf_buffer own;
	cf_buffer decoded;         /* of a compressed block, or as rebuilt */
	uint64_t rebuilt_bytes;    /* its keys, if it was rebuilt */
	uint8_t compression;
} cf_table_block;

void cf_table_block_init(cf_table_block *block);
void cf_table_block_free(cf_table_block *block);
/* Checks and decodes the stored bytes of the block at `handle`; no table is needed. CHECKSUM, BAD_BLOCK, LIMIT,
 * NO_MEMORY. REQUIRES: `stored` is set. */
CF_MUST_CHECK ckptfmt_status cf_table_block_decode(const ckptfmt_limits *limits, cf_handle handle,
	cf_table_block *block, ckptfmt_error *err);

/* Iterates over all entries in order. Cached blocks are used in place; others are read into the iterator's own memory,
 * which is reused. */
typedef struct cf_table_iterator {
	cf_table *table;
	const uint8_t *key;        /* these five: of the current entry, valid until the next step */
	uint64_t key_size;
	const uint8_t *value;
	uint64_t value_size;
	uint64_t value_offset;     /* as in cf_table_value */
	uint64_t common;           /* size of the common prefix with the previous key; 0 for the first */
	uint64_t entry_count;      /* so far, the current one included */
	uint64_t next_block;
	uint64_t key_bytes;
	uint64_t key_bytes_max;
	cf_block_iterator entries;
	cf_table_block memory;
	cf_buffer last_key;        /* of the block before */
	bool in_block;
	bool keeps_block;          /* the table has a single block, and `memory` holds it */
} cf_table_iterator;

/* Allocates nothing. The table must outlive the iterator. */
void cf_table_iterator_open(cf_table_iterator *iterator, cf_table *table);
/* The same, beginning with the only block that may hold the key: the skipped entries have lower keys. */
void cf_table_iterator_open_at(cf_table_iterator *iterator, cf_table *table, const uint8_t *key, uint64_t key_size);
/* Steps to the next entry, at first to the first one; *more is false past the last. Checks order within and across
 * blocks, the separators (TAB-1, TAB-5), limits.entries_max and the limit on all key bytes (TAB-13). Failures as
 * cf_table_get; after one the iterator only takes close. */
CF_MUST_CHECK ckptfmt_status cf_table_iterator_next(cf_table_iterator *iterator, bool *more, ckptfmt_error *err);
/* Starts over. A table of one block is not read again. */
void cf_table_iterator_rewind(cf_table_iterator *iterator);
void cf_table_iterator_close(cf_table_iterator *iterator);

/* All regions of the file in file order, gaps included: at most `capacity` of them, and the full number in *count.
 * With a capacity of 0 nothing is read. A damaged block is listed with crc_good 0 or, if only its contents are bad,
 * with an entry count of 0. A metaindex handle out of bounds is left out. IO, TRUNCATED, LIMIT, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_table_regions(cf_table *table, ckptfmt_region *regions, uint64_t capacity,
	uint64_t *count, ckptfmt_error *err);

/* Checks all data blocks of the file, one a step. */
typedef struct cf_table_check {
	cf_table *table;
	uint64_t step;
	uint64_t offset;           /* these three: of the last step. The block's offset, */
	uint64_t size;             /* the bytes read, */
	uint64_t entry_count;      /* and its entries */
	cf_block_iterator entries;
	cf_table_block memory;     /* the block of the last step */
} cf_table_check;

/* Allocates nothing. The table must outlive the check. */
void cf_table_check_open(cf_table_check *check, cf_table *table);
/* Checks the next block; *more is false when there was none left. On failure this block is damaged and the next call
 * continues with the one after it. Failures as cf_table_get. */
CF_MUST_CHECK ckptfmt_status cf_table_check_next(cf_table_check *check, bool *more, ckptfmt_error *err);
void cf_table_check_close(cf_table_check *check);

#endif
