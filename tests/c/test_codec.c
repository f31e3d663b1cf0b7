/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed values with a codec for runs of one byte: they are read by the same calls as others, all of them and boxes
 * of them, verified, and bytes that were changed are found.
 */
#include "run_codec.h"
#include "scratch.h"

#include "base/arith.h"
#include "base/bytes.h"
#include "compress/chunk.h"

enum {
	CHUNK = 4096,
	ROWS = 40,
	COLUMNS = 150,
	COUNT = ROWS * COLUMNS,         /* uint32: 24000 bytes, five chunks and a part */
	SIZE = 4 * COUNT,
	CHUNKS = 6
};

static ckptfmt_error err;
static uint32_t numbers[COUNT];

/* ---- writing --------------------------------------------------------------------------------------------- */

/* Chunks of `numbers`, whose upper three bytes are 7, or a byte of their own in the last chunk. */
static void put_value(ckptfmt_writer *writer, const char *name, const int64_t *slice)
{
	static uint8_t planes[SIZE], stored[SIZE + CHUNKS * CF_CHUNK_HEAD_MAX], run[16];
	static const int64_t dims[2] = {ROWS, COLUMNS};
	ckptfmt_source source = {.name = (const uint8_t *)name, .name_size = strlen(name), .dims = dims,
		.data = (const uint8_t *)numbers, .slice = slice, .dtype = CKPTFMT_UINT32, .rank = 2};
	ckptfmt_bytes frames[4 * CHUNKS] = {{NULL, 0}};
	uint32_t crcs[CHUNKS], raw_crcs[CHUNKS], entropies[4 * CHUNKS];
	uint64_t sizes[CHUNKS];
	static uint8_t raw[SIZE];
	/* A frame of one plane of a whole chunk, 1024 bytes of 7. */
	static const uint8_t frame[] = {0x28, 0xb5, 0x2f, 0xfd, 0xa0, 0x00, 0x04, 0x00, 0x00, 0x03, 0x20, 0x00, 7};
	memcpy(run, frame, sizeof frame);
	for (int i = 0; i < COUNT; i++)
		cf_store_u32(raw + (size_t)i * 4, numbers[i]);
	CHECK_OK(ckptfmt_chunks_split(raw, SIZE, CHUNK, 4, CKPTFMT_CHUNK_PLANES, planes, raw_crcs, entropies, &err), err);
	CHECK(entropies[0] > 7 * 256 && entropies[1] == 0);
	CHECK_OK(ckptfmt_chunks_join(planes, SIZE, CHUNK, 4, CKPTFMT_CHUNK_PLANES, stored, &err), err);
	CHECK(memcmp(stored, raw, SIZE) == 0);
	CHECK_FAILS(ckptfmt_chunks_join(planes, SIZE, 100, 4, CKPTFMT_CHUNK_PLANES, stored, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "24000 bytes in units of 4 and chunks of 100 by method 2");
	for (int i = 0; i < CHUNKS - 1; i++)
		for (int p = 1; p < 4; p++)
			frames[4 * i + p] = (ckptfmt_bytes){run, sizeof frame};
	CHECK_OK(ckptfmt_chunks_build(raw, SIZE, CHUNK, 4, CKPTFMT_CHUNK_PLANES, planes, frames, stored,
		ckptfmt_chunks_capacity(SIZE, CHUNK), sizes, crcs, &err), err);
	CHECK_EQ(sizes[0], 1 + 2 + 3 + 1024 + 3 * sizeof frame);
	CHECK_OK(ckptfmt_writer_begin_value(writer, &source, &err), err);
	CHECK_FAILS(ckptfmt_writer_add(writer, &source, 1, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"a value was begun and not ended");
	CHECK_FAILS(ckptfmt_writer_end_value(writer, SIZE, 0, &err), err, CKPTFMT_FAIL_ARGUMENT, "0 chunks for");
	CHECK_OK(ckptfmt_writer_put_chunks(writer, stored, sizes, crcs, 2, &err), err);
	CHECK_OK(ckptfmt_writer_put_chunks(writer, stored + sizes[0] + sizes[1], sizes + 2, crcs + 2, CHUNKS - 2, &err),
		err);
	CHECK_OK(ckptfmt_writer_end_value(writer, SIZE, ckptfmt_crc32c(0, raw, SIZE), &err), err);
	CHECK_FAILS(ckptfmt_writer_put_chunks(writer, stored, sizes, crcs, 1, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"no value was begun");
}

static void save(void)
{
	static const int64_t slice[6] = {2 * ROWS, COLUMNS, 0, 0, ROWS, -1};
	static const int64_t rest[6] = {2 * ROWS, COLUMNS, ROWS, 0, ROWS, -1};
	static const int64_t dims[2] = {ROWS, COLUMNS};
	ckptfmt_write_options options;
	ckptfmt_writer *writer;
	ckptfmt_source plain = {.name = (const uint8_t *)"cut", .name_size = 3, .dims = dims,
		.data = (const uint8_t *)numbers, .slice = rest, .dtype = CKPTFMT_UINT32, .rank = 2};
	for (int i = 0; i < COUNT; i++)
		numbers[i] = 0x07070700u | (uint32_t)(test_random() & 0xff);
	ckptfmt_write_options_default(&options);
	CHECK_OK(ckptfmt_writer_open(path_of("none"), &options, &writer, &err), err);
	CHECK_FAILS(ckptfmt_writer_begin_value(writer, &plain, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"chunks of 0 bytes are not compressed");
	ckptfmt_writer_abandon(writer);
	options.chunk_size = CHUNK;
	options.durability = CKPTFMT_DURABILITY_RENAME;
	CHECK_OK(ckptfmt_writer_open(path_of("a"), &options, &writer, &err), err);
	put_value(writer, "w", NULL);
	put_value(writer, "cut", slice);
	CHECK_OK(ckptfmt_writer_add(writer, &plain, 1, &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

static run_codec codec;
static ckptfmt_reader *reader;
static ckptfmt_selection *selection;

static void open_it(const ckptfmt_codec *with)
{
	ckptfmt_open_options options = {.follow_symlinks = 1, .codec = with};
	run_codec_init(&codec);
	CHECK_OK(ckptfmt_reader_open(path_of("a"), &options, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
}

static void close_it(void)
{
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
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
	CHECK(memcmp(got, numbers, SIZE) == 0 && memcmp(got + COUNT, numbers, SIZE) == 0);
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
	ckptfmt_open_options options = {.codec = &bad};
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
		"the codec wrote 1025 bytes where there is room for 1024");
	codec.too_much = (uint64_t)-1;
	CHECK_FAILS(read_box(1, NULL, got, SIZE, CKPTFMT_VERIFY_AUTO), err, CKPTFMT_FAIL_BAD_CHUNK,
		"CMP-18: a zstd frame of chunk 0 does not decode to what it says");
	close_it();
	bad = codec.codec;
	bad.size--;
	CHECK_FAILS(ckptfmt_reader_open(path_of("a"), &options, &reader, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the codec has");
	bad = codec.codec;
	bad.decode = NULL;
	CHECK_FAILS(ckptfmt_reader_open(path_of("a"), &options, &reader, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the codec has");
	CHECK_FAILS(ckptfmt_codec_zstd(0, &bad, &err), err, CKPTFMT_FAIL_ARGUMENT, "zstd level 0");
	CHECK_FAILS(ckptfmt_codec_zstd(23, &bad, &err), err, CKPTFMT_FAIL_ARGUMENT, "zstd level 23");
	/* With libzstd nobody needs another codec; without it the failure says so. */
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

/* What the verifier finds first, or an empty failure. */
static ckptfmt_error verify(const ckptfmt_codec *with)
{
	ckptfmt_open_options options = {.follow_symlinks = 1, .codec = with};
	ckptfmt_error found;
	ckptfmt_verifier *verifier;
	ckptfmt_progress progress;
	memset(&found, 0, sizeof found);
	CHECK_OK(ckptfmt_verifier_open(path_of("a"), &options, &verifier, &err), err);
	do
		CHECK_OK(ckptfmt_verifier_step(verifier, 1, &progress, &err), err);
	while (!progress.finished);
	if (progress.finding_count != 0)
		found = ckptfmt_verifier_finding(verifier, 0)->error;
	ckptfmt_verifier_close(verifier);
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
	FILE *file = fopen(path_of("a.data-00000-of-00001"), "r+b");
	ckptfmt_columns columns;
	uint64_t place;
	int byte;
	open_it(&codec.codec);
	ckptfmt_selection_columns(selection, &columns);
	place = columns.rows[1].stored.offset + columns.chunk_ends[columns.rows[1].stored.ends_first + 1];
	CHECK(file != NULL && fseek(file, (long)place + 100, SEEK_SET) == 0);
	byte = fgetc(file);
	CHECK(fseek(file, -1, SEEK_CUR) == 0 && fputc(byte ^ 4, file) != EOF && fclose(file) == 0);
	CHECK_OK(read_box(1, first, got, 4, CKPTFMT_VERIFY_AUTO), err);
	CHECK_FAILS(read_box(1, third, got, 4, CKPTFMT_VERIFY_AUTO), err, CKPTFMT_FAIL_CHECKSUM, "CMP-11: chunk 2");
	CHECK(err.offset == place && strcmp(err.tensor, "w") == 0 && strstr(err.path, ".data-00000-of-00001") != NULL);
	CHECK_OK(read_box(1, third, got, 4, CKPTFMT_VERIFY_OFF), err);
	close_it();
}

static void test_packer(void)
{
	static const int64_t dims[2] = {COLUMNS, ROWS}, strides[2] = {4, 4 * COLUMNS}, three[1] = {3};
	static uint8_t raw[SIZE];
	static const ckptfmt_bytes items[3] = {{(const uint8_t *)"ab", 2}, {NULL, 0}, {(const uint8_t *)"c", 1}};
	ckptfmt_source source = {.name = (const uint8_t *)"t", .name_size = 1, .dims = dims, .strides = strides,
		.data = (const uint8_t *)numbers, .dtype = CKPTFMT_FLOAT, .rank = 2};
	ckptfmt_packer *packer;
	ckptfmt_pack_info info;
	bool same = true;
	CHECK_OK(ckptfmt_packer_open(&source, &packer, &err), err);
	ckptfmt_packer_info(packer, &info);
	CHECK(info.raw_size == SIZE && info.data == NULL && info.unit == 4 && info.rotates == 1);
	CHECK_OK(ckptfmt_packer_take(packer, raw, CHUNK, &err), err);
	CHECK_FAILS(ckptfmt_packer_take(packer, raw, 15, &err), err, CKPTFMT_FAIL_ARGUMENT, "15 of 19904 bytes left");
	CHECK_OK(ckptfmt_packer_take(packer, raw + CHUNK, SIZE - CHUNK, &err), err);
	for (int c = 0; c < COLUMNS; c++)
		for (int r = 0; r < ROWS; r++)
			same = same && cf_load_u32(raw + 4 * (c * ROWS + r)) == numbers[r * COLUMNS + c];
	CHECK(same);
	CHECK_FAILS(ckptfmt_packer_take(packer, raw, 1, &err), err, CKPTFMT_FAIL_ARGUMENT, "1 of 0 bytes left");
	ckptfmt_packer_close(packer);
	source = (ckptfmt_source){.name = (const uint8_t *)"t", .name_size = 1, .dims = three,
		.data = (const uint8_t *)items, .dtype = CKPTFMT_STRING, .rank = 1};
	CHECK_OK(ckptfmt_packer_open(&source, &packer, &err), err);
	ckptfmt_packer_info(packer, &info);
	CHECK(info.raw_size == 3 + 4 + 3 && info.unit == 1 && info.rotates == 0 && memcmp(info.data, "\2\0\1", 3) == 0 &&
		memcmp(info.data + 7, "abc", 3) == 0);
	ckptfmt_packer_close(packer);
	ckptfmt_packer_close(NULL);
	source.dtype = 0;
	CHECK_FAILS(ckptfmt_packer_open(&source, &packer, &err), err, CKPTFMT_FAIL_ARGUMENT, "data type 0");
	CHECK(packer == NULL);
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
	test_packer();
	test_damage();
	shell("rm -r '%s'");
	return test_finish("codec");
}
