/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/wire.h"

ckptfmt_status cf_bad_message(const cf_cursor *message, const char *what, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_BAD_PROTO, cf_cursor_offset(message), "%s", what);
}

/* Skips a group whose start tag has been taken. Not recursive: each level takes an array element. */
static ckptfmt_status skip_group(cf_cursor *message, uint32_t number, ckptfmt_error *err)
{
	uint32_t open[CF_NESTING_MAX];
	size_t depth = 0;
	open[depth++] = number;
	while (depth > 0) {
		uint32_t tag, size;
		uint64_t value;
		const uint8_t *bytes;
		bool good;
		if (!cf_take_varint32(message, &tag) || tag >> 3 == 0)
			return cf_bad_message(message, "MSG-7: a group is not closed", err);
		switch (tag & 7) {
		case CF_WIRE_VARINT: good = cf_take_varint64(message, &value); break;
		case CF_WIRE_FIXED64: good = cf_take_bytes(message, 8, &bytes); break;
		case CF_WIRE_BYTES: good = cf_take_varint32(message, &size) && cf_take_bytes(message, size, &bytes); break;
		case CF_WIRE_FIXED32: good = cf_take_bytes(message, 4, &bytes); break;
		case CF_WIRE_GROUP:
			good = depth < CF_NESTING_MAX;
			if (good)
				open[depth++] = tag >> 3;
			break;
		case CF_WIRE_GROUP_END: good = open[--depth] == tag >> 3; break;
		default: good = false; break;
		}
		if (!good)
			return cf_bad_message(message, "MSG-7: a malformed group, or groups nested too deep", err);
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_take_any_field(cf_cursor *message, cf_field *out, ckptfmt_error *err)
{
	uint32_t tag, fixed, size;
	const uint8_t *bytes;
	uint64_t at;
	out->begin = message->position;
	out->value = 0;
	if (!cf_take_varint32(message, &tag))
		return cf_bad_message(message, "MSG-2: a malformed field tag", err);
	out->number = tag >> 3;
	out->wire = tag & 7;
	if (out->number == 0)
		return cf_bad_message(message, "MSG-2: field number 0", err);
	switch (out->wire) {
	case CF_WIRE_VARINT:
		if (!cf_take_varint64(message, &out->value))
			return cf_bad_message(message, "MSG-3: a malformed varint", err);
		break;
	case CF_WIRE_FIXED64:
		if (!cf_take_u64(message, &out->value))
			return cf_bad_message(message, "MSG-4: eight bytes are cut short", err);
		break;
	case CF_WIRE_FIXED32:
		if (!cf_take_u32(message, &fixed))
			return cf_bad_message(message, "MSG-4: four bytes are cut short", err);
		out->value = fixed;
		break;
	case CF_WIRE_BYTES:
		if (!cf_take_varint32(message, &size))
			return cf_bad_message(message, "MSG-5: a malformed length", err);
		at = cf_cursor_offset(message);
		if (!cf_take_bytes(message, size, &bytes))
			return cf_bad_message(message, "MSG-5: a length goes past the end", err);
		out->content = cf_cursor_over(bytes, size, at);
		break;
	case CF_WIRE_GROUP:
		CF_TRY(skip_group(message, out->number, err));
		break;
	default:
		return cf_bad_message(message, "MSG-6: an unknown wire type", err);
	}
	out->end = message->position;
	return CKPTFMT_OK;
}

ckptfmt_status cf_field_int32(const cf_cursor *message, uint64_t value, int32_t *out, ckptfmt_error *err)
{
	int64_t wide = (int64_t)value;
	if (wide < INT32_MIN || wide > INT32_MAX)
		return cf_bad_message(message, "MSG-11: a number does not fit 32 bits", err);
	*out = (int32_t)wide;
	return CKPTFMT_OK;
}

void cf_put_tag(cf_buffer *out, uint32_t number, uint32_t wire)
{
	cf_put_varint(out, (uint64_t)number << 3 | wire);
}

void cf_put_number(cf_buffer *out, uint32_t number, int64_t value)
{
	if (value == 0)
		return;
	cf_put_tag(out, number, CF_WIRE_VARINT);
	cf_put_varint(out, (uint64_t)value);
}

void cf_put_content(cf_buffer *out, uint32_t number, const void *bytes, uint64_t size)
{
	cf_put_tag(out, number, CF_WIRE_BYTES);
	cf_put_varint(out, size);
	cf_put_bytes(out, bytes, size);
}
