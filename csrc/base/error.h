/* SPDX-License-Identifier: Apache-2.0 */
/* The error record. Every failure of the library is created by cf_fail or cf_fail_os. */
#ifndef CKPTFMT_BASE_ERROR_H
#define CKPTFMT_BASE_ERROR_H

#include "base/arith.h"
#include "ckptfmt_unstable.h"

/* Set in the offset (below 2^62) of a decompressed block: all of its bytes are reported at that offset. Errors and
 * findings give it without this bit. */
#define CF_ONE_OFFSET ((uint64_t)1 << 63)
#define CF_NO_OFFSET UINT64_MAX

static inline uint64_t cf_plain_offset(uint64_t offset)
{
	return offset >> 62 == 2 ? offset & ~CF_ONE_OFFSET : offset;
}

/* Fills *err (if not NULL) and returns the status of `failure`. `offset` is a file offset, perhaps with
 * CF_ONE_OFFSET, or CF_NO_OFFSET. For a damaged file the message starts with the rule of spec/format.md ("BLK-4:
 * ..."). Text from a file never enters it by %s: names go into `tensor`. */
CF_MUST_CHECK ckptfmt_status cf_fail(ckptfmt_error *err, ckptfmt_failure failure, uint64_t offset,
	const char *format, ...) CF_PRINTF(4, 5);

/* The same for a failed system call; appends the text of `os_errno`. ENOMEM gives NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_fail_os(ckptfmt_error *err, int os_errno, const char *path, const char *format, ...)
	CF_PRINTF(4, 5);

CF_MUST_CHECK ckptfmt_status cf_fail_memory(ckptfmt_error *err);

/* For the answer of a caller's function that was given the record `from`, all zero: copies the record to *err and
 * returns `status`. A record that the function did not fill, or whose failure belongs to another status, is replaced by
 * one that says so; texts and sizes end within their fields. OK changes nothing. */
CF_MUST_CHECK ckptfmt_status cf_fail_from(ckptfmt_status status, const ckptfmt_error *from, ckptfmt_error *err);

/* Add context to a recorded failure. Each keeps the value that an inner caller has set. */
void cf_error_path(ckptfmt_error *err, const char *path);
void cf_error_tensor(ckptfmt_error *err, const uint8_t *name, uint64_t name_size);
void cf_error_offset(ckptfmt_error *err, uint64_t offset);

/* Returns the failure of `call`, if any. Only where the function owns nothing that must be released. */
#define CF_TRY(call)                               \
	do {                                       \
		ckptfmt_status cf_try_ = (call);   \
		if (cf_try_ != CKPTFMT_OK)         \
			return cf_try_;            \
	} while (0)

#endif
