/* SPDX-License-Identifier: Apache-2.0 */
/* Read-only views of stored values, without a copy. */
#include "base/memory.h"
#include "read/values.h"
#include "read/jobs.h"
#include "read/transfer.h"
#include "base/pages.h"
#include "base/workers.h"

#include <pthread.h>
#include <string.h>

enum { AHEAD = 4 * CF_READ_UNIT };  /* of what is not cached, this much is asked for before it is looked at */

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

/* ---- checksums ------------------------------------------------------------------------------------------- */

typedef struct summing {
	const uint8_t *data;
	uint64_t size;
	bool ahead;                 /* not cached */
	pthread_mutex_t lock;       /* over what follows */
	uint64_t next;              /* where the part begins that nobody has taken */
	uint32_t crc;               /* sum of what the parts contribute */
} summing;

static void *sum_parts(void *argument)
{
	summing *s = argument;
	uint32_t moved = 0;
	for (;;) {
		uint64_t at, size;
		(void)pthread_mutex_lock(&s->lock);
		s->crc ^= moved;
		at = s->next;
		size = cf_min_u64(s->size - at, CF_READ_UNIT);
		s->next = at + size;
		(void)pthread_mutex_unlock(&s->lock);
		if (size == 0)
			return NULL;
		if (s->ahead && at < s->size - cf_min_u64(s->size, AHEAD))
			cf_pages_want_soon(s->data + at + AHEAD, cf_min_u64(s->size - at - AHEAD, CF_READ_UNIT));
		moved = ckptfmt_crc32c_combine(ckptfmt_crc32c(0, s->data + at, size), 0, s->size - at - size);
	}
}

/* REQUIRES: size > 0. */
static uint32_t sum_mapped(const cf_transfer *transfer, const ckptfmt_stored *stored, const uint8_t *data)
{
	summing s = {.data = data, .size = stored->size};
	if (s.size < 2 * CF_READ_UNIT || pthread_mutex_init(&s.lock, NULL) != 0)
		return ckptfmt_crc32c(0, data, s.size);
	s.ahead = !cf_os_is_cached(&transfer->use.file, stored->offset, s.size);
	if (s.ahead)
		cf_pages_want_soon(data, cf_min_u64(s.size, AHEAD));
	cf_workers_run(cf_read_threads(transfer->reader, s.size, false), sum_parts, &s);
	(void)pthread_mutex_destroy(&s.lock);
	return s.crc;
}

/* ---- mapping --------------------------------------------------------------------------------------------- */

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
	return cf_transfer_check(stored, sum_mapped(transfer, stored, mapping->data), err);
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
