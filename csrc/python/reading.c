/* SPDX-License-Identifier: Apache-2.0 */
#include <Python.h>

#include "python/reading.h"

#include "bundle/reader.h"
#include "python/arrays.h"

#include <string.h>

/* Names made for one taking of the interpreter's lock: few enough that others get their turn. */
enum { NAMES_PIECE = 1 << 14 };

static PyObject *object_of(uint64_t id)
{
	return (PyObject *)(uintptr_t)id;
}

/* ---- names ----------------------------------------------------------------------------------------------- */

static bool append_names(const cf_name_walk *walk, PyObject *list)
{
	const uint64_t *ends = (const uint64_t *)(const void *)walk->ends.data;
	uint64_t begin = 0;
	for (uint64_t i = 0; i < walk->ends.size / sizeof *ends; i++) {
		PyObject *name = PyUnicode_DecodeUTF8((const char *)walk->names.data + begin,
			(Py_ssize_t)(ends[i] - begin), "surrogateescape");
		int failed = name == NULL ? -1 : PyList_Append(list, name);
		Py_XDECREF(name);
		if (failed)
			return false;
		begin = ends[i];
	}
	return true;
}

ckptfmt_status cf_reading_names(ckptfmt_reader *reader, uint64_t list, int32_t *partitioned, ckptfmt_error *err)
{
	cf_name_walk walk;
	ckptfmt_status status;
	cf_name_walk_open(&walk, reader);
	do {
		status = cf_name_walk_next(&walk, NAMES_PIECE, err);
		if (status == CKPTFMT_OK && walk.ends.size != 0 && !walk.partitioned) {
			PyGILState_STATE state = PyGILState_Ensure();
			if (!append_names(&walk, object_of(list))) {
				PyErr_Clear();
				status = cf_fail_memory(err);
			}
			PyGILState_Release(state);
		}
	} while (status == CKPTFMT_OK && walk.ends.size != 0 && !walk.partitioned);
	*partitioned = walk.partitioned;
	cf_name_walk_close(&walk);
	return status;
}

/* ---- one tensor ------------------------------------------------------------------------------------------ */

static int64_t this_process;

void cf_reading_process(int64_t process)
{
	this_process = process;
}

static ckptfmt_reader *reader_of(PyObject *live)
{
	PyObject *address = PyTuple_GetItem(live, 1), *process = PyTuple_GetItem(live, 2);
	if (address == NULL || process == NULL || PyLong_AsLongLong(process) != this_process)
		return NULL;
	return PyLong_AsVoidPtr(address);
}

/* The bytes of a name, which live as long as the object; NULL where there are none. */
static const char *name_bytes(PyObject *name, Py_ssize_t *size)
{
	char *bytes;
	if (PyUnicode_Check(name))
		return PyUnicode_AsUTF8AndSize(name, size);
	return PyBytes_Check(name) && PyBytes_AsStringAndSize(name, &bytes, size) == 0 ? bytes : NULL;
}

static PyObject *none(void)
{
	PyErr_Clear();
	Py_RETURN_NONE;
}

static PyObject *find_tensor(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
	ckptfmt_reader *reader = count == 2 ? reader_of(arguments[0]) : NULL;
	ckptfmt_found found;
	Py_ssize_t size = 0;
	bool plain;
	const char *name = reader == NULL ? NULL : name_bytes(arguments[1], &size);
	(void)self;
	if (name == NULL)
		return none();
	Py_BEGIN_ALLOW_THREADS
	plain = cf_reader_find_plain(reader, (const uint8_t *)name, (uint64_t)size, &found);
	Py_END_ALLOW_THREADS
	return !plain ? none() : PyBytes_FromStringAndSize((const char *)&found, sizeof found);
}

static PyObject *shape_of(const ckptfmt_found *found)
{
	PyObject *shape = PyTuple_New(found->row.rank);
	for (int32_t d = 0; shape != NULL && d < found->row.rank; d++) {
		PyObject *size = PyLong_FromLongLong(found->dims[d]);
		if (size == NULL || PyTuple_SetItem(shape, d, size) != 0) {
			Py_DECREF(shape);
			return NULL;
		}
	}
	return shape;
}

static PyObject *new_array(const ckptfmt_found *found, PyObject *empty, PyObject *dtypes)
{
	PyObject *code = PyLong_FromLong(found->row.dtype), *shape = shape_of(found), *array = NULL;
	PyObject *dtype = code == NULL ? NULL : PyDict_GetItemWithError(dtypes, code);
	if (dtype != NULL && shape != NULL)
		array = PyObject_CallFunctionObjArgs(empty, shape, dtype, NULL);
	Py_XDECREF(code);
	Py_XDECREF(shape);
	return array;
}

static bool read_into(ckptfmt_reader *reader, const ckptfmt_found *found, PyObject *array, int32_t verify)
{
	Py_buffer view;
	ckptfmt_status status;
	if (PyObject_GetBuffer(array, &view, PyBUF_WRITABLE) != 0)
		return false;
	Py_BEGIN_ALLOW_THREADS
	status = ckptfmt_reader_read_found(reader, found, NULL, view.buf, (uint64_t)view.len, verify, NULL);
	Py_END_ALLOW_THREADS
	PyBuffer_Release(&view);
	return status == CKPTFMT_OK;
}

static PyObject *read_tensor(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
	ckptfmt_reader *reader = count == 5 ? reader_of(arguments[0]) : NULL;
	ckptfmt_found found;
	PyObject *array;
	char *bytes;
	Py_ssize_t size;
	(void)self;
	if (reader == NULL || PyBytes_AsStringAndSize(arguments[1], &bytes, &size) != 0 || size != sizeof found)
		return none();
	memcpy(&found, bytes, sizeof found);
	if (found.row.stored.size >= CF_ARRAYS_LARGE)
		return none();
	array = new_array(&found, arguments[3], arguments[4]);
	if (array == NULL || !read_into(reader, &found, array, (int32_t)PyLong_AsLong(arguments[2]))) {
		Py_XDECREF(array);
		return none();
	}
	return array;
}

void cf_reading_functions(uint64_t list)
{
	static PyMethodDef functions[] = {
		{"find", (PyCFunction)(void (*)(void))find_tensor, METH_FASTCALL, NULL},
		{"read", (PyCFunction)(void (*)(void))read_tensor, METH_FASTCALL, NULL},
	};
	PyGILState_STATE state = PyGILState_Ensure();
	for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
		PyObject *function = PyCFunction_NewEx(&functions[i], NULL, NULL);
		if (function == NULL || PyList_Append(object_of(list), function) != 0)
			PyErr_Clear();
		Py_XDECREF(function);
	}
	PyGILState_Release(state);
}
