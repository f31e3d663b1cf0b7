/* SPDX-License-Identifier: Apache-2.0 */
#include "read/data_files.h"

#include "base/memory.h"
#include "proto/names.h"

#include <errno.h>
#include <string.h>

static ckptfmt_status open_shard(const cf_shards *shards, int32_t shard, cf_file *file, uint64_t *size,
	ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file_info info;
	memset(&info, 0, sizeof info);
	cf_data_name(shards->base, shard, shards->count, name);
	CF_TRY(cf_os_open(shards->directory, name, shards->follow_symlinks, file, &info, err));
	*size = info.size;
	return CKPTFMT_OK;
}

bool cf_shards_ran_out(const ckptfmt_error *err)
{
	return err->failure == CKPTFMT_FAIL_OS && (err->os_errno == EMFILE || err->os_errno == ENFILE);
}

static void empty_slot(cf_shard_slot *slot)
{
	if (slot->file.fd >= 0)
		cf_os_close_quietly(&slot->file);
	memset(slot, 0, sizeof *slot);
	slot->file.fd = -1;
	slot->shard = -1;
}

/* Changes from keeping all files open to a cache of recent files: half of those that could be opened stay open, because
 * the rest of the process needs descriptors as well. `opened` slots were tried. */
static void begin_sharing(cf_shards *shards, uint32_t opened)
{
	uint32_t kept = 0, found = 0;
	for (uint32_t i = 0; i < opened; i++)
		found += shards->slots[i].file.fd >= 0;
	shards->all_open = false;
	shards->slot_count = found < 2 ? 1 : found / 2;
	for (uint32_t i = 0; i < opened; i++) {
		cf_shard_slot slot = shards->slots[i];
		if (slot.file.fd >= 0 && kept < shards->slot_count) {
			slot.confirmed = true;
			shards->slots[kept++] = slot;
		} else if (slot.file.fd >= 0) {
			cf_os_close_quietly(&slot.file);
		}
	}
	for (uint32_t i = kept; i < shards->slot_count; i++) {
		shards->slots[i].file.fd = -1;
		empty_slot(&shards->slots[i]);
	}
}

static ckptfmt_status open_all(cf_shards *shards, ckptfmt_error *err)
{
	for (uint32_t i = 0; i < shards->slot_count; i++) {
		cf_shard_slot *slot = &shards->slots[i];
		ckptfmt_error why;
		ckptfmt_status status = open_shard(shards, (int32_t)i, &slot->file, &slot->size, &why);
		slot->shard = (int32_t)i;
		if (status == CKPTFMT_OK)
			continue;
		slot->file.fd = -1;
		if (status == CKPTFMT_NO_MEMORY) {
			if (err != NULL)
				*err = why;
			return status;
		}
		if (cf_shards_ran_out(&why)) {
			begin_sharing(shards, i);
			return CKPTFMT_OK;
		}
		/* NAM-5: the other data files can still be read. */
		slot->failed = true;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_shards_open(cf_shards *out, const cf_directory *directory, const char *base, int32_t count,
	uint32_t open_max, bool follow_symlinks, ckptfmt_error *err)
{
	ckptfmt_status status = CKPTFMT_OK;
	memset(out, 0, sizeof *out);
	out->directory = directory;
	out->base = base;
	out->count = count;
	out->follow_symlinks = follow_symlinks;
	open_max = open_max == 0 ? 1 : open_max;
	out->all_open = (uint32_t)count <= open_max && !cf_os_has_latency(directory);
	out->slots = cf_allocate_zero(out->all_open ? (uint32_t)count : open_max, sizeof *out->slots);
	if (out->slots == NULL || pthread_mutex_init(&out->lock, NULL) != 0) {
		cf_release(out->slots);
		memset(out, 0, sizeof *out);
		return cf_fail_memory(err);
	}
	out->slot_count = out->all_open ? (uint32_t)count : open_max;
	for (uint32_t i = 0; i < out->slot_count; i++) {
		out->slots[i].file.fd = -1;
		out->slots[i].shard = -1;
	}
	if (out->all_open)
		status = open_all(out, err);
	if (status != CKPTFMT_OK)
		cf_shards_close(out);
	return status;
}

void cf_shards_close(cf_shards *shards)
{
	if (shards->slots == NULL)
		return;
	for (uint32_t i = 0; i < shards->slot_count; i++)
		if (shards->slots[i].file.fd >= 0)
			cf_os_close_quietly(&shards->slots[i].file);
	(void)pthread_mutex_destroy(&shards->lock);
	cf_release(shards->slots);
	memset(shards, 0, sizeof *shards);
}

/* REQUIRES: the lock. */
static bool close_idle(cf_shards *shards)
{
	cf_shard_slot *oldest = NULL;
	for (uint32_t i = 0; i < shards->slot_count; i++) {
		cf_shard_slot *slot = &shards->slots[i];
		if (slot->file.fd >= 0 && slot->users == 0 && (oldest == NULL || slot->last_use < oldest->last_use))
			oldest = slot;
	}
	if (oldest != NULL)
		empty_slot(oldest);
	return oldest != NULL;
}

bool cf_shards_close_idle(cf_shards *shards)
{
	bool spared;
	if (shards->slots == NULL || shards->all_open)
		return false;
	(void)pthread_mutex_lock(&shards->lock);
	spared = close_idle(shards);
	(void)pthread_mutex_unlock(&shards->lock);
	return spared;
}

/* Closes idle files if descriptors have run out. REQUIRES: the lock. */
static ckptfmt_status open_with_room(cf_shards *shards, int32_t shard, cf_file *file, uint64_t *size,
	ckptfmt_error *err)
{
	ckptfmt_error why;
	ckptfmt_status status;
	do
		status = open_shard(shards, shard, file, size, &why);
	while (status != CKPTFMT_OK && cf_shards_ran_out(&why) && close_idle(shards));
	if (status != CKPTFMT_OK && err != NULL)
		*err = why;
	return status;
}

/* The slot that holds the shard, or one that may be emptied for it, or NULL while all are in use. */
static cf_shard_slot *find_slot(cf_shards *shards, int32_t shard)
{
	cf_shard_slot *oldest = NULL;
	for (uint32_t i = 0; i < shards->slot_count; i++) {
		cf_shard_slot *slot = &shards->slots[i];
		if (slot->shard == shard && !slot->dropped)
			return slot;
		if (slot->users == 0 && (oldest == NULL || slot->last_use < oldest->last_use))
			oldest = slot;
	}
	return oldest;
}

static ckptfmt_status use_slot(cf_shards *shards, int32_t shard, cf_shard_slot *slot, cf_shard_use *out, bool *fresh,
	ckptfmt_error *err)
{
	if (slot->shard != shard) {
		empty_slot(slot);
		CF_TRY(open_with_room(shards, shard, &slot->file, &slot->size, err));
		if (slot->file.fd < 0)
			return CKPTFMT_OK;
		slot->shard = shard;
	}
	*fresh = !slot->confirmed;
	slot->users++;
	slot->last_use = ++shards->clock;
	out->file = slot->file;
	out->size = slot->size;
	out->slot = slot;
	return CKPTFMT_OK;
}

/* Of all_open: takes no lock. */
static ckptfmt_status use_fixed(cf_shards *shards, int32_t shard, cf_shard_use *out, bool *fresh, ckptfmt_error *err)
{
	cf_shard_slot *slot = &shards->slots[shard];
	if (slot->failed) {
		*fresh = true;
		return open_shard(shards, shard, &out->file, &out->size, err);
	}
	out->slot = slot;
	out->file = slot->file;
	out->size = slot->size;
	return CKPTFMT_OK;
}

static ckptfmt_status use_shared(cf_shards *shards, int32_t shard, cf_shard_use *out, bool *fresh, ckptfmt_error *err)
{
	cf_shard_slot *slot;
	ckptfmt_status status;
	(void)pthread_mutex_lock(&shards->lock);
	slot = find_slot(shards, shard);
	if (slot != NULL) {
		status = use_slot(shards, shard, slot, out, fresh, err);
	} else {
		*fresh = true;
		status = open_with_room(shards, shard, &out->file, &out->size, err);
	}
	(void)pthread_mutex_unlock(&shards->lock);
	return status;
}

ckptfmt_status cf_shards_use(cf_shards *shards, int32_t shard, cf_shard_use *out, bool *found, bool *fresh,
	ckptfmt_error *err)
{
	ckptfmt_status status;
	*fresh = false;
	memset(out, 0, sizeof *out);
	out->file.fd = -1;
	if (shards->all_open)
		status = use_fixed(shards, shard, out, fresh, err);
	else
		status = use_shared(shards, shard, out, fresh, err);
	*found = status == CKPTFMT_OK && out->file.fd >= 0;
	return status;
}

static void leave(cf_shards *shards, cf_shard_use *use, bool drop)
{
	cf_shard_slot *slot = use->slot;
	if (slot == NULL) {
		if (use->file.fd >= 0)
			cf_os_close_quietly(&use->file);
	} else if (!shards->all_open) {
		(void)pthread_mutex_lock(&shards->lock);
		slot->dropped = slot->dropped || drop;
		if (--slot->users == 0 && slot->dropped)
			empty_slot(slot);
		(void)pthread_mutex_unlock(&shards->lock);
	}
	use->file.fd = -1;
	use->slot = NULL;
}

void cf_shards_done(cf_shards *shards, cf_shard_use *use)
{
	leave(shards, use, false);
}

void cf_shards_confirm(cf_shards *shards, const cf_shard_use *use)
{
	if (use->slot == NULL || shards->all_open)
		return;
	(void)pthread_mutex_lock(&shards->lock);
	use->slot->confirmed = true;
	(void)pthread_mutex_unlock(&shards->lock);
}

void cf_shards_drop(cf_shards *shards, cf_shard_use *use)
{
	leave(shards, use, true);
}
