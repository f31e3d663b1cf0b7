/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for large arrays, and for what saves and merges of many tensors need while they last, that is kept afterwards
 * for the next: to get pages from the system and to clear them takes longer than to read a cached file into them.
 *
 * What is kept is given to the system at the same time, to take as soon as it lacks memory (MADV_FREE): it swaps
 * nothing out for it, and kills nobody. The pages that it did not take cost nothing to use again; this was measured to
 * be as fast as memory that was simply held. They count in what the process is said to use until they are taken; who
 * minds calls cf_kept_release.
 *
 * No more is kept than that what is in use and what is kept are together as much as was in use at once before, nor more
 * than a quarter of the machine's memory. What was kept the longest goes first.
 *
 * Any number of threads may call, and a forked child, which has its own copy of all: whoever finds somebody else at
 * work, if only a thread of its parent, does without what is kept.
 *
 * Under AddressSanitizer nothing is kept and memory is the heap's, so that it sees what is used too late or beyond its
 * end.
 */
#ifndef CKPTFMT_IO_KEPT_H
#define CKPTFMT_IO_KEPT_H

#include "base/error.h"

/* At a multiple of CF_PAGES_UNIT, with large pages asked for; its bytes are anything. NO_MEMORY. REQUIRES: size > 0. */
CF_MUST_CHECK ckptfmt_status cf_kept_take(uint64_t size, uint8_t **out, ckptfmt_error *err);
/* `size` as it was taken. */
void cf_kept_give(uint8_t *data, uint64_t size);
/* Gives all that is kept back to the system at once; returns its bytes. */
uint64_t cf_kept_release(void);

#endif
