/* SPDX-License-Identifier: Apache-2.0 */
/* String and variant tensors. Their elements can be anywhere in the stored value, so a stored value is always read and
 * checked whole; then the requested elements are copied. */
#include "base/memory.h"
#include "read/rules.h"
#include "read/transfer.h"
#include "slices/box.h"
#include "proto/strings.h"

#include <string.h>

/* One stored value in memory, with its elements found. */
typedef struct value {
	uint64_t slice;
	uint64_t count;
	uint8_t *bytes;
	uint64_t *starts;
	uint64_t *sizes;
} value;

typedef struct strings_read {
	ckptfmt_reader *reader;
	const ckptfmt_selection *selection;
	const ckptfmt_row *row;
	const int64_t *box;
	int32_t storage;
	cf_transfer transfer;
	cf_buffer values;           /* value */
} strings_read;

static value *value_at(const strings_read *r, uint64_t row)
{
	return (value *)cf_buffer_items(&r->values) + row;
}

static uint64_t value_count(const strings_read *r)
{
	return r->values.size / sizeof(value);
}

static void free_value(value *v)
{
	cf_release(v->bytes);
	cf_release(v->starts);
	cf_release(v->sizes);
}

/* Finds the elements; of a compressed value their checksums were compared. */
static ckptfmt_status decode_value(const strings_read *r, const ckptfmt_stored *stored, value *v, ckptfmt_error *err)
{
	bool compressed = (stored->flags & CKPTFMT_STORED_COMPRESSED) != 0;
	cf_stored_value raw = {v->bytes, stored->raw_size, stored->offset, v->count, stored->raw_crc32c,
		r->reader->header.endianness == 1, !compressed && r->transfer.verify != CKPTFMT_VERIFY_OFF, compressed};
	return cf_strings_decode(r->storage, &raw, v->starts, v->sizes, err);
}

/* A few stored bytes may claim any number of elements: these are checked before there is memory for them. */
static ckptfmt_status load_compressed(strings_read *r, const ckptfmt_stored *stored, const value *v, ckptfmt_error *err)
{
	const cf_compressed compressed = {stored, 1};
	cf_stored_value raw = {NULL, stored->raw_size, stored->offset, v->count, stored->raw_crc32c, false,
		r->transfer.verify != CKPTFMT_VERIFY_OFF, true};
	cf_string_scan scan = cf_string_scan_begin(r->storage, &raw);
	cf_transfer_expect(&r->transfer, stored, 0, stored->size);
	CF_TRY(cf_transfer_decode(&r->transfer, &compressed, 0, stored->raw_size, NULL, true, v->bytes, NULL, err));
	return cf_string_scan_take(&scan, v->bytes, stored->raw_size, err);
}

static ckptfmt_status load_value(strings_read *r, const ckptfmt_stored *stored, value *v, ckptfmt_error *err)
{
	bool compressed = (stored->flags & CKPTFMT_STORED_COMPRESSED) != 0;
	/* The file is known to hold the bytes, and the bytes to have room for the elements, before memory is taken. */
	CF_TRY(cf_transfer_open(&r->transfer, stored, err));
	CF_TRY(cf_value_check_rule(r->selection, r->row, v->slice, CF_VALUE_COUNT, err));
	CF_TRY(cf_value_check_limit(&r->reader->limits, stored->raw_size, compressed, stored->offset, err));
	if (compressed && r->reader->codec == NULL)
		return cf_fail_codec(err);
	v->bytes = cf_allocate(stored->raw_size);
	if (v->bytes == NULL)
		return cf_fail_memory(err);
	if (compressed)
		CF_TRY(load_compressed(r, stored, v, err));
	else
		CF_TRY(cf_transfer_whole(&r->transfer, stored, 0, false, v->bytes, err));
	v->starts = cf_allocate_zero(v->count, sizeof *v->starts);
	v->sizes = cf_allocate_zero(v->count, sizeof *v->sizes);
	if (v->starts == NULL || v->sizes == NULL)
		return cf_fail_memory(err);
	return decode_value(r, stored, v, err);
}

static ckptfmt_status add_value(strings_read *r, const ckptfmt_stored *stored, uint64_t slice, uint64_t count,
	ckptfmt_error *err)
{
	value v = {slice, count, NULL, NULL, NULL};
	ckptfmt_status status = load_value(r, stored, &v, err);
	/* Not NO_MEMORY: a few bytes may claim any size, and this error names the tensor. */
	if (status == CKPTFMT_NO_MEMORY && (stored->flags & CKPTFMT_STORED_COMPRESSED))
		status = cf_fail(err, CKPTFMT_FAIL_LIMIT, stored->offset,
			"there is no memory for compressed strings that take %llu bytes, or more",
			(unsigned long long)stored->raw_size);
	if (status == CKPTFMT_OK) {
		cf_put_bytes(&r->values, &v, sizeof v);
		status = cf_buffer_status(&r->values, err);
	}
	if (status != CKPTFMT_OK) {
		free_value(&v);
		cf_transfer_error(&r->transfer, stored, err);
	}
	return status;
}

static ckptfmt_status load_values(strings_read *r, ckptfmt_error *err)
{
	const ckptfmt_slice_row *slices = cf_selection_slices(r->selection, r->row);
	cf_geometry_walk walk;
	uint64_t i;
	if (r->row->slice_count == 0)
		CF_TRY(cf_value_check(r->selection, r->row, CF_WHOLE_TENSOR, err));
	if (r->row->slice_count == 0)
		return add_value(r, &r->row->stored, CF_WHOLE_TENSOR, (uint64_t)r->row->element_count, err);
	CF_TRY(cf_geometry_check_cover(r->selection, r->row, r->box, err));
	walk = cf_geometry_walk_begin(r->selection, r->row, r->box);
	while (cf_geometry_walk_next(&walk, &i)) {
		int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
		const int64_t *extents = cf_selection_dims(r->selection, slices[i].extents_first);
		CF_TRY(cf_value_check(r->selection, r->row, i, err));
		CF_TRY(cf_box_resolve(r->row->rank, cf_selection_dims(r->selection, r->row->dims_first), extents,
			extents + r->row->rank, starts, lengths, err));
		CF_TRY(add_value(r, &slices[i].stored, i, (uint64_t)cf_box_count(r->row->rank, lengths), err));
	}
	return CKPTFMT_OK;
}

/* All elements of the only value, in order: they need at most to be moved together. */
static void take_whole(value *v, ckptfmt_strings *out)
{
	uint64_t end = 0;
	for (uint64_t i = 0; i < v->count; i++) {
		if (v->sizes[i] != 0)
			memmove(v->bytes + end, v->bytes + v->starts[i], (size_t)v->sizes[i]);
		out->offsets[i] = end;
		end += v->sizes[i];
	}
	out->offsets[v->count] = end;
	out->bytes = v->bytes;
	v->bytes = NULL;
}

typedef struct element {
	const uint8_t *bytes;
	uint64_t size;
} element;

static ckptfmt_status find_elements(const strings_read *r, element *elements, ckptfmt_error *err)
{
	for (uint64_t i = 0; i < value_count(r); i++) {
		const value *v = value_at(r, i);
		cf_plan plan;
		cf_run run;
		CF_TRY(cf_geometry_plan(r->selection, r->row, v->slice, r->box, 1, &plan, err));
		while (cf_plan_next(&plan, &run))
			for (uint64_t k = 0; k < run.size; k++) {
				uint64_t from = run.stored_offset + k;
				elements[run.destination_offset + k] =
					(element){v->bytes + v->starts[from], v->sizes[from]};
			}
	}
	return CKPTFMT_OK;
}

static ckptfmt_status take_elements(const strings_read *r, ckptfmt_strings *out, ckptfmt_error *err)
{
	element *elements = cf_allocate_zero(out->count, sizeof *elements);
	ckptfmt_status status;
	uint64_t end = 0;
	if (elements == NULL)
		return cf_fail_memory(err);
	status = find_elements(r, elements, err);
	if (status != CKPTFMT_OK)
		goto out;
	/* No overflow: each element is stored in bytes of its own. */
	for (uint64_t i = 0; i < out->count; i++) {
		out->offsets[i] = end;
		end += elements[i].size;
	}
	out->offsets[out->count] = end;
	out->bytes = cf_allocate(end);
	if (out->bytes == NULL) {
		status = cf_fail_memory(err);
		goto out;
	}
	for (uint64_t i = 0; i < out->count; i++)
		if (elements[i].size != 0)
			memcpy(out->bytes + out->offsets[i], elements[i].bytes, (size_t)elements[i].size);
out:
	cf_release(elements);
	return status;
}

static ckptfmt_status make_strings(strings_read *r, ckptfmt_strings **out, ckptfmt_error *err)
{
	ckptfmt_strings *strings = cf_allocate_zero(1, sizeof *strings);
	ckptfmt_status status = CKPTFMT_OK;
	if (strings == NULL)
		return cf_fail_memory(err);
	strings->count = r->box == NULL ? (uint64_t)r->row->element_count
		: (uint64_t)cf_box_count(r->row->rank, r->box + r->row->rank);
	strings->offsets = cf_allocate_zero(strings->count + 1, sizeof *strings->offsets);
	if (strings->offsets == NULL)
		status = cf_fail_memory(err);
	else if (r->box != NULL || r->row->slice_count != 0)
		status = take_elements(r, strings, err);
	else
		take_whole(value_at(r, 0), strings);
	if (status != CKPTFMT_OK)
		ckptfmt_strings_free(strings);
	else
		*out = strings;
	return status;
}

static ckptfmt_status check_strings_request(strings_read *r, ckptfmt_error *err)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(r->row->dtype);
	if (dtype == NULL || (dtype->storage != CKPTFMT_STORAGE_STRING && dtype->storage != CKPTFMT_STORAGE_VARIANT))
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "data type %d holds no strings",
			(int)r->row->dtype);
	CF_TRY(cf_value_check_rule(r->selection, r->row, CF_WHOLE_TENSOR, CF_VALUE_VARIANT, err));
	r->storage = dtype->storage;
	if (r->box == NULL)
		return CKPTFMT_OK;
	return cf_box_check_request(r->row->rank, cf_selection_dims(r->selection, r->row->dims_first), r->box,
		r->box + r->row->rank, err);
}

ckptfmt_status ckptfmt_reader_read_strings(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	const int64_t *box, int32_t verify, ckptfmt_strings **out, ckptfmt_error *err)
{
	strings_read r;
	ckptfmt_status status;
	*out = NULL;
	CF_TRY(cf_reader_check_call(reader, selection, verify, err));
	CF_TRY(cf_selection_check_row(selection, row, err));
	memset(&r, 0, sizeof r);
	r.reader = reader;
	r.selection = selection;
	r.row = cf_selection_row(selection, row);
	r.box = box;
	cf_transfer_begin(&r.transfer, reader, selection, verify);
	status = check_strings_request(&r, err);
	if (status == CKPTFMT_OK)
		status = load_values(&r, err);
	if (status == CKPTFMT_OK)
		status = make_strings(&r, out, err);
	if (status != CKPTFMT_OK) {
		cf_reader_error(reader, selection, r.row, err);
	}
	for (uint64_t i = 0; i < value_count(&r); i++)
		free_value(value_at(&r, i));
	cf_buffer_free(&r.values);
	cf_transfer_end(&r.transfer);
	return status;
}

const uint8_t *ckptfmt_strings_at(const ckptfmt_strings *strings, uint64_t i, uint64_t *size)
{
	*size = 0;
	if (strings == NULL || i >= strings->count)
		return NULL;
	*size = strings->offsets[i + 1] - strings->offsets[i];
	return strings->bytes + strings->offsets[i];
}

void ckptfmt_strings_get(const ckptfmt_strings *strings, ckptfmt_strings_view *out)
{
	out->bytes = strings->bytes;
	out->offsets = strings->offsets;
	out->count = strings->count;
}

void ckptfmt_strings_free(ckptfmt_strings *strings)
{
	if (strings == NULL)
		return;
	cf_release(strings->bytes);
	cf_release(strings->offsets);
	cf_release(strings);
}
