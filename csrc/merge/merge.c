/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Merges bundles by their indexes. Tensor bytes are not moved: their files get second names (hard links).
 *
 *   1 all inputs are opened, joined in one pass and checked; nothing changes on disk (inputs.c, join.c)
 *   2 data files of inputs are synced; those that cannot be linked are copied (files.c)
 *   3 the index of the result is written under a temporary name and read back
 *   4 under the lock of the destination's directory: if the inputs are to be removed, the intent is written
 *     (intent.c); data files get their names, the inputs are checked for changes, and the index is renamed into place:
 *     the commit
 *   5 the inputs are removed, then the intent
 *
 * If it is killed before the commit, all inputs are complete; after it, the result is. Running the merge again finishes
 * it.
 */
#include "base/limits.h"
#include "base/memory.h"
#include "write/commit.h"
#include "merge/files.h"
#include "merge/inputs.h"
#include "merge/intent.h"
#include "merge/join.h"
#include "table/writer.h"
#include "write/sweep.h"

#include <string.h>

enum { COUNT_TRIES = 16 };

typedef struct merge {
	ckptfmt_merge_options options;
	cf_merge_inputs inputs;
	cf_merge_files files;
	cf_merge_joined joined;
	cf_prefix prefix;
	cf_directory directory;
	cf_commit commit;
	cf_file_writer index;
	cf_merge_intent intent;
	cf_index_mark mark;
	cf_progress progress;
	cf_merge_before before;     /* the destination at the begin, */
	bool left_out;              /* and whether inputs were missing then */
	cf_file_info *results;      /* the result's data files, */
	uint64_t *sizes;            /* and their sizes */
	bool committed;
} merge;

/* MRG-10: the destination's own index must not be an input. A hard link under another name is another checkpoint. */
static ckptfmt_status check_destination(merge *m, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_file_info info, here, there;
	bool exists, ignored;
	cf_index_name(m->prefix.base, name);
	CF_TRY(cf_os_stat(&m->directory, name, &info, &exists, err));
	if (!exists)
		return CKPTFMT_OK;
	CF_TRY(cf_os_stat(&m->directory, ".", &here, &ignored, err));
	for (uint64_t i = 0; i < m->inputs.count; i++) {
		cf_merge_input *in = &m->inputs.rows[i];
		const cf_directory *directory;
		if (!cf_same_file(&in->info, &info))
			continue;
		CF_TRY(cf_merge_input_directory(in, &directory, err));
		CF_TRY(cf_os_stat(directory, ".", &there, &ignored, err));
		if (info.link_count > 1 && (!cf_same_file(&here, &there) || strcmp(in->prefix.base, m->prefix.base) != 0))
			continue;
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "MRG-10: the destination is also an input: %s",
			cf_merge_name(in->name));
	}
	return CKPTFMT_OK;
}

/* ---- the index ------------------------------------------------------------------------------------------- */

static ckptfmt_status put_to_index(void *state, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	merge *m = state;
	m->mark.crc32c = ckptfmt_crc32c(m->mark.crc32c, bytes, size);
	m->mark.size += size;
	return cf_file_writer_put(&m->index, bytes, size, err);
}

static ckptfmt_status write_index(merge *m, ckptfmt_error *err)
{
	char name[CF_NAME_SIZE];
	cf_table_writer table;
	uint64_t size;
	ckptfmt_status status;
	m->mark = (cf_index_mark){0, 0};
	cf_index_name(m->prefix.base, name);
	CF_TRY(cf_file_writer_open(&m->index, &m->directory, name, err));
	cf_table_writer_open(&table, (cf_sink){put_to_index, m});
	status = cf_merge_write(&m->inputs, &m->joined, m->files.new_count, &table, err);
	if (status == CKPTFMT_OK)
		status = cf_table_writer_finish(&table, &size, err);
	cf_table_writer_free(&table);
	CF_TRY(status);
	return cf_file_writer_finish(&m->index, m->options.durability == CKPTFMT_DURABILITY_FULL, err);
}

static ckptfmt_status describe_results(merge *m, ckptfmt_error *err)
{
	uint64_t count = (uint64_t)m->files.new_count;
	cf_release(m->results);
	cf_release(m->sizes);
	m->results = cf_allocate(count * sizeof *m->results);
	m->sizes = cf_allocate(count * sizeof *m->sizes);
	if (m->results == NULL || m->sizes == NULL)
		return cf_fail_memory(err);
	for (int32_t i = 0; i < m->files.new_count; i++) {
		m->results[i] = cf_merge_files_info(&m->files, i);
		m->sizes[i] = m->results[i].size;
	}
	return CKPTFMT_OK;
}

/* All steps before the lock, for this number of data files. */
static ckptfmt_status prepare(merge *m, int32_t count, ckptfmt_error *err)
{
	cf_file_writer_abandon(&m->index);
	m->files.new_count = count;
	CF_TRY(describe_results(m, err));
	CF_TRY(cf_merge_files_fill(&m->files, err));
	CF_TRY(write_index(m, err));
	if (m->options.durability != CKPTFMT_DURABILITY_NONE)
		CF_TRY(cf_commit_read_back(&m->commit, &m->index, count, m->sizes, err));
	return CKPTFMT_OK;
}

/* ---- committing ------------------------------------------------------------------------------------------ */

/* Another process may since have merged a missing input into the destination. */
static ckptfmt_status check_left_out(const merge *m, ckptfmt_error *err)
{
	cf_merge_before now;
	if (!m->left_out)
		return CKPTFMT_OK;
	CF_TRY(cf_merge_look(&m->commit, &now, err));
	if (now.exists == m->before.exists && (!now.exists || cf_same_state(&now.info, &m->before.info)))
		return CKPTFMT_OK;
	return cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET,
		"MRG-14: an input is missing, and another process has committed to the destination during the merge");
}

static ckptfmt_status commit_named(merge *m, ckptfmt_error *err)
{
	CF_TRY(check_left_out(m, err));
	/* An input that was saved again after it was read would be lost when the inputs are removed. */
	for (uint64_t i = 0; i < m->inputs.count; i++)
		CF_TRY(cf_merge_input_check_unchanged(&m->inputs.rows[i], err));
	return cf_commit_replace(&m->commit, &m->index, m->files.new_count, NULL, &m->committed, err);
}

typedef enum outcome { DONE, OTHER_COUNT, NO_LINKS } outcome;

static ckptfmt_status name_and_commit(merge *m, outcome *out, ckptfmt_error *err)
{
	cf_naming naming;
	ckptfmt_status status;
	CF_TRY(cf_merge_files_name(&m->files, &naming, err));
	if (naming != CF_NAMED) {
		*out = naming == CF_NAMES_TAKEN ? OTHER_COUNT : NO_LINKS;
		return CKPTFMT_OK;
	}
	status = commit_named(m, err);
	if (!m->committed)
		cf_merge_files_undo(&m->files);
	return status;
}

/* REQUIRES: the lock. If *out is not DONE, the result must be prepared again, without the lock. */
static ckptfmt_status try_commit(merge *m, outcome *out, ckptfmt_error *err)
{
	int32_t count;
	ckptfmt_status status = CKPTFMT_OK;
	*out = DONE;
	CF_TRY(cf_commit_observe(&m->commit, err));
	CF_TRY(cf_merge_files_choose_count(&m->files, &count, err));
	if (count != m->files.new_count) {
		*out = OTHER_COUNT;
		return CKPTFMT_OK;
	}
	if (m->options.consume)
		status = cf_merge_intent_write(&m->commit, &m->inputs, m->mark, m->results, count, &m->intent, err);
	if (status == CKPTFMT_OK)
		status = name_and_commit(m, out, err);
	if (!m->committed && m->options.consume)
		cf_merge_intent_withdraw(&m->commit, &m->intent);
	return status;
}

static ckptfmt_status publish(merge *m, ckptfmt_error *err)
{
	int32_t count;
	uint64_t total = 0;
	bool copy_all = false;
	CF_TRY(check_destination(m, err));
	CF_TRY(cf_commit_observe(&m->commit, err));
	/* The inputs may be what a killed save left in its temporary directory. */
	cf_sweep_before_save(&m->commit, false);
	CF_TRY(cf_merge_files_open(&m->files, &m->inputs, m->joined.file_count, &m->commit, err));
	m->files.progress = &m->progress;
	m->files.moves = m->options.consume;
	for (int32_t i = 0; i < m->files.file_count; i++)
		total += cf_merge_files_info(&m->files, i).size;
	CF_TRY(cf_progress_begin(&m->progress, total, err));
	if (m->options.durability == CKPTFMT_DURABILITY_FULL)
		CF_TRY(cf_merge_files_sync(&m->files, err));
	CF_TRY(cf_merge_files_copy(&m->files, false, err));
	CF_TRY(cf_merge_files_choose_count(&m->files, &count, err));
	CF_TRY(prepare(m, count, err));
	for (int tries = 0; tries < COUNT_TRIES; tries++) {
		outcome result;
		ckptfmt_status status;
		CF_TRY(cf_progress_end(&m->progress, err));
		CF_TRY(cf_commit_lock(&m->commit, err));
		status = try_commit(m, &result, err);
		cf_commit_unlock(&m->commit);
		if (status != CKPTFMT_OK || result == DONE)
			return status;
		if (result == NO_LINKS && !copy_all)
			CF_TRY(cf_progress_begin(&m->progress, total, err));
		copy_all = copy_all || result == NO_LINKS;
		CF_TRY(cf_merge_files_copy(&m->files, copy_all, err));
		CF_TRY(cf_commit_observe(&m->commit, err));
		CF_TRY(cf_merge_files_choose_count(&m->files, &count, err));
		CF_TRY(prepare(m, count, err));
	}
	return cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET, "other writers took %d numbers of data files in a row",
		COUNT_TRIES);
}

static ckptfmt_status open_destination(merge *m, const char *destination, ckptfmt_error *err)
{
	CF_TRY(cf_prefix_split(destination, &m->prefix, err));
	m->commit = (cf_commit){&m->prefix, &m->directory, m->options.durability, 0};
	return cf_storage_directory_open(m->options.storage, m->prefix.directory, true,
		m->options.durability != CKPTFMT_DURABILITY_NONE, &m->directory, err);
}

static ckptfmt_status choose_metadata(merge *m, const char *const *prefixes, ckptfmt_error *err)
{
	const char *name;
	ckptfmt_status status;
	if (m->options.metadata_from == 0)
		return CKPTFMT_OK;
	name = prefixes[m->options.metadata_from - 1];
	for (uint64_t i = 0; i < m->inputs.count; i++)
		if (m->inputs.rows[i].name == name)
			m->inputs.metadata = &m->inputs.rows[i];
	if (m->inputs.metadata != NULL)
		return CKPTFMT_OK;
	status = cf_fail(err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, CF_NO_OFFSET,
		"the input whose metadata the result would have is missing");
	cf_error_path(err, name);
	return status;
}

static ckptfmt_status run(merge *m, const char *const *prefixes, uint64_t count, const char *destination,
	ckptfmt_error *err)
{
	ckptfmt_status status;
	CF_TRY(cf_merge_inputs_open(&m->inputs, prefixes, count, m->options.allow_missing != 0, err));
	m->left_out = m->inputs.count < count;
	CF_TRY(choose_metadata(m, prefixes, err));
	CF_TRY(cf_merge_join(&m->inputs, m->options.partial != 0, &m->joined, err));
	status = open_destination(m, destination, err);
	if (status == CKPTFMT_OK)
		status = publish(m, err);
	if (status == CKPTFMT_OK && m->options.consume)
		status = cf_merge_remove_inputs(&m->commit, &m->inputs, m->options.remove_directories != 0, &m->intent, err);
	if (status != CKPTFMT_OK)
		cf_error_path(err, destination);
	return status;
}

static ckptfmt_status check_options(const ckptfmt_merge_options *options, uint64_t count, ckptfmt_error *err)
{
	if (options->metadata_from < 0 || (uint64_t)options->metadata_from > count)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "metadata_from must be 0 to %llu, not %d",
			(unsigned long long)count, (int)options->metadata_from);
	if (options->durability < CKPTFMT_DURABILITY_FULL || options->durability > CKPTFMT_DURABILITY_NONE)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "durability must be 0, 1 or 2, not %d",
			(int)options->durability);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_merge(const char *const *prefixes, uint64_t count, const char *destination,
	const ckptfmt_merge_options *options, ckptfmt_error *err)
{
	merge m = {.directory = {.fd = -1}, .inputs = {.directory = {.fd = -1}}};
	ckptfmt_status status;
	bool finished;
	CF_TRY(cf_struct_take(&m.options, sizeof m.options, options, "ckptfmt_merge_options", err));
	CF_TRY(check_options(&m.options, count, err));
	CF_TRY(cf_limits_take(&m.inputs.limits, m.options.limits, err));
	m.inputs.storage = m.options.storage;
	cf_progress_init(&m.progress, &m.options.progress);
	m.inputs.progress = &m.progress;
	/* MRG-14 */
	status = cf_merge_resume(prefixes, count, destination, &m.options, &m.before, &finished, err);
	if (status == CKPTFMT_OK && !finished)
		status = run(&m, prefixes, count, destination, err);
	cf_file_writer_abandon(&m.index);
	cf_merge_files_close(&m.files);
	cf_merge_joined_free(&m.joined);
	cf_merge_inputs_close(&m.inputs);
	cf_release(m.results);
	cf_release(m.sizes);
	cf_os_directory_close(&m.directory);
	cf_prefix_free(&m.prefix);
	return status;
}
