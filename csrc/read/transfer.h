/* SPDX-License-Identifier: Apache-2.0 */
/* Moves stored values from data files to memory, checking them on the way. One transfer serves one call: it keeps the
 * data file and the staging memory from value to value. */
#ifndef CKPTFMT_READ_TRANSFER_H
#define CKPTFMT_READ_TRANSFER_H

#include "base/progress.h"
#include "compress/decode.h"
#include "read/fetch.h"
#include "read/reader.h"
#include "slices/plan.h"

enum {
	CF_SMALL_VALUE = 64 << 10,      /* values up to this share reads with their neighbours */
	CF_WINDOW_SIZE = 1 << 20,       /* staging memory, and the largest shared read */
	CF_GAP_MAX = 4 << 10,           /* unwanted bytes read through rather than started anew after */
	CF_DIRECT_VALUE = 8 << 20,      /* values from this on are read past the page cache where they are not in it */
	CF_WHOLE_CHECK_MAX = 1 << 20    /* partial reads of stored values up to this read and check all of it */
};

typedef struct cf_transfer {
	ckptfmt_reader *reader;
	const ckptfmt_selection *selection;
	int32_t verify;                 /* ckptfmt_verify_mode */
	cf_progress *progress;          /* counts what is read; borrowed, NULL: nothing does. Set by the caller */
	bool shard_open;
	int32_t shard;                  /* the open one */
	cf_shard_use use;
	uint8_t *staging;               /* CF_WINDOW_SIZE bytes, made when first needed */
	uint64_t window_offset;         /* the part of the open shard that is staged */
	uint64_t window_size;
	cf_direct *direct;              /* of the open shard; NULL: none yet, or none to be had */
	bool direct_tried;
	cf_fetch fetch;                 /* unused on the file system */
	cf_decoder decoder;             /* of compressed values: */
	cf_buffer coded;                /* stored bytes of chunks */
	cf_buffer raw;                  /* raw bytes that do not go straight to where they are wanted */
} cf_transfer;

void cf_transfer_begin(cf_transfer *transfer, ckptfmt_reader *reader, const ckptfmt_selection *selection,
	int32_t verify);
void cf_transfer_end(cf_transfer *transfer);

/* Announces stored bytes of a value that will be read: [begin, end); those of the plan as cf_transfer_part reads them;
 * the chunks that cf_transfer_decode reads. Storages with latency then get them in few batches. No-ops on the file
 * system, and best effort. */
void cf_transfer_expect(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t begin, uint64_t end);
void cf_transfer_expect_part(cf_transfer *transfer, const ckptfmt_stored *stored, const cf_plan *plan);
void cf_transfer_expect_chunks(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t begin, uint64_t end,
	const cf_plan *plan);

/* Opens the value's data file and checks that all its bytes are there, before anybody makes room for them.
 * REQUIRES, as of every value given to a transfer: cf_value_check passed. */
CF_MUST_CHECK ckptfmt_status cf_transfer_open(cf_transfer *transfer, const ckptfmt_stored *stored,
	ckptfmt_error *err);

/* Reads the whole stored value. `ahead` is the end of the bytes of this data file that will be read next (small
 * neighbours), 0 if unknown. With `check`, which strings do not need, the checksum of the stored bytes is compared. */
CF_MUST_CHECK ckptfmt_status cf_transfer_whole(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t ahead,
	bool check, uint8_t *destination, ckptfmt_error *err);

/* Whether cf_transfer_whole reads the value by direct I/O; false also if its data file cannot be opened. If not, any
 * number of transfers may share it: pieces in any order, then the checksum of all of it. */
bool cf_transfer_is_direct(cf_transfer *transfer, const ckptfmt_stored *stored);
/* Reads `size` of the stored bytes, from `done` on; *crc is their checksum, if anything is verified.
 * REQUIRES: done + size <= stored->size. */
CF_MUST_CHECK ckptfmt_status cf_transfer_piece(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t done,
	uint64_t size, uint8_t *destination, uint32_t *crc, ckptfmt_error *err);
/* Compares the checksum of the value, of a compressed one that of its raw bytes (DAT-6, CMP-19). CHECKSUM. */
CF_MUST_CHECK ckptfmt_status cf_transfer_check(const ckptfmt_stored *stored, uint32_t crc, ckptfmt_error *err);
/* Compares the checksum of a value of no bytes, which is 0 (ENT-8). CHECKSUM. */
CF_MUST_CHECK ckptfmt_status cf_transfer_check_empty(const ckptfmt_stored *stored, ckptfmt_error *err);

/* Shows `size` of the stored bytes, from `done` on, until the next call, unchecked. `ahead` as above.
 * REQUIRES: size <= CF_WINDOW_SIZE, done + size <= stored->size. */
CF_MUST_CHECK ckptfmt_status cf_transfer_show(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t done,
	uint64_t size, uint64_t ahead, const uint8_t **bytes, ckptfmt_error *err);

/* Reads `size` of the stored bytes, from `done` on, unchecked. Threads may share a transfer for this while it has the
 * value's data file open and nothing was announced. REQUIRES: done + size <= stored->size. */
CF_MUST_CHECK ckptfmt_status cf_transfer_range(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t done,
	uint64_t size, uint8_t *destination, ckptfmt_error *err);

/* Reads the bytes of the plan. *verified: all of them were checked. */
CF_MUST_CHECK ckptfmt_status cf_transfer_part(cf_transfer *transfer, const ckptfmt_stored *stored, cf_plan *plan,
	uint8_t *destination, bool *verified, ckptfmt_error *err);

/* A compressed value to read. */
typedef struct cf_compressed {
	const ckptfmt_stored *stored;
	uint32_t unit;                  /* bytes of a unit of byte order; 1 for strings and variants */
} cf_compressed;

/* Delivers the bytes of the plan among the raw bytes [begin, end), which are whole chunks of the value. Chunks that it
 * does not touch are skipped unless `all`. `plan` NULL: all of them, to `destination` (the place of byte `begin`), or
 * nowhere if that is NULL. *crc, unless NULL, is extended by the raw bytes that were read. CMP-11 is left out where
 * nothing is verified. REQUIRES: the reader has a codec; crc is NULL or all bytes are read. */
CF_MUST_CHECK ckptfmt_status cf_transfer_decode(cf_transfer *transfer, const cf_compressed *value, uint64_t begin,
	uint64_t end, const cf_plan *plan, bool all, uint8_t *destination, uint32_t *crc, ckptfmt_error *err);

/* Adds the path of the value's data file and its offset to a failure. */
void cf_transfer_error(const cf_transfer *transfer, const ckptfmt_stored *stored, ckptfmt_error *err);

#endif
