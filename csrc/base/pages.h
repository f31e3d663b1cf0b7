/* SPDX-License-Identifier: Apache-2.0 */
/* Pages mapped from the operating system, for copies of gigabytes. */
#ifndef CKPTFMT_BASE_PAGES_H
#define CKPTFMT_BASE_PAGES_H

#include "base/error.h"

#include <stdbool.h>

/* Reserves address space that is not populated yet. Requests large pages; a forked child does not inherit it.
 * REQUIRES: size > 0. */
CF_MUST_CHECK ckptfmt_status cf_pages_map(uint64_t size, uint8_t **out, ckptfmt_error *err);
/* Requests large pages for the aligned part of any memory. */
void cf_pages_want_large(void *data, uint64_t size);
/* Populates a part with zeroed memory, so that later writes do not fault. Threads may populate different parts at once.
 * NO_MEMORY: there is not enough.
 * REQUIRES: nothing was written to the part. `data` is at a multiple of CF_PAGES_UNIT from the start. */
CF_MUST_CHECK ckptfmt_status cf_pages_populate(uint8_t *data, uint64_t size, ckptfmt_error *err);
/* `size` as it was mapped. NULL is ignored. */
void cf_pages_unmap(uint8_t *data, uint64_t size);

/* A multiple of every page size in use, including large pages. */
#define CF_PAGES_UNIT ((uint64_t)2 << 20)

#endif
