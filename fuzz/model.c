/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include "run_codec.h"

#include <string.h>

uint8_t fuzz_take(fuzz_bytes *in)
{
	if (in->left == 0)
		return 0;
	in->left--;
	return *in->data++;
}

uint32_t fuzz_choose(fuzz_bytes *in, uint32_t bound)
{
	return fuzz_take(in) % bound;
}

/* ---- making ---- */

static void take_name(model_tensor *t, fuzz_bytes *in)
{
	static const char *const names[] = {"a", "b", "aa", "a/b", "\xff", "zz", "a\001", "b.c"};
	const char *name = names[fuzz_choose(in, sizeof names / sizeof *names)];
	t->name_size = strlen(name);
	memcpy(t->name, name, (size_t)t->name_size);
}

int model_order(const model_tensor *a, const model_tensor *b)
{
	uint64_t shared = a->name_size < b->name_size ? a->name_size : b->name_size;
	int order = memcmp(a->name, b->name, (size_t)shared);
	return order != 0 ? order : (a->name_size > b->name_size) - (a->name_size < b->name_size);
}

static void take_shape(model_tensor *t, fuzz_bytes *in, uint64_t itemsize)
{
	uint64_t room = t->dtype == CKPTFMT_STRING ? MODEL_STRINGS_MAX : MODEL_VALUE_MAX / itemsize;
	t->rank = (int32_t)fuzz_choose(in, MODEL_RANK_MAX + 1);
	t->count = 1;
	for (int32_t d = 0; d < t->rank; d++) {
		uint8_t byte = fuzz_take(in);
		/* Mostly small; at times enough for several chunks. */
		uint64_t dim = byte < 240 ? byte % 6 : 1000, most = t->count == 0 ? room : room / t->count;
		t->dims[d] = (int64_t)(dim < most ? dim : most);
		t->count *= (uint64_t)t->dims[d];
	}
}

/* Runs of a byte, which compress, or noise. */
static void fill(model_tensor *t, fuzz_bytes *in)
{
	uint8_t first = fuzz_take(in), step = fuzz_take(in);
	uint32_t noise = first * 31u + step;
	for (uint64_t i = 0; i < t->size; i++) {
		noise = noise * 1664525u + 1013904223u;
		t->bytes[i] = step < 128 ? (uint8_t)(first + (i >> 9) * step) : (uint8_t)(noise >> 24);
	}
}

static void take_strings(model_tensor *t, fuzz_bytes *in)
{
	for (uint64_t i = 0; i < t->count; i++) {
		t->strings[i].size = fuzz_take(in) % 200;
		t->size += t->strings[i].size;
	}
}

void model_moved(model *m)
{
	for (uint32_t i = 0; i < m->count; i++) {
		model_tensor *t = &m->tensors[i];
		uint64_t at = 0;
		for (uint64_t s = 0; t->dtype == CKPTFMT_STRING && s < t->count; s++) {
			t->strings[s].data = t->bytes + at;
			at += t->strings[s].size;
		}
	}
}

static void take_tensor(model_tensor *t, fuzz_bytes *in)
{
	static const int32_t dtypes[] = {CKPTFMT_FLOAT, CKPTFMT_UINT8, CKPTFMT_STRING, CKPTFMT_DOUBLE, CKPTFMT_BFLOAT16,
		CKPTFMT_COMPLEX128, CKPTFMT_BOOL, CKPTFMT_INT64};
	uint64_t itemsize;
	memset(t, 0, offsetof(model_tensor, bytes));
	take_name(t, in);
	t->dtype = dtypes[fuzz_choose(in, sizeof dtypes / sizeof *dtypes)];
	itemsize = ckptfmt_dtype_find(t->dtype)->size;
	take_shape(t, in, itemsize);
	t->size = t->count * itemsize;
	if (t->dtype == CKPTFMT_STRING)
		take_strings(t, in);
	fill(t, in);
	if (t->dtype != CKPTFMT_STRING && t->rank > 0 && t->count > 0 && t->dims[0] > 1)
		t->parts = fuzz_choose(in, MODEL_PARTS_MAX + 1);
	if (t->parts == 1 || (int64_t)t->parts > t->dims[0])
		t->parts = 0;
}

void model_take(model *m, fuzz_bytes *in)
{
	static model_tensor taken;
	uint32_t wanted = fuzz_choose(in, MODEL_TENSORS_MAX + 1);
	m->count = 0;
	while (wanted-- > 0) {
		uint32_t place = 0;
		take_tensor(&taken, in);
		while (place < m->count && model_order(&m->tensors[place], &taken) < 0)
			place++;
		if (place < m->count && model_order(&m->tensors[place], &taken) == 0)
			continue;
		memmove(&m->tensors[place + 1], &m->tensors[place], (m->count - place) * sizeof taken);
		m->tensors[place] = taken;
		m->count++;
	}
	model_moved(m);
}

void model_take_options(ckptfmt_write_options *options, fuzz_bytes *in)
{
	static run_codec codec;
	uint8_t bits = fuzz_take(in);
	run_codec_init(&codec);
	*options = (ckptfmt_write_options){.struct_size = sizeof *options};
	options->alignment = bits & 1 ? 64 : 0;
	options->chunk_size = bits & 2 ? 4096 : 0;
	options->durability = bits & 4 ? CKPTFMT_DURABILITY_NONE : CKPTFMT_DURABILITY_FULL;
	options->shards = bits & 8 ? 1 + (bits >> 6) : 0;
	options->data_size = bits & 16 ? 5000 : 0;
	if (bits & 32) {
		options->chunk_size = 4096;
		options->codec = &codec.codec;
	}
}

/* ---- writing ---- */

/* Where part `part` begins along the first dimension. */
static int64_t part_begin(const model_tensor *t, uint32_t part)
{
	return t->dims[0] * (int64_t)part / (int64_t)t->parts;
}

ckptfmt_source model_part(const model_tensor *t, uint32_t part, int64_t *slice)
{
	ckptfmt_source source = {.name = t->name, .name_size = t->name_size, .dims = t->dims, .dtype = t->dtype,
		.rank = t->rank};
	int64_t *dims = slice, *starts = slice + t->rank, *lengths = starts + t->rank;
	source.data = t->dtype == CKPTFMT_STRING ? (const uint8_t *)t->strings : t->bytes;
	if (t->parts == 0)
		return source;
	memcpy(dims, t->dims, (size_t)t->rank * sizeof *dims);
	memset(starts, 0, (size_t)t->rank * sizeof *starts);
	memcpy(lengths, t->dims, (size_t)t->rank * sizeof *lengths);
	starts[0] = part_begin(t, part);
	lengths[0] = part_begin(t, part + 1) - starts[0];
	source.data += t->size / (uint64_t)t->dims[0] * (uint64_t)starts[0];
	source.dims = lengths;
	source.slice = slice;
	return source;
}

ckptfmt_status model_write(const model *m, const char *prefix, const ckptfmt_write_options *options, ckptfmt_error *err)
{
	ckptfmt_writer *writer;
	ckptfmt_status status = ckptfmt_writer_open(prefix, options, &writer, err);
	for (uint32_t i = 0; status == CKPTFMT_OK && i < m->count; i++) {
		const model_tensor *t = &m->tensors[i];
		for (uint32_t part = 0; status == CKPTFMT_OK && part < (t->parts == 0 ? 1 : t->parts); part++) {
			int64_t slice[3 * MODEL_RANK_MAX];
			ckptfmt_source source = model_part(t, part, slice);
			status = ckptfmt_writer_add(writer, &source, 1, err);
		}
	}
	if (status == CKPTFMT_OK)
		return ckptfmt_writer_commit(writer, err);
	ckptfmt_writer_abandon(writer);
	return status;
}

/* ---- comparing ---- */

static bool same_shape(const model_tensor *t, const ckptfmt_tensor *found)
{
	return found->dtype == t->dtype && found->rank == t->rank && found->element_count == (int64_t)t->count &&
		memcmp(found->dims, t->dims, (size_t)t->rank * sizeof *t->dims) == 0;
}

static model_result compare_strings(const model_tensor *t, ckptfmt_reader *reader, const ckptfmt_selection *selection,
	uint64_t row, ckptfmt_error *err)
{
	ckptfmt_strings *strings;
	model_result result = MODEL_SAME;
	if (ckptfmt_reader_read_strings(reader, selection, row, NULL, CKPTFMT_VERIFY_AUTO, &strings, err) != CKPTFMT_OK)
		return MODEL_FAILED;
	for (uint64_t i = 0; i < t->count; i++) {
		uint64_t size;
		const uint8_t *bytes = ckptfmt_strings_at(strings, i, &size);
		if (size != t->strings[i].size || memcmp(bytes, t->strings[i].data, (size_t)size) != 0)
			result = MODEL_OTHER;
	}
	ckptfmt_strings_free(strings);
	return result;
}

/* Whole, then the rows from the first third on. */
static model_result compare_numbers(const model_tensor *t, ckptfmt_reader *reader, const ckptfmt_selection *selection,
	uint64_t row, ckptfmt_error *err)
{
	static uint8_t bytes[MODEL_VALUE_MAX];
	int64_t box[2 * MODEL_RANK_MAX] = {0};
	ckptfmt_request request = {.row = row, .destination = bytes, .destination_size = t->size};
	uint64_t before;
	if (ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, err) != CKPTFMT_OK)
		return MODEL_FAILED;
	if (memcmp(bytes, t->bytes, (size_t)t->size) != 0)
		return MODEL_OTHER;
	if (t->rank == 0 || t->count == 0)
		return MODEL_SAME;
	memcpy(box + t->rank, t->dims, (size_t)t->rank * sizeof *box);
	box[0] = t->dims[0] / 3;
	box[t->rank] -= box[0];
	before = t->size / (uint64_t)t->dims[0] * (uint64_t)box[0];
	request.box = box;
	request.destination_size -= before;
	if (ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, err) != CKPTFMT_OK)
		return MODEL_FAILED;
	return memcmp(bytes, t->bytes + before, (size_t)(t->size - before)) == 0 ? MODEL_SAME : MODEL_OTHER;
}

static model_result compare_row(const model_tensor *t, ckptfmt_reader *reader, const ckptfmt_selection *selection,
	uint64_t row, ckptfmt_error *err)
{
	ckptfmt_tensor found;
	uint64_t size;
	const uint8_t *name = ckptfmt_selection_name(selection, row, &size);
	if (ckptfmt_selection_tensor(selection, row, &found, err) != CKPTFMT_OK)
		return MODEL_FAILED;
	if (size != t->name_size || memcmp(name, t->name, (size_t)size) != 0 || !same_shape(t, &found))
		return MODEL_OTHER;
	return t->dtype == CKPTFMT_STRING ? compare_strings(t, reader, selection, row, err)
		: compare_numbers(t, reader, selection, row, err);
}

model_result model_compare(const model *m, const char *prefix, const ckptfmt_storage *storage, ckptfmt_error *err)
{
	static run_codec codec;
	ckptfmt_open_options options = {.struct_size = sizeof options, .threads = 1, .storage = storage,
		.codec = &codec.codec};
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	model_result result = MODEL_SAME;
	ckptfmt_status status;
	run_codec_init(&codec);
	status = ckptfmt_reader_open(prefix, &options, &reader, err);
	if (status != CKPTFMT_OK)
		return err->failure == CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND ? MODEL_NONE : MODEL_FAILED;
	if (ckptfmt_reader_list(reader, &selection, err) != CKPTFMT_OK)
		result = MODEL_FAILED;
	else if (ckptfmt_selection_count(selection) != m->count)
		result = MODEL_OTHER;
	for (uint32_t i = 0; result == MODEL_SAME && i < m->count; i++)
		result = compare_row(&m->tensors[i], reader, selection, i, err);
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	return result;
}

uint64_t model_problems(const char *prefix, const ckptfmt_storage *storage, ckptfmt_error *err)
{
	static run_codec codec;
	ckptfmt_open_options options = {.struct_size = sizeof options, .threads = 1, .storage = storage,
		.codec = &codec.codec};
	ckptfmt_report *report;
	uint64_t problems = 0;
	run_codec_init(&codec);
	if (ckptfmt_verify(prefix, &options, &report, err) != CKPTFMT_OK)
		return 1;
	for (uint64_t i = 0; i < report->finding_count; i++) {
		if (report->findings[i].severity != CKPTFMT_SEVERITY_PROBLEM)
			continue;
		if (problems++ == 0)
			*err = report->findings[i].error;
	}
	ckptfmt_report_free(report);
	return problems;
}
