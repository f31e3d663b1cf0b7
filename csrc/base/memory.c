/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"

#include "base/arith.h"

#include <stdlib.h>

/* PTRDIFF_MAX: no object may be larger, and compilers reason by it. */
static bool fits(uint64_t size)
{
	return size <= (uint64_t)PTRDIFF_MAX;
}

void *cf_allocate(uint64_t size)
{
	return fits(size) ? malloc(size == 0 ? 1 : (size_t)size) : NULL;
}

void *cf_allocate_zero(uint64_t count, uint64_t size)
{
	uint64_t total;
	if (!cf_mul_u64(count, size, &total) || !fits(total))
		return NULL;
	return calloc(1, total == 0 ? 1 : (size_t)total);
}

void *cf_reallocate(void *memory, uint64_t size)
{
	return fits(size) ? realloc(memory, size == 0 ? 1 : (size_t)size) : NULL;
}

void cf_release(void *memory)
{
	free(memory);
}
