/* SPDX-License-Identifier: Apache-2.0 */
/* Read-only views of stored values, without a copy. */
#include "base/memory.h"
#include "read/rules.h"
#include "read/jobs.h"
#include "read/transfer.h"
#include "base/pages.h"
#include "base/workers.h"

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
	CF_TRY(cf_value_check(selection, row, CF_WHOLE_TENSOR, err));
	return cf_value_check_limit(&reader->limits, row->stored.size, false, CF_NO_OFFSET, err);
}

/* ---- verification ---------------------------------------------------------------------------------------- */

enum { BLOCK_SIZE = 512 << 10 };    /* read at a time by each thread: stays in the cache of its core */

typedef struct verification {
	cf_transfer *transfer;      /* its data file is open, so that threads can share it */
	const ckptfmt_stored *stored;
	uint8_t *blocks;            /* BLOCK_SIZE bytes for each thread */
	uint32_t crcs[CF_WORKERS_MAX];  /* what the parts of each thread contribute to the checksum */
} verification;

static ckptfmt_status verify_part(void *job, int32_t thread, uint64_t i, ckptfmt_error *err)
{
	verification *v = job;
	uint64_t begin = i * CF_READ_UNIT, end = cf_min_u64(v->stored->size, begin + CF_READ_UNIT);
	uint8_t *block = v->blocks + (uint64_t)thread * BLOCK_SIZE;
	uint32_t crc = 0;
	for (uint64_t at = begin; at < end;) {
		uint64_t size = cf_min_u64(BLOCK_SIZE, end - at);
		CF_TRY(cf_transfer_range(v->transfer, v->stored, at, size, block, err));
		crc = ckptfmt_crc32c(crc, block, size);
		at += size;
	}
	v->crcs[thread] ^= ckptfmt_crc32c_combine(crc, 0, v->stored->size - end);
	return CKPTFMT_OK;
}

/* Reads the value into private memory: touching a mapped page of a file that another process
 * truncated would raise SIGBUS. */
static ckptfmt_status verify_stored(cf_transfer *transfer, const ckptfmt_stored *stored, ckptfmt_error *err)
{
	verification v = {.transfer = transfer, .stored = stored};
	int32_t threads = cf_read_threads(transfer->reader, stored->size, false);
	uint64_t parts = (stored->size + CF_READ_UNIT - 1) / CF_READ_UNIT;
	ckptfmt_status status;
	uint32_t crc = 0;
	v.blocks = cf_allocate((uint64_t)threads * cf_min_u64(BLOCK_SIZE, stored->size));
	if (v.blocks == NULL)
		return cf_fail_memory(err);
	status = cf_workers_share(threads, parts, verify_part, &v, err);
	cf_release(v.blocks);
	for (int32_t i = 0; i < threads; i++)
		crc ^= v.crcs[i];
	return status == CKPTFMT_OK ? cf_transfer_check(stored, crc, err) : status;
}

/* ---- mapping --------------------------------------------------------------------------------------------- */

static ckptfmt_status map_value(cf_transfer *transfer, const ckptfmt_stored *stored, ckptfmt_mapping *mapping,
	ckptfmt_error *err)
{
	const cf_file *file = &transfer->use.file;
	uint64_t page = cf_os_page_size(), first;
	bool verify = transfer->verify != CKPTFMT_VERIFY_OFF;
	mapping->size = stored->size;
	CF_TRY(cf_transfer_open(transfer, stored, err));
	if (stored->size == 0)
		return verify ? cf_transfer_check_empty(stored, err) : CKPTFMT_OK;
	if (verify && cf_os_can_map(file))
		CF_TRY(verify_stored(transfer, stored, err));
	first = stored->offset / page * page;
	mapping->pages_size = stored->offset + stored->size - first;
	CF_TRY(cf_os_map(file, "", first, mapping->pages_size, &mapping->pages, err));
	mapping->data = mapping->pages + (stored->offset - first);
	/* A copy is private memory: check what the caller gets. */
	if (verify && !cf_os_can_map(file))
		return cf_transfer_check(stored, ckptfmt_crc32c(0, mapping->data, stored->size), err);
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
	CF_TRY(cf_selection_check_row(selection, row, err));
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
		cf_reader_error(reader, selection, tensor, err);
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

uint64_t ckptfmt_mapping_alignment(const ckptfmt_mapping *mapping)
{
	uintptr_t address = (uintptr_t)mapping->data;
	uint64_t page = cf_os_page_size();
	return address == 0 ? page : cf_min_u64(address & -address, page);
}

void ckptfmt_mapping_close(ckptfmt_mapping *mapping)
{
	if (mapping == NULL)
		return;
	if (mapping->pages != NULL)
		cf_os_unmap(mapping->pages, mapping->pages_size);
	cf_release(mapping);
}
