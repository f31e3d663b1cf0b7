/* SPDX-License-Identifier: Apache-2.0 */
/* Property: whatever the bytes of an index and of its data files, every call ends in a result or in an error that says
 * what is wrong with the files. Each tensor that a listing gives is read whole and in part, checked and unchecked; what
 * is read checked is what is read unchecked, and a part is that part of the whole. Verifying comes to its end, and what
 * it finds no problem in can be listed, and read unless a later version wrote it.
 *
 * Input: bundle.h. */
#include "blocks.h"
#include "bundle.h"

#include "ckptfmt.h"

#include <string.h>

enum { VALUE_SIZE_MAX = 1 << 16, ROWS_MAX = 40 };

static ckptfmt_storage *storage;
static ckptfmt_open_options options;
static ckptfmt_limits limits;
static ckptfmt_error err;
static uint64_t problems;       /* that verifying found */

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	return fuzz_mutate_bundle(data, size, capacity, seed);
}

/* About the files, then, not about the caller or the machine. */
static ckptfmt_status typed(ckptfmt_status status)
{
	if (status == CKPTFMT_OK)
		return status;
	FUZZ_CHECK(err.status == (int32_t)status && err.message[0] != '\0');
	FUZZ_CHECK(status == CKPTFMT_CORRUPT || status == CKPTFMT_UNSUPPORTED || status == CKPTFMT_LIMIT ||
		err.failure == CKPTFMT_FAIL_SHARD_MISSING);
	return status;
}

static void put_file(const char *path, const fuzz_piece *piece)
{
	void *object;
	int32_t exists;
	FUZZ_CHECK(storage->create(storage->state, path, &object, &exists, NULL) == CKPTFMT_OK && !exists);
	FUZZ_CHECK(storage->append(storage->state, object, piece->bytes, piece->size, NULL) == CKPTFMT_OK);
	FUZZ_CHECK(storage->finish(storage->state, object, NULL) == CKPTFMT_OK);
	storage->close(storage->state, object);
}

static void put_bundle(const fuzz_bundle *bundle)
{
	FUZZ_CHECK(ckptfmt_memory_storage_new(&storage, NULL) == CKPTFMT_OK);
	put_file("/b.index", &bundle->pieces[0]);
	for (size_t i = 1; i < bundle->count; i++) {
		char path[64];
		snprintf(path, sizeof path, "/b.data-%05zu-of-%05zu", i - 1, bundle->count - 1);
		put_file(path, &bundle->pieces[i]);
	}
}

static void set_options(const uint8_t *parameters)
{
	limits = (ckptfmt_limits){.struct_size = sizeof limits, .tensor_bytes_max = VALUE_SIZE_MAX,
		.keys_bytes_floor = 1 << 16, .slices_max = 1 << 10};
	if (parameters[1] >= 128) {
		limits.entries_max = parameters[0] & 1 ? 3 : 0;
		limits.slices_max = parameters[0] & 2 ? 2 : 0;
		limits.tensor_bytes_max = parameters[0] & 4 ? 9 : VALUE_SIZE_MAX;
		limits.expansion_max = parameters[0] & 8 ? 2 : 0;
		limits.block_bytes_max = parameters[0] & 16 ? 99 : 0;
	}
	options = (ckptfmt_open_options){.struct_size = sizeof options, .limits = &limits, .threads = 1,
		.storage = storage};
}

/* The first half of each dimension but the first of which it is the second. */
static uint64_t half_of(const ckptfmt_tensor *tensor, int64_t *box)
{
	uint64_t count = 1;
	for (int32_t d = 0; d < tensor->rank; d++) {
		box[d] = d == 0 ? tensor->dims[d] / 2 : 0;
		box[tensor->rank + d] = tensor->dims[d] - tensor->dims[d] / 2;
		count *= (uint64_t)box[tensor->rank + d];
	}
	return count;
}

static void check_half(const ckptfmt_tensor *tensor, const int64_t *box, const uint8_t *half, const uint8_t *whole,
	uint64_t count)
{
	const uint64_t size = tensor->byte_size / (uint64_t)tensor->element_count;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t rest = i, from = 0, scale = 1;
		for (int32_t d = tensor->rank - 1; d >= 0; d--) {
			uint64_t length = (uint64_t)box[tensor->rank + d];
			from += ((uint64_t)box[d] + rest % length) * scale;
			rest /= length;
			scale *= (uint64_t)tensor->dims[d];
		}
		FUZZ_CHECK(memcmp(half + i * size, whole + from * size, (size_t)size) == 0);
	}
}

/* 1 if the whole tensor could be read, checked, or is UNSUPPORTED. */
static int check_fixed(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	const ckptfmt_tensor *tensor)
{
	static uint8_t whole[VALUE_SIZE_MAX], again[VALUE_SIZE_MAX];
	int64_t box[2 * CKPTFMT_RANK_MAX];
	ckptfmt_request request = {.row = row, .destination_size = tensor->byte_size};
	ckptfmt_status status, unchecked;
	const int known = ckptfmt_dtype_find(tensor->dtype) != NULL;
	uint64_t count;
	if (tensor->byte_size > sizeof whole) {
		typed(ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, &err));
		return 0;
	}
	request.destination = whole;
	status = typed(ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, &err));
	FUZZ_CHECK(status != CKPTFMT_OK || request.verified);
	request.destination = again;
	unchecked = typed(ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_OFF, &err));
	if (status != CKPTFMT_OK)
		return status == CKPTFMT_UNSUPPORTED;
	FUZZ_CHECK(unchecked == CKPTFMT_OK && memcmp(whole, again, (size_t)tensor->byte_size) == 0);
	if (!known || tensor->element_count == 0)
		return 1;
	count = half_of(tensor, box);
	request.box = box;
	request.destination_size = count * (tensor->byte_size / (uint64_t)tensor->element_count);
	for (int32_t mode = CKPTFMT_VERIFY_AUTO; mode <= CKPTFMT_VERIFY_OFF; mode++) {
		status = typed(ckptfmt_reader_read(reader, selection, &request, 1, mode, &err));
		/* A part is checked by the checksums of its chunks, which may be damaged where that of all is not. */
		FUZZ_CHECK(status == CKPTFMT_OK || (problems > 0 && mode != CKPTFMT_VERIFY_OFF));
		if (status == CKPTFMT_OK)
			check_half(tensor, box, again, whole, count);
	}
	return 1;
}

static int check_strings(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	const ckptfmt_tensor *tensor)
{
	ckptfmt_strings *strings, *unchecked;
	ckptfmt_status status = typed(ckptfmt_reader_read_strings(reader, selection, row, NULL, CKPTFMT_VERIFY_AUTO,
		&strings, &err));
	(void)typed(ckptfmt_reader_read_strings(reader, selection, row, NULL, CKPTFMT_VERIFY_OFF, &unchecked, &err));
	FUZZ_CHECK(status != CKPTFMT_OK || unchecked != NULL);
	for (int64_t i = 0; status == CKPTFMT_OK && i < tensor->element_count; i++) {
		uint64_t size, other;
		const uint8_t *bytes = ckptfmt_strings_at(strings, (uint64_t)i, &size);
		const uint8_t *same = ckptfmt_strings_at(unchecked, (uint64_t)i, &other);
		FUZZ_CHECK(bytes != NULL && same != NULL && size == other && memcmp(bytes, same, (size_t)size) == 0);
	}
	ckptfmt_strings_free(strings);
	ckptfmt_strings_free(unchecked);
	return status == CKPTFMT_OK;
}

/* 1 if every tensor could be listed and read or was UNSUPPORTED. */
static int check_reading(void)
{
	ckptfmt_reader *reader;
	ckptfmt_selection *selection = NULL;
	int all = 1;
	if (typed(ckptfmt_reader_open("/b", &options, &reader, &err)) != CKPTFMT_OK) {
		FUZZ_CHECK(reader == NULL);
		return 0;
	}
	if (typed(ckptfmt_reader_list(reader, &selection, &err)) != CKPTFMT_OK)
		all = 0;
	for (uint64_t row = 0; all && row < ckptfmt_selection_count(selection) && row < ROWS_MAX; row++) {
		ckptfmt_tensor tensor;
		const ckptfmt_dtype_info *info;
		int32_t found;
		uint64_t size;
		const uint8_t *name = ckptfmt_selection_name(selection, row, &size);
		FUZZ_CHECK(ckptfmt_reader_contains(reader, name, size, &found, &err) == CKPTFMT_OK && found);
		if (typed(ckptfmt_selection_tensor(selection, row, &tensor, &err)) != CKPTFMT_OK) {
			all = 0;
			continue;
		}
		info = ckptfmt_dtype_find(tensor.dtype);
		if (info != NULL && (info->storage == CKPTFMT_STORAGE_STRING || info->storage == CKPTFMT_STORAGE_VARIANT))
			all &= check_strings(reader, selection, row, &tensor);
		else
			all &= check_fixed(reader, selection, row, &tensor);
	}
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	return all;
}

static void check_verifying(void)
{
	ckptfmt_report *report;
	problems = 0;
	if (typed(ckptfmt_verify("/b", &options, &report, &err)) != CKPTFMT_OK) {
		problems = 1;
		return;
	}
	for (uint64_t i = 0; i < report->finding_count; i++) {
		FUZZ_CHECK(report->findings[i].error.message[0] != '\0');
		problems += report->findings[i].severity == CKPTFMT_SEVERITY_PROBLEM;
	}
	ckptfmt_report_free(report);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t copy[1 << 16];
	fuzz_bundle bundle;
	if (size > sizeof copy)
		return 0;
	memcpy(copy, data, size);
	fuzz_split_bundle(copy, size, &bundle);
	if (bundle.count == 0)
		return 0;
	fuzz_keep_blocks();
	put_bundle(&bundle);
	set_options(bundle.parameters);
	check_verifying();
	FUZZ_CHECK(check_reading() || problems > 0 || limits.tensor_bytes_max < VALUE_SIZE_MAX);
	ckptfmt_memory_storage_free(storage);
	return 0;
}
