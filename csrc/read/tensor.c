/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors one by one, through calls whose structs hold no pointers: for cgo, JNI and the like. */
#include "proto/message.h"
#include "read/reader.h"

#include <string.h>

uint64_t ckptfmt_selection_count(const ckptfmt_selection *selection)
{
	return cf_selection_count(selection);
}

const uint8_t *ckptfmt_selection_name(const ckptfmt_selection *selection, uint64_t row, uint64_t *size)
{
	*size = 0;
	if (row >= cf_selection_count(selection))
		return NULL;
	*size = cf_selection_row(selection, row)->name_size;
	return cf_selection_name(selection, cf_selection_row(selection, row));
}

ckptfmt_status ckptfmt_selection_tensor(const ckptfmt_selection *selection, uint64_t row, ckptfmt_tensor *out,
	ckptfmt_error *err)
{
	const ckptfmt_dtype_info *dtype;
	const ckptfmt_row *tensor;
	memset(out, 0, sizeof *out);
	CF_TRY(cf_selection_check_row(selection, row, err));
	tensor = cf_selection_row(selection, row);
	dtype = ckptfmt_dtype_find(tensor->dtype);
	out->byte_size = dtype == NULL ? tensor->stored.raw_size : 0;
	if (dtype != NULL && !cf_mul_u64((uint64_t)tensor->element_count, dtype->size, &out->byte_size))
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, tensor->entry_offset, "the size in bytes does not fit 64 bits");
	out->element_count = tensor->element_count;
	out->dtype = tensor->dtype;
	out->rank = tensor->rank;
	out->slice_count = tensor->slice_count;
	if (tensor->rank != 0)
		memcpy(out->dims, cf_selection_dims(selection, tensor->dims_first), (size_t)tensor->rank * sizeof *out->dims);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_tensor_find(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size, ckptfmt_tensor *out,
	ckptfmt_error *err)
{
	ckptfmt_selection *selection;
	ckptfmt_status status;
	memset(out, 0, sizeof *out);
	CF_TRY(ckptfmt_reader_select(reader, name, &name_size, 1, &selection, err));
	status = ckptfmt_selection_tensor(selection, 0, out, err);
	ckptfmt_selection_free(selection);
	return status;
}

ckptfmt_status ckptfmt_tensor_read(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size, const int64_t *box,
	uint8_t *destination, uint64_t destination_size, int32_t verify, ckptfmt_error *err)
{
	ckptfmt_request request = {0, box, destination, destination_size, 0, 0};
	ckptfmt_selection *selection;
	ckptfmt_status status;
	CF_TRY(ckptfmt_reader_select(reader, name, &name_size, 1, &selection, err));
	status = ckptfmt_reader_read(reader, selection, &request, 1, verify, err);
	ckptfmt_selection_free(selection);
	return status;
}

ckptfmt_status ckptfmt_tensor_read_strings(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size,
	const int64_t *box, int32_t verify, ckptfmt_strings **out, ckptfmt_error *err)
{
	ckptfmt_selection *selection;
	ckptfmt_status status;
	*out = NULL;
	CF_TRY(ckptfmt_reader_select(reader, name, &name_size, 1, &selection, err));
	status = ckptfmt_reader_read_strings(reader, selection, 0, box, verify, out, err);
	ckptfmt_selection_free(selection);
	return status;
}

ckptfmt_status ckptfmt_reader_metadata(ckptfmt_reader *reader, ckptfmt_strings **out, ckptfmt_error *err)
{
	static const uint8_t name[] = CF_METADATA_NAME;
	int32_t found;
	*out = NULL;
	CF_TRY(ckptfmt_reader_contains(reader, name, sizeof name - 1, &found, err));
	if (!found)
		return CKPTFMT_OK;
	return ckptfmt_tensor_read_strings(reader, name, sizeof name - 1, NULL, CKPTFMT_VERIFY_AUTO, out, err);
}
