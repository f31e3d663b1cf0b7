/* SPDX-License-Identifier: Apache-2.0 */
/* The checksums of the chunks of a value, and from them that of the value: each byte is summed once. */
#ifndef CKPTFMT_CRC32C_CHUNK_SUM_H
#define CKPTFMT_CRC32C_CHUNK_SUM_H

#include "base/arith.h"
#include "ckptfmt.h"

typedef struct cf_chunk_sum {
	uint64_t size;              /* of the current chunk, */
	uint64_t left;              /* and how many of its bytes are still to come */
	uint32_t crc;               /* of the current chunk so far */
	uint32_t total;             /* of all chunks before it */
} cf_chunk_sum;

static inline cf_chunk_sum cf_chunk_sum_begin(uint64_t size)
{
	return (cf_chunk_sum){size, size, 0, 0};
}

/* Takes bytes up to the end of the chunk; returns how many. */
static inline uint64_t cf_chunk_sum_take(cf_chunk_sum *sum, const uint8_t *bytes, uint64_t size)
{
	size = cf_min_u64(size, sum->left);
	sum->crc = ckptfmt_crc32c(sum->crc, bytes, size);
	sum->left -= size;
	return size;
}

/* Ends the chunk, of which bytes may be left out, and begins one of `next` bytes. Returns the checksum of the chunk. */
static inline uint32_t cf_chunk_sum_end(cf_chunk_sum *sum, uint64_t next)
{
	uint32_t crc = sum->crc;
	sum->total = ckptfmt_crc32c_combine(sum->total, crc, sum->size - sum->left);
	sum->size = sum->left = next;
	sum->crc = 0;
	return crc;
}

#endif
