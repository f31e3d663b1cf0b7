/* SPDX-License-Identifier: Apache-2.0 */
/* From entries to stored values: which slice belongs to which tensor, whether the slices of a tensor are disjoint and
 * cover it, and whether each value has the size that its shape says. */
#include "verify/private.h"

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

/* SLC-10 */
static void note_nested(cf_verifier *v, cf_bytes_view value, const cf_verify_place *place)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	if (cf_entry_decode(value, place->offset, v->reader->limits.slices_max, dims, &entry, NULL) == CKPTFMT_OK &&
		entry.slice_count != 0)
		cf_verify_note(v, CF_VERIFY_NESTED_SLICES, place, "SLC-10: the entry of a slice lists slices");
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
		&error), &error, &place)) {
		note_nested(v, value, &place);
		part->state = CF_VERIFY_FOUND;
	}
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
	if (cf_slice_key_decode(place->key.data, place->key.size, &v->key, &rank, starts, lengths))
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
	cf_entry entry;
	/* An entry that cannot be decoded has been reported. */
	if (cf_entry_decode(value, waiting->origin, v->reader->limits.slices_max, dims, &entry, NULL) != CKPTFMT_OK)
		return;
	waiting->claimed = true;
	if (entry.slice_count != 0) {
		cf_verify_list_entry(v, &entry, &place);
	} else {
		check_orphan(v, &place);
	}
	cf_verify_add_row(v, key, value, waiting->origin);
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

enum {
	PLACE = 1 << CF_VALUE_PLACE, LISTED = 1 << CF_VALUE_LISTED, VARIANT = 1 << CF_VALUE_VARIANT,
	FEATURES = 1 << CF_VALUE_FEATURES, BYTE_ORDER = 1 << CF_VALUE_BYTE_ORDER, CHUNKS = 1 << CF_VALUE_CHUNKS,
	/* If one of these rules is broken, the bytes have no meaning, but still a place in the data file. */
	FORM = FEATURES | BYTE_ORDER | CHUNKS,
	ANY = INT32_MAX
};

/* The rules of a value in the order in which they are asked, and the failures after which one is not: section 3 of
 * conformance.md. DTY-6 is not asked: of an unknown type the stored bytes are checksummed, and never decoded. */
static const struct {
	cf_value_rule rule;
	uint32_t not_after;
} asked[] = {
	{CF_VALUE_FEATURES, 0},
	{CF_VALUE_CHUNKS, FEATURES},
	{CF_VALUE_PLACE, 0},
	{CF_VALUE_LISTED, PLACE},
	{CF_VALUE_VARIANT, PLACE | LISTED},
	{CF_VALUE_BYTE_ORDER, PLACE | LISTED | VARIANT | FEATURES},
	{CF_VALUE_SIZE, ANY},
	{CF_VALUE_EXPANSION, ANY},
	{CF_VALUE_COUNT, ANY},
	{CF_VALUE_EMPTY, ANY},
};
CF_STATIC_ASSERT(CF_ARRAY_COUNT(asked) == CF_VALUE_RULES - 1, "a rule was added: where is it asked?");

/* Reports the rules that the value breaks. `positioned`: its slice lies within the tensor. */
static uint32_t broken_rules(cf_verifier *v, const ckptfmt_row *row, uint64_t slice, bool positioned,
	const cf_verify_place *place)
{
	const ckptfmt_stored *stored = cf_value_stored(v->selection, row, slice);
	bool compressed = (stored->flags & CKPTFMT_STORED_COMPRESSED) != 0;
	uint32_t broken = 0;
	for (uint32_t i = 0; i < CF_ARRAY_COUNT(asked); i++) {
		cf_value_rule rule = asked[i].rule;
		ckptfmt_error error;
		/* How many chunks a negative size has, nobody can tell: ENT-4 alone. */
		if ((broken & asked[i].not_after) != 0 || (asked[i].not_after == ANY && !positioned) ||
			(rule == CF_VALUE_CHUNKS && !compressed && stored->size > INT64_MAX) ||
			cf_verify_ok(v, cf_value_check_rule(v->selection, row, slice, rule, &error), &error, place))
			continue;
		/* The chunk checksums of an uncompressed value say nothing about the value itself: they are not used. */
		if (rule != CF_VALUE_CHUNKS || compressed)
			broken |= 1u << rule;
	}
	return broken;
}

static void add_value(cf_verifier *v, uint64_t row_number, uint64_t slice, int64_t count, uint64_t origin)
{
	const ckptfmt_row *row = cf_selection_row(v->selection, row_number);
	const ckptfmt_stored *stored = cf_value_stored(v->selection, row, slice);
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(row->dtype);
	cf_verify_place place = {cf_verify_index_path(v), name_of(v, row), origin};
	cf_verify_value value = {*stored, row_number, (uint64_t)count,
		dtype == NULL ? CKPTFMT_STORAGE_FIXED : dtype->storage, 0};
	uint32_t broken = broken_rules(v, row, slice, count >= 0, &place);
	ckptfmt_error error;
	if (count < 0 || (broken & ~(uint32_t)FORM) != 0) {
		v->uncertain = true;
		return;
	}
	/* The stored chunks are checksummed, then decoded. */
	if (stored->flags & CKPTFMT_STORED_COMPRESSED) {
		value.decoded_storage = dtype == NULL || broken != 0 ? 0 : value.storage;
		value.storage = CKPTFMT_STORAGE_FIXED;
	}
	if (broken != 0 || cf_dtype_check(row->dtype, CF_NO_OFFSET, NULL) != CKPTFMT_OK)
		value.storage = CKPTFMT_STORAGE_NONE;
	if (value.storage == CKPTFMT_STORAGE_FIXED && stored->chunk_size != 0)
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
		if (part->state == CF_VERIFY_FOUND)
			add_value(v, row_number, slice, count, part->origin);
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
	else
		add_value(v, row_number, CF_WHOLE_TENSOR, row->element_count, cf_verify_row_at(v, row_number)->origin);
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
