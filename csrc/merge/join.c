/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk gives entries by key, those of one key by input. The first of a key is its owner: the result's entry is the
 * owner's, with the slices of the others. Nearly all entries are alone, and are checked and written as they come. Of a
 * partitioned tensor a group gathers what there is; it holds copies, since the walk goes on.
 */
#include "merge/join.h"

#include "base/memory.h"
#include "merge/walk.h"
#include "table/keys.h"
#include "slices/box.h"
#include "slices/key.h"
#include "base/pages.h"
#include "base/pages.h"
#include "base/workers.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

enum { RESERVED = '_' };        /* which the keys of metadata and placeholders begin with */

typedef struct group {
	cf_merge_inputs *inputs;
	cf_entry entry;             /* the owner's; what it points to is there only while it has slices */
	int64_t dims[CKPTFMT_RANK_MAX];
	uint32_t owner;
	uint64_t member_count;      /* 0: no group yet */
	cf_buffer key, value;       /* of an owner with slices */
	cf_buffer slices;           /* of the others, as fields of an entry */
	cf_buffer extents;          /* int64_t: starts and lengths of all slices, */
	cf_buffer holders;          /* uint32_t: and the input of each; only when checking, and with two members */
	bool checks, writes;        /* what this pass is for */
	const cf_merge_file *file;  /* of the last plain entry, known and referenced; NULL: none yet. */
	uint32_t file_input;        /* The input it is one of, */
	int32_t file_shard;         /* and its number there */
} group;

static void free_group(group *g)
{
	cf_buffer_free(&g->key);
	cf_buffer_free(&g->value);
	cf_buffer_free(&g->slices);
	cf_buffer_free(&g->extents);
	cf_buffer_free(&g->holders);
}

/* Of a slice's key, the tensor it is a slice of. */
static void name_tensor(ckptfmt_error *err, const uint8_t *key, uint64_t size)
{
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	cf_buffer name = CF_BUFFER_EMPTY;
	int32_t rank;
	if (cf_slice_key_looks_like(key, size) &&
		cf_slice_key_decode(key, size, &name, &rank, starts, lengths, NULL) == CKPTFMT_OK)
		cf_error_tensor(err, name.data, name.size);
	cf_error_tensor(err, key, size);
	cf_buffer_free(&name);
}

static ckptfmt_status conflict(const group *g, uint32_t first, uint32_t second, cf_bytes_view key, const char *what,
	ckptfmt_error *err)
{
	const cf_merge_input *a = &g->inputs->rows[first], *b = &g->inputs->rows[second];
	ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET, "%s in %s and %s", what,
		cf_merge_name(a->name), cf_merge_name(b->name));
	name_tensor(err, key.data, key.size);
	cf_error_path(err, b->prefix.index_path);
	return status;
}

/* ---- members --------------------------------------------------------------------------------------------- */

static ckptfmt_status begin_group(group *g, uint32_t input, const cf_table_iterator *at, ckptfmt_error *err)
{
	cf_bytes_view value = {at->value, at->value_size};
	CF_TRY(cf_entry_decode(value, at->value_offset, g->inputs->limits.slices_max, g->dims, &g->entry, err));
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
	return CKPTFMT_OK;
}

/* EXT-7: metadata stand in one data file and may be said by many. */
static bool is_metadata(const cf_table_iterator *at)
{
	return at->key_size == sizeof CF_METADATA_NAME - 1 &&
		memcmp(at->key, CF_METADATA_NAME, sizeof CF_METADATA_NAME - 1) == 0;
}

static bool is_scalar_string(const cf_entry *entry)
{
	return entry->dtype == CKPTFMT_STRING && entry->rank == 0 && entry->slice_count == 0;
}

static bool same_metadata(const group *g, const cf_entry *other)
{
	return is_scalar_string(&g->entry) && is_scalar_string(other) && other->size == g->entry.size &&
		other->masked_crc == g->entry.masked_crc;
}

/* Notes the boxes of an entry's slices. */
static ckptfmt_status note_slices(group *g, uint32_t input, const cf_entry *entry, ckptfmt_error *err)
{
	int64_t extent[2 * CKPTFMT_RANK_MAX];
	cf_slice_walk walk = {0, 0};
	int32_t rank = entry->rank;
	bool found;
	for (;;) {
		CF_TRY(cf_entry_next_slice(entry, &walk, extent, extent + rank, &found, err));
		if (!found)
			return CKPTFMT_OK;
		CF_TRY(cf_box_resolve(rank, g->dims, extent, extent + rank, NULL, NULL, err));
		cf_put_bytes(&g->extents, extent, 2 * (uint64_t)rank * sizeof *extent);
		cf_put_bytes(&g->holders, &input, sizeof input);
	}
}

/* Another entry of the group's key; its slices are noted to be checked, or taken over. */
static ckptfmt_status add_to_group(group *g, uint32_t input, const cf_table_iterator *at, const cf_entry *other,
	const int64_t *dims, ckptfmt_error *err)
{
	cf_bytes_view key = {at->key, at->key_size};
	if (is_metadata(at))
		return same_metadata(g, other) ? CKPTFMT_OK
			: conflict(g, g->owner, input, key, "MRG-16: the metadata differ", err);
	/* MRG-3, MRG-4 */
	if (g->entry.slice_count == 0 || other->slice_count == 0)
		return conflict(g, g->owner, input, key, "MRG-3: the tensor is", err);
	if (other->dtype != g->entry.dtype || other->rank != g->entry.rank ||
		memcmp(dims, g->dims, (size_t)other->rank * sizeof *dims) != 0)
		return conflict(g, g->owner, input, key, "MRG-4: dtype or shape differ", err);
	if (g->writes)
		CF_TRY(cf_entry_copy_slices(&g->slices, other, err));
	if (!g->checks)
		return CKPTFMT_OK;
	if (g->member_count++ == 1)
		CF_TRY(note_slices(g, g->owner, &g->entry, err));
	return note_slices(g, input, other, err);
}

/* ---- checking -------------------------------------------------------------------------------------------- */

/* MRG-5 */
static ckptfmt_status check_disjoint(const group *g, ckptfmt_error *err)
{
	const uint32_t *holder = (const uint32_t *)(const void *)g->holders.data;
	cf_boxes boxes = {g->dims, (const int64_t *)(const void *)g->extents.data, g->holders.size / sizeof *holder,
		g->entry.rank};
	uint64_t rows[2] = {0, 0};
	ckptfmt_status status;
	CF_TRY(cf_buffer_status(&g->extents, err));
	CF_TRY(cf_buffer_status(&g->holders, err));
	status = cf_boxes_check_disjoint(&boxes, rows, err);
	if (status == CKPTFMT_CORRUPT)
		status = conflict(g, holder[rows[0]], holder[rows[1]], (cf_bytes_view){g->key.data, g->key.size},
			"MRG-5: slices overlap", err);
	return status;
}

/* MRG-11: the data file is there, and has the bytes. */
static ckptfmt_status check_value(cf_merge_input *in, const cf_entry *entry, ckptfmt_error *err)
{
	cf_merge_file *file;
	if (entry->shard < 0 || entry->shard >= in->header.num_shards)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, entry->origin, "ENT-3: shard number %d of %d",
			(int)entry->shard, (int)in->header.num_shards);
	CF_TRY(cf_merge_input_file(in, entry->shard, &file, err));
	if (!cf_entry_fits(entry, file->info.size))
		return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, entry->origin,
			"DAT-2: %lld bytes at %lld, but the data file has %llu", (long long)entry->size,
			(long long)entry->offset, (unsigned long long)file->info.size);
	return CKPTFMT_OK;
}

/* MRG-6: the order in which an input's data files are first needed. */
static ckptfmt_status reference(cf_merge_input *in, int32_t shard, ckptfmt_error *err)
{
	cf_merge_file *file = cf_merge_input_known_file(in, shard);
	if (file->referenced)
		return CKPTFMT_OK;
	file->referenced = true;
	file->new_shard = in->guess;
	cf_put_bytes(&in->order, &shard, sizeof shard);
	return cf_buffer_status(&in->order, err);
}

static ckptfmt_status finish_checking(const group *g, ckptfmt_error *err)
{
	return g->member_count > 1 ? check_disjoint(g, err) : CKPTFMT_OK;
}

/* EXT-8: those of the inputs go, and the result gets its own. */
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

static ckptfmt_status check_member(group *g, const cf_merge_walk *walk, ckptfmt_error *err)
{
	const cf_table_iterator *at = walk->at;
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry other;
	CF_TRY(cf_entry_decode((cf_bytes_view){at->value, at->value_size}, at->value_offset, g->inputs->limits.slices_max,
		dims, &other, err));
	CF_TRY(check_value(&g->inputs->rows[walk->input], &other, err));
	return add_to_group(g, walk->input, at, &other, dims, err);
}

static ckptfmt_status check_owner(group *g, const cf_merge_walk *walk, ckptfmt_error *err)
{
	cf_merge_input *in = &g->inputs->rows[walk->input];
	CF_TRY(begin_group(g, walk->input, walk->at, err));
	CF_TRY(check_value(in, &g->entry, err));
	return reference(in, g->entry.shard, err);
}

static ckptfmt_status check_entry(group *g, const cf_merge_walk *walk, ckptfmt_error *err)
{
	ckptfmt_status status;
	if (!walk->same_key)
		CF_TRY(finish_checking(g, err));
	status = walk->same_key ? check_member(g, walk, err) : check_owner(g, walk, err);
	if (status != CKPTFMT_OK) {
		name_tensor(err, walk->at->key, walk->at->key_size);
		cf_error_path(err, g->inputs->rows[walk->input].prefix.index_path);
	}
	return status;
}

/* To the next entry that is no placeholder. */
static inline ckptfmt_status next_entry(cf_merge_walk *walk, bool *more, ckptfmt_error *err)
{
	uint64_t common = UINT64_MAX;
	bool same_key = true;
	do {
		CF_TRY(cf_merge_walk_next(walk, more, err));
		/* Of three entries of a key the second may be left out. */
		same_key = same_key && walk->same_key;
		common = cf_min_u64(common, walk->common);
	} while (*more && walk->at->key_size != 0 && walk->at->key[0] == RESERVED && is_placeholder(walk->at));
	walk->same_key = same_key;
	walk->common = common;
	return CKPTFMT_OK;
}

/* *guessed: all have the numbers that were guessed. */
static ckptfmt_status number_files(cf_merge_inputs *inputs, int32_t *file_count, bool *guessed, ckptfmt_error *err)
{
	*file_count = 0;
	*guessed = true;
	for (uint64_t i = 0; i < inputs->count; i++) {
		const cf_merge_input *in = &inputs->rows[i];
		const int32_t *order = (const int32_t *)(const void *)in->order.data;
		for (uint64_t k = 0; k < in->order.size / sizeof *order; k++) {
			if (*file_count == INT32_MAX - 1)
				return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET, "MRG-8: too many data files");
			*guessed = *guessed && in->guess == *file_count;
			cf_merge_input_known_file(in, order[k])->new_shard = (*file_count)++;
		}
	}
	return CKPTFMT_OK;
}

/* ---- writing --------------------------------------------------------------------------------------------- */

enum { PLACEHOLDER_NAME_SIZE = sizeof CF_PLACEHOLDER_PREFIX + 10 };

/* The placeholders of the result, in the order of their names, put between the entries as these come. */
typedef struct placeholders {
	char (*names)[PLACEHOLDER_NAME_SIZE];
	cf_sort_key *sorted;        /* row: shard number less `first` */
	uint64_t count, next;
	int32_t first;
} placeholders;

typedef struct writing {
	group g;
	placeholders places;
	cf_table_writer *table;
	cf_buffer value;
	bool follows;               /* what was written last is the entry that the walk gave before this one */
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
	w->follows = false;
	cf_buffer_clear(&w->value);
	cf_entry_encode(&w->value, &fields);
	CF_TRY(cf_buffer_status(&w->value, err));
	return cf_table_writer_add(w->table, place->key, place->key_size, w->value.data, w->value.size, err);
}

/* Those that come before the key; all that are left where it is NULL. */
static ckptfmt_status put_placeholders(writing *w, const cf_bytes_view *key, ckptfmt_error *err)
{
	placeholders *p = &w->places;
	for (; p->next < p->count; p->next++) {
		const cf_sort_key *place = &p->sorted[p->next];
		int order = key == NULL ? -1 : cf_key_compare(place->key, place->key_size, key->data, key->size);
		if (order > 0)
			return CKPTFMT_OK;
		if (order == 0) {
			ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_MERGE_CONFLICT, CF_NO_OFFSET,
				"EXT-8: the result needs this name for data file %d, and %s has a tensor of it",
				(int)(p->first + (int32_t)place->row), cf_merge_name(w->g.inputs->rows[w->g.owner].name));
			cf_error_tensor(err, key->data, key->size);
			return status;
		}
		CF_TRY(put_placeholder(w, place, err));
	}
	return CKPTFMT_OK;
}

/* Writes the group's entry, whose key is given. */
static ckptfmt_status write_group(writing *w, cf_bytes_view key, ckptfmt_error *err)
{
	const group *g = &w->g;
	const cf_merge_input *in = &g->inputs->rows[g->owner];
	const cf_merge_file *file = NULL;
	CF_TRY(put_placeholders(w, &key, err));
	if (g->entry.shard >= 0 && g->entry.shard < in->header.num_shards)
		file = cf_merge_input_known_file(in, g->entry.shard);
	/* Only an index that was changed in place, which its inode, size and time need not show. */
	if (file == NULL || file->new_shard < 0)
		return cf_fail(err, CKPTFMT_FAIL_BUSY, CF_NO_OFFSET, "MRG-11: %s was changed meanwhile",
			cf_merge_name(in->name));
	cf_buffer_clear(&w->value);
	CF_TRY(cf_entry_reencode(&w->value, &g->entry, g->dims, file->new_shard,
		(cf_bytes_view){g->slices.data, g->entry.slice_count == 0 ? 0 : g->slices.size}, err));
	CF_TRY(cf_buffer_status(&w->value, err));
	return cf_table_writer_add(w->table, key.data, key.size, w->value.data, w->value.size, err);
}

/* An entry with slices was waiting for those of other inputs. */
static ckptfmt_status finish_writing(writing *w, ckptfmt_error *err)
{
	const group *g = &w->g;
	if (g->member_count == 0 || g->entry.slice_count == 0)
		return CKPTFMT_OK;
	CF_TRY(cf_buffer_status(&g->slices, err));
	return write_group(w, (cf_bytes_view){g->key.data, g->key.size}, err);
}

/* The data file of a plain entry, if entries before it were in that. */
static inline bool find_plain_file(group *g, uint32_t input, int32_t shard)
{
	const cf_merge_input *in = &g->inputs->rows[input];
	if (CF_LIKELY(g->file != NULL && g->file_input == input && g->file_shard == shard))
		return true;
	g->file = shard < in->header.num_shards ? cf_merge_input_known_file(in, shard) : NULL;
	if (g->file != NULL && !g->file->referenced)
		g->file = NULL;
	g->file_input = input;
	g->file_shard = shard;
	return g->file != NULL;
}

/* What nearly all entries are: the only one of its key so far, of a value stored whole, in a data file that entries
 * before it were in. Then all is checked that there is to check, and the group begins. */
static inline bool begin_plain(group *g, const cf_merge_walk *walk, cf_plain_entry *plain)
{
	const cf_table_iterator *at = walk->at;
	int64_t dims[CF_PLAIN_RANK_MAX];
	if (walk->same_key || g->entry.slice_count != 0 || at->key[0] == RESERVED ||
		!cf_entry_scan_plain((cf_bytes_view){at->value, at->value_size}, dims, plain) ||
		!find_plain_file(g, walk->input, plain->shard) ||
		!cf_range_fits(plain->offset, plain->size, g->file->info.size))
		return false;
	/* Another entry of this key, which is no key of metadata, is a conflict whatever else the two are. */
	g->owner = walk->input;
	g->member_count = 1;
	return true;
}

/* Only the number of the data file changes. */
static inline ckptfmt_status write_plain(writing *w, const cf_merge_walk *walk, const cf_plain_entry *plain,
	ckptfmt_error *err)
{
	const cf_table_iterator *at = walk->at;
	const cf_bytes_view bytes = {at->value, at->value_size};
	const int32_t shard = w->g.file->new_shard;
	uint8_t value[CF_PLAIN_SIZE_MAX], *to;
	uint64_t size = cf_entry_plain_size(bytes, plain, shard);
	if (CF_UNLIKELY(w->places.next < w->places.count))
		CF_TRY(put_placeholders(w, &(cf_bytes_view){at->key, at->key_size}, err));
	if (CF_LIKELY(w->follows)) {
		to = cf_table_writer_place(w->table, at->key, at->key_size, walk->common, size);
		if (CF_LIKELY(to != NULL)) {
			cf_entry_store_plain(to, bytes, plain, shard);
			return cf_table_writer_placed(w->table, err);
		}
	}
	cf_entry_store_plain(value, bytes, plain, shard);
	if (w->follows)
		return cf_table_writer_add_any(w->table, at->key, at->key_size, walk->common, value, size, err);
	w->follows = true;
	return cf_table_writer_add(w->table, at->key, at->key_size, value, size, err);
}

static ckptfmt_status write_entry(writing *w, const cf_merge_walk *walk, ckptfmt_error *err)
{
	group *g = &w->g;
	const cf_table_iterator *at = walk->at;
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_plain_entry plain;
	cf_entry other;
	if (CF_LIKELY(begin_plain(g, walk, &plain)))
		return write_plain(w, walk, &plain, err);
	w->follows = false;
	if (!walk->same_key) {
		CF_TRY(finish_writing(w, err));
		CF_TRY(begin_group(g, walk->input, at, err));
		return g->entry.slice_count != 0 ? CKPTFMT_OK
			: write_group(w, (cf_bytes_view){at->key, at->key_size}, err);
	}
	CF_TRY(cf_entry_decode((cf_bytes_view){at->value, at->value_size}, at->value_offset, g->inputs->limits.slices_max,
		dims, &other, err));
	return add_to_group(g, walk->input, at, &other, dims, err);
}

/* MRG-8 */
static ckptfmt_status put_header(const cf_merge_inputs *inputs, int32_t new_count, cf_table_writer *table,
	ckptfmt_error *err)
{
	cf_buffer header = CF_BUFFER_EMPTY;
	int32_t producer = inputs->rows[0].header.producer, min_consumer = inputs->rows[0].header.min_consumer;
	ckptfmt_status status;
	/* MRG-15: whoever cannot read an input with compressed values cannot read the result. All others are the same. */
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

static ckptfmt_status write_entries(writing *w, ckptfmt_error *err)
{
	cf_merge_walk walk;
	bool more;
	ckptfmt_status status = cf_merge_walk_open(&walk, w->g.inputs, err);
	while (status == CKPTFMT_OK) {
		status = next_entry(&walk, &more, err);
		if (status != CKPTFMT_OK || !more)
			break;
		status = write_entry(w, &walk, err);
	}
	if (status == CKPTFMT_OK)
		status = finish_writing(w, err);
	if (status == CKPTFMT_OK)
		status = put_placeholders(w, NULL, err);
	cf_merge_walk_close(&walk);
	return status;
}

ckptfmt_status cf_merge_write(cf_merge_inputs *inputs, int32_t file_count, int32_t new_count, cf_table_writer *table,
	ckptfmt_error *err)
{
	writing w = {.g = {.inputs = inputs, .writes = true}, .table = table};
	ckptfmt_status status = open_placeholders(&w.places, file_count, new_count, err);
	if (status == CKPTFMT_OK)
		status = put_header(inputs, new_count, table, err);
	if (status == CKPTFMT_OK)
		status = write_entries(&w, err);
	free_group(&w.g);
	cf_release(w.places.names);
	cf_release(w.places.sorted);
	cf_buffer_free(&w.value);
	return status;
}

/* ---- both at once ---------------------------------------------------------------------------------------- */

enum {
	DRAFT_SIZE_MAX = 256 << 20,
	PAGES_SIZE_MIN = 4 << 20,       /* below it the memory comes as fast without a thread that goes ahead */
	AHEAD_PARTS = 4                 /* of so many the last is not asked for: the result may be smaller */
};

/* Room for a piece of the draft; NULL: there is no memory. */
static uint8_t *take_room(cf_merge_draft *draft, uint64_t size)
{
	uint8_t *to;
	if (size > draft->pages_size - draft->pages_used)
		return cf_arena_take(&draft->memory, size);
	to = draft->pages + draft->pages_used;
	draft->pages_used += size;
	return to;
}

static ckptfmt_status put_to_draft(void *state, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	cf_merge_draft *draft = state;
	cf_bytes_view piece;
	uint8_t *to;
	if (size > DRAFT_SIZE_MAX - draft->size)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET, "too large for a draft");
	to = take_room(draft, size);
	if (to == NULL)
		return cf_fail_memory(err);
	memcpy(to, bytes, (size_t)size);
	piece = (cf_bytes_view){to, size};
	cf_put_bytes(&draft->pieces, &piece, sizeof piece);
	draft->size += size;
	return cf_buffer_status(&draft->pieces, err);
}

void cf_merge_draft_free(cf_merge_draft *draft)
{
	if (draft->pages != NULL)
		cf_pages_unmap(draft->pages, draft->pages_size);
	cf_arena_free(&draft->memory);
	cf_buffer_free(&draft->pieces);
	*draft = (cf_merge_draft){.memory = CF_ARENA_EMPTY, .pieces = CF_BUFFER_EMPTY};
}

/* A number for the data file of each input, which has one if it has entries at all; 0 if an input has more. */
static int32_t guess_numbers(const cf_merge_walk *walk)
{
	int32_t count = 0;
	for (uint64_t i = 0; i < walk->inputs->count; i++) {
		cf_merge_input *in = &walk->inputs->rows[i];
		in->guess = -1;
		if (in->is_empty)
			continue;
		if (in->header.num_shards != 1)
			return 0;
		in->guess = count++;
	}
	return count;
}

/* But for the pages, where another thread may be. */
static void drop_draft(writing *w, cf_merge_draft *draft)
{
	w->g.writes = false;
	cf_arena_free(&draft->memory);
	cf_buffer_free(&draft->pieces);
}

static ckptfmt_status check_and_draft(writing *w, const cf_merge_walk *walk, cf_merge_draft *draft, ckptfmt_error *err)
{
	group *g = &w->g;
	cf_plain_entry plain;
	if (CF_LIKELY(begin_plain(g, walk, &plain))) {
		if (g->writes && write_plain(w, walk, &plain, NULL) != CKPTFMT_OK)
			drop_draft(w, draft);
		return CKPTFMT_OK;
	}
	w->follows = false;
	if (g->writes && !walk->same_key && finish_writing(w, NULL) != CKPTFMT_OK)
		drop_draft(w, draft);
	CF_TRY(check_entry(g, walk, err));
	if (g->writes && !walk->same_key && g->entry.slice_count == 0 &&
		write_group(w, (cf_bytes_view){walk->at->key, walk->at->key_size}, NULL) != CKPTFMT_OK)
		drop_draft(w, draft);
	return CKPTFMT_OK;
}

static ckptfmt_status check_entries(writing *w, cf_merge_draft *draft, int32_t *file_count, ckptfmt_error *err)
{
	cf_merge_walk walk;
	int32_t guess = 0;
	uint64_t size;
	bool more, guessed = false;
	ckptfmt_status status = cf_merge_walk_open(&walk, w->g.inputs, err);
	if (status == CKPTFMT_OK)
		guess = guess_numbers(&walk);
	w->g.writes = guess > 0 && put_header(w->g.inputs, guess, w->table, NULL) == CKPTFMT_OK;
	while (status == CKPTFMT_OK) {
		status = next_entry(&walk, &more, err);
		if (status != CKPTFMT_OK || !more)
			break;
		status = check_and_draft(w, &walk, draft, err);
	}
	cf_merge_walk_close(&walk);
	if (status == CKPTFMT_OK)
		status = finish_checking(&w->g, err);
	if (status == CKPTFMT_OK)
		status = number_files(w->g.inputs, file_count, &guessed, err);
	draft->good = status == CKPTFMT_OK && w->g.writes && guessed && *file_count == guess &&
		finish_writing(w, NULL) == CKPTFMT_OK && cf_table_writer_finish(w->table, &size, NULL) == CKPTFMT_OK;
	return status;
}

/* One thread checks and drafts; another gets the memory for the draft before it is needed, which takes a fifth of the
 * time where it has to be cleared. */
typedef struct checking {
	writing *w;
	cf_merge_draft *draft;
	int32_t *file_count;
	ckptfmt_error *err;
	ckptfmt_status status;
	pthread_t checker;
	_Atomic bool done;
} checking;

static void *check_or_go_ahead(void *argument)
{
	checking *job = argument;
	const cf_merge_draft *draft = job->draft;
	uint8_t *pages = draft->pages;
	uint64_t size = draft->pages_size / AHEAD_PARTS * (AHEAD_PARTS - 1) / CF_PAGES_UNIT * CF_PAGES_UNIT;
	if (pthread_equal(pthread_self(), job->checker)) {
		job->status = check_entries(job->w, job->draft, job->file_count, job->err);
		atomic_store(&job->done, true);
		return NULL;
	}
	for (uint64_t at = 0; at < size && !atomic_load(&job->done); at += CF_PAGES_UNIT)
		if (!cf_pages_populate_ahead(pages + at, CF_PAGES_UNIT))
			break;
	return NULL;
}

/* Without pages the draft does with what it takes piece by piece. */
static void map_pages(cf_merge_draft *draft, const cf_merge_inputs *inputs)
{
	uint64_t size = 0;
	for (uint64_t i = 0; i < inputs->count && size <= DRAFT_SIZE_MAX; i++) {
		/* There is no draft of these. */
		if (inputs->rows[i].header.num_shards != 1)
			return;
		size += cf_min_u64(inputs->rows[i].info.size, DRAFT_SIZE_MAX);
	}
	if (size >= PAGES_SIZE_MIN && size <= DRAFT_SIZE_MAX && cf_pages_map(size, &draft->pages, NULL) == CKPTFMT_OK)
		draft->pages_size = size;
}

ckptfmt_status cf_merge_check(cf_merge_inputs *inputs, int32_t *file_count, cf_merge_draft *draft, ckptfmt_error *err)
{
	cf_table_writer table;
	writing w = {.g = {.inputs = inputs, .checks = true}, .table = &table};
	checking job = {.w = &w, .draft = draft, .file_count = file_count, .err = err, .checker = pthread_self()};
	*draft = (cf_merge_draft){.memory = CF_ARENA_EMPTY, .pieces = CF_BUFFER_EMPTY};
	map_pages(draft, inputs);
	cf_table_writer_open(&table, (cf_sink){put_to_draft, draft});
	cf_workers_run(draft->pages_size == 0 ? 1 : 2, check_or_go_ahead, &job);
	if (!draft->good)
		cf_merge_draft_free(draft);
	cf_table_writer_free(&table);
	free_group(&w.g);
	cf_buffer_free(&w.value);
	return job.status;
}
