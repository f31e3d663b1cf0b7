/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"
#include "bundle_maker.h"

#include "proto/names.h"
#include "table/table.h"
#include "table/writer.h"
#include "table/block.h"
#include "slices/key.h"
#include "proto/strings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(bool good, const char *what)
{
	if (!good) {
		fprintf(stderr, "bundle_maker: %s\n", what);
		exit(2);
	}
}

void maker_begin(bundle_maker *m, const char *directory, const char *base, int32_t num_shards)
{
	memset(m, 0, sizeof *m);
	snprintf(m->directory, sizeof m->directory, "%s", directory);
	snprintf(m->base, sizeof m->base, "%s", base);
	m->num_shards = num_shards;
}

void maker_free(bundle_maker *m)
{
	for (uint64_t i = 0; i < m->entry_count; i++) {
		cf_buffer_free(&m->entries[i].key);
		cf_buffer_free(&m->entries[i].slices);
		cf_buffer_free(&m->entries[i].raw);
		cf_buffer_free(&m->entries[i].more);
	}
	for (int32_t i = 0; i < MAKER_SHARDS_MAX; i++)
		cf_buffer_free(&m->data[i]);
	cf_buffer_free(&m->header);
	cf_buffer_free(&m->index);
	memset(m, 0, sizeof *m);
}

/* ---- entries ---- */

static maker_entry *add_entry(bundle_maker *m, int32_t dtype, int32_t rank, const int64_t *dims)
{
	maker_entry *entry;
	must(m->entry_count < MAKER_ENTRIES_MAX, "too many entries");
	entry = &m->entries[m->entry_count++];
	memset(entry, 0, sizeof *entry);
	entry->fields.dtype = dtype;
	entry->fields.rank = rank;
	if (rank != 0)
		memcpy(entry->dims, dims, (size_t)rank * sizeof *dims);
	return entry;
}

static void place(bundle_maker *m, maker_entry *entry, int32_t shard, const void *bytes, uint64_t size)
{
	entry->fields.shard = shard;
	entry->fields.offset = m->data[shard].size;
	entry->fields.size = size;
	entry->fields.masked_crc = ckptfmt_crc32c_mask(ckptfmt_crc32c(0, bytes, size));
	cf_put_bytes(&m->data[shard], bytes, size);
}

maker_entry *maker_tensor(bundle_maker *m, const char *name, int32_t dtype, int32_t rank, const int64_t *dims,
	int32_t shard, const void *bytes, uint64_t size)
{
	maker_entry *entry = add_entry(m, dtype, rank, dims);
	cf_put_bytes(&entry->key, name, strlen(name));
	place(m, entry, shard, bytes, size);
	return entry;
}

void maker_chunks(maker_entry *entry, uint32_t chunk_size, const void *bytes)
{
	uint64_t size = entry->fields.size;
	entry->fields.chunk_size = chunk_size;
	entry->fields.chunk_count = 0;
	for (uint64_t done = 0; done < size; done += chunk_size) {
		must(entry->fields.chunk_count < MAKER_CHUNKS_MAX, "too many chunks");
		entry->chunk_crcs[entry->fields.chunk_count++] =
			ckptfmt_crc32c(0, (const uint8_t *)bytes + done, cf_min_u64(chunk_size, size - done));
	}
}

maker_entry *maker_partitioned(bundle_maker *m, const char *name, int32_t dtype, int32_t rank, const int64_t *dims)
{
	maker_entry *entry = add_entry(m, dtype, rank, dims);
	cf_put_bytes(&entry->key, name, strlen(name));
	return entry;
}

maker_entry *maker_slice(bundle_maker *m, maker_entry *tensor, const char *name, const int64_t *starts,
	const int64_t *lengths, int32_t shard, const void *bytes, uint64_t size)
{
	int32_t rank = tensor->fields.rank;
	int64_t dims[MAKER_RANK_MAX];
	maker_entry *entry;
	for (int32_t d = 0; d < rank; d++)
		dims[d] = lengths[d] < 0 ? tensor->dims[d] : lengths[d];
	cf_put_slice(&tensor->slices, rank, starts, lengths);
	entry = add_entry(m, tensor->fields.dtype, rank, dims);
	cf_slice_key_encode(&entry->key, (const uint8_t *)name, strlen(name), rank, starts, lengths);
	place(m, entry, shard, bytes, size);
	return entry;
}

uint32_t maker_put_strings(cf_buffer *out, const char *const *strings, uint64_t count)
{
	uint32_t crc = 0;
	uint64_t begin;
	for (uint64_t i = 0; i < count; i++) {
		cf_put_varint(out, strlen(strings[i]));
		crc = cf_string_length_crc(crc, strlen(strings[i]));
	}
	begin = out->size;
	cf_put_u32(out, ckptfmt_crc32c_mask(crc));
	for (uint64_t i = 0; i < count; i++)
		cf_put_bytes(out, strings[i], strlen(strings[i]));
	return ckptfmt_crc32c(crc, out->data + begin, out->size - begin);
}

uint32_t maker_put_variants(cf_buffer *out, const char *const *payloads, uint64_t count)
{
	uint32_t crc = 0;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t size = strlen(payloads[i]);
		cf_put_varint(out, size);
		cf_put_bytes(out, payloads[i], size);
		crc = ckptfmt_crc32c(cf_variant_length_crc(crc, size), (const uint8_t *)payloads[i], size);
		cf_put_u32(out, ckptfmt_crc32c_mask(crc));
		crc = ckptfmt_crc32c(crc, out->data + out->size - 4, 4);
	}
	return crc;
}

maker_entry *maker_find(bundle_maker *m, const char *name)
{
	for (uint64_t i = 0; i < m->entry_count; i++)
		if (m->entries[i].key.size == strlen(name) &&
			memcmp(m->entries[i].key.data, name, strlen(name)) == 0)
			return &m->entries[i];
	must(false, name);
	return NULL;
}

/* ---- index ---- */

static int compare_entries(const void *left, const void *right)
{
	const maker_entry *const *a = left, *const *b = right;
	return cf_key_compare((*a)->key.data, (*a)->key.size, (*b)->key.data, (*b)->key.size);
}

static ckptfmt_status put_buffer(void *state, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	cf_put_bytes(state, bytes, size);
	return cf_buffer_status(state, err);
}

typedef struct pair {
	const cf_buffer *key;
	cf_buffer value;
} pair;

static cf_handle put_block(bundle_maker *m, cf_block_builder *builder)
{
	cf_handle handle;
	must(cf_block_builder_finish(builder, NULL) == CKPTFMT_OK, "a block");
	handle = (cf_handle){m->index.size, builder->bytes.size};
	cf_trailer_put(&builder->bytes);
	cf_put_bytes(&m->index, builder->bytes.data, builder->bytes.size);
	cf_block_builder_reset(builder);
	return handle;
}

/* Blocks of m->block_entries entries each; otherwise as cf_table_writer. */
static void build_blocks(bundle_maker *m, const pair *pairs, uint64_t count)
{
	cf_block_builder data, index;
	cf_buffer separator = CF_BUFFER_EMPTY;
	cf_handle metaindex, index_handle;
	cf_block_builder_init(&data, CF_TABLE_RESTART_INTERVAL);
	cf_block_builder_init(&index, CF_TABLE_INDEX_RESTART_INTERVAL);
	for (uint64_t i = 0; i < count; i++) {
		const cf_buffer *key = pairs[i].key;
		uint64_t separator_size;
		must(cf_block_builder_add(&data, key->data, key->size, pairs[i].value.data, pairs[i].value.size, NULL) ==
			CKPTFMT_OK, "an entry");
		if ((i + 1) % m->block_entries != 0 && i + 1 != count)
			continue;
		m->blocks[m->block_count] = put_block(m, &data);
		cf_buffer_clear(&separator);
		if (i + 1 == count)
			cf_separator_after(key->data, key->size, &separator);
		else
			cf_separator_between(key->data, key->size, pairs[i + 1].key->data, pairs[i + 1].key->size, &separator);
		separator_size = separator.size;
		cf_handle_put(&separator, m->blocks[m->block_count++]);
		must(cf_block_builder_add(&index, separator.data, separator_size, separator.data + separator_size,
			separator.size - separator_size, NULL) == CKPTFMT_OK, "an index entry");
	}
	metaindex = put_block(m, &data);
	index_handle = put_block(m, &index);
	cf_footer_put(&m->index, metaindex, index_handle);
	cf_block_builder_free(&data);
	cf_block_builder_free(&index);
	cf_buffer_free(&separator);
}

static void build_table(bundle_maker *m, const pair *pairs, uint64_t count)
{
	cf_table_writer writer;
	uint64_t size;
	cf_table_writer_open(&writer, (cf_sink){put_buffer, &m->index});
	for (uint64_t i = 0; i < count; i++)
		must(cf_table_writer_add(&writer, pairs[i].key->data, pairs[i].key->size, pairs[i].value.data,
			pairs[i].value.size, NULL) == CKPTFMT_OK, "an entry");
	must(cf_table_writer_finish(&writer, &size, NULL) == CKPTFMT_OK, "the table");
	cf_table_writer_free(&writer);
}

static void encode(maker_entry *entry, cf_buffer *out)
{
	entry->fields.dims = entry->dims;
	entry->fields.chunk_crcs = entry->chunk_crcs;
	entry->fields.slices = (cf_bytes_view){entry->slices.data, entry->slices.size};
	if (entry->raw.size != 0)
		cf_put_bytes(out, entry->raw.data, entry->raw.size);
	else
		cf_entry_encode(out, &entry->fields);
	cf_put_bytes(out, entry->more.data, entry->more.size);
}

void maker_build(bundle_maker *m)
{
	static const cf_buffer empty;
	maker_entry *sorted[MAKER_ENTRIES_MAX];
	pair pairs[MAKER_ENTRIES_MAX + 1];
	uint64_t count = 0;
	for (uint64_t i = 0; i < m->entry_count; i++)
		sorted[i] = &m->entries[i];
	qsort(sorted, (size_t)m->entry_count, sizeof *sorted, compare_entries);
	memset(pairs, 0, sizeof pairs);
	if (!m->no_header) {
		pairs[count].key = &empty;
		if (m->header.size != 0)
			cf_put_bytes(&pairs[count++].value, m->header.data, m->header.size);
		else
			cf_header_encode(&pairs[count++].value, m->num_shards, m->endianness, 0);
	}
	for (uint64_t i = 0; i < m->entry_count; i++) {
		if (sorted[i]->left_out)
			continue;
		pairs[count].key = &sorted[i]->key;
		encode(sorted[i], &pairs[count++].value);
	}
	m->block_count = 0;
	cf_buffer_clear(&m->index);
	if (m->block_entries != 0)
		build_blocks(m, pairs, count);
	else
		build_table(m, pairs, count);
	for (uint64_t i = 0; i < count; i++)
		cf_buffer_free(&pairs[i].value);
}

uint64_t maker_origin(const bundle_maker *m, const cf_buffer *key)
{
	ckptfmt_limits limits;
	cf_table *table;
	cf_table_value value;
	bool found;
	cf_limits_default(&limits);
	must(cf_table_open_memory(m->index.data, NULL, m->index.size, &limits, &table, NULL) == CKPTFMT_OK &&
		cf_table_get(table, key->data, key->size, &value, &found, NULL) == CKPTFMT_OK, "a sound index");
	cf_table_close(table);
	return found ? value.offset : UINT64_MAX;
}

void maker_reseal(bundle_maker *m, cf_handle block)
{
	uint8_t *stored = m->index.data + block.offset;
	cf_store_u32(stored + block.size + 1, ckptfmt_crc32c_mask(cf_trailer_crc_computed(stored, block.size)));
}

cf_footer maker_footer(const bundle_maker *m)
{
	cf_footer footer;
	must(cf_footer_decode(m->index.data + m->index.size - CF_FOOTER_SIZE, m->index.size - CF_FOOTER_SIZE, &footer,
		NULL) == CKPTFMT_OK, "a sound footer");
	return footer;
}

/* ---- files ---- */

void maker_path(const bundle_maker *m, const char *name, char *path, size_t size)
{
	must((size_t)snprintf(path, size, "%s/%s", m->directory, name) < size, "a shorter path");
}

void maker_write(const bundle_maker *m, const char *name, const void *bytes, uint64_t size)
{
	char path[512];
	FILE *file;
	maker_path(m, name, path, sizeof path);
	file = fopen(path, "wb");
	must(file != NULL, path);
	must((size == 0 || fwrite(bytes, (size_t)size, 1, file) == 1) && fclose(file) == 0, path);
}

void maker_save(const bundle_maker *m)
{
	char name[CF_NAME_SIZE];
	for (int32_t shard = 0; shard < m->num_shards && shard < MAKER_SHARDS_MAX; shard++) {
		if (m->no_data[shard])
			continue;
		cf_data_name(m->base, shard, m->num_shards, name);
		maker_write(m, name, m->data[shard].data, m->data[shard].size);
	}
	cf_index_name(m->base, name);
	maker_write(m, name, m->index.data, m->index.size);
}
