/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chunk  := method u8, then
 *   0 RAW             the raw bytes
 *   1 ZSTD            frame
 *   2 PLANES          a varint64 for each plane, size * 2 + is_zstd; the planes in that order, frames or raw
 *   3 ROTATED_PLANES  the same, each unit rotated left by one bit before
 * frame  := u32 0xfd2fb528 | descriptor u8 | window u8 unless single segment | dictionary | content size | block ... |
 *           u32 checksum
 * block  := u24 last 1 bit, type 2 bits, size 21 bits | bytes: `size` of them, or one of a run (type 1)
 */
#include "compress/chunk.h"

#include "base/cursor.h"
#include "ckptfmt_unstable.h"

enum {
	FRAME_BLOCK_MAX = 128 << 10,
	BLOCK_RAW = 0,
	BLOCK_RUN = 1,
	BLOCK_CODED = 2,
	WINDOW_LOG_MIN = 10
};
static const uint32_t frame_magic = UINT32_C(0xfd2fb528);

/* ---- frames ---------------------------------------------------------------------------------------------- */

static ckptfmt_status bad(const cf_cursor *at, const char *what, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, cf_cursor_offset(at), "CMP-18: %s", what);
}

/* `size` bytes, little-endian. */
static bool take_number(cf_cursor *cursor, uint32_t size, uint64_t *out)
{
	const uint8_t *bytes;
	if (!cf_take_bytes(cursor, size, &bytes))
		return false;
	*out = 0;
	for (uint32_t i = 0; i < size; i++)
		*out |= (uint64_t)bytes[i] << 8 * i;
	return true;
}

static ckptfmt_status check_frame_head(cf_cursor *frame, uint64_t content_size, uint64_t *window, bool *checksum,
	ckptfmt_error *err)
{
	uint64_t size = 0, dictionary = 0;
	uint32_t magic;
	uint8_t descriptor, log = 0;
	bool single;
	if (!cf_take_u32(frame, &magic) || magic != frame_magic || !cf_take_u8(frame, &descriptor))
		return bad(frame, "must start with a zstd frame", err);
	if (descriptor & 0x08)
		return bad(frame, "a reserved bit of a zstd frame is set", err);
	single = (descriptor & 0x20) != 0;
	*checksum = (descriptor & 0x04) != 0;
	if (!single && !cf_take_u8(frame, &log))
		return bad(frame, "a zstd frame ends in its header", err);
	if ((descriptor & 0x03) != 0 && !take_number(frame, UINT32_C(1) << ((descriptor & 0x03) - 1), &dictionary))
		return bad(frame, "a zstd frame ends in its header", err);
	if (dictionary != 0)
		return bad(frame, "a zstd frame must not use a dictionary", err);
	if (!single && descriptor >> 6 == 0)
		return bad(frame, "a zstd frame does not declare its content size", err);
	if (!take_number(frame, UINT32_C(1) << (descriptor >> 6), &size))
		return bad(frame, "a zstd frame ends in its header", err);
	if (descriptor >> 6 == 1)
		size += 256;
	if (size != content_size)
		return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, cf_cursor_offset(frame),
			"CMP-18: a zstd frame declares %llu bytes, expected %llu", (unsigned long long)size,
			(unsigned long long)content_size);
	*window = size;
	if (!single) {
		/* At most 2^41 * 15 / 8. */
		*window = UINT64_C(1) << (WINDOW_LOG_MIN + (log >> 3));
		*window += *window / 8 * (log & 7);
	}
	if (*window > CF_ZSTD_WINDOW_MAX)
		return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, cf_cursor_offset(frame),
			"CMP-18: a zstd frame has a window of %llu bytes, over the limit", (unsigned long long)*window);
	return CKPTFMT_OK;
}

ckptfmt_status cf_zstd_frame_check(const uint8_t *bytes, uint64_t size, uint64_t content_size, uint64_t origin,
	ckptfmt_error *err)
{
	cf_cursor frame = cf_cursor_over(bytes, (size_t)size, origin);
	uint64_t window = 0, head, block_max, plain = 0;
	const uint8_t *ignored;
	bool checksum = false, coded = false, last = false;
	CF_TRY(check_frame_head(&frame, content_size, &window, &checksum, err));
	block_max = cf_min_u64(window, FRAME_BLOCK_MAX);
	while (!last) {
		uint64_t block_size;
		uint32_t type;
		if (!take_number(&frame, 3, &head))
			return bad(&frame, "a zstd frame is cut short", err);
		last = (head & 1) != 0;
		type = (uint32_t)(head >> 1 & 3);
		block_size = head >> 3;
		if (type > BLOCK_CODED || block_size > block_max)
			return bad(&frame, "a malformed block of a zstd frame", err);
		if (!cf_take_bytes(&frame, type == BLOCK_RUN ? 1 : block_size, &ignored))
			return bad(&frame, "a zstd frame is cut short", err);
		coded = coded || type == BLOCK_CODED;
		plain += type == BLOCK_CODED ? 0 : block_size;
		if (plain > content_size)
			return bad(&frame, "a zstd frame contains more than it declares", err);
	}
	if (!coded && plain != content_size)
		return bad(&frame, "a zstd frame contains less than it declares", err);
	if (checksum && !cf_take_bytes(&frame, 4, &ignored))
		return bad(&frame, "a zstd frame is cut short", err);
	if (cf_cursor_left(&frame) != 0)
		return bad(&frame, "bytes after a zstd frame", err);
	return CKPTFMT_OK;
}

/* ---- parsing --------------------------------------------------------------------------------------------- */

static ckptfmt_status parse_whole(cf_cursor *bytes, uint64_t raw_size, cf_chunk *out, ckptfmt_error *err)
{
	cf_chunk_part part = {bytes->position, cf_cursor_left(bytes), raw_size, out->method == CF_CHUNK_ZSTD};
	out->part_count = 1;
	out->parts[0] = part;
	if (part.zstd)
		return cf_zstd_frame_check(bytes->base + part.offset, part.size, raw_size, cf_cursor_offset(bytes), err);
	if (part.size != raw_size)
		return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, cf_cursor_offset(bytes),
			"CMP-13: a chunk stores %llu raw bytes, expected %llu", (unsigned long long)part.size,
			(unsigned long long)raw_size);
	return CKPTFMT_OK;
}

static ckptfmt_status parse_planes(cf_cursor *bytes, uint64_t raw_size, uint32_t unit, cf_chunk *out,
	ckptfmt_error *err)
{
	uint64_t origin = bytes->origin;
	if (raw_size % unit != 0)
		return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, cf_cursor_offset(bytes),
			"CMP-15: %llu bytes are not a multiple of the unit of %lu", (unsigned long long)raw_size,
			(unsigned long)unit);
	out->part_count = unit;
	for (uint32_t p = 0; p < unit; p++) {
		uint64_t head;
		if (!cf_take_varint64(bytes, &head))
			return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, cf_cursor_offset(bytes),
				"CMP-15: the sizes of the planes are malformed");
		out->parts[p] = (cf_chunk_part){0, head >> 1, raw_size / unit, (head & 1) != 0};
	}
	for (uint32_t p = 0; p < unit; p++) {
		cf_chunk_part *part = &out->parts[p];
		const uint8_t *plane;
		part->offset = bytes->position;
		if (!cf_take_bytes(bytes, part->size, &plane))
			return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, cf_cursor_offset(bytes),
				"CMP-16: plane %lu of %llu bytes extends past its chunk", (unsigned long)p,
				(unsigned long long)part->size);
		if (part->zstd)
			CF_TRY(cf_zstd_frame_check(plane, part->size, part->raw_size,
				origin == CF_NO_OFFSET ? origin : origin + part->offset, err));
		else if (part->size != part->raw_size)
			return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, cf_cursor_offset(bytes),
				"CMP-16: plane %lu stores %llu raw bytes, expected %llu", (unsigned long)p,
				(unsigned long long)part->size, (unsigned long long)part->raw_size);
	}
	if (cf_cursor_left(bytes) != 0)
		return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, cf_cursor_offset(bytes),
			"CMP-16: bytes after the planes of a chunk");
	return CKPTFMT_OK;
}

ckptfmt_status cf_chunk_parse(const uint8_t *bytes, uint64_t size, uint64_t raw_size, uint32_t unit, uint64_t origin,
	cf_chunk *out, ckptfmt_error *err)
{
	cf_cursor cursor = cf_cursor_over(bytes, (size_t)size, origin);
	uint8_t method;
	out->part_count = 0;
	if (!cf_take_u8(&cursor, &method))
		return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, origin, "CMP-12: an empty chunk");
	out->method = method;
	switch (method) {
	case CF_CHUNK_RAW:
	case CF_CHUNK_ZSTD: return parse_whole(&cursor, raw_size, out, err);
	case CF_CHUNK_PLANES:
	case CF_CHUNK_ROTATED_PLANES: return parse_planes(&cursor, raw_size, unit, out, err);
	default: break;
	}
	return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, origin, "CMP-12: unknown chunk method %u", (unsigned)method);
}

void cf_chunk_join(const cf_chunk *chunk, const uint8_t *bytes, const uint8_t *const *decoded, uint32_t unit,
	uint8_t *to, uint64_t raw_size)
{
	const uint8_t *planes[CF_PLANES_MAX];
	for (uint32_t i = 0; i < chunk->part_count; i++)
		planes[i] = chunk->parts[i].zstd ? *decoded++ : bytes + chunk->parts[i].offset;
	if (chunk->method == CF_CHUNK_RAW || chunk->method == CF_CHUNK_ZSTD)
		memcpy(to, planes[0], (size_t)raw_size);
	else
		cf_planes_join(to, raw_size / unit, unit, chunk->method == CF_CHUNK_ROTATED_PLANES, planes);
}

/* ---- writing --------------------------------------------------------------------------------------------- */

/* A saving of less than 5 % is not worth decoding. */
static bool gains(const ckptfmt_bytes *frame, uint64_t raw_size)
{
	return frame->data != NULL && frame->size <= raw_size - raw_size / 20;
}

static uint64_t build_raw(const uint8_t *raw, uint64_t raw_size, uint8_t *to)
{
	to[0] = CF_CHUNK_RAW;
	memcpy(to + 1, raw, (size_t)raw_size);
	return 1 + raw_size;
}

uint64_t cf_chunk_build(int32_t method, const uint8_t *raw, const uint8_t *planes, uint64_t raw_size, uint32_t unit,
	const ckptfmt_bytes *frames, uint8_t *to)
{
	bool whole = method == CF_CHUNK_RAW || method == CF_CHUNK_ZSTD, any = false;
	uint32_t count = whole ? 1 : unit;
	uint64_t plane_size = raw_size / count;
	uint8_t *at = to;
	for (uint32_t p = 0; p < count; p++)
		any = any || gains(&frames[p], plane_size);
	if (method == CF_CHUNK_RAW || !any || raw_size % count != 0)
		return build_raw(raw, raw_size, to);
	*at++ = (uint8_t)method;
	for (uint32_t p = 0; !whole && p < count; p++) {
		bool zstd = gains(&frames[p], plane_size);
		at += cf_store_varint(at, (zstd ? frames[p].size : plane_size) << 1 | zstd);
	}
	for (uint32_t p = 0; p < count; p++) {
		bool zstd = gains(&frames[p], plane_size);
		uint64_t size = zstd ? frames[p].size : plane_size;
		memcpy(at, zstd ? frames[p].data : planes + p * plane_size, (size_t)size);
		at += size;
	}
	/* The headers may outweigh a small gain. */
	return (uint64_t)(at - to) > raw_size ? build_raw(raw, raw_size, to) : (uint64_t)(at - to);
}
