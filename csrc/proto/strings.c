/* SPDX-License-Identifier: Apache-2.0 */
/*
 * string tensor    varint64 length of each element | u32 masked checksum of the lengths | the bytes of each element
 * variant tensor   for each element: varint64 length | payload | u32 masked checksum so far
 *
 * The checksum of the lengths takes each as raw little-endian u32, or u64 where it does not fit (STR-5); the entry's
 * checksum continues from there over the four stored bytes and the strings (STR-6). Big-endian writers checksum lengths
 * in their own byte order, so lengths are swapped first for such a checkpoint.
 */
#include "proto/strings.h"

#include "base/cursor.h"

#include <string.h>

enum { LENGTH, SUM, BYTES, END };

ckptfmt_status cf_string_tensor_check_count(int32_t storage, uint64_t count, uint64_t size, uint64_t origin,
	ckptfmt_error *err)
{
	/* Each string has a length of at least one byte, and the lengths share a checksum of four; a variant has both. */
	uint64_t fixed = storage == CKPTFMT_STORAGE_STRING ? 4 : 0;
	uint64_t each = storage == CKPTFMT_STORAGE_STRING ? 1 : 5;
	/* STR-8: a tensor without elements may be stored as no bytes. */
	if (count == 0 && size == 0)
		return CKPTFMT_OK;
	if (size < fixed || count > (size - fixed) / each)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, origin, "%s: %llu elements do not fit in %llu bytes",
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

cf_string_scan cf_string_scan_begin(int32_t storage, const cf_stored_value *value)
{
	cf_string_scan scan;
	memset(&scan, 0, sizeof scan);
	scan.value = *value;
	scan.variant = storage == CKPTFMT_STORAGE_VARIANT;
	scan.next = value->count != 0 ? LENGTH : scan.variant ? END : SUM;
	return scan;
}

static uint64_t offset_of(const cf_string_scan *scan, uint64_t byte)
{
	return scan->value.origin + (scan->value.decoded ? 0 : byte);
}

static ckptfmt_status broken(const cf_string_scan *scan, uint64_t byte, const char *what, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, offset_of(scan, byte), "%s (element %llu, byte %llu of %llu)", what,
		(unsigned long long)scan->elements, (unsigned long long)byte, (unsigned long long)scan->value.size);
}

static ckptfmt_status compare(const cf_string_scan *scan, uint64_t byte, uint32_t stored, const char *what,
	ckptfmt_error *err)
{
	if (!scan->value.verify || stored == scan->crc)
		return CKPTFMT_OK;
	return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, offset_of(scan, byte), "%s: stored 0x%08x, computed 0x%08x", what,
		stored, scan->crc);
}

/* Takes the length in scan->part. */
static ckptfmt_status end_length(cf_string_scan *scan, ckptfmt_error *err)
{
	cf_cursor in = cf_cursor_over(scan->part, scan->part_size, 0);
	uint64_t length, left = scan->value.size - scan->taken;
	if (!cf_take_varint64(&in, &length))
		return broken(scan, scan->element,
			scan->variant ? "VAR-2: a length is malformed" : "STR-3: a length is malformed", err);
	scan->part_size = 0;
	if (scan->sizes != NULL)
		scan->sizes[scan->elements] = length;
	if (scan->value.verify)
		scan->crc = length_crc(scan->crc, length, scan->variant || length > UINT32_MAX, scan->value.big_endian);
	if (scan->variant) {
		if (left < 4 || length > left - 4)
			return broken(scan, scan->element, "VAR-2: an element goes past the end", err);
		if (scan->starts != NULL)
			scan->starts[scan->elements] = scan->taken;
		scan->payload = length;
		scan->next = length != 0 ? BYTES : SUM;
		return CKPTFMT_OK;
	}
	/* Saturates: larger than any value. */
	if (!cf_add_u64(scan->payload, length, &scan->payload))
		scan->payload = UINT64_MAX;
	if (++scan->elements == scan->value.count)
		scan->next = SUM;
	return CKPTFMT_OK;
}

/* The strings are contiguous, in the order of their lengths, and fill the rest of the value. */
static void start_strings(const cf_string_scan *scan)
{
	uint64_t start = scan->taken;
	for (uint64_t i = 0; i < scan->value.count; i++) {
		scan->starts[i] = start;
		start += scan->sizes[i];
	}
}

static ckptfmt_status end_sum(cf_string_scan *scan, ckptfmt_error *err)
{
	uint32_t masked = cf_load_u32(scan->part);
	CF_TRY(compare(scan, scan->variant ? scan->element : scan->taken - 4,
		ckptfmt_crc32c_unmask(scan->value.big_endian ? __builtin_bswap32(masked) : masked),
		scan->variant ? "VAR-3: checksum of an element" : "STR-5: checksum of the lengths", err));
	scan->crc = ckptfmt_crc32c(scan->crc, scan->part, 4);
	scan->part_size = 0;
	if (scan->variant) {
		scan->next = ++scan->elements == scan->value.count ? END : LENGTH;
		return CKPTFMT_OK;
	}
	if (scan->payload != scan->value.size - scan->taken)
		return broken(scan, scan->taken + cf_min_u64(scan->payload, scan->value.size - scan->taken),
			"STR-4: the lengths do not add up to the bytes after them", err);
	if (scan->starts != NULL)
		start_strings(scan);
	scan->next = scan->payload != 0 ? BYTES : END;
	return CKPTFMT_OK;
}

static void take_payload(cf_string_scan *scan, const uint8_t *bytes, uint64_t size)
{
	if (scan->value.verify)
		scan->crc = ckptfmt_crc32c(scan->crc, bytes, size);
	scan->taken += size;
	scan->payload -= size;
	if (scan->payload == 0)
		scan->next = scan->variant ? SUM : END;
}

static ckptfmt_status take_byte(cf_string_scan *scan, uint8_t byte, ckptfmt_error *err)
{
	if (scan->next == LENGTH && scan->part_size == 0)
		scan->element = scan->taken;
	scan->part[scan->part_size++] = byte;
	scan->taken++;
	if (scan->next == LENGTH)
		return byte < 0x80 || scan->part_size == CF_VARINT64_SIZE_MAX ? end_length(scan, err) : CKPTFMT_OK;
	return scan->part_size == 4 ? end_sum(scan, err) : CKPTFMT_OK;
}

/* An incomplete part is reported at its begin; one of which no byte is present, at the length before it. */
static ckptfmt_status end_value(const cf_string_scan *scan, ckptfmt_error *err)
{
	uint64_t begin = scan->part_size != 0 ? scan->taken - scan->part_size : scan->element;
	if (scan->next == LENGTH)
		return broken(scan, begin,
			scan->variant ? "VAR-2: a length is malformed" : "STR-3: a length is malformed", err);
	if (scan->next != END)
		return broken(scan, begin, "STR-3: no room for the checksum of the lengths", err);
	return compare(scan, 0, scan->value.crc32c,
		scan->variant ? "VAR-4: checksum of the tensor" : "STR-6: checksum of the tensor", err);
}

ckptfmt_status cf_string_scan_take(cf_string_scan *scan, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	while (size != 0) {
		uint64_t some = 1;
		if (scan->next == END)
			return broken(scan, scan->taken, "VAR-2: bytes are left after the last element", err);
		if (scan->next == BYTES) {
			some = cf_min_u64(size, scan->payload);
			take_payload(scan, bytes, some);
		} else {
			CF_TRY(take_byte(scan, *bytes, err));
		}
		bytes += some;
		size -= some;
	}
	return scan->taken == scan->value.size ? end_value(scan, err) : CKPTFMT_OK;
}

ckptfmt_status cf_strings_decode(int32_t storage, const cf_stored_value *value, uint64_t *starts, uint64_t *sizes,
	ckptfmt_error *err)
{
	cf_string_scan scan = cf_string_scan_begin(storage, value);
	scan.starts = starts;
	scan.sizes = sizes;
	if (value->size != 0)
		return cf_string_scan_take(&scan, value->bytes, value->size, err);
	if (value->count != 0)
		return end_value(&scan, err);
	/* STR-8 */
	return compare(&scan, 0, value->crc32c, "ENT-8: checksum of no bytes", err);
}
