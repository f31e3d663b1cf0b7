/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of merges share: a scratch directory, small bundles as inputs, and what can be read of them. */
#ifndef CKPTFMT_TESTS_MERGE_STAGE_H
#define CKPTFMT_TESTS_MERGE_STAGE_H

#include "scratch.h"
#include "sources.h"

static ckptfmt_error err;

/* ---- bundles --------------------------------------------------------------------------------------------- */

/* A float tensor of one element. With `rows` a row of "cut", a [4] tensor of which each input has one. */
static inline void save_to(const char *prefix, const char *name, float value, int row, uint64_t alignment)
{
	const int64_t slice[3] = {4, row, 1};
	ckptfmt_write_options options = {.struct_size = sizeof options, .alignment = alignment,
		.durability = CKPTFMT_DURABILITY_NONE};
	ckptfmt_source sources[2] = {one_float(name, &value), one_float("cut", &value)};
	sources[1].slice = slice;
	CHECK_OK(save_sources(path_of(prefix), &options, sources, row < 0 ? 1 : 2, &err), err);
}

static inline bool has(const char *prefix, const char *name, float value)
{
	float got = -1;
	return read_one(path_of(prefix), name, &got, sizeof got, &err) == CKPTFMT_OK && got == value;
}

enum { INPUTS_MAX = 3 };
static const char *const input_names[INPUTS_MAX] = {"in/a", "in/b", "other/c"};
static const char *const tensor_names[INPUTS_MAX] = {"a", "b", "c"};

static inline void save_inputs(int count)
{
	for (int i = 0; i < count; i++)
		save_to(input_names[i], tensor_names[i], (float)(i + 1), i, 1);
}

static inline ckptfmt_status merge(int count, const ckptfmt_merge_options *options)
{
	const char *prefixes[INPUTS_MAX];
	for (int i = 0; i < count; i++)
		prefixes[i] = path_of(input_names[i]);
	return ckptfmt_merge(prefixes, (uint64_t)count, path_of("out/m"), options, &err);
}

static inline bool has_inputs(int count)
{
	for (int i = 0; i < count; i++)
		if (!has(input_names[i], tensor_names[i], (float)(i + 1)))
			return false;
	return true;
}

static inline bool has_result(int count)
{
	for (int i = 0; i < count; i++)
		if (!has("out/m", tensor_names[i], (float)(i + 1)))
			return false;
	return true;
}

/* Sets the stage: the inputs, and at the destination nothing, or an older checkpoint of as many data files as the
 * result would have. */
static inline void set_stage(int count, bool overwrite)
{
	remove_tree(path_of("in"));
	remove_tree(path_of("other"));
	remove_tree(path_of("out"));
	if (overwrite) {
		const char *old[INPUTS_MAX] = {path_of("in/o0"), path_of("in/o1"), path_of("in/o2")};
		const ckptfmt_merge_options consume = {.struct_size = sizeof consume, .consume = 1,
			.durability = CKPTFMT_DURABILITY_NONE};
		for (int i = 0; i < count; i++) {
			char name[] = {'o', (char)('0' + i), 0}, prefix[] = {'i', 'n', '/', 'o', (char)('0' + i), 0};
			save_to(prefix, name, 9, -1, 1);
		}
		CHECK_OK(ckptfmt_merge(old, (uint64_t)count, path_of("out/m"), &consume, &err), err);
	}
	save_inputs(count);
}

#endif
