/* SPDX-License-Identifier: Apache-2.0 */
#include "blocks.h"

#include "repair.h"

#include "ckptfmt.h"

#include <pthread.h>
#include <string.h>

enum { LARGE = 1 << 18, BLOCKS_MAX = 16 };

/* A block is given out again only for the same size, so that a sanitizer sees where it ends. */
static struct { void *memory; uint64_t size; int in_use; } blocks[BLOCKS_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void *allocate(void *context, uint64_t size)
{
	void *memory = NULL;
	(void)context;
	if (size < LARGE)
		return malloc(size);
	(void)pthread_mutex_lock(&lock);
	for (int i = 0; memory == NULL && i < BLOCKS_MAX; i++) {
		if (blocks[i].memory == NULL) {
			blocks[i].memory = malloc(size);
			blocks[i].size = size;
		}
		if (blocks[i].size == size && !blocks[i].in_use) {
			memory = blocks[i].memory;
			blocks[i].in_use = memory != NULL;
		}
	}
	(void)pthread_mutex_unlock(&lock);
	return memory != NULL ? memory : malloc(size);
}

/* Its row among the blocks, -1 for another address. */
static int row_of(const void *memory)
{
	for (int i = 0; i < BLOCKS_MAX; i++)
		if (blocks[i].memory == memory && memory != NULL)
			return i;
	return -1;
}

static void release(void *context, void *memory)
{
	int row;
	(void)context;
	(void)pthread_mutex_lock(&lock);
	row = row_of(memory);
	if (row >= 0)
		blocks[row].in_use = 0;
	(void)pthread_mutex_unlock(&lock);
	if (row < 0)
		free(memory);
}

static void *reallocate(void *context, void *memory, uint64_t size)
{
	void *grown;
	int row;
	(void)pthread_mutex_lock(&lock);
	row = row_of(memory);
	(void)pthread_mutex_unlock(&lock);
	if (row < 0)
		return realloc(memory, size);
	grown = allocate(context, size);
	if (grown != NULL) {
		memcpy(grown, memory, (size_t)(size < blocks[row].size ? size : blocks[row].size));
		release(context, memory);
	}
	return grown;
}

void fuzz_keep_blocks(void)
{
	static int done;
	const ckptfmt_allocator allocator = {sizeof allocator, NULL, allocate, reallocate, release};
	if (!done)
		FUZZ_CHECK(ckptfmt_set_allocator(&allocator, NULL) == CKPTFMT_OK);
	done = 1;
}
