/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library from plain C: write two shards (one compressed where there is libzstd), merge them, list, read whole, by
 * slice and strings, verify.
 *
 *     cc -std=c11 -Icsrc examples/plain_c.c build/libckptfmt.a -lzstd -pthread -o plain_c
 *     ./plain_c /tmp/example/model
 */
#include "ckptfmt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ROWS = 64, COLUMNS = 512 };

static ckptfmt_error err;

/* Prints the error of a call that failed. */
static int failed(ckptfmt_status status, const char *what)
{
	if (status != CKPTFMT_OK)
		fprintf(stderr, "%s: %s: %s (%s)\n", what, ckptfmt_failure_name(err.failure), err.message, err.path);
	return status != CKPTFMT_OK;
}

#define TRY(call) do { if (failed((call), #call)) return 1; } while (0)

/* Another result than 0 would cancel the call. */
static int32_t show_progress(void *context, uint64_t done, uint64_t total)
{
	printf("%s: %" PRIu64 " of %" PRIu64 " bytes\n", (const char *)context, done, total);
	return 0;
}

static const uint8_t *bytes_of(const char *text)
{
	return (const uint8_t *)text;
}

static int write_shards(const char *first, const char *second)
{
	const int64_t dims[] = {ROWS, COLUMNS}, two[] = {2};
	const uint64_t sizes[] = {5, 10};
	static float matrix[ROWS * COLUMNS];
	ckptfmt_write_options options = {.struct_size = sizeof options, .chunk_size = 1 << 16,
		.progress = {show_progress, "first shard"}};
	ckptfmt_codec codec;
	ckptfmt_writer *writer;
	for (int i = 0; i < ROWS * COLUMNS; i++)
		matrix[i] = (float)i;
	if (ckptfmt_codec_zstd(3, &codec, NULL) == CKPTFMT_OK)
		options.codec = &codec;
	TRY(ckptfmt_writer_open(first, &options, &writer, &err));
	if (failed(ckptfmt_writer_add_tensor(writer, bytes_of("layer/kernel"), 12, CKPTFMT_FLOAT, dims, 2,
			(const uint8_t *)matrix, sizeof matrix, &err), "write")) {
		ckptfmt_writer_abandon(writer);
		return 1;
	}
	/* Before the commit no reader sees anything. It frees the writer, also if it fails. */
	TRY(ckptfmt_writer_commit(writer, &err));
	TRY(ckptfmt_writer_open(second, NULL, &writer, &err));
	if (failed(ckptfmt_writer_add_strings(writer, bytes_of("words"), 5, two, 1, bytes_of("hellocheckpoint"), sizes,
			&err), "write")) {
		ckptfmt_writer_abandon(writer);
		return 1;
	}
	TRY(ckptfmt_writer_commit(writer, &err));
	return 0;
}

static int list(ckptfmt_reader *reader)
{
	ckptfmt_selection *selection;
	TRY(ckptfmt_reader_list(reader, &selection, &err));
	for (uint64_t row = 0; row < ckptfmt_selection_count(selection); row++) {
		ckptfmt_tensor tensor;
		uint64_t size;
		const uint8_t *name = ckptfmt_selection_name(selection, row, &size);
		const ckptfmt_dtype_info *dtype;
		if (failed(ckptfmt_selection_tensor(selection, row, &tensor, &err), "describe"))
			continue;
		dtype = ckptfmt_dtype_find(tensor.dtype);
		printf("%.*s %s rank %d, %" PRId64 " elements\n", (int)size, (const char *)name,
			dtype == NULL ? "unknown" : dtype->name, tensor.rank, tensor.element_count);
	}
	ckptfmt_selection_free(selection);
	return 0;
}

static int read_tensors(ckptfmt_reader *reader)
{
	const int64_t box[] = {1, 3, 2, 3};     /* starts, then lengths: rows 1 and 2, columns 3 to 5 */
	static float whole[ROWS * COLUMNS];
	float part[6];
	ckptfmt_strings *words;
	uint64_t size;
	const uint8_t *word;
	TRY(ckptfmt_tensor_read(reader, bytes_of("layer/kernel"), 12, NULL, (uint8_t *)whole, sizeof whole,
		CKPTFMT_VERIFY_AUTO, &err));
	TRY(ckptfmt_tensor_read(reader, bytes_of("layer/kernel"), 12, box, (uint8_t *)part, sizeof part,
		CKPTFMT_VERIFY_AUTO, &err));
	TRY(ckptfmt_tensor_read_strings(reader, bytes_of("words"), 5, NULL, CKPTFMT_VERIFY_AUTO, &words, &err));
	word = ckptfmt_strings_at(words, 1, &size);
	printf("whole ends with %g, slice with %g, strings with %.*s\n", (double)whole[ROWS * COLUMNS - 1], (double)part[5],
		(int)size, (const char *)word);
	ckptfmt_strings_free(words);
	return whole[ROWS * COLUMNS - 1] != ROWS * COLUMNS - 1 || part[5] != 2 * COLUMNS + 5;
}

int main(int argc, char **argv)
{
	char first[1024], second[1024];
	const char *shards[] = {first, second};
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .consume = 1};
	ckptfmt_reader *reader;
	ckptfmt_report *report;
	int bad;
	if (argc != 2)
		return fprintf(stderr, "usage: plain_c PREFIX\n"), 2;
	snprintf(first, sizeof first, "%s-a", argv[1]);
	snprintf(second, sizeof second, "%s-b", argv[1]);
	if (write_shards(first, second) != 0)
		return 1;
	TRY(ckptfmt_merge(shards, 2, argv[1], &options, &err));
	TRY(ckptfmt_reader_open(argv[1], NULL, &reader, &err));
	bad = list(reader) != 0 || read_tensors(reader) != 0;
	ckptfmt_reader_close(reader);
	TRY(ckptfmt_verify(argv[1], NULL, &report, &err));
	bad = bad || report->finding_count != 0;
	ckptfmt_report_free(report);
	return bad;
}
