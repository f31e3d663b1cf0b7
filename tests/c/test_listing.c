/* SPDX-License-Identifier: Apache-2.0 */
/* A listing by name prefix, one of names and a selection by name give what the listing of all tensors gives. */
#include "read/reader.h"
#include "bundle_maker.h"
#include "memory_fault.h"
#include "scratch.h"
#include "sources.h"

#include <unistd.h>

static bundle_maker m;
static ckptfmt_error err;

/* In key order. */
static const char *const names[] = {"A", "a", "a/b", "a/bc", "aa", "a\xc3", "a\xc3\xa9", "b", "b\xff", "b\xff\xff",
	"c"};
enum { COUNT = sizeof names / sizeof names[0], CUT = 2 };
static int cut = CUT;           /* the tensor that is stored in slices; COUNT: none */

/* Few entries a block, so that what begins alike begins and ends anywhere in one. One tensor in slices. */
static ckptfmt_reader *open_some(uint64_t block_entries)
{
	ckptfmt_reader *reader;
	static const int64_t dims[] = {2, 3};
	static const uint8_t bytes[6] = {0};
	maker_begin(&m, directory, "ck", 1);
	m.block_entries = block_entries;
	for (int i = 0; i < COUNT; i++) {
		if (i == cut) {
			maker_entry *tensor = maker_partitioned(&m, names[i], CKPTFMT_INT8, 2, dims);
			for (int64_t row = 0; row < 2; row++) {
				const int64_t starts[] = {row, 0}, lengths[] = {1, 3};
				maker_slice(&m, tensor, names[i], starts, lengths, 0, bytes, 3);
			}
		} else {
			maker_tensor(&m, names[i], i % 2 == 0 ? CKPTFMT_INT8 : CKPTFMT_UINT8, i % 3 == 0 ? 2 : 0, dims, 0, bytes,
				i % 3 == 0 ? 6 : 1);
		}
	}
	maker_build(&m);
	maker_save(&m);
	CHECK_OK(ckptfmt_reader_open(path_of("ck"), NULL, &reader, &err), err);
	return reader;
}

static void end(ckptfmt_reader *reader)
{
	ckptfmt_reader_close(reader);
	maker_free(&m);
	empty_tree(directory);
}

static ckptfmt_status list_prefix(ckptfmt_reader *reader, const char *prefix, ckptfmt_selection **out)
{
	return ckptfmt_reader_list_prefix(reader, (const uint8_t *)prefix, strlen(prefix), out, &err);
}

/* The rows of the names that begin so, and all that is known of their slices. */
static void check_prefix(ckptfmt_reader *reader, const char *prefix)
{
	ckptfmt_selection *selection;
	ckptfmt_columns columns;
	uint64_t row = 0;
	CHECK_OK(list_prefix(reader, prefix, &selection), err);
	ckptfmt_selection_columns(selection, &columns);
	for (int i = 0; i < COUNT; i++) {
		const ckptfmt_row *found;
		if (strncmp(names[i], prefix, strlen(prefix)) != 0)
			continue;
		CHECK(row < columns.row_count);
		found = columns.rows + row;
		CHECK_EQ(found->name_size, strlen(names[i]));
		CHECK(strcmp((const char *)columns.names + found->name_offset, names[i]) == 0);
		CHECK_EQ(found->slice_count, i == CUT ? 2 : 0);
		for (uint64_t slice = 0; slice < found->slice_count; slice++)
			CHECK_EQ(columns.slices[found->slices_first + slice].stored.size, 3);
		row++;
	}
	CHECK_EQ(columns.row_count, row);
	ckptfmt_selection_free(selection);
}

static void test_prefix(void)
{
	static const char *const prefixes[] = {"A", "B", "a", "a/", "a/b", "a/bcd", "a\xc3", "b", "b\xff", "b\xff\xff\xff",
		"c", "d", "\xff", "\x01"};
	for (uint64_t block_entries = 0; block_entries < 5; block_entries++) {
		ckptfmt_reader *reader = open_some(block_entries);
		for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
			check_prefix(reader, prefixes[i]);
		end(reader);
	}
}

static void test_prefix_refused(void)
{
	ckptfmt_reader *reader = open_some(0);
	ckptfmt_selection *selection;
	static const uint8_t zero[] = {0, 'a'};
	CHECK_EQ(list_prefix(reader, "", &selection), CKPTFMT_INVALID);
	CHECK(selection == NULL);
	CHECK_EQ(ckptfmt_reader_list_prefix(reader, zero, sizeof zero, &selection, &err), CKPTFMT_INVALID);
	CHECK(selection == NULL);
	end(reader);
}

static void test_prefix_without_memory(void)
{
	ckptfmt_reader *reader = open_some(2);
	ckptfmt_status status = CKPTFMT_NO_MEMORY;
	for (uint64_t at = 1; status != CKPTFMT_OK; at++) {
		ckptfmt_selection *selection;
		uint64_t live = memory_fault_live();
		memory_fault_set(at, false);
		status = list_prefix(reader, "a", &selection);
		memory_fault_clear();
		if (status != CKPTFMT_OK) {
			CHECK_EQ(status, CKPTFMT_NO_MEMORY);
			CHECK(selection == NULL);
			/* Blocks of the index that were read stay. */
			CHECK(memory_fault_live() >= live);
		}
		ckptfmt_selection_free(selection);
	}
	check_prefix(reader, "a");
	end(reader);
	CHECK_EQ(memory_fault_live(), 0);
}

static void check_names(ckptfmt_reader *reader)
{
	ckptfmt_strings *strings;
	ckptfmt_strings_view view;
	CHECK_OK(ckptfmt_reader_names(reader, &strings, &err), err);
	ckptfmt_strings_get(strings, &view);
	CHECK_EQ(view.count, COUNT);
	CHECK_EQ(view.offsets[0], 0);
	for (uint64_t i = 0; i < COUNT && i < view.count; i++) {
		CHECK_EQ(view.offsets[i + 1] - view.offsets[i], strlen(names[i]));
		CHECK(memcmp(view.bytes + view.offsets[i], names[i], strlen(names[i])) == 0);
	}
	ckptfmt_strings_free(strings);
}

/* Names alone: those of a listing of rows, and the same failure for an entry that cannot be read. */
static void test_names(void)
{
	for (uint64_t block_entries = 0; block_entries < 5; block_entries++)
		for (cut = 0; cut <= COUNT; cut++) {
			ckptfmt_reader *reader = open_some(block_entries);
			check_names(reader);
			end(reader);
		}
	cut = CUT;
}

static void test_names_of_a_bad_entry(void)
{
	static const uint8_t bytes[] = {0};
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	ckptfmt_strings *strings;
	ckptfmt_error other;
	maker_begin(&m, directory, "ck", 1);
	maker_tensor(&m, "a", CKPTFMT_INT8, 0, NULL, 0, bytes, 1);
	cf_put_u8(&maker_tensor(&m, "b", CKPTFMT_INT8, 0, NULL, 0, bytes, 1)->more, 0x80);
	maker_build(&m);
	maker_save(&m);
	CHECK_OK(ckptfmt_reader_open(path_of("ck"), NULL, &reader, &err), err);
	CHECK_EQ(ckptfmt_reader_list(reader, &selection, &other), CKPTFMT_CORRUPT);
	CHECK_EQ(ckptfmt_reader_names(reader, &strings, &err), CKPTFMT_CORRUPT);
	CHECK(strings == NULL);
	CHECK_EQ(err.failure, other.failure);
	CHECK_EQ(err.offset, other.offset);
	CHECK(strcmp(err.message, other.message) == 0 && strcmp(err.path, other.path) == 0);
	CHECK(strcmp(err.tensor, "b") == 0 && strcmp(other.tensor, "b") == 0);
	end(reader);
}

static void test_names_without_memory(void)
{
	for (cut = CUT; cut <= COUNT; cut = cut == CUT ? COUNT : COUNT + 1) {
		ckptfmt_reader *reader = open_some(2);
		ckptfmt_status status = CKPTFMT_NO_MEMORY;
		uint64_t live = memory_fault_live();
		for (uint64_t at = 1; status != CKPTFMT_OK; at++) {
			ckptfmt_strings *strings;
			memory_fault_set(at, false);
			status = ckptfmt_reader_names(reader, &strings, &err);
			memory_fault_clear();
			CHECK(status == CKPTFMT_OK || (status == CKPTFMT_NO_MEMORY && strings == NULL));
			ckptfmt_strings_free(strings);
			CHECK_EQ(memory_fault_live(), live);
		}
		end(reader);
	}
	cut = CUT;
	CHECK_EQ(memory_fault_live(), 0);
}

static void check_same_row(const ckptfmt_columns *a, const ckptfmt_row *x, const ckptfmt_columns *b,
	const ckptfmt_row *y)
{
	CHECK(x->name_size == y->name_size && memcmp(a->names + x->name_offset, b->names + y->name_offset,
		x->name_size + 1) == 0);
	CHECK_EQ(x->rank, y->rank);
	for (int32_t d = 0; d < x->rank && d < y->rank; d++)
		CHECK_EQ(a->dims[x->dims_first + (uint64_t)d], b->dims[y->dims_first + (uint64_t)d]);
	CHECK(x->dtype == y->dtype && x->slice_count == y->slice_count && x->element_count == y->element_count);
	CHECK(x->entry_offset == y->entry_offset);
	CHECK(x->stored.offset == y->stored.offset && x->stored.size == y->stored.size);
	CHECK(x->stored.raw_size == y->stored.raw_size && x->stored.shard == y->stored.shard);
	CHECK(x->stored.crc32c == y->stored.crc32c && x->stored.raw_crc32c == y->stored.raw_crc32c);
	CHECK(x->stored.chunk_size == y->stored.chunk_size && x->stored.flags == y->stored.flags);
	CHECK(x->stored.broken_rule == y->stored.broken_rule);
}

/* A tensor selected by name gets the same row as in a listing. */
static void test_rows_of_a_listing(void)
{
	enum { MANY = 300 };
	static char texts[MANY][100];
	static int64_t dims[MANY][4];
	static const uint8_t data[4 * 3 * 3 * 3 * 3];
	ckptfmt_source sources[MANY];
	ckptfmt_reader *reader;
	ckptfmt_selection *all, *one;
	ckptfmt_columns columns, alone;
	for (int i = 0; i < MANY; i++) {
		snprintf(texts[i], sizeof texts[i], "%03d%.*s", i, (int)test_random_below(90),
			"/a/name/of/any/size/from/none/at/all/to/what/does/not/fit/into/pieces/that/are/copied/at/once");
		for (int d = 0; d < 4; d++)
			dims[i][d] = (int64_t)test_random_below(20) == 0 ? 0 : 1 + (int64_t)test_random_below(3);
		sources[i] = source_of(texts[i], i % 2 == 0 ? CKPTFMT_FLOAT : CKPTFMT_UINT8,
			(int32_t)test_random_below(5), dims[i], data);
	}
	CHECK_OK(save_sources(path_of("ck"), NULL, sources, MANY, &err), err);
	CHECK_OK(ckptfmt_reader_open(path_of("ck"), NULL, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_list(reader, &all, &err), err);
	ckptfmt_selection_columns(all, &columns);
	CHECK_EQ(columns.row_count, MANY);
	for (uint64_t i = 0; i < columns.row_count; i++) {
		CHECK_OK(ckptfmt_reader_select(reader, sources[i].name, &sources[i].name_size, 1, &one, &err), err);
		ckptfmt_selection_columns(one, &alone);
		check_same_row(&columns, &columns.rows[i], &alone, &alone.rows[0]);
		ckptfmt_selection_free(one);
	}
	ckptfmt_selection_free(all);
	ckptfmt_reader_close(reader);
	empty_tree(directory);
}

int main(void)
{
	if (!make_directory())
		return 2;
	test_prefix();
	test_prefix_refused();
	test_prefix_without_memory();
	test_names();
	test_names_of_a_bad_entry();
	test_names_without_memory();
	test_rows_of_a_listing();
	rmdir(directory);
	return test_finish("listing");
}
