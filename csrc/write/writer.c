/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The writer: tensors are written to data files under temporary names as they are added, their entries are collected in
 * a catalog, and commit publishes both. A fresh prefix gets as many data files as the options say; a prefix that is
 * overwritten may need more, because the number of data files distinguishes generations (commit.h). Each tensor, in the
 * order of adding, is written to the file with the fewest bytes. In a large batch each file has its own thread.
 */
#include "write/writer.h"

#include "base/limits.h"
#include "base/memory.h"
#include "base/workers.h"
#include "read/reader.h"
#include "write/value.h"
#include "write/encode.h"
#include "write/generations.h"
#include "write/sweep.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum {
	COUNT_TRIES = 16,
	USUAL_NAME_MAX = 1024,
	CHUNK_UNIT = 16,        /* chunks hold whole elements of every data type */
	CHUNKS_MAX = 15 << 20,  /* of one tensor: 4 bytes each in an index block of at most 64 MiB */
	COMPRESSED_CHUNKS_MAX = CHUNKS_MAX / 2, /* the entry has their sizes too, mostly of three bytes */
	THREADS_MAX = 16,       /* more wait for memory rather than work */
	THREADED_SIZE = 8 << 20, /* a smaller batch is written before the threads have started */
	CHUNK_SIZE_MIN = 4096   /* so that the checksums of a large tensor fit an index block */
};

static ckptfmt_status check_options(const ckptfmt_write_options *options, ckptfmt_error *err)
{
	if (options->alignment > (uint64_t)1 << 30)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the alignment %llu is not within 1 and 2^30",
			(unsigned long long)options->alignment);
	if (options->chunk_size % CHUNK_UNIT != 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the chunk size %lu is not a multiple of %d",
			(unsigned long)options->chunk_size, CHUNK_UNIT);
	if (options->chunk_size != 0 && options->chunk_size < CHUNK_SIZE_MIN)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the chunk size %lu is below %d",
			(unsigned long)options->chunk_size, CHUNK_SIZE_MIN);
	if (options->durability < CKPTFMT_DURABILITY_FULL || options->durability > CKPTFMT_DURABILITY_NONE)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "durability must be 0, 1 or 2, not %d",
			(int)options->durability);
	if (options->shards < 0 || options->shards > CF_GENERATIONS_MAX)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "shards is %d, not 1 to %d",
			(int)options->shards, CF_GENERATIONS_MAX);
	return CKPTFMT_OK;
}

/* CMP-2 */
static ckptfmt_status check_codec(const ckptfmt_write_options *options, ckptfmt_error *err)
{
	if (options->chunk_size < CF_CHUNK_SIZE_MIN || options->chunk_size > CF_CHUNK_SIZE_MAX)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"compressing takes chunks of %d to %d bytes, not %lu", CF_CHUNK_SIZE_MIN, CF_CHUNK_SIZE_MAX,
			(unsigned long)options->chunk_size);
	return CKPTFMT_OK;
}

static ckptfmt_status open_data_files(ckptfmt_writer *writer, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	int32_t count;
	CF_TRY(cf_commit_choose_count(&writer->commit, writer->options.shards > 1 ? writer->options.shards : 1,
		false, &count, err));
	writer->files = cf_allocate_zero((uint64_t)count, sizeof *writer->files);
	if (writer->files == NULL)
		return cf_fail_memory(err);
	for (; writer->file_count < count; writer->file_count++) {
		cf_file_writer *file = &writer->files[writer->file_count].file;
		cf_data_name(writer->prefix.base, writer->file_count, count, name);
		CF_TRY(cf_file_writer_open(file, &writer->directory, name, err));
		file->progress = &writer->progress;
		if (writer->options.durability == CKPTFMT_DURABILITY_FULL)
			cf_file_writer_sync_ahead(file);
	}
	return CKPTFMT_OK;
}

static ckptfmt_status open_writer(ckptfmt_writer *writer, const char *prefix, ckptfmt_error *err)
{
	/* A later save that is synced relies on the directory to be durable. */
	bool sync = writer->options.durability != CKPTFMT_DURABILITY_NONE;
	CF_TRY(cf_prefix_split(prefix, &writer->prefix, err));
	CF_TRY(cf_storage_directory_open(writer->options.storage, writer->prefix.directory, true, sync,
		&writer->directory, err));
	CF_TRY(cf_catalog_open(&writer->catalog, err));
	writer->commit = (cf_commit){&writer->prefix, &writer->directory, writer->options.durability, 0};
	writer->base = (cf_base_files){.commit = &writer->commit, .catalog = &writer->catalog,
		.plain = writer->options.chunk_size == 0};
	CF_TRY(cf_commit_observe(&writer->commit, err));
	cf_sweep_before_save(&writer->commit, true);
	return open_data_files(writer, err);
}

static ckptfmt_status take_options(ckptfmt_writer *writer, const ckptfmt_write_options *from, ckptfmt_error *err)
{
	ckptfmt_write_options *options = &writer->options;
	CF_TRY(cf_struct_take(options, sizeof *options, from, "ckptfmt_write_options", err));
	cf_progress_init(&writer->progress, &options->progress);
	if (options->alignment == 0)
		options->alignment = 1;
	CF_TRY(check_options(options, err));
	if (options->codec == NULL)
		return CKPTFMT_OK;
	CF_TRY(check_codec(options, err));
	CF_TRY(cf_codec_take(&writer->codec, options->codec, err));
	options->codec = &writer->codec;
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_writer_open(const char *prefix, const ckptfmt_write_options *options, ckptfmt_writer **out,
	ckptfmt_error *err)
{
	ckptfmt_writer *writer;
	ckptfmt_status status;
	*out = NULL;
	writer = cf_allocate_zero(1, sizeof *writer);
	if (writer == NULL)
		return cf_fail_memory(err);
	writer->directory.fd = -1;
	status = take_options(writer, options, err);
	if (status == CKPTFMT_OK)
		status = open_writer(writer, prefix, err);
	if (status != CKPTFMT_OK) {
		cf_error_path(err, prefix);
		ckptfmt_writer_abandon(writer);
		return status;
	}
	*out = writer;
	return CKPTFMT_OK;
}

static void free_writer(ckptfmt_writer *writer)
{
	cf_base_files_abandon(&writer->base);
	cf_catalog_free(&writer->catalog);
	cf_release(writer->files);
	cf_os_directory_close(&writer->directory);
	cf_prefix_free(&writer->prefix);
	cf_release(writer);
}

void ckptfmt_writer_abandon(ckptfmt_writer *writer)
{
	if (writer == NULL)
		return;
	for (int32_t i = 0; i < writer->file_count; i++)
		cf_file_writer_abandon(&writer->files[i].file);
	free_writer(writer);
}

/* ---- adding ---------------------------------------------------------------------------------------------- */

/* The source without its slice if that is the whole tensor (SLC-12). */
static ckptfmt_source normal_source(const ckptfmt_source *source)
{
	ckptfmt_source normal = *source;
	if (cf_source_is_whole(source))
		normal.slice = NULL;
	return normal;
}

/* The checksums of all chunks are in one entry, and that is in one block of the index (BLK-14). */
static ckptfmt_status check_chunks(const ckptfmt_writer *writer, const ckptfmt_source *source, ckptfmt_error *err)
{
	uint32_t chunk_size = writer->options.chunk_size;
	int most = writer->options.codec == NULL ? CHUNKS_MAX : COMPRESSED_CHUNKS_MAX;
	if (chunk_size != 0 && cf_source_size(source) / chunk_size >= (uint64_t)most)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
			"BLK-14: the tensor has more than %d chunks of %lu bytes; use larger chunks", most,
			(unsigned long)chunk_size);
	return CKPTFMT_OK;
}

/* EXT-8: only the writer itself adds reserved names. */
static ckptfmt_status check_reserved(const ckptfmt_source *source, ckptfmt_error *err)
{
	size_t size = sizeof CF_RESERVED_PREFIX - 1;
	if (source->name_size >= size && memcmp(source->name, CF_RESERVED_PREFIX, size) == 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "EXT-8: names that begin with %s are reserved",
			CF_RESERVED_PREFIX);
	return CKPTFMT_OK;
}

/* Reserves memory for rows and keys. Very long names, which may be refused, reserve less than they need. */
static ckptfmt_status reserve_rows(ckptfmt_writer *writer, const ckptfmt_source *sources, uint64_t count,
	ckptfmt_error *err)
{
	uint64_t key_bytes = 0;
	ckptfmt_status status;
	for (uint64_t i = 0; i < count; i++)
		key_bytes += cf_min_u64(sources[i].name_size, USUAL_NAME_MAX);
	status = cf_catalog_reserve(&writer->catalog, count, key_bytes, err);
	writer->failed = status != CKPTFMT_OK;
	return status;
}

ckptfmt_status cf_writer_refuse(ckptfmt_writer *writer, const ckptfmt_source *source, ckptfmt_status status,
	ckptfmt_error *err)
{
	cf_error_tensor(err, source->name, source->name_size);
	cf_error_path(err, writer->prefix.index_path);
	writer->failed = true;
	return status;
}

/* Adds all sources to the catalog, so that conflicts are reported before a byte is written; returns their rows in
 * `rows`. `own`: reserved names are allowed. */
static ckptfmt_status enter_sources(ckptfmt_writer *writer, const ckptfmt_source *sources, uint64_t count, bool own,
	uint64_t *rows, ckptfmt_error *err)
{
	CF_TRY(reserve_rows(writer, sources, count, err));
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_status status = cf_source_check(&sources[i], err);
		if (status == CKPTFMT_OK)
			status = check_chunks(writer, &sources[i], err);
		if (status == CKPTFMT_OK && !own)
			status = check_reserved(&sources[i], err);
		if (status == CKPTFMT_OK) {
			ckptfmt_source source = normal_source(&sources[i]);
			status = cf_catalog_add(&writer->catalog, &source, &rows[i], err);
		}
		if (status != CKPTFMT_OK)
			return cf_writer_refuse(writer, &sources[i], status, err);
	}
	return CKPTFMT_OK;
}

static int32_t emptiest_file(const ckptfmt_writer *writer)
{
	int32_t best = 0;
	for (int32_t i = 1; i < writer->file_count; i++) {
		const cf_data_file *file = &writer->files[i], *other = &writer->files[best];
		if (file->size < other->size ||
			(file->size == other->size && file->tensor_count < other->tensor_count))
			best = i;
	}
	return best;
}

/* Assigns the row to a data file whose size with this value is `end`. */
static ckptfmt_status assign_row(ckptfmt_writer *writer, uint64_t row, int32_t shard, uint64_t end, ckptfmt_error *err)
{
	cf_data_file *file = &writer->files[shard];
	/* DAT-5: padding follows every value, also the last one. */
	if (!cf_align_u64(end, writer->options.alignment, &file->size) || file->size > INT64_MAX)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the size of the data file does not fit 63 bits");
	file->tensor_count++;
	cf_catalog_row_at(&writer->catalog, row)->shard = shard;
	return CKPTFMT_OK;
}

static ckptfmt_status put_padding(cf_data_file *file, uint64_t alignment, ckptfmt_error *err)
{
	uint64_t rest = cf_file_writer_position(&file->file) % alignment;
	return cf_file_writer_zeros(&file->file, rest == 0 ? 0 : alignment - rest, err);
}

/* Writes the sources one by one, compressed where that is smaller. */
static ckptfmt_status encode_sources(ckptfmt_writer *writer, const ckptfmt_source *sources, const uint64_t *rows,
	uint64_t count, ckptfmt_error *err)
{
	cf_encoding encoding;
	uint64_t taken = 0;
	ckptfmt_status status = cf_encoding_open(&encoding, writer->options.codec, writer->options.chunk_size, err);
	for (uint64_t first = 0; first < count && status == CKPTFMT_OK; first += taken) {
		status = cf_encoding_next(&encoding, sources + first, count - first, &taken, err);
		for (uint64_t i = 0; i < taken && status == CKPTFMT_OK; i++) {
			int32_t shard = emptiest_file(writer);
			status = cf_encoding_write(&encoding, i, &writer->files[shard].file, &writer->catalog, rows[first + i],
				err);
			if (status == CKPTFMT_OK)
				status = assign_row(writer, rows[first + i], shard,
					cf_file_writer_position(&writer->files[shard].file), err);
			if (status == CKPTFMT_OK)
				status = put_padding(&writer->files[shard], writer->options.alignment, err);
			if (status != CKPTFMT_OK)
				cf_error_tensor(err, sources[first + i].name, sources[first + i].name_size);
		}
	}
	cf_encoding_close(&encoding);
	return status;
}

/* Sources that are assigned to data files. */
typedef struct batch {
	ckptfmt_writer *writer;
	const ckptfmt_source *sources;
	const uint64_t *rows;
	uint64_t count;
	atomic_bool failed;
} batch;

static ckptfmt_status write_source(const batch *b, cf_data_file *file, uint64_t i, ckptfmt_error *err)
{
	const ckptfmt_write_options *options = &b->writer->options;
	cf_catalog_row *row = cf_catalog_row_at(&b->writer->catalog, b->rows[i]);
	ckptfmt_status status = cf_value_write(&file->file, &b->sources[i], options->chunk_size, row,
		&b->writer->catalog, err);
	if (status == CKPTFMT_OK)
		status = put_padding(file, options->alignment, err);
	if (status != CKPTFMT_OK)
		cf_error_tensor(err, b->sources[i].name, b->sources[i].name_size);
	return status;
}

/* Writes the sources of one data file. Stops early if another file failed. */
static ckptfmt_status write_file(void *job, int32_t thread, uint64_t shard, ckptfmt_error *err)
{
	batch *b = job;
	cf_data_file *file = &b->writer->files[shard];
	uint64_t hint = b->writer->options.data_size / (uint64_t)b->writer->file_count;
	(void)thread;
	if (file->size != cf_file_writer_position(&file->file))
		cf_file_writer_reserve(&file->file, cf_max_u64(file->size, cf_min_u64(hint, INT64_MAX)));
	for (uint64_t i = 0; i < b->count && !atomic_load(&b->failed); i++) {
		ckptfmt_status status;
		if (cf_catalog_row_at(&b->writer->catalog, b->rows[i])->shard != (int32_t)shard)
			continue;
		status = write_source(b, file, i, err);
		if (status != CKPTFMT_OK) {
			atomic_store(&b->failed, true);
			return status;
		}
	}
	return CKPTFMT_OK;
}

/* Assigns a source to a data file. */
static ckptfmt_status plan_source(ckptfmt_writer *writer, const ckptfmt_source *source, uint64_t row,
	ckptfmt_error *err)
{
	int32_t shard = emptiest_file(writer);
	CF_TRY(assign_row(writer, row, shard, writer->files[shard].size + cf_source_size(source), err));
	return cf_value_plan(source, writer->options.chunk_size, cf_catalog_row_at(&writer->catalog, row),
		&writer->catalog, err);
}

static ckptfmt_status write_sources(ckptfmt_writer *writer, const ckptfmt_source *sources, const uint64_t *rows,
	uint64_t count, ckptfmt_error *err)
{
	batch b = {.writer = writer, .sources = sources, .rows = rows, .count = count};
	uint64_t total = 0;
	for (uint64_t i = 0; i < count; i++)
		total += cf_source_size(&sources[i]);
	CF_TRY(cf_progress_begin(&writer->progress, total, err));
	if (writer->options.codec != NULL)
		return encode_sources(writer, sources, rows, count, err);
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_status status = plan_source(writer, &sources[i], rows[i], err);
		if (status != CKPTFMT_OK)
			return cf_writer_refuse(writer, &sources[i], status, err);
	}
	return cf_workers_share(total >= THREADED_SIZE ? THREADS_MAX : 1, (uint64_t)writer->file_count, write_file, &b,
		err);
}

static ckptfmt_status add_sources(ckptfmt_writer *writer, const ckptfmt_source *sources, uint64_t count, bool own,
	ckptfmt_error *err)
{
	uint64_t *rows;
	ckptfmt_status status;
	CF_TRY(cf_writer_check_state(writer, err));
	rows = cf_allocate(count * sizeof *rows);
	writer->failed = rows == NULL;
	if (rows == NULL)
		return cf_fail_memory(err);
	status = enter_sources(writer, sources, count, own, rows, err);
	if (status != CKPTFMT_OK)
		goto out;
	status = write_sources(writer, sources, rows, count, err);
	if (status == CKPTFMT_OK)
		status = cf_progress_end(&writer->progress, err);
	writer->failed = status != CKPTFMT_OK;
out:
	cf_release(rows);
	return status;
}

ckptfmt_status ckptfmt_writer_add(ckptfmt_writer *writer, const ckptfmt_source *sources, uint64_t count,
	ckptfmt_error *err)
{
	return add_sources(writer, sources, count, false, err);
}

ckptfmt_status ckptfmt_writer_add_metadata(ckptfmt_writer *writer, const uint8_t *text, uint64_t size,
	ckptfmt_error *err)
{
	const ckptfmt_bytes element = {text, size};
	ckptfmt_source source;
	memset(&source, 0, sizeof source);
	source.name = (const uint8_t *)CF_METADATA_NAME;
	source.name_size = sizeof CF_METADATA_NAME - 1;
	source.data = (const uint8_t *)&element;
	source.dtype = CKPTFMT_STRING;
	return add_sources(writer, &source, 1, true, err);
}

/* A writer over an older checkpoint begins with several data files, for a number that is free. With linked files commit
 * chooses the number. */
static void begin_linking(ckptfmt_writer *writer)
{
	writer->has_base = true;
	if (cf_catalog_count(&writer->catalog) != 0)
		return;
	while (writer->file_count > 1)
		cf_file_writer_abandon(&writer->files[--writer->file_count].file);
}

ckptfmt_status ckptfmt_writer_keep(ckptfmt_writer *writer, ckptfmt_reader *reader, const ckptfmt_selection *selection,
	const uint64_t *rows, uint64_t count, const ckptfmt_bytes *names, uint8_t *kept, ckptfmt_error *err)
{
	ckptfmt_status status;
	if (count != 0)
		memset(kept, 0, (size_t)count);
	CF_TRY(cf_writer_check_state(writer, err));
	CF_TRY(cf_reader_check_call(reader, selection, CKPTFMT_VERIFY_AUTO, err));
	/* DAT-7: what is written is little-endian. */
	if (reader->header.endianness != 0)
		return CKPTFMT_OK;
	begin_linking(writer);
	status = cf_base_files_keep(&writer->base, reader, selection, rows, count, names, kept, err);
	writer->failed = status != CKPTFMT_OK;
	if (writer->failed && count != 0)
		memset(kept, 0, (size_t)count);
	return status;
}

/* ---- committing ------------------------------------------------------------------------------------------ */

/* CMT-6: adds a float tensor of shape [0] to a data file without other tensors. */
static ckptfmt_status add_placeholder(ckptfmt_writer *writer, int32_t shard, ckptfmt_error *err)
{
	static const int64_t dims[1] = {0};
	char name[64];
	ckptfmt_source source;
	uint64_t row;
	memset(&source, 0, sizeof source);
	(void)snprintf(name, sizeof name, CF_PLACEHOLDER_PREFIX "%d", (int)shard);
	source.name = (const uint8_t *)name;
	source.name_size = strlen(name);
	source.dims = dims;
	source.dtype = CKPTFMT_FLOAT;
	source.rank = 1;
	CF_TRY(cf_catalog_add(&writer->catalog, &source, &row, err));
	cf_catalog_row_at(&writer->catalog, row)->shard = shard;
	return CKPTFMT_OK;
}

static ckptfmt_status finish_data_file(ckptfmt_writer *writer, cf_data_file *file, ckptfmt_error *err)
{
	/* Its bytes count when all of them are synced. */
	file->file.progress = NULL;
	if (file->file.state != CF_FILE_WRITER_FINISHED)
		CF_TRY(cf_file_writer_finish(&file->file, writer->options.durability == CKPTFMT_DURABILITY_FULL, err));
	CF_TRY(cf_progress_add(&writer->progress, cf_file_writer_position(&file->file), err));
	(void)snprintf(file->name, sizeof file->name, "%s", file->file.name);
	return CKPTFMT_OK;
}

/* Chooses the next free number of data files and adds empty ones up to it. `look`: another writer has taken the last
 * number chosen. */
static ckptfmt_status take_count(ckptfmt_writer *writer, bool look, ckptfmt_error *err)
{
	int32_t count;
	cf_data_file *files;
	CF_TRY(cf_commit_choose_count(&writer->commit, writer->file_count, look, &count, err));
	files = cf_reallocate(writer->files, (uint64_t)count * sizeof *files);
	if (files == NULL)
		return cf_fail_memory(err);
	writer->files = files;
	while (writer->file_count < count) {
		cf_data_file *file = &files[writer->file_count];
		char name[CF_NAME_SIZE];
		memset(file, 0, sizeof *file);
		cf_data_name(writer->prefix.base, writer->file_count, count, name);
		CF_TRY(cf_file_writer_open(&file->file, &writer->directory, name, err));
		writer->file_count++;
		/* The prefix is no longer fresh: a checkpoint without tensors has no placeholder yet. */
		if (cf_catalog_count(&writer->catalog) == 0)
			CF_TRY(add_placeholder(writer, 0, err));
		CF_TRY(add_placeholder(writer, writer->file_count - 1, err));
		CF_TRY(finish_data_file(writer, file, err));
	}
	return CKPTFMT_OK;
}

static void remove_data_files(ckptfmt_writer *writer)
{
	for (int32_t i = 0; i < writer->file_count; i++) {
		cf_data_file *file = &writer->files[i];
		if (file->file.state == CF_FILE_WRITER_PUBLISHED) {
			ckptfmt_status ignored = cf_os_unlink(&writer->directory, file->name, NULL);
			(void)ignored;
		}
		cf_file_writer_abandon(&file->file);
	}
}

/* Gives the data files their final names. *taken: one of the names is taken. Files that have been renamed keep their
 * names until the next try. */
static ckptfmt_status name_data_files(ckptfmt_writer *writer, bool *taken, ckptfmt_error *err)
{
	char target[CF_NAME_SIZE];
	*taken = false;
	for (int32_t i = 0; i < writer->file_count && !*taken; i++) {
		cf_data_file *file = &writer->files[i];
		cf_data_name(writer->prefix.base, i, writer->file_count, target);
		if (file->file.state == CF_FILE_WRITER_FINISHED || file->file.adopted)
			CF_TRY(cf_file_writer_link_new(&file->file, target, taken, err));
		else
			CF_TRY(cf_os_publish(&writer->directory, file->name, target, false, taken, err));
		if (!*taken)
			(void)snprintf(file->name, sizeof file->name, "%s", target);
	}
	return CKPTFMT_OK;
}

/* An index for each number of data files that was tried; the last one is valid. */
typedef struct index_tries {
	cf_file_writer *files;
	int32_t count;
} index_tries;

static void abandon_tries(index_tries *tries)
{
	for (int32_t i = 0; i < tries->count; i++)
		cf_file_writer_abandon(&tries->files[i]);
	cf_release(tries->files);
}

/* Writes an index for the current number of data files, under a temporary name. */
static ckptfmt_status write_index(ckptfmt_writer *writer, index_tries *tries, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_table_writer table;
	uint64_t size;
	ckptfmt_status status;
	cf_file_writer *index;
	cf_file_writer *files = cf_reallocate(tries->files, ((uint64_t)tries->count + 1) * sizeof *files);
	if (files == NULL)
		return cf_fail_memory(err);
	tries->files = files;
	index = &files[tries->count];
	cf_index_name(writer->prefix.base, name);
	CF_TRY(cf_file_writer_open(index, &writer->directory, name, err));
	tries->count++;
	cf_table_writer_open(&table, cf_commit_sink(index));
	status = cf_catalog_write(&writer->catalog, writer->file_count, writer->options.chunk_size, &table, err);
	if (status == CKPTFMT_OK)
		status = cf_table_writer_finish(&table, &size, err);
	cf_table_writer_free(&table);
	CF_TRY(status);
	return cf_file_writer_finish(index, writer->options.durability == CKPTFMT_DURABILITY_FULL, err);
}

/* Whether one of our data files has a name of the current number. */
static bool has_named(const ckptfmt_writer *writer)
{
	char name[CF_NAME_SIZE];
	cf_data_name(writer->prefix.base, 0, writer->file_count, name);
	return strcmp(writer->files[0].name, name) == 0;
}

/* CMT-15: orphaned data files of killed writers are recognised by an index under a temporary name. So the index of a
 * number exists before the first data file has a name of that number, and as long as one has. */
static ckptfmt_status publish_data_files(ckptfmt_writer *writer, index_tries *tries, ckptfmt_error *err)
{
	for (int i = 0; i < COUNT_TRIES; i++) {
		bool taken;
		CF_TRY(write_index(writer, tries, err));
		CF_TRY(name_data_files(writer, &taken, err));
		for (int32_t k = 0; !taken && k < tries->count - 1; k++)
			cf_file_writer_abandon(&tries->files[k]);
		if (!taken)
			return CKPTFMT_OK;
		/* The files of this number belong to another writer. */
		if (!has_named(writer))
			cf_file_writer_abandon(&tries->files[tries->count - 1]);
		CF_TRY(take_count(writer, true, err));
	}
	return cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET, "other writers took %d numbers of data files in a row",
		COUNT_TRIES);
}

static ckptfmt_status put_in_force(ckptfmt_writer *writer, cf_file_writer *index, const uint64_t *sizes,
	bool *committed, ckptfmt_error *err)
{
	cf_commit *commit = &writer->commit;
	ckptfmt_status status;
	if (commit->durability != CKPTFMT_DURABILITY_NONE)
		CF_TRY(cf_commit_read_back(commit, index, writer->file_count, sizes, err));
	CF_TRY(cf_commit_lock(commit, err));
	status = cf_commit_replace(commit, index, writer->file_count, sizes, committed, err);
	cf_commit_unlock(commit);
	return status;
}

static ckptfmt_status commit_files(ckptfmt_writer *writer, index_tries *tries, bool *committed, ckptfmt_error *err)
{
	uint64_t *sizes, total = 0;
	bool unreferenced = false;
	ckptfmt_status status;
	for (int32_t i = 0; i < writer->file_count; i++)
		total += cf_file_writer_position(&writer->files[i].file);
	CF_TRY(cf_progress_begin(&writer->progress, total, err));
	CF_TRY(cf_catalog_check_slices(&writer->catalog, err));
	if (writer->has_base)
		CF_TRY(cf_base_files_settle(&writer->base, &writer->files, &writer->file_count, err));
	/* CMT-6: on a fresh prefix, a checkpoint without tensors has one data file that no entry references. */
	if (cf_catalog_count(&writer->catalog) == 0 && writer->file_count == 1)
		CF_TRY(cf_commit_is_fresh(&writer->commit, &unreferenced, err));
	for (int32_t i = 0; i < writer->file_count; i++) {
		if (writer->files[i].tensor_count == 0 && !unreferenced)
			CF_TRY(add_placeholder(writer, i, err));
		CF_TRY(finish_data_file(writer, &writer->files[i], err));
	}
	if (writer->has_base)
		CF_TRY(take_count(writer, false, err));
	CF_TRY(publish_data_files(writer, tries, err));
	sizes = cf_allocate((uint64_t)writer->file_count * sizeof *sizes);
	if (sizes == NULL)
		return cf_fail_memory(err);
	for (int32_t i = 0; i < writer->file_count; i++)
		sizes[i] = cf_file_writer_position(&writer->files[i].file);
	status = cf_progress_end(&writer->progress, err);
	if (status == CKPTFMT_OK)
		status = put_in_force(writer, &tries->files[tries->count - 1], sizes, committed, err);
	cf_release(sizes);
	return status;
}

ckptfmt_status ckptfmt_writer_commit(ckptfmt_writer *writer, ckptfmt_error *err)
{
	index_tries tries = {NULL, 0};
	bool committed = false;
	ckptfmt_status status;
	status = cf_writer_check_state(writer, err);
	if (status == CKPTFMT_OK)
		status = commit_files(writer, &tries, &committed, err);
	if (status != CKPTFMT_OK)
		cf_error_path(err, writer->prefix.index_path);
	if (!committed)
		remove_data_files(writer);
	abandon_tries(&tries);
	for (int32_t i = 0; i < writer->file_count; i++)
		cf_file_writer_abandon(&writer->files[i].file);
	free_writer(writer);
	return status;
}
