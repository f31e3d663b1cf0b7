/* SPDX-License-Identifier: Apache-2.0 */
#include <Python.h>

#include "python/dlpack.h"

enum {
	MAJOR_VERSION = 1,
	READ_ONLY = 1,          /* flags of a versioned tensor */
	IS_COPIED = 2
};

/* The structures of dlpack.h, whose layout is the protocol. */
typedef struct dl_tensor {
	void *data;
	int32_t device_type;
	int32_t device_id;
	int32_t ndim;
	uint8_t code;
	uint8_t bits;
	uint16_t lanes;
	int64_t *shape;
	int64_t *strides;
	uint64_t byte_offset;
} dl_tensor;

typedef struct dl_versioned {
	uint32_t major;
	uint32_t minor;
	void *manager_ctx;
	void (*deleter)(struct dl_versioned *);
	uint64_t flags;
	dl_tensor tensor;
} dl_versioned;

static void describe(const dl_tensor *tensor, uint64_t flags, cf_dlpack *out)
{
	out->data = (uint64_t)(uintptr_t)tensor->data + tensor->byte_offset;
	out->shape = tensor->shape;
	out->strides = tensor->strides;
	out->rank = tensor->ndim;
	out->device = tensor->device_type;
	out->type_code = tensor->code;
	out->bits = tensor->bits;
	out->lanes = tensor->lanes;
	out->read_only = (flags & READ_ONLY) != 0;
	out->copied = (flags & IS_COPIED) != 0;
}

int32_t cf_dlpack_describe(uint64_t capsule, cf_dlpack *out)
{
	PyGILState_STATE state = PyGILState_Ensure();
	PyObject *object = (PyObject *)(uintptr_t)capsule;
	int32_t found = 0;
	if (PyCapsule_IsValid(object, "dltensor_versioned")) {
		const dl_versioned *versioned = PyCapsule_GetPointer(object, "dltensor_versioned");
		found = versioned->major == MAJOR_VERSION;
		if (found)
			describe(&versioned->tensor, versioned->flags, out);
	} else if (PyCapsule_IsValid(object, "dltensor")) {
		/* The unversioned struct begins with the tensor. */
		found = 1;
		describe(PyCapsule_GetPointer(object, "dltensor"), READ_ONLY, out);
	}
	PyGILState_Release(state);
	return found;
}
