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

/* Protobuf parsers reject a string field that is not UTF-8. */
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

static ckptfmt_status decode_dim(cf_cursor *message, int64_t *size, ckptfmt_error *err)
{
	cf_field f;
	*size = 0;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(cf_take_field(message, &f, err));
		if (f.number == DIM_SIZE && f.wire == CF_WIRE_VARINT)
			*size = (int64_t)f.value;
		else if (f.number == DIM_NAME && f.wire == CF_WIRE_BYTES && !is_utf8(f.content.base, f.content.size))
			return cf_bad_message(message, "MSG-16: a dimension's name is not UTF-8", err);
	}
	return CKPTFMT_OK;
}

/* SHP-5, SHP-6: unknown_rank and the names of dimensions are ignored. */
static ckptfmt_status decode_shape(cf_cursor *message, int64_t *dims, cf_entry *out, ckptfmt_error *err)
{
	cf_field f;
	out->has_shape = true;
	while (cf_cursor_left(message) > 0) {
		CF_TRY(cf_take_field(message, &f, err));
		if (f.number != SHAPE_DIM || f.wire != CF_WIRE_BYTES)
			continue;
		if (out->rank == CKPTFMT_RANK_MAX)
			return cf_fail(err, CKPTFMT_FAIL_BAD_SHAPE, out->origin, "SHP-3: more than %d dimensions",
				CKPTFMT_RANK_MAX);
		CF_TRY(decode_dim(&f.content, &dims[out->rank], err));
		out->rank++;
	}
	return CKPTFMT_OK;
}

/* SHP-2 and SHP-4: no negative size, and a product that, taken from the left, never leaves int64. */
static ckptfmt_status check_shape(cf_entry *entry, const int64_t *dims, ckptfmt_error *err)
{
	entry->element_count = 1;
	for (int32_t d = 0; d < entry->rank; d++) {
		if (dims[d] < 0)
			return cf_fail(err, CKPTFMT_FAIL_BAD_SHAPE, entry->origin, "SHP-2: dimension %d has size %lld",
				(int)d, (long long)dims[d]);
		if (!cf_mul_i64(entry->element_count, dims[d], &entry->element_count))
			return cf_fail(err, CKPTFMT_FAIL_BAD_SHAPE, entry->origin,
				"SHP-4: the number of elements does not fit 63 bits");
	}
	return CKPTFMT_OK;
}

/* ---- entry ----------------------------------------------------------------------------------------------- */

static ckptfmt_status decode_extension(cf_cursor *message, cf_entry *out, ckptfmt_error *err)
{
	cf_field f;
	out->has_extension = true;
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
	}
	return CKPTFMT_OK;
}

#define FIELD(number, wire) ((number) << 3 | (wire))

/* The number at `at`. NULL, and an unspecified value, if it does not end before `end` or has nine bytes or more. */
static inline const uint8_t *take_short_number(const uint8_t *at, const uint8_t *end, uint64_t *value)
{
	unsigned shift = 0;
	if (CF_UNLIKELY(at == end))
		return NULL;
	*value = *at & 0x7f;
	while (*at++ >= 0x80) {
		shift += 7;
		if (at == end || shift == 56)
			return NULL;
		*value |= (uint64_t)(*at & 0x7f) << shift;
	}
	return at;
}

/* False, and a rank of 0, unless the shape has only dimensions with a size or nothing. */
static inline bool take_short_shape(const uint8_t *at, const uint8_t *end, int64_t *dims, cf_entry *out)
{
	int32_t rank = 0;
	while (at < end) {
		uint64_t size = 0;
		const uint8_t *dim_end;
		if (end - at < 2 || at[0] != FIELD(SHAPE_DIM, CF_WIRE_BYTES) || at[1] > end - at - 2)
			return false;
		dim_end = at + 2 + at[1];
		at += 2;
		if (at < dim_end && *at == FIELD(DIM_SIZE, CF_WIRE_VARINT))
			at = take_short_number(at + 1, dim_end, &size);
		if (at != dim_end)
			return false;
		dims[rank++] = (int64_t)size;
	}
	out->rank = rank;
	out->has_shape = true;
	return true;
}

/* Fast path: decodes leading fields that have tags and sizes of one byte, as all writers write them. Returns where it
 * stops: at the end, or at a field for the general path. Without it, listing takes a third more instructions. */
static const uint8_t *decode_short_fields(const uint8_t *at, const uint8_t *end, int64_t *dims, cf_entry *out)
{
	while (end - at >= 2) {
		const uint8_t *next;
		uint64_t value = 0;
		if (*at == FIELD(ENTRY_SHAPE, CF_WIRE_BYTES)) {
			next = at + 2 + at[1];
			if (at[1] >= 0x80 || at[1] > end - at - 2 || out->has_shape || !take_short_shape(at + 2, next, dims, out))
				return at;
		} else if (*at == FIELD(ENTRY_CRC, CF_WIRE_FIXED32)) {
			if (end - at < 5)
				return at;
			out->masked_crc = cf_load_u32(at + 1);
			next = at + 5;
		} else {
			next = take_short_number(at + 1, end, &value);
			if (next == NULL)
				return at;
			switch (*at) {
			case FIELD(ENTRY_OFFSET, CF_WIRE_VARINT): out->offset = (int64_t)value; break;
			case FIELD(ENTRY_SIZE, CF_WIRE_VARINT): out->size = (int64_t)value; break;
			case FIELD(ENTRY_DTYPE, CF_WIRE_VARINT):
				if (value > INT32_MAX)
					return at;
				out->dtype = (int32_t)value;
				break;
			case FIELD(ENTRY_SHARD, CF_WIRE_VARINT):
				if (value > INT32_MAX)
					return at;
				out->shard = (int32_t)value;
				break;
			default: return at;
			}
		}
		at = next;
	}
	return at;
}

ckptfmt_status cf_entry_decode(cf_bytes_view bytes, uint64_t origin, uint64_t slices_max, int64_t *dims, cf_entry *out,
	ckptfmt_error *err)
{
	cf_cursor message = cf_cursor_over(bytes.data, (size_t)bytes.size, origin);
	cf_field f;
	/* Two calls, each small enough for plain stores: one `rep stos` takes longer than decoding most entries. */
	memset(out, 0, offsetof(cf_entry, chunk_crcs));
	memset(&out->chunk_crcs, 0, sizeof *out - offsetof(cf_entry, chunk_crcs));
	out->bytes = bytes;
	out->origin = origin;
	if (bytes.size != 0)
		message.position = (size_t)(decode_short_fields(bytes.data, bytes.data + bytes.size, dims, out) - bytes.data);
	while (cf_cursor_left(&message) > 0) {
		CF_TRY(cf_take_field(&message, &f, err));
		switch (FIELD(f.number, f.wire)) {
		case FIELD(ENTRY_DTYPE, CF_WIRE_VARINT):
			CF_TRY(cf_field_int32(&message, f.value, &out->dtype, err));
			break;
		case FIELD(ENTRY_SHARD, CF_WIRE_VARINT):
			CF_TRY(cf_field_int32(&message, f.value, &out->shard, err));
			break;
		case FIELD(ENTRY_OFFSET, CF_WIRE_VARINT): out->offset = (int64_t)f.value; break;
		case FIELD(ENTRY_SIZE, CF_WIRE_VARINT): out->size = (int64_t)f.value; break;
		case FIELD(ENTRY_CRC, CF_WIRE_FIXED32): out->masked_crc = (uint32_t)f.value; break;
		case FIELD(ENTRY_SHAPE, CF_WIRE_BYTES): CF_TRY(decode_shape(&f.content, dims, out, err)); break;
		case FIELD(ENTRY_EXTENSION, CF_WIRE_BYTES): CF_TRY(decode_extension(&f.content, out, err)); break;
		case FIELD(ENTRY_SLICES, CF_WIRE_BYTES):
			if (++out->slice_count > slices_max)
				return cf_fail(err, CKPTFMT_FAIL_LIMIT, origin,
					"TAB-13: more slices of a tensor than limit slices_max (%llu)",
					(unsigned long long)slices_max);
			break;
		default: break;         /* MSG-8: unknown fields are ignored */
		}
	}
	return check_shape(out, dims, err);
}

/* ---- how a value is stored ------------------------------------------------------------------------------- */

ckptfmt_status cf_check_place(int32_t shard, int64_t offset, int64_t size, int32_t num_shards, uint64_t origin,
	ckptfmt_error *err)
{
	if (shard < 0 || shard >= num_shards)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, origin, "ENT-3: shard number %d of %d", (int)shard,
			(int)num_shards);
	if (offset < 0 || size < 0 || size > INT64_MAX - offset)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, origin, "ENT-4: offset %lld, size %lld", (long long)offset,
			(long long)size);
	return CKPTFMT_OK;
}

ckptfmt_status cf_form_fail(cf_stored_form rule, uint64_t size, uint64_t origin, ckptfmt_error *err)
{
	static const char *const texts[] = {
		[CF_STORED_EXT_2] = "EXT-2: the chunk checksums are not of 4 bytes each",
		[CF_STORED_EXT_3] = "EXT-3: the value is stored in a way that a newer version knows",
		[CF_STORED_EXT_4] = "EXT-4: the chunk checksums do not fit the value",
		[CF_STORED_EXT_5] = "EXT-5: checksums of chunks, but a chunk would hold all of the value",
		[CF_STORED_CMP_1] = "CMP-1: the sizes of the stored chunks do not add up to that of the value",
		[CF_STORED_CMP_2] = "CMP-2: the chunk size is not a multiple of 16 from 4096 to 2^24",
		[CF_STORED_CMP_3] = "CMP-3: the raw size is not from 1 to 2^63 - 1",
		[CF_STORED_CMP_4] = "CMP-4: the numbers of chunk checksums and sizes are not that of the chunks",
		[CF_STORED_CMP_5] = "CMP-5: a stored chunk is empty, or more than one byte larger than its raw bytes",
	};
	if (rule == CF_STORED_EXT_4 || rule == CF_STORED_EXT_5)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, origin, "%s, which has %lld bytes", texts[rule], (long long)size);
	return cf_fail(err, rule == CF_STORED_EXT_3 ? CKPTFMT_FAIL_UNSUPPORTED : CKPTFMT_FAIL_BAD_ENTRY, origin, "%s",
		texts[rule]);
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
static cf_stored_form sum_sizes(const cf_entry *entry, cf_buffer *ends)
{
	cf_cursor sizes = cf_cursor_over(entry->chunk_sizes.data, (size_t)entry->chunk_sizes.size, CF_NO_OFFSET);
	uint64_t left = entry->raw_size, end = 0, size;
	for (; left > 0; left -= cf_min_u64(entry->chunk_size, left)) {
		if (!cf_take_varint64(&sizes, &size) || size == 0 || size > 1 + cf_min_u64(entry->chunk_size, left))
			return CF_STORED_CMP_5;
		/* No overflow: no chunk is above 2^24, and there are no more of them than bytes in an index. */
		end += size;
		cf_put_bytes(ends, &end, sizeof end);
	}
	return entry->size < 0 || end != (uint64_t)entry->size ? CF_STORED_CMP_1 : CF_STORED_SOUND;
}

static cf_stored_form compressed_form(const cf_entry *entry, cf_buffer *ends)
{
	uint64_t chunk = entry->chunk_size, raw = entry->raw_size, before = ends->size;
	cf_stored_form form;
	if (chunk < CF_CHUNK_SIZE_MIN || chunk > CF_CHUNK_SIZE_MAX || chunk % CF_CHUNK_SIZE_UNIT != 0)
		return CF_STORED_CMP_2;
	if (raw == 0 || raw > INT64_MAX)
		return CF_STORED_CMP_3;
	if (entry->chunk_crcs.size % 4 != 0)
		return CF_STORED_EXT_2;
	if (!count_sizes(entry, raw / chunk + (raw % chunk != 0)))
		return CF_STORED_CMP_4;
	form = sum_sizes(entry, ends);
	if (form != CF_STORED_SOUND)
		ends->size = before;
	return form;
}

cf_stored_form cf_entry_form(const cf_entry *entry, cf_buffer *ends)
{
	uint64_t size = (uint64_t)entry->size, chunk = entry->chunk_size;
	if (entry->feature_flags & ~CF_FEATURE_COMPRESSED)
		return CF_STORED_EXT_3;
	if (entry->feature_flags & CF_FEATURE_COMPRESSED)
		return compressed_form(entry, ends);
	if (chunk == 0 && entry->chunk_crcs.size == 0)
		return CF_STORED_SOUND;
	if (entry->chunk_crcs.size % 4 != 0)
		return CF_STORED_EXT_2;
	if (entry->size < 0 || size <= chunk)
		return CF_STORED_EXT_5;
	if (chunk == 0 || chunk > UINT32_MAX ||
		entry->chunk_crcs.size / 4 != size / chunk + (size % chunk != 0))
		return CF_STORED_EXT_4;
	return CF_STORED_SOUND;
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

ckptfmt_status cf_entry_next_slice(const cf_entry *entry, uint64_t *position, int64_t *starts, int64_t *lengths,
	bool *found, ckptfmt_error *err)
{
	cf_cursor message = cf_cursor_over(entry->bytes.data, (size_t)entry->bytes.size, entry->origin);
	cf_field f;
	*found = false;
	message.position = (size_t)*position;
	while (!*found && cf_cursor_left(&message) > 0) {
		CF_TRY(cf_take_field(&message, &f, err));
		*found = f.number == ENTRY_SLICES && f.wire == CF_WIRE_BYTES;
	}
	*position = message.position;
	return *found ? decode_slice(entry, &f.content, starts, lengths, err) : CKPTFMT_OK;
}

/* ---- encoding -------------------------------------------------------------------------------------------- */

/* A number as a field, at an address with enough space. */
static inline uint8_t *store_number(uint8_t *to, uint32_t number, int64_t value)
{
	if (value == 0)
		return to;
	*to++ = (uint8_t)(number << 3 | CF_WIRE_VARINT);
	return to + cf_store_varint(to, (uint64_t)value);
}

static inline uint8_t *store_shape(uint8_t *to, int32_t rank, const int64_t *dims)
{
	uint8_t *shape = to + 1, *content = to + 2;
	uint64_t size;
	*to = ENTRY_SHAPE << 3 | CF_WIRE_BYTES;
	to = content;
	for (int32_t d = 0; d < rank; d++) {
		uint8_t *dim_size = to + 1;
		*to = SHAPE_DIM << 3 | CF_WIRE_BYTES;
		to = store_number(to + 2, DIM_SIZE, dims[d]);
		*dim_size = (uint8_t)(to - dim_size - 1);
	}
	size = (uint64_t)(to - content);
	if (CF_UNLIKELY(size >= 0x80)) {
		size_t more = cf_varint_size(size) - 1;
		memmove(content + more, content, (size_t)size);
		to += more;
	}
	(void)cf_store_varint(shape, size);
	return to;
}

enum {
	NUMBER_SIZE_MAX = 1 + CF_VARINT64_SIZE_MAX,
	DIM_SIZE_MAX = 2 + NUMBER_SIZE_MAX,
	CRC_SIZE = 1 + 4,
	/* Of all fields before the slices, except the dimensions. */
	FIXED_SIZE_MAX = 4 * NUMBER_SIZE_MAX + 1 + CF_VARINT32_SIZE_MAX + CRC_SIZE
};

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
		/* The length has presence (it is in a oneof), so it is written even if it is 0. */
		cf_put_tag(out, EXTENT_LENGTH, CF_WIRE_VARINT);
		cf_put_varint(out, (uint64_t)lengths[d]);
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

/* All fields before the slices; returns where the shard is, or would be. */
static uint64_t put_base(cf_buffer *out, const cf_entry_fields *fields)
{
	const uint64_t most = FIXED_SIZE_MAX + (uint64_t)fields->rank * DIM_SIZE_MAX;
	uint64_t shard_at;
	uint8_t *to;
	if (CF_UNLIKELY(out->failed || most > out->capacity - out->size) && !cf_buffer_reserve(out, most))
		return 0;
	to = store_number(out->data + out->size, ENTRY_DTYPE, fields->dtype);
	to = store_shape(to, fields->rank, fields->dims);
	shard_at = (uint64_t)(to - out->data);
	to = store_number(to, ENTRY_SHARD, fields->shard);
	to = store_number(to, ENTRY_OFFSET, (int64_t)fields->offset);
	to = store_number(to, ENTRY_SIZE, (int64_t)fields->size);
	if (fields->masked_crc != 0) {
		*to = ENTRY_CRC << 3 | CF_WIRE_FIXED32;
		cf_store_u32(to + 1, fields->masked_crc);
		to += CRC_SIZE;
	}
	out->size = (uint64_t)(to - out->data);
	return shard_at;
}

void cf_entry_encode(cf_buffer *out, const cf_entry_fields *fields)
{
	(void)put_base(out, fields);
	if (fields->slices.size != 0)
		cf_put_bytes(out, fields->slices.data, fields->slices.size);
	if (fields->chunk_size != 0)
		put_extension(out, fields);
}

/* ---- re-encoding ------------------------------------------------------------------------------------------ */

ckptfmt_status cf_entry_copy_slices(cf_buffer *out, const cf_entry *entry, ckptfmt_error *err)
{
	return cf_canonical_put_field(out, &cf_entry_schema, ENTRY_SLICES, entry->bytes, entry->origin, err);
}

static uint64_t shard_field_size(int32_t shard)
{
	return shard == 0 ? 0 : 1 + cf_varint_size((uint64_t)(int64_t)shard);
}

/* Fast path of re-encoding: encodes the decoded fields. The message was canonical and has no other fields if the bytes
 * before and after the shard id are unchanged; otherwise false, and nothing was put. */
static bool put_same(cf_buffer *out, const cf_entry *entry, const int64_t *dims, int32_t shard, uint64_t *shard_at)
{
	const cf_entry_fields fields = {.dtype = entry->dtype, .shard = shard, .offset = (uint64_t)entry->offset,
		.size = (uint64_t)entry->size, .masked_crc = entry->masked_crc, .rank = entry->rank, .dims = dims};
	uint64_t start = out->size, before, after;
	if (entry->slice_count != 0 || entry->has_extension)
		return false;
	before = put_base(out, &fields) - start;
	if (out->failed)
		return true;
	*shard_at = before;
	after = out->size - start - before - shard_field_size(shard);
	if (CF_LIKELY(before + shard_field_size(entry->shard) + after == entry->bytes.size &&
		memcmp(out->data + start, entry->bytes.data, (size_t)before) == 0 &&
		(after == 0 || memcmp(out->data + out->size - after, entry->bytes.data + entry->bytes.size - after,
			(size_t)after) == 0)))
		return true;
	out->size = start;
	return false;
}

ckptfmt_status cf_entry_reencode(cf_buffer *out, const cf_entry *entry, const int64_t *dims, int32_t shard,
	cf_bytes_view more_slices, uint64_t *shard_at, ckptfmt_error *err)
{
	uint64_t start = out->size, ignored;
	shard_at = shard_at == NULL ? &ignored : shard_at;
	*shard_at = 0;
	if (CF_LIKELY(more_slices.size == 0 && put_same(out, entry, dims, shard, shard_at)))
		return CKPTFMT_OK;
	cf_put_number(out, ENTRY_DTYPE, entry->dtype);
	CF_TRY(cf_canonical_put_field(out, &cf_entry_schema, ENTRY_SHAPE, entry->bytes, entry->origin, err));
	*shard_at = out->size - start;
	cf_put_number(out, ENTRY_SHARD, shard);
	cf_put_number(out, ENTRY_OFFSET, entry->offset);
	cf_put_number(out, ENTRY_SIZE, entry->size);
	if (entry->masked_crc != 0) {
		cf_put_tag(out, ENTRY_CRC, CF_WIRE_FIXED32);
		cf_put_u32(out, entry->masked_crc);
	}
	CF_TRY(cf_entry_copy_slices(out, entry, err));
	cf_put_bytes(out, more_slices.data, more_slices.size);
	return cf_canonical_put_unknown(out, &cf_entry_schema, entry->bytes, entry->origin, err);
}
