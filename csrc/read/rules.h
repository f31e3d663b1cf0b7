/* SPDX-License-Identifier: Apache-2.0 */
/* The rules about one stored value, without its bytes. A reader fails with the first that is broken, a verifier reports
 * each one. */
#ifndef CKPTFMT_READ_RULES_H
#define CKPTFMT_READ_RULES_H

#include "read/values.h"

/* In the order in which a reader checks them. */
typedef enum cf_value_rule {
	CF_VALUE_LISTED,        /* SLC-7 to SLC-9: the index holds it, as its tensor lists it */
	CF_VALUE_DTYPE,         /* DTY-6 of a compressed value (CMP-8) */
	CF_VALUE_FEATURES,      /* EXT-3 */
	CF_VALUE_BYTE_ORDER,    /* CMP-9 */
	CF_VALUE_CHUNKS,        /* EXT-2, EXT-4, EXT-5, CMP-1 to CMP-5 */
	CF_VALUE_PLACE,         /* ENT-3, ENT-4 */
	CF_VALUE_SIZE,          /* ENT-5 */
	CF_VALUE_EXPANSION,     /* CMP-20: checked before memory for the raw bytes is allocated */
	/* Asked by reads of strings and variants, and where checksums are compared: */
	CF_VALUE_VARIANT,       /* VAR-6: TensorFlow refuses them, so their payloads are unspecified */
	CF_VALUE_COUNT,         /* STR-2, VAR-2: room for the elements of a string or variant tensor */
	CF_VALUE_EMPTY,         /* ENT-8: the checksum of no bytes */
	CF_VALUE_RULES
} cf_value_rule;

/* One rule, of a slice or (`slice` CF_WHOLE_TENSOR) of the tensor stored whole. LISTED, CHUNKS and PLACE: BAD_SLICE or
 * BAD_ENTRY; DTYPE, FEATURES, BYTE_ORDER and VARIANT: UNSUPPORTED; SIZE and COUNT: BAD_ENTRY; EXPANSION: LIMIT; EMPTY:
 * CHECKSUM. REQUIRES: of a slice, as cf_geometry_resolve. */
CF_MUST_CHECK ckptfmt_status cf_value_check_rule(const ckptfmt_selection *selection, const ckptfmt_row *row,
	uint64_t slice, cf_value_rule rule, ckptfmt_error *err);

/* What every read asks before it opens the data file: the rules from LISTED to EXPANSION. */
CF_MUST_CHECK ckptfmt_status cf_value_check(const ckptfmt_selection *selection, const ckptfmt_row *row,
	uint64_t slice, ckptfmt_error *err);

/* DTY-5: a value may have this type. Codes that are not used yet may come to mean something (DTY-6); 0, negative ones
 * and those of references never will. BAD_DTYPE. */
CF_MUST_CHECK ckptfmt_status cf_dtype_check(int32_t code, uint64_t origin, ckptfmt_error *err);

/* TAB-13, CMP-20: whether a value may be read into memory. LIMIT. */
CF_MUST_CHECK ckptfmt_status cf_value_check_limit(const ckptfmt_limits *limits, uint64_t size, bool compressed,
	uint64_t offset, ckptfmt_error *err);

/* The failure for a compressed value that a reader without a codec is to read. UNSUPPORTED. */
CF_MUST_CHECK ckptfmt_status cf_fail_codec(ckptfmt_error *err);

static inline const ckptfmt_stored *cf_value_stored(const ckptfmt_selection *selection, const ckptfmt_row *row,
	uint64_t slice)
{
	return slice == CF_WHOLE_TENSOR ? &row->stored : &cf_selection_slices(selection, row)[slice].stored;
}

#endif
