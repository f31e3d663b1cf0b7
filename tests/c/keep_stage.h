/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of saving upon another checkpoint share: such a save, as a program would do it, and the checkpoints
 * that it is done with. */
#ifndef CKPTFMT_TESTS_KEEP_STAGE_H
#define CKPTFMT_TESTS_KEEP_STAGE_H

#include "base/error.h"
#include "merge_stage.h"

#include <sys/stat.h>

enum { TENSORS = 4 };
static const char *const names[TENSORS] = {"a", "b", "c", "d"};

typedef struct upon {
	ckptfmt_write_options options;
	int kept;                   /* out: tensors taken over, */
	int written;                /* and others */
} upon;

static inline upon upon_default(void)
{
	upon u = {.kept = 0};
	u.options = (ckptfmt_write_options){.struct_size = sizeof u.options};
	return u;
}

static inline void make_sources(ckptfmt_source *sources, const float *values)
{
	for (int i = 0; i < TENSORS; i++)
		sources[i] = one_float(names[i], &values[i]);
}

/* The rows of those tensors that the base has; -1 for others. */
static inline ckptfmt_status find_rows(ckptfmt_reader *reader, ckptfmt_selection **out, int *rows)
{
	ckptfmt_columns columns;
	CF_TRY(ckptfmt_reader_list(reader, out, &err));
	ckptfmt_selection_columns(*out, &columns);
	for (int i = 0; i < TENSORS; i++) {
		rows[i] = -1;
		for (uint64_t k = 0; k < columns.row_count; k++)
			if (columns.rows[k].name_size == 1 && columns.names[columns.rows[k].name_offset] == names[i][0])
				rows[i] = (int)k;
	}
	return CKPTFMT_OK;
}

/* Keeps what is unchanged, adds the rest. */
static inline ckptfmt_status fill(upon *u, ckptfmt_writer *writer, ckptfmt_reader *reader,
	const ckptfmt_selection *selection, const int *all_rows, const ckptfmt_source *sources)
{
	ckptfmt_source there[TENSORS], rest[TENSORS];
	uint64_t rows[TENSORS], rest_count = 0, same_count = 0, count = 0;
	int number[TENSORS];
	uint8_t same[TENSORS], kept[TENSORS] = {0}, done[TENSORS] = {0};
	for (int i = 0; i < TENSORS; i++)
		if (all_rows[i] >= 0) {
			there[count] = sources[i];
			number[count] = i;
			rows[count++] = (uint64_t)all_rows[i];
		}
	CF_TRY(ckptfmt_reader_compare(reader, selection, there, rows, count, same, &err));
	for (uint64_t i = 0; i < count; i++)
		if (same[i]) {
			number[same_count] = number[i];
			rows[same_count++] = rows[i];
		}
	CF_TRY(ckptfmt_writer_keep(writer, reader, selection, rows, same_count, NULL, kept, &err));
	for (uint64_t i = 0; i < same_count; i++)
		done[number[i]] = kept[i];
	for (int i = 0; i < TENSORS; i++)
		if (!done[i])
			rest[rest_count++] = sources[i];
	u->kept = (int)(TENSORS - rest_count);
	u->written = (int)rest_count;
	return ckptfmt_writer_add(writer, rest, rest_count, &err);
}

static inline ckptfmt_status save_upon(upon *u, const char *base, const char *prefix, const float *values)
{
	ckptfmt_source sources[TENSORS];
	ckptfmt_selection *selection = NULL;
	ckptfmt_reader *reader;
	ckptfmt_writer *writer = NULL;
	ckptfmt_status status;
	int rows[TENSORS];
	make_sources(sources, values);
	status = ckptfmt_reader_open(path_of(base), NULL, &reader, &err);
	if (status == CKPTFMT_OK)
		status = find_rows(reader, &selection, rows);
	if (status == CKPTFMT_OK)
		status = ckptfmt_writer_open(path_of(prefix), &u->options, &writer, &err);
	if (status == CKPTFMT_OK)
		status = fill(u, writer, reader, selection, rows, sources);
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	if (status == CKPTFMT_OK)
		return ckptfmt_writer_commit(writer, &err);
	ckptfmt_writer_abandon(writer);
	return status;
}

static inline bool holds(const char *prefix, const float *values)
{
	for (int i = 0; i < TENSORS; i++)
		if (!has(prefix, names[i], values[i]))
			return false;
	return true;
}

static inline void save_all(const char *prefix, const float *values)
{
	ckptfmt_source sources[TENSORS];
	make_sources(sources, values);
	CHECK_OK(save_sources(path_of(prefix), NULL, sources, TENSORS, &err), err);
}

static const float old_values[TENSORS] = {1, 2, 3, 4}, some_new[TENSORS] = {1, 2, 3, 8};
static const float all_new[TENSORS] = {5, 6, 7, 8};
static const float older[TENSORS] = {9, 9, 9, 9};

/* The base has two data files: "a" and "b" lie in one, "c" and "d" in the other. */
static inline void make_base(const char *base)
{
	const ckptfmt_merge_options consume = {.struct_size = sizeof consume, .consume = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	const char *parts[2] = {path_of("part/1"), path_of("part/2")};
	ckptfmt_source sources[TENSORS];
	make_sources(sources, old_values);
	for (int i = 0; i < 2; i++)
		CHECK_OK(save_sources(parts[i], NULL, sources + 2 * i, 2, &err), err);
	CHECK_OK(ckptfmt_merge(parts, 2, path_of(base), &consume, &err), err);
}

static inline void set_scene(bool overwrite)
{
	empty_tree(directory);
	make_base("in/base");
	if (overwrite)
		save_all("out/n", older);
}

static inline void remove_base(void)
{
	remove_tree(path_of("in"));
}

static inline uint64_t links_of(const char *name)
{
	struct stat info;
	return stat(path_of(name), &info) == 0 ? (uint64_t)info.st_nlink : 0;
}

static inline int32_t shards_of(const char *prefix)
{
	ckptfmt_reader *reader;
	ckptfmt_header header;
	CHECK_OK(ckptfmt_reader_open(path_of(prefix), NULL, &reader, &err), err);
	ckptfmt_reader_header(reader, &header);
	ckptfmt_reader_close(reader);
	return header.num_shards;
}

#endif
