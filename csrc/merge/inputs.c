/* SPDX-License-Identifier: Apache-2.0 */
#include "merge/inputs.h"

#include "base/memory.h"
#include "base/workers.h"

#include <stdatomic.h>
#include <string.h>

enum {
	SHARED_MIN = 64,        /* so many inputs are worth a second thread */
	SHARDS_MAX = 1 << 20,   /* data files of one input */
	WHOLE_MAX = 320 << 10,  /* bytes of an index that is read at once: about what a block of a larger one has */
	REST_MAX = 1024         /* data files without an entry are looked for up to this number */
};

/* ---- files ----------------------------------------------------------------------------------------------- */

/* Has *directory be the one that the input stands in, and *place what that is. */
static ckptfmt_status enter_directory(const cf_merge_input *in, cf_directory *directory, cf_file_info *place,
	ckptfmt_error *err)
{
	bool exists;
	if (directory->fd >= 0 && strcmp(directory->path, in->prefix.directory) == 0)
		return CKPTFMT_OK;
	cf_os_directory_close(directory);
	CF_TRY(cf_os_directory_open(in->prefix.directory, false, false, directory, err));
	return cf_os_stat(directory, ".", place, &exists, err);
}

ckptfmt_status cf_merge_input_directory(cf_merge_input *in, const cf_directory **out, ckptfmt_error *err)
{
	*out = &in->all->directory;
	return enter_directory(in, &in->all->directory, &in->all->place, err);
}

const char *cf_merge_name(const char *name)
{
	const size_t most = 140;
	size_t size = strlen(name);
	return size > most ? name + (size - most) : name;
}

static ckptfmt_status changed(const cf_merge_input *in, ckptfmt_error *err)
{
	ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET,
		"MRG-11: an input of the merge was changed meanwhile");
	cf_error_path(err, in->prefix.index_path);
	return status;
}

ckptfmt_status cf_merge_input_check_unchanged(cf_merge_input *in, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	const cf_directory *directory;
	cf_file_info info;
	bool exists;
	CF_TRY(cf_merge_input_directory(in, &directory, err));
	cf_index_name(in->prefix.base, name);
	CF_TRY(cf_os_stat(directory, name, &info, &exists, err));
	return exists && cf_same_state(&info, &in->info) ? CKPTFMT_OK : changed(in, err);
}

/* The bytes of an index: from the file that is open, or one opened for this. */
static ckptfmt_status read_index(const void *state, const char *path, uint8_t *to, uint64_t size, uint64_t offset,
	uint64_t *got, ckptfmt_error *err)
{
	/* Reading changes which directory is open, nothing else. */
	cf_merge_input *in = (cf_merge_input *)(uintptr_t)state;
	char name[CF_NAME_SIZE];
	const cf_directory *directory;
	cf_file_info info;
	cf_file file;
	ckptfmt_status status;
	*got = 0;
	if (in->index.fd >= 0)
		return cf_os_read_at(&in->index, path, to, size, offset, got, err);
	CF_TRY(cf_merge_input_directory(in, &directory, err));
	cf_index_name(in->prefix.base, name);
	CF_TRY(cf_os_open(directory, name, true, &file, &info, err));
	if (file.fd < 0)
		return changed(in, err);
	status = cf_same_state(&info, &in->info) ? cf_os_read_at(&file, path, to, size, offset, got, err)
		: changed(in, err);
	cf_os_close_quietly(&file);
	return status;
}

cf_merge_file *cf_merge_input_next_file(const cf_merge_input *in, int32_t *shard)
{
	while (*shard < in->header.num_shards) {
		cf_merge_file *file;
		if (in->pages[*shard / CF_MERGE_PAGE_SIZE] == NULL) {
			*shard = (*shard / CF_MERGE_PAGE_SIZE + 1) * CF_MERGE_PAGE_SIZE;
			continue;
		}
		file = cf_merge_input_known_file(in, *shard);
		if (file != NULL)
			return file;
		(*shard)++;
	}
	return NULL;
}

static ckptfmt_status look_for_file(cf_merge_input *in, int32_t shard, cf_merge_file **out, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	const cf_directory *directory;
	cf_file_info info;
	cf_merge_page **page = &in->pages[shard / CF_MERGE_PAGE_SIZE];
	bool exists;
	*out = NULL;
	CF_TRY(cf_merge_input_directory(in, &directory, err));
	cf_data_name(in->prefix.base, shard, in->header.num_shards, name);
	CF_TRY(cf_os_stat(directory, name, &info, &exists, err));
	if (!exists)
		return CKPTFMT_OK;
	if (!info.regular)
		return cf_fail(err, CKPTFMT_FAIL_OS, CF_NO_OFFSET, "NAM-6: data file %d is not a regular file", (int)shard);
	if (*page == NULL)
		*page = cf_allocate_zero(1, sizeof **page);
	if (*page == NULL)
		return cf_fail_memory(err);
	*out = &(*page)->files[shard % CF_MERGE_PAGE_SIZE];
	(*out)->info = info;
	(*out)->new_shard = -1;
	(*out)->known = true;
	return CKPTFMT_OK;
}

ckptfmt_status cf_merge_input_file(cf_merge_input *in, int32_t shard, cf_merge_file **out, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE], path[sizeof err->path];
	ckptfmt_status status;
	*out = cf_merge_input_known_file(in, shard);
	if (CF_LIKELY(*out != NULL))
		return CKPTFMT_OK;
	CF_TRY(look_for_file(in, shard, out, err));
	if (*out != NULL)
		return CKPTFMT_OK;
	CF_TRY(cf_merge_input_check_unchanged(in, err));
	status = cf_fail(err, CKPTFMT_FAIL_SHARD_MISSING, CF_NO_OFFSET, "NAM-5: the data file is missing");
	cf_data_name(in->prefix.base, shard, in->header.num_shards, name);
	cf_join_path(in->prefix.directory, name, path, sizeof path);
	cf_error_path(err, path);
	return status;
}

ckptfmt_status cf_merge_input_find_rest(cf_merge_input *in, ckptfmt_error *err)
{
	cf_merge_file *ignored;
	for (int32_t shard = 0; shard < in->header.num_shards && shard < REST_MAX; shard++)
		if (cf_merge_input_known_file(in, shard) == NULL &&
			look_for_file(in, shard, &ignored, NULL) == CKPTFMT_NO_MEMORY)
			return cf_fail_memory(err);
	return CKPTFMT_OK;
}

/* ---- opening --------------------------------------------------------------------------------------------- */

static int32_t page_count(const cf_merge_input *in)
{
	return in->header.num_shards / CF_MERGE_PAGE_SIZE + 1;
}

static void close_input(cf_merge_input *in)
{
	if (in->table != NULL)
		cf_table_iterator_close(&in->at);
	cf_table_close(in->table);
	if (in->index.fd >= 0)
		cf_os_close_quietly(&in->index);
	cf_prefix_free(&in->prefix);
	cf_buffer_free(&in->header_bytes);
	for (int32_t i = 0; in->pages != NULL && i < page_count(in); i++)
		cf_release(in->pages[i]);
	cf_release(in->pages);
	cf_buffer_free(&in->order);
}

/* What a thread that opens inputs has to itself. */
typedef struct opener {
	cf_directory *directory;    /* of the input opened last, */
	cf_file_info *place;        /* and what it is */
	cf_arena *memory;
} opener;

/* Opens the index file; in->index.fd < 0: there is none. */
static ckptfmt_status open_index(const opener *by, cf_merge_input *in, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	ckptfmt_status status = enter_directory(in, by->directory, by->place, err);
	if (status == CKPTFMT_NOT_FOUND)
		return CKPTFMT_OK;
	CF_TRY(status);
	cf_index_name(in->prefix.base, name);
	return cf_os_open(by->directory, name, true, &in->index, &in->info, err);
}

static ckptfmt_status read_header(cf_merge_input *in, ckptfmt_error *err)
{
	cf_table_iterator *at = &in->at;
	bool more;
	cf_table_iterator_open(at, in->table);
	CF_TRY(cf_table_iterator_next(at, &more, err));
	if (!more || at->key_size != 0)
		return cf_fail(err, CKPTFMT_FAIL_BAD_HEADER, 0, "HDR-1: the table does not begin with a header");
	CF_TRY(cf_header_decode((cf_bytes_view){at->value, at->value_size}, at->value_offset, &in->header, err));
	if (in->header.num_shards > SHARDS_MAX)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, at->value_offset, "%d data files; a merge takes %d an input",
			(int)in->header.num_shards, SHARDS_MAX);
	in->pages = cf_allocate_zero((uint64_t)page_count(in), sizeof *in->pages);
	if (in->pages == NULL)
		return cf_fail_memory(err);
	cf_put_bytes(&in->header_bytes, in->header.bytes.data, in->header.bytes.size);
	in->header.bytes.data = in->header_bytes.data;
	return cf_buffer_status(&in->header_bytes, err);
}

/* MRG-10, against the inputs before it. */
static ckptfmt_status check_input(const cf_merge_input *in, ckptfmt_error *err)
{
	for (const cf_merge_input *other = in->all->rows; other < in; other++)
		if (cf_same_file(&other->info, &in->info))
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "MRG-10: %s and %s are one index",
				cf_merge_name(other->name), cf_merge_name(in->name));
	return CKPTFMT_OK;
}

/* MRG-2. To be the same is transitive, so the first one stands for all; whether producer and min_consumer count
 * (MRG-15) is settled for all of them. */
static ckptfmt_status check_header(const cf_merge_input *in, bool compressed, ckptfmt_error *err)
{
	const cf_merge_input *first = in->all->rows;
	bool same;
	if (in->header.endianness != first->header.endianness)
		return cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET,
			"MRG-2: %s and %s differ in byte order", cf_merge_name(first->name), cf_merge_name(in->name));
	CF_TRY(cf_header_same_version(&in->header, &first->header, compressed, &same, err));
	if (!same)
		return cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET,
			"MRG-2: %s and %s differ in version", cf_merge_name(first->name), cf_merge_name(in->name));
	return CKPTFMT_OK;
}

static ckptfmt_status open_table(const opener *by, cf_merge_input *in, ckptfmt_error *err)
{
	const char *path = in->prefix.index_path;
	const ckptfmt_limits *limits = &in->all->limits;
	uint64_t size = in->info.size, got;
	uint8_t *bytes;
	if (size > WHOLE_MAX)
		return cf_table_open_source(read_index, in, path, size, limits, &in->table, err);
	bytes = cf_arena_take(by->memory, size);
	if (bytes == NULL)
		return cf_fail_memory(err);
	CF_TRY(cf_os_read_at(&in->index, path, bytes, size, 0, &got, err));
	return got < size ? changed(in, err) : cf_table_open_memory(bytes, path, size, limits, &in->table, err);
}

/* What can be said of an input alone. It is not opened where there is none, which is no failure. */
static ckptfmt_status open_alone(const opener *by, cf_merge_inputs *inputs, cf_merge_input *in, const char *name,
	ckptfmt_error *err)
{
	ckptfmt_status status;
	memset(in, 0, sizeof *in);
	in->all = inputs;
	in->name = name;
	in->index.fd = -1;
	in->header_bytes = in->order = CF_BUFFER_EMPTY;
	status = cf_prefix_split(name, &in->prefix, err);
	if (status == CKPTFMT_OK)
		status = open_index(by, in, err);
	if (status == CKPTFMT_OK && in->index.fd >= 0) {
		status = open_table(by, in, err);
		if (status == CKPTFMT_OK)
			status = read_header(in, err);
		if (status != CKPTFMT_OK)
			cf_error_path(err, in->prefix.index_path);
		cf_os_close_quietly(&in->index);
		in->opened = status == CKPTFMT_OK;
	}
	if (!in->opened) {
		close_input(in);
		memset(in, 0, sizeof *in);
		/* The directory's path was the input's. */
		cf_os_directory_close(by->directory);
	}
	return status;
}

/* Opens the input, if that is not done, and compares it with those before it. */
static ckptfmt_status open_input(cf_merge_inputs *inputs, const char *name, bool allow_missing, ckptfmt_error *err)
{
	const opener by = {&inputs->directory, &inputs->place, &inputs->memory[0]};
	cf_merge_input *in = &inputs->rows[inputs->count];
	ckptfmt_status status = in->opened ? CKPTFMT_OK : open_alone(&by, inputs, in, name, err);
	if (status == CKPTFMT_OK && !in->opened && !allow_missing)
		status = cf_fail(err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, CF_NO_OFFSET,
			"MRG-1: an input of the merge does not exist");
	if (status != CKPTFMT_OK)
		cf_error_path(err, name);
	if (!in->opened)
		return status;
	inputs->count++;
	status = check_input(in, err);
	if (status != CKPTFMT_OK)
		cf_error_path(err, in->prefix.index_path);
	return status;
}

/* ---- by two threads ---- */

typedef struct opening {
	cf_merge_inputs *inputs;
	const char *const *prefixes;
	uint64_t count;
	_Atomic uint64_t next;      /* the first that nobody has taken; beyond the last after a failure */
	_Atomic uint32_t openers;   /* how many have begun */
	cf_directory directory;     /* these two: of the second */
	cf_file_info place;
} opening;

static void *open_some(void *argument)
{
	opening *job = argument;
	cf_merge_inputs *inputs = job->inputs;
	uint32_t row = atomic_fetch_add(&job->openers, 1);
	opener by = {&job->directory, &job->place, &inputs->memory[row]};
	uint64_t at;
	if (row == 0) {
		by.directory = &inputs->directory;
		by.place = &inputs->place;
	}
	while ((at = atomic_fetch_add(&job->next, 1)) < job->count) {
		if (open_alone(&by, inputs, &inputs->rows[at], job->prefixes[at], NULL) != CKPTFMT_OK ||
			!inputs->rows[at].opened)
			atomic_store(&job->next, job->count);
	}
	return NULL;
}

/* Opens inputs ahead: all, or those before the first one that cannot be opened, which then is tried again to say
 * why. */
static void open_ahead(cf_merge_inputs *inputs, const char *const *prefixes, uint64_t count)
{
	opening job = {.inputs = inputs, .prefixes = prefixes, .count = count, .directory = {-1, NULL}};
	uint64_t good = 0;
	cf_workers_run(CF_MERGE_OPENERS, open_some, &job);
	cf_os_directory_close(&job.directory);
	while (good < count && inputs->rows[good].opened)
		good++;
	if (good == count)
		return;
	/* Those behind it move up where it may be left out. The directory's path may be one of theirs. */
	cf_os_directory_close(&inputs->directory);
	for (uint64_t i = good; i < count; i++) {
		if (inputs->rows[i].opened)
			close_input(&inputs->rows[i]);
		memset(&inputs->rows[i], 0, sizeof inputs->rows[i]);
	}
}

/* HDR-11: bundles with compressed values say so by their min_consumer. */
static bool has_compressed(const cf_merge_inputs *inputs)
{
	for (uint64_t i = 0; i < inputs->count; i++)
		if (inputs->rows[i].header.min_consumer >= CF_COMPRESSED_VERSION)
			return true;
	return false;
}

static ckptfmt_status check_headers(const cf_merge_inputs *inputs, ckptfmt_error *err)
{
	bool compressed = has_compressed(inputs);
	for (uint64_t i = 1; i < inputs->count; i++) {
		ckptfmt_status status = check_header(&inputs->rows[i], compressed, err);
		if (status != CKPTFMT_OK) {
			cf_error_path(err, inputs->rows[i].prefix.index_path);
			return status;
		}
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_merge_inputs_open(cf_merge_inputs *inputs, const char *const *prefixes, uint64_t count,
	bool allow_missing, ckptfmt_error *err)
{
	inputs->count = inputs->room = 0;
	for (int i = 0; i < CF_MERGE_OPENERS; i++)
		inputs->memory[i] = CF_ARENA_EMPTY;
	inputs->directory.fd = -1;
	inputs->rows = cf_allocate_zero(count, sizeof *inputs->rows);
	if (inputs->rows == NULL)
		return cf_fail_memory(err);
	inputs->room = count;
	if (count >= SHARED_MIN)
		open_ahead(inputs, prefixes, count);
	for (uint64_t i = 0; i < count; i++)
		CF_TRY(open_input(inputs, prefixes[i], allow_missing, err));
	if (inputs->count == 0) {
		ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, CF_NO_OFFSET,
			"MRG-1: none of the inputs of the merge exists");
		cf_error_path(err, count == 0 ? NULL : prefixes[0]);
		return status;
	}
	return check_headers(inputs, err);
}

void cf_merge_inputs_close(cf_merge_inputs *inputs)
{
	/* After a failure more of them may be open than count. */
	for (uint64_t i = 0; i < inputs->room; i++)
		if (inputs->rows[i].opened)
			close_input(&inputs->rows[i]);
	for (int i = 0; i < CF_MERGE_OPENERS; i++)
		cf_arena_free(&inputs->memory[i]);
	cf_os_directory_close(&inputs->directory);
	cf_release(inputs->rows);
	inputs->rows = NULL;
	inputs->count = inputs->room = 0;
}
