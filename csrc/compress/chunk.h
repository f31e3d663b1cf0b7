/* SPDX-License-Identifier: Apache-2.0 */
/* Stored chunks of compressed values (rules CMP): their structure, without the decoding of zstd, of which only the
 * frame around the coded bytes is looked at. */
#ifndef CKPTFMT_CODEC_CHUNK_H
#define CKPTFMT_CODEC_CHUNK_H

#include "base/error.h"
#include "compress/planes.h"
#include "proto/message.h"

enum {
	CF_ZSTD_WINDOW_MAX = 16 << 20,
	/* A method, and the sizes of all planes. */
	CF_CHUNK_HEAD_MAX = 1 + CF_PLANES_MAX * 5
};

typedef enum cf_chunk_method {
	CF_CHUNK_RAW = 0,
	CF_CHUNK_ZSTD = 1,              /* one zstd frame */
	CF_CHUNK_PLANES = 2,            /* byte planes, each a zstd frame or raw */
	CF_CHUNK_ROTATED_PLANES = 3     /* of units that were rotated left by one bit */
} cf_chunk_method;

/* One zstd frame with this content size declared, no dictionary, a window within CF_ZSTD_WINDOW_MAX, whole blocks, and
 * nothing behind it (CMP-18). The coded bytes are the decoder's to check. BAD_CHUNK. */
CF_MUST_CHECK ckptfmt_status cf_zstd_frame_check(const uint8_t *bytes, uint64_t size, uint64_t content_size,
	uint64_t origin, ckptfmt_error *err);

/* A stretch of a stored chunk that is copied or decoded by itself: a plane, or all of it. */
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

/* Takes a stored chunk of `raw_size` bytes of units of `unit` apart. `origin` is its file offset. BAD_CHUNK.
 * REQUIRES: unit is 1, 2, 4 or 8. */
CF_MUST_CHECK ckptfmt_status cf_chunk_parse(const uint8_t *bytes, uint64_t size, uint64_t raw_size, uint32_t unit,
	uint64_t origin, cf_chunk *out, ckptfmt_error *err);

/* Puts the raw bytes of a chunk together. `decoded` holds, for each part that is zstd in turn, its raw_size bytes.
 * REQUIRES: cf_chunk_parse made `chunk` of `bytes`. */
void cf_chunk_join(const cf_chunk *chunk, const uint8_t *bytes, const uint8_t *const *decoded, uint32_t unit,
	uint8_t *to, uint64_t raw_size);

/* Writes a stored chunk: of the zstd frames, one a part (data NULL: there is none), those that gain enough, and the
 * rest raw. `planes` holds the planes one after the other (of ZSTD the raw bytes). Returns its size. */
uint64_t cf_chunk_build(int32_t method, const uint8_t *raw, const uint8_t *planes, uint64_t raw_size, uint32_t unit,
	const ckptfmt_bytes *frames, uint8_t *to);

#endif
