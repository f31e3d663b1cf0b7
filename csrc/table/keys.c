/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many keys are sorted by a radix of eight bytes at a time, the bytes in which they all agree left out: names of
 * tensors begin alike and differ in digits, so that hardly any byte counts. Keys with the same eight bytes are then
 * sorted by what follows, few of them by comparing.
 */
#include "table/keys.h"

#include "base/arith.h"
#include "base/bytes.h"
#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum {
	FEW = 32,               /* keys, and below: they are compared */
	WORD = 8                /* bytes of a key that are looked at together */
};

int cf_compare_keys(const cf_sort_key *a, const cf_sort_key *b)
{
	uint64_t common = a->key_size < b->key_size ? a->key_size : b->key_size;
	int order = memcmp(a->key, b->key, (size_t)common);
	return order != 0 ? order : (a->key_size > b->key_size) - (a->key_size < b->key_size);
}

static int compare_rows(const void *a, const void *b)
{
	const cf_sort_key *x = a, *y = b;
	int order = cf_compare_keys(x, y);
	return order != 0 ? order : (x->row > y->row) - (x->row < y->row);
}

/* A key with eight of its bytes as a number, zero bytes after its end. */
typedef struct item {
	uint64_t word;
	cf_sort_key key;
} item;

static int compare_items(const void *a, const void *b)
{
	const item *x = a, *y = b;
	return compare_rows(&x->key, &y->key);
}

typedef struct sorting {
	item *items, *others;   /* others: as many, for a pass of the radix to go to */
	uint64_t counts[256];
} sorting;

static uint64_t word_at(const cf_sort_key *key, uint64_t depth)
{
	uint64_t left = depth < key->key_size ? key->key_size - depth : 0, word = 0;
	if (left >= WORD)
		return __builtin_bswap64(cf_load_u64(key->key + depth));
	for (uint64_t i = 0; i < left; i++)
		word |= (uint64_t)key->key[depth + i] << (56 - 8 * i);
	return word;
}

static void insert(item *items, uint64_t count)
{
	for (uint64_t i = 1; i < count; i++) {
		item moved = items[i];
		uint64_t to = i;
		for (; to > 0; to--) {
			const item *before = &items[to - 1];
			if (before->word < moved.word ||
				(before->word == moved.word && compare_rows(&before->key, &moved.key) <= 0))
				break;
			items[to] = items[to - 1];
		}
		items[to] = moved;
	}
}

/* Stable, by the byte of the words that is `shift` bits up. */
static void pass(sorting *s, uint64_t first, uint64_t count, unsigned shift)
{
	uint64_t *counts = s->counts, at = 0;
	memset(s->counts, 0, sizeof s->counts);
	for (uint64_t i = first; i < first + count; i++)
		counts[s->items[i].word >> shift & 0xff]++;
	for (int value = 0; value < 256; value++) {
		uint64_t these = counts[value];
		counts[value] = at;
		at += these;
	}
	for (uint64_t i = 0; i < count; i++) {
		const item *from = &s->items[first + i];
		s->others[counts[from->word >> shift & 0xff]++] = *from;
	}
	memcpy(s->items + first, s->others, (size_t)count * sizeof *s->items);
}

/* Bytes from `depth` on that all these keys have, and have the same. */
static uint64_t common_bytes(const item *items, uint64_t count, uint64_t depth)
{
	const cf_sort_key *one = &items[0].key;
	uint64_t common = one->key_size - depth;
	for (uint64_t i = 1; i < count && common != 0; i++) {
		const cf_sort_key *other = &items[i].key;
		uint64_t most = other->key_size - depth < common ? other->key_size - depth : common, same = 0;
		while (most - same >= WORD && cf_load_u64(one->key + depth + same) == cf_load_u64(other->key + depth + same))
			same += WORD;
		while (same < most && one->key[depth + same] == other->key[depth + same])
			same++;
		common = same;
	}
	return common;
}

/* Keys that have `depth` bytes at least, and agree in these. Each call below this one has less of them: what all agree
 * in is passed over first. */
static void sort_from(sorting *s, uint64_t first, uint64_t count, uint64_t depth)
{
	item *items = s->items + first;
	uint64_t differing = 0, end;
	if (count > FEW)
		depth += common_bytes(items, count, depth);
	for (uint64_t i = 0; i < count; i++) {
		items[i].word = word_at(&items[i].key, depth);
		differing |= items[i].word ^ items[0].word;
	}
	if (count <= FEW) {
		insert(items, count);
		return;
	}
	for (unsigned shift = 0; shift < 64; shift += 8)
		if ((differing >> shift & 0xff) != 0)
			pass(s, first, count, shift);
	for (uint64_t start = 0; start < count; start = end) {
		uint64_t ended;
		for (end = start + 1; end < count && items[end].word == items[start].word; end++)
			;
		if (end - start == 1)
			continue;
		/* Those that end within the word come before all that go on: their bytes are the same, and zero. */
		ended = start;
		for (uint64_t i = start; i < end; i++)
			if (items[i].key.key_size - depth < WORD) {
				item moved = items[i];
				items[i] = items[ended];
				items[ended++] = moved;
			}
		if (ended - start > 1)
			qsort(items + start, (size_t)(ended - start), sizeof *items, compare_items);
		if (end - ended > 1)
			sort_from(s, first + ended, end - ended, depth + WORD);
	}
}

/* False: there is no memory for it. */
static bool sort_by_words(cf_sort_key *keys, uint64_t count)
{
	sorting s;
	uint64_t size;
	if (!cf_mul_u64(count, 2 * sizeof *s.items, &size))
		return false;
	s.items = cf_allocate(size);
	if (s.items == NULL)
		return false;
	s.others = s.items + count;
	for (uint64_t i = 0; i < count; i++)
		s.items[i].key = keys[i];
	sort_from(&s, 0, count, 0);
	for (uint64_t i = 0; i < count; i++)
		keys[i] = s.items[i].key;
	cf_release(s.items);
	return true;
}

void cf_sort_keys(cf_sort_key *keys, uint64_t count)
{
	uint64_t i = 1;
	while (i < count && compare_rows(&keys[i - 1], &keys[i]) < 0)
		i++;
	if (i < count && (count <= FEW || !sort_by_words(keys, count)))
		qsort(keys, (size_t)count, sizeof *keys, compare_rows);
}
