/* SPDX-License-Identifier: Apache-2.0 */
/* Structs of options begin with their size, so that older and newer callers work with this library. */
#ifndef CKPTFMT_BASE_LIMITS_H
#define CKPTFMT_BASE_LIMITS_H

#include "base/error.h"

/* Copies the struct at `from`, whose first field is its size, to the `known` bytes at `to`. Fields that the
 * caller's version lacks become zero; the size becomes `known`. A NULL `from` gives zeros. INVALID: a size of 0, or
 * nonzero bytes beyond `known`. `name` is the struct's name for the message. */
CF_MUST_CHECK ckptfmt_status cf_struct_take(void *to, size_t known, const void *from, const char *name,
	ckptfmt_error *err);

/* Bytes of a key that readers accept by default; no writer makes longer ones (TAB-13). */
enum { CF_KEY_BYTES_MAX = 16 << 20 };

void cf_limits_default(ckptfmt_limits *limits);
/* The caller's limits, or the defaults: for all if `from` is NULL, else for the fields that are 0. INVALID as above. */
CF_MUST_CHECK ckptfmt_status cf_limits_take(ckptfmt_limits *to, const ckptfmt_limits *from, ckptfmt_error *err);

#endif
