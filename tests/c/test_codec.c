/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed values with a codec for runs of one byte: they are read by the same calls as others, all of them and boxes
 * of them, verified, and bytes that were changed are found.
 */
#include "run_codec.h"
#include "scratch.h"
#include "sources.h"

#include "base/arith.h"

enum {
	CHUNK = 4096,
	ROWS = 40,
	COLUMNS = 150,
	COUNT = ROWS * COLUMNS,         /* uint32: 24000 bytes, five chunks and a part */
	SIZE = 4 * COUNT,
	CHUNKS = 6
};

static ckptfmt_error err;
static uint32_t numbers[COUNT], noise[COUNT];
static run_codec codec;

/* ---- writing --------------------------------------------------------------------------------------------- */

static ckptfmt_source numbers_of(const char *name, const int64_t *slice)
{
	static const int64_t dims[2] = {ROWS, COLUMNS};
	ckptfmt_source source = source_of(name, CKPTFMT_UINT32, 2, dims, numbers);
	source.slice = slice;
	return source;
}

/* Numbers whose upper three bytes are 7, but for those of the last chunk, which is stored raw. The second slice of
 * "cut" holds nothing that gains. */
static void save(void)
{
	static const int64_t slice[6] = {2 * ROWS, COLUMNS, 0, 0, ROWS, -1};
	static const int64_t rest[6] = {2 * ROWS, COLUMNS, ROWS, 0, ROWS, -1};
	ckptfmt_write_options options;
	ckptfmt_writer *writer;
	ckptfmt_source sources[3] = {numbers_of("w", NULL), numbers_of("cut", slice), numbers_of("cut", rest)};
	for (int i = 0; i < COUNT; i++) {
		uint32_t byte = (uint32_t)(test_random() & 0xff);
		numbers[i] = 4 * i < (CHUNKS - 1) * CHUNK ? 0x07070700u | byte : (uint32_t)test_random();
		noise[i] = (uint32_t)test_random();
	}
	sources[2].data = (const uint8_t *)noise;
	options = (ckptfmt_write_options){.struct_size = sizeof options};
	run_codec_init(&codec);
	options.codec = &codec.codec;
	CHECK_FAILS(ckptfmt_writer_open(path_of("none"), &options, &writer, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"compressing takes chunks of 4096 to 16777216 bytes, not 0");
	options.chunk_size = CHUNK;
	codec.codec.struct_size = 0;
	CHECK_FAILS(ckptfmt_writer_open(path_of("none"), &options, &writer, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"set struct_size of ckptfmt_codec");
	run_codec_init(&codec);
	options.durability = CKPTFMT_DURABILITY_RENAME;
	CHECK_OK(ckptfmt_writer_open(path_of("a"), &options, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_add(writer, sources, 3, &err), err);
	CHECK(codec.encoded != 0);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
	/* A codec that fails ends the writer. */
	CHECK_OK(ckptfmt_writer_open(path_of("none"), &options, &writer, &err), err);
	codec.fails = CKPTFMT_NO_MEMORY;
	CHECK_EQ(ckptfmt_writer_add(writer, sources, 1, &err), CKPTFMT_NO_MEMORY);
	CHECK(strcmp(err.tensor, "w") == 0);
	CHECK_FAILS(ckptfmt_writer_commit(writer, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"an earlier call of this writer failed");
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static ckptfmt_reader *reader;
static ckptfmt_selection *selection;

static void open_it(const ckptfmt_codec *with)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .follow_symlinks = 1, .codec = with};
	run_codec_init(&codec);
	CHECK_OK(ckptfmt_reader_open(path_of("a"), &options, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
}

static void close_it(void)
{
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	shell("rm -f '%s'/b.*");
}

static ckptfmt_status read_box(uint64_t row, const int64_t *box, void *to, uint64_t size, int32_t verify)
{
	ckptfmt_request request = {.row = row, .box = box, .destination = to, .destination_size = size};
	ckptfmt_status status = ckptfmt_reader_read(reader, selection, &request, 1, verify, &err);
	if (status == CKPTFMT_OK)
		CHECK_EQ(request.verified, verify != CKPTFMT_VERIFY_OFF);
	return status;
}

/* Row 0 is "cut", row 1 is "w". */
static void test_whole(void)
{
	static uint32_t got[2 * COUNT];
	ckptfmt_columns columns;
	ckptfmt_header header;
	open_it(&codec.codec);
	ckptfmt_reader_header(reader, &header);
	CHECK(header.producer == 2 && header.min_consumer == 2);
	ckptfmt_selection_columns(selection, &columns);
	CHECK(columns.row_count == 2 && columns.end_count == 2 * CHUNKS && columns.rows[1].stored.raw_size == SIZE &&
		columns.rows[1].stored.flags == CKPTFMT_STORED_COMPRESSED);
	CHECK_OK(read_box(1, NULL, got, SIZE, CKPTFMT_VERIFY_AUTO), err);
	CHECK(memcmp(got, numbers, SIZE) == 0);
	CHECK_EQ(codec.decoded, 3 * (CHUNKS - 1));
	/* Of a partitioned tensor one slice is compressed, the other one not. */
	memset(got, 0, sizeof got);
	CHECK_OK(read_box(0, NULL, got, 2 * SIZE, CKPTFMT_VERIFY_AUTO), err);
	CHECK(memcmp(got, numbers, SIZE) == 0 && memcmp(got + COUNT, noise, SIZE) == 0);
	/* Nothing is decoded where memory is only to be made. */
	codec.decoded = 0;
	CHECK_OK(read_box(0, NULL, NULL, 0, CKPTFMT_VERIFY_AUTO), err);
	CHECK_EQ(codec.decoded, 0);
	close_it();
}

static void test_boxes(void)
{
	static uint32_t got[COUNT];
	open_it(&codec.codec);
	for (int i = 0; i < 500; i++) {
		int64_t box[4], last = -1;
		uint64_t size, frames = 0;
		bool same = true;
		box[0] = (int64_t)test_random_below(ROWS);
		box[1] = (int64_t)test_random_below(COLUMNS);
		box[2] = (int64_t)test_random_below((uint64_t)(ROWS - box[0]) + 1);
		box[3] = (int64_t)test_random_below((uint64_t)(COLUMNS - box[1]) + 1);
		size = (uint64_t)(4 * box[2] * box[3]);
		for (int64_t r = box[0]; r < box[0] + box[2]; r++)
			for (int64_t c = box[1]; c < box[1] + box[3]; c++) {
				int64_t chunk = 4 * (r * COLUMNS + c) / CHUNK;
				frames += chunk != last && chunk != CHUNKS - 1 ? 3 : 0;
				last = chunk;
			}
		codec.decoded = 0;
		CHECK_OK(read_box(1, box, got, size, CKPTFMT_VERIFY_AUTO), err);
		CHECK_EQ(codec.decoded, frames);
		codec.decoded = 0;
		CHECK_OK(read_box(1, box, got, size, CKPTFMT_VERIFY_FULL), err);
		CHECK_EQ(codec.decoded, size == 0 ? 0 : 3 * (CHUNKS - 1));
		for (int64_t r = 0; r < box[2]; r++)
			same = same && memcmp(got + r * box[3], numbers + (box[0] + r) * COLUMNS + box[1],
					       (size_t)(4 * box[3])) == 0;
		CHECK(same);
	}
	close_it();
}

static void test_codec_failures(void)
{
	static uint32_t got[COUNT];
	ckptfmt_codec bad;
	ckptfmt_open_options options = {.struct_size = sizeof options, .codec = &bad};
	ckptfmt_status status;
	open_it(&codec.codec);
	codec.fails = CKPTFMT_BUSY;
	CHECK_FAILS(read_box(1, NULL, got, SIZE, CKPTFMT_VERIFY_AUTO), err, CKPTFMT_FAIL_ARGUMENT,
		"the codec failed with status 9");
	codec.fails = CKPTFMT_NO_MEMORY;
	CHECK_EQ(read_box(1, NULL, got, SIZE, CKPTFMT_VERIFY_AUTO), CKPTFMT_NO_MEMORY);
	codec.fails = CKPTFMT_OK;
	codec.too_much = 1;
	CHECK_FAILS(read_box(1, NULL, got, SIZE, CKPTFMT_VERIFY_AUTO), err, CKPTFMT_FAIL_ARGUMENT,
		"the codec wrote 1025 bytes, over the capacity of 1024");
	codec.too_much = (uint64_t)-1;
	CHECK_FAILS(read_box(1, NULL, got, SIZE, CKPTFMT_VERIFY_AUTO), err, CKPTFMT_FAIL_BAD_CHUNK,
		"CMP-18: a zstd frame of chunk 0 does not decode to its declared size");
	close_it();
	bad = codec.codec;
	bad.struct_size = 4;
	CHECK_FAILS(ckptfmt_reader_open(path_of("a"), &options, &reader, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"set struct_size of ckptfmt_codec");
	bad = codec.codec;
	bad.decode = NULL;
	CHECK_FAILS(ckptfmt_reader_open(path_of("a"), &options, &reader, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the codec must have");
	CHECK_FAILS(ckptfmt_codec_zstd(0, &bad, &err), err, CKPTFMT_FAIL_ARGUMENT, "zstd level 0");
	CHECK_FAILS(ckptfmt_codec_zstd(23, &bad, &err), err, CKPTFMT_FAIL_ARGUMENT, "zstd level 23");
	/* With libzstd no other codec is needed; without it the failure says so. */
	status = ckptfmt_codec_zstd(1, &bad, &err);
	open_it(NULL);
	if (status == CKPTFMT_OK) {
		CHECK_OK(read_box(1, NULL, got, SIZE, CKPTFMT_VERIFY_AUTO), err);
		CHECK(memcmp(got, numbers, SIZE) == 0);
	} else {
		CHECK_EQ(status, CKPTFMT_UNSUPPORTED);
		CHECK_FAILS(read_box(1, NULL, got, SIZE, CKPTFMT_VERIFY_AUTO), err, CKPTFMT_FAIL_UNSUPPORTED,
			"the value is compressed with zstd, which needs a codec");
	}
	close_it();
}

/* What verifying finds first, or an empty failure. */
static ckptfmt_error verify(const ckptfmt_codec *with)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .follow_symlinks = 1, .codec = with};
	ckptfmt_error found;
	ckptfmt_report *report;
	memset(&found, 0, sizeof found);
	CHECK_OK(ckptfmt_verify(path_of("a"), &options, &report, &err), err);
	if (report->finding_count != 0)
		found = report->findings[0].error;
	ckptfmt_report_free(report);
	return found;
}

static void test_verify(void)
{
	ckptfmt_error found;
	run_codec_init(&codec);
	found = verify(&codec.codec);
	CHECK_EQ(found.status, CKPTFMT_OK);
	CHECK_EQ(codec.decoded, 2 * 3 * (CHUNKS - 1));
	/* Wrong content behind checksums of stored bytes that are right. */
	codec.too_much = (uint64_t)-1;
	found = verify(&codec.codec);
	CHECK(found.failure == CKPTFMT_FAIL_BAD_CHUNK && strncmp(found.message, "CMP-18", 6) == 0);
	codec.too_much = 0;
	codec.fails = CKPTFMT_NO_MEMORY;
	found = verify(&codec.codec);
	CHECK(found.failure == CKPTFMT_FAIL_LIMIT && strstr(found.message, "no memory") != NULL);
	if (ckptfmt_codec_zstd(1, &codec.codec, NULL) != CKPTFMT_OK) {
		found = verify(NULL);
		CHECK(found.status == CKPTFMT_UNSUPPORTED && strstr(found.message, "not decoded") != NULL);
	}
}

/* A flipped bit is found by a read of its chunk and by no other, and named with its chunk's place. */
static void test_damage(void)
{
	static uint32_t got[COUNT];
	static const int64_t first[4] = {0, 0, 1, 1}, third[4] = {15, 0, 1, 1};
	ckptfmt_columns columns;
	uint64_t place;
	open_it(&codec.codec);
	ckptfmt_selection_columns(selection, &columns);
	place = columns.rows[1].stored.offset + columns.chunk_ends[columns.rows[1].stored.ends_first + 1];
	flip(path_of("a.data-00000-of-00001"), place + 100);
	CHECK_OK(read_box(1, first, got, 4, CKPTFMT_VERIFY_AUTO), err);
	CHECK_FAILS(read_box(1, third, got, 4, CKPTFMT_VERIFY_AUTO), err, CKPTFMT_FAIL_CHECKSUM,
		"CMP-11: Checksum does not match for chunk 2");
	CHECK(err.offset == place && strcmp(err.tensor, "w") == 0 && strstr(err.path, ".data-00000-of-00001") != NULL);
	CHECK_OK(read_box(1, third, got, 4, CKPTFMT_VERIFY_OFF), err);
	close_it();
}

static void check_round_trip(const ckptfmt_source *source, const void *expected, uint64_t size, bool compressed)
{
	ckptfmt_write_options options = {.struct_size = sizeof options, .codec = &codec.codec, .chunk_size = CHUNK,
		.durability = CKPTFMT_DURABILITY_NONE};
	ckptfmt_columns columns;
	uint8_t *got = malloc(size);
	ckptfmt_request request = {.destination = got, .destination_size = size};
	CHECK_OK(save_sources(path_of("b"), &options, source, 1, &err), err);
	{
		ckptfmt_open_options with = {.struct_size = sizeof with, .follow_symlinks = 1, .codec = &codec.codec};
		CHECK_OK(ckptfmt_reader_open(path_of("b"), &with, &reader, &err), err);
	}
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	ckptfmt_selection_columns(selection, &columns);
	CHECK_EQ((columns.rows[0].stored.flags & CKPTFMT_STORED_COMPRESSED) != 0, compressed);
	CHECK_OK(ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_FULL, &err), err);
	CHECK(memcmp(got, expected, size) == 0);
	free(got);
	close_it();
}

/* Values that another thread changes while they are saved may be torn, but what is stored can be read. */
static void test_a_source_that_changes(void)
{
	static uint8_t bytes[SIZE], got[SIZE];
	static const int64_t dims[1] = {SIZE};
	ckptfmt_source source = source_of("x", CKPTFMT_UINT8, 1, dims, bytes);
	ckptfmt_write_options options = {.struct_size = sizeof options, .codec = &codec.codec, .chunk_size = CHUNK,
		.durability = CKPTFMT_DURABILITY_NONE};
	ckptfmt_open_options with = {.struct_size = sizeof with, .follow_symlinks = 1, .codec = &codec.codec};
	ckptfmt_request request = {.destination = got, .destination_size = SIZE};
	run_codec_init(&codec);
	codec.changes = bytes;
	codec.changes_size = SIZE;
	CHECK_OK(save_sources(path_of("b"), &options, &source, 1, &err), err);
	CHECK(bytes[0] > 1);
	CHECK_OK(ckptfmt_reader_open(path_of("b"), &with, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	CHECK_OK(ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_FULL, &err), err);
	CHECK(got[0] < bytes[0]);
	close_it();
}

/* Values of more than one stretch, contiguous and not, by the codec of runs and by libzstd if there is one. */
static void test_large(void)
{
	/* The encoder chooses a method for 32 MiB at a time by samples. Some chunks of noise look compressible and are in
	 * the sample, which then is no run. So that this cannot happen where there is something to gain, the noise fills
	 * the first 32 MiB. */
	enum { LARGE = 10 << 20, NOISE = 8 << 20 };
	static const int64_t dims[1] = {LARGE}, strides[1] = {8};
	uint32_t *values = malloc(4 * (size_t)LARGE), *apart = malloc(8 * (size_t)LARGE);
	ckptfmt_source source = source_of("x", CKPTFMT_FLOAT, 1, dims, values);
	bool zstd = ckptfmt_codec_zstd(3, &codec.codec, NULL) == CKPTFMT_OK;
	for (int codecs = 0; codecs < 1 + zstd; codecs++) {
		if (codecs == 0)
			run_codec_init(&codec);
		else
			CHECK_OK(ckptfmt_codec_zstd(3, &codec.codec, &err), err);
		for (uint64_t i = 0; i < LARGE; i++)
			apart[2 * i] = values[i] = i < NOISE ? (uint32_t)test_random()
				: 0x3c000000u | (uint32_t)(test_random() & 0xffff);
		source.strides = NULL;
		source.data = (const uint8_t *)values;
		check_round_trip(&source, values, 4 * (uint64_t)LARGE, true);
		source.strides = strides;
		source.data = (const uint8_t *)apart;
		check_round_trip(&source, values, 4 * (uint64_t)LARGE, true);
	}
	for (uint64_t i = 0; i < LARGE; i++)
		values[i] = (uint32_t)test_random();
	values[LARGE - 1] = values[LARGE - 2] = 0;
	source.strides = NULL;
	source.data = (const uint8_t *)values;
	check_round_trip(&source, values, 4 * (uint64_t)LARGE, false);
	free(values);
	free(apart);
}

static void test_strings(void)
{
	/* So many that the checksum of the lengths, which is no run, is in none of the chunks that are sampled. */
	enum { SOME = 20000, MANY = 110 * SOME };       /* many: of more than a section */
	static ckptfmt_bytes items[MANY];
	for (int i = 0; i < MANY; i++)
		items[i] = (ckptfmt_bytes){(const uint8_t *)"\20\20\20\20\20\20\20\20\20\20\20\20\20\20\20\20", 16};
	for (int round = 0; round < 4; round++) {
		const int dtype = round % 2;
		const int64_t dims[1] = {round < 2 ? SOME : MANY};
		ckptfmt_source source = source_of("s", dtype == 0 ? CKPTFMT_STRING : CKPTFMT_VARIANT, 1, dims, items);
		ckptfmt_write_options options;
		ckptfmt_open_options with = {.struct_size = sizeof with, .follow_symlinks = 1, .codec = &codec.codec};
		ckptfmt_columns columns;
		ckptfmt_strings *strings;
		ckptfmt_strings_view view;
		bool same = true;
		run_codec_init(&codec);
		options = (ckptfmt_write_options){.struct_size = sizeof options};
		options.codec = &codec.codec;
		options.chunk_size = CHUNK;
		options.durability = CKPTFMT_DURABILITY_NONE;
		CHECK_OK(save_sources(path_of("b"), &options, &source, 1, &err), err);
		CHECK_OK(ckptfmt_reader_open(path_of("b"), &with, &reader, &err), err);
		CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
		ckptfmt_selection_columns(selection, &columns);
		/* Lengths and payloads of strings are runs; the checksums between variants are none. */
		CHECK_EQ((columns.rows[0].stored.flags & CKPTFMT_STORED_COMPRESSED) != 0, dtype == 0);
		CHECK_OK(ckptfmt_reader_read_strings(reader, selection, 0, NULL, CKPTFMT_VERIFY_AUTO, &strings, &err), err);
		ckptfmt_strings_get(strings, &view);
		CHECK_EQ(view.count, (uint64_t)dims[0]);
		for (int i = 0; i < dims[0]; i++)
			same = same && view.offsets[i + 1] - view.offsets[i] == 16 && view.bytes[view.offsets[i]] == 16;
		CHECK(same);
		ckptfmt_strings_free(strings);
		close_it();
	}
}

int main(void)
{
	test_seed();
	if (!make_directory())
		return 2;
	save();
	test_whole();
	test_boxes();
	test_codec_failures();
	test_verify();
	test_a_source_that_changes();
	test_large();
	test_strings();
	test_damage();
	remove_tree(directory);
	return test_finish("codec");
}
