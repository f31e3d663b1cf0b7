/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed values: groups of neighbouring chunks are read in one go, checked, decoded in one batch of the codec, and
 * delivered. `begin` and `end` count raw bytes, as the read plan does.
 */
#include "read/transfer.h"

/* Raw bytes of a group: large enough for a batch to be worth its call, small enough to stay in the cache. */
enum { GROUP_SIZE = 2 << 20 };

/* The groups of chunks that a range needs. */
typedef struct groups {
	uint64_t chunk_size;
	uint64_t most;              /* chunks of a group */
	uint64_t end;               /* of the range */
	cf_plan *plan;              /* the chunks that it touches are needed; NULL: all from `next` on */
	cf_run run;                 /* of the plan, if `left` */
	bool left;
	uint64_t next;
} groups;

/* To the first chunk from raw byte `begin` on. */
static void seek(groups *g, uint64_t begin)
{
	g->next = begin / g->chunk_size;
	g->left = begin < g->end;
	if (g->plan != NULL && g->left) {
		cf_plan_limit(g->plan, begin, g->end);
		g->left = cf_plan_next(g->plan, &g->run);
	}
}

static bool next_group(groups *g, uint64_t *first, uint64_t *count)
{
	uint64_t end, last = (g->end + g->chunk_size - 1) / g->chunk_size;
	if (!g->left)
		return false;
	if (g->plan == NULL) {
		*first = g->next;
		*count = cf_min_u64(g->most, last - g->next);
		seek(g, (*first + *count) * g->chunk_size);
		return true;
	}
	*first = end = g->run.stored_offset / g->chunk_size;
	while (g->left && end - *first < g->most && g->run.stored_offset / g->chunk_size == end) {
		end = (g->run.stored_offset + g->run.size - 1) / g->chunk_size + 1;
		end = cf_min_u64(end, *first + g->most);
		seek(g, end * g->chunk_size);
	}
	*count = end - *first;
	return true;
}

/* Where the chunk begins among the stored bytes. */
static uint64_t chunk_begin(const cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t chunk)
{
	const uint64_t *ends = (const uint64_t *)cf_buffer_items(&transfer->selection->chunk_ends) + stored->ends_first;
	return chunk == 0 ? 0 : ends[chunk - 1];
}

static groups groups_of(const ckptfmt_stored *stored, uint64_t begin, uint64_t end, cf_plan *plan)
{
	groups g = {.chunk_size = stored->chunk_size, .most = cf_max_u64(GROUP_SIZE / stored->chunk_size, 1), .end = end,
		.plan = plan};
	seek(&g, begin);
	return g;
}

void cf_transfer_expect_chunks(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t begin, uint64_t end,
	const cf_plan *plan)
{
	cf_plan walked;
	groups g;
	uint64_t first, count;
	if (!cf_os_has_latency(&transfer->reader->directory))
		return;
	if (plan != NULL)
		walked = *plan;
	g = groups_of(stored, begin, end, plan == NULL ? NULL : &walked);
	while (next_group(&g, &first, &count))
		cf_transfer_expect(transfer, stored, chunk_begin(transfer, stored, first),
			chunk_begin(transfer, stored, first + count));
}

/* Reads and decodes chunks to `to`. */
static ckptfmt_status load_group(cf_transfer *transfer, const cf_compressed *v, uint64_t first, uint64_t count,
	uint8_t *to, ckptfmt_error *err)
{
	const ckptfmt_selection *selection = transfer->selection;
	const ckptfmt_stored *stored = v->stored;
	const uint64_t *ends = (const uint64_t *)cf_buffer_items(&selection->chunk_ends) + stored->ends_first;
	const uint32_t *crcs = (const uint32_t *)cf_buffer_items(&selection->chunk_crcs) + stored->chunks_first;
	uint64_t begin = chunk_begin(transfer, stored, first), raw_begin = first * stored->chunk_size;
	cf_coded coded = {.ends = ends + first, .begin = begin, .first = first, .count = count,
		.raw_size = cf_min_u64(count * stored->chunk_size, stored->raw_size - raw_begin),
		.chunk_size = stored->chunk_size, .origin = stored->offset + begin, .unit = v->unit};
	uint64_t size = ends[first + count - 1] - begin;
	uint8_t *bytes;
	cf_buffer_clear(&transfer->coded);
	bytes = cf_buffer_extend(&transfer->coded, size);
	CF_TRY(cf_buffer_status(&transfer->coded, err));
	CF_TRY(cf_transfer_range(transfer, stored, begin, size, bytes, err));
	coded.bytes = bytes;
	coded.crcs = transfer->verify == CKPTFMT_VERIFY_OFF ? NULL : crcs + first;
	return cf_decode(&transfer->decoder, &coded, to, err);
}

static void scatter(const cf_plan *plan, const uint8_t *from, uint64_t begin, uint64_t size, uint8_t *destination)
{
	cf_plan part = *plan;
	cf_run run;
	cf_plan_limit(&part, begin, begin + size);
	while (cf_plan_next(&part, &run))
		memcpy(destination + run.destination_offset, from + (run.stored_offset - begin), (size_t)run.size);
}

static ckptfmt_status need_raw(cf_transfer *transfer, uint64_t size, uint8_t **out, ckptfmt_error *err)
{
	cf_buffer_clear(&transfer->raw);
	*out = cf_buffer_extend(&transfer->raw, size);
	return cf_buffer_status(&transfer->raw, err);
}

ckptfmt_status cf_transfer_decode(cf_transfer *transfer, const cf_compressed *v, uint64_t begin, uint64_t end,
	const cf_plan *plan, bool all, uint8_t *destination, uint32_t *crc, ckptfmt_error *err)
{
	uint64_t chunk_size = v->stored->chunk_size, first, count;
	cf_plan walked;
	groups g;
	if (plan != NULL && !all)
		walked = *plan;
	CF_TRY(cf_transfer_open(transfer, v->stored, err));
	transfer->decoder.codec = transfer->reader->codec;
	g = groups_of(v->stored, begin, end, plan != NULL && !all ? &walked : NULL);
	while (next_group(&g, &first, &count)) {
		uint64_t at = first * chunk_size, size = cf_min_u64(count * chunk_size, v->stored->raw_size - at);
		bool straight = plan == NULL && destination != NULL;
		uint8_t *to = straight ? destination + (at - begin) : NULL;
		if (!straight)
			CF_TRY(need_raw(transfer, size, &to, err));
		CF_TRY(load_group(transfer, v, first, count, to, err));
		if (crc != NULL)
			*crc = ckptfmt_crc32c(*crc, to, size);
		if (plan != NULL)
			scatter(plan, to, at, size, destination);
	}
	return CKPTFMT_OK;
}
