/* SPDX-License-Identifier: Apache-2.0 */
/* All heap allocation goes through these functions. Tests replace them by failing ones. */
#ifndef CKPTFMT_BASE_MEMORY_H
#define CKPTFMT_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* Returns NULL if out of memory or if `size` exceeds PTRDIFF_MAX. A size of 0 gives a pointer to release. */
void *cf_allocate(uint64_t size);
/* As cf_allocate of count * size bytes, all zero. */
void *cf_allocate_zero(uint64_t count, uint64_t size);
/* Grows or shrinks; if it returns NULL the old memory is unchanged. */
void *cf_reallocate(void *memory, uint64_t size);
void cf_release(void *memory);

#endif
