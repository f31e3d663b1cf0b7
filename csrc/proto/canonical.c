/* SPDX-License-Identifier: Apache-2.0 */
/*
 * message := known field*  (ascending number; repeated ones in their order, numbers packed)
 *            unknown field*  (in their order; groups kept, contents of wire type 2 unchanged)
 * with tags, sizes and numbers in the fewest bytes. A known number with another wire type is unknown (MSG-8).
 */
#include "proto/canonical.h"
#include "proto/wire.h"

#include <assert.h>

/* ---- schemas ---------------------------------------------------------------------------------------------- */

#define SCHEMA(rules) {rules, CF_ARRAY_COUNT(rules)}

static const cf_field_rule dim_rules[] = {
	{1, CF_KIND_INT64, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* size */
	{2, CF_KIND_TEXT, CF_LABEL_PLAIN, NULL, CF_FORM_KEPT},   /* name */
};
static const cf_schema dim_schema = SCHEMA(dim_rules);

static const cf_field_rule shape_rules[] = {
	{2, CF_KIND_MESSAGE, CF_LABEL_REPEATED, &dim_schema, CF_FORM_BOTH}, /* dim */
	{3, CF_KIND_BOOL, CF_LABEL_PLAIN, NULL, CF_FORM_KEPT},   /* unknown_rank */
};
static const cf_schema shape_schema = SCHEMA(shape_rules);

static const cf_field_rule extent_rules[] = {
	{1, CF_KIND_INT64, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* start */
	{2, CF_KIND_INT64, CF_LABEL_PRESENT, NULL, CF_FORM_BOTH},   /* length, in a oneof */
};
static const cf_schema extent_schema = SCHEMA(extent_rules);

static const cf_field_rule slice_rules[] = {
	{1, CF_KIND_MESSAGE, CF_LABEL_REPEATED, &extent_schema, CF_FORM_BOTH}, /* extent */
};
static const cf_schema slice_schema = SCHEMA(slice_rules);

static const cf_field_rule extension_rules[] = {
	{1, CF_KIND_INT64, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* feature_flags */
	{2, CF_KIND_INT64, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* chunk_size */
	{3, CF_KIND_TEXT, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},      /* chunk_crcs, packed */
	{4, CF_KIND_TEXT, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},      /* chunk_sizes, packed */
	{5, CF_KIND_INT64, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* raw_size */
	{6, CF_KIND_FIXED32, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},   /* raw_crc32c */
};
static const cf_schema extension_schema = SCHEMA(extension_rules);

static const cf_field_rule entry_rules[] = {
	{1, CF_KIND_INT32, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* dtype */
	{2, CF_KIND_MESSAGE, CF_LABEL_PRESENT, &shape_schema, CF_FORM_BOTH}, /* shape */
	{3, CF_KIND_INT32, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* shard_id */
	{4, CF_KIND_INT64, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* offset */
	{5, CF_KIND_INT64, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* size */
	{6, CF_KIND_FIXED32, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},   /* crc32c */
	{7, CF_KIND_MESSAGE, CF_LABEL_REPEATED, &slice_schema, CF_FORM_BOTH}, /* slices */
	{100, CF_KIND_MESSAGE, CF_LABEL_PRESENT, &extension_schema, CF_FORM_STRICT},
};
const cf_schema cf_entry_schema = SCHEMA(entry_rules);

static const cf_field_rule version_rules[] = {
	{1, CF_KIND_INT32, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* producer */
	{2, CF_KIND_INT32, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* min_consumer */
	{3, CF_KIND_INT32, CF_LABEL_REPEATED, NULL, CF_FORM_BOTH},  /* bad_consumers */
};
static const cf_schema version_schema = SCHEMA(version_rules);

static const cf_field_rule header_rules[] = {
	{1, CF_KIND_INT32, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* num_shards */
	{2, CF_KIND_INT32, CF_LABEL_PLAIN, NULL, CF_FORM_BOTH},     /* endianness */
	{3, CF_KIND_MESSAGE, CF_LABEL_PRESENT, &version_schema, CF_FORM_BOTH}, /* version */
};
const cf_schema cf_header_schema = SCHEMA(header_rules);

/* ---- finding fields --------------------------------------------------------------------------------------- */

static uint32_t wire_of(cf_kind kind)
{
	return kind == CF_KIND_FIXED32 ? CF_WIRE_FIXED32
		: kind == CF_KIND_TEXT || kind == CF_KIND_MESSAGE ? CF_WIRE_BYTES : CF_WIRE_VARINT;
}

static bool belongs(const cf_field_rule *rule, const cf_field *f)
{
	bool packed = rule->kind == CF_KIND_INT32 && rule->label == CF_LABEL_REPEATED && f->wire == CF_WIRE_BYTES;
	return f->number == rule->number && (packed || f->wire == wire_of(rule->kind));
}

static bool is_known(const cf_schema *schema, const cf_field *f)
{
	for (size_t i = 0; i < schema->count; i++)
		if ((schema->fields[i].forms & CF_FORM_KEPT) && belongs(&schema->fields[i], f))
			return true;
	return false;
}

static ckptfmt_status next_field(cf_cursor *message, const cf_field_rule *rule, cf_field *f, bool *found,
	ckptfmt_error *err)
{
	*found = false;
	while (!*found && cf_cursor_left(message) > 0) {
		CF_TRY(cf_take_field(message, f, err));
		*found = belongs(rule, f);
	}
	return CKPTFMT_OK;
}

/* ---- messages ----------------------------------------------------------------------------------------------- */

/* Inserts the number of bytes from `start` on before them. Cheaper than measuring first: each byte moves at most once
 * for each enclosing message. */
static void insert_size(cf_buffer *out, uint64_t start)
{
	uint8_t bytes[CF_VARINT64_SIZE_MAX];
	uint64_t size = out->size - start;
	size_t more = cf_store_varint(bytes, size);
	if (cf_buffer_extend(out, more) == NULL)
		return;
	memmove(out->data + start + more, out->data + start, (size_t)size);
	memcpy(out->data + start, bytes, more);
}

static ckptfmt_status put_fields(cf_buffer *out, const cf_schema *schema, cf_form form, cf_cursor message,
	ckptfmt_error *err);

static ckptfmt_status put_content(cf_buffer *out, const cf_field_rule *rule, cf_form form, cf_cursor content,
	ckptfmt_error *err)
{
	uint64_t start;
	cf_put_tag(out, rule->number, CF_WIRE_BYTES);
	start = out->size;
	CF_TRY(put_fields(out, rule->schema, form, content, err));
	insert_size(out, start);
	return CKPTFMT_OK;
}

/* MSG-10. Each part is checked alone: malformed parts may make up a whole that is well-formed. */
static ckptfmt_status put_joined(cf_buffer *out, const cf_field_rule *rule, cf_form form, cf_cursor message,
	ckptfmt_error *err)
{
	cf_buffer joined = CF_BUFFER_EMPTY;
	ckptfmt_status status = CKPTFMT_OK;
	bool found = true;
	while (status == CKPTFMT_OK) {
		cf_field f, inner;
		status = next_field(&message, rule, &f, &found, err);
		if (status != CKPTFMT_OK || !found)
			break;
		cf_put_bytes(&joined, f.content.base, f.content.size);
		while (status == CKPTFMT_OK && cf_cursor_left(&f.content) > 0)
			status = cf_take_field(&f.content, &inner, err);
	}
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(&joined, err);
	if (status == CKPTFMT_OK)
		status = put_content(out, rule, form, cf_cursor_over(joined.data, (size_t)joined.size, CF_NO_OFFSET), err);
	cf_buffer_free(&joined);
	return status;
}

static ckptfmt_status put_message(cf_buffer *out, const cf_field_rule *rule, cf_form form, cf_cursor message,
	ckptfmt_error *err)
{
	cf_cursor left = message;
	cf_field first, second;
	bool found;
	CF_TRY(next_field(&left, rule, &first, &found, err));
	if (!found)
		return CKPTFMT_OK;
	CF_TRY(next_field(&left, rule, &second, &found, err));
	return found ? put_joined(out, rule, form, message, err) : put_content(out, rule, form, first.content, err);
}

static ckptfmt_status put_messages(cf_buffer *out, const cf_field_rule *rule, cf_form form, cf_cursor message,
	ckptfmt_error *err)
{
	cf_field f;
	bool found;
	for (;;) {
		CF_TRY(next_field(&message, rule, &f, &found, err));
		if (!found)
			return CKPTFMT_OK;
		CF_TRY(put_content(out, rule, form, f.content, err));
	}
}

/* ---- scalars ------------------------------------------------------------------------------------------------ */

/* Two's complement: C23, and every supported compiler. */
static uint64_t int32_of(uint64_t value)
{
	return (uint64_t)(int64_t)(int32_t)(uint32_t)value;
}

/* MSG-14 */
static ckptfmt_status put_packed(cf_buffer *out, const cf_field_rule *rule, cf_cursor message, ckptfmt_error *err)
{
	uint64_t start = 0;
	bool any = false;
	cf_field f;
	for (;;) {
		bool found;
		CF_TRY(next_field(&message, rule, &f, &found, err));
		if (!found)
			break;
		/* An unpacked number counts as a packed field of one. */
		while (f.wire == CF_WIRE_VARINT || cf_cursor_left(&f.content) > 0) {
			uint64_t value = f.value;
			if (f.wire == CF_WIRE_BYTES && !cf_take_varint64(&f.content, &value))
				return cf_bad_message(&f.content, "MSG-14: packed numbers do not fill their field", err);
			if (!any) {
				cf_put_tag(out, rule->number, CF_WIRE_BYTES);
				start = out->size;
				any = true;
			}
			cf_put_varint(out, int32_of(value));
			if (f.wire == CF_WIRE_VARINT)
				break;
		}
	}
	if (any)
		insert_size(out, start);
	return CKPTFMT_OK;
}

/* MSG-9 */
static ckptfmt_status put_scalar(cf_buffer *out, const cf_field_rule *rule, cf_cursor message, ckptfmt_error *err)
{
	cf_field f, last;
	bool found, empty, any = false;
	memset(&last, 0, sizeof last);
	for (;;) {
		CF_TRY(next_field(&message, rule, &f, &found, err));
		if (!found)
			break;
		last = f;
		any = true;
	}
	if (rule->kind == CF_KIND_INT32)
		last.value = int32_of(last.value);
	else if (rule->kind == CF_KIND_BOOL)
		last.value = last.value != 0;
	empty = rule->kind == CF_KIND_TEXT ? last.content.size == 0 : last.value == 0;
	if (!any || (rule->label == CF_LABEL_PLAIN && empty))
		return CKPTFMT_OK;
	if (rule->kind == CF_KIND_TEXT) {
		cf_put_content(out, rule->number, last.content.base, last.content.size);
		return CKPTFMT_OK;
	}
	cf_put_tag(out, rule->number, wire_of(rule->kind));
	if (rule->kind == CF_KIND_FIXED32)
		cf_put_u32(out, (uint32_t)last.value);
	else
		cf_put_varint(out, last.value);
	return CKPTFMT_OK;
}

/* ---- unknown fields ----------------------------------------------------------------------------------------- */

static void put_raw(cf_buffer *out, const cf_field *f)
{
	cf_put_tag(out, f->number, f->wire);
	switch (f->wire) {
	case CF_WIRE_VARINT: cf_put_varint(out, f->value); break;
	case CF_WIRE_FIXED64: cf_put_u64(out, f->value); break;
	case CF_WIRE_FIXED32: cf_put_u32(out, (uint32_t)f->value); break;
	default:
		assert(f->wire == CF_WIRE_BYTES);
		cf_put_varint(out, f->content.size);
		cf_put_bytes(out, f->content.base, f->content.size);
		break;
	}
}

/* A group has no size in front of it, so nested groups are a plain sequence of tags and fields. REQUIRES: `group` spans
 * exactly one group, which cf_take_field has taken. */
static ckptfmt_status put_group(cf_buffer *out, cf_cursor group, ckptfmt_error *err)
{
	while (cf_cursor_left(&group) > 0) {
		size_t start = group.position;
		uint32_t tag;
		cf_field f;
		if (!cf_take_varint32(&group, &tag))
			return cf_bad_message(&group, "MSG-7: a group is not closed", err);
		if ((tag & 7) == CF_WIRE_GROUP || (tag & 7) == CF_WIRE_GROUP_END) {
			cf_put_varint(out, tag);
			continue;
		}
		group.position = start;
		CF_TRY(cf_take_field(&group, &f, err));
		put_raw(out, &f);
	}
	return CKPTFMT_OK;
}

static ckptfmt_status put_unknown(cf_buffer *out, const cf_schema *schema, cf_cursor message, ckptfmt_error *err)
{
	cf_field f;
	while (cf_cursor_left(&message) > 0) {
		CF_TRY(cf_take_field(&message, &f, err));
		if (is_known(schema, &f))
			continue;
		if (f.wire == CF_WIRE_GROUP) {
			cf_cursor group = message;
			group.position = f.begin;
			group.size = f.end;
			CF_TRY(put_group(out, group, err));
		} else {
			put_raw(out, &f);
		}
	}
	return CKPTFMT_OK;
}

/* ---- whole messages ----------------------------------------------------------------------------------------- */

static ckptfmt_status put_field(cf_buffer *out, const cf_field_rule *rule, cf_form form, cf_cursor message,
	ckptfmt_error *err)
{
	if (!(rule->forms & form))
		return CKPTFMT_OK;
	if (rule->kind != CF_KIND_MESSAGE)
		return (rule->label == CF_LABEL_REPEATED ? put_packed : put_scalar)(out, rule, message, err);
	return (rule->label == CF_LABEL_REPEATED ? put_messages : put_message)(out, rule, form, message, err);
}

static ckptfmt_status put_fields(cf_buffer *out, const cf_schema *schema, cf_form form, cf_cursor message,
	ckptfmt_error *err)
{
	for (size_t i = 0; i < schema->count; i++)
		CF_TRY(put_field(out, &schema->fields[i], form, message, err));
	return form == CF_FORM_STRICT ? CKPTFMT_OK : put_unknown(out, schema, message, err);
}

static cf_cursor over(cf_bytes_view message, uint64_t origin)
{
	return cf_cursor_over(message.data, (size_t)message.size, origin);
}

ckptfmt_status cf_canonical_put_field(cf_buffer *out, const cf_schema *schema, uint32_t number, cf_bytes_view message,
	uint64_t origin, ckptfmt_error *err)
{
	size_t i = 0;
	while (i < schema->count && schema->fields[i].number != number)
		i++;
	assert(i < schema->count);
	return put_field(out, &schema->fields[i], CF_FORM_KEPT, over(message, origin), err);
}

ckptfmt_status cf_canonical_put_unknown(cf_buffer *out, const cf_schema *schema, cf_bytes_view message,
	uint64_t origin, ckptfmt_error *err)
{
	return put_unknown(out, schema, over(message, origin), err);
}

ckptfmt_status cf_canonical_put(cf_buffer *out, const cf_schema *schema, cf_form form, cf_bytes_view message,
	uint64_t origin, ckptfmt_error *err)
{
	return put_fields(out, schema, form, over(message, origin), err);
}
