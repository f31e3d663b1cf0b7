/* SPDX-License-Identifier: Apache-2.0 */
/* Reads, and looks at what is mapped, shared by threads: the same bytes, the same answers and the same first failure as
 * of one thread alone. */
#include "base/limits.h"
#include "bundle_maker.h"
#include "scratch.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
	MEGABYTE = 1 << 20,
	SHARDS = 3,
	ROWS = 15,
	COLUMNS = 1000003,
	TENSORS = 24,
	THREADS = 3,
	HELD = 64
};

/* "a" and "z" are partitioned; the others of these sizes, one behind the other in data file i % SHARDS. */
static const int64_t sizes[TENSORS] = {100, 9 * MEGABYTE + 1, 0, 5, 4 * MEGABYTE, 4 * MEGABYTE + 1, 70000, 3 * MEGABYTE,
	1, 12 * MEGABYTE, 2, 3, 4, 5 * MEGABYTE, 900000, 65536, 8 * MEGABYTE, 0, 33, 1000, 2000, 3000, 4000, 6 * MEGABYTE};
static const int64_t dims[2] = {ROWS, COLUMNS};

static bundle_maker m;
static ckptfmt_error err;
static uint8_t *bytes;      /* of the partitioned tensors; the others begin with them */
static uint8_t *found;      /* of all requests, one behind the other */

static uint64_t total_size(void)
{
	uint64_t size = 2 * (uint64_t)ROWS * COLUMNS;
	for (int i = 0; i < TENSORS; i++)
		size += (uint64_t)sizes[i];
	return size;
}

/* "a" in three slices of rows, which are one run each; "z" in two of columns. */
static void save(void)
{
	maker_entry *entry;
	uint8_t *part = malloc((size_t)ROWS * COLUMNS);
	maker_begin(&m, directory, "ck", SHARDS);
	entry = maker_partitioned(&m, "a", CKPTFMT_UINT8, 2, dims);
	for (int64_t row = 0; row < ROWS; row += 5)
		maker_slice(&m, entry, "a", (int64_t[]){row, 0}, (int64_t[]){5, -1}, (int32_t)(row / 5),
			bytes + row * COLUMNS, 5 * (uint64_t)COLUMNS);
	for (int i = 0; i < TENSORS; i++) {
		const char name[] = {'t', (char)('a' + i), '\0'};
		maker_tensor(&m, name, CKPTFMT_UINT8, 1, &sizes[i], i % SHARDS, bytes, (uint64_t)sizes[i]);
	}
	entry = maker_partitioned(&m, "z", CKPTFMT_UINT8, 2, dims);
	for (int64_t column = 0, count = 400000; column < COLUMNS; column += count, count = COLUMNS - column) {
		for (int64_t row = 0; row < ROWS; row++)
			memcpy(part + row * count, bytes + row * COLUMNS + column, (size_t)count);
		maker_slice(&m, entry, "z", (int64_t[]){0, column}, (int64_t[]){-1, count}, 1, part,
			ROWS * (uint64_t)count);
	}
	maker_build(&m);
	maker_save(&m);
	maker_free(&m);
	free(part);
}

static ckptfmt_reader *open_reader(int32_t threads, uint32_t open_files_max)
{
	ckptfmt_reader *reader;
	ckptfmt_limits limits;
	ckptfmt_open_options options = {.struct_size = sizeof options, .limits = &limits, .follow_symlinks = 1,
		.threads = threads};
	cf_limits_default(&limits);
	limits.open_files_max = open_files_max;
	CHECK_OK(ckptfmt_reader_open(path_of("ck"), &options, &reader, &err), err);
	return reader;
}

/* Reads everything at once; `boxes`: the partitioned ones by a box that is all of them. */
static ckptfmt_status read_all(ckptfmt_reader *reader, int32_t verify, bool boxes, ckptfmt_request *requests)
{
	static const int64_t box[] = {0, 0, ROWS, COLUMNS};
	ckptfmt_selection *selection;
	ckptfmt_status status;
	uint64_t at = 0;
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	memset(requests, 0, (TENSORS + 2) * sizeof *requests);
	for (uint64_t i = 0; i < TENSORS + 2; i++) {
		bool whole = i > 0 && i <= TENSORS;
		requests[i].row = i;
		requests[i].box = boxes && !whole ? box : NULL;
		requests[i].destination = found + at;
		requests[i].destination_size = whole ? (uint64_t)sizes[i - 1] : (uint64_t)ROWS * COLUMNS;
		at += requests[i].destination_size;
	}
	memset(found, 0xee, total_size());
	memset(&err, 0, sizeof err);
	status = ckptfmt_reader_read(reader, selection, requests, TENSORS + 2, verify, &err);
	ckptfmt_selection_free(selection);
	return status;
}

/* Maps one of the tensors that are not partitioned. */
static ckptfmt_status map_one(ckptfmt_reader *reader, uint64_t row)
{
	ckptfmt_selection *selection;
	ckptfmt_mapping *mapping;
	ckptfmt_status status;
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	memset(&err, 0, sizeof err);
	status = ckptfmt_reader_map(reader, selection, row, CKPTFMT_VERIFY_AUTO, &mapping, &err);
	if (status == CKPTFMT_OK) {
		uint64_t size;
		const uint8_t *data = ckptfmt_mapping_data(mapping, &size);
		CHECK_EQ(size, sizes[row - 1]);
		CHECK(size == 0 || memcmp(data, bytes, size) == 0);
	}
	ckptfmt_mapping_close(mapping);
	ckptfmt_selection_free(selection);
	return status;
}

/* Boxes or not, checked or not: two of the four ways with an even number of threads, two with an odd one. */
static void check_all(ckptfmt_reader *reader, int32_t threads)
{
	ckptfmt_request requests[TENSORS + 2];
	for (int boxes = 0; boxes < 2; boxes++) {
		int32_t verify = (threads + boxes) % 2 == 0 ? CKPTFMT_VERIFY_AUTO : CKPTFMT_VERIFY_OFF;
		CHECK_OK(read_all(reader, verify, boxes, requests), err);
		for (uint64_t i = 0; i < TENSORS + 2; i++) {
			/* Columns of values without chunk checksums are read by themselves. */
			CHECK_EQ(requests[i].verified, verify != CKPTFMT_VERIFY_OFF && i <= TENSORS);
			CHECK(memcmp(requests[i].destination, bytes, requests[i].destination_size) == 0);
		}
	}
}

static void test_bytes(void)
{
	int fds = test_open_fds();
	for (int32_t threads = -1; threads <= THREADS; threads++) {
		/* One descriptor for three data files: some threads open one of their own. */
		ckptfmt_reader *reader = open_reader(threads, threads == THREADS ? 1 : SHARDS);
		check_all(reader, threads);
		for (uint64_t row = 1; row <= TENSORS; row++)
			CHECK_OK(map_one(reader, row), err);
		ckptfmt_reader_close(reader);
		CHECK_EQ(test_open_fds(), fds);
	}
}

/* Where several threads find no descriptor, one does. */
static void test_few_descriptors(void)
{
	ckptfmt_reader *reader = open_reader(THREADS, 1);
	struct rlimit kept, few;
	int held[HELD], count = 0;
	ckptfmt_request requests[TENSORS + 2];
	CHECK_OK(read_all(reader, CKPTFMT_VERIFY_AUTO, false, requests), err);
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &kept), 0);
	few = kept;
	few.rlim_cur = HELD;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
	while (count < HELD && (held[count] = dup(0)) >= 0)
		count++;
	CHECK_OK(read_all(reader, CKPTFMT_VERIFY_AUTO, false, requests), err);
	CHECK(memcmp(found, bytes, (size_t)ROWS * COLUMNS) == 0);
	while (count > 0)
		close(held[--count]);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &kept), 0);
	ckptfmt_reader_close(reader);
}

/* Some bytes of a data file, wrong until undone. */
static void turn_byte(int shard, uint64_t offset)
{
	char name[64];
	snprintf(name, sizeof name, "ck.data-0000%d-of-0000%d", shard, SHARDS);
	flip(path_of(name), offset);
}

static bool same_failure(const ckptfmt_error *a, const ckptfmt_error *b)
{
	return a->status == b->status && a->failure == b->failure && a->offset == b->offset &&
		a->os_errno == b->os_errno && strcmp(a->message, b->message) == 0 && strcmp(a->path, b->path) == 0 &&
		strcmp(a->tensor, b->tensor) == 0;
}

/* The same failure, whichever thread meets one first. */
static void check_failure(void)
{
	ckptfmt_request requests[TENSORS + 2];
	ckptfmt_error alone;
	for (int32_t threads = 1; threads <= THREADS; threads++) {
		ckptfmt_reader *reader = open_reader(threads, SHARDS);
		for (int turn = 0; turn < (threads == 1 ? 1 : 2); turn++) {
			CHECK_EQ(read_all(reader, CKPTFMT_VERIFY_AUTO, false, requests), CKPTFMT_CORRUPT);
			if (threads == 1)
				alone = err;
			CHECK(same_failure(&alone, &err));
		}
		ckptfmt_reader_close(reader);
	}
}

/* One byte anywhere in a mapped tensor, the first and the last included. */
static void test_damaged_map(void)
{
	static const uint64_t places[] = {0, 4 * MEGABYTE - 1, 8 * MEGABYTE, 12 * MEGABYTE - 1};
	const uint64_t row = 10;    /* "tj", in the first data file behind a slice of "a" and five others */
	uint64_t start = 5 * (uint64_t)COLUMNS;
	CHECK_EQ(sizes[row - 1], 12 * MEGABYTE);
	for (uint64_t i = 0; i < row - 1; i += SHARDS)
		start += (uint64_t)sizes[i];
	for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
		turn_byte(0, start + places[i]);
		for (int32_t threads = 1; threads <= THREADS; threads++) {
			ckptfmt_reader *reader = open_reader(threads, SHARDS);
			CHECK_FAILS(map_one(reader, row), err, CKPTFMT_FAIL_CHECKSUM, "DAT-6");
			CHECK_EQ(err.offset, start);
			CHECK(strcmp(err.tensor, "tj") == 0);
			CHECK(strstr(err.path, "ck.data-00000-of-00003") != NULL);
			CHECK_OK(map_one(reader, row - 1), err);
			ckptfmt_reader_close(reader);
		}
		turn_byte(0, start + places[i]);
	}
}

static void test_damage(void)
{
	for (int turn = 0; turn < 4; turn++) {
		/* In each data file two, somewhere: mostly in large values. */
		uint64_t places[SHARDS][2];
		for (int shard = 0; shard < SHARDS; shard++)
			for (int i = 0; i < 2; i++) {
				places[shard][i] = test_random_below(12 * MEGABYTE);
				if (shard >= turn % SHARDS)
					turn_byte(shard, places[shard][i]);
			}
		check_failure();
		for (int shard = turn % SHARDS; shard < SHARDS; shard++)
			for (int i = 0; i < 2; i++)
				turn_byte(shard, places[shard][i]);
	}
	/* Cut after it was opened: a wrong byte before that is told, one behind it is not. */
	for (int turn = 0; turn < 2; turn++) {
		ckptfmt_request requests[TENSORS + 2];
		for (int32_t threads = 1; threads <= THREADS; threads += 2) {
			ckptfmt_reader *reader = open_reader(threads, SHARDS);
			turn_byte(2, turn == 0 ? 8 * MEGABYTE : 12 * MEGABYTE);
			CHECK_EQ(truncate(path_of("ck.data-00002-of-00003"), 10 * MEGABYTE), 0);
			CHECK_FAILS(read_all(reader, CKPTFMT_VERIFY_AUTO, false, requests), err,
				turn == 0 ? CKPTFMT_FAIL_CHECKSUM : CKPTFMT_FAIL_TRUNCATED, turn == 0 ? "DAT-6" : "DAT-2");
			ckptfmt_reader_close(reader);
			save();
		}
	}
}

/* ---- boxes of a large value ------------------------------------------------------------------------------ */

enum { WIDE = 12 * MEGABYTE, WIDE_KINDS = 3 };

static const int64_t wide_dims[3] = {12, 1024, 1024};

/* By chunks that fit the staging memory, by chunks that do not, and without. */
static void save_wide(void)
{
	static const uint32_t chunk_sizes[WIDE_KINDS] = {MEGABYTE / 4, 2 * MEGABYTE + 5, 0};
	maker_begin(&m, directory, "wide", 1);
	for (int i = 0; i < WIDE_KINDS; i++) {
		const char name[] = {(char)('a' + i), '\0'};
		maker_entry *entry = maker_tensor(&m, name, CKPTFMT_UINT8, 3, wide_dims, 0, bytes, WIDE);
		if (chunk_sizes[i] != 0)
			maker_chunks(entry, chunk_sizes[i], bytes);
	}
	maker_build(&m);
	maker_save(&m);
	maker_free(&m);
}

static ckptfmt_status read_wide(int32_t threads, uint64_t row, const int64_t *box, int32_t verify, bool *verified)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .limits = NULL, .follow_symlinks = 1,
		.threads = threads};
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	ckptfmt_status status;
	ckptfmt_request request = {row, box, found, (uint64_t)(box[3] * box[4] * box[5]), 0, 0};
	CHECK_OK(ckptfmt_reader_open(path_of("wide"), &options, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	memset(found, 0xee, request.destination_size);
	memset(&err, 0, sizeof err);
	status = ckptfmt_reader_read(reader, selection, &request, 1, verify, &err);
	*verified = request.verified != 0;
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	return status;
}

static bool is_the_box(const int64_t *box)
{
	const uint8_t *next = found;
	for (int64_t i = box[0]; i < box[0] + box[3]; i++)
		for (int64_t k = box[1]; k < box[1] + box[4]; k++, next += box[5])
			if (memcmp(next, bytes + (i * wide_dims[1] + k) * wide_dims[2] + box[2], (size_t)box[5]) != 0)
				return false;
	return true;
}

static void test_wide_boxes(void)
{
	/* Rows in one run; runs of many sizes; all but a corner. */
	static const int64_t boxes[][6] = {{1, 0, 0, 10, 1024, 1024}, {0, 3, 0, 12, 1000, 1024}, {0, 0, 7, 12, 1024, 800},
		{0, 0, 0, 12, 1024, 1023}, {2, 100, 20, 10, 900, 1000}};
	static const int32_t modes[] = {CKPTFMT_VERIFY_AUTO, CKPTFMT_VERIFY_FULL, CKPTFMT_VERIFY_OFF};
	for (int32_t threads = 0; threads <= THREADS; threads++)
		for (size_t b = 0; b < CF_ARRAY_COUNT(boxes); b++)
			for (uint64_t row = 0; row < WIDE_KINDS; row++) {
				/* Each box of each row in each mode. */
				int32_t mode = modes[((uint64_t)threads + b + row) % 3];
				bool verified, chunked = row < 2;
				CHECK_OK(read_wide(threads, row, boxes[b], mode, &verified), err);
				CHECK(is_the_box(boxes[b]));
				CHECK_EQ(verified, mode == CKPTFMT_VERIFY_FULL || (mode == CKPTFMT_VERIFY_AUTO && chunked));
			}
}

/* Of two wrong bytes the first in reading order is reported, whichever thread meets it. */
static void test_damaged_boxes(void)
{
	static const int64_t box[] = {0, 3, 0, 12, 1000, 1024};
	ckptfmt_error alone;
	bool verified;
	uint64_t first = test_random_below(WIDE / 2) + 4096, second = first + test_random_below(WIDE / 2 - 4096);
	for (uint64_t row = 0; row < WIDE_KINDS - 1; row++) {
		for (int i = 0; i < 2; i++)
			flip(path_of("wide.data-00000-of-00001"), row * WIDE + (i == 0 ? first : second));
		for (int32_t threads = 1; threads <= THREADS; threads++) {
			CHECK_FAILS(read_wide(threads, row, box, CKPTFMT_VERIFY_AUTO, &verified), err, CKPTFMT_FAIL_CHECKSUM,
				"EXT-9");
			if (threads == 1)
				alone = err;
			CHECK(same_failure(&alone, &err));
		}
	}
}

/* Several threads of the caller, each of which gets help. */
static void *read_in_thread(void *argument)
{
	ckptfmt_reader *reader = argument;
	ckptfmt_selection *selection;
	ckptfmt_error own;
	uint8_t *to = malloc((size_t)ROWS * COLUMNS);
	ckptfmt_request request = {0, NULL, to, (uint64_t)ROWS * COLUMNS, 0, 0};
	if (ckptfmt_reader_list(reader, &selection, &own) != CKPTFMT_OK)
		return NULL;
	if (ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, &own) != CKPTFMT_OK ||
		memcmp(to, bytes, (size_t)ROWS * COLUMNS) != 0)
		reader = NULL;
	ckptfmt_selection_free(selection);
	free(to);
	return reader;
}

static void test_callers(void)
{
	ckptfmt_reader *reader = open_reader(2, 1);
	pthread_t threads[3];
	for (int i = 0; i < 3; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, read_in_thread, reader), 0);
	for (int i = 0; i < 3; i++) {
		void *result;
		CHECK_EQ(pthread_join(threads[i], &result), 0);
		CHECK(result == reader);
	}
	ckptfmt_reader_close(reader);
}

int main(void)
{
	test_seed();
	if (!make_directory())
		return 2;
	bytes = malloc((size_t)ROWS * COLUMNS + 8);
	found = malloc(total_size());
	for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i += 8) {
		uint64_t word = test_random();
		memcpy(bytes + i, &word, 8);
	}
	save();
	test_bytes();
	test_few_descriptors();
	test_damage();
	test_damaged_map();
	test_callers();
	save_wide();
	test_wide_boxes();
	test_damaged_boxes();
	free(bytes);
	free(found);
	remove_tree(directory);
	return test_finish("test_read_jobs");
}
