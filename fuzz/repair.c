/* SPDX-License-Identifier: Apache-2.0 */
#include "repair.h"

#include "ckptfmt_unstable.h"

#include <string.h>

enum {
	FOOTER_SIZE = 48,
	MAGIC_SIZE = 8,
	TRAILER_SIZE = 5,
	FIELDS_MAX = 2048
};

/* A number in the input: a varint or, with `fixed`, a u32. */
typedef struct field {
	size_t position;
	size_t size;
	int fixed;
} field;

typedef struct field_list {
	field fields[FIELDS_MAX];
	size_t count;
} field_list;

typedef struct span {
	uint64_t offset;
	uint64_t size;
} span;

/* ---- a generator for one mutation ---- */

static uint64_t state;

static uint64_t random_below(uint64_t bound)
{
	uint64_t z = (state += 0x9e3779b97f4a7c15u);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (z ^ (z >> 31)) % bound;
}

/* ---- reading, trusting nothing ---- */

static uint32_t load_u32(const uint8_t *from)
{
	return (uint32_t)from[0] | (uint32_t)from[1] << 8 | (uint32_t)from[2] << 16 | (uint32_t)from[3] << 24;
}

static void store_u32(uint8_t *to, uint32_t value)
{
	for (int i = 0; i < 4; i++)
		to[i] = (uint8_t)(value >> (8 * i));
}

/* Bytes of the varint at `at`, 0 if there is none before `end`. */
static size_t varint(const uint8_t *bytes, size_t at, size_t end, uint64_t *out)
{
	*out = 0;
	for (size_t i = 0; i < 10 && at + i < end; i++) {
		*out |= (uint64_t)(bytes[at + i] & 0x7f) << (7 * i);
		if (bytes[at + i] < 0x80)
			return i + 1;
	}
	return 0;
}

static void note(field_list *list, size_t position, size_t size, int fixed)
{
	if (list != NULL && list->count < FIELDS_MAX)
		list->fields[list->count++] = (field){position, size, fixed};
}

static size_t take(field_list *list, const uint8_t *bytes, size_t at, size_t end, uint64_t *out)
{
	size_t size = varint(bytes, at, end, out);
	if (size != 0)
		note(list, at, size, 0);
	return size;
}

/* ---- walking ---- */

/* What to do with the value of each entry of a block. */
typedef void (*visit)(uint8_t *bytes, size_t value, size_t value_end, void *context);

/* Notes the numbers of the raw block in [begin, end) and visits its values. */
static void walk_block(uint8_t *bytes, size_t begin, size_t end, field_list *list, visit each, void *context)
{
	size_t entries_end, at = begin;
	uint64_t count;
	if (end - begin < 4)
		return;
	count = load_u32(bytes + end - 4);
	note(list, end - 4, 4, 1);
	if (count > (end - begin - 4) / 4)
		return;
	entries_end = end - 4 - (size_t)count * 4;
	for (size_t i = entries_end; i < end - 4; i += 4)
		note(list, i, 4, 1);
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
	field_list *list;
	int repair;
} table_walk;

static int span_fits(span block, size_t end)
{
	return block.offset <= end && end - block.offset >= TRAILER_SIZE &&
		block.size <= end - block.offset - TRAILER_SIZE;
}

static void mend(uint8_t *bytes, span block)
{
	uint8_t *stored = bytes + block.offset;
	store_u32(stored + block.size + 1, ckptfmt_crc32c_mask(ckptfmt_crc32c(0, stored, block.size + 1)));
}

static int take_span(field_list *list, const uint8_t *bytes, size_t *at, size_t end, span *out)
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
		walk_block(bytes, (size_t)block.offset, (size_t)(block.offset + block.size), walk->list, NULL, NULL);
}

static void walk_table(uint8_t *bytes, size_t size, field_list *list, int repair)
{
	table_walk walk = {size, list, repair};
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
	walk_table(table, size, NULL, 1);
}

/* ---- mutating ---- */

static uint64_t telling_value(uint64_t old, size_t size)
{
	switch (random_below(8)) {
	case 0:
		return old + 1;
	case 1:
		return old - 1;
	case 2:
		return random_below(20);
	case 3:
		return size + random_below(64) - 53;
	case 4:
		return (UINT64_C(1) << random_below(64)) - random_below(3);
	case 5:
		return UINT64_MAX - random_below(7);
	case 6:
		return old * 2;
	default:
		return random_below(size + 1);
	}
}

/* Sets a number without moving the bytes behind it: a varint keeps its size, overlong if need be. */
static void set_field(uint8_t *bytes, const field *which, uint64_t value)
{
	if (which->fixed) {
		store_u32(bytes + which->position, (uint32_t)value);
		return;
	}
	for (size_t i = 0; i < which->size; i++) {
		bytes[which->position + i] = (uint8_t)((value & 0x7f) | (i + 1 < which->size ? 0x80 : 0));
		value >>= 7;
	}
}

static void mutate_field(uint8_t *bytes, size_t size, const field_list *list)
{
	const field *which;
	uint64_t old;
	if (list->count == 0)
		return;
	which = &list->fields[random_below(list->count)];
	old = which->fixed ? load_u32(bytes + which->position) : 0;
	if (!which->fixed)
		(void)varint(bytes, which->position, size, &old);
	if (random_below(8) == 0) {
		const field *other = &list->fields[random_below(list->count)];
		old = other->fixed ? load_u32(bytes + other->position) : 0;
		if (!other->fixed)
			(void)varint(bytes, other->position, size, &old);
		set_field(bytes, which, old);
		return;
	}
	set_field(bytes, which, telling_value(old, size));
}

static field_list list;

size_t fuzz_mutate_table(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	size_t table_size;
	state = seed;
	table_size = size > FUZZ_PARAMETERS_SIZE ? size - FUZZ_PARAMETERS_SIZE : 0;
	if (random_below(2) == 0) {
		list.count = 0;
		walk_table(data, table_size, &list, 0);
		for (uint64_t i = random_below(3) + 1; i > 0; i--)
			mutate_field(data, table_size, &list);
	} else {
		size = LLVMFuzzerMutate(data, size, capacity);
		table_size = size > FUZZ_PARAMETERS_SIZE ? size - FUZZ_PARAMETERS_SIZE : 0;
	}
	if (random_below(16) != 0)
		fuzz_repair_table(data, table_size);
	return size;
}

size_t fuzz_mutate_block(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	state = seed;
	if (size <= FUZZ_PARAMETERS_SIZE || random_below(2) == 0)
		return LLVMFuzzerMutate(data, size, capacity);
	list.count = 0;
	walk_block(data, 0, size - FUZZ_PARAMETERS_SIZE, &list, NULL, NULL);
	for (uint64_t i = random_below(3) + 1; i > 0; i--)
		mutate_field(data, size - FUZZ_PARAMETERS_SIZE, &list);
	return size;
}
