/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry   1 dtype  2 shape { 2 dim[] { 1 size int64  2 name }  3 unknown_rank }  3 shard_id  4 offset  5 size
 *         6 crc32c fixed32  7 slices[] { 1 extent[] { 1 start  2 length } }  100 extension { 1 flags  2 chunk_size
 *         3 chunk_crcs packed fixed32  4 chunk_sizes packed  5 raw_size  6 raw_crc32c fixed32 }
 */
#include "proto/canonical.h"
#include "proto/message.h"
#include "proto/wire.h"

enum {
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
	EXTENSION_CHUNK_CRCS = 3,
	EXTENSION_CHUNK_SIZES = 4,
	EXTENSION_RAW_SIZE = 5,
	EXTENSION_RAW_CRC = 6
};

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
	cf_field f;
	*size = 0;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(cf_take_field(message, &f, err));
		cf_note_order(oddities, &last, &f, false);
		if (f.number == DIM_SIZE && f.wire == CF_WIRE_VARINT) {
			*size = (int64_t)f.value;
			cf_note_default(oddities, f.value);
		} else if (f.number == DIM_NAME && f.wire == CF_WIRE_BYTES) {
			if (!is_utf8(f.content.base, f.content.size))
				return cf_bad_message(message, "MSG-16: a dimension's name is not UTF-8", err);
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
	cf_field f;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(cf_take_field(message, &f, err));
		cf_note_order(&out->oddities, &last, &f, f.number == SHAPE_DIM);
		if (f.number == SHAPE_DIM && f.wire == CF_WIRE_BYTES) {
			if (out->rank == CKPTFMT_RANK_MAX)
				return cf_fail(err, CKPTFMT_FAIL_BAD_SHAPE, out->origin,
					"SHP-3: more than %d dimensions", CKPTFMT_RANK_MAX);
			CF_TRY(decode_dim(&f.content, &dims[out->rank], &out->oddities, err));
			out->rank++;
		} else if (f.number == SHAPE_UNKNOWN_RANK && f.wire == CF_WIRE_VARINT) {
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
	cf_field f;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(cf_take_field(message, &f, err));
		if (f.number == EXTENSION_FLAGS && f.wire == CF_WIRE_VARINT)
			out->feature_flags = f.value;
		else if (f.number == EXTENSION_CHUNK_SIZE && f.wire == CF_WIRE_VARINT)
			out->chunk_size = f.value;
		else if (f.number == EXTENSION_CHUNK_CRCS && f.wire == CF_WIRE_BYTES) /* EXT-2: packed */
			out->chunk_crcs = (cf_bytes_view){f.content.base, f.content.size};
		else if (f.number == EXTENSION_CHUNK_SIZES && f.wire == CF_WIRE_BYTES)
			out->chunk_sizes = (cf_bytes_view){f.content.base, f.content.size};
		else if (f.number == EXTENSION_RAW_SIZE && f.wire == CF_WIRE_VARINT)
			out->raw_size = f.value;
		else if (f.number == EXTENSION_RAW_CRC && f.wire == CF_WIRE_FIXED32)
			out->raw_crc32c = (uint32_t)f.value;
		else
			out->oddities |= CF_ODD_UNKNOWN_FIELD;
	}
	out->oddities |= message->oddities;
	return CKPTFMT_OK;
}

static ckptfmt_status decode_number_field(const cf_cursor *message, const cf_field *f, cf_entry *out, bool *known,
	ckptfmt_error *err)
{
	*known = true;
	switch (f->number) {
	case ENTRY_DTYPE: CF_TRY(cf_field_int32(message, f->value, &out->dtype, err)); break;
	case ENTRY_SHARD: CF_TRY(cf_field_int32(message, f->value, &out->shard, err)); break;
	case ENTRY_OFFSET: out->offset = (int64_t)f->value; break;
	case ENTRY_SIZE: out->size = (int64_t)f->value; break;
	default: *known = false; return CKPTFMT_OK;
	}
	cf_note_default(&out->oddities, f->value);
	return CKPTFMT_OK;
}

static ckptfmt_status decode_any(cf_bytes_view bytes, uint64_t origin, uint64_t slices_max, int64_t *dims,
	cf_entry *out, ckptfmt_error *err)
{
	cf_cursor message = cf_cursor_over(bytes.data, (size_t)bytes.size, origin);
	uint32_t last = 0;
	cf_field f;
	memset(out, 0, sizeof *out);
	out->bytes = bytes;
	out->origin = origin;
	while (cf_cursor_left(&message) > 0) {
		bool known = false;
		CF_TRY(cf_take_field(&message, &f, err));
		cf_note_order(&out->oddities, &last, &f, f.number == ENTRY_SLICES);
		if (f.wire == CF_WIRE_VARINT) {
			CF_TRY(decode_number_field(&message, &f, out, &known, err));
		} else if (f.number == ENTRY_CRC && f.wire == CF_WIRE_FIXED32) {
			out->masked_crc = (uint32_t)f.value;
			known = true;
		} else if (f.wire == CF_WIRE_BYTES && f.number == ENTRY_SHAPE) {
			out->has_shape = true;
			CF_TRY(decode_shape(&f.content, dims, out, err));
			known = true;
		} else if (f.wire == CF_WIRE_BYTES && f.number == ENTRY_SLICES) {
			if (++out->slice_count > slices_max)
				return cf_fail(err, CKPTFMT_FAIL_LIMIT, origin, "TAB-13: more than %llu slices of one tensor",
					(unsigned long long)slices_max);
			known = true;
		} else if (f.wire == CF_WIRE_BYTES && f.number == ENTRY_EXTENSION) {
			out->has_extension = true;
			CF_TRY(decode_extension(&f.content, out, err));
			known = true;
		}
		if (!known)
			out->oddities |= CF_ODD_UNKNOWN_FIELD;
	}
	out->oddities |= message.oddities;
	if (!out->has_shape)
		out->oddities |= CF_ODD_NO_SHAPE;
	return check_shape(out, dims, err);
}

/* The size of a plain entry's shape takes one byte, and each of its dimensions two or more. */
enum { PLAIN_SHAPE_MAX = 0x80 };
CF_STATIC_ASSERT(2 * (1 + 5) + 2 + PLAIN_SHAPE_MAX + 2 * (1 + 9) + 5 <= CF_PLAIN_SIZE_MAX, "all its fields");
CF_STATIC_ASSERT(PLAIN_SHAPE_MAX / 2 <= CF_PLAIN_RANK_MAX, "room for the dimensions");
CF_STATIC_ASSERT(CF_ENTRY_SHARD_TAG == (ENTRY_SHARD << 3 | CF_WIRE_VARINT), "one tag");

enum {
	HEAD_SIZE = 4,              /* a dtype of one byte, and the size of the shape */
	CRC_TAG = ENTRY_CRC << 3 | CF_WIRE_FIXED32,
	CRC_SIZE = 1 + 4
};

/* The rest of a number of more bytes than one, with `value` the first of them. NULL as below. */
static inline const uint8_t *take_plain_rest(const uint8_t *at, const uint8_t *crc, uint64_t value, uint64_t *out)
{
	/* Each byte but the last counts 0x80 too much, which the next takes away. */
	uint64_t byte = at[0];
	value += (byte - 1) << 7;
	if (byte >= 0x80) {
		byte = at[1];
		value += (byte - 1) << 14;
		at++;
	}
	if (byte >= 0x80) {
		byte = at[1];
		value += (byte - 1) << 21;
		at++;
	}
	if (byte >= 0x80) {
		byte = at[1];
		value += (byte - 1) << 28;
		at++;
	}
	for (unsigned shift = 35; byte >= 0x80 && shift < 63 && at < crc; shift += 7) {
		byte = at[1];
		value += (byte - 1) << shift;
		at++;
	}
	*out = value;
	return byte - 1 < 0x7f && at < crc ? at + 1 : NULL;
}

/* A number as canonical writers put it: shortest, and left out if it is 0. NULL: it is not such. What may be read needs
 * no other bounds: a field before the checksum's tag, which is none of a number, has that and its four bytes behind. */
static inline const uint8_t *take_plain_number(const uint8_t *at, const uint8_t *crc, uint32_t number, uint64_t *out)
{
	uint64_t value;
	*out = 0;
	if (*at != (number << 3 | CF_WIRE_VARINT))
		return at;
	value = at[1];
	if (CF_UNLIKELY(value >= 0x80))
		return take_plain_rest(at + 2, crc, value, out);
	*out = value;
	return value != 0 && at + 2 <= crc ? at + 2 : NULL;
}

/* The dimensions in [at, end), and their product, which must not leave int64 (SHP-4; none is negative). */
static inline bool take_plain_shape(const uint8_t *at, const uint8_t *end, const uint8_t *crc, int64_t *dims,
	cf_plain_entry *out)
{
	int64_t count = 1;
	int32_t rank = 0;
	for (; at < end; rank++) {
		/* A dimension below 128 takes four bytes; of others, or fewer bytes, those of the checksum follow. */
		uint32_t dim = cf_load_u32(at);
		uint64_t size = dim >> 24;
		if (CF_LIKELY((dim & 0xffffff) == (DIM_SIZE << 19 | 2 << 8 | SHAPE_DIM << 3 | CF_WIRE_BYTES) &&
			size - 1 < 0x7f)) {
			at += 4;
		} else {
			const uint8_t *dim_end;
			if (at[0] != (SHAPE_DIM << 3 | CF_WIRE_BYTES) || at[1] > end - at - 2)
				return false;
			dim_end = at + 2 + at[1];
			if (take_plain_number(at + 2, crc, DIM_SIZE, &size) != dim_end)
				return false;
			at = dim_end;
		}
		dims[rank] = (int64_t)size;
		if (!cf_mul_i64(count, (int64_t)size, &count))
			return false;
	}
	out->rank = rank;
	out->element_count = count;
	return at == end;
}

bool cf_entry_scan_plain(cf_bytes_view bytes, int64_t *dims, cf_plain_entry *out)
{
	const uint8_t *at = bytes.data, *crc, *shape;
	uint32_t head;
	uint64_t shard;
	if (bytes.size < HEAD_SIZE + CRC_SIZE)
		return false;
	crc = at + bytes.size - CRC_SIZE;
	out->masked_crc = cf_load_u32(crc + 1);
	/* MSG-15: canonical writers leave one of 0 out. */
	if (*crc != CRC_TAG || out->masked_crc == 0)
		return false;
	head = cf_load_u32(at);
	out->dtype = (int32_t)(head >> 8 & 0xff);
	if ((head & 0x80ff80ff) != ((ENTRY_SHAPE << 3 | CF_WIRE_BYTES) << 16 | ENTRY_DTYPE << 3) || out->dtype == 0 ||
		head >> 24 > crc - at - HEAD_SIZE)
		return false;
	shape = at + HEAD_SIZE;
	at = shape + (head >> 24);
	if (!take_plain_shape(shape, at, crc, dims, out))
		return false;
	out->shard_begin = (uint32_t)(at - bytes.data);
	at = take_plain_number(at, crc, ENTRY_SHARD, &shard);
	if (at == NULL || shard > INT32_MAX)
		return false;
	out->shard_end = (uint32_t)(at - bytes.data);
	at = take_plain_number(at, crc, ENTRY_OFFSET, &out->offset);
	if (at == NULL)
		return false;
	at = take_plain_number(at, crc, ENTRY_SIZE, &out->size);
	out->shard = (int32_t)shard;
	return at == crc;
}

/* Field by field: compilers clear a struct of this size by a string instruction, which takes longer than all that a
 * plain entry needs else. */
static inline void set_plain(cf_entry *out, cf_bytes_view bytes, uint64_t origin, const cf_plain_entry *plain)
{
	out->dtype = plain->dtype;
	out->rank = plain->rank;
	out->shard = plain->shard;
	out->offset = (int64_t)plain->offset;
	out->size = (int64_t)plain->size;
	out->masked_crc = plain->masked_crc;
	out->raw_crc32c = out->oddities = 0;
	out->has_shape = true;
	out->has_extension = false;
	out->slice_count = out->feature_flags = out->chunk_size = out->raw_size = 0;
	out->chunk_crcs = out->chunk_sizes = (cf_bytes_view){NULL, 0};
	out->bytes = bytes;
	out->origin = origin;
}

ckptfmt_status cf_entry_decode(cf_bytes_view bytes, uint64_t origin, uint64_t slices_max, int64_t *dims, cf_entry *out,
	ckptfmt_error *err)
{
	cf_plain_entry plain;
	if (CF_UNLIKELY(!cf_entry_scan_plain(bytes, dims, &plain)))
		return decode_any(bytes, origin, slices_max, dims, out, err);
	set_plain(out, bytes, origin, &plain);
	return CKPTFMT_OK;
}

/* ---- compressed values ----------------------------------------------------------------------------------- */

ckptfmt_status cf_entry_broken_chunks(uint32_t rule, uint64_t origin, ckptfmt_error *err)
{
	static const char *const texts[] = {
		[0] = "EXT-2: the chunk checksums are not of 4 bytes each",
		[1] = "CMP-1: the stored chunks together have another size than the value",
		[2] = "CMP-2: the chunk size is no multiple of 16 within 4096 and 2^24",
		[3] = "CMP-3: the raw size is not within 1 and 2^63 - 1",
		[4] = "CMP-4: there are not as many chunk checksums and sizes as there are chunks",
		[5] = "CMP-5: a stored chunk is empty, or larger than its raw bytes and one",
	};
	return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, origin, "%s", texts[rule]);
}

/* CMP-4: as many varints as there are chunks, and nothing else. */
static bool count_sizes(const cf_entry *entry, uint64_t count)
{
	cf_cursor sizes = cf_cursor_over(entry->chunk_sizes.data, (size_t)entry->chunk_sizes.size, CF_NO_OFFSET);
	uint64_t size, found = 0;
	if (entry->chunk_crcs.size / 4 != count || entry->chunk_sizes.size < count)
		return false;
	for (; cf_cursor_left(&sizes) > 0; found++)
		if (!cf_take_varint64(&sizes, &size))
			return false;
	return found == count;
}

/* CMP-5 and CMP-1; each of the sizes is known to be a varint. */
static uint32_t sum_sizes(const cf_entry *entry, cf_buffer *ends)
{
	cf_cursor sizes = cf_cursor_over(entry->chunk_sizes.data, (size_t)entry->chunk_sizes.size, CF_NO_OFFSET);
	uint64_t left = entry->raw_size, end = 0, size;
	for (; left > 0; left -= cf_min_u64(entry->chunk_size, left)) {
		if (!cf_take_varint64(&sizes, &size) || size == 0 || size > 1 + cf_min_u64(entry->chunk_size, left))
			return 5;
		/* No overflow: no chunk is above 2^24, and there are no more of them than bytes in an index. */
		end += size;
		if (ends != NULL)
			cf_put_bytes(ends, &end, sizeof end);
	}
	return entry->size < 0 || end != (uint64_t)entry->size ? 1 : UINT32_MAX;
}

static uint32_t find_broken_rule(const cf_entry *entry, cf_buffer *ends)
{
	uint64_t chunk = entry->chunk_size, raw = entry->raw_size;
	if (chunk < CF_CHUNK_SIZE_MIN || chunk > CF_CHUNK_SIZE_MAX || chunk % CF_CHUNK_SIZE_UNIT != 0)
		return 2;
	if (raw == 0 || raw > INT64_MAX)
		return 3;
	if (entry->chunk_crcs.size % 4 != 0)
		return 0;
	return count_sizes(entry, raw / chunk + (raw % chunk != 0)) ? sum_sizes(entry, ends) : 4;
}

ckptfmt_status cf_entry_check_chunks(const cf_entry *entry, cf_buffer *ends, uint32_t *rule, ckptfmt_error *err)
{
	uint64_t before = ends == NULL ? 0 : ends->size;
	*rule = find_broken_rule(entry, ends);
	if (*rule == UINT32_MAX)
		return CKPTFMT_OK;
	if (ends != NULL)
		ends->size = before;
	return cf_entry_broken_chunks(*rule, entry->origin, err);
}

/* ---- slices ---------------------------------------------------------------------------------------------- */

static ckptfmt_status decode_extent(cf_cursor *message, int64_t *start, int64_t *length, ckptfmt_error *err)
{
	cf_field f;
	*start = 0;
	*length = -1;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(cf_take_field(message, &f, err));
		if (f.number == EXTENT_START && f.wire == CF_WIRE_VARINT)
			*start = (int64_t)f.value;
		else if (f.number == EXTENT_LENGTH && f.wire == CF_WIRE_VARINT)
			*length = (int64_t)f.value;
	}
	return CKPTFMT_OK;
}

static ckptfmt_status decode_slice(const cf_entry *entry, cf_cursor *message, int64_t *starts, int64_t *lengths,
	ckptfmt_error *err)
{
	int32_t rank = 0;
	cf_field f;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(cf_take_field(message, &f, err));
		if (f.number != SLICE_EXTENT || f.wire != CF_WIRE_BYTES)
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

/* Moves *position past the next field of the entry with this number and CF_WIRE_BYTES. */
static ckptfmt_status find_content(const cf_entry *entry, uint32_t number, uint64_t *position, cf_field *f, bool *found,
	ckptfmt_error *err)
{
	cf_cursor message = cf_cursor_over(entry->bytes.data, (size_t)entry->bytes.size, entry->origin);
	*found = false;
	message.position = (size_t)*position;
	while (!*found && cf_cursor_left(&message) > 0) {
		CF_TRY(cf_take_field(&message, f, err));
		*found = f->number == number && f->wire == CF_WIRE_BYTES;
	}
	*position = message.position;
	return CKPTFMT_OK;
}

ckptfmt_status cf_entry_next_slice(const cf_entry *entry, cf_slice_walk *walk, int64_t *starts, int64_t *lengths,
	bool *found, ckptfmt_error *err)
{
	cf_field f;
	CF_TRY(find_content(entry, ENTRY_SLICES, &walk->position, &f, found, err));
	if (!*found)
		return CKPTFMT_OK;
	walk->row++;
	return decode_slice(entry, &f.content, starts, lengths, err);
}

/* ---- encoding -------------------------------------------------------------------------------------------- */

/* Fields as bytes at an address where they have room. */

static inline uint8_t *store_number(uint8_t *to, uint32_t number, int64_t value)
{
	if (value == 0)
		return to;
	*to++ = (uint8_t)(number << 3 | CF_WIRE_VARINT);
	return to + cf_store_varint(to, (uint64_t)value);
}

static inline uint8_t *store_dims(uint8_t *to, int32_t rank, const int64_t *dims)
{
	for (int32_t d = 0; d < rank; d++) {
		uint8_t *size = to + 1;
		*to = SHAPE_DIM << 3 | CF_WIRE_BYTES;
		to = store_number(to + 2, DIM_SIZE, dims[d]);
		*size = (uint8_t)(to - size - 1);
	}
	return to;
}

enum {
	NUMBER_SIZE_MAX = 1 + CF_VARINT64_SIZE_MAX,
	DIM_SIZE_MAX = 2 + NUMBER_SIZE_MAX
};
/* Its dimensions take one byte to say how long they are, and all of it stands on the stack. */
CF_STATIC_ASSERT(CF_WHOLE_RANK_MAX * DIM_SIZE_MAX < 0x80, "one byte");
CF_STATIC_ASSERT(4 * NUMBER_SIZE_MAX + 2 + CF_WHOLE_RANK_MAX * DIM_SIZE_MAX + CRC_SIZE <= CF_WHOLE_SIZE_MAX,
	"all of it");

uint64_t cf_entry_store_whole(uint8_t *bytes, int32_t dtype, int32_t rank, const int64_t *dims, int32_t shard,
	int64_t offset, int64_t size, uint32_t masked_crc)
{
	uint8_t *to = store_number(bytes, ENTRY_DTYPE, dtype), *shape_size = to + 1;
	*to = ENTRY_SHAPE << 3 | CF_WIRE_BYTES;
	to = store_dims(to + 2, rank, dims);
	*shape_size = (uint8_t)(to - shape_size - 1);
	to = store_number(to, ENTRY_SHARD, shard);
	to = store_number(to, ENTRY_OFFSET, offset);
	to = store_number(to, ENTRY_SIZE, size);
	if (masked_crc != 0) {
		*to++ = ENTRY_CRC << 3 | CF_WIRE_FIXED32;
		cf_store_u32(to, masked_crc);
		to += 4;
	}
	return (uint64_t)(to - bytes);
}

static void put_plain(cf_buffer *out, int32_t dtype, int32_t rank, const int64_t *dims, int32_t shard, int64_t offset,
	int64_t size, uint32_t masked_crc)
{
	uint8_t bytes[CF_WHOLE_SIZE_MAX];
	cf_put_bytes(out, bytes, cf_entry_store_whole(bytes, dtype, rank, dims, shard, offset, size, masked_crc));
}

static void put_shape(cf_buffer *out, int32_t rank, const int64_t *dims)
{
	uint64_t size = 0;
	for (int32_t d = 0; d < rank; d++)
		size += 2 + (dims[d] == 0 ? 0 : 1 + cf_varint_size((uint64_t)dims[d]));
	cf_put_tag(out, ENTRY_SHAPE, CF_WIRE_BYTES);
	cf_put_varint(out, size);
	for (int32_t d = 0; d < rank; d++) {
		cf_put_tag(out, SHAPE_DIM, CF_WIRE_BYTES);
		cf_put_varint(out, dims[d] == 0 ? 0 : 1 + cf_varint_size((uint64_t)dims[d]));
		cf_put_number(out, DIM_SIZE, dims[d]);
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
	cf_put_tag(out, ENTRY_SLICES, CF_WIRE_BYTES);
	cf_put_varint(out, size);
	for (int32_t d = 0; d < rank; d++) {
		cf_put_tag(out, SLICE_EXTENT, CF_WIRE_BYTES);
		cf_put_varint(out, extent_size(starts[d], lengths[d]));
		if (lengths[d] < 0)
			continue;
		cf_put_number(out, EXTENT_START, starts[d]);
		/* The length has presence (it stands in a oneof), so it is written even if it were 0. */
		cf_put_tag(out, EXTENT_LENGTH, CF_WIRE_VARINT);
		cf_put_varint(out, (uint64_t)lengths[d]);
	}
}

static void put_location(cf_buffer *out, int32_t shard, int64_t offset, int64_t size, uint32_t masked_crc)
{
	cf_put_number(out, ENTRY_SHARD, shard);
	cf_put_number(out, ENTRY_OFFSET, offset);
	cf_put_number(out, ENTRY_SIZE, size);
	if (masked_crc != 0) {
		cf_put_tag(out, ENTRY_CRC, CF_WIRE_FIXED32);
		cf_put_u32(out, masked_crc);
	}
}

static void put_extension(cf_buffer *out, const cf_entry_fields *fields)
{
	uint64_t crcs_size = 4 * fields->chunk_count, sizes_size = 0;
	uint64_t size = 1 + cf_varint_size(fields->chunk_size) + 1 + cf_varint_size(crcs_size) + crcs_size;
	for (uint64_t i = 0; fields->compressed && i < fields->chunk_count; i++)
		sizes_size += cf_varint_size(fields->chunk_sizes[i]);
	if (fields->compressed)
		size += 2 + 1 + cf_varint_size(sizes_size) + sizes_size + 1 + cf_varint_size(fields->raw_size) +
			(fields->raw_crc32c == 0 ? 0 : CRC_SIZE);
	cf_put_tag(out, ENTRY_EXTENSION, CF_WIRE_BYTES);
	cf_put_varint(out, size);
	if (fields->compressed)
		cf_put_number(out, EXTENSION_FLAGS, CF_FEATURE_COMPRESSED);
	cf_put_number(out, EXTENSION_CHUNK_SIZE, fields->chunk_size);
	cf_put_tag(out, EXTENSION_CHUNK_CRCS, CF_WIRE_BYTES);
	cf_put_varint(out, crcs_size);
	for (uint64_t i = 0; i < fields->chunk_count; i++)
		cf_put_u32(out, fields->chunk_crcs[i]);
	if (!fields->compressed)
		return;
	cf_put_tag(out, EXTENSION_CHUNK_SIZES, CF_WIRE_BYTES);
	cf_put_varint(out, sizes_size);
	for (uint64_t i = 0; i < fields->chunk_count; i++)
		cf_put_varint(out, fields->chunk_sizes[i]);
	cf_put_number(out, EXTENSION_RAW_SIZE, (int64_t)fields->raw_size);
	if (fields->raw_crc32c != 0) {
		cf_put_tag(out, EXTENSION_RAW_CRC, CF_WIRE_FIXED32);
		cf_put_u32(out, fields->raw_crc32c);
	}
}

void cf_entry_encode(cf_buffer *out, const cf_entry_fields *fields)
{
	if (CF_LIKELY(fields->slices.size == 0 && fields->chunk_size == 0 && fields->rank <= CF_WHOLE_RANK_MAX)) {
		put_plain(out, fields->dtype, fields->rank, fields->dims, fields->shard, (int64_t)fields->offset,
			(int64_t)fields->size, fields->masked_crc);
		return;
	}
	cf_put_number(out, ENTRY_DTYPE, fields->dtype);
	put_shape(out, fields->rank, fields->dims);
	put_location(out, fields->shard, (int64_t)fields->offset, (int64_t)fields->size, fields->masked_crc);
	cf_put_bytes(out, fields->slices.data, fields->slices.size);
	if (fields->chunk_size != 0)
		put_extension(out, fields);
}

ckptfmt_status cf_entry_copy_slices(cf_buffer *out, const cf_entry *entry, ckptfmt_error *err)
{
	return cf_canonical_put_field(out, &cf_entry_schema, ENTRY_SLICES, entry->bytes, entry->origin, err);
}

ckptfmt_status cf_entry_copy_raw_slices(cf_buffer *out, const cf_entry *entry, ckptfmt_error *err)
{
	uint64_t position = 0;
	cf_field f;
	bool found;
	for (;;) {
		CF_TRY(find_content(entry, ENTRY_SLICES, &position, &f, &found, err));
		if (!found)
			return CKPTFMT_OK;
		cf_put_content(out, ENTRY_SLICES, f.content.base, f.content.size);
	}
}

/* Whether the decoded fields say all that the message does, but for its spelling: what is out of order, at its default
 * or longer than it need be comes out right of them. */
static bool is_plain(const cf_entry *entry)
{
	const uint32_t not_decoded = CF_ODD_UNKNOWN_FIELD | CF_ODD_DIM_NAME | CF_ODD_UNKNOWN_RANK | CF_ODD_NO_SHAPE;
	return (entry->oddities & not_decoded) == 0 && entry->slice_count == 0 && !entry->has_extension;
}

ckptfmt_status cf_entry_reencode(cf_buffer *out, const cf_entry *entry, const int64_t *dims, int32_t shard,
	cf_bytes_view more_slices, ckptfmt_error *err)
{
	bool plain = is_plain(entry);
	if (CF_LIKELY(plain && entry->rank <= CF_WHOLE_RANK_MAX && more_slices.size == 0)) {
		put_plain(out, entry->dtype, entry->rank, dims, shard, entry->offset, entry->size, entry->masked_crc);
		return CKPTFMT_OK;
	}
	cf_put_number(out, ENTRY_DTYPE, entry->dtype);
	if (plain)
		put_shape(out, entry->rank, dims);
	else
		CF_TRY(cf_canonical_put_field(out, &cf_entry_schema, ENTRY_SHAPE, entry->bytes, entry->origin, err));
	put_location(out, shard, entry->offset, entry->size, entry->masked_crc);
	if (!plain)
		CF_TRY(cf_entry_copy_slices(out, entry, err));
	cf_put_bytes(out, more_slices.data, more_slices.size);
	return plain ? CKPTFMT_OK
		: cf_canonical_put_unknown(out, &cf_entry_schema, entry->bytes, entry->origin, err);
}
