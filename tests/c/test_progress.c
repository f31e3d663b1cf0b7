/* SPDX-License-Identifier: Apache-2.0 */
/* Progress functions see all of a call and can end it: a save, a read and a merge are cancelled at each report. Nothing
 * becomes visible, nothing is left behind, and the same call made again succeeds. */
#include "base/progress.h"
#include "run_codec.h"
#include "scratch.h"
#include "sources.h"

#include <stdatomic.h>

enum {
	COUNT = 5,              /* tensors */
	ELEMENTS = 7 << 16,     /* of each: with 4 bytes each enough that a writer and a reader start threads */
	SIZE = 4 * ELEMENTS
};

typedef struct watch {
	int cancel_at;              /* the report that ends the call, from 1 on; 0: none */
	int reports;
	_Atomic int inside;
	int overlapping, wrong;     /* reports at the same time as another, or that do not follow from the one before */
	bool cancelled;
	uint64_t done, total;
} watch;

static ckptfmt_error err;
static uint8_t *values[COUNT];

static int32_t report(void *context, uint64_t done, uint64_t total)
{
	watch *w = context;
	w->overlapping += atomic_fetch_add(&w->inside, 1) != 0;
	w->reports++;
	/* Each call begins with 0. */
	w->wrong += w->cancelled || done > total || (done < w->done && done != 0) || (done != 0 && total != w->total);
	w->done = done;
	w->total = total;
	w->cancelled = w->reports == w->cancel_at;
	(void)atomic_fetch_sub(&w->inside, 1);
	return w->cancelled;
}

static ckptfmt_progress_hook hook_of(watch *w, int cancel_at)
{
	*w = (watch){.cancel_at = cancel_at};
	return (ckptfmt_progress_hook){report, w};
}

/* The call was cancelled as asked, or reported everything. True: it was not cancelled. */
static bool check_outcome(const watch *w, ckptfmt_status status, uint64_t total)
{
	CHECK_EQ(w->overlapping, 0);
	CHECK_EQ(w->wrong, 0);
	if (w->cancelled) {
		CHECK_EQ(status, CKPTFMT_CANCELLED);
		CHECK_EQ(err.status, CKPTFMT_CANCELLED);
		CHECK_EQ(err.failure, CKPTFMT_FAIL_CANCELLED);
		CHECK_EQ(err.tensor_size, 0);
		return false;
	}
	CHECK_OK(status, err);
	CHECK(w->reports >= 2);
	CHECK_EQ(w->done, w->total);
	CHECK(w->total >= total);
	return true;
}

static ckptfmt_status add_and_commit(ckptfmt_writer *writer)
{
	static const int64_t dims[1] = {ELEMENTS};
	static const char *const names[COUNT] = {"a", "b", "c", "d", "e"};
	static const uint8_t metadata[] = "{}";
	ckptfmt_source sources[COUNT];
	for (int i = 0; i < COUNT; i++)
		sources[i] = source_of(names[i], CKPTFMT_FLOAT, 1, dims, values[i]);
	ckptfmt_status status = ckptfmt_writer_add(writer, sources, COUNT, &err);
	if (status == CKPTFMT_OK)
		status = ckptfmt_writer_add_metadata(writer, metadata, 2, &err);
	if (status == CKPTFMT_OK)
		return ckptfmt_writer_commit(writer, &err);
	/* It only takes abandon. */
	ckptfmt_error again;
	CHECK_FAILS(ckptfmt_writer_add(writer, sources, 1, &again), again, CKPTFMT_FAIL_ARGUMENT, "an earlier call");
	ckptfmt_writer_abandon(writer);
	return status;
}

static ckptfmt_status save(const char *prefix, ckptfmt_write_options options, ckptfmt_progress_hook hook)
{
	ckptfmt_writer *writer;
	options.struct_size = sizeof options;
	options.progress = hook;
	CHECK_OK(ckptfmt_writer_open(prefix, &options, &writer, &err), err);
	return add_and_commit(writer);
}

static void test_save(ckptfmt_write_options options)
{
	char folder[400], prefix[500];
	watch w;
	bool whole = false;
	CHECK_OK(save(path_of("wanted/x"), options, (ckptfmt_progress_hook){NULL, NULL}), err);
	snprintf(folder, sizeof folder, "%s", path_of("saved"));
	snprintf(prefix, sizeof prefix, "%s/x", folder);
	for (int at = 1; !whole; at++) {
		whole = check_outcome(&w, save(prefix, options, hook_of(&w, at)), 0);
		if (!whole)
			CHECK_EQ(count_entries(folder), 2);
	}
	CHECK(w.reports > COUNT);
	CHECK(holds_same_files("saved", "wanted"));
	/* Over an older checkpoint, which stays. */
	whole = check_outcome(&w, save(prefix, options, hook_of(&w, 3)), 0);
	CHECK(!whole);
	CHECK(holds_same_files("saved", "wanted"));
	remove_tree(folder);
	remove_tree(path_of("wanted"));
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static void test_read(int threads, const ckptfmt_codec *codec, bool boxes)
{
	static const int64_t box[2] = {5, ELEMENTS - 5};
	ckptfmt_write_options options = {.chunk_size = 1 << 16, .codec = codec, .durability = CKPTFMT_DURABILITY_RENAME};
	ckptfmt_open_options opened = {.struct_size = sizeof opened, .threads = threads, .codec = codec};
	uint64_t size = boxes ? SIZE - 20 : SIZE;
	uint8_t *got = malloc((size_t)COUNT * SIZE);
	ckptfmt_request requests[COUNT];
	ckptfmt_reader *reader;
	ckptfmt_selection *all;
	watch w;
	bool whole = false;
	CHECK_OK(save(path_of("read/x"), options, (ckptfmt_progress_hook){NULL, NULL}), err);
	opened.progress = hook_of(&w, 0);
	CHECK_OK(ckptfmt_reader_open(path_of("read/x"), &opened, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_list(reader, &all, &err), err);
	CHECK_EQ(w.reports, 0);
	for (int at = 1; !whole; at++) {
		memset(got, 0, (size_t)COUNT * SIZE);
		memset(requests, 0, sizeof requests);
		for (int i = 0; i < COUNT; i++) {
			requests[i].row = (uint64_t)i;
			requests[i].box = boxes ? box : NULL;
			requests[i].destination = got + (size_t)i * SIZE;
			requests[i].destination_size = size;
		}
		(void)hook_of(&w, at);
		whole = check_outcome(&w, ckptfmt_reader_read(reader, all, requests, COUNT, CKPTFMT_VERIFY_AUTO, &err),
			COUNT * size);
	}
	/* Compressed values need fewer reads. */
	CHECK(w.reports > COUNT);
	for (int i = 0; i < COUNT; i++)
		CHECK(memcmp(got + (size_t)i * SIZE, values[i] + (boxes ? 20 : 0), (size_t)size) == 0);
	ckptfmt_selection_free(all);
	ckptfmt_reader_close(reader);
	remove_tree(path_of("read"));
	free(got);
}

/* ---- merging --------------------------------------------------------------------------------------------- */

static void save_part(const char *prefix, const char *name)
{
	static const int64_t dims[1] = {ELEMENTS};
	ckptfmt_source source = source_of(name, CKPTFMT_FLOAT, 1, dims, values[0]);
	CHECK_OK(save_sources(prefix, NULL, &source, 1, &err), err);
}

/* `elsewhere`: where the inputs are; files of another file system are copied. */
static void test_merge(const char *elsewhere, int consume)
{
	ckptfmt_merge_options options = {.struct_size = sizeof options, .consume = consume};
	char first[400], second[400], folder[400], wanted[400];
	const char *inputs[2] = {first, second};
	watch w;
	bool whole = false;
	snprintf(first, sizeof first, "%s/in/a", elsewhere);
	snprintf(second, sizeof second, "%s/in/b", elsewhere);
	snprintf(folder, sizeof folder, "%s", path_of("merged"));
	save_part(first, "a");
	save_part(second, "b");
	snprintf(wanted, sizeof wanted, "%s", path_of("wanted/x"));
	CHECK_OK(ckptfmt_merge(inputs, 2, wanted, NULL, &err), err);
	for (int at = 1; !whole; at++) {
		options.progress = hook_of(&w, at);
		whole = check_outcome(&w, ckptfmt_merge(inputs, 2, path_of("merged/x"), &options, &err), 2 * SIZE);
		if (!whole) {
			/* The inputs are whole, and the directory is empty, or was not made yet. */
			CHECK_EQ(count_entries(folder), access(folder, F_OK) == 0 ? 2 : -1);
			snprintf(wanted, sizeof wanted, "%s/in", elsewhere);
			CHECK_EQ(count_entries(wanted), 6);
		}
	}
	CHECK(holds_same_files("merged", "wanted"));
	remove_tree(folder);
	remove_tree(path_of("wanted"));
	snprintf(wanted, sizeof wanted, "%s/in", elsewhere);
	remove_tree(wanted);
}

int main(void)
{
	run_codec codec;
	char home[256], other[256];
	for (int i = 0; i < COUNT; i++) {
		values[i] = malloc(SIZE);
		for (int k = 0; k < SIZE; k++)
			values[i][k] = (uint8_t)(i % 2 == 0 ? k >> 16 : (k & 255) * (k >> 8) + i);
	}
	run_codec_init(&codec);
	CHECK(make_directory());
	snprintf(home, sizeof home, "%s", directory);
	CHECK(make_memory_directory());
	snprintf(other, sizeof other, "%s", directory);
	test_save((ckptfmt_write_options){.durability = CKPTFMT_DURABILITY_RENAME});
	test_save((ckptfmt_write_options){.chunk_size = 1 << 16, .shards = 3, .alignment = 64});
	test_save((ckptfmt_write_options){.chunk_size = 1 << 16, .codec = &codec.codec});
	test_read(1, NULL, false);
	test_read(4, NULL, false);
	test_read(4, NULL, true);
	test_read(1, &codec.codec, false);
	test_read(4, &codec.codec, true);
	snprintf(directory, sizeof directory, "%s", home);
	test_merge(home, 0);
	test_merge(home, 1);
	test_merge(other, 0);
	test_merge(other, 1);
	remove_tree(home);
	remove_tree(other);
	for (int i = 0; i < COUNT; i++)
		free(values[i]);
	return test_finish("test_progress");
}
