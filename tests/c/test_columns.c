/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of all rows at once: the kinds of tensors, patterns of names; and the listing of names that begin
 * alike, which must be a part of the listing of all. */
#include "read/reader.h"
#include "bundle_maker.h"
#include "memory_fault.h"
#include "scratch.h"

#include <unistd.h>

static bundle_maker m;
static ckptfmt_error err;

/* In key order. */
static const char *const names[] = {"A", "a", "a/b", "a/bc", "aa", "a\xc3", "a\xc3\xa9", "b", "b\xff", "b\xff\xff",
	"c"};
enum { COUNT = sizeof names / sizeof names[0], CUT = 2 };

/* Few entries a block, so that what begins alike begins and ends anywhere in one. One tensor in slices. */
static ckptfmt_reader *open_some(uint64_t block_entries)
{
	ckptfmt_reader *reader;
	static const int64_t dims[] = {2, 3};
	static const uint8_t bytes[6] = {0};
	maker_begin(&m, directory, "ck", 1);
	m.block_entries = block_entries;
	for (int i = 0; i < COUNT; i++) {
		if (i == CUT) {
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
	shell("rm -rf '%s'/*");
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
		const ckptfmt_row *found = columns.rows + row;
		if (strncmp(names[i], prefix, strlen(prefix)) != 0)
			continue;
		CHECK(row < columns.row_count);
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

static void test_kinds(void)
{
	ckptfmt_reader *reader = open_some(0);
	ckptfmt_selection *selection;
	int64_t kinds[COUNT], firsts[COUNT];
	uint64_t count;
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	CHECK_OK(ckptfmt_selection_kinds(selection, kinds, firsts, &count, &err), err);
	CHECK_EQ(count, 4);
	for (int i = 0; i < COUNT; i++) {
		const ckptfmt_row *row = cf_selection_row(selection, (uint64_t)i), *first;
		CHECK(kinds[i] >= 0 && kinds[i] < 4);
		first = cf_selection_row(selection, (uint64_t)firsts[kinds[i]]);
		CHECK(firsts[kinds[i]] <= i);
		CHECK_EQ(row->dtype, first->dtype);
		CHECK_EQ(row->rank, first->rank);
	}
	memory_fault_set(1, false);
	CHECK_EQ(ckptfmt_selection_kinds(selection, kinds, firsts, &count, &err), CKPTFMT_NO_MEMORY);
	memory_fault_clear();
	CHECK_EQ(count, 0);
	ckptfmt_selection_free(selection);
	end(reader);
}

/* `*` a run, `?` any, `#` a set of the digits and 'b', `$` the byte 0xc3 by itself, `e` U+00E9; else the character. */
static void check_match(const ckptfmt_selection *selection, const char *pattern, const char *wanted)
{
	ckptfmt_glob_step steps[8] = {{{0, 0}, 0, 0}};
	uint8_t matched[COUNT];
	char found[COUNT + 1];
	uint64_t count = strlen(pattern);
	for (uint64_t i = 0; i < count; i++) {
		char c = pattern[i];
		steps[i].kind = c == '*' ? CKPTFMT_GLOB_RUN : c == '?' ? CKPTFMT_GLOB_ANY :
			c == '#' ? CKPTFMT_GLOB_SET : CKPTFMT_GLOB_CHARACTER;
		steps[i].character = c == '$' ? 0xdcc3 : c == 'e' ? 0xe9 : (uint32_t)(unsigned char)c;
		steps[i].ascii[0] = UINT64_C(0x3ff) << '0';
		steps[i].ascii[1] = UINT64_C(1) << ('b' - 64);
	}
	ckptfmt_selection_match(selection, 0, COUNT, steps, count, matched);
	for (int i = 0; i < COUNT; i++)
		found[i] = matched[i] ? '1' : '0';
	found[COUNT] = '\0';
	CHECK(strcmp(found, wanted) == 0);
	ckptfmt_selection_match(selection, 3, 5, steps, count, matched);
	CHECK(matched[0] == (wanted[3] == '1') && matched[1] == (wanted[4] == '1'));
}

static void test_match(void)
{
	ckptfmt_reader *reader = open_some(0);
	ckptfmt_selection *selection;
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	check_match(selection, "", "00000000000");
	check_match(selection, "*", "11111111111");
	check_match(selection, "?", "11000001001");
	check_match(selection, "??", "00001110100");
	check_match(selection, "a*", "01111110000");
	check_match(selection, "*b", "00100001000");
	check_match(selection, "*b*", "00110001110");
	check_match(selection, "a$", "00000100000");
	check_match(selection, "ae", "00000010000");
	check_match(selection, "*e", "00000010000");
	check_match(selection, "a#", "00000110000");
	check_match(selection, "#", "00000001000");
	check_match(selection, "*/*c", "00010000000");
	check_match(selection, "a*a", "00001000000");
	check_match(selection, "*?*?*", "00111110110");
	ckptfmt_selection_free(selection);
	end(reader);
}

int main(void)
{
	if (!make_directory())
		return 2;
	test_prefix();
	test_prefix_refused();
	test_prefix_without_memory();
	test_kinds();
	test_match();
	rmdir(directory);
	return test_finish("columns");
}
