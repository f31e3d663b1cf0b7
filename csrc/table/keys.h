/* SPDX-License-Identifier: Apache-2.0 */
/* Order of a table's keys (rule TAB-1): unsigned bytes, a prefix before the keys that it begins. */
#ifndef CKPTFMT_TABLE_KEYS_H
#define CKPTFMT_TABLE_KEYS_H

#include "base/buffer.h"

/* Below, equal to or above 0. NULL is allowed where the size is 0. */
int cf_key_compare(const uint8_t *a, uint64_t a_size, const uint8_t *b, uint64_t b_size);
/* Size of the longest common prefix. */
uint64_t cf_key_common(const uint8_t *a, uint64_t a_size, const uint8_t *b, uint64_t b_size);
/* Append the separator between a block's last key and the next block's first (TAB-7), and the one after the last block
 * (TAB-8). REQUIRES: last < next. */
void cf_separator_between(const uint8_t *last, uint64_t last_size, const uint8_t *next, uint64_t next_size,
	cf_buffer *out);
void cf_separator_after(const uint8_t *last, uint64_t last_size, cf_buffer *out);

typedef struct cf_sort_key {
	const uint8_t *key;
	uint64_t key_size;
	uint64_t row;               /* index of the entry in the caller's array; breaks ties */
} cf_sort_key;

/* Compares the keys alone. */
int cf_compare_keys(const cf_sort_key *a, const cf_sort_key *b);
/* Sorts by key, then by row. Sorted input takes one pass. */
void cf_sort_keys(cf_sort_key *keys, uint64_t count);

#endif
