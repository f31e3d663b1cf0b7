/* SPDX-License-Identifier: Apache-2.0 */
/* Pieces stay where they are, apart and aligned, through chunks of all kinds; a failing allocation leaves the rest. */
#include "test.h"

#include "base/arena.h"
#include "memory_fault.h"

#include <stdalign.h>
#include <stddef.h>
#include <string.h>

enum { PIECES = 3000, SIZE_MAX_TRIED = 9000 };

static void test_pieces(void)
{
	static uint8_t *pieces[PIECES];
	static uint64_t sizes[PIECES];
	cf_arena arena = CF_ARENA_EMPTY;
	for (uint32_t i = 0; i < PIECES; i++) {
		sizes[i] = i % 50 == 0 ? 0 : test_random() % SIZE_MAX_TRIED;
		pieces[i] = cf_arena_take(&arena, sizes[i]);
		CHECK(pieces[i] != NULL && (uintptr_t)pieces[i] % alignof(max_align_t) == 0);
		memset(pieces[i], (int)(i % 251), (size_t)sizes[i]);
	}
	for (uint32_t i = 0; i < PIECES; i++) {
		uint64_t same = 0;
		while (same < sizes[i] && pieces[i][same] == i % 251)
			same++;
		CHECK_EQ(same, sizes[i]);
	}
	cf_arena_free(&arena);
	CHECK(arena.last == NULL);
	cf_arena_free(&arena);
}

static void test_large(void)
{
	uint64_t size = (uint64_t)200 << 20;
	cf_arena arena = CF_ARENA_EMPTY;
	uint8_t *small = cf_arena_take(&arena, 1), *large = cf_arena_take(&arena, size);
	CHECK(small != NULL && large != NULL);
	*small = large[0] = large[size - 1] = 7;
	CHECK(cf_arena_take(&arena, UINT64_MAX) == NULL);
	CHECK(cf_arena_take(&arena, UINT64_MAX / 2) == NULL);
	CHECK(*small == 7 && large[0] == 7 && large[size - 1] == 7);
	cf_arena_free(&arena);
}

static void test_no_memory(void)
{
	cf_arena arena = CF_ARENA_EMPTY;
	uint8_t *kept = cf_arena_take(&arena, 8000);
	memset(kept, 5, 8000);
	memory_fault_set(1, false);
	CHECK(cf_arena_take(&arena, 100000) == NULL);
	memory_fault_clear();
	CHECK(cf_arena_take(&arena, 100000) != NULL);
	CHECK(kept[0] == 5 && kept[7999] == 5);
	cf_arena_free(&arena);
	CHECK_EQ(memory_fault_live(), 0);
}

int main(void)
{
	test_seed();
	test_pieces();
	test_large();
	test_no_memory();
	return test_finish("arena");
}
