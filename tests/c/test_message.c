/* SPDX-License-Identifier: Apache-2.0 */
/* Header, entry and slice messages: TensorFlow's bytes both ways, unusual spellings, and random bytes. Malformed
 * headers: the vectors hdr-*. */
#include "proto/message.h"
#include "proto/wire.h"

#include "hex.h"

static ckptfmt_status decode(const char *text, cf_entry *entry, int64_t *dims, ckptfmt_error *err)
{
	return cf_entry_decode(hex(text), 1000, 4, dims, entry, err);
}

static void test_headers(void)
{
	ckptfmt_error err;
	cf_header header;
	cf_buffer out = CF_BUFFER_EMPTY;
	cf_bytes_view single = hex("08 01 1a 02 08 01"), big = hex("08 01 10 01 1a 02 08 01");
	CHECK_OK(cf_header_decode(single, 0, &header, &err), err);
	CHECK(header.num_shards == 1 && header.endianness == 0 && header.producer == 1 && header.min_consumer == 0);
	cf_header_encode(&out, 1, 0, 0);
	CHECK(out.size == single.size && memcmp(out.data, single.data, out.size) == 0);
	cf_buffer_clear(&out);
	CHECK_OK(cf_header_decode(big, 0, &header, &err), err);
	CHECK_EQ(header.endianness, 1);
	cf_header_encode(&out, 1, 1, 0);
	CHECK(out.size == big.size && memcmp(out.data, big.data, out.size) == 0);
	cf_buffer_free(&out);
	/* A missing version, a larger producer, unpacked bad consumers of other versions. */
	CHECK_OK(cf_header_decode(hex("08 01"), 0, &header, &err), err);
	CHECK_OK(cf_header_decode(hex("08 01 1a 02 08 05"), 0, &header, &err), err);
	CHECK_OK(cf_header_decode(hex("08 01 1a 04 18 01 18 03"), 0, &header, &err), err);
}

static void test_entries(void)
{
	static const char *const written[] = {
		"08 01 12 04 12 02 08 02 28 08 35 59 3c e5 35",
		"08 09 12 04 12 02 08 03 20 14 28 18 35 e1 f2 8a 2a",
		"08 01 12 06 12 00 12 02 08 03 20 3e 35 d8 ea 82 a2",
		"08 01 12 00 20 3e 28 04 35 5f cf 8b b5",
		"08 01 12 08 12 02 08 04 12 02 08 06 18 01 20 04 28 30 35 8e 40 36 2e",
	};
	ckptfmt_error err;
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	for (size_t i = 0; i < CF_ARRAY_COUNT(written); i++) {
		cf_bytes_view bytes = hex(written[i]);
		cf_buffer out = CF_BUFFER_EMPTY;
		cf_entry_fields fields;
		CHECK_OK(cf_entry_decode(bytes, 0, 4, dims, &entry, &err), err);
		memset(&fields, 0, sizeof fields);
		fields.dtype = entry.dtype;
		fields.shard = entry.shard;
		fields.offset = (uint64_t)entry.offset;
		fields.size = (uint64_t)entry.size;
		fields.masked_crc = entry.masked_crc;
		fields.rank = entry.rank;
		fields.dims = dims;
		cf_entry_encode(&out, &fields);
		CHECK(out.size == bytes.size && memcmp(out.data, bytes.data, out.size) == 0);
		cf_buffer_clear(&out);
		CHECK_OK(cf_entry_reencode(&out, &entry, dims, entry.shard, (cf_bytes_view){NULL, 0}, NULL, &err), err);
		CHECK(out.size == bytes.size && memcmp(out.data, bytes.data, out.size) == 0);
		cf_buffer_free(&out);
	}
	CHECK_OK(decode("", &entry, dims, &err), err);
	CHECK(entry.dtype == 0 && entry.rank == 0 && !entry.has_shape);
	/* Dimensions of one byte: a tag of no field, and a size that is cut off. */
	CHECK_FAILS(decode("08 01 12 03 12 01 06", &entry, dims, &err), err, CKPTFMT_FAIL_BAD_PROTO, "");
	CHECK_FAILS(decode("08 01 12 03 12 01 08", &entry, dims, &err), err, CKPTFMT_FAIL_BAD_PROTO, "");
}

/* The names of dimensions must be UTF-8, as protobuf's parsers want it: no overlong forms, no surrogates, nothing above
 * U+10FFFF, no sequence cut off. */
static void test_dimension_names(void)
{
	static const char *const good[] = {"7f", "c2 80", "df bf", "e0 a0 80", "ed 9f bf", "ee 80 80", "f0 90 80 80",
		"f4 8f bf bf", "61 c2 80 62"};
	static const char *const bad[] = {"80", "c1 bf", "c2", "c2 c0", "e0 9f bf", "ed a0 80", "e1 80", "e1 80 41",
		"f0 8f bf bf", "f4 90 80 80", "f5 80 80 80", "f1 80 80", "61 80"};
	ckptfmt_error err;
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	for (size_t i = 0; i < CF_ARRAY_COUNT(good) + CF_ARRAY_COUNT(bad); i++) {
		bool sound = i < CF_ARRAY_COUNT(good);
		const char *name = sound ? good[i] : bad[i - CF_ARRAY_COUNT(good)];
		unsigned size = (unsigned)(strlen(name) + 1) / 3;
		char text[100];
		snprintf(text, sizeof text, "08 01 12 %02x 12 %02x 08 02 12 %02x %s", size + 6, size + 4, size, name);
		if (sound)
			CHECK_OK(decode(text, &entry, dims, &err), err);
		else
			CHECK_FAILS(decode(text, &entry, dims, &err), err, CKPTFMT_FAIL_BAD_PROTO, "");
	}
}

static void test_slices(void)
{
	/* Extents 0,4:0,3 and -:3,3 of [4,6]. */
	const char *text = "08 01 12 08 12 02 08 04 12 02 08 06 "
		"3a 08 0a 02 10 04 0a 02 10 03 3a 08 0a 00 0a 04 08 03 10 03";
	static const int64_t expected[2][4] = {{0, 0, 4, 3}, {0, 3, -1, 3}};
	ckptfmt_error err;
	int64_t dims[CKPTFMT_RANK_MAX], extents[4];
	cf_entry entry;
	uint64_t position = 0;
	cf_buffer slices = CF_BUFFER_EMPTY, out = CF_BUFFER_EMPTY;
	cf_bytes_view bytes = hex(text);
	bool found;
	CHECK_OK(cf_entry_decode(bytes, 0, 4, dims, &entry, &err), err);
	CHECK_EQ(entry.slice_count, 2);
	for (int i = 0; i < 2; i++) {
		CHECK_OK(cf_entry_next_slice(&entry, &position, extents, extents + 2, &found, &err), err);
		CHECK(found && memcmp(extents, expected[i], sizeof extents) == 0);
		cf_put_slice(&slices, 2, extents, extents + 2);
	}
	CHECK_OK(cf_entry_next_slice(&entry, &position, extents, extents + 2, &found, &err), err);
	CHECK(!found);
	CHECK(memcmp(slices.data, bytes.data + bytes.size - slices.size, slices.size) == 0);
	/* Joining appends, and the shard moves in before the slices. */
	CHECK_OK(cf_entry_reencode(&out, &entry, dims, 7, (cf_bytes_view){slices.data, 10}, NULL, &err), err);
	CHECK_EQ(out.size, bytes.size + 2 + 10);
	CHECK(memcmp(out.data + 12, "\x18\x07", 2) == 0 && memcmp(out.data + out.size - 10, slices.data, 10) == 0);
	cf_buffer_free(&slices);
	cf_buffer_free(&out);
	/* Five slices where four are allowed; one extent where two are due, and three. */
	CHECK_FAILS(decode("3a 00 3a 00 3a 00 3a 00 3a 00", &entry, dims, &err), err, CKPTFMT_FAIL_LIMIT, "");
	CHECK_OK(decode("12 08 12 02 08 04 12 02 08 06 3a 02 0a 00", &entry, dims, &err), err);
	position = 0;
	CHECK_FAILS(cf_entry_next_slice(&entry, &position, extents, extents + 2, &found, &err), err, CKPTFMT_FAIL_BAD_SLICE,
		"SLC-2");
	CHECK_OK(decode("12 08 12 02 08 04 12 02 08 06 3a 06 0a 00 0a 00 0a 00", &entry, dims, &err), err);
	position = 0;
	CHECK_FAILS(cf_entry_next_slice(&entry, &position, extents, extents + 2, &found, &err), err, CKPTFMT_FAIL_BAD_SLICE,
		"SLC-2");
}

/* Unknown fields survive a merge, behind the known ones; the extension is one of them. */
static void test_extension(void)
{
	static const int64_t dims_written[1] = {3};
	static const uint32_t crcs[2] = {0x01020304, 0xa0b0c0d0};
	ckptfmt_error err;
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	cf_entry_fields fields;
	cf_buffer out = CF_BUFFER_EMPTY, again = CF_BUFFER_EMPTY;
	memset(&fields, 0, sizeof fields);
	fields.dtype = 1;
	fields.rank = 1;
	fields.dims = dims_written;
	fields.size = 12;
	fields.chunk_size = 8;
	fields.chunk_crcs = crcs;
	fields.chunk_count = 2;
	cf_entry_encode(&out, &fields);
	CHECK_OK(cf_entry_decode((cf_bytes_view){out.data, out.size}, 0, 1, dims, &entry, &err), err);
	CHECK(entry.chunk_size == 8 && entry.chunk_crcs.size == 8 && entry.feature_flags == 0);
	CHECK_EQ(cf_load_u32(entry.chunk_crcs.data + 4), 0xa0b0c0d0);
	CHECK_OK(cf_entry_reencode(&again, &entry, dims, 3, (cf_bytes_view){NULL, 0}, NULL, &err), err);
	CHECK_EQ(again.size, out.size + 2);
	CHECK_OK(cf_entry_decode((cf_bytes_view){again.data, again.size}, 0, 1, dims, &entry, &err), err);
	CHECK(entry.shard == 3 && entry.chunk_crcs.size == 8);
	cf_buffer_free(&out);
	cf_buffer_free(&again);
}

/* EXT-2, EXT-4 and EXT-5 of a value that is not compressed. What is sound has a checksum for each chunk. */
static void test_form(void)
{
	static const struct {
		int64_t size;
		uint64_t chunk_size, crcs_size;
		cf_stored_form form;
	} rows[] = {
		{10, 0, 0, CF_STORED_SOUND}, {10, 4, 12, CF_STORED_SOUND}, {-1, 0, 0, CF_STORED_SOUND},
		{10, 4, 11, CF_STORED_EXT_2}, {-1, 16, 1, CF_STORED_EXT_2}, {-1, 0, 3, CF_STORED_EXT_2},
		{10, 10, 4, CF_STORED_EXT_5}, {0, 0, 4, CF_STORED_EXT_5}, {0, 1, 0, CF_STORED_EXT_5},
		{10, 4, 8, CF_STORED_EXT_4}, {10, 0, 12, CF_STORED_EXT_4}, {-1, 16, 4, CF_STORED_EXT_5},
		{-10, 4, 12, CF_STORED_EXT_5}, {INT64_MAX, (uint64_t)UINT32_MAX + 1, 4, CF_STORED_EXT_4},
	};
	static const uint8_t crcs[12];
	cf_buffer ends = CF_BUFFER_EMPTY;
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		const cf_entry entry = {.size = rows[i].size, .chunk_size = rows[i].chunk_size,
			.chunk_crcs = {crcs, rows[i].crcs_size}, .has_extension = true};
		CHECK_EQ(cf_entry_form(&entry, &ends), rows[i].form);
		CHECK_EQ(ends.size, 0);
	}
}

/* A checksum of 0 is not written. */
static void test_compressed(void)
{
	static const int64_t dims_written[1] = {5000};
	static const uint32_t crcs[2] = {1, 2};
	static const uint64_t sizes[2] = {300, 5};
	for (uint32_t crc = 0; crc < 2; crc++) {
		const cf_entry_fields fields = {.dtype = 4, .rank = 1, .dims = dims_written, .size = 305, .chunk_size = 4096,
			.chunk_crcs = crcs, .chunk_count = 2, .compressed = true, .raw_size = 5000, .raw_crc32c = crc,
			.chunk_sizes = sizes};
		ckptfmt_error err;
		int64_t dims[CKPTFMT_RANK_MAX];
		cf_entry entry;
		cf_buffer out = CF_BUFFER_EMPTY, ends = CF_BUFFER_EMPTY;
		cf_entry_encode(&out, &fields);
		CHECK_OK(cf_entry_decode((cf_bytes_view){out.data, out.size}, 0, 1, dims, &entry, &err), err);
		CHECK(entry.raw_crc32c == crc && entry.raw_size == 5000);
		CHECK_EQ(cf_entry_form(&entry, &ends), CF_STORED_SOUND);
		CHECK(ends.size == 16 && memcmp(ends.data, (const uint64_t[]){300, 305}, 16) == 0);
		entry.size++;
		CHECK_EQ(cf_entry_form(&entry, &ends), CF_STORED_CMP_1);
		CHECK_EQ(ends.size, 16);
		cf_buffer_free(&out);
		cf_buffer_free(&ends);
	}
}

/* Random bytes: a result or a failure, and never a byte too far (the bytes end at a guard page). */
static void test_random_bytes(void)
{
	uint8_t *bytes = test_guarded(64);
	for (int i = 0; i < 200000; i++) {
		size_t size = test_random_below(64) + 1;
		uint8_t *start = bytes + 64 - size;
		int64_t dims[CKPTFMT_RANK_MAX], extents[2 * CKPTFMT_RANK_MAX];
		cf_entry entry;
		cf_header header;
		ckptfmt_error err;
		static const uint8_t likely[] = {
			0x08, 0x12, 0x18, 0x20, 0x28, 0x35, 0x3a, 0x0a, 0x10, 0x1a, 0x02, 0x04, 0xa2, 0x06,
		};
		for (size_t k = 0; k < size; k++)
			start[k] = test_random_below(4) == 0 ? (uint8_t)test_random()
				: likely[test_random_below(sizeof likely)];
		(void)!cf_header_decode((cf_bytes_view){start, size}, 0, &header, &err);
		if (cf_entry_decode((cf_bytes_view){start, size}, 0, 8, dims, &entry, &err) == CKPTFMT_OK) {
			uint64_t position = 0;
			cf_buffer out = CF_BUFFER_EMPTY, twice = CF_BUFFER_EMPTY;
			cf_entry again;
			bool found = true;
			while (found && cf_entry_next_slice(&entry, &position, extents, extents + entry.rank, &found, &err) ==
				CKPTFMT_OK)
				;
			/* What a merge writes says the same, and is what it would write of it. Only slices may be malformed. */
			if (cf_entry_reencode(&out, &entry, dims, entry.shard, (cf_bytes_view){NULL, 0}, NULL, &err) !=
				CKPTFMT_OK) {
				CHECK(err.failure == CKPTFMT_FAIL_BAD_PROTO && entry.slice_count != 0);
				cf_buffer_free(&out);
				continue;
			}
			CHECK_OK(cf_entry_decode((cf_bytes_view){out.data, out.size}, 0, 8, dims, &again, &err), err);
			CHECK(again.dtype == entry.dtype && again.rank == entry.rank && again.size == entry.size &&
				again.masked_crc == entry.masked_crc && again.slice_count == entry.slice_count);
			CHECK_OK(cf_entry_reencode(&twice, &again, dims, again.shard, (cf_bytes_view){NULL, 0}, NULL, &err), err);
			CHECK(out.size == twice.size && (out.size == 0 || memcmp(out.data, twice.data, (size_t)out.size) == 0));
			cf_buffer_free(&twice);
			cf_buffer_free(&out);
		}
	}
}

int main(void)
{
	test_seed();
	test_headers();
	test_entries();
	test_dimension_names();
	test_slices();
	test_extension();
	test_form();
	test_compressed();
	test_random_bytes();
	return test_finish("message");
}
