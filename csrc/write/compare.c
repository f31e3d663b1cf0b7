/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether tensors in memory equal those of a checkpoint. Dtype, shape and size are compared first, then checksums and
 * stored bytes, chunk by chunk: a chunk whose stored checksum differs is not read. Bytes that equal memory with the
 * stored checksums are sound, so damaged values count as changed.
 */
#include "base/memory.h"
#include "crc32c/chunk_sum.h"
#include "read/rules.h"
#include "read/transfer.h"
#include "write/value.h"

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
	cf_buffer elements;         /* the stored form of a source of strings or variants */
} comparison;

/* ---- the bytes of a source ------------------------------------------------------------------------------- */

/* A source as it is stored, from front to end. */
typedef struct walk {
	cf_gather gather;
	const uint8_t *data;        /* all of it; NULL: to be gathered */
	uint64_t size;
	uint64_t done;
} walk;

/* *crc: the checksum of strings or variants, which is not that of the bytes. */
static ckptfmt_status begin_walk(comparison *c, const pair *p, walk *w, uint32_t *crc, ckptfmt_error *err)
{
	w->done = 0;
	if (p->dtype->storage != CKPTFMT_STORAGE_FIXED) {
		cf_buffer_clear(&c->elements);
		CF_TRY(cf_source_elements(p->source, &c->elements, crc, err));
		w->data = c->elements.data;
		w->size = c->elements.size;
		return CKPTFMT_OK;
	}
	CF_TRY(cf_source_gather(p->source, &w->gather, err));
	if (cf_gather_contiguous(&w->gather, &w->data, &w->size))
		return CKPTFMT_OK;
	w->size = cf_gather_size(&w->gather);
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

/* The bytes of a source against the checksums of a stored value. One without chunk checksums is a single chunk. */
typedef struct checksums {
	const uint32_t *crcs;       /* of the current chunk and those after it */
	cf_chunk_sum sum;
} checksums;

static checksums begin_checksums(const comparison *c, const ckptfmt_stored *stored)
{
	uint64_t size = stored->chunk_size != 0 ? stored->chunk_size : stored->size;
	const uint32_t *crcs = &stored->crc32c;
	if (stored->chunk_size != 0)
		crcs = (const uint32_t *)cf_buffer_items(&c->selection->chunk_crcs) + stored->chunks_first;
	return (checksums){crcs, cf_chunk_sum_begin(size)};
}

static bool end_chunk(checksums *sums)
{
	return cf_chunk_sum_end(&sums->sum, sums->sum.size) == *sums->crcs++;
}

/* False: a chunk differs. */
static bool add_piece(checksums *sums, const uint8_t *bytes, uint64_t size)
{
	while (size > 0) {
		uint64_t part = cf_chunk_sum_take(&sums->sum, bytes, size);
		bytes += part;
		size -= part;
		if (sums->sum.left == 0 && !end_chunk(sums))
			return false;
	}
	return true;
}

/* ---- values ---------------------------------------------------------------------------------------------- */

static ckptfmt_status compare_value(comparison *c, const pair *p, uint64_t ahead, bool *same, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = &p->row->stored;
	bool fixed = p->dtype->storage == CKPTFMT_STORAGE_FIXED;
	checksums sums = begin_checksums(c, stored);
	uint32_t crc = 0;
	walk w;
	CF_TRY(begin_walk(c, p, &w, &crc, err));
	if (w.size != stored->size || (!fixed && crc != stored->crc32c))
		return CKPTFMT_OK;
	while (w.done < w.size) {
		uint64_t size, done = w.done;
		const uint8_t *bytes = next_piece(c, &w, &size), *there;
		if (fixed && !add_piece(&sums, bytes, size))
			return CKPTFMT_OK;
		CF_TRY(cf_transfer_show(&c->transfer, stored, done, size, ahead, &there, err));
		if (memcmp(bytes, there, (size_t)size) != 0)
			return CKPTFMT_OK;
	}
	/* EXT-6: chunk checksums that disagree with that of the value are damage. */
	*same = !fixed || ((sums.sum.left == sums.sum.size || end_chunk(&sums)) && sums.sum.total == stored->crc32c);
	return CKPTFMT_OK;
}

/* ---- the call -------------------------------------------------------------------------------------------- */

/* Whether only a comparison of bytes can tell. */
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
		(row->stored.chunk_size == 0 || p->dtype->storage == CKPTFMT_STORAGE_FIXED) &&
		cf_value_check(c->selection, row, CF_WHOLE_TENSOR, NULL) == CKPTFMT_OK;
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

/* The pairs that need a comparison of bytes, in the order of the data files. */
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
		status = compare_value(c, p, look_ahead(p, i + 1 < count ? p + 1 : NULL), &equal, NULL);
		if (status == CKPTFMT_NO_MEMORY)
			return cf_fail_memory(err);
		same[p->number] = status == CKPTFMT_OK && equal;
	}
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_compare(ckptfmt_reader *reader, const ckptfmt_selection *selection,
	const ckptfmt_source *sources, const uint64_t *rows, uint64_t count, uint8_t *same, ckptfmt_error *err)
{
	comparison c = {.reader = reader, .selection = selection, .elements = CF_BUFFER_EMPTY};
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
	cf_buffer_free(&c.elements);
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
