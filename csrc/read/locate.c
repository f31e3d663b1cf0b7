/* SPDX-License-Identifier: Apache-2.0 */
/* Where the bytes of a stored value are, for callers that read or map data files themselves. */
#include "read/rules.h"
#include "read/transfer.h"

#include <string.h>

static ckptfmt_status check_numbers(const ckptfmt_selection *selection, uint64_t row, uint64_t slice,
	ckptfmt_error *err)
{
	const ckptfmt_row *tensor;
	CF_TRY(cf_selection_check_row(selection, row, err));
	tensor = cf_selection_row(selection, row);
	if (tensor->slice_count == 0 ? slice != CKPTFMT_WHOLE : slice >= tensor->slice_count)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"slice %llu of %lu; a tensor stored whole has slice CKPTFMT_WHOLE", (unsigned long long)slice,
			(unsigned long)tensor->slice_count);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_locate(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	uint64_t slice, ckptfmt_location *out, ckptfmt_error *err)
{
	const ckptfmt_row *tensor;
	const ckptfmt_stored *stored;
	cf_transfer transfer;
	ckptfmt_status status;
	int64_t count;
	memset(out, 0, sizeof *out);
	CF_TRY(cf_reader_check_call(reader, selection, CKPTFMT_VERIFY_OFF, err));
	CF_TRY(check_numbers(selection, row, slice, err));
	tensor = cf_selection_row(selection, row);
	stored = tensor->slice_count == 0 ? &tensor->stored : &cf_selection_slices(selection, tensor)[slice].stored;
	cf_transfer_begin(&transfer, reader, selection, CKPTFMT_VERIFY_OFF);
	status = slice == CKPTFMT_WHOLE ? CKPTFMT_OK
		: cf_geometry_check_extents(selection, tensor, slice, &count, err);
	if (status == CKPTFMT_OK)
		status = cf_value_check(selection, tensor, slice, err);
	if (status == CKPTFMT_OK) {
		status = cf_transfer_open(&transfer, stored, err);
		if (status != CKPTFMT_OK)
			cf_transfer_error(&transfer, stored, err);
	}
	cf_transfer_end(&transfer);
	if (status != CKPTFMT_OK) {
		cf_reader_error(reader, selection, tensor, err);
		return status;
	}
	out->offset = stored->offset;
	out->size = stored->size;
	out->raw_size = stored->raw_size;
	out->shard = stored->shard;
	out->crc32c = stored->crc32c;
	out->compressed = (stored->flags & CKPTFMT_STORED_COMPRESSED) != 0;
	out->big_endian = reader->header.endianness == 1;
	cf_reader_data_path(reader, stored->shard, out->path, sizeof out->path);
	return CKPTFMT_OK;
}
