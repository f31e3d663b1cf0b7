/* SPDX-License-Identifier: Apache-2.0 */
/*
 * key     = number(0) text(name) number(rank) (signed(start) signed(length)){rank}          spec/format.md, KEY
 * number  = a count L of bytes, 0 to 8, then L bytes, most significant first, none of them a leading zero
 * text    = the bytes, 00 written as 00 ff and ff as ff 00, then 00 01
 * signed  = n bytes, 1 to 10: the value in two's complement of 8n bits, most significant byte first, with the first n
 *           of its bits inverted: ones then a zero for a value >= 0, zeros then a one for a negative one. So the size
 *           can be read off the leading bits, and bytewise order is numeric order. n = 1 + bits / 7, bits being those
 *           of the value or, where it is negative, of its complement.
 *
 * Each value has exactly one encoding; the decoder refuses others (KEY-8). A reader looks a slice up by the key that it
 * encodes, so it would never find a key in another encoding.
 */
#include "slices/key.h"

#include "base/cursor.h"

#include <assert.h>

enum {
	SIGNED_SIZE_MAX = 10,
	ESCAPE_LOW = 0x00,
	ESCAPE_HIGH = 0xff,
	AFTER_LOW = 0xff,       /* 00 ff: the byte 00 */
	AFTER_HIGH = 0x00,      /* ff 00: the byte ff */
	AFTER_LOW_END = 0x01    /* 00 01: the end */
};

static void put_number(cf_buffer *out, uint64_t value)
{
	uint8_t bytes[9];
	unsigned count = 0;
	for (uint64_t rest = value; rest != 0; rest >>= 8)
		count++;
	bytes[0] = (uint8_t)count;
	for (unsigned i = 0; i < count; i++)
		bytes[1 + i] = (uint8_t)(value >> (8 * (count - 1 - i)));
	cf_put_bytes(out, bytes, 1 + count);
}

static void put_text(cf_buffer *out, const uint8_t *bytes, uint64_t size)
{
	uint64_t plain = 0;
	for (uint64_t i = 0; i < size; i++) {
		if (bytes[i] != ESCAPE_LOW && bytes[i] != ESCAPE_HIGH)
			continue;
		cf_put_bytes(out, bytes + plain, i + 1 - plain);
		cf_put_u8(out, bytes[i] == ESCAPE_LOW ? AFTER_LOW : AFTER_HIGH);
		plain = i + 1;
	}
	if (plain < size)
		cf_put_bytes(out, bytes + plain, size - plain);
	cf_put_u8(out, ESCAPE_LOW);
	cf_put_u8(out, AFTER_LOW_END);
}

/* Writes the code of a signed number and returns its size. */
static unsigned store_signed(uint8_t bytes[SIGNED_SIZE_MAX], int64_t value)
{
	uint64_t pattern = (uint64_t)value;
	uint64_t measured = value < 0 ? ~pattern : pattern;
	unsigned bits = measured == 0 ? 0 : 64 - (unsigned)__builtin_clzll(measured);
	unsigned size = 1 + bits / 7;
	for (unsigned i = 0; i < size; i++) {
		unsigned shift = 8 * (size - 1 - i);
		uint64_t sign = value < 0 ? UINT64_MAX : 0;
		bytes[i] = (uint8_t)(shift >= 64 ? sign : pattern >> shift);
	}
	/* The first `size` bits are all sign; inverting them makes the prefix code. */
	if (size <= 8) {
		bytes[0] ^= (uint8_t)(0xff00u >> size);
	} else {
		bytes[0] ^= 0xff;
		bytes[1] ^= (uint8_t)(0xff00u >> (size - 8));
	}
	return size;
}

static void put_signed(cf_buffer *out, int64_t value)
{
	uint8_t bytes[SIGNED_SIZE_MAX];
	cf_put_bytes(out, bytes, store_signed(bytes, value));
}

void cf_slice_key_encode(cf_buffer *out, const uint8_t *name, uint64_t name_size, int32_t rank, const int64_t *starts,
	const int64_t *lengths)
{
	assert(rank >= 0 && rank <= CKPTFMT_RANK_MAX);
	put_number(out, 0);
	put_text(out, name, name_size);
	put_number(out, (uint64_t)rank);
	for (int32_t d = 0; d < rank; d++) {
		put_signed(out, starts[d]);
		put_signed(out, lengths[d]);
	}
}

static bool take_number(cf_cursor *in, uint64_t *out)
{
	const uint8_t *bytes;
	uint8_t count;
	*out = 0;
	/* KEY-2, KEY-8 */
	if (!cf_take_u8(in, &count) || !cf_take_bytes(in, count, &bytes) || count > 8 || (count != 0 && bytes[0] == 0))
		return false;
	for (uint8_t i = 0; i < count; i++)
		*out = *out << 8 | bytes[i];
	return true;
}

/* KEY-3 */
static bool take_text(cf_cursor *in, cf_buffer *out)
{
	for (;;) {
		uint8_t byte, after;
		size_t plain = 0;
		size_t left = cf_cursor_left(in);
		const uint8_t *from = in->base + in->position;
		while (plain < left && from[plain] != ESCAPE_LOW && from[plain] != ESCAPE_HIGH)
			plain++;
		cf_put_bytes(out, from, plain);
		in->position += plain;
		if (!cf_take_u8(in, &byte) || !cf_take_u8(in, &after))
			return false;
		if (byte == ESCAPE_LOW && after == AFTER_LOW_END)
			return !out->failed;
		if (after != (byte == ESCAPE_LOW ? AFTER_LOW : AFTER_HIGH))
			return false;
		cf_put_u8(out, byte);
	}
}

/* Size of the code that begins at `from`, 16 for all beyond 15; 0 where the bytes end before they tell.
 * REQUIRES: left > 0. */
static unsigned signed_size(const uint8_t *from, size_t left)
{
	unsigned size = 0;
	uint8_t invert = (uint8_t)(from[0] & 0x80 ? 0x00 : 0xff);
	for (size_t i = 0; i < 2 && i < left; i++) {
		uint8_t byte = from[i] ^ invert;
		for (unsigned bit = 0x80; bit != 0; bit >>= 1) {
			if ((byte & bit) == 0)
				return size;
			size++;
		}
	}
	return left < 2 ? 0 : size;
}

/* KEY-4, KEY-8 */
static bool take_signed(cf_cursor *in, int64_t *out)
{
	const uint8_t *bytes;
	uint8_t again[SIGNED_SIZE_MAX];
	uint64_t value;
	unsigned size = cf_cursor_left(in) == 0 ? 0 : signed_size(in->base + in->position, cf_cursor_left(in));
	if (size == 0 || size > SIGNED_SIZE_MAX || !cf_take_bytes(in, size, &bytes))
		return false;
	value = bytes[0] & 0x80 ? 0 : UINT64_MAX;
	for (unsigned i = 0; i < size; i++) {
		uint8_t byte = bytes[i];
		if (i == 0)
			byte ^= (uint8_t)(size >= 8 ? 0xff : 0xff00u >> size);
		if (i == 1 && size > 8)
			byte ^= (uint8_t)(0xff00u >> (size - 8));
		value = value << 8 | byte;
	}
	*out = (int64_t)value;
	/* One comparison for all wrong spellings: too long, or more bits than 64. */
	return store_signed(again, *out) == size && memcmp(again, bytes, size) == 0;
}

/* KEY-5: one dimension. */
static bool take_extent(cf_cursor *in, int64_t *start, int64_t *length)
{
	int64_t end;
	if (!take_signed(in, start) || !take_signed(in, length))
		return false;
	return (*start == 0 && *length == -1) || (*start >= 0 && *length >= 1 && cf_add_i64(*start, *length, &end));
}

bool cf_slice_key_decode(const uint8_t *key, uint64_t key_size, cf_buffer *name_out, int32_t *rank, int64_t *starts,
	int64_t *lengths)
{
	cf_cursor in = cf_cursor_over(key, (size_t)key_size, CF_NO_OFFSET);
	uint64_t number;
	*rank = 0;
	cf_buffer_clear(name_out);
	/* KEY-1 */
	if (!take_number(&in, &number) || number != 0 || !take_text(&in, name_out) || !take_number(&in, &number) ||
		number < 1 || number > CKPTFMT_RANK_MAX)
		return false;
	for (uint64_t d = 0; d < number; d++)
		if (!take_extent(&in, &starts[d], &lengths[d]))
			return false;
	if (cf_cursor_left(&in) != 0)
		return false;
	*rank = (int32_t)number;
	return true;
}

void cf_slice_key_error(ckptfmt_error *err, const uint8_t *key, uint64_t key_size)
{
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	int32_t rank;
	cf_buffer name = CF_BUFFER_EMPTY;
	if (cf_slice_key_decode(key, key_size, &name, &rank, starts, lengths))
		cf_error_tensor(err, name.data, name.size);
	else
		cf_error_tensor(err, key, key_size);
	cf_buffer_free(&name);
}
