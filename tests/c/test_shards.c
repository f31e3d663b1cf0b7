/* SPDX-License-Identifier: Apache-2.0 */
/* Saves of several data files, each written by its own thread: which tensors a file gets, equal bytes whatever way they
 * are added, and failures in one of the files. */
#include "scratch.h"
#include "sources.h"

#include <errno.h>
#include <pthread.h>

enum {
	COUNT = 1 << 20,        /* elements of a large tensor: 4 MiB, so that a batch is worth threads */
	TENSORS = 6
};

static ckptfmt_error err;
static float *data;
/* `shards`: where each goes in the order of adding, the first of the two files having 8 MiB when d comes. */
static const char *const names[TENSORS] = {"a", "b", "c", "d", "e", "f"};
static const int64_t counts[TENSORS] = {2 * COUNT, COUNT, COUNT / 2, COUNT, COUNT, 3};
static const int shards[TENSORS] = {0, 1, 1, 1, 0, 1};

static void fill_sources(ckptfmt_source sources[TENSORS])
{
	for (int i = 0; i < TENSORS; i++)
		sources[i] = source_of(names[i], CKPTFMT_FLOAT, 1, &counts[i], data + i);
}

static ckptfmt_writer *open_writer(const char *prefix, const ckptfmt_storage *storage, int32_t files)
{
	ckptfmt_write_options options = {.struct_size = sizeof options, .alignment = 64, .chunk_size = 262144,
		.durability = CKPTFMT_DURABILITY_RENAME, .storage = storage, .shards = files};
	ckptfmt_writer *writer;
	CHECK_OK(ckptfmt_writer_open(path_of(prefix), &options, &writer, &err), err);
	return writer;
}

/* All tensors, `step` of them in one call. */
static void save(const char *prefix, const ckptfmt_storage *storage, int32_t files, int step)
{
	ckptfmt_source sources[TENSORS];
	ckptfmt_writer *writer = open_writer(prefix, storage, files);
	fill_sources(sources);
	for (int i = 0; i < TENSORS; i += step)
		CHECK_OK(ckptfmt_writer_add(writer, sources + i, (uint64_t)step, &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
}

static void check_values(const char *prefix, const ckptfmt_storage *storage)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .storage = storage};
	ckptfmt_reader *reader;
	float *got = malloc(2 * COUNT * sizeof *got);
	CHECK_OK(ckptfmt_reader_open(path_of(prefix), &options, &reader, &err), err);
	for (int i = 0; i < TENSORS; i++) {
		uint64_t size = (uint64_t)counts[i] * sizeof *got;
		CHECK_OK(ckptfmt_tensor_read(reader, (const uint8_t *)names[i], 1, NULL, (uint8_t *)got, size,
			CKPTFMT_VERIFY_FULL, &err), err);
		CHECK(memcmp(got, data + i, (size_t)size) == 0);
	}
	ckptfmt_reader_close(reader);
	free(got);
}

static void check_places(const char *prefix)
{
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	ckptfmt_location location;
	CHECK_OK(ckptfmt_reader_open(path_of(prefix), NULL, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	CHECK_EQ(ckptfmt_selection_count(selection), TENSORS);
	for (uint64_t i = 0; i < TENSORS; i++) {
		CHECK_OK(ckptfmt_reader_locate(reader, selection, i, CKPTFMT_WHOLE, &location, &err), err);
		CHECK_EQ(location.shard, shards[i]);
	}
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
}

static void test_equal_bytes(void)
{
	ckptfmt_storage *memory;
	save("batch", NULL, 2, TENSORS);
	save("single", NULL, 2, 1);
	check_values("batch", NULL);
	check_places("batch");
	shell("cd '%s' && cmp batch.index single.index && cmp batch.data-00000-of-00002 single.data-00000-of-00002 && "
	      "cmp batch.data-00001-of-00002 single.data-00001-of-00002");
	/* A file more, of another generation; then the first number again. */
	save("batch", NULL, 2, TENSORS);
	check_values("batch", NULL);
	shell("test -f '%s'/batch.data-00002-of-00003 && ! test -f '%s'/batch.data-00000-of-00002");
	save("batch", NULL, 2, TENSORS);
	shell("cd '%s' && cmp batch.index single.index && ! test -f batch.data-00002-of-00003");
	CHECK_OK(ckptfmt_memory_storage_new(&memory, &err), err);
	save("batch", memory, 2, TENSORS);
	check_values("batch", memory);
	ckptfmt_memory_storage_free(memory);
}

/* ---- a storage that fails -------------------------------------------------------------------------------- */

/* Over a storage in memory: the first append to each data file waits for that to the other, and the appends to one of
 * them fail from some point on. */
static struct failing {
	ckptfmt_storage *memory;
	pthread_barrier_t both;
	void *files[2];
	int appends[2];
	int file, after;        /* after so many appends to this file */
} failing;

static ckptfmt_status create(void *state, const char *path, void **object, int32_t *exists, ckptfmt_error *error)
{
	ckptfmt_status status = failing.memory->create(state, path, object, exists, error);
	for (int i = 0; i < 2; i++)
		if (strstr(path, i == 0 ? ".data-00000-of" : ".data-00001-of") != NULL)
			failing.files[i] = *object;
	return status;
}

static ckptfmt_status append(void *state, void *object, const uint8_t *bytes, uint64_t size, ckptfmt_error *error)
{
	for (int i = 0; i < 2; i++)
		if (object == failing.files[i]) {
			if (++failing.appends[i] == 1)
				(void)pthread_barrier_wait(&failing.both);
			if (i == failing.file && failing.appends[i] > failing.after)
				return ckptfmt_error_set(error, CKPTFMT_FAIL_OS, ENOSPC, i == 0 ? "first" : "second",
					"cannot append");
		}
	return failing.memory->append(state, object, bytes, size, error);
}

static void count_name(void *to, const char *name)
{
	(void)name;
	++*(int *)to;
}

static void test_failing_file(void)
{
	ckptfmt_storage storage;
	CHECK_OK(ckptfmt_memory_storage_new(&failing.memory, &err), err);
	save("ck", failing.memory, 2, TENSORS);
	CHECK_EQ(pthread_barrier_init(&failing.both, NULL, 2), 0);
	storage = *failing.memory;
	storage.create = create;
	storage.append = append;
	for (int i = 0; i < 4; i++) {
		ckptfmt_source sources[TENSORS];
		ckptfmt_writer *writer;
		int files = 0;
		failing = (struct failing){.memory = failing.memory, .both = failing.both, .file = i % 2,
			.after = i < 2 ? 0 : 3};
		writer = open_writer("new", &storage, 2);
		fill_sources(sources);
		CHECK_FAILS(ckptfmt_writer_add(writer, sources, TENSORS, &err), err, CKPTFMT_FAIL_OS, "cannot append");
		CHECK_EQ(err.os_errno, ENOSPC);
		CHECK(err.tensor_size == 1);
		CHECK(strcmp(err.path, i % 2 == 0 ? "first" : "second") == 0);
		CHECK_FAILS(ckptfmt_writer_add(writer, sources, 1, &err), err, CKPTFMT_FAIL_ARGUMENT, "an earlier");
		ckptfmt_writer_abandon(writer);
		CHECK_OK(storage.list(storage.state, directory, count_name, &files, &err), err);
		CHECK_EQ(files, 3); /* of ck */
		check_values("ck", failing.memory);
	}
	(void)pthread_barrier_destroy(&failing.both);
	ckptfmt_memory_storage_free(failing.memory);
}

int main(void)
{
	if (!make_directory())
		return 1;
	data = malloc((2 * COUNT + TENSORS) * sizeof *data);
	for (int i = 0; i < 2 * COUNT + TENSORS; i++)
		data[i] = (float)i;
	test_equal_bytes();
	test_failing_file();
	free(data);
	remove_tree(directory);
	return test_finish("shards");
}
