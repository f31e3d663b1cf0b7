/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors found one by one: which are plain, and that a plain one is read as one of a selection is. */
#include "scratch.h"

static const float values[] = {1, 2, 3, 4, 5, 6};

static ckptfmt_source source_of(const char *name, int32_t dtype, int32_t rank, const int64_t *dims, const void *data)
{
	ckptfmt_source source;
	memset(&source, 0, sizeof source);
	source.name = (const uint8_t *)name;
	source.name_size = strlen(name);
	source.data = data;
	source.dtype = dtype;
	source.rank = rank;
	source.dims = dims;
	return source;
}

static ckptfmt_reader *saved(const ckptfmt_source *sources, uint64_t count, const ckptfmt_write_options *options)
{
	ckptfmt_error err;
	ckptfmt_writer *writer;
	ckptfmt_reader *reader = NULL;
	CHECK_OK(ckptfmt_writer_open(path_of("ck"), options, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_add(writer, sources, count, &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
	CHECK_OK(ckptfmt_reader_open(path_of("ck"), NULL, &reader, &err), err);
	return reader;
}

static ckptfmt_status find(ckptfmt_reader *reader, const char *name, ckptfmt_found *out, ckptfmt_error *err)
{
	return ckptfmt_reader_find(reader, (const uint8_t *)name, strlen(name), out, err);
}

/* Files are little-endian on every machine. */
static uint32_t crc_of_stored(void)
{
	uint8_t bytes[sizeof values];
	for (size_t i = 0; i < sizeof values / 4; i++) {
		uint32_t bits;
		memcpy(&bits, &values[i], 4);
		for (size_t k = 0; k < 4; k++)
			bytes[4 * i + k] = (uint8_t)(bits >> 8 * k);
	}
	return ckptfmt_crc32c(0, bytes, sizeof bytes);
}

static void test_plain(void)
{
	const int64_t dims[2] = {2, 3}, box[4] = {1, 0, 1, 2}, outside[4] = {1, 0, 2, 2};
	ckptfmt_source source = source_of("w", CKPTFMT_FLOAT, 2, dims, values);
	ckptfmt_reader *reader = saved(&source, 1, NULL), *other;
	ckptfmt_error err;
	ckptfmt_found found;
	float got[6] = {0};
	CHECK_OK(find(reader, "w", &found, &err), err);
	CHECK(found.selection == NULL);
	CHECK_EQ(found.row.dtype, CKPTFMT_FLOAT);
	CHECK_EQ(found.row.rank, 2);
	CHECK_EQ(found.row.element_count, 6);
	CHECK_EQ(found.row.slice_count, 0);
	CHECK_EQ(found.row.stored.size, sizeof values);
	CHECK_EQ(found.row.stored.raw_size, sizeof values);
	CHECK_EQ(found.row.stored.crc32c, crc_of_stored());
	CHECK_EQ(found.dims[0], 2);
	CHECK_EQ(found.dims[1], 3);
	CHECK_OK(ckptfmt_reader_read_found(reader, &found, NULL, (uint8_t *)got, sizeof got, CKPTFMT_VERIFY_AUTO, &err),
		err);
	CHECK(memcmp(got, values, sizeof got) == 0);
	CHECK_OK(ckptfmt_reader_read_found(reader, &found, box, (uint8_t *)got, 8, CKPTFMT_VERIFY_AUTO, &err), err);
	CHECK(got[0] == 4 && got[1] == 5 && got[2] == 3);
	/* What the caller asks for wrongly. */
	CHECK_FAILS(ckptfmt_reader_read_found(reader, &found, NULL, (uint8_t *)got, 8, CKPTFMT_VERIFY_AUTO, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "the destination has 8 bytes, the value 24");
	CHECK_FAILS(ckptfmt_reader_read_found(reader, &found, outside, (uint8_t *)got, 16, CKPTFMT_VERIFY_AUTO, &err),
		err, CKPTFMT_FAIL_ARGUMENT, "");
	CHECK_FAILS(ckptfmt_reader_read_found(reader, &found, NULL, (uint8_t *)got, sizeof got, 9, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "");
	CHECK_OK(ckptfmt_reader_open(path_of("ck"), NULL, &other, &err), err);
	CHECK_FAILS(ckptfmt_reader_read_found(other, &found, NULL, (uint8_t *)got, sizeof got, CKPTFMT_VERIFY_AUTO,
		&err), err, CKPTFMT_FAIL_ARGUMENT, "the selection was made by another reader");
	ckptfmt_reader_close(other);
	ckptfmt_reader_close(reader);
	shell("rm -rf '%s'/*");
}

/* Strings, chunk checksums, no bytes, many dimensions: each comes as the only row of a selection. */
static void test_not_plain(void)
{
	static float large[4096];
	const int64_t one = 1, none = 0, count = 4096, many[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
	const ckptfmt_bytes text = {(const uint8_t *)"abc", 3};
	const char *const names[] = {"chunks", "empty", "nine", "text"};
	ckptfmt_write_options options = {64, 4096, CKPTFMT_DURABILITY_RENAME, 0};
	ckptfmt_source sources[5] = {
		source_of("chunks", CKPTFMT_FLOAT, 1, &count, large),
		source_of("eight", CKPTFMT_FLOAT, 8, many, values),
		source_of("empty", CKPTFMT_FLOAT, 1, &none, values),
		source_of("nine", CKPTFMT_FLOAT, 9, many, values),
		source_of("text", CKPTFMT_STRING, 1, &one, &text),
	};
	ckptfmt_error err;
	ckptfmt_found found;
	ckptfmt_reader *reader;
	float got = 0;
	reader = saved(sources, 5, &options);
	for (int i = 0; i < 4; i++) {
		ckptfmt_columns columns;
		CHECK_OK(find(reader, names[i], &found, &err), err);
		CHECK(found.selection != NULL);
		ckptfmt_selection_columns(found.selection, &columns);
		CHECK_EQ(columns.row_count, 1);
		CHECK_EQ(columns.names_size, strlen(names[i]) + 1);
		CHECK_FAILS(ckptfmt_reader_read_found(reader, &found, NULL, (uint8_t *)&got, 4, CKPTFMT_VERIFY_AUTO,
			&err), err, CKPTFMT_FAIL_ARGUMENT, "the tensor is not plain");
		ckptfmt_selection_free(found.selection);
	}
	CHECK_OK(find(reader, "eight", &found, &err), err);
	CHECK(found.selection == NULL);
	CHECK_OK(ckptfmt_reader_read_found(reader, &found, NULL, (uint8_t *)&got, 4, CKPTFMT_VERIFY_AUTO, &err), err);
	CHECK(got == 1);
	ckptfmt_reader_close(reader);
	shell("rm -rf '%s'/*");
}

static void test_what_fails(void)
{
	const int64_t count = 6;
	ckptfmt_source source = source_of("w", CKPTFMT_FLOAT, 1, &count, values);
	ckptfmt_reader *reader = saved(&source, 1, NULL);
	ckptfmt_error err;
	ckptfmt_found found;
	float got[6];
	memset(&found, 1, sizeof found);
	CHECK_FAILS(find(reader, "x", &found, &err), err, CKPTFMT_FAIL_TENSOR_NOT_FOUND, "there is no such tensor");
	CHECK(found.selection == NULL);
	CHECK_FAILS(find(reader, "", &found, &err), err, CKPTFMT_FAIL_TENSOR_NOT_FOUND, "there is no such tensor");
	CHECK_OK(find(reader, "w", &found, &err), err);
	CHECK_EQ(truncate(path_of("ck.data-00000-of-00001"), 23), 0);
	CHECK_FAILS(ckptfmt_reader_read_found(reader, &found, NULL, (uint8_t *)got, sizeof got, CKPTFMT_VERIFY_AUTO,
		&err), err, CKPTFMT_FAIL_TRUNCATED, "DAT-2");
	CHECK_EQ(err.tensor_size, 0);
	ckptfmt_reader_close(reader);
	shell("rm -rf '%s'/*");
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

/* Rows of plain entries go straight to the columns where these have room, as all but the first have in a listing. The
 * first and only one of a selection is made the long way. */
static void test_rows_of_a_listing(void)
{
	enum { COUNT = 300 };
	static char names[COUNT][100];
	static int64_t dims[COUNT][4];
	static const uint8_t data[4 * 3 * 3 * 3 * 3];
	ckptfmt_source sources[COUNT];
	ckptfmt_reader *reader;
	ckptfmt_selection *all, *one;
	ckptfmt_columns columns, alone;
	ckptfmt_error err;
	for (int i = 0; i < COUNT; i++) {
		snprintf(names[i], sizeof names[i], "%03d%.*s", i, (int)test_random_below(90),
			"/a/name/of/any/size/from/none/at/all/to/what/does/not/fit/into/pieces/that/are/copied/at/once");
		for (int d = 0; d < 4; d++)
			dims[i][d] = (int64_t)test_random_below(20) == 0 ? 0 : 1 + (int64_t)test_random_below(3);
		sources[i] = source_of(names[i], i % 2 == 0 ? CKPTFMT_FLOAT : CKPTFMT_UINT8,
			(int32_t)test_random_below(5), dims[i], data);
	}
	reader = saved(sources, COUNT, NULL);
	CHECK_OK(ckptfmt_reader_list(reader, &all, &err), err);
	ckptfmt_selection_columns(all, &columns);
	CHECK_EQ(columns.row_count, COUNT);
	for (uint64_t i = 0; i < columns.row_count; i++) {
		CHECK_OK(ckptfmt_reader_select(reader, sources[i].name, &sources[i].name_size, 1, &one, &err), err);
		ckptfmt_selection_columns(one, &alone);
		check_same_row(&columns, &columns.rows[i], &alone, &alone.rows[0]);
		ckptfmt_selection_free(one);
	}
	ckptfmt_selection_free(all);
	ckptfmt_reader_close(reader);
	shell("rm -rf '%s'/*");
}

int main(void)
{
	if (!make_directory())
		return 2;
	test_plain();
	test_not_plain();
	test_what_fails();
	test_rows_of_a_listing();
	rmdir(directory);
	return test_finish("find");
}
