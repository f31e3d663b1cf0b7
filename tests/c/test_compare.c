/* SPDX-License-Identifier: Apache-2.0 */
/* Comparing tensors with those of a checkpoint: large values, foreign checkpoints, faults and misuse. Dtypes, layouts,
 * strings, collisions of checksums and damage: tests/bundle/test_incremental.py. */
#include "bundle_maker.h"
#include "memory_fault.h"
#include "merge_stage.h"
#include "os_fault.h"
#include "sources.h"

#include <errno.h>

static void save(const ckptfmt_source *sources, uint64_t count, uint32_t chunk_size)
{
	ckptfmt_write_options options = {.struct_size = sizeof options, .durability = CKPTFMT_DURABILITY_NONE,
		.chunk_size = chunk_size};
	empty_tree(directory);
	CHECK_OK(save_sources(path_of("base"), &options, sources, count, &err), err);
}

enum { MOST = 64 };

/* Compares sources with the tensors of their names; the answers are in `same`. */
static ckptfmt_status compare(const ckptfmt_source *sources, uint64_t count, uint8_t *same)
{
	char names[MOST * 16];
	uint64_t sizes[MOST], rows[MOST], size = 0;
	ckptfmt_reader *reader;
	ckptfmt_selection *selection = NULL;
	ckptfmt_status status;
	for (uint64_t i = 0; i < count; i++) {
		memcpy(names + size, sources[i].name, (size_t)sources[i].name_size);
		size += sizes[i] = sources[i].name_size;
		rows[i] = i;
	}
	status = ckptfmt_reader_open(path_of("base"), NULL, &reader, &err);
	if (status == CKPTFMT_OK)
		status = ckptfmt_reader_select(reader, (const uint8_t *)names, sizes, count, &selection, &err);
	if (status == CKPTFMT_OK)
		status = ckptfmt_reader_compare(reader, selection, sources, rows, count, same, &err);
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	return status;
}

static bool is_same(const ckptfmt_source *source)
{
	uint8_t same = 7;
	CHECK_OK(compare(source, 1, &same), err);
	CHECK(same <= 1);
	return same == 1;
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* Of a value of many chunks and pieces each byte counts, with chunk checksums and without. */
static void test_large(void)
{
	enum { SIZE = (1 << 20) + 12345 };
	uint8_t *bytes = test_guarded(SIZE);
	const int64_t dims[1] = {SIZE}, backwards[1] = {-1};
	ckptfmt_source source = source_of("x", CKPTFMT_UINT8, 1, dims, bytes);
	for (int i = 0; i < SIZE; i++)
		bytes[i] = (uint8_t)test_random();
	for (int round = 0; round < 6; round++) {
		source.data = round < 3 ? bytes : bytes + SIZE - 1;
		source.strides = round < 3 ? NULL : backwards;
		save(&source, 1, (uint32_t[]){0, 4096, 48 * 1024}[round % 3]);
		CHECK(is_same(&source));
		for (int i = 0; i < 12; i++) {
			uint64_t at = i == 0 ? 0 : i == 1 ? SIZE - 1 : test_random_below(SIZE);
			bytes[at] ^= 0x10;
			CHECK(!is_same(&source));
			bytes[at] ^= 0x10;
		}
	}
}

/* ---- the checkpoint -------------------------------------------------------------------------------------- */

/* A wrong checksum in an index that is sound otherwise, of a value, of a chunk, or of a value whose chunks are right;
 * a partitioned tensor, a feature that is not known; the other byte order. */
static void test_made_by_others(void)
{
	const int64_t dims[1] = {8}, starts[1] = {0}, lengths[1] = {4}, rest[1] = {4};
	const uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	const char *const names[6] = {"good", "sum", "chunk", "cut", "new", "total"};
	ckptfmt_source sources[6];
	uint8_t same[6];
	bundle_maker m;
	for (int i = 0; i < 6; i++)
		sources[i] = source_of(names[i], CKPTFMT_UINT8, 1, dims, bytes);
	for (int big = 0; big < 2; big++) {
		maker_entry *entry;
		empty_tree(directory);
		maker_begin(&m, directory, "base", 1);
		m.endianness = big;
		maker_chunks(maker_tensor(&m, "good", CKPTFMT_UINT8, 1, dims, 0, bytes, 8), 4, bytes);
		maker_tensor(&m, "sum", CKPTFMT_UINT8, 1, dims, 0, bytes, 8)->fields.masked_crc ^= 1;
		entry = maker_tensor(&m, "chunk", CKPTFMT_UINT8, 1, dims, 0, bytes, 8);
		maker_chunks(entry, 4, bytes);
		entry->chunk_crcs[1] ^= 1;
		entry = maker_partitioned(&m, "cut", CKPTFMT_UINT8, 1, dims);
		maker_slice(&m, entry, "cut", starts, lengths, 0, bytes, 4);
		entry = maker_find(&m, "cut");
		maker_slice(&m, entry, "cut", rest, lengths, 0, bytes + 4, 4);
		entry = maker_tensor(&m, "new", CKPTFMT_UINT8, 1, dims, 0, bytes, 8);
		cf_put_bytes(&entry->more, "\xa2\x06\x02\x08\x02", 5);     /* feature_flags 2 */
		entry = maker_tensor(&m, "total", CKPTFMT_UINT8, 1, dims, 0, bytes, 8);
		maker_chunks(entry, 4, bytes);
		entry->fields.masked_crc ^= 1;
		maker_build(&m);
		maker_save(&m);
		CHECK_OK(compare(sources, 6, same), err);
		CHECK_EQ(same[0], !big);
		for (int i = 1; i < 6; i++)
			CHECK_EQ(same[i], 0);
		maker_free(&m);
	}
}

/* ---- faults and misuse ----------------------------------------------------------------------------------- */

static void test_faults(void)
{
	const int64_t dims[1] = {2}, many[1] = {1 << 18}, strides[1] = {8};
	const float values[2] = {1, 2};
	static float large[1 << 19];
	/* Too long to be read with its neighbour. */
	const ckptfmt_bytes items[2] = {{(const uint8_t *)"x", 1}, {(const uint8_t *)large, 70 << 10}};
	ckptfmt_source sources[3] = {source_of("a", CKPTFMT_FLOAT, 1, dims, values),
		source_of("s", CKPTFMT_STRING, 1, dims, items), source_of("z", CKPTFMT_FLOAT, 1, many, large)};
	uint8_t same[3];
	bool hit = true;
	int doubts = 0;
	sources[2].strides = strides;
	save(sources, 3, 4096);
	for (uint64_t n = 1; hit; n++) {
		int fds = count_entries("/proc/self/fd");
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_READ, .at = n, .os_errno = EIO});
		if (compare(sources, 3, same) == CKPTFMT_OK)
			doubts += same[0] + same[1] + same[2] == 2;
		else
			CHECK(err.failure == CKPTFMT_FAIL_OS && err.os_errno == EIO);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK_EQ(count_entries("/proc/self/fd"), fds);
		CHECK_EQ(memory_fault_live(), 0);
	}
	CHECK(same[0] == 1 && same[1] == 1 && same[2] == 1);
	CHECK(doubts >= 3);
	hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_status status;
		memory_fault_set(n, false);
		status = compare(sources, 3, same);
		hit = memory_fault_hits() != 0;
		memory_fault_clear();
		if (status != CKPTFMT_OK)
			CHECK_EQ(err.status, CKPTFMT_NO_MEMORY);
		else
			CHECK(same[0] == 1 && same[1] == 1 && same[2] == 1);
		CHECK_EQ(memory_fault_live(), 0);
	}
}

static void test_misuse(void)
{
	const int64_t dims[1] = {1};
	const float value = 1;
	ckptfmt_source source = source_of("a", CKPTFMT_FLOAT, 1, dims, &value);
	ckptfmt_reader *one, *two;
	ckptfmt_selection *selection;
	uint64_t row = 1, size;
	uint8_t same;
	save(&source, 1, 0);
	CHECK_OK(ckptfmt_reader_open(path_of("base"), NULL, &one, &err), err);
	CHECK_OK(ckptfmt_reader_open(path_of("base"), NULL, &two, &err), err);
	CHECK_OK(ckptfmt_reader_list(one, &selection, &err), err);
	CHECK_FAILS(ckptfmt_reader_compare(one, selection, &source, &row, 1, &same, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"source 0 names row 1 of 1");
	row = 0;
	CHECK_FAILS(ckptfmt_reader_compare(two, selection, &source, &row, 1, &same, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the selection belongs to another reader");
	source.dtype = CKPTFMT_RESOURCE;
	CHECK_FAILS(ckptfmt_reader_compare(one, selection, &source, &row, 1, &same, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"data type 20 cannot be stored");
	CHECK(strcmp(err.tensor, "a") == 0);
	CHECK_OK(ckptfmt_reader_compare(one, selection, NULL, NULL, 0, NULL, &err), err);
	CHECK_OK(ckptfmt_reader_data_size(one, 0, &size, &err), err);
	CHECK_EQ(size, 4);
	CHECK_FAILS(ckptfmt_reader_data_size(one, 1, &size, &err), err, CKPTFMT_FAIL_ARGUMENT, "data file 1 of 1");
	CHECK_FAILS(ckptfmt_reader_data_size(one, -1, &size, &err), err, CKPTFMT_FAIL_ARGUMENT, "data file -1 of 1");
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(one);
	ckptfmt_reader_close(two);
}

int main(void)
{
	test_seed();
	if (!make_directory())
		return 2;
	test_large();
	test_made_by_others();
	test_faults();
	test_misuse();
	os_fault_log_clear();
	remove_tree(directory);
	return test_finish("compare");
}
