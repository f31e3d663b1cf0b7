/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether tensors in memory are what a checkpoint holds. Each is told apart as cheaply as may be: by dtype, shape and
 * size, then by its checksums, chunk after chunk, for which nothing is read, and where all of them agree by the stored
 * bytes themselves, piece after piece. Bytes that equal memory whose checksum is the stored one are sound, so that what
 * is damaged counts as changed and nothing else needs to find that out.
 */
#include "base/memory.h"
#include "read/values.h"
#include "read/transfer.h"
#include "write/value.h"
#include "proto/strings.h"

#include <stdlib.h>
#include <string.h>

/* Multiples of every element. */
enum {
	PIECE_SIZE = 256 << 10,         /* so that source and stored bytes stay in the cache of the core */
	GATHERED_SIZE = 1 << 20         /* transposed arrays need some rows at once: measured */
};

CF_STATIC_ASSERT((int)GATHERED_SIZE <= (int)CF_WINDOW_SIZE, "cf_transfer_show shows no more");

typedef struct pair {
	const ckptfmt_source *source;
	const ckptfmt_row *row;
	const ckptfmt_dtype_info *dtype;
	uint64_t number;            /* in the caller's list */
} pair;

typedef struct comparison {
	ckptfmt_reader *reader;
	const ckptfmt_selection *selection;
	cf_transfer transfer;
	uint8_t *gathered;          /* GATHERED_SIZE bytes, made when first needed */
} comparison;

/* ---- the bytes of a source ------------------------------------------------------------------------------- */

/* A source as it is stored, from front to end. */
typedef struct walk {
	cf_gather gather;
	const uint8_t *data;        /* all of it; NULL: to be gathered */
	uint64_t size;
	uint64_t done;
} walk;

static ckptfmt_status begin_walk(comparison *c, const pair *p, walk *w, ckptfmt_error *err)
{
	CF_TRY(cf_source_gather(p->source, &w->gather, err));
	w->size = cf_gather_size(&w->gather);
	w->done = 0;
	if (cf_gather_contiguous(&w->gather, &w->data, &w->size))
		return CKPTFMT_OK;
	w->data = NULL;
	if (c->gathered == NULL)
		c->gathered = cf_allocate(GATHERED_SIZE);
	return c->gathered == NULL ? cf_fail_memory(err) : CKPTFMT_OK;
}

/* The next bytes, until the next call. REQUIRES: some are left. */
static const uint8_t *next_piece(const comparison *c, walk *w, uint64_t *size)
{
	const uint8_t *piece = c->gathered;
	*size = cf_min_u64(w->data != NULL ? PIECE_SIZE : GATHERED_SIZE, w->size - w->done);
	if (w->data != NULL)
		piece = w->data + w->done;
	else
		cf_gather_take(&w->gather, c->gathered, *size);
	w->done += *size;
	return piece;
}

/* ---- checksums ------------------------------------------------------------------------------------------- */

/* The chunks of a stored value against the bytes of a source; a value without chunk checksums is one chunk. */
typedef struct sums {
	const ckptfmt_stored *stored;
	const uint32_t *crcs;       /* of the chunk at hand and those after it */
	uint64_t chunk_size;
	uint64_t chunk_done;
	uint32_t chunk;
	uint32_t total;
} sums;

static sums begin_sums(const comparison *c, const ckptfmt_stored *stored)
{
	sums s = {stored, &stored->crc32c, stored->size, 0, 0, 0};
	if (stored->chunk_size != 0) {
		s.crcs = (const uint32_t *)(const void *)c->selection->chunk_crcs.data + stored->chunks_first;
		s.chunk_size = stored->chunk_size;
	}
	return s;
}

/* False: the chunk differs. */
static bool end_chunk(sums *s)
{
	bool same = s->chunk == *s->crcs++;
	s->total = ckptfmt_crc32c_combine(s->total, s->chunk, s->chunk_done);
	s->chunk = 0;
	s->chunk_done = 0;
	return same;
}

static bool sum_piece(sums *s, const uint8_t *bytes, uint64_t size)
{
	while (size > 0) {
		uint64_t part = cf_min_u64(size, s->chunk_size - s->chunk_done);
		s->chunk = ckptfmt_crc32c(s->chunk, bytes, part);
		s->chunk_done += part;
		bytes += part;
		size -= part;
		if (s->chunk_done == s->chunk_size && !end_chunk(s))
			return false;
	}
	return true;
}

static bool same_sums(const comparison *c, walk w, const ckptfmt_stored *stored)
{
	sums s = begin_sums(c, stored);
	while (w.done < w.size) {
		uint64_t size;
		const uint8_t *bytes = next_piece(c, &w, &size);
		if (!sum_piece(&s, bytes, size))
			return false;
	}
	if (s.chunk_done != 0 && !end_chunk(&s))
		return false;
	/* EXT-6: sums of chunks that disagree with that of the value are damage. */
	return s.total == stored->crc32c;
}

/* ---- values of fixed size -------------------------------------------------------------------------------- */

static ckptfmt_status compare_bytes(comparison *c, walk *w, const ckptfmt_stored *stored, uint64_t ahead, bool *same,
	ckptfmt_error *err)
{
	while (w->done < w->size) {
		uint64_t size, done = w->done;
		const uint8_t *bytes = next_piece(c, w, &size), *there;
		CF_TRY(cf_transfer_show(&c->transfer, stored, done, size, ahead, &there, err));
		if (memcmp(bytes, there, (size_t)size) != 0)
			return CKPTFMT_OK;
	}
	*same = true;
	return CKPTFMT_OK;
}

static ckptfmt_status compare_fixed(comparison *c, const pair *p, uint64_t ahead, bool *same, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = &p->row->stored;
	walk w;
	CF_TRY(begin_walk(c, p, &w, err));
	if (w.size != stored->size || !same_sums(c, w, stored))
		return CKPTFMT_OK;
	return compare_bytes(c, &w, stored, ahead, same, err);
}

/* ---- strings --------------------------------------------------------------------------------------------- */

/* What a string or variant tensor would be stored with. */
static void measure_strings(const pair *p, uint64_t *size, uint32_t *crc)
{
	const ckptfmt_bytes *items = (const ckptfmt_bytes *)(const void *)p->source->data;
	bool variant = p->dtype->storage == CKPTFMT_STORAGE_VARIANT;
	uint64_t count = (uint64_t)p->row->element_count;
	uint8_t masked[4];
	*size = variant ? 0 : sizeof masked;
	*crc = 0;
	for (uint64_t i = 0; i < count; i++) {
		*size += cf_varint_size(items[i].size) + items[i].size;
		if (!variant) {
			*crc = cf_string_length_crc(*crc, items[i].size);
			continue;
		}
		*crc = ckptfmt_crc32c(cf_variant_length_crc(*crc, items[i].size), items[i].data, items[i].size);
		cf_store_u32(masked, ckptfmt_crc32c_mask(*crc));
		*crc = ckptfmt_crc32c(*crc, masked, sizeof masked);
		*size += sizeof masked;
	}
	if (variant)
		return;
	cf_store_u32(masked, ckptfmt_crc32c_mask(*crc));
	*crc = ckptfmt_crc32c(*crc, masked, sizeof masked);
	for (uint64_t i = 0; i < count; i++)
		*crc = ckptfmt_crc32c(*crc, items[i].data, items[i].size);
}

static bool same_elements(const pair *p, const ckptfmt_strings_view *there)
{
	const ckptfmt_bytes *items = (const ckptfmt_bytes *)(const void *)p->source->data;
	for (uint64_t i = 0; i < there->count; i++) {
		uint64_t size = there->offsets[i + 1] - there->offsets[i];
		if (size != items[i].size ||
			(size != 0 && memcmp(there->bytes + there->offsets[i], items[i].data, (size_t)size) != 0))
			return false;
	}
	return true;
}

/* Read whole: no more than the source itself takes. */
static ckptfmt_status compare_strings(comparison *c, const pair *p, bool *same, ckptfmt_error *err)
{
	uint64_t size, row = (uint64_t)(p->row - cf_selection_row(c->selection, 0));
	uint32_t crc;
	ckptfmt_strings *strings;
	ckptfmt_strings_view view;
	measure_strings(p, &size, &crc);
	if (size != p->row->stored.size || crc != p->row->stored.crc32c)
		return CKPTFMT_OK;
	CF_TRY(ckptfmt_reader_read_strings(c->reader, c->selection, row, NULL, CKPTFMT_VERIFY_FULL, &strings, err));
	ckptfmt_strings_get(strings, &view);
	*same = same_elements(p, &view);
	ckptfmt_strings_free(strings);
	return CKPTFMT_OK;
}

/* ---- the call -------------------------------------------------------------------------------------------- */

/* Whether a comparison of bytes can tell. */
static bool is_comparable(const comparison *c, const pair *p)
{
	const ckptfmt_source *source = p->source;
	const ckptfmt_row *row = p->row;
	/* DAT-7: sources are compared as they would be written, which is little-endian. */
	return c->reader->header.endianness == 0 && row->slice_count == 0 && cf_source_is_whole(source) &&
		source->dtype == row->dtype && source->rank == row->rank &&
		(row->rank == 0 || memcmp(source->dims, cf_selection_dims(c->selection, row->dims_first),
			(size_t)row->rank * sizeof *source->dims) == 0) &&
		(row->stored.flags & CKPTFMT_STORED_COMPRESSED) == 0 &&
		cf_geometry_check_value(c->selection, row, CF_WHOLE_TENSOR, p->dtype->size, NULL) == CKPTFMT_OK;
}

static int compare_places(const void *a, const void *b)
{
	const pair *p = a, *q = b;
	const ckptfmt_stored *x = &p->row->stored, *y = &q->row->stored;
	if (x->shard != y->shard)
		return x->shard < y->shard ? -1 : 1;
	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	return (p->number > q->number) - (p->number < q->number);
}

/* The pairs worth a look, in the order of the data files. */
static ckptfmt_status list_pairs(const comparison *c, const ckptfmt_source *sources, const uint64_t *rows,
	uint64_t count, pair *pairs, uint64_t *pair_count, ckptfmt_error *err)
{
	uint64_t row_count = cf_selection_count(c->selection);
	*pair_count = 0;
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_status status;
		pair p = {&sources[i], NULL, ckptfmt_dtype_find(sources[i].dtype), i};
		if (rows[i] >= row_count)
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "source %llu names row %llu of %llu",
				(unsigned long long)i, (unsigned long long)rows[i], (unsigned long long)row_count);
		status = cf_source_check(&sources[i], err);
		if (status != CKPTFMT_OK) {
			cf_error_tensor(err, sources[i].name, sources[i].name_size);
			return status;
		}
		p.row = cf_selection_row(c->selection, rows[i]);
		if (is_comparable(c, &p))
			pairs[(*pair_count)++] = p;
	}
	if (*pair_count != 0)
		qsort(pairs, (size_t)*pair_count, sizeof *pairs, compare_places);
	return CKPTFMT_OK;
}

/* Small values share a read with those that follow closely. */
static uint64_t look_ahead(const pair *p, const pair *next)
{
	const ckptfmt_stored *stored = &p->row->stored, *then = next == NULL ? NULL : &next->row->stored;
	uint64_t end = stored->offset + stored->size;
	if (then == NULL || then->shard != stored->shard || stored->size > CF_SMALL_VALUE ||
		then->size > CF_SMALL_VALUE || then->offset < end || then->offset - end > CF_GAP_MAX)
		return 0;
	return stored->offset + CF_WINDOW_SIZE;
}

static ckptfmt_status compare_pairs(comparison *c, const pair *pairs, uint64_t count, uint8_t *same, ckptfmt_error *err)
{
	for (uint64_t i = 0; i < count; i++) {
		const pair *p = &pairs[i];
		ckptfmt_status status;
		bool equal = false;
		if (p->dtype->storage == CKPTFMT_STORAGE_FIXED)
			status = compare_fixed(c, p, look_ahead(p, i + 1 < count ? p + 1 : NULL), &equal, NULL);
		else
			status = compare_strings(c, p, &equal, NULL);
		if (status == CKPTFMT_NO_MEMORY)
			return cf_fail_memory(err);
		same[p->number] = status == CKPTFMT_OK && equal;
	}
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_compare(ckptfmt_reader *reader, const ckptfmt_selection *selection,
	const ckptfmt_source *sources, const uint64_t *rows, uint64_t count, uint8_t *same, ckptfmt_error *err)
{
	comparison c = {reader, selection, {0}, NULL};
	pair *pairs;
	uint64_t pair_count;
	ckptfmt_status status;
	if (count != 0)
		memset(same, 0, (size_t)count);
	CF_TRY(cf_reader_check_call(reader, selection, CKPTFMT_VERIFY_FULL, err));
	pairs = cf_allocate(count * sizeof *pairs);
	if (pairs == NULL)
		return cf_fail_memory(err);
	cf_transfer_begin(&c.transfer, reader, selection, CKPTFMT_VERIFY_FULL);
	status = list_pairs(&c, sources, rows, count, pairs, &pair_count, err);
	if (status == CKPTFMT_OK)
		status = compare_pairs(&c, pairs, pair_count, same, err);
	cf_transfer_end(&c.transfer);
	cf_release(c.gathered);
	cf_release(pairs);
	return status;
}

ckptfmt_status ckptfmt_reader_data_size(ckptfmt_reader *reader, int32_t shard, uint64_t *size, ckptfmt_error *err)
{
	cf_shard_use use;
	*size = 0;
	if (shard < 0 || shard >= reader->header.num_shards)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "data file %d of %d", (int)shard,
			(int)reader->header.num_shards);
	CF_TRY(cf_reader_shard(reader, shard, &use, err));
	*size = use.size;
	cf_shards_done(&reader->shards, &use);
	return CKPTFMT_OK;
}
