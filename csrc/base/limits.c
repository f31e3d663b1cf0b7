/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"

#include <string.h>

ckptfmt_status cf_struct_take(void *to, size_t known, const void *from, const char *name, ckptfmt_error *err)
{
	const uint64_t own = known;
	uint64_t size = known;
	memset(to, 0, known);
	if (from != NULL)
		memcpy(&size, from, sizeof size);
	if (size < sizeof size)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "set struct_size of %s to its size", name);
	for (uint64_t i = known; i < size; i++)
		if (((const uint8_t *)from)[i] != 0)
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
				"struct_size of %s is %llu: this library knows %zu bytes, and the rest is not zero", name,
				(unsigned long long)size, known);
	if (from != NULL)
		memcpy(to, from, size < known ? (size_t)size : known);
	memcpy(to, &own, sizeof own);
	return CKPTFMT_OK;
}

void cf_limits_default(ckptfmt_limits *limits)
{
	*limits = (ckptfmt_limits){
		.struct_size = sizeof *limits,
		.index_bytes_max = (uint64_t)4 << 30,
		.block_bytes_max = (uint64_t)64 << 20,
		.key_bytes_max = CF_KEY_BYTES_MAX,
		.keys_bytes_factor = 16,
		.keys_bytes_floor = (uint64_t)64 << 20,
		.entries_max = (uint64_t)1 << 24,
		.slices_max = (uint64_t)1 << 20,
		.tensor_bytes_max = UINT64_MAX,
		.expansion_max = 65536,
		.open_files_max = 128,
	};
}

ckptfmt_status cf_limits_take(ckptfmt_limits *to, const ckptfmt_limits *from, ckptfmt_error *err)
{
	ckptfmt_limits given;
	CF_TRY(cf_struct_take(&given, sizeof given, from, "ckptfmt_limits", err));
	cf_limits_default(to);
#define TAKE(field) (to->field = given.field != 0 ? given.field : to->field)
	TAKE(index_bytes_max);
	TAKE(block_bytes_max);
	TAKE(key_bytes_max);
	TAKE(keys_bytes_factor);
	TAKE(keys_bytes_floor);
	TAKE(entries_max);
	TAKE(slices_max);
	TAKE(tensor_bytes_max);
	TAKE(expansion_max);
	TAKE(open_files_max);
#undef TAKE
	return CKPTFMT_OK;
}

#ifndef CKPTFMT_VERSION
#define CKPTFMT_VERSION "0.1.0"
#endif

const char *ckptfmt_version(void)
{
	return CKPTFMT_VERSION;
}
