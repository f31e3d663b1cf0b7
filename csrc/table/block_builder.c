/* SPDX-License-Identifier: Apache-2.0 */
/* Builds blocks; block.c has the grammar. The bytes are those of every canonical writer: see BLK-11, BLK-12 and TAB-7,
 * TAB-8 for the choices that the grammar leaves open. */
#include "table/block.h"

#include <assert.h>
#include <inttypes.h>

enum { SURE_SIZE = 1 << 28 };   /* sizes up to this cannot overflow the format's 32 bits */

void cf_block_builder_init(cf_block_builder *builder, uint32_t restart_interval)
{
	assert(restart_interval >= 1);
	*builder = (cf_block_builder){CF_BUFFER_EMPTY, CF_BUFFER_EMPTY, CF_BUFFER_EMPTY, 0, restart_interval, 0, 0};
}

static ckptfmt_status too_large(const char *what, uint64_t size, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
		"BLK-6: %s of %" PRIu64 " bytes does not fit the format's 32 bits", what, size);
}

/* Checked before anything changes, so that no size is truncated to 32 bits. */
static ckptfmt_status sizes_check(const cf_block_builder *builder, uint64_t key_size, uint64_t value_size,
	ckptfmt_error *err)
{
	uint64_t size = cf_block_builder_size(builder) + CF_RESTART_SIZE + 3 * CF_VARINT32_SIZE_MAX;
	if (key_size > UINT32_MAX)
		return too_large("a key", key_size, err);
	if (value_size > UINT32_MAX)
		return too_large("a value", value_size, err);
	if (size + key_size + value_size > UINT32_MAX)
		return too_large("a block", size + key_size + value_size, err);
	return CKPTFMT_OK;
}

/* Reserves `size` more bytes. */
static inline bool has_room(cf_buffer *buffer, uint64_t size)
{
	return CF_LIKELY(size <= buffer->capacity - buffer->size && !buffer->failed) || cf_buffer_reserve(buffer, size);
}

/* Room for the entries to come before the next restart, if they are short ones. */
static ckptfmt_status reserve_short(cf_block_builder *builder, ckptfmt_error *err)
{
	const uint64_t most = CF_SHORT_HEAD_SIZE + 2 * CF_SHORT_SIZE_MAX;
	builder->short_until = 0;
	if (builder->bytes.size > SURE_SIZE || builder->since_restart >= builder->restart_interval)
		return CKPTFMT_OK;
	if (!has_room(&builder->bytes, (builder->restart_interval - builder->since_restart) * most) ||
		!has_room(&builder->last_key, 2 * CF_SHORT_SIZE_MAX))
		return cf_fail_memory(err);
	builder->short_until = builder->restart_interval;
	return CKPTFMT_OK;
}

ckptfmt_status cf_block_builder_add_after(cf_block_builder *builder, const uint8_t *key, uint64_t key_size,
	uint64_t common, const uint8_t *value, uint64_t value_size, ckptfmt_error *err)
{
	uint64_t shared = common, unshared;
	uint8_t *to = cf_block_builder_place(builder, key, key_size, common, value_size);
	if (CF_LIKELY(to != NULL)) {
		cf_copy_few(to, value, value_size);
		return CKPTFMT_OK;
	}
	if (CF_UNLIKELY(key_size > SURE_SIZE || value_size > SURE_SIZE || builder->bytes.size > SURE_SIZE))
		CF_TRY(sizes_check(builder, key_size, value_size, err));
	if (builder->entry_count == 0 || builder->since_restart == builder->restart_interval) {
		cf_put_u32(&builder->restarts, (uint32_t)builder->bytes.size);
		CF_TRY(cf_buffer_status(&builder->restarts, err));
		builder->since_restart = 0;
		shared = 0;
	}
	assert(builder->entry_count == 0 || (common < key_size && (common == builder->last_key.size ||
		(common < builder->last_key.size && builder->last_key.data[common] < key[common]))));
	unshared = key_size - shared;
	builder->last_key.size = shared;
	if (!has_room(&builder->bytes, 3 * CF_VARINT32_SIZE_MAX + unshared + value_size) ||
		!has_room(&builder->last_key, unshared))
		return cf_fail_memory(err);
	to = builder->bytes.data + builder->bytes.size;
	to += cf_store_varint(to, shared);
	to += cf_store_varint(to, unshared);
	to += cf_store_varint(to, value_size);
	if (unshared != 0) {
		memcpy(to, key + shared, (size_t)unshared);
		memcpy(builder->last_key.data + shared, key + shared, (size_t)unshared);
		to += unshared;
	}
	if (value_size != 0)
		memcpy(to, value, (size_t)value_size);
	builder->bytes.size = (uint64_t)(to - builder->bytes.data) + value_size;
	builder->last_key.size = key_size;
	builder->since_restart++;
	builder->entry_count++;
	return reserve_short(builder, err);
}

ckptfmt_status cf_block_builder_add(cf_block_builder *builder, const uint8_t *key, uint64_t key_size,
	const uint8_t *value, uint64_t value_size, ckptfmt_error *err)
{
	uint64_t common = builder->entry_count == 0 ? 0
		: cf_key_common(builder->last_key.data, builder->last_key.size, key, key_size);
	return cf_block_builder_add_after(builder, key, key_size, common, value, value_size, err);
}

ckptfmt_status cf_block_builder_finish(cf_block_builder *builder, ckptfmt_error *err)
{
	assert(!builder->bytes.failed);
	if (builder->entry_count == 0)
		cf_put_u32(&builder->restarts, 0);
	CF_TRY(cf_buffer_status(&builder->restarts, err));
	cf_put_bytes(&builder->bytes, builder->restarts.data, builder->restarts.size);
	cf_put_u32(&builder->bytes, (uint32_t)(builder->restarts.size / CF_RESTART_SIZE));
	return cf_buffer_status(&builder->bytes, err);
}

void cf_block_builder_reset(cf_block_builder *builder)
{
	cf_buffer_clear(&builder->bytes);
	cf_buffer_clear(&builder->restarts);
	cf_buffer_clear(&builder->last_key);
	builder->entry_count = 0;
	builder->since_restart = builder->short_until = 0;
}

void cf_block_builder_free(cf_block_builder *builder)
{
	cf_buffer_free(&builder->bytes);
	cf_buffer_free(&builder->restarts);
	cf_buffer_free(&builder->last_key);
}
