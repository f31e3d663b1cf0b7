/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that begin with their size: callers built with an older or a newer header than the library. */
#include "test.h"

#include <stddef.h>
#include <string.h>

static ckptfmt_storage *memory;
static ckptfmt_error err;

static void test_write_options(void)
{
	struct { ckptfmt_write_options known; uint64_t later; } newer = {.known = {.struct_size = sizeof newer}};
	ckptfmt_write_options options = {.alignment = 3, .storage = memory};
	const int64_t dims[] = {1};
	const uint8_t byte = 7;
	ckptfmt_writer *writer;
	CHECK_FAILS(ckptfmt_writer_open("none", &options, &writer, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"set struct_size of ckptfmt_write_options");
	CHECK(writer == NULL);
	/* An older caller has no codec and no shards; what is at their place is not read. */
	options.struct_size = offsetof(ckptfmt_write_options, codec);
	memset((uint8_t *)&options + options.struct_size, 0xff, sizeof options - options.struct_size);
	CHECK_OK(ckptfmt_writer_open("old", &options, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_add_tensor(writer, (const uint8_t *)"x", 1, CKPTFMT_UINT8, dims, 1, &byte, 1, &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
	newer.known.storage = memory;
	CHECK_OK(ckptfmt_writer_open("new", &newer.known, &writer, &err), err);
	ckptfmt_writer_abandon(writer);
	newer.later = 1;
	CHECK_FAILS(ckptfmt_writer_open("new", &newer.known, &writer, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"struct_size of ckptfmt_write_options is");
}

static void test_open_options(void)
{
	struct { ckptfmt_limits known; uint64_t later; } newer = {.known = {.struct_size = sizeof newer}};
	ckptfmt_open_options options = {.struct_size = sizeof options, .limits = &newer.known, .storage = memory};
	ckptfmt_reader *reader;
	ckptfmt_report *report;
	CHECK_OK(ckptfmt_reader_open("old", &options, &reader, &err), err);
	ckptfmt_reader_close(reader);
	newer.later = 1;
	CHECK_FAILS(ckptfmt_reader_open("old", &options, &reader, &err), err, CKPTFMT_FAIL_ARGUMENT, "struct_size of");
	/* Only the fields within the size count. */
	newer.known.struct_size = offsetof(ckptfmt_limits, block_bytes_max);
	newer.known.block_bytes_max = 1;
	CHECK_OK(ckptfmt_reader_open("old", &options, &reader, &err), err);
	ckptfmt_reader_close(reader);
	newer.known.index_bytes_max = 1;
	CHECK_FAILS(ckptfmt_reader_open("old", &options, &reader, &err), err, CKPTFMT_FAIL_LIMIT, "TAB-13");
	options.struct_size = 0;
	CHECK_FAILS(ckptfmt_verify("old", &options, &report, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"set struct_size of ckptfmt_open_options");
}

static void test_merge_options(void)
{
	struct { ckptfmt_merge_options known; uint8_t later[3]; } newer = {.known = {.struct_size = sizeof newer}};
	const char *inputs[] = {"old"};
	newer.known.storage = memory;
	newer.later[2] = 1;
	CHECK_FAILS(ckptfmt_merge(inputs, 1, "merged", &newer.known, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"struct_size of ckptfmt_merge_options is");
	newer.later[2] = 0;
	CHECK_OK(ckptfmt_merge(inputs, 1, "merged", &newer.known, &err), err);
}

int main(void)
{
	CHECK_OK(ckptfmt_memory_storage_new(&memory, &err), err);
	test_write_options();
	test_open_options();
	test_merge_options();
	ckptfmt_memory_storage_free(memory);
	return test_finish("test_structs");
}
