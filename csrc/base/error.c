/* SPDX-License-Identifier: Apache-2.0 */
#include "base/error.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct {
	const char *name;
	ckptfmt_status status;
} failures[] = {
	[CKPTFMT_FAIL_NONE] = {"NONE", CKPTFMT_OK},
	[CKPTFMT_FAIL_ARGUMENT] = {"ARGUMENT", CKPTFMT_INVALID},
	[CKPTFMT_FAIL_BAD_PATH] = {"BAD_PATH", CKPTFMT_INVALID},
	[CKPTFMT_FAIL_OS] = {"OS", CKPTFMT_IO},
	[CKPTFMT_FAIL_BAD_MAGIC] = {"BAD_MAGIC", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_TRUNCATED] = {"TRUNCATED", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_CHECKSUM] = {"CHECKSUM", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_BAD_BLOCK] = {"BAD_BLOCK", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_BAD_ORDER] = {"BAD_ORDER", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_BAD_PROTO] = {"BAD_PROTO", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_BAD_HEADER] = {"BAD_HEADER", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_BAD_DTYPE] = {"BAD_DTYPE", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_BAD_SHAPE] = {"BAD_SHAPE", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_BAD_SLICE] = {"BAD_SLICE", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_BAD_ENTRY] = {"BAD_ENTRY", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_SHARD_MISSING] = {"SHARD_MISSING", CKPTFMT_IO},
	[CKPTFMT_FAIL_GENERATION_GONE] = {"GENERATION_GONE", CKPTFMT_IO},
	[CKPTFMT_FAIL_DURABILITY_UNKNOWN] = {"DURABILITY_UNKNOWN", CKPTFMT_IO},
	[CKPTFMT_FAIL_UNSUPPORTED] = {"UNSUPPORTED", CKPTFMT_UNSUPPORTED},
	[CKPTFMT_FAIL_TENSOR_NOT_FOUND] = {"TENSOR_NOT_FOUND", CKPTFMT_NOT_FOUND},
	[CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND] = {"CHECKPOINT_NOT_FOUND", CKPTFMT_NOT_FOUND},
	[CKPTFMT_FAIL_LIMIT] = {"LIMIT", CKPTFMT_LIMIT},
	[CKPTFMT_FAIL_NO_MEMORY] = {"NO_MEMORY", CKPTFMT_NO_MEMORY},
	[CKPTFMT_FAIL_MERGE_CONFLICT] = {"MERGE_CONFLICT", CKPTFMT_CONFLICT},
	[CKPTFMT_FAIL_BUSY] = {"BUSY", CKPTFMT_BUSY},
	[CKPTFMT_FAIL_BAD_CHUNK] = {"BAD_CHUNK", CKPTFMT_CORRUPT},
	[CKPTFMT_FAIL_CANCELLED] = {"CANCELLED", CKPTFMT_CANCELLED},
	[CKPTFMT_FAIL_NOT_REMOVED] = {"NOT_REMOVED", CKPTFMT_IO},
};

static const char *const statuses[] = {
	"OK", "INVALID", "IO", "CORRUPT", "UNSUPPORTED", "NOT_FOUND", "LIMIT", "NO_MEMORY", "CONFLICT", "BUSY",
	"CANCELLED",
};

const char *ckptfmt_status_name(int32_t status)
{
	return status >= 0 && (size_t)status < CF_ARRAY_COUNT(statuses) ? statuses[status] : "unknown";
}

const char *ckptfmt_failure_name(int32_t failure)
{
	return failure >= 0 && (size_t)failure < CF_ARRAY_COUNT(failures) ? failures[failure].name : "unknown";
}

static void begin(ckptfmt_error *err, ckptfmt_failure failure, uint64_t offset)
{
	err->status = (int32_t)failures[failure].status;
	err->failure = (int32_t)failure;
	err->os_errno = 0;
	err->tensor_size = 0;
	err->offset = cf_plain_offset(offset);
	err->message[0] = '\0';
	err->tensor[0] = '\0';
	err->path[0] = '\0';
}

/* Messages go to terminals and logs: replace control characters. */
static void clean(char *text)
{
	for (; *text != '\0'; text++)
		if ((unsigned char)*text < 0x20 || *text == 0x7f)
			*text = '?';
}

ckptfmt_status cf_fail(ckptfmt_error *err, ckptfmt_failure failure, uint64_t offset, const char *format, ...)
{
	if (err != NULL) {
		va_list values;
		begin(err, failure, offset);
		va_start(values, format);
		(void)vsnprintf(err->message, sizeof err->message, format, values);
		va_end(values);
		clean(err->message);
	}
	return failures[failure].status;
}

ckptfmt_status cf_fail_from(ckptfmt_status status, const ckptfmt_error *from, ckptfmt_error *err)
{
	if (status == CKPTFMT_OK)
		return CKPTFMT_OK;
	if (from->failure <= 0 || (size_t)from->failure >= CF_ARRAY_COUNT(failures) ||
		failures[from->failure].status != status) {
		ckptfmt_failure failure = status == CKPTFMT_NO_MEMORY ? CKPTFMT_FAIL_NO_MEMORY :
			status == CKPTFMT_BUSY ? CKPTFMT_FAIL_BUSY : CKPTFMT_FAIL_OS;
		char text[sizeof from->message];
		memcpy(text, from->message, sizeof text);
		text[sizeof text - 1] = '\0';
		return cf_fail(err, failure, CF_NO_OFFSET, "a function of the storage failed with status %d%s%.300s",
			(int)status, text[0] == '\0' ? "" : ": ", text);
	}
	if (err == NULL)
		return status;
	*err = *from;
	err->status = (int32_t)status;
	err->message[sizeof err->message - 1] = err->path[sizeof err->path - 1] = '\0';
	clean(err->message);
	if (err->tensor_size >= sizeof err->tensor)
		err->tensor_size = sizeof err->tensor - 1;
	err->tensor[err->tensor_size] = '\0';
	return status;
}

/* strerror_r returns the text in glibc, but an error number in POSIX and musl, even with _GNU_SOURCE. */
static const char *text_of_number(int result, const char *filled)
{
	return result == 0 ? filled : "unknown error";
}

static const char *text_of_text(const char *result, const char *filled)
{
	(void)filled;
	return result;
}

static const char *error_text(int os_errno, char *to, size_t size)
{
	to[0] = '\0';
	return _Generic(strerror_r(os_errno, to, size), int: text_of_number, char *: text_of_text)(
		strerror_r(os_errno, to, size), to);
}

ckptfmt_status cf_fail_os(ckptfmt_error *err, int os_errno, const char *path, const char *format, ...)
{
	ckptfmt_failure failure = os_errno == ENOMEM ? CKPTFMT_FAIL_NO_MEMORY : CKPTFMT_FAIL_OS;
	if (err != NULL) {
		va_list values;
		char reason[96];
		size_t used;
		begin(err, failure, CF_NO_OFFSET);
		err->os_errno = os_errno;
		va_start(values, format);
		(void)vsnprintf(err->message, sizeof err->message - sizeof reason - 3, format, values);
		va_end(values);
		used = strlen(err->message);
		(void)snprintf(err->message + used, sizeof err->message - used, ": %s",
			error_text(os_errno, reason, sizeof reason));
		clean(err->message);
		cf_error_path(err, path);
	}
	return failures[failure].status;
}

ckptfmt_status ckptfmt_error_set(ckptfmt_error *err, ckptfmt_failure failure, int32_t os_errno, const char *path,
	const char *message)
{
	bool known = failure > CKPTFMT_FAIL_NONE && (size_t)failure < CF_ARRAY_COUNT(failures);
	ckptfmt_status status;
	if (os_errno == ENOMEM)
		failure = CKPTFMT_FAIL_NO_MEMORY;
	status = cf_fail(err, known ? failure : CKPTFMT_FAIL_OS, CF_NO_OFFSET, "%s", message);
	if (err != NULL)
		err->os_errno = os_errno;
	cf_error_path(err, path);
	return status;
}

ckptfmt_status cf_fail_memory(ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_NO_MEMORY, CF_NO_OFFSET, "out of memory");
}

void cf_error_path(ckptfmt_error *err, const char *path)
{
	size_t size;
	if (err == NULL || path == NULL || err->path[0] != '\0')
		return;
	size = strlen(path);
	/* Keep the end of a long path: it identifies the file. */
	if (size >= sizeof err->path)
		path += size - (sizeof err->path - 1);
	(void)snprintf(err->path, sizeof err->path, "%s", path);
}

void cf_error_tensor(ckptfmt_error *err, const uint8_t *name, uint64_t name_size)
{
	/* A cancelled call is about no single tensor, whichever was being moved. */
	if (err == NULL || err->tensor_size != 0 || name_size == 0 || err->failure == CKPTFMT_FAIL_CANCELLED)
		return;
	err->tensor_size = (uint32_t)cf_min_u64(name_size, sizeof err->tensor - 1);
	memcpy(err->tensor, name, err->tensor_size);
	err->tensor[err->tensor_size] = '\0';
}

void cf_error_offset(ckptfmt_error *err, uint64_t offset)
{
	if (err != NULL && err->offset == CF_NO_OFFSET)
		err->offset = cf_plain_offset(offset);
}
