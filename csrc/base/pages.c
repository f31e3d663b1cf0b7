/* SPDX-License-Identifier: Apache-2.0 */
#include "base/pages.h"

#include "base/system.h"

#include <assert.h>
#include <errno.h>
#include <sys/mman.h>
#include <unistd.h>

#if CKPTFMT_PLAIN_POSIX
/* The advice is Linux's alone. */
#define madvise(data, size, advice) ((void)(data), (void)(size), errno = ENOSYS, -1)
#elif !defined(MADV_POPULATE_WRITE)
#define MADV_POPULATE_WRITE 23
#endif

static uint8_t *map_pages(uint64_t size)
{
	void *data = mmap(NULL, (size_t)size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	return data == MAP_FAILED ? NULL : data;
}

ckptfmt_status cf_pages_map(uint64_t size, uint8_t **out, ckptfmt_error *err)
{
	int kept = errno;
	uint8_t *data;
	*out = NULL;
	assert(size > 0);
	if (size > (uint64_t)PTRDIFF_MAX)
		return cf_fail_memory(err);
	data = map_pages(size);
	if (data == NULL) {
		errno = kept;
		return cf_fail_memory(err);
	}
	/* Best effort. Without the second each page written after a fork would be copied. */
	(void)!madvise(data, (size_t)size, MADV_HUGEPAGE);
	(void)!madvise(data, (size_t)size, MADV_DONTFORK);
	errno = kept;
	*out = data;
	return CKPTFMT_OK;
}

void cf_pages_want_large(void *data, uint64_t size)
{
	int kept = errno;
	uint64_t skipped = -(uint64_t)(uintptr_t)data % CF_PAGES_UNIT;
	if (size > skipped && size - skipped >= CF_PAGES_UNIT)
		(void)!madvise((uint8_t *)data + skipped, (size - skipped) / CF_PAGES_UNIT * CF_PAGES_UNIT, MADV_HUGEPAGE);
	errno = kept;
}

/* Returns 0, or -1 with errno set. Keeps what is already written. */
static int populate(uint8_t *data, uint64_t size)
{
	int result;
	do {
		result = madvise(data, (size_t)size, MADV_POPULATE_WRITE);
	} while (result != 0 && errno == EINTR);
	return result;
}

ckptfmt_status cf_pages_populate(uint8_t *data, uint64_t size, ckptfmt_error *err)
{
	int kept = errno, result = populate(data, size);
	uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
	if (result != 0 && errno != EINVAL && errno != ENOSYS) {
		errno = kept;
		return cf_fail_memory(err);
	}
	errno = kept;
	/* Not Linux, or before 5.14: touch each page. If memory is short, the kernel kills the process here. */
	for (uint64_t at = 0; result != 0 && at < size; at += page)
		*(volatile uint8_t *)(data + at) = 0;
	return CKPTFMT_OK;
}

void cf_pages_unmap(uint8_t *data, uint64_t size)
{
	int kept = errno;
	int result;
	if (data == NULL)
		return;
	result = munmap(data, (size_t)size);
	assert(result == 0);
	(void)result;
	errno = kept;
}
