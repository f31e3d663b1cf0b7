/* SPDX-License-Identifier: Apache-2.0 */
/* The stored form of string and variant tensors (rules STR and VAR). */
#ifndef CKPTFMT_PROTO_STRINGS_H
#define CKPTFMT_PROTO_STRINGS_H

#include "base/bytes.h"
#include "base/error.h"

/* One stored value. */
typedef struct cf_stored_value {
	const uint8_t *bytes;       /* all of it; not used by a scan */
	uint64_t size;
	uint64_t origin;            /* file offset of its first byte */
	uint64_t count;             /* elements by the shape */
	uint32_t crc32c;            /* of the entry, unmasked */
	bool big_endian;
	bool verify;                /* false: lengths are checked against the size, checksums are not */
	bool decoded;               /* from compressed chunks: failures give `origin` as their offset */
} cf_stored_value;

/* Fails if `count` elements do not fit in `size` bytes: call it before allocating memory for them. BAD_ENTRY. */
CF_MUST_CHECK ckptfmt_status cf_string_tensor_check_count(int32_t storage, uint64_t count, uint64_t size,
	uint64_t origin, ckptfmt_error *err);

/* Finds the elements: element i is bytes[starts[i] .. starts[i] + sizes[i]). `starts` and `sizes` have room for
 * count values. REQUIRES: cf_string_tensor_check_count passed. BAD_ENTRY, CHECKSUM. */
CF_MUST_CHECK ckptfmt_status cf_strings_decode(int32_t storage, const cf_stored_value *value, uint64_t *starts,
	uint64_t *sizes, ckptfmt_error *err);

/* Checks a value that comes in pieces, without storing it. */
typedef struct cf_string_scan {
	cf_stored_value value;
	uint64_t *starts, *sizes;   /* of the elements, for cf_strings_decode; else NULL */
	bool variant;
	uint64_t taken;             /* bytes */
	uint64_t elements;          /* found so far; of strings their lengths */
	uint64_t element;           /* where the last length begins; a variant's element begins with it */
	uint64_t payload;           /* bytes that the lengths so far claim; of a variant those still to come */
	uint32_t crc;
	int32_t next;               /* what comes next */
	uint8_t part[CF_VARINT64_SIZE_MAX];  /* of an incomplete length or checksum */
	uint32_t part_size;
} cf_string_scan;

/* REQUIRES: cf_string_tensor_check_count passed; for cf_string_scan_take, value->size is not 0. */
cf_string_scan cf_string_scan_begin(int32_t storage, const cf_stored_value *value);

/* Takes the next bytes. Violations of STR-3 to STR-6 and VAR-2 to VAR-4 are reported as early as possible; after the
 * last byte the value has been checked. REQUIRES: the value has that many bytes left, and no take failed. BAD_ENTRY,
 * CHECKSUM. */
CF_MUST_CHECK ckptfmt_status cf_string_scan_take(cf_string_scan *scan, const uint8_t *bytes, uint64_t size,
	ckptfmt_error *err);

/* Extends `crc` by a length as the format does: as four bytes if it fits, else as eight. */
uint32_t cf_string_length_crc(uint32_t crc, uint64_t length);
/* The same for variants: always eight bytes. */
uint32_t cf_variant_length_crc(uint32_t crc, uint64_t length);

#endif
