/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests to jobs: a tensor stored whole is one job, a partitioned one a job for each slice that intersects the box.
 * Jobs run in the order of the data files. Everything about the requests is checked before the first byte is written.
 */
#include "read/reader.h"

#include "base/memory.h"
#include "read/rules.h"
#include "read/jobs.h"
#include "slices/box.h"
#include "slices/gather.h"

#include <stdlib.h>
#include <string.h>

typedef struct batch {
	ckptfmt_reader *reader;
	const ckptfmt_selection *selection;
	cf_buffer jobs;             /* cf_read_job */
	uint64_t bytes;             /* that they will transfer, approximately */
	int32_t verify;
	bool decodes;               /* at least one value is compressed */
} batch;

static const cf_read_job *job_at(const batch *b, uint64_t row)
{
	return (const cf_read_job *)cf_buffer_items(&b->jobs) + row;
}

static uint64_t job_count(const batch *b)
{
	return b->jobs.size / sizeof(cf_read_job);
}

/* ---- requests -------------------------------------------------------------------------------------------- */

/* Reads nothing: checks the request only. */
static bool is_dry(const ckptfmt_request *request)
{
	return request->destination == NULL;
}

/* The bytes an element takes in memory; of an unknown dtype 0 (its bytes are given raw), as of strings that are not
 * read. */
static ckptfmt_status item_size(const ckptfmt_row *row, bool dry, uint64_t *out, ckptfmt_error *err)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(row->dtype);
	CF_TRY(cf_dtype_check(row->dtype, CF_NO_OFFSET, err));
	*out = dtype == NULL ? 0 : dtype->size;
	if (dtype != NULL && dtype->storage != CKPTFMT_STORAGE_FIXED && !dry)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "a %s tensor is read with read_strings",
			dtype->name);
	return CKPTFMT_OK;
}

static ckptfmt_status check_limit(const batch *b, const ckptfmt_row *row, uint64_t size, ckptfmt_error *err)
{
	bool compressed = row->slice_count == 0 && (row->stored.flags & CKPTFMT_STORED_COMPRESSED) != 0;
	return cf_value_check_limit(&b->reader->limits, size, compressed, CF_NO_OFFSET, err);
}

static ckptfmt_status check_raw_request(const batch *b, const ckptfmt_row *row, const ckptfmt_request *request,
	ckptfmt_error *err)
{
	if (row->slice_count != 0 || request->box != NULL)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET,
			"DTY-6: data type %d is not known, so that only all stored bytes can be read", (int)row->dtype);
	if ((row->stored.flags & CKPTFMT_STORED_COMPRESSED) == 0 && !is_dry(request) &&
		request->destination_size != row->stored.size)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"the destination has %llu bytes, the stored value %llu",
			(unsigned long long)request->destination_size, (unsigned long long)row->stored.size);
	return check_limit(b, row, row->stored.size, err);
}

static ckptfmt_status check_request(const batch *b, const ckptfmt_row *row, const ckptfmt_request *request,
	uint64_t itemsize, ckptfmt_error *err)
{
	const int64_t *dims = cf_selection_dims(b->selection, row->dims_first);
	uint64_t count = (uint64_t)row->element_count, size;
	if (itemsize == 0 && ckptfmt_dtype_find(row->dtype) == NULL)
		return check_raw_request(b, row, request, err);
	if (request->box != NULL) {
		CF_TRY(cf_box_check_request(row->rank, dims, request->box, request->box + row->rank, err));
		count = (uint64_t)cf_box_count(row->rank, request->box + row->rank);
	}
	/* ENT-5 */
	if (!cf_mul_u64(count, itemsize, &size))
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET, "ENT-5: the size in bytes does not fit 64 bits");
	if (size != request->destination_size && !is_dry(request))
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the destination has %llu bytes, the value %llu",
			(unsigned long long)request->destination_size, (unsigned long long)size);
	return check_limit(b, row, size, err);
}

static ckptfmt_status add_job(batch *b, const cf_read_job *next, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = next->stored;
	if (stored->flags & CKPTFMT_STORED_COMPRESSED) {
		if (b->reader->codec == NULL)
			return cf_fail_codec(err);
		CF_TRY(cf_value_check_limit(&b->reader->limits, stored->raw_size, true, CF_NO_OFFSET, err));
		b->decodes = true;
	}
	/* No overflow: each term is at most the size of memory that exists. */
	if (!is_dry(next->request))
		b->bytes += cf_min_u64(stored->raw_size, next->request->destination_size);
	cf_put_bytes(&b->jobs, next, sizeof *next);
	return CKPTFMT_OK;
}

static ckptfmt_status add_jobs(batch *b, const ckptfmt_row *row, ckptfmt_request *request, ckptfmt_error *err)
{
	const ckptfmt_slice_row *slices = cf_selection_slices(b->selection, row);
	cf_read_job next = {&row->stored, request, CF_WHOLE_TENSOR};
	cf_geometry_walk walk;
	uint64_t i;
	if (row->slice_count == 0) {
		CF_TRY(cf_value_check(b->selection, row, CF_WHOLE_TENSOR, err));
		return add_job(b, &next, err);
	}
	CF_TRY(cf_geometry_check_cover(b->selection, row, request->box, err));
	walk = cf_geometry_walk_begin(b->selection, row, request->box);
	while (cf_geometry_walk_next(&walk, &i)) {
		CF_TRY(cf_value_check(b->selection, row, i, err));
		next.stored = &slices[i].stored;
		next.slice = i;
		CF_TRY(add_job(b, &next, err));
	}
	return CKPTFMT_OK;
}

static int compare_jobs(const void *a, const void *b)
{
	const ckptfmt_stored *x = ((const cf_read_job *)a)->stored, *y = ((const cf_read_job *)b)->stored;
	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	return (x->offset > y->offset) - (x->offset < y->offset);
}

static void sort_jobs(batch *b)
{
	uint64_t count = job_count(b), i = 1;
	/* Names and data files are mostly in the same order. */
	while (i < count && compare_jobs(job_at(b, i - 1), job_at(b, i)) <= 0)
		i++;
	if (i < count)
		qsort(b->jobs.data, (size_t)count, sizeof(cf_read_job), compare_jobs);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static void swap_results(const batch *b, const ckptfmt_request *requests, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++) {
		const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(cf_selection_row(b->selection, requests[i].row)->dtype);
		if (dtype != NULL && dtype->swap_size > 1 && !is_dry(&requests[i]))
			cf_swap_bytes(requests[i].destination, requests[i].destination_size, dtype->swap_size);
	}
}

static ckptfmt_status prepare(batch *b, ckptfmt_request *requests, uint64_t count, ckptfmt_error *err)
{
	for (uint64_t i = 0; i < count; i++) {
		const ckptfmt_row *row;
		ckptfmt_status status;
		uint64_t itemsize = 0;
		if (requests[i].row >= cf_selection_count(b->selection))
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "request %llu names row %llu of %llu",
				(unsigned long long)i, (unsigned long long)requests[i].row,
				(unsigned long long)cf_selection_count(b->selection));
		row = cf_selection_row(b->selection, requests[i].row);
		requests[i].verified = b->verify != CKPTFMT_VERIFY_OFF;
		status = item_size(row, is_dry(&requests[i]), &itemsize, err);
		if (status == CKPTFMT_OK)
			status = check_request(b, row, &requests[i], itemsize, err);
		if (status == CKPTFMT_OK)
			status = add_jobs(b, row, &requests[i], err);
		if (status != CKPTFMT_OK) {
			cf_reader_error(b->reader, b->selection, row, err);
			return status;
		}
	}
	CF_TRY(cf_buffer_status(&b->jobs, err));
	sort_jobs(b);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_read(ckptfmt_reader *reader, const ckptfmt_selection *selection,
	ckptfmt_request *requests, uint64_t count, int32_t verify, ckptfmt_error *err)
{
	batch b = {reader, selection, CF_BUFFER_EMPTY, 0, verify, false};
	ckptfmt_status status;
	CF_TRY(cf_reader_check_call(reader, selection, verify, err));
	status = prepare(&b, requests, count, err);
	if (status == CKPTFMT_OK) {
		cf_progress progress;
		cf_read_work work = {reader, selection, verify, job_at(&b, 0), job_count(&b), b.bytes, b.decodes, &progress};
		cf_progress_init(&progress, &reader->progress);
		status = cf_progress_begin(&progress, b.bytes, err);
		if (status == CKPTFMT_OK)
			status = cf_read_run(&work, err);
		if (status == CKPTFMT_OK)
			status = cf_progress_end(&progress, err);
	}
	if (status == CKPTFMT_OK && cf_reader_swaps(reader))
		swap_results(&b, requests, count);
	cf_buffer_free(&b.jobs);
	return status;
}
