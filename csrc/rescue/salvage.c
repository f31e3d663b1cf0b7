/* SPDX-License-Identifier: Apache-2.0 */
#include "base/limits.h"
#include "base/memory.h"
#include "table/table.h"

typedef struct salvage {
	ckptfmt_salvage result;     /* first: what the caller has */
	cf_buffer sound;
} salvage;

/* All blocks of a table. */
static ckptfmt_status check_table(const uint8_t *bytes, uint64_t size, const ckptfmt_limits *limits,
	ckptfmt_error *err)
{
	cf_table_check check;
	ckptfmt_status status;
	cf_table *table;
	bool more = true;
	CF_TRY(cf_table_open_memory(bytes, NULL, size, limits, &table, err));
	cf_table_check_open(&check, table);
	do
		status = cf_table_check_next(&check, &more, err);
	while (status == CKPTFMT_OK && more);
	cf_table_check_close(&check);
	cf_table_close(table);
	return status;
}

ckptfmt_status ckptfmt_index_salvage(const uint8_t *bytes, uint64_t size, int32_t num_shards,
	const ckptfmt_limits *limits, ckptfmt_salvage **out, ckptfmt_error *err)
{
	ckptfmt_limits taken;
	salvage *s;
	*out = NULL;
	(void)num_shards;
	CF_TRY(cf_limits_take(&taken, limits, err));
	CF_TRY(check_table(bytes, size, &taken, err));
	s = cf_allocate_zero(1, sizeof *s);
	if (s == NULL)
		return cf_fail_memory(err);
	cf_put_bytes(&s->sound, bytes, size);
	s->result.sound = s->sound.data;
	s->result.sound_size = s->sound.size;
	*out = &s->result;
	if (s->sound.failed) {
		ckptfmt_salvage_free(*out);
		*out = NULL;
		return cf_fail_memory(err);
	}
	return CKPTFMT_OK;
}

void ckptfmt_salvage_free(ckptfmt_salvage *result)
{
	salvage *s = (salvage *)(void *)result;
	if (s == NULL)
		return;
	cf_buffer_free(&s->sound);
	cf_release(s);
}
