/* SPDX-License-Identifier: Apache-2.0 */
#include "compress/encode.h"

#include "compress/noise.h"

enum {
	/* Samples of a value: a few pieces, spread evenly. */
	PIECES = 4,
	PIECE_SIZE = 16 << 10,
	SAMPLE_MAX = PIECES * PIECE_SIZE,
	SAMPLE_MIN = 4 << 10,
	SAMPLED_PART = 16,
	ALIGNMENT = 16              /* pieces consist of whole units of any size */
};

/* The largest frame of `size` raw bytes that is worth decoding: it saves 5 %. */
static uint64_t worth(uint64_t size)
{
	return size - size / 20;
}

static bool is_whole(int32_t method)
{
	return method == CF_CHUNK_RAW || method == CF_CHUNK_ZSTD;
}

/* Writes the planes of some units consecutively. */
static void split(const uint8_t *from, uint64_t size, uint32_t unit, bool rotate, uint8_t *to)
{
	uint8_t *planes[CF_PLANES_MAX];
	for (uint32_t p = 0; p < unit; p++)
		planes[p] = to + p * (size / unit);
	cf_planes_split(from, size / unit, unit, rotate, planes);
}

static uint8_t *scratch(cf_buffer *buffer, uint64_t size)
{
	cf_buffer_clear(buffer);
	return cf_buffer_extend(buffer, size);
}

static ckptfmt_codec_item *items_of(const cf_encoder *encoder)
{
	return (ckptfmt_codec_item *)cf_buffer_items(&encoder->items);
}

static ckptfmt_status encode_items(cf_encoder *encoder, ckptfmt_error *err)
{
	CF_TRY(cf_buffer_status(&encoder->items, err));
	return cf_codec_encode(encoder->codec, items_of(encoder), encoder->items.size / sizeof(ckptfmt_codec_item), err);
}

/* ---- choosing -------------------------------------------------------------------------------------------- */

void cf_find_noise(const cf_raw *raw, uint8_t *noise)
{
	for (uint64_t done = 0; done < raw->size; done += raw->chunk_size)
		*noise++ = cf_is_noise(raw->bytes + done, cf_min_u64(raw->chunk_size, raw->size - done), raw->unit,
			raw->rotate);
}

/* Copies `count` pieces of at most `piece` bytes, spread over the `left` chunks that are no noise; returns how many
 * bytes that is. */
static uint64_t sample(const cf_raw *raw, const uint8_t *noise, uint64_t left, uint64_t count, uint64_t piece,
	uint8_t *to)
{
	uint64_t done = 0, next = 0, seen = 0;
	for (uint64_t chunk = 0; next < count; chunk++) {
		uint64_t begin = chunk * raw->chunk_size, size = cf_min_u64(raw->chunk_size, raw->size - begin);
		if (noise[chunk])
			continue;
		for (; next < count && next * left / count == seen; next++) {
			uint64_t part = cf_min_u64(piece, size);
			uint64_t at = (size - part) * (next + 1) / (count + 1) / ALIGNMENT * ALIGNMENT;
			memcpy(to + done, raw->bytes + begin + at, (size_t)part);
			done += part;
		}
		seen++;
	}
	return done;
}

/* Adds items for both efforts of each of `count` pieces of `size` bytes. */
static void add_trials(cf_encoder *encoder, const uint8_t *from, uint64_t size, uint32_t count, uint8_t *to)
{
	for (uint32_t i = 0; i < count; i++)
		for (int32_t effort = CKPTFMT_EFFORT_FAST; effort <= CKPTFMT_EFFORT_FULL; effort++) {
			ckptfmt_codec_item item = {.source = from + i * size, .source_size = size,
				.destination = to + i * size, .capacity = worth(size), .effort = effort};
			cf_put_bytes(&encoder->items, &item, sizeof item);
		}
}

/* Chooses the better of two trials; *size is its result. FULL takes more time, so it must save 1 %. */
static int8_t better(const ckptfmt_codec_item *trials, uint64_t *size)
{
	uint64_t fast = trials[0].size, full = trials[1].size;
	if (fast == 0 && full == 0) {
		*size = trials[0].source_size;
		return CF_EFFORT_NONE;
	}
	if (full == 0 || (fast != 0 && fast * 100 <= full * 101)) {
		*size = fast;
		return CKPTFMT_EFFORT_FAST;
	}
	*size = full;
	return CKPTFMT_EFFORT_FULL;
}

static void choose_best(const cf_encoder *encoder, const cf_raw *raw, uint64_t sample_size, cf_choice *out, bool *gains)
{
	const ckptfmt_codec_item *trials = items_of(encoder);
	uint64_t whole, planes = 0;
	cf_choice split_up = {raw->rotate ? CF_CHUNK_ROTATED_PLANES : CF_CHUNK_PLANES, {0}};
	*out = (cf_choice){CF_CHUNK_ZSTD, {CF_EFFORT_NONE}};
	out->efforts[0] = better(trials, &whole);
	*gains = out->efforts[0] != CF_EFFORT_NONE;
	if (raw->unit == 1)
		return;
	for (uint32_t p = 0; p < raw->unit; p++) {
		uint64_t size;
		split_up.efforts[p] = better(trials + 2 + 2 * (size_t)p, &size);
		planes += size;
	}
	/* Planes take longer to decode, so they must save 2 % compared with one frame. */
	if (planes < sample_size && (!*gains || planes * 100 < whole * 98)) {
		*out = split_up;
		*gains = true;
	}
}

ckptfmt_status cf_choose(cf_encoder *encoder, const cf_raw *raw, const uint8_t *noise, cf_choice *out,
	bool *gains, ckptfmt_error *err)
{
	uint64_t chunks = cf_chunk_count(raw->size, raw->chunk_size), left = 0, count, size;
	uint8_t *bytes = scratch(&encoder->planes, 2 * (uint64_t)SAMPLE_MAX);
	uint8_t *frames = scratch(&encoder->frames, SAMPLE_MAX);
	*out = (cf_choice){CF_CHUNK_ZSTD, {CF_EFFORT_NONE}};
	*gains = false;
	CF_TRY(cf_buffer_status(&encoder->planes, err));
	CF_TRY(cf_buffer_status(&encoder->frames, err));
	for (uint64_t i = 0; i < chunks; i++)
		left += !noise[i];
	if (left == 0)
		return CKPTFMT_OK;
	size = cf_min_u64(cf_max_u64(raw->size / SAMPLED_PART, SAMPLE_MIN), SAMPLE_MAX);
	count = (size + PIECE_SIZE - 1) / PIECE_SIZE;
	size = sample(raw, noise, left, count, size / count / ALIGNMENT * ALIGNMENT, bytes);
	cf_buffer_clear(&encoder->items);
	add_trials(encoder, bytes, size, 1, frames);
	if (raw->unit > 1) {
		split(bytes, size, raw->unit, raw->rotate, bytes + SAMPLE_MAX);
		add_trials(encoder, bytes + SAMPLE_MAX, size / raw->unit, raw->unit, frames);
	}
	CF_TRY(encode_items(encoder, err));
	choose_best(encoder, raw, size, out, gains);
	return CKPTFMT_OK;
}

/* ---- encoding -------------------------------------------------------------------------------------------- */

/* Splits the chunk at `begin` into planes, at the same position of the scratch memory, and adds an item for each plane
 * that is worth trying. */
static void prepare_chunk(cf_encoder *encoder, const cf_raw *raw, const cf_choice *choice, uint64_t begin,
	uint64_t size)
{
	bool whole = is_whole(choice->method);
	uint32_t count = whole ? 1 : raw->unit;
	uint64_t plane_size = size / count;
	const uint8_t *planes = raw->bytes + begin;
	if (!whole) {
		split(raw->bytes + begin, size, raw->unit, choice->method == CF_CHUNK_ROTATED_PLANES,
			encoder->planes.data + begin);
		planes = encoder->planes.data + begin;
	}
	for (uint32_t p = 0; p < count; p++) {
		const uint8_t *plane = planes + p * plane_size;
		ckptfmt_codec_item item = {.source = plane, .source_size = plane_size,
			.destination = encoder->frames.data + begin + p * plane_size, .capacity = worth(plane_size),
			.effort = choice->efforts[p]};
		if (item.effort != CF_EFFORT_NONE && item.capacity != 0)
			cf_put_bytes(&encoder->items, &item, sizeof item);
	}
}

static ckptfmt_status prepare(cf_encoder *encoder, const cf_raw *raw, const cf_choice *choice,
	const uint8_t *noise, ckptfmt_error *err)
{
	cf_buffer_clear(&encoder->items);
	(void)scratch(&encoder->frames, raw->size);
	(void)scratch(&encoder->planes, is_whole(choice->method) ? 0 : raw->size);
	CF_TRY(cf_buffer_status(&encoder->frames, err));
	CF_TRY(cf_buffer_status(&encoder->planes, err));
	for (uint64_t begin = 0, chunk = 0; begin < raw->size; begin += raw->chunk_size, chunk++)
		if (!noise[chunk])
			prepare_chunk(encoder, raw, choice, begin, cf_min_u64(raw->chunk_size, raw->size - begin));
	return CKPTFMT_OK;
}

/* Collects the frames of the chunk at `begin` from the items from index *next on. */
static void take_frames(const cf_encoder *encoder, uint64_t begin, uint64_t plane_size, uint32_t count, uint64_t *next,
	ckptfmt_bytes *frames)
{
	const ckptfmt_codec_item *items = items_of(encoder);
	uint64_t item_count = encoder->items.size / sizeof *items;
	for (uint32_t p = 0; p < count; p++) {
		const uint8_t *place = encoder->frames.data + begin + p * plane_size;
		frames[p] = (ckptfmt_bytes){NULL, 0};
		if (*next == item_count || items[*next].destination != place)
			continue;
		if (items[*next].size != 0)
			frames[p] = (ckptfmt_bytes){place, items[*next].size};
		++*next;
	}
}

/* The caller's memory may change: encoding and checksums use a copy. */
static ckptfmt_status copy_raw(cf_encoder *encoder, const cf_raw *from, cf_raw *to, ckptfmt_error *err)
{
	uint8_t *copy = scratch(&encoder->raw, from->size);
	CF_TRY(cf_buffer_status(&encoder->raw, err));
	memcpy(copy, from->bytes, (size_t)from->size);
	*to = *from;
	to->bytes = copy;
	return CKPTFMT_OK;
}

ckptfmt_status cf_encode(cf_encoder *encoder, const cf_raw *source, const cf_choice *choice,
	const uint8_t *noise, uint8_t *to, uint64_t *sizes, uint32_t *crcs, uint32_t *raw_crcs,
	ckptfmt_error *err)
{
	bool whole = is_whole(choice->method);
	uint64_t next = 0;
	cf_raw own;
	const cf_raw *raw = &own;
	CF_TRY(copy_raw(encoder, source, &own, err));
	CF_TRY(prepare(encoder, raw, choice, noise, err));
	CF_TRY(encode_items(encoder, err));
	for (uint64_t begin = 0, chunk = 0; begin < raw->size; begin += raw->chunk_size, chunk++) {
		const uint8_t *bytes = raw->bytes + begin;
		uint64_t size = cf_min_u64(raw->chunk_size, raw->size - begin);
		ckptfmt_bytes frames[CF_PLANES_MAX];
		take_frames(encoder, begin, whole ? size : size / raw->unit, whole ? 1 : raw->unit, &next, frames);
		raw_crcs[chunk] = ckptfmt_crc32c(0, bytes, size);
		sizes[chunk] = cf_chunk_build(noise[chunk] ? CF_CHUNK_RAW : choice->method, bytes,
			whole ? bytes : encoder->planes.data + begin, size, raw->unit, frames, to);
		crcs[chunk] = ckptfmt_crc32c(0, to, sizes[chunk]);
		to += sizes[chunk];
	}
	return CKPTFMT_OK;
}

void cf_encoder_free(cf_encoder *encoder)
{
	cf_buffer_free(&encoder->items);
	cf_buffer_free(&encoder->raw);
	cf_buffer_free(&encoder->planes);
	cf_buffer_free(&encoder->frames);
}
