/* SPDX-License-Identifier: Apache-2.0 */
/* A growable output buffer. A failed growth sticks: later puts do nothing, and cf_buffer_status reports it once at the
 * end. Also serves as a growable array of plain structs (cf_buffer_extend). */
#ifndef CKPTFMT_BASE_BUFFER_H
#define CKPTFMT_BASE_BUFFER_H

#include "base/error.h"

typedef struct cf_buffer {
	uint8_t *data;
	uint64_t size;
	uint64_t capacity;
	bool failed;
} cf_buffer;

#define CF_BUFFER_EMPTY ((cf_buffer){NULL, 0, 0, false})

/* Ensures capacity for `size` more bytes; false after a failure. */
bool cf_buffer_reserve(cf_buffer *buffer, uint64_t size);
/* Appends `size` uninitialised bytes and returns their address, NULL after a failure. May move the buffer. */
static inline void *cf_buffer_extend(cf_buffer *buffer, uint64_t size)
{
	if (CF_UNLIKELY(buffer->failed || buffer->data == NULL || size > buffer->capacity - buffer->size)) {
		if (!cf_buffer_reserve(buffer, size) || buffer->data == NULL)
			return NULL;
	}
	buffer->size += size;
	return buffer->data + buffer->size - size;
}
void cf_put_bytes(cf_buffer *buffer, const void *bytes, uint64_t size);
void cf_put_u8(cf_buffer *buffer, uint8_t value);
void cf_put_u32(cf_buffer *buffer, uint32_t value);
void cf_put_u64(cf_buffer *buffer, uint64_t value);
void cf_put_varint(cf_buffer *buffer, uint64_t value);
/* Clears the content and any failure; keeps the capacity. */
void cf_buffer_clear(cf_buffer *buffer);
void cf_buffer_free(cf_buffer *buffer);
/* OK, or NO_MEMORY if any growth failed. */
CF_MUST_CHECK ckptfmt_status cf_buffer_status(const cf_buffer *buffer, ckptfmt_error *err);

/* Where the items of a buffer begin. Never NULL, to which C does not let a caller add even 0. */
static inline void *cf_buffer_items(const cf_buffer *buffer)
{
	static uint64_t none;
	return buffer->data == NULL ? (void *)&none : buffer->data;
}

/* Number `first` of a buffer of int64s. */
static inline const int64_t *cf_buffer_int64s(const cf_buffer *buffer, uint64_t first)
{
	return (const int64_t *)cf_buffer_items(buffer) + first;
}

#endif
