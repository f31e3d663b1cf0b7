/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying a checkpoint: the stages of private.h, and what becomes of a checkpoint that is replaced meanwhile. */
#include "verify/private.h"

#include "base/memory.h"

#include <string.h>

static ckptfmt_status open_index(cf_verifier *v, ckptfmt_error *err)
{
	ckptfmt_reader *reader = v->reader;
	ckptfmt_error error;
	cf_verify_place place = {reader->prefix.index_path, {NULL, 0}, CF_NO_OFFSET};
	ckptfmt_status status;
	CF_TRY(cf_reader_open_index(reader, err));
	CF_TRY(cf_progress_begin(v->progress, reader->index_info.size, err));
	status = cf_reader_open_table(reader, &error);
	if (status == CKPTFMT_IO || status == CKPTFMT_NO_MEMORY) {
		if (err != NULL)
			*err = error;
		return status;
	}
	if (cf_verify_ok(v, status, &error, &place)) {
		cf_table_check_open(&v->check, reader->table);
		cf_verify_table_begin(v);
	}
	return CKPTFMT_OK;
}

/* Everything that belongs to one generation of the checkpoint. */
static void release_run(cf_verifier *v)
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

static ckptfmt_status begin_run(cf_verifier *v, ckptfmt_error *err)
{
	*v = (cf_verifier){.reader = v->reader, .progress = v->progress, .restarts = v->restarts};
	cf_block_iterator_init(&v->entries);
	v->file.shard = -1;
	v->selection = cf_allocate_zero(1, sizeof *v->selection);
	cf_transfer_begin(&v->transfer, v->reader, v->selection, CKPTFMT_VERIFY_FULL);
	return v->selection == NULL ? cf_fail_memory(err) : open_index(v, err);
}

static void run(cf_verifier *v)
{
	if (v->reader->table != NULL) {
		cf_verify_index(v);
		cf_verify_tensors(v);
		cf_verify_data(v);
	}
	if (!cf_verify_failed(v))
		cf_verify_files(v);
}

/* ---- replaced checkpoints -------------------------------------------------------------------------------- */

/* *replaced: there is another index under this name. *gone: there is none. */
static ckptfmt_status compare_index(cf_verifier *v, bool *replaced, bool *gone, ckptfmt_error *err)
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

/* Findings about a replaced checkpoint may mix two generations: they are dropped, and the new index is verified. A
 * checkpoint that is replaced again and again is reported at the end. */
static bool is_replaced(cf_verifier *v)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, CF_NO_OFFSET};
	bool replaced = false, gone = false;
	ckptfmt_error error;
	if (!cf_verify_ok(v, compare_index(v, &replaced, &gone, &error), &error, &place))
		return false;
	if (replaced && v->restarts < CF_VERIFY_RESTARTS_MAX)
		return true;
	if (replaced || gone)
		cf_verify_problem(v, CKPTFMT_FAIL_GENERATION_GONE, &place,
			"CMT-12: the checkpoint was replaced or removed while it was being verified");
	return false;
}

/* False: it was removed just now, or cannot be read. */
static bool begin_again(cf_verifier *v)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, CF_NO_OFFSET};
	ckptfmt_error error;
	release_run(v);
	cf_reader_close_files(v->reader);
	v->restarts++;
	return cf_verify_ok(v, begin_run(v, &error), &error, &place);
}

/* ---- all ------------------------------------------------------------------------------------------------- */

static ckptfmt_status make_report(cf_verifier *v, ckptfmt_report **out, ckptfmt_error *err)
{
	ckptfmt_report *report;
	cf_verify_close_findings(v);
	v->progress->total = v->bytes_done;
	if (!cf_verify_failed(v))
		CF_TRY(cf_progress_end(v->progress, err));
	if (cf_verify_failed(v)) {
		if (err != NULL)
			*err = v->fatal;
		return (ckptfmt_status)v->fatal.status;
	}
	report = cf_allocate_zero(1, sizeof *report);
	if (report == NULL)
		return cf_fail_memory(err);
	report->findings = (const ckptfmt_finding *)(const void *)v->findings.data;
	report->finding_count = v->findings.size / sizeof(ckptfmt_finding);
	report->bytes_checked = v->bytes_done;
	report->tensors_checked = v->tensors_done;
	v->findings = CF_BUFFER_EMPTY;
	*out = report;
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_verify(const char *prefix, const ckptfmt_open_options *options, ckptfmt_report **out,
	ckptfmt_error *err)
{
	cf_progress progress;
	cf_verifier v = {.progress = &progress};
	ckptfmt_status status;
	*out = NULL;
	CF_TRY(cf_reader_new(prefix, options, &v.reader, err));
	cf_progress_init(&progress, &v.reader->progress);
	status = begin_run(&v, err);
	if (status == CKPTFMT_OK) {
		do
			run(&v);
		while (!cf_verify_failed(&v) && is_replaced(&v) && begin_again(&v));
		status = make_report(&v, out, err);
	}
	release_run(&v);
	ckptfmt_reader_close(v.reader);
	return status;
}

void ckptfmt_report_free(ckptfmt_report *report)
{
	if (report == NULL)
		return;
	cf_release((void *)(uintptr_t)report->findings);
	cf_release(report);
}
