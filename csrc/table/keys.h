/* SPDX-License-Identifier: Apache-2.0 */
/* Sorting entries by key, the order of a table (rule TAB-1). */
#ifndef CKPTFMT_BUNDLE_SORTED_KEYS_H
#define CKPTFMT_BUNDLE_SORTED_KEYS_H

#include <stdint.h>

typedef struct cf_sort_key {
	const uint8_t *key;
	uint64_t key_size;
	uint64_t row;               /* where the caller keeps the entry; ties go by it */
} cf_sort_key;

/* Below, at or above 0 as memcmp, a prefix first. Looks at the keys only. */
int cf_compare_keys(const cf_sort_key *a, const cf_sort_key *b);

/* Sorts by key, then by row. Keys that are in order already, the common case, cost one pass. */
void cf_sort_keys(cf_sort_key *keys, uint64_t count);

#endif
