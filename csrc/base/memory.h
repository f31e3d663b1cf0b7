/* SPDX-License-Identifier: Apache-2.0 */
/* The only door to the heap. Tests put a failing one in its place. */
#ifndef CKPTFMT_BASE_MEMORY_H
#define CKPTFMT_BASE_MEMORY_H

#include <stddef.h>
#include <stdint.h>

/* NULL when there is no memory or `size` does not fit size_t. A size of 0 gives a pointer that may be released. */
void *cf_allocate(uint64_t size);
/* As cf_allocate of count * size bytes, all zero. */
void *cf_allocate_zero(uint64_t count, uint64_t size);
/* Grows or shrinks; on NULL the old memory stays as it was. */
void *cf_reallocate(void *memory, uint64_t size);
void cf_release(void *memory);

#endif
