/* SPDX-License-Identifier: Apache-2.0 */
/* Part of the Python extension only: reading one small tensor as a numpy array. Through cffi, select, numpy.empty and
 * read take several times as long as the read itself. */
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

/* cffi: end */

#endif
