/* SPDX-License-Identifier: Apache-2.0 */
/* What is asked of all rows of a selection at once, so that no caller makes an object of a row to see that it does not
 * want it: names that match a pattern, rows of one data type and shape. */
#include "base/hash.h"
#include "base/memory.h"
#include "read/reader.h"

#include <string.h>

/* ---- kinds ----------------------------------------------------------------------------------------------- */

enum { SLOTS = 1 << 12 };

static bool same_kind(const ckptfmt_selection *selection, const ckptfmt_row *a, const ckptfmt_row *b)
{
	return a->dtype == b->dtype && a->rank == b->rank &&
		(a->rank == 0 || memcmp(cf_selection_dims(selection, a->dims_first),
			cf_selection_dims(selection, b->dims_first), (size_t)a->rank * sizeof(int64_t)) == 0);
}

static uint64_t slot_of(const ckptfmt_selection *selection, const ckptfmt_row *row)
{
	cf_hash_key key = {{(uint32_t)row->dtype, 0x9e3779b97f4a7c15}};
	const int64_t *dims = cf_selection_dims(selection, row->dims_first);
	if (row->rank == 0)
		return (uint32_t)row->dtype % SLOTS;
	return cf_hash(&key, (const uint8_t *)dims, (uint64_t)row->rank * sizeof *dims) % SLOTS;
}

/* A slot holds the last kind that fell into it and is not searched for more, so that no choice of shapes makes this
 * slow: kinds that share a slot are numbered again and again. */
ckptfmt_status ckptfmt_selection_kinds(const ckptfmt_selection *selection, int64_t *kinds, int64_t *firsts,
	uint64_t *count, ckptfmt_error *err)
{
	uint64_t row_count = cf_selection_count(selection);
	int64_t *slots = cf_allocate_zero(SLOTS, sizeof *slots);    /* the number of a kind, counted from 1 */
	*count = 0;
	if (slots == NULL)
		return cf_fail_memory(err);
	for (uint64_t i = 0; i < row_count; i++) {
		const ckptfmt_row *row = cf_selection_row(selection, i);
		int64_t *slot;
		if (i != 0 && same_kind(selection, row, row - 1)) {
			kinds[i] = kinds[i - 1];
			continue;
		}
		slot = &slots[slot_of(selection, row)];
		if (*slot == 0 || !same_kind(selection, row, cf_selection_row(selection, (uint64_t)firsts[*slot - 1]))) {
			firsts[*count] = (int64_t)i;
			*slot = (int64_t)++*count;
		}
		kinds[i] = *slot - 1;
	}
	cf_release(slots);
	return CKPTFMT_OK;
}

/* ---- patterns -------------------------------------------------------------------------------------------- */

typedef struct characters {
	const uint8_t *at;
	const uint8_t *end;
} characters;

/* The length of the UTF-8 sequence that begins with this byte, and the least and greatest byte that may come second;
 * 0 where none begins so. */
static unsigned sequence_size(uint8_t lead, uint8_t *low, uint8_t *high)
{
	*low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
	*high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
	if (lead >= 0xc2 && lead <= 0xdf)
		return 2;
	if (lead >= 0xe0 && lead <= 0xef)
		return 3;
	return lead >= 0xf0 && lead <= 0xf4 ? 4 : 0;
}

/* A byte that is part of no character stands for the surrogate that Python escapes it as. */
static uint32_t take_other(characters *text)
{
	uint8_t low, high, lead = *text->at;
	unsigned size = sequence_size(lead, &low, &high);
	uint32_t character = lead & (0x7fu >> size);
	if (size == 0 || (uint64_t)(text->end - text->at) < size || text->at[1] < low || text->at[1] > high) {
		text->at++;
		return 0xdc00u + lead;
	}
	for (unsigned i = 1; i < size; i++) {
		if ((text->at[i] & 0xc0) != 0x80) {
			text->at++;
			return 0xdc00u + lead;
		}
		character = character << 6 | (text->at[i] & 0x3fu);
	}
	text->at += size;
	return character;
}

/* REQUIRES: there is one. */
static inline uint32_t take_character(characters *text)
{
	return CF_LIKELY(*text->at < 0x80) ? *text->at++ : take_other(text);
}

static bool step_takes(const ckptfmt_glob_step *step, uint32_t character)
{
	switch (step->kind) {
	case CKPTFMT_GLOB_CHARACTER:
		return character == step->character;
	case CKPTFMT_GLOB_SET:
		return character >= 128 || (step->ascii[character / 64] >> character % 64 & 1) != 0;
	default:
		return true;
	}
}

/* What was taken by all runs but the last needs no second look: a longer last run serves whatever follows. */
static bool matches(const ckptfmt_glob_step *steps, uint64_t count, characters name)
{
	uint64_t step = 0, after_run = 0;
	characters again = name;
	bool ran = false;
	for (;;) {
		if (step < count && steps[step].kind == CKPTFMT_GLOB_RUN) {
			after_run = ++step;
			again = name;
			ran = true;
			if (step == count)
				return true;
			continue;
		}
		if (name.at == name.end)
			return step == count;
		if (step < count && step_takes(&steps[step], take_character(&name))) {
			step++;
			continue;
		}
		if (!ran)
			return false;
		/* On by one character at least, and to the next that can begin what follows. */
		(void)take_character(&again);
		if (steps[after_run].kind == CKPTFMT_GLOB_CHARACTER && steps[after_run].character < 128) {
			const uint8_t *next = again.at == again.end ? NULL : memchr(again.at,
				(int)steps[after_run].character, (size_t)(again.end - again.at));
			if (next == NULL)
				return false;
			again.at = next;
		}
		name = again;
		step = after_run;
	}
}

void ckptfmt_selection_match(const ckptfmt_selection *selection, uint64_t first, uint64_t end,
	const ckptfmt_glob_step *steps, uint64_t count, uint8_t *matched)
{
	for (uint64_t i = first; i < end; i++) {
		const ckptfmt_row *row = cf_selection_row(selection, i);
		const uint8_t *name = cf_selection_name(selection, row);
		matched[i - first] = matches(steps, count, (characters){name, name + row->name_size});
	}
}
