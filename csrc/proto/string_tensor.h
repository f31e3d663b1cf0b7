/* SPDX-License-Identifier: Apache-2.0 */
/* The stored form of string and variant tensors (rules STR and VAR). */
#ifndef CKPTFMT_CODEC_STRING_TENSOR_H
#define CKPTFMT_CODEC_STRING_TENSOR_H

#include "base/error.h"

/* One stored value, whole in memory. */
typedef struct cf_stored_value {
	const uint8_t *bytes;
	uint64_t size;
	uint64_t origin;            /* file offset of bytes[0] */
	uint64_t count;             /* elements by the shape */
	uint32_t crc32c;            /* of the entry, unmasked */
	bool big_endian;
	bool verify;                /* false: lengths are checked against the size, checksums are not */
} cf_stored_value;

/* Fails if `count` elements cannot lie in `size` bytes, before anybody makes room for them. BAD_ENTRY. */
CF_MUST_CHECK ckptfmt_status cf_string_tensor_check_count(int32_t storage, uint64_t count, uint64_t size,
	uint64_t origin, ckptfmt_error *err);

/* Finds the elements: element i is bytes[starts[i] .. starts[i] + sizes[i]). `starts` and `sizes` have room for
 * count values. REQUIRES: cf_string_tensor_check_count passed. BAD_ENTRY, CHECKSUM. */
CF_MUST_CHECK ckptfmt_status cf_string_tensor_decode(const cf_stored_value *value, uint64_t *starts, uint64_t *sizes,
	ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_variant_tensor_decode(const cf_stored_value *value, uint64_t *starts, uint64_t *sizes,
	ckptfmt_error *err);

/* Extends `crc` by a length the way the format does: four bytes if it fits them, eight if not. */
uint32_t cf_string_length_crc(uint32_t crc, uint64_t length);
/* The same for variants: always eight bytes. */
uint32_t cf_variant_length_crc(uint32_t crc, uint64_t length);

#endif
