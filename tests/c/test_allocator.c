/* SPDX-License-Identifier: Apache-2.0 */
/* A caller's allocator serves saving, merging, reading and verifying, and gets everything back. */
#include "scratch.h"
#include "sources.h"

#include <stdatomic.h>

enum { COUNT = 100000, CHUNK = 65536 };

/* Before each block, so that memory from elsewhere is found out. */
typedef struct head {
	_Alignas(max_align_t) uint64_t magic;
	uint64_t size;
} head;

static const uint64_t magic = UINT64_C(0x616c6c6f63617465);
static ckptfmt_error err;
static int context;
static _Atomic uint64_t calls, live, wrong, left;

static void *allocate(void *given, uint64_t size)
{
	head *block;
	(void)atomic_fetch_add(&wrong, given != &context || size == 0);
	(void)atomic_fetch_add(&calls, 1);
	if (left != 0 && atomic_fetch_sub(&left, 1) == 1)
		return NULL;
	block = malloc(sizeof *block + (size_t)size);
	if (block == NULL)
		return NULL;
	(void)atomic_fetch_add(&live, 1);
	*block = (head){.magic = magic, .size = size};
	/* Nothing may count on zeros. */
	memset(block + 1, 0xa5, (size_t)size);
	return block + 1;
}

static void release(void *given, void *memory)
{
	head *block = (head *)memory - 1;
	(void)atomic_fetch_add(&wrong, given != &context || block->magic != magic);
	(void)atomic_fetch_sub(&live, 1);
	block->magic = 0;
	free(block);
}

static void *reallocate(void *given, void *memory, uint64_t size)
{
	const head *block;
	void *moved = allocate(given, size);
	if (moved == NULL || memory == NULL)
		return moved;
	block = (const head *)memory - 1;
	memcpy(moved, memory, (size_t)(block->size < size ? block->size : size));
	release(given, memory);
	return moved;
}

static ckptfmt_status save(const char *prefix, const char *name, const float *values)
{
	static const int64_t dims[1] = {COUNT};
	const ckptfmt_write_options options = {.struct_size = sizeof options, .chunk_size = CHUNK,
		.durability = CKPTFMT_DURABILITY_RENAME};
	const ckptfmt_source source = source_of(name, CKPTFMT_FLOAT, 1, dims, values);
	return save_sources(path_of(prefix), &options, &source, 1, &err);
}

static ckptfmt_status load(const char *prefix, const char *name, float *values)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .follow_symlinks = 1};
	ckptfmt_reader *reader;
	ckptfmt_status status = ckptfmt_reader_open(path_of(prefix), &options, &reader, &err);
	if (status == CKPTFMT_OK)
		status = ckptfmt_tensor_read(reader, (const uint8_t *)name, 1, NULL, (uint8_t *)values,
			COUNT * sizeof *values, CKPTFMT_VERIFY_FULL, &err);
	ckptfmt_reader_close(reader);
	return status;
}

static void verify(const char *prefix)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .follow_symlinks = 1};
	ckptfmt_report *report;
	CHECK_OK(ckptfmt_verify(path_of(prefix), &options, &report, &err), err);
	CHECK_EQ(report->finding_count, 0);
	ckptfmt_report_free(report);
}

static void test_operations(void)
{
	static float values[COUNT], got[COUNT];
	char first[1024];
	const char *inputs[2];
	for (int i = 0; i < COUNT; i++)
		values[i] = (float)i;
	CHECK_OK(save("a", "x", values), err);
	CHECK_OK(save("b", "y", values), err);
	(void)snprintf(first, sizeof first, "%s", path_of("a"));
	inputs[0] = first;
	inputs[1] = path_of("b");
	CHECK_OK(ckptfmt_merge(inputs, 2, path_of("all"), NULL, &err), err);
	CHECK_OK(load("all", "y", got), err);
	CHECK(memcmp(got, values, sizeof got) == 0);
	verify("all");
	CHECK(calls > 20);
	CHECK_EQ(live, 0);
	/* The first allocation fails. */
	left = 1;
	CHECK_EQ(save("c", "x", values), CKPTFMT_NO_MEMORY);
	left = 1;
	CHECK_EQ(load("all", "x", got), CKPTFMT_NO_MEMORY);
	left = 0;
	CHECK_EQ(live, 0);
	CHECK_EQ(wrong, 0);
}

static void test_wrong_structs(void)
{
	ckptfmt_allocator allocator = {.struct_size = sizeof allocator, .allocate = allocate, .release = release};
	CHECK_FAILS(ckptfmt_set_allocator(&allocator, &err), err, CKPTFMT_FAIL_ARGUMENT, "the allocator must have");
	allocator.struct_size = 0;
	CHECK_FAILS(ckptfmt_set_allocator(&allocator, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"set struct_size of ckptfmt_allocator");
}

int main(void)
{
	ckptfmt_allocator allocator = {.struct_size = sizeof allocator, .context = &context, .allocate = allocate,
		.reallocate = reallocate, .release = release};
	uint64_t before;
	if (!make_directory())
		return 2;
	CHECK_OK(ckptfmt_set_allocator(&allocator, &err), err);
	test_wrong_structs();
	test_operations();
	/* And back to malloc. */
	CHECK_OK(ckptfmt_set_allocator(NULL, &err), err);
	before = calls;
	verify("all");
	CHECK_EQ(calls, before);
	remove_tree(directory);
	return test_finish("allocator");
}
