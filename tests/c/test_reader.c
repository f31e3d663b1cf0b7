/* SPDX-License-Identifier: Apache-2.0 */
/* A reader and its data files: what it is used with, files that cannot be opened, descriptors that run out, an index
 * that was touched or replaced, parts of values in large chunks. Links os_fault.c in the place of posix.c. */
#include "base/limits.h"
#include "bundle_maker.h"
#include "os_fault.h"
#include "scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SHARDS = MAKER_SHARDS_MAX };

static bundle_maker m;
static ckptfmt_error err;

static const char *data_file(int shard)
{
	char name[64];
	snprintf(name, sizeof name, "ck.data-0000%d-of-0000%d", shard, SHARDS);
	return path_of(name);
}

/* Tensors "t0" to "t3" of one float each, as many as there are data files, one in each; "t0" is `first`. */
static void save(const char *base, float first)
{
	maker_begin(&m, directory, base, SHARDS);
	for (int i = 0; i < SHARDS; i++) {
		const char name[] = {'t', (char)('0' + i), '\0'};
		float value = first + (float)i;
		maker_tensor(&m, name, CKPTFMT_FLOAT, 0, NULL, i, &value, sizeof value);
	}
	maker_build(&m);
	maker_save(&m);
	maker_free(&m);
}

static ckptfmt_reader *open_reader(uint32_t open_files_max, int32_t follow_symlinks)
{
	ckptfmt_reader *reader;
	ckptfmt_limits limits;
	ckptfmt_open_options options = {.struct_size = sizeof options, .limits = &limits,
		.follow_symlinks = follow_symlinks, .threads = 0};
	cf_limits_default(&limits);
	limits.open_files_max = open_files_max;
	CHECK_OK(ckptfmt_reader_open(path_of("ck"), &options, &reader, &err), err);
	return reader;
}

static ckptfmt_selection *list(ckptfmt_reader *reader)
{
	ckptfmt_selection *selection;
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	return selection;
}

static ckptfmt_status read_row(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row, float *value)
{
	ckptfmt_request request = {row, NULL, (uint8_t *)value, sizeof *value, 0, 0};
	*value = -1;
	return ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, &err);
}

static void check_row(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row)
{
	float value;
	CHECK_OK(read_row(reader, selection, row, &value), err);
	CHECK_EQ(value, 10 + (float)row);
}

static void end(ckptfmt_reader *reader, ckptfmt_selection *selection)
{
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	empty_tree(directory);
}

/* ---- arguments ---- */

static void test_arguments(void)
{
	static const char *const texts[] = {"a"};
	cf_buffer stored = CF_BUFFER_EMPTY;
	ckptfmt_reader *one, *other;
	ckptfmt_selection *selection, *none;
	ckptfmt_strings *strings;
	ckptfmt_mapping *mapping;
	float value;
	uint32_t crc = maker_put_strings(&stored, texts, 1);
	save("ck", 10);
	maker_begin(&m, directory, "one", 1);
	maker_tensor(&m, "s", CKPTFMT_STRING, 0, NULL, 0, stored.data, stored.size)->fields.masked_crc =
		ckptfmt_crc32c_mask(crc);
	maker_build(&m);
	maker_save(&m);
	maker_free(&m);
	cf_buffer_free(&stored);
	other = open_reader(128, 1);
	CHECK_OK(ckptfmt_reader_open(path_of("one"), NULL, &one, &err), err);
	selection = list(other);
	/* Row 3 is in data file 3 of 4; the other reader has one file. */
	CHECK_FAILS(read_row(one, selection, 3, &value), err, CKPTFMT_FAIL_ARGUMENT, "the selection belongs to another");
	CHECK_FAILS(ckptfmt_reader_map(one, selection, 3, CKPTFMT_VERIFY_AUTO, &mapping, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "the selection belongs to another");
	CHECK(mapping == NULL);
	CHECK_FAILS(ckptfmt_reader_read_strings(one, selection, 3, NULL, CKPTFMT_VERIFY_AUTO, &strings, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "the selection belongs to another");
	CHECK(strings == NULL);
	/* Also one of no tensors, and that of a reader closed before, whose memory may be in use again. */
	CHECK_OK(ckptfmt_reader_select(one, NULL, NULL, 0, &none, &err), err);
	CHECK_FAILS(ckptfmt_reader_read(other, none, NULL, 0, CKPTFMT_VERIFY_AUTO, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the selection belongs to another");
	CHECK_OK(ckptfmt_reader_read(one, none, NULL, 0, CKPTFMT_VERIFY_AUTO, &err), err);
	ckptfmt_selection_free(none);
	ckptfmt_reader_close(other);
	other = open_reader(128, 1);
	CHECK_FAILS(read_row(other, selection, 0, &value), err, CKPTFMT_FAIL_ARGUMENT,
		"the selection belongs to another");
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(other);
	selection = list(one);
	for (int32_t mode = -1; mode <= 3; mode += 4) {
		char message[32];
		ckptfmt_request request = {0, NULL, NULL, 0, 0, 0};
		snprintf(message, sizeof message, "verify mode %d does not exist", (int)mode);
		CHECK_FAILS(ckptfmt_reader_read(one, selection, &request, 1, mode, &err), err, CKPTFMT_FAIL_ARGUMENT,
			message);
		CHECK_FAILS(ckptfmt_reader_map(one, selection, 0, mode, &mapping, &err), err, CKPTFMT_FAIL_ARGUMENT,
			message);
		CHECK_FAILS(ckptfmt_reader_read_strings(one, selection, 0, NULL, mode, &strings, &err), err,
			CKPTFMT_FAIL_ARGUMENT, message);
	}
	CHECK_OK(ckptfmt_reader_read_strings(one, selection, 0, NULL, CKPTFMT_VERIFY_OFF, &strings, &err), err);
	ckptfmt_strings_free(strings);
	end(one, selection);
}

/* ---- data files that cannot be opened ---- */

/* Everything but what is in data file 2 is read; that fails as opening it does, and no descriptor is lost. */
static void one_bad(const char *what, int32_t follow_symlinks, ckptfmt_failure failure, int os_errno)
{
	for (uint32_t open_files_max = 1; open_files_max <= 128; open_files_max += 127) {
		ckptfmt_reader *reader = open_reader(open_files_max, follow_symlinks);
		ckptfmt_selection *selection = list(reader);
		float value;
		int before = test_open_fds();
		for (uint64_t row = 0; row < SHARDS; row++)
			if (row != 2)
				check_row(reader, selection, row);
		CHECK_FAILS(read_row(reader, selection, 2, &value), err, failure, "");
		CHECK_EQ(err.os_errno, os_errno);
		CHECK(strcmp(err.path, data_file(2)) == 0);
		CHECK(strcmp(err.tensor, "t2") == 0);
		if (open_files_max == 128)
			CHECK_EQ(test_open_fds(), before);
		check_row(reader, selection, 3);
		ckptfmt_selection_free(selection);
		ckptfmt_reader_close(reader);
	}
	if (test_failures != 0)
		fprintf(stderr, "so far, with %s\n", what);
}

static void test_bad_data_file(void)
{
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	char aside[512], index[512];
	float value;
	save("ck", 10);
	snprintf(aside, sizeof aside, "%s", path_of("aside"));
	snprintf(index, sizeof index, "%s", path_of("ck.index"));
	CHECK_EQ(rename(data_file(2), aside), 0);
	CHECK_EQ(mkdir(data_file(2), 0700), 0);
	one_bad("a directory", 1, CKPTFMT_FAIL_OS, EISDIR);
	CHECK_EQ(rmdir(data_file(2)), 0);
	CHECK_EQ(mkfifo(data_file(2), 0600), 0);
	one_bad("a FIFO", 1, CKPTFMT_FAIL_OS, EINVAL);
	CHECK_EQ(unlink(data_file(2)), 0);
	CHECK_EQ(symlink(data_file(2), data_file(2)), 0);
	one_bad("a loop", 1, CKPTFMT_FAIL_OS, ELOOP);
	one_bad("a link, where they are not followed", 0, CKPTFMT_FAIL_BAD_PATH, 0);
	/* Put right, it is read, as long as the checkpoint is the same. */
	reader = open_reader(128, 1);
	selection = list(reader);
	CHECK_EQ(unlink(data_file(2)), 0);
	CHECK_EQ(rename(aside, data_file(2)), 0);
	check_row(reader, selection, 2);
	check_row(reader, selection, 2);
	CHECK_EQ(rename(index, aside), 0);
	CHECK_FAILS(read_row(reader, selection, 2, &value), err, CKPTFMT_FAIL_GENERATION_GONE, "");
	check_row(reader, selection, 1);
	end(reader, selection);
}

/* No permission, and a device that fails: told by the fault, for root may open all. */
static void test_refused(void)
{
	static const int errnos[] = {EACCES, EIO};
	save("ck", 10);
	for (size_t i = 0; i < CF_ARRAY_COUNT(errnos); i++) {
		ckptfmt_reader *reader;
		ckptfmt_selection *selection;
		float value;
		/* Directory, index, data file 0; then this one. */
		os_system_set(OS_SYSTEM_OPEN, 4, 1, errnos[i]);
		reader = open_reader(128, 1);
		os_fault_clear();
		selection = list(reader);
		os_system_set(OS_SYSTEM_OPEN, 1, 1, errnos[i]);
		check_row(reader, selection, 0);
		CHECK_FAILS(read_row(reader, selection, 1, &value), err, CKPTFMT_FAIL_OS, "");
		CHECK_EQ(err.os_errno, errnos[i]);
		os_fault_clear();
		check_row(reader, selection, 1);
		ckptfmt_selection_free(selection);
		ckptfmt_reader_close(reader);
	}
	/* What is lacking memory is no matter of the file. */
	{
		ckptfmt_reader *reader;
		os_system_set(OS_SYSTEM_OPEN, 4, 1, ENOMEM);
		CHECK_EQ(ckptfmt_reader_open(path_of("ck"), NULL, &reader, &err), CKPTFMT_NO_MEMORY);
		os_fault_clear();
	}
	empty_tree(directory);
}

static void test_out_of_descriptors(void)
{
	static const int errnos[] = {EMFILE, ENFILE};
	save("ck", 10);
	for (uint64_t shard = 0; shard < SHARDS; shard++)
		for (size_t i = 0; i < CF_ARRAY_COUNT(errnos); i++) {
			int before = test_open_fds();
			ckptfmt_reader *reader;
			ckptfmt_selection *selection;
			float value;
			os_system_set(OS_SYSTEM_OPEN, 3 + shard, 1, errnos[i]);
			reader = open_reader(128, 1);
			os_fault_clear();
			/* Directory, index, and half of the data files opened. */
			CHECK_EQ(test_open_fds() - before, 2 + (int)shard / 2 + (shard == 1));
			selection = list(reader);
			for (uint64_t row = 0; row < 2 * SHARDS; row++)
				check_row(reader, selection, row % SHARDS);
			CHECK_EQ(test_open_fds() - before, 2 + (shard < 2 ? 1 : (int)shard / 2));
			os_system_set(OS_SYSTEM_OPEN, 1, 100, errnos[i]);
			CHECK_FAILS(read_row(reader, selection, 1, &value), err, CKPTFMT_FAIL_OS, "");
			CHECK_EQ(err.os_errno, errnos[i]);
			CHECK(strcmp(err.path, data_file(1)) == 0);
			os_fault_clear();
			check_row(reader, selection, 1);
			ckptfmt_selection_free(selection);
			ckptfmt_reader_close(reader);
			CHECK_EQ(test_open_fds(), before);
		}
	/* A file without users is closed to make room. */
	{
		ckptfmt_reader *reader = open_reader(3, 1);
		ckptfmt_selection *selection = list(reader);
		int before = test_open_fds();
		for (uint64_t row = 0; row < 3; row++)
			check_row(reader, selection, row);
		CHECK_EQ(test_open_fds() - before, 3);
		os_system_set(OS_SYSTEM_OPEN, 1, 2, EMFILE);
		check_row(reader, selection, 3);
		CHECK_EQ(os_system_calls(OS_SYSTEM_OPEN), 3);
		os_fault_clear();
		CHECK_EQ(test_open_fds() - before, 1);
		for (uint64_t row = 0; row < SHARDS; row++)
			check_row(reader, selection, row);
		CHECK_EQ(test_open_fds() - before, 3);
		ckptfmt_selection_free(selection);
		ckptfmt_reader_close(reader);
	}
	/* The files that were opened in time are the checkpoint's own, the others are asked for. */
	{
		ckptfmt_reader *reader;
		ckptfmt_selection *selection;
		float value;
		os_system_set(OS_SYSTEM_OPEN, 3 + 2, 1, EMFILE);
		reader = open_reader(128, 1);
		os_fault_clear();
		selection = list(reader);
		CHECK_EQ(rename(path_of("ck.index"), path_of("gone.index")), 0);
		check_row(reader, selection, 0);
		CHECK_FAILS(read_row(reader, selection, 3, &value), err, CKPTFMT_FAIL_GENERATION_GONE, "");
		end(reader, selection);
	}
}

/* ---- whether the index is still the one that was read ---- */

static void copy_file(const char *from, const char *to, int flip_at)
{
	static uint8_t bytes[1 << 16];
	int in = open(from, O_RDONLY), out = open(to, O_RDWR | O_CREAT, 0600);
	ssize_t size = read(in, bytes, sizeof bytes);
	CHECK(size > 0);
	if (flip_at >= 0)
		bytes[flip_at] ^= 1;
	CHECK_EQ(write(out, bytes, (size_t)size), size);
	close(in);
	close(out);
}

static void test_touched_index(void)
{
	const struct timespec times[2] = {{1, 0}, {1, 0}}, other_times[2] = {{2, 0}, {2, 0}};
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	char index[512], other[512];
	float value;
	snprintf(index, sizeof index, "%s", path_of("ck.index"));
	snprintf(other, sizeof other, "%s", path_of("other"));
	save("ck", 10);
	reader = open_reader(1, 1);
	selection = list(reader);
	CHECK_EQ(utimensat(AT_FDCWD, index, times, 0), 0);
	for (uint64_t row = 0; row < SHARDS; row++)
		check_row(reader, selection, row);
	/* To compare takes a descriptor, for which a data file makes room. */
	os_system_set(OS_SYSTEM_OPEN, 2, 1, EMFILE);
	CHECK_FAILS(read_row(reader, selection, 1, &value), err, CKPTFMT_FAIL_OS, "");
	CHECK(strcmp(err.path, index) == 0);
	os_fault_clear();
	check_row(reader, selection, 1);
	/* The same inode with another content, as if it had been given out again. */
	copy_file(index, other, 40);
	copy_file(other, index, -1);
	CHECK_EQ(utimensat(AT_FDCWD, index, other_times, 0), 0);
	CHECK_FAILS(read_row(reader, selection, 2, &value), err, CKPTFMT_FAIL_GENERATION_GONE, "");
	copy_file(index, other, 40);
	copy_file(other, index, -1);
	CHECK_EQ(utimensat(AT_FDCWD, index, other_times, 0), 0);
	check_row(reader, selection, 2);
	/* The same content in another file. */
	CHECK_EQ(rename(other, index), 0);
	CHECK_EQ(utimensat(AT_FDCWD, index, times, 0), 0);
	CHECK_FAILS(read_row(reader, selection, 3, &value), err, CKPTFMT_FAIL_GENERATION_GONE, "");
	end(reader, selection);
}

/* ---- chunks that do not fit the staging memory ---- */

enum { LARGE_CHUNK = (2 << 20) + 12, LARGE_ROWS = 1500, LARGE_COLUMNS = 1000 };

static uint8_t large[4 * LARGE_ROWS * LARGE_COLUMNS], got[sizeof large];

static ckptfmt_status read_box(ckptfmt_reader *reader, const ckptfmt_selection *selection, const int64_t *box)
{
	ckptfmt_request request = {0, box, got, 4 * (uint64_t)(box[2] * box[3]), 7, 0};
	ckptfmt_status status = ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, &err);
	if (status == CKPTFMT_OK)
		CHECK_EQ(request.verified, 1);
	return status;
}

static void check_box(ckptfmt_reader *reader, const ckptfmt_selection *selection, const int64_t *box)
{
	CHECK_OK(read_box(reader, selection, box), err);
	for (int64_t r = 0; r < box[2]; r++)
		if (memcmp(got + 4 * r * box[3], large + 4 * ((box[0] + r) * LARGE_COLUMNS + box[1]),
			4 * (size_t)box[3]) != 0) {
			CHECK(!"the bytes of the box");
			return;
		}
}

static void test_large_chunks(void)
{
	static const int64_t dims[2] = {LARGE_ROWS, LARGE_COLUMNS};
	/* Inside the first chunk, over the border to the second, in the last, in all, and every row of a column. */
	static const int64_t boxes[][4] = {{1, 5, 1, 7}, {520, 0, 10, 1000}, {1499, 998, 1, 2}, {0, 1, 1500, 998},
		{0, 500, 1500, 1}, {3, 3, 0, 4}};
	const uint64_t damaged_at = LARGE_CHUNK + 100;
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	ckptfmt_counters before, after;
	for (size_t i = 0; i < sizeof large; i++)
		large[i] = (uint8_t)test_random();
	maker_begin(&m, directory, "ck", 1);
	{
		static const uint8_t pad[64] = {0};
		maker_entry *entry;
		cf_put_bytes(&m.data[0], pad, sizeof pad);
		entry = maker_tensor(&m, "x", CKPTFMT_FLOAT, 2, dims, 0, large, sizeof large);
		maker_chunks(entry, LARGE_CHUNK, large);
	}
	maker_build(&m);
	maker_save(&m);
	reader = open_reader(128, 1);
	selection = list(reader);
	for (size_t i = 0; i < CF_ARRAY_COUNT(boxes); i++)
		check_box(reader, selection, boxes[i]);
	for (int i = 0; i < 20; i++) {
		int64_t r = (int64_t)test_random_below(LARGE_ROWS), c = (int64_t)test_random_below(LARGE_COLUMNS);
		int64_t box[4] = {r, c, 1 + (int64_t)test_random_below((uint64_t)(LARGE_ROWS - r)),
			1 + (int64_t)test_random_below((uint64_t)(LARGE_COLUMNS - c))};
		check_box(reader, selection, box);
	}
	/* One chunk is read, once. */
	ckptfmt_counters_get(&before);
	check_box(reader, selection, boxes[0]);
	ckptfmt_counters_get(&after);
	CHECK_EQ(after.bytes_read - before.bytes_read, LARGE_CHUNK);
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	/* A byte that was not requested, in a chunk that was. */
	m.data[0].data[64 + damaged_at] ^= 1;
	maker_save(&m);
	maker_free(&m);
	reader = open_reader(128, 1);
	selection = list(reader);
	check_box(reader, selection, boxes[0]);
	check_box(reader, selection, boxes[2]);
	CHECK_FAILS(read_box(reader, selection, boxes[1]), err, CKPTFMT_FAIL_CHECKSUM, "EXT-9");
	CHECK_EQ(err.offset, 64 + LARGE_CHUNK);
	CHECK_FAILS(read_box(reader, selection, boxes[4]), err, CKPTFMT_FAIL_CHECKSUM, "EXT-9");
	end(reader, selection);
}

static void test_paths_without_a_name(void)
{
	ckptfmt_reader *reader;
	ckptfmt_writer *writer;
	int32_t count = 7;
	CHECK_FAILS(ckptfmt_reader_open(NULL, NULL, &reader, &err), err, CKPTFMT_FAIL_BAD_PATH, "the path is NULL");
	CHECK_FAILS(ckptfmt_writer_open(NULL, NULL, &writer, &err), err, CKPTFMT_FAIL_BAD_PATH, "the path is NULL");
	CHECK_FAILS(ckptfmt_index_count(NULL, "", &count, &err), err, CKPTFMT_FAIL_BAD_PATH, "");
	CHECK_FAILS(ckptfmt_index_count(NULL, "/", &count, &err), err, CKPTFMT_FAIL_BAD_PATH, "");
	CHECK_FAILS(ckptfmt_index_count(NULL, "directory/", &count, &err), err, CKPTFMT_FAIL_BAD_PATH, "");
	CHECK_EQ(count, 0);
}

/* Four floats one after the other, the first at the beginning of its page. */
static void test_alignment_of_mappings(void)
{
	const float values[4] = {1, 2, 3, 4};
	const char *const names[4] = {"a", "b", "c", "d"};
	const uint64_t aligned[4] = {0, 4, 8, 4};
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	maker_begin(&m, directory, "ck", 1);
	for (int i = 0; i < 4; i++)
		maker_tensor(&m, names[i], CKPTFMT_FLOAT, 0, NULL, 0, &values[i], sizeof values[i]);
	maker_build(&m);
	maker_save(&m);
	maker_free(&m);
	reader = open_reader(SHARDS, 1);
	selection = list(reader);
	for (uint64_t i = 0; i < 4; i++) {
		ckptfmt_mapping *mapping;
		ckptfmt_location location;
		uint64_t size;
		const uint8_t *data;
		CHECK_OK(ckptfmt_reader_map(reader, selection, i, CKPTFMT_VERIFY_AUTO, &mapping, &err), err);
		data = ckptfmt_mapping_data(mapping, &size);
		CHECK_EQ(size, 4);
		CHECK(memcmp(data, &values[i], 4) == 0);
		CHECK(ckptfmt_mapping_alignment(mapping) == aligned[i] || (i == 0 && ckptfmt_mapping_alignment(mapping) > 8));
		ckptfmt_mapping_close(mapping);
		CHECK_OK(ckptfmt_reader_locate(reader, selection, i, CKPTFMT_WHOLE, &location, &err), err);
		CHECK_EQ(location.offset, 4 * i);
		CHECK_EQ(location.size, 4);
		CHECK(strcmp(location.path, path_of("ck.data-00000-of-00001")) == 0);
		CHECK_FAILS(ckptfmt_reader_locate(reader, selection, i, 0, &location, &err), err, CKPTFMT_FAIL_ARGUMENT,
			"slice 0 of 0");
	}
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	empty_tree(directory);
}

/* The bytes given are read instead of a damaged file; the file must exist. */
static void test_given_index(void)
{
	const float value = 1;
	ckptfmt_open_options options = {.struct_size = sizeof options};
	ckptfmt_bytes given;
	ckptfmt_reader *reader;
	ckptfmt_report *report;
	ckptfmt_selection *selection;
	ckptfmt_header header;
	cf_buffer sound;
	maker_begin(&m, directory, "ck", 1);
	maker_tensor(&m, "a", CKPTFMT_FLOAT, 0, NULL, 0, &value, sizeof value);
	maker_build(&m);
	sound = m.index;
	m.index = CF_BUFFER_EMPTY;
	cf_put_bytes(&m.index, "damaged", 7);
	maker_save(&m);
	given = (ckptfmt_bytes){sound.data, sound.size};
	options.index = &given;
	CHECK_OK(ckptfmt_reader_open(path_of("ck"), &options, &reader, &err), err);
	given.size = 0;
	ckptfmt_reader_header(reader, &header);
	CHECK_EQ(header.index_size, sound.size);
	selection = list(reader);
	CHECK_EQ(ckptfmt_selection_count(selection), 1);
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	CHECK_FAILS(ckptfmt_reader_open(path_of("ck"), &options, &reader, &err), err, CKPTFMT_FAIL_TRUNCATED, "FTR-1");
	given.size = sound.size;
	CHECK_OK(ckptfmt_verify(path_of("ck"), &options, &report, &err), err);
	CHECK_EQ(report->finding_count, 0);
	ckptfmt_report_free(report);
	unlink(path_of("ck.index"));
	CHECK_FAILS(ckptfmt_reader_open(path_of("ck"), &options, &reader, &err), err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND,
		"");
	cf_buffer_free(&sound);
	maker_free(&m);
	empty_tree(directory);
}

int main(void)
{
	if (!make_directory())
		return 2;
	test_arguments();
	test_bad_data_file();
	test_refused();
	test_out_of_descriptors();
	test_touched_index();
	test_large_chunks();
	test_paths_without_a_name();
	test_alignment_of_mappings();
	test_given_index();
	rmdir(directory);
	os_fault_log_clear();
	return test_finish("reader");
}
