/* SPDX-License-Identifier: Apache-2.0 */
#include "repair.h"

#include "ckptfmt_unstable.h"

#include <string.h>

enum {
	FOOTER_SIZE = 48,
	MAGIC_SIZE = 8,
	TRAILER_SIZE = 5
};

typedef struct span {
	uint64_t offset;
	uint64_t size;
} span;

/* ---- a generator for one mutation ---- */

static uint64_t state;

void fuzz_seed(unsigned int seed)
{
	state = seed;
}

uint64_t fuzz_below(uint64_t bound)
{
	uint64_t z = (state += 0x9e3779b97f4a7c15u);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (z ^ (z >> 31)) % bound;
}

/* ---- reading, trusting nothing ---- */

uint32_t fuzz_load_u32(const uint8_t *from)
{
	return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

void fuzz_store_u32(uint8_t *to, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		to[i] = (uint8_t)(value >> (8 * i));
}

/* Bytes of the varint at `at`, 0 if there is none before `end`. */
size_t fuzz_varint(const uint8_t *bytes, size_t at, size_t end, uint64_t *out)
{
	*out = 0;
	for (size_t i = 0; i < 10 && at + i < end; i++) {
		*out |= (uint64_t)(bytes[at + i] & 0x7f) << (7 * i);
		if (bytes[at + i] < 0x80)
			return i + 1;
	}
	return 0;
}

void fuzz_note(fuzz_fields *list, size_t position, size_t size, int fixed)
{
	if (list != NULL && list->count < FUZZ_FIELDS_MAX)
		list->fields[list->count++] = (fuzz_field){position, size, fixed};
}

static size_t take(fuzz_fields *list, const uint8_t *bytes, size_t at, size_t end, uint64_t *out)
{
	size_t size = fuzz_varint(bytes, at, end, out);
	if (size != 0)
		fuzz_note(list, at, size, 0);
	return size;
}

/* ---- walking ---- */

/* What to do with the value of each entry of a block. */
typedef void visit(uint8_t *bytes, size_t value, size_t value_end, void *context);

/* Notes the numbers of the raw block in [begin, end) and visits its values. */
static void walk_block(uint8_t *bytes, size_t begin, size_t end, fuzz_fields *list, visit *each, void *context)
{
	size_t entries_end, at = begin;
	uint64_t count;
	if (end - begin < 4)
		return;
	count = fuzz_load_u32(bytes + end - 4);
	fuzz_note(list, end - 4, 4, 1);
	if (count > (end - begin - 4) / 4)
		return;
	entries_end = end - 4 - (size_t)count * 4;
	for (size_t i = entries_end; i < end - 4; i += 4)
		fuzz_note(list, i, 4, 1);
	while (at < entries_end) {
		uint64_t sizes[3];
		for (int i = 0; i < 3; i++) {
			size_t size = take(list, bytes, at, entries_end, &sizes[i]);
			if (size == 0)
				return;
			at += size;
		}
		if (sizes[1] > entries_end - at || sizes[2] > entries_end - at - sizes[1])
			return;
		at += (size_t)sizes[1];
		if (each != NULL)
			each(bytes, at, at + (size_t)sizes[2], context);
		at += (size_t)sizes[2];
	}
}

typedef struct table_walk {
	size_t size;
	fuzz_fields *list;
	int repair;
	visit *each;                /* value of a data block; may be NULL */
	void *context;
} table_walk;

static int span_fits(span block, size_t end)
{
	return block.offset <= end && end - block.offset >= TRAILER_SIZE &&
		block.size <= end - block.offset - TRAILER_SIZE;
}

static void mend(uint8_t *bytes, span block)
{
	uint8_t *stored = bytes + block.offset;
	fuzz_store_u32(stored + block.size + 1, ckptfmt_crc32c_mask(ckptfmt_crc32c(0, stored, block.size + 1)));
}

static int take_span(fuzz_fields *list, const uint8_t *bytes, size_t *at, size_t end, span *out)
{
	size_t first = take(list, bytes, *at, end, &out->offset), second;
	if (first == 0)
		return 0;
	second = take(list, bytes, *at + first, end, &out->size);
	*at += first + second;
	return second != 0;
}

static void visit_handle(uint8_t *bytes, size_t value, size_t value_end, void *context)
{
	table_walk *walk = context;
	span block;
	if (!take_span(walk->list, bytes, &value, value_end, &block) || !span_fits(block, walk->size - FOOTER_SIZE))
		return;
	if (walk->repair)
		mend(bytes, block);
	else if (bytes[block.offset + block.size] == 0)
		walk_block(bytes, (size_t)block.offset, (size_t)(block.offset + block.size), walk->list, walk->each,
			walk->context);
}

static void walk_table(uint8_t *bytes, table_walk walk)
{
	const size_t size = walk.size;
	fuzz_fields *list = walk.list;
	const int repair = walk.repair;
	size_t footer, at;
	span metaindex, index;
	if (size < FOOTER_SIZE)
		return;
	footer = at = size - FOOTER_SIZE;
	if (!take_span(list, bytes, &at, size - MAGIC_SIZE, &metaindex) ||
		!take_span(list, bytes, &at, size - MAGIC_SIZE, &index))
		return;
	if (repair && span_fits(metaindex, footer))
		mend(bytes, metaindex);
	if (!span_fits(index, footer))
		return;
	if (bytes[index.offset + index.size] == 0)
		walk_block(bytes, (size_t)index.offset, (size_t)(index.offset + index.size), list, visit_handle, &walk);
	/* Last: what was mended above may lie in it. */
	if (repair)
		mend(bytes, index);
}

void fuzz_repair_table(uint8_t *table, size_t size)
{
	static const uint8_t magic[MAGIC_SIZE] = {0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75, 0x47, 0xdb};
	if (size < FOOTER_SIZE)
		return;
	memcpy(table + size - MAGIC_SIZE, magic, sizeof magic);
	walk_table(table, (table_walk){.size = size, .repair = 1});
}

void fuzz_walk_table(uint8_t *table, size_t size, fuzz_fields *list, visit *each, void *context)
{
	walk_table(table, (table_walk){.size = size, .list = list, .each = each, .context = context});
}

/* ---- mutating ---- */

static uint64_t telling_value(uint64_t old, size_t size)
{
	switch (fuzz_below(8)) {
	case 0:
		return old + 1;
	case 1:
		return old - 1;
	case 2:
		return fuzz_below(20);
	case 3:
		return size + fuzz_below(64) - 53;
	case 4:
		return (UINT64_C(1) << fuzz_below(64)) - fuzz_below(3);
	case 5:
		return UINT64_MAX - fuzz_below(7);
	case 6:
		return old * 2;
	default:
		return fuzz_below(size + 1);
	}
}

/* Sets a number without moving the bytes behind it: a varint keeps its size, overlong if need be. */
static void set_field(uint8_t *bytes, const fuzz_field *which, uint64_t value)
{
	if (which->fixed) {
		fuzz_store_u32(bytes + which->position, (uint32_t)value);
		return;
	}
	for (size_t i = 0; i < which->size; i++) {
		bytes[which->position + i] = (uint8_t)((value & 0x7f) | (i + 1 < which->size ? 0x80 : 0));
		value >>= 7;
	}
}

void fuzz_mutate_field(uint8_t *bytes, size_t size, const fuzz_fields *list)
{
	const fuzz_field *which;
	uint64_t old;
	if (list->count == 0)
		return;
	which = &list->fields[fuzz_below(list->count)];
	old = which->fixed ? fuzz_load_u32(bytes + which->position) : 0;
	if (!which->fixed)
		(void)fuzz_varint(bytes, which->position, size, &old);
	if (fuzz_below(8) == 0) {
		const fuzz_field *other = &list->fields[fuzz_below(list->count)];
		old = other->fixed ? fuzz_load_u32(bytes + other->position) : 0;
		if (!other->fixed)
			(void)fuzz_varint(bytes, other->position, size, &old);
		set_field(bytes, which, old);
		return;
	}
	set_field(bytes, which, telling_value(old, size));
}

static fuzz_fields list;

size_t fuzz_mutate_table(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	size_t table_size;
	fuzz_seed(seed);
	table_size = size > FUZZ_PARAMETERS_SIZE ? size - FUZZ_PARAMETERS_SIZE : 0;
	if (fuzz_below(2) == 0) {
		list.count = 0;
		fuzz_walk_table(data, table_size, &list, NULL, NULL);
		for (uint64_t i = fuzz_below(3) + 1; i > 0; i--)
			fuzz_mutate_field(data, table_size, &list);
	} else {
		size = LLVMFuzzerMutate(data, size, capacity);
		table_size = size > FUZZ_PARAMETERS_SIZE ? size - FUZZ_PARAMETERS_SIZE : 0;
	}
	if (fuzz_below(16) != 0)
		fuzz_repair_table(data, table_size);
	return size;
}

size_t fuzz_mutate_block(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	fuzz_seed(seed);
	if (size <= FUZZ_PARAMETERS_SIZE || fuzz_below(2) == 0)
		return LLVMFuzzerMutate(data, size, capacity);
	list.count = 0;
	walk_block(data, 0, size - FUZZ_PARAMETERS_SIZE, &list, NULL, NULL);
	for (uint64_t i = fuzz_below(3) + 1; i > 0; i--)
		fuzz_mutate_field(data, size - FUZZ_PARAMETERS_SIZE, &list);
	return size;
}
