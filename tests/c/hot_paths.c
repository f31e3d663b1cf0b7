/* SPDX-License-Identifier: Apache-2.0 */
/* Nothing here is random but what the library makes so itself (temporary names, the key of its hash): two runs of a
 * path differ by a few instructions in a thousand. */
#include "hot_paths.h"

#include "write/catalog.h"
#include "read/reader.h"
#include "scratch.h"

enum {
	NAME_MAX_SIZE = 64,
	SMALL_BYTES = 256, SMALL_FLOATS = SMALL_BYTES / 4,
	KIB_FLOATS = 256,
	MERGE_KEYS = 100,                                   /* of one input */
	SLICE_ROWS = 4096, SLICE_COLUMNS = 1024, SLICE_TAKEN = 8,
	CHUNK_BYTES = 262144
};

static ckptfmt_error err;

/* What is prepared. */
static struct {
	uint64_t count;
	char *names;                    /* one after the other */
	uint64_t *name_sizes;
	ckptfmt_source *sources;
	uint8_t *data;                  /* of all sources, or of all that is read */
	ckptfmt_request *requests;
	int64_t *boxes;
	char *prefix_texts;
	const char **prefixes;
	cf_catalog catalog;
	ckptfmt_writer *writer;
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
} stage;

static void must(bool good, const char *what)
{
	if (good)
		return;
	fprintf(stderr, "hot path: %s: %s (%s)\n", what, err.message, err.path);
	exit(2);
}

#define MUST_OK(call) must((call) == CKPTFMT_OK, #call)

/* Not cf_allocate: what is prepared is not counted. */
static void *take(uint64_t count, uint64_t size)
{
	void *memory = calloc((size_t)count, (size_t)size);
	must(memory != NULL, "calloc");
	return memory;
}

/* ---- what is written ------------------------------------------------------------------------------------- */

/* Sources [0, count) of float vectors, named in the order of keys from `first` on, or `shuffled`. */
static void make_sources(uint64_t count, uint64_t first, uint64_t floats, bool shuffled)
{
	static int64_t dims[1];
	char *name;
	dims[0] = (int64_t)floats;
	stage.count = count;
	stage.names = name = take(count, NAME_MAX_SIZE);
	stage.name_sizes = take(count, sizeof *stage.name_sizes);
	stage.sources = take(count, sizeof *stage.sources);
	stage.data = take(count * floats, sizeof(float));
	for (uint64_t i = 0; i < count * floats; i++)
		stage.data[i * 4 + i % 3] = (uint8_t)(i * 167 + i / 251);
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_source *source = &stage.sources[i];
		/* 7919 is prime and divides no count used here. */
		uint64_t number = first + (shuffled ? i * 7919 % count : i);
		int size = snprintf(name, NAME_MAX_SIZE, "model/layer_%03" PRIu64 "/block_%03" PRIu64 "/kernel",
			number / 1000, number % 1000);
		must(size > 0 && size < NAME_MAX_SIZE, "a name");
		source->name = (const uint8_t *)name;
		source->name_size = stage.name_sizes[i] = (uint64_t)size;
		source->dims = dims;
		source->rank = 1;
		source->data = stage.data + i * floats * sizeof(float);
		source->dtype = CKPTFMT_FLOAT;
		name += size;
	}
}

static void free_sources(void)
{
	free(stage.names);
	free(stage.name_sizes);
	free(stage.sources);
	free(stage.data);
	stage.names = NULL;
	stage.name_sizes = NULL;
	stage.sources = NULL;
	stage.data = NULL;
}

static void open_writer(const char *name, uint32_t chunk_size)
{
	ckptfmt_write_options options = {.struct_size = sizeof options, .durability = CKPTFMT_DURABILITY_NONE,
		.chunk_size = chunk_size};
	MUST_OK(ckptfmt_writer_open(path_of(name), &options, &stage.writer, &err));
}

static void commit_writer(void)
{
	ckptfmt_status status = ckptfmt_writer_commit(stage.writer, &err);
	stage.writer = NULL;
	must(status == CKPTFMT_OK, "ckptfmt_writer_commit");
}

static void save_sources(const char *name, uint32_t chunk_size)
{
	open_writer(name, chunk_size);
	MUST_OK(ckptfmt_writer_add(stage.writer, stage.sources, stage.count, &err));
	commit_writer();
}

/* ---- the index ------------------------------------------------------------------------------------------- */

static void enter_sources(void)
{
	for (uint64_t i = 0; i < stage.count; i++) {
		uint64_t row;
		MUST_OK(cf_catalog_add(&stage.catalog, &stage.sources[i], &row, &err));
	}
}

static void prepare_catalog(uint64_t count)
{
	make_sources(count, 0, 1, false);
	MUST_OK(cf_catalog_open(&stage.catalog, &err));
}

static void prepare_index(uint64_t count)
{
	prepare_catalog(count);
	enter_sources();
}

static void prepare_shuffled_index(uint64_t count)
{
	make_sources(count, 0, 1, true);
	MUST_OK(cf_catalog_open(&stage.catalog, &err));
	enter_sources();
}

/* A sink that drops the bytes. */
static ckptfmt_status put_nowhere(void *state, const uint8_t *bytes, uint64_t size, ckptfmt_error *unused)
{
	(void)state, (void)bytes, (void)size, (void)unused;
	return CKPTFMT_OK;
}

static void write_index(void)
{
	cf_table_writer table;
	uint64_t size;
	cf_table_writer_open(&table, (cf_sink){put_nowhere, NULL});
	MUST_OK(cf_catalog_write(&stage.catalog, 1, 0, &table, &err));
	MUST_OK(cf_table_writer_finish(&table, &size, &err));
	cf_table_writer_free(&table);
}

/* ---- saving ---------------------------------------------------------------------------------------------- */

static void prepare_small_add(uint64_t count)
{
	make_sources(count, 0, SMALL_FLOATS, false);
	open_writer("added", 0);
}

static void prepare_kib_add(uint64_t count)
{
	make_sources(count, 0, KIB_FLOATS, false);
	open_writer("added", 0);
}

static void add(void)
{
	MUST_OK(ckptfmt_writer_add(stage.writer, stage.sources, stage.count, &err));
}

static void prepare_save(uint64_t count)
{
	make_sources(count, 0, SMALL_FLOATS, false);
}

static void save(void)
{
	save_sources("saved", CHUNK_BYTES);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static void open_reader(void)
{
	MUST_OK(ckptfmt_reader_open(path_of("saved"), NULL, &stage.reader, &err));
}

static void prepare_open(uint64_t count)
{
	make_sources(100000, 0, 1, false);
	save_sources("saved", 0);
	stage.count = count;
}

static void open_readers(void)
{
	for (uint64_t i = 0; i < stage.count; i++) {
		open_reader();
		ckptfmt_reader_close(stage.reader);
		stage.reader = NULL;
	}
}

static void prepare_list(uint64_t count)
{
	make_sources(count, 0, 1, false);
	save_sources("saved", 0);
	open_reader();
}

static void list(void)
{
	MUST_OK(ckptfmt_reader_list(stage.reader, &stage.selection, &err));
}

static void select_all(void)
{
	MUST_OK(ckptfmt_reader_select(stage.reader, (const uint8_t *)stage.names, stage.name_sizes, stage.count,
		&stage.selection, &err));
}

/* `count` names out of ten times as many in the index, in an order that jumps from block to block. All blocks have been
 * looked into before: what that costs once a block is not counted. */
static void prepare_lookups(uint64_t count)
{
	make_sources(count * 10, 0, 1, false);
	save_sources("saved", 0);
	free_sources();
	make_sources(count * 10, 0, 1, true);
	open_reader();
	select_all();
	ckptfmt_selection_free(stage.selection);
	stage.selection = NULL;
	stage.count = count;
}

static void look_up_each(void)
{
	const uint8_t *name = (const uint8_t *)stage.names;
	for (uint64_t i = 0; i < stage.count; i++) {
		ckptfmt_selection *found;
		MUST_OK(ckptfmt_reader_select(stage.reader, name, &stage.name_sizes[i], 1, &found, &err));
		ckptfmt_selection_free(found);
		name += stage.name_sizes[i];
	}
}

static void prepare_read(uint64_t count)
{
	make_sources(count, 0, SMALL_FLOATS, false);
	save_sources("saved", CHUNK_BYTES);
	open_reader();
	select_all();
	stage.requests = take(count, sizeof *stage.requests);
	memset(stage.data, 0, (size_t)(count * SMALL_BYTES));
	for (uint64_t i = 0; i < count; i++) {
		stage.requests[i].row = i;
		stage.requests[i].destination = stage.data + i * SMALL_BYTES;
		stage.requests[i].destination_size = SMALL_BYTES;
	}
}

static void read_all(void)
{
	MUST_OK(ckptfmt_reader_read(stage.reader, stage.selection, stage.requests, stage.count, CKPTFMT_VERIFY_AUTO, &err));
}

/* Rows of one tensor of 16 MiB, without chunk checksums: exactly these bytes are read. */
static void prepare_slices(uint64_t count)
{
	static int64_t dims[2] = {SLICE_ROWS, SLICE_COLUMNS};
	make_sources(1, 0, SLICE_ROWS * SLICE_COLUMNS, false);
	stage.sources[0].dims = dims;
	stage.sources[0].rank = 2;
	save_sources("saved", 0);
	open_reader();
	select_all();
	stage.count = count;
	stage.requests = take(count, sizeof *stage.requests);
	stage.boxes = take(count, 4 * sizeof *stage.boxes);
	for (uint64_t i = 0; i < count; i++) {
		int64_t *box = stage.boxes + i * 4;
		box[0] = (int64_t)(i * 3571 % (SLICE_ROWS - SLICE_TAKEN));
		box[2] = SLICE_TAKEN;
		box[3] = SLICE_COLUMNS;
		stage.requests[i].box = box;
		stage.requests[i].destination = stage.data;
		stage.requests[i].destination_size = SLICE_TAKEN * SLICE_COLUMNS * sizeof(float);
	}
}

/* Columns: a run for each row. */
static void prepare_columns(uint64_t count)
{
	prepare_slices(count);
	for (uint64_t i = 0; i < count; i++) {
		int64_t *box = stage.boxes + i * 4;
		box[0] = (int64_t)(i * 571 % (SLICE_ROWS - 64));
		box[1] = (int64_t)(i * 57 % (SLICE_COLUMNS - 64));
		box[2] = 64;
		box[3] = 64;
		stage.requests[i].destination_size = 64 * 64 * sizeof(float);
	}
}

static void read_each(void)
{
	for (uint64_t i = 0; i < stage.count; i++)
		MUST_OK(ckptfmt_reader_read(stage.reader, stage.selection, &stage.requests[i], 1, CKPTFMT_VERIFY_AUTO,
			&err));
}

/* ---- merging --------------------------------------------------------------------------------------------- */

/* `count` keys, a hundred an input. */
static void prepare_merge(uint64_t count)
{
	uint64_t inputs = count / MERGE_KEYS;
	char name[32];
	stage.prefixes = take(inputs, sizeof *stage.prefixes);
	stage.prefix_texts = take(inputs, 512);
	for (uint64_t i = 0; i < inputs; i++) {
		snprintf(name, sizeof name, "input-%04" PRIu64, i);
		make_sources(MERGE_KEYS, i * MERGE_KEYS, 1, false);
		save_sources(name, 0);
		free_sources();
		snprintf(stage.prefix_texts + i * 512, 512, "%s", path_of(name));
		stage.prefixes[i] = stage.prefix_texts + i * 512;
	}
	stage.count = inputs;
}

static void merge(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .consume = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	MUST_OK(ckptfmt_merge(stage.prefixes, stage.count, path_of("merged"), &options, &err));
}

/* ---- all of them ----------------------------------------------------------------------------------------- */

static const hot_path paths[] = {
	{"catalog", 100000, "key", 0, prepare_catalog, enter_sources},
	{"index", 100000, "key", 0, prepare_index, write_index},
	{"index-shuffled", 100000, "key", 0, prepare_shuffled_index, write_index},
	{"open", 100, "open", 0, prepare_open, open_readers},
	{"list", 100000, "key", 0, prepare_list, list},
	{"lookup", 10000, "lookup", 0, prepare_lookups, look_up_each},
	{"select", 10000, "name", 0, prepare_lookups, select_all},
	{"merge", 10000, "key", 0, prepare_merge, merge},
	{"add-256", 10000, "tensor", SMALL_BYTES, prepare_small_add, add},
	{"add-1024", 10000, "tensor", KIB_FLOATS * 4, prepare_kib_add, add},
	{"save", 10000, "tensor", SMALL_BYTES, prepare_save, save},
	{"read", 10000, "tensor", SMALL_BYTES, prepare_read, read_all},
	{"slice", 1000, "slice", SLICE_TAKEN * SLICE_COLUMNS * 4, prepare_slices, read_each},
	{"columns", 100, "slice", 64 * 64 * 4, prepare_columns, read_each},
};

const hot_path *hot_path_at(uint32_t row)
{
	return row < sizeof paths / sizeof paths[0] ? &paths[row] : NULL;
}

const hot_path *hot_path_find(const char *name)
{
	const hot_path *path;
	for (uint32_t row = 0; (path = hot_path_at(row)) != NULL; row++) {
		if (strcmp(path->name, name) == 0)
			return path;
	}
	return NULL;
}

void hot_path_prepare(const hot_path *path, uint64_t count)
{
	memset(&stage, 0, sizeof stage);
	must(make_directory(), "a directory");
	path->prepare(count);
}

/* Callgrind is told its name. */
__attribute__((noinline)) void hot_path_run(const hot_path *path)
{
	path->run();
	/* No tail call: the function is still there when the path ends. */
	__asm__ volatile("" ::: "memory");
}

void hot_path_finish(const hot_path *path)
{
	(void)path;
	ckptfmt_writer_abandon(stage.writer);
	ckptfmt_selection_free(stage.selection);
	ckptfmt_reader_close(stage.reader);
	cf_catalog_free(&stage.catalog);
	free_sources();
	free(stage.requests);
	free(stage.boxes);
	free(stage.prefix_texts);
	free(stage.prefixes);
	remove_tree(directory);
	must(test_failures == 0, "rm");
}
