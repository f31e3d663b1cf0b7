/* SPDX-License-Identifier: Apache-2.0 */
/* For the Python binding alone: what a DLPack capsule describes. */
#ifndef CKPTFMT_PYTHON_DLPACK_H
#define CKPTFMT_PYTHON_DLPACK_H

#include "ckptfmt_unstable.h"

/* cffi: begin */

/* A tensor of a DLPack capsule. The memory and the two arrays belong to the capsule. */
typedef struct cf_dlpack {
	uint64_t data;          /* address of the first element */
	const int64_t *shape;
	const int64_t *strides; /* in elements; NULL: row-major */
	int32_t rank;
	int32_t device;         /* DLDeviceType; 1: CPU */
	uint8_t type_code;      /* DLDataTypeCode */
	uint8_t bits;           /* of an element */
	uint16_t lanes;
	int32_t read_only;      /* nothing may write: the capsule says so, or has no version and so cannot say */
	int32_t copied;         /* the memory is a copy of the exporter's */
} cf_dlpack;

/*
 * Describes the tensor of a capsule, the number that id() gives of it, without consuming it: the memory stays valid as
 * long as the capsule. 0 if the object is not an unused capsule of DLPack 0 or 1, else 1.
 */
int32_t cf_dlpack_describe(uint64_t capsule, cf_dlpack *out);

/* cffi: end */

#endif
