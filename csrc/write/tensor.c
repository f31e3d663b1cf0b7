/* SPDX-License-Identifier: Apache-2.0 */
/* Adding tensors one by one, without structs that hold pointers. */
#include "base/memory.h"
#include "write/writer.h"

#include <string.h>

/* The elements of a shape. INVALID: it cannot be the shape of a tensor. */
static ckptfmt_status count_elements(const int64_t *dims, int32_t rank, uint64_t *out, ckptfmt_error *err)
{
	*out = 1;
	if (rank < 0 || rank > CKPTFMT_RANK_MAX)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "rank %d must be 0 to %d", (int)rank,
			CKPTFMT_RANK_MAX);
	for (int32_t d = 0; d < rank; d++)
		if (dims[d] < 0 || !cf_mul_u64(*out, (uint64_t)dims[d], out))
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "dimension %d is %lld", (int)d,
				(long long)dims[d]);
	return CKPTFMT_OK;
}

static ckptfmt_source source_of(const uint8_t *name, uint64_t name_size, int32_t dtype, const int64_t *dims,
	int32_t rank, const uint8_t *data)
{
	ckptfmt_source source;
	memset(&source, 0, sizeof source);
	source.name = name;
	source.name_size = name_size;
	source.dtype = dtype;
	source.dims = dims;
	source.rank = rank;
	source.data = data;
	return source;
}

ckptfmt_status ckptfmt_writer_add_tensor(ckptfmt_writer *writer, const uint8_t *name, uint64_t name_size, int32_t dtype,
	const int64_t *dims, int32_t rank, const uint8_t *data, uint64_t data_size, ckptfmt_error *err)
{
	const ckptfmt_source source = source_of(name, name_size, dtype, dims, rank, data);
	const ckptfmt_dtype_info *info = ckptfmt_dtype_find(dtype);
	uint64_t count, size;
	if (info == NULL || info->storage != CKPTFMT_STORAGE_FIXED)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "dtype %d has no elements of a fixed size",
			(int)dtype);
	CF_TRY(count_elements(dims, rank, &count, err));
	if (!cf_mul_u64(count, info->size, &size) || size != data_size)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "%llu bytes for %llu elements of %lu bytes",
			(unsigned long long)data_size, (unsigned long long)count, (unsigned long)info->size);
	return ckptfmt_writer_add(writer, &source, 1, err);
}

ckptfmt_status ckptfmt_writer_add_strings(ckptfmt_writer *writer, const uint8_t *name, uint64_t name_size,
	const int64_t *dims, int32_t rank, const uint8_t *bytes, const uint64_t *sizes, ckptfmt_error *err)
{
	ckptfmt_source source = source_of(name, name_size, CKPTFMT_STRING, dims, rank, NULL);
	ckptfmt_bytes *elements;
	ckptfmt_status status;
	uint64_t count;
	CF_TRY(count_elements(dims, rank, &count, err));
	elements = cf_allocate_zero(count, sizeof *elements);
	if (elements == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < count; i++) {
		elements[i] = (ckptfmt_bytes){bytes, sizes[i]};
		bytes += sizes[i];
	}
	source.data = (const uint8_t *)elements;
	status = ckptfmt_writer_add(writer, &source, 1, err);
	cf_release(elements);
	return status;
}
