/* SPDX-License-Identifier: Apache-2.0 */
/*
 * handle   varint64 offset  varint64 size
 * trailer  u8 type  u32 masked CRC-32C of the stored bytes and the type
 * footer   metaindex handle  index handle  zeros up to byte 40  u64 magic
 */
#include "table/footer.h"

#include <inttypes.h>

#define MAGIC UINT64_C(0xdb4775248b80fb57)

/* Table formats that grew out of this one and that people do point readers at. */
static const uint64_t foreign_magics[] = {
	UINT64_C(0x88e241b785f4cff7),
	UINT64_C(0x8242229663bf9564),
	UINT64_C(0x4f3418eb7a8f13b8),
};

CF_STATIC_ASSERT(CF_FOOTER_SIZE == 48, "the footer has 48 bytes");
CF_STATIC_ASSERT(CF_TRAILER_SIZE == 5, "a trailer has 5 bytes");

void cf_handle_put(cf_buffer *out, cf_handle handle)
{
	cf_put_varint(out, handle.offset);
	cf_put_varint(out, handle.size);
}

bool cf_handle_take(cf_cursor *cursor, cf_handle *out)
{
	cf_cursor ahead = *cursor;
	if (!cf_take_varint64(&ahead, &out->offset) || !cf_take_varint64(&ahead, &out->size))
		return false;
	*cursor = ahead;
	return true;
}

ckptfmt_status cf_handle_check(cf_handle handle, uint64_t end, uint64_t offset, ckptfmt_error *err)
{
	/* FTR-5 */
	if (handle.offset > end || end - handle.offset < CF_TRAILER_SIZE ||
		handle.size > end - handle.offset - CF_TRAILER_SIZE)
		return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, offset,
			"FTR-5: a block at %" PRIu64 " of %" PRIu64 " bytes and its trailer do not end before %" PRIu64,
			handle.offset, handle.size, end);
	return CKPTFMT_OK;
}

void cf_trailer_put(cf_buffer *block)
{
	uint32_t crc;
	cf_put_u8(block, CF_COMPRESSION_RAW);
	if (block->failed)
		return;
	crc = ckptfmt_crc32c(0, block->data, block->size);
	cf_put_u32(block, ckptfmt_crc32c_mask(crc));
}

uint32_t cf_trailer_crc(const uint8_t *stored, uint64_t size)
{
	return ckptfmt_crc32c_unmask(cf_load_u32(stored + size + 1));
}

uint32_t cf_trailer_crc_computed(const uint8_t *stored, uint64_t size)
{
	return ckptfmt_crc32c(0, stored, size + 1);
}

ckptfmt_status cf_trailer_check(const uint8_t *stored, uint64_t size, uint64_t offset, uint8_t *compression,
	ckptfmt_error *err)
{
	uint32_t crc = cf_trailer_crc(stored, size), wanted = cf_trailer_crc_computed(stored, size);
	/* BLK-2 */
	if (crc != wanted)
		return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, offset,
			"BLK-2: the block's checksum is %08" PRIx32 ", its bytes give %08" PRIx32, crc, wanted);
	/* BLK-3 */
	if (stored[size] != CF_COMPRESSION_RAW && stored[size] != CF_COMPRESSION_SNAPPY)
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, offset + size, "BLK-3: unknown block type %u", stored[size]);
	*compression = stored[size];
	return CKPTFMT_OK;
}

void cf_footer_put(cf_buffer *out, cf_handle metaindex, cf_handle index)
{
	uint8_t *footer = cf_buffer_extend(out, CF_FOOTER_SIZE);
	size_t at = 0;
	if (footer == NULL)
		return;
	memset(footer, 0, CF_FOOTER_SIZE);
	at += cf_store_varint(footer + at, metaindex.offset);
	at += cf_store_varint(footer + at, metaindex.size);
	at += cf_store_varint(footer + at, index.offset);
	(void)cf_store_varint(footer + at, index.size);
	cf_store_u64(footer + CF_FOOTER_HANDLES_SIZE, MAGIC);
}

static ckptfmt_status magic_check(uint64_t magic, uint64_t offset, ckptfmt_error *err)
{
	for (size_t i = 0; i < CF_ARRAY_COUNT(foreign_magics); i++)
		if (magic == foreign_magics[i])
			return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, offset,
				"FTR-2: the footer is that of a RocksDB table (magic %016" PRIx64 "), not of a checkpoint index",
				magic);
	if (magic != MAGIC)
		return cf_fail(err, CKPTFMT_FAIL_BAD_MAGIC, offset,
			"FTR-2: the file does not end with the magic number of a table (found %016" PRIx64 ")", magic);
	return CKPTFMT_OK;
}

ckptfmt_status cf_footer_decode(const uint8_t *from, uint64_t offset, cf_footer *out, ckptfmt_error *err)
{
	cf_cursor cursor = cf_cursor_over(from, CF_FOOTER_HANDLES_SIZE, offset);
	*out = (cf_footer){{0, 0}, {0, 0}};
	CF_TRY(magic_check(cf_load_u64(from + CF_FOOTER_HANDLES_SIZE), offset + CF_FOOTER_HANDLES_SIZE, err));
	/* FTR-3 */
	if (!cf_handle_take(&cursor, &out->metaindex))
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, cf_cursor_offset(&cursor),
			"FTR-3: the footer's metaindex handle cannot be read");
	if (!cf_handle_take(&cursor, &out->index))
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, cf_cursor_offset(&cursor),
			"FTR-3: the footer's index handle cannot be read");
	return CKPTFMT_OK;
}
