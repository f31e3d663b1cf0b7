/* SPDX-License-Identifier: Apache-2.0 */
/* Storages: one scenario of saves, reads, merges and verifies on the file system and in memory, with equal bytes. */
#include "scratch.h"
#include "sources.h"

#include "memory_fault.h"
#include "base/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

enum { COUNT = 100000 };    /* elements of the large tensor: several chunks */

static ckptfmt_error err;
static ckptfmt_storage *storage;    /* NULL: the file system */

static ckptfmt_writer *begin_save(const char *prefix, int32_t durability)
{
	ckptfmt_write_options options = {.struct_size = sizeof options, .chunk_size = 65536, .durability = durability,
		.storage = storage};
	ckptfmt_writer *writer;
	CHECK_OK(ckptfmt_writer_open(path_of(prefix), &options, &writer, &err), err);
	return writer;
}

/* Tensors of one name each, whose elements count up from `first`. */
static void add(ckptfmt_writer *writer, const char *name, float first, int64_t count)
{
	float *data = malloc((size_t)count * sizeof *data);
	ckptfmt_source source = source_of(name, CKPTFMT_FLOAT, 1, &count, data);
	for (int64_t i = 0; i < count; i++)
		data[i] = first + (float)i;
	CHECK_OK(ckptfmt_writer_add(writer, &source, 1, &err), err);
	free(data);
}

static ckptfmt_reader *open_reader(const char *prefix)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .follow_symlinks = 1, .storage = storage};
	ckptfmt_reader *reader;
	CHECK_OK(ckptfmt_reader_open(path_of(prefix), &options, &reader, &err), err);
	return reader;
}

static ckptfmt_selection *select_one(ckptfmt_reader *reader, const char *name)
{
	uint64_t size = strlen(name);
	ckptfmt_selection *selection;
	CHECK_OK(ckptfmt_reader_select(reader, (const uint8_t *)name, &size, 1, &selection, &err), err);
	return selection;
}

static void check_tensor(ckptfmt_reader *reader, const char *name, float first, int64_t count)
{
	float *data = calloc((size_t)count, sizeof *data);
	ckptfmt_selection *selection = select_one(reader, name);
	ckptfmt_request request;
	memset(&request, 0, sizeof request);
	request.destination = (uint8_t *)data;
	request.destination_size = (uint64_t)count * sizeof *data;
	CHECK_OK(ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_FULL, &err), err);
	CHECK(data[0] == first && data[count - 1] == first + (float)(count - 1));
	ckptfmt_selection_free(selection);
	free(data);
}

static void check_mapping(ckptfmt_reader *reader, const char *name, float first)
{
	ckptfmt_selection *selection = select_one(reader, name);
	ckptfmt_mapping *mapping;
	uint64_t size;
	float found;
	ckptfmt_status status = ckptfmt_reader_map(reader, selection, 0, CKPTFMT_VERIFY_FULL, &mapping, &err);
	if (CF_HOST_BIG_ENDIAN) { /* the writer stores little-endian numbers everywhere; they cannot be mapped here */
		CHECK_EQ(status, CKPTFMT_INVALID);
		ckptfmt_selection_free(selection);
		return;
	}
	CHECK_OK(status, err);
	memcpy(&found, ckptfmt_mapping_data(mapping, &size), sizeof found);
	CHECK(found == first);
	ckptfmt_mapping_close(mapping);
	ckptfmt_selection_free(selection);
}

static void check_sound(const char *prefix)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .follow_symlinks = 1, .storage = storage};
	ckptfmt_report *report;
	CHECK_OK(ckptfmt_verify(path_of(prefix), &options, &report, &err), err);
	for (uint64_t i = 0; i < report->finding_count; i++)
		CHECK_EQ(report->findings[i].severity, CKPTFMT_SEVERITY_NOTE);
	ckptfmt_report_free(report);
}

/* The bytes of an object or a file; NULL if there is none. */
static uint8_t *content(const char *name, uint64_t *size)
{
	uint8_t *bytes = malloc(1 << 20);
	const char *path = path_of(name);
	*size = 0;
	if (storage != NULL) {
		ckptfmt_object_info info;
		ckptfmt_object_read read = {.size = 1 << 20, .destination = bytes};
		CHECK_OK(storage->open(storage->state, path, &read.object, &info, &err), err);
		if (read.object != NULL) {
			CHECK_OK(storage->read_batch(storage->state, &read, 1, &err), err);
			CHECK_EQ(read.got, info.size);
			*size = read.got;
			storage->close(storage->state, read.object);
			return bytes;
		}
	} else {
		int fd = open(path, O_RDONLY);
		if (fd >= 0) {
			*size = (uint64_t)read(fd, bytes, 1 << 20);
			close(fd);
			return bytes;
		}
	}
	free(bytes);
	return NULL;
}

static void count_name(void *to, const char *name)
{
	(void)name;
	++*(int *)to;
}

static int count_files(void)
{
	int count = 0;
	if (storage == NULL)
		return count_entries(directory) - 2;
	CHECK_OK(storage->list(storage->state, directory, count_name, &count, &err), err);
	return count;
}

static void merge(const char *destination, int32_t consume)
{
	const char *inputs[] = {path_of("part-0"), path_of("part-1")};
	ckptfmt_merge_options options = {.struct_size = sizeof options, .consume = consume,
		.durability = CKPTFMT_DURABILITY_FULL, .storage = storage};
	CHECK_OK(ckptfmt_merge(inputs, 2, path_of(destination), &options, &err), err);
}

static void keep_all(ckptfmt_writer *writer, const char *prefix, const char *name)
{
	ckptfmt_reader *reader = open_reader(prefix);
	ckptfmt_selection *selection = select_one(reader, name);
	uint64_t row = 0;
	uint8_t kept = 0;
	CHECK_OK(ckptfmt_writer_keep(writer, reader, selection, &row, 1, NULL, &kept, &err), err);
	CHECK_EQ(kept, 1);
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
}

static void run(void)
{
	ckptfmt_writer *writer;
	ckptfmt_reader *reader;
	int32_t count;
	/* Each new generation replaces the one before; a reader that is open keeps its own. */
	reader = NULL;
	for (int generation = 0; generation < 3; generation++) {
		writer = begin_save("ck", generation);
		add(writer, "large", (float)generation, COUNT);
		add(writer, "small", 1, 3);
		CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
		if (generation > 0) {
			check_tensor(reader, "large", (float)(generation - 1), COUNT);
			ckptfmt_reader_close(reader);
		}
		reader = open_reader("ck");
		check_tensor(reader, "large", (float)generation, COUNT);
		check_mapping(reader, "large", (float)generation);
		check_sound("ck");
		CHECK_OK(ckptfmt_index_count(storage, path_of("ck.index"), &count, &err), err);
		CHECK_EQ(count, generation == 1 ? 2 : 1);
		CHECK_EQ(count_files(), generation == 1 ? 3 : 2);
	}
	ckptfmt_reader_close(reader);
	/* Abandoned ones leave nothing. */
	writer = begin_save("gone", 0);
	add(writer, "large", 1, COUNT);
	ckptfmt_writer_abandon(writer);
	CHECK_EQ(count_files(), 2);
	/* Upon an earlier one. */
	writer = begin_save("upon", 0);
	keep_all(writer, "ck", "large");
	add(writer, "other", 5, 4);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
	reader = open_reader("upon");
	check_tensor(reader, "large", 2, COUNT);
	check_tensor(reader, "other", 5, 4);
	ckptfmt_reader_close(reader);
	check_sound("upon");
	/* Merges, over a checkpoint and with the inputs consumed. */
	for (int consume = 0; consume < 2; consume++) {
		for (int part = 0; part < 2; part++) {
			writer = begin_save(part == 0 ? "part-0" : "part-1", 0);
			add(writer, part == 0 ? "a" : "b", (float)(10 * consume + part), COUNT);
			CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
		}
		merge("whole", consume);
		reader = open_reader("whole");
		check_tensor(reader, "a", (float)(10 * consume), COUNT);
		check_tensor(reader, "b", (float)(10 * consume + 1), COUNT);
		ckptfmt_reader_close(reader);
		check_sound("whole");
	}
}

static void test_missing(void)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .follow_symlinks = 1, .storage = storage};
	ckptfmt_reader *reader;
	CHECK_FAILS(ckptfmt_reader_open(path_of("none"), &options, &reader, &err), err,
		CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, "");
}

static void test_equal_bytes(void)
{
	static const char *const names[] = {"ck.index", "ck.data-00000-of-00001", "upon.index", "whole.index",
		"upon.data-00000-of-00002", "upon.data-00001-of-00002", "whole.data-00000-of-00003",
		"whole.data-00001-of-00003", "whole.data-00002-of-00003", "part-0.index", "part-0.data-00000-of-00001"};
	ckptfmt_storage *memory;
	int files;
	CHECK_OK(ckptfmt_memory_storage_new(&memory, &err), err);
	storage = memory;
	run();
	test_missing();
	files = count_files();
	storage = NULL;
	run();
	test_missing();
	CHECK_EQ(count_files(), files);
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		uint64_t size, other_size;
		uint8_t *bytes = content(names[i], &size), *other;
		storage = memory;
		other = content(names[i], &other_size);
		storage = NULL;
		CHECK_EQ(bytes == NULL, other == NULL);
		CHECK(size == other_size && (size == 0 || memcmp(bytes, other, (size_t)size) == 0));
		free(bytes);
		free(other);
	}
	ckptfmt_memory_storage_free(memory);
	ckptfmt_memory_storage_free(NULL);
}

/* Whatever allocation fails, the save fails cleanly and the checkpoint before it stays. */
static void test_no_memory(void)
{
	const int64_t count = 3;
	const float data[] = {1, 2, 3};
	for (uint64_t n = 1;; n++) {
		ckptfmt_source source = source_of("x", CKPTFMT_FLOAT, 1, &count, data);
		ckptfmt_write_options options;
		ckptfmt_writer *writer;
		ckptfmt_status status;
		uint64_t hits;
		memory_fault_set(n, false);
		status = ckptfmt_memory_storage_new(&storage, &err);
		if (status == CKPTFMT_OK) {
			options = (ckptfmt_write_options){.struct_size = sizeof options};
			options.storage = storage;
			status = ckptfmt_writer_open("dir/ck", &options, &writer, &err);
			if (status == CKPTFMT_OK) {
				status = ckptfmt_writer_add(writer, &source, 1, &err);
				if (status == CKPTFMT_OK)
					status = ckptfmt_writer_commit(writer, &err);
				else
					ckptfmt_writer_abandon(writer);
			}
		}
		hits = memory_fault_hits();
		memory_fault_clear();
		CHECK(status == CKPTFMT_OK || status == CKPTFMT_NO_MEMORY);
		ckptfmt_memory_storage_free(storage);
		storage = NULL;
		CHECK_EQ(memory_fault_live(), 0);
		if (hits == 0)
			break;
		CHECK(n < 1000);
	}
}

static void unlock_nothing(void *state, const char *path)
{
	(void)state;
	(void)path;
}

/* What the library itself asks of a storage only while other processes change it. */
static void test_objects(void)
{
	ckptfmt_write_options options = {.struct_size = sizeof options};
	ckptfmt_writer *writer;
	ckptfmt_storage half;
	char path[5000];
	void *object, *other;
	int32_t result, exists;
	int count = 0;
	CHECK_OK(ckptfmt_memory_storage_new(&storage, &err), err);
	CHECK_OK(storage->create(storage->state, "dir/a", &object, &exists, &err), err);
	CHECK_OK(storage->create(storage->state, "dir/a", &other, &exists, &err), err);
	CHECK(exists == 1 && other == NULL);
	CHECK_OK(storage->finish(storage->state, object, &err), err);
	storage->close(storage->state, object);
	CHECK_OK(storage->adopt(storage->state, "dir/none", "dir/b", &result, &err), err);
	CHECK_EQ(result, CKPTFMT_ADOPT_NO_SOURCE);
	CHECK_OK(storage->adopt(storage->state, "dir/a", "dir/deep/b", &result, &err), err);
	CHECK_EQ(result, CKPTFMT_ADOPT_DONE);
	CHECK_FAILS(storage->publish(storage->state, "dir/none", "dir/a", 1, &exists, &err), err, CKPTFMT_FAIL_OS, "");
	CHECK_OK(storage->publish(storage->state, "dir/a", "dir/a", 1, &exists, &err), err);
	/* Only names in the directory itself. */
	CHECK_OK(storage->list(storage->state, "dir", count_name, &count, &err), err);
	CHECK_OK(storage->list(storage->state, "di", count_name, &count, &err), err);
	CHECK_EQ(count, 1);
	half = *storage;
	half.unlock = unlock_nothing;
	options.storage = &half;
	CHECK_FAILS(ckptfmt_writer_open("ck", &options, &writer, &err), err, CKPTFMT_FAIL_ARGUMENT, "");
	memset(path, 'd', sizeof path - 1);
	path[sizeof path - 1] = 0;
	memcpy(path + sizeof path - 4, "/ck", 3);
	options.storage = storage;
	CHECK_FAILS(ckptfmt_writer_open(path, &options, &writer, &err), err, CKPTFMT_FAIL_OS, "");
	CHECK_EQ(err.os_errno, ENAMETOOLONG);
	ckptfmt_memory_storage_free(storage);
	storage = NULL;
	CHECK_EQ(memory_fault_live(), 0);
}

int main(void)
{
	if (!make_directory())
		return 1;
	test_equal_bytes();
	test_no_memory();
	test_objects();
	remove_tree(directory);
	return test_finish("storage");
}
