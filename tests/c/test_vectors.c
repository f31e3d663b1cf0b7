/* SPDX-License-Identifier: Apache-2.0 */
/* The vectors of spec/vectors through the whole library, from and to a storage in memory: opened, listed, read,
 * compared, verified, merged and copied. What must come of each is tested in Python (tests/format); here every
 * allocation of it fails once, and every call of the storage. Each step then gives what it gives otherwise, or fails
 * with NO_MEMORY or with the storage's failure: what is sound never looks damaged, and what is damaged never looks
 * sound. Nothing leaks. */
#include "memory_fault.h"
#include "test.h"

#include "base/arith.h"
#include "base/memory.h"

#include <errno.h>

enum { STEPS_MAX = 4000, VALUE_MAX = 1 << 20, FILE_MAX = 1 << 20, PATH_MAX_ = 512 };

/* ---- a storage that fails ---- */

static ckptfmt_storage *memory;     /* what does the work */
static ckptfmt_storage failing;     /* the same, failing at call number storage_at */
static uint64_t storage_calls, storage_at, storage_hits;

static bool refused(ckptfmt_error *error, ckptfmt_status *status)
{
	if (++storage_calls != storage_at)
		return false;
	storage_hits++;
	*status = ckptfmt_error_set(error, CKPTFMT_FAIL_OS, EIO, "", "made to fail");
	return true;
}

#define FAILING(name, parameters, ...)                                                  \
	static ckptfmt_status fail_##name parameters                                    \
	{                                                                               \
		ckptfmt_status status;                                                  \
		return refused(error, &status) ? status : memory->name(__VA_ARGS__);    \
	}

FAILING(info, (void *s, const char *path, ckptfmt_object_info *info, int32_t *exists, ckptfmt_error *error),
	s, path, info, exists, error)
FAILING(list, (void *s, const char *path, void (*each)(void *, const char *), void *to, ckptfmt_error *error),
	s, path, each, to, error)
FAILING(open, (void *s, const char *path, void **object, ckptfmt_object_info *info, ckptfmt_error *error),
	s, path, object, info, error)
FAILING(read_batch, (void *s, ckptfmt_object_read *reads, uint64_t count, ckptfmt_error *error),
	s, reads, count, error)
FAILING(create, (void *s, const char *path, void **object, int32_t *exists, ckptfmt_error *error),
	s, path, object, exists, error)
FAILING(append, (void *s, void *object, const uint8_t *bytes, uint64_t size, ckptfmt_error *error),
	s, object, bytes, size, error)
FAILING(finish, (void *s, void *object, ckptfmt_error *error), s, object, error)
FAILING(object_info, (void *s, void *object, ckptfmt_object_info *info, ckptfmt_error *error), s, object, info, error)
FAILING(adopt, (void *s, const char *from, const char *to, int32_t *result, ckptfmt_error *error),
	s, from, to, result, error)
FAILING(publish, (void *s, const char *from, const char *to, int32_t replaces, int32_t *exists, ckptfmt_error *error),
	s, from, to, replaces, exists, error)
FAILING(remove, (void *s, const char *path, ckptfmt_error *error), s, path, error)

static void wrap(void)
{
	failing = *memory;
	failing.info = fail_info;
	failing.list = fail_list;
	failing.open = fail_open;
	failing.read_batch = fail_read_batch;
	failing.create = fail_create;
	failing.append = fail_append;
	failing.finish = fail_finish;
	failing.object_info = fail_object_info;
	failing.adopt = fail_adopt;
	failing.publish = fail_publish;
	failing.remove = fail_remove;
}

/* ---- files ---- */

typedef struct file {
	char path[PATH_MAX_];
	uint8_t *bytes;
	uint64_t size;
} file;

static file files[16];
static int file_count;

static void load_files(const char *folder, const char *base)
{
	DIR *stream = opendir(folder);
	struct dirent *entry;
	size_t size = strlen(base);
	file_count = 0;
	while ((entry = readdir(stream)) != NULL && file_count < 16) {
		file *one = &files[file_count];
		FILE *from;
		if (strncmp(entry->d_name, base, size) != 0 || entry->d_name[size] != '.')
			continue;
		snprintf(one->path, sizeof one->path, "%s/%s", folder, entry->d_name);
		from = fopen(one->path, "rb");
		one->bytes = malloc(FILE_MAX);
		one->size = from == NULL ? 0 : fread(one->bytes, 1, FILE_MAX, from);
		CHECK(from != NULL && one->size < FILE_MAX);
		if (from != NULL)
			fclose(from);
		file_count++;
	}
	closedir(stream);
}

static void put_files(void)
{
	ckptfmt_error error;
	CHECK_OK(ckptfmt_memory_storage_new(&memory, &error), error);
	for (int i = 0; i < file_count; i++) {
		void *object;
		int32_t exists;
		CHECK_OK(memory->create(memory->state, files[i].path, &object, &exists, &error), error);
		CHECK_OK(memory->append(memory->state, object, files[i].bytes, files[i].size, &error), error);
		CHECK_OK(memory->finish(memory->state, object, &error), error);
		memory->close(memory->state, object);
	}
	wrap();
}

/* ---- outcomes ---- */

static ckptfmt_error err;
static uint64_t sound[STEPS_MAX], step;    /* the outcome of each step without a fault */
static bool recording, ended;
static uint32_t outcomes;    /* a checksum of a vector's outcomes without a fault, with the errors' texts and places */
static uint64_t all_outcomes;    /* their sum: whatever the order of the vectors */

/* Whether `err` reports the injected fault. Memory that a damaged file makes us ask for is LIMIT; verification notes
 * that it could not list the directory. */
static bool is_fault(void)
{
	return err.failure == CKPTFMT_FAIL_NO_MEMORY || err.os_errno == EIO ||
		strstr(err.message, "the directory cannot be listed") != NULL ||
		(err.failure == CKPTFMT_FAIL_LIMIT && strncmp(err.message, "there is no memory ", 19) == 0);
}

/* One more step came to this, with `err` if it failed. False ends the run. */
static bool came(ckptfmt_status status, uint64_t value)
{
	uint64_t outcome = status == CKPTFMT_OK ? value : (uint64_t)err.failure << 32 | (uint32_t)status;
	bool fault = status != CKPTFMT_OK && is_fault();
	if (step >= STEPS_MAX) {
		CHECK(step < STEPS_MAX);
		return false;
	}
	if (recording) {
		CHECK(!fault);
		sound[step] = outcome;
		outcomes = ckptfmt_crc32c(outcomes, (const uint8_t *)&outcome, sizeof outcome);
		if (status != CKPTFMT_OK) {
			outcomes = ckptfmt_crc32c(outcomes, (const uint8_t *)&err.offset, sizeof err.offset);
			outcomes = ckptfmt_crc32c(outcomes, (const uint8_t *)err.message, strlen(err.message));
		}
	} else if (fault) {
		ended = true;
	} else if (sound[step] != outcome) {
		CHECK_EQ(outcome, sound[step]);
		fprintf(stderr, "%s, step %" PRIu64 ", fault %" PRIu64 ": %s\n", files[0].path, step, storage_at,
			status == CKPTFMT_OK ? "succeeds" : err.message);
		ended = true;
	}
	step++;
	return !ended;
}

static uint64_t crc_of(const void *bytes, uint64_t size)
{
	return ckptfmt_crc32c(0, bytes, size);
}

/* ---- the steps ---- */

static ckptfmt_codec codec;
static bool has_codec;

static ckptfmt_open_options open_options(void)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .threads = 1, .storage = &failing};
	return options;
}

static void read_fixed(ckptfmt_reader *reader, ckptfmt_selection *selection, uint64_t row, const ckptfmt_tensor *tensor)
{
	uint8_t *data = malloc(tensor->byte_size + 1);
	int64_t box[2 * CKPTFMT_RANK_MAX];
	ckptfmt_request request;
	ckptfmt_status status;
	uint64_t size;
	const uint8_t *name = ckptfmt_selection_name(selection, row, &size);
	ckptfmt_source source = {.name = name, .name_size = size, .dims = tensor->dims, .data = data,
		.dtype = tensor->dtype, .rank = tensor->rank};
	uint8_t same = 2;
	memset(&request, 0, sizeof request);
	request.row = row;
	request.destination = data;
	request.destination_size = tensor->byte_size;
	status = ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_FULL, &err);
	if (came(status, status == CKPTFMT_OK ? crc_of(data, tensor->byte_size) : 0) && status == CKPTFMT_OK) {
		status = ckptfmt_reader_compare(reader, selection, &source, &row, 1, &same, &err);
		/* Best effort: what cannot be compared has changed. */
		if (same == 0 && !recording)
			ended = true;
		else
			came(status, same);
	}
	for (int mode = 0; !ended && mode <= 2 && tensor->rank > 0 && tensor->dims[0] > 1; mode++) {
		for (int32_t k = 0; k < tensor->rank; k++) {
			box[k] = 0;
			box[tensor->rank + k] = tensor->dims[k];
		}
		box[0] = 1;
		box[tensor->rank] = 1;
		request.box = box;
		request.destination_size = tensor->byte_size / (uint64_t)tensor->dims[0];
		status = ckptfmt_reader_read(reader, selection, &request, 1, mode, &err);
		came(status, status == CKPTFMT_OK ? crc_of(data, request.destination_size) : 0);
	}
	free(data);
}

static void read_strings(ckptfmt_reader *reader, ckptfmt_selection *selection, uint64_t row,
	const ckptfmt_tensor *tensor)
{
	int64_t box[2 * CKPTFMT_RANK_MAX];
	for (int32_t k = 0; k < tensor->rank; k++) {
		box[k] = 0;
		box[tensor->rank + k] = tensor->dims[k] > 0;
	}
	for (int part = 0; part < 2 && !ended; part++) {
		ckptfmt_strings *strings = NULL;
		ckptfmt_strings_view view = {NULL, NULL, 0};
		ckptfmt_status status = ckptfmt_reader_read_strings(reader, selection, row, part ? box : NULL,
			CKPTFMT_VERIFY_FULL, &strings, &err);
		if (status == CKPTFMT_OK)
			ckptfmt_strings_get(strings, &view);
		came(status, status == CKPTFMT_OK ? crc_of(view.bytes, view.offsets[view.count]) + view.count : 0);
		ckptfmt_strings_free(strings);
	}
}

static void use_rows(ckptfmt_reader *reader, ckptfmt_selection *selection)
{
	for (uint64_t row = 0; row < ckptfmt_selection_count(selection) && row < 40 && !ended; row++) {
		ckptfmt_tensor tensor;
		ckptfmt_location location;
		ckptfmt_status status = ckptfmt_selection_tensor(selection, row, &tensor, &err);
		const ckptfmt_dtype_info *info;
		if (!came(status, status == CKPTFMT_OK ? tensor.byte_size : 0) || status != CKPTFMT_OK)
			continue;
		info = ckptfmt_dtype_find(tensor.dtype);
		if (info != NULL && (info->storage == CKPTFMT_STORAGE_STRING || info->storage == CKPTFMT_STORAGE_VARIANT))
			read_strings(reader, selection, row, &tensor);
		else if (tensor.byte_size <= VALUE_MAX)
			read_fixed(reader, selection, row, &tensor);
		for (uint64_t slice = 0; slice < tensor.slice_count && slice < 3 && !ended; slice++) {
			status = ckptfmt_reader_locate(reader, selection, row, slice, &location, &err);
			came(status, status == CKPTFMT_OK ? location.offset : 0);
		}
		if (!ended && tensor.slice_count == 0) {
			status = ckptfmt_reader_locate(reader, selection, row, CKPTFMT_WHOLE, &location, &err);
			came(status, status == CKPTFMT_OK ? location.offset : 0);
		}
	}
}

/* Some names, found in other ways than by listing. */
static void use_names(ckptfmt_reader *reader, ckptfmt_selection *listed)
{
	uint64_t size = 0, sizes[2];
	const uint8_t *name = ckptfmt_selection_name(listed, ckptfmt_selection_count(listed) / 2, &size);
	ckptfmt_selection *selection = NULL;
	uint8_t twice[2000];
	int32_t found = -1;
	ckptfmt_status status;
	if (name == NULL || size > sizeof twice / 2)
		return;
	memcpy(twice, name, size);
	memcpy(twice + size, name, size);
	sizes[0] = sizes[1] = size;
	status = ckptfmt_reader_contains(reader, name, size, &found, &err);
	if (!came(status, (uint64_t)(int64_t)found))
		return;
	status = ckptfmt_reader_select(reader, twice, sizes, 2, &selection, &err);
	came(status, status == CKPTFMT_OK ? ckptfmt_selection_count(selection) : 0);
	ckptfmt_selection_free(status == CKPTFMT_OK ? selection : NULL);
	if (ended || size == 0 || name[0] == 0)
		return;
	selection = NULL;
	status = ckptfmt_reader_list_prefix(reader, name, 1, &selection, &err);
	came(status, status == CKPTFMT_OK ? ckptfmt_selection_count(selection) : 0);
	ckptfmt_selection_free(status == CKPTFMT_OK ? selection : NULL);
}

static void read_all(ckptfmt_reader *reader)
{
	ckptfmt_selection *selection = NULL;
	ckptfmt_strings *strings = NULL;
	ckptfmt_strings_view view;
	ckptfmt_region regions[64];
	ckptfmt_columns columns;
	const uint8_t *text;
	uint64_t count = 0, size;
	ckptfmt_status status = ckptfmt_reader_list_all(reader, &selection, &err);
	if (status == CKPTFMT_OK)
		ckptfmt_selection_columns(selection, &columns);
	if (came(status, status == CKPTFMT_OK ? crc_of(columns.dims, columns.dims_count * 8) +
		crc_of(columns.names, columns.names_size) : 0) && status == CKPTFMT_OK) {
		use_rows(reader, selection);
		if (!ended)
			use_names(reader, selection);
	}
	ckptfmt_selection_free(status == CKPTFMT_OK ? selection : NULL);
	if (ended)
		return;
	status = ckptfmt_reader_names(reader, &strings, &err);
	if (status == CKPTFMT_OK)
		ckptfmt_strings_get(strings, &view);
	came(status, status == CKPTFMT_OK ? crc_of(view.bytes, view.offsets[view.count]) : 0);
	ckptfmt_strings_free(status == CKPTFMT_OK ? strings : NULL);
	if (ended)
		return;
	status = ckptfmt_reader_metadata(reader, &strings, &err);
	text = status == CKPTFMT_OK ? ckptfmt_strings_at(strings, 0, &size) : NULL;
	came(status, text == NULL ? 0 : crc_of(text, size));
	ckptfmt_strings_free(status == CKPTFMT_OK ? strings : NULL);
	if (ended)
		return;
	status = ckptfmt_reader_regions(reader, regions, CF_ARRAY_COUNT(regions), &count, &err);
	came(status, count);
}

/* A new checkpoint with all tensors that can be kept, and two more. */
static void copy_all(ckptfmt_reader *reader)
{
	static uint8_t data[10000];
	ckptfmt_write_options options = {.struct_size = sizeof options, .storage = &failing, .chunk_size = 4096,
		.codec = has_codec ? &codec : NULL, .shards = 2};
	ckptfmt_selection *selection = NULL;
	ckptfmt_writer *writer = NULL;
	uint64_t rows[40], count = 0, kept_count = 0, many = sizeof data;
	int64_t dims[1] = {(int64_t)sizeof data};
	uint8_t kept[40];
	ckptfmt_status status = ckptfmt_reader_list(reader, &selection, &err);
	if (!came(status, 0) || status != CKPTFMT_OK)
		return;
	count = cf_min_u64(ckptfmt_selection_count(selection), 40);
	for (uint64_t i = 0; i < count; i++)
		rows[i] = i;
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)(i / 100);
	status = ckptfmt_writer_open("copy/all", &options, &writer, &err);
	if (came(status, 0) && status == CKPTFMT_OK) {
		status = ckptfmt_writer_keep(writer, reader, selection, rows, count, NULL, kept, &err);
		for (uint64_t i = 0; status == CKPTFMT_OK && i < count; i++)
			kept_count += kept[i];
		/* Best effort: what cannot be kept is written by the caller. */
		if (status == CKPTFMT_OK && !recording && kept_count < sound[step])
			ended = true;
		else
			came(status, kept_count);
		if (!ended && status == CKPTFMT_OK) {
			status = ckptfmt_writer_add_tensor(writer, (const uint8_t *)"~~added", 7, CKPTFMT_UINT8, dims, 1,
				data, many, &err);
			came(status, 0);
		}
		if (!ended && status == CKPTFMT_OK) {
			const uint64_t sizes[1] = {5};
			dims[0] = 1;
			status = ckptfmt_writer_add_strings(writer, (const uint8_t *)"~~strings", 9, dims, 1, data, sizes, &err);
			came(status, 0);
		}
		if (!ended && status == CKPTFMT_OK) {
			status = ckptfmt_writer_commit(writer, &err);
			writer = NULL;
			came(status, 0);
		}
		ckptfmt_writer_abandon(writer);
	}
	ckptfmt_selection_free(selection);
}

static void verify(const char *prefix)
{
	ckptfmt_open_options options = open_options();
	ckptfmt_report *report;
	ckptfmt_status status = ckptfmt_verify(prefix, &options, &report, &err);
	if (!came(status, 0) || status != CKPTFMT_OK)
		return;
	for (uint64_t row = 0; !ended && row < report->finding_count; row++) {
		err = report->findings[row].error;
		came(is_fault() ? CKPTFMT_IO : (ckptfmt_status)err.status, (uint64_t)report->findings[row].severity);
	}
	if (!ended)
		came(CKPTFMT_OK, report->finding_count);
	ckptfmt_report_free(report);
}

static void merge(const char *prefix, int32_t consume)
{
	ckptfmt_merge_options options = {.struct_size = sizeof options, .consume = consume, .storage = &failing};
	const char *prefixes[2] = {prefix, "copy/all"};
	ckptfmt_status status = ckptfmt_merge(prefixes, 2, consume ? "merged/two" : "merged/one", &options, &err);
	came(status, 0);
}

static void use(const char *prefix)
{
	ckptfmt_open_options options = open_options();
	ckptfmt_reader *reader = NULL;
	ckptfmt_header header;
	ckptfmt_status status = ckptfmt_reader_open(prefix, &options, &reader, &err);
	step = 0;
	ended = false;
	if (came(status, 0) && status == CKPTFMT_OK) {
		ckptfmt_reader_header(reader, &header);
		came(CKPTFMT_OK, (uint64_t)(int64_t)header.num_shards);
		read_all(reader);
		if (!ended)
			copy_all(reader);
		ckptfmt_reader_close(reader);
	}
	if (!ended)
		verify(prefix);
	if (!ended)
		merge(prefix, 0);
	if (!ended)
		merge(prefix, 1);
}

/* ---- faults ---- */

/* Runs with allocation number `at_allocation` or storage call number `at_call` failing. Whether one was reached. */
static bool run(const char *prefix, uint64_t at_allocation, uint64_t at_call)
{
	uint64_t live = memory_fault_live(), hits;
	put_files();
	storage_calls = storage_hits = 0;
	storage_at = at_call;
	memory_fault_set(at_allocation, false);
	use(prefix);
	hits = memory_fault_hits() + storage_hits;
	memory_fault_clear();
	ckptfmt_memory_storage_free(memory);
	CHECK_EQ(memory_fault_live(), live);
	return hits != 0;
}

static void one_vector(const char *folder, const char *base, bool faults)
{
	char prefix[PATH_MAX_];
	snprintf(prefix, sizeof prefix, "%s/%s", folder, base);
	load_files(folder, base);
	recording = true;
	outcomes = 0;
	run(prefix, 0, 0);
	all_outcomes += outcomes;
	recording = false;
	for (uint64_t at = 1; faults && run(prefix, at, 0); at += test_fault_step())
		;
	for (uint64_t at = 1; faults && run(prefix, 0, at); at += test_fault_step())
		;
	for (int i = 0; i < file_count; i++)
		free(files[i].bytes);
}

/* With an argument: no faults, for a comparison of what two builds of the library find (tools/mutants.py). */
int main(int count, char **arguments)
{
	static const char *const folders[] = {"spec/vectors/good", "spec/vectors/deviation", "spec/vectors/bad"};
	unsigned long vectors = 0;
	has_codec = ckptfmt_codec_zstd(3, &codec, &err) == CKPTFMT_OK;
	for (size_t i = 0; i < CF_ARRAY_COUNT(folders); i++) {
		DIR *stream = opendir(folders[i]);
		struct dirent *entry;
		CHECK(stream != NULL);
		while (stream != NULL && (entry = readdir(stream)) != NULL) {
			char base[256];
			size_t size = strlen(entry->d_name);
			if (size < 7 || strcmp(entry->d_name + size - 6, ".index") != 0)
				continue;
			memcpy(base, entry->d_name, size - 6);
			base[size - 6] = '\0';
			one_vector(folders[i], base, count == 1);
			vectors++;
		}
		if (stream != NULL)
			closedir(stream);
	}
	CHECK(vectors > 500);
	(void)arguments;
	printf("vectors: %lu, outcomes %" PRIx64 "\n", vectors, all_outcomes);
	return test_finish("vectors");
}
