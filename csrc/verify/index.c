/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The index file, block by block. The table check reads, checks and decodes a block; if it is sound, its entries are
 * taken while it is in memory. A damaged block is a problem and its entries are treated as absent: later checks report
 * the slices that are missing then.
 */
#include "verify/private.h"

#include "slices/key.h"

#include <string.h>

enum { ESTIMATED_FILES_MAX = 1024 };

/* ---- header ---------------------------------------------------------------------------------------------- */

/* Progress: the sizes of the data files, before the entries are known, as an estimate of the bytes to read. */
static void estimate(cf_verifier *v)
{
	int32_t count = v->reader->header.num_shards;
	for (int32_t shard = 0; shard < count && shard < ESTIMATED_FILES_MAX; shard++) {
		char name[CF_NAME_SIZE];
		cf_file_info info;
		bool exists;
		cf_data_name(v->reader->prefix.base, shard, count, name);
		if (cf_os_stat(&v->reader->directory, name, &info, &exists, NULL) == CKPTFMT_OK && exists &&
			info.size <= UINT64_MAX - v->progress->total)
			v->progress->total += info.size;
	}
}

static void take_header(cf_verifier *v, cf_bytes_view value, uint64_t origin)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, origin};
	cf_header header;
	ckptfmt_error error;
	v->header_known = cf_verify_ok(v, cf_header_decode(value, origin, &header, &error), &error, &place);
	if (!v->header_known)
		return;
	v->reader->header = header;
	/* The block that it points into is freed. */
	v->reader->header.bytes = (cf_bytes_view){NULL, 0};
	cf_verify_strict_header(v, value, &place);
	/* HDR-5 */
	if (header.endianness == 1)
		cf_verify_note(v, CF_VERIFY_BIG_ENDIAN, &place, "HDR-5: the data files are big-endian");
	estimate(v);
}

/* ---- entries --------------------------------------------------------------------------------------------- */

void cf_verify_add_row(cf_verifier *v, cf_bytes_view key, cf_bytes_view value, uint64_t origin)
{
	cf_verify_place place = {cf_verify_index_path(v), key, origin};
	cf_verify_row row = {origin, 0};
	uint64_t parts, slices;
	ckptfmt_error error;
	void *added;
	if (!cf_verify_ok(v, cf_selection_add(v->selection, v->reader, key, value, origin, &error), &error, &place)) {
		v->uncertain = true;
		return;
	}
	parts = v->parts.size / sizeof(cf_verify_part);
	slices = v->selection->slices.size / sizeof(ckptfmt_slice_row);
	cf_put_bytes(&v->rows, &row, sizeof row);
	added = slices == parts ? NULL : cf_buffer_extend(&v->parts, (slices - parts) * sizeof(cf_verify_part));
	if (added != NULL)
		memset(added, 0, (size_t)(slices - parts) * sizeof(cf_verify_part));
	/* cf_selection_finish reports the failures of its columns, which is too late here. */
	if (cf_verify_ok(v, cf_buffer_status(&v->selection->rows, &error), &error, &place) &&
		cf_verify_ok(v, cf_buffer_status(&v->selection->names, &error), &error, &place) &&
		cf_verify_ok(v, cf_buffer_status(&v->selection->dims, &error), &error, &place) &&
		cf_verify_ok(v, cf_buffer_status(&v->parts, &error), &error, &place))
		(void)cf_verify_ok(v, cf_buffer_status(&v->rows, &error), &error, &place);
}

/* What an entry that owns no bytes may still say about them. */
static ckptfmt_status check_no_form(const cf_entry *entry, ckptfmt_error *err)
{
	if (entry->feature_flags & ~CF_FEATURE_COMPRESSED)
		return cf_form_fail(CF_STORED_EXT_3, 0, entry->origin, err);
	/* EXT-5 */
	if (entry->feature_flags != 0 || entry->chunk_size != 0 || entry->chunk_crcs.size != 0)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, entry->origin, "EXT-5: chunks of an entry that owns no bytes");
	return CKPTFMT_OK;
}

/* ENT-3, and ENT-4 of an entry that owns bytes. */
static ckptfmt_status check_place(const cf_verifier *v, const cf_entry *entry, bool owns_bytes, ckptfmt_error *err)
{
	return cf_check_place(entry->shard, owns_bytes ? entry->offset : 0, owns_bytes ? entry->size : 0,
		v->reader->header.num_shards, entry->origin, err);
}

void cf_verify_list_entry(cf_verifier *v, const cf_entry *entry, const cf_verify_place *place)
{
	ckptfmt_error error;
	(void)cf_verify_ok(v, check_no_form(entry, &error), &error, place);
	if (!cf_verify_ok(v, check_place(v, entry, false, &error), &error, place))
		v->uncertain = true;
	/* ENT-7 */
	if (entry->offset != 0 || entry->size != 0 || entry->masked_crc != 0)
		cf_verify_note(v, CF_VERIFY_SLICE_LOCATION, place,
			"ENT-7: the entry of a partitioned tensor names bytes of its own");
}

/* Adjacent entries are mostly in the same data file, so the list stays short. */
static void name_shard(cf_verifier *v, int32_t shard)
{
	uint64_t count = v->named.size / sizeof shard;
	if (count == 0 || ((const int32_t *)cf_buffer_items(&v->named))[count - 1] != shard)
		cf_put_bytes(&v->named, &shard, sizeof shard);
}

/* False: the entry cannot be used. */
static bool check_entry(cf_verifier *v, const cf_verify_place *place, cf_bytes_view value)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	ckptfmt_error error;
	if (!cf_verify_ok(v, cf_entry_decode(value, place->offset, v->reader->limits.slices_max, dims, &entry, &error),
		&error, place))
		return false;
	cf_verify_strict_entry(v, &entry, place);
	(void)cf_verify_ok(v, cf_dtype_check(entry.dtype, entry.origin, &error), &error, place);
	if (check_place(v, &entry, entry.slice_count == 0, NULL) == CKPTFMT_OK)
		name_shard(v, entry.shard);
	/* A deferred entry may turn out to be that of a slice, which owns bytes even if it lists slices (SLC-10). */
	if (entry.slice_count != 0 && !cf_slice_key_looks_like(place->key.data, place->key.size))
		cf_verify_list_entry(v, &entry, place);
	return true;
}

static void take_entry(cf_verifier *v, cf_bytes_view key, cf_bytes_view value, uint64_t origin)
{
	cf_verify_place place = {cf_verify_index_path(v), key, origin};
	bool usable = check_entry(v, &place, value);
	ckptfmt_error error;
	v->uncertain = v->uncertain || !usable;
	if (cf_slice_key_looks_like(key.data, key.size)) {
		if (cf_verify_ok(v, cf_deferred_add(&v->deferred, key, value, origin, &error), &error, &place))
			cf_deferred_at(&v->deferred, cf_deferred_count(&v->deferred) - 1)->broken = !usable;
	} else if (usable) {
		cf_verify_add_row(v, key, value, origin);
	}
}

/* TAB-13: the entries and key bytes kept are bounded, as in a listing. */
static bool within_limits(cf_verifier *v, uint64_t key_size, uint64_t offset)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, offset};
	if (v->full)
		return false;
	v->full = v->entry_count >= v->reader->limits.entries_max ||
		key_size > cf_table_keys_bytes_max(v->reader->table) - v->key_bytes;
	if (v->full) {
		v->uncertain = true;
		cf_verify_problem(v, CKPTFMT_FAIL_LIMIT, &place,
			"TAB-13: more entries than limit entries_max, or key bytes than keys_bytes_floor; the rest is not checked");
		return false;
	}
	v->entry_count++;
	v->key_bytes += key_size;
	return true;
}

/* ---- blocks ---------------------------------------------------------------------------------------------- */

/* Takes the entries of the block that was just checked. */
static void take_block(cf_verifier *v)
{
	cf_block_iterator *at = &v->entries;
	const cf_block *block = &v->check.memory.block;
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, v->check.offset};
	ckptfmt_error error;
	ckptfmt_status status;
	cf_block_iterator_open(at, block);
	for (status = cf_block_first(at, &error); status == CKPTFMT_OK && at->valid;
		status = cf_block_next(at, &error)) {
		uint64_t origin = cf_block_origin(block, at->value_position);
		cf_bytes_view value = {at->value, at->value_size};
		cf_verify_table_entry(v, (cf_bytes_view){at->key.data, at->key.size}, value);
		if (!within_limits(v, at->key.size, origin))
			continue;
		if (at->key.size == 0)
			take_header(v, value, origin);
		else
			take_entry(v, (cf_bytes_view){at->key.data, at->key.size}, value, origin);
	}
	(void)cf_verify_ok(v, status, &error, &place);
}

/* HDR-1. A damaged header has been reported. */
static void check_header_present(cf_verifier *v, bool readable)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, v->check.offset};
	if (!readable)
		cf_verify_problem(v, CKPTFMT_FAIL_BAD_HEADER, &place,
			"HDR-1: the header is lost with its block; without it the data files cannot be checked");
	else if (v->check.memory.block.restart_count == 0 || v->entries.first_key_size != 0 || v->check.entry_count == 0)
		cf_verify_problem(v, CKPTFMT_FAIL_BAD_HEADER, &place, "HDR-1: the table does not begin with a header");
}

/* False: there was none. */
static bool check_block(cf_verifier *v)
{
	cf_table_check *check = &v->check;
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, 0};
	bool more, sound, first = check->step == 0;
	ckptfmt_error error;
	ckptfmt_status status = cf_table_check_next(check, &more, &error);
	if (status == CKPTFMT_OK && !more)
		return false;
	place.offset = check->offset;
	sound = cf_verify_ok(v, status, &error, &place);
	if (sound) {
		take_block(v);
	} else {
		v->uncertain = true;
		cf_verify_table_abandon(v);
	}
	if (first)
		check_header_present(v, sound);
	cf_verify_count(v, check->size);
	return true;
}

void cf_verify_index(cf_verifier *v)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, 0};
	/* Until the header is read, any number of a data file is allowed. */
	v->reader->header = (cf_header){.num_shards = INT32_MAX};
	while (!cf_verify_failed(v) && check_block(v)) {
	}
	if (cf_table_block_count(v->reader->table) == 0)
		cf_verify_problem(v, CKPTFMT_FAIL_BAD_HEADER, &place, "HDR-1: the table does not begin with a header");
	cf_verify_table_end(v);
	cf_table_check_close(&v->check);
	memset(&v->check, 0, sizeof v->check);
	v->bytes_done = v->reader->index_info.size;
}
