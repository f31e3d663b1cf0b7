/* SPDX-License-Identifier: Apache-2.0 */
#include "write/value.h"

#include "base/limits.h"
#include "base/bytes.h"
#include "crc32c/chunk_sum.h"
#include "slices/box.h"
#include "proto/strings.h"

enum {
	SLICE_KEY_FRAME = 16,       /* at most, around the name: the first number, the end of the text, the rank */
	SLICE_KEY_NUMBER = 10,      /* a start or a length */
	CRC_SIZE = sizeof(uint32_t)
};

/* ---- sources --------------------------------------------------------------------------------------------- */

static ckptfmt_status check_slice(const ckptfmt_source *source, ckptfmt_error *err)
{
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX], count;
	const int64_t *full = source->slice;
	ckptfmt_error why;
	if (!cf_shape_count(source->rank, full, &count))
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the full shape of the slice is invalid");
	if (cf_box_resolve(source->rank, full, full + source->rank, full + 2 * (ptrdiff_t)source->rank, starts, lengths,
		    &why) != CKPTFMT_OK)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "%s", why.message);
	for (int32_t d = 0; d < source->rank; d++)
		if (lengths[d] != source->dims[d])
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
				"TXT-9: the slice has %lld elements in dimension %d, the data %lld",
				(long long)lengths[d], (int)d, (long long)source->dims[d]);
	return CKPTFMT_OK;
}

/* TAB-13: readers refuse longer keys. The key of a slice has the name, with each byte of 0 or 255 escaped as two bytes,
 * and numbers around it. */
ckptfmt_status cf_source_check_name(const ckptfmt_source *source, ckptfmt_error *err)
{
	uint64_t size = source->name_size;
	if (size == 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "TAB-12: a tensor's name is empty");
	if (source->slice != NULL && size <= CF_KEY_BYTES_MAX) {
		size += SLICE_KEY_FRAME + 2 * SLICE_KEY_NUMBER * (uint64_t)source->rank;
		for (uint64_t i = 0; i < source->name_size; i++)
			size += source->name[i] == 0 || source->name[i] == 0xff;
	}
	if (size > CF_KEY_BYTES_MAX)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
			"TAB-13: the name has %llu bytes; keys have at most %d",
			(unsigned long long)source->name_size, (int)CF_KEY_BYTES_MAX);
	return CKPTFMT_OK;
}

ckptfmt_status cf_source_check(const ckptfmt_source *source, ckptfmt_error *err)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(source->dtype);
	int64_t count;
	uint64_t size;
	if (dtype == NULL || dtype->storage == CKPTFMT_STORAGE_NONE)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "data type %d cannot be stored",
			(int)source->dtype);
	if (source->rank < 0 || source->rank > CKPTFMT_RANK_MAX || !cf_shape_count(source->rank, source->dims, &count) ||
		!cf_mul_u64((uint64_t)count, dtype->size, &size) || size > INT64_MAX)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the shape is invalid");
	if (source->strides != NULL && dtype->storage != CKPTFMT_STORAGE_FIXED)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "strides are not supported for dtype %s", dtype->name);
	CF_TRY(cf_source_check_name(source, err));
	return source->slice == NULL ? CKPTFMT_OK : check_slice(source, err);
}

bool cf_source_is_whole(const ckptfmt_source *source)
{
	for (int32_t d = 0; source->slice != NULL && d < source->rank; d++)
		if (source->dims[d] != source->slice[d])
			return false;
	return true;
}

uint64_t cf_source_count(const ckptfmt_source *source)
{
	uint64_t count = 1;
	for (int32_t d = 0; d < source->rank; d++)
		count *= (uint64_t)source->dims[d];
	return count;
}

ckptfmt_status cf_source_gather(const ckptfmt_source *source, cf_gather *gather, ckptfmt_error *err)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(source->dtype);
	bool swap = (source->swapped != 0) != (CF_HOST_BIG_ENDIAN == 1);
	uint8_t mask = (uint8_t)(dtype->used_bits < 8 ? (1u << dtype->used_bits) - 1 : CF_MASK_NONE);
	return cf_gather_init(gather, source->data, source->rank, source->dims, source->strides, dtype->size,
		swap ? dtype->swap_size : 1, mask, err);
}

uint64_t cf_source_size(const ckptfmt_source *source)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(source->dtype);
	const ckptfmt_bytes *items = (const ckptfmt_bytes *)(const void *)source->data;
	bool variant = dtype->storage == CKPTFMT_STORAGE_VARIANT;
	uint64_t count = cf_source_count(source), size = variant ? count * CRC_SIZE : CRC_SIZE;
	if (dtype->storage == CKPTFMT_STORAGE_FIXED)
		return count * dtype->size;
	for (uint64_t i = 0; i < count; i++)
		size += cf_varint_size(items[i].size) + items[i].size;
	return size;
}

/* ---- fixed ----------------------------------------------------------------------------------------------- */

/* The checksum of a value and those of its chunks, computed while it is written. */
typedef struct checksum {
	cf_chunk_sum sum;
	uint32_t *chunk_crcs;       /* place of the next chunk's checksum; NULL: they are not stored */
} checksum;

static void end_chunk(checksum *sum)
{
	uint32_t crc = cf_chunk_sum_end(&sum->sum, sum->sum.size);
	if (sum->chunk_crcs != NULL)
		*sum->chunk_crcs++ = crc;
}

static void advance_chunk(checksum *sum, uint64_t size)
{
	sum->sum.left -= size;
	if (sum->sum.left == 0)
		end_chunk(sum);
}

static ckptfmt_status put_contiguous(cf_file_writer *file, const uint8_t *data, uint64_t size, checksum *sum,
	ckptfmt_error *err)
{
	while (size > 0) {
		uint64_t piece = cf_min_u64(size, sum->sum.left);
		CF_TRY(cf_file_writer_put_crc(file, data, piece, &sum->sum.crc, err));
		advance_chunk(sum, piece);
		data += piece;
		size -= piece;
	}
	return CKPTFMT_OK;
}

static ckptfmt_status put_gathered(cf_file_writer *file, cf_gather *gather, uint64_t itemsize, checksum *sum,
	ckptfmt_error *err)
{
	while (cf_gather_left(gather) > 0) {
		uint8_t *to;
		uint64_t room, piece;
		CF_TRY(cf_file_writer_room(file, &to, &room, err));
		piece = cf_min_u64(cf_min_u64(room, sum->sum.left), cf_gather_left(gather));
		piece -= piece % itemsize;
		cf_gather_take(gather, to, piece);
		sum->sum.crc = ckptfmt_crc32c(sum->sum.crc, to, piece);
		cf_file_writer_advance(file, piece);
		advance_chunk(sum, piece);
	}
	return CKPTFMT_OK;
}

static ckptfmt_status write_fixed(cf_file_writer *file, const ckptfmt_source *source, const ckptfmt_dtype_info *dtype,
	uint32_t chunk_size, cf_catalog_row *row, const cf_catalog *catalog, ckptfmt_error *err)
{
	checksum sum = {cf_chunk_sum_begin(row->chunk_count != 0 ? chunk_size : UINT64_MAX), NULL};
	const uint8_t *data;
	uint64_t size;
	cf_gather gather;
	CF_TRY(cf_source_gather(source, &gather, err));
	if (row->chunk_count != 0)
		sum.chunk_crcs = (uint32_t *)cf_buffer_items(&catalog->chunk_crcs) + row->chunks_first;
	if (cf_gather_contiguous(&gather, &data, &size))
		CF_TRY(put_contiguous(file, data, size, &sum, err));
	else
		CF_TRY(put_gathered(file, &gather, dtype->size, &sum, err));
	if (sum.sum.left != sum.sum.size)
		end_chunk(&sum);
	row->crc32c = sum.sum.total;
	return CKPTFMT_OK;
}

/* ---- strings --------------------------------------------------------------------------------------------- */

/* The destination of strings in their stored form: a data file or, for encoding, memory. */
typedef struct sink {
	cf_file_writer *file;       /* NULL: the buffer */
	cf_buffer *buffer;
	uint32_t crc;
} sink;

static ckptfmt_status put(sink *to, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	if (to->file != NULL)
		return cf_file_writer_put(to->file, bytes, size, err);
	cf_put_bytes(to->buffer, bytes, size);
	return CKPTFMT_OK;
}

static ckptfmt_status put_crc(sink *to, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	if (to->file != NULL)
		return cf_file_writer_put_crc(to->file, bytes, size, &to->crc, err);
	to->crc = ckptfmt_crc32c(to->crc, bytes, size);
	cf_put_bytes(to->buffer, bytes, size);
	return CKPTFMT_OK;
}

static ckptfmt_status put_masked(sink *to, ckptfmt_error *err)
{
	uint8_t bytes[4];
	cf_store_u32(bytes, ckptfmt_crc32c_mask(to->crc));
	return put_crc(to, bytes, sizeof bytes, err);
}

static ckptfmt_status put_strings(sink *to, const ckptfmt_bytes *items, uint64_t count, ckptfmt_error *err)
{
	uint8_t length[CF_VARINT64_SIZE_MAX];
	for (uint64_t i = 0; i < count; i++) {
		CF_TRY(put(to, length, cf_store_varint(length, items[i].size), err));
		to->crc = cf_string_length_crc(to->crc, items[i].size);
	}
	CF_TRY(put_masked(to, err));
	for (uint64_t i = 0; i < count; i++)
		CF_TRY(put_crc(to, items[i].data, items[i].size, err));
	return CKPTFMT_OK;
}

static ckptfmt_status put_variants(sink *to, const ckptfmt_bytes *items, uint64_t count, ckptfmt_error *err)
{
	uint8_t length[CF_VARINT64_SIZE_MAX];
	for (uint64_t i = 0; i < count; i++) {
		CF_TRY(put(to, length, cf_store_varint(length, items[i].size), err));
		to->crc = cf_variant_length_crc(to->crc, items[i].size);
		CF_TRY(put_crc(to, items[i].data, items[i].size, err));
		CF_TRY(put_masked(to, err));
	}
	return CKPTFMT_OK;
}

static ckptfmt_status put_elements(sink *to, const ckptfmt_source *source, ckptfmt_error *err)
{
	const ckptfmt_bytes *items = (const ckptfmt_bytes *)(const void *)source->data;
	if (ckptfmt_dtype_find(source->dtype)->storage == CKPTFMT_STORAGE_STRING)
		return put_strings(to, items, cf_source_count(source), err);
	return put_variants(to, items, cf_source_count(source), err);
}

ckptfmt_status cf_source_elements(const ckptfmt_source *source, cf_buffer *out, uint32_t *crc, ckptfmt_error *err)
{
	sink to = {NULL, out, 0};
	CF_TRY(put_elements(&to, source, err));
	*crc = to.crc;
	return cf_buffer_status(out, err);
}

static ckptfmt_status write_elements(cf_file_writer *file, const ckptfmt_source *source, cf_catalog_row *row,
	ckptfmt_error *err)
{
	sink to = {file, NULL, 0};
	CF_TRY(put_elements(&to, source, err));
	row->crc32c = to.crc;
	return CKPTFMT_OK;
}

ckptfmt_status cf_value_plan(const ckptfmt_source *source, uint32_t chunk_size, cf_catalog_row *row,
	cf_catalog *catalog, ckptfmt_error *err)
{
	uint64_t size = cf_source_size(source);
	/* EXT-5: the checksum of a single chunk is the value's own. */
	if (chunk_size == 0 || size <= chunk_size ||
		ckptfmt_dtype_find(source->dtype)->storage != CKPTFMT_STORAGE_FIXED)
		return CKPTFMT_OK;
	row->chunks_first = catalog->chunk_crcs.size / sizeof(uint32_t);
	row->chunk_count = (uint32_t)((size - 1) / chunk_size + 1);
	(void)cf_buffer_extend(&catalog->chunk_crcs, row->chunk_count * sizeof(uint32_t));
	return cf_buffer_status(&catalog->chunk_crcs, err);
}

ckptfmt_status cf_value_write(cf_file_writer *file, const ckptfmt_source *source, uint32_t chunk_size,
	cf_catalog_row *row, const cf_catalog *catalog, ckptfmt_error *err)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(source->dtype);
	row->offset = cf_file_writer_position(file);
	if (dtype->storage == CKPTFMT_STORAGE_FIXED)
		CF_TRY(write_fixed(file, source, dtype, chunk_size, row, catalog, err));
	else
		CF_TRY(write_elements(file, source, row, err));
	row->size = cf_file_writer_position(file) - row->offset;
	return CKPTFMT_OK;
}
