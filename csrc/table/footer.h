/* SPDX-License-Identifier: Apache-2.0 */
/* The framing of a table file: block handles, block trailers and the footer (rules FTR, BLK-1 to BLK-3). */
#ifndef CKPTFMT_TABLE_FOOTER_H
#define CKPTFMT_TABLE_FOOTER_H

#include "base/buffer.h"
#include "base/cursor.h"
#include "base/error.h"

/* A block handle. `size` is that of the stored bytes, without the trailer. */
typedef struct cf_handle {
	uint64_t offset;
	uint64_t size;
} cf_handle;

typedef struct cf_footer {
	cf_handle metaindex;
	cf_handle index;
} cf_footer;

enum {
	CF_HANDLE_SIZE_MAX = 2 * CF_VARINT64_SIZE_MAX,
	CF_FOOTER_HANDLES_SIZE = 2 * CF_HANDLE_SIZE_MAX,
	CF_FOOTER_SIZE = CF_FOOTER_HANDLES_SIZE + 8,
	CF_TRAILER_SIZE = 1 + 4
};

typedef enum cf_compression {
	CF_COMPRESSION_RAW = 0,
	CF_COMPRESSION_SNAPPY = 1
} cf_compression;

/* Appends the handle, shortest varints. */
void cf_handle_put(cf_buffer *out, cf_handle handle);
/* False, and nothing taken, if the bytes do not begin with a handle. Does not check where the handle points. */
CF_MUST_CHECK bool cf_handle_take(cf_cursor *cursor, cf_handle *out);
/* TRUNCATED (at `offset`, where the handle was read) unless the block and its trailer end at or before `end`. */
CF_MUST_CHECK ckptfmt_status cf_handle_check(cf_handle handle, uint64_t end, uint64_t offset, ckptfmt_error *err);

/* Appends the trailer of a raw block that consists of the whole buffer. */
void cf_trailer_put(cf_buffer *block);
/* The stored checksum, unmasked, of a block of `size` bytes. REQUIRES: `stored` holds size + CF_TRAILER_SIZE bytes. */
uint32_t cf_trailer_crc(const uint8_t *stored, uint64_t size);
/* The computed checksum of these bytes. REQUIRES: as above. */
uint32_t cf_trailer_crc_computed(const uint8_t *stored, uint64_t size);
/* CHECKSUM, then BAD_BLOCK for an unknown type; *compression is a cf_compression. `offset` is the block's.
 * REQUIRES: as above. */
CF_MUST_CHECK ckptfmt_status cf_trailer_check(const uint8_t *stored, uint64_t size, uint64_t offset,
	uint8_t *compression, ckptfmt_error *err);

void cf_footer_put(cf_buffer *out, cf_handle metaindex, cf_handle index);
/* Decodes the CF_FOOTER_SIZE bytes at `from`, which are at `offset` in the file. BAD_MAGIC, UNSUPPORTED (footers of
 * newer formats of the same family), BAD_BLOCK. The caller checks where the handles point. */
CF_MUST_CHECK ckptfmt_status cf_footer_decode(const uint8_t *from, uint64_t offset, cf_footer *out,
	ckptfmt_error *err);

#endif
