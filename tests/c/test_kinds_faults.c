/* SPDX-License-Identifier: Apache-2.0 */
/* Saves and merges of every kind of value (strided, swapped, strings, variants, slices, large ones, metadata), plain
 * and compressed, into one data file and two, with every allocation and every call of the operating system failing in
 * turn: a typed error or success, nothing leaked, all of the old checkpoint or all of the new one. Links os_fault.c and
 * memory_fault.c in the place of the real ones. */
#include "memory_fault.h"
#include "os_fault.h"
#include "run_codec.h"
#include "scratch.h"
#include "sources.h"

#include "base/arith.h"
#include "base/error.h"

#include <errno.h>

enum { SIDE = 24, LARGE = 3 << 14, KINDS = 9, CHUNK = 4096 };

static ckptfmt_error err;
static run_codec codec;
static ckptfmt_write_options options;
static float square[SIDE * SIDE];
static uint8_t large[LARGE], mixed[LARGE];

static ckptfmt_status add_all(ckptfmt_writer *writer, uint8_t seed)
{
	static const int64_t sides[2] = {SIDE, SIDE}, strides[2] = {4, 4 * SIDE};
	static const int64_t two[1] = {2}, many[1] = {LARGE}, none[1] = {0};
	static const int64_t first[3] = {4, 0, 2}, second[3] = {4, 2, 2};
	const uint8_t text[] = {'s', 'e', 'e', 'd', seed};
	const ckptfmt_bytes texts[2] = {{text, sizeof text}, {NULL, 0}};
	ckptfmt_source sources[KINDS] = {source_of("turned", CKPTFMT_FLOAT, 2, sides, square),
		source_of("swapped", CKPTFMT_INT32, 2, sides, square), source_of("texts", CKPTFMT_STRING, 1, two, texts),
		source_of("variants", CKPTFMT_VARIANT, 1, two, texts), source_of("cut", CKPTFMT_FLOAT, 1, two, square),
		source_of("cut", CKPTFMT_FLOAT, 1, two, square + 2), source_of("large", CKPTFMT_UINT8, 1, many, large),
		source_of("mixed", CKPTFMT_UINT8, 1, many, mixed), source_of("empty", CKPTFMT_DOUBLE, 1, none, square)};
	sources[0].strides = strides;
	sources[1].swapped = 1;
	sources[4].slice = first;
	sources[5].slice = second;
	for (int i = 0; i < SIDE * SIDE; i++)
		square[i] = (float)(i + seed);
	memset(large, seed, sizeof large);
	for (uint32_t i = 0; i < LARGE; i++)
		mixed[i] = i % (2 * CHUNK) < CHUNK ? seed : (uint8_t)(i * i >> 7);
	CF_TRY(ckptfmt_writer_add(writer, sources, KINDS, &err));
	return ckptfmt_writer_add_metadata(writer, text, sizeof text, &err);
}

static ckptfmt_status save(const char *prefix, uint8_t seed)
{
	ckptfmt_writer *writer;
	ckptfmt_status status = ckptfmt_writer_open(path_of(prefix), &options, &writer, &err);
	if (status != CKPTFMT_OK)
		return status;
	status = add_all(writer, seed);
	if (status == CKPTFMT_OK)
		return ckptfmt_writer_commit(writer, &err);
	ckptfmt_writer_abandon(writer);
	return status;
}

/* ---- looking -------------------------------------------------------------------------------------------------- */

static ckptfmt_status sum_row(ckptfmt_reader *reader, const ckptfmt_selection *all, uint64_t row, uint32_t *sum)
{
	ckptfmt_tensor tensor;
	CF_TRY(ckptfmt_selection_tensor(all, row, &tensor, &err));
	if (ckptfmt_dtype_find(tensor.dtype)->storage == CKPTFMT_STORAGE_FIXED) {
		static uint8_t data[LARGE];
		ckptfmt_request request = {.row = row, .destination = data, .destination_size = tensor.byte_size};
		CF_TRY(ckptfmt_reader_read(reader, all, &request, 1, CKPTFMT_VERIFY_FULL, &err));
		*sum = ckptfmt_crc32c(*sum, data, tensor.byte_size);
	} else {
		ckptfmt_strings *strings;
		ckptfmt_strings_view view;
		CF_TRY(ckptfmt_reader_read_strings(reader, all, row, NULL, CKPTFMT_VERIFY_FULL, &strings, &err));
		ckptfmt_strings_get(strings, &view);
		*sum = ckptfmt_crc32c(*sum, view.bytes, view.offsets[view.count]);
		ckptfmt_strings_free(strings);
	}
	return CKPTFMT_OK;
}

/* A checksum of all values in the checkpoint, metadata included; 0 if it cannot be read. */
static uint32_t sum_of(const char *prefix)
{
	ckptfmt_open_options how = {.struct_size = sizeof how, .codec = &codec.codec, .follow_symlinks = 1};
	ckptfmt_reader *reader = NULL;
	ckptfmt_selection *all = NULL;
	uint32_t sum = 1;
	ckptfmt_status status = ckptfmt_reader_open(path_of(prefix), &how, &reader, &err);
	if (status != CKPTFMT_OK)
		return 0;
	status = ckptfmt_reader_list_all(reader, &all, &err);
	for (uint64_t i = 0; status == CKPTFMT_OK && i < ckptfmt_selection_count(all); i++)
		status = sum_row(reader, all, i, &sum);
	ckptfmt_selection_free(all);
	ckptfmt_reader_close(reader);
	return status == CKPTFMT_OK ? sum : 0;
}

/* ---- operations ----------------------------------------------------------------------------------------------- */

static ckptfmt_status save_new(void)
{
	return save("out/ck", 2);
}

static ckptfmt_status merge_with(bool consume)
{
	const char *inputs[2] = {path_of("in/a"), path_of("other/b")};
	ckptfmt_merge_options how = {.struct_size = sizeof how, .consume = consume, .remove_directories = consume};
	return ckptfmt_merge(inputs, 2, path_of("out/ck"), &how, &err);
}

static ckptfmt_status merge_new(void)
{
	return merge_with(false);
}

static ckptfmt_status consume_new(void)
{
	return merge_with(true);
}

/* The tensors of the checkpoint in two inputs, one of which has only a slice and the same metadata. */
static void save_inputs(void)
{
	static const int64_t dims[1] = {2}, whole[3] = {2, 0, 2};
	ckptfmt_source source = source_of("more", CKPTFMT_FLOAT, 1, dims, square);
	ckptfmt_writer *writer;
	source.slice = whole;
	CHECK_OK(save("in/a", 2), err);
	CHECK_OK(ckptfmt_writer_open(path_of("other/b"), &options, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_add(writer, &source, 1, &err), err);
	CHECK_OK(ckptfmt_writer_add_metadata(writer, (const uint8_t *)"seed\2", 5, &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
}

static uint32_t old_sum;

static void set_stage(bool merges)
{
	empty_tree(directory);
	CHECK_OK(save("out/ck", 1), err);
	if (merges)
		save_inputs();
}

/* Runs the operation with fault after fault. */
static uint64_t fail_all(ckptfmt_status (*operation)(void), bool merges, bool memory, bool forever)
{
	uint64_t runs = 0;
	uint32_t new_sum;
	bool hit = true;
	set_stage(merges);
	CHECK_OK(operation(), err);
	new_sum = sum_of("out/ck");
	CHECK(new_sum != 0 && new_sum != old_sum);
	for (uint64_t n = 1; hit; n += test_fault_step(), runs++) {
		int open_files;
		uint32_t found;
		ckptfmt_status status;
		set_stage(merges);
		open_files = count_entries("/proc/self/fd");
		if (memory)
			memory_fault_set(n, forever);
		else
			os_fault_set(&(os_fault_plan){.at = n, .forever = forever, .os_errno = forever ? ENOSPC : EIO});
		status = operation();
		hit = (memory ? memory_fault_hits() : os_fault_hits()) != 0;
		memory_fault_clear();
		os_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		CHECK_EQ(count_entries("/proc/self/fd"), open_files);
		if (status != CKPTFMT_OK) {
			CHECK(memory ? status == CKPTFMT_NO_MEMORY || err.os_errno != 0 : err.os_errno != 0);
			CHECK(status != CKPTFMT_CORRUPT && err.message[0] != '\0');
		}
		found = sum_of("out/ck");
		CHECK(status == CKPTFMT_OK ? found == new_sum : found == old_sum || found == new_sum);
		/* The same call again ends what was begun, unless nothing is left to do. */
		status = operation();
		CHECK(status == CKPTFMT_OK || (found == new_sum && merges));
		CHECK_EQ(sum_of("out/ck"), new_sum);
	}
	return runs;
}

int main(void)
{
	uint64_t runs = 0;
	if (!make_memory_directory())
		return 2;
	run_codec_init(&codec);
	for (int kind = 0; kind < 4; kind++) {
		options = (ckptfmt_write_options){.struct_size = sizeof options, .shards = 1 + kind % 2};
		if (kind >= 1)
			options.chunk_size = CHUNK;
		if (kind >= 2)
			options.codec = &codec.codec;
		set_stage(false);
		old_sum = sum_of("out/ck");
		CHECK(old_sum != 0);
		for (int forever = 0; forever < 2; forever++)
			for (int memory = 0; memory < 2; memory++) {
				runs += fail_all(save_new, false, memory, forever);
				runs += fail_all(merge_new, true, memory, forever);
				runs += fail_all(consume_new, true, memory, forever);
			}
	}
	printf("operations with a fault: %llu\n", (unsigned long long)runs);
	os_fault_log_clear();
	remove_tree(directory);
	return test_finish("kinds_faults");
}
