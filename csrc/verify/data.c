/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of the data files. The values are sorted by data file and offset, and each file is read once from its
 * start, through the transfer that reads use:
 *
 *   value  gap  value  value  tail
 *
 * A value of fixed size is checksummed piece by piece; a string or variant is scanned, because its checksum depends
 * on its elements. Chunk checksums cover the stored bytes of either. Gaps that are small enough to be padding must be
 * zero. Bytes that several values claim are read twice at most, so that entries which all name the same bytes cost no
 * more than the size of the file. A value of no bytes needs its data file (NAM-5), but no place in it.
 */
#include "verify/private.h"

#include <stdlib.h>
#include <string.h>

enum {
	PIECE_SIZE = 512 << 10,     /* stored bytes read at a time */
	DECODED_SIZE = 2 << 20,     /* raw bytes decoded at a time, rounded to whole chunks */
	JOIN_MAX = 64 << 10,        /* unwanted bytes that are read instead of starting another read after them */
	PADDING_MAX = 2 << 20       /* larger gaps are not padding, and are not read */
};

/* ---- data files ------------------------------------------------------------------------------------------ */

static uint64_t value_count(const cf_verifier *v)
{
	return v->values.size / sizeof(cf_verify_value);
}

static cf_verify_value *value_at(const cf_verifier *v, uint64_t number)
{
	return (cf_verify_value *)cf_buffer_items(&v->values) + number;
}

static int compare_values(const void *left, const void *right)
{
	const cf_verify_value *a = left, *b = right;
	if (a->stored.shard != b->stored.shard)
		return a->stored.shard < b->stored.shard ? -1 : 1;
	if (a->stored.offset != b->stored.offset)
		return a->stored.offset < b->stored.offset ? -1 : 1;
	if (a->stored.size != b->stored.size)
		return a->stored.size < b->stored.size ? -1 : 1;
	return (a->row > b->row) - (a->row < b->row);
}

static cf_verify_place place_of(const cf_verifier *v, const cf_verify_value *value)
{
	const ckptfmt_row *row = cf_selection_row(v->selection, value->row);
	return (cf_verify_place){v->file.path, {cf_selection_name(v->selection, row), row->name_size},
		value->stored.offset};
}

static cf_verify_place file_place(const cf_verifier *v, uint64_t offset)
{
	return (cf_verify_place){v->file.path, {NULL, 0}, offset};
}

/* NAM-5, of the data file of the next value. */
static void report_missing(cf_verifier *v)
{
	cf_verify_place place = file_place(v, CF_NO_OFFSET);
	uint64_t bytes = 0, end = v->value_number;
	for (; end < value_count(v) && value_at(v, end)->stored.shard == v->file.shard; end++)
		bytes += value_at(v, end)->stored.size;
	cf_verify_problem(v, CKPTFMT_FAIL_SHARD_MISSING, &place,
		"NAM-5: the data file is missing, with %llu values of %llu bytes", (unsigned long long)(end - v->value_number),
		(unsigned long long)bytes);
}

/* Opens the data file. If that fails, its values cannot be checked. */
static void begin_file(cf_verifier *v, int32_t shard)
{
	const ckptfmt_stored nothing = {.shard = shard};
	cf_verify_place place = file_place(v, CF_NO_OFFSET);
	ckptfmt_error error;
	ckptfmt_status status;
	v->file.shard = shard;
	v->file.end = v->file.unit = 0;
	cf_put_bytes(&v->needed, &shard, sizeof shard);
	cf_reader_data_path(v->reader, shard, v->file.path, sizeof v->file.path);
	status = cf_transfer_open(&v->transfer, &nothing, &error);
	v->file.usable = status == CKPTFMT_OK;
	v->file.size = v->file.again = v->file.usable ? v->transfer.use.size : 0;
	if (status == CKPTFMT_OK) {
		cf_fetch_clear(&v->transfer.fetch);
		cf_transfer_expect(&v->transfer, &nothing, 0, v->file.size);
		(void)cf_verify_ok(v, cf_buffer_status(&v->needed, &error), &error, &place);
		return;
	}
	if (error.failure == CKPTFMT_FAIL_SHARD_MISSING)
		report_missing(v);
	else
		(void)cf_verify_ok(v, status, &error, &place);
}

/* Some of the stored bytes from `done` on, until the next call. `follower` is the value behind them; where it is close,
 * the read goes on to it. */
static ckptfmt_status fetch(cf_verifier *v, const ckptfmt_stored *stored, uint64_t done, uint64_t follower,
	const uint8_t **bytes, uint64_t *size, ckptfmt_error *err)
{
	const cf_transfer *transfer = &v->transfer;
	uint64_t at = stored->offset + done, end = stored->offset + stored->size;
	const ckptfmt_stored *next = follower < value_count(v) ? &value_at(v, follower)->stored : NULL;
	bool joins = next != NULL && next->shard == stored->shard &&
		(next->offset <= end || next->offset - end <= JOIN_MAX);
	*size = cf_min_u64(stored->size - done, PIECE_SIZE);
	if (at >= transfer->window_offset && at - transfer->window_offset < transfer->window_size)
		*size = cf_min_u64(*size, transfer->window_size - (at - transfer->window_offset));
	/* No more than stays in the cache until it is checksummed. */
	return cf_transfer_show(&v->transfer, stored, done, *size, cf_min_u64(joins ? UINT64_MAX : end, at + PIECE_SIZE),
		bytes, err);
}

/* ---- gaps ------------------------------------------------------------------------------------------------ */

static uint64_t common_divisor(uint64_t a, uint64_t b)
{
	while (b != 0) {
		uint64_t rest = a % b;
		a = b;
		b = rest;
	}
	return a;
}

/* DAT-5 */
static void check_padding(cf_verifier *v, uint64_t offset, uint64_t size)
{
	const ckptfmt_stored gap = {.shard = v->file.shard, .offset = offset, .size = size};
	cf_verify_place place = file_place(v, offset);
	ckptfmt_error error;
	for (uint64_t done = 0; done < size;) {
		const uint8_t *bytes;
		uint64_t count;
		if (!cf_verify_ok(v, fetch(v, &gap, done, v->value_number, &bytes, &count, &error), &error, &place))
			return;
		for (uint64_t i = 0; i < count; i++) {
			if (bytes[i] == 0)
				continue;
			place.offset = offset + done + i;
			cf_verify_note(v, CF_VERIFY_PADDING, &place,
				"DAT-5: padding that is not zero, or values that no entry names any more: %llu bytes from %llu on",
				(unsigned long long)size, (unsigned long long)offset);
			return;
		}
		done += count;
		cf_verify_count(v, count);
	}
}

/* The bytes from the end of the values so far to `until`. While entries are missing they may belong to one of these. */
static void check_gap(cf_verifier *v, uint64_t until, uint64_t padding_max, const char *where)
{
	uint64_t begin = v->file.end, size = until - cf_min_u64(begin, until);
	cf_verify_place place = file_place(v, begin);
	if (v->uncertain || size == 0)
		return;
	if (size <= padding_max)
		check_padding(v, begin, size);
	else
		cf_verify_note(v, CF_VERIFY_UNNAMED, &place, "DAT-3: %llu bytes %s that no entry names",
			(unsigned long long)size, where);
}

/* Zero bytes up to a multiple of the alignment are padding. No entry gives the alignment, but every value and the end
 * of the file are at a multiple of it. */
static void end_file(cf_verifier *v)
{
	uint64_t unit = common_divisor(v->file.unit, v->file.size);
	if (v->file.usable)
		check_gap(v, v->file.size, unit == 0 ? 0 : cf_min_u64(unit - 1, PADDING_MAX), "after the last value");
	v->file.shard = -1;
	v->file.usable = false;
}

/* ---- the stored bytes of a value ------------------------------------------------------------------------- */

static uint64_t chunk_end(const cf_verifier *v, const ckptfmt_stored *stored, uint64_t chunk)
{
	return stored->chunk_size == 0 ? stored->size : cf_verify_chunk_end(v, stored, chunk);
}

/* EXT-9, CMP-11. A value without chunk checksums is a single chunk, compared with the checksum of the value. */
static void end_chunk(cf_verifier *v, const ckptfmt_stored *stored)
{
	const uint32_t *crcs = (const uint32_t *)cf_buffer_items(&v->selection->chunk_crcs) + stored->chunks_first;
	uint64_t chunk = v->value.chunk++, end = chunk_end(v, stored, chunk);
	uint64_t next = end == stored->size ? 0 : chunk_end(v, stored, chunk + 1) - end;
	uint32_t crc = cf_chunk_sum_end(&v->value.sum, next);
	if (stored->chunk_size != 0 && crc != crcs[chunk] && v->value.bad_chunks++ == 0)
		v->value.first_bad_chunk = chunk;
}

/* Extends the checksums of the chunks by the next bytes of the value. */
static void take_chunks(cf_verifier *v, const ckptfmt_stored *stored, const uint8_t *bytes, uint64_t size)
{
	while (size != 0) {
		uint64_t count = cf_chunk_sum_take(&v->value.sum, bytes, size);
		bytes += count;
		size -= count;
		if (v->value.sum.left == 0)
			end_chunk(v, stored);
	}
}

/* The next piece of the stored bytes. */
static ckptfmt_status take_piece(cf_verifier *v, const cf_verify_value *value, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = &value->stored;
	const uint8_t *bytes;
	uint64_t size;
	CF_TRY(fetch(v, stored, v->value.done, v->value_number + 1, &bytes, &size, err));
	if (value->storage != CKPTFMT_STORAGE_FIXED)
		CF_TRY(cf_string_scan_take(&v->value.scan, bytes, size, err));
	if (value->storage == CKPTFMT_STORAGE_FIXED || stored->chunk_size != 0)
		take_chunks(v, stored, bytes, size);
	v->value.done += size;
	cf_verify_count(v, size);
	return CKPTFMT_OK;
}

/* Where a value with a wrong checksum is wrong, as far as its chunks tell. */
static uint64_t damage_offset(const cf_verifier *v, const ckptfmt_stored *stored)
{
	uint64_t before = v->value.bad_chunks == 0 || v->value.first_bad_chunk == 0 ? 0
		: cf_verify_chunk_end(v, stored, v->value.first_bad_chunk - 1);
	return stored->offset + before;
}

static ckptfmt_status check_stored(const cf_verifier *v, const cf_verify_value *value, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = &value->stored;
	unsigned long long bad = v->value.bad_chunks, first = v->value.first_bad_chunk;
	/* CMP-11; that the chunks make up the value was checked with the entry (EXT-6). */
	if ((stored->flags & CKPTFMT_STORED_COMPRESSED) && stored->chunk_size != 0)
		return bad == 0 ? CKPTFMT_OK : cf_fail(err, CKPTFMT_FAIL_CHECKSUM, damage_offset(v, stored),
			"CMP-11: Checksum does not match for %llu chunks; the first is chunk %llu", bad, first);
	/* ENT-6, DAT-6 */
	if (value->storage == CKPTFMT_STORAGE_FIXED && v->value.sum.total != stored->crc32c)
		return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, damage_offset(v, stored),
			"DAT-6: Checksum does not match: stored 0x%08x, computed 0x%08x", stored->crc32c,
			v->value.sum.total);
	/* EXT-9: where the value itself is wrong, its chunks are as well. */
	return bad == 0 ? CKPTFMT_OK : cf_fail(err, CKPTFMT_FAIL_CHECKSUM, damage_offset(v, stored),
		"EXT-9: %llu chunks differ from their checksums, though the whole value does not", bad);
}

/* ---- compressed values ----------------------------------------------------------------------------------- */

/* Whether the value, whose stored bytes are sound, is to be decoded. A missing codec is reported once. */
static bool decodes(cf_verifier *v, const cf_verify_value *value, const cf_verify_place *place)
{
	if (value->decoded_storage == 0)
		return false;
	if (v->reader->codec == NULL && !v->codec_missed) {
		cf_verify_problem(v, CKPTFMT_FAIL_UNSUPPORTED, place,
			"compressed values were not decoded, only their stored bytes were checked: that needs a codec");
		v->codec_missed = true;
	}
	return v->reader->codec != NULL;
}

static ckptfmt_status begin_decoding(cf_verifier *v, const cf_verify_value *value, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = &value->stored;
	const cf_stored_value raw = {NULL, stored->raw_size, stored->offset, value->element_count, stored->raw_crc32c,
		false, true, true};
	CF_TRY(cf_value_check_limit(&v->reader->limits, stored->raw_size, true, stored->offset, err));
	if (value->decoded_storage != CKPTFMT_STORAGE_FIXED)
		v->value.scan = cf_string_scan_begin(value->decoded_storage, &raw);
	v->value.crc = 0;
	return CKPTFMT_OK;
}

static ckptfmt_status decode_strings(cf_verifier *v, const cf_compressed *value, uint64_t end, ckptfmt_error *err)
{
	uint64_t begin = v->value.decoded;
	uint8_t *raw;
	cf_buffer_clear(&v->raw);
	raw = cf_buffer_extend(&v->raw, end - begin);
	CF_TRY(cf_buffer_status(&v->raw, err));
	CF_TRY(cf_transfer_decode(&v->transfer, value, begin, end, NULL, true, raw, NULL, err));
	return cf_string_scan_take(&v->value.scan, raw, end - begin, err);
}

/* Decodes and checks the next raw bytes of the value. */
static ckptfmt_status decode_piece(cf_verifier *v, const cf_verify_value *value, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = &value->stored;
	bool fixed = value->decoded_storage == CKPTFMT_STORAGE_FIXED;
	const cf_compressed compressed = {stored,
		fixed ? ckptfmt_dtype_find(cf_selection_row(v->selection, value->row)->dtype)->swap_size : 1};
	uint64_t size = cf_max_u64(DECODED_SIZE / stored->chunk_size, 1) * stored->chunk_size, begin = v->value.decoded;
	uint64_t end = begin + cf_min_u64(size, stored->raw_size - begin);
	if (begin == 0)
		CF_TRY(begin_decoding(v, value, err));
	if (fixed)
		CF_TRY(cf_transfer_decode(&v->transfer, &compressed, begin, end, NULL, true, NULL, &v->value.crc, err));
	else
		CF_TRY(decode_strings(v, &compressed, end, err));
	v->value.decoded = end;
	return end == stored->raw_size && fixed ? cf_transfer_check(stored, v->value.crc, err) : CKPTFMT_OK;
}

/* True: there is more to decode. */
static bool go_on_decoding(cf_verifier *v, const cf_verify_value *value, const cf_verify_place *place)
{
	ckptfmt_error error;
	ckptfmt_status status = decode_piece(v, value, &error);
	/* A few bytes may claim more memory than there is: that concerns the value, not the verification. */
	if (status == CKPTFMT_OK)
		status = cf_progress_check(v->progress, &error);
	if (status == CKPTFMT_NO_MEMORY)
		status = cf_fail(&error, CKPTFMT_FAIL_LIMIT, value->stored.offset,
			"there is no memory to check a compressed value");
	return cf_verify_ok(v, status, &error, place) && v->value.decoded != value->stored.raw_size;
}

/* ---- one value ------------------------------------------------------------------------------------------- */

/* DAT-8. Whether the value is to be read all the same. */
static bool check_overlap(cf_verifier *v, const ckptfmt_stored *stored, const cf_verify_place *place)
{
	bool affordable = stored->size <= v->file.again;
	if (stored->offset >= v->file.end)
		return true;
	cf_verify_problem(v, CKPTFMT_FAIL_BAD_ENTRY, place,
		"DAT-8: %llu of its %llu bytes also belong to a value that begins before it%s",
		(unsigned long long)cf_min_u64(stored->size, v->file.end - stored->offset), (unsigned long long)stored->size,
		affordable ? "" : "; they were not checked again");
	if (affordable)
		v->file.again -= stored->size;
	return affordable;
}

/* Checks the place of the value and the bytes before it. Whether its own bytes are to be read. */
static bool begin_value(cf_verifier *v, const cf_verify_value *value, const cf_verify_place *place)
{
	const ckptfmt_stored *stored = &value->stored;
	const cf_stored_value bytes = {NULL, stored->size, stored->offset, value->element_count, stored->crc32c,
		v->reader->header.endianness == 1, true, false};
	ckptfmt_error error;
	bool read = cf_verify_ok(v, cf_transfer_open(&v->transfer, stored, &error), &error, place) &&
		check_overlap(v, stored, place) && value->storage != CKPTFMT_STORAGE_NONE;
	check_gap(v, cf_min_u64(stored->offset, v->file.size), PADDING_MAX, "between two values");
	v->file.end = cf_max_u64(v->file.end, stored->offset + stored->size);
	v->file.unit = common_divisor(v->file.unit, stored->offset);
	v->value = (cf_verify_work){.sum = cf_chunk_sum_begin(chunk_end(v, stored, 0))};
	if (!read || value->storage == CKPTFMT_STORAGE_FIXED)
		return read;
	v->value.scan = cf_string_scan_begin(value->storage, &bytes);
	/* As for a read. */
	return cf_verify_ok(v, cf_value_check_limit(&v->reader->limits, stored->size, false, stored->offset, &error),
		&error, place);
}

static void check_value(cf_verifier *v, const cf_verify_value *value)
{
	cf_verify_place place = place_of(v, value);
	ckptfmt_error error;
	if (value->stored.size == 0) {
		(void)cf_verify_ok(v, cf_transfer_open(&v->transfer, &value->stored, &error), &error, &place);
		return;
	}
	if (!begin_value(v, value, &place))
		return;
	while (v->value.done < value->stored.size)
		if (!cf_verify_ok(v, take_piece(v, value, &error), &error, &place) || cf_verify_failed(v))
			return;
	if (!cf_verify_ok(v, check_stored(v, value, &error), &error, &place) || !decodes(v, value, &place))
		return;
	while (go_on_decoding(v, value, &place)) {
	}
}

/* One data file at a time is open: another process may have replaced the checkpoint, and its descriptors are scarce. */
static void begin(cf_verifier *v)
{
	cf_verify_place place = {cf_verify_index_path(v), {NULL, 0}, CF_NO_OFFSET};
	ckptfmt_reader *reader = v->reader;
	ckptfmt_error error;
	if (value_count(v) == 0)
		return;
	qsort(v->values.data, (size_t)value_count(v), sizeof(cf_verify_value), compare_values);
	(void)cf_verify_ok(v, cf_shards_open(&reader->shards, &reader->directory, reader->prefix.base,
		reader->header.num_shards, 1, reader->follow_symlinks, &error), &error, &place);
}

void cf_verify_data(cf_verifier *v)
{
	begin(v);
	for (; v->value_number < value_count(v) && !cf_verify_failed(v); v->value_number++) {
		const cf_verify_value *value = value_at(v, v->value_number);
		if (value->stored.shard != v->file.shard) {
			end_file(v);
			begin_file(v, value->stored.shard);
		}
		if (v->file.usable)
			check_value(v, value);
		cf_verify_value_done(v, value->row);
	}
	end_file(v);
}
