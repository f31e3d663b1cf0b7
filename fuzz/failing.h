/* SPDX-License-Identifier: Apache-2.0 */
/* A storage whose calls fail on demand. */
#ifndef CKPTFMT_FUZZ_FAILING_H
#define CKPTFMT_FUZZ_FAILING_H

#include "ckptfmt.h"

typedef struct failing {
	ckptfmt_storage storage;        /* to give away; forwards to `inner` */
	const ckptfmt_storage *inner;
	uint64_t calls;                 /* so far */
	uint64_t first;                 /* the number of the call that fails, from 1; 0: none does */
	int32_t os_errno;               /* of its error */
	int32_t always;                 /* 1: so do all after it, as if the machine had stopped */
	uint64_t failed;                /* calls that did */
} failing;

/* At its place for good. */
void failing_init(failing *f, const ckptfmt_storage *inner);

#endif
