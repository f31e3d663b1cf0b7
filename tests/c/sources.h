/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors to save, whole saves of them, and reading them again. */
#ifndef CKPTFMT_TESTS_SOURCES_H
#define CKPTFMT_TESTS_SOURCES_H

#include "test.h"

static inline ckptfmt_source source_of(const char *name, int32_t dtype, int32_t rank, const int64_t *dims,
	const void *data)
{
	return (ckptfmt_source){.name = (const uint8_t *)name, .name_size = strlen(name), .dims = dims, .data = data,
		.dtype = dtype, .rank = rank};
}

/* A vector of one float. */
static inline ckptfmt_source one_float(const char *name, const float *value)
{
	static const int64_t dims[1] = {1};
	return source_of(name, CKPTFMT_FLOAT, 1, dims, value);
}

static inline ckptfmt_status save_sources(const char *prefix, const ckptfmt_write_options *options,
	const ckptfmt_source *sources, uint64_t count, ckptfmt_error *err)
{
	ckptfmt_writer *writer;
	ckptfmt_status status = ckptfmt_writer_open(prefix, options, &writer, err);
	if (status != CKPTFMT_OK)
		return status;
	status = ckptfmt_writer_add(writer, sources, count, err);
	if (status == CKPTFMT_OK)
		return ckptfmt_writer_commit(writer, err);
	ckptfmt_writer_abandon(writer);
	return status;
}

/* Reads a whole tensor, chosen by name. */
static inline ckptfmt_status read_one(const char *prefix, const char *name, void *to, uint64_t size, ckptfmt_error *err)
{
	ckptfmt_reader *reader;
	ckptfmt_selection *selection = NULL;
	const uint64_t name_size = strlen(name);
	ckptfmt_request request = {.destination = to, .destination_size = size};
	ckptfmt_status status = ckptfmt_reader_open(prefix, NULL, &reader, err);
	if (status != CKPTFMT_OK)
		return status;
	status = ckptfmt_reader_select(reader, (const uint8_t *)name, &name_size, 1, &selection, err);
	if (status == CKPTFMT_OK)
		status = ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, err);
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	return status;
}

#endif
