/* SPDX-License-Identifier: Apache-2.0 */
/* table/keys.h: the order of memcmp, a prefix first, ties by row, whatever the keys share. */
#include "table/keys.h"

#include "base/arith.h"
#include "test.h"

enum { COUNT_MAX = 3000, SIZE_MAX_BYTES = 64 };

static uint8_t texts[COUNT_MAX][SIZE_MAX_BYTES];
static cf_sort_key keys[COUNT_MAX];
static uint8_t seen[COUNT_MAX];

static int compare(const cf_sort_key *a, const cf_sort_key *b)
{
	uint64_t i = 0;
	for (; i < a->key_size && i < b->key_size; i++)
		if (a->key[i] != b->key[i])
			return a->key[i] < b->key[i] ? -1 : 1;
	return a->key_size < b->key_size ? -1 : a->key_size > b->key_size;
}

/* keys[0, count) with the rows 0 and so on. */
static void check_sort(uint64_t count)
{
	cf_sort_keys(keys, count);
	memset(seen, 0, sizeof seen);
	for (uint64_t i = 0; i < count; i++) {
		CHECK(keys[i].key == texts[keys[i].row]);
		CHECK(seen[keys[i].row]++ == 0);
		if (i == 0)
			continue;
		int order = compare(&keys[i - 1], &keys[i]);
		CHECK(order < 0 || (order == 0 && keys[i - 1].row < keys[i].row));
		CHECK_EQ(cf_compare_keys(&keys[i - 1], &keys[i]) < 0, order < 0);
	}
}

/* Of `letters` different bytes from `lowest` on, `common` bytes first that all have. */
static void make_keys(uint64_t count, uint64_t common, uint64_t size_max, unsigned letters, uint8_t lowest)
{
	for (uint64_t i = 0; i < count; i++) {
		uint64_t size = common + test_random_below(size_max - common + 1);
		memset(texts[i], 0xa5, sizeof texts[i]);
		for (uint64_t k = 0; k < size; k++)
			texts[i][k] = (uint8_t)(k < common ? 'c' : lowest + test_random_below(letters));
		keys[i] = (cf_sort_key){texts[i], size, i};
	}
}

static void test_any(void)
{
	static const uint64_t counts[] = {0, 1, 2, 31, 32, 33, 34, 100, 700, COUNT_MAX};
	static const struct {
		uint64_t common, size_max;
		unsigned letters;
		uint8_t lowest;
	} kinds[] = {
		{0, 3, 2, 0}, {0, 8, 1, 0}, {0, 20, 1, 0}, {0, 20, 2, 0}, {0, 20, 2, 255}, {0, 40, 256, 0}, {0, 0, 1, 0},
		{7, 30, 3, 'a'}, {8, 9, 256, 0}, {40, 60, 2, 'z'}, {16, 16, 1, 0}, {3, 11, 10, '0'}, {60, 64, 10, '0'},
	};
	for (size_t i = 0; i < CF_ARRAY_COUNT(counts); i++)
		for (size_t k = 0; k < CF_ARRAY_COUNT(kinds); k++) {
			make_keys(counts[i], kinds[k].common, kinds[k].size_max, kinds[k].letters, kinds[k].lowest);
			check_sort(counts[i]);
		}
}

/* Names as they are, each row with its number turned around. */
static void test_names(void)
{
	for (uint64_t i = 0; i < COUNT_MAX; i++) {
		uint64_t number = i * 7919 % COUNT_MAX;
		int size = snprintf((char *)texts[i], SIZE_MAX_BYTES, "model/layer_%03u/block_%u/kernel",
			(unsigned)(number / 100), (unsigned)(number % 100));
		keys[i] = (cf_sort_key){texts[i], (uint64_t)size, i};
	}
	check_sort(COUNT_MAX);
}

int main(void)
{
	test_seed();
	test_any();
	test_names();
	return test_finish("sorted_keys");
}
