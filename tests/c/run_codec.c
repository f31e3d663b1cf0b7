/* SPDX-License-Identifier: Apache-2.0 */
#include "run_codec.h"

#include "base/bytes.h"

/* Magic number; a single segment with a content size of four bytes; the content size; the block's head; the byte. */
enum { FRAME_SIZE = 4 + 1 + 4 + 3 + 1, BLOCK_MAX = 128 << 10 };
static const uint8_t magic[5] = {0x28, 0xb5, 0x2f, 0xfd, 0xa0};

static bool is_run(const uint8_t *bytes, uint64_t size)
{
	for (uint64_t i = 1; i < size; i++)
		if (bytes[i] != bytes[0])
			return false;
	return size != 0 && size <= BLOCK_MAX;
}

static ckptfmt_status encode(void *context, ckptfmt_codec_item *items, uint64_t count)
{
	run_codec *codec = context;
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_codec_item *item = &items[i];
		uint32_t size = (uint32_t)item->source_size;
		codec->encoded++;
		if (!is_run(item->source, item->source_size) || item->capacity < FRAME_SIZE)
			continue;
		memcpy(item->destination, magic, sizeof magic);
		cf_store_u32(item->destination + 5, size);
		/* The last block, of type 1. */
		cf_store_u32(item->destination + 9, (uint32_t)item->source[0] << 24 | size << 3 | 3);
		item->size = FRAME_SIZE + codec->too_much;
	}
	for (uint64_t i = 0; i < codec->changes_size; i++)
		codec->changes[i]++;
	return codec->fails;
}

static ckptfmt_status decode(void *context, ckptfmt_codec_item *items, uint64_t count)
{
	run_codec *codec = context;
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_codec_item *item = &items[i];
		codec->decoded++;
		if (item->source_size != FRAME_SIZE || cf_load_u32(item->source + 5) != item->capacity)
			continue;
		memset(item->destination, item->source[12], (size_t)item->capacity);
		item->size = item->capacity + codec->too_much;
	}
	return codec->fails;
}

void run_codec_init(run_codec *codec)
{
	memset(codec, 0, sizeof *codec);
	codec->codec.struct_size = sizeof codec->codec;
	codec->codec.context = codec;
	codec->codec.encode = encode;
	codec->codec.decode = decode;
}
