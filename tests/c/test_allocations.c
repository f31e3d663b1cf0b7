/* SPDX-License-Identifier: Apache-2.0 */
/* How often the hot paths ask for memory: a few times each, however many keys, names or tensors. Links memory_fault.c,
 * where a buffer that grows counts each time. */
#include "hot_paths.h"
#include "memory_fault.h"
#include "test.h"

enum { FEW = 500, MANY = 8000 };

typedef struct budget {
	const char *name;
	uint64_t few, many;     /* allocations for so many units */
} budget;

/* Measured counts. A buffer that grows by doubling allocates once per doubling; there are four between FEW and MANY. */
static const budget budgets[] = {
	{"catalog", 31, 47},   /* the hash set grows with the rows: one allocation for each doubling */
	{"index", 18, 26},
	{"index-shuffled", 20, 28},   /* one more is the room to sort in */
	{"open", 8000, 128000},   /* 16 an open */
	{"list", 32, 44},
	{"lookup", 2000, 32000},   /* 4 a call */
	{"select", 30, 42},
	{"merge", 130, 1285},   /* 15 an input, of which there are 5 and 80; two threads share them as it happens */
	{"add-256", 12, 16},
	{"add-1024", 12, 16},
	{"save", 38, 51},
	{"read", 10, 14},
	{"slice", 1000, 16000},   /* 2 a call */
	{"columns", 1000, 16000},
};

static uint64_t allocations(const hot_path *path, uint64_t count)
{
	uint64_t calls;
	hot_path_prepare(path, count);
	memory_fault_set(0, false);
	hot_path_run(path);
	calls = memory_fault_calls();
	hot_path_finish(path);
	CHECK_EQ(memory_fault_live(), 0);
	return calls;
}

static void check(const hot_path *path, uint64_t count, uint64_t most)
{
	uint64_t calls = allocations(path, count);
	test_checks++;
	if (calls <= most)
		return;
	test_failures++;
	fprintf(stderr, "%s of %" PRIu64 ": %" PRIu64 " allocations, and the budget is %" PRIu64 "\n", path->name, count,
		calls, most);
}

int main(void)
{
	const hot_path *path;
	uint32_t row = 0;
	for (; (path = hot_path_at(row)) != NULL && row < sizeof budgets / sizeof budgets[0]; row++) {
		CHECK(strcmp(path->name, budgets[row].name) == 0);
		check(path, FEW, budgets[row].few);
		check(path, MANY, budgets[row].many);
	}
	CHECK(path == NULL && row == sizeof budgets / sizeof budgets[0]);
	return test_finish("allocations");
}
