/* SPDX-License-Identifier: Apache-2.0 */
#include "bundle/held.h"

#include "codec/block.h"

ckptfmt_status cf_held_add(cf_held *held, cf_bytes_view key, cf_bytes_view value, uint64_t origin, ckptfmt_error *err)
{
	cf_held_entry entry = {held->bytes.size, key.size, held->bytes.size + key.size, value.size, origin, false, false};
	cf_put_bytes(&held->bytes, key.data, key.size);
	cf_put_bytes(&held->bytes, value.data, value.size);
	cf_put_bytes(&held->entries, &entry, sizeof entry);
	CF_TRY(cf_buffer_status(&held->bytes, err));
	return cf_buffer_status(&held->entries, err);
}

cf_held_entry *cf_held_find(const cf_held *held, const uint8_t *key, uint64_t key_size)
{
	uint64_t low = 0, high = cf_held_count(held);
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		cf_held_entry *entry = cf_held_at(held, middle);
		cf_bytes_view own = cf_held_key(held, entry);
		int order = cf_key_compare(own.data, own.size, key, key_size);
		if (order == 0)
			return entry;
		if (order < 0)
			low = middle + 1;
		else
			high = middle;
	}
	return NULL;
}

void cf_held_free(cf_held *held)
{
	cf_buffer_free(&held->entries);
	cf_buffer_free(&held->bytes);
}
