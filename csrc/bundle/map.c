/* SPDX-License-Identifier: Apache-2.0 */
/* Read-only views of stored values, without a copy. */
#include "base/memory.h"
#include "bundle/geometry.h"
#include "bundle/transfer.h"

#include <string.h>

struct ckptfmt_mapping {
	const uint8_t *pages;       /* NULL for a value of no bytes */
	uint64_t pages_size;
	const uint8_t *data;
	uint64_t size;
};

static ckptfmt_status check_mappable(const ckptfmt_reader *reader, const ckptfmt_selection *selection,
	const ckptfmt_row *row, ckptfmt_error *err)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(row->dtype);
	if (dtype == NULL || dtype->storage != CKPTFMT_STORAGE_FIXED)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "a tensor of this data type cannot be mapped");
	if (row->slice_count != 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"a partitioned tensor is not in one piece and cannot be mapped");
	if (cf_reader_swaps(reader) && dtype->swap_size > 1)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"the tensor is in another byte order than this machine's and cannot be mapped");
	if (row->stored.flags & CKPTFMT_STORED_COMPRESSED)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "a compressed tensor cannot be mapped");
	return cf_geometry_check_value(selection, row, CF_WHOLE_TENSOR, dtype->size, err);
}

static ckptfmt_status map_value(cf_transfer *transfer, const ckptfmt_stored *stored, ckptfmt_mapping *mapping,
	ckptfmt_error *err)
{
	uint64_t page = cf_os_page_size(), first;
	mapping->size = stored->size;
	CF_TRY(cf_transfer_open(transfer, stored, err));
	if (stored->size == 0)
		return CKPTFMT_OK;
	first = stored->offset / page * page;
	mapping->pages_size = stored->offset + stored->size - first;
	CF_TRY(cf_os_map(&transfer->use.file, "", first, mapping->pages_size, &mapping->pages, err));
	mapping->data = mapping->pages + (stored->offset - first);
	if (transfer->verify == CKPTFMT_VERIFY_OFF)
		return CKPTFMT_OK;
	{
		uint32_t crc = ckptfmt_crc32c(0, mapping->data, stored->size);
		if (crc != stored->crc32c)
			return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, stored->offset,
				"DAT-6: the bytes do not match their checksum: stored 0x%08x, computed 0x%08x",
				stored->crc32c, crc);
	}
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_map(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	int32_t verify, ckptfmt_mapping **out, ckptfmt_error *err)
{
	const ckptfmt_row *tensor;
	cf_transfer transfer;
	ckptfmt_mapping *mapping;
	ckptfmt_status status;
	*out = NULL;
	CF_TRY(cf_reader_check_call(reader, selection, verify, err));
	if (row >= cf_selection_count(selection))
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "row %llu of %llu", (unsigned long long)row,
			(unsigned long long)cf_selection_count(selection));
	tensor = cf_selection_row(selection, row);
	mapping = cf_allocate_zero(1, sizeof *mapping);
	if (mapping == NULL)
		return cf_fail_memory(err);
	cf_transfer_begin(&transfer, reader, selection, verify);
	status = check_mappable(reader, selection, tensor, err);
	if (status == CKPTFMT_OK) {
		status = map_value(&transfer, &tensor->stored, mapping, err);
		if (status != CKPTFMT_OK)
			cf_transfer_error(&transfer, &tensor->stored, err);
	}
	cf_transfer_end(&transfer);
	if (status != CKPTFMT_OK) {
		cf_error_tensor(err, cf_selection_name(selection, tensor), tensor->name_size);
		cf_error_path(err, reader->prefix.index_path);
		cf_error_entry(err, tensor);
		ckptfmt_mapping_close(mapping);
		return status;
	}
	*out = mapping;
	return CKPTFMT_OK;
}

const uint8_t *ckptfmt_mapping_data(const ckptfmt_mapping *mapping, uint64_t *size)
{
	*size = mapping->size;
	return mapping->data;
}

void ckptfmt_mapping_close(ckptfmt_mapping *mapping)
{
	if (mapping == NULL)
		return;
	if (mapping->pages != NULL)
		cf_os_unmap(mapping->pages, mapping->pages_size);
	cf_release(mapping);
}
