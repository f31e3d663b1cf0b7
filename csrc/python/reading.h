/* SPDX-License-Identifier: Apache-2.0 */
/* Part of the Python extension only: reading one small tensor as a numpy array, and making many names at once. Through
 * cffi these take several times as long as the work itself. */
#ifndef CKPTFMT_PYTHON_READING_H
#define CKPTFMT_PYTHON_READING_H

#include "ckptfmt_unstable.h"

/* cffi: begin */

/*
 * Appends one built-in function to a list (given by its id()):
 *
 *   read_small(owner, reader, name, verify, empty, dtypes) -> array | bytes | None
 *
 * Reads the tensor `name` (str or bytes) into what `empty` returns for its shape and dtypes[code]. `reader` is the
 * address of a ckptfmt_reader that `owner` keeps open. Returns the bytes of a ckptfmt_error if that fails, and None if
 * the tensor needs the general path: strings, partitioned, compressed or large tensors, unknown dtypes, and names that
 * have no UTF-8 form.
 */
void cf_reading_functions(uint64_t list);

/*
 * Fills elements [at, at + count) of a list (given by its id()) with str: element i is the UTF-8 text in
 * bytes[offsets[i] .. offsets[i + 1] - gap), with surrogate escapes for what is not UTF-8. Returns 0 if there is no
 * memory for one. No other thread uses the list.
 */
int32_t cf_text_list(const uint8_t *bytes, const uint64_t *offsets, uint64_t gap, uint64_t count, uint64_t list,
	uint64_t at);

/* cffi: end */

#endif
