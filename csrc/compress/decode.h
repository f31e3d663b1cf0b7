/* SPDX-License-Identifier: Apache-2.0 */
/* Decodes stored chunks to raw bytes (rules CMP-11 to CMP-18). */
#ifndef CKPTFMT_COMPRESS_DECODE_H
#define CKPTFMT_COMPRESS_DECODE_H

#include "base/buffer.h"
#include "compress/codec.h"

/* Consecutive stored chunks of one value. */
typedef struct cf_coded {
	const uint8_t *bytes;
	const uint64_t *ends;       /* end of each within the value's stored bytes */
	uint64_t begin;             /* start of the first */
	const uint32_t *crcs;       /* of each; NULL: do not check */
	uint64_t first;             /* its index in the value */
	uint64_t count;
	uint64_t raw_size;          /* of all of them */
	uint64_t chunk_size;        /* raw bytes of each but the last */
	uint64_t origin;            /* file offset of bytes[0] */
	uint32_t unit;
} cf_coded;

/* Scratch memory, reused between calls. */
typedef struct cf_decoder {
	const ckptfmt_codec *codec;
	cf_buffer chunks;           /* cf_chunk */
	cf_buffer items;            /* ckptfmt_codec_item */
	cf_buffer planes;
} cf_decoder;

/* Writes the raw bytes of all chunks to `to`. All checksums and structures are checked before the first frame is
 * decoded. CHECKSUM, BAD_CHUNK, NO_MEMORY, INVALID (the codec).
 * REQUIRES: unit is 1, 2, 4 or 8. */
CF_MUST_CHECK ckptfmt_status cf_decode(cf_decoder *decoder, const cf_coded *coded, uint8_t *to, ckptfmt_error *err);
void cf_decoder_free(cf_decoder *decoder);

#endif
