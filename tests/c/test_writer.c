/* SPDX-License-Identifier: Apache-2.0 */
/* What a writer refuses: options, sources, and sources that do not go together. Nothing is written then, and the writer
 * can only be abandoned. */
#include "memory_fault.h"
#include "run_codec.h"
#include "sources.h"

static ckptfmt_error err;
static ckptfmt_storage *memory;
static const int64_t two[2] = {2, 2};
static const uint8_t bytes[32] = {0};

static void refuse_options(ckptfmt_write_options options)
{
	ckptfmt_writer *writer;
	options.struct_size = sizeof options;
	options.storage = memory;
	CHECK_FAILS(ckptfmt_writer_open("ck", &options, &writer, &err), err, CKPTFMT_FAIL_ARGUMENT, "");
	CHECK(writer == NULL && strcmp(err.path, "ck") == 0);
}

static void test_options(void)
{
	run_codec codec;
	run_codec_init(&codec);
	refuse_options((ckptfmt_write_options){.alignment = ((uint64_t)1 << 30) + 1});
	refuse_options((ckptfmt_write_options){.chunk_size = 4104});
	refuse_options((ckptfmt_write_options){.chunk_size = 4080});
	refuse_options((ckptfmt_write_options){.durability = CKPTFMT_DURABILITY_NONE + 1});
	refuse_options((ckptfmt_write_options){.durability = -1});
	refuse_options((ckptfmt_write_options){.shards = -1});
	refuse_options((ckptfmt_write_options){.shards = 1025});
	refuse_options((ckptfmt_write_options){.codec = &codec.codec});
	refuse_options((ckptfmt_write_options){.codec = &codec.codec, .chunk_size = (16 << 20) + 16});
}

static ckptfmt_writer *new_writer(void)
{
	const ckptfmt_write_options options = {.struct_size = sizeof options, .storage = memory};
	ckptfmt_writer *writer;
	CHECK_OK(ckptfmt_writer_open("ck", &options, &writer, &err), err);
	return writer;
}

/* The writer has refused the tensor of this name. */
static void check_refused(ckptfmt_writer *writer, const char *name)
{
	const ckptfmt_source good = source_of("good", CKPTFMT_UINT8, 0, NULL, bytes);
	ckptfmt_reader *reader;
	uint64_t size = 0;
	if (name != NULL)
		CHECK(err.tensor_size == strlen(name) && memcmp(err.tensor, name, strlen(name)) == 0);
	CHECK_EQ(strcmp(err.path, "ck.index"), 0);
	CHECK_FAILS(ckptfmt_writer_add(writer, &good, 1, &err), err, CKPTFMT_FAIL_ARGUMENT, "");
	CHECK_FAILS(ckptfmt_writer_add_tensor(writer, bytes, 1, CKPTFMT_UINT8, NULL, 0, bytes, 1, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "");
	CHECK_FAILS(ckptfmt_writer_add_strings(writer, bytes, 1, NULL, 0, bytes, &size, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "");
	CHECK_FAILS(ckptfmt_writer_commit(writer, &err), err, CKPTFMT_FAIL_ARGUMENT, "");
	CHECK_FAILS(ckptfmt_reader_open("ck", &(ckptfmt_open_options){.struct_size = sizeof(ckptfmt_open_options),
		.storage = memory}, &reader, &err), err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, "");
}

/* The last of the sources is refused. */
static void refuse(const ckptfmt_source *sources, uint64_t count, ckptfmt_failure failure)
{
	ckptfmt_writer *writer = new_writer();
	CHECK_FAILS(ckptfmt_writer_add(writer, sources, count, &err), err, failure, "");
	check_refused(writer, sources[count - 1].name_size > 8 ? NULL : (const char *)sources[count - 1].name);
}

static void test_sources(void)
{
	static const int64_t negative[2] = {2, -1}, large[2] = {1ll << 61, 1}, strides[2] = {2, 1}, huge[1] = {1ll << 62};
	static const int64_t slices[][6] = {{-1, 2, 0, 0, 2, 2}, {4, 2, 3, 0, 2, 2}, {4, 2, 0, 0, 3, 2}};
	static uint8_t name[(16 << 20) + 1];
	const ckptfmt_source good = source_of("x", CKPTFMT_UINT8, 2, two, bytes);
	ckptfmt_source bad = good;
	for (int32_t dtype = -1; dtype <= 300; dtype += 1)
		if (ckptfmt_dtype_find(dtype) == NULL || ckptfmt_dtype_find(dtype)->storage == CKPTFMT_STORAGE_NONE) {
			bad.dtype = dtype;
			refuse(&bad, 1, CKPTFMT_FAIL_ARGUMENT);
		}
	bad = good;
	bad.rank = -1;
	refuse(&bad, 1, CKPTFMT_FAIL_ARGUMENT);
	bad.rank = CKPTFMT_RANK_MAX + 1;
	refuse(&bad, 1, CKPTFMT_FAIL_ARGUMENT);
	bad.rank = 2;
	bad.dims = negative;
	refuse(&bad, 1, CKPTFMT_FAIL_ARGUMENT);
	bad.dims = large;
	bad.dtype = CKPTFMT_FLOAT;
	refuse(&bad, 1, CKPTFMT_FAIL_ARGUMENT);
	bad.dtype = CKPTFMT_COMPLEX128;
	refuse(&bad, 1, CKPTFMT_FAIL_ARGUMENT);
	bad = good;
	bad.dtype = CKPTFMT_STRING;
	bad.strides = strides;
	refuse(&bad, 1, CKPTFMT_FAIL_ARGUMENT);
	for (size_t i = 0; i < sizeof slices / sizeof *slices; i++) {
		bad = good;
		bad.slice = slices[i];
		refuse(&bad, 1, CKPTFMT_FAIL_ARGUMENT);
	}
	bad = source_of("", CKPTFMT_UINT8, 2, two, bytes);
	refuse(&bad, 1, CKPTFMT_FAIL_ARGUMENT);
	bad = source_of("_CKPTFMT_METADATA", CKPTFMT_UINT8, 2, two, bytes);
	refuse(&bad, 1, CKPTFMT_FAIL_ARGUMENT);
	/* Names whose keys readers refuse. In the key of a slice a byte of 0 takes two. */
	bad = good;
	bad.name = name;
	bad.name_size = sizeof name;
	refuse(&bad, 1, CKPTFMT_FAIL_LIMIT);
	bad.slice = (const int64_t[6]){4, 2, 0, 0, 2, 2};
	refuse(&bad, 1, CKPTFMT_FAIL_LIMIT);
	bad.name_size = sizeof name / 2;
	refuse(&bad, 1, CKPTFMT_FAIL_LIMIT);
	/* A data file of more than 63 bits. */
	bad = source_of("huge", CKPTFMT_UINT8, 1, huge, bytes);
	const ckptfmt_source three[3] = {good, source_of("y", CKPTFMT_UINT8, 1, huge, bytes), bad};
	refuse(three, 3, CKPTFMT_FAIL_ARGUMENT);
}

static void test_pairs(void)
{
	static const int64_t first[6] = {4, 2, 0, 0, 2, 2}, second[6] = {4, 2, 2, 0, 2, 2}, other[6] = {5, 2, 2, 0, 2, 2};
	static const int64_t flat[3] = {4, 2, 2};
	const ckptfmt_source half = source_of("x", CKPTFMT_UINT8, 2, two, bytes);
	ckptfmt_source pair[2] = {half, half};
	refuse(pair, 2, CKPTFMT_FAIL_ARGUMENT);
	pair[1].slice = second;
	refuse(pair, 2, CKPTFMT_FAIL_ARGUMENT);
	pair[0].slice = pair[1].slice = first;
	refuse(pair, 2, CKPTFMT_FAIL_ARGUMENT);
	pair[1].slice = other;
	refuse(pair, 2, CKPTFMT_FAIL_ARGUMENT);
	pair[1].slice = flat;
	pair[1].rank = 1;
	refuse(pair, 2, CKPTFMT_FAIL_ARGUMENT);
	pair[1].slice = second;
	pair[1].rank = 2;
	pair[1].dtype = CKPTFMT_INT8;
	refuse(pair, 2, CKPTFMT_FAIL_ARGUMENT);
}

/* The calls for one tensor. */
static void test_single(void)
{
	static const int64_t negative[1] = {-1};
	static const uint64_t sizes[4] = {1, 2, 3, 0};
	const uint8_t *name = (const uint8_t *)"x";
	ckptfmt_writer *writer = new_writer();
	CHECK_FAILS(ckptfmt_writer_add_tensor(writer, name, 1, CKPTFMT_STRING, two, 1, bytes, 2, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "");
	check_refused(writer, "x");
	writer = new_writer();
	CHECK_FAILS(ckptfmt_writer_add_tensor(writer, name, 1, CKPTFMT_UINT16, two, 1, bytes, 2, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "");
	check_refused(writer, "x");
	writer = new_writer();
	CHECK_FAILS(ckptfmt_writer_add_tensor(writer, name, 1, CKPTFMT_UINT16, negative, 1, bytes, 2, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "");
	check_refused(writer, "x");
	writer = new_writer();
	CHECK_FAILS(ckptfmt_writer_add_strings(writer, name, 1, negative, 1, bytes, sizes, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "");
	check_refused(writer, "x");
	for (uint64_t n = 1, hit = true; hit; n++) {
		ckptfmt_status status;
		writer = new_writer();
		memory_fault_set(n, false);
		status = ckptfmt_writer_add_strings(writer, name, 1, two, 2, bytes, sizes, &err);
		hit = memory_fault_hits() != 0;
		memory_fault_clear();
		CHECK(status == CKPTFMT_OK || (hit && status == CKPTFMT_NO_MEMORY));
		ckptfmt_writer_abandon(writer);
	}
}

int main(void)
{
	CHECK_OK(ckptfmt_memory_storage_new(&memory, &err), err);
	test_options();
	test_sources();
	test_pairs();
	test_single();
	ckptfmt_memory_storage_free(memory);
	CHECK_EQ(memory_fault_live(), 0);
	return test_finish("writer");
}
