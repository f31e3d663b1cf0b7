/* SPDX-License-Identifier: Apache-2.0 */
/* Property: any bytes as a block either walk to the end or fail with a typed error at an offset inside them. Another
 * decoder, written as plainly as can be, agrees on which blocks are good and on every entry. In a good block each key
 * is found by searching, a key that is not there is not found, and what the builder makes of the entries reads back
 * the same. */
#include "repair.h"

#include "table/block.h"

#include <string.h>

enum { ENTRIES_MAX = 4096, INTERVAL = 16, ORIGIN = 1000 };

typedef struct entry {
	uint8_t *key;
	uint64_t key_size;
	const uint8_t *value;
	uint64_t value_size;
} entry;

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	return fuzz_mutate_block(data, size, capacity, seed);
}

static int plain_varint32(const uint8_t *bytes, uint64_t end, uint64_t *at, uint64_t *out)
{
	*out = 0;
	for (unsigned i = 0; i < 5; i++) {
		uint8_t byte;
		if (*at == end)
			return 0;
		byte = bytes[(*at)++];
		*out |= (uint64_t)(byte & 0x7f) << (7 * i);
		if (byte < 0x80)
			return *out <= UINT32_MAX;
	}
	return 0;
}

static int compare(const entry *a, const entry *b)
{
	for (uint64_t i = 0; i < a->key_size && i < b->key_size; i++)
		if (a->key[i] != b->key[i])
			return a->key[i] < b->key[i] ? -1 : 1;
	return a->key_size < b->key_size ? -1 : a->key_size > b->key_size;
}

/* One entry; 0 if it is bad. */
static int plain_entry(const uint8_t *block, uint64_t end, uint64_t *at, uint64_t key_max, const entry *before,
	entry *out, uint64_t *shared)
{
	uint64_t unshared;
	if (!plain_varint32(block, end, at, shared) || !plain_varint32(block, end, at, &unshared) ||
		!plain_varint32(block, end, at, &out->value_size) || unshared > end - *at ||
		out->value_size > end - *at - unshared || *shared > (before == NULL ? 0 : before->key_size) ||
		*shared + unshared > key_max)
		return 0;
	out->key_size = *shared + unshared;
	out->key = malloc((size_t)out->key_size + 1);
	FUZZ_CHECK(out->key != NULL);
	if (before != NULL)
		memcpy(out->key, before->key, (size_t)*shared);
	memcpy(out->key + *shared, block + *at, (size_t)unshared);
	out->value = block + *at + unshared;
	*at += unshared + out->value_size;
	return 1;
}

/* 1 for a good block; entries[0 .. *count) hold what was read, good or not. -1: too many for this test. */
static int plain_read(const uint8_t *block, uint64_t size, uint64_t key_max, entry *entries, size_t *count)
{
	uint64_t restart_count, end, at = 0, next = 0;
	*count = 0;
	if (size < 4)
		return 0;
	restart_count = cf_load_u32(block + size - 4);
	if (restart_count > (size - 4) / 4)
		return 0;
	if (restart_count == 0)
		return 1;
	end = size - 4 - 4 * restart_count;
	if (cf_load_u32(block + end) != 0)
		return 0;
	if (end == 0)
		return restart_count == 1;
	while (at < end) {
		uint64_t start = at, shared;
		entry *now = &entries[*count];
		if (*count == ENTRIES_MAX)
			return -1;
		if (!plain_entry(block, end, &at, key_max, *count == 0 ? NULL : now - 1, now, &shared))
			return 0;
		++*count;
		if (*count > 1 && compare(now - 1, now) >= 0)
			return 0;
		if (next < restart_count && cf_load_u32(block + end + 4 * next) == start) {
			next++;
			if (shared != 0)
				return 0;
		}
	}
	return next == restart_count;
}

static void check_searches(const cf_block *block, const entry *entries, size_t count)
{
	ckptfmt_error err;
	cf_buffer after = CF_BUFFER_EMPTY;
	uint64_t position, size;
	bool found;
	for (size_t i = 0; i < count; i++) {
		FUZZ_CHECK(cf_block_find(block, entries[i].key, entries[i].key_size, &position, &size, &found, &err) ==
			CKPTFMT_OK);
		FUZZ_CHECK(found && block->bytes + position == entries[i].value);
		/* The least key above this one is the next, or none. */
		cf_buffer_clear(&after);
		cf_put_bytes(&after, entries[i].key, entries[i].key_size);
		cf_put_u8(&after, 0);
		FUZZ_CHECK(cf_block_find(block, after.data, after.size, &position, &size, &found, &err) == CKPTFMT_OK);
		FUZZ_CHECK(found == (i + 1 < count && entries[i + 1].key_size == after.size &&
			memcmp(entries[i + 1].key, after.data, after.size) == 0));
		FUZZ_CHECK(!found || block->bytes + position == entries[i + 1].value);
	}
	FUZZ_CHECK(cf_block_find(block, (const uint8_t *)"", 0, &position, &size, &found, &err) == CKPTFMT_OK);
	FUZZ_CHECK(found == (count != 0 && entries[0].key_size == 0));
	cf_buffer_free(&after);
}

static void check_rebuild(const entry *entries, size_t count)
{
	cf_block_builder builder;
	cf_block_iterator it;
	cf_block_report report;
	cf_block again;
	ckptfmt_error err;
	uint64_t size;
	cf_block_builder_init(&builder, INTERVAL);
	for (size_t i = 0; i < count; i++)
		FUZZ_CHECK(cf_block_builder_add(&builder, entries[i].key, entries[i].key_size, entries[i].value,
			entries[i].value_size, &err) == CKPTFMT_OK);
	size = cf_block_builder_size(&builder);
	FUZZ_CHECK(cf_block_builder_finish(&builder, &err) == CKPTFMT_OK);
	FUZZ_CHECK(builder.bytes.size == size);
	cf_block_iterator_init(&it);
	FUZZ_CHECK(cf_block_open(builder.bytes.data, size, 0, false, UINT64_MAX, &again, &err) == CKPTFMT_OK);
	FUZZ_CHECK(cf_block_check(&it, &again, &report, &err) == CKPTFMT_OK);
	FUZZ_CHECK(report.entry_count == count);
	cf_block_iterator_free(&it);
	cf_block_builder_free(&builder);
}

/* The library's walk: the same entries as far as it comes, and the same verdict. */
static int check_walk(const cf_block *block, const entry *entries, size_t count)
{
	cf_block_iterator it;
	cf_block_report report;
	ckptfmt_error err = {0};
	ckptfmt_status status;
	size_t row = 0;
	cf_block_iterator_init(&it);
	cf_block_iterator_open(&it, block);
	for (status = cf_block_first(&it, &err); status == CKPTFMT_OK && it.valid; status = cf_block_next(&it, &err)) {
		FUZZ_CHECK(row < count && it.row == row && it.key.size == entries[row].key_size);
		FUZZ_CHECK(cf_key_compare(it.key.data, it.key.size, entries[row].key, entries[row].key_size) == 0);
		FUZZ_CHECK(it.value == entries[row].value && it.value_size == entries[row].value_size);
		row++;
	}
	if (status != CKPTFMT_OK)
		FUZZ_CHECK(err.offset >= ORIGIN && err.offset - ORIGIN < block->size);
	FUZZ_CHECK(cf_block_check(&it, block, &report, &err) == status);
	FUZZ_CHECK(report.entry_count == row);
	cf_block_iterator_free(&it);
	return status == CKPTFMT_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint64_t key_limits[] = {8, 100, 5000, 1 << 20};
	static entry entries[ENTRIES_MAX];
	uint64_t key_max;
	size_t count = 0;
	int plain, good;
	cf_block block;
	ckptfmt_error err;
	if (size < FUZZ_PARAMETERS_SIZE)
		return 0;
	size -= FUZZ_PARAMETERS_SIZE;
	key_max = key_limits[data[size] % 4];
	plain = plain_read(data, size, key_max, entries, &count);
	if (plain >= 0) {
		good = cf_block_open(data, size, ORIGIN, false, key_max, &block, &err) == CKPTFMT_OK;
		if (good)
			good = check_walk(&block, entries, count);
		FUZZ_CHECK(good == plain);
		if (good && count <= 512) {
			check_searches(&block, entries, count);
			check_rebuild(entries, count);
		} else if (data[size + 1] != 0 && cf_block_open(data, size, ORIGIN, false, key_max, &block, &err) == 0) {
			/* In a bad one, a search may end in anything but harm. */
			uint64_t position, value_size;
			bool found;
			(void)!cf_block_find(&block, data, data[size + 1] < size ? data[size + 1] : size, &position,
				&value_size, &found, &err);
		}
	}
	for (size_t i = 0; i < count; i++)
		free(entries[i].key);
	return 0;
}
