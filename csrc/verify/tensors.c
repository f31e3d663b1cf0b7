/* SPDX-License-Identifier: Apache-2.0 */
/* From entries to stored values: which slice belongs to which tensor, whether the slices of a tensor are disjoint and
 * cover it, and whether each value has the size that its shape says. */
#include "verify/private.h"

#include "read/values.h"
#include "slices/key.h"
#include "proto/strings.h"

#include <string.h>

static cf_verify_part *part_at(const cf_verifier *v, const ckptfmt_row *row, uint64_t slice)
{
	return (cf_verify_part *)cf_buffer_items(&v->parts) + row->slices_first + slice;
}

static cf_bytes_view name_of(const cf_verifier *v, const ckptfmt_row *row)
{
	return (cf_bytes_view){cf_selection_name(v->selection, row), row->name_size};
}

/* ---- slices find their entries --------------------------------------------------------------------------- */

/* SLC-8, SLC-9, SLC-10 */
static ckptfmt_status check_part(cf_verifier *v, const ckptfmt_row *row, uint64_t slice, cf_bytes_view value,
	const cf_verify_place *place, ckptfmt_error *err)
{
	const ckptfmt_slice_row *part = cf_selection_slices(v->selection, row) + slice;
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	CF_TRY(cf_entry_decode(value, place->offset, v->reader->limits.slices_max, dims, &entry, err));
	if (entry.slice_count != 0) {
		cf_verify_note(v, CF_VERIFY_NESTED_SLICES, place, "SLC-10: the entry of a slice lists slices");
		CF_TRY(cf_verify_check_placement(v, &entry, true, err));
		(void)cf_verify_ok(v, cf_verify_check_extension(v, &entry, true, err), err, place);
	}
	if (entry.dtype != row->dtype)
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, place->offset,
			"SLC-8: slice %llu has data type %d, its tensor %d", (unsigned long long)slice, (int)entry.dtype,
			(int)row->dtype);
	if (part->stored.flags & CKPTFMT_STORED_OTHER_SHAPE)
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, place->offset,
			"SLC-9: the entry of slice %llu has another shape than the slice", (unsigned long long)slice);
	return CKPTFMT_OK;
}

static void find_slice(cf_verifier *v, uint64_t row_number, uint64_t slice)
{
	const ckptfmt_row *row = cf_selection_row(v->selection, row_number);
	cf_verify_part *part = part_at(v, row, slice);
	cf_verify_place place = {cf_verify_index_path(v), name_of(v, row), CF_NO_OFFSET};
	ckptfmt_error error;
	cf_deferred_entry *entry;
	cf_bytes_view value;
	cf_buffer_clear(&v->key);
	cf_selection_slice_key(v->selection, row_number, slice, &v->key);
	if (!cf_verify_ok(v, cf_buffer_status(&v->key, &error), &error, &place))
		return;
	entry = cf_deferred_find(&v->deferred, v->key.data, v->key.size);
	if (entry == NULL)
		return;
	part->origin = place.offset = entry->origin;
	part->state = entry->claimed ? CF_VERIFY_REPEATED : CF_VERIFY_BROKEN;
	entry->claimed = true;
	if (part->state == CF_VERIFY_REPEATED || entry->broken)
		return;
	value = cf_deferred_value(&v->deferred, entry);
	if (cf_verify_ok(v, cf_selection_fill_slice(v->selection, v->reader, row_number, slice, value, entry->origin,
		&error), &error, &place) && cf_verify_ok(v, check_part(v, row, slice, value, &place, &error), &error, &place))
		part->state = CF_VERIFY_SOUND;
	else
		v->uncertain = true;
}

static void find_slices(cf_verifier *v, uint64_t row_number)
{
	const ckptfmt_row *row = cf_selection_row(v->selection, row_number);
	uint32_t slice_count = row->slice_count;
	cf_verify_place place = {cf_verify_index_path(v), name_of(v, row), CF_NO_OFFSET};
	ckptfmt_error error;
	bool sought = cf_verify_ok(v, cf_selection_check_slice_keys(v->selection, v->reader, row_number,
		&v->slice_key_bytes, &error), &error, &place);
	v->uncertain = v->uncertain || !sought;
	for (uint32_t slice = 0; slice < slice_count; slice++) {
		if (sought)
			find_slice(v, row_number, slice);
		else
			part_at(v, row, slice)->state = CF_VERIFY_BROKEN;
	}
}

static void check_orphan(cf_verifier *v, const cf_verify_place *place)
{
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	int32_t rank;
	cf_buffer_clear(&v->key);
	/* KEY-7 */
	if (cf_slice_key_decode(place->key.data, place->key.size, &v->key, &rank, starts, lengths, NULL) == CKPTFMT_OK)
		cf_verify_problem(v, CKPTFMT_FAIL_BAD_SLICE, place,
			"KEY-7: the index holds a slice of rank %d of this tensor, but no such tensor lists the slice",
			(int)rank);
}

static void add_unclaimed(cf_verifier *v, cf_deferred_entry *waiting)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_bytes_view key = cf_deferred_key(&v->deferred, waiting), value = cf_deferred_value(&v->deferred, waiting);
	cf_verify_place place = {cf_verify_index_path(v), key, waiting->origin};
	uint64_t row = cf_selection_count(v->selection);
	ckptfmt_error error;
	cf_entry entry;
	/* An entry that cannot be decoded has been reported. */
	if (cf_entry_decode(value, waiting->origin, v->reader->limits.slices_max, dims, &entry, NULL) != CKPTFMT_OK)
		return;
	waiting->claimed = true;
	if (entry.slice_count != 0) {
		cf_verify_check_location(v, &entry, &place);
		(void)cf_verify_ok(v, cf_verify_check_extension(v, &entry, false, &error), &error, &place);
	} else {
		check_orphan(v, &place);
	}
	cf_verify_add_row(v, key, value, waiting->origin, !waiting->broken);
	if (row < cf_selection_count(v->selection) && !cf_verify_failed(v))
		find_slices(v, row);
}

/* The slices of all tensors, then the tensors among the deferred entries, in the order of a listing: by size of their
 * names. */
static void find_all_slices(cf_verifier *v)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, CF_NO_OFFSET};
	ckptfmt_error error;
	uint64_t count = cf_selection_count(v->selection);
	for (uint64_t row = 0; row < count && !cf_verify_failed(v); row++)
		find_slices(v, row);
	if (!cf_verify_ok(v, cf_deferred_by_size(&v->deferred, &v->places, &error), &error, &place))
		return;
	for (uint64_t i = 0; i < cf_deferred_count(&v->deferred) && !cf_verify_failed(v); i++) {
		cf_deferred_entry *waiting = cf_deferred_at(&v->deferred, v->places[i].row);
		if (!waiting->claimed)
			add_unclaimed(v, waiting);
	}
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* EXT-6: the checksums of the chunks combine to that of the value. */
static ckptfmt_status check_combination(const cf_verifier *v, const ckptfmt_stored *stored, ckptfmt_error *err)
{
	const uint32_t *crcs = (const uint32_t *)cf_buffer_items(&v->selection->chunk_crcs) + stored->chunks_first;
	uint64_t row = 0;
	uint32_t crc = 0;
	for (uint64_t done = 0; done < stored->size; row++) {
		uint64_t end = cf_verify_chunk_end(v, stored, row);
		crc = ckptfmt_crc32c_combine(crc, crcs[row], end - done);
		done = end;
	}
	if (crc != stored->crc32c)
		return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, CF_NO_OFFSET,
			"EXT-6: the checksum is 0x%08x, the chunk checksums combine to 0x%08x", stored->crc32c, crc);
	return CKPTFMT_OK;
}

/* The metadata of a value, without its bytes. */
static ckptfmt_status check_value(const cf_verifier *v, const ckptfmt_stored *stored, int64_t count,
	const ckptfmt_dtype_info *dtype, uint64_t origin, ckptfmt_error *err)
{
	int32_t storage = dtype == NULL ? CKPTFMT_STORAGE_FIXED : dtype->storage;
	if (storage == CKPTFMT_STORAGE_STRING || storage == CKPTFMT_STORAGE_VARIANT) {
		/* VAR-6 */
		if (storage == CKPTFMT_STORAGE_VARIANT && v->header_known && v->reader->header.endianness == 1)
			return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, origin, "VAR-6: variants of a big-endian bundle");
		/* STR-2, VAR-2 */
		CF_TRY(cf_string_tensor_check_count(storage, (uint64_t)count, stored->raw_size, origin, err));
	} else if (dtype != NULL && storage == CKPTFMT_STORAGE_FIXED) {
		CF_TRY(cf_geometry_check_size(stored, count, dtype->size, err));
	}
	CF_TRY(cf_geometry_check_expansion(stored, err));
	/* ENT-8 */
	if (stored->size == 0 && stored->crc32c != 0)
		return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, origin, "ENT-8: the checksum of no bytes is 0, not 0x%08x",
			stored->crc32c);
	return CKPTFMT_OK;
}

static void add_value(cf_verifier *v, uint64_t row_number, const ckptfmt_stored *stored, int64_t count,
	uint64_t origin)
{
	const ckptfmt_row *row = cf_selection_row(v->selection, row_number);
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(row->dtype);
	cf_verify_place place = {cf_verify_index_path(v), name_of(v, row), origin};
	cf_verify_value value = {*stored, row_number, (uint64_t)count, CKPTFMT_STORAGE_FIXED, 0};
	ckptfmt_error error;
	bool compressed = (stored->flags & CKPTFMT_STORED_COMPRESSED) != 0;
	bool broken = compressed && (stored->flags & CKPTFMT_STORED_BAD_CHUNKS) != 0;
	/* An unknown type is not a problem (section 4): the stored bytes are still checksummed, but never decoded. */
	bool known = (stored->flags & CKPTFMT_STORED_FEATURES) == 0 && cf_verify_ok(v, dtype == NULL
		? cf_geometry_check_byte_order(v->selection, stored, &error)
		: cf_geometry_check_decodable(v->selection, row, stored, &error), &error, &place) && !broken;
	if (known && !cf_verify_ok(v, check_value(v, stored, count, dtype, origin, &error), &error, &place)) {
		v->uncertain = true;
		return;
	}
	if (dtype != NULL)
		value.storage = dtype->storage;
	/* The stored chunks are checksummed, then decoded. */
	if (compressed) {
		value.decoded_storage = known && dtype != NULL ? value.storage : 0;
		value.storage = CKPTFMT_STORAGE_FIXED;
	}
	/* Broken rules were reported with the entry. Values with unknown features cannot be checked; unusable chunk
	 * checksums are not used. */
	if (cf_verify_dtype_impossible(row->dtype) || !known)
		value.storage = CKPTFMT_STORAGE_NONE;
	if (stored->flags & CKPTFMT_STORED_BAD_CHUNKS)
		value.stored.chunk_size = 0;
	if (value.storage == CKPTFMT_STORAGE_FIXED && value.stored.chunk_size != 0)
		(void)cf_verify_ok(v, check_combination(v, stored, &error), &error, &place);
	if (!v->header_known)
		return;
	cf_put_bytes(&v->values, &value, sizeof value);
	if (cf_verify_ok(v, cf_buffer_status(&v->values, &error), &error, &place))
		cf_verify_row_at(v, row_number)->pending++;
}

/* ---- tensors --------------------------------------------------------------------------------------------- */

static void check_partitioned(cf_verifier *v, uint64_t row_number)
{
	const ckptfmt_row *row = cf_selection_row(v->selection, row_number);
	cf_verify_place place = {cf_verify_index_path(v), name_of(v, row), cf_verify_row_at(v, row_number)->origin};
	uint64_t absent = 0, first_absent = 0;
	bool inside = true, sound = true;
	ckptfmt_error error;
	for (uint64_t slice = 0; slice < row->slice_count; slice++) {
		const cf_verify_part *part = part_at(v, row, slice);
		int64_t count;
		sound = cf_verify_ok(v, cf_geometry_check_extents(v->selection, row, slice, &count, &error), &error, &place) &&
			sound;
		inside = inside && count >= 0;
		if (part->state == CF_VERIFY_ABSENT && absent++ == 0)
			first_absent = slice;
		if (count >= 0 && part->state == CF_VERIFY_SOUND)
			add_value(v, row_number, &cf_selection_slices(v->selection, row)[slice].stored, count, part->origin);
	}
	v->uncertain = v->uncertain || !inside;
	/* SLC-7 */
	if (absent != 0)
		cf_verify_problem(v, CKPTFMT_FAIL_BAD_SLICE, &place,
			"SLC-7: %llu of %lu slices have no entry of their own; the first is slice %llu",
			(unsigned long long)absent, (unsigned long)row->slice_count, (unsigned long long)first_absent);
	/* SLC-6, SLC-11: meaningless if a slice itself is wrong. */
	if (sound)
		(void)cf_verify_ok(v, cf_geometry_check_cover(v->selection, row, NULL, &error), &error, &place);
}

static void check_tensor(cf_verifier *v, uint64_t row_number)
{
	const ckptfmt_row *row = cf_selection_row(v->selection, row_number);
	if (row->slice_count != 0)
		check_partitioned(v, row_number);
	else if (cf_verify_row_at(v, row_number)->placed)
		add_value(v, row_number, &row->stored, row->element_count, cf_verify_row_at(v, row_number)->origin);
}

void cf_verify_tensors(cf_verifier *v)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, CF_NO_OFFSET};
	ckptfmt_error error;
	find_all_slices(v);
	if (cf_verify_failed(v) || !cf_verify_ok(v, cf_selection_finish(v->selection, &error), &error, &place))
		return;
	for (uint64_t row = 0; row < cf_selection_count(v->selection) && !cf_verify_failed(v); row++) {
		check_tensor(v, row);
		if (cf_verify_row_at(v, row)->pending == 0)
			v->tensors_done++;
	}
}

void cf_verify_value_done(cf_verifier *v, uint64_t row)
{
	if (--cf_verify_row_at(v, row)->pending == 0)
		v->tensors_done++;
}
