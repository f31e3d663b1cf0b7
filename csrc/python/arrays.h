/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Part of the Python extension only: describes numpy arrays as sources, any number in one call. Python objects are
 * passed by their id(); the caller keeps them alive. cffi releases the GIL around the call; these functions take it
 * again.
 */
#ifndef CKPTFMT_PYTHON_ARRAYS_H
#define CKPTFMT_PYTHON_ARRAYS_H

#include "ckptfmt_unstable.h"

/* cffi: begin */

/* State of describing several lists of arrays, one after the other. */
typedef struct cf_arrays_taker {
	uint64_t array_type;        /* numpy.ndarray */
	uint64_t codes;             /* a dict: the dtype code of each numpy dtype that is stored as it is in memory */
	const uint8_t *name;        /* the bytes of the next name; advanced */
	int64_t *numbers;           /* room for dims and strides; advanced */
	uint64_t numbers_left;
} cf_arrays_taker;

/* Describes arrays[first] and those after it in `sources`, and their sizes in bytes in `sizes`. Stops at the end of the
 * list or at the first array that needs the general path: a type other than exactly numpy.ndarray, a dtype not in
 * `codes`, or no room left for dims and strides. Returns how many it described.
 * `names` is a list of the same length: bytes, or ASCII str. The caller keeps the arrays alive. */
uint64_t cf_arrays_describe(cf_arrays_taker *taker, uint64_t names, uint64_t arrays, uint64_t first,
	ckptfmt_source *sources, int64_t *sizes);

/* cffi: end */

#endif
