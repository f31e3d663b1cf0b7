/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sources as raw bytes, and raw bytes as stored chunks, but for the coding of zstd, which is the caller's.
 */
#include "compress/entropy.h"
#include "base/memory.h"
#include "write/value.h"
#include "compress/chunk.h"
#include "proto/string_tensor.h"

/* Dense data is looked at piece by piece, so that what differs for a mebibyte is met. */
enum { PIECE_SIZE = 1 << 20 };

struct ckptfmt_packer {
	ckptfmt_pack_info info;
	cf_gather gather;           /* of FIXED storage */
	cf_buffer strings;          /* of the others: all raw bytes */
	uint64_t taken;
};

/* ---- raw bytes ------------------------------------------------------------------------------------------- */

/* As value_writer.c puts them into a file. */
static uint32_t put_strings(cf_buffer *out, const ckptfmt_bytes *items, uint64_t count)
{
	uint32_t crc = 0;
	uint8_t sum[4];
	for (uint64_t i = 0; i < count; i++) {
		cf_put_varint(out, items[i].size);
		crc = cf_string_length_crc(crc, items[i].size);
	}
	cf_store_u32(sum, ckptfmt_crc32c_mask(crc));
	cf_put_bytes(out, sum, sizeof sum);
	crc = ckptfmt_crc32c(crc, sum, sizeof sum);
	for (uint64_t i = 0; i < count; i++) {
		cf_put_bytes(out, items[i].data, items[i].size);
		crc = ckptfmt_crc32c(crc, items[i].data, items[i].size);
	}
	return crc;
}

static uint32_t put_variants(cf_buffer *out, const ckptfmt_bytes *items, uint64_t count)
{
	uint32_t crc = 0;
	uint8_t sum[4];
	for (uint64_t i = 0; i < count; i++) {
		cf_put_varint(out, items[i].size);
		crc = cf_variant_length_crc(crc, items[i].size);
		cf_put_bytes(out, items[i].data, items[i].size);
		crc = ckptfmt_crc32c(crc, items[i].data, items[i].size);
		cf_store_u32(sum, ckptfmt_crc32c_mask(crc));
		cf_put_bytes(out, sum, sizeof sum);
		crc = ckptfmt_crc32c(crc, sum, sizeof sum);
	}
	return crc;
}

/* Floating-point types of more than a byte; of the others no sign stands in the way. */
static bool rotates(int32_t dtype)
{
	switch (dtype) {
	case CKPTFMT_FLOAT:
	case CKPTFMT_DOUBLE:
	case CKPTFMT_COMPLEX64:
	case CKPTFMT_COMPLEX128:
	case CKPTFMT_BFLOAT16:
	case CKPTFMT_HALF: return true;
	default: return false;
	}
}

static ckptfmt_status open_packer(const ckptfmt_source *source, ckptfmt_packer *packer, ckptfmt_error *err)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(source->dtype);
	const ckptfmt_bytes *items = (const ckptfmt_bytes *)(const void *)source->data;
	uint64_t size;
	packer->info.storage = dtype->storage;
	packer->info.rotates = rotates(source->dtype);
	packer->info.unit = 1;
	if (dtype->storage == CKPTFMT_STORAGE_FIXED) {
		packer->info.unit = dtype->swap_size;
		CF_TRY(cf_source_gather(source, &packer->gather, err));
		packer->info.raw_size = cf_gather_size(&packer->gather);
		if (!cf_gather_contiguous(&packer->gather, &packer->info.data, &size))
			packer->info.data = NULL;
		return CKPTFMT_OK;
	}
	if (dtype->storage == CKPTFMT_STORAGE_STRING)
		packer->info.raw_crc32c = put_strings(&packer->strings, items, cf_source_count(source));
	else
		packer->info.raw_crc32c = put_variants(&packer->strings, items, cf_source_count(source));
	packer->info.raw_size = packer->strings.size;
	packer->info.data = packer->strings.data;
	return cf_buffer_status(&packer->strings, err);
}

ckptfmt_status ckptfmt_packer_open(const ckptfmt_source *source, ckptfmt_packer **out, ckptfmt_error *err)
{
	ckptfmt_packer *packer;
	ckptfmt_status status = cf_source_check(source, err);
	*out = NULL;
	if (status != CKPTFMT_OK) {
		cf_error_tensor(err, source->name, source->name_size);
		return status;
	}
	packer = cf_allocate_zero(1, sizeof *packer);
	if (packer == NULL)
		return cf_fail_memory(err);
	status = open_packer(source, packer, err);
	if (status != CKPTFMT_OK) {
		cf_error_tensor(err, source->name, source->name_size);
		ckptfmt_packer_close(packer);
		return status;
	}
	*out = packer;
	return CKPTFMT_OK;
}

void ckptfmt_packer_info(const ckptfmt_packer *packer, ckptfmt_pack_info *out)
{
	*out = packer->info;
}

ckptfmt_status ckptfmt_packer_take(ckptfmt_packer *packer, uint8_t *to, uint64_t size, ckptfmt_error *err)
{
	uint64_t left = packer->info.raw_size - packer->taken;
	if (size > left || (size != left && size % CF_CHUNK_SIZE_UNIT != 0))
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "%llu of %llu bytes left", (unsigned long long)size,
			(unsigned long long)left);
	if (packer->info.storage == CKPTFMT_STORAGE_FIXED)
		cf_gather_take(&packer->gather, to, size);
	else if (size != 0)
		memcpy(to, packer->strings.data + packer->taken, (size_t)size);
	packer->taken += size;
	return CKPTFMT_OK;
}

void ckptfmt_packer_close(ckptfmt_packer *packer)
{
	if (packer == NULL)
		return;
	cf_buffer_free(&packer->strings);
	cf_release(packer);
}

/* Piece by piece; a tail too short to be judged says nothing. */
static bool pieces_dense(const uint8_t *data, uint64_t size, uint32_t unit, bool rotate)
{
	for (uint64_t done = 0; size - done >= CF_CHUNK_SIZE_MIN; done += cf_min_u64(PIECE_SIZE, size - done))
		if (!cf_seems_incompressible(data + done, cf_min_u64(PIECE_SIZE, size - done), unit, rotate))
			return false;
	return true;
}

static bool source_dense(const ckptfmt_source *source)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(source->dtype);
	const uint8_t *data;
	cf_gather gather;
	uint64_t size;
	ckptfmt_error ignored;
	if (dtype == NULL || dtype->storage != CKPTFMT_STORAGE_FIXED || cf_source_check(source, &ignored) != CKPTFMT_OK)
		return false;
	if ((source->swapped != 0) != (CF_HOST_BIG_ENDIAN == 1) || dtype->used_bits < 8)
		return false;
	if (cf_gather_init(&gather, source->data, source->rank, source->dims, source->strides, dtype->size, 1, CF_MASK_NONE,
			&ignored) != CKPTFMT_OK || !cf_gather_contiguous(&gather, &data, &size))
		return false;
	return cf_is_incompressible(data, size, dtype->swap_size, rotates(source->dtype)) &&
		(size <= PIECE_SIZE || pieces_dense(data, size, dtype->swap_size, rotates(source->dtype)));
}

void ckptfmt_sources_dense(const ckptfmt_source *sources, uint64_t count, uint8_t *dense)
{
	for (uint64_t i = 0; i < count; i++)
		dense[i] = source_dense(&sources[i]);
}

/* ---- chunks ---------------------------------------------------------------------------------------------- */

static ckptfmt_status check_chunking(uint64_t raw_size, uint64_t chunk_size, uint32_t unit, int32_t method,
	ckptfmt_error *err)
{
	if (chunk_size < CF_CHUNK_SIZE_MIN || chunk_size > CF_CHUNK_SIZE_MAX || chunk_size % CF_CHUNK_SIZE_UNIT != 0 ||
		(unit != 1 && unit != 2 && unit != 4 && unit != 8) || raw_size % unit != 0 ||
		method < CKPTFMT_CHUNK_RAW || method > CKPTFMT_CHUNK_ROTATED_PLANES)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"%llu bytes in units of %lu and chunks of %llu by method %d", (unsigned long long)raw_size,
			(unsigned long)unit, (unsigned long long)chunk_size, (int)method);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_chunks_dense(const uint8_t *raw, uint64_t raw_size, uint64_t chunk_size, uint32_t unit,
	int32_t rotate, uint8_t *dense, ckptfmt_error *err)
{
	CF_TRY(check_chunking(raw_size, chunk_size, unit, CKPTFMT_CHUNK_RAW, err));
	for (uint64_t done = 0; done < raw_size; done += cf_min_u64(chunk_size, raw_size - done))
		*dense++ = cf_seems_incompressible(raw + done, cf_min_u64(chunk_size, raw_size - done), unit, rotate != 0);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_chunks_split(const uint8_t *raw, uint64_t raw_size, uint64_t chunk_size, uint32_t unit,
	int32_t method, uint8_t *planes, uint32_t *crcs, uint32_t *entropies, ckptfmt_error *err)
{
	bool whole = method == CKPTFMT_CHUNK_RAW || method == CKPTFMT_CHUNK_ZSTD;
	uint64_t done = 0;
	CF_TRY(check_chunking(raw_size, chunk_size, unit, method, err));
	for (uint64_t chunk = 0; done < raw_size; chunk++) {
		uint64_t size = cf_min_u64(chunk_size, raw_size - done), count = size / unit;
		uint8_t *to[CF_PLANES_MAX];
		crcs[chunk] = ckptfmt_crc32c(0, raw + done, size);
		if (whole) {
			entropies[chunk] = cf_entropy(raw + done, size);
		} else {
			for (uint32_t p = 0; p < unit; p++)
				to[p] = planes + done + p * count;
			cf_planes_split(raw + done, count, unit, method == CKPTFMT_CHUNK_ROTATED_PLANES, to);
			for (uint32_t p = 0; p < unit; p++)
				entropies[chunk * unit + p] = cf_entropy(to[p], count);
		}
		done += size;
	}
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_chunks_join(const uint8_t *planes, uint64_t raw_size, uint64_t chunk_size, uint32_t unit,
	int32_t method, uint8_t *raw, ckptfmt_error *err)
{
	CF_TRY(check_chunking(raw_size, chunk_size, unit, method, err));
	for (uint64_t done = 0; done < raw_size;) {
		uint64_t size = cf_min_u64(chunk_size, raw_size - done), count = size / unit;
		const uint8_t *from[CF_PLANES_MAX];
		for (uint32_t p = 0; p < unit; p++)
			from[p] = planes + done + p * count;
		cf_planes_join(raw + done, count, unit, method == CKPTFMT_CHUNK_ROTATED_PLANES, from);
		done += size;
	}
	return CKPTFMT_OK;
}

uint64_t ckptfmt_chunks_capacity(uint64_t raw_size, uint64_t chunk_size)
{
	return raw_size + (raw_size / chunk_size + 1) * CF_CHUNK_HEAD_MAX;
}

ckptfmt_status ckptfmt_chunks_build(const uint8_t *raw, uint64_t raw_size, uint64_t chunk_size, uint32_t unit,
	int32_t method, const uint8_t *planes, const ckptfmt_bytes *frames, uint8_t *to, uint64_t capacity,
	uint64_t *sizes, uint32_t *crcs, ckptfmt_error *err)
{
	bool whole = method == CKPTFMT_CHUNK_RAW || method == CKPTFMT_CHUNK_ZSTD;
	uint64_t done = 0;
	CF_TRY(check_chunking(raw_size, chunk_size, unit, method, err));
	if (capacity < ckptfmt_chunks_capacity(raw_size, chunk_size))
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "room for %llu bytes of chunks, not %llu",
			(unsigned long long)capacity, (unsigned long long)ckptfmt_chunks_capacity(raw_size, chunk_size));
	for (uint64_t chunk = 0; done < raw_size; chunk++) {
		uint64_t size = cf_min_u64(chunk_size, raw_size - done);
		sizes[chunk] = cf_chunk_build(method, raw + done, whole ? raw + done : planes + done, size, unit,
			frames + (whole ? chunk : chunk * unit), to);
		crcs[chunk] = ckptfmt_crc32c(0, to, sizes[chunk]);
		to += sizes[chunk];
		done += size;
	}
	return CKPTFMT_OK;
}
