/* SPDX-License-Identifier: Apache-2.0 */
/* The same checks, in the same order, as in string_tensor.c. */
#include "proto/string_scan.h"

#include "base/cursor.h"

#include <string.h>

enum { LENGTH, SUM, BYTES, END };

cf_string_scan cf_string_scan_begin(int32_t storage, const cf_stored_value *value)
{
	cf_string_scan scan;
	memset(&scan, 0, sizeof scan);
	scan.value = *value;
	scan.variant = storage == CKPTFMT_STORAGE_VARIANT;
	scan.next = value->count != 0 ? LENGTH : scan.variant ? END : SUM;
	return scan;
}

static ckptfmt_status broken(const cf_string_scan *scan, const char *what, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, scan->value.origin, "%s (element %llu, byte %llu of %llu)", what,
		(unsigned long long)scan->elements, (unsigned long long)scan->taken, (unsigned long long)scan->value.size);
}

static ckptfmt_status compare(const cf_string_scan *scan, uint32_t stored, const char *what, ckptfmt_error *err)
{
	if (!scan->value.verify || stored == scan->crc)
		return CKPTFMT_OK;
	return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, scan->value.origin, "%s: stored 0x%08x, computed 0x%08x", what, stored,
		scan->crc);
}

/* A length is all there. */
static ckptfmt_status end_length(cf_string_scan *scan, ckptfmt_error *err)
{
	cf_cursor in = cf_cursor_over(scan->part, scan->part_size, 0);
	uint64_t length, left = scan->value.size - scan->taken;
	if (!cf_take_varint64(&in, &length))
		return broken(scan, scan->variant ? "VAR-2: a length is malformed" : "STR-3: a length is malformed", err);
	scan->part_size = 0;
	if (scan->variant) {
		if (left < 4 || length > left - 4)
			return broken(scan, "VAR-2: an element goes past the end", err);
		scan->crc = cf_variant_length_crc(scan->crc, length);
		scan->payload = length;
		scan->next = length != 0 ? BYTES : SUM;
		return CKPTFMT_OK;
	}
	scan->crc = cf_string_length_crc(scan->crc, length);
	/* More than there can be stays more. */
	if (!cf_add_u64(scan->payload, length, &scan->payload))
		scan->payload = UINT64_MAX;
	if (++scan->elements == scan->value.count)
		scan->next = SUM;
	return CKPTFMT_OK;
}

static ckptfmt_status end_sum(cf_string_scan *scan, ckptfmt_error *err)
{
	CF_TRY(compare(scan, ckptfmt_crc32c_unmask(cf_load_u32(scan->part)),
		scan->variant ? "VAR-3: checksum of an element" : "STR-5: checksum of the lengths", err));
	scan->crc = ckptfmt_crc32c(scan->crc, scan->part, 4);
	scan->part_size = 0;
	if (scan->variant) {
		scan->next = ++scan->elements == scan->value.count ? END : LENGTH;
		return CKPTFMT_OK;
	}
	if (scan->payload != scan->value.size - scan->taken)
		return broken(scan, "STR-4: the lengths do not make up the bytes after them", err);
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
	scan->part[scan->part_size++] = byte;
	scan->taken++;
	if (scan->next == LENGTH)
		return byte < 0x80 || scan->part_size == CF_VARINT64_SIZE_MAX ? end_length(scan, err) : CKPTFMT_OK;
	return scan->part_size == 4 ? end_sum(scan, err) : CKPTFMT_OK;
}

static ckptfmt_status end_value(const cf_string_scan *scan, ckptfmt_error *err)
{
	if (scan->next == LENGTH)
		return broken(scan, scan->variant ? "VAR-2: a length is malformed" : "STR-3: a length is malformed", err);
	if (scan->next != END)
		return broken(scan, "STR-3: the lengths leave no room for their checksum", err);
	return compare(scan, scan->value.crc32c,
		scan->variant ? "VAR-4: checksum of the tensor" : "STR-6: checksum of the tensor", err);
}

ckptfmt_status cf_string_scan_take(cf_string_scan *scan, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	while (size != 0) {
		uint64_t some = 1;
		if (scan->next == END)
			return broken(scan, "VAR-2: bytes are left after the last element", err);
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
