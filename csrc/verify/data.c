/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bytes of the data files, span by span through one window. A value of fixed size is checksummed piece by piece; a
 * string or variant is scanned, because its checksum depends on its elements. Chunk checksums cover the stored bytes of
 * either.
 */
#include "verify/private.h"

static uint64_t span_count(const ckptfmt_verifier *v)
{
	return v->spans.size / sizeof(cf_verify_span);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

/* How far to read from `begin`: what follows closely is wanted as well. */
static uint64_t window_end(const ckptfmt_verifier *v, uint64_t begin)
{
	const cf_verify_span *span = cf_verify_span_at(v, v->next);
	uint64_t end = span->offset + span->size, limit = begin + CF_VERIFY_WINDOW;
	for (uint64_t i = v->next + 1; end < limit && i < span_count(v); i++) {
		const cf_verify_span *next = cf_verify_span_at(v, i);
		if (next->shard != span->shard || (next->offset > end && next->offset - end > CF_VERIFY_JOIN_MAX))
			break;
		end = cf_max_u64(end, next->offset + next->size);
	}
	return cf_min_u64(end, limit);
}

/* Some of the bytes at `offset`, in the window until the next call. REQUIRES: they belong to the span at hand. */
static ckptfmt_status fetch(ckptfmt_verifier *v, uint64_t offset, const uint8_t **bytes, uint64_t *size,
	ckptfmt_error *err)
{
	uint64_t inside = offset - v->window_offset;
	if (offset < v->window_offset || inside >= v->window_size) {
		uint64_t wanted = window_end(v, offset) - offset;
		v->window_size = 0;
		CF_TRY(cf_os_read_at(&v->data, v->data_path, v->window, wanted, offset, size, err));
		/* DAT-2 */
		if (*size == 0)
			return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, offset, "DAT-2: the data file ended while it was read");
		v->window_offset = offset;
		v->window_size = *size;
		inside = 0;
	}
	*bytes = v->window + inside;
	*size = v->window_size - inside;
	return CKPTFMT_OK;
}

/* ---- values ---------------------------------------------------------------------------------------------- */

/* EXT-9, CMP-11 */
static void end_chunk(ckptfmt_verifier *v, const ckptfmt_stored *stored)
{
	const uint32_t *crcs = (const uint32_t *)(const void *)v->selection->chunk_crcs.data + stored->chunks_first;
	if (v->chunk_crc != crcs[v->chunk_row] && v->bad_chunks++ == 0)
		v->first_bad_chunk = v->chunk_row;
	v->chunk_crc = 0;
	v->chunk_row++;
}

/* Sums the next bytes of the value into the checksums of its chunks. `done` bytes came before. */
static void take_chunks(ckptfmt_verifier *v, const ckptfmt_stored *stored, const uint8_t *bytes, uint64_t size,
	uint64_t done)
{
	while (size != 0) {
		uint64_t left = cf_verify_chunk_end(v, stored, v->chunk_row) - done;
		uint64_t count = cf_min_u64(size, left);
		v->chunk_crc = ckptfmt_crc32c(v->chunk_crc, bytes, count);
		done += count;
		bytes += count;
		size -= count;
		if (count == left)
			end_chunk(v, stored);
	}
}

/* False: a string or variant is damaged, which was reported. */
static bool take_value(ckptfmt_verifier *v, const cf_verify_value *value, const uint8_t *bytes, uint64_t size)
{
	cf_verify_place place = cf_verify_value_place(v, value);
	ckptfmt_error error;
	if (value->storage == CKPTFMT_STORAGE_FIXED)
		v->crc = ckptfmt_crc32c(v->crc, bytes, size);
	else if (!cf_verify_ok(v, cf_string_scan_take(&v->scan, bytes, size, &error), &error, &place))
		return false;
	if (value->stored.chunk_size != 0)
		take_chunks(v, &value->stored, bytes, size, v->span_done);
	return true;
}

/* Where a value with a wrong checksum is wrong, as far as its chunks tell. */
static uint64_t damage_offset(const ckptfmt_verifier *v, const ckptfmt_stored *stored)
{
	uint64_t before = v->bad_chunks == 0 || v->first_bad_chunk == 0 ? 0
		: cf_verify_chunk_end(v, stored, v->first_bad_chunk - 1);
	return stored->offset + before;
}

static ckptfmt_status check_fixed(const ckptfmt_verifier *v, const ckptfmt_stored *stored, ckptfmt_error *err)
{
	/* CMP-11; what the chunks have to do with the value was checked with the entry (EXT-6). */
	if ((stored->flags & CKPTFMT_STORED_COMPRESSED) && stored->chunk_size != 0)
		return v->bad_chunks == 0 ? CKPTFMT_OK
			: cf_fail(err, CKPTFMT_FAIL_CHECKSUM, damage_offset(v, stored),
				"CMP-11: %llu chunks do not match their checksums; the first is chunk %llu",
				(unsigned long long)v->bad_chunks, (unsigned long long)v->first_bad_chunk);
	/* ENT-6, DAT-6 */
	if (v->crc != stored->crc32c)
		return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, damage_offset(v, stored),
			"DAT-6: the bytes do not match their checksum: stored 0x%08x, computed 0x%08x", stored->crc32c, v->crc);
	return CKPTFMT_OK;
}

static void end_value(ckptfmt_verifier *v, const cf_verify_value *value)
{
	const ckptfmt_stored *stored = &value->stored;
	cf_verify_place place = cf_verify_value_place(v, value);
	ckptfmt_error error;
	bool good = value->storage != CKPTFMT_STORAGE_FIXED ||
		cf_verify_ok(v, check_fixed(v, stored, &error), &error, &place);
	place.offset = damage_offset(v, stored);
	/* EXT-9: where the value itself is wrong, its chunks are as well. */
	if (good && v->bad_chunks != 0)
		cf_verify_problem(v, CKPTFMT_FAIL_CHECKSUM, &place,
			"EXT-9: %llu chunks differ from their checksums, though the whole value does not",
			(unsigned long long)v->bad_chunks);
}

/* ---- compressed values ----------------------------------------------------------------------------------- */

/* Raw bytes that are decoded at a time: whole chunks. */
enum { DECODED_SIZE = 2 << 20 };

static uint32_t unit_of(const ckptfmt_verifier *v, const cf_verify_value *value)
{
	return value->decoded_storage == CKPTFMT_STORAGE_FIXED
		? ckptfmt_dtype_find(cf_selection_row(v->selection, value->row)->dtype)->swap_size : 1;
}

static ckptfmt_status begin_decoding(ckptfmt_verifier *v, const cf_verify_value *value, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = &value->stored;
	cf_stored_value raw = {NULL, stored->raw_size, stored->offset, value->element_count, stored->raw_crc32c, false,
		true, true};
	if (stored->raw_size > v->reader->limits.tensor_bytes_max)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, stored->offset, "CMP-20: a value of %llu bytes",
			(unsigned long long)stored->raw_size);
	if (value->decoded_storage != CKPTFMT_STORAGE_FIXED)
		v->scan = cf_string_scan_begin(value->decoded_storage, &raw);
	cf_transfer_lend(&v->transfer, stored->shard, v->data, v->data_size);
	v->crc = 0;
	return CKPTFMT_OK;
}

static ckptfmt_status decode_strings(ckptfmt_verifier *v, const cf_compressed *value, uint64_t end, ckptfmt_error *err)
{
	uint8_t *raw;
	cf_buffer_clear(&v->raw);
	raw = cf_buffer_extend(&v->raw, end - v->decoded);
	CF_TRY(cf_buffer_status(&v->raw, err));
	CF_TRY(cf_transfer_decode(&v->transfer, value, v->decoded, end, NULL, true, raw, NULL, err));
	return cf_string_scan_take(&v->scan, raw, end - v->decoded, err);
}

/* Goes on with decoding the value, the last of which compares its checksum. */
static ckptfmt_status decode_piece(ckptfmt_verifier *v, const cf_verify_value *value, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = &value->stored;
	const cf_compressed compressed = {stored, unit_of(v, value)};
	uint64_t size = cf_max_u64(DECODED_SIZE / stored->chunk_size, 1) * stored->chunk_size;
	uint64_t end = v->decoded + cf_min_u64(size, stored->raw_size - v->decoded);
	if (v->decoded == 0)
		CF_TRY(begin_decoding(v, value, err));
	if (value->decoded_storage == CKPTFMT_STORAGE_FIXED)
		CF_TRY(cf_transfer_decode(&v->transfer, &compressed, v->decoded, end, NULL, true, NULL, &v->crc, err));
	else
		CF_TRY(decode_strings(v, &compressed, end, err));
	v->decoded = end;
	if (end == stored->raw_size && value->decoded_storage == CKPTFMT_STORAGE_FIXED)
		return cf_transfer_check(stored, v->crc, err);
	return CKPTFMT_OK;
}

static void report_codec(ckptfmt_verifier *v, const cf_verify_place *place)
{
	if (!v->codec_missed)
		cf_verify_problem(v, CKPTFMT_FAIL_UNSUPPORTED, place,
			"compressed values were not decoded, only their stored bytes were checked: that needs a codec");
	v->codec_missed = true;
}

/* Whether the value, whose stored bytes were checked, is to be decoded. */
static bool decodes(ckptfmt_verifier *v, const cf_verify_value *value)
{
	cf_verify_place place = cf_verify_value_place(v, value);
	if (value->decoded_storage == 0 || v->bad_chunks != 0)
		return false;
	if (v->reader->codec == NULL)
		report_codec(v, &place);
	return v->reader->codec != NULL;
}

/* The next piece of the value; true: there is more. */
static bool go_on_decoding(ckptfmt_verifier *v, const cf_verify_value *value)
{
	cf_verify_place place = cf_verify_value_place(v, value);
	ckptfmt_error error;
	ckptfmt_status status = decode_piece(v, value, &error);
	/* A few bytes may claim more than there is memory for: that is about the value, not about the verification. */
	if (status == CKPTFMT_NO_MEMORY)
		status = cf_fail(&error, CKPTFMT_FAIL_LIMIT, value->stored.offset,
			"there is no memory to check a compressed value");
	return cf_verify_ok(v, status, &error, &place) && v->decoded != value->stored.raw_size;
}

/* ---- spans ----------------------------------------------------------------------------------------------- */

static void end_span(ckptfmt_verifier *v)
{
	const cf_verify_span *span = cf_verify_span_at(v, v->next);
	if (span->value != CF_VERIFY_NOBODY)
		cf_verify_value_done(v, cf_verify_value_at(v, span->value)->row);
	v->bytes_done += span->size - v->span_done;
	v->next++;
	v->span_done = v->decoded = 0;
	v->crc = v->chunk_crc = 0;
	v->chunk_row = 0;
	v->bad_chunks = 0;
}

static ckptfmt_status begin_value(ckptfmt_verifier *v, const cf_verify_value *value, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = &value->stored;
	cf_stored_value raw = {NULL, stored->size, stored->offset, value->element_count, stored->crc32c,
		v->reader->header.endianness == 1, true, false};
	if (value->storage == CKPTFMT_STORAGE_FIXED)
		return CKPTFMT_OK;
	/* As for a read. */
	if (stored->size > v->reader->limits.tensor_bytes_max)
		return cf_fail(err, CKPTFMT_FAIL_LIMIT, stored->offset, "TAB-13: a value of %llu bytes",
			(unsigned long long)stored->size);
	v->scan = cf_string_scan_begin(value->storage, &raw);
	return CKPTFMT_OK;
}

static bool is_zero(const uint8_t *bytes, uint64_t size, uint64_t *first)
{
	for (*first = 0; *first < size; ++*first)
		if (bytes[*first] != 0)
			return false;
	return true;
}

/* The next bytes of the span; false: skip the rest of it. */
static bool take_piece(ckptfmt_verifier *v, const cf_verify_span *span, const uint8_t *bytes, uint64_t size)
{
	cf_verify_place place = {v->data_path, {NULL, 0}, 0};
	uint64_t first;
	if (span->value != CF_VERIFY_NOBODY)
		return take_value(v, cf_verify_value_at(v, span->value), bytes, size);
	if (is_zero(bytes, size, &first))
		return true;
	/* DAT-5 */
	place.offset = span->offset + v->span_done + first;
	cf_verify_note(v, CF_VERIFY_PADDING, &place,
		"DAT-5: padding that is not zero, or values that no entry names any more: %llu bytes from %llu on",
		(unsigned long long)span->size, (unsigned long long)span->offset);
	return false;
}

/* Goes on with the span at hand; returns the bytes it worked through. */
static uint64_t work_on_span(ckptfmt_verifier *v)
{
	const cf_verify_span *span = cf_verify_span_at(v, v->next);
	const cf_verify_value *value = span->value == CF_VERIFY_NOBODY ? NULL : cf_verify_value_at(v, span->value);
	cf_verify_place place = {v->data_path, {NULL, 0}, span->offset};
	const uint8_t *bytes = NULL;
	uint64_t size = 0;
	ckptfmt_error error;
	if (value != NULL)
		place = cf_verify_value_place(v, value);
	if (v->span_done == span->size) {
		if (!go_on_decoding(v, value))
			end_span(v);
		return DECODED_SIZE;
	}
	if (value != NULL && v->span_done == 0 && !cf_verify_ok(v, begin_value(v, value, &error), &error, &place)) {
		end_span(v);
		return CF_VERIFY_ROW_COST;
	}
	if (!cf_verify_ok(v, fetch(v, span->offset + v->span_done, &bytes, &size, &error), &error, &place)) {
		end_span(v);
		return CF_VERIFY_ROW_COST;
	}
	size = cf_min_u64(size, span->size - v->span_done);
	if (!take_piece(v, span, bytes, size)) {
		end_span(v);
		return size;
	}
	v->span_done += size;
	v->bytes_done += size;
	if (v->span_done == span->size) {
		if (value != NULL)
			end_value(v, value);
		if (value == NULL || !decodes(v, value))
			end_span(v);
	}
	return size;
}

/* The file was there when it was planned; now it is not. */
static void report_gone(ckptfmt_verifier *v)
{
	cf_verify_place place = {v->data_path, {NULL, 0}, CF_NO_OFFSET};
	cf_verify_problem(v, CKPTFMT_FAIL_SHARD_MISSING, &place, "NAM-5: the data file was removed meanwhile");
}

uint64_t cf_verify_data_step(ckptfmt_verifier *v)
{
	bool missing;
	if (v->next == span_count(v)) {
		cf_verify_close_data(v);
		cf_verify_enter(v, CF_VERIFY_FILES);
		return 0;
	}
	cf_verify_open_data(v, cf_verify_span_at(v, v->next)->shard, &missing);
	if (missing) {
		v->suspect = true;
		report_gone(v);
	}
	if (v->data_usable)
		return work_on_span(v);
	end_span(v);
	return CF_VERIFY_ROW_COST;
}
