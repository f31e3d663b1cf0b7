/* SPDX-License-Identifier: Apache-2.0 */
#include "bundle/sorted_keys.h"

#include <stdlib.h>
#include <string.h>

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

void cf_sort_keys(cf_sort_key *keys, uint64_t count)
{
	uint64_t i = 1;
	while (i < count && compare_rows(&keys[i - 1], &keys[i]) < 0)
		i++;
	if (i < count)
		qsort(keys, (size_t)count, sizeof *keys, compare_rows);
}
