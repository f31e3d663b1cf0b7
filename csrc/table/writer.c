/* SPDX-License-Identifier: Apache-2.0 */
/*
 * table  (data block  trailer)*  metaindex block  trailer  index block  trailer  footer
 *
 * The index block has one entry a data block: a key between the block's last and the next block's first, and the
 * block's handle. As it is the shortest such key, it is added when the next key is known, or at the end.
 */
#include "table/writer.h"

#include <assert.h>

void cf_table_writer_open(cf_table_writer *writer, cf_sink sink)
{
	memset(writer, 0, sizeof *writer);
	writer->sink = sink;
	writer->last_key = CF_BUFFER_EMPTY;
	writer->scratch = CF_BUFFER_EMPTY;
	cf_block_builder_init(&writer->data, CF_TABLE_RESTART_INTERVAL);
	cf_block_builder_init(&writer->index, CF_TABLE_INDEX_RESTART_INTERVAL);
}

static ckptfmt_status put(cf_table_writer *writer, const cf_buffer *bytes, ckptfmt_error *err)
{
	CF_TRY(cf_buffer_status(bytes, err));
	CF_TRY(writer->sink.put(writer->sink.state, bytes->data, bytes->size, err));
	writer->offset += bytes->size;
	return CKPTFMT_OK;
}

/* Finishes the block, puts it with its trailer and makes the builder ready for the next. */
static ckptfmt_status put_block(cf_table_writer *writer, cf_block_builder *builder, cf_handle *out,
	ckptfmt_error *err)
{
	CF_TRY(cf_block_builder_finish(builder, err));
	*out = (cf_handle){writer->offset, builder->bytes.size};
	cf_trailer_put(&builder->bytes);
	CF_TRY(put(writer, &builder->bytes, err));
	cf_block_builder_reset(builder);
	return CKPTFMT_OK;
}

static ckptfmt_status set_last_key(cf_table_writer *writer, const uint8_t *key, uint64_t key_size, ckptfmt_error *err)
{
	cf_buffer_clear(&writer->last_key);
	cf_put_bytes(&writer->last_key, key, key_size);
	return cf_buffer_status(&writer->last_key, err);
}

ckptfmt_status cf_table_writer_flush(cf_table_writer *writer, ckptfmt_error *err)
{
	if (writer->data.entry_count == 0)
		return CKPTFMT_OK;
	assert(!writer->has_pending);
	CF_TRY(set_last_key(writer, writer->data.last_key.data, writer->data.last_key.size, err));
	CF_TRY(put_block(writer, &writer->data, &writer->pending, err));
	writer->has_pending = true;
	return CKPTFMT_OK;
}

/* Adds the pending block to the index. `next` is the key that follows, unless `at_end`. */
static ckptfmt_status add_pending(cf_table_writer *writer, const uint8_t *next, uint64_t next_size, bool at_end,
	ckptfmt_error *err)
{
	cf_buffer *scratch = &writer->scratch;
	const cf_buffer *last = &writer->last_key;
	uint64_t separator_size;
	if (!writer->has_pending)
		return CKPTFMT_OK;
	cf_buffer_clear(scratch);
	if (at_end)
		cf_separator_after(last->data, last->size, scratch);
	else
		cf_separator_between(last->data, last->size, next, next_size, scratch);
	separator_size = scratch->size;
	cf_handle_put(scratch, writer->pending);
	CF_TRY(cf_buffer_status(scratch, err));
	CF_TRY(cf_block_builder_add(&writer->index, scratch->data, separator_size, scratch->data + separator_size,
		scratch->size - separator_size, err));
	writer->has_pending = false;
	return CKPTFMT_OK;
}

ckptfmt_status cf_table_writer_add_block(cf_table_writer *writer, cf_handle block, const uint8_t *first,
	uint64_t first_size, const uint8_t *last, uint64_t last_size, ckptfmt_error *err)
{
	assert(writer->data.entry_count == 0);
	CF_TRY(add_pending(writer, first, first_size, false, err));
	CF_TRY(set_last_key(writer, last, last_size, err));
	writer->pending = block;
	writer->has_pending = true;
	return CKPTFMT_OK;
}

ckptfmt_status cf_table_writer_add_any(cf_table_writer *writer, const uint8_t *key, uint64_t key_size,
	uint64_t common, const uint8_t *value, uint64_t value_size, ckptfmt_error *err)
{
	/* TAB-9. Compared part by part: no sum of the caller's sizes can wrap. */
	if (key_size >= CF_TABLE_LARGE_ENTRY || value_size >= CF_TABLE_LARGE_ENTRY - key_size)
		CF_TRY(cf_table_writer_flush(writer, err));
	if (CF_UNLIKELY(writer->has_pending)) {
		assert(cf_key_compare(writer->last_key.data, writer->last_key.size, key, key_size) < 0);
		CF_TRY(add_pending(writer, key, key_size, false, err));
	}
	CF_TRY(cf_block_builder_add_after(&writer->data, key, key_size, common, value, value_size, err));
	return cf_table_writer_placed(writer, err);
}

ckptfmt_status cf_table_writer_add(cf_table_writer *writer, const uint8_t *key, uint64_t key_size,
	const uint8_t *value, uint64_t value_size, ckptfmt_error *err)
{
	const cf_buffer *last = &writer->data.last_key;
	uint64_t common = writer->data.entry_count == 0 ? 0 : cf_key_common(last->data, last->size, key, key_size);
	return cf_table_writer_add_after(writer, key, key_size, common, value, value_size, err);
}

ckptfmt_status cf_table_writer_finish(cf_table_writer *writer, uint64_t *total_size, ckptfmt_error *err)
{
	cf_handle metaindex, index;
	*total_size = 0;
	CF_TRY(cf_table_writer_flush(writer, err));
	CF_TRY(add_pending(writer, NULL, 0, true, err));
	/* TAB-10: the data builder is empty now, and so is the metaindex. */
	CF_TRY(put_block(writer, &writer->data, &metaindex, err));
	CF_TRY(put_block(writer, &writer->index, &index, err));
	cf_buffer_clear(&writer->scratch);
	cf_footer_put(&writer->scratch, metaindex, index);
	CF_TRY(put(writer, &writer->scratch, err));
	*total_size = writer->offset;
	return CKPTFMT_OK;
}

void cf_table_writer_free(cf_table_writer *writer)
{
	cf_block_builder_free(&writer->data);
	cf_block_builder_free(&writer->index);
	cf_buffer_free(&writer->last_key);
	cf_buffer_free(&writer->scratch);
}
