/* SPDX-License-Identifier: Apache-2.0 */
/* Adding tensors one by one, without structs that hold pointers. */
#include "base/memory.h"
#include "write/value.h"
#include "write/writer.h"

#include <string.h>

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

static ckptfmt_status check_fixed(const ckptfmt_source *source, uint64_t data_size, ckptfmt_error *err)
{
	CF_TRY(cf_source_check(source, err));
	if (ckptfmt_dtype_find(source->dtype)->storage != CKPTFMT_STORAGE_FIXED)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "dtype %d has no elements of a fixed size",
			(int)source->dtype);
	if (cf_source_size(source) != data_size)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "dtype and shape need %llu bytes, not %llu",
			(unsigned long long)cf_source_size(source), (unsigned long long)data_size);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_writer_add_tensor(ckptfmt_writer *writer, const uint8_t *name, uint64_t name_size, int32_t dtype,
	const int64_t *dims, int32_t rank, const uint8_t *data, uint64_t data_size, ckptfmt_error *err)
{
	const ckptfmt_source source = source_of(name, name_size, dtype, dims, rank, data);
	ckptfmt_status status;
	CF_TRY(cf_writer_check_state(writer, err));
	status = check_fixed(&source, data_size, err);
	if (status != CKPTFMT_OK)
		return cf_writer_refuse(writer, &source, status, err);
	return ckptfmt_writer_add(writer, &source, 1, err);
}

ckptfmt_status ckptfmt_writer_add_strings(ckptfmt_writer *writer, const uint8_t *name, uint64_t name_size,
	const int64_t *dims, int32_t rank, const uint8_t *bytes, const uint64_t *sizes, ckptfmt_error *err)
{
	ckptfmt_source source = source_of(name, name_size, CKPTFMT_STRING, dims, rank, NULL);
	ckptfmt_bytes *elements;
	ckptfmt_status status;
	uint64_t count;
	CF_TRY(cf_writer_check_state(writer, err));
	status = cf_source_check(&source, err);
	if (status != CKPTFMT_OK)
		return cf_writer_refuse(writer, &source, status, err);
	count = cf_source_count(&source);
	elements = cf_allocate_zero(count, sizeof *elements);
	if (elements == NULL)
		return cf_writer_refuse(writer, &source, cf_fail_memory(err), err);
	for (uint64_t i = 0; i < count; i++) {
		elements[i] = (ckptfmt_bytes){bytes, sizes[i]};
		bytes += sizes[i];
	}
	source.data = (const uint8_t *)elements;
	status = ckptfmt_writer_add(writer, &source, 1, err);
	cf_release(elements);
	return status;
}
