/* SPDX-License-Identifier: Apache-2.0 */
/* The entries of a checkpoint that is being written, in order of adding, found by key. They become its index. */
#ifndef CKPTFMT_WRITE_CATALOG_H
#define CKPTFMT_WRITE_CATALOG_H

#include "base/buffer.h"
#include "base/hash.h"
#include "table/writer.h"
#include "ckptfmt_unstable.h"
#include "proto/message.h"

#define CF_NO_SLICE UINT64_MAX

typedef struct cf_catalog_row {
	uint64_t key_offset;        /* in `keys` */
	uint64_t key_size;
	uint64_t dims_first;        /* in `dims` */
	uint64_t first_slice;       /* of a partitioned tensor, in `slices`; CF_NO_SLICE otherwise */
	uint64_t last_slice;
	uint64_t offset;            /* of its bytes in the data file: set by the writer when they are written */
	uint64_t size;
	uint64_t chunks_first;      /* in `chunk_crcs` */
	uint64_t entry_offset;      /* in `messages`: another index's entry, which this one repeats but for the shard */
	uint64_t entry_size;        /* 0: none, the fields here say all */
	uint64_t sizes_first;       /* in `chunk_sizes`, of a compressed value */
	uint64_t raw_size;
	uint32_t raw_crc32c;
	bool compressed;
	uint32_t chunk_count;
	uint32_t crc32c;            /* unmasked; of a partitioned tensor's own entry there is none */
	int32_t dtype;
	int32_t rank;
	int32_t shard;
} cf_catalog_row;

/* A slice message in the list of its tensor. */
typedef struct cf_catalog_slice {
	uint64_t next;
	uint64_t message_offset;    /* in `messages` */
	uint64_t message_size;
	uint64_t extents_first;     /* in `dims`: starts and lengths */
} cf_catalog_slice;

typedef struct cf_catalog {
	cf_hash_key hash_key;
	cf_buffer rows;
	cf_buffer keys;
	cf_buffer dims;
	cf_buffer slices;
	cf_buffer messages;
	cf_buffer chunk_crcs;
	cf_buffer chunk_sizes;      /* uint64_t */
	bool compressed;            /* some value is, here or in an entry taken over */
	/* Hash set of the keys, linear probing, 0 is empty; NULL while the rows are in key order. */
	uint64_t *buckets;
	uint64_t bucket_count;      /* a power of two, or 0 */
} cf_catalog;

CF_MUST_CHECK ckptfmt_status cf_catalog_open(cf_catalog *catalog, ckptfmt_error *err);
void cf_catalog_free(cf_catalog *catalog);

static inline uint64_t cf_catalog_count(const cf_catalog *catalog)
{
	return catalog->rows.size / sizeof(cf_catalog_row);
}

static inline cf_catalog_row *cf_catalog_row_at(const cf_catalog *catalog, uint64_t row)
{
	return (cf_catalog_row *)cf_buffer_items(&catalog->rows) + row;
}

/* Reserves memory for so many more rows and bytes of keys, so that adding them moves nothing. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_catalog_reserve(cf_catalog *catalog, uint64_t rows, uint64_t key_bytes,
	ckptfmt_error *err);

/* Adds a tensor stored whole (`slice` NULL) or one slice of a tensor with all that it takes; *row is the row that owns
 * the bytes. `slice` as in ckptfmt_source, checked by the caller. INVALID: the name is taken, or the slices of one
 * tensor disagree on dtype or shape. After a failure the catalog only takes free. */
CF_MUST_CHECK ckptfmt_status cf_catalog_add(cf_catalog *catalog, const ckptfmt_source *source, uint64_t *row,
	ckptfmt_error *err);

/* As cf_catalog_add, for bytes in a data file of another checkpoint. `entry` is theirs there, of which all is kept but
 * the shard; `source` needs no data. */
CF_MUST_CHECK ckptfmt_status cf_catalog_add_entry(cf_catalog *catalog, const ckptfmt_source *source,
	const cf_entry *entry, uint64_t *row, ckptfmt_error *err);

/* SLC-6: no two slices of a tensor share a cell. INVALID with the tensor, LIMIT, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_catalog_check_slices(const cf_catalog *catalog, ckptfmt_error *err);

/* Writes header and entries, sorted, to the table. `chunk_size` is that of rows with chunk checksums. */
CF_MUST_CHECK ckptfmt_status cf_catalog_write(const cf_catalog *catalog, int32_t num_shards, uint32_t chunk_size,
	cf_table_writer *table, ckptfmt_error *err);

#endif
