/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed values without a coder: frames of runs of one byte, which need none. What is written so is planned, read,
 * placed and checked, all of it and boxes of it, and bytes that were changed are found.
 */
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
	CHUNKS = 6,
	FRAMES_MAX = 8 * CHUNKS
};

static ckptfmt_error err;
static uint32_t numbers[COUNT];
static uint8_t sevens[CHUNK];

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
	static const uint8_t frame[] = {0x28, 0xb5, 0x2f, 0xfd, 0x60, 0x00, 0x03, 0x03, 0x20, 0x00, 7};
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
	memset(sevens, 7, sizeof sevens);
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

static ckptfmt_reader *reader;
static ckptfmt_selection *selection;

/* Reads a box of the compressed values of a row into `to`; returns how many chunks that took, or -1 after a failure. */
static int fetch(uint64_t row, const int64_t *box, uint8_t *to, uint64_t size, int32_t verify, uint32_t *crcs)
{
	ckptfmt_chunk_run runs[CHUNKS];
	uint64_t count;
	int chunks = 0;
	CHECK_OK(ckptfmt_reader_plan_chunks(reader, selection, row, box, verify, CHUNK, runs, CHUNKS, &count, &err), err);
	CHECK(count <= CHUNKS);
	for (uint64_t i = 0; i < count; i++) {
		uint8_t *stored = malloc(runs[i].stored_size);
		const uint8_t *decoded[FRAMES_MAX];
		ckptfmt_frame frames[FRAMES_MAX];
		uint64_t frame_count;
		bool good = ckptfmt_reader_read_chunks(reader, selection, row, &runs[i], verify, stored, frames, &frame_count,
			&err) == CKPTFMT_OK;
		for (uint64_t k = 0; k < frame_count; k++) {
			CHECK(frames[k].raw_size <= CHUNK && stored[frames[k].offset] == 0x28);
			decoded[k] = sevens;
		}
		good = good && ckptfmt_reader_place_chunks(reader, selection, row, &runs[i], stored, decoded, frame_count, box,
			to, size, crcs == NULL ? NULL : crcs + runs[i].first, &err) == CKPTFMT_OK;
		free(stored);
		if (!good)
			return -1;
		chunks += (int)runs[i].count;
	}
	return chunks;
}

static void open_it(void)
{
	CHECK_OK(ckptfmt_reader_open(path_of("a"), NULL, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
}

static void close_it(void)
{
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
}

/* Row 0 is "cut", row 1 is "w". */
static void test_whole(void)
{
	static uint32_t got[2 * COUNT];
	uint32_t crcs[CHUNKS];
	ckptfmt_columns columns;
	ckptfmt_request request = {.row = 1, .destination = (uint8_t *)got, .destination_size = SIZE};
	ckptfmt_header header;
	open_it();
	ckptfmt_reader_header(reader, &header);
	CHECK(header.producer == 2 && header.min_consumer == 2);
	ckptfmt_selection_columns(selection, &columns);
	CHECK(columns.row_count == 2 && columns.end_count == 2 * CHUNKS && columns.rows[1].stored.raw_size == SIZE &&
		columns.rows[1].stored.flags == CKPTFMT_STORED_COMPRESSED);
	CHECK_FAILS(ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, &err), err,
		CKPTFMT_FAIL_UNSUPPORTED, "the value is compressed");
	request.compressed = 1;
	CHECK_OK(ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, &err), err);
	CHECK_EQ(request.compressed, 1);
	CHECK_EQ(fetch(1, NULL, (uint8_t *)got, SIZE, CKPTFMT_VERIFY_AUTO, crcs), CHUNKS);
	CHECK(memcmp(got, numbers, SIZE) == 0);
	CHECK_OK(ckptfmt_reader_check_raw(reader, selection, 1, CKPTFMT_WHOLE, crcs, CHUNKS, &err), err);
	crcs[3] ^= 1;
	CHECK_FAILS(ckptfmt_reader_check_raw(reader, selection, 1, CKPTFMT_WHOLE, crcs, CHUNKS, &err), err,
		CKPTFMT_FAIL_CHECKSUM, "CMP-19");
	CHECK_FAILS(ckptfmt_reader_bad_frame(reader, selection, 1, CKPTFMT_WHOLE, 2, &err), err, CKPTFMT_FAIL_BAD_CHUNK,
		"CMP-18: a zstd frame of chunk 2");
	/* Of a partitioned tensor the slice that is compressed is left to us, the other one not. */
	request = (ckptfmt_request){.row = 0, .destination = (uint8_t *)got, .destination_size = 2 * SIZE, .compressed = 1};
	memset(got, 0, sizeof got);
	CHECK_OK(ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, &err), err);
	CHECK_EQ(request.compressed, 1);
	CHECK(memcmp(got + COUNT, numbers, SIZE) == 0);
	CHECK_EQ(fetch(0, NULL, (uint8_t *)got, 2 * SIZE, CKPTFMT_VERIFY_AUTO, crcs), CHUNKS);
	CHECK(memcmp(got, numbers, SIZE) == 0 && memcmp(got + COUNT, numbers, SIZE) == 0);
	close_it();
}

static void test_boxes(void)
{
	static uint32_t got[COUNT];
	open_it();
	for (int i = 0; i < 500; i++) {
		int64_t box[4], touched = 0, last = -1;
		bool same = true;
		box[0] = (int64_t)test_random_below(ROWS);
		box[1] = (int64_t)test_random_below(COLUMNS);
		box[2] = (int64_t)test_random_below((uint64_t)(ROWS - box[0]) + 1);
		box[3] = (int64_t)test_random_below((uint64_t)(COLUMNS - box[1]) + 1);
		for (int64_t r = box[0]; r < box[0] + box[2]; r++)
			for (int64_t c = box[1]; c < box[1] + box[3]; c++) {
				int64_t chunk = 4 * (r * COLUMNS + c) / CHUNK;
				touched += chunk != last;
				last = chunk;
			}
		CHECK_EQ(fetch(1, box, (uint8_t *)got, (uint64_t)(4 * box[2] * box[3]), CKPTFMT_VERIFY_AUTO, NULL), touched);
		if (touched != 0)
			CHECK_EQ(fetch(1, box, (uint8_t *)got, (uint64_t)(4 * box[2] * box[3]), CKPTFMT_VERIFY_FULL, NULL),
				CHUNKS);
		for (int64_t r = 0; r < box[2]; r++)
			same = same && memcmp(got + r * box[3], numbers + (box[0] + r) * COLUMNS + box[1],
					       (size_t)(4 * box[3])) == 0;
		CHECK(same);
	}
	close_it();
}

static void test_arguments(void)
{
	static uint32_t got[COUNT];
	const uint8_t *decoded[1] = {sevens};
	ckptfmt_chunk_run run;
	ckptfmt_frame frames[8];
	uint8_t stored[2 * CHUNK];
	uint64_t count;
	open_it();
	CHECK_OK(ckptfmt_reader_plan_chunks(reader, selection, 1, NULL, CKPTFMT_VERIFY_AUTO, CHUNK, &run, 1, &count, &err),
		err);
	CHECK_EQ(count, CHUNKS);
	CHECK_OK(ckptfmt_reader_read_chunks(reader, selection, 1, &run, CKPTFMT_VERIFY_AUTO, stored, frames, &count, &err),
		err);
	CHECK_EQ(count, 3);
	CHECK_FAILS(ckptfmt_reader_place_chunks(reader, selection, 1, &run, stored, decoded, 1, NULL, (uint8_t *)got, SIZE,
		NULL, &err), err, CKPTFMT_FAIL_ARGUMENT, "fewer decoded frames than the run has");
	CHECK_FAILS(ckptfmt_reader_place_chunks(reader, selection, 1, &run, stored, decoded, 3, NULL, (uint8_t *)got, 7,
		NULL, &err), err, CKPTFMT_FAIL_ARGUMENT, "the destination has 7 bytes, the value 24000");
	run.count = CHUNKS + 1;
	CHECK_FAILS(ckptfmt_reader_read_chunks(reader, selection, 1, &run, CKPTFMT_VERIFY_AUTO, stored, frames, &count,
		&err), err, CKPTFMT_FAIL_ARGUMENT, "no run of chunks of this value");
	run.slice = 1;
	CHECK_FAILS(ckptfmt_reader_read_chunks(reader, selection, 1, &run, CKPTFMT_VERIFY_AUTO, stored, frames, &count,
		&err), err, CKPTFMT_FAIL_ARGUMENT, "slice 1 of 0");
	CHECK_FAILS(ckptfmt_reader_read_chunks(reader, selection, 0, &run, CKPTFMT_VERIFY_AUTO, stored, frames, &count,
		&err), err, CKPTFMT_FAIL_ARGUMENT, "the value is not compressed");
	CHECK_FAILS(ckptfmt_reader_plan_chunks(reader, selection, 2, NULL, CKPTFMT_VERIFY_AUTO, CHUNK, &run,
		1, &count, &err),
		err, CKPTFMT_FAIL_ARGUMENT, "row 2 of 2");
	close_it();
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
	open_it();
	ckptfmt_selection_columns(selection, &columns);
	place = columns.rows[1].stored.offset + columns.chunk_ends[columns.rows[1].stored.ends_first + 1];
	CHECK(file != NULL && fseek(file, (long)place + 100, SEEK_SET) == 0);
	byte = fgetc(file);
	CHECK(fseek(file, -1, SEEK_CUR) == 0 && fputc(byte ^ 4, file) != EOF && fclose(file) == 0);
	CHECK_EQ(fetch(1, first, (uint8_t *)got, 4, CKPTFMT_VERIFY_AUTO, NULL), 1);
	CHECK_EQ(fetch(1, third, (uint8_t *)got, 4, CKPTFMT_VERIFY_AUTO, NULL), -1);
	CHECK(err.failure == CKPTFMT_FAIL_CHECKSUM && strncmp(err.message, "CMP-11: chunk 2", 15) == 0);
	CHECK(err.offset == place && strcmp(err.tensor, "w") == 0 && strstr(err.path, ".data-00000-of-00001") != NULL);
	CHECK_EQ(fetch(1, third, (uint8_t *)got, 4, CKPTFMT_VERIFY_OFF, NULL), 1);
	close_it();
}

/* One value by itself, and chunks that are looked at. */
static void test_values(void)
{
	static uint8_t noise[3 * CHUNK];
	ckptfmt_chunk_run runs[CHUNKS];
	ckptfmt_strings_scan *scan;
	uint64_t count;
	uint8_t dense[3] = {9, 9, 9};
	open_it();
	CHECK_OK(ckptfmt_reader_plan_value(reader, selection, 1, CKPTFMT_WHOLE, CHUNK, runs, CHUNKS, &count, &err), err);
	CHECK_EQ(count, CHUNKS);
	CHECK_FAILS(ckptfmt_reader_plan_value(reader, selection, 1, 3, CHUNK, runs, CHUNKS, &count, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "slice 3 of 0");
	CHECK_FAILS(ckptfmt_reader_plan_value(reader, selection, 9, 3, CHUNK, runs, CHUNKS, &count, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "row 9 of 2");
	CHECK_FAILS(ckptfmt_reader_scan_open(reader, selection, 1, CKPTFMT_WHOLE, &scan, &err), err,
		CKPTFMT_FAIL_ARGUMENT, "data type");
	CHECK(scan == NULL);
	close_it();
	for (size_t i = 0; i < sizeof noise; i++)
		noise[i] = (uint8_t)test_random_below(256);
	memset(noise + CHUNK, 7, CHUNK);
	CHECK_OK(ckptfmt_chunks_dense(noise, sizeof noise - 1, CHUNK, 1, 0, dense, &err), err);
	CHECK(dense[0] == 1 && dense[1] == 0 && dense[2] == 0);
	CHECK_FAILS(ckptfmt_chunks_dense(noise, sizeof noise, CHUNK, 3, 0, dense, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"12288 bytes in units of 3");
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
	test_arguments();
	test_values();
	test_packer();
	test_damage();
	shell("rm -r '%s'");
	return test_finish("unpack");
}
