/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A message is a sequence of fields: varint32 tag = field number << 3 | wire type, then
 *   0 varint64 | 1 eight bytes | 2 varint32 size and that many bytes | 3 ... 4 a group, closed by its own number | 5 four bytes
 *
 * header  1 num_shards int32   2 endianness enum   3 version { 1 producer  2 min_consumer  3 bad_consumers[] }
 * entry   1 dtype  2 shape { 2 dim[] { 1 size int64  2 name }  3 unknown_rank }  3 shard_id  4 offset  5 size
 *         6 crc32c fixed32  7 slices[] { 1 extent[] { 1 start  2 length } }  100 extension { 1 flags  2 chunk_size
 *         3 chunk_crcs packed fixed32 }
 *
 * A known field number with another wire type counts as an unknown field, as in every protobuf reader.
 */
#include "codec/message.h"

enum {
	WIRE_VARINT = 0,
	WIRE_FIXED64 = 1,
	WIRE_BYTES = 2,
	WIRE_GROUP = 3,
	WIRE_GROUP_END = 4,
	WIRE_FIXED32 = 5
};

enum {
	HEADER_NUM_SHARDS = 1,
	HEADER_ENDIANNESS = 2,
	HEADER_VERSION = 3,
	VERSION_PRODUCER = 1,
	VERSION_MIN_CONSUMER = 2,
	VERSION_BAD_CONSUMERS = 3,
	ENTRY_DTYPE = 1,
	ENTRY_SHAPE = 2,
	ENTRY_SHARD = 3,
	ENTRY_OFFSET = 4,
	ENTRY_SIZE = 5,
	ENTRY_CRC = 6,
	ENTRY_SLICES = 7,
	ENTRY_EXTENSION = 100,
	SHAPE_DIM = 2,
	SHAPE_UNKNOWN_RANK = 3,
	DIM_SIZE = 1,
	DIM_NAME = 2,
	SLICE_EXTENT = 1,
	EXTENT_START = 1,
	EXTENT_LENGTH = 2,
	EXTENSION_FLAGS = 1,
	EXTENSION_CHUNK_SIZE = 2,
	EXTENSION_CHUNK_CRCS = 3
};

typedef struct field {
	uint32_t number;
	uint32_t wire;
	uint64_t value;             /* of a number */
	cf_cursor content;          /* of WIRE_BYTES */
	size_t begin, end;          /* of the whole field, in the message */
} field;

static ckptfmt_status bad(const cf_cursor *message, const char *what, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_BAD_PROTO, cf_cursor_offset(message), "%s", what);
}

/* Skips a group whose start tag has been taken, without recursion: nesting costs an array slot, not a stack frame. */
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
			return bad(message, "MSG-7: a group is not closed", err);
		switch (tag & 7) {
		case WIRE_VARINT: good = cf_take_varint64(message, &value); break;
		case WIRE_FIXED64: good = cf_take_bytes(message, 8, &bytes); break;
		case WIRE_BYTES: good = cf_take_varint32(message, &size) && cf_take_bytes(message, size, &bytes); break;
		case WIRE_FIXED32: good = cf_take_bytes(message, 4, &bytes); break;
		case WIRE_GROUP:
			good = depth < CF_NESTING_MAX;
			if (good)
				open[depth++] = tag >> 3;
			break;
		case WIRE_GROUP_END: good = open[--depth] == tag >> 3; break;
		default: good = false; break;
		}
		if (!good)
			return bad(message, "MSG-7: a malformed group, or groups nested too deep", err);
	}
	return CKPTFMT_OK;
}

/* Takes the next field. REQUIRES: bytes are left. */
static ckptfmt_status take_field(cf_cursor *message, field *out, ckptfmt_error *err)
{
	uint32_t tag, fixed, size;
	const uint8_t *bytes;
	uint64_t at;
	out->begin = message->position;
	out->value = 0;
	if (!cf_take_varint32(message, &tag))
		return bad(message, "MSG-2: a malformed field tag", err);
	out->number = tag >> 3;
	out->wire = tag & 7;
	if (out->number == 0)
		return bad(message, "MSG-2: field number 0", err);
	switch (out->wire) {
	case WIRE_VARINT:
		if (!cf_take_varint64(message, &out->value))
			return bad(message, "MSG-3: a malformed varint", err);
		break;
	case WIRE_FIXED64:
		if (!cf_take_u64(message, &out->value))
			return bad(message, "MSG-4: eight bytes are cut short", err);
		break;
	case WIRE_FIXED32:
		if (!cf_take_u32(message, &fixed))
			return bad(message, "MSG-4: four bytes are cut short", err);
		out->value = fixed;
		break;
	case WIRE_BYTES:
		if (!cf_take_varint32(message, &size))
			return bad(message, "MSG-5: a malformed length", err);
		at = cf_cursor_offset(message);
		if (!cf_take_bytes(message, size, &bytes))
			return bad(message, "MSG-5: a length goes past the end", err);
		out->content = cf_cursor_over(bytes, size, at);
		break;
	case WIRE_GROUP:
		CF_TRY(skip_group(message, out->number, err));
		break;
	default:
		return bad(message, "MSG-6: an unknown wire type", err);
	}
	out->end = message->position;
	return CKPTFMT_OK;
}

/* Notes fields that a canonical writer would have put elsewhere or left out. */
static void note_order(uint32_t *oddities, uint32_t *last, const field *f, bool repeated)
{
	if (f->number < *last || (f->number == *last && !repeated))
		*oddities |= CF_ODD_FIELD_ORDER;
	*last = f->number;
}

static void note_default(uint32_t *oddities, uint64_t value)
{
	if (value == 0)
		*oddities |= CF_ODD_FIELD_ORDER;
}

/* An int32 travels as the varint of its 64-bit sign extension. */
static ckptfmt_status to_int32(const cf_cursor *message, uint64_t value, int32_t *out, ckptfmt_error *err)
{
	int64_t wide = (int64_t)value;
	if (wide < INT32_MIN || wide > INT32_MAX)
		return bad(message, "MSG-11: a number does not fit 32 bits", err);
	*out = (int32_t)wide;
	return CKPTFMT_OK;
}

/* ---- header ---------------------------------------------------------------------------------------------- */

static ckptfmt_status take_bad_consumer(cf_header *header, const cf_cursor *at, uint64_t value, ckptfmt_error *err)
{
	int32_t consumer;
	CF_TRY(to_int32(at, value, &consumer, err));
	if (consumer == CF_CONSUMER_VERSION)
		header->bans_consumer = true;
	return CKPTFMT_OK;
}

static ckptfmt_status decode_version(cf_cursor *message, cf_header *out, ckptfmt_error *err)
{
	uint32_t last = 0;
	field f;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(take_field(message, &f, err));
		note_order(&out->oddities, &last, &f, f.number == VERSION_BAD_CONSUMERS);
		if (f.number == VERSION_PRODUCER && f.wire == WIRE_VARINT) {
			CF_TRY(to_int32(message, f.value, &out->producer, err));
			note_default(&out->oddities, f.value);
		} else if (f.number == VERSION_MIN_CONSUMER && f.wire == WIRE_VARINT) {
			CF_TRY(to_int32(message, f.value, &out->min_consumer, err));
			note_default(&out->oddities, f.value);
		} else if (f.number == VERSION_BAD_CONSUMERS && f.wire == WIRE_VARINT) {
			CF_TRY(take_bad_consumer(out, message, f.value, err));
		} else if (f.number == VERSION_BAD_CONSUMERS && f.wire == WIRE_BYTES) {
			while (cf_cursor_left(&f.content) > 0) {
				uint64_t value;
				if (!cf_take_varint64(&f.content, &value))
					return bad(&f.content, "MSG-3: a malformed varint", err);
				CF_TRY(take_bad_consumer(out, &f.content, value, err));
			}
		} else {
			out->oddities |= CF_ODD_UNKNOWN_FIELD;
		}
	}
	out->oddities |= message->oddities;
	return CKPTFMT_OK;
}

static ckptfmt_status check_header(const cf_header *header, uint64_t origin, ckptfmt_error *err)
{
	if (header->producer < 0)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, origin,
			"HDR-7: producer version %d is below 0, the oldest there is", (int)header->producer);
	if (header->min_consumer > CF_CONSUMER_VERSION)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, origin,
			"HDR-8: written for readers of version %d or later; this one is version %d",
			(int)header->min_consumer, CF_CONSUMER_VERSION);
	if (header->bans_consumer)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, origin, "HDR-9: readers of version %d are ruled out",
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
	uint32_t last = 0;
	field f;
	memset(out, 0, sizeof *out);
	while (cf_cursor_left(&message) > 0) {
		CF_TRY(take_field(&message, &f, err));
		note_order(&out->oddities, &last, &f, false);
		if (f.number == HEADER_NUM_SHARDS && f.wire == WIRE_VARINT) {
			CF_TRY(to_int32(&message, f.value, &out->num_shards, err));
		} else if (f.number == HEADER_ENDIANNESS && f.wire == WIRE_VARINT) {
			CF_TRY(to_int32(&message, f.value, &out->endianness, err));
			note_default(&out->oddities, f.value);
		} else if (f.number == HEADER_VERSION && f.wire == WIRE_BYTES) {
			out->has_version = true;
			out->version = (cf_bytes_view){f.content.base, f.content.size};
			CF_TRY(decode_version(&f.content, out, err));
		} else {
			out->oddities |= CF_ODD_UNKNOWN_FIELD;
		}
	}
	out->oddities |= message.oddities;
	if (out->endianness == 1)
		out->oddities |= CF_ODD_BIG_ENDIAN;
	return check_header(out, origin, err);
}

static void put_tag(cf_buffer *out, uint32_t number, uint32_t wire)
{
	cf_put_varint(out, (uint64_t)number << 3 | wire);
}

static void put_number(cf_buffer *out, uint32_t number, int64_t value)
{
	if (value == 0)
		return;
	put_tag(out, number, WIRE_VARINT);
	cf_put_varint(out, (uint64_t)value);
}

static void put_content(cf_buffer *out, uint32_t number, const void *bytes, uint64_t size)
{
	put_tag(out, number, WIRE_BYTES);
	cf_put_varint(out, size);
	cf_put_bytes(out, bytes, size);
}

void cf_header_encode(cf_buffer *out, int32_t num_shards, int32_t endianness, int32_t min_consumer,
	const cf_bytes_view *version)
{
	uint8_t own[2 * (1 + CF_VARINT64_SIZE_MAX)];
	size_t size = 0;
	put_number(out, HEADER_NUM_SHARDS, num_shards);
	put_number(out, HEADER_ENDIANNESS, endianness);
	if (version != NULL) {
		put_content(out, HEADER_VERSION, version->data, version->size);
		return;
	}
	own[size++] = VERSION_PRODUCER << 3 | WIRE_VARINT;
	size += cf_store_varint(own + size, CF_FORMAT_VERSION);
	if (min_consumer != 0) {
		own[size++] = VERSION_MIN_CONSUMER << 3 | WIRE_VARINT;
		size += cf_store_varint(own + size, (uint64_t)min_consumer);
	}
	put_content(out, HEADER_VERSION, own, size);
}

/* ---- shape ----------------------------------------------------------------------------------------------- */

/* Protobuf parsers refuse a string field that is not UTF-8. */
static bool is_utf8(const uint8_t *text, size_t size)
{
	for (size_t i = 0; i < size;) {
		uint8_t lead = text[i];
		size_t more = lead < 0x80 ? 0 : lead < 0xc2 ? 4 : lead < 0xe0 ? 1 : lead < 0xf0 ? 2 : lead < 0xf5 ? 3 : 4;
		if (more == 4 || more >= size - i)
			return false;
		for (size_t k = 1; k <= more; k++)
			if ((text[i + k] & 0xc0) != 0x80)
				return false;
		if ((lead == 0xe0 && text[i + 1] < 0xa0) || (lead == 0xed && text[i + 1] > 0x9f) ||
			(lead == 0xf0 && text[i + 1] < 0x90) || (lead == 0xf4 && text[i + 1] > 0x8f))
			return false;
		i += more + 1;
	}
	return true;
}

static ckptfmt_status decode_dim(cf_cursor *message, int64_t *size, uint32_t *oddities, ckptfmt_error *err)
{
	uint32_t last = 0;
	field f;
	*size = 0;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(take_field(message, &f, err));
		note_order(oddities, &last, &f, false);
		if (f.number == DIM_SIZE && f.wire == WIRE_VARINT) {
			*size = (int64_t)f.value;
			note_default(oddities, f.value);
		} else if (f.number == DIM_NAME && f.wire == WIRE_BYTES) {
			if (!is_utf8(f.content.base, f.content.size))
				return bad(message, "MSG-16: a dimension's name is not UTF-8", err);
			*oddities |= CF_ODD_DIM_NAME;
		} else {
			*oddities |= CF_ODD_UNKNOWN_FIELD;
		}
	}
	*oddities |= message->oddities;
	return CKPTFMT_OK;
}

static ckptfmt_status decode_shape(cf_cursor *message, int64_t *dims, cf_entry *out, ckptfmt_error *err)
{
	uint32_t last = 0;
	field f;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(take_field(message, &f, err));
		note_order(&out->oddities, &last, &f, f.number == SHAPE_DIM);
		if (f.number == SHAPE_DIM && f.wire == WIRE_BYTES) {
			if (out->rank == CKPTFMT_RANK_MAX)
				return cf_fail(err, CKPTFMT_FAIL_BAD_SHAPE, out->origin,
					"SHP-3: more than %d dimensions", CKPTFMT_RANK_MAX);
			CF_TRY(decode_dim(&f.content, &dims[out->rank], &out->oddities, err));
			out->rank++;
		} else if (f.number == SHAPE_UNKNOWN_RANK && f.wire == WIRE_VARINT) {
			out->oddities |= f.value != 0 ? CF_ODD_UNKNOWN_RANK : CF_ODD_FIELD_ORDER;
		} else {
			out->oddities |= CF_ODD_UNKNOWN_FIELD;
		}
	}
	out->oddities |= message->oddities;
	return CKPTFMT_OK;
}

/* SHP-2 and SHP-4: no negative size, and a product that, taken from the left, never leaves int64. */
static ckptfmt_status check_shape(const cf_entry *entry, const int64_t *dims, ckptfmt_error *err)
{
	int64_t count = 1;
	for (int32_t d = 0; d < entry->rank; d++) {
		if (dims[d] < 0)
			return cf_fail(err, CKPTFMT_FAIL_BAD_SHAPE, entry->origin, "SHP-2: dimension %d has size %lld",
				(int)d, (long long)dims[d]);
		if (!cf_mul_i64(count, dims[d], &count))
			return cf_fail(err, CKPTFMT_FAIL_BAD_SHAPE, entry->origin,
				"SHP-4: the number of elements does not fit 63 bits");
	}
	return CKPTFMT_OK;
}

/* ---- entry ----------------------------------------------------------------------------------------------- */

static ckptfmt_status decode_extension(cf_cursor *message, cf_entry *out, ckptfmt_error *err)
{
	field f;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(take_field(message, &f, err));
		if (f.number == EXTENSION_FLAGS && f.wire == WIRE_VARINT)
			out->feature_flags = f.value;
		else if (f.number == EXTENSION_CHUNK_SIZE && f.wire == WIRE_VARINT)
			out->chunk_size = f.value;
		else if (f.number == EXTENSION_CHUNK_CRCS && f.wire == WIRE_BYTES)
			out->chunk_crcs = (cf_bytes_view){f.content.base, f.content.size};
		else
			out->oddities |= CF_ODD_UNKNOWN_FIELD;
	}
	out->oddities |= message->oddities;
	return CKPTFMT_OK;
}

static ckptfmt_status decode_number_field(const cf_cursor *message, const field *f, cf_entry *out, bool *known,
	ckptfmt_error *err)
{
	*known = true;
	switch (f->number) {
	case ENTRY_DTYPE: CF_TRY(to_int32(message, f->value, &out->dtype, err)); break;
	case ENTRY_SHARD: CF_TRY(to_int32(message, f->value, &out->shard, err)); break;
	case ENTRY_OFFSET: out->offset = (int64_t)f->value; break;
	case ENTRY_SIZE: out->size = (int64_t)f->value; break;
	default: *known = false; return CKPTFMT_OK;
	}
	note_default(&out->oddities, f->value);
	return CKPTFMT_OK;
}

ckptfmt_status cf_entry_decode(cf_bytes_view bytes, uint64_t origin, uint64_t slices_max, int64_t *dims, cf_entry *out,
	ckptfmt_error *err)
{
	cf_cursor message = cf_cursor_over(bytes.data, (size_t)bytes.size, origin);
	uint32_t last = 0;
	field f;
	memset(out, 0, sizeof *out);
	out->bytes = bytes;
	out->origin = origin;
	while (cf_cursor_left(&message) > 0) {
		bool known = false;
		CF_TRY(take_field(&message, &f, err));
		note_order(&out->oddities, &last, &f, f.number == ENTRY_SLICES);
		if (f.wire == WIRE_VARINT) {
			CF_TRY(decode_number_field(&message, &f, out, &known, err));
		} else if (f.number == ENTRY_CRC && f.wire == WIRE_FIXED32) {
			out->masked_crc = (uint32_t)f.value;
			known = true;
		} else if (f.wire == WIRE_BYTES && f.number == ENTRY_SHAPE) {
			out->has_shape = true;
			CF_TRY(decode_shape(&f.content, dims, out, err));
			known = true;
		} else if (f.wire == WIRE_BYTES && f.number == ENTRY_SLICES) {
			if (++out->slice_count > slices_max)
				return cf_fail(err, CKPTFMT_FAIL_LIMIT, origin, "more than %llu slices of one tensor",
					(unsigned long long)slices_max);
			known = true;
		} else if (f.wire == WIRE_BYTES && f.number == ENTRY_EXTENSION) {
			CF_TRY(decode_extension(&f.content, out, err));
			known = true;
		}
		if (!known)
			out->oddities |= CF_ODD_UNKNOWN_FIELD;
	}
	out->oddities |= message.oddities;
	if (!out->has_shape)
		out->oddities |= CF_ODD_EMPTY_ENTRY_TEXT;
	return check_shape(out, dims, err);
}

static ckptfmt_status decode_extent(cf_cursor *message, int64_t *start, int64_t *length, ckptfmt_error *err)
{
	field f;
	*start = 0;
	*length = -1;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(take_field(message, &f, err));
		if (f.number == EXTENT_START && f.wire == WIRE_VARINT)
			*start = (int64_t)f.value;
		else if (f.number == EXTENT_LENGTH && f.wire == WIRE_VARINT)
			*length = (int64_t)f.value;
	}
	return CKPTFMT_OK;
}

static ckptfmt_status decode_slice(const cf_entry *entry, cf_cursor *message, int64_t *starts, int64_t *lengths,
	ckptfmt_error *err)
{
	int32_t rank = 0;
	field f;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(take_field(message, &f, err));
		if (f.number != SLICE_EXTENT || f.wire != WIRE_BYTES)
			continue;
		if (rank == entry->rank)
			return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, cf_cursor_offset(message),
				"SLC-2: a slice has more extents than the tensor has dimensions (%d)", (int)entry->rank);
		CF_TRY(decode_extent(&f.content, &starts[rank], &lengths[rank], err));
		rank++;
	}
	if (rank != entry->rank)
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, cf_cursor_offset(message),
			"SLC-2: a slice has %d extents, the tensor %d dimensions", (int)rank, (int)entry->rank);
	return CKPTFMT_OK;
}

/* Moves *position past the next field of the entry with this number and WIRE_BYTES. */
static ckptfmt_status find_content(const cf_entry *entry, uint32_t number, uint64_t *position, field *f, bool *found,
	ckptfmt_error *err)
{
	cf_cursor message = cf_cursor_over(entry->bytes.data, (size_t)entry->bytes.size, entry->origin);
	*found = false;
	message.position = (size_t)*position;
	while (!*found && cf_cursor_left(&message) > 0) {
		CF_TRY(take_field(&message, f, err));
		*found = f->number == number && f->wire == WIRE_BYTES;
	}
	*position = message.position;
	return CKPTFMT_OK;
}

ckptfmt_status cf_entry_next_slice(const cf_entry *entry, cf_slice_walk *walk, int64_t *starts, int64_t *lengths,
	bool *found, ckptfmt_error *err)
{
	field f;
	CF_TRY(find_content(entry, ENTRY_SLICES, &walk->position, &f, found, err));
	if (!*found)
		return CKPTFMT_OK;
	walk->row++;
	return decode_slice(entry, &f.content, starts, lengths, err);
}

/* ---- encoding -------------------------------------------------------------------------------------------- */

static void put_shape(cf_buffer *out, int32_t rank, const int64_t *dims)
{
	uint64_t size = 0;
	for (int32_t d = 0; d < rank; d++)
		size += 2 + (dims[d] == 0 ? 0 : 1 + cf_varint_size((uint64_t)dims[d]));
	put_tag(out, ENTRY_SHAPE, WIRE_BYTES);
	cf_put_varint(out, size);
	for (int32_t d = 0; d < rank; d++) {
		put_tag(out, SHAPE_DIM, WIRE_BYTES);
		cf_put_varint(out, dims[d] == 0 ? 0 : 1 + cf_varint_size((uint64_t)dims[d]));
		put_number(out, DIM_SIZE, dims[d]);
	}
}

static uint64_t extent_size(int64_t start, int64_t length)
{
	uint64_t size = 0;
	if (length >= 0) {
		size += start == 0 ? 0 : 1 + cf_varint_size((uint64_t)start);
		size += 1 + cf_varint_size((uint64_t)length);
	}
	return size;
}

void cf_put_slice(cf_buffer *out, int32_t rank, const int64_t *starts, const int64_t *lengths)
{
	uint64_t size = 0;
	for (int32_t d = 0; d < rank; d++)
		size += 2 + extent_size(starts[d], lengths[d]);
	put_tag(out, ENTRY_SLICES, WIRE_BYTES);
	cf_put_varint(out, size);
	for (int32_t d = 0; d < rank; d++) {
		put_tag(out, SLICE_EXTENT, WIRE_BYTES);
		cf_put_varint(out, extent_size(starts[d], lengths[d]));
		if (lengths[d] < 0)
			continue;
		put_number(out, EXTENT_START, starts[d]);
		/* The length has presence (it stands in a oneof), so it is written even if it were 0. */
		put_tag(out, EXTENT_LENGTH, WIRE_VARINT);
		cf_put_varint(out, (uint64_t)lengths[d]);
	}
}

static void put_location(cf_buffer *out, int32_t shard, int64_t offset, int64_t size, uint32_t masked_crc)
{
	put_number(out, ENTRY_SHARD, shard);
	put_number(out, ENTRY_OFFSET, offset);
	put_number(out, ENTRY_SIZE, size);
	if (masked_crc != 0) {
		put_tag(out, ENTRY_CRC, WIRE_FIXED32);
		cf_put_u32(out, masked_crc);
	}
}

static void put_extension(cf_buffer *out, const cf_entry_fields *fields)
{
	uint64_t crcs_size = 4 * fields->chunk_count;
	uint64_t size = 1 + cf_varint_size(fields->chunk_size) + 1 + cf_varint_size(crcs_size) + crcs_size;
	put_tag(out, ENTRY_EXTENSION, WIRE_BYTES);
	cf_put_varint(out, size);
	put_number(out, EXTENSION_CHUNK_SIZE, fields->chunk_size);
	put_tag(out, EXTENSION_CHUNK_CRCS, WIRE_BYTES);
	cf_put_varint(out, crcs_size);
	for (uint64_t i = 0; i < fields->chunk_count; i++)
		cf_put_u32(out, fields->chunk_crcs[i]);
}

void cf_entry_encode(cf_buffer *out, const cf_entry_fields *fields)
{
	put_number(out, ENTRY_DTYPE, fields->dtype);
	put_shape(out, fields->rank, fields->dims);
	put_location(out, fields->shard, (int64_t)fields->offset, (int64_t)fields->size, fields->masked_crc);
	cf_put_bytes(out, fields->slices.data, fields->slices.size);
	if (fields->chunk_size != 0)
		put_extension(out, fields);
}

ckptfmt_status cf_entry_copy_slices(cf_buffer *out, const cf_entry *entry, ckptfmt_error *err)
{
	uint64_t position = 0;
	field f;
	bool found;
	for (;;) {
		CF_TRY(find_content(entry, ENTRY_SLICES, &position, &f, &found, err));
		if (!found)
			return CKPTFMT_OK;
		put_content(out, ENTRY_SLICES, f.content.base, f.content.size);
	}
}

/* Appends every field that is none of the entry's own seven: the extension field among them. */
static ckptfmt_status copy_unknown(cf_buffer *out, const cf_entry *entry, ckptfmt_error *err)
{
	static const uint32_t wires[] = {
		[ENTRY_DTYPE] = WIRE_VARINT, [ENTRY_SHAPE] = WIRE_BYTES, [ENTRY_SHARD] = WIRE_VARINT,
		[ENTRY_OFFSET] = WIRE_VARINT, [ENTRY_SIZE] = WIRE_VARINT, [ENTRY_CRC] = WIRE_FIXED32,
		[ENTRY_SLICES] = WIRE_BYTES,
	};
	cf_cursor message = cf_cursor_over(entry->bytes.data, (size_t)entry->bytes.size, entry->origin);
	field f;
	while (cf_cursor_left(&message) > 0) {
		CF_TRY(take_field(&message, &f, err));
		if (f.number >= CF_ARRAY_COUNT(wires) || f.wire != wires[f.number])
			cf_put_bytes(out, message.base + f.begin, f.end - f.begin);
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_entry_reencode(cf_buffer *out, const cf_entry *entry, int32_t shard, cf_bytes_view more_slices,
	ckptfmt_error *err)
{
	uint64_t position = 0, size = 0;
	cf_buffer shape = CF_BUFFER_EMPTY;
	ckptfmt_status status;
	field f;
	bool found;
	/* A message field given twice is the two joined. */
	do {
		status = find_content(entry, ENTRY_SHAPE, &position, &f, &found, err);
		if (status != CKPTFMT_OK)
			goto out;
		if (found)
			cf_put_bytes(&shape, f.content.base, f.content.size);
	} while (found);
	size = shape.size;
	put_number(out, ENTRY_DTYPE, entry->dtype);
	if (entry->has_shape)
		put_content(out, ENTRY_SHAPE, shape.data, size);
	put_location(out, shard, entry->offset, entry->size, entry->masked_crc);
	status = cf_entry_copy_slices(out, entry, err);
	if (status != CKPTFMT_OK)
		goto out;
	cf_put_bytes(out, more_slices.data, more_slices.size);
	status = copy_unknown(out, entry, err);
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(&shape, err);
out:
	cf_buffer_free(&shape);
	return status;
}
