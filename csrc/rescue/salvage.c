/* SPDX-License-Identifier: Apache-2.0 */
/*
 * 1. The index block says where the data blocks are, if need be after one bit of it was changed. Without it they are
 *    searched from the beginning on, up to the metaindex block, which is empty, or to a block without an end.
 * 2. Blocks whose checksum holds, which decode and which are in order are sound.
 * 3. Of the others those are repaired that become so by a change of one bit, of which there must be only one.
 * 4. From the rest entries are collected: those of the only change of one byte with which a block decodes, else those
 *    that decode as they are.
 *
 * A block is only accepted between the keys of the sound blocks around it, so blocks stay in order, and no key of a
 * collected entry is in a sound block.
 */
#include "base/limits.h"
#include "base/memory.h"
#include "proto/message.h"
#include "rescue/syndrome.h"
#include "slices/key.h"
#include "table/table.h"
#include "table/writer.h"

enum { END_TRIES = 8 };

typedef struct data_block {
	cf_handle handle;
	cf_handle first, last;      /* its keys, in job.keys; these and the count of a sound one */
	uint64_t entry_count;
	uint64_t next;              /* the sound block after it */
	uint64_t changed;           /* these two as in ckptfmt_damage; outcome 0: not damaged */
	int32_t outcome;
	bool sound;
	bool torn;                  /* all that is left of the file; has no trailer */
} data_block;

typedef struct entry_at {
	uint64_t key, key_size, value, value_size;  /* in job.collected */
} entry_at;

typedef struct job {
	ckptfmt_salvage result;     /* first: what the caller has, and these three are of it */
	cf_buffer sound;            /* a copy of the file, then what becomes of it */
	cf_buffer doubtful;
	cf_buffer damages;
	ckptfmt_limits limits;
	cf_steps steps;
	cf_buffer blocks;           /* data_block */
	cf_buffer keys;
	cf_buffer header;           /* the message */
	cf_buffer entries;          /* entry_at */
	cf_buffer collected;
	cf_buffer scratch;
	cf_table_block memory;
	cf_block_iterator walk;
	uint64_t key_bytes;         /* of all collected entries */
	ckptfmt_damage tail;        /* of the index block or the footer; kind 0: none */
	bool compressed;            /* an entry has compressed chunks */
	ckptfmt_error first;        /* the first failure */
} job;

static data_block *block_at(const job *j, uint64_t i)
{
	return (data_block *)cf_buffer_items(&j->blocks) + i;
}

static uint64_t block_count(const job *j)
{
	return j->blocks.size / sizeof(data_block);
}

static bool is_fatal(ckptfmt_status status)
{
	return status != CKPTFMT_OK && status != CKPTFMT_CORRUPT;
}

static ckptfmt_status fail_as(const ckptfmt_error *why, ckptfmt_error *err)
{
	if (err != NULL)
		*err = *why;
	return (ckptfmt_status)why->status;
}

static ckptfmt_status no_header(ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_BAD_HEADER, 0, "HDR-1: the table does not begin with a header");
}

/* The end of the last block that has one. */
static uint64_t blocks_end(const job *j)
{
	const data_block *last;
	if (j->blocks.size == 0)
		return 0;
	last = block_at(j, block_count(j) - 1);
	return last->handle.offset + (last->torn ? 0 : last->handle.size + CF_TRAILER_SIZE);
}

static void add_block(job *j, data_block block)
{
	cf_put_bytes(&j->blocks, &block, sizeof block);
}

/* ---- judging --------------------------------------------------------------------------------------------- */

/* Whether the key is above those of a block (`above`), or below. NULL: there is no block. */
static bool is_beside(const job *j, const uint8_t *key, uint64_t key_size, const data_block *block, bool above)
{
	cf_handle other;
	int order;
	if (block == NULL)
		return true;
	other = above ? block->last : block->first;
	order = cf_key_compare(key, key_size, (const uint8_t *)cf_buffer_items(&j->keys) + other.offset, other.size);
	return above ? order > 0 : order < 0;
}

/* `repaired`: the entry is in a block that was changed. */
static ckptfmt_status check_entry(job *j, bool repaired, ckptfmt_error *err)
{
	const cf_block_iterator *at = &j->walk;
	cf_bytes_view value = {at->value, at->value_size};
	uint64_t origin = cf_block_origin(at->block, at->value_position);
	int64_t dims[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	cf_header header;
	cf_entry entry;
	uint64_t position = 0;
	bool more = true;
	int32_t rank;
	if (at->key.size == 0) {
		ckptfmt_status status = cf_header_decode(value, origin, &header, err);
		return status == CKPTFMT_UNSUPPORTED ? CKPTFMT_OK : status;
	}
	CF_TRY(cf_entry_decode(value, origin, j->limits.slices_max, dims, &entry, err));
	j->compressed |= (entry.feature_flags & CF_FEATURE_COMPRESSED) != 0;
	while (more && entry.slice_count != 0)
		CF_TRY(cf_entry_next_slice(&entry, &position, dims, lengths, &more, err));
	if (repaired && cf_slice_key_looks_like(at->key.data, at->key.size) &&
		!cf_slice_key_decode(at->key.data, at->key.size, &j->scratch, &rank, dims, lengths)) {
		CF_TRY(cf_buffer_status(&j->scratch, err));
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, origin, "SLC-3: the key is not a slice's");
	}
	return CKPTFMT_OK;
}

static ckptfmt_status out_of_order(const job *j, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_BAD_ORDER, j->memory.block.origin,
		"TAB-1: the keys of a block are not between those of the blocks around it");
}

static cf_handle put_key(job *j, const uint8_t *key, uint64_t size)
{
	cf_handle at = {j->keys.size, size};
	cf_put_bytes(&j->keys, key, size);
	return at;
}

/* Walks the open block, whose keys must be between those of the two blocks. Sets the block's keys and count. */
static ckptfmt_status check_entries(job *j, data_block *b, const data_block *before, const data_block *after,
	bool repaired, ckptfmt_error *err)
{
	cf_block_iterator *walk = &j->walk;
	ckptfmt_status status;
	b->entry_count = 0;
	cf_block_iterator_open(walk, &j->memory.block);
	for (status = cf_block_first(walk, err); status == CKPTFMT_OK && walk->valid; status = cf_block_next(walk, err)) {
		if (b->entry_count++ == 0 && !is_beside(j, walk->key.data, walk->key.size, before, true))
			return out_of_order(j, err);
		CF_TRY(check_entry(j, repaired, err));
	}
	CF_TRY(status);
	if (b->entry_count == 0)
		return CKPTFMT_OK;
	if (!is_beside(j, walk->key.data, walk->key.size, after, false))
		return out_of_order(j, err);
	b->first = put_key(j, walk->first_key, walk->first_key_size);
	b->last = put_key(j, walk->key.data, walk->key.size);
	return cf_buffer_status(&j->keys, err);
}

static ckptfmt_status decode(job *j, const data_block *b, ckptfmt_error *err)
{
	j->memory.stored = j->sound.data + b->handle.offset;
	return cf_table_block_decode(&j->limits, b->handle, &j->memory, err);
}

/* The blocks that are sound as they are. Other failures than CORRUPT are returned. */
static ckptfmt_status judge(job *j, ckptfmt_error *err)
{
	const data_block *before = NULL;
	for (uint64_t i = 0; i < block_count(j); i++) {
		data_block *b = block_at(j, i);
		ckptfmt_error why;
		ckptfmt_status status = CKPTFMT_CORRUPT;
		if (!b->torn)
			status = decode(j, b, &why);
		if (status == CKPTFMT_OK)
			status = check_entries(j, b, before, NULL, false, &why);
		if (is_fatal(status))
			return fail_as(&why, err);
		b->sound = status == CKPTFMT_OK && b->entry_count != 0;
		b->outcome = status == CKPTFMT_OK ? 0 : CKPTFMT_SALVAGE_LOST;
		if (b->sound)
			before = b;
		if (status != CKPTFMT_OK && !b->torn && j->first.status == CKPTFMT_OK)
			j->first = why;
	}
	return CKPTFMT_OK;
}

static void link_sound(job *j)
{
	uint64_t next = block_count(j);
	for (uint64_t i = next; i-- > 0;) {
		block_at(j, i)->next = next;
		if (block_at(j, i)->sound)
			next = i;
	}
}

static const data_block *block_after(const job *j, const data_block *b)
{
	return b->next == block_count(j) ? NULL : block_at(j, b->next);
}

/* ---- changes --------------------------------------------------------------------------------------------- */

static void invert(job *j, const data_block *b, cf_change change)
{
	j->sound.data[b->handle.offset + change.at] ^= change.bits;
}

/* 0 where the checksum holds, or is missing. */
static uint64_t find_changes(const job *j, const data_block *b, bool one_bit, cf_change *out)
{
	const uint8_t *stored = j->sound.data + b->handle.offset;
	if (b->torn || cf_trailer_crc(stored, b->handle.size) == cf_trailer_crc_computed(stored, b->handle.size))
		return 0;
	return cf_changes_find(&j->steps, stored, b->handle.size, one_bit, out);
}

/* Applies the only change of one bit, or of one byte, with which the block is sound. *found false: it is as it was.
 * NO_MEMORY. */
static ckptfmt_status repair(job *j, data_block *b, const data_block *before, bool one_bit, bool *found,
	ckptfmt_error *err)
{
	cf_change changes[CF_CHANGES_MAX], good = {0, 0};
	const uint64_t count = find_changes(j, b, one_bit, changes), mark = j->keys.size;
	data_block fixed = *b;
	*found = false;
	if (count > (one_bit ? 1 : CF_CHANGES_MAX))
		return CKPTFMT_OK;
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_status status;
		data_block tried = *b;
		invert(j, b, changes[i]);
		status = decode(j, b, err);
		if (status == CKPTFMT_OK)
			status = check_entries(j, &tried, before, block_after(j, b), true, err);
		invert(j, b, changes[i]);
		if (status == CKPTFMT_NO_MEMORY)
			return status;
		if (status != CKPTFMT_OK || tried.entry_count == 0)
			continue;
		if (*found) {
			*found = false;
			j->keys.size = mark;
			return CKPTFMT_OK;
		}
		*found = true;
		good = changes[i];
		fixed = tried;
	}
	if (*found) {
		invert(j, b, good);
		*b = fixed;
		b->changed = b->handle.offset + good.at;
	}
	return CKPTFMT_OK;
}

static ckptfmt_status repair_all(job *j, ckptfmt_error *err)
{
	const data_block *before = NULL;
	link_sound(j);
	for (uint64_t i = 0; i < block_count(j); i++) {
		data_block *b = block_at(j, i);
		bool found = false;
		if (b->outcome != 0)
			CF_TRY(repair(j, b, before, true, &found, err));
		if (found) {
			b->outcome = CKPTFMT_SALVAGE_REPAIRED;
			b->sound = true;
		}
		if (b->sound)
			before = b;
	}
	return CKPTFMT_OK;
}

/* ---- finding the blocks ---------------------------------------------------------------------------------- */

static ckptfmt_status take_handles(job *j, ckptfmt_error *err)
{
	cf_table *table;
	ckptfmt_status status;
	CF_TRY(cf_table_open_memory(j->sound.data, NULL, j->sound.size, &j->limits, &table, err));
	for (uint64_t i = 0; i < cf_table_block_count(table); i++)
		add_block(j, (data_block){.handle = cf_table_block_handle(table, i)});
	status = j->blocks.size != 0 ? cf_buffer_status(&j->blocks, err)
		: no_header(err);
	cf_table_close(table);
	return status;
}

/* The index block, after a change of one bit if need be. CORRUPT: it, or the footer, is lost. */
static ckptfmt_status open_index(job *j, ckptfmt_error *err)
{
	const cf_buffer *file = &j->sound;
	const uint64_t footer_size = cf_min_u64(file->size, CF_FOOTER_SIZE);
	ckptfmt_damage damage = {file->size - footer_size, footer_size, 0, 0, CKPTFMT_REGION_FOOTER,
		CKPTFMT_SALVAGE_LOST};
	data_block index = {.outcome = CKPTFMT_SALVAGE_LOST};
	ckptfmt_status status = take_handles(j, &j->first);
	cf_change changes[CF_CHANGES_MAX];
	ckptfmt_error why;
	cf_footer footer;
	if (status == CKPTFMT_OK || is_fatal(status))
		return status == CKPTFMT_OK ? status : fail_as(&j->first, err);
	if (damage.size == CF_FOOTER_SIZE &&
		cf_footer_decode(file->data + damage.offset, damage.offset, &footer, NULL) == CKPTFMT_OK &&
		cf_handle_check(footer.index, damage.offset, damage.offset, NULL) == CKPTFMT_OK) {
		const uint64_t size = footer.index.size + CF_TRAILER_SIZE;
		index.handle = footer.index;
		/* A damaged handle rarely ends where the footer begins. */
		if (footer.index.offset + size == damage.offset)
			damage = (ckptfmt_damage){footer.index.offset, size, 0, 0, CKPTFMT_REGION_INDEX, CKPTFMT_SALVAGE_LOST};
		if (find_changes(j, &index, true, changes) == 1) {
			invert(j, &index, changes[0]);
			status = take_handles(j, &why);
			if (status == CKPTFMT_OK)
				damage = (ckptfmt_damage){footer.index.offset, size, footer.index.offset + changes[0].at, 0,
					CKPTFMT_REGION_INDEX, CKPTFMT_SALVAGE_REPAIRED};
			else
				invert(j, &index, changes[0]);
		}
	}
	j->tail = damage;
	return is_fatal(status) ? fail_as(&why, err) : status;
}

/* Whether the bytes are a beginning of the metaindex block. A single byte, or none, can be that of a data block. */
static bool is_metaindex(const uint8_t *bytes, uint64_t size)
{
	static const uint8_t empty[] = {0, 0, 0, 0, 1, 0, 0, 0, CF_COMPRESSION_RAW, 0xc0, 0xf2, 0xa1, 0xb0};
	return size > 1 && memcmp(bytes, empty, (size_t)cf_min_u64(size, sizeof empty)) == 0;
}

/* The block at `offset`, of the first sizes with which its checksum holds the one with which it decodes; without an end
 * it is torn. NO_MEMORY. */
static ckptfmt_status find_block(job *j, uint64_t offset, data_block *b, ckptfmt_error *err)
{
	cf_end_search search = {j->sound.data + offset, j->sound.size - offset, 0, UINT32_MAX};
	search.size = cf_min_u64(search.size, j->limits.block_bytes_max + CF_TRAILER_SIZE);
	*b = (data_block){.handle.offset = offset};
	for (int tries = 0; tries < END_TRIES && cf_end_next(&j->steps, &search, &b->handle.size); tries++) {
		cf_block_report report;
		ckptfmt_status status = decode(j, b, err);
		if (status == CKPTFMT_OK)
			status = cf_block_check(&j->walk, &j->memory.block, &report, err);
		if (status == CKPTFMT_OK)
			b->entry_count = report.entry_count;
		if (status == CKPTFMT_OK || status == CKPTFMT_NO_MEMORY)
			return status;
	}
	*b = (data_block){.handle = {offset, j->sound.size - offset}, .torn = true};
	return CKPTFMT_OK;
}

static ckptfmt_status search_blocks(job *j, ckptfmt_error *err)
{
	const cf_buffer *file = &j->sound;
	data_block b = {.torn = false};
	for (uint64_t at = 0; !b.torn && !is_metaindex(file->data + at, file->size - at);
		at += b.handle.size + CF_TRAILER_SIZE) {
		CF_TRY(find_block(j, at, &b, err));
		if (b.entry_count == 0 && !b.torn)
			break;
		add_block(j, b);
	}
	return cf_buffer_status(&j->blocks, err);
}

/* ---- what is doubtful ------------------------------------------------------------------------------------ */

/* Collects the entries of this view of a block whose keys are between those of the two blocks. A failure of the walk
 * ends it. LIMIT, NO_MEMORY. */
static ckptfmt_status collect(job *j, const cf_block *view, data_block *b, const data_block *before,
	ckptfmt_error *err)
{
	const data_block *after = block_after(j, b);
	const uint64_t allowed = cf_keys_bytes_max(&j->limits, j->sound.size);
	cf_block_iterator *walk = &j->walk;
	ckptfmt_status status;
	cf_block_iterator_open(walk, view);
	for (status = cf_block_first(walk, err); status == CKPTFMT_OK && walk->valid; status = cf_block_next(walk, err)) {
		entry_at entry = {j->collected.size, walk->key.size, j->collected.size + walk->key.size, walk->value_size};
		if (walk->key.size == 0 || !is_beside(j, walk->key.data, walk->key.size, before, true) ||
			!is_beside(j, walk->key.data, walk->key.size, after, false))
			continue;
		status = check_entry(j, true, err);
		if (status == CKPTFMT_NO_MEMORY)
			return status;
		if (status != CKPTFMT_OK)
			continue;
		if (walk->key.size > allowed - j->key_bytes)
			return cf_too_many_key_bytes(allowed, b->handle.offset, err);
		j->key_bytes += walk->key.size;
		cf_put_bytes(&j->entries, &entry, sizeof entry);
		cf_put_bytes(&j->collected, walk->key.data, walk->key.size);
		cf_put_bytes(&j->collected, walk->value, walk->value_size);
		CF_TRY(cf_buffer_status(&j->entries, err));
		CF_TRY(cf_buffer_status(&j->collected, err));
		b->entry_count++;
	}
	return status == CKPTFMT_NO_MEMORY ? status : CKPTFMT_OK;
}

/* A raw block as it is, restart interval by restart interval. One of which the restarts cannot be read, or that is
 * torn, is a single interval. */
static ckptfmt_status collect_parts(job *j, data_block *b, const data_block *before, ckptfmt_error *err)
{
	const uint8_t *bytes = j->sound.data + b->handle.offset;
	cf_block block = {.key_bytes_max = 0}, view = {.key_bytes_max = j->limits.key_bytes_max};
	uint64_t from = 0, end = b->handle.size;
	if (!b->torn && bytes[b->handle.size] == CF_COMPRESSION_SNAPPY)
		return CKPTFMT_OK;
	if (!b->torn && cf_block_open(bytes, end, 0, false, 0, &block, NULL) == CKPTFMT_OK && block.restart_count != 0)
		end = block.entries_size;
	else
		block.restart_count = 0;
	for (uint32_t i = 1; from < end; i++) {
		uint64_t to = i < block.restart_count ? cf_block_restart(&block, i) : end;
		if (i < block.restart_count && (to <= from || to > end))
			continue;
		view.bytes = bytes + from;
		view.size = view.entries_size = to - from;
		view.origin = b->handle.offset + from;
		CF_TRY(collect(j, &view, b, before, err));
		from = to;
	}
	return CKPTFMT_OK;
}

static ckptfmt_status collect_all(job *j, ckptfmt_error *err)
{
	const data_block *before = NULL;
	link_sound(j);
	for (uint64_t i = 0; i < block_count(j); i++) {
		data_block *b = block_at(j, i);
		bool likely;
		if (b->sound)
			before = b;
		if (b->outcome != CKPTFMT_SALVAGE_LOST)
			continue;
		CF_TRY(repair(j, b, before, false, &likely, err));
		b->entry_count = 0;
		if (likely) {
			b->outcome = CKPTFMT_SALVAGE_LIKELY;
			CF_TRY(decode(j, b, err));
			CF_TRY(collect(j, &j->memory.block, b, before, err));
		} else {
			CF_TRY(collect_parts(j, b, before, err));
		}
	}
	return CKPTFMT_OK;
}

/* ---- results --------------------------------------------------------------------------------------------- */

static ckptfmt_status put(void *to, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	cf_put_bytes(to, bytes, size);
	return cf_buffer_status(to, err);
}

/* The table of the collected entries, each key once. */
static ckptfmt_status write_doubtful(job *j, const cf_sort_key *sorted, uint64_t count, ckptfmt_error *err)
{
	const entry_at *entries = cf_buffer_items(&j->entries);
	cf_table_writer writer;
	uint64_t size;
	ckptfmt_status status;
	cf_table_writer_open(&writer, (cf_sink){put, &j->doubtful});
	status = cf_table_writer_add(&writer, j->header.data, 0, j->header.data, j->header.size, err);
	for (uint64_t i = 0; i < count && status == CKPTFMT_OK; i++) {
		const entry_at *entry = &entries[sorted[i].row];
		if (i == 0 || cf_compare_keys(&sorted[i - 1], &sorted[i]) != 0)
			status = cf_table_writer_add(&writer, sorted[i].key, sorted[i].key_size,
				j->collected.data + entry->value, entry->value_size, err);
	}
	if (status == CKPTFMT_OK)
		status = cf_table_writer_finish(&writer, &size, err);
	cf_table_writer_free(&writer);
	return status;
}

static ckptfmt_status make_doubtful(job *j, ckptfmt_error *err)
{
	const entry_at *entries = cf_buffer_items(&j->entries);
	const uint64_t count = j->entries.size / sizeof *entries;
	ckptfmt_status status;
	cf_sort_key *sorted;
	if (count == 0)
		return CKPTFMT_OK;
	sorted = cf_allocate_zero(count, sizeof *sorted);
	if (sorted == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < count; i++)
		sorted[i] = (cf_sort_key){j->collected.data + entries[i].key, entries[i].key_size, i};
	cf_sort_keys(sorted, count);
	status = write_doubtful(j, sorted, count, err);
	cf_release(sorted);
	return status;
}

/* The header is that of the first sound block. *lost: it has none, and the header is made up. */
static ckptfmt_status take_header(job *j, const data_block *first, int32_t num_shards, bool *lost, ckptfmt_error *err)
{
	*lost = first == NULL || first->first.size != 0;
	if (!*lost) {
		CF_TRY(decode(j, first, err));
		cf_block_iterator_open(&j->walk, &j->memory.block);
		CF_TRY(cf_block_first(&j->walk, err));
		return put(&j->header, j->walk.value, j->walk.value_size, err);
	}
	if (num_shards <= 0 || (first == NULL && j->entries.size == 0))
		return j->first.status != CKPTFMT_OK ? fail_as(&j->first, err) : no_header(err);
	cf_header_encode(&j->header, num_shards, 0, j->compressed ? CF_COMPRESSED_VERSION : 0);
	return cf_buffer_status(&j->header, err);
}

/* Cuts the file after the last block and adds what follows in a canonical file. With `made_up`, a block of the header
 * alone replaces the beginning of the blocks that are not sound. */
static ckptfmt_status rebuild(job *j, const data_block *first, bool made_up, cf_table_writer *writer,
	ckptfmt_error *err)
{
	const uint8_t *keys = cf_buffer_items(&j->keys);
	uint64_t end = blocks_end(j), size;
	if (made_up) {
		j->sound.size = 0;
		CF_TRY(cf_table_writer_add(writer, keys, 0, j->header.data, j->header.size, err));
		CF_TRY(cf_table_writer_flush(writer, err));
		if (first != NULL && j->sound.size > first->handle.offset)
			return no_header(err);
		end = cf_max_u64(end, j->sound.size);
	}
	j->sound.size = writer->offset = end;
	for (const data_block *b = first; b != NULL; b = block_after(j, b))
		CF_TRY(cf_table_writer_add_block(writer, b->handle, keys + b->first.offset, b->first.size,
			keys + b->last.offset, b->last.size, err));
	return cf_table_writer_finish(writer, &size, err);
}

static ckptfmt_status make_sound(job *j, int32_t num_shards, ckptfmt_error *err)
{
	const data_block *first = NULL;
	cf_table_writer writer;
	ckptfmt_status status = CKPTFMT_OK;
	bool lost;
	for (uint64_t i = block_count(j); i-- > 0;)
		if (block_at(j, i)->sound)
			first = block_at(j, i);
	CF_TRY(take_header(j, first, num_shards, &lost, err));
	j->result.header_lost = lost;
	cf_table_writer_open(&writer, (cf_sink){put, &j->sound});
	if (lost || j->damages.size != 0)
		status = rebuild(j, first, lost, &writer, err);
	cf_table_writer_free(&writer);
	return status;
}

static ckptfmt_status list_damages(job *j, ckptfmt_error *err)
{
	const uint64_t end = blocks_end(j);
	for (uint64_t i = 0; i < block_count(j); i++) {
		const data_block *b = block_at(j, i);
		const ckptfmt_damage damage = {b->handle.offset, b->handle.size + (b->torn ? 0 : CF_TRAILER_SIZE),
			b->changed, b->entry_count, CKPTFMT_REGION_DATA, b->outcome};
		if (b->outcome != 0)
			cf_put_bytes(&j->damages, &damage, sizeof damage);
	}
	/* What is left after a torn block is empty. */
	if (j->tail.kind == CKPTFMT_REGION_FOOTER && j->tail.offset < end)
		j->tail.offset = end;
	if (j->tail.kind == CKPTFMT_REGION_FOOTER)
		j->tail.size = j->sound.size - j->tail.offset;
	if (j->tail.kind != 0)
		cf_put_bytes(&j->damages, &j->tail, sizeof j->tail);
	return cf_buffer_status(&j->damages, err);
}

static ckptfmt_status run(job *j, const uint8_t *bytes, uint64_t size, int32_t num_shards, ckptfmt_error *err)
{
	/* TAB-13 */
	if (size > j->limits.index_bytes_max)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET,
			"TAB-13: an index of %llu bytes, above limit index_bytes_max (%llu)",
			(unsigned long long)size, (unsigned long long)j->limits.index_bytes_max);
	cf_steps_init(&j->steps);
	/* One more, so that the address of no bytes is not NULL. */
	if (!cf_buffer_reserve(&j->sound, size + 1))
		return cf_fail_memory(err);
	cf_put_bytes(&j->sound, bytes, size);
	ckptfmt_status status = open_index(j, err);
	if (is_fatal(status))
		return status;
	if (status == CKPTFMT_CORRUPT) {
		cf_buffer_clear(&j->blocks);
		CF_TRY(search_blocks(j, err));
	}
	CF_TRY(judge(j, err));
	CF_TRY(repair_all(j, err));
	CF_TRY(collect_all(j, err));
	CF_TRY(list_damages(j, err));
	CF_TRY(make_sound(j, num_shards, err));
	return make_doubtful(j, err);
}

static void release_scratch(job *j)
{
	cf_table_block_free(&j->memory);
	cf_block_iterator_free(&j->walk);
	cf_buffer_free(&j->blocks);
	cf_buffer_free(&j->keys);
	cf_buffer_free(&j->header);
	cf_buffer_free(&j->entries);
	cf_buffer_free(&j->collected);
	cf_buffer_free(&j->scratch);
}

ckptfmt_status ckptfmt_index_salvage(const uint8_t *bytes, uint64_t size, int32_t num_shards,
	const ckptfmt_limits *limits, ckptfmt_salvage **out, ckptfmt_error *err)
{
	ckptfmt_status status;
	job *j = cf_allocate_zero(1, sizeof *j);
	*out = NULL;
	if (j == NULL)
		return cf_fail_memory(err);
	cf_table_block_init(&j->memory);
	cf_block_iterator_init(&j->walk);
	status = cf_limits_take(&j->limits, limits, err);
	if (status == CKPTFMT_OK)
		status = run(j, bytes, size, num_shards, err);
	release_scratch(j);
	if (status != CKPTFMT_OK) {
		ckptfmt_salvage_free(&j->result);
		return status;
	}
	j->result.sound = j->sound.data;
	j->result.sound_size = j->sound.size;
	j->result.doubtful = j->doubtful.data;
	j->result.doubtful_size = j->doubtful.size;
	j->result.damages = cf_buffer_items(&j->damages);
	j->result.damage_count = j->damages.size / sizeof(ckptfmt_damage);
	*out = &j->result;
	return CKPTFMT_OK;
}

void ckptfmt_salvage_free(ckptfmt_salvage *salvage)
{
	job *j = (job *)(void *)salvage;
	if (j == NULL)
		return;
	cf_buffer_free(&j->sound);
	cf_buffer_free(&j->doubtful);
	cf_buffer_free(&j->damages);
	cf_release(j);
}
