/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule_storage.h"

#include "schedule.h"
#include "storage/os.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool schedule_has_latency = true;

/* ---- the locks of a reader ---- */

#define pthread_mutex_lock schedule_mutex_lock
#define pthread_mutex_unlock schedule_mutex_unlock
#define cf_os_has_latency(directory) ((void)(directory), schedule_has_latency)
#include "../../csrc/read/data_files.c"
#undef pthread_mutex_lock
#undef pthread_mutex_unlock
#undef cf_os_has_latency

/* ---- the storage ---- */

static const ckptfmt_storage *enter(void *state)
{
	schedule_point();
	return ((schedule_storage *)state)->inner;
}

/* A checkpoint is changed by what happens under final names. */
static void changed(schedule_storage *storage, const char *path)
{
	int paused = schedule_pause();
	if (storage->changed != NULL && strstr(path, ".tempstate") == NULL)
		storage->changed();
	schedule_resume(paused);
}

static ckptfmt_status info(void *state, const char *path, ckptfmt_object_info *out, int32_t *exists, ckptfmt_error *err)
{
	const ckptfmt_storage *inner = enter(state);
	return inner->info(inner->state, path, out, exists, err);
}

static ckptfmt_status list(void *state, const char *directory, void (*each)(void *to, const char *name), void *to,
	ckptfmt_error *err)
{
	const ckptfmt_storage *inner = enter(state);
	return inner->list(inner->state, directory, each, to, err);
}

static ckptfmt_status open_object(void *state, const char *path, void **object, ckptfmt_object_info *out,
	ckptfmt_error *err)
{
	const ckptfmt_storage *inner = enter(state);
	ckptfmt_status status = inner->open(inner->state, path, object, out, err);
	((schedule_storage *)state)->open_objects += *object != NULL;
	return status;
}

static ckptfmt_status read_batch(void *state, ckptfmt_object_read *reads, uint64_t count, ckptfmt_error *err)
{
	const ckptfmt_storage *inner = enter(state);
	return inner->read_batch(inner->state, reads, count, err);
}

static ckptfmt_status create(void *state, const char *path, void **object, int32_t *exists, ckptfmt_error *err)
{
	const ckptfmt_storage *inner = enter(state);
	ckptfmt_status status = inner->create(inner->state, path, object, exists, err);
	((schedule_storage *)state)->open_objects += *object != NULL;
	return status;
}

static ckptfmt_status append(void *state, void *object, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	const ckptfmt_storage *inner = enter(state);
	return inner->append(inner->state, object, bytes, size, err);
}

static ckptfmt_status finish(void *state, void *object, ckptfmt_error *err)
{
	const ckptfmt_storage *inner = enter(state);
	return inner->finish(inner->state, object, err);
}

static ckptfmt_status object_info(void *state, void *object, ckptfmt_object_info *out, ckptfmt_error *err)
{
	const ckptfmt_storage *inner = enter(state);
	return inner->object_info(inner->state, object, out, err);
}

static void close_object(void *state, void *object)
{
	const ckptfmt_storage *inner = enter(state);
	((schedule_storage *)state)->open_objects--;
	inner->close(inner->state, object);
}

static ckptfmt_status adopt(void *state, const char *from, const char *to, int32_t *result, ckptfmt_error *err)
{
	const ckptfmt_storage *inner = enter(state);
	ckptfmt_status status = inner->adopt(inner->state, from, to, result, err);
	changed(state, to);
	return status;
}

/* What a commit does that forgets what readers need. */
static void remove_data_files(schedule_storage *storage)
{
	const ckptfmt_storage *inner = storage->inner;
	int paused = schedule_pause();
	int32_t count = 0;
	(void)ckptfmt_index_count(inner, storage->index, &count, NULL);
	schedule_resume(paused);
	for (int32_t i = 0; i < count; i++) {
		char path[256];
		snprintf(path, sizeof path, "%.*s.data-%05d-of-%05d", (int)(strlen(storage->index) - strlen(".index")),
			storage->index, (int)i, (int)count);
		(void)!inner->remove(inner->state, path, NULL);
	}
	changed(storage, storage->index);
	schedule_point();
}

static ckptfmt_status publish(void *state, const char *from, const char *to, int32_t replaces, int32_t *exists,
	ckptfmt_error *err)
{
	schedule_storage *storage = state;
	const ckptfmt_storage *inner = enter(state);
	bool commits = strcmp(to, storage->index) == 0;
	ckptfmt_status status;
	if (commits && storage->plant == SCHEDULE_PLANT_REMOVES_FIRST)
		remove_data_files(storage);
	if (commits && storage->plant == SCHEDULE_PLANT_TWO_STEPS) {
		(void)!inner->remove(inner->state, to, NULL);
		schedule_point();
	}
	if (storage->plant == SCHEDULE_PLANT_TAKES_NAMES)
		replaces = 1;
	status = inner->publish(inner->state, from, to, replaces, exists, err);
	if (commits && status == CKPTFMT_OK)
		storage->committed_by = schedule_self();
	changed(state, to);
	return status;
}

static ckptfmt_status remove_path(void *state, const char *path, ckptfmt_error *err)
{
	const ckptfmt_storage *inner = enter(state);
	ckptfmt_status status = inner->remove(inner->state, path, err);
	changed(state, path);
	return status;
}

static ckptfmt_status lock(void *state, const char *directory, uint64_t timeout_ms, ckptfmt_error *err)
{
	schedule_storage *storage = state;
	(void)enter(state);
	(void)timeout_ms;
	while (storage->locked && storage->plant != SCHEDULE_PLANT_NO_LOCK)
		if (!schedule_wait(storage))
			return ckptfmt_error_set(err, CKPTFMT_FAIL_BUSY, 0, directory, "deadlock");
	storage->locked = true;
	return CKPTFMT_OK;
}

static void unlock(void *state, const char *directory)
{
	schedule_storage *storage = state;
	(void)enter(state);
	(void)directory;
	if (storage->plant == SCHEDULE_PLANT_NEVER_UNLOCKS)
		return;
	storage->locked = false;
	schedule_wake(storage);
}

void schedule_storage_open(schedule_storage *storage, const char *index)
{
	memset(storage, 0, sizeof *storage);
	storage->functions = (ckptfmt_storage){
		.struct_size = sizeof(ckptfmt_storage), .state = storage, .info = info, .list = list, .open = open_object,
		.read_batch = read_batch, .create = create, .append = append, .finish = finish,
		.object_info = object_info, .close = close_object, .adopt = adopt, .publish = publish,
		.remove = remove_path, .lock = lock, .unlock = unlock,
	};
	storage->index = index;
	storage->committed_by = -1;
	if (ckptfmt_memory_storage_new(&storage->inner, NULL) != CKPTFMT_OK)
		abort();
}

void schedule_storage_close(schedule_storage *storage)
{
	ckptfmt_memory_storage_free(storage->inner);
}
