/* SPDX-License-Identifier: Apache-2.0 */
#include <Python.h>

#include "python/reading.h"

#include "read/reader.h"
#include "python/arrays.h"
#include "python/numpy_array.h"

#include <string.h>

/* Names made for one taking of the interpreter's lock: few enough that others get their turn. */
enum { NAMES_PIECE = 1 << 14 };
/* Bytes of a tensor that is read before it has an array, and of one that the caller allocates. */
enum { SMALL_MAX = 4096, LARGE = 4 << 20 };

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

/* Where the bytes of the tensor go in an array that was made for it; NULL if it is not that. */
static uint8_t *room_in(PyObject *object, const ckptfmt_found *found, PyObject *dtype)
{
	const cf_numpy_array *array = cf_numpy_array_of(object);
	const int wanted = CF_NUMPY_DENSE | CF_NUMPY_WRITEABLE;
	if (array == NULL || (array->flags & wanted) != wanted || array->dtype != dtype ||
		array->rank != found->row.rank)
		return NULL;
	for (int d = 0; d < array->rank; d++)
		if (array->dims[d] != found->dims[d])
			return NULL;
	return array->data;
}

/* Fills it with the bytes if they are read already, and else reads them. */
static bool fill(ckptfmt_reader *reader, const ckptfmt_found *found, const uint8_t *bytes, uint8_t *room,
	int32_t verify)
{
	bool filled = true;
	if (bytes != NULL) {
		memcpy(room, bytes, found->row.stored.size);
		return true;
	}
	Py_BEGIN_ALLOW_THREADS
	filled = ckptfmt_reader_read_found(reader, found, NULL, room, found->row.stored.size, verify, NULL) == CKPTFMT_OK;
	Py_END_ALLOW_THREADS
	return filled;
}

/* What the last array was made of, which the next one mostly is as well. The interpreter's lock is held over it. */
typedef struct array_kind {
	PyObject *dtypes, *dtype, *shape;       /* shape NULL: there was none */
	int32_t code, rank;
	int64_t dims[sizeof((ckptfmt_found *)NULL)->dims / sizeof(int64_t)];
} array_kind;

static array_kind last;

static bool is_last(const ckptfmt_found *found, PyObject *dtypes)
{
	return last.shape != NULL && last.dtypes == dtypes && last.code == found->row.dtype &&
		last.rank == found->row.rank && memcmp(last.dims, found->dims, sizeof last.dims) == 0;
}

/* Makes `last` that of this tensor. */
static bool know_kind(const ckptfmt_found *found, PyObject *dtypes)
{
	PyObject *code = PyLong_FromLong(found->row.dtype);
	PyObject *dtype = code == NULL ? NULL : PyDict_GetItemWithError(dtypes, code);
	PyObject *shape = dtype == NULL ? NULL : shape_of(found);
	array_kind before = last;
	Py_XDECREF(code);
	if (shape == NULL)
		return false;
	Py_INCREF(dtypes);
	Py_INCREF(dtype);
	last = (array_kind){dtypes, dtype, shape, found->row.dtype, found->row.rank, {0}};
	memcpy(last.dims, found->dims, sizeof last.dims);
	Py_XDECREF(before.dtypes);
	Py_XDECREF(before.dtype);
	Py_XDECREF(before.shape);
	return true;
}

static PyObject *new_array(const ckptfmt_found *found, PyObject *empty, PyObject *dtypes, uint8_t **room)
{
	PyObject *array, *dtype, *shape;
	if (!is_last(found, dtypes) && !know_kind(found, dtypes))
		return NULL;
	/* Another thread may have its turn in there. */
	dtype = last.dtype;
	shape = last.shape;
	Py_INCREF(dtype);
	Py_INCREF(shape);
	array = PyObject_CallFunctionObjArgs(empty, shape, dtype, NULL);
	*room = array == NULL ? NULL : room_in(array, found, dtype);
	Py_DECREF(dtype);
	Py_DECREF(shape);
	return array;
}

static PyObject *array_of(ckptfmt_reader *reader, const ckptfmt_found *found, const uint8_t *bytes, int32_t verify,
	PyObject *empty, PyObject *dtypes)
{
	uint8_t *room = NULL;
	PyObject *array = new_array(found, empty, dtypes, &room);
	if (room == NULL || !fill(reader, found, bytes, room, verify)) {
		Py_XDECREF(array);
		return none();
	}
	return array;
}

/* Reads a tensor that is found, and finds one that is named before, without the interpreter's lock. What is small is
 * read right here, so that the lock is taken off once for all of it. */
static PyObject *read_tensor(ckptfmt_reader *reader, const char *name, Py_ssize_t name_size, ckptfmt_found *found,
	PyObject *const *rest)
{
	uint8_t small[SMALL_MAX];
	int32_t verify = (int32_t)PyLong_AsLong(rest[0]);
	bool there = true, read = false;
	if (verify < 0)
		return none();
	Py_BEGIN_ALLOW_THREADS
	if (name != NULL)
		there = cf_reader_find_plain(reader, (const uint8_t *)name, (uint64_t)name_size, found);
	if (there && found->row.stored.size <= sizeof small)
		read = there = ckptfmt_reader_read_found(reader, found, NULL, small, found->row.stored.size, verify,
				       NULL) == CKPTFMT_OK;
	Py_END_ALLOW_THREADS
	if (!there || found->row.stored.size >= LARGE)
		return none();
	return array_of(reader, found, read ? small : NULL, verify, rest[1], rest[2]);
}

static PyObject *read_found(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
	ckptfmt_reader *reader = count == 5 ? reader_of(arguments[0]) : NULL;
	ckptfmt_found found;
	char *bytes;
	Py_ssize_t size;
	(void)self;
	if (reader == NULL || PyBytes_AsStringAndSize(arguments[1], &bytes, &size) != 0 || size != sizeof found)
		return none();
	memcpy(&found, bytes, sizeof found);
	if (found.row.rank < 0 || (size_t)found.row.rank > sizeof found.dims / sizeof *found.dims)
		return none();
	return read_tensor(reader, NULL, 0, &found, arguments + 2);
}

static PyObject *read_named(PyObject *self, PyObject *const *arguments, Py_ssize_t count)
{
	ckptfmt_reader *reader = count == 5 ? reader_of(arguments[0]) : NULL;
	ckptfmt_found found;
	Py_ssize_t size = 0;
	const char *name = reader == NULL ? NULL : name_bytes(arguments[1], &size);
	(void)self;
	return name == NULL ? none() : read_tensor(reader, name, size, &found, arguments + 2);
}

void cf_reading_functions(uint64_t list)
{
	static PyMethodDef functions[] = {
		{"find", (PyCFunction)(void (*)(void))find_tensor, METH_FASTCALL, NULL},
		{"read", (PyCFunction)(void (*)(void))read_found, METH_FASTCALL, NULL},
		{"read_named", (PyCFunction)(void (*)(void))read_named, METH_FASTCALL, NULL},
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
