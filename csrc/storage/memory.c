/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A ckptfmt_storage in memory. Paths lead to contents, which are shared by all paths and open objects that have them
 * and freed with the last. Contents that are finished never change.
 */
#include "ckptfmt_unstable.h"

#include "base/buffer.h"
#include "base/memory.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

typedef struct contents {
	cf_buffer bytes;
	uint64_t identity;          /* no other contents of the storage have it */
	uint64_t users;             /* paths and open objects */
} contents;

typedef struct entry {
	char *path;
	contents *contents;
} entry;

typedef struct memory_storage {
	ckptfmt_storage functions;
	pthread_mutex_t lock;       /* of all that follows */
	cf_buffer entries;
	uint64_t last_identity;
} memory_storage;

/* ---- under the lock ---- */

static entry *entries_of(memory_storage *storage, uint64_t *count)
{
	*count = storage->entries.size / sizeof(entry);
	return (entry *)cf_buffer_items(&storage->entries);
}

static entry *find(memory_storage *storage, const char *path)
{
	uint64_t count;
	entry *entries = entries_of(storage, &count);
	for (uint64_t i = 0; i < count; i++)
		if (strcmp(entries[i].path, path) == 0)
			return &entries[i];
	return NULL;
}

static void leave(contents *left)
{
	if (--left->users > 0)
		return;
	cf_buffer_free(&left->bytes);
	cf_release(left);
}

static void drop(memory_storage *storage, entry *dropped)
{
	uint64_t count;
	entry *last = entries_of(storage, &count) + (count - 1);
	cf_release(dropped->path);
	leave(dropped->contents);
	*dropped = *last;
	storage->entries.size -= sizeof *last;
}

/* NULL: out of memory. */
static char *copy_path(const char *path)
{
	uint64_t size = strlen(path) + 1;
	char *copy = cf_allocate(size);
	if (copy != NULL)
		memcpy(copy, path, (size_t)size);
	return copy;
}

static ckptfmt_status add(memory_storage *storage, const char *path, contents *added, ckptfmt_error *err)
{
	entry new_entry = {copy_path(path), added};
	if (new_entry.path == NULL)
		return cf_fail_memory(err);
	cf_put_bytes(&storage->entries, &new_entry, sizeof new_entry);
	if (cf_buffer_status(&storage->entries, NULL) != CKPTFMT_OK) {
		cf_release(new_entry.path);
		return cf_fail_memory(err);
	}
	added->users++;
	return CKPTFMT_OK;
}

/* ---- the functions ---- */

static ckptfmt_object_info info_of(const contents *of)
{
	return (ckptfmt_object_info){of->bytes.size, of->identity};
}

static ckptfmt_status info(void *state, const char *path, ckptfmt_object_info *out, int32_t *exists, ckptfmt_error *err)
{
	memory_storage *storage = state;
	const entry *found;
	(void)err;
	(void)pthread_mutex_lock(&storage->lock);
	found = find(storage, path);
	*exists = found != NULL;
	if (found != NULL)
		*out = info_of(found->contents);
	(void)pthread_mutex_unlock(&storage->lock);
	return CKPTFMT_OK;
}

static ckptfmt_status list(void *state, const char *directory, void (*each)(void *to, const char *name), void *to,
	ckptfmt_error *err)
{
	memory_storage *storage = state;
	size_t size = strlen(directory);
	const entry *entries;
	uint64_t count;
	(void)err;
	(void)pthread_mutex_lock(&storage->lock);
	entries = entries_of(storage, &count);
	for (uint64_t i = 0; i < count; i++) {
		const char *name = entries[i].path + size + (size != 0);
		if (strncmp(entries[i].path, directory, size) == 0 && (size == 0 || entries[i].path[size] == '/') &&
			strchr(name, '/') == NULL)
			each(to, name);
	}
	(void)pthread_mutex_unlock(&storage->lock);
	return CKPTFMT_OK;
}

static ckptfmt_status open_object(void *state, const char *path, void **object, ckptfmt_object_info *out,
	ckptfmt_error *err)
{
	memory_storage *storage = state;
	const entry *found;
	(void)err;
	*object = NULL;
	(void)pthread_mutex_lock(&storage->lock);
	found = find(storage, path);
	if (found != NULL) {
		found->contents->users++;
		*object = found->contents;
		*out = info_of(found->contents);
	}
	(void)pthread_mutex_unlock(&storage->lock);
	return CKPTFMT_OK;
}

static ckptfmt_status read_batch(void *state, ckptfmt_object_read *reads, uint64_t count, ckptfmt_error *err)
{
	(void)state;
	(void)err;
	for (uint64_t i = 0; i < count; i++) {
		const cf_buffer *bytes = &((const contents *)reads[i].object)->bytes;
		uint64_t offset = cf_min_u64(reads[i].offset, bytes->size);
		reads[i].got = cf_min_u64(reads[i].size, bytes->size - offset);
		if (reads[i].got != 0)
			memcpy(reads[i].destination, bytes->data + offset, (size_t)reads[i].got);
	}
	return CKPTFMT_OK;
}

static ckptfmt_status create(void *state, const char *path, void **object, int32_t *exists, ckptfmt_error *err)
{
	memory_storage *storage = state;
	contents *made = cf_allocate_zero(1, sizeof *made);
	ckptfmt_status status = CKPTFMT_OK;
	*object = NULL;
	if (made == NULL)
		return cf_fail_memory(err);
	made->users = 1;
	(void)pthread_mutex_lock(&storage->lock);
	made->identity = ++storage->last_identity;
	*exists = find(storage, path) != NULL;
	if (!*exists)
		status = add(storage, path, made, err);
	if (*exists || status != CKPTFMT_OK)
		leave(made);
	else
		*object = made;
	(void)pthread_mutex_unlock(&storage->lock);
	return status;
}

static ckptfmt_status append(void *state, void *object, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	memory_storage *storage = state;
	contents *to = object;
	ckptfmt_status status;
	(void)pthread_mutex_lock(&storage->lock);
	cf_put_bytes(&to->bytes, bytes, size);
	status = cf_buffer_status(&to->bytes, err);
	(void)pthread_mutex_unlock(&storage->lock);
	return status;
}

static ckptfmt_status finish(void *state, void *object, ckptfmt_error *err)
{
	(void)state;
	(void)object;
	(void)err;
	return CKPTFMT_OK;
}

static ckptfmt_status object_info(void *state, void *object, ckptfmt_object_info *out, ckptfmt_error *err)
{
	memory_storage *storage = state;
	(void)err;
	(void)pthread_mutex_lock(&storage->lock);
	*out = info_of(object);
	(void)pthread_mutex_unlock(&storage->lock);
	return CKPTFMT_OK;
}

static void close_object(void *state, void *object)
{
	memory_storage *storage = state;
	(void)pthread_mutex_lock(&storage->lock);
	leave(object);
	(void)pthread_mutex_unlock(&storage->lock);
}

static ckptfmt_status adopt(void *state, const char *from, const char *to, int32_t *result, ckptfmt_error *err)
{
	memory_storage *storage = state;
	ckptfmt_status status = CKPTFMT_OK;
	const entry *source;
	(void)pthread_mutex_lock(&storage->lock);
	source = find(storage, from);
	*result = CKPTFMT_ADOPT_DONE;
	if (source == NULL)
		*result = CKPTFMT_ADOPT_NO_SOURCE;
	else if (find(storage, to) != NULL)
		*result = CKPTFMT_ADOPT_EXISTS;
	else
		status = add(storage, to, source->contents, err);
	(void)pthread_mutex_unlock(&storage->lock);
	return status;
}

/* REQUIRES: the lock. */
static ckptfmt_status give_path(memory_storage *storage, const char *from, const char *to, ckptfmt_error *err)
{
	entry *source = find(storage, from), *replaced = find(storage, to);
	char *path;
	if (source == NULL)
		return cf_fail_os(err, ENOENT, from, "cannot rename the object");
	if (source == replaced)
		return CKPTFMT_OK;
	path = copy_path(to);
	if (path == NULL)
		return cf_fail_memory(err);
	cf_release(source->path);
	source->path = path;
	if (replaced != NULL)
		drop(storage, replaced);
	return CKPTFMT_OK;
}

static ckptfmt_status publish(void *state, const char *from, const char *to, int32_t replaces, int32_t *exists,
	ckptfmt_error *err)
{
	memory_storage *storage = state;
	ckptfmt_status status = CKPTFMT_OK;
	(void)pthread_mutex_lock(&storage->lock);
	*exists = !replaces && find(storage, to) != NULL;
	if (!*exists)
		status = give_path(storage, from, to, err);
	(void)pthread_mutex_unlock(&storage->lock);
	return status;
}

static ckptfmt_status remove_path(void *state, const char *path, ckptfmt_error *err)
{
	memory_storage *storage = state;
	entry *found;
	(void)err;
	(void)pthread_mutex_lock(&storage->lock);
	found = find(storage, path);
	if (found != NULL)
		drop(storage, found);
	(void)pthread_mutex_unlock(&storage->lock);
	return CKPTFMT_OK;
}

/* ---- making and freeing ---- */

ckptfmt_status ckptfmt_memory_storage_new(ckptfmt_storage **out, ckptfmt_error *err)
{
	memory_storage *storage = cf_allocate_zero(1, sizeof *storage);
	*out = NULL;
	if (storage == NULL)
		return cf_fail_memory(err);
	if (pthread_mutex_init(&storage->lock, NULL) != 0) {
		cf_release(storage);
		return cf_fail_memory(err);
	}
	/* No lock of directories: a reader or writer of a checkpoint that another one replaces finds out by names. */
	storage->functions = (ckptfmt_storage){
		.struct_size = sizeof(ckptfmt_storage), .state = storage, .info = info, .list = list, .open = open_object,
		.read_batch = read_batch, .create = create, .append = append, .finish = finish,
		.object_info = object_info, .close = close_object, .adopt = adopt, .publish = publish,
		.remove = remove_path,
	};
	*out = &storage->functions;
	return CKPTFMT_OK;
}

void ckptfmt_memory_storage_free(ckptfmt_storage *functions)
{
	memory_storage *storage = functions == NULL ? NULL : functions->state;
	uint64_t count;
	if (storage == NULL)
		return;
	for (entry *entries = entries_of(storage, &count); count > 0; entries = entries_of(storage, &count))
		drop(storage, &entries[count - 1]);
	cf_buffer_free(&storage->entries);
	(void)pthread_mutex_destroy(&storage->lock);
	cf_release(storage);
}
