/* SPDX-License-Identifier: Apache-2.0 */
/* Property: any bytes as the value of a tensor's key, before a byte that says how many slices are allowed, either are
 * decoded or fail with a typed error within them. What is decoded says the same with an unknown field in front of it,
 * where the decoder has no fast path; its extension says what a plainly written decoder finds; its chunks, if they are
 * sound, fill the stored value. Its form in a merge says the same but for the shard, has the same extensions byte for
 * byte, and is its own form in a merge; only a malformed slice has none. */
#include "repair.h"

#include "proto/message.h"
#include "proto/wire.h"

#include <string.h>

enum {
	EXTENSION = 100,
	ORIGIN = 1000,
	SHARD = 77,
	SLICES_MAX = 1 << 16
};

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	(void)seed;
	return LLVMFuzzerMutate(data, size, capacity);
}

typedef struct decoded {
	cf_entry entry;
	int64_t dims[CKPTFMT_RANK_MAX];
} decoded;

static bool same_bytes(cf_bytes_view a, cf_bytes_view b)
{
	return a.size == b.size && (a.size == 0 || memcmp(a.data, b.data, (size_t)a.size) == 0);
}

static bool lies_within(cf_bytes_view part, cf_bytes_view whole)
{
	return part.size == 0 || (part.data >= whole.data && part.size <= whole.size &&
		(uint64_t)(part.data - whole.data) <= whole.size - part.size);
}

/* All that an entry says, but for its shard and what is odd about it. */
static void check_same(const decoded *a, const decoded *b)
{
	FUZZ_CHECK(a->entry.dtype == b->entry.dtype && a->entry.rank == b->entry.rank);
	FUZZ_CHECK(memcmp(a->dims, b->dims, (size_t)a->entry.rank * sizeof *a->dims) == 0);
	FUZZ_CHECK(a->entry.offset == b->entry.offset && a->entry.size == b->entry.size);
	FUZZ_CHECK(a->entry.masked_crc == b->entry.masked_crc && a->entry.slice_count == b->entry.slice_count);
	FUZZ_CHECK(a->entry.has_shape == b->entry.has_shape && a->entry.has_extension == b->entry.has_extension);
	FUZZ_CHECK(a->entry.feature_flags == b->entry.feature_flags && a->entry.chunk_size == b->entry.chunk_size);
	FUZZ_CHECK(a->entry.raw_size == b->entry.raw_size && a->entry.raw_crc32c == b->entry.raw_crc32c);
	FUZZ_CHECK(same_bytes(a->entry.chunk_crcs, b->entry.chunk_crcs));
	FUZZ_CHECK(same_bytes(a->entry.chunk_sizes, b->entry.chunk_sizes));
}

/* ---- a plain decoder of what was decoded already, so of messages that keep the rules ---- */

static uint64_t plain_varint(const uint8_t **at)
{
	uint64_t value = 0;
	unsigned shift = 0;
	do {
		value |= (uint64_t)(**at & 0x7f) << shift;
		shift += 7;
	} while (*(*at)++ & 0x80);
	return value;
}

static uint64_t plain_fixed(const uint8_t **at, unsigned size)
{
	uint64_t value = 0;
	for (unsigned i = 0; i < size; i++)
		value |= (uint64_t)*(*at)++ << 8 * i;
	return value;
}

typedef struct plain_field {
	uint64_t number, wire, value;
	cf_bytes_view content;
} plain_field;

/* Groups are gone through field by field; `depth` is how many are open behind the field. */
static plain_field plain_take(const uint8_t **at, unsigned *depth)
{
	plain_field f = {0, 0, 0, {NULL, 0}};
	uint64_t tag = plain_varint(at);
	f.number = tag >> 3;
	f.wire = tag & 7;
	switch (f.wire) {
	case 0: f.value = plain_varint(at); break;
	case 1: f.value = plain_fixed(at, 8); break;
	case 2:
		f.content.size = plain_varint(at);
		f.content.data = *at;
		*at += f.content.size;
		break;
	case 3: (*depth)++; break;
	case 4: (*depth)--; break;
	default: f.value = plain_fixed(at, 4); break;
	}
	return f;
}

static void plain_extension(cf_bytes_view message, cf_entry *out)
{
	const uint8_t *at = message.data, *end = at + message.size;
	unsigned depth = 0;
	while (at != end) {
		unsigned before = depth;
		plain_field f = plain_take(&at, &depth);
		FUZZ_CHECK(at <= end);
		if (before != 0 || depth != 0)
			continue;
		if (f.number == 1 && f.wire == 0)
			out->feature_flags = f.value;
		if (f.number == 2 && f.wire == 0)
			out->chunk_size = f.value;
		if (f.number == 3 && f.wire == 2)
			out->chunk_crcs = f.content;
		if (f.number == 4 && f.wire == 2)
			out->chunk_sizes = f.content;
		if (f.number == 5 && f.wire == 0)
			out->raw_size = f.value;
		if (f.number == 6 && f.wire == 5)
			out->raw_crc32c = (uint32_t)f.value;
	}
	FUZZ_CHECK(depth == 0);
}

/* The extensions of an entry: what they say together, and their contents with their sizes one after the other. */
static void plain_extensions(cf_bytes_view message, cf_entry *out, cf_buffer *contents)
{
	const uint8_t *at = message.data, *end = at + message.size;
	unsigned depth = 0;
	memset(out, 0, sizeof *out);
	while (at != end) {
		unsigned before = depth;
		plain_field f = plain_take(&at, &depth);
		FUZZ_CHECK(at <= end);
		if (before != 0 || depth != 0 || f.number != EXTENSION || f.wire != 2)
			continue;
		out->has_extension = true;
		plain_extension(f.content, out);
		cf_put_varint(contents, f.content.size);
		cf_put_bytes(contents, f.content.data, f.content.size);
	}
	FUZZ_CHECK(depth == 0);
}

static void check_extensions(const cf_entry *entry, cf_buffer *contents)
{
	cf_entry plain;
	plain_extensions(entry->bytes, &plain, contents);
	FUZZ_CHECK(plain.has_extension == entry->has_extension && plain.feature_flags == entry->feature_flags);
	FUZZ_CHECK(plain.chunk_size == entry->chunk_size && plain.raw_size == entry->raw_size);
	FUZZ_CHECK(plain.raw_crc32c == entry->raw_crc32c);
	FUZZ_CHECK(same_bytes(plain.chunk_crcs, entry->chunk_crcs));
	FUZZ_CHECK(same_bytes(plain.chunk_sizes, entry->chunk_sizes));
}

/* ---- what is decoded ---- */

/* EXT-2 to EXT-5, CMP-1 to CMP-5. Whoever trusts the ends reads no byte outside of the value. */
static void check_form(const cf_entry *entry)
{
	cf_buffer ends = CF_BUFFER_EMPTY;
	ckptfmt_error err;
	cf_stored_form form = cf_entry_form(entry, &ends);
	uint64_t before = 0, count = ends.size / sizeof before, crcs = entry->chunk_crcs.size;
	if (form != CF_STORED_SOUND) {
		FUZZ_CHECK(cf_form_fail(form, (uint64_t)entry->size, 0, &err) != CKPTFMT_OK && count == 0);
		FUZZ_CHECK((form == CF_STORED_EXT_3) == (err.failure == CKPTFMT_FAIL_UNSUPPORTED));
		cf_buffer_free(&ends);
		return;
	}
	FUZZ_CHECK((entry->feature_flags & ~CF_FEATURE_COMPRESSED) == 0);
	if ((entry->feature_flags & CF_FEATURE_COMPRESSED) == 0) {
		uint64_t size = (uint64_t)entry->size, chunk = entry->chunk_size;
		bool chunked = chunk != 0 || crcs != 0;
		FUZZ_CHECK(count == 0);
		FUZZ_CHECK(!chunked || (entry->size >= 0 && chunk != 0 && chunk < size && chunk <= UINT32_MAX &&
			crcs == 4 * (size / chunk + (size % chunk != 0))));
		return;
	}
	FUZZ_CHECK(count != 0 && count == entry->chunk_crcs.size / 4 && entry->chunk_crcs.size % 4 == 0);
	for (uint64_t i = 0; i < count; i++) {
		uint64_t end = ((const uint64_t *)(const void *)ends.data)[i];
		uint64_t raw = cf_min_u64(entry->chunk_size, entry->raw_size - i * entry->chunk_size);
		FUZZ_CHECK(end > before && end - before <= raw + 1);
		before = end;
	}
	FUZZ_CHECK(before == (uint64_t)entry->size);
	cf_buffer_free(&ends);
}

/* Whether all slices can be read. */
static bool check_slices(const cf_entry *entry)
{
	int64_t extents[2 * CKPTFMT_RANK_MAX];
	uint64_t position = 0, count = 0;
	ckptfmt_error err;
	bool found = true;
	while (found) {
		if (cf_entry_next_slice(entry, &position, extents, extents + entry->rank, &found, &err) == CKPTFMT_OK) {
			count += found;
			continue;
		}
		FUZZ_CHECK(err.failure == CKPTFMT_FAIL_BAD_PROTO || err.failure == CKPTFMT_FAIL_BAD_SLICE);
		FUZZ_CHECK(err.offset >= ORIGIN && err.offset <= ORIGIN + entry->bytes.size);
		return false;
	}
	FUZZ_CHECK(count == entry->slice_count);
	return true;
}

/* An unknown field in front keeps the decoder off its fast path. */
static void check_unknown_before(const decoded *one)
{
	static const uint8_t unknown[] = {15 << 3, 1};
	cf_buffer longer = CF_BUFFER_EMPTY;
	ckptfmt_error err;
	decoded other;
	cf_put_bytes(&longer, unknown, sizeof unknown);
	cf_put_bytes(&longer, one->entry.bytes.data, one->entry.bytes.size);
	FUZZ_CHECK(cf_entry_decode((cf_bytes_view){longer.data, longer.size}, ORIGIN, SLICES_MAX, other.dims, &other.entry,
		&err) == CKPTFMT_OK);
	check_same(one, &other);
	FUZZ_CHECK(one->entry.shard == other.entry.shard);
	cf_buffer_free(&longer);
}

/* MRG-7 */
static void check_merged(const decoded *one, bool slices_readable, const cf_buffer *extensions)
{
	const cf_bytes_view none = {NULL, 0};
	cf_buffer form = CF_BUFFER_EMPTY, again = CF_BUFFER_EMPTY, kept = CF_BUFFER_EMPTY;
	ckptfmt_error err;
	decoded other;
	ckptfmt_status status = cf_entry_reencode(&form, &one->entry, one->dims, SHARD, none, NULL, &err);
	if (status != CKPTFMT_OK) {
		FUZZ_CHECK(err.failure == CKPTFMT_FAIL_BAD_PROTO && !slices_readable);
		cf_buffer_free(&form);
		return;
	}
	FUZZ_CHECK(cf_entry_decode((cf_bytes_view){form.data, form.size}, ORIGIN, SLICES_MAX, other.dims, &other.entry,
		&err) == CKPTFMT_OK);
	check_same(one, &other);
	FUZZ_CHECK(other.entry.shard == SHARD);
	check_extensions(&other.entry, &kept);
	FUZZ_CHECK(same_bytes((cf_bytes_view){kept.data, kept.size},
		(cf_bytes_view){extensions->data, extensions->size}));
	FUZZ_CHECK(check_slices(&other.entry) == slices_readable);
	FUZZ_CHECK(cf_entry_reencode(&again, &other.entry, other.dims, SHARD, none, NULL, &err) == CKPTFMT_OK);
	FUZZ_CHECK(same_bytes((cf_bytes_view){form.data, form.size}, (cf_bytes_view){again.data, again.size}));
	cf_buffer_free(&form);
	cf_buffer_free(&again);
	cf_buffer_free(&kept);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	cf_buffer extensions = CF_BUFFER_EMPTY;
	ckptfmt_error err;
	decoded one;
	uint64_t slices_max;
	if (size < 1)
		return 0;
	slices_max = data[--size] == 0 ? SLICES_MAX : data[size];
	if (cf_entry_decode((cf_bytes_view){data, size}, ORIGIN, slices_max, one.dims, &one.entry, &err) != CKPTFMT_OK) {
		FUZZ_CHECK(err.failure == CKPTFMT_FAIL_BAD_PROTO || err.failure == CKPTFMT_FAIL_BAD_SHAPE ||
			err.failure == CKPTFMT_FAIL_LIMIT);
		FUZZ_CHECK(err.offset >= ORIGIN && err.offset <= ORIGIN + size);
		return 0;
	}
	FUZZ_CHECK(one.entry.slice_count <= slices_max);
	FUZZ_CHECK(lies_within(one.entry.chunk_crcs, one.entry.bytes));
	FUZZ_CHECK(lies_within(one.entry.chunk_sizes, one.entry.bytes));
	check_extensions(&one.entry, &extensions);
	check_form(&one.entry);
	check_unknown_before(&one);
	check_merged(&one, check_slices(&one.entry), &extensions);
	cf_buffer_free(&extensions);
	return 0;
}
