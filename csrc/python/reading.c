/* SPDX-License-Identifier: Apache-2.0 */
#include "python/numpy.h"

#include "python/reading.h"

#include <stdbool.h>

enum {
	RANK_MAX = 32,      /* dimensions that every numpy supports */
	BYTES_MAX = 4 << 20
};

/* The bytes of a name, valid as long as the object; NULL without an exception if it has none. */
static const char *name_bytes(PyObject *name, Py_ssize_t *size)
{
	const char *text = NULL;
	char *bytes;
	if (PyUnicode_Check(name))
		text = PyUnicode_AsUTF8AndSize(name, size);
	else if (PyBytes_AsStringAndSize(name, &bytes, size) == 0)
		text = bytes;
	if (text == NULL)
		PyErr_Clear();
	return text;
}

/* Whether the tensor is small, stored whole and uncompressed, with the size that its dtype and shape need. One without
 * elements takes the general path: its sizes may be more than numpy allows. */
static bool is_small(const ckptfmt_row *row)
{
	const ckptfmt_dtype_info *info = ckptfmt_dtype_find(row->dtype);
	return info != NULL && info->storage == CKPTFMT_STORAGE_FIXED && row->slice_count == 0 &&
		row->stored.flags == 0 && row->rank <= RANK_MAX && row->stored.size < BYTES_MAX &&
		row->element_count > 0 && row->element_count <= BYTES_MAX &&
		(uint64_t)row->element_count * info->size == row->stored.size;
}

static PyObject *new_array(const ckptfmt_columns *columns, PyObject *empty, PyObject *dtypes)
{
	const ckptfmt_row *row = columns->rows;
	PyObject *array = NULL, *shape = PyTuple_New(row->rank), *code = PyLong_FromLong(row->dtype);
	PyObject *dtype = code == NULL ? NULL : PyObject_GetItem(dtypes, code);
	for (int32_t d = 0; shape != NULL && d < row->rank; d++) {
		PyObject *size = PyLong_FromLongLong(columns->dims[row->dims_first + (uint64_t)d]);
		if (size == NULL || PyTuple_SetItem(shape, d, size) != 0)
			Py_CLEAR(shape);
	}
	if (shape != NULL && dtype != NULL)
		array = PyObject_CallFunctionObjArgs(empty, shape, dtype, NULL);
	Py_XDECREF(shape);
	Py_XDECREF(code);
	Py_XDECREF(dtype);
	return array;
}

static PyObject *read_row(ckptfmt_reader *reader, const ckptfmt_selection *selection, long verify, PyObject *empty,
	PyObject *dtypes)
{
	ckptfmt_columns columns;
	ckptfmt_request request = {0};
	ckptfmt_error err;
	ckptfmt_status status;
	PyObject *array;
	ckptfmt_selection_columns(selection, &columns);
	if (!is_small(columns.rows))
		Py_RETURN_NONE;
	array = new_array(&columns, empty, dtypes);
	if (array == NULL)
		return NULL;
	request.destination = PyArray_DATA((PyArrayObject *)(void *)array);
	request.destination_size = columns.rows->stored.size;
	Py_BEGIN_ALLOW_THREADS
	status = ckptfmt_reader_read(reader, selection, &request, 1, (int32_t)verify, &err);
	Py_END_ALLOW_THREADS
	if (status == CKPTFMT_OK)
		return array;
	Py_DECREF(array);
	return PyBytes_FromStringAndSize((const char *)&err, sizeof err);
}

static PyObject *read_small(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	ckptfmt_error err;
	ckptfmt_status status;
	PyObject *found;
	const char *name;
	uint64_t size;
	Py_ssize_t length = 0;
	long verify;
	(void)self;
	if (count != 6)
		return PyErr_Format(PyExc_TypeError, "read_small() takes 6 arguments, got %zd", count);
	reader = PyLong_AsVoidPtr(arguments[1]);
	verify = PyLong_AsLong(arguments[3]);
	if (PyErr_Occurred() != NULL)
		return NULL;
	name = name_bytes(arguments[2], &length);
	if (name == NULL)
		Py_RETURN_NONE;
	size = (uint64_t)length;
	Py_BEGIN_ALLOW_THREADS
	status = ckptfmt_reader_select(reader, (const uint8_t *)name, &size, 1, &selection, &err);
	Py_END_ALLOW_THREADS
	if (status != CKPTFMT_OK)
		return PyBytes_FromStringAndSize((const char *)&err, sizeof err);
	found = read_row(reader, selection, verify, arguments[4], arguments[5]);
	ckptfmt_selection_free(selection);
	return found;
}

void cf_reading_functions(uint64_t list)
{
	static PyMethodDef method = {"read_small", (PyCFunction)(void (*)(void))read_small, METH_FASTCALL, NULL};
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *function = PyCFunction_NewEx(&method, NULL, NULL);
	if (function == NULL || PyList_Append((PyObject *)(uintptr_t)list, function) != 0)
		PyErr_Clear();
	Py_XDECREF(function);
	PyGILState_Release(state);
}

int32_t cf_text_list(const uint8_t *bytes, const uint64_t *offsets, uint64_t gap, uint64_t count, uint64_t list,
	uint64_t at)
{
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *texts = (PyObject *)(uintptr_t)list;
	uint64_t done = 0;
	for (; done < count; done++) {
		Py_ssize_t size = (Py_ssize_t)(offsets[done + 1] - gap - offsets[done]);
		PyObject *text = PyUnicode_DecodeUTF8((const char *)bytes + offsets[done], size, "surrogateescape");
		if (text == NULL || PyList_SetItem(texts, (Py_ssize_t)(at + done), text) != 0)
			break;
	}
	PyErr_Clear();
	PyGILState_Release(state);
	return done == count;
}
