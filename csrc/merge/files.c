/* SPDX-License-Identifier: Apache-2.0 */
#include "merge/files.h"

#include "base/memory.h"
#include "merge/intent.h"
#include "write/generations.h"

#include <string.h>

enum { COPY_SIZE = 1 << 20 };

/* ---- sources --------------------------------------------------------------------------------------------- */

static const cf_merge_file *file_of(const cf_merge_source *source)
{
	return cf_merge_input_known_file(source->input, source->shard);
}

ckptfmt_status cf_merge_files_open(cf_merge_files *files, cf_merge_inputs *inputs, int32_t file_count,
	const cf_commit *commit, ckptfmt_error *err)
{
	memset(files, 0, sizeof *files);
	files->commit = commit;
	files->file_count = files->room = file_count;
	files->sources = cf_allocate_zero((uint64_t)file_count, sizeof *files->sources);
	if (files->sources == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < inputs->count; i++) {
		cf_merge_input *in = &inputs->rows[i];
		const int32_t *order = (const int32_t *)cf_buffer_items(&in->order);
		for (uint64_t k = 0; k < in->order.size / sizeof *order; k++) {
			cf_merge_source *source = &files->sources[cf_merge_input_known_file(in, order[k])->new_shard];
			source->input = in;
			source->shard = order[k];
		}
	}
	return CKPTFMT_OK;
}

static void abandon_empties(cf_merge_files *files)
{
	for (; files->empty_count > 0; files->empty_count--)
		cf_file_writer_abandon(&files->empties[files->empty_count - 1]);
}

void cf_merge_files_close(cf_merge_files *files)
{
	for (int32_t i = 0; files->copies != NULL && i < files->file_count; i++)
		cf_file_writer_abandon(&files->copies[i]);
	abandon_empties(files);
	cf_release(files->empties);
	cf_release(files->copies);
	cf_release(files->sources);
	memset(files, 0, sizeof *files);
}

/* Grows the sources to the number of the result; those beyond the inputs are empty. */
static ckptfmt_status make_room(cf_merge_files *files, int32_t count, ckptfmt_error *err)
{
	cf_merge_source *sources;
	if (count <= files->room)
		return CKPTFMT_OK;
	sources = cf_reallocate(files->sources, (uint64_t)count * sizeof *sources);
	if (sources == NULL)
		return cf_fail_memory(err);
	memset(sources + files->room, 0, (size_t)(count - files->room) * sizeof *sources);
	files->sources = sources;
	files->room = count;
	return CKPTFMT_OK;
}

/* ---- the number ------------------------------------------------------------------------------------------ */

/* Whether the file with this name of the result is the one that the merge would put there. A symbolic link to the
 * input's file is not: the file is removed with the input. */
static ckptfmt_status is_ours(const cf_merge_files *files, int32_t shard, int32_t count, bool *ours,
	ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file_info info;
	cf_data_name(files->commit->prefix->base, shard, count, name);
	CF_TRY(cf_os_lstat(files->commit->directory, name, &info, ours, err));
	*ours = *ours && info.regular;
	if (!*ours)
		return CKPTFMT_OK;
	if (shard < files->file_count && files->copies == NULL)
		*ours = cf_same_file(&info, &file_of(&files->sources[shard])->info);
	else
		*ours = shard >= files->file_count && info.size == 0;
	return CKPTFMT_OK;
}

/* A number is free if the only data files with it are those that the merge would put there, or those of a killed merge.
 * The number of the index in force is free only if all of the former exist: then nothing changes for that index. */
static ckptfmt_status is_free(cf_merge_files *files, const cf_generations *there, int32_t count, bool *is,
	ckptfmt_error *err)
{
	uint64_t found;
	const cf_generation_file *group = cf_generations_find(there, count, &found);
	bool in_force = count == files->commit->old_count;
	*is = !in_force || found == (uint64_t)count;
	files->clears = false;
	for (uint64_t i = 0; i < found && *is; i++) {
		*is = group[i].canonical;
		if (*is)
			CF_TRY(is_ours(files, group[i].shard, count, is, err));
	}
	if (*is || in_force)
		return CKPTFMT_OK;
	CF_TRY(cf_merge_intent_left(files->commit, group, found, is, err));
	files->clears = *is;
	return CKPTFMT_OK;
}

ckptfmt_status cf_merge_files_choose_count(cf_merge_files *files, int32_t *out, ckptfmt_error *err)
{
	cf_generations there;
	int32_t at_least = files->file_count == 0 ? 1 : files->file_count, count = at_least;
	bool is = false;
	ckptfmt_status status = cf_generations_list(&there, files->commit->directory, files->commit->prefix->base, err);
	/* A repeated merge keeps its number. */
	if (status == CKPTFMT_OK && files->commit->old_count > count)
		status = is_free(files, &there, files->commit->old_count, &is, err);
	if (is)
		count = files->commit->old_count;
	while (status == CKPTFMT_OK && !is) {
		status = is_free(files, &there, count, &is, err);
		if (status == CKPTFMT_OK && !is && ++count - at_least > CF_GENERATIONS_MAX)
			status = cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
				"CMT-5: %d numbers of data files in a row are taken", CF_GENERATIONS_MAX);
	}
	cf_generations_free(&there);
	if (status == CKPTFMT_OK)
		status = make_room(files, count, err);
	*out = count;
	return status;
}

/* ---- contents -------------------------------------------------------------------------------------------- */

static ckptfmt_status changed(const cf_merge_source *source, ckptfmt_error *err)
{
	ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET,
		"MRG-11: data file %d of an input was changed meanwhile", (int)source->shard);
	cf_error_path(err, source->input->prefix.index_path);
	return status;
}

/* Opens the data file of an input. */
static ckptfmt_status open_source(const cf_merge_source *source, cf_file *file, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	const cf_directory *directory;
	cf_file_info info;
	CF_TRY(cf_merge_input_directory(source->input, &directory, err));
	cf_data_name(source->input->prefix.base, source->shard, source->input->header.num_shards, name);
	CF_TRY(cf_os_open(directory, name, true, file, &info, err));
	if (file->fd >= 0 && cf_same_file(&info, &file_of(source)->info) && info.size == file_of(source)->info.size)
		return CKPTFMT_OK;
	if (file->fd >= 0)
		cf_os_close_quietly(file);
	return changed(source, err);
}

ckptfmt_status cf_merge_files_sync(cf_merge_files *files, ckptfmt_error *err)
{
	for (int32_t i = 0; i < files->file_count; i++) {
		const cf_merge_source *source = &files->sources[i];
		cf_file file;
		ckptfmt_status status;
		CF_TRY(cf_progress_check(files->progress, err));
		CF_TRY(open_source(source, &file, err));
		status = cf_os_sync(&file, source->input->name, err);
		cf_os_close_quietly(&file);
		CF_TRY(status);
	}
	return CKPTFMT_OK;
}

static ckptfmt_status copy_bytes(const cf_merge_source *source, const cf_file *from, cf_file_writer *to,
	ckptfmt_error *err)
{
	uint64_t left = file_of(source)->info.size, offset = 0;
	while (left > 0) {
		uint8_t *room;
		uint64_t size, got;
		CF_TRY(cf_file_writer_room(to, &room, &size, err));
		size = cf_min_u64(cf_min_u64(size, left), COPY_SIZE);
		CF_TRY(cf_os_read_at(from, source->input->name, room, size, offset, &got, err));
		if (got < size)
			return changed(source, err);
		cf_file_writer_advance(to, size);
		offset += size;
		left -= size;
	}
	return CKPTFMT_OK;
}

/* There may be more copies than descriptors, so only one stays open; its lock protects the others (CMT-15). */
static void keep_one_open(cf_merge_files *files, int32_t row)
{
	const cf_file_writer *holder = &files->copies[files->holder];
	if (row == files->holder || holder->state == CF_FILE_WRITER_CLOSED)
		files->holder = row;
	else
		cf_file_writer_unlock(&files->copies[row]);
}

static ckptfmt_status copy_file(cf_merge_files *files, int32_t row, ckptfmt_error *err)
{
	const cf_merge_source *source = &files->sources[row];
	const cf_commit *commit = files->commit;
	cf_file_writer *copy = &files->copies[row];
	char name[CF_NAME_SIZE];
	cf_file file;
	ckptfmt_status status;
	/* A store uploads to this name at once: if the number is chosen already, to that of the result. */
	cf_data_name(commit->prefix->base, row, files->new_count > 0 ? files->new_count : files->file_count, name);
	CF_TRY(open_source(source, &file, err));
	status = cf_file_writer_open(copy, commit->directory, name, err);
	copy->progress = files->progress;
	if (status == CKPTFMT_OK)
		status = copy_bytes(source, &file, copy, err);
	if (status == CKPTFMT_OK)
		status = cf_file_writer_finish(copy, commit->durability == CKPTFMT_DURABILITY_FULL, err);
	if (status == CKPTFMT_OK)
		keep_one_open(files, row);
	cf_os_close_quietly(&file);
	return status;
}

ckptfmt_status cf_merge_files_copy(cf_merge_files *files, bool all, ckptfmt_error *err)
{
	cf_file_info place;
	bool exists;
	CF_TRY(cf_os_stat(files->commit->directory, ".", &place, &exists, err));
	for (int32_t i = 0; i < files->file_count; i++) {
		if (!all && file_of(&files->sources[i])->info.device == place.device) {
			CF_TRY(cf_progress_add(files->progress, file_of(&files->sources[i])->info.size, err));
			continue;
		}
		if (files->copies == NULL) {
			files->copies = cf_allocate_zero((uint64_t)files->file_count, sizeof *files->copies);
			if (files->copies == NULL)
				return cf_fail_memory(err);
		}
		if (files->copies[i].state == CF_FILE_WRITER_CLOSED)
			CF_TRY(copy_file(files, i, err));
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_merge_files_fill(cf_merge_files *files, ckptfmt_error *err)
{
	const cf_commit *commit = files->commit;
	cf_file_writer *empties;
	abandon_empties(files);
	if (files->new_count <= files->file_count)
		return CKPTFMT_OK;
	empties = cf_reallocate(files->empties, (uint64_t)(files->new_count - files->file_count) * sizeof *empties);
	if (empties == NULL)
		return cf_fail_memory(err);
	files->empties = empties;
	for (int32_t row = files->file_count; row < files->new_count; row++) {
		cf_file_writer *file = &empties[files->empty_count];
		char name[CF_NAME_SIZE];
		cf_data_name(commit->prefix->base, row, files->new_count, name);
		CF_TRY(cf_file_writer_open(file, commit->directory, name, err));
		files->empty_count++;
		CF_TRY(cf_file_writer_finish(file, commit->durability == CKPTFMT_DURABILITY_FULL, err));
		/* There may be more files than descriptors. Later the index is open as well. */
		if (files->empty_count > 1)
			cf_file_writer_unlock(file);
	}
	return CKPTFMT_OK;
}

/* ---- names ----------------------------------------------------------------------------------------------- */

static ckptfmt_status link_file(cf_merge_files *files, int32_t row, const char *target, cf_naming *out,
	ckptfmt_error *err)
{
	cf_merge_source *source = &files->sources[row];
	char name[CF_NAME_SIZE];
	const cf_directory *directory;
	cf_link_result result;
	cf_file_info info;
	bool exists;
	CF_TRY(cf_merge_input_directory(source->input, &directory, err));
	cf_data_name(source->input->prefix.base, source->shard, source->input->header.num_shards, name);
	if (files->moves && files->commit->directory->permissions != 0 && file_of(source)->info.link_count == 1)
		cf_os_set_permissions(directory, name, files->commit->directory->permissions);
	CF_TRY(cf_os_link(directory, name, files->commit->directory, target, &result, err));
	source->made = result == CF_LINK_DONE;
	if (result == CF_LINK_IMPOSSIBLE) {
		*out = CF_NAMES_NOT_LINKED;
		return CKPTFMT_OK;
	}
	if (result == CF_LINK_NO_SOURCE)
		return changed(source, err);
	/* The source may have been replaced since it was checked, and the target may be that of a killed merge. */
	CF_TRY(cf_os_lstat(files->commit->directory, target, &info, &exists, err));
	if (exists && info.regular && cf_same_file(&info, &file_of(source)->info))
		return info.size == file_of(source)->info.size ? CKPTFMT_OK : changed(source, err);
	if (source->made)
		return changed(source, err);
	*out = CF_NAMES_TAKEN;
	return CKPTFMT_OK;
}

static ckptfmt_status name_empty(cf_merge_files *files, int32_t row, const char *target, cf_naming *out,
	ckptfmt_error *err)
{
	cf_file_info info;
	bool exists;
	CF_TRY(cf_file_writer_link_new(&files->empties[row - files->file_count], target, &exists, err));
	files->sources[row].made = !exists;
	if (!exists)
		return CKPTFMT_OK;
	CF_TRY(cf_os_lstat(files->commit->directory, target, &info, &exists, err));
	if (!exists || !info.regular || info.size != 0)
		*out = CF_NAMES_TAKEN;
	return CKPTFMT_OK;
}

static ckptfmt_status name_file(cf_merge_files *files, int32_t row, cf_naming *out, ckptfmt_error *err)
{
	char target[CF_NAME_SIZE];
	bool exists;
	cf_data_name(files->commit->prefix->base, row, files->new_count, target);
	if (row >= files->file_count)
		return name_empty(files, row, target, out, err);
	if (files->copies == NULL || files->copies[row].state == CF_FILE_WRITER_CLOSED)
		return link_file(files, row, target, out, err);
	CF_TRY(cf_file_writer_link_new(&files->copies[row], target, &exists, err));
	files->sources[row].made = !exists;
	if (exists)
		*out = CF_NAMES_TAKEN;
	return CKPTFMT_OK;
}

ckptfmt_status cf_merge_files_name(cf_merge_files *files, cf_naming *out, ckptfmt_error *err)
{
	ckptfmt_status status = CKPTFMT_OK;
	*out = CF_NAMED;
	if (files->clears)
		cf_commit_remove_generation(files->commit, files->new_count);
	for (int32_t i = 0; i < files->new_count && status == CKPTFMT_OK && *out == CF_NAMED; i++)
		status = name_file(files, i, out, err);
	if (status != CKPTFMT_OK || *out != CF_NAMED)
		cf_merge_files_undo(files);
	return status;
}

void cf_merge_files_undo(cf_merge_files *files)
{
	char name[CF_NAME_SIZE];
	for (int32_t i = 0; i < files->new_count; i++) {
		if (!files->sources[i].made)
			continue;
		cf_data_name(files->commit->prefix->base, i, files->new_count, name);
		(void)!cf_os_unlink(files->commit->directory, name, NULL);
		files->sources[i].made = false;
		if (files->copies != NULL && i < files->file_count)
			cf_file_writer_abandon(&files->copies[i]);
	}
}

cf_file_info cf_merge_files_info(const cf_merge_files *files, int32_t row)
{
	cf_file_info none;
	memset(&none, 0, sizeof none);
	if (row >= files->file_count)
		return none;
	if (files->copies != NULL && files->copies[row].state != CF_FILE_WRITER_CLOSED)
		return files->copies[row].info;
	return file_of(&files->sources[row])->info;
}
