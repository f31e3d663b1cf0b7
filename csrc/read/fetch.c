/* SPDX-License-Identifier: Apache-2.0 */
#include "read/fetch.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

/* The data files of one batch. */
enum { FILES_MAX = 64 };

typedef struct cf_fetch_range {
	int32_t shard;
	uint64_t begin, end;
} cf_fetch_range;

typedef struct cf_fetch_part {
	int32_t shard;
	uint64_t begin, end;            /* that were there to be read */
	uint64_t position;              /* in the window */
} cf_fetch_part;

static uint64_t range_count(const cf_fetch *fetch)
{
	return fetch->ranges.size / sizeof(cf_fetch_range);
}

static cf_fetch_range *range_at(const cf_fetch *fetch, uint64_t row)
{
	return (cf_fetch_range *)cf_buffer_items(&fetch->ranges) + row;
}

static uint64_t part_count(const cf_fetch *fetch)
{
	return fetch->parts.size / sizeof(cf_fetch_part);
}

static cf_fetch_part *part_at(const cf_fetch *fetch, uint64_t row)
{
	return (cf_fetch_part *)cf_buffer_items(&fetch->parts) + row;
}

/* ---- announcing ---- */

static bool joins(const cf_fetch_range *range, const cf_fetch_range *next)
{
	return range->shard == next->shard && next->begin >= range->begin &&
		(next->begin <= range->end || next->begin - range->end <= CF_FETCH_GAP);
}

void cf_fetch_expect(cf_fetch *fetch, int32_t shard, uint64_t offset, uint64_t size)
{
	cf_fetch_range range = {shard, offset, 0};
	uint64_t count = range_count(fetch);
	/* A damaged index can name any bytes; reading them is an error. */
	if (size == 0 || !cf_add_u64(offset, size, &range.end))
		return;
	if (count != 0 && joins(range_at(fetch, count - 1), &range)) {
		cf_fetch_range *last = range_at(fetch, count - 1);
		last->end = cf_max_u64(last->end, range.end);
		return;
	}
	/* Without memory the ranges are read one by one. */
	cf_put_bytes(&fetch->ranges, &range, sizeof range);
	fetch->sorted = false;
}

static int compare_ranges(const void *left, const void *right)
{
	const cf_fetch_range *a = left, *b = right;
	if (a->shard != b->shard)
		return a->shard < b->shard ? -1 : 1;
	return (a->begin > b->begin) - (a->begin < b->begin);
}

static void sort_ranges(cf_fetch *fetch)
{
	uint64_t count = range_count(fetch), kept = 0;
	qsort(fetch->ranges.data, (size_t)count, sizeof(cf_fetch_range), compare_ranges);
	for (uint64_t i = 1; i < count; i++) {
		cf_fetch_range *last = range_at(fetch, kept), *next = range_at(fetch, i);
		if (joins(last, next))
			last->end = cf_max_u64(last->end, next->end);
		else
			*range_at(fetch, ++kept) = *next;
	}
	fetch->ranges.size = cf_min_u64(count, kept + 1) * sizeof(cf_fetch_range);
	fetch->sorted = true;
}

/* The announced range with these bytes; the count of ranges if there is none. */
static uint64_t find_range(cf_fetch *fetch, int32_t shard, uint64_t begin, uint64_t end)
{
	uint64_t low = 0, high = range_count(fetch), count = high;
	const cf_fetch_range wanted = {shard, begin, end};
	if (count != 0 && !fetch->sorted) {
		sort_ranges(fetch);
		high = count = range_count(fetch);
	}
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		if (compare_ranges(range_at(fetch, middle), &wanted) <= 0)
			low = middle + 1;
		else
			high = middle;
	}
	if (low == 0 || range_at(fetch, low - 1)->shard != shard || range_at(fetch, low - 1)->end < end)
		return count;
	return low - 1;
}

/* ---- fetching ---- */

/* Chooses the parts of the next batch, from `begin` in the range on. */
static void choose_parts(cf_fetch *fetch, uint64_t row, uint64_t begin)
{
	uint64_t count = range_count(fetch), left = CF_FETCH_WINDOW;
	int32_t files = 0;
	cf_buffer_clear(&fetch->parts);
	for (; row < count && left != 0; row++) {
		const cf_fetch_range *range = range_at(fetch, row);
		cf_fetch_part part = {range->shard, cf_max_u64(begin, range->begin), 0, CF_FETCH_WINDOW - left};
		uint64_t parts = part_count(fetch);
		files += parts == 0 || part_at(fetch, parts - 1)->shard != range->shard;
		if (files > FILES_MAX)
			break;
		part.end = part.begin + cf_min_u64(range->end - part.begin, left);
		cf_put_bytes(&fetch->parts, &part, sizeof part);
		left -= part.end - part.begin;
		begin = 0;
	}
}

static bool make_window(cf_fetch *fetch, uint64_t size)
{
	if (size <= fetch->window_size)
		return true;
	cf_release(fetch->window);
	fetch->window = cf_allocate(size);
	fetch->window_size = fetch->window == NULL ? 0 : size;
	return fetch->window != NULL;
}

/* Reads the parts. A data file that cannot be opened ends the batch before its parts: the read that needs it reports
 * why. */
static ckptfmt_status read_parts(cf_fetch *fetch, ckptfmt_reader *reader, int32_t open_shard, const cf_shard_use *open,
	ckptfmt_object_read *reads, ckptfmt_error *err)
{
	cf_shard_use uses[FILES_MAX];
	uint64_t count = part_count(fetch), ready = 0;
	int32_t used = 0, last = open_shard;
	const cf_file *file = &open->file;
	ckptfmt_status status;
	for (; ready < count; ready++) {
		cf_fetch_part *part = part_at(fetch, ready);
		if (part->shard != last) {
			if (cf_reader_shard(reader, part->shard, &uses[used], NULL) != CKPTFMT_OK)
				break;
			last = part->shard;
			file = &uses[used++].file;
		}
		reads[ready] = (ckptfmt_object_read){.object = file->object, .offset = part->begin,
			.size = part->end - part->begin, .destination = fetch->window + part->position};
	}
	status = cf_os_read_batch(&reader->directory, reads, ready, err);
	for (uint64_t i = 0; i < ready && status == CKPTFMT_OK; i++)
		part_at(fetch, i)->end = part_at(fetch, i)->begin + cf_min_u64(reads[i].got, reads[i].size);
	fetch->parts.size = status == CKPTFMT_OK ? ready * sizeof(cf_fetch_part) : 0;
	while (used > 0)
		cf_shards_done(&reader->shards, &uses[--used]);
	return status;
}

/* Fetches the announced bytes from `begin` in the range on. OK with nothing fetched where memory does not suffice. */
static ckptfmt_status fetch_from(cf_fetch *fetch, ckptfmt_reader *reader, int32_t shard, const cf_shard_use *use,
	uint64_t row, uint64_t begin, ckptfmt_error *err)
{
	ckptfmt_object_read *reads;
	const cf_fetch_part *last;
	ckptfmt_status status = CKPTFMT_OK;
	choose_parts(fetch, row, begin);
	if (fetch->parts.failed || part_count(fetch) == 0)
		return CKPTFMT_OK;
	last = part_at(fetch, part_count(fetch) - 1);
	reads = cf_allocate_zero(part_count(fetch), sizeof *reads);
	if (reads != NULL && make_window(fetch, last->position + (last->end - last->begin)))
		status = read_parts(fetch, reader, shard, use, reads, err);
	else
		cf_buffer_clear(&fetch->parts);
	cf_release(reads);
	return status;
}

/* Where these bytes are in the window; NULL if they are not. */
static const uint8_t *find_part(const cf_fetch *fetch, int32_t shard, uint64_t begin, uint64_t end)
{
	uint64_t low = 0, high = part_count(fetch);
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		const cf_fetch_part *part = part_at(fetch, middle);
		if (part->shard < shard || (part->shard == shard && part->end < end))
			low = middle + 1;
		else
			high = middle;
	}
	if (low == part_count(fetch) || part_at(fetch, low)->shard != shard || part_at(fetch, low)->begin > begin)
		return NULL;
	return fetch->window + part_at(fetch, low)->position + (begin - part_at(fetch, low)->begin);
}

ckptfmt_status cf_fetch_read(cf_fetch *fetch, ckptfmt_reader *reader, int32_t shard, const cf_shard_use *use,
	uint8_t *to, uint64_t size, uint64_t offset, uint64_t *got, ckptfmt_error *err)
{
	const uint8_t *bytes = find_part(fetch, shard, offset, offset + size);
	if (bytes == NULL && size < CF_FETCH_DIRECT) {
		uint64_t row = find_range(fetch, shard, offset, offset + size);
		if (row != range_count(fetch)) {
			CF_TRY(fetch_from(fetch, reader, shard, use, row, offset, err));
			bytes = find_part(fetch, shard, offset, offset + size);
		}
	}
	if (bytes == NULL)
		return cf_os_read_at(&use->file, "", to, size, offset, got, err);
	memcpy(to, bytes, (size_t)size);
	*got = size;
	return CKPTFMT_OK;
}

void cf_fetch_clear(cf_fetch *fetch)
{
	cf_buffer_clear(&fetch->ranges);
	cf_buffer_clear(&fetch->parts);
	fetch->sorted = false;
}

void cf_fetch_free(cf_fetch *fetch)
{
	cf_buffer_free(&fetch->ranges);
	cf_buffer_free(&fetch->parts);
	cf_release(fetch->window);
	memset(fetch, 0, sizeof *fetch);
}
