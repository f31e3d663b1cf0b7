/* SPDX-License-Identifier: Apache-2.0 */
/* Whole pages of memory from the operating system, for copies of gigabytes. */
#ifndef CKPTFMT_IO_PAGES_H
#define CKPTFMT_IO_PAGES_H

#include "base/error.h"

#include <stdbool.h>

/* Address space that nothing stands behind yet; large pages are asked for, and a forked child does not get it.
 * REQUIRES: size > 0. */
CF_MUST_CHECK ckptfmt_status cf_pages_map(uint64_t size, uint8_t **out, ckptfmt_error *err);
/* Asks for large pages for memory from anywhere, where it has room for them. */
void cf_pages_want_large(void *data, uint64_t size);
/* Has the system put memory, all zero, behind a part of it, so that no later write has to wait for that. Any number of
 * threads may work on different parts. NO_MEMORY: there is not enough.
 * REQUIRES: nothing was written to the part. `data` is at a multiple of CF_PAGES_UNIT from the start. */
CF_MUST_CHECK ckptfmt_status cf_pages_populate(uint8_t *data, uint64_t size, ckptfmt_error *err);
/* The same ahead of others who are writing there already, as far as the system can; false where it cannot. */
bool cf_pages_populate_ahead(uint8_t *data, uint64_t size);
/* `size` as it was mapped; NULL is no failure. */
void cf_pages_unmap(uint8_t *data, uint64_t size);

/* A multiple of every page size in use, large ones too. */
#define CF_PAGES_UNIT ((uint64_t)2 << 20)

#endif
