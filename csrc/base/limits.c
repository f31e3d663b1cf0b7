/* SPDX-License-Identifier: Apache-2.0 */
#include "ckptfmt_unstable.h"

void ckptfmt_limits_default(ckptfmt_limits *limits)
{
	limits->index_bytes_max = (uint64_t)4 << 30;
	limits->block_bytes_max = (uint64_t)64 << 20;
	limits->key_bytes_max = (uint64_t)16 << 20;
	limits->keys_bytes_factor = 16;
	limits->keys_bytes_floor = (uint64_t)64 << 20;
	limits->entries_max = (uint64_t)1 << 24;
	limits->slices_max = (uint64_t)1 << 20;
	limits->tensor_bytes_max = UINT64_MAX;
	limits->expansion_max = 65536;
	limits->open_files_max = 128;
	limits->reserved = 0;
}

#ifndef CKPTFMT_VERSION
#define CKPTFMT_VERSION "0.1.0"
#endif

const char *ckptfmt_version(void)
{
	return CKPTFMT_VERSION;
}
