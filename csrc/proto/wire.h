/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire form of messages (rules MSG). A message is a sequence of fields (MSG-1):
 * varint32 tag = field number << 3 | wire type, then
 *   0 varint64 | 1 eight bytes | 2 varint32 size and that many bytes | 3 ... 4 a group, closed by its own number |
 *   5 four bytes
 * A known field number with another wire type is an unknown field, as in every protobuf reader.
 */
#ifndef CKPTFMT_PROTO_WIRE_H
#define CKPTFMT_PROTO_WIRE_H

#include "base/buffer.h"
#include "base/cursor.h"

enum {
	CF_WIRE_VARINT = 0,
	CF_WIRE_FIXED64 = 1,
	CF_WIRE_BYTES = 2,
	CF_WIRE_GROUP = 3,
	CF_WIRE_GROUP_END = 4,
	CF_WIRE_FIXED32 = 5
};

enum { CF_NESTING_MAX = 100 };  /* of groups, which no known writer uses; protobuf's own limit */

typedef struct cf_field {
	uint32_t number;
	uint32_t wire;
	uint64_t value;             /* of a number */
	cf_cursor content;          /* of CF_WIRE_BYTES */
	size_t begin, end;          /* of the whole field, in the message */
} cf_field;

/* cf_take_field without the fast path. */
CF_MUST_CHECK ckptfmt_status cf_take_any_field(cf_cursor *message, cf_field *out, ckptfmt_error *err);

/* The fast path: a tag of one byte and a number, a size below 128 or four bytes. False, and nothing taken, if the next
 * field is another. */
static inline bool cf_take_short_field(cf_cursor *message, cf_field *out)
{
	const uint8_t *at = message->base + message->position;
	size_t left = cf_cursor_left(message), size = 2;
	if (CF_UNLIKELY(left < size || at[0] < 1 << 3 || at[0] >= 0x80))
		return false;
	out->wire = at[0] & 7;
	out->value = at[1];
	if (out->wire == CF_WIRE_VARINT) {
		if (out->value >= 0x80) {
			cf_cursor number = cf_cursor_over(at, left, 0);
			number.position = 1;
			if (!cf_take_varint64(&number, &out->value))
				return false;
			size = number.position;
		}
	} else if (out->wire == CF_WIRE_BYTES) {
		if (out->value >= 0x80 || out->value > left - size)
			return false;
		out->content = cf_cursor_over(at + size, (size_t)out->value,
			message->origin & CF_ONE_OFFSET ? message->origin : cf_cursor_offset(message) + size);
		size += (size_t)out->value;
	} else if (out->wire == CF_WIRE_FIXED32 && left >= 5) {
		out->value = cf_load_u32(at + 1);
		size = 5;
	} else {
		return false;
	}
	out->number = at[0] >> 3;
	out->begin = message->position;
	message->position += size;
	out->end = message->position;
	return true;
}

/* Takes the next field; a group is skipped whole. BAD_PROTO. REQUIRES: bytes are left. */
static inline CF_MUST_CHECK ckptfmt_status cf_take_field(cf_cursor *message, cf_field *out, ckptfmt_error *err)
{
	return CF_LIKELY(cf_take_short_field(message, out)) ? CKPTFMT_OK : cf_take_any_field(message, out, err);
}

/* BAD_PROTO at the cursor's position; `what` begins with the rule. */
CF_MUST_CHECK ckptfmt_status cf_bad_message(const cf_cursor *message, const char *what, ckptfmt_error *err);

/* An int32 is encoded as the varint of its 64-bit sign extension (MSG-11). */
CF_MUST_CHECK ckptfmt_status cf_field_int32(const cf_cursor *message, uint64_t value, int32_t *out,
	ckptfmt_error *err);

void cf_put_tag(cf_buffer *out, uint32_t number, uint32_t wire);
/* A number as a varint field; nothing if it is 0. */
void cf_put_number(cf_buffer *out, uint32_t number, int64_t value);
void cf_put_content(cf_buffer *out, uint32_t number, const void *bytes, uint64_t size);

#endif
