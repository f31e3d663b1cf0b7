/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the Python binding alone, as arrays.h: what a reader gives as Python objects. Where there is nothing but names to
 * make, or one small array, the way over C structs that Python takes apart costs more than all else.
 */
#ifndef CKPTFMT_PYTHON_READING_H
#define CKPTFMT_PYTHON_READING_H

#include "ckptfmt.h"

/* cffi: begin */

/* Appends the names of all tensors to a list, the number that id() gives of it, as str, in key order; those that belong
 * to the format are left out. *partitioned 1: there are tensors in slices, so that only a listing can tell what is a
 * name, and what was appended means nothing; nor does it after a failure. As ckptfmt_reader_list. */
ckptfmt_status cf_reading_names(ckptfmt_reader *reader, uint64_t list, int32_t *partitioned, ckptfmt_error *err);

/*
 * Appends three functions to a list, which call as any built-in function does and so cost less than what cffi wraps:
 *
 *   find(live, name) -> bytes | None
 *       The bytes of the ckptfmt_found of a plain tensor; `name` is str or bytes.
 *   read(live, found, verify, empty, dtypes) -> array | None
 *       All of such a tensor, in what `empty` makes of its shape and of dtypes[code]; none that is large
 *       (CF_ARRAYS_LARGE).
 *   read_named(live, name, verify, empty, dtypes) -> array | None
 *       Both in one.
 *
 * None: it went wrong, or is not for them, which the long way tells. `live` is a reader for the time of a call: a
 * tuple of what owns it, its address and its process.
 */
void cf_reading_functions(uint64_t list);

/* Tells them in which process they are, at first and after every fork: a reader of another one is none. */
void cf_reading_process(int64_t process);

/* cffi: end */

#endif
