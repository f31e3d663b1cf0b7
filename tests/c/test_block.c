/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks: the builder to the byte, the iterator on sound blocks, and the damages that its fast path meets. All other
 * damages: the vectors blk-*. */
#include "test.h"

#include "table/block.h"
#include "memory_fault.h"

enum { AT = 7000, INTERVAL = 16, KEY_MAX = 1000 };

static ckptfmt_error err;

/* ---- help ---- */

static void put_entry(cf_buffer *block, uint64_t shared, const char *key, const char *value)
{
	cf_put_varint(block, shared);
	cf_put_varint(block, strlen(key));
	cf_put_varint(block, strlen(value));
	cf_put_bytes(block, key, strlen(key));
	cf_put_bytes(block, value, strlen(value));
}

static void put_tail(cf_buffer *block, uint32_t count, const uint32_t *restarts)
{
	for (uint32_t i = 0; i < count; i++)
		cf_put_u32(block, restarts[i]);
	cf_put_u32(block, count);
}

/* Opens a copy before a guard page. */
static ckptfmt_status open_copy(const cf_buffer *bytes, cf_block *block)
{
	uint8_t *copy = test_guarded_copy(bytes->data, bytes->size);
	return cf_block_open(copy, bytes->size, AT, false, KEY_MAX, block, &err);
}

static ckptfmt_status walk(const cf_buffer *bytes, cf_block_report *report)
{
	cf_block block;
	cf_block_iterator it;
	ckptfmt_status status = open_copy(bytes, &block);
	memset(report, 0, sizeof *report);
	if (status != CKPTFMT_OK)
		return status;
	cf_block_iterator_init(&it);
	status = cf_block_check(&it, &block, report, &err);
	cf_block_iterator_free(&it);
	return status;
}

/* Whether the key is found, with a value of this size; one above UINT32_MAX: it is not. */
static bool finds(const cf_block *block, const uint8_t *key, uint64_t key_size, uint64_t value_size)
{
	uint64_t position = UINT64_MAX, size = UINT64_MAX;
	bool found;
	CHECK_OK(cf_block_find(block, key, key_size, &position, &size, &found, &err), err);
	return found ? size == value_size && position <= block->entries_size - size
		: position == UINT64_MAX && size == UINT64_MAX && value_size > UINT32_MAX;
}

/* The walk fails so, at this position of the block; frees the block. */
static void check_walk_fails(cf_buffer *bytes, ckptfmt_failure failure, const char *rule, uint64_t position)
{
	cf_block_report report;
	CHECK_FAILS(walk(bytes, &report), err, failure, rule);
	CHECK_EQ(err.offset, AT + position);
	cf_buffer_free(bytes);
}

static void check_good(cf_buffer *bytes, uint64_t entry_count)
{
	cf_block_report report;
	CHECK_OK(walk(bytes, &report), err);
	CHECK_EQ(report.entry_count, entry_count);
	cf_buffer_free(bytes);
}

#define RESTARTS(...) \
	(uint32_t)CF_ARRAY_COUNT(((const uint32_t[]){__VA_ARGS__})), ((const uint32_t[]){__VA_ARGS__})

/* ---- keys ---- */

static void check_separator(const char *last, const char *next, const char *wanted)
{
	cf_buffer out = CF_BUFFER_EMPTY;
	if (next != NULL)
		cf_separator_between((const uint8_t *)last, strlen(last), (const uint8_t *)next, strlen(next), &out);
	else
		cf_separator_after((const uint8_t *)last, strlen(last), &out);
	CHECK_EQ(out.size, strlen(wanted));
	CHECK(out.size != strlen(wanted) || out.size == 0 || memcmp(out.data, wanted, out.size) == 0);
	cf_buffer_free(&out);
}

static void test_keys(void)
{
	const uint8_t *a = (const uint8_t *)"abcdefghijkl";
	CHECK(cf_key_compare(NULL, 0, NULL, 0) == 0);
	CHECK(cf_key_compare(NULL, 0, a, 1) < 0);
	CHECK(cf_key_compare(a, 3, a, 2) > 0);
	CHECK(cf_key_compare(a, 2, a, 3) < 0);
	CHECK(cf_key_compare((const uint8_t *)"\xff", 1, (const uint8_t *)"\x01\x01", 2) > 0);
	CHECK(cf_key_compare((const uint8_t *)"a\0b", 3, (const uint8_t *)"a\0c", 3) < 0);
	CHECK_EQ(cf_key_common(a, 12, (const uint8_t *)"abcdefghijkx", 12), 11);
	CHECK_EQ(cf_key_common(a, 12, (const uint8_t *)"abcdxfghijkl", 12), 4);
	CHECK_EQ(cf_key_common(a, 9, a, 12), 9);
	CHECK_EQ(cf_key_common(NULL, 0, a, 12), 0);
	check_separator("a", "kkk", "b");
	check_separator("name04930", "name04931", "name04930");
	check_separator("name0493", "name04931", "name0493");
	check_separator("abcx", "abz", "abd");
	check_separator("abcx", "abd", "abcx");
	check_separator("ab\xfe", "ab\xff", "ab\xfe");
	check_separator("", "a", "");
	check_separator("x", NULL, "y");
	check_separator("\xff\xffq1", NULL, "\xff\xffr");
	check_separator("\xff\xff", NULL, "\xff\xff");
	check_separator("", NULL, "");
}

/* ---- builder ---- */

static void test_real_block(void)
{
	/* The data block of the smallest real file. */
	static const uint8_t wanted[36] = "\x00\x00\x06\x08\x01\x1a\x02\x08\x01\x00\x01\x0f" "x"
		"\x08\x01\x12\x04\x12\x02\x08\x02\x28\x08\x35\x59\x3c\xe5\x35\0\0\0\0\1\0\0\0";
	cf_block_builder builder;
	cf_block_builder_init(&builder, INTERVAL);
	CHECK_EQ(cf_block_builder_size(&builder), 8);
	CHECK_OK(cf_block_builder_add(&builder, NULL, 0, wanted + 3, 6, &err), err);
	CHECK_OK(cf_block_builder_add(&builder, wanted + 12, 1, wanted + 13, 15, &err), err);
	CHECK_EQ(cf_block_builder_size(&builder), sizeof wanted);
	CHECK_OK(cf_block_builder_finish(&builder, &err), err);
	CHECK_EQ(builder.bytes.size, sizeof wanted);
	CHECK(memcmp(builder.bytes.data, wanted, sizeof wanted) == 0);
	/* Reset gives a builder as new: the empty block. */
	cf_block_builder_reset(&builder);
	CHECK_OK(cf_block_builder_finish(&builder, &err), err);
	CHECK_EQ(builder.bytes.size, 8);
	CHECK(memcmp(builder.bytes.data, "\0\0\0\0\1\0\0\0", 8) == 0);
	cf_block_builder_free(&builder);
}

static void test_restart_interval(void)
{
	cf_block_builder builder;
	cf_block_builder_init(&builder, 2);
	for (char c = 'a'; c <= 'e'; c++) {
		uint8_t key[2] = {'k', (uint8_t)c};
		CHECK_OK(cf_block_builder_add(&builder, key, 2, NULL, 0, &err), err);
	}
	CHECK_OK(cf_block_builder_finish(&builder, &err), err);
	/* Entries 0, 2 and 4 are restarts of 5 bytes, 1 and 3 share a byte. */
	static const uint8_t wanted[] = "\0\2\0ka\1\1\0b\0\2\0kc\1\1\0d\0\2\0ke\0\0\0\0\x09\0\0\0\x12\0\0\0\3\0\0";
	CHECK_EQ(builder.bytes.size, sizeof wanted);
	CHECK(memcmp(builder.bytes.data, wanted, sizeof wanted) == 0);
	cf_block_builder_free(&builder);
}

/* Sizes beyond 32 bits are refused before the bytes are looked at. */
static void test_builder_limits(void)
{
	static const uint8_t byte[1] = "k";
	cf_block_builder builder;
	cf_block_builder_init(&builder, INTERVAL);
	CHECK_FAILS(cf_block_builder_add(&builder, byte, (uint64_t)1 << 32, byte, 1, &err), err, CKPTFMT_FAIL_LIMIT,
		"BLK-6: a key");
	CHECK_FAILS(cf_block_builder_add(&builder, byte, 1, byte, (uint64_t)1 << 32, &err), err, CKPTFMT_FAIL_LIMIT,
		"BLK-6: a value");
	CHECK_FAILS(cf_block_builder_add(&builder, byte, 1, byte, UINT32_MAX, &err), err, CKPTFMT_FAIL_LIMIT,
		"BLK-6: a block");
	CHECK_EQ(builder.entry_count, 0);
	CHECK_EQ(cf_block_builder_size(&builder), 8);
	cf_block_builder_free(&builder);
}

/* ---- iterator on sound blocks ---- */

static void test_round_trip(void)
{
	for (int round = 0; round < 60; round++) {
		static uint8_t keys[300][8];
		static const uint8_t value[9] = "somevalue";
		uint32_t interval = (uint32_t)test_random_below(20) + 1;
		size_t count = test_random_below(300), made = 0;
		cf_block_builder builder, knowing;
		cf_block block;
		cf_block_iterator it;
		/* Numbers that rise by small random steps, as big-endian bytes of an alphabet of four. */
		for (uint64_t n = test_random_below(50); made < count; n += test_random_below(40) + 1, made++)
			for (int i = 0; i < 8; i++)
				keys[made][i] = (uint8_t)(0xfc + (n >> (14 - 2 * i) & 3));
		cf_block_builder_init(&builder, interval);
		for (size_t i = 0; i < count; i++)
			CHECK_OK(cf_block_builder_add(&builder, keys[i], 8, value, i % 10, &err), err);
		CHECK_OK(cf_block_builder_finish(&builder, &err), err);
		/* The same where the caller knows what is shared; of the first key that does not count. */
		cf_block_builder_init(&knowing, interval);
		for (size_t i = 0; i < count; i++) {
			uint64_t common = i == 0 ? 5 : cf_key_common(keys[i - 1], 8, keys[i], 8);
			CHECK_OK(cf_block_builder_add_after(&knowing, keys[i], 8, common, value, i % 10, &err), err);
		}
		CHECK_OK(cf_block_builder_finish(&knowing, &err), err);
		CHECK_EQ(knowing.bytes.size, builder.bytes.size);
		CHECK_EQ(memcmp(knowing.bytes.data, builder.bytes.data, (size_t)builder.bytes.size), 0);
		cf_block_builder_free(&knowing);
		uint8_t *copy = test_guarded_copy(builder.bytes.data, builder.bytes.size);
		CHECK_OK(cf_block_open(copy, builder.bytes.size, AT, false, KEY_MAX, &block, &err), err);
		cf_block_iterator_init(&it);
		cf_block_iterator_open(&it, &block);
		CHECK_OK(cf_block_first(&it, &err), err);
		for (size_t i = 0; i < count && it.valid; i++) {
			CHECK(it.row == i && it.key.size == 8 && memcmp(it.key.data, keys[i], 8) == 0);
			CHECK(it.value_size == i % 10 && memcmp(it.value, value, i % 10) == 0);
			CHECK(it.value == block.bytes + it.value_position);
			CHECK_OK(cf_block_next(&it, &err), err);
		}
		CHECK(!it.valid);
		for (size_t i = 0; i < count; i++) {
			uint64_t position, size;
			bool found;
			CHECK_OK(cf_block_find(&block, keys[i], 8, &position, &size, &found, &err), err);
			CHECK(found && size == i % 10 && memcmp(block.bytes + position, value, size) == 0);
			/* Nothing is as near a key as what begins with it and what it begins with. */
			uint8_t near[9];
			memcpy(near, keys[i], 8);
			near[8] = 0;
			CHECK(finds(&block, near, 9, UINT64_MAX));
			CHECK(finds(&block, near, 7, UINT64_MAX));
			near[7]--;
			CHECK(finds(&block, near, 8, i > 0 && memcmp(near, keys[i - 1], 8) == 0 ? (i - 1) % 10 : UINT64_MAX));
		}
		CHECK(finds(&block, (const uint8_t *)"", 0, UINT64_MAX));
		cf_block_iterator_free(&it);
		cf_block_builder_free(&builder);
	}
}

/* A key above the one before, which begins as that does. */
static size_t next_key(uint8_t *key, size_t size, size_t room)
{
	static const size_t tails[] = {0, 1, 7, 8, 15, 16, 17, 33, 126, 127, 128, 200};
	size_t same = test_random_below(size + 1), tail = tails[test_random_below(CF_ARRAY_COUNT(tails))];
	while (same < size && key[same] == 0xff)
		same++;
	if (same < size)
		key[same] = (uint8_t)(key[same] + 1 + test_random_below(0xffU - key[same]));
	else
		key[same] = (uint8_t)test_random_below(256);
	if (++same + tail > room - 1)
		tail = 0;
	for (size_t i = 0; i < tail; i++)
		key[same + i] = (uint8_t)test_random_below(256);
	return same + tail;
}

/* Keys and values of all sizes about those where an entry's sizes take a byte each, and keys are copied by pieces: the
 * builder's bytes are those of the grammar, and the iterator and the search find what was put. */
static void test_all_sizes(void)
{
	enum { COUNT = 120, ROOM = 1000 };
	static uint8_t keys[COUNT][ROOM], value[300];
	size_t sizes[COUNT], value_sizes[COUNT];
	for (int round = 0; round < 100; round++) {
		static const size_t few[] = {0, 3, 8, 31, 126, 127, 128, 299};
		uint32_t interval = round % 4 == 0 ? (uint32_t)test_random_below(40) + 1 : 16;
		cf_buffer plain = CF_BUFFER_EMPTY, restarts = CF_BUFFER_EMPTY;
		cf_block_builder builder;
		cf_block block;
		cf_block_iterator it;
		for (size_t i = 0; i < sizeof value; i++)
			value[i] = (uint8_t)test_random_below(256);
		cf_block_builder_init(&builder, interval);
		for (size_t i = 0; i < COUNT; i++) {
			size_t shared = 0;
			if (i != 0)
				memcpy(keys[i], keys[i - 1], sizes[i - 1]);
			sizes[i] = i == 0 ? test_random_below(3) : next_key(keys[i], sizes[i - 1], ROOM);
			value_sizes[i] = round % 3 == 0 ? few[test_random_below(CF_ARRAY_COUNT(few))] : 20;
			if (i % interval == 0)
				cf_put_u32(&restarts, (uint32_t)plain.size);
			else
				while (shared < sizes[i - 1] && shared < sizes[i] && keys[i - 1][shared] == keys[i][shared])
					shared++;
			cf_put_varint(&plain, shared);
			cf_put_varint(&plain, sizes[i] - shared);
			cf_put_varint(&plain, value_sizes[i]);
			cf_put_bytes(&plain, keys[i] + shared, sizes[i] - shared);
			cf_put_bytes(&plain, value, value_sizes[i]);
			CHECK_OK(cf_block_builder_add(&builder, keys[i], sizes[i], value, value_sizes[i], &err), err);
		}
		cf_put_bytes(&plain, restarts.data, restarts.size);
		cf_put_u32(&plain, (uint32_t)(restarts.size / 4));
		CHECK_OK(cf_block_builder_finish(&builder, &err), err);
		CHECK(builder.bytes.size == plain.size && memcmp(builder.bytes.data, plain.data, (size_t)plain.size) == 0);
		uint8_t *copy = test_guarded_copy(plain.data, (size_t)plain.size);
		CHECK_OK(cf_block_open(copy, plain.size, AT, false, KEY_MAX, &block, &err), err);
		cf_block_iterator_init(&it);
		cf_block_iterator_open(&it, &block);
		CHECK_OK(cf_block_first(&it, &err), err);
		for (size_t i = 0; i < COUNT && it.valid; i++) {
			uint64_t common = i == 0 ? 0 : cf_key_common(keys[i - 1], sizes[i - 1], keys[i], sizes[i]);
			CHECK(it.row == i && it.key.size == sizes[i] && memcmp(it.key.data, keys[i], sizes[i]) == 0);
			CHECK(it.common == common && it.at_restart == (i % interval == 0));
			CHECK(it.value_size == value_sizes[i] && memcmp(it.value, value, value_sizes[i]) == 0);
			CHECK(finds(&block, keys[i], sizes[i], value_sizes[i]));
			CHECK_OK(cf_block_next(&it, &err), err);
		}
		CHECK(!it.valid);
		cf_block_iterator_free(&it);
		cf_block_builder_free(&builder);
		cf_buffer_free(&plain);
		cf_buffer_free(&restarts);
	}
}

/* ---- damaged blocks ---- */

/* The same of entries that more than a few bytes follow, which the iterator takes in fewer steps. */
static void test_followed_entries(void)
{
	static const struct {
		const char *bytes;
		size_t size;
		ckptfmt_failure failure;
		const char *rule;
	} cases[] = {
		{"\1\1\0b", 4, CKPTFMT_FAIL_BAD_ORDER, "TAB-1: "},       /* "ab" again, */
		{"\1\1\0a", 4, CKPTFMT_FAIL_BAD_ORDER, "TAB-1: "},       /* less, */
		{"\0\1\0a", 4, CKPTFMT_FAIL_BAD_ORDER, "TAB-1: "},       /* a prefix of it, */
		{"\2\0\0", 3, CKPTFMT_FAIL_BAD_ORDER, "TAB-1: "},        /* and the same by sharing it */
		{"\3\1\0c", 4, CKPTFMT_FAIL_BAD_BLOCK, "BLK-7: "},
		{"\1\1\x7f" "c", 4, CKPTFMT_FAIL_BAD_BLOCK, "BLK-8: "},
		{"\1\x7f\0" "c", 4, CKPTFMT_FAIL_BAD_BLOCK, "BLK-8: "},
	};
	const char *rest = "a key that is longer than what is copied at once", *value = "and a value as long as that key";
	cf_buffer bytes = CF_BUFFER_EMPTY;
	for (size_t i = 0; i < CF_ARRAY_COUNT(cases); i++) {
		put_entry(&bytes, 0, "ab", "");
		cf_put_bytes(&bytes, cases[i].bytes, cases[i].size);
		put_entry(&bytes, 0, rest, value);
		put_tail(&bytes, RESTARTS(0));
		check_walk_fails(&bytes, cases[i].failure, cases[i].rule, 5);
	}
	/* A key limit of KEY_MAX bytes is passed by the second entry; sharing less than it could is only odd. */
	char key[KEY_MAX + 1] = {0};
	memset(key, 'k', KEY_MAX);
	put_entry(&bytes, 0, key, "");
	put_entry(&bytes, KEY_MAX, "l", "");
	put_entry(&bytes, 0, "l", value);
	put_tail(&bytes, RESTARTS(0));
	check_walk_fails(&bytes, CKPTFMT_FAIL_LIMIT, "TAB-13: ", KEY_MAX + 4);
	put_entry(&bytes, 0, "ab", "");
	put_entry(&bytes, 0, "ac", value);
	put_entry(&bytes, 0, "b", value);
	put_tail(&bytes, RESTARTS(0));
	check_good(&bytes, 3);
	put_entry(&bytes, 0, "ab", "");
	put_entry(&bytes, 1, "c", value);
	put_entry(&bytes, 0, "b", value);
	put_tail(&bytes, RESTARTS(0, 6));
	check_walk_fails(&bytes, CKPTFMT_FAIL_BAD_BLOCK,
		"BLK-9: a restart is not the offset of an entry after", bytes.size - 8);
}

static void test_key_limit(void)
{
	cf_buffer bytes = CF_BUFFER_EMPTY;
	char key[KEY_MAX + 2] = {0};
	cf_block_report report;
	memset(key, 'k', KEY_MAX);
	put_entry(&bytes, 0, key, "");
	put_tail(&bytes, RESTARTS(0));
	CHECK_OK(walk(&bytes, &report), err);
	cf_buffer_clear(&bytes);
	put_entry(&bytes, 0, key, "");
	put_entry(&bytes, KEY_MAX, "l", "");
	put_tail(&bytes, RESTARTS(0));
	check_walk_fails(&bytes, CKPTFMT_FAIL_LIMIT, "TAB-13: ", KEY_MAX + 4);
}

/* 64 KiB of entries that share all but a byte spell a gigabyte of keys. Walking and searching them costs what the bytes
 * cost: were it otherwise, this would take a minute. */
static void test_prefix_bomb(void)
{
	enum { COUNT = 100000, FIRST = 10000 };
	cf_buffer bytes = CF_BUFFER_EMPTY, first = CF_BUFFER_EMPTY;
	cf_block block;
	cf_block_iterator it;
	cf_block_report report;
	memset(cf_buffer_extend(&first, FIRST), 'p', FIRST);
	cf_put_varint(&bytes, 0);
	cf_put_varint(&bytes, FIRST);
	cf_put_varint(&bytes, 0);
	cf_put_bytes(&bytes, first.data, first.size);
	for (uint64_t i = 0; i < COUNT; i++) {
		cf_put_varint(&bytes, FIRST + i);
		cf_put_bytes(&bytes, "\1\0\0", 3);
	}
	put_tail(&bytes, RESTARTS(0));
	CHECK_OK(cf_block_open(bytes.data, bytes.size, AT, false, UINT32_MAX, &block, &err), err);
	cf_block_iterator_init(&it);
	CHECK_OK(cf_block_check(&it, &block, &report, &err), err);
	CHECK_EQ(report.entry_count, COUNT + 1);
	CHECK(report.key_bytes > 5000000000);
	memset(cf_buffer_extend(&first, COUNT), 0, COUNT);
	for (int i = 0; i < 50; i++) {
		CHECK(finds(&block, first.data, first.size, 0));
	}
	cf_block_iterator_free(&it);
	cf_buffer_free(&bytes);
	cf_buffer_free(&first);
}

static void test_memory(void)
{
	bool failed = true;
	for (uint64_t n = 1; failed; n++) {
		cf_block_builder builder;
		cf_block block;
		cf_block_iterator it;
		cf_block_builder_init(&builder, 1);
		cf_block_iterator_init(&it);
		memory_fault_set(n, true);
		ckptfmt_status status = CKPTFMT_OK;
		for (uint8_t i = 0; i < 40 && status == CKPTFMT_OK; i++)
			status = cf_block_builder_add(&builder, &i, 1, (const uint8_t *)"value", 5, &err);
		if (status == CKPTFMT_OK)
			status = cf_block_builder_finish(&builder, &err);
		if (status == CKPTFMT_OK)
			status = cf_block_open(builder.bytes.data, builder.bytes.size, AT, false, KEY_MAX, &block, &err);
		if (status == CKPTFMT_OK) {
			cf_block_iterator_open(&it, &block);
			status = cf_block_first(&it, &err);
		}
		failed = memory_fault_hits() != 0;
		CHECK_EQ(status, failed ? CKPTFMT_NO_MEMORY : CKPTFMT_OK);
		memory_fault_clear();
		cf_block_iterator_free(&it);
		cf_block_builder_free(&builder);
	}
	CHECK_EQ(memory_fault_live(), 0);
}

int main(void)
{
	test_seed();
	test_keys();
	test_real_block();
	test_restart_interval();
	test_builder_limits();
	test_round_trip();
	test_all_sizes();
	test_followed_entries();
	test_key_limit();
	test_prefix_bomb();
	test_memory();
	return test_finish("test_block");
}
