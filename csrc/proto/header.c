/* SPDX-License-Identifier: Apache-2.0 */
/* header  1 num_shards int32   2 endianness enum   3 version { 1 producer  2 min_consumer  3 bad_consumers[] } */
#include "proto/canonical.h"
#include "proto/message.h"
#include "proto/wire.h"

enum {
	HEADER_NUM_SHARDS = 1,
	HEADER_ENDIANNESS = 2,
	HEADER_VERSION = 3,
	VERSION_PRODUCER = 1,
	VERSION_MIN_CONSUMER = 2,
	VERSION_BAD_CONSUMERS = 3
};

static ckptfmt_status take_bad_consumer(cf_header *header, const cf_cursor *at, uint64_t value, ckptfmt_error *err)
{
	int32_t consumer;
	CF_TRY(cf_field_int32(at, value, &consumer, err));
	if (consumer == CF_CONSUMER_VERSION)
		header->bans_consumer = true;
	return CKPTFMT_OK;
}

static ckptfmt_status decode_version(cf_cursor *message, cf_header *out, ckptfmt_error *err)
{
	cf_field f;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(cf_take_field(message, &f, err));
		if (f.number == VERSION_PRODUCER && f.wire == CF_WIRE_VARINT) {
			CF_TRY(cf_field_int32(message, f.value, &out->producer, err));
		} else if (f.number == VERSION_MIN_CONSUMER && f.wire == CF_WIRE_VARINT) {
			CF_TRY(cf_field_int32(message, f.value, &out->min_consumer, err));
		} else if (f.number == VERSION_BAD_CONSUMERS && f.wire == CF_WIRE_VARINT) {
			CF_TRY(take_bad_consumer(out, message, f.value, err));
		} else if (f.number == VERSION_BAD_CONSUMERS && f.wire == CF_WIRE_BYTES) {
			while (cf_cursor_left(&f.content) > 0) {
				uint64_t value;
				if (!cf_take_varint64(&f.content, &value))
					return cf_bad_message(&f.content, "MSG-14: packed numbers do not fill their field", err);
				CF_TRY(take_bad_consumer(out, &f.content, value, err));
			}
		}
	}
	return CKPTFMT_OK;
}

static ckptfmt_status check_header(const cf_header *header, uint64_t origin, ckptfmt_error *err)
{
	if (header->producer < 0)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, origin,
			"HDR-7: producer version %d is negative", (int)header->producer);
	if (header->min_consumer > CF_CONSUMER_VERSION)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, origin,
			"HDR-8: written for readers of version %d or later; this one is version %d",
			(int)header->min_consumer, CF_CONSUMER_VERSION);
	if (header->bans_consumer)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, origin, "HDR-9: the file excludes readers of version %d",
			CF_CONSUMER_VERSION);
	if (header->num_shards < 1)
		return cf_fail(err, CKPTFMT_FAIL_BAD_HEADER, origin, "HDR-3: the number of shards is %d",
			(int)header->num_shards);
	if (header->endianness != 0 && header->endianness != 1)
		return cf_fail(err, CKPTFMT_FAIL_BAD_HEADER, origin, "HDR-4: endianness is %d",
			(int)header->endianness);
	return CKPTFMT_OK;
}

ckptfmt_status cf_header_decode(cf_bytes_view bytes, uint64_t origin, cf_header *out, ckptfmt_error *err)
{
	cf_cursor message = cf_cursor_over(bytes.data, (size_t)bytes.size, origin);
	cf_field f;
	memset(out, 0, sizeof *out);
	out->bytes = bytes;
	out->origin = origin;
	while (cf_cursor_left(&message) > 0) {
		CF_TRY(cf_take_field(&message, &f, err));
		if (f.number == HEADER_NUM_SHARDS && f.wire == CF_WIRE_VARINT) {
			CF_TRY(cf_field_int32(&message, f.value, &out->num_shards, err));
		} else if (f.number == HEADER_ENDIANNESS && f.wire == CF_WIRE_VARINT) {
			CF_TRY(cf_field_int32(&message, f.value, &out->endianness, err));
		} else if (f.number == HEADER_VERSION && f.wire == CF_WIRE_BYTES) {
			CF_TRY(decode_version(&f.content, out, err));
		}
	}
	return check_header(out, origin, err);
}

void cf_header_encode(cf_buffer *out, int32_t num_shards, int32_t endianness, int32_t min_consumer)
{
	uint8_t own[2 * (1 + CF_VARINT64_SIZE_MAX)];
	size_t size = 0;
	cf_put_number(out, HEADER_NUM_SHARDS, num_shards);
	cf_put_number(out, HEADER_ENDIANNESS, endianness);
	own[size++] = VERSION_PRODUCER << 3 | CF_WIRE_VARINT;
	size += cf_store_varint(own + size,
		min_consumer >= CF_COMPRESSED_VERSION ? CF_COMPRESSED_VERSION : CF_FORMAT_VERSION);
	if (min_consumer != 0) {
		own[size++] = VERSION_MIN_CONSUMER << 3 | CF_WIRE_VARINT;
		size += cf_store_varint(own + size, (uint64_t)min_consumer);
	}
	cf_put_content(out, HEADER_VERSION, own, size);
}

/* A merge always writes a version, an empty one if there was none. */
static ckptfmt_status put_version(cf_buffer *out, const cf_header *header, ckptfmt_error *err)
{
	uint64_t start = out->size;
	CF_TRY(cf_canonical_put_field(out, &cf_header_schema, HEADER_VERSION, header->bytes, header->origin, err));
	if (out->size == start)
		cf_put_content(out, HEADER_VERSION, NULL, 0);
	return CKPTFMT_OK;
}

/* The canonical form of a version, from min_consumer on. The view points into `scratch`. */
static ckptfmt_status version_rest(cf_buffer *scratch, const cf_header *header, cf_bytes_view *rest,
	ckptfmt_error *err)
{
	cf_cursor field, version;
	cf_field f;
	cf_buffer_clear(scratch);
	CF_TRY(put_version(scratch, header, err));
	CF_TRY(cf_buffer_status(scratch, err));
	field = cf_cursor_over(scratch->data, (size_t)scratch->size, header->origin);
	CF_TRY(cf_take_field(&field, &f, err));
	version = f.content;
	*rest = (cf_bytes_view){version.base, version.size};
	while (cf_cursor_left(&version) > 0) {
		CF_TRY(cf_take_field(&version, &f, err));
		if (f.wire != CF_WIRE_VARINT || f.number > VERSION_MIN_CONSUMER)
			return CKPTFMT_OK;
		*rest = (cf_bytes_view){version.base + version.position, cf_cursor_left(&version)};
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_header_reencode(cf_buffer *out, const cf_header *like, int32_t num_shards, int32_t producer,
	int32_t min_consumer, ckptfmt_error *err)
{
	cf_buffer scratch = CF_BUFFER_EMPTY, version = CF_BUFFER_EMPTY;
	cf_bytes_view rest;
	ckptfmt_status status = version_rest(&scratch, like, &rest, err);
	cf_put_number(out, HEADER_NUM_SHARDS, num_shards);
	cf_put_number(out, HEADER_ENDIANNESS, like->endianness);
	if (status == CKPTFMT_OK) {
		cf_put_number(&version, VERSION_PRODUCER, producer);
		cf_put_number(&version, VERSION_MIN_CONSUMER, min_consumer);
		cf_put_bytes(&version, rest.data, rest.size);
		cf_put_content(out, HEADER_VERSION, version.data, version.size);
		status = cf_buffer_status(&version, err);
	}
	cf_buffer_free(&scratch);
	cf_buffer_free(&version);
	return status;
}

ckptfmt_status cf_header_same_version(const cf_header *a, const cf_header *b, bool compressed, bool *same,
	ckptfmt_error *err)
{
	cf_buffer scratch_a = CF_BUFFER_EMPTY, scratch_b = CF_BUFFER_EMPTY;
	cf_bytes_view rest_a = {NULL, 0}, rest_b = {NULL, 0};
	ckptfmt_status status;
	/* Fast path: inputs written by one program. */
	*same = a->bytes.size == b->bytes.size && a->bytes.size != 0 &&
		memcmp(a->bytes.data, b->bytes.data, (size_t)a->bytes.size) == 0;
	if (*same)
		return CKPTFMT_OK;
	status = version_rest(&scratch_a, a, &rest_a, err);
	if (status == CKPTFMT_OK)
		status = version_rest(&scratch_b, b, &rest_b, err);
	if (status == CKPTFMT_OK)
		*same = (compressed || (a->producer == b->producer && a->min_consumer == b->min_consumer)) &&
			rest_a.size == rest_b.size &&
			(rest_a.size == 0 || memcmp(rest_a.data, rest_b.data, (size_t)rest_a.size) == 0);
	cf_buffer_free(&scratch_a);
	cf_buffer_free(&scratch_b);
	return status;
}
