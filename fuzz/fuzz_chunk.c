/* SPDX-License-Identifier: Apache-2.0 */
/* Property: any bytes as a stored chunk, of a raw size and a unit that the last three bytes give, either are parsed or
 * fail as BAD_CHUNK within them. What is parsed fills the chunk, in order; its parts are of the size that the raw bytes
 * make them, and frames pass for frames by themselves and not when they are cut. Joined with whatever the frames might
 * decode to, the raw bytes split to these planes again. */
#include "repair.h"

#include "compress/planes.h"
#include "compress/chunk.h"

#include <stdlib.h>
#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	(void)seed;
	return LLVMFuzzerMutate(data, size, capacity);
}

static void check_joined(const cf_chunk *chunk, const uint8_t *bytes, uint64_t raw_size, uint32_t unit)
{
	uint64_t part = raw_size / chunk->part_count;
	uint8_t *raw = malloc((size_t)raw_size + 1), *again = malloc((size_t)raw_size + 1);
	uint8_t *content = calloc(1, (size_t)part + 1), *planes[CF_PLANES_MAX];
	const uint8_t *decoded[CF_PLANES_MAX];
	FUZZ_CHECK(raw != NULL && again != NULL && content != NULL);
	for (uint32_t p = 0; p < CF_PLANES_MAX; p++)
		decoded[p] = content;
	cf_chunk_join(chunk, bytes, decoded, unit, raw, raw_size);
	if (chunk->method < CF_CHUNK_PLANES) {
		FUZZ_CHECK(raw_size == 0 || memcmp(raw, chunk->parts[0].zstd ? content : bytes + 1, (size_t)raw_size) == 0);
	} else {
		for (uint32_t p = 0; p < unit; p++)
			planes[p] = again + p * part;
		cf_planes_split(raw, part, unit, chunk->method == CF_CHUNK_ROTATED_PLANES, planes);
		for (uint32_t p = 0; p < unit && part != 0; p++)
			FUZZ_CHECK(memcmp(planes[p], chunk->parts[p].zstd ? content : bytes + chunk->parts[p].offset,
					   (size_t)part) == 0);
	}
	free(raw);
	free(again);
	free(content);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const uint32_t units[] = {1, 2, 4, 8};
	uint64_t raw_size, end;
	uint32_t unit, count;
	ckptfmt_error err;
	cf_chunk chunk;
	if (size < 3)
		return 0;
	size -= 3;
	raw_size = (uint64_t)data[size] | (uint64_t)data[size + 1] << 8;
	unit = units[data[size + 2] % 4];
	if (cf_chunk_parse(data, size, raw_size, unit, 0, &chunk, &err) != CKPTFMT_OK) {
		FUZZ_CHECK(err.failure == CKPTFMT_FAIL_BAD_CHUNK && err.offset <= size);
		return 0;
	}
	count = chunk.method < CF_CHUNK_PLANES ? 1 : unit;
	FUZZ_CHECK(chunk.method == data[0] && chunk.part_count == count && raw_size % count == 0);
	end = chunk.parts[0].offset;
	for (uint32_t p = 0; p < count; p++) {
		const cf_chunk_part *part = &chunk.parts[p];
		FUZZ_CHECK(part->offset == end && part->size <= size - end && part->raw_size == raw_size / count);
		FUZZ_CHECK(part->zstd || part->size == part->raw_size);
		if (part->zstd)
			FUZZ_CHECK(cf_zstd_frame_check(data + end, part->size, part->raw_size, 0, &err) == CKPTFMT_OK);
		if (part->zstd && part->size != 0)
			FUZZ_CHECK(cf_zstd_frame_check(data + end, part->size - 1, part->raw_size, 0, &err) != CKPTFMT_OK);
		end += part->size;
	}
	FUZZ_CHECK(end == size);
	check_joined(&chunk, data, raw_size, unit);
	return 0;
}
