/* SPDX-License-Identifier: Apache-2.0 */
#include "base/memory.h"

#include "base/arith.h"
#include "base/limits.h"

#include <stdlib.h>
#include <string.h>

static ckptfmt_allocator hook;  /* all zero: malloc */

ckptfmt_status ckptfmt_set_allocator(const ckptfmt_allocator *allocator, ckptfmt_error *err)
{
	ckptfmt_allocator given;
	CF_TRY(cf_struct_take(&given, sizeof given, allocator, "ckptfmt_allocator", err));
	if (allocator != NULL && (given.allocate == NULL || given.reallocate == NULL || given.release == NULL))
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
			"the allocator must have the functions allocate, reallocate and release");
	hook = given;
	return CKPTFMT_OK;
}

/* PTRDIFF_MAX: no object may be larger, and compilers reason by it. */
static bool fits(uint64_t size)
{
	return size <= (uint64_t)PTRDIFF_MAX;
}

void *cf_allocate(uint64_t size)
{
	if (!fits(size))
		return NULL;
	size += size == 0;
	return hook.allocate != NULL ? hook.allocate(hook.context, size) : malloc((size_t)size);
}

void *cf_allocate_zero(uint64_t count, uint64_t size)
{
	uint64_t total;
	void *memory;
	if (!cf_mul_u64(count, size, &total) || !fits(total))
		return NULL;
	if (hook.allocate == NULL)
		return calloc(1, total == 0 ? 1 : (size_t)total);
	memory = cf_allocate(total);
	if (memory != NULL)
		memset(memory, 0, (size_t)total);
	return memory;
}

void *cf_reallocate(void *memory, uint64_t size)
{
	if (!fits(size))
		return NULL;
	size += size == 0;
	return hook.allocate != NULL ? hook.reallocate(hook.context, memory, size) : realloc(memory, (size_t)size);
}

void cf_release(void *memory)
{
	if (hook.allocate == NULL)
		free(memory);
	else if (memory != NULL)
		hook.release(hook.context, memory);
}
