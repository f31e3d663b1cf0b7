/* SPDX-License-Identifier: Apache-2.0 */
#include <Python.h>

#include "python/arrays.h"

#include "python/numpy_array.h"

#include <string.h>

enum {
	LOOK_AHEAD = 8,     /* arrays */
	CACHE_LINE = 64     /* an array of numpy takes two */
};

/* The dtype of the last array: the next one mostly has the same. */
typedef struct last_dtype {
	PyObject *dtype;            /* NULL: there is none */
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

/* ---- what numpy keeps of an array ------------------------------------------------------------------------ */

static PyTypeObject *array_type;

const cf_numpy_array *cf_numpy_array_of(PyObject *object)
{
	return Py_TYPE(object) == array_type ? (const cf_numpy_array *)(const void *)object : NULL;
}

static bool same_numbers(const Py_ssize_t *stored, const int64_t *told, uint64_t count)
{
	for (uint64_t i = 0; i < count; i++)
		if (stored[i] != told[i])
			return false;
	return true;
}

/* From first to last: nothing is followed before what stands beside it is right. */
static bool is_as_told(const cf_arrays_probe *probe)
{
	const cf_numpy_array *array = (const cf_numpy_array *)(const void *)object_of(probe->array);
	return (uint64_t)(uintptr_t)array->data == probe->data && array->rank >= 0 &&
		(uint64_t)array->rank == probe->rank && (uint64_t)(uintptr_t)array->dtype == probe->dtype &&
		!(array->flags & CF_NUMPY_DENSE) == !probe->dense &&
		!(array->flags & CF_NUMPY_WRITEABLE) == !probe->writeable &&
		same_numbers(array->dims, probe->dims, probe->rank) &&
		same_numbers(array->strides, probe->strides, probe->rank);
}

int32_t cf_arrays_layout(uint64_t type, const cf_arrays_probe *probes, uint64_t count)
{
	bool known = count != 0;
	for (uint64_t i = 0; known && i < count; i++)
		known = is_as_told(&probes[i]);
	array_type = known ? (PyTypeObject *)(uintptr_t)type : NULL;
	return known;
}

/* ---- plain arrays ---------------------------------------------------------------------------------------- */

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

static void put_numbers(cf_arrays_taker *taker, const Py_ssize_t *numbers, int count)
{
	for (int i = 0; i < count; i++)
		taker->numbers[i] = numbers[i];
	taker->numbers += count;
	taker->numbers_left -= (uint64_t)count;
}

static bool take_places(cf_arrays_taker *taker, const cf_numpy_array *array, ckptfmt_source *source)
{
	bool dense = (array->flags & CF_NUMPY_DENSE) != 0;
	if ((uint64_t)array->rank * (dense ? 1 : 2) > taker->numbers_left)
		return false;
	source->data = array->data;
	source->rank = array->rank;
	source->dims = taker->numbers;
	put_numbers(taker, array->dims, array->rank);
	if (!dense) {
		source->strides = taker->numbers;
		put_numbers(taker, array->strides, array->rank);
	}
	return true;
}

/* Of an array that exists: only of an empty one it may overflow on the way to 0. */
static uint64_t bytes_of(const cf_numpy_array *array, uint64_t element_size)
{
	uint64_t bytes = element_size;
	for (int d = 0; d < array->rank; d++)
		bytes *= (uint64_t)array->dims[d];
	return bytes;
}

static bool describe(cf_arrays_taker *taker, PyObject *name, PyObject *object, last_dtype *last, ckptfmt_source *source,
	int64_t *size)
{
	const cf_numpy_array *array = cf_numpy_array_of(object);
	memset(source, 0, sizeof *source);
	if (array == NULL || !name_size(name, &source->name_size) ||
		!find_code(array->dtype, object_of(taker->codes), last) || !take_places(taker, array, source))
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
	PyGILState_Release(state);
	return done;
}
