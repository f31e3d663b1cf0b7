/* SPDX-License-Identifier: Apache-2.0 */
#include "read/deferred.h"

#include "base/memory.h"
#include "table/block.h"

#include <stdlib.h>

ckptfmt_status cf_deferred_add(cf_deferred *deferred, cf_bytes_view key, cf_bytes_view value, uint64_t origin,
	ckptfmt_error *err)
{
	cf_deferred_entry entry = {.key_offset = deferred->bytes.size, .key_size = key.size,
		.value_offset = deferred->bytes.size + key.size, .value_size = value.size, .origin = origin};
	cf_put_bytes(&deferred->bytes, key.data, key.size);
	cf_put_bytes(&deferred->bytes, value.data, value.size);
	cf_put_bytes(&deferred->entries, &entry, sizeof entry);
	CF_TRY(cf_buffer_status(&deferred->bytes, err));
	return cf_buffer_status(&deferred->entries, err);
}

cf_deferred_entry *cf_deferred_find(const cf_deferred *deferred, const uint8_t *key, uint64_t key_size)
{
	uint64_t low = 0, high = cf_deferred_count(deferred);
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		cf_deferred_entry *entry = cf_deferred_at(deferred, middle);
		cf_bytes_view own = cf_deferred_key(deferred, entry);
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

static int compare_places(const void *left, const void *right)
{
	const cf_deferred_place *a = left, *b = right;
	if (a->key_size != b->key_size)
		return a->key_size < b->key_size ? -1 : 1;
	return (a->row > b->row) - (a->row < b->row);
}

ckptfmt_status cf_deferred_by_size(const cf_deferred *deferred, cf_deferred_place **out, ckptfmt_error *err)
{
	uint64_t count = cf_deferred_count(deferred);
	*out = NULL;
	if (count == 0)
		return CKPTFMT_OK;
	*out = cf_allocate(count * sizeof **out);
	if (*out == NULL)
		return cf_fail_memory(err);
	for (uint64_t row = 0; row < count; row++)
		(*out)[row] = (cf_deferred_place){cf_deferred_at(deferred, row)->key_size, row};
	qsort(*out, (size_t)count, sizeof **out, compare_places);
	return CKPTFMT_OK;
}

void cf_deferred_free(cf_deferred *deferred)
{
	cf_buffer_free(&deferred->entries);
	cf_buffer_free(&deferred->bytes);
}
