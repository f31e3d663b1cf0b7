/* SPDX-License-Identifier: Apache-2.0 */
/* The verifier's handle, and the loop over its stages (private.h). */
#include "verify/private.h"
#include "read/index.h"

#include "base/memory.h"

#include <string.h>

static ckptfmt_status open_index(ckptfmt_verifier *v, ckptfmt_error *err)
{
	ckptfmt_reader *reader = v->reader;
	ckptfmt_error error;
	cf_verify_place place = {reader->prefix.index_path, {NULL, 0}, CF_NO_OFFSET};
	ckptfmt_status status;
	CF_TRY(cf_reader_open_index(reader, err));
	v->bytes_total = reader->index_info.size;
	status = cf_index_open(&reader->index, reader->prefix.index_path, reader->index_info.size, &reader->limits,
		&reader->table, &error);
	if (status == CKPTFMT_IO || status == CKPTFMT_NO_MEMORY) {
		if (err != NULL)
			*err = error;
		return status;
	}
	if (cf_verify_ok(v, status, &error, &place)) {
		cf_table_check_open(&v->check, reader->table);
		cf_verify_table_begin(v);
	} else {
		cf_verify_enter(v, CF_VERIFY_FILES);
	}
	return CKPTFMT_OK;
}

/* Everything that belongs to one generation of the checkpoint. */
static void release_run(ckptfmt_verifier *v)
{
	cf_transfer_end(&v->transfer);
	cf_verify_table_abandon(v);
	cf_table_check_close(&v->check);
	cf_block_iterator_free(&v->entries);
	ckptfmt_selection_free(v->selection);
	cf_buffer_free(&v->findings);
	cf_buffer_free(&v->rows);
	cf_buffer_free(&v->parts);
	cf_deferred_free(&v->deferred);
	cf_release(v->places);
	cf_buffer_free(&v->named);
	cf_buffer_free(&v->key);
	cf_buffer_free(&v->values);
	cf_buffer_free(&v->needed);
	cf_buffer_free(&v->raw);
}

static ckptfmt_status begin_run(ckptfmt_verifier *v, ckptfmt_error *err)
{
	*v = (ckptfmt_verifier){.reader = v->reader, .restarts = v->restarts};
	cf_block_iterator_init(&v->entries);
	v->file.shard = -1;
	v->selection = cf_allocate_zero(1, sizeof *v->selection);
	if (v->selection == NULL)
		return cf_fail_memory(err);
	cf_transfer_begin(&v->transfer, v->reader, v->selection, CKPTFMT_VERIFY_FULL);
	return open_index(v, err);
}

ckptfmt_status ckptfmt_verifier_open(const char *prefix, const ckptfmt_open_options *options, ckptfmt_verifier **out,
	ckptfmt_error *err)
{
	ckptfmt_verifier *v;
	ckptfmt_status status;
	*out = NULL;
	v = cf_allocate_zero(1, sizeof *v);
	if (v == NULL)
		return cf_fail_memory(err);
	v->transfer.use.file.fd = -1;
	status = cf_reader_new(prefix, options, &v->reader, err);
	if (status == CKPTFMT_OK)
		status = begin_run(v, err);
	if (status != CKPTFMT_OK) {
		ckptfmt_verifier_close(v);
		return status;
	}
	*out = v;
	return CKPTFMT_OK;
}

void ckptfmt_verifier_close(ckptfmt_verifier *v)
{
	if (v == NULL)
		return;
	release_run(v);
	ckptfmt_reader_close(v->reader);
	cf_release(v);
}

/* ---- replaced checkpoints -------------------------------------------------------------------------------- */

/* *replaced: there is another index under this name. *gone: there is none. */
static ckptfmt_status compare_index(ckptfmt_verifier *v, bool *replaced, bool *gone, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file_info info;
	bool current, exists;
	cf_index_name(v->reader->prefix.base, name);
	CF_TRY(cf_reader_is_current(v->reader, &current, err));
	CF_TRY(cf_os_stat(&v->reader->directory, name, &info, &exists, err));
	*replaced = !current && exists;
	*gone = !current && !exists;
	return CKPTFMT_OK;
}

/* Findings about a replaced checkpoint may mix two generations: they are dropped, and verification starts again with
 * the new index. A checkpoint that is replaced again and again is reported at the end. */
static void check_current(ckptfmt_verifier *v, bool at_end)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, CF_NO_OFFSET};
	bool replaced = false, gone = false;
	ckptfmt_error error;
	if (!cf_verify_ok(v, compare_index(v, &replaced, &gone, &error), &error, &place))
		return;
	if (replaced && v->restarts < CF_VERIFY_RESTARTS_MAX) {
		ckptfmt_status status;
		release_run(v);
		cf_reader_close_files(v->reader);
		v->restarts++;
		status = begin_run(v, &error);
		/* It may have been removed just now. */
		if (!cf_verify_ok(v, status, &error, &place))
			cf_verify_enter(v, CF_VERIFY_DONE);
	} else if (at_end && (replaced || gone)) {
		cf_verify_problem(v, CKPTFMT_FAIL_GENERATION_GONE, &place,
			"CMT-12: the checkpoint was replaced or removed while it was being verified");
	}
}

static uint64_t run_stage(ckptfmt_verifier *v)
{
	switch (v->stage) {
	case CF_VERIFY_INDEX: return cf_verify_index_step(v);
	case CF_VERIFY_SLICES: return cf_verify_slices_step(v);
	case CF_VERIFY_LATE: return cf_verify_late_step(v);
	case CF_VERIFY_TENSORS: return cf_verify_tensors_step(v);
	case CF_VERIFY_DATA: return cf_verify_data_step(v);
	case CF_VERIFY_FILES: return cf_verify_files_step(v);
	case CF_VERIFY_DONE: break;
	}
	return 0;
}

static void report(const ckptfmt_verifier *v, ckptfmt_progress *progress)
{
	bool finished = v->stage == CF_VERIFY_DONE;
	progress->bytes_total = finished ? v->bytes_done : cf_max_u64(v->bytes_total, v->bytes_done);
	progress->bytes_done = v->bytes_done;
	/* NULL after a failed restart. */
	progress->tensors_total = v->selection == NULL ? 0 : cf_selection_count(v->selection);
	progress->tensors_done = v->tensors_done;
	progress->finding_count = v->findings.size / sizeof(ckptfmt_finding);
	progress->finished = finished;
	progress->reserved = 0;
}

ckptfmt_status ckptfmt_verifier_step(ckptfmt_verifier *v, uint64_t byte_budget, ckptfmt_progress *progress,
	ckptfmt_error *err)
{
	uint64_t spent = 0;
	memset(progress, 0, sizeof *progress);
	while (v->stage != CF_VERIFY_DONE && !cf_verify_failed(v)) {
		uint64_t worth = run_stage(v);
		if (v->suspect || v->stage == CF_VERIFY_DONE) {
			bool at_end = v->stage == CF_VERIFY_DONE;
			v->suspect = false;
			if (!cf_verify_failed(v))
				check_current(v, at_end);
			if (v->stage == CF_VERIFY_DONE)
				cf_verify_close_findings(v);
		}
		if (worth >= byte_budget - spent)
			break;
		spent += worth;
	}
	report(v, progress);
	if (cf_verify_failed(v)) {
		if (err != NULL)
			*err = v->fatal;
		return (ckptfmt_status)v->fatal.status;
	}
	return CKPTFMT_OK;
}

const ckptfmt_finding *ckptfmt_verifier_finding(const ckptfmt_verifier *v, uint64_t row)
{
	if (row >= v->findings.size / sizeof(ckptfmt_finding))
		return NULL;
	return (const ckptfmt_finding *)cf_buffer_items(&v->findings) + row;
}
