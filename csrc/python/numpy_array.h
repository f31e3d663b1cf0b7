/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What numpy keeps of an array, as it lies in memory. Every extension built against numpy has these places compiled in,
 * so that they are part of its ABI, in 1.x and 2.x alike; asked by the buffer protocol, numpy takes several times as
 * long to tell them. cf_arrays_layout proves them before anything else looks here.
 */
#ifndef CKPTFMT_PYTHON_NUMPY_ARRAY_H
#define CKPTFMT_PYTHON_NUMPY_ARRAY_H

#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

typedef struct cf_numpy_array {
	PyObject object;
	uint8_t *data;
	int rank;
	Py_ssize_t *dims;
	Py_ssize_t *strides;
	PyObject *base;
	PyObject *dtype;
	int flags;
} cf_numpy_array;

/* Flags. */
enum { CF_NUMPY_DENSE = 0x0001, CF_NUMPY_WRITEABLE = 0x0400 };

/* The object as an array; NULL if it is none of exactly that type, or of a numpy that is not known. */
const cf_numpy_array *cf_numpy_array_of(PyObject *object);

#endif
