/* SPDX-License-Identifier: Apache-2.0 */
/* Python's and numpy's headers, in the order and with the macros that they need. Only inline accessors of arrays are
 * used, which do not need numpy's API table (import_array). */
#ifndef CKPTFMT_PYTHON_NUMPY_H
#define CKPTFMT_PYTHON_NUMPY_H

#include <Python.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/ndarraytypes.h>

#endif
