/* SPDX-License-Identifier: Apache-2.0 */
/* Maps of blocks: they find what a search of the block finds, for keys that are there and for all others. */
#include "test.h"

#include "table/block_map.h"
#include "memory_fault.h"

#include <time.h>

enum { KEYS = 3000, KEY_MAX = 64 };

static ckptfmt_error err;
static char keys[KEYS][KEY_MAX];

static int compare_texts(const void *a, const void *b)
{
	return strcmp(a, b);
}

/* So many different keys in order, of letters so few that many share their beginnings. */
static uint64_t make_keys(uint64_t count)
{
	uint64_t kept = 0;
	for (uint64_t i = 0; i < count; i++) {
		uint64_t size = 1 + test_random_below(24);
		for (uint64_t k = 0; k < size; k++)
			keys[i][k] = (char)('a' + test_random_below(3));
		keys[i][size] = '\0';
	}
	qsort(keys, count, KEY_MAX, compare_texts);
	for (uint64_t i = 0; i < count; i++)
		if (kept == 0 || strcmp(keys[kept - 1], keys[i]) != 0)
			memmove(keys[kept++], keys[i], KEY_MAX);
	return kept;
}

static void build(cf_block_builder *builder, uint64_t count, uint32_t interval, uint64_t value_size, cf_block *block)
{
	uint8_t value[200] = {0};
	cf_block_builder_init(builder, interval);
	for (uint64_t i = 0; i < count; i++) {
		cf_store_u64(value, i);
		CHECK_OK(cf_block_builder_add(builder, (const uint8_t *)keys[i], strlen(keys[i]), value, value_size, &err),
			err);
	}
	CHECK_OK(cf_block_builder_finish(builder, &err), err);
	CHECK_OK(cf_block_open(builder->bytes.data, builder->bytes.size, 0, false, KEY_MAX, block, &err), err);
}

static bool same_answer(const cf_block_map *map, const cf_block *block, const char *key)
{
	uint64_t position[2] = {1, 1}, size[2] = {2, 2};
	bool found[2];
	const uint8_t *target = (const uint8_t *)key;
	CHECK_OK(cf_block_find(block, target, strlen(key), &position[0], &size[0], &found[0], &err), err);
	CHECK_OK(cf_block_map_find(map, block, target, strlen(key), &position[1], &size[1], &found[1], &err), err);
	return found[0] == found[1] && position[0] == position[1] && size[0] == size[1];
}

static void test_as_a_search(void)
{
	for (int turn = 0; turn < 60; turn++) {
		uint64_t count = make_keys(1 + test_random_below(KEYS)), wrong = 0;
		cf_block_builder builder;
		cf_block_map *map;
		cf_block block;
		build(&builder, count, 1 + (uint32_t)test_random_below(40), 8 + test_random_below(150), &block);
		cf_block_map_make(&block, count, &map);
		CHECK(map != NULL);
		for (uint64_t i = 0; map != NULL && i < count; i++) {
			uint64_t size = strlen(keys[i]);
			char other[KEY_MAX];
			wrong += !same_answer(map, &block, keys[i]);
			memcpy(other, keys[i], KEY_MAX);
			other[test_random_below(size)] = (char)('a' + test_random_below(5));
			wrong += !same_answer(map, &block, other);
			other[size - 1] = '\0';
			wrong += !same_answer(map, &block, other);
		}
		CHECK_EQ(wrong, 0);
		cf_block_map_free(map);
		cf_block_builder_free(&builder);
	}
}

/* Of one stretch between restarts nothing else is looked at. */
static void test_stretches(void)
{
	cf_block_builder builder;
	cf_block block;
	cf_block_builder_init(&builder, 3);
	for (uint8_t c = 'a'; c <= 'h'; c++)
		CHECK_OK(cf_block_builder_add(&builder, &c, 1, &c, 1, &err), err);
	CHECK_OK(cf_block_builder_finish(&builder, &err), err);
	CHECK_OK(cf_block_open(builder.bytes.data, builder.bytes.size, 0, false, KEY_MAX, &block, &err), err);
	for (uint32_t row = 0; row < 3; row++) {
		uint64_t begin = cf_block_restart(&block, row), position = 0, size = 0;
		uint64_t end = row == 2 ? block.entries_size : cf_block_restart(&block, row + 1);
		for (uint8_t c = 'a'; c <= 'i'; c++) {
			bool found;
			CHECK_OK(cf_block_find_between(&block, begin, end, &c, 1, &position, &size, &found, &err), err);
			CHECK_EQ(found, c <= 'h' && (uint32_t)(c - 'a') / 3 == row);
			CHECK(!found || (size == 1 && block.bytes[position] == c));
		}
	}
	cf_block_builder_free(&builder);
}

/* ---- keys made to have one hash ---- */

enum { GROUPS = 64, GROUP_KEYS = 1000, MADE = GROUPS * GROUP_KEYS, MADE_SIZE = 16, MADE_ASKED = 200 };

#define MIX_FACTOR UINT64_C(0x9e3779b97f4a7c15)

static uint64_t mix(uint64_t hash, uint64_t word)
{
	hash = (hash ^ word) * MIX_FACTOR;
	return hash ^ hash >> 32;
}

/* What mix makes this of, the word being 0. */
static uint64_t unmix(uint64_t hash)
{
	uint64_t inverse = 1;
	for (int i = 0; i < 6; i++)
		inverse *= 2 - MIX_FACTOR * inverse;
	return (hash ^ hash >> 32) * inverse;
}

/* The key of this number in key order, its hash that of its group. There are more than are in the block. */
static void make_key(uint64_t number, uint8_t *key)
{
	/* The mark is one for all; the groups' first slots lie apart. */
	uint64_t hash = UINT64_C(0x1234) << 48 | (number % GROUPS) * 2048, before;
	for (int i = 0; i < 8; i++)
		key[i] = (uint8_t)(number >> 8 * (7 - i));
	before = mix(mix(0, MADE_SIZE), cf_load_u64(key));
	cf_store_u64(key + 8, unmix(unmix(hash)) ^ before);
}

static double seconds(void)
{
	return (double)clock() / CLOCKS_PER_SEC;
}

/* They are found, and the others are not, in about the time of a search: not in that of a walk over the block for each
 * key of the same mark, which takes thousands of times as long. */
static void test_one_hash(void)
{
	uint8_t key[MADE_SIZE];
	cf_block_builder builder;
	cf_block_map *map;
	cf_block block;
	uint64_t wrong = 0;
	double taken[2] = {0, 0};
	cf_block_builder_init(&builder, 16);
	for (uint64_t i = 0; i < MADE; i++) {
		make_key(2 * i + i / GROUPS % 2, key);
		CHECK_OK(cf_block_builder_add(&builder, key, sizeof key, key, sizeof key, &err), err);
	}
	CHECK_OK(cf_block_builder_finish(&builder, &err), err);
	CHECK_OK(cf_block_open(builder.bytes.data, builder.bytes.size, 0, false, KEY_MAX, &block, &err), err);
	cf_block_map_make(&block, MADE, &map);
	CHECK(map != NULL);
	for (uint64_t i = 0; map != NULL && i < MADE_ASKED; i++) {
		uint64_t position[2] = {0, 0}, size[2] = {0, 0};
		bool found[2];
		double began = seconds();
		make_key(2 * MADE - 1 - i, key);
		CHECK_OK(cf_block_find(&block, key, sizeof key, &position[0], &size[0], &found[0], &err), err);
		taken[0] += seconds() - began;
		began = seconds();
		CHECK_OK(cf_block_map_find(map, &block, key, sizeof key, &position[1], &size[1], &found[1], &err), err);
		taken[1] += seconds() - began;
		wrong += found[0] != found[1] || position[0] != position[1] || size[0] != size[1];
		wrong += found[0] && memcmp(block.bytes + position[0], key, sizeof key) != 0;
	}
	CHECK_EQ(wrong, 0);
	CHECK(taken[1] < 100 * taken[0] + 0.01);
	cf_block_map_free(map);
	cf_block_builder_free(&builder);
}

static void test_none(void)
{
	uint64_t count = make_keys(KEYS), calls;
	cf_block_builder builder;
	cf_block_map *map;
	cf_block block;
	/* It would take more than the block. */
	build(&builder, 1, 16, 1, &block);
	cf_block_map_make(&block, 1, &map);
	CHECK(map == NULL);
	cf_block_builder_free(&builder);
	build(&builder, count, 16, 20, &block);
	cf_block_map_make(&block, count, &map);
	CHECK(map != NULL);
	cf_block_map_free(map);
	cf_block_map_make(&block, UINT64_MAX, &map);
	CHECK(map == NULL);
	/* More entries than were said: there is no room at some time. */
	cf_block_map_make(&block, 1, &map);
	CHECK(map == NULL);
	memory_fault_set(0, false);
	cf_block_map_make(&block, count, &map);
	cf_block_map_free(map);
	calls = memory_fault_calls();
	CHECK(calls >= 1);
	for (uint64_t at = 1; at <= calls; at++) {
		memory_fault_set(at, false);
		cf_block_map_make(&block, count, &map);
		CHECK_EQ(memory_fault_hits(), 1);
		CHECK(map == NULL);
	}
	memory_fault_clear();
	cf_block_builder_free(&builder);
	cf_block_map_free(NULL);
	CHECK_EQ(memory_fault_live(), 0);
}

int main(void)
{
	test_seed();
	test_as_a_search();
	test_stretches();
	test_one_hash();
	test_none();
	return test_finish("test_block_map");
}
