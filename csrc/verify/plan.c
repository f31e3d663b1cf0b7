/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the values lie in each data file. The values are put in order and each data file is gone through from its
 * start:
 *
 *   value  gap  value  value  tail
 *
 * What is to be read becomes a span: values, and gaps small enough to be padding. Bytes that two values claim are read
 * twice at most, so that entries which all name the same bytes cost no more than the file is worth.
 */
#include "verify/private.h"

#include <stdlib.h>
#include <string.h>

/* ---- the open data file ---------------------------------------------------------------------------------- */

void cf_verify_close_data(ckptfmt_verifier *v)
{
	if (v->data.fd >= 0)
		cf_os_close_quietly(&v->data);
	v->data.fd = -1;
	v->data_shard = -1;
	v->data_usable = false;
	v->window_size = 0;
}

void cf_verify_open_data(ckptfmt_verifier *v, int32_t shard, bool *missing)
{
	ckptfmt_reader *reader = v->reader;
	cf_verify_place place = {v->data_path, {NULL, 0}, CF_NO_OFFSET};
	char name[CF_NAME_SIZE];
	cf_file_info info;
	ckptfmt_error error;
	*missing = false;
	if (v->data_shard == shard)
		return;
	cf_verify_close_data(v);
	v->data_shard = shard;
	cf_reader_data_path(reader, shard, v->data_path, sizeof v->data_path);
	cf_data_name(reader->prefix.base, shard, reader->header.num_shards, name);
	if (!cf_verify_ok(v, cf_os_open(&reader->directory, name, reader->follow_symlinks, &v->data, &info, &error), &error,
		&place)) {
		v->data.fd = -1;
		return;
	}
	*missing = v->data.fd < 0;
	v->data_usable = !*missing;
	v->data_size = *missing ? 0 : info.size;
}

/* ---- one value ------------------------------------------------------------------------------------------- */

/* The values of one data file while they are gone through. */
typedef struct walk {
	int32_t shard;
	uint64_t end;               /* no value so far reaches beyond */
	uint64_t again;             /* bytes that may still be read a second time */
	uint64_t unit;              /* greatest common divisor of the offsets and the file's size */
} walk;

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
	while (b != 0) {
		uint64_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

cf_verify_place cf_verify_value_place(const ckptfmt_verifier *v, const cf_verify_value *value)
{
	const ckptfmt_row *row = cf_selection_row(v->selection, value->row);
	return (cf_verify_place){v->data_path, {cf_selection_name(v->selection, row), row->name_size},
		value->stored.offset};
}

static void add_span(ckptfmt_verifier *v, const walk *w, uint64_t offset, uint64_t size, uint64_t value)
{
	cf_verify_span span = {offset, size, value, w->shard};
	cf_put_bytes(&v->spans, &span, sizeof span);
	/* A sum that wraps is one of more bytes than any disk has: the bar is then wrong and nothing else. */
	v->bytes_total += size;
}

/* Bytes before the next value. While entries are missing nobody can say whose they are. */
static void plan_gap(ckptfmt_verifier *v, const walk *w, uint64_t until)
{
	cf_verify_place place = {v->data_path, {NULL, 0}, w->end};
	if (v->uncertain || until <= w->end)
		return;
	if (until - w->end <= CF_VERIFY_PADDING_MAX)
		add_span(v, w, w->end, until - w->end, CF_VERIFY_NOBODY);
	else
		cf_verify_note(v, CF_VERIFY_UNNAMED, &place, "DAT-3: %llu bytes between two values that no entry names",
			(unsigned long long)(until - w->end));
}

/* DAT-5: zero bytes up to a multiple of the alignment are padding. Nothing tells the alignment, but every value and the
 * file's end lie at a multiple of it. */
static void plan_tail(ckptfmt_verifier *v, const walk *w)
{
	cf_verify_place place = {v->data_path, {NULL, 0}, w->end};
	uint64_t size = v->data_size - cf_min_u64(w->end, v->data_size);
	if (v->uncertain || size == 0)
		return;
	if (size <= CF_VERIFY_PADDING_MAX && size < common_divisor(w->unit, v->data_size))
		add_span(v, w, w->end, size, CF_VERIFY_NOBODY);
	else
		cf_verify_note(v, CF_VERIFY_UNNAMED, &place, "DAT-3: %llu bytes after the last value that no entry names",
			(unsigned long long)size);
}

/* Whether the value is to be read. */
static bool check_overlap(ckptfmt_verifier *v, walk *w, const cf_verify_value *value)
{
	const ckptfmt_stored *stored = &value->stored;
	cf_verify_place place = cf_verify_value_place(v, value);
	bool affordable = stored->size <= w->again;
	if (stored->offset >= w->end)
		return true;
	/* DAT-8 */
	cf_verify_problem(v, CKPTFMT_FAIL_BAD_ENTRY, &place,
		"DAT-8: %llu of its %llu bytes also belong to a value that begins before it%s",
		(unsigned long long)cf_min_u64(stored->size, w->end - stored->offset), (unsigned long long)stored->size,
		affordable ? "" : "; they were not checked again");
	if (affordable)
		w->again -= stored->size;
	return affordable;
}

static void plan_value(ckptfmt_verifier *v, walk *w, uint64_t number)
{
	const cf_verify_value *value = cf_verify_value_at(v, number);
	const ckptfmt_stored *stored = &value->stored;
	cf_verify_place place = cf_verify_value_place(v, value);
	bool read = false;
	if (!cf_range_fits(stored->offset, stored->size, v->data_size)) {
		/* DAT-2 */
		cf_verify_problem(v, CKPTFMT_FAIL_TRUNCATED, &place,
			"DAT-2: %llu bytes at %llu, but the data file has %llu; it was cut short, or index and data belong to "
			"different saves",
			(unsigned long long)stored->size, (unsigned long long)stored->offset,
			(unsigned long long)v->data_size);
	} else {
		read = check_overlap(v, w, value) && value->storage != CKPTFMT_STORAGE_NONE;
	}
	plan_gap(v, w, cf_min_u64(stored->offset, v->data_size));
	if (read)
		add_span(v, w, stored->offset, stored->size, number);
	else
		cf_verify_value_done(v, value->row);
	w->end = cf_max_u64(w->end, stored->offset + stored->size);
	w->unit = common_divisor(w->unit, stored->offset);
}

/* ---- one data file --------------------------------------------------------------------------------------- */

static int compare_values(const void *left, const void *right)
{
	const cf_verify_value *a = left, *b = right;
	if (a->stored.shard != b->stored.shard)
		return a->stored.shard < b->stored.shard ? -1 : 1;
	if (a->stored.offset != b->stored.offset)
		return a->stored.offset < b->stored.offset ? -1 : 1;
	if (a->stored.size != b->stored.size)
		return a->stored.size < b->stored.size ? -1 : 1;
	return (a->row > b->row) - (a->row < b->row);
}

static void report_missing(ckptfmt_verifier *v, uint64_t first, uint64_t end)
{
	cf_verify_place place = {v->data_path, {NULL, 0}, CF_NO_OFFSET};
	uint64_t bytes = 0;
	for (uint64_t i = first; i < end; i++)
		bytes += cf_verify_value_at(v, i)->stored.size;
	cf_verify_problem(v, CKPTFMT_FAIL_SHARD_MISSING, &place,
		"NAM-5: the data file is missing, with %llu values of %llu bytes", (unsigned long long)(end - first),
		(unsigned long long)bytes);
}

static void plan_file(ckptfmt_verifier *v, uint64_t first, uint64_t end)
{
	walk w = {cf_verify_value_at(v, first)->stored.shard, 0, 0, 0};
	bool missing;
	cf_verify_open_data(v, w.shard, &missing);
	cf_put_bytes(&v->needed, &w.shard, sizeof w.shard);
	if (missing) {
		v->suspect = true;
		report_missing(v, first, end);
	}
	w.again = v->data_size;
	for (uint64_t i = first; i < end; i++) {
		if (v->data_usable)
			plan_value(v, &w, i);
		else
			cf_verify_value_done(v, cf_verify_value_at(v, i)->row);
	}
	if (v->data_usable)
		plan_tail(v, &w);
	cf_verify_close_data(v);
}

uint64_t cf_verify_plan_step(ckptfmt_verifier *v)
{
	uint64_t count = v->values.size / sizeof(cf_verify_value), first = v->next, end = first;
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, CF_NO_OFFSET};
	ckptfmt_error error;
	if (first == 0) {
		v->bytes_total = v->reader->index_info.size;
		if (count != 0)
			qsort(v->values.data, (size_t)count, sizeof(cf_verify_value), compare_values);
	}
	if (first == count) {
		if (cf_verify_ok(v, cf_buffer_status(&v->needed, &error), &error, &place) &&
			cf_verify_ok(v, cf_buffer_status(&v->spans, &error), &error, &place))
			cf_verify_enter(v, CF_VERIFY_DATA);
		return 0;
	}
	while (end < count && cf_verify_value_at(v, end)->stored.shard == cf_verify_value_at(v, first)->stored.shard)
		end++;
	plan_file(v, first, end);
	v->next = end;
	return CF_VERIFY_ROW_COST * (end - first);
}
