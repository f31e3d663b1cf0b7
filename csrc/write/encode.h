/* SPDX-License-Identifier: Apache-2.0 */
/* Writes values compressed where that makes them smaller (rules CMP). Sources are encoded in groups, by several
 * threads, and written in the order given. */
#ifndef CKPTFMT_WRITE_ENCODE_H
#define CKPTFMT_WRITE_ENCODE_H

#include "compress/encode.h"
#include "write/catalog.h"
#include "write/value.h"

/* Raw bytes to encode: a whole value, or a section of a large one. */
typedef struct cf_section {
	const ckptfmt_source *source;
	cf_raw raw;
	cf_buffer memory;           /* the raw bytes, if they are not contiguous in the source */
	uint32_t raw_crc32c;        /* of strings and variants */
	cf_choice choice;
	bool large;                 /* encoded while it is written */
	bool chosen;                /* it is encoded */
	uint64_t place;             /* of its encoded bytes in `coded` */
	uint64_t first_chunk;       /* in the arrays over chunks */
} cf_section;

typedef struct cf_encoding {
	const ckptfmt_codec *codec;
	uint64_t chunk_size;
	int32_t threads;
	cf_encoder *encoders;       /* one a thread */
	cf_buffer sections;        /* cf_section, of the group at hand */
	cf_buffer jobs;
	cf_buffer coded;
	/* Of each chunk of the group: */
	cf_buffer sizes;            /* uint64_t */
	cf_buffer crcs;             /* uint32_t */
	cf_buffer raw_crcs;         /* uint32_t */
	cf_buffer noise;            /* uint8_t */
} cf_encoding;

/* `chunk_size` is within CMP-2. The codec is borrowed. */
CF_MUST_CHECK ckptfmt_status cf_encoding_open(cf_encoding *encoding, const ckptfmt_codec *codec, uint64_t chunk_size,
	ckptfmt_error *err);
void cf_encoding_close(cf_encoding *encoding);

/* Encodes the first *taken of these sources. REQUIRES: cf_source_check passed for each. NO_MEMORY, INVALID. */
CF_MUST_CHECK ckptfmt_status cf_encoding_next(cf_encoding *encoding, const ckptfmt_source *sources, uint64_t count,
	uint64_t *taken, ckptfmt_error *err);
/* Appends source `i` of these to the file, compressed or not, and sets its place in the catalog row. */
CF_MUST_CHECK ckptfmt_status cf_encoding_write(cf_encoding *encoding, uint64_t i, cf_file_writer *file,
	cf_catalog *catalog, uint64_t row, ckptfmt_error *err);

#endif
