/* SPDX-License-Identifier: Apache-2.0 */
/* Property: the salvage of any bytes succeeds or fails with a typed error. If anything was damaged, `sound` is a sound
 * table (or too large for a limit), of which the salvage is itself. Its data blocks differ from the bytes only in one
 * bit of each repaired block, and where the header was made up. `doubtful` is a sound table too. */
#include "base/limits.h"
#include "repair.h"

#include "table/table.h"

#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	fuzz_seed(seed);
	switch (fuzz_below(4)) {
	case 0:
		return LLVMFuzzerMutate(data, size, capacity);
	case 1:
		for (uint64_t count = 1 + fuzz_below(4); count > 0 && size != 0; count--)
			data[fuzz_below(size)] ^= (uint8_t)(1 << fuzz_below(8));
		return size;
	default:
		return fuzz_mutate_table(data, size, capacity, seed);
	}
}

static ckptfmt_limits limits_of(uint8_t parameter)
{
	ckptfmt_limits limits;
	cf_limits_default(&limits);
	limits.index_bytes_max = parameter & 1 ? 2000 : 1 << 20;
	limits.block_bytes_max = parameter & 2 ? 300 : 1 << 20;
	limits.key_bytes_max = parameter & 4 ? 10 : 1 << 16;
	limits.keys_bytes_floor = parameter & 8 ? 20 : 1 << 18;
	limits.keys_bytes_factor = parameter & 8 ? 1 : 16;
	return limits;
}

static void check_typed(const ckptfmt_error *err)
{
	FUZZ_CHECK(err->status == CKPTFMT_CORRUPT || err->status == CKPTFMT_LIMIT || err->status == CKPTFMT_UNSUPPORTED);
	FUZZ_CHECK(err->message[0] != '\0');
}

/* The end of the last data block. `may_fail`: the table need not be sound. */
static uint64_t check_table(const uint8_t *bytes, uint64_t size, const ckptfmt_limits *limits, bool may_fail)
{
	cf_table_iterator it;
	cf_table *table;
	ckptfmt_error err;
	ckptfmt_status status = cf_table_open_memory(bytes, NULL, size, limits, &table, &err);
	uint64_t end = 0;
	bool more = true;
	if (status != CKPTFMT_OK) {
		FUZZ_CHECK(may_fail || status == CKPTFMT_LIMIT);
		return 0;
	}
	cf_table_iterator_open(&it, table);
	while (status == CKPTFMT_OK && more)
		status = cf_table_iterator_next(&it, &more, &err);
	FUZZ_CHECK(status == CKPTFMT_OK || status == CKPTFMT_LIMIT || (may_fail && status == CKPTFMT_CORRUPT));
	cf_table_iterator_close(&it);
	if (cf_table_block_count(table) != 0) {
		cf_handle last = cf_table_block_handle(table, cf_table_block_count(table) - 1);
		end = last.offset + last.size + CF_TRAILER_SIZE;
	}
	cf_table_close(table);
	return end;
}

static void check_blocks(const ckptfmt_salvage *found, const uint8_t *data, size_t size, uint64_t end)
{
	uint64_t differing = 0, repaired = 0, header = found->header_lost ? cf_min_u64(64, end) : 0;
	for (uint64_t at = header; at < end; at++) {
		const uint8_t bits = at < size ? found->sound[at] ^ data[at] : 0xff;
		FUZZ_CHECK((bits & (bits - 1)) == 0 || found->doubtful_size != 0);
		differing += bits != 0;
	}
	for (uint64_t i = 0; i < found->damage_count; i++) {
		const ckptfmt_damage *damage = &found->damages[i];
		FUZZ_CHECK(damage->offset <= size && damage->size <= size - damage->offset);
		FUZZ_CHECK((damage->changed == 0) == (damage->outcome == CKPTFMT_SALVAGE_LOST) || damage->offset == 0);
		repaired += damage->outcome != CKPTFMT_SALVAGE_LOST && damage->kind == CKPTFMT_REGION_DATA;
	}
	FUZZ_CHECK(differing <= repaired);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	ckptfmt_salvage *found, *again;
	ckptfmt_limits limits;
	ckptfmt_error err;
	uint64_t end;
	bool changed;
	if (size < FUZZ_PARAMETERS_SIZE)
		return 0;
	size -= FUZZ_PARAMETERS_SIZE;
	limits = limits_of(data[size + 1] < 128 ? 0 : data[size]);
	if (ckptfmt_index_salvage(data, size, data[size] >> 6, &limits, &found, &err) != CKPTFMT_OK) {
		check_typed(&err);
		FUZZ_CHECK(found == NULL);
		return 0;
	}
	changed = found->damage_count != 0 || found->header_lost;
	FUZZ_CHECK(changed || (found->sound_size == size && memcmp(found->sound, data, size) == 0));
	end = check_table(found->sound, found->sound_size, &limits, !changed);
	if (changed && end != 0) {
		check_blocks(found, data, size, end);
		if (ckptfmt_index_salvage(found->sound, found->sound_size, 0, &limits, &again, &err) == CKPTFMT_OK) {
			FUZZ_CHECK(again->damage_count == 0 && !again->header_lost && again->sound_size == found->sound_size);
			ckptfmt_salvage_free(again);
		} else {
			FUZZ_CHECK(err.status == CKPTFMT_LIMIT);
		}
	}
	if (found->doubtful_size != 0)
		(void)check_table(found->doubtful, found->doubtful_size, &limits, false);
	ckptfmt_salvage_free(found);
	return 0;
}
