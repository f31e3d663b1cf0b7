/* SPDX-License-Identifier: Apache-2.0 */
/* Property: any bytes as an index file either open or fail with a typed error. In one that opens, the regions tile the
 * file; iterating gives strictly increasing keys, and each of them is found with the same value; iterating, looking up
 * and the check step by step agree on whether the file is sound. What the writer makes of the entries of a sound file
 * reads back as the same entries. */
#include "base/limits.h"
#include "repair.h"

#include "table/table.h"
#include "table/writer.h"

#include <string.h>

enum {
	REGIONS_MAX = 1024,
	RESTART_INTERVAL_MAX = 64       /* entries from one restart to the next; a block with more is rebuilt for lookups */
};

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	return fuzz_mutate_table(data, size, capacity, seed);
}

static ckptfmt_limits limits_of(uint8_t parameter)
{
	ckptfmt_limits limits;
	cf_limits_default(&limits);
	limits.index_bytes_max = parameter & 1 ? 2000 : 1 << 20;
	limits.block_bytes_max = parameter & 2 ? 300 : 1 << 20;
	limits.key_bytes_max = parameter & 4 ? 10 : 1 << 16;
	limits.entries_max = parameter & 8 ? 5 : 1 << 16;
	limits.keys_bytes_floor = parameter & 16 ? 20 : 1 << 18;
	limits.keys_bytes_factor = parameter & 16 ? 0 : 16;
	return limits;
}

static ckptfmt_status put(void *to, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	cf_put_bytes(to, bytes, size);
	return cf_buffer_status(to, err);
}

static void check_typed(const ckptfmt_error *err)
{
	FUZZ_CHECK(err->status == CKPTFMT_CORRUPT || err->status == CKPTFMT_LIMIT || err->status == CKPTFMT_UNSUPPORTED);
	FUZZ_CHECK(err->message[0] != '\0');
}

static void check_regions(cf_table *table, uint64_t size)
{
	static ckptfmt_region regions[REGIONS_MAX];
	uint64_t count, end = 0;
	ckptfmt_error err;
	if (cf_table_regions(table, regions, REGIONS_MAX, &count, &err) != CKPTFMT_OK) {
		FUZZ_CHECK(err.status == CKPTFMT_LIMIT);
		return;
	}
	for (uint64_t i = 0; i < count && i < REGIONS_MAX; i++) {
		FUZZ_CHECK(regions[i].offset == end && regions[i].size > 0);
		end += regions[i].size;
	}
	FUZZ_CHECK(count > REGIONS_MAX || end == size);
}

/* 1 for a sound file. */
static int check_steps(cf_table *table)
{
	cf_table_check check;
	ckptfmt_error err;
	uint64_t blocks = cf_table_block_count(table), steps = 0;
	bool more;
	int sound = 1;
	cf_table_check_open(&check, table);
	for (;;) {
		ckptfmt_status status = cf_table_check_next(&check, &more, &err);
		if (!more)
			break;
		if (status != CKPTFMT_OK) {
			check_typed(&err);
			sound = 0;
		}
		steps++;
	}
	FUZZ_CHECK(steps == blocks);
	cf_table_check_close(&check);
	return sound;
}

/* 1 if iterating came to the end. Writes the entries on. `limited`: what stopped it was a limit. */
static int check_entries(cf_table *table, cf_table_writer *writer, int *limited)
{
	cf_table_iterator it;
	cf_buffer before = CF_BUFFER_EMPTY;
	ckptfmt_error err;
	ckptfmt_status status;
	bool more;
	cf_table_iterator_open(&it, table);
	while ((status = cf_table_iterator_next(&it, &more, &err)) == CKPTFMT_OK && more) {
		FUZZ_CHECK(it.entry_count == 1 ||
			cf_key_compare(before.data, before.size, it.key, it.key_size) < 0);
		cf_buffer_clear(&before);
		cf_put_bytes(&before, it.key, it.key_size);
		FUZZ_CHECK(cf_table_writer_add(writer, it.key, it.key_size, it.value, it.value_size, &err) == CKPTFMT_OK);
	}
	*limited = status == CKPTFMT_LIMIT;
	if (status != CKPTFMT_OK)
		check_typed(&err);
	cf_table_iterator_close(&it);
	cf_buffer_free(&before);
	return status == CKPTFMT_OK;
}

/* Whether lookups have the block that the iterator is in rebuilt: they then see its values where the block begins. */
static bool is_rebuilt(const cf_table_iterator *it)
{
	cf_block_iterator entries;
	cf_block_report report;
	ckptfmt_error err;
	ckptfmt_status status;
	cf_block_iterator_init(&entries);
	status = cf_block_check(&entries, it->entries.block, &report, &err);
	cf_block_iterator_free(&entries);
	FUZZ_CHECK(status == CKPTFMT_OK);
	return report.restart_interval_max > RESTART_INTERVAL_MAX;
}

/* 1 if no lookup of the keys that iterating gives fails, but for the limit on all keys if a listing comes under it: a
 * lookup does in blocks with few restarts. In a sound file each is found, with its value. In another, iterating notices
 * a key above its index key only at the block's end, and a lookup is led elsewhere. */
static int check_lookups(cf_table *table, int sound, int limited)
{
	cf_table_iterator it;
	ckptfmt_error err;
	bool more, found, rebuilt = false;
	uint64_t block = 0;
	int good = 1;
	cf_table_iterator_open(&it, table);
	while (cf_table_iterator_next(&it, &more, &err) == CKPTFMT_OK && more && it.entry_count <= 256) {
		cf_table_value value;
		ckptfmt_status status = cf_table_get(table, it.key, it.key_size, &value, &found, &err);
		if (status != CKPTFMT_OK) {
			/* A block is only looked up in if all of it is good: iterating may fail later. */
			check_typed(&err);
			good = limited && err.failure == CKPTFMT_FAIL_LIMIT && strncmp(err.message, "TAB-13:", 7) == 0;
			break;
		}
		if (!sound)
			continue;
		if (block != it.next_block) {
			block = it.next_block;
			rebuilt = is_rebuilt(&it);
		}
		FUZZ_CHECK(found && value.size == it.value_size);
		FUZZ_CHECK(value.offset == (rebuilt ? it.entries.block->origin | CF_ONE_OFFSET : it.value_offset));
		FUZZ_CHECK(memcmp(value.data, it.value, (size_t)value.size) == 0);
	}
	cf_table_iterator_close(&it);
	return good;
}

static void check_written(const cf_buffer *written)
{
	cf_table *table;
	ckptfmt_limits limits = limits_of(0);
	ckptfmt_error err;
	cf_table_writer again;
	cf_buffer twice = CF_BUFFER_EMPTY;
	int limited;
	uint64_t total;
	limits.index_bytes_max = limits.block_bytes_max = UINT64_MAX;
	limits.keys_bytes_floor = UINT64_MAX;
	FUZZ_CHECK(cf_table_open_memory(written->data, NULL, written->size, &limits, &table, &err) == CKPTFMT_OK);
	FUZZ_CHECK(check_steps(table));
	cf_table_writer_open(&again, (cf_sink){put, &twice});
	FUZZ_CHECK(check_entries(table, &again, &limited));
	FUZZ_CHECK(cf_table_writer_finish(&again, &total, &err) == CKPTFMT_OK);
	FUZZ_CHECK(twice.size == written->size && memcmp(twice.data, written->data, (size_t)total) == 0);
	cf_table_writer_free(&again);
	cf_buffer_free(&twice);
	cf_table_close(table);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cf_table *table;
	cf_table_writer writer;
	cf_buffer written = CF_BUFFER_EMPTY;
	ckptfmt_limits limits;
	ckptfmt_error err;
	int sound, listed, limited, looked_up;
	if (size < FUZZ_PARAMETERS_SIZE)
		return 0;
	size -= FUZZ_PARAMETERS_SIZE;
	limits = limits_of(data[size + 1] < 128 ? 0 : data[size]);
	if (cf_table_open_memory(data, NULL, size, &limits, &table, &err) != CKPTFMT_OK) {
		check_typed(&err);
		FUZZ_CHECK(table == NULL);
		return 0;
	}
	check_regions(table, size);
	sound = check_steps(table);
	cf_table_writer_open(&writer, (cf_sink){put, &written});
	listed = check_entries(table, &writer, &limited);
	FUZZ_CHECK(limited || listed == sound);
	looked_up = check_lookups(table, sound, limited);
	FUZZ_CHECK(!sound || looked_up);
	if (listed) {
		uint64_t total;
		FUZZ_CHECK(cf_table_writer_finish(&writer, &total, &err) == CKPTFMT_OK && total == written.size);
		check_written(&written);
	}
	cf_table_writer_free(&writer);
	cf_buffer_free(&written);
	cf_table_close(table);
	return 0;
}
