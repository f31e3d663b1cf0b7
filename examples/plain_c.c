/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library from plain C: writes a checkpoint, opens it, lists it, reads a box of a tensor, verifies everything.
 *
 *     cc -std=c11 -Icsrc examples/plain_c.c build/libckptfmt.a -pthread -o plain_c
 *     ./plain_c /tmp/example/model
 *
 * The three questions of every call: did it return CKPTFMT_OK, who frees what it gave, until when is a view valid?
 */
#include "ckptfmt.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Errors come in the caller's memory: nothing to free, and NULL where nobody looks. */
static int explain(const char *what, const ckptfmt_error *err)
{
	fprintf(stderr, "%s: %s: %s", what, ckptfmt_failure_name(err->failure), err->message);
	if (err->path[0] != '\0')
		fprintf(stderr, " (%s", err->path);
	if (err->path[0] != '\0' && err->offset != UINT64_MAX)
		fprintf(stderr, ", offset %" PRIu64, err->offset);
	fprintf(stderr, "%s\n", err->path[0] != '\0' ? ")" : "");
	return 1;
}

/* A float matrix of 4 rows and 6 columns, and two strings. */
static int write_checkpoint(const char *prefix)
{
	static const int64_t matrix_dims[] = {4, 6}, words_dims[] = {2};
	const ckptfmt_bytes words[] = {{(const uint8_t *)"hello", 5}, {(const uint8_t *)"checkpoint", 10}};
	float matrix[4][6];
	ckptfmt_source sources[2];
	ckptfmt_writer *writer;
	ckptfmt_error err;

	for (int row = 0; row < 4; row++) {
		for (int column = 0; column < 6; column++)
			matrix[row][column] = (float)(10 * row + column);
	}
	memset(sources, 0, sizeof sources);
	sources[0].name = (const uint8_t *)"layer/kernel";
	sources[0].name_size = strlen("layer/kernel");
	sources[0].dtype = CKPTFMT_FLOAT;
	sources[0].rank = 2;
	sources[0].dims = matrix_dims;
	sources[0].data = (const uint8_t *)matrix;
	sources[1].name = (const uint8_t *)"words";
	sources[1].name_size = strlen("words");
	sources[1].dtype = CKPTFMT_STRING;
	sources[1].rank = 1;
	sources[1].dims = words_dims;
	sources[1].data = (const uint8_t *)words;

	if (ckptfmt_writer_open(prefix, NULL, &writer, &err) != CKPTFMT_OK)
		return explain("open for writing", &err);
	if (ckptfmt_writer_add(writer, sources, 2, &err) != CKPTFMT_OK) {
		ckptfmt_writer_abandon(writer);
		return explain("write", &err);
	}
	/* Until here no reader sees anything; from here on it sees all. Frees the writer, whatever it returns. */
	if (ckptfmt_writer_commit(writer, &err) != CKPTFMT_OK)
		return explain("commit", &err);
	return 0;
}

static int list(ckptfmt_reader *reader)
{
	ckptfmt_selection *selection;
	ckptfmt_columns columns;
	ckptfmt_error err;

	if (ckptfmt_reader_list(reader, &selection, &err) != CKPTFMT_OK)
		return explain("list", &err);
	ckptfmt_selection_columns(selection, &columns);
	for (uint64_t row = 0; row < columns.row_count; row++) {
		const ckptfmt_row *tensor = &columns.rows[row];
		const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(tensor->dtype);
		printf("%.*s  %s  [", (int)tensor->name_size, (const char *)columns.names + tensor->name_offset,
			dtype != NULL ? dtype->name : "unknown");
		for (int32_t d = 0; d < tensor->rank; d++)
			printf("%s%" PRId64, d > 0 ? ", " : "", columns.dims[tensor->dims_first + (uint64_t)d]);
		printf("]  %" PRIu64 " bytes\n", tensor->stored.size);
	}
	ckptfmt_selection_free(selection);
	return 0;
}

/* Rows 1 and 2, columns 3 to 5 of the matrix. */
static int read_box(ckptfmt_reader *reader)
{
	static const int64_t box[] = {1, 3, 2, 3};   /* starts, then lengths */
	const uint8_t *name = (const uint8_t *)"layer/kernel";
	const uint64_t name_size = strlen("layer/kernel");
	float part[2][3];
	ckptfmt_selection *selection;
	ckptfmt_request request;
	ckptfmt_status status;
	ckptfmt_error err;

	if (ckptfmt_reader_select(reader, name, &name_size, 1, &selection, &err) != CKPTFMT_OK)
		return explain("select", &err);
	memset(&request, 0, sizeof request);
	request.row = 0;
	request.box = box;
	request.destination = (uint8_t *)part;
	request.destination_size = sizeof part;
	status = ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, &err);
	ckptfmt_selection_free(selection);
	if (status != CKPTFMT_OK)
		return explain("read", &err);
	printf("layer/kernel[1:3, 3:6] = {{%g, %g, %g}, {%g, %g, %g}}, %s\n", (double)part[0][0], (double)part[0][1],
		(double)part[0][2], (double)part[1][0], (double)part[1][1], (double)part[1][2],
		request.verified ? "checked" : "not checked");
	for (int row = 0; row < 2; row++) {
		for (int column = 0; column < 3; column++) {
			if (part[row][column] != (float)(10 * (row + 1) + column + 3)) {
				fprintf(stderr, "read: not what was written\n");
				return 1;
			}
		}
	}
	return 0;
}

static int verify(const char *prefix)
{
	ckptfmt_verifier *verifier;
	ckptfmt_progress progress;
	ckptfmt_error err;
	int problems = 0;

	if (ckptfmt_verifier_open(prefix, NULL, &verifier, &err) != CKPTFMT_OK)
		return explain("verify", &err);
	do {
		if (ckptfmt_verifier_step(verifier, 1 << 20, &progress, &err) != CKPTFMT_OK) {
			ckptfmt_verifier_close(verifier);
			return explain("verify", &err);
		}
	} while (!progress.finished);
	for (uint64_t row = 0; row < progress.finding_count; row++) {
		const ckptfmt_finding *finding = ckptfmt_verifier_finding(verifier, row);
		if (finding->severity == CKPTFMT_SEVERITY_PROBLEM)
			problems += explain("problem", &finding->error);
	}
	printf("verified %" PRIu64 " bytes in %" PRIu64 " tensors: %d problems\n", progress.bytes_done,
		progress.tensors_done, problems);
	ckptfmt_verifier_close(verifier);
	return problems != 0;
}

int main(int argc, char **argv)
{
	ckptfmt_reader *reader;
	ckptfmt_error err;
	int failed;

	if (argc != 2) {
		fprintf(stderr, "usage: %s PREFIX\n", argv[0]);
		return 2;
	}
	printf("ckptfmt %s\n", ckptfmt_version());
	if (write_checkpoint(argv[1]) != 0)
		return 1;
	if (ckptfmt_reader_open(argv[1], NULL, &reader, &err) != CKPTFMT_OK)
		return explain("open", &err);
	failed = list(reader) || read_box(reader);
	ckptfmt_reader_close(reader);
	return failed || verify(argv[1]);
}
