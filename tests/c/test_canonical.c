/* SPDX-License-Identifier: Apache-2.0 */
/* The canonical form of entries and headers: each rule of MRG-7 by its bytes, which are those that TensorFlow's merge
 * writes (tests/interop/test_merge_canonical.py asks it), and what is malformed. */
#include "proto/canonical.h"
#include "proto/wire.h"

#include "hex.h"
#include "memory_fault.h"

enum { ORIGIN = 1000 };

static void check_bytes(const cf_buffer *out, const char *expected, const char *input)
{
	cf_bytes_view wanted = hex(expected);
	bool same = !out->failed && out->size == wanted.size &&
		(out->size == 0 || memcmp(out->data, wanted.data, (size_t)out->size) == 0);
	CHECK(same);
	if (same)
		return;
	fprintf(stderr, "  of %s\n  not %s\n  but", input, expected);
	for (uint64_t i = 0; i < out->size; i++)
		fprintf(stderr, " %02x", out->data[i]);
	fprintf(stderr, "\n");
}

static ckptfmt_status reencode(cf_buffer *out, cf_bytes_view bytes, ckptfmt_error *err)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	CF_TRY(cf_entry_decode(bytes, ORIGIN, 100, dims, &entry, err));
	return cf_entry_reencode(out, &entry, dims, entry.shard, (cf_bytes_view){NULL, 0}, NULL, err);
}

/* ---- entries ------------------------------------------------------------------------------------------------ */

static const struct {
	const char *input, *expected;
} entries[] = {
	/* Nothing, and no shape: none comes into being. An empty one stays. */
	{"", ""},
	{"28 08", "28 08"},
	{"12 00", "12 00"},
	/* As a writer writes it: the short way. */
	{"08 01 12 04 12 02 08 02 18 01 20 04 28 08 35 59 3c e5 35",
		"08 01 12 04 12 02 08 02 18 01 20 04 28 08 35 59 3c e5 35"},
	{"08 01 12 06 12 00 12 02 08 03 35 d8 ea 82 a2", "08 01 12 06 12 00 12 02 08 03 35 d8 ea 82 a2"},
	/* Order, the last of repeated scalars, scalars at their default, a default that comes last. */
	{"35 01 00 00 00 28 08 20 07 18 03 12 00 08 04", "08 04 12 00 18 03 20 07 28 08 35 01 00 00 00"},
	{"08 01 12 00 08 04 35 02 00 00 00 35 01 00 00 00", "08 04 12 00 35 01 00 00 00"},
	{"08 01 12 00 18 00 20 00 28 00 35 00 00 00 00", "08 01 12 00"},
	{"08 01 12 00 28 05 28 00 78 01", "08 01 12 00 78 01"},
	/* Tags, sizes and numbers in too many bytes. */
	{"88 00 84 00 92 80 00 84 80 00 12 02 08 02", "08 04 12 04 12 02 08 02"},
	{"08 84 80 80 80 80 80 80 80 80 00 12 00", "08 04 12 00"},
	{"08 04 12 00 f8 80 00 85 00", "08 04 12 00 78 05"},
	/* Negative numbers: ten bytes, of int32 too. */
	{"08 ff ff ff ff ff ff ff ff ff 01 12 00 18 fe ff ff ff ff ff ff ff ff 01",
		"08 ff ff ff ff ff ff ff ff ff 01 12 00 18 fe ff ff ff ff ff ff ff ff 01"},
	{"12 00 08 ff ff ff ff ff ff ff ff ff 01 20 ff ff ff ff ff ff ff ff ff 01 78 01",
		"08 ff ff ff ff ff ff ff ff ff 01 12 00 20 ff ff ff ff ff ff ff ff ff 01 78 01"},
	/* A shape twice is the two joined: dimensions, the last unknown_rank, unknown fields. */
	{"12 04 12 02 08 02 12 04 12 02 08 03", "12 08 12 02 08 02 12 02 08 03"},
	{"12 08 18 01 78 01 12 02 08 02 08 01 12 08 18 00 12 02 08 03 78 02 12 02 18 07",
		"08 01 12 0e 12 02 08 02 12 02 08 03 18 01 78 01 78 02"},
	{"12 02 18 01 12 00 12 02 18 00", "12 00"},
	/* Inside the shape: unknown_rank as 1, dimension names, what is empty or 0 goes, the order. */
	{"08 01 12 02 18 01", "08 01 12 02 18 01"},
	{"08 01 12 0b 18 ff ff ff ff ff ff ff ff ff 01", "08 01 12 02 18 01"},
	{"08 01 12 07 12 05 12 01 61 08 02", "08 01 12 07 12 05 08 02 12 01 61"},
	{"08 01 12 0a 12 08 12 01 61 08 02 12 01 62", "08 01 12 07 12 05 08 02 12 01 62"},
	{"08 01 12 08 12 06 08 02 12 81 00 61", "08 01 12 07 12 05 08 02 12 01 61"},
	{"08 01 12 09 12 07 12 01 61 08 02 12 00", "08 01 12 04 12 02 08 02"},
	{"08 01 12 06 12 04 08 00 12 00", "08 01 12 02 12 00"},
	{"08 01 12 08 12 06 18 05 08 02 78 00", "08 01 12 08 12 06 08 02 18 05 78 00"},
	{"08 01 12 07 08 05 12 02 08 02 18 01 12 01 05", NULL},
	/* Unknown fields of every wire type, in their order, behind the known ones; the bytes of wire type 2 stay. */
	{"f8 01 85 00 e5 06 01 02 03 04 08 01 d9 06 01 02 03 04 05 06 07 08 12 00 aa 06 82 00 88 00 78 00",
		"08 01 12 00 f8 01 05 e5 06 01 02 03 04 d9 06 01 02 03 04 05 06 07 08 aa 06 02 88 00 78 00"},
	{"a2 06 00 78 81 80 00 08 01 12 00 78 02", "08 01 12 00 a2 06 00 78 01 78 02"},
	/* The largest number, and one in five bytes that needs four. */
	{"12 00 f8 ff ff ff 0f 05 80 80 80 80 00 05", NULL},
	{"12 00 f8 ff ff ff 0f 05 f8 80 80 80 00 05", "12 00 f8 ff ff ff 0f 05 78 05"},
	/* Known numbers with other wire types. */
	{"0d 01 00 00 00 10 85 00 30 07 38 09 1a 01 aa 08 01 12 00",
		"08 01 12 00 0d 01 00 00 00 10 05 30 07 38 09 1a 01 aa"},
	{"12 00 31 01 02 03 04 05 06 07 08 13 08 81 00 14 78 00", "12 00 31 01 02 03 04 05 06 07 08 13 08 01 14 78 00"},
	{"12 0d 10 05 12 07 0a 01 61 10 02 08 02 1a 00", "12 0d 12 07 08 02 0a 01 61 10 02 10 05 1a 00"},
	/* Groups, nested and in shapes. */
	{"7b 08 81 00 8b 00 0d 01 02 03 04 8c 00 12 82 00 81 00 09 01 02 03 04 05 06 07 08 fc 00 08 01 12 00",
		"08 01 12 00 7b 08 01 0b 0d 01 02 03 04 0c 12 02 81 00 09 01 02 03 04 05 06 07 08 7c"},
	{"12 07 7b 08 81 00 7c 18 01", "12 06 18 01 7b 08 01 7c"},
	{"12 0c 12 0a fb 00 0b 08 81 00 0c 7c 08 02", "12 0a 12 08 08 02 7b 0b 08 01 0c 7c"},
	/* The extension is an unknown field: it may stand anywhere, is kept as it is and goes behind. */
	{"a2 06 02 10 05 08 01 12 00", "08 01 12 00 a2 06 02 10 05"},
	{"08 01 12 00 a2 06 00", "08 01 12 00 a2 06 00"},
	{"08 01 a2 06 03 10 88 00 12 00 a2 06 03 10 89 00", "08 01 12 00 a2 06 03 10 88 00 a2 06 03 10 89 00"},
	/* Slices: in their order, full extents empty, a length of 0 is written, a start is not. */
	{"3a 02 0a 00 08 01 12 04 12 02 08 04 3a 06 0a 04 10 02 08 00",
		"08 01 12 04 12 02 08 04 3a 02 0a 00 3a 04 0a 02 10 02"},
	{"12 04 12 02 08 04 3a 06 0a 04 08 00 10 00", "12 04 12 02 08 04 3a 04 0a 02 10 00"},
	{"12 04 12 02 08 04 3a 08 0a 06 10 07 10 02 08 01", "12 04 12 02 08 04 3a 06 0a 04 08 01 10 02"},
	{"12 04 12 02 08 04 3a 09 8a 00 85 00 88 00 01 10 03", "12 04 12 02 08 04 3a 06 0a 04 08 01 10 03"},
	{"12 04 12 02 08 04 3a 0d 0a 0b 10 ff ff ff ff ff ff ff ff ff 01",
		"12 04 12 02 08 04 3a 0d 0a 0b 10 ff ff ff ff ff ff ff ff ff 01"},
	{"12 04 12 02 08 04 3a 0e 78 81 00 0a 09 7b 7c 10 02 1d 01 02 03 04",
		"12 04 12 02 08 04 3a 0d 0a 09 10 02 7b 7c 1d 01 02 03 04 78 01"},
	{"12 04 12 02 08 04 3a 10 78 81 00 0a 0b 7b 0b 0c 7c 10 82 00 12 01 aa 08", NULL},
	{"12 04 12 02 08 04 3a 0f 78 81 00 0a 0a 7b 0b 0c 7c 10 82 00 12 01 aa",
		"12 04 12 02 08 04 3a 0d 0a 09 10 02 7b 0b 0c 7c 12 01 aa 78 01"},
	{"12 04 12 02 08 04 3a 00 38 05 3a 00", "12 04 12 02 08 04 3a 00 3a 00 38 05"},
};

static void test_entries(void)
{
	for (size_t i = 0; i < CF_ARRAY_COUNT(entries); i++) {
		ckptfmt_error err;
		cf_buffer out = CF_BUFFER_EMPTY, again = CF_BUFFER_EMPTY;
		if (entries[i].expected == NULL) {
			CHECK(reencode(&out, hex(entries[i].input), &err) == CKPTFMT_CORRUPT);
			CHECK_EQ(err.failure, CKPTFMT_FAIL_BAD_PROTO);
		} else {
			CHECK_OK(reencode(&out, hex(entries[i].input), &err), err);
			check_bytes(&out, entries[i].expected, entries[i].input);
			/* What is canonical stays as it is. */
			CHECK_OK(reencode(&again, (cf_bytes_view){out.data, out.size}, &err), err);
			check_bytes(&again, entries[i].expected, entries[i].expected);
		}
		cf_buffer_free(&out);
		cf_buffer_free(&again);
	}
}

/* Another shard, and the slices of other inputs between the entry's own and the unknown fields. */
static void test_joining(void)
{
	static const struct {
		const char *input, *expected;
	} cases[] = {
		{"08 01 12 04 12 02 08 04", "08 01 12 04 12 02 08 04 18 07 3a 02 0a 00"},
		{"78 01 3a 86 00 0a 04 10 02 08 01 18 01 12 04 12 02 08 04 08 01",
			"08 01 12 04 12 02 08 04 18 07 3a 06 0a 04 08 01 10 02 3a 02 0a 00 78 01"},
	};
	int64_t dims[CKPTFMT_RANK_MAX];
	ckptfmt_error err;
	cf_entry entry;
	for (size_t i = 0; i < CF_ARRAY_COUNT(cases); i++) {
		cf_buffer out = CF_BUFFER_EMPTY;
		CHECK_OK(cf_entry_decode(hex(cases[i].input), 0, 4, dims, &entry, &err), err);
		CHECK_OK(cf_entry_reencode(&out, &entry, dims, 7, hex("3a 02 0a 00"), NULL, &err), err);
		check_bytes(&out, cases[i].expected, cases[i].input);
		cf_buffer_clear(&out);
		CHECK_OK(cf_entry_reencode(&out, &entry, dims, 0, (cf_bytes_view){NULL, 0}, NULL, &err), err);
		CHECK(memchr(out.data, 0x18, (size_t)out.size) == NULL);
		cf_buffer_clear(&out);
		CHECK_OK(cf_entry_copy_slices(&out, &entry, &err), err);
		check_bytes(&out, i == 0 ? "" : "3a 06 0a 04 08 01 10 02", cases[i].input);
		cf_buffer_free(&out);
	}
}

/* Slices are not looked into before they are written anew. */
static void test_malformed_slices(void)
{
	static const struct {
		const char *input, *rule;
		uint64_t offset;
	} cases[] = {
		{"12 04 12 02 08 04 3a 01 0a", "MSG-5", ORIGIN + 9},
		{"12 04 12 02 08 04 3a 03 0a 05 00", "MSG-5", ORIGIN + 10},
		{"12 04 12 02 08 04 3a 04 0a 02 08 80", "MSG-3", ORIGIN + 11},
		{"12 04 12 02 08 04 3a 03 0a 01 0c", "MSG-6", ORIGIN + 11},
		{"12 04 12 02 08 04 3a 02 7b 04", "MSG-7", ORIGIN + 10},
		{"12 04 12 02 08 04 3a 04 0a 02 00 01", "MSG-2", ORIGIN + 11},
		{"12 04 12 02 08 04 3a 05 0a 03 7d 01 02", "MSG-4", ORIGIN + 11},
	};
	for (size_t i = 0; i < CF_ARRAY_COUNT(cases); i++) {
		ckptfmt_error err;
		cf_buffer out = CF_BUFFER_EMPTY;
		CHECK_FAILS(reencode(&out, hex(cases[i].input), &err), err, CKPTFMT_FAIL_BAD_PROTO, cases[i].rule);
		CHECK_EQ(err.offset, cases[i].offset);
		cf_buffer_free(&out);
	}
}

/* Deep groups cost no stack and come out as they are; many extents do not cost the square of their number. */
static void test_bounds(void)
{
	enum { SLICES = 20000 };
	ckptfmt_error err;
	cf_buffer text = CF_BUFFER_EMPTY, out = CF_BUFFER_EMPTY;
	int64_t dims[CKPTFMT_RANK_MAX];
	cf_entry entry;
	cf_put_bytes(&text, "\x12\x00", 2);
	for (int i = 0; i < CF_NESTING_MAX; i++)
		cf_put_u8(&text, 0x7b);
	for (int i = 0; i < CF_NESTING_MAX; i++)
		cf_put_u8(&text, 0x7c);
	CHECK_OK(reencode(&out, (cf_bytes_view){text.data, text.size}, &err), err);
	CHECK(out.size == text.size && memcmp(out.data, text.data, (size_t)out.size) == 0);
	cf_buffer_clear(&text);
	cf_buffer_clear(&out);
	for (int i = 0; i < SLICES; i++)
		cf_put_bytes(&text, "\x3a\x06\x0a\x04\x10\x02\x08\x01", 8);
	cf_put_bytes(&text, "\x12\x04\x12\x02\x08\x04", 6);
	CHECK_OK(cf_entry_decode((cf_bytes_view){text.data, text.size}, 0, SLICES, dims, &entry, &err), err);
	CHECK_OK(cf_entry_reencode(&out, &entry, dims, 0, (cf_bytes_view){NULL, 0}, NULL, &err), err);
	CHECK_EQ(out.size, text.size);
	for (uint64_t i = 6; i < out.size && !test_failures; i += 8)
		CHECK(memcmp(out.data + i, "\x3a\x06\x0a\x04\x08\x01\x10\x02", 8) == 0);
	cf_buffer_free(&text);
	cf_buffer_free(&out);
}

/* ---- headers ------------------------------------------------------------------------------------------------ */

static void test_headers(void)
{
	static const struct {
		const char *input, *expected;
	} cases[] = {
		{"08 01 1a 02 08 01", "08 09 1a 02 08 01"},
		{"08 01 10 01 1a 02 08 01", "08 09 10 01 1a 02 08 01"},
		/* A version is written always; unknown fields of the header go, those of the version stay. */
		{"08 01", "08 09 1a 00"},
		{"08 01 1a 00", "08 09 1a 00"},
		{"78 05 08 01 1a 86 00 78 85 00 88 00 01 10 00 08 02", "08 09 1a 04 08 01 78 05"},
		/* The parts of one given twice, bad consumers packed, negative ones in ten bytes. */
		{"08 01 1a 02 08 05 1a 02 18 05", "08 09 1a 05 08 05 1a 01 05"},
		{"08 01 1a 06 08 05 10 01 78 01 1a 04 10 00 08 06", "08 09 1a 04 08 06 78 01"},
		{"08 01 1a 0b 18 01 1a 03 83 00 04 18 05 08 07", "08 09 1a 08 08 07 1a 04 01 03 04 05"},
		{"08 01 1a 02 1a 00", "08 09 1a 00"},
		{"08 01 1a 0b 18 fe ff ff ff ff ff ff ff ff 01", "08 09 1a 0c 1a 0a fe ff ff ff ff ff ff ff ff 01"},
		{"08 01 1a 05 1d 01 02 03 04", "08 09 1a 05 1d 01 02 03 04"},
	};
	for (size_t i = 0; i < CF_ARRAY_COUNT(cases); i++) {
		cf_buffer out = CF_BUFFER_EMPTY;
		ckptfmt_error err;
		cf_header header;
		CHECK_OK(cf_header_decode(hex(cases[i].input), 0, &header, &err), err);
		CHECK_OK(cf_header_reencode(&out, &header, 9, header.producer, header.min_consumer, &err), err);
		check_bytes(&out, cases[i].expected, cases[i].input);
		cf_buffer_free(&out);
	}
}

static void test_versions(void)
{
	static const struct {
		const char *a, *b;
		bool same;
		bool same_apart;        /* from producer and min_consumer */
	} cases[] = {
		{"08 01 1a 02 08 01", "08 02 1a 02 08 01", true, true},
		{"08 01 1a 02 08 01", "08 01 1a 03 88 00 01", true, true},
		{"08 01 1a 02 08 01", "08 01 1a 02 08 02", false, true},
		{"08 01 1a 02 08 01", "08 01 1a 04 08 01 78 01", false, false},
		{"08 01 1a 02 08 01", "08 01", false, true},
		{"08 01 1a 00", "08 01", true, true},
		{"08 01", "08 01", true, true},
		{"08 01 1a 04 10 00 08 00", "08 01", true, true},
		{"08 01 1a 06 18 05 18 06 08 01", "08 01 1a 06 08 01 1a 02 05 06", true, true},
		{"08 01 1a 02 08 01 1a 02 18 05", "08 01 1a 04 18 05 08 01", true, true},
		{"08 01 1a 06 08 01 1a 02 06 05", "08 01 1a 06 08 01 1a 02 05 06", false, false},
		/* Bundles with and without compressed values; the rest must agree all the same. */
		{"08 01 1a 04 08 02 10 02", "08 01 1a 02 08 01", false, true},
		{"08 01 1a 04 08 02 10 02", "08 01", false, true},
		{"08 01 1a 04 08 02 10 01", "08 01 1a 02 08 01", false, true},
		{"08 01 1a 06 08 02 10 02 18 05", "08 01 1a 02 08 01", false, false},
		{"08 01 1a 06 08 02 10 02 78 01", "08 01 1a 04 08 01 78 01", false, true},
	};
	for (size_t i = 0; i < CF_ARRAY_COUNT(cases); i++) {
		ckptfmt_error err;
		cf_header a, b;
		bool same;
		CHECK_OK(cf_header_decode(hex(cases[i].a), 0, &a, &err), err);
		CHECK_OK(cf_header_decode(hex(cases[i].b), 0, &b, &err), err);
		CHECK_OK(cf_header_same_version(&a, &b, false, &same, &err), err);
		CHECK_EQ(same, cases[i].same);
		CHECK_OK(cf_header_same_version(&b, &a, false, &same, &err), err);
		CHECK_EQ(same, cases[i].same);
		CHECK_OK(cf_header_same_version(&a, &b, true, &same, &err), err);
		CHECK_EQ(same, cases[i].same_apart);
		CHECK_OK(cf_header_same_version(&b, &a, true, &same, &err), err);
		CHECK_EQ(same, cases[i].same_apart);
	}
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* What a merge does a million times takes no memory; where some is needed and missing, it says so and leaks none. */
static void test_memory(void)
{
	cf_bytes_view plain = hex("08 01 12 04 12 02 08 02 28 08 35 59 3c e5 35");
	cf_bytes_view odd = hex("12 04 12 02 08 02 12 04 12 02 08 03 3a 08 0a 02 10 01 0a 02 10 01 78 01");
	cf_bytes_view header = hex("08 01 1a 02 08 01 1a 02 18 05");
	ckptfmt_error err;
	cf_buffer out = CF_BUFFER_EMPTY;
	bool failed = true;
	CHECK(cf_buffer_reserve(&out, 1000));
	memory_fault_set(0, false);
	CHECK_OK(reencode(&out, plain, &err), err);
	CHECK_EQ(memory_fault_calls(), 0);
	cf_buffer_free(&out);
	for (uint64_t n = 1; failed && n < 20; n++) {
		ckptfmt_status status;
		memory_fault_set(n, true);
		status = reencode(&out, odd, &err);
		if (status == CKPTFMT_OK)
			status = cf_buffer_status(&out, &err);
		failed = status != CKPTFMT_OK;
		CHECK_EQ(failed, memory_fault_hits() != 0);
		CHECK(!failed || status == CKPTFMT_NO_MEMORY);
		memory_fault_clear();
		cf_buffer_free(&out);
		CHECK_EQ(memory_fault_live(), 0);
	}
	CHECK(!failed);
	failed = true;
	for (uint64_t n = 1; failed && n < 20; n++) {
		cf_header decoded;
		bool same;
		ckptfmt_status status;
		CHECK_OK(cf_header_decode(header, 0, &decoded, &err), err);
		memory_fault_set(n, true);
		status = cf_header_same_version(&decoded, &decoded, false, &same, &err);
		failed = status != CKPTFMT_OK;
		CHECK_EQ(failed, memory_fault_hits() != 0);
		CHECK(failed ? status == CKPTFMT_NO_MEMORY && !same : same);
		memory_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
	}
	CHECK(!failed);
}

int main(void)
{
	test_entries();
	test_joining();
	test_malformed_slices();
	test_bounds();
	test_headers();
	test_versions();
	test_memory();
	return test_finish("test_canonical");
}
