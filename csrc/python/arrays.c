/* SPDX-License-Identifier: Apache-2.0 */
#include <Python.h>

#include "python/arrays.h"

#include "io/kept.h"

#include <stdbool.h>
#include <string.h>

enum {
	LOOK_AHEAD = 8,     /* arrays */
	CACHE_LINE = 64     /* an array of numpy takes two */
};

/* The dtype of the last array: the next one mostly has the same. */
typedef struct last_dtype {
	PyObject *attribute;        /* "dtype" */
	PyObject *dtype;            /* NULL: there is none */
	int32_t code;
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

static bool find_code(PyObject *array, PyObject *codes, last_dtype *last)
{
	PyObject *dtype = PyObject_GetAttr(array, last->attribute), *code;
	long value;
	if (dtype == NULL)
		return false;
	if (dtype == last->dtype) {
		Py_DECREF(dtype);
		return true;
	}
	Py_XDECREF(last->dtype);
	last->dtype = NULL;
	code = PyDict_GetItemWithError(codes, dtype);
	value = code == NULL ? 0 : PyLong_AsLong(code);
	if (value < 1 || value > INT32_MAX) {
		Py_DECREF(dtype);
		return false;
	}
	last->dtype = dtype;
	last->code = (int32_t)value;
	return true;
}

static void put_numbers(cf_arrays_taker *taker, const Py_ssize_t *numbers, int count)
{
	for (int i = 0; i < count; i++)
		taker->numbers[i] = numbers[i];
	taker->numbers += count;
	taker->numbers_left -= (uint64_t)count;
}

static bool take_buffer(cf_arrays_taker *taker, PyObject *array, ckptfmt_source *source, int64_t *size)
{
	Py_buffer view;
	bool dense, fits;
	if (PyObject_GetBuffer(array, &view, PyBUF_STRIDES) != 0)
		return false;
	dense = PyBuffer_IsContiguous(&view, 'C') != 0;
	fits = (uint64_t)view.ndim * (dense ? 1 : 2) <= taker->numbers_left;
	if (fits) {
		source->data = view.buf;
		source->rank = view.ndim;
		source->dims = taker->numbers;
		put_numbers(taker, view.shape, view.ndim);
		if (!dense) {
			source->strides = taker->numbers;
			put_numbers(taker, view.strides, view.ndim);
		}
		*size = view.len;
	}
	PyBuffer_Release(&view);
	return fits;
}

static bool describe(cf_arrays_taker *taker, PyObject *name, PyObject *array, last_dtype *last, ckptfmt_source *source,
	int64_t *size)
{
	memset(source, 0, sizeof *source);
	if ((uintptr_t)Py_TYPE(array) != taker->array_type || !name_size(name, &source->name_size) ||
		!find_code(array, object_of(taker->codes), last) || !take_buffer(taker, array, source, size))
		return false;
	source->dtype = last->code;
	source->name = taker->name;
	taker->name += source->name_size;
	return true;
}

uint64_t cf_arrays_describe(cf_arrays_taker *taker, uint64_t names, uint64_t arrays, uint64_t first,
	ckptfmt_source *sources, int64_t *sizes)
{
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *name_list = object_of(names), *array_list = object_of(arrays);
	Py_ssize_t count = PyList_Size(array_list), at = (Py_ssize_t)first;
	last_dtype last = {PyUnicode_InternFromString("dtype"), NULL, 0};
	uint64_t done = 0;
	if (PyList_Size(name_list) == count && last.attribute != NULL)
		for (; at < count; at++, done++) {
			if (at + LOOK_AHEAD < count) {
				const char *later = (const char *)PyList_GetItem(array_list, at + LOOK_AHEAD);
				__builtin_prefetch(later);
				__builtin_prefetch(later + CACHE_LINE);
			}
			if (!describe(taker, PyList_GetItem(name_list, at), PyList_GetItem(array_list, at), &last,
				    &sources[done], &sizes[done]))
				break;
		}
	PyErr_Clear();
	Py_XDECREF(last.dtype);
	Py_XDECREF(last.attribute);
	PyGILState_Release(state);
	return done;
}

ckptfmt_status cf_arrays_take(uint64_t size, uint8_t **out, ckptfmt_error *err)
{
	return cf_kept_take(size, out, err);
}

void cf_arrays_give(uint8_t *data, uint64_t size)
{
	cf_kept_give(data, size);
}

uint64_t cf_arrays_release(void)
{
	return cf_kept_release();
}
