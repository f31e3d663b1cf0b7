/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the Python binding alone, and built into nothing else: describes numpy arrays as sources, any number in one call.
 * Python objects are passed as the numbers that id() gives of them. The caller keeps them alive and releases the GIL as
 * around every call; it is taken again in here.
 */
#ifndef CKPTFMT_PYTHON_ARRAYS_H
#define CKPTFMT_PYTHON_ARRAYS_H

#include "ckptfmt.h"

/* cffi: begin */

/* Who describes arrays, one list after the other. */
typedef struct cf_arrays_taker {
	uint64_t codes;             /* a dict: the code of a dtype, for each that is stored as it lies in memory */
	const uint8_t *name;        /* where the bytes of the next name are; moves on */
	int64_t *numbers;           /* room for what sources point to: their dims and strides; moves on */
	uint64_t numbers_left;
} cf_arrays_taker;

/* What numpy says of an array, a probe. */
typedef struct cf_arrays_probe {
	uint64_t array, dtype, data, rank;
	const int64_t *dims, *strides;
	int32_t dense, writeable;
} cf_arrays_probe;

/* Whether arrays of this type lie in memory as is known, of which these are proof. They are looked into from then on if
 * so; before, and if not, no array is plain. */
int32_t cf_arrays_layout(uint64_t array_type, const cf_arrays_probe *probes, uint64_t count);

/* Describes arrays[first] and those that follow as `sources` and their bytes of data as `sizes`, up to the end of the
 * list or the first that is not plain: an array of another type, even a derived one, of a dtype that `codes` does not
 * have, or for whose dims and strides there is no room. Gives how many were described.
 * `names` is a list beside `arrays` of what is named: bytes, or str all of ASCII. What keeps the data of an array alive
 * is the array. */
uint64_t cf_arrays_describe(cf_arrays_taker *taker, uint64_t names, uint64_t arrays, uint64_t first,
	ckptfmt_source *sources, int64_t *sizes);

/* cffi: end */

#endif
