/* SPDX-License-Identifier: Apache-2.0 */
/* What the checksum of a block says about damage: the changes of one byte that make it hold, and where blocks end. All
 * is found by walks over the bytes, one step a byte. */
#ifndef CKPTFMT_RESCUE_SYNDROME_H
#define CKPTFMT_RESCUE_SYNDROME_H

#include <stdbool.h>
#include <stdint.h>

enum { CF_CHANGES_MAX = 8 };

/* A byte of a stored block and its trailer, and the bits to invert in it. */
typedef struct cf_change {
	uint64_t at;
	uint8_t bits;
} cf_change;

/* Tables for steps of the checksum's register by one byte, forwards and backwards. */
typedef struct cf_steps {
	uint32_t forward[256];
	uint32_t back[256];
} cf_steps;

void cf_steps_init(cf_steps *steps);

/* Finds the changes of a single byte, or of a single bit, with which the checksum of a block of `size` bytes holds; a
 * change of the type byte or of the stored checksum is one too. Returns their number, and at most CF_CHANGES_MAX of
 * them. REQUIRES: `stored` holds the block and its trailer; the checksum does not hold. */
uint64_t cf_changes_find(const cf_steps *steps, const uint8_t *stored, uint64_t size, bool one_bit, cf_change *out);

/* A search for the trailer that ends the block at the beginning of `bytes`. */
typedef struct cf_end_search {
	const uint8_t *bytes;
	uint64_t size;              /* bytes that there are */
	uint64_t next;              /* size of the block to try next; 0 at first */
	uint32_t state;             /* the checksum's register after that many bytes; UINT32_MAX at first */
} cf_end_search;

/* The next block size with a known type and a checksum that holds. False: there is none. */
bool cf_end_next(const cf_steps *steps, cf_end_search *search, uint64_t *size);

#endif
