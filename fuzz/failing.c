/* SPDX-License-Identifier: Apache-2.0 */
#include "failing.h"

#include <string.h>

/* OK, or the failure of this call. */
static ckptfmt_status next_call(failing *f, const char *path, ckptfmt_error *err)
{
	f->calls++;
	if (f->first == 0 || f->calls < f->first || (f->calls > f->first && !f->always))
		return CKPTFMT_OK;
	f->failed++;
	return ckptfmt_error_set(err, CKPTFMT_FAIL_OS, f->os_errno, path, "a failure on demand");
}

#define CALL(path)                                                       \
	failing *f = state;                                              \
	const ckptfmt_storage *inner = f->inner;                         \
	ckptfmt_status status = next_call(f, path, err);                 \
	if (status != CKPTFMT_OK)                                        \
		return status

static ckptfmt_status info(void *state, const char *path, ckptfmt_object_info *out, int32_t *exists, ckptfmt_error *err)
{
	CALL(path);
	return inner->info(inner->state, path, out, exists, err);
}

static ckptfmt_status list(void *state, const char *directory, void (*each)(void *to, const char *name), void *to,
	ckptfmt_error *err)
{
	CALL(directory);
	return inner->list(inner->state, directory, each, to, err);
}

static ckptfmt_status open_object(void *state, const char *path, void **object, ckptfmt_object_info *out,
	ckptfmt_error *err)
{
	CALL(path);
	return inner->open(inner->state, path, object, out, err);
}

static ckptfmt_status read_batch(void *state, ckptfmt_object_read *reads, uint64_t count, ckptfmt_error *err)
{
	CALL("");
	return inner->read_batch(inner->state, reads, count, err);
}

static ckptfmt_status create(void *state, const char *path, void **object, int32_t *exists, ckptfmt_error *err)
{
	CALL(path);
	return inner->create(inner->state, path, object, exists, err);
}

static ckptfmt_status append(void *state, void *object, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	CALL("");
	return inner->append(inner->state, object, bytes, size, err);
}

static ckptfmt_status finish(void *state, void *object, ckptfmt_error *err)
{
	CALL("");
	return inner->finish(inner->state, object, err);
}

static ckptfmt_status object_info(void *state, void *object, ckptfmt_object_info *out, ckptfmt_error *err)
{
	CALL("");
	return inner->object_info(inner->state, object, out, err);
}

static ckptfmt_status adopt(void *state, const char *from, const char *to, int32_t *result, ckptfmt_error *err)
{
	CALL(from);
	return inner->adopt(inner->state, from, to, result, err);
}

static ckptfmt_status publish(void *state, const char *from, const char *to, int32_t replaces, int32_t *exists,
	ckptfmt_error *err)
{
	CALL(from);
	return inner->publish(inner->state, from, to, replaces, exists, err);
}

static ckptfmt_status remove_object(void *state, const char *path, ckptfmt_error *err)
{
	CALL(path);
	return inner->remove(inner->state, path, err);
}

static ckptfmt_status lock(void *state, const char *directory, uint64_t timeout_ms, ckptfmt_error *err)
{
	CALL(directory);
	return inner->lock == NULL ? CKPTFMT_OK : inner->lock(inner->state, directory, timeout_ms, err);
}

static void unlock(void *state, const char *directory)
{
	failing *f = state;
	if (f->inner->unlock != NULL)
		f->inner->unlock(f->inner->state, directory);
}

static void close_object(void *state, void *object)
{
	failing *f = state;
	f->inner->close(f->inner->state, object);
}

void failing_init(failing *f, const ckptfmt_storage *inner)
{
	memset(f, 0, sizeof *f);
	f->inner = inner;
	f->storage = (ckptfmt_storage){.struct_size = sizeof f->storage, .state = f, .info = info, .list = list,
		.open = open_object, .read_batch = read_batch, .create = create, .append = append, .finish = finish,
		.object_info = object_info, .close = close_object, .adopt = adopt, .publish = publish,
		.remove = remove_object, .lock = lock, .unlock = unlock};
}
