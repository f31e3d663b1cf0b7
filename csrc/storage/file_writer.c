/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes [0, written) of the file are written and [written, written + staged) are in the staging buffer. `written` is a
 * multiple of the page size except after cf_file_writer_flush; the next buffer is then shorter, so that later writes
 * begin at page boundaries again.
 *
 * Large files that will be synced use direct I/O where that works: bytes [0, written) are then written or being written
 * from slots of memory, and the staging buffer is another slot. That ends with a flush, which writes the last partial
 * block through the page cache.
 */
#include "storage/file_writer.h"

#include "base/memory.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

enum {
	NAME_TRIES = 16,
	ALIGNMENT = 4096,                 /* of staging memory and of writes: the page size of most systems */
	SYNC_AHEAD_SIZE = 8 << 20
};

CF_STATIC_ASSERT(CF_FILE_WRITER_STAGING_SIZE % ALIGNMENT == 0, "whole pages");
CF_STATIC_ASSERT((int)ALIGNMENT == (int)CF_DIRECT_ALIGNMENT, "one kind of block");
CF_STATIC_ASSERT((int)CF_DIRECT_SLOT_SIZE >= (int)CF_FILE_WRITER_STAGING_SIZE, "what is staged fits a slot");
CF_STATIC_ASSERT(CF_FILE_WRITER_STAGING_SIZE >= CF_FILE_WRITER_ROOM_MIN + 2 * ALIGNMENT, "a spill makes room");

static bool temporary_name(cf_file_writer *writer, const char *final_name, uint64_t random)
{
	/* The first digit is a letter: TensorFlow's names are decimal. */
	int size = snprintf(writer->name, sizeof writer->name, "%s.tempstate%016llx", final_name,
		(unsigned long long)(random | 0xaULL << 60));
	return size > 0 && (size_t)size < sizeof writer->name;
}

/* Sets the name and path of the writer to a random temporary name. */
static ckptfmt_status choose_name(cf_file_writer *writer, const cf_directory *directory, const char *final_name,
	ckptfmt_error *err)
{
	uint64_t random;
	CF_TRY(cf_os_random(&random, sizeof random, err));
	if (!temporary_name(writer, final_name, random)) {
		cf_os_path(directory, final_name, writer->path, sizeof writer->path);
		return cf_fail_os(err, ENAMETOOLONG, writer->path, "cannot make a temporary file beside it");
	}
	cf_os_path(directory, writer->name, writer->path, sizeof writer->path);
	return CKPTFMT_OK;
}

ckptfmt_status cf_file_writer_open(cf_file_writer *writer, const cf_directory *directory, const char *final_name,
	ckptfmt_error *err)
{
	memset(writer, 0, sizeof *writer);
	writer->file.fd = -1;
	for (int i = 0; i < NAME_TRIES; i++) {
		bool exists;
		CF_TRY(choose_name(writer, directory, final_name, err));
		CF_TRY(cf_os_create(directory, writer->name, &writer->file, &exists, err));
		if (!exists) {
			writer->directory = directory;
			writer->state = CF_FILE_WRITER_WRITING;
			return CKPTFMT_OK;
		}
	}
	return cf_fail_os(err, EEXIST, writer->path, "cannot find a free temporary name");
}

/* Checks by the new name which file was linked: the old name may lead to another file by now. Takes the lock as for a
 * file that the writer created. */
static ckptfmt_status hold_adopted(cf_file_writer *writer, const cf_directory *directory, const cf_file_info *wanted,
	bool *same, ckptfmt_error *err)
{
	cf_file_info info;
	*same = false;
	CF_TRY(cf_os_open(directory, writer->name, true, &writer->file, &info, err));
	*same = writer->file.fd >= 0 && info.device == wanted->device && info.inode == wanted->inode &&
		info.size == wanted->size && cf_os_hold(directory, writer->name, &writer->file);
	return CKPTFMT_OK;
}

ckptfmt_status cf_file_writer_adopt(cf_file_writer *writer, const cf_directory *directory, const char *final_name,
	const cf_directory *from, const char *from_name, const cf_file_info *info, bool *adopted, ckptfmt_error *err)
{
	cf_link_result result = CF_LINK_EXISTS;
	ckptfmt_status status;
	memset(writer, 0, sizeof *writer);
	writer->file.fd = -1;
	*adopted = false;
	for (int i = 0; i < NAME_TRIES && result == CF_LINK_EXISTS; i++) {
		CF_TRY(choose_name(writer, directory, final_name, err));
		CF_TRY(cf_os_link(from, from_name, directory, writer->name, &result, err));
	}
	if (result != CF_LINK_DONE)
		return CKPTFMT_OK;
	status = hold_adopted(writer, directory, info, adopted, err);
	if (!*adopted) {
		cf_os_close_quietly(&writer->file);
		(void)!cf_os_unlink(directory, writer->name, NULL);
		return status;
	}
	writer->directory = directory;
	writer->adopted = true;
	writer->info = *info;
	writer->written = info->size;
	writer->state = CF_FILE_WRITER_FINISHED;
	return CKPTFMT_OK;
}

static void release_staging(cf_file_writer *writer)
{
	cf_release(writer->memory);
	writer->memory = NULL;
	writer->staging = NULL;
	writer->staged = 0;
}

/* Moves the staged bytes to the first slot. */
static void begin_direct(cf_file_writer *writer)
{
	uint64_t staged = writer->staged;
	uint8_t *slot;
	writer->direct = cf_os_direct_write(&writer->file);
	if (writer->direct == NULL)
		return;
	slot = cf_os_direct_memory(writer->direct, 0);
	if (staged != 0)
		memcpy(slot, writer->staging, (size_t)staged);
	release_staging(writer);
	writer->slot = 0;
	writer->staging = slot;
	writer->staged = staged;
}

void cf_file_writer_reserve(cf_file_writer *writer, uint64_t size)
{
	/* A file of a single write needs no reservation. */
	if (writer->state != CF_FILE_WRITER_WRITING || size <= writer->reserved || size <= CF_FILE_WRITER_STAGING_SIZE)
		return;
	cf_os_reserve(&writer->file, size);
	writer->reserved = size;
	if (writer->direct == NULL && writer->sync_ahead && writer->written % ALIGNMENT == 0 &&
		size >= writer->written + CF_FILE_WRITER_DIRECT_MIN)
		begin_direct(writer);
	/* A write that extends the file blocks all others. A wrong hint must not cut off what was written. */
	if (writer->direct != NULL && size > writer->written)
		cf_os_trim(&writer->file, size);
}

void cf_file_writer_sync_ahead(cf_file_writer *writer)
{
	writer->sync_ahead = true;
}

uint64_t cf_file_writer_position(const cf_file_writer *writer)
{
	return writer->written + writer->staged;
}

/* ---- staging ---- */

/* Returns `status`; a failure ends the writer. */
static ckptfmt_status settle(cf_file_writer *writer, ckptfmt_status status, const ckptfmt_error *err)
{
	if (status != CKPTFMT_OK) {
		writer->state = CF_FILE_WRITER_FAILED;
		writer->os_errno = EIO;
		if (status == CKPTFMT_NO_MEMORY)
			writer->os_errno = ENOMEM;
		else if (err != NULL && err->os_errno != 0)
			writer->os_errno = err->os_errno;
	}
	return status;
}

static ckptfmt_status check_writing(const cf_file_writer *writer, ckptfmt_error *err)
{
	assert(writer->state == CF_FILE_WRITER_WRITING || writer->state == CF_FILE_WRITER_FAILED);
	if (writer->state == CF_FILE_WRITER_FAILED)
		return cf_fail_os(err, writer->os_errno, writer->path, "writing the file failed before");
	return CKPTFMT_OK;
}

/* Bytes that staging takes before it must be written. */
static uint64_t staging_limit(const cf_file_writer *writer)
{
	if (writer->direct != NULL)
		return CF_DIRECT_SLOT_SIZE;
	return CF_FILE_WRITER_STAGING_SIZE - writer->written % ALIGNMENT;
}

static ckptfmt_status allocate_staging(cf_file_writer *writer, ckptfmt_error *err)
{
	if (writer->staging != NULL)
		return CKPTFMT_OK;
	writer->memory = cf_allocate(CF_FILE_WRITER_STAGING_SIZE + ALIGNMENT);
	if (writer->memory == NULL)
		return settle(writer, cf_fail_memory(err), err);
	writer->staging = writer->memory + (ALIGNMENT - (uintptr_t)writer->memory % ALIGNMENT);
	return CKPTFMT_OK;
}

static ckptfmt_status write_out(cf_file_writer *writer, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	ckptfmt_status status = cf_os_write_at(&writer->file, writer->path, bytes, size, writer->written, err);
	CF_TRY(settle(writer, status, err));
	writer->written += size;
	CF_TRY(settle(writer, cf_progress_add(writer->progress, size, err), err));
	if (writer->sync_ahead && writer->written - writer->synced_ahead >= SYNC_AHEAD_SIZE) {
		cf_os_sync_ahead(&writer->file, writer->synced_ahead, writer->written - writer->synced_ahead);
		writer->synced_ahead = writer->written;
	}
	return CKPTFMT_OK;
}

/* Begins to write the first `size` staged bytes and moves the rest to the next slot. REQUIRES: whole blocks. */
static ckptfmt_status spill_direct(cf_file_writer *writer, uint64_t size, ckptfmt_error *err)
{
	const uint8_t *rest = writer->staging + size;
	unsigned next = (writer->slot + 1) % CF_DIRECT_SLOTS;
	uint64_t ignored;
	cf_os_direct_start(writer->direct, writer->slot, size, writer->written);
	writer->written += size;
	writer->staged -= size;
	writer->slot = next;
	writer->staging = cf_os_direct_memory(writer->direct, next);
	CF_TRY(settle(writer, cf_os_direct_wait(writer->direct, next, writer->path, &ignored, err), err));
	memcpy(writer->staging, rest, (size_t)writer->staged);
	return settle(writer, cf_progress_add(writer->progress, size, err), err);
}

/* Writes everything and goes back to buffered writes. */
static ckptfmt_status end_direct(cf_file_writer *writer, ckptfmt_error *err)
{
	uint8_t tail[ALIGNMENT];
	uint64_t tail_size = writer->staged % ALIGNMENT, ignored;
	if (writer->staged > tail_size)
		CF_TRY(spill_direct(writer, writer->staged - tail_size, err));
	for (unsigned i = 1; i < CF_DIRECT_SLOTS; i++)
		CF_TRY(settle(writer, cf_os_direct_wait(writer->direct, (writer->slot + i) % CF_DIRECT_SLOTS,
			writer->path, &ignored, err), err));
	memcpy(tail, writer->staging, (size_t)tail_size);
	cf_os_direct_end(writer->direct);
	writer->direct = NULL;
	release_staging(writer);
	writer->synced_ahead = writer->written;
	return tail_size == 0 ? CKPTFMT_OK : write_out(writer, tail, tail_size, err);
}

/* Writes the first `size` staged bytes and moves the rest to the front. */
static ckptfmt_status spill(cf_file_writer *writer, uint64_t size, ckptfmt_error *err)
{
	if (size == 0)
		return CKPTFMT_OK;
	assert(size <= writer->staged);
	if (writer->direct != NULL)
		return spill_direct(writer, size, err);
	CF_TRY(write_out(writer, writer->staging, size, err));
	writer->staged -= size;
	memmove(writer->staging, writer->staging + size, (size_t)writer->staged);
	return CKPTFMT_OK;
}

ckptfmt_status cf_file_writer_flush(cf_file_writer *writer, ckptfmt_error *err)
{
	CF_TRY(check_writing(writer, err));
	if (writer->direct != NULL)
		return end_direct(writer, err);
	return spill(writer, writer->staged, err);
}

/* Room for at least one byte: what is left of staging, or all of it. */
static ckptfmt_status make_room(cf_file_writer *writer, uint64_t *room, ckptfmt_error *err)
{
	CF_TRY(check_writing(writer, err));
	CF_TRY(allocate_staging(writer, err));
	if (writer->staged == staging_limit(writer))
		CF_TRY(spill(writer, writer->staged, err));
	*room = staging_limit(writer) - writer->staged;
	return CKPTFMT_OK;
}

/* Files have less than 2^63 bytes; a wrong size must not wrap the position. */
static ckptfmt_status check_size(cf_file_writer *writer, uint64_t size, ckptfmt_error *err)
{
	CF_TRY(check_writing(writer, err));
	if (!cf_range_fits(cf_file_writer_position(writer), size, (uint64_t)INT64_MAX))
		return settle(writer, cf_fail_os(err, EFBIG, writer->path, "cannot write more"), err);
	return CKPTFMT_OK;
}

/* ---- putting ---- */

ckptfmt_status cf_file_writer_put(cf_file_writer *writer, const void *bytes, uint64_t size, ckptfmt_error *err)
{
	const uint8_t *from = bytes;
	CF_TRY(check_size(writer, size, err));
	while (size > 0) {
		uint64_t part, room;
		if (writer->direct == NULL && writer->staged == 0 && size >= CF_FILE_WRITER_STAGING_SIZE) {
			part = size - (writer->written + size) % ALIGNMENT;
			CF_TRY(write_out(writer, from, part, err));
		} else {
			CF_TRY(make_room(writer, &room, err));
			part = cf_min_u64(size, room);
			memcpy(writer->staging + writer->staged, from, (size_t)part);
			writer->staged += part;
			/* So that the rest need not be staged. */
			if (part == room)
				CF_TRY(spill(writer, writer->staged, err));
		}
		from += part;
		size -= part;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_file_writer_put_crc(cf_file_writer *writer, const void *bytes, uint64_t size, uint32_t *crc,
	ckptfmt_error *err)
{
	const uint8_t *from = bytes;
	CF_TRY(check_size(writer, size, err));
	while (size > 0) {
		uint64_t part, room;
		CF_TRY(make_room(writer, &room, err));
		part = cf_min_u64(size, room);
		*crc = ckptfmt_crc32c_copy(*crc, writer->staging + writer->staged, from, part);
		writer->staged += part;
		from += part;
		size -= part;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_file_writer_zeros(cf_file_writer *writer, uint64_t size, ckptfmt_error *err)
{
	CF_TRY(check_size(writer, size, err));
	while (size > 0) {
		uint64_t part, room;
		CF_TRY(make_room(writer, &room, err));
		part = cf_min_u64(size, room);
		memset(writer->staging + writer->staged, 0, (size_t)part);
		writer->staged += part;
		size -= part;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_file_writer_room(cf_file_writer *writer, uint8_t **to, uint64_t *room, ckptfmt_error *err)
{
	*to = NULL;
	*room = 0;
	CF_TRY(check_writing(writer, err));
	CF_TRY(allocate_staging(writer, err));
	/* Whole pages of the file are written, so that the next write begins at one. */
	if (staging_limit(writer) - writer->staged < CF_FILE_WRITER_ROOM_MIN) {
		uint64_t rest = cf_file_writer_position(writer) % ALIGNMENT;
		CF_TRY(spill(writer, writer->staged - rest, err));
	}
	*to = writer->staging + writer->staged;
	*room = staging_limit(writer) - writer->staged;
	assert(*room >= CF_FILE_WRITER_ROOM_MIN);
	return CKPTFMT_OK;
}

void cf_file_writer_advance(cf_file_writer *writer, uint64_t size)
{
	assert(writer->state == CF_FILE_WRITER_WRITING);
	assert(size <= staging_limit(writer) - writer->staged);
	writer->staged += size;
}

/* ---- ending ---- */

static ckptfmt_status finish_file(cf_file_writer *writer, bool sync, ckptfmt_error *err)
{
	cf_file_info info;
	if (writer->reserved > writer->written)
		cf_os_trim(&writer->file, writer->written);
	if (sync)
		CF_TRY(cf_os_sync(&writer->file, writer->path, err));
	CF_TRY(cf_os_file_info(&writer->file, writer->path, &info, err));
	writer->info = info;
	if (info.size != writer->written)
		return cf_fail_os(err, EIO, writer->path, "the file has %llu bytes after %llu were written",
			(unsigned long long)info.size, (unsigned long long)writer->written);
	return cf_os_close_held(&writer->file, writer->path, err);
}

ckptfmt_status cf_file_writer_finish(cf_file_writer *writer, bool sync, ckptfmt_error *err)
{
	CF_TRY(cf_file_writer_flush(writer, err));
	CF_TRY(settle(writer, finish_file(writer, sync, err), err));
	writer->state = CF_FILE_WRITER_FINISHED;
	release_staging(writer);
	return CKPTFMT_OK;
}

typedef enum location { ELSEWHERE, THERE, UNKNOWN } location;

/* A network file system may rename the file and report a failure, so the file itself is looked at. */
static location look_at(const cf_file_writer *writer, const char *target)
{
	cf_file_info info;
	bool exists;
	if (cf_os_stat(writer->directory, target, &info, &exists, NULL) != CKPTFMT_OK)
		return UNKNOWN;
	return exists && info.device == writer->info.device && info.inode == writer->info.inode ? THERE : ELSEWHERE;
}

/* If `target` is the same file, another process may have linked it. So the temporary name is removed only if this call
 * made the link. */
static ckptfmt_status move_adopted(cf_file_writer *writer, const char *target, bool *exists, ckptfmt_error *err)
{
	cf_link_result result;
	assert(writer->state == CF_FILE_WRITER_FINISHED || writer->state == CF_FILE_WRITER_PUBLISHED);
	CF_TRY(cf_os_link(writer->directory, writer->name, writer->directory, target, &result, err));
	*exists = result == CF_LINK_EXISTS;
	if (*exists)
		return CKPTFMT_OK;
	if (result != CF_LINK_DONE)
		return cf_fail_os(err, result == CF_LINK_NO_SOURCE ? ENOENT : EMLINK, writer->path,
			"the file cannot be given another name");
	(void)!cf_os_unlink(writer->directory, writer->name, NULL);
	(void)snprintf(writer->name, sizeof writer->name, "%s", target);
	cf_os_path(writer->directory, writer->name, writer->path, sizeof writer->path);
	writer->state = CF_FILE_WRITER_PUBLISHED;
	return CKPTFMT_OK;
}

ckptfmt_status cf_file_writer_link_new(cf_file_writer *writer, const char *target, bool *exists, ckptfmt_error *err)
{
	ckptfmt_status status;
	*exists = false;
	if (writer->adopted)
		return move_adopted(writer, target, exists, err);
	assert(writer->state == CF_FILE_WRITER_FINISHED);
	status = cf_os_publish(writer->directory, writer->name, target, false, exists, err);
	if (status != CKPTFMT_OK || *exists) {
		if (look_at(writer, target) != THERE)
			return status;
		*exists = false;
		/* If it was done by a link, the first name may still exist. */
		(void)!cf_os_unlink(writer->directory, writer->name, NULL);
	}
	writer->state = CF_FILE_WRITER_PUBLISHED;
	return CKPTFMT_OK;
}

ckptfmt_status cf_file_writer_replace(cf_file_writer *writer, const char *target, bool *unknown, ckptfmt_error *err)
{
	ckptfmt_status status;
	bool exists;
	assert(writer->state == CF_FILE_WRITER_FINISHED);
	*unknown = false;
	status = cf_os_publish(writer->directory, writer->name, target, true, &exists, err);
	if (status != CKPTFMT_OK) {
		location where = look_at(writer, target);
		if (where == ELSEWHERE)
			return status;
		*unknown = where == UNKNOWN;
	}
	writer->state = CF_FILE_WRITER_PUBLISHED;
	return *unknown ? status : CKPTFMT_OK;
}

void cf_file_writer_unlock(cf_file_writer *writer)
{
	assert(writer->state == CF_FILE_WRITER_FINISHED || writer->state == CF_FILE_WRITER_PUBLISHED);
	cf_os_close_quietly(&writer->file);
}

void cf_file_writer_abandon(cf_file_writer *writer)
{
	int kept = errno;
	if (writer->state == CF_FILE_WRITER_CLOSED)
		return;
	/* First, because it may still be writing to the file. */
	cf_os_direct_end(writer->direct);
	writer->direct = NULL;
	cf_os_close_quietly(&writer->file);
	release_staging(writer);
	if (writer->state != CF_FILE_WRITER_PUBLISHED)
		(void)!cf_os_unlink(writer->directory, writer->name, NULL);
	writer->state = CF_FILE_WRITER_CLOSED;
	errno = kept;
}
