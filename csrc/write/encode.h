/* SPDX-License-Identifier: Apache-2.0 */
/* Values that are stored compressed where that gains something (rules CMP). Sources are taken in groups, which threads
 * encode together, and written in the order given. */
#ifndef CKPTFMT_WRITE_ENCODE_H
#define CKPTFMT_WRITE_ENCODE_H

#include "compress/encode.h"
#include "write/catalog.h"
#include "write/value.h"

/* Raw bytes to encode: all of a value, or a stretch of a large one. */
typedef struct cf_stretch {
	const ckptfmt_source *source;
	cf_raw raw;
	cf_buffer memory;           /* the raw bytes, where they are not the source's own */
	uint32_t raw_crc32c;        /* of strings and variants */
	cf_choice choice;
	bool large;                 /* encoded while it is written */
	bool chosen;                /* it is encoded */
	uint64_t place;             /* of its encoded bytes in `coded` */
	uint64_t first_chunk;       /* in the arrays over chunks */
} cf_stretch;

typedef struct cf_encoding {
	const ckptfmt_codec *codec;
	uint64_t chunk_size;
	int32_t threads;
	cf_encoder *encoders;       /* one a thread */
	cf_buffer stretches;        /* cf_stretch, of the group at hand */
	cf_buffer jobs;
	cf_buffer coded;
	/* Of each chunk of the group: */
	cf_buffer sizes;            /* uint64_t */
	cf_buffer crcs;             /* uint32_t */
	cf_buffer raw_crcs;         /* uint32_t */
	cf_buffer incompressible;   /* uint8_t */
} cf_encoding;

/* `chunk_size` is within CMP-2. The codec is borrowed. */
CF_MUST_CHECK ckptfmt_status cf_encoding_open(cf_encoding *encoding, const ckptfmt_codec *codec, uint64_t chunk_size,
	ckptfmt_error *err);
void cf_encoding_close(cf_encoding *encoding);

/* Encodes the first of these sources, *taken of them. REQUIRES: cf_source_check passed for each. NO_MEMORY, INVALID. */
CF_MUST_CHECK ckptfmt_status cf_encoding_next(cf_encoding *encoding, const ckptfmt_source *sources, uint64_t count,
	uint64_t *taken, ckptfmt_error *err);
/* Writes source number `i` of those, compressed or not, at the end of the file and says in its row where it is. */
CF_MUST_CHECK ckptfmt_status cf_encoding_write(cf_encoding *encoding, uint64_t i, cf_file_writer *file,
	cf_catalog *catalog, uint64_t row, ckptfmt_error *err);

#endif
