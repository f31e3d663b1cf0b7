/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk yields entries by key, and those of one key by input. The first entry of a key is its owner: the result's
 * entry is the owner's with the slices of the others appended. A group collects the entries of one key; it copies the
 * owner of a partitioned tensor, since the walk moves on.
 *
 * The numbers of the data files (MRG-6) are known only after the last entry. Until then the entries of the result are
 * in memory, in canonical form without a shard id.
 */
#include "merge/join.h"

#include "base/memory.h"
#include "merge/walk.h"
#include "slices/box.h"
#include "slices/key.h"
#include "table/keys.h"

#include <stdio.h>
#include <string.h>

typedef struct group {
	cf_merge_inputs *inputs;
	cf_entry entry;             /* the owner's; its bytes are a copy if it has slices, else valid until the next step */
	int64_t dims[CKPTFMT_RANK_MAX];
	uint32_t owner;
	uint64_t member_count;      /* 0: no group yet */
	cf_merge_file *file;        /* with the owner's bytes */
	cf_buffer key, value;       /* of an owner with slices */
	cf_buffer slices;           /* of the other members, as fields of an entry */
	cf_buffer extents;          /* with two members or more, or not `partial`: int64_t starts, lengths of all slices, */
	cf_buffer holders;          /* and uint32_t, the input of each */
	cf_merge_joined *joined;    /* takes the groups that are complete */
	cf_buffer canonical;        /* scratch */
	bool partial;               /* slices need not cover their tensor */
	uint64_t incomplete;        /* tensors that they do not cover, */
	ckptfmt_error first;        /* and the error about the first of these */
} group;

/* An entry of the result. */
struct cf_merge_entry {
	struct cf_merge_entry *next;
	const cf_merge_file *file;
	uint32_t key_size, value_size;
	uint32_t shard_at;          /* where the field of the shard id belongs in the value */
	uint8_t bytes[];            /* the key, then the value */
};

static void free_group(group *g)
{
	cf_buffer_free(&g->key);
	cf_buffer_free(&g->value);
	cf_buffer_free(&g->slices);
	cf_buffer_free(&g->extents);
	cf_buffer_free(&g->holders);
	cf_buffer_free(&g->canonical);
}

static ckptfmt_status conflict(const group *g, uint32_t first, uint32_t second, cf_bytes_view key, const char *what,
	ckptfmt_error *err)
{
	const cf_merge_input *a = &g->inputs->rows[first], *b = &g->inputs->rows[second];
	ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET, "%s in %s and %s", what,
		cf_merge_name(a->name), cf_merge_name(b->name));
	cf_slice_key_error(err, key.data, key.size);
	cf_error_path(err, b->prefix.index_path);
	return status;
}

/* ---- groups ---------------------------------------------------------------------------------------------- */

static ckptfmt_status decode(const group *g, const cf_table_iterator *at, int64_t *dims, cf_entry *out,
	ckptfmt_error *err)
{
	return cf_entry_decode((cf_bytes_view){at->value, at->value_size}, at->value_offset, g->inputs->limits.slices_max,
		dims, out, err);
}

/* No entry of an input may be damaged. Slices of tensors that only one input has are looked at here alone, but not
 * those that the own entry of a slice lists (SLC-10). */
static ckptfmt_status check_slices(const cf_table_iterator *at, const cf_entry *entry, ckptfmt_error *err)
{
	int64_t extent[2 * CKPTFMT_RANK_MAX];
	uint64_t position = 0;
	bool found = !cf_slice_key_looks_like(at->key, at->key_size);
	while (found)
		CF_TRY(cf_entry_next_slice(entry, &position, extent, extent + entry->rank, &found, err));
	return CKPTFMT_OK;
}

/* Records the boxes of an entry's slices. */
static ckptfmt_status record_slices(group *g, uint32_t input, const cf_entry *entry, ckptfmt_error *err)
{
	int64_t extent[2 * CKPTFMT_RANK_MAX];
	uint64_t position = 0;
	int32_t rank = entry->rank;
	bool found;
	for (;;) {
		CF_TRY(cf_entry_next_slice(entry, &position, extent, extent + rank, &found, err));
		if (!found)
			return CKPTFMT_OK;
		CF_TRY(cf_box_resolve(rank, g->dims, extent, extent + rank, NULL, NULL, err));
		cf_put_bytes(&g->extents, extent, 2 * (uint64_t)rank * sizeof *extent);
		cf_put_bytes(&g->holders, &input, sizeof input);
	}
}

static ckptfmt_status begin_group(group *g, uint32_t input, const cf_table_iterator *at, ckptfmt_error *err)
{
	CF_TRY(decode(g, at, g->dims, &g->entry, err));
	g->owner = input;
	g->member_count = 1;
	if (CF_LIKELY(g->entry.slice_count == 0))
		return CKPTFMT_OK;
	cf_buffer_clear(&g->key);
	cf_buffer_clear(&g->value);
	cf_buffer_clear(&g->slices);
	cf_buffer_clear(&g->extents);
	cf_buffer_clear(&g->holders);
	cf_put_bytes(&g->key, at->key, at->key_size);
	cf_put_bytes(&g->value, at->value, at->value_size);
	CF_TRY(cf_buffer_status(&g->key, err));
	CF_TRY(cf_buffer_status(&g->value, err));
	g->entry.bytes.data = g->value.data;
	CF_TRY(check_slices(at, &g->entry, err));
	return g->partial || cf_slice_key_looks_like(at->key, at->key_size) ? CKPTFMT_OK
		: record_slices(g, input, &g->entry, err);
}

/* EXT-7: several inputs may have the same metadata; the first one's is kept. */
static bool is_metadata(const cf_table_iterator *at)
{
	return at->key_size == sizeof CF_METADATA_NAME - 1 &&
		memcmp(at->key, CF_METADATA_NAME, sizeof CF_METADATA_NAME - 1) == 0;
}

static bool is_scalar_string(const cf_entry *entry)
{
	return entry->dtype == CKPTFMT_STRING && entry->rank == 0 && entry->slice_count == 0;
}

/* Metadata of an input whose metadata the result does not have. */
static bool is_other_metadata(const cf_merge_walk *walk)
{
	const cf_merge_input *from = walk->inputs->metadata;
	return from != NULL && from != &walk->inputs->rows[walk->input] && is_metadata(walk->at);
}

/* EXT-8: placeholders of the inputs are dropped, whatever their data file: other software renumbers them. */
static bool is_placeholder(const cf_table_iterator *at)
{
	size_t size = sizeof CF_PLACEHOLDER_PREFIX - 1;
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	if (at->key_size <= size || memcmp(at->key, CF_PLACEHOLDER_PREFIX, size) != 0)
		return false;
	for (uint64_t i = size; i < at->key_size; i++)
		if (at->key[i] < '0' || at->key[i] > '9')
			return false;
	return cf_entry_decode((cf_bytes_view){at->value, at->value_size}, CF_NO_OFFSET, UINT64_MAX, dims, &entry, NULL) ==
		CKPTFMT_OK && entry.dtype == CKPTFMT_FLOAT && entry.rank == 1 && dims[0] == 0 && entry.size == 0 &&
		entry.slice_count == 0;
}

/* Steps to the next entry that is not dropped. */
static inline ckptfmt_status next_entry(cf_merge_walk *walk, bool *more, ckptfmt_error *err)
{
	bool same_key = true;
	do {
		CF_TRY(cf_merge_walk_next(walk, more, err));
		/* Of three entries of one key the second may be dropped. */
		same_key = same_key && walk->same_key;
	} while (*more && (is_placeholder(walk->at) || is_other_metadata(walk)));
	walk->same_key = same_key;
	return CKPTFMT_OK;
}

/* ---- members --------------------------------------------------------------------------------------------- */

/* MRG-3, MRG-4, MRG-16: another entry of the group's key. */
static ckptfmt_status add_member(group *g, uint32_t input, const cf_table_iterator *at, const cf_entry *other,
	const int64_t *dims, ckptfmt_error *err)
{
	const cf_entry *owner = &g->entry;
	cf_bytes_view key = {at->key, at->key_size};
	if (is_metadata(at))
		return is_scalar_string(owner) && is_scalar_string(other) && other->size == owner->size &&
			other->masked_crc == owner->masked_crc ? CKPTFMT_OK
			: conflict(g, g->owner, input, key, "MRG-16: the metadata differ", err);
	if (owner->slice_count == 0 || other->slice_count == 0)
		return conflict(g, g->owner, input, key, "MRG-3: Duplicate tensor keyed by this name", err);
	if (other->dtype != owner->dtype || other->rank != owner->rank ||
		memcmp(dims, g->dims, (size_t)other->rank * sizeof *dims) != 0)
		return conflict(g, g->owner, input, key, "MRG-4: dtype or shape differ", err);
	if (g->member_count++ == 1 && g->holders.size == 0)
		CF_TRY(record_slices(g, g->owner, owner, err));
	CF_TRY(record_slices(g, input, other, err));
	return cf_entry_copy_slices(&g->slices, other, err);
}

/* MRG-5, and SLC-11 unless `partial`. */
static ckptfmt_status check_boxes(group *g, ckptfmt_error *err)
{
	static const int64_t starts[CKPTFMT_RANK_MAX];
	const uint32_t *holder = (const uint32_t *)cf_buffer_items(&g->holders);
	cf_boxes boxes = {g->dims, (const int64_t *)cf_buffer_items(&g->extents), g->holders.size / sizeof *holder,
		g->entry.rank};
	uint64_t rows[2] = {0, 0};
	ckptfmt_status status = CKPTFMT_OK;
	ckptfmt_error error;
	CF_TRY(cf_buffer_status(&g->extents, err));
	CF_TRY(cf_buffer_status(&g->holders, err));
	if (g->member_count > 1)
		status = cf_boxes_check_disjoint(&boxes, rows, err);
	if (status == CKPTFMT_CORRUPT)
		status = conflict(g, holder[rows[0]], holder[rows[1]], (cf_bytes_view){g->key.data, g->key.size},
			"MRG-5: slices overlap", err);
	if (status != CKPTFMT_OK || g->partial || boxes.count == 0)
		return status;
	if (cf_boxes_cover(&boxes, starts, g->dims, &error) != CKPTFMT_OK && g->incomplete++ == 0) {
		g->first = error;
		cf_error_tensor(&g->first, g->key.data, g->key.size);
	}
	return CKPTFMT_OK;
}

/* The entry's place is one of the input (ENT-3, ENT-4). MRG-11: the data file exists and has the entry's bytes. */
static ckptfmt_status check_value(cf_merge_input *in, const cf_table_iterator *at, const cf_entry *entry,
	cf_merge_file **file, ckptfmt_error *err)
{
	/* Slices that the own entry of a slice lists are ignored (SLC-10). */
	bool owns_bytes = entry->slice_count == 0 || cf_slice_key_looks_like(at->key, at->key_size);
	CF_TRY(cf_check_place(entry->shard, owns_bytes ? entry->offset : 0, owns_bytes ? entry->size : 0,
		in->header.num_shards, entry->origin, err));
	CF_TRY(cf_merge_input_file(in, entry->shard, file, err));
	if (!cf_entry_fits(entry, owns_bytes, (*file)->info.size))
		return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, entry->origin,
			"DAT-2: %lld bytes at %lld, but the data file has %llu", (long long)entry->size,
			(long long)entry->offset, (unsigned long long)(*file)->info.size);
	return CKPTFMT_OK;
}

static ckptfmt_status put_entry(group *g, cf_bytes_view key, ckptfmt_error *err)
{
	cf_merge_joined *joined = g->joined;
	const cf_bytes_view more_slices = {g->slices.data, g->entry.slice_count == 0 ? 0 : g->slices.size};
	cf_merge_entry *entry;
	uint64_t shard_at;
	cf_buffer_clear(&g->canonical);
	CF_TRY(cf_entry_reencode(&g->canonical, &g->entry, g->dims, 0, more_slices, &shard_at, err));
	CF_TRY(cf_buffer_status(&g->canonical, err));
	if (g->canonical.size > UINT32_MAX)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET, "an entry of the result is larger than 4 GiB");
	entry = cf_arena_take(&joined->memory, sizeof *entry + key.size + g->canonical.size);
	if (entry == NULL)
		return cf_fail_memory(err);
	*entry = (cf_merge_entry){.file = g->file, .key_size = (uint32_t)key.size,
		.value_size = (uint32_t)g->canonical.size, .shard_at = (uint32_t)shard_at};
	memcpy(entry->bytes, key.data, (size_t)key.size);
	memcpy(entry->bytes + key.size, g->canonical.data, (size_t)g->canonical.size);
	if (joined->last == NULL)
		joined->first = entry;
	else
		joined->last->next = entry;
	joined->last = entry;
	return CKPTFMT_OK;
}

/* A partitioned tensor waits for the slices of other inputs. */
static ckptfmt_status finish_group(group *g, ckptfmt_error *err)
{
	if (g->member_count == 0 || g->entry.slice_count == 0)
		return CKPTFMT_OK;
	CF_TRY(check_boxes(g, err));
	CF_TRY(cf_buffer_status(&g->slices, err));
	return put_entry(g, (cf_bytes_view){g->key.data, g->key.size}, err);
}

static ckptfmt_status take_entry(group *g, const cf_merge_walk *walk, ckptfmt_error *err)
{
	cf_merge_input *in = &g->inputs->rows[walk->input];
	const cf_table_iterator *at = walk->at;
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_merge_file *file;
	cf_entry other;
	if (walk->same_key) {
		CF_TRY(decode(g, at, dims, &other, err));
		CF_TRY(check_value(in, at, &other, &file, err));
		return add_member(g, walk->input, at, &other, dims, err);
	}
	CF_TRY(begin_group(g, walk->input, at, err));
	CF_TRY(check_value(in, at, &g->entry, &g->file, err));
	if (CF_UNLIKELY(!g->file->referenced)) {
		/* MRG-6: the order in which an input's data files are first needed. */
		g->file->referenced = true;
		cf_put_bytes(&in->order, &g->entry.shard, sizeof g->entry.shard);
		CF_TRY(cf_buffer_status(&in->order, err));
	}
	return g->entry.slice_count != 0 ? CKPTFMT_OK : put_entry(g, (cf_bytes_view){at->key, at->key_size}, err);
}

static ckptfmt_status join_entries(group *g, ckptfmt_error *err)
{
	enum { ENTRIES_PER_REPORT = 1 << 14 };
	cf_merge_walk walk;
	bool more;
	ckptfmt_status status = cf_merge_walk_open(&walk, g->inputs, err);
	for (uint64_t count = 1; status == CKPTFMT_OK; count++) {
		status = next_entry(&walk, &more, err);
		if (status == CKPTFMT_OK && count % ENTRIES_PER_REPORT == 0)
			status = cf_progress_check(g->inputs->progress, err);
		if (status == CKPTFMT_OK && !(more && walk.same_key))
			status = finish_group(g, err);
		if (status != CKPTFMT_OK || !more)
			break;
		status = take_entry(g, &walk, err);
		if (status != CKPTFMT_OK) {
			cf_slice_key_error(err, walk.at->key, walk.at->key_size);
			cf_error_path(err, g->inputs->rows[walk.input].prefix.index_path);
		}
	}
	cf_merge_walk_close(&walk);
	return status;
}

/* The error about incomplete tensors. */
static ckptfmt_status report_incomplete(const group *g, ckptfmt_error *err)
{
	ckptfmt_status status = g->incomplete < 2 ? cf_fail_from(CKPTFMT_CORRUPT, &g->first, err)
		: cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET, "%s (and %llu more tensor%s)", g->first.message,
			(unsigned long long)g->incomplete - 1, g->incomplete == 2 ? "" : "s");
	cf_error_tensor(err, (const uint8_t *)g->first.tensor, g->first.tensor_size);
	return status;
}

ckptfmt_status cf_merge_join(cf_merge_inputs *inputs, bool partial, cf_merge_joined *joined, ckptfmt_error *err)
{
	group g = {.inputs = inputs, .joined = joined, .partial = partial};
	ckptfmt_status status = join_entries(&g, err);
	if (status == CKPTFMT_OK && g.incomplete != 0)
		status = report_incomplete(&g, err);
	free_group(&g);
	CF_TRY(status);
	for (uint64_t i = 0; i < inputs->count; i++) {
		const cf_merge_input *in = &inputs->rows[i];
		const int32_t *order = (const int32_t *)cf_buffer_items(&in->order);
		for (uint64_t k = 0; k < in->order.size / sizeof *order; k++) {
			if (joined->file_count == INT32_MAX - 1)
				return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET, "MRG-8: too many data files");
			cf_merge_input_known_file(in, order[k])->new_shard = joined->file_count++;
		}
	}
	return CKPTFMT_OK;
}

void cf_merge_joined_free(cf_merge_joined *joined)
{
	cf_arena_free(&joined->memory);
}

/* ---- writing --------------------------------------------------------------------------------------------- */

enum { PLACEHOLDER_NAME_SIZE = sizeof CF_PLACEHOLDER_PREFIX + 10 };

/* The placeholders of the result, in the order of their names. */
typedef struct placeholders {
	char (*names)[PLACEHOLDER_NAME_SIZE];
	cf_sort_key *sorted;        /* row: shard number less `first` */
	uint64_t count, next;
	int32_t first;
} placeholders;

typedef struct writing {
	placeholders places;
	cf_table_writer *table;
	cf_buffer value;
} writing;

static ckptfmt_status open_placeholders(placeholders *p, int32_t first, int32_t end, ckptfmt_error *err)
{
	p->first = first;
	p->count = (uint64_t)(end - first);
	p->names = cf_allocate(p->count * sizeof *p->names);
	p->sorted = cf_allocate(p->count * sizeof *p->sorted);
	if (p->names == NULL || p->sorted == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < p->count; i++) {
		(void)snprintf(p->names[i], sizeof p->names[i], CF_PLACEHOLDER_PREFIX "%d", (int)(first + (int32_t)i));
		p->sorted[i] = (cf_sort_key){(const uint8_t *)p->names[i], strlen(p->names[i]), i};
	}
	cf_sort_keys(p->sorted, p->count);
	return CKPTFMT_OK;
}

static ckptfmt_status put_placeholder(writing *w, const cf_sort_key *place, ckptfmt_error *err)
{
	static const int64_t dims[1] = {0};
	cf_entry_fields fields;
	memset(&fields, 0, sizeof fields);
	fields.dtype = CKPTFMT_FLOAT;
	fields.rank = 1;
	fields.dims = dims;
	fields.masked_crc = ckptfmt_crc32c_mask(0);
	fields.shard = w->places.first + (int32_t)place->row;
	cf_buffer_clear(&w->value);
	cf_entry_encode(&w->value, &fields);
	CF_TRY(cf_buffer_status(&w->value, err));
	return cf_table_writer_add(w->table, place->key, place->key_size, w->value.data, w->value.size, err);
}

/* Writes the placeholders that come before the key, or all that are left if it is NULL. */
static ckptfmt_status put_placeholders(writing *w, const uint8_t *key, uint64_t key_size, ckptfmt_error *err)
{
	placeholders *p = &w->places;
	for (; p->next < p->count; p->next++) {
		const cf_sort_key *place = &p->sorted[p->next];
		int order = key == NULL ? -1 : cf_key_compare(place->key, place->key_size, key, key_size);
		if (order > 0)
			return CKPTFMT_OK;
		if (order == 0) {
			ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET,
				"EXT-8: the result needs this name for data file %d, but an input has a tensor of that name",
				(int)(p->first + (int32_t)place->row));
			cf_error_tensor(err, key, key_size);
			return status;
		}
		CF_TRY(put_placeholder(w, place, err));
	}
	return CKPTFMT_OK;
}

static ckptfmt_status write_entry(writing *w, const cf_merge_entry *entry, ckptfmt_error *err)
{
	enum { SHARD_TAG = 3 << 3 };
	const uint8_t *key = entry->bytes, *value = key + entry->key_size;
	const int32_t shard = entry->file->new_shard;
	uint8_t field[16] = {SHARD_TAG};
	uint64_t field_size = shard == 0 ? 0 : 1 + cf_store_varint(field + 1, (uint64_t)shard);
	CF_TRY(put_placeholders(w, key, entry->key_size, err));
	cf_buffer_clear(&w->value);
	cf_put_bytes(&w->value, value, entry->shard_at);
	cf_put_bytes(&w->value, field, field_size);
	cf_put_bytes(&w->value, value + entry->shard_at, entry->value_size - entry->shard_at);
	CF_TRY(cf_buffer_status(&w->value, err));
	return cf_table_writer_add(w->table, key, entry->key_size, w->value.data, w->value.size, err);
}

/* MRG-8 */
static ckptfmt_status put_header(const cf_merge_inputs *inputs, int32_t new_count, cf_table_writer *table,
	ckptfmt_error *err)
{
	cf_buffer header = CF_BUFFER_EMPTY;
	int32_t producer = inputs->rows[0].header.producer, min_consumer = inputs->rows[0].header.min_consumer;
	ckptfmt_status status;
	/* MRG-15: a reader that cannot read an input with compressed values cannot read the result. */
	for (uint64_t i = 1; i < inputs->count; i++) {
		const cf_header *other = &inputs->rows[i].header;
		producer = other->producer > producer ? other->producer : producer;
		min_consumer = other->min_consumer > min_consumer ? other->min_consumer : min_consumer;
	}
	status = cf_header_reencode(&header, &inputs->rows[0].header, new_count, producer, min_consumer, err);
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(&header, err);
	if (status == CKPTFMT_OK)
		status = cf_table_writer_add(table, (const uint8_t *)"", 0, header.data, header.size, err);
	cf_buffer_free(&header);
	return status;
}

ckptfmt_status cf_merge_write(const cf_merge_inputs *inputs, const cf_merge_joined *joined, int32_t new_count,
	cf_table_writer *table, ckptfmt_error *err)
{
	writing w = {.table = table, .value = CF_BUFFER_EMPTY};
	ckptfmt_status status = open_placeholders(&w.places, joined->file_count, new_count, err);
	if (status == CKPTFMT_OK)
		status = put_header(inputs, new_count, table, err);
	for (const cf_merge_entry *entry = joined->first; entry != NULL && status == CKPTFMT_OK; entry = entry->next)
		status = write_entry(&w, entry, err);
	if (status == CKPTFMT_OK)
		status = put_placeholders(&w, NULL, 0, err);
	cf_release(w.places.names);
	cf_release(w.places.sorted);
	cf_buffer_free(&w.value);
	return status;
}
