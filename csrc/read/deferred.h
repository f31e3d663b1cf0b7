/* SPDX-License-Identifier: Apache-2.0 */
/* Entries whose keys begin with a zero byte, deferred in key order until the tensors have claimed their slices (see the
 * top of selection.c). */
#ifndef CKPTFMT_READ_DEFERRED_H
#define CKPTFMT_READ_DEFERRED_H

#include "base/buffer.h"
#include "proto/message.h"

typedef struct cf_deferred_entry {
	uint64_t key_offset, key_size;      /* in `bytes` */
	uint64_t value_offset, value_size;
	uint64_t origin;                    /* file offset of the value */
	bool claimed;                       /* it is a slice of a tensor, or was listed as a tensor */
	bool broken;                        /* cannot be used; only a verifier stores such entries */
} cf_deferred_entry;

/* Orders entries by the size of their keys. */
typedef struct cf_deferred_place {
	uint64_t key_size;
	uint64_t row;
} cf_deferred_place;

typedef struct cf_deferred {
	cf_buffer entries;                  /* cf_deferred_entry, in key order */
	cf_buffer bytes;                    /* their keys and values */
} cf_deferred;

/* Appends copies. REQUIRES: the key is greater than the last one. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_deferred_add(cf_deferred *deferred, cf_bytes_view key, cf_bytes_view value,
	uint64_t origin, ckptfmt_error *err);
/* The entry with this key; NULL if there is none. Valid, as the views below, until the next add. */
cf_deferred_entry *cf_deferred_find(const cf_deferred *deferred, const uint8_t *key, uint64_t key_size);
/* Sorts the entries by the size of their keys, then by key. The tensor that lists a slice has a shorter key than the
 * slice, so in this order all entries that could claim an entry come before it (KEY-6, SLC-10). The caller releases
 * *out, which is NULL if there are none. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_deferred_by_size(const cf_deferred *deferred, cf_deferred_place **out,
	ckptfmt_error *err);
void cf_deferred_free(cf_deferred *deferred);

static inline uint64_t cf_deferred_count(const cf_deferred *deferred)
{
	return deferred->entries.size / sizeof(cf_deferred_entry);
}

static inline cf_deferred_entry *cf_deferred_at(const cf_deferred *deferred, uint64_t row)
{
	return (cf_deferred_entry *)cf_buffer_items(&deferred->entries) + row;
}

static inline cf_bytes_view cf_deferred_key(const cf_deferred *deferred, const cf_deferred_entry *entry)
{
	return (cf_bytes_view){deferred->bytes.data + entry->key_offset, entry->key_size};
}

static inline cf_bytes_view cf_deferred_value(const cf_deferred *deferred, const cf_deferred_entry *entry)
{
	return (cf_bytes_view){deferred->bytes.data + entry->value_offset, entry->value_size};
}

#endif
