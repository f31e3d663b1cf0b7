/* SPDX-License-Identifier: Apache-2.0 */
/* The table of an index file in storage. */
#ifndef CKPTFMT_READ_INDEX_H
#define CKPTFMT_READ_INDEX_H

#include "storage/os.h"
#include "table/table.h"

/* cf_table_open of a file, which must outlive the table; `size` is what it was when it was opened. */
CF_MUST_CHECK ckptfmt_status cf_index_open(const cf_file *file, const char *path, uint64_t size,
	const ckptfmt_limits *limits, cf_table **out, ckptfmt_error *err);

#endif
