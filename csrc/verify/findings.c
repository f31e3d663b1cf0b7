/* SPDX-License-Identifier: Apache-2.0 */
/* The findings of a verifier. They are large records, so their number is bounded: a few notes of each kind and many
 * problems are listed, then counted. */
#include "verify/private.h"

#include "slices/key.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* By kind of note: the rule of spec/format.md, and a text for notes that are not listed. */
static const struct {
	const char *rule;
	const char *text;
} kinds[CF_VERIFY_NOTE_KINDS] = {
	[CF_VERIFY_NOT_CANONICAL] = {"MSG-15", "messages that are not in canonical form"},
	[CF_VERIFY_UNKNOWN] = {"MSG-8", "messages with fields that this version does not write"},
	[CF_VERIFY_NO_SHAPE] = {"ENT-2", "entries without a shape"},
	[CF_VERIFY_UNKNOWN_DTYPE] = {"DTY-6", "data types that this version does not know"},
	[CF_VERIFY_BIG_ENDIAN] = {"HDR-5", "big-endian data files"},
	[CF_VERIFY_SLICE_LOCATION] = {"ENT-7", "entries of partitioned tensors that name bytes of their own"},
	[CF_VERIFY_NESTED_SLICES] = {"SLC-10", "entries of slices that list slices"},
	[CF_VERIFY_SNAPPY] = {"SNP-1", "Snappy blocks"},
	[CF_VERIFY_BLOCK] = {"BLK-11", "blocks that deviate from the canonical form"},
	[CF_VERIFY_METAINDEX] = {"TAB-10", "a metaindex block that is not the empty one"},
	[CF_VERIFY_SEPARATOR] = {"TAB-7", "an index block that deviates from the canonical form"},
	[CF_VERIFY_FOOTER] = {"FTR-4", "a footer that deviates from the canonical form"},
	[CF_VERIFY_GAP] = {"TAB-11", "bytes that belong to no block"},
	[CF_VERIFY_PADDING] = {"DAT-5", "padding that is not zero"},
	[CF_VERIFY_UNNAMED] = {"DAT-3", "bytes of a data file that no entry names"},
	[CF_VERIFY_UNREFERENCED] = {"CMT-6", "a data file that no entry names"},
	[CF_VERIFY_UNNEEDED] = {"NAM-5", "a data file that is missing but not needed"},
	[CF_VERIFY_LEFTOVER] = {"NAM-8", "an orphaned data file of another save"},
	[CF_VERIFY_TEMPORARY] = {"NAM-8", "a temporary file: orphaned, or of a save in progress"},
	[CF_VERIFY_UNLISTED] = {"NAM-8", "the directory cannot be listed"},
};

static void stop(cf_verifier *v, const ckptfmt_error *error)
{
	if (!cf_verify_failed(v))
		v->fatal = *error;
}

/* Copies member by member: the bytes after the ends of the texts are not initialized. */
static void add(cf_verifier *v, ckptfmt_severity severity, ckptfmt_error *error, const cf_verify_place *place)
{
	ckptfmt_finding *finding;
	/* Without memory, checks fail for reasons other than the file. */
	if (cf_verify_failed(v))
		return;
	cf_error_offset(error, place->offset);
	cf_error_path(error, place->path);
	if (error->tensor_size == 0)
		cf_slice_key_error(error, place->key.data, place->key.size);
	finding = cf_buffer_extend(&v->findings, sizeof *finding);
	if (finding == NULL) {
		ckptfmt_status status = cf_fail_memory(error);
		(void)status;
		stop(v, error);
		return;
	}
	memset(finding, 0, sizeof *finding);
	finding->severity = (int32_t)severity;
	finding->error.status = error->status;
	finding->error.failure = error->failure;
	finding->error.os_errno = error->os_errno;
	finding->error.tensor_size = error->tensor_size;
	finding->error.offset = error->offset;
	memcpy(finding->error.message, error->message, strlen(error->message));
	memcpy(finding->error.tensor, error->tensor, error->tensor_size);
	memcpy(finding->error.path, error->path, strlen(error->path));
}

bool cf_verify_ok(cf_verifier *v, ckptfmt_status status, ckptfmt_error *error, const cf_verify_place *place)
{
	if (CF_LIKELY(status == CKPTFMT_OK))
		return true;
	if (status == CKPTFMT_NO_MEMORY || status == CKPTFMT_CANCELLED)
		stop(v, error);
	else if (v->problem_count++ < CF_VERIFY_PROBLEMS_MAX)
		add(v, CKPTFMT_SEVERITY_PROBLEM, error, place);
	return false;
}

/* Makes the error of a finding with this text. */
static void describe(ckptfmt_error *error, ckptfmt_failure failure, const char *format, va_list values)
{
	char text[sizeof error->message];
	ckptfmt_status status;
	(void)vsnprintf(text, sizeof text, format, values);
	status = cf_fail(error, failure, CF_NO_OFFSET, "%s", text);
	(void)status;
}

void cf_verify_problem(cf_verifier *v, ckptfmt_failure failure, const cf_verify_place *place, const char *format,
	...)
{
	ckptfmt_error error;
	va_list values;
	if (v->problem_count++ >= CF_VERIFY_PROBLEMS_MAX)
		return;
	va_start(values, format);
	describe(&error, failure, format, values);
	va_end(values);
	add(v, CKPTFMT_SEVERITY_PROBLEM, &error, place);
}

void cf_verify_note(cf_verifier *v, uint32_t kind, const cf_verify_place *place, const char *format, ...)
{
	ckptfmt_error error;
	va_list values;
	if (v->note_counts[kind]++ >= CF_VERIFY_NOTES_MAX)
		return;
	va_start(values, format);
	describe(&error, CKPTFMT_FAIL_NONE, format, values);
	va_end(values);
	add(v, CKPTFMT_SEVERITY_NOTE, &error, place);
}

void cf_verify_count(cf_verifier *v, uint64_t bytes)
{
	ckptfmt_error error;
	v->bytes_done += bytes;
	(void)cf_verify_ok(v, cf_progress_add(v->progress, bytes, &error), &error, NULL);
}

void cf_verify_close_findings(cf_verifier *v)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, CF_NO_OFFSET};
	for (uint32_t kind = 0; kind < CF_VERIFY_NOTE_KINDS; kind++) {
		uint64_t count = v->note_counts[kind];
		if (count <= CF_VERIFY_NOTES_MAX)
			continue;
		/* This note is listed beyond the limit. */
		v->note_counts[kind] = 0;
		cf_verify_note(v, kind, &place, "%s: %llu more of: %s", kinds[kind].rule,
			(unsigned long long)(count - CF_VERIFY_NOTES_MAX), kinds[kind].text);
	}
	if (v->problem_count > CF_VERIFY_PROBLEMS_MAX) {
		uint64_t count = v->problem_count - CF_VERIFY_PROBLEMS_MAX;
		v->problem_count = 0;
		cf_verify_problem(v, CKPTFMT_FAIL_LIMIT, &place, "%llu more problems are not listed",
			(unsigned long long)count);
	}
}
