/* SPDX-License-Identifier: Apache-2.0 */
/* Encodes raw bytes as stored chunks. The method is chosen by encoding samples. */
#ifndef CKPTFMT_COMPRESS_ENCODE_H
#define CKPTFMT_COMPRESS_ENCODE_H

#include "base/buffer.h"
#include "compress/chunk.h"
#include "compress/codec.h"

/* Raw bytes of a value: all of it, or whole chunks. */
typedef struct cf_raw {
	const uint8_t *bytes;
	uint64_t size;
	uint64_t chunk_size;
	uint32_t unit;              /* bytes of an element as byte order sees it; 1 for strings */
	bool rotate;                /* floating-point numbers with the sign in the highest bit */
} cf_raw;

enum { CF_EFFORT_NONE = -1 };   /* besides ckptfmt_effort: the plane is stored raw */

/* How the chunks of a value are encoded. */
typedef struct cf_choice {
	int32_t method;             /* cf_chunk_method */
	int8_t efforts[CF_PLANES_MAX];   /* for each plane (one for ZSTD) */
} cf_choice;

/* Scratch memory, reused between calls. */
typedef struct cf_encoder {
	const ckptfmt_codec *codec;
	cf_buffer items;            /* ckptfmt_codec_item */
	cf_buffer raw;
	cf_buffer planes;
	cf_buffer frames;
} cf_encoder;

/* Sets noise[i] to whether chunk i looks like noise. */
void cf_find_noise(const cf_raw *raw, uint8_t *noise);
/* Encodes samples of the chunks that are no noise by each method and chooses the smallest result. *gains is whether it
 * saves enough to be worth decoding. NO_MEMORY, INVALID (the codec). REQUIRES: raw->size is not 0. */
CF_MUST_CHECK ckptfmt_status cf_choose(cf_encoder *encoder, const cf_raw *raw, const uint8_t *noise,
	cf_choice *out, bool *gains, ckptfmt_error *err);
/* Writes the stored chunks consecutively to `to`, the size and checksum of each, and the checksum of its raw bytes.
 * Chunks that are `noise` are stored raw. The raw bytes are read once: if they change meanwhile, the chunks hold what
 * was read, and their checksums match. NO_MEMORY, INVALID (the codec).
 * REQUIRES: `to` has room for the raw bytes and CF_CHUNK_HEAD_MAX a chunk. */
CF_MUST_CHECK ckptfmt_status cf_encode(cf_encoder *encoder, const cf_raw *source, const cf_choice *choice,
	const uint8_t *noise, uint8_t *to, uint64_t *sizes, uint32_t *crcs, uint32_t *raw_crcs,
	ckptfmt_error *err);
void cf_encoder_free(cf_encoder *encoder);

static inline uint64_t cf_chunk_count(uint64_t raw_size, uint64_t chunk_size)
{
	return raw_size / chunk_size + (raw_size % chunk_size != 0);
}

#endif
