/* SPDX-License-Identifier: Apache-2.0 */
/* Reads from a storage with latency: the same bytes as ever, in few batches, of little more than what is needed. */
#include "run_codec.h"
#include "scratch.h"
#include "sources.h"

#include "base/bytes.h"

enum {
	SMALL = 300,                    /* tensors of a few bytes, in two data files */
	ROWS = 3000,
	COLUMNS = 5000,                 /* the matrix has 15 MB */
	CHUNK = 65536,
	LENGTH = 40 << 20               /* bytes of the compressed tensor, and of the long one */
};

static ckptfmt_error err;
static ckptfmt_storage *memory;
static ckptfmt_storage counted;     /* `memory`, with its reads counted */
static run_codec codec;
static uint8_t *matrix, *runs;

static _Atomic uint64_t batches, ranges, fetched;
static _Atomic int64_t fails_after; /* batches; negative: never */

static ckptfmt_status read_batch(void *state, ckptfmt_object_read *reads, uint64_t count, ckptfmt_error *error)
{
	batches++;
	ranges += count;
	for (uint64_t i = 0; i < count; i++)
		fetched += reads[i].size;
	if (fails_after-- == 0)
		return ckptfmt_error_set(error, CKPTFMT_FAIL_OS, 110, "memory://ck", "the server does not answer");
	return memory->read_batch(state, reads, count, error);
}

static void count_anew(void)
{
	batches = ranges = fetched = 0;
	fails_after = -1;
}

static void save(const char *prefix, int32_t shards, bool compressed)
{
	static const int64_t dims[2] = {ROWS, COLUMNS}, length[1] = {LENGTH}, one[1] = {100};
	ckptfmt_write_options options = {.struct_size = sizeof options, .chunk_size = CHUNK, .storage = memory,
		.shards = shards, .codec = compressed ? &codec.codec : NULL};
	ckptfmt_source sources[SMALL + 3];
	static char names[SMALL][16];
	const ckptfmt_bytes text[2] = {{(const uint8_t *)"hello", 5}, {(const uint8_t *)"world!", 6}};
	const int64_t two[1] = {2};
	for (int i = 0; i < SMALL; i++) {
		snprintf(names[i], sizeof names[i], "s%03d", i);
		sources[i] = source_of(names[i], CKPTFMT_UINT8, 1, one, matrix + 100 * i);
	}
	sources[SMALL] = source_of("matrix", CKPTFMT_UINT8, 2, dims, matrix);
	sources[SMALL + 1] = source_of("runs", CKPTFMT_UINT8, 1, length, runs);
	sources[SMALL + 2] = source_of("text", CKPTFMT_STRING, 1, two, text);
	CHECK_OK(save_sources(path_of(prefix), &options, sources, SMALL + 3, &err), err);
}

static ckptfmt_reader *open_reader(const char *prefix, int32_t threads)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .follow_symlinks = 1, .storage = &counted,
		.codec = &codec.codec, .threads = threads};
	ckptfmt_reader *reader;
	CHECK_OK(ckptfmt_reader_open(path_of(prefix), &options, &reader, &err), err);
	return reader;
}

static ckptfmt_selection *select_one(ckptfmt_reader *reader, const char *name)
{
	uint64_t size = strlen(name);
	ckptfmt_selection *selection;
	CHECK_OK(ckptfmt_reader_select(reader, (const uint8_t *)name, &size, 1, &selection, &err), err);
	return selection;
}

/* A box of the matrix. */
static void check_box(ckptfmt_reader *reader, const int64_t *box, int32_t verify)
{
	ckptfmt_selection *selection = select_one(reader, "matrix");
	uint64_t size = (uint64_t)(box[2] * box[3]);
	uint8_t *found = malloc(size + 1);
	ckptfmt_request request = {.box = box, .destination = found, .destination_size = size};
	bool same = true;
	CHECK_OK(ckptfmt_reader_read(reader, selection, &request, 1, verify, &err), err);
	CHECK_EQ(request.verified, verify != CKPTFMT_VERIFY_OFF);
	for (int64_t row = 0; row < box[2]; row++)
		same = same && memcmp(found + row * box[3], matrix + (box[0] + row) * COLUMNS + box[1], (size_t)box[3]) == 0;
	CHECK(same);
	ckptfmt_selection_free(selection);
	free(found);
}

static void check_runs(ckptfmt_reader *reader, int64_t start, int64_t length, int32_t verify)
{
	ckptfmt_selection *selection = select_one(reader, "runs");
	const int64_t box[2] = {start, length};
	uint8_t *found = malloc((size_t)length + 1);
	ckptfmt_request request = {.box = box, .destination = found, .destination_size = (uint64_t)length};
	CHECK_OK(ckptfmt_reader_read(reader, selection, &request, 1, verify, &err), err);
	CHECK(memcmp(found, runs + start, (size_t)length) == 0);
	ckptfmt_selection_free(selection);
	free(found);
}

static void check_text(ckptfmt_reader *reader)
{
	ckptfmt_selection *selection = select_one(reader, "text");
	ckptfmt_strings *strings;
	uint64_t size;
	CHECK_OK(ckptfmt_reader_read_strings(reader, selection, 0, NULL, CKPTFMT_VERIFY_AUTO, &strings, &err), err);
	CHECK(memcmp(ckptfmt_strings_at(strings, 1, &size), "world!", 6) == 0);
	ckptfmt_strings_free(strings);
	ckptfmt_selection_free(selection);
}

/* All tensors of numbers in one call, some of them twice. */
static ckptfmt_status read_all(ckptfmt_reader *reader, bool check)
{
	static const uint64_t total = SMALL * 100 + (uint64_t)ROWS * COLUMNS + LENGTH;
	ckptfmt_selection *selection;
	ckptfmt_request requests[SMALL + 4];
	uint8_t *found = malloc(2 * total);
	ckptfmt_status status;
	uint64_t at = 0, count = 0;
	memset(requests, 0, sizeof requests);
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	for (uint64_t row = 0; row < ckptfmt_selection_count(selection); row++) {
		ckptfmt_tensor tensor;
		CHECK_OK(ckptfmt_selection_tensor(selection, row, &tensor, &err), err);
		for (int again = 0; again < (tensor.byte_size > 100 ? 2 : 1) && tensor.dtype != CKPTFMT_STRING; again++) {
			requests[count++] = (ckptfmt_request){.row = row, .destination = found + at,
				.destination_size = tensor.byte_size};
			at += tensor.byte_size;
		}
	}
	status = ckptfmt_reader_read(reader, selection, requests, count, CKPTFMT_VERIFY_AUTO, &err);
	for (uint64_t i = 0; check && i < count; i++) {
		uint64_t size;
		const uint8_t *name = ckptfmt_selection_name(selection, requests[i].row, &size);
		const uint8_t *expected = name[0] == 'm' ? matrix : name[0] == 'r' ? runs
			: matrix + 100 * ((name[1] - '0') * 100 + (name[2] - '0') * 10 + (name[3] - '0'));
		CHECK(memcmp(requests[i].destination, expected, requests[i].destination_size) == 0);
	}
	ckptfmt_selection_free(selection);
	free(found);
	return status;
}

static void test_same_bytes(const char *prefix)
{
	static const int32_t modes[3] = {CKPTFMT_VERIFY_AUTO, CKPTFMT_VERIFY_FULL, CKPTFMT_VERIFY_OFF};
	for (int32_t threads = 0; threads <= 3; threads += 3) {
		ckptfmt_reader *reader = open_reader(prefix, threads);
		CHECK_OK(read_all(reader, true), err);
		for (int turn = 0; turn < 9; turn++) {
			int64_t rows = (int64_t)test_random_below(ROWS) + 1, columns = (int64_t)test_random_below(COLUMNS) + 1;
			const int64_t box[4] = {(int64_t)test_random_below((uint64_t)(ROWS - rows + 1)),
				(int64_t)test_random_below((uint64_t)(COLUMNS - columns + 1)), rows, columns};
			int64_t length = (int64_t)test_random_below(LENGTH) + 1;
			check_box(reader, box, modes[turn % 3]);
			check_runs(reader, (int64_t)test_random_below((uint64_t)(LENGTH - length + 1)), length, modes[turn % 3]);
		}
		check_text(reader);
		ckptfmt_reader_close(reader);
	}
}

/* How many batches a read takes, and how many bytes. */
static void test_few_batches(void)
{
	ckptfmt_reader *reader = open_reader("plain", 0);
	ckptfmt_selection *selection;
	static const int64_t rows[4] = {1000, 0, 209, COLUMNS}, column[4] = {0, 17, ROWS, 1};
	static uint8_t found[SMALL][100];
	ckptfmt_request requests[SMALL / 7 + 1];
	uint64_t count = 0;

	/* A slice of a megabyte that is contiguous: one range, of the chunks that it touches. */
	check_box(reader, rows, CKPTFMT_VERIFY_AUTO);
	count_anew();
	check_box(reader, rows, CKPTFMT_VERIFY_AUTO);
	CHECK_EQ(batches, 1);
	CHECK_EQ(ranges, 1);
	CHECK(fetched <= 209 * COLUMNS + 2 * CHUNK);

	/* A column touches all chunks: one batch of all of them. */
	count_anew();
	check_box(reader, column, CKPTFMT_VERIFY_AUTO);
	CHECK_EQ(batches, 1);
	CHECK(fetched <= ROWS * COLUMNS);

	/* Small tensors here and there: one batch. */
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	memset(requests, 0, sizeof requests);
	for (uint64_t row = 0; row < ckptfmt_selection_count(selection); row++) {
		uint64_t size;
		const uint8_t *name = ckptfmt_selection_name(selection, row, &size);
		if (name[0] == 's' && name[1] != '_' && row % 7 == 0) {
			requests[count].row = row;
			requests[count].destination = found[count];
			requests[count++].destination_size = 100;
		}
	}
	count_anew();
	CHECK_OK(ckptfmt_reader_read(reader, selection, requests, count, CKPTFMT_VERIFY_AUTO, &err), err);
	CHECK(count > 40);
	CHECK_EQ(batches, 1);
	CHECK(ranges <= 2);
	ckptfmt_selection_free(selection);

	/* Everything: each byte once, or twice where it is requested twice. */
	count_anew();
	CHECK_OK(read_all(reader, true), err);
	CHECK(batches <= 2 * (LENGTH + ROWS * COLUMNS) / (4 << 20) + 8);
	CHECK(fetched <= 2 * (uint64_t)(LENGTH + ROWS * COLUMNS) + SMALL * 200 + (1 << 20));
	ckptfmt_reader_close(reader);
}

/* Chunks of a compressed tensor are fetched together, and only those that are touched. */
static void test_compressed(void)
{
	ckptfmt_reader *reader = open_reader("small", 1);
	uint64_t decoded;
	check_runs(reader, 0, 10, CKPTFMT_VERIFY_AUTO);
	count_anew();
	decoded = codec.decoded;
	check_runs(reader, CHUNK - 1, 20 * CHUNK, CKPTFMT_VERIFY_AUTO);
	CHECK_EQ(codec.decoded - decoded, 21);
	CHECK_EQ(batches, 1);
	count_anew();
	check_runs(reader, 0, LENGTH, CKPTFMT_VERIFY_AUTO);
	CHECK_EQ(batches, 1);
	ckptfmt_reader_close(reader);
}

/* Verifying reads files in large ranges. */
static void test_verify(void)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .follow_symlinks = 1, .storage = &counted};
	ckptfmt_report *report;
	count_anew();
	CHECK_OK(ckptfmt_verify(path_of("plain"), &options, &report, &err), err);
	CHECK_EQ(report->finding_count, 0);
	CHECK(batches <= (LENGTH + ROWS * COLUMNS) / (16 << 20) + 15);
	ckptfmt_report_free(report);
}

/* Any batch that fails is the failure of the read, and never damage; the reader can be used again. */
static void test_failing_batches(void)
{
	ckptfmt_reader *reader = open_reader("plain", 0);
	CHECK_OK(read_all(reader, true), err);
	for (int64_t after = 0; after < 4; after++) {
		count_anew();
		fails_after = after;
		CHECK_EQ(read_all(reader, false), CKPTFMT_IO);
		CHECK_EQ(err.os_errno, 110);
		CHECK(strcmp(err.path, "memory://ck") == 0);
	}
	count_anew();
	CHECK_OK(read_all(reader, true), err);
	ckptfmt_reader_close(reader);
}

/* A data file that is missing fails the reads of its tensors alone. */
static void test_missing_file(void)
{
	ckptfmt_reader *reader;
	char name[64];
	snprintf(name, sizeof name, "broken.data-%05d-of-%05d", 1, 2);
	save("broken", 2, false);
	CHECK_OK(memory->remove(memory->state, path_of(name), &err), err);
	reader = open_reader("broken", 1);
	CHECK_EQ(read_all(reader, false), CKPTFMT_IO);
	CHECK_EQ(err.failure, CKPTFMT_FAIL_SHARD_MISSING);
	CHECK(strcmp(err.path, path_of(name)) == 0);
	ckptfmt_reader_close(reader);
}

int main(void)
{
	test_seed();
	if (!make_directory())
		return 1;
	CHECK_OK(ckptfmt_memory_storage_new(&memory, &err), err);
	run_codec_init(&codec);
	counted = *memory;
	counted.read_batch = read_batch;
	matrix = malloc((size_t)ROWS * COLUMNS);
	runs = malloc(LENGTH);
	for (size_t i = 0; i < (size_t)ROWS * COLUMNS; i += sizeof(uint64_t)) {
		uint64_t random = test_random();
		memcpy(matrix + i, &random, sizeof random);
	}
	for (size_t i = 0; i < LENGTH; i++)
		runs[i] = (uint8_t)(i / CHUNK % 4);
	count_anew();
	save("plain", 2, false);
	save("small", 1, true);
	CHECK(codec.encoded != 0);
	test_same_bytes("plain");
	test_same_bytes("small");
	test_few_batches();
	test_compressed();
	test_verify();
	test_failing_batches();
	test_missing_file();
	ckptfmt_memory_storage_free(memory);
	remove_tree(directory);
	free(matrix);
	free(runs);
	return test_finish("fetch");
}
