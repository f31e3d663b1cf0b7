/* SPDX-License-Identifier: Apache-2.0 */
/* A bounds-checked cursor: the only way untrusted bytes are read. Every take either moves past what it returns or
 * leaves the cursor unchanged and returns false; the caller reports false as a failure of a rule. */
#ifndef CKPTFMT_BASE_CURSOR_H
#define CKPTFMT_BASE_CURSOR_H

#include "base/arith.h"
#include "base/bytes.h"
#include "base/error.h"

typedef struct cf_cursor {
	const uint8_t *base;
	size_t size;
	size_t position;       /* Invariant: position <= size. */
	uint64_t origin;       /* file offset of base[0], CF_NO_OFFSET, or an offset with CF_ONE_OFFSET */
} cf_cursor;

static inline cf_cursor cf_cursor_over(const uint8_t *base, size_t size, uint64_t origin)
{
	cf_cursor cursor = {base, size, 0, origin};
	return cursor;
}

static inline size_t cf_cursor_left(const cf_cursor *cursor)
{
	return cursor->size - cursor->position;
}

/* File offset of the next byte, for error messages. */
static inline uint64_t cf_cursor_offset(const cf_cursor *cursor)
{
	return cursor->origin & CF_ONE_OFFSET ? cursor->origin : cursor->origin + cursor->position;
}

static inline CF_MUST_CHECK bool cf_take_bytes(cf_cursor *cursor, uint64_t size, const uint8_t **out)
{
	if (size > cf_cursor_left(cursor))
		return false;
	*out = cursor->base + cursor->position;
	cursor->position += (size_t)size;
	return true;
}

static inline CF_MUST_CHECK bool cf_take_u8(cf_cursor *cursor, uint8_t *out)
{
	if (cf_cursor_left(cursor) < 1)
		return false;
	*out = cursor->base[cursor->position++];
	return true;
}

static inline CF_MUST_CHECK bool cf_take_u32(cf_cursor *cursor, uint32_t *out)
{
	if (cf_cursor_left(cursor) < 4)
		return false;
	*out = cf_load_u32(cursor->base + cursor->position);
	cursor->position += 4;
	return true;
}

static inline CF_MUST_CHECK bool cf_take_u64(cf_cursor *cursor, uint64_t *out)
{
	if (cf_cursor_left(cursor) < 8)
		return false;
	*out = cf_load_u64(cursor->base + cursor->position);
	cursor->position += 8;
	return true;
}

/* False also for more than 10 bytes or more than 64 bits. */
static inline CF_MUST_CHECK bool cf_take_varint64(cf_cursor *cursor, uint64_t *out)
{
	uint64_t value = 0;
	size_t left = cf_cursor_left(cursor);
	const uint8_t *from = cursor->base + cursor->position;
	for (size_t i = 0; i < left && i < CF_VARINT64_SIZE_MAX; i++) {
		uint8_t byte = from[i];
		if (i == CF_VARINT64_SIZE_MAX - 1 && byte > 1)
			return false;
		value |= (uint64_t)(byte & 0x7f) << (7 * i);
		if (byte < 0x80) {
			cursor->position += i + 1;
			*out = value;
			return true;
		}
	}
	return false;
}

/* False also for more than 5 bytes or more than 32 bits. */
static inline CF_MUST_CHECK bool cf_take_varint32(cf_cursor *cursor, uint32_t *out)
{
	uint64_t value;
	size_t start = cursor->position;
	if (!cf_take_varint64(cursor, &value))
		return false;
	if (value > UINT32_MAX || cursor->position - start > CF_VARINT32_SIZE_MAX) {
		cursor->position = start;
		return false;
	}
	*out = (uint32_t)value;
	return true;
}

#endif
