/* SPDX-License-Identifier: Apache-2.0 */
#include "bundle.h"

#include "ckptfmt_unstable.h"

#include <string.h>

enum { LENGTH_SIZE = 2, PIECE_SIZE_MAX = 1 << 14, MESSAGE_DEPTH_MAX = 3, FIXED32 = 5, DELIMITED = 2, NUMBER = 0 };
enum { ENTRY_DTYPE = 1, ENTRY_SHARD = 3, ENTRY_OFFSET = 4, ENTRY_SIZE = 5, ENTRY_CRC = 6, ENTRY_EXTENSION = 100 };
enum { CHUNK_SIZE = 2, CHUNK_CRCS = 3, CHUNK_SIZES = 4 };

/* ---- the container ---- */

void fuzz_split_bundle(uint8_t *data, size_t size, fuzz_bundle *out)
{
	size_t at = 0, end = size > FUZZ_PARAMETERS_SIZE ? size - FUZZ_PARAMETERS_SIZE : 0;
	memset(out, 0, sizeof *out);
	if (size >= FUZZ_PARAMETERS_SIZE)
		memcpy(out->parameters, data + end, FUZZ_PARAMETERS_SIZE);
	while (out->count < FUZZ_PIECES_MAX && end - at >= LENGTH_SIZE) {
		size_t length = data[at] | (size_t)data[at + 1] << 8;
		at += LENGTH_SIZE;
		if (length > end - at)
			length = end - at;
		out->pieces[out->count++] = (fuzz_piece){data + at, length};
		at += length;
	}
}

/* The size of what was joined; 0 if it does not fit. */
static size_t join_bundle(const fuzz_bundle *bundle, uint8_t *data, size_t capacity)
{
	size_t at = 0;
	for (size_t i = 0; i < bundle->count; i++) {
		const fuzz_piece *piece = &bundle->pieces[i];
		if (capacity - at < LENGTH_SIZE + piece->size + FUZZ_PARAMETERS_SIZE)
			return 0;
		data[at] = (uint8_t)piece->size;
		data[at + 1] = (uint8_t)(piece->size >> 8);
		memcpy(data + at + LENGTH_SIZE, piece->bytes, piece->size);
		at += LENGTH_SIZE + piece->size;
	}
	memcpy(data + at, bundle->parameters, FUZZ_PARAMETERS_SIZE);
	return at + FUZZ_PARAMETERS_SIZE;
}

/* ---- messages ---- */

typedef struct message_field {
	uint32_t tag;
	uint32_t wire;
	uint64_t number;            /* of a varint */
	size_t begin, end;          /* of its contents */
} message_field;

/* The next field of the message in [*at, end), 0 if there is none that can be read. */
static int next_field(const uint8_t *bytes, size_t *at, size_t end, message_field *out)
{
	uint64_t tag, length;
	size_t size = fuzz_varint(bytes, *at, end, &tag);
	if (size == 0)
		return 0;
	out->tag = (uint32_t)(tag >> 3);
	out->wire = tag & 7;
	out->number = 0;
	out->begin = *at + size;
	switch (out->wire) {
	case NUMBER:
		size = fuzz_varint(bytes, out->begin, end, &out->number);
		out->end = out->begin + size;
		break;
	case FIXED32:
		size = 4;
		out->end = out->begin + size;
		break;
	case DELIMITED:
		size = fuzz_varint(bytes, out->begin, end, &length);
		if (length > end - out->begin - size)
			return 0;
		out->begin += size;
		out->end = out->begin + (size_t)length;
		break;
	default:
		return 0;
	}
	*at = out->end;
	return size != 0 && out->end <= end;
}

static void note_message(fuzz_fields *list, uint8_t *bytes, size_t at, size_t end, int depth)
{
	message_field field;
	size_t begin = at;
	while (next_field(bytes, &at, end, &field)) {
		uint64_t tag;
		size_t tag_size = fuzz_varint(bytes, begin, end, &tag);
		fuzz_note(list, begin, tag_size, 0);
		if (field.wire == NUMBER)
			fuzz_note(list, field.begin, field.end - field.begin, 0);
		else if (field.wire == FIXED32)
			fuzz_note(list, field.begin, 4, 1);
		else {
			fuzz_note(list, begin + tag_size, field.begin - begin - tag_size, 0);
			if (depth < MESSAGE_DEPTH_MAX)
				note_message(list, bytes, field.begin, field.end, depth + 1);
		}
		begin = at;
	}
}

static void note_value(uint8_t *table, size_t begin, size_t end, void *context)
{
	note_message(context, table, begin, end, 0);
}

/* ---- mending ---- */

/* The unmasked checksum of strings: of the lengths as numbers of 4 or 8 bytes, of the masked checksum of those, which
 * is mended, and of the strings themselves. */
static uint32_t mend_strings(uint8_t *bytes, size_t size, uint64_t count)
{
	size_t at = 0;
	uint32_t crc = 0;
	for (uint64_t i = 0; i < count; i++) {
		uint8_t number[8];
		uint64_t length;
		size_t used = fuzz_varint(bytes, at, size, &length);
		if (used == 0)
			return 0;
		at += used;
		fuzz_store_u32(number, (uint32_t)length);
		fuzz_store_u32(number + 4, (uint32_t)(length >> 32));
		crc = ckptfmt_crc32c(crc, number, length > UINT32_MAX ? 8 : 4);
	}
	if (size - at < 4)
		return 0;
	fuzz_store_u32(bytes + at, ckptfmt_crc32c_mask(crc));
	return ckptfmt_crc32c(crc, bytes + at, size - at);
}

/* Checksums of the chunks of a value, with the sizes that the extension gives. */
static void mend_chunks(uint8_t *table, message_field extension, const uint8_t *value, size_t value_size)
{
	message_field field, crcs = {0}, sizes = {0};
	size_t at = extension.begin, stored = 0;
	uint64_t chunk_size = 0;
	while (next_field(table, &at, extension.end, &field)) {
		if (field.tag == CHUNK_SIZE)
			chunk_size = field.number;
		else if (field.tag == CHUNK_CRCS && field.wire == DELIMITED)
			crcs = field;
		else if (field.tag == CHUNK_SIZES && field.wire == DELIMITED)
			sizes = field;
	}
	for (at = crcs.begin; crcs.end - at >= 4; at += 4) {
		uint64_t size = chunk_size;
		if (sizes.begin < sizes.end) {
			size_t used = fuzz_varint(table, sizes.begin, sizes.end, &size);
			if (used == 0)
				return;
			sizes.begin += used;
		}
		if (size > value_size - stored)
			size = value_size - stored;
		fuzz_store_u32(table + at, ckptfmt_crc32c(0, value + stored, size));
		stored += (size_t)size;
	}
}

static uint64_t element_count(const uint8_t *table, message_field shape)
{
	message_field dim, field;
	uint64_t count = 1;
	while (next_field(table, &shape.begin, shape.end, &dim)) {
		uint64_t size = 0;
		while (next_field(table, &dim.begin, dim.end, &field))
			size = field.number;
		count *= size;
	}
	return count;
}

static void mend_value(uint8_t *table, size_t begin, size_t end, void *context)
{
	const fuzz_bundle *bundle = context;
	message_field field, shape = {0}, crc = {0}, extension = {0};
	uint64_t numbers[ENTRY_CRC] = {0};
	const fuzz_piece *data;
	uint8_t *value;
	uint32_t sum;
	size_t at = begin;
	while (next_field(table, &at, end, &field)) {
		if (field.wire == NUMBER && field.tag < ENTRY_CRC)
			numbers[field.tag] = field.number;
		else if (field.tag == 2 && field.wire == DELIMITED)
			shape = field;
		else if (field.tag == ENTRY_CRC && field.wire == FIXED32)
			crc = field;
		else if (field.tag == ENTRY_EXTENSION && field.wire == DELIMITED)
			extension = field;
	}
	if (crc.begin == 0 || numbers[ENTRY_SHARD] + 1 >= bundle->count)
		return;
	data = &bundle->pieces[numbers[ENTRY_SHARD] + 1];
	if (numbers[ENTRY_OFFSET] > data->size || numbers[ENTRY_SIZE] > data->size - numbers[ENTRY_OFFSET])
		return;
	value = data->bytes + numbers[ENTRY_OFFSET];
	if (numbers[ENTRY_DTYPE] == CKPTFMT_STRING && extension.begin == 0)
		sum = mend_strings(value, (size_t)numbers[ENTRY_SIZE], element_count(table, shape));
	else
		sum = ckptfmt_crc32c(0, value, numbers[ENTRY_SIZE]);
	fuzz_store_u32(table + crc.begin, ckptfmt_crc32c_mask(sum));
	if (extension.begin != 0)
		mend_chunks(table, extension, value, (size_t)numbers[ENTRY_SIZE]);
}

/* ---- mutating ---- */

size_t fuzz_mutate_bundle(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	static uint8_t scratch[PIECE_SIZE_MAX];
	static uint8_t joined[FUZZ_PIECES_MAX * (PIECE_SIZE_MAX + LENGTH_SIZE) + FUZZ_PARAMETERS_SIZE];
	static fuzz_fields list;
	fuzz_bundle bundle;
	fuzz_piece *index = &bundle.pieces[0];
	size_t made;
	fuzz_seed(seed);
	fuzz_split_bundle(data, size, &bundle);
	if (bundle.count == 0)
		return LLVMFuzzerMutate(data, size, capacity);
	if (fuzz_below(4) != 0) {
		list.count = 0;
		fuzz_walk_table(index->bytes, index->size, &list, note_value, &list);
		for (uint64_t i = fuzz_below(3) + 1; i > 0; i--)
			fuzz_mutate_field(index->bytes, index->size, &list);
	} else {
		fuzz_piece *piece = &bundle.pieces[fuzz_below(bundle.count)];
		size_t room = piece->size < sizeof scratch ? piece->size : sizeof scratch;
		memcpy(scratch, piece->bytes, room);
		*piece = (fuzz_piece){scratch, LLVMFuzzerMutate(scratch, room, sizeof scratch)};
		if (fuzz_below(16) == 0)
			bundle.parameters[fuzz_below(FUZZ_PARAMETERS_SIZE)] = (uint8_t)fuzz_below(256);
	}
	if (fuzz_below(16) != 0) {
		fuzz_walk_table(index->bytes, index->size, NULL, mend_value, &bundle);
		fuzz_repair_table(index->bytes, index->size);
	}
	made = join_bundle(&bundle, joined, sizeof joined < capacity ? sizeof joined : capacity);
	memcpy(data, joined, made);
	return made == 0 ? size : made;
}
