/* SPDX-License-Identifier: Apache-2.0 */
#include "python/numpy.h"

#include "python/arrays.h"

#include <stdbool.h>
#include <string.h>

enum {
	PREFETCH = 8,       /* arrays */
	CACHE_LINE = 64     /* a numpy array takes two */
};

/* The dtype of the previous array; the next one usually has the same. */
typedef struct last_dtype {
	PyObject *dtype;            /* NULL: no array yet */
	int32_t code;
	uint32_t size;              /* bytes of an element */
} last_dtype;

static PyObject *object_of(uint64_t id)
{
	return (PyObject *)(uintptr_t)id;
}

static bool name_size(PyObject *name, uint64_t *out)
{
	Py_ssize_t size = -1;
	if (PyUnicode_CheckExact(name))
		size = PyUnicode_GetLength(name);
	else if (PyBytes_CheckExact(name))
		size = PyBytes_Size(name);
	*out = (uint64_t)size;
	return size >= 0;
}

static bool find_code(PyObject *dtype, PyObject *codes, last_dtype *last)
{
	const ckptfmt_dtype_info *info;
	PyObject *code;
	long value;
	if (dtype == last->dtype)
		return true;
	Py_XDECREF(last->dtype);
	last->dtype = NULL;
	code = PyDict_GetItemWithError(codes, dtype);
	value = code == NULL ? 0 : PyLong_AsLong(code);
	info = value < 1 || value > INT32_MAX ? NULL : ckptfmt_dtype_find((int32_t)value);
	if (info == NULL || info->size == 0)
		return false;
	Py_INCREF(dtype);
	last->dtype = dtype;
	last->code = info->code;
	last->size = info->size;
	return true;
}

static void put_numbers(cf_arrays_taker *taker, const npy_intp *numbers, int count)
{
	for (int i = 0; i < count; i++)
		taker->numbers[i] = numbers[i];
	taker->numbers += count;
	taker->numbers_left -= (uint64_t)count;
}

static bool put_layout(cf_arrays_taker *taker, PyArrayObject *array, ckptfmt_source *source)
{
	bool contiguous = (PyArray_FLAGS(array) & NPY_ARRAY_C_CONTIGUOUS) != 0;
	int rank = PyArray_NDIM(array);
	if ((uint64_t)rank * (contiguous ? 1 : 2) > taker->numbers_left)
		return false;
	source->data = PyArray_DATA(array);
	source->rank = rank;
	source->dims = taker->numbers;
	put_numbers(taker, PyArray_DIMS(array), rank);
	if (!contiguous) {
		source->strides = taker->numbers;
		put_numbers(taker, PyArray_STRIDES(array), rank);
	}
	return true;
}

/* The product may overflow only on the way to 0: the array exists. */
static uint64_t bytes_of(PyArrayObject *array, uint64_t element_size)
{
	uint64_t bytes = element_size;
	for (int d = 0; d < PyArray_NDIM(array); d++)
		bytes *= (uint64_t)PyArray_DIMS(array)[d];
	return bytes;
}

static bool describe(cf_arrays_taker *taker, PyObject *name, PyObject *object, last_dtype *last, ckptfmt_source *source,
	int64_t *size)
{
	PyArrayObject *array;
	memset(source, 0, sizeof *source);
	if (Py_TYPE(object) != (PyTypeObject *)(uintptr_t)taker->array_type)
		return false;
	array = (PyArrayObject *)(void *)object;
	if (!name_size(name, &source->name_size) ||
		!find_code((PyObject *)PyArray_DESCR(array), object_of(taker->codes), last) ||
		!put_layout(taker, array, source))
		return false;
	source->dtype = last->code;
	source->name = taker->name;
	taker->name += source->name_size;
	*size = (int64_t)bytes_of(array, last->size);
	return true;
}

uint64_t cf_arrays_describe(cf_arrays_taker *taker, uint64_t names, uint64_t arrays, uint64_t first,
	ckptfmt_source *sources, int64_t *sizes)
{
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *name_list = object_of(names), *array_list = object_of(arrays);
	Py_ssize_t count = PyList_Size(array_list), at = (Py_ssize_t)first;
	last_dtype last = {NULL, 0, 0};
	uint64_t done = 0;
	if (PyList_Size(name_list) == count)
		for (; at < count; at++, done++) {
			if (at + PREFETCH < count) {
				const char *later = (const char *)PyList_GetItem(array_list, at + PREFETCH);
				__builtin_prefetch(later);
				__builtin_prefetch(later + CACHE_LINE);
			}
			if (!describe(taker, PyList_GetItem(name_list, at), PyList_GetItem(array_list, at), &last,
				    &sources[done], &sizes[done]))
				break;
		}
	PyErr_Clear();
	Py_XDECREF(last.dtype);
	PyGILState_Release(state);
	return done;
}
