/* SPDX-License-Identifier: Apache-2.0 */
/* Tables put together by hand, part by part, and what the tests of the table reader ask of them. */
#ifndef CKPTFMT_TESTS_TABLE_PARTS_H
#define CKPTFMT_TESTS_TABLE_PARTS_H

#include "test.h"

#include "table/table.h"
#include "table/writer.h"

static ckptfmt_error err;
static ckptfmt_limits limits;

/* Two complete files as TensorFlow writes them: one tensor `x`, and none. */
static const uint8_t real_one[121] =
	"\x00\x00\x06\x08\x01\x1a\x02\x08\x01\x00\x01\x0f" "x\x08\x01\x12\x04\x12\x02\x08\x02\x28\x08\x35\x59\x3c\xe5\x35"
	"\0\0\0\0\1\0\0\0" "\x00\x91\x36\x42\x33"
	"\0\0\0\0\1\0\0\0" "\x00\xc0\xf2\xa1\xb0"
	"\x00\x01\x02\x79\x00\x24\0\0\0\0\1\0\0\0" "\x00\x08\x12\x10\x17"
	"\x29\x08\x36\x0e\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
	"\x57\xfb\x80\x8b\x24\x75\x47\xdb";
static const uint8_t real_none[101] =
	"\x00\x00\x06\x08\x01\x1a\x02\x08\x01\0\0\0\0\1\0\0\0" "\x00\x62\x94\x57\xf9"
	"\0\0\0\0\1\0\0\0" "\x00\xc0\xf2\xa1\xb0"
	"\x00\x00\x02\x00\x11\0\0\0\0\1\0\0\0" "\x00\xcc\xbf\x8b\x5d"
	"\x16\x08\x23\x0d\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0"
	"\x57\xfb\x80\x8b\x24\x75\x47\xdb";

static inline ckptfmt_status put(void *to, const uint8_t *bytes, uint64_t size, ckptfmt_error *error)
{
	cf_put_bytes(to, bytes, size);
	return cf_buffer_status(to, error);
}

static inline ckptfmt_status open_copy(const cf_buffer *file, cf_table **table)
{
	return cf_table_open_memory(test_guarded_copy(file->data, file->size), NULL, file->size, &limits, table, &err);
}

/* A block of these keys, each NUL-terminated, the last followed by an empty one; each value is the key. */
static inline cf_buffer block_of(uint32_t restart_interval, const char *keys)
{
	cf_block_builder builder;
	cf_block_builder_init(&builder, restart_interval);
	for (; *keys != '\0'; keys += strlen(keys) + 1)
		CHECK_OK(cf_block_builder_add(&builder, (const uint8_t *)keys, strlen(keys), (const uint8_t *)keys,
			strlen(keys), &err), err);
	CHECK_OK(cf_block_builder_finish(&builder, &err), err);
	cf_buffer bytes = builder.bytes;
	builder.bytes = CF_BUFFER_EMPTY;
	cf_block_builder_free(&builder);
	return bytes;
}

/* A file being put together by hand, part by part. */
typedef struct parts {
	cf_buffer file;
	cf_buffer index;               /* entries */
	uint32_t index_count;
	uint32_t restarts[16];
	cf_handle last;                /* block put */
	cf_handle metaindex, place;    /* of the metaindex and the index */
} parts;

static inline void put_stored(parts *p, const cf_buffer *contents, uint8_t type)
{
	uint64_t offset = p->file.size;
	cf_put_bytes(&p->file, contents->data, contents->size);
	cf_put_u8(&p->file, type);
	cf_put_u32(&p->file, ckptfmt_crc32c_mask(ckptfmt_crc32c(0, p->file.data + offset, contents->size + 1)));
	p->last = (cf_handle){offset, contents->size};
}

static inline void put_index_entry(parts *p, const char *separator, cf_handle handle, const char *tail)
{
	cf_buffer value = CF_BUFFER_EMPTY;
	cf_handle_put(&value, handle);
	cf_put_bytes(&value, tail, strlen(tail));
	p->restarts[p->index_count++] = (uint32_t)p->index.size;
	cf_put_varint(&p->index, 0);
	cf_put_varint(&p->index, strlen(separator));
	cf_put_varint(&p->index, value.size);
	cf_put_bytes(&p->index, separator, strlen(separator));
	cf_put_bytes(&p->index, value.data, value.size);
	cf_buffer_free(&value);
}

static inline void put_data(parts *p, const char *separator, const char *keys)
{
	cf_buffer contents = block_of(CF_TABLE_RESTART_INTERVAL, keys);
	put_stored(p, &contents, CF_COMPRESSION_RAW);
	put_index_entry(p, separator, p->last, "");
	cf_buffer_free(&contents);
}

static inline void put_metaindex(parts *p)
{
	cf_buffer contents = block_of(CF_TABLE_RESTART_INTERVAL, "");
	put_stored(p, &contents, CF_COMPRESSION_RAW);
	p->metaindex = p->last;
	cf_buffer_free(&contents);
}

static inline void put_index(parts *p)
{
	for (uint32_t i = 0; i < p->index_count; i++)
		cf_put_u32(&p->index, p->restarts[i]);
	if (p->index_count == 0)
		cf_put_u32(&p->index, 0);
	cf_put_u32(&p->index, p->index_count == 0 ? 1 : p->index_count);
	put_stored(p, &p->index, CF_COMPRESSION_RAW);
	p->place = p->last;
}

/* Metaindex, index, footer. */
static inline void put_end(parts *p)
{
	put_metaindex(p);
	put_index(p);
	cf_footer_put(&p->file, p->metaindex, p->place);
}

static inline void free_parts(parts *p)
{
	cf_buffer_free(&p->file);
	cf_buffer_free(&p->index);
	memset(p, 0, sizeof *p);
}

static inline ckptfmt_status iterate(cf_table *table, uint64_t *count)
{
	cf_table_iterator it;
	ckptfmt_status status;
	bool more;
	cf_table_iterator_open(&it, table);
	do
		status = cf_table_iterator_next(&it, &more, &err);
	while (status == CKPTFMT_OK && more);
	*count = it.entry_count;
	cf_table_iterator_close(&it);
	return status;
}

static inline ckptfmt_status get(cf_table *table, const char *key, bool *found)
{
	cf_table_value value;
	ckptfmt_status status = cf_table_get(table, (const uint8_t *)key, strlen(key), &value, found, &err);
	if (*found)
		CHECK(value.size == strlen(key) && memcmp(value.data, key, value.size) == 0);
	return status;
}

/* Checks all blocks; the last failure stays in `err`. */
static inline uint64_t count_failures(cf_table *table)
{
	cf_table_check check;
	uint64_t failures = 0;
	bool more = true;
	cf_table_check_open(&check, table);
	while (more)
		failures += cf_table_check_next(&check, &more, &err) != CKPTFMT_OK;
	cf_table_check_close(&check);
	return failures;
}

/* A sound file, canonical or not. */
static inline void check_sound(parts *p, uint64_t entry_count)
{
	cf_table *table;
	uint64_t count;
	CHECK_OK(open_copy(&p->file, &table), err);
	CHECK_OK(iterate(table, &count), err);
	CHECK_EQ(count, entry_count);
	CHECK_EQ(count_failures(table), 0);
	cf_table_close(table);
	free_parts(p);
}

/* A Snappy stream of literals. */
static inline cf_buffer literals(const cf_buffer *contents)
{
	cf_buffer out = CF_BUFFER_EMPTY;
	cf_put_varint(&out, contents->size);
	for (uint64_t i = 0; i < contents->size; i += 60) {
		uint64_t size = cf_min_u64(60, contents->size - i);
		cf_put_u8(&out, (uint8_t)((size - 1) << 2));
		cf_put_bytes(&out, contents->data + i, size);
	}
	return out;
}

#endif
