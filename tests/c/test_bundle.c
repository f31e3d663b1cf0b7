/* SPDX-License-Identifier: Apache-2.0 */
/* Saves through the public API: their bytes, what a writer refuses, and errors that are not touched. Merges and slices:
 * tests/bundle/test_roundtrip.py. */
#include "scratch.h"
#include "sources.h"

#include <fcntl.h>
#include <sys/stat.h>

static int count_files(void)
{
	DIR *dir = opendir(directory);
	int count = 0;
	if (dir == NULL)
		return -1;
	for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
		count += entry->d_name[0] != '.';
	closedir(dir);
	return count;
}

static void save_one(const char *prefix, const char *name, const float *data, int64_t count)
{
	ckptfmt_error err;
	ckptfmt_source source = source_of(name, CKPTFMT_FLOAT, 1, &count, data);
	CHECK_OK(save_sources(path_of(prefix), NULL, &source, 1, &err), err);
}

static void check_untouched(const ckptfmt_error *err)
{
	static const ckptfmt_error zero;
	CHECK(memcmp(err, &zero, sizeof zero) == 0);
}

/* Calls that succeed neither read nor write the error record, which need not be set. */
static void test_error_untouched(void)
{
	const float values[] = {1, 2, 3};
	const int64_t dims[1] = {3};
	float loaded[3];
	ckptfmt_error err;
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	ckptfmt_source source = source_of("x", CKPTFMT_FLOAT, 1, dims, values);
	char prefix[512];
	const char *inputs[1] = {prefix};
	memset(&err, 0, sizeof err);
	CHECK_EQ(save_sources(path_of("untouched"), NULL, &source, 1, &err), CKPTFMT_OK);
	check_untouched(&err);
	CHECK_EQ(read_one(path_of("untouched"), "x", loaded, sizeof loaded, &err), CKPTFMT_OK);
	check_untouched(&err);
	CHECK_EQ(ckptfmt_reader_open(path_of("untouched"), NULL, &reader, &err), CKPTFMT_OK);
	CHECK_EQ(ckptfmt_reader_list(reader, &selection, &err), CKPTFMT_OK);
	check_untouched(&err);
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	(void)snprintf(prefix, sizeof prefix, "%s", path_of("untouched"));
	CHECK_EQ(ckptfmt_merge(inputs, 1, path_of("untouched-merged"), NULL, &err), CKPTFMT_OK);
	check_untouched(&err);
	empty_tree(directory);
}

/* The smallest real file, byte for byte (spec/format.md, the picture). */
static void test_smallest(void)
{
	static const uint8_t expected[] = {
		0x00, 0x00, 0x06, 0x08, 0x01, 0x1a, 0x02, 0x08, 0x01, 0x00, 0x01, 0x0f, 0x78, 0x08, 0x01, 0x12, 0x04,
		0x12, 0x02, 0x08, 0x02, 0x28, 0x08, 0x35, 0x59, 0x3c, 0xe5, 0x35, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00,
		0x00, 0x00, 0x00, 0x91, 0x36, 0x42, 0x33, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00, 0x00, 0xc0,
		0xf2, 0xa1, 0xb0, 0x00, 0x01, 0x02, 0x79, 0x00, 0x24, 0x00, 0x00, 0x00, 0x00, 0x01, 0x00, 0x00, 0x00,
		0x00, 0x08, 0x12, 0x10, 0x17, 0x29, 0x08, 0x36, 0x0e,
	};
	static const uint8_t expected_data[] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40};
	const float values[] = {1, 2};
	uint8_t bytes[256];
	ssize_t size;
	int fd;
	save_one("small", "x", values, 2);
	fd = open(path_of("small.index"), O_RDONLY);
	size = read(fd, bytes, sizeof bytes);
	close(fd);
	CHECK_EQ(size, 121);
	CHECK(memcmp(bytes, expected, sizeof expected) == 0);
	fd = open(path_of("small.data-00000-of-00001"), O_RDONLY);
	size = read(fd, bytes, sizeof bytes);
	close(fd);
	CHECK_EQ(size, 8);
	CHECK(memcmp(bytes, expected_data, sizeof expected_data) == 0);
	CHECK_EQ(count_files(), 2);
	empty_tree(directory);
}

/* A writer that has `before` refuses these sources, and then to commit. */
static void check_refused(const ckptfmt_source *before, uint64_t before_count, const ckptfmt_source *sources,
	uint64_t count, const char *message)
{
	ckptfmt_error err;
	ckptfmt_writer *writer;
	CHECK_OK(ckptfmt_writer_open(path_of("ck"), NULL, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_add(writer, before, before_count, &err), err);
	CHECK_FAILS(ckptfmt_writer_add(writer, sources, count, &err), err, CKPTFMT_FAIL_ARGUMENT, message);
	CHECK_EQ(strcmp(err.tensor, (const char *)sources[count - 1].name), 0);
	CHECK_FAILS(ckptfmt_writer_commit(writer, &err), err, CKPTFMT_FAIL_ARGUMENT, "an earlier call");
}

static void test_writer_refuses(void)
{
	static const int64_t slice[] = {4, 0, 2}, second[] = {4, 2, 2}, wrong_shape[] = {5, 0, 2}, outside[] = {4, 3, 2},
		shorter[] = {4, 0, 1}, longer[] = {4, 0, 3};
	const float values[2] = {1, 2};
	const int64_t count = 2, negative = -1;
	const ckptfmt_source good = source_of("a", CKPTFMT_FLOAT, 1, &count, values);
	ckptfmt_source bad = good, part = source_of("p", CKPTFMT_FLOAT, 1, &count, values), both[2] = {good, part};
	both[1].slice = slice;
	check_refused(both, 2, &good, 1, "the name is added twice");
	bad.name = (const uint8_t *)"";
	bad.name_size = 0;
	check_refused(both, 2, &bad, 1, "TAB-12");
	bad = source_of("b", CKPTFMT_FLOAT, 1, &negative, values);
	check_refused(both, 2, &bad, 1, "the shape");
	bad = source_of("b", CKPTFMT_FLOAT, 1, &count, values);
	bad.dtype = CKPTFMT_RESOURCE;
	check_refused(both, 2, &bad, 1, "data type 20");
	part.slice = slice;
	check_refused(both, 2, &part, 1, "the slice is added twice");
	part.slice = wrong_shape;
	check_refused(both, 2, &part, 1, "slices of one tensor");
	part.slice = outside;
	check_refused(both, 2, &part, 1, "SLC-4");
	part.slice = shorter;
	check_refused(both, 2, &part, 1, "TXT-9");
	part.slice = longer;
	check_refused(both, 2, &part, 1, "TXT-9");
	{
		ckptfmt_source batch[2] = {part, good};
		batch[0].slice = second;
		check_refused(both, 2, batch, 2, "the name is added twice");
	}
	empty_tree(directory);
}

/* What only the writer may name, and options that readers could not live with. */
static void test_writer_reserves(void)
{
	static const int64_t dims[1] = {0};
	ckptfmt_write_options options;
	ckptfmt_source source;
	ckptfmt_writer *writer;
	ckptfmt_reader *reader;
	ckptfmt_error err;
	ckptfmt_strings *metadata;
	ckptfmt_tensor tensor;
	const uint8_t *text;
	uint64_t size;
	int32_t found;
	memset(&source, 0, sizeof source);
	source.name = (const uint8_t *)"_CKPTFMT_METADATA";
	source.dims = dims;
	source.rank = 1;
	source.dtype = CKPTFMT_FLOAT;
	for (source.name_size = 17; source.name_size >= 9; source.name_size--) {
		CHECK_OK(ckptfmt_writer_open(path_of("r"), NULL, &writer, &err), err);
		CHECK_FAILS(ckptfmt_writer_add(writer, &source, 1, &err), err, CKPTFMT_FAIL_ARGUMENT, "EXT-8");
		ckptfmt_writer_abandon(writer);
	}
	/* A writer that refused something stays failed. */
	CHECK_OK(ckptfmt_writer_open(path_of("r"), NULL, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_add_metadata(writer, (const uint8_t *)"{}", 2, &err), err);
	CHECK_FAILS(ckptfmt_writer_add_metadata(writer, (const uint8_t *)"{}", 2, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the name is added twice");
	CHECK_FAILS(ckptfmt_writer_add(writer, &source, 1, &err), err, CKPTFMT_FAIL_ARGUMENT, "an earlier call");
	CHECK_FAILS(ckptfmt_writer_commit(writer, &err), err, CKPTFMT_FAIL_ARGUMENT, "an earlier call");
	CHECK_OK(ckptfmt_writer_open(path_of("r"), NULL, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_add(writer, &source, 1, &err), err);
	CHECK_OK(ckptfmt_writer_add_metadata(writer, (const uint8_t *)"{}", 2, &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
	CHECK_OK(ckptfmt_reader_open(path_of("r"), NULL, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_contains(reader, (const uint8_t *)"_CKPTFMT_METADATA", 17, &found, &err), err);
	CHECK(found);
	CHECK_OK(ckptfmt_reader_metadata(reader, &metadata, &err), err);
	text = ckptfmt_strings_at(metadata, 0, &size);
	CHECK(size == 2 && memcmp(text, "{}", 2) == 0);
	CHECK(ckptfmt_strings_at(metadata, 1, &size) == NULL);
	ckptfmt_strings_free(metadata);
	/* The source's name by now: "_CKPTFMT". */
	CHECK_OK(ckptfmt_tensor_find(reader, source.name, source.name_size, &tensor, &err), err);
	CHECK(tensor.dtype == CKPTFMT_FLOAT && tensor.rank == 1 && tensor.dims[0] == 0 && tensor.byte_size == 0);
	CHECK_FAILS(ckptfmt_tensor_find(reader, source.name, 3, &tensor, &err), err, CKPTFMT_FAIL_TENSOR_NOT_FOUND, "");
	ckptfmt_reader_close(reader);
	CHECK_OK(ckptfmt_writer_open(path_of("r"), NULL, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
	CHECK_OK(ckptfmt_reader_open(path_of("r"), NULL, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_metadata(reader, &metadata, &err), err);
	CHECK(metadata == NULL);
	ckptfmt_reader_close(reader);
	shell("rm -rf '%s'/r.*");
	options = (ckptfmt_write_options){.struct_size = sizeof options};
	options.chunk_size = 4080;
	CHECK_FAILS(ckptfmt_writer_open(path_of("r"), &options, &writer, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the chunk size 4080 is below 4096");
	options.chunk_size = 4096;
	CHECK_OK(ckptfmt_writer_open(path_of("r"), &options, &writer, &err), err);
	{
		/* Nothing of it is read: it is too large to say so. */
		static const int64_t large[1] = {(int64_t)1 << 36};
		source.dims = large;
		source.data = (const uint8_t *)large;
		CHECK_FAILS(ckptfmt_writer_add(writer, &source, 1, &err), err, CKPTFMT_FAIL_LIMIT, "BLK-14");
	}
	ckptfmt_writer_abandon(writer);
}

int main(void)
{
	if (!make_directory())
		return 2;
	test_smallest();
	test_writer_refuses();
	test_writer_reserves();
	test_error_untouched();
	rmdir(directory);
	return test_finish("bundle");
}
