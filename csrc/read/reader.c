/* SPDX-License-Identifier: Apache-2.0 */
/* Opening: the index is read into private memory block by block, the data files are opened next to it. A checkpoint
 * that is replaced at that moment shows as a changed index; then opening begins again. */
#include "read/reader.h"
#include "read/index.h"

#include "compress/codec.h"

#include "base/limits.h"
#include "base/memory.h"
#include "table/footer.h"

#include <assert.h>
#include <string.h>

/* An attempt fails only if a whole save completes meanwhile, so 100 failures in a row are not a coincidence. */
enum { OPEN_TRIES = 100 };

static bool same_file(const cf_file_info *a, const cf_file_info *b)
{
	return a->inode == b->inode && a->device == b->device && a->size == b->size;
}

static bool same_time(const cf_file_info *a, const cf_file_info *b)
{
	return a->mtime_seconds == b->mtime_seconds && a->mtime_nanoseconds == b->mtime_nanoseconds;
}

/* Whether the index on disk, of the same inode, ends as the one that was read does. */
static ckptfmt_status same_content(ckptfmt_reader *reader, const char *name, bool *same, ckptfmt_error *err)
{
	ckptfmt_error why;
	cf_file_info info;
	cf_file file;
	ckptfmt_status status;
	*same = false;
	do
		status = cf_os_open(&reader->directory, name, reader->follow_symlinks, &file, &info, &why);
	while (status != CKPTFMT_OK && cf_shards_ran_out(&why) && cf_shards_close_idle(&reader->shards));
	if (status == CKPTFMT_OK && file.fd >= 0) {
		if (same_file(&info, &reader->index_info))
			status = cf_table_same_end(reader->table, &file, same, &why);
		cf_os_close_quietly(&file);
	}
	if (status != CKPTFMT_OK && err != NULL)
		*err = why;
	return status;
}

/* CMT-12. A commit writes a new index file, which cannot have the inode of a file that is open, as ours is, except on a
 * network file system. There the modification time is compared and, if it is equal, the content. */
ckptfmt_status cf_reader_is_current(ckptfmt_reader *reader, bool *current, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file_info info;
	bool exists;
	cf_index_name(reader->prefix.base, name);
	CF_TRY(cf_os_stat(&reader->directory, name, &info, &exists, err));
	*current = exists && same_file(&info, &reader->index_info);
	if (!*current || same_time(&info, &reader->index_info))
		return CKPTFMT_OK;
	*current = false;
	return reader->table == NULL || reader->given != NULL ? CKPTFMT_OK : same_content(reader, name, current, err);
}

/* NAM-9: whether the file named as the prefix itself is a table. Any failure here means that it is not. */
static bool is_v1(const ckptfmt_reader *reader)
{
	uint8_t bytes[CF_FOOTER_SIZE];
	cf_footer footer;
	cf_file file;
	cf_file_info info;
	uint64_t got = 0;
	size_t base_size = strlen(reader->prefix.base), tail_size = strlen(".index");
	/* The index of a V2 checkpoint is a table too. */
	if (base_size == 0 ||
		(base_size >= tail_size && strcmp(reader->prefix.base + base_size - tail_size, ".index") == 0))
		return false;
	if (cf_os_open(&reader->directory, reader->prefix.base, reader->follow_symlinks, &file, &info, NULL) !=
		CKPTFMT_OK || file.fd < 0)
		return false;
	if (info.size < sizeof bytes ||
		cf_os_read_at(&file, "", bytes, sizeof bytes, info.size - sizeof bytes, &got, NULL) != CKPTFMT_OK)
		got = 0;
	cf_os_close_quietly(&file);
	return got == sizeof bytes && cf_footer_decode(bytes, 0, &footer, NULL) == CKPTFMT_OK;
}

ckptfmt_status cf_reader_open_index(ckptfmt_reader *reader, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	ckptfmt_status status;
	cf_index_name(reader->prefix.base, name);
	CF_TRY(cf_os_open(&reader->directory, name, reader->follow_symlinks, &reader->index, &reader->index_info, err));
	if (reader->index.fd < 0) {
		if (is_v1(reader))
			status = cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET,
				"NAM-9: a checkpoint of TensorFlow's V1 format; only V2 checkpoints are read");
		else
			status = cf_fail(err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, CF_NO_OFFSET,
				"Failed to find any matching files for this prefix");
		cf_error_path(err, reader->prefix.index_path);
		return status;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_reader_open_table(ckptfmt_reader *reader, ckptfmt_error *err)
{
	if (reader->given != NULL)
		return cf_table_open_memory(reader->given->data, reader->prefix.index_path, reader->given->size,
			&reader->limits, &reader->table, err);
	return cf_index_open(&reader->index, reader->prefix.index_path, reader->index_info.size, &reader->limits,
		&reader->table, err);
}

/* HDR-1: the first entry of the table has the empty key and holds the header. */
static ckptfmt_status read_header(ckptfmt_reader *reader, ckptfmt_error *err)
{
	cf_table_value value;
	bool found;
	ckptfmt_status status = cf_table_get(reader->table, (const uint8_t *)"", 0, &value, &found, err);
	if (status == CKPTFMT_OK && !found)
		status = cf_fail(err, CKPTFMT_FAIL_BAD_HEADER, 0, "HDR-1: the table does not begin with a header");
	if (status == CKPTFMT_OK)
		status = cf_header_decode((cf_bytes_view){value.data, value.size}, value.offset, &reader->header, err);
	if (status != CKPTFMT_OK)
		cf_error_path(err, reader->prefix.index_path);
	return status;
}

void cf_reader_close_files(ckptfmt_reader *reader)
{
	cf_shards_close(&reader->shards);
	ckptfmt_selection_free(atomic_exchange(&reader->listing, NULL));
	cf_table_close(reader->table);
	reader->table = NULL;
	if (reader->index.fd >= 0)
		cf_os_close_quietly(&reader->index);
	reader->index.fd = -1;
}

/* One attempt; *again: the checkpoint was replaced meanwhile. */
static ckptfmt_status open_files(ckptfmt_reader *reader, bool *again, ckptfmt_error *err)
{
	bool current;
	*again = false;
	CF_TRY(cf_reader_open_index(reader, err));
	CF_TRY(cf_reader_open_table(reader, err));
	CF_TRY(read_header(reader, err));
	CF_TRY(cf_shards_open(&reader->shards, &reader->directory, reader->prefix.base, reader->header.num_shards,
		reader->limits.open_files_max, reader->follow_symlinks, err));
	/* CMT-12: the names of data files are used again, by the generation after the next. Files opened while the index is
	 * still the one that was read are that index's own, because a generation loses its names only after its index. */
	CF_TRY(cf_reader_is_current(reader, &current, err));
	*again = !current;
	return CKPTFMT_OK;
}

static ckptfmt_status open_current(ckptfmt_reader *reader, ckptfmt_error *err)
{
	ckptfmt_status status;
	for (int tries = 0; tries < OPEN_TRIES; tries++) {
		bool again;
		status = open_files(reader, &again, err);
		if (status != CKPTFMT_OK || !again)
			return status;
		cf_reader_close_files(reader);
	}
	status = cf_fail(err, CKPTFMT_FAIL_GENERATION_GONE, CF_NO_OFFSET,
		"the checkpoint was replaced %d times while it was being opened", OPEN_TRIES);
	cf_error_path(err, reader->prefix.index_path);
	return status;
}

static ckptfmt_status take_options(ckptfmt_reader *reader, const ckptfmt_open_options *from,
	const ckptfmt_storage **storage, ckptfmt_error *err)
{
	ckptfmt_open_options options;
	CF_TRY(cf_struct_take(&options, sizeof options, from, "ckptfmt_open_options", err));
	CF_TRY(cf_limits_take(&reader->limits, options.limits, err));
	reader->follow_symlinks = from == NULL || options.follow_symlinks != 0;
	reader->threads = options.threads;
	reader->progress = options.progress;
	if (options.index != NULL) {
		reader->own_given = *options.index;
		reader->given = &reader->own_given;
	}
	*storage = options.storage;
	if (options.codec != NULL) {
		CF_TRY(cf_codec_take(&reader->own_codec, options.codec, err));
		reader->codec = &reader->own_codec;
	} else if (ckptfmt_codec_zstd(1, &reader->own_codec, NULL) == CKPTFMT_OK) {
		reader->codec = &reader->own_codec;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_reader_new(const char *prefix, const ckptfmt_open_options *options, ckptfmt_reader **out,
	ckptfmt_error *err)
{
	static _Atomic uint64_t last_id;
	const ckptfmt_storage *storage = NULL;
	ckptfmt_reader *reader;
	ckptfmt_status status;
	*out = NULL;
	reader = cf_allocate_zero(1, sizeof *reader);
	if (reader == NULL)
		return cf_fail_memory(err);
	reader->id = atomic_fetch_add_explicit(&last_id, 1, memory_order_relaxed) + 1;
	reader->directory.fd = -1;
	reader->index.fd = -1;
	status = take_options(reader, options, &storage, err);
	if (status == CKPTFMT_OK)
		status = cf_prefix_split(prefix, &reader->prefix, err);
	if (status == CKPTFMT_OK)
		status = cf_storage_directory_open(storage, reader->prefix.directory, false, false, &reader->directory, err);
	if (status != CKPTFMT_OK) {
		ckptfmt_reader_close(reader);
		return status;
	}
	*out = reader;
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_reopen(const ckptfmt_reader *old, const char *prefix, ckptfmt_reader **out,
	ckptfmt_error *err)
{
	const ckptfmt_open_options options = {.struct_size = sizeof options, .limits = &old->limits,
		.progress = old->progress, .follow_symlinks = old->follow_symlinks, .threads = old->threads,
		.codec = old->codec, .index = old->given};
	ckptfmt_reader *reader;
	CF_TRY(ckptfmt_reader_open(prefix, &options, &reader, err));
	if (!same_file(&reader->index_info, &old->index_info) || !same_time(&reader->index_info, &old->index_info)) {
		ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_GENERATION_GONE, CF_NO_OFFSET,
			"the checkpoint was replaced after it was opened");
		cf_error_path(err, reader->prefix.index_path);
		ckptfmt_reader_close(reader);
		*out = NULL;
		return status;
	}
	reader->id = old->id;
	*out = reader;
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_open(const char *prefix, const ckptfmt_open_options *options, ckptfmt_reader **out,
	ckptfmt_error *err)
{
	ckptfmt_reader *reader;
	ckptfmt_status status;
	*out = NULL;
	CF_TRY(cf_reader_new(prefix, options, &reader, err));
	status = open_current(reader, err);
	if (status != CKPTFMT_OK) {
		ckptfmt_reader_close(reader);
		return status;
	}
	*out = reader;
	return CKPTFMT_OK;
}

void ckptfmt_reader_close(ckptfmt_reader *reader)
{
	if (reader == NULL)
		return;
	cf_reader_close_files(reader);
	cf_os_directory_close(&reader->directory);
	cf_prefix_free(&reader->prefix);
	cf_release(reader);
}

void ckptfmt_reader_header(const ckptfmt_reader *reader, ckptfmt_header *out)
{
	out->num_shards = reader->header.num_shards;
	out->big_endian = reader->header.endianness;
	out->producer = reader->header.producer;
	out->min_consumer = reader->header.min_consumer;
	out->index_size = cf_table_size(reader->table);
	out->block_count = cf_table_block_count(reader->table);
}

ckptfmt_status cf_reader_check_call(const ckptfmt_reader *reader, const ckptfmt_selection *selection, int32_t verify,
	ckptfmt_error *err)
{
	if (selection->reader_id != reader->id)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"the selection belongs to another reader");
	if (verify != CKPTFMT_VERIFY_AUTO && verify != CKPTFMT_VERIFY_FULL && verify != CKPTFMT_VERIFY_OFF)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "verify mode %d does not exist", (int)verify);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_regions(ckptfmt_reader *reader, ckptfmt_region *regions, uint64_t capacity,
	uint64_t *count, ckptfmt_error *err)
{
	*count = 0;
	return cf_table_regions(reader->table, regions, capacity, count, err);
}

/* NAM-3, NAM-4: a data file is named by the shard number of the entry and the count of the header. */
void cf_reader_data_path(const ckptfmt_reader *reader, int32_t shard, char *path, size_t size)
{
	char name[CF_NAME_SIZE];
	cf_data_name(reader->prefix.base, shard, reader->header.num_shards, name);
	cf_join_path(reader->prefix.directory, name, path, size);
}

/* NAM-5 */
static ckptfmt_status shard_missing(ckptfmt_reader *reader, int32_t shard, ckptfmt_error *err)
{
	char path[sizeof err->path];
	ckptfmt_status status;
	bool current;
	CF_TRY(cf_reader_is_current(reader, &current, err));
	if (current)
		status = cf_fail(err, CKPTFMT_FAIL_SHARD_MISSING, CF_NO_OFFSET, "the data file is missing");
	else
		status = cf_fail(err, CKPTFMT_FAIL_GENERATION_GONE, CF_NO_OFFSET,
			"the checkpoint was replaced or removed after it was opened");
	cf_reader_data_path(reader, shard, path, sizeof path);
	cf_error_path(err, path);
	return status;
}

ckptfmt_status cf_reader_shard(ckptfmt_reader *reader, int32_t shard, cf_shard_use *out, ckptfmt_error *err)
{
	bool found, fresh;
	ckptfmt_status status;
	assert(shard >= 0 && shard < reader->header.num_shards);
	CF_TRY(cf_shards_use(&reader->shards, shard, out, &found, &fresh, err));
	if (found && fresh) {
		/* As after opening all: the name may be another generation's by now. */
		bool current = false;
		status = cf_reader_is_current(reader, &current, err);
		if (status == CKPTFMT_OK && current)
			cf_shards_confirm(&reader->shards, out);
		else
			cf_shards_drop(&reader->shards, out);
		CF_TRY(status);
		found = current;
	}
	return found ? CKPTFMT_OK : shard_missing(reader, shard, err);
}
