/* SPDX-License-Identifier: Apache-2.0 */
/* Builds blocks; block.c has the grammar. The bytes are those of every canonical writer: see BLK-11, BLK-12 and TAB-7,
 * TAB-8 for the choices that the grammar leaves open. */
#include "codec/block.h"

#include <assert.h>
#include <inttypes.h>

int cf_key_compare(const uint8_t *a, uint64_t a_size, const uint8_t *b, uint64_t b_size)
{
	uint64_t common = cf_min_u64(a_size, b_size);
	int order = common == 0 ? 0 : memcmp(a, b, (size_t)common);
	if (order != 0)
		return order;
	return a_size < b_size ? -1 : a_size > b_size;
}

uint64_t cf_key_common(const uint8_t *a, uint64_t a_size, const uint8_t *b, uint64_t b_size)
{
	uint64_t size = cf_min_u64(a_size, b_size), common = 0;
	while (size - common >= 8) {
		uint64_t differing = cf_load_u64(a + common) ^ cf_load_u64(b + common);
		if (differing != 0)
			return common + (uint64_t)__builtin_ctzll(differing) / 8;
		common += 8;
	}
	while (common < size && a[common] == b[common])
		common++;
	return common;
}

void cf_separator_between(const uint8_t *last, uint64_t last_size, const uint8_t *next, uint64_t next_size,
	cf_buffer *out)
{
	uint64_t common = cf_key_common(last, last_size, next, next_size);
	/* Only the first difference is looked at, though a later byte might be shortened: so every writer does it. */
	if (common < cf_min_u64(last_size, next_size) && last[common] + 1 < next[common]) {
		cf_put_bytes(out, last, common);
		cf_put_u8(out, (uint8_t)(last[common] + 1));
	} else {
		cf_put_bytes(out, last, last_size);
	}
}

void cf_separator_after(const uint8_t *last, uint64_t last_size, cf_buffer *out)
{
	uint64_t at = 0;
	while (at < last_size && last[at] == 0xff)
		at++;
	cf_put_bytes(out, last, at);
	if (at < last_size)
		cf_put_u8(out, (uint8_t)(last[at] + 1));
}

void cf_block_builder_init(cf_block_builder *builder, uint32_t restart_interval)
{
	assert(restart_interval >= 1);
	*builder = (cf_block_builder){CF_BUFFER_EMPTY, CF_BUFFER_EMPTY, CF_BUFFER_EMPTY, 0, restart_interval, 0};
}

uint64_t cf_block_builder_size(const cf_block_builder *builder)
{
	/* The first restart is only written with the first entry, but counts from the start. */
	return builder->bytes.size + cf_max_u64(builder->restarts.size, CF_RESTART_SIZE) + CF_RESTART_SIZE;
}

static ckptfmt_status too_large(const char *what, uint64_t size, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
		"BLK-6: %s of %" PRIu64 " bytes does not fit the format's 32 bits", what, size);
}

/* Checked before anything changes, so that no size stored in 32 bits is ever cut. */
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

ckptfmt_status cf_block_builder_add(cf_block_builder *builder, const uint8_t *key, uint64_t key_size,
	const uint8_t *value, uint64_t value_size, ckptfmt_error *err)
{
	uint64_t shared = 0, rest;
	uint8_t *to;
	assert(builder->entry_count == 0 ||
		cf_key_compare(builder->last_key.data, builder->last_key.size, key, key_size) < 0);
	CF_TRY(sizes_check(builder, key_size, value_size, err));
	if (builder->entry_count == 0 || builder->since_restart == builder->restart_interval) {
		cf_put_u32(&builder->restarts, (uint32_t)builder->bytes.size);
		builder->since_restart = 0;
	} else {
		shared = cf_key_common(builder->last_key.data, builder->last_key.size, key, key_size);
	}
	rest = key_size - shared;
	builder->last_key.size = shared;
	if (!cf_buffer_reserve(&builder->bytes, 3 * CF_VARINT32_SIZE_MAX + rest + value_size) ||
		!cf_buffer_reserve(&builder->last_key, rest) || builder->restarts.failed)
		return cf_fail_memory(err);
	to = builder->bytes.data + builder->bytes.size;
	to += cf_store_varint(to, shared);
	to += cf_store_varint(to, rest);
	to += cf_store_varint(to, value_size);
	if (rest != 0) {
		memcpy(to, key + shared, (size_t)rest);
		memcpy(builder->last_key.data + shared, key + shared, (size_t)rest);
	}
	if (value_size != 0)
		memcpy(to + rest, value, (size_t)value_size);
	builder->bytes.size = (uint64_t)(to - builder->bytes.data) + rest + value_size;
	builder->last_key.size = key_size;
	builder->since_restart++;
	builder->entry_count++;
	return CKPTFMT_OK;
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
	builder->since_restart = 0;
}

void cf_block_builder_free(cf_block_builder *builder)
{
	cf_buffer_free(&builder->bytes);
	cf_buffer_free(&builder->restarts);
	cf_buffer_free(&builder->last_key);
}
