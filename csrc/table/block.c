/* SPDX-License-Identifier: Apache-2.0 */
/*
 * block  entry*  u32 restart[n]  u32 n
 * entry  varint32 shared  varint32 unshared  varint32 value size  unshared key bytes  value bytes
 * key    the first `shared` bytes of the key before, then the bytes given
 *
 * A restart is the offset in the block of an entry that shares nothing, so that a search can begin there; the first
 * is 0. An iterator that walks in order finds each restart exactly at an entry, or the block is bad. Keys are compared
 * from `shared` on: the shared prefix is equal. So a walk is linear in the bytes that it reads, however long the keys
 * are.
 */
#include "table/block.h"

#include <assert.h>
#include <inttypes.h>

typedef struct entry_head {
	uint64_t shared;
	uint64_t unshared;
	uint64_t value_size;
} entry_head;

static ckptfmt_status bad(const cf_block *block, uint64_t position, const char *text, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, cf_block_offset(block, position), "%s", text);
}

ckptfmt_status cf_block_open(const uint8_t *bytes, uint64_t size, uint64_t origin, bool decompressed,
	uint64_t key_bytes_max, cf_block *out, ckptfmt_error *err)
{
	uint64_t room;
	*out = (cf_block){bytes, size, 0, origin, key_bytes_max, 0, decompressed, false};
	/* BLK-4 */
	if (size < CF_BLOCK_SIZE_MIN)
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, origin, "BLK-4: a block of %" PRIu64 " bytes has no restart count",
			size);
	room = (size - CF_BLOCK_SIZE_MIN) / CF_RESTART_SIZE;
	out->restart_count = cf_load_u32(bytes + size - CF_BLOCK_SIZE_MIN);
	if (out->restart_count > room)
		return cf_fail(err, CKPTFMT_FAIL_BAD_BLOCK, cf_block_offset(out, size - CF_BLOCK_SIZE_MIN),
			"BLK-4: %" PRIu32 " restarts do not fit a block of %" PRIu64 " bytes", out->restart_count, size);
	/* BLK-5 */
	if (out->restart_count == 0)
		return CKPTFMT_OK;
	out->entries_size = size - CF_BLOCK_SIZE_MIN - (uint64_t)out->restart_count * CF_RESTART_SIZE;
	/* BLK-9 */
	if (cf_block_restart(out, 0) != 0)
		return bad(out, out->entries_size, "BLK-9: the first restart is not 0", err);
	return CKPTFMT_OK;
}

void cf_block_iterator_init(cf_block_iterator *iterator)
{
	memset(iterator, 0, sizeof *iterator);
	iterator->key = CF_BUFFER_EMPTY;
}

void cf_block_iterator_open(cf_block_iterator *iterator, const cf_block *block)
{
	cf_buffer key = iterator->key;
	cf_block_iterator_init(iterator);
	iterator->key = key;
	cf_buffer_clear(&iterator->key);
	iterator->block = block;
	iterator->entries = cf_cursor_over(block->bytes, (size_t)block->entries_size, block->origin);
}

void cf_block_iterator_free(cf_block_iterator *iterator)
{
	cf_buffer_free(&iterator->key);
}

/* BLK-6 */
static ckptfmt_status take_long_head(const cf_block *block, cf_cursor *entries, entry_head *out,
	ckptfmt_error *err)
{
	uint64_t start = entries->position;
	uint32_t shared, unshared, value_size;
	if (!cf_take_varint32(entries, &shared) || !cf_take_varint32(entries, &unshared) ||
		!cf_take_varint32(entries, &value_size))
		return bad(block, start, "BLK-6: the sizes of an entry cannot be read", err);
	*out = (entry_head){shared, unshared, value_size};
	return CKPTFMT_OK;
}

/* Takes an entry's three sizes and checks that its bytes are there. */
static inline ckptfmt_status take_head(const cf_block *block, cf_cursor *entries, entry_head *out, ckptfmt_error *err)
{
	uint64_t start = entries->position, left;
	const uint8_t *fast = entries->base + start;
	if (CF_LIKELY(cf_cursor_left(entries) >= 3 && (fast[0] | fast[1] | fast[2]) < 0x80)) {
		*out = (entry_head){fast[0], fast[1], fast[2]};
		entries->position += 3;
	} else {
		CF_TRY(take_long_head(block, entries, out, err));
	}
	left = cf_cursor_left(entries);
	/* BLK-8 */
	if (out->unshared > left || out->value_size > left - out->unshared)
		return bad(block, start, "BLK-8: an entry does not end before the restarts", err);
	return CKPTFMT_OK;
}

static void set_next_restart(cf_block_iterator *iterator, uint32_t row)
{
	iterator->restart = row;
	iterator->restart_at = row == iterator->block->restart_count ? UINT64_MAX : cf_block_restart(iterator->block, row);
}

static void set_short_limit(cf_block_iterator *iterator)
{
	const uint64_t least = CF_SHORT_HEAD_SIZE + CF_SHORT_COPY;
	uint64_t size = iterator->block->entries_size;
	iterator->short_before = 0;
	if (size > least && iterator->block->key_bytes_max >= CF_SHORT_KEY_MAX && iterator->key.capacity >= CF_SHORT_ROOM)
		iterator->short_before = cf_min_u64(iterator->restart_at, size - least + 1);
}

/* Sets `at_restart` for an entry that begins at `start`. */
static ckptfmt_status check_restart(cf_block_iterator *iterator, uint64_t start, ckptfmt_error *err)
{
	/* BLK-9 */
	if (iterator->restart_at < start)
		return bad(iterator->block, cf_block_restart_position(iterator->block, iterator->restart),
			"BLK-9: a restart is not the offset of an entry after that of the restart before", err);
	iterator->at_restart = iterator->restart_at == start;
	if (iterator->at_restart)
		set_next_restart(iterator, iterator->restart + 1);
	return CKPTFMT_OK;
}

/* The end of the entries: no restart may be left over, except the only one of an empty block. */
static ckptfmt_status check_end(cf_block_iterator *iterator, ckptfmt_error *err)
{
	const cf_block *block = iterator->block;
	iterator->valid = false;
	if (block->entries_size == 0 && iterator->restart == 0 && block->restart_count != 0)
		iterator->restart = 1;
	/* BLK-9 */
	if (iterator->restart != block->restart_count)
		return bad(block, cf_block_restart_position(block, iterator->restart),
			"BLK-9: a restart is not the offset of an entry", err);
	return CKPTFMT_OK;
}

/* The next key is `head->shared` bytes of the current one, then the bytes at `unshared`. */
static ckptfmt_status order_check(cf_block_iterator *iterator, const entry_head *head, const uint8_t *unshared,
	uint64_t start, ckptfmt_error *err)
{
	const cf_buffer *key = &iterator->key;
	uint64_t rest = key->size - head->shared, common;
	const uint8_t *before;
	iterator->common = 0;
	if (!iterator->walking)
		return CKPTFMT_OK;
	before = rest == 0 ? NULL : key->data + head->shared;
	common = rest == 0 ? 0 : cf_key_common(before, rest, unshared, head->unshared);
	iterator->common = head->shared + common;
	/* TAB-1, TAB-6 */
	if (common == head->unshared || (common < rest && before[common] > unshared[common])) {
		bool equal = common == rest && common == head->unshared;
		ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_BAD_ORDER, cf_block_offset(iterator->block, start),
			"%s %s", iterator->block->is_index ? "TAB-6: an index key" : "TAB-1: a key",
			equal ? "equals the one before it" : "is less than the one before it");
		cf_error_tensor(err, key->data, key->size);
		return status;
	}
	return CKPTFMT_OK;
}

static ckptfmt_status take_key(cf_block_iterator *iterator, const entry_head *head, uint64_t start,
	ckptfmt_error *err)
{
	const cf_block *block = iterator->block;
	const uint8_t *unshared;
	/* BLK-10 */
	if (iterator->at_restart && head->shared != 0)
		return bad(block, start, "BLK-10: the entry at a restart shares key bytes with the one before", err);
	/* BLK-7 */
	if (head->shared > (iterator->walking ? iterator->key.size : 0))
		return bad(block, start, "BLK-7: an entry shares more key bytes than the one before has", err);
	/* TAB-13 */
	if (head->shared + head->unshared > block->key_bytes_max)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, cf_block_offset(block, start),
			"TAB-13: a key of %" PRIu64 " bytes, above limit key_bytes_max (%" PRIu64 ")",
			head->shared + head->unshared, block->key_bytes_max);
	if (!cf_take_bytes(&iterator->entries, head->unshared, &unshared))
		return bad(block, start, "BLK-8: an entry does not end before the restarts", err);
	CF_TRY(order_check(iterator, head, unshared, start, err));
	if (!iterator->walking) {
		iterator->first_key = unshared;
		iterator->first_key_size = head->unshared;
	}
	iterator->key.size = head->shared;
	if (CF_UNLIKELY(iterator->key.capacity < CF_SHORT_ROOM))
		(void)cf_buffer_reserve(&iterator->key, CF_SHORT_ROOM - iterator->key.size);    /* for the next, too */
	cf_put_bytes(&iterator->key, unshared, head->unshared);
	return cf_buffer_status(&iterator->key, err);
}

/* Takes the entry at the cursor. */
static ckptfmt_status take_any(cf_block_iterator *iterator, ckptfmt_error *err)
{
	uint64_t start = iterator->entries.position;
	entry_head head;
	iterator->valid = false;
	if (cf_cursor_left(&iterator->entries) == 0)
		return check_end(iterator, err);
	CF_TRY(check_restart(iterator, start, err));
	CF_TRY(take_head(iterator->block, &iterator->entries, &head, err));
	CF_TRY(take_key(iterator, &head, start, err));
	iterator->value_position = iterator->entries.position;
	if (!cf_take_bytes(&iterator->entries, head.value_size, &iterator->value))
		return bad(iterator->block, start, "BLK-8: an entry does not end before the restarts", err);
	iterator->value_size = head.value_size;
	iterator->entry_position = start;
	iterator->shared = head.shared;
	iterator->row = iterator->walking ? iterator->row + 1 : 0;
	iterator->walking = true;
	iterator->valid = true;
	set_short_limit(iterator);
	cf_block_prefetch(iterator);
	return CKPTFMT_OK;
}

ckptfmt_status cf_block_first(cf_block_iterator *iterator, ckptfmt_error *err)
{
	set_next_restart(iterator, 0);
	iterator->short_before = 0;
	iterator->entries.position = 0;
	iterator->walking = false;
	cf_buffer_clear(&iterator->key);
	return take_any(iterator, err);
}

ckptfmt_status cf_block_next_any(cf_block_iterator *iterator, ckptfmt_error *err)
{
	assert(iterator->valid);
	return take_any(iterator, err);
}

/* ---- search ---------------------------------------------------------------------------------------------- */

/* Takes the sizes of the entry at *at, which is moved to its key, and checks that its bytes are there. REQUIRES: *at is
 * before the entries' end, behind which a restart and their count stand. */
static inline ckptfmt_status find_head(const cf_block *block, uint64_t *at, entry_head *out, ckptfmt_error *err)
{
	uint32_t sizes = cf_load_u32(block->bytes + *at);
	ckptfmt_status status;
	entry_head slow;
	cf_cursor entries;
	*out = (entry_head){sizes & 0xff, sizes >> 8 & 0xff, sizes >> 16 & 0xff};
	*at += CF_SHORT_HEAD_SIZE;
	if (CF_LIKELY((sizes & 0x808080) == 0 && *at + out->unshared + out->value_size <= block->entries_size))
		return CKPTFMT_OK;
	entries = cf_cursor_over(block->bytes, (size_t)block->entries_size, block->origin);
	entries.position = (size_t)(*at - CF_SHORT_HEAD_SIZE);
	status = take_head(block, &entries, &slow, err);
	if (status != CKPTFMT_OK)
		return status;
	*at = entries.position;
	*out = slow;
	return CKPTFMT_OK;
}

/* The key of a restart's entry, which the block stores whole. The restart must be strictly between two others that the
 * search has visited, or the end of the entries. */
static inline ckptfmt_status restart_key(const cf_block *block, uint32_t row, uint64_t after, uint64_t before,
	const uint8_t **key, uint64_t *key_size, ckptfmt_error *err)
{
	uint64_t start = cf_block_restart(block, row), at = start;
	entry_head head;
	/* BLK-9 */
	if (start <= after || start >= before)
		return bad(block, cf_block_restart_position(block, row),
			"BLK-9: a restart is beyond the entries or not after the previous restart", err);
	CF_TRY(find_head(block, &at, &head, err));
	/* BLK-10 */
	if (head.shared != 0)
		return bad(block, start, "BLK-10: the entry at a restart shares key bytes with the one before", err);
	*key = block->bytes + at;
	*key_size = head.unshared;
	return CKPTFMT_OK;
}

/* As cf_key_common, of keys whose first `known` bytes are the same. */
static inline uint64_t common_from(const uint8_t *a, uint64_t a_size, const uint8_t *b, uint64_t b_size, uint64_t known)
{
	uint64_t size = cf_min_u64(a_size, b_size), differing;
	/* Of a block that is not sound they need not be there. */
	known = cf_min_u64(known, size);
	if (CF_LIKELY(size - known >= sizeof differing)) {
		differing = cf_load_u64(a + known) ^ cf_load_u64(b + known);
		if (CF_LIKELY(differing != 0))
			return known + (uint64_t)__builtin_ctzll(differing) / 8;
	}
	return known + cf_key_common(a + known, size - known, b + known, size - known);
}

/* *position: of the entry at the last restart whose key is less than the target, or of the first entry. */
static ckptfmt_status find_restart(const cf_block *block, const uint8_t *target, uint64_t target_size,
	uint64_t *position, ckptfmt_error *err)
{
	uint32_t low = 0, high = block->restart_count - 1;
	uint64_t end = block->entries_size;
	/* What the keys at both ends have in common with the target, all keys between have. */
	uint64_t low_common = 0, high_common = 0;
	*position = 0;
	while (low < high) {
		uint32_t middle = low + (high - low + 1) / 2;
		const uint8_t *key = NULL;
		uint64_t key_size = 0, common;
		CF_TRY(restart_key(block, middle, *position, end, &key, &key_size, err));
		common = common_from(key, key_size, target, target_size, cf_min_u64(low_common, high_common));
		if (common < target_size && (common == key_size || key[common] < target[common])) {
			low = middle;
			low_common = common;
			*position = cf_block_restart(block, middle);
		} else {
			high = middle - 1;
			high_common = common;
			end = cf_block_restart(block, middle);
		}
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_block_find(const cf_block *block, const uint8_t *target, uint64_t target_size,
	uint64_t *value_position, uint64_t *value_size, bool *found, ckptfmt_error *err)
{
	uint64_t at, matched = 0;
	*found = false;
	if (block->restart_count == 0)
		return CKPTFMT_OK;
	CF_TRY(find_restart(block, target, target_size, &at, err));
	while (at < block->entries_size) {
		const uint8_t *rest;
		uint64_t key_size;
		entry_head head;
		CF_TRY(find_head(block, &at, &head, err));
		rest = block->bytes + at;
		at += head.unshared + head.value_size;
		/* Every key so far was less than the target and began with `matched` bytes of it. A key that shares more
		 * than those with its predecessor differs from the target at the same byte, so it is less as well. */
		if (head.shared > matched)
			continue;
		key_size = head.shared + head.unshared;
		matched = head.shared +
			cf_key_common(rest, head.unshared, target_size == 0 ? target : target + head.shared,
				target_size - head.shared);
		if (matched == target_size && key_size == target_size) {
			*found = true;
			*value_position = at - head.value_size;
			*value_size = head.value_size;
			return CKPTFMT_OK;
		}
		if (matched == target_size || (matched < key_size && rest[matched - head.shared] > target[matched]))
			return CKPTFMT_OK;
	}
	return CKPTFMT_OK;
}

/* ---- checking -------------------------------------------------------------------------------------------- */

ckptfmt_status cf_block_check(cf_block_iterator *iterator, const cf_block *block, cf_block_report *out,
	ckptfmt_error *err)
{
	ckptfmt_status status;
	uint64_t interval = 0;
	memset(out, 0, sizeof *out);
	cf_block_iterator_open(iterator, block);
	for (status = cf_block_first(iterator, err); status == CKPTFMT_OK && iterator->valid;
		status = cf_block_next(iterator, err)) {
		interval = iterator->at_restart ? 1 : interval + 1;
		out->restart_interval_max = cf_max_u64(out->restart_interval_max, interval);
		out->entry_count++;
		out->key_bytes += iterator->key.size;
	}
	return status;
}
