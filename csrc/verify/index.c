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
	cf_header *header = &v->reader->header;
	ckptfmt_error error;
	v->header_known = cf_verify_ok(v, cf_header_decode(value, origin, header, &error), &error, &place);
	/* The block that it points into is freed. */
	header->bytes = (cf_bytes_view){NULL, 0};
	if (!v->header_known)
		return;
	cf_verify_strict_header(v, value, &place);
	/* HDR-5 */
	if (header->endianness == 1)
		cf_verify_note(v, CF_VERIFY_BIG_ENDIAN, &place, "HDR-5: the data files are big-endian");
	estimate(v);
}

/* ---- entries --------------------------------------------------------------------------------------------- */

void cf_verify_add_row(cf_verifier *v, cf_bytes_view key, cf_bytes_view value, uint64_t origin, bool placed)
{
	cf_verify_place place = {cf_verify_index_path(v), key, origin};
	cf_verify_row row = {origin, 0, placed};
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

static ckptfmt_status check_dtype(const cf_entry *entry, ckptfmt_error *err)
{
	/* DTY-5 */
	if (cf_verify_dtype_impossible(entry->dtype))
		return cf_fail(err, CKPTFMT_FAIL_BAD_DTYPE, entry->origin, "DTY-5: data type %d cannot be stored",
			(int)entry->dtype);
	return CKPTFMT_OK;
}

ckptfmt_status cf_verify_check_placement(const cf_verifier *v, const cf_entry *entry, bool owns_bytes,
	ckptfmt_error *err)
{
	return cf_entry_check_place(entry, v->header_known ? v->reader->header.num_shards : INT32_MAX, owns_bytes, err);
}

/* A selection only marks entries that break these rules. */
ckptfmt_status cf_verify_check_extension(const cf_verifier *v, const cf_entry *entry, bool owns_bytes,
	ckptfmt_error *err)
{
	uint64_t size = (uint64_t)entry->size, chunk = entry->chunk_size;
	/* EXT-3 */
	if (entry->feature_flags & ~CF_FEATURE_COMPRESSED)
		return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, entry->origin, "EXT-3: unknown feature flags 0x%llx",
			(unsigned long long)(entry->feature_flags & ~CF_FEATURE_COMPRESSED));
	/* EXT-5 */
	if (!owns_bytes && (entry->feature_flags != 0 || chunk != 0 || entry->chunk_crcs.size != 0))
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, entry->origin, "EXT-5: chunks of an entry that owns no bytes");
	if (entry->feature_flags & CF_FEATURE_COMPRESSED) {
		uint32_t rule;
		/* CMP-9, which is reported with the value */
		if (v->header_known && v->reader->header.endianness == 1)
			return CKPTFMT_OK;
		return cf_entry_check_chunks(entry, NULL, &rule, err);
	}
	/* A negative size is reported by ENT-4. */
	if ((chunk == 0 && entry->chunk_crcs.size == 0) || entry->size < 0)
		return CKPTFMT_OK;
	/* EXT-2 */
	if (entry->chunk_crcs.size % 4 != 0)
		return cf_entry_broken_chunks(0, entry->origin, err);
	/* EXT-5 */
	if (size <= chunk)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, entry->origin,
			"EXT-5: chunk checksums of an entry that has not more than one chunk");
	/* EXT-4 */
	if (chunk == 0 || chunk > UINT32_MAX ||
		entry->chunk_crcs.size / 4 != size / chunk + (size % chunk != 0))
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, entry->origin,
			"EXT-4: %llu bytes of chunk checksums for %llu stored bytes in chunks of %llu",
			(unsigned long long)entry->chunk_crcs.size, (unsigned long long)size, (unsigned long long)chunk);
	return CKPTFMT_OK;
}

void cf_verify_check_location(cf_verifier *v, const cf_entry *entry, const cf_verify_place *place)
{
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
static bool check_entry(cf_verifier *v, const cf_verify_place *place, cf_bytes_view value, bool *placed)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	ckptfmt_error error;
	bool lists_slices, deferred;
	*placed = false;
	if (!cf_verify_ok(v, cf_entry_decode(value, place->offset, v->reader->limits.slices_max, dims, &entry, &error),
		&error, place))
		return false;
	cf_verify_strict_entry(v, &entry, place);
	lists_slices = entry.slice_count != 0;
	deferred = cf_slice_key_looks_like(place->key.data, place->key.size);
	(void)cf_verify_ok(v, check_dtype(&entry, &error), &error, place);
	/* A deferred entry may turn out to be that of a slice, which owns bytes even if it lists slices (SLC-10). */
	if (!lists_slices || !deferred)
		(void)cf_verify_ok(v, cf_verify_check_extension(v, &entry, !lists_slices, &error), &error, place);
	if (lists_slices && !deferred)
		cf_verify_check_location(v, &entry, place);
	*placed = cf_verify_ok(v, cf_verify_check_placement(v, &entry, !lists_slices, &error), &error, place);
	if (*placed)
		name_shard(v, entry.shard);
	return true;
}

static void take_entry(cf_verifier *v, cf_bytes_view key, cf_bytes_view value, uint64_t origin)
{
	cf_verify_place place = {cf_verify_index_path(v), key, origin};
	bool placed, usable = check_entry(v, &place, value, &placed);
	ckptfmt_error error;
	if (!usable || !placed)
		v->uncertain = true;
	if (cf_slice_key_looks_like(key.data, key.size)) {
		if (cf_verify_ok(v, cf_deferred_add(&v->deferred, key, value, origin, &error), &error, &place))
			cf_deferred_at(&v->deferred, cf_deferred_count(&v->deferred) - 1)->broken = !usable || !placed;
	} else if (usable) {
		cf_verify_add_row(v, key, value, origin, placed);
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
			"TAB-13: the index has more entries or key bytes than allowed; later entries are not checked");
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
	while (!cf_verify_failed(v) && check_block(v)) {
	}
	if (cf_table_block_count(v->reader->table) == 0)
		cf_verify_problem(v, CKPTFMT_FAIL_BAD_HEADER, &place, "HDR-1: the table does not begin with a header");
	cf_verify_table_end(v);
	cf_table_check_close(&v->check);
	memset(&v->check, 0, sizeof v->check);
	v->bytes_done = v->reader->index_info.size;
}
