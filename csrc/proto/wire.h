/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The wire form of messages (rules MSG). A message is a sequence of fields (MSG-1):
 * varint32 tag = field number << 3 | wire type, then
 *   0 varint64 | 1 eight bytes | 2 varint32 size and that many bytes | 3 ... 4 a group, closed by its own number |
 *   5 four bytes
 * A known field number with another wire type counts as an unknown field, as in every protobuf reader.
 */
#ifndef CKPTFMT_CODEC_WIRE_H
#define CKPTFMT_CODEC_WIRE_H

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

enum { CF_NESTING_MAX = 100 };  /* of groups, which nobody writes; protobuf's own bound */

typedef struct cf_field {
	uint32_t number;
	uint32_t wire;
	uint64_t value;             /* of a number */
	cf_cursor content;          /* of CF_WIRE_BYTES */
	size_t begin, end;          /* of the whole field, in the message */
} cf_field;

/* Takes the next field; a group is skipped whole. BAD_PROTO. REQUIRES: bytes are left. */
CF_MUST_CHECK ckptfmt_status cf_take_field(cf_cursor *message, cf_field *out, ckptfmt_error *err);

/* BAD_PROTO at the cursor's place; `what` begins with the rule. */
CF_MUST_CHECK ckptfmt_status cf_bad_message(const cf_cursor *message, const char *what, ckptfmt_error *err);

/* An int32 travels as the varint of its 64-bit sign extension (MSG-11). */
CF_MUST_CHECK ckptfmt_status cf_field_int32(const cf_cursor *message, uint64_t value, int32_t *out,
	ckptfmt_error *err);

/* Note fields that a canonical writer would have put elsewhere or left out (MSG-9, MSG-15). *last: the number
 * before. */
static inline void cf_note_order(uint32_t *oddities, uint32_t *last, const cf_field *field, bool repeated)
{
	if (field->number < *last || (field->number == *last && !repeated))
		*oddities |= CF_ODD_FIELD_ORDER;
	*last = field->number;
}

static inline void cf_note_default(uint32_t *oddities, uint64_t value)
{
	if (value == 0)
		*oddities |= CF_ODD_FIELD_ORDER;
}

void cf_put_tag(cf_buffer *out, uint32_t number, uint32_t wire);
/* A number as a varint field; nothing if it is 0. */
void cf_put_number(cf_buffer *out, uint32_t number, int64_t value);
void cf_put_content(cf_buffer *out, uint32_t number, const void *bytes, uint64_t size);

#endif
