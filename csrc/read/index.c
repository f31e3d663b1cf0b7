/* SPDX-License-Identifier: Apache-2.0 */
#include "read/index.h"

static ckptfmt_status read_file(const void *state, const char *path, uint8_t *to, uint64_t size, uint64_t offset,
	uint64_t *got, ckptfmt_error *err)
{
	return cf_os_read_at((const cf_file *)state, path, to, size, offset, got, err);
}

ckptfmt_status cf_index_open(const cf_file *file, const char *path, uint64_t size, const ckptfmt_limits *limits,
	cf_table **out, ckptfmt_error *err)
{
	return cf_table_open(read_file, file, path, size, limits, out, err);
}
