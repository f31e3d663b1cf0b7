/* SPDX-License-Identifier: Apache-2.0 */
#include "base/buffer.h"

#include "base/bytes.h"
#include "base/memory.h"

enum { FIRST_CAPACITY = 64 };

bool cf_buffer_reserve(cf_buffer *buffer, uint64_t size)
{
	uint64_t wanted, capacity;
	uint8_t *data;
	if (CF_UNLIKELY(buffer->failed))
		return false;
	if (CF_LIKELY(size <= buffer->capacity - buffer->size))
		return true;
	if (!cf_add_u64(buffer->size, size, &wanted)) {
		buffer->failed = true;
		return false;
	}
	/* Doubling keeps the total of copies linear; where it fails, the exact size may still fit. */
	capacity = buffer->capacity > UINT64_MAX / 2 ? wanted : buffer->capacity * 2;
	capacity = cf_max_u64(cf_max_u64(capacity, wanted), FIRST_CAPACITY);
	data = cf_reallocate(buffer->data, capacity);
	if (data == NULL && capacity != wanted) {
		capacity = wanted;
		data = cf_reallocate(buffer->data, capacity);
	}
	if (data == NULL) {
		buffer->failed = true;
		return false;
	}
	buffer->data = data;
	buffer->capacity = capacity;
	return true;
}

void cf_put_bytes(cf_buffer *buffer, const void *bytes, uint64_t size)
{
	void *to;
	if (size == 0)
		return;
	to = cf_buffer_extend(buffer, size);
	if (to != NULL)
		memcpy(to, bytes, (size_t)size);
}

void cf_put_u8(cf_buffer *buffer, uint8_t value)
{
	cf_put_bytes(buffer, &value, 1);
}

void cf_put_u32(cf_buffer *buffer, uint32_t value)
{
	uint8_t bytes[4];
	cf_store_u32(bytes, value);
	cf_put_bytes(buffer, bytes, sizeof bytes);
}

void cf_put_u64(cf_buffer *buffer, uint64_t value)
{
	uint8_t bytes[8];
	cf_store_u64(bytes, value);
	cf_put_bytes(buffer, bytes, sizeof bytes);
}

void cf_put_varint(cf_buffer *buffer, uint64_t value)
{
	uint8_t bytes[CF_VARINT64_SIZE_MAX];
	cf_put_bytes(buffer, bytes, cf_store_varint(bytes, value));
}

void cf_buffer_clear(cf_buffer *buffer)
{
	buffer->size = 0;
	buffer->failed = false;
}

void cf_buffer_free(cf_buffer *buffer)
{
	cf_release(buffer->data);
	*buffer = CF_BUFFER_EMPTY;
}

ckptfmt_status cf_buffer_status(const cf_buffer *buffer, ckptfmt_error *err)
{
	return buffer->failed ? cf_fail_memory(err) : CKPTFMT_OK;
}
