/* SPDX-License-Identifier: Apache-2.0 */
/* Makes bundles entry by entry, so that a test can damage any of it: fields before they are encoded, bytes after. */
#ifndef CKPTFMT_TESTS_BUNDLE_MAKER_H
#define CKPTFMT_TESTS_BUNDLE_MAKER_H

#include "base/buffer.h"
#include "table/footer.h"
#include "proto/message.h"

enum { MAKER_ENTRIES_MAX = 64, MAKER_SHARDS_MAX = 4, MAKER_RANK_MAX = 4, MAKER_CHUNKS_MAX = 64 };

typedef struct maker_entry {
	cf_buffer key;
	cf_entry_fields fields;     /* encoded as they are when the index is made; `dims` points to the array below */
	int64_t dims[MAKER_RANK_MAX];
	uint32_t chunk_crcs[MAKER_CHUNKS_MAX];
	cf_buffer slices;           /* encoded */
	cf_buffer raw;              /* if not empty, the value instead of the encoded fields */
	cf_buffer more;             /* appended to the value */
	bool left_out;              /* of the index; the bytes stay in the data file */
} maker_entry;

typedef struct bundle_maker {
	char directory[256];
	char base[64];
	int32_t num_shards;         /* by header and file names */
	int32_t endianness;
	cf_buffer header;           /* if not empty, the header instead of the encoded one */
	bool no_header;
	uint64_t block_entries;     /* 0: blocks as a writer makes them; else so many entries each */
	maker_entry entries[MAKER_ENTRIES_MAX];
	uint64_t entry_count;
	cf_buffer data[MAKER_SHARDS_MAX];
	bool no_data[MAKER_SHARDS_MAX];
	cf_buffer index;            /* after maker_build */
	cf_handle blocks[MAKER_ENTRIES_MAX + 1];   /* data blocks, with block_entries != 0 */
	uint64_t block_count;
} bundle_maker;

void maker_begin(bundle_maker *m, const char *directory, const char *base, int32_t num_shards);
void maker_free(bundle_maker *m);

/* A tensor with these stored bytes, appended to the shard's data. `size` bytes; the checksum is of them. */
maker_entry *maker_tensor(bundle_maker *m, const char *name, int32_t dtype, int32_t rank, const int64_t *dims,
	int32_t shard, const void *bytes, uint64_t size);
/* Gives the entry chunk checksums of these bytes of its. */
void maker_chunks(maker_entry *entry, uint32_t chunk_size, const void *bytes);
/* A partitioned tensor without slices yet. */
maker_entry *maker_partitioned(bundle_maker *m, const char *name, int32_t dtype, int32_t rank, const int64_t *dims);
/* Lists the slice in the tensor and adds the slice's own entry, which is returned. */
maker_entry *maker_slice(bundle_maker *m, maker_entry *tensor, const char *name, const int64_t *starts,
	const int64_t *lengths, int32_t shard, const void *bytes, uint64_t size);
/* Stored forms of strings and variants; appended to `out`. The result is the checksum for the entry, unmasked. */
uint32_t maker_put_strings(cf_buffer *out, const char *const *strings, uint64_t count);
uint32_t maker_put_variants(cf_buffer *out, const char *const *payloads, uint64_t count);

/* The entry of a tensor stored whole, or of the tensor itself. */
maker_entry *maker_find(bundle_maker *m, const char *name);

/* Sorts the entries by key and makes the index. */
void maker_build(bundle_maker *m);
/* The offset of this key's value in the index, UINT64_MAX if missing. REQUIRES: the index is sound. */
uint64_t maker_origin(const bundle_maker *m, const cf_buffer *key);
/* Makes the checksum of a block good again. */
void maker_reseal(bundle_maker *m, cf_handle block);
/* The handles of the index's footer. */
cf_footer maker_footer(const bundle_maker *m);

/* Writes all files. */
void maker_save(const bundle_maker *m);
/* Writes a file of the directory. */
void maker_write(const bundle_maker *m, const char *name, const void *bytes, uint64_t size);
void maker_path(const bundle_maker *m, const char *name, char *path, size_t size);

#endif
