/* SPDX-License-Identifier: Apache-2.0 */
/* Stored chunks of compressed values (rules CMP): their structure, without decoding. Of zstd frames only headers are
 * parsed here. */
#ifndef CKPTFMT_COMPRESS_CHUNK_H
#define CKPTFMT_COMPRESS_CHUNK_H

#include "base/error.h"
#include "compress/planes.h"
#include "proto/message.h"

enum {
	CF_ZSTD_WINDOW_MAX = 16 << 20,
	/* A method and the sizes of all planes. */
	CF_CHUNK_HEAD_MAX = 1 + CF_PLANES_MAX * 5
};

typedef enum cf_chunk_method {
	CF_CHUNK_RAW = 0,
	CF_CHUNK_ZSTD = 1,              /* one zstd frame */
	CF_CHUNK_PLANES = 2,            /* byte planes, each a zstd frame or raw */
	CF_CHUNK_ROTATED_PLANES = 3     /* the same, of units rotated left by one bit */
} cf_chunk_method;

/* Checks for one zstd frame that declares this content size, has no dictionary, a window of at most
 * CF_ZSTD_WINDOW_MAX and whole blocks, with no bytes after it (CMP-18). The decoder checks the compressed blocks.
 * BAD_CHUNK. */
CF_MUST_CHECK ckptfmt_status cf_zstd_frame_check(const uint8_t *bytes, uint64_t size, uint64_t content_size,
	uint64_t origin, ckptfmt_error *err);

/* A part of a stored chunk that is copied or decoded separately: a plane, or all of it. */
typedef struct cf_chunk_part {
	uint64_t offset;            /* in the stored chunk */
	uint64_t size;
	uint64_t raw_size;
	bool zstd;
} cf_chunk_part;

typedef struct cf_chunk {
	int32_t method;             /* cf_chunk_method */
	uint32_t part_count;
	cf_chunk_part parts[CF_PLANES_MAX];
} cf_chunk;

/* Parses a stored chunk of `raw_size` raw bytes in units of `unit` bytes. `origin` is its file offset. BAD_CHUNK.
 * REQUIRES: unit is 1, 2, 4 or 8. */
CF_MUST_CHECK ckptfmt_status cf_chunk_parse(const uint8_t *bytes, uint64_t size, uint64_t raw_size, uint32_t unit,
	uint64_t origin, cf_chunk *out, ckptfmt_error *err);

/* Assembles the raw bytes of a chunk. `decoded` holds, in order, the raw_size bytes of each zstd part.
 * REQUIRES: cf_chunk_parse made `chunk` of `bytes`. */
void cf_chunk_join(const cf_chunk *chunk, const uint8_t *bytes, const uint8_t *const *decoded, uint32_t unit,
	uint8_t *to, uint64_t raw_size);

/* Writes a stored chunk and returns its size. Each part is its zstd frame if there is one (data is not NULL) that saves
 * enough, else raw. `planes` holds the planes consecutively (for ZSTD the raw bytes). */
uint64_t cf_chunk_build(int32_t method, const uint8_t *raw, const uint8_t *planes, uint64_t raw_size, uint32_t unit,
	const ckptfmt_bytes *frames, uint8_t *to);

#endif
