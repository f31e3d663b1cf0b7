/* SPDX-License-Identifier: Apache-2.0 */
/* Checks string and variant tensors whose stored form comes in pieces, and holds none of it (rules STR and VAR). */
#ifndef CKPTFMT_CODEC_STRING_SCAN_H
#define CKPTFMT_CODEC_STRING_SCAN_H

#include "base/bytes.h"
#include "proto/string_tensor.h"

typedef struct cf_string_scan {
	cf_stored_value value;      /* but for `bytes` */
	bool variant;
	uint64_t taken;             /* bytes */
	uint64_t elements;          /* that have been met: of strings their lengths */
	uint64_t payload;           /* bytes that the lengths so far claim; of a variant what is left of it */
	uint32_t crc;
	int32_t next;               /* what comes next */
	uint8_t part[CF_VARINT64_SIZE_MAX];  /* of a length or a checksum that is not all there */
	uint32_t part_size;
} cf_string_scan;

/* Begins with a value of little-endian bytes that are all to come. REQUIRES: value->size is not 0, and
 * cf_string_tensor_check_count passed. */
cf_string_scan cf_string_scan_begin(int32_t storage, const cf_stored_value *value);

/* The next bytes. Breaks of STR-3 to STR-6, VAR-2 to VAR-4 are found as soon as the bytes show them; with the last byte
 * the value has been checked. REQUIRES: the value has as many left. BAD_ENTRY, CHECKSUM, after which the scan is at
 * its end. */
CF_MUST_CHECK ckptfmt_status cf_string_scan_take(cf_string_scan *scan, const uint8_t *bytes, uint64_t size,
	ckptfmt_error *err);

#endif
