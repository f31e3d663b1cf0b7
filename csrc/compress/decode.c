/* SPDX-License-Identifier: Apache-2.0 */
#include "compress/decode.h"

#include "compress/chunk.h"

static uint64_t stored_begin(const cf_coded *coded, uint64_t i)
{
	return (i == 0 ? coded->begin : coded->ends[i - 1]) - coded->begin;
}

static uint64_t raw_size_of(const cf_coded *coded, uint64_t i)
{
	return cf_min_u64(coded->chunk_size, coded->raw_size - i * coded->chunk_size);
}

static bool has_planes(const cf_chunk *chunk)
{
	return chunk->method == CF_CHUNK_PLANES || chunk->method == CF_CHUNK_ROTATED_PLANES;
}

/* CMP-11, then CMP-12 to CMP-18 as far as possible without decoding. */
static ckptfmt_status check_chunk(const cf_coded *coded, uint64_t i, cf_chunk *out, ckptfmt_error *err)
{
	uint64_t begin = stored_begin(coded, i), size = coded->ends[i] - coded->begin - begin;
	if (coded->crcs != NULL) {
		uint32_t computed = ckptfmt_crc32c(0, coded->bytes + begin, size);
		if (computed != coded->crcs[i])
			return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, coded->origin + begin,
				"CMP-11: Checksum does not match for chunk %llu: stored 0x%08x, computed 0x%08x",
				(unsigned long long)(coded->first + i), coded->crcs[i], computed);
	}
	return cf_chunk_parse(coded->bytes + begin, size, raw_size_of(coded, i), coded->unit, coded->origin + begin, out,
		err);
}

/* Adds an item for each frame of the chunk. A frame of the whole chunk is decoded to its destination; planes are
 * decoded to `planes`, in the layout of a split chunk. */
static void add_items(cf_decoder *decoder, const cf_coded *coded, uint64_t i, const cf_chunk *chunk, uint8_t *to)
{
	const uint8_t *bytes = coded->bytes + stored_begin(coded, i);
	uint8_t *base = (has_planes(chunk) ? decoder->planes.data : to) + i * coded->chunk_size;
	for (uint32_t p = 0; p < chunk->part_count; p++) {
		const cf_chunk_part *part = &chunk->parts[p];
		ckptfmt_codec_item item = {.source = bytes + part->offset, .source_size = part->size,
			.destination = base + p * part->raw_size, .capacity = part->raw_size};
		if (part->zstd)
			cf_put_bytes(&decoder->items, &item, sizeof item);
	}
}

static ckptfmt_status parse(cf_decoder *decoder, const cf_coded *coded, uint8_t *to, ckptfmt_error *err)
{
	cf_chunk *chunks;
	cf_buffer_clear(&decoder->chunks);
	cf_buffer_clear(&decoder->items);
	cf_buffer_clear(&decoder->planes);
	chunks = cf_buffer_extend(&decoder->chunks, coded->count * sizeof *chunks);
	CF_TRY(cf_buffer_status(&decoder->chunks, err));
	for (uint64_t i = 0; i < coded->count; i++) {
		CF_TRY(check_chunk(coded, i, &chunks[i], err));
		if (has_planes(&chunks[i]) && decoder->planes.size == 0)
			(void)cf_buffer_extend(&decoder->planes, coded->raw_size);
	}
	CF_TRY(cf_buffer_status(&decoder->planes, err));
	for (uint64_t i = 0; i < coded->count; i++)
		add_items(decoder, coded, i, &chunks[i], to);
	return cf_buffer_status(&decoder->items, err);
}

/* CMP-18: every frame must decode to the size that it declares. */
static ckptfmt_status check_frames(const cf_decoder *decoder, const cf_coded *coded, ckptfmt_error *err)
{
	const ckptfmt_codec_item *items = (const ckptfmt_codec_item *)cf_buffer_items(&decoder->items);
	for (uint64_t k = 0; k < decoder->items.size / sizeof *items; k++) {
		uint64_t i = 0, at = (uint64_t)(items[k].source - coded->bytes);
		if (items[k].size == items[k].capacity)
			continue;
		while (coded->ends[i] - coded->begin <= at)
			i++;
		return cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, coded->origin + stored_begin(coded, i),
			"CMP-18: a zstd frame of chunk %llu does not decode to its declared size",
			(unsigned long long)(coded->first + i));
	}
	return CKPTFMT_OK;
}

static void join(const cf_decoder *decoder, const cf_coded *coded, uint64_t i, uint8_t *to)
{
	const cf_chunk *chunk = (const cf_chunk *)cf_buffer_items(&decoder->chunks) + i;
	const uint8_t *bytes = coded->bytes + stored_begin(coded, i), *decoded[CF_PLANES_MAX];
	uint64_t begin = i * coded->chunk_size, size = raw_size_of(coded, i);
	uint32_t count = 0;
	if (chunk->method == CF_CHUNK_ZSTD)
		return;
	for (uint32_t p = 0; p < chunk->part_count; p++)
		if (chunk->parts[p].zstd)
			decoded[count++] = decoder->planes.data + begin + p * chunk->parts[p].raw_size;
	cf_chunk_join(chunk, bytes, decoded, coded->unit, to + begin, size);
}

ckptfmt_status cf_decode(cf_decoder *decoder, const cf_coded *coded, uint8_t *to, ckptfmt_error *err)
{
	CF_TRY(parse(decoder, coded, to, err));
	CF_TRY(cf_codec_decode(decoder->codec, (ckptfmt_codec_item *)cf_buffer_items(&decoder->items),
		decoder->items.size / sizeof(ckptfmt_codec_item), err));
	CF_TRY(check_frames(decoder, coded, err));
	for (uint64_t i = 0; i < coded->count; i++)
		join(decoder, coded, i, to);
	return CKPTFMT_OK;
}

void cf_decoder_free(cf_decoder *decoder)
{
	cf_buffer_free(&decoder->chunks);
	cf_buffer_free(&decoder->items);
	cf_buffer_free(&decoder->planes);
}
