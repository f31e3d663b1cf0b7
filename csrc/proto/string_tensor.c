/* SPDX-License-Identifier: Apache-2.0 */
/*
 * string tensor    varint64 length of each element | u32 masked checksum of the lengths | the bytes of each element
 * variant tensor   for each element: varint64 length | payload | u32 masked checksum so far
 *
 * The checksum of the lengths takes each as raw little-endian u32, or u64 where it does not fit (STR-5); the entry's
 * checksum goes on from there over the four stored bytes and the strings (STR-6). A big-endian writer fed its own byte
 * order, so lengths are swapped before they are fed for such a bundle.
 */
#include "proto/string_tensor.h"

#include "base/cursor.h"

ckptfmt_status cf_string_tensor_check_count(int32_t storage, uint64_t count, uint64_t size, uint64_t origin,
	ckptfmt_error *err)
{
	/* A string takes a byte of length, and the lengths four of checksum; a variant takes both for itself. */
	uint64_t fixed = storage == CKPTFMT_STORAGE_STRING ? 4 : 0;
	uint64_t each = storage == CKPTFMT_STORAGE_STRING ? 1 : 5;
	/* STR-8: a tensor without elements may also be stored as nothing at all. */
	if (count == 0 && size == 0)
		return CKPTFMT_OK;
	if (size < fixed || count > (size - fixed) / each)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, origin, "%s: %llu elements cannot lie in %llu bytes",
			storage == CKPTFMT_STORAGE_STRING ? "STR-2" : "VAR-2", (unsigned long long)count,
			(unsigned long long)size);
	return CKPTFMT_OK;
}

static uint32_t length_crc(uint32_t crc, uint64_t length, bool wide, bool big_endian)
{
	uint8_t bytes[8];
	if (wide) {
		cf_store_u64(bytes, big_endian ? __builtin_bswap64(length) : length);
		return ckptfmt_crc32c(crc, bytes, 8);
	}
	cf_store_u32(bytes, big_endian ? __builtin_bswap32((uint32_t)length) : (uint32_t)length);
	return ckptfmt_crc32c(crc, bytes, 4);
}

uint32_t cf_string_length_crc(uint32_t crc, uint64_t length)
{
	return length_crc(crc, length, length > UINT32_MAX, false);
}

uint32_t cf_variant_length_crc(uint32_t crc, uint64_t length)
{
	return length_crc(crc, length, true, false);
}

static ckptfmt_status checksum_differs(uint64_t offset, uint32_t stored, uint32_t computed, const char *what,
	ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, offset, "%s: stored 0x%08x, computed 0x%08x", what, stored, computed);
}

static uint32_t load_stored_crc(const cf_stored_value *value, const uint8_t *at)
{
	uint32_t masked = cf_load_u32(at);
	return ckptfmt_crc32c_unmask(value->big_endian ? __builtin_bswap32(masked) : masked);
}

ckptfmt_status cf_string_tensor_decode(const cf_stored_value *value, uint64_t *starts, uint64_t *sizes,
	ckptfmt_error *err)
{
	cf_cursor in = cf_cursor_over(value->bytes, (size_t)value->size, value->origin);
	uint32_t crc = 0;
	uint64_t at;
	const uint8_t *stored, *bytes;
	/* STR-8 */
	if (value->size == 0 && value->count == 0 && (!value->verify || value->crc32c == 0))
		return CKPTFMT_OK;
	if (value->size == 0 && value->count == 0)
		return checksum_differs(value->origin, value->crc32c, 0, "ENT-8: checksum of no bytes", err);
	for (uint64_t i = 0; i < value->count; i++) {
		if (!cf_take_varint64(&in, &sizes[i]))
			return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, cf_cursor_offset(&in),
				"STR-3: the length of element %llu is malformed", (unsigned long long)i);
		if (value->verify)
			crc = length_crc(crc, sizes[i], sizes[i] > UINT32_MAX, value->big_endian);
	}
	at = cf_cursor_offset(&in);
	if (!cf_take_bytes(&in, 4, &stored))
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, at, "STR-3: the lengths leave no room for their checksum");
	if (value->verify && load_stored_crc(value, stored) != crc)
		return checksum_differs(at, load_stored_crc(value, stored), crc, "STR-5: checksum of the lengths", err);
	for (uint64_t i = 0; i < value->count; i++) {
		starts[i] = in.position;
		if (!cf_take_bytes(&in, sizes[i], &bytes))
			return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, cf_cursor_offset(&in),
				"STR-4: element %llu of %llu bytes goes past the end", (unsigned long long)i,
				(unsigned long long)sizes[i]);
	}
	if (cf_cursor_left(&in) != 0)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, cf_cursor_offset(&in),
			"STR-4: %llu bytes are left after the last element", (unsigned long long)cf_cursor_left(&in));
	if (value->verify) {
		crc = ckptfmt_crc32c(crc, stored, value->size - (uint64_t)(stored - value->bytes));
		if (crc != value->crc32c)
			return checksum_differs(value->origin, value->crc32c, crc, "STR-6: checksum of the tensor", err);
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_variant_tensor_decode(const cf_stored_value *value, uint64_t *starts, uint64_t *sizes,
	ckptfmt_error *err)
{
	cf_cursor in = cf_cursor_over(value->bytes, (size_t)value->size, value->origin);
	uint32_t crc = 0;
	const uint8_t *payload, *stored;
	for (uint64_t i = 0; i < value->count; i++) {
		uint64_t at = cf_cursor_offset(&in);
		if (!cf_take_varint64(&in, &sizes[i]))
			return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, at, "VAR-2: the length of element %llu is malformed",
				(unsigned long long)i);
		starts[i] = in.position;
		if (!cf_take_bytes(&in, sizes[i], &payload) || !cf_take_bytes(&in, 4, &stored))
			return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, at, "VAR-2: element %llu goes past the end",
				(unsigned long long)i);
		if (!value->verify)
			continue;
		crc = ckptfmt_crc32c(length_crc(crc, sizes[i], true, value->big_endian), payload, sizes[i]);
		if (load_stored_crc(value, stored) != crc)
			return checksum_differs(at, load_stored_crc(value, stored), crc, "VAR-3: checksum of an element",
				err);
		crc = ckptfmt_crc32c(crc, stored, 4);
	}
	if (cf_cursor_left(&in) != 0)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, cf_cursor_offset(&in),
			"VAR-2: %llu bytes are left after the last element", (unsigned long long)cf_cursor_left(&in));
	if (value->verify && crc != value->crc32c)
		return checksum_differs(value->origin, value->crc32c, crc,
			value->size == 0 ? "ENT-8: checksum of no bytes" : "VAR-4: checksum of the tensor", err);
	return CKPTFMT_OK;
}
