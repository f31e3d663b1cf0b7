/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stream   varint32 decoded size, then elements to the end
 * element  u8 tag; the two low bits say what follows
 *   0  literal   upper six bits: size - 1; 60 to 63: size - 1 is in the next 1 to 4 bytes. Then the bytes
 *   1  copy      bits 2-4: size - 4; bits 5-7: bits 8-10 of the distance; the next byte: bits 0-7 of it
 *   2  copy      upper six bits: size - 1; u16 distance
 *   3  copy      upper six bits: size - 1; u32 distance
 * A copy repeats output from `distance` bytes back and may overlap what it writes.
 */
#include "table/snappy.h"

#include "base/cursor.h"

#include <inttypes.h>

enum {
	LITERAL = 0,
	COPY_SHORT = 1,
	COPY_MEDIUM = 2,
	COPY_LONG = 3,
	LITERAL_SIZED = 60,        /* upper bits from here on say how many bytes hold the size */
	COPY_SIZE_MAX = 64,
	COPY_MEDIUM_BYTES = 3,     /* 64 bytes from 3: nothing yields more a byte */
	COPY_SHORT_SIZE_MAX = 11
};

typedef struct element {
	uint64_t size;
	uint64_t distance;         /* of a copy */
	bool copy;                 /* or a literal */
} element;

/* The most that `size` bytes of elements can decode to. The first element has nothing to copy from, so it is a literal,
 * at best of one byte (two bytes stored); the rest are copies of 64 from 3 bytes each. What is left over is one byte
 * (a longer literal) or two (a short copy). No file is so large that this overflows. */
static uint64_t decoded_size_max(uint64_t size)
{
	static const uint64_t from_rest[COPY_MEDIUM_BYTES] = {0, 1, COPY_SHORT_SIZE_MAX};
	uint64_t rest;
	if (size < 2)
		return 0;
	rest = size - 2;
	return 1 + rest / COPY_MEDIUM_BYTES * COPY_SIZE_MAX + from_rest[rest % COPY_MEDIUM_BYTES];
}

static ckptfmt_status take_size(cf_cursor *cursor, uint64_t *out, ckptfmt_error *err)
{
	uint32_t declared;
	/* SNP-2 */
	if (!cf_take_varint32(cursor, &declared))
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, cursor->origin,
			"SNP-2: the decoded size of a Snappy block cannot be read");
	/* SNP-3 */
	if (declared > decoded_size_max(cf_cursor_left(cursor)))
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, cursor->origin,
			"SNP-3: a Snappy block of %zu bytes cannot decode to %" PRIu32, cursor->size, declared);
	*out = declared;
	return CKPTFMT_OK;
}

ckptfmt_status cf_snappy_size(const uint8_t *bytes, uint64_t size, uint64_t offset, uint64_t *out, ckptfmt_error *err)
{
	cf_cursor cursor = cf_cursor_over(bytes, (size_t)size, offset);
	*out = 0;
	return take_size(&cursor, out, err);
}

/* Little-endian number of `count` bytes, 1 to 4. */
static bool take_number(cf_cursor *cursor, uint32_t count, uint64_t *out)
{
	const uint8_t *bytes;
	*out = 0;
	if (!cf_take_bytes(cursor, count, &bytes))
		return false;
	for (uint32_t i = 0; i < count; i++)
		*out |= (uint64_t)bytes[i] << (8 * i);
	return true;
}

/* False if the element's head is cut off. */
static bool take_head(cf_cursor *cursor, element *out)
{
	uint8_t tag;
	uint32_t upper;
	if (!cf_take_u8(cursor, &tag))
		return false;
	upper = tag >> 2;
	out->size = (uint64_t)upper + 1;
	out->distance = 0;
	out->copy = (tag & 3) != LITERAL;
	switch (tag & 3) {
	case LITERAL:
		if (upper < LITERAL_SIZED)
			return true;
		if (!take_number(cursor, upper - LITERAL_SIZED + 1, &out->size))
			return false;
		out->size++;
		return true;
	case COPY_SHORT:
		if (!take_number(cursor, 1, &out->distance))
			return false;
		out->size = (upper & 7) + 4;
		out->distance |= (uint64_t)(upper >> 3) << 8;
		return true;
	case COPY_MEDIUM:
		return take_number(cursor, 2, &out->distance);
	default:
		return take_number(cursor, 4, &out->distance);
	}
}

/* Byte by byte where the copy overlaps itself: that is what repeats a pattern (SNP-7). */
static void copy_back(uint8_t *to, const element *copy)
{
	const uint8_t *from = to - copy->distance;
	if (copy->distance >= copy->size) {
		memcpy(to, from, (size_t)copy->size);
		return;
	}
	for (uint64_t i = 0; i < copy->size; i++)
		to[i] = from[i];
}

ckptfmt_status cf_snappy_decode(const uint8_t *bytes, uint64_t size, uint64_t offset, uint8_t *to, uint64_t to_size,
	ckptfmt_error *err)
{
	cf_cursor cursor = cf_cursor_over(bytes, (size_t)size, offset);
	uint64_t declared, done = 0;
	CF_TRY(take_size(&cursor, &declared, err));
	/* SNP-9 */
	if (declared != to_size)
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, offset, "SNP-9: the decoded size is %" PRIu64 ", not %" PRIu64,
			declared, to_size);
	while (cf_cursor_left(&cursor) != 0) {
		element next;
		size_t at = cursor.position;
		const uint8_t *literal;
		/* SNP-8 */
		if (!take_head(&cursor, &next))
			return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, offset + at, "SNP-8: a Snappy element is cut off");
		if (next.size > to_size - done)
			return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, offset + at,
				"SNP-9: a Snappy block decodes to more than the %" PRIu64 " bytes it declares", to_size);
		/* SNP-6 */
		if (next.copy && (next.distance == 0 || next.distance > done))
			return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, offset + at,
				"SNP-6: a copy from %" PRIu64 " bytes back where %" PRIu64 " are decoded", next.distance,
				done);
		if (next.copy) {
			copy_back(to + done, &next);
		} else {
			if (!cf_take_bytes(&cursor, next.size, &literal))
				return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, offset + at,
					"SNP-8: a literal of %" PRIu64 " bytes is cut off", next.size);
			memcpy(to + done, literal, (size_t)next.size);
		}
		done += next.size;
	}
	if (done != to_size)
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, offset + size,
			"SNP-9: a Snappy block decodes to %" PRIu64 " bytes and declares %" PRIu64, done, to_size);
	return CKPTFMT_OK;
}
