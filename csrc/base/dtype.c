/* SPDX-License-Identifier: Apache-2.0 */
/* The table of data types (DTY-1). Codes are never reused; names are TensorFlow's. */
#include "base/arith.h"
#include "ckptfmt_unstable.h"

#define FIXED(code, name, size, swap_size, used_bits) {name, code, CKPTFMT_STORAGE_FIXED, size, swap_size, used_bits}

static const ckptfmt_dtype_info table[] = {
	FIXED(CKPTFMT_FLOAT, "float", 4, 4, 32),
	FIXED(CKPTFMT_DOUBLE, "double", 8, 8, 64),
	FIXED(CKPTFMT_INT32, "int32", 4, 4, 32),
	FIXED(CKPTFMT_UINT8, "uint8", 1, 1, 8),
	FIXED(CKPTFMT_INT16, "int16", 2, 2, 16),
	FIXED(CKPTFMT_INT8, "int8", 1, 1, 8),
	{"string", CKPTFMT_STRING, CKPTFMT_STORAGE_STRING, 0, 1, 0},
	FIXED(CKPTFMT_COMPLEX64, "complex64", 8, 4, 64),
	FIXED(CKPTFMT_INT64, "int64", 8, 8, 64),
	FIXED(CKPTFMT_BOOL, "bool", 1, 1, 8),
	FIXED(CKPTFMT_QINT8, "qint8", 1, 1, 8),
	FIXED(CKPTFMT_QUINT8, "quint8", 1, 1, 8),
	FIXED(CKPTFMT_QINT32, "qint32", 4, 4, 32),
	FIXED(CKPTFMT_BFLOAT16, "bfloat16", 2, 2, 16),
	FIXED(CKPTFMT_QINT16, "qint16", 2, 2, 16),
	FIXED(CKPTFMT_QUINT16, "quint16", 2, 2, 16),
	FIXED(CKPTFMT_UINT16, "uint16", 2, 2, 16),
	FIXED(CKPTFMT_COMPLEX128, "complex128", 16, 8, 128),
	FIXED(CKPTFMT_HALF, "half", 2, 2, 16),
	{"resource", CKPTFMT_RESOURCE, CKPTFMT_STORAGE_NONE, 0, 1, 0},
	{"variant", CKPTFMT_VARIANT, CKPTFMT_STORAGE_VARIANT, 0, 1, 0},
	FIXED(CKPTFMT_UINT32, "uint32", 4, 4, 32),
	FIXED(CKPTFMT_UINT64, "uint64", 8, 8, 64),
	FIXED(CKPTFMT_FLOAT8_E5M2, "float8_e5m2", 1, 1, 8),
	FIXED(CKPTFMT_FLOAT8_E4M3FN, "float8_e4m3fn", 1, 1, 8),
	FIXED(CKPTFMT_FLOAT8_E4M3FNUZ, "float8_e4m3fnuz", 1, 1, 8),
	FIXED(CKPTFMT_FLOAT8_E4M3B11FNUZ, "float8_e4m3b11fnuz", 1, 1, 8),
	FIXED(CKPTFMT_FLOAT8_E5M2FNUZ, "float8_e5m2fnuz", 1, 1, 8),
	FIXED(CKPTFMT_INT4, "int4", 1, 1, 4),
	FIXED(CKPTFMT_UINT4, "uint4", 1, 1, 4),
	FIXED(CKPTFMT_INT2, "int2", 1, 1, 2),
	FIXED(CKPTFMT_UINT2, "uint2", 1, 1, 2),
	FIXED(CKPTFMT_FLOAT4_E2M1FN, "float4_e2m1fn", 1, 1, 4),
};

/* Codes are consecutive from 1, so that a lookup is an index. */
CF_STATIC_ASSERT(CF_ARRAY_COUNT(table) == CKPTFMT_FLOAT4_E2M1FN, "one row a code");

const ckptfmt_dtype_info *ckptfmt_dtype_at(uint32_t row)
{
	return row < CF_ARRAY_COUNT(table) ? &table[row] : NULL;
}

const ckptfmt_dtype_info *ckptfmt_dtype_find(int32_t code)
{
	return code >= 1 ? ckptfmt_dtype_at((uint32_t)code - 1) : NULL;
}
