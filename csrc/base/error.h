/* SPDX-License-Identifier: Apache-2.0 */
/* The error record and its one exit door: every failure of the library is made by cf_fail or cf_fail_os. */
#ifndef CKPTFMT_BASE_ERROR_H
#define CKPTFMT_BASE_ERROR_H

#include "base/arith.h"
#include "ckptfmt_unstable.h"

/* With this bit an offset, below 2^62, stands for all the bytes behind it: they were decompressed, and lie nowhere
 * themselves. Errors and findings tell it without. */
#define CF_ONE_OFFSET ((uint64_t)1 << 63)
#define CF_NO_OFFSET UINT64_MAX

static inline uint64_t cf_plain_offset(uint64_t offset)
{
	return offset >> 62 == 2 ? offset & ~CF_ONE_OFFSET : offset;
}

/* Fills *err (if not NULL) and returns the status that belongs to `failure`. `offset` is a file offset, perhaps with
 * CF_ONE_OFFSET, or CF_NO_OFFSET. The message starts with the rule of spec/format.md for a broken file ("BLK-4: ...");
 * text from a file never goes into it by %s: names go into `tensor`. */
CF_MUST_CHECK ckptfmt_status cf_fail(ckptfmt_error *err, ckptfmt_failure failure, uint64_t offset,
	const char *format, ...) CF_PRINTF(4, 5);

/* The same for a failed call of the operating system; appends the text of `os_errno`. ENOMEM gives NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_fail_os(ckptfmt_error *err, int os_errno, const char *path, const char *format, ...)
	CF_PRINTF(4, 5);

CF_MUST_CHECK ckptfmt_status cf_fail_memory(ckptfmt_error *err);

/* Say where a failure already recorded happened, on its way out. Each keeps what an inner caller said first. */
void cf_error_path(ckptfmt_error *err, const char *path);
void cf_error_tensor(ckptfmt_error *err, const uint8_t *name, uint64_t name_size);
void cf_error_offset(ckptfmt_error *err, uint64_t offset);

/* Returns the failure of `call` to the caller. Only while the function owns nothing. */
#define CF_TRY(call)                               \
	do {                                       \
		ckptfmt_status cf_try_ = (call);   \
		if (cf_try_ != CKPTFMT_OK)         \
			return cf_try_;            \
	} while (0)

#endif
