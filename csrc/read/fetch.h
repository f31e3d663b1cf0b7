/* SPDX-License-Identifier: Apache-2.0 */
/* Reads of data files in storages where every request is a round trip: the ranges that a call will need are announced
 * first, and fetched in few batches, of many ranges each, when the first of them is used. Best effort: a range that was
 * not announced, or not fetched, is read when it is needed. Belongs to one thread. */
#ifndef CKPTFMT_READ_FETCH_H
#define CKPTFMT_READ_FETCH_H

#include "read/reader.h"

enum {
	CF_FETCH_WINDOW = 32 << 20,     /* bytes of a batch */
	CF_FETCH_DIRECT = 4 << 20,      /* larger reads go straight to their destination, in a batch of their own */
	CF_FETCH_GAP = 256 << 10        /* unwanted bytes that are fetched rather than starting another range */
};

typedef struct cf_fetch {
	cf_buffer ranges;               /* announced: cf_fetch_range, sorted and joined once `sorted` */
	bool sorted;
	cf_buffer parts;                /* fetched: cf_fetch_part, in the order of the ranges */
	uint8_t *window;                /* their bytes */
	uint64_t window_size;
} cf_fetch;

/* Announces bytes of a data file. */
void cf_fetch_expect(cf_fetch *fetch, int32_t shard, uint64_t offset, uint64_t size);
/* Forgets what was announced and fetched; keeps the memory. */
void cf_fetch_clear(cf_fetch *fetch);
void cf_fetch_free(cf_fetch *fetch);

/* As cf_os_read_at, of the data file `shard`, which `use` has open. */
CF_MUST_CHECK ckptfmt_status cf_fetch_read(cf_fetch *fetch, ckptfmt_reader *reader, int32_t shard,
	const cf_shard_use *use, uint8_t *to, uint64_t size, uint64_t offset, uint64_t *got, ckptfmt_error *err);

#endif
