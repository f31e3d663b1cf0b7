/* SPDX-License-Identifier: Apache-2.0 */
/* Reads Snappy's raw format (rules SNP). Nothing here writes it: canonical blocks are raw. */
#ifndef CKPTFMT_TABLE_SNAPPY_H
#define CKPTFMT_TABLE_SNAPPY_H

#include "base/error.h"

/* The decoded size that the stream declares, checked against the most that its bytes can produce: what passes may be
 * allocated. `offset` is the stream's in its file, for messages. BAD_BLOCK. */
CF_MUST_CHECK ckptfmt_status cf_snappy_size(const uint8_t *bytes, uint64_t size, uint64_t offset, uint64_t *out,
	ckptfmt_error *err);
/* Decodes into exactly `to_size` bytes, which must be what cf_snappy_size said. On failure they hold unspecified
 * bytes. BAD_BLOCK. */
CF_MUST_CHECK ckptfmt_status cf_snappy_decode(const uint8_t *bytes, uint64_t size, uint64_t offset, uint8_t *to,
	uint64_t to_size, ckptfmt_error *err);

#endif
