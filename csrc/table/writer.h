/* SPDX-License-Identifier: Apache-2.0 */
/* Writes a table file (an index) in one pass, byte for byte as every canonical writer: rules TAB, BLK, FTR. */
#ifndef CKPTFMT_TABLE_WRITER_H
#define CKPTFMT_TABLE_WRITER_H

#include "table/block.h"
#include "table/footer.h"

enum {
	CF_TABLE_BLOCK_SIZE = 262144,                        /* a data block ends when it has reached this ... */
	CF_TABLE_LARGE_ENTRY = 2 * CF_TABLE_BLOCK_SIZE,      /* ... or before an entry of at least this */
	CF_TABLE_RESTART_INTERVAL = 16,
	CF_TABLE_INDEX_RESTART_INTERVAL = 1
};

/* Where the bytes of a table go: a file, a buffer. Each put is what follows on the one before. */
typedef struct cf_sink {
	ckptfmt_status (*put)(void *state, const uint8_t *bytes, uint64_t size, ckptfmt_error *err);
	void *state;
} cf_sink;

/* Holds one block, the index block to be and one key; nothing else grows. */
typedef struct cf_table_writer {
	cf_sink sink;
	cf_block_builder data;
	cf_block_builder index;
	cf_buffer last_key;          /* of the pending block */
	cf_buffer scratch;
	cf_handle pending;           /* a block whose separator awaits the next key */
	uint64_t offset;             /* bytes put so far */
	bool has_pending;
} cf_table_writer;

/* Allocates nothing. The sink's state must outlive the writer. */
void cf_table_writer_open(cf_table_writer *writer, cf_sink sink);
/* REQUIRES: the key is greater than the last one. LIMIT where a size does not fit the format's 32 bits, NO_MEMORY, and
 * what the sink returns. After a failure the writer only takes free. */
CF_MUST_CHECK ckptfmt_status cf_table_writer_add(cf_table_writer *writer, const uint8_t *key, uint64_t key_size,
	const uint8_t *value, uint64_t value_size, ckptfmt_error *err);
/* The same of any entry where the caller knows how many bytes the key has in common with the last one. */
CF_MUST_CHECK ckptfmt_status cf_table_writer_add_any(cf_table_writer *writer, const uint8_t *key, uint64_t key_size,
	uint64_t common, const uint8_t *value, uint64_t value_size, ckptfmt_error *err);
/* Puts the block; and only if it is full, as it has to be seen to after each entry. */
CF_MUST_CHECK ckptfmt_status cf_table_writer_flush(cf_table_writer *writer, ckptfmt_error *err);
static inline CF_MUST_CHECK ckptfmt_status cf_table_writer_placed(cf_table_writer *writer, ckptfmt_error *err)
{
	return CF_LIKELY(cf_block_builder_size(&writer->data) < CF_TABLE_BLOCK_SIZE) ? CKPTFMT_OK
		: cf_table_writer_flush(writer, err);
}
/* As cf_block_builder_place: after the value cf_table_writer_placed follows. The first entry of a block, which a block
 * before it waits for, is none of these. */
static inline uint8_t *cf_table_writer_place(cf_table_writer *writer, const uint8_t *key, uint64_t key_size,
	uint64_t common, uint64_t value_size)
{
	return cf_block_builder_place(&writer->data, key, key_size, common, value_size);
}
static inline CF_MUST_CHECK ckptfmt_status cf_table_writer_add_after(cf_table_writer *writer, const uint8_t *key,
	uint64_t key_size, uint64_t common, const uint8_t *value, uint64_t value_size, ckptfmt_error *err)
{
	uint8_t *to = cf_table_writer_place(writer, key, key_size, common, value_size);
	if (CF_UNLIKELY(to == NULL))
		return cf_table_writer_add_any(writer, key, key_size, common, value, value_size, err);
	cf_copy_few(to, value, value_size);
	return cf_table_writer_placed(writer, err);
}
/* Adds a block that was put without this writer, with its first and its last key. REQUIRES: the writer was flushed. */
CF_MUST_CHECK ckptfmt_status cf_table_writer_add_block(cf_table_writer *writer, cf_handle block,
	const uint8_t *first, uint64_t first_size, const uint8_t *last, uint64_t last_size, ckptfmt_error *err);
/* Puts the rest; *total_size is the size of the file. Then the writer only takes free. */
CF_MUST_CHECK ckptfmt_status cf_table_writer_finish(cf_table_writer *writer, uint64_t *total_size,
	ckptfmt_error *err);
void cf_table_writer_free(cf_table_writer *writer);

#endif
