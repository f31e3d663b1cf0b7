/* SPDX-License-Identifier: Apache-2.0 */
/* The directory: data files that no entry names, missing ones that no value needs, and orphans of other saves. */
#include "verify/private.h"

#include <stdlib.h>
#include <string.h>

static const char temporary_mark[] = ".tempstate";

enum { TEMPORARY_DIGITS = 16 };

/* ---- sets of shards, ascending ---- */

static int compare_shards(const void *left, const void *right)
{
	const int32_t *a = left, *b = right;
	return (*a > *b) - (*a < *b);
}

static uint64_t shard_count(const cf_buffer *shards)
{
	return shards->size / sizeof(int32_t);
}

static int32_t shard_at(const cf_buffer *shards, uint64_t row)
{
	return ((const int32_t *)cf_buffer_items(shards))[row];
}

/* Sorts and removes duplicates. */
static void make_set(cf_buffer *shards)
{
	int32_t *at = (int32_t *)cf_buffer_items(shards);
	uint64_t count = shard_count(shards), kept = 0;
	if (count == 0)
		return;
	qsort(at, (size_t)count, sizeof *at, compare_shards);
	for (uint64_t i = 0; i < count; i++)
		if (kept == 0 || at[kept - 1] != at[i])
			at[kept++] = at[i];
	shards->size = kept * sizeof *at;
}

static bool has_shard(const cf_buffer *shards, int32_t shard)
{
	return shards->size != 0 &&
		bsearch(&shard, shards->data, (size_t)shard_count(shards), sizeof shard, compare_shards) != NULL;
}

/* ---- names ---- */

static cf_verify_place file_place(const cf_verifier *v, const char *name, char *path, size_t size)
{
	cf_join_path(v->reader->prefix.directory, name, path, size);
	return (cf_verify_place){path, {NULL, 0}, CF_NO_OFFSET};
}

/* "<index or data file>.tempstate<16 hex digits>" */
static bool is_temporary(const char *base, const char *name)
{
	const char *mark = strstr(name, temporary_mark), *at;
	char final[CF_NAME_SIZE], index[CF_NAME_SIZE];
	for (at = mark; at != NULL; at = strstr(at + 1, temporary_mark))
		mark = at;
	if (mark == NULL || (size_t)(mark - name) >= sizeof final)
		return false;
	at = mark + sizeof temporary_mark - 1;
	if (strlen(at) != TEMPORARY_DIGITS || strspn(at, "0123456789abcdef") != TEMPORARY_DIGITS)
		return false;
	memcpy(final, name, (size_t)(mark - name));
	final[mark - name] = '\0';
	cf_index_name(base, index);
	return strcmp(final, index) == 0 || cf_data_name_count(base, final) != 0;
}

static void look_at_name(cf_verifier *v, const char *name, cf_buffer *present)
{
	const char *base = v->reader->prefix.base;
	int32_t shard, count, own = v->reader->header.num_shards;
	char path[sizeof v->file.path], canonical[CF_NAME_SIZE];
	cf_verify_place place;
	if (is_temporary(base, name)) {
		place = file_place(v, name, path, sizeof path);
		cf_verify_note(v, CF_VERIFY_TEMPORARY, &place,
			"NAM-8: a temporary file: orphaned, or of a save in progress");
		return;
	}
	if (!v->header_known || !cf_data_name_parse(base, name, &shard, &count))
		return;
	/* NAM-4: with another number of leading zeros it is not a data file of this checkpoint. */
	cf_data_name(base, shard, count, canonical);
	if (strcmp(name, canonical) != 0)
		return;
	if (count == own && shard < own) {
		cf_put_bytes(present, &shard, sizeof shard);
		return;
	}
	place = file_place(v, name, path, sizeof path);
	cf_verify_note(v, CF_VERIFY_LEFTOVER, &place, "NAM-8: an orphaned file of another save: file %d of %d, not of %d",
		(int)shard, (int)count, (int)own);
}

/* ---- data files that exist ---- */

static void check_present(cf_verifier *v, int32_t shard, bool bare)
{
	char name[CF_NAME_SIZE], path[sizeof v->file.path];
	cf_verify_place place;
	cf_file_info info;
	ckptfmt_error error;
	bool exists, named = has_shard(&v->named, shard);
	cf_data_name(v->reader->prefix.base, shard, v->reader->header.num_shards, name);
	place = file_place(v, name, path, sizeof path);
	if (has_shard(&v->needed, shard) || v->uncertain)
		return;
	/* CMT-6: a bundle without tensors still has one data file. */
	if (!named && !bare) {
		cf_verify_note(v, CF_VERIFY_UNREFERENCED, &place,
			"CMT-6: no entry names this data file; a merge by TensorFlow would damage the checkpoint");
		return;
	}
	place.offset = 0;
	if (cf_verify_ok(v, cf_os_stat(&v->reader->directory, name, &info, &exists, &error), &error, &place) && exists &&
		info.size != 0)
		cf_verify_note(v, CF_VERIFY_UNNAMED, &place, "DAT-3: %llu bytes in a data file without values",
			(unsigned long long)info.size);
}

/* ---- missing data files ---- */

/* NAM-5: data files that no value needs. The header can claim any number of them, so only the first are listed; the
 * others are counted. */
static void check_absent(cf_verifier *v, const cf_buffer *present)
{
	uint64_t known = shard_count(present), left;
	for (uint64_t i = 0; i < shard_count(&v->needed); i++)
		known += !has_shard(present, shard_at(&v->needed, i));
	left = (uint64_t)v->reader->header.num_shards - known;
	for (int32_t shard = 0; left > 0 && v->note_counts[CF_VERIFY_UNNEEDED] < CF_VERIFY_NOTES_MAX; shard++) {
		char path[sizeof v->file.path];
		cf_verify_place place = {path, {NULL, 0}, CF_NO_OFFSET};
		if (has_shard(present, shard) || has_shard(&v->needed, shard))
			continue;
		left--;
		cf_reader_data_path(v->reader, shard, path, sizeof path);
		cf_verify_note(v, CF_VERIFY_UNNEEDED, &place, "NAM-5: the data file is missing, but no value needs it");
	}
	v->note_counts[CF_VERIFY_UNNEEDED] += left;
}

/* ---- all ---- */

static void check_directory(cf_verifier *v, cf_buffer *names, cf_buffer *present)
{
	cf_verify_place place = {v->reader->prefix.directory, {NULL, 0}, CF_NO_OFFSET};
	const char *name;
	ckptfmt_error error;
	bool bare;
	ckptfmt_status status = cf_os_directory_list(&v->reader->directory, names, &error);
	if (status == CKPTFMT_NO_MEMORY) {
		(void)cf_verify_ok(v, status, &error, &place);
		return;
	}
	if (status != CKPTFMT_OK) {
		cf_verify_note(v, CF_VERIFY_UNLISTED, &place,
			"NAM-8: the directory cannot be listed, so orphaned files were not searched for");
		return;
	}
	name = (const char *)names->data;
	for (uint64_t at = 0; at < names->size; at += strlen(name + at) + 1)
		look_at_name(v, name + at, present);
	if (!cf_verify_ok(v, cf_buffer_status(present, &error), &error, &place) ||
		!cf_verify_ok(v, cf_buffer_status(&v->named, &error), &error, &place) ||
		!cf_verify_ok(v, cf_buffer_status(&v->needed, &error), &error, &place) || !v->header_known)
		return;
	make_set(present);
	make_set(&v->named);
	bare = v->reader->header.num_shards == 1 && v->named.size == 0;
	for (uint64_t i = 0; i < shard_count(present); i++)
		check_present(v, shard_at(present, i), bare);
	check_absent(v, present);
}

void cf_verify_files(cf_verifier *v)
{
	cf_buffer names = CF_BUFFER_EMPTY, present = CF_BUFFER_EMPTY;
	check_directory(v, &names, &present);
	cf_buffer_free(&names);
	cf_buffer_free(&present);
}
