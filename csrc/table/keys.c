/* SPDX-License-Identifier: Apache-2.0 */
/* Key order: comparison, separators and sorting. */
#include "table/keys.h"

#include "base/arith.h"
#include "base/bytes.h"

#include <stdlib.h>
#include <string.h>

int cf_key_compare(const uint8_t *a, uint64_t a_size, const uint8_t *b, uint64_t b_size)
{
	uint64_t common = cf_min_u64(a_size, b_size);
	int order = common == 0 ? 0 : memcmp(a, b, (size_t)common);
	if (order != 0)
		return order;
	return a_size < b_size ? -1 : a_size > b_size;
}

uint64_t cf_key_common(const uint8_t *a, uint64_t a_size, const uint8_t *b, uint64_t b_size)
{
	uint64_t size = cf_min_u64(a_size, b_size), common = 0;
	while (size - common >= 8) {
		uint64_t differing = cf_load_u64(a + common) ^ cf_load_u64(b + common);
		if (differing != 0)
			return common + (uint64_t)__builtin_ctzll(differing) / 8;
		common += 8;
	}
	while (common < size && a[common] == b[common])
		common++;
	return common;
}

void cf_separator_between(const uint8_t *last, uint64_t last_size, const uint8_t *next, uint64_t next_size,
	cf_buffer *out)
{
	uint64_t common = cf_key_common(last, last_size, next, next_size);
	/* LevelDB only tries to shorten at the first differing byte; a canonical writer does the same. */
	if (common < cf_min_u64(last_size, next_size) && last[common] + 1 < next[common]) {
		cf_put_bytes(out, last, common);
		cf_put_u8(out, (uint8_t)(last[common] + 1));
	} else {
		cf_put_bytes(out, last, last_size);
	}
}

void cf_separator_after(const uint8_t *last, uint64_t last_size, cf_buffer *out)
{
	uint64_t at = 0;
	while (at < last_size && last[at] == 0xff)
		at++;
	cf_put_bytes(out, last, at);
	if (at < last_size)
		cf_put_u8(out, (uint8_t)(last[at] + 1));
}

int cf_compare_keys(const cf_sort_key *a, const cf_sort_key *b)
{
	return cf_key_compare(a->key, a->key_size, b->key, b->key_size);
}

static int compare_rows(const void *a, const void *b)
{
	const cf_sort_key *x = a, *y = b;
	int order = cf_compare_keys(x, y);
	return order != 0 ? order : (x->row > y->row) - (x->row < y->row);
}

void cf_sort_keys(cf_sort_key *keys, uint64_t count)
{
	uint64_t i = 1;
	while (i < count && compare_rows(&keys[i - 1], &keys[i]) < 0)
		i++;
	if (i < count)
		qsort(keys, (size_t)count, sizeof *keys, compare_rows);
}
