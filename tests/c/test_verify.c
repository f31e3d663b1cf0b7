/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying bundles with one damage each in the index: blocks, header, entries, slices. */
#include "base/limits.h"
#include "bundle_maker.h"
#include "verify_cases.h"

#include "table/writer.h"

/* ---- sound bundles ---- */

static void test_sound(void)
{
	static const int64_t one[1] = {1}, five[1] = {5};
	static const uint8_t padding[16];
	static const char odd_name[] = "\0odd";
	maker_entry *entry;
	make();
	maker_build(&m);
	run("sound");
	begin();
	m.num_shards = 1;
	maker_build(&m);
	run("header only");
	begin();
	m.num_shards = 1;
	maker_tensor(&m, "a", CKPTFMT_UINT8, 1, five, 0, bytes_0_9, 5);
	cf_put_bytes(&m.data[0], padding, 11);
	maker_tensor(&m, "b", CKPTFMT_UINT8, 1, five, 0, bytes_0_9, 5);
	cf_put_bytes(&m.data[0], padding, 11);
	maker_build(&m);
	run("aligned");
	begin();
	m.num_shards = 1;
	entry = maker_tensor(&m, "", CKPTFMT_FLOAT, 1, one, 0, floats, 4);
	cf_put_bytes(&entry->key, odd_name, sizeof odd_name);
	maker_build(&m);
	run("a name that begins with a zero byte and is no slice key");
}

static void test_not_found(void)
{
	ckptfmt_verifier *v;
	ckptfmt_error err;
	char path[512];
	begin();
	prefix_path(path, sizeof path);
	CHECK_FAILS(ckptfmt_verifier_open(path, NULL, &v, &err), err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, "");
	CHECK(v == NULL);
	strcat(path, "/none");
	CHECK_FAILS(ckptfmt_verifier_open(path, NULL, &v, &err), err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, "");
	ckptfmt_verifier_close(NULL);
	maker_free(&m);
}

/* ---- the index file ---- */

static void test_footer(void)
{
	cf_footer footer;
	uint64_t index_at;
	make();
	maker_build(&m);
	m.index.data[m.index.size - 1] ^= 1;
	expect_problem(CKPTFMT_FAIL_BAD_MAGIC, "FTR-2", "", m.index.size - 8);
	run("magic");
	make();
	maker_build(&m);
	m.index.size = 47;
	expect_problem(CKPTFMT_FAIL_TRUNCATED, "FTR-1", "", 47);
	run("too short for a footer");
	make();
	maker_build(&m);
	m.index.data[m.index.size - 9] = 1;
	expect_note("FTR-4", "", m.index.size - 9);
	run("footer padding");
	make();
	maker_build(&m);
	index_at = maker_footer(&m).index.offset;
	m.index.data[index_at] ^= 1;
	expect_problem(CKPTFMT_FAIL_CHECKSUM, "BLK-2", "", index_at);
	run("index block");
	make();
	maker_build(&m);
	footer = maker_footer(&m);
	m.index.data[footer.metaindex.offset] ^= 1;
	expect_note("TAB-10", "", footer.metaindex.offset);
	run("metaindex block");
}

static void test_gap(void)
{
	cf_footer footer;
	cf_buffer joined = CF_BUFFER_EMPTY;
	make();
	maker_build(&m);
	footer = maker_footer(&m);
	cf_put_bytes(&joined, m.index.data, m.index.size - CF_FOOTER_SIZE);
	cf_put_bytes(&joined, "gap", 3);
	cf_put_bytes(&joined, m.index.data + m.index.size - CF_FOOTER_SIZE, CF_FOOTER_SIZE);
	cf_buffer_free(&m.index);
	m.index = joined;
	expect_note("TAB-11", "", footer.index.offset + footer.index.size + CF_TRAILER_SIZE);
	run("bytes before the footer");
}

/* Blocks of two entries: ["", v0] [v1, a] [b, s] [v, w] [x, z]. All but the last end early. */
static void make_blocks(void)
{
	make();
	m.block_entries = 2;
	maker_build(&m);
	CHECK_EQ(m.block_count, 5);
}

static void test_damaged_blocks(void)
{
	uint64_t origin;
	make_blocks();
	/* Where the restarts of the first one are, a canonical block has another entry. */
	expect_note("BLK-11", "", m.blocks[0].offset + m.blocks[0].size - 8);
	run("short blocks");

	make_blocks();
	origin = at("v");
	m.index.data[m.blocks[1].offset] ^= 1;
	expect_problem(CKPTFMT_FAIL_CHECKSUM, "BLK-2", "", m.blocks[1].offset);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-7", "v", origin);
	run("the block of a slice and a tensor");

	make_blocks();
	origin = maker_origin(&m, &slices[0]->key);
	m.index.data[m.blocks[3].offset] ^= 1;
	expect_problem(CKPTFMT_FAIL_CHECKSUM, "BLK-2", "", m.blocks[3].offset);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", origin);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_find(&m, "v") != NULL ?
		m.blocks[1].offset + 3 + slices[1]->key.size : 0);
	run("the block of a partitioned tensor");

	make_blocks();
	origin = at("v");
	m.index.data[m.blocks[0].offset] ^= 1;
	expect_problem(CKPTFMT_FAIL_CHECKSUM, "BLK-2", "", m.blocks[0].offset);
	expect_problem(CKPTFMT_FAIL_BAD_HEADER, "HDR-1", "", m.blocks[0].offset);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-7", "v", origin);
	run("the block of the header");
}

static void test_order(void)
{
	uint64_t origin;
	make();
	maker_build(&m);
	origin = at("b");
	m.index.data[origin - 1] = 'Z';
	m.blocks[0] = (cf_handle){0, maker_footer(&m).metaindex.offset - CF_TRAILER_SIZE};
	maker_reseal(&m, m.blocks[0]);
	expect_problem(CKPTFMT_FAIL_BAD_ORDER, "TAB-1", "a", origin - 4);
	expect_problem(CKPTFMT_FAIL_BAD_HEADER, "HDR-1", "", 0);
	run("keys out of order");

	make_blocks();
	origin = at("w");
	m.index.data[origin - 1] = 'y';
	maker_reseal(&m, m.blocks[3]);
	expect_problem(CKPTFMT_FAIL_BAD_ORDER, "TAB-5", "y", m.blocks[3].offset);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[0]->key));
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[1]->key));
	run("a key above its index key");
}

static void test_deviating_blocks(void)
{
	make();
	maker_build(&m);
	m.blocks[0] = (cf_handle){0, maker_footer(&m).metaindex.offset - CF_TRAILER_SIZE};
	memset(m.index.data + m.blocks[0].size - 4, 0, 4);
	maker_reseal(&m, m.blocks[0]);
	expect_problem(CKPTFMT_FAIL_BAD_HEADER, "HDR-1", "", 0);
	expect_note("BLK-11", "", 2);
	run("restart count of zero");
	/* An overlong varint in an entry's head: the value size 0f of "a" as 8f 00 has no room, but its shared 0 may be
	 * written so in a message. */
	make();
	put(more_of("a"), "\x98\x06\x80\x00", 4);
	maker_build(&m);
	expect_note("MSG-15", "a", at("a"));
	expect_note("MSG-8", "a", at("a"));
	run("overlong varint");
}

/* ---- the header ---- */

static void expect_no_data(const char *rule, ckptfmt_failure failure)
{
	maker_build(&m);
	expect_problem(failure, rule, "", 3);
	run(rule);
}

static void test_header(void)
{
	make();
	m.no_header = true;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_HEADER, "HDR-1", "", 0);
	run("no header");
	make();
	put(&m.header, "\x1a\x02\x08\x01", 4);
	expect_no_data("HDR-3", CKPTFMT_FAIL_BAD_HEADER);
	make();
	put(&m.header, "\x08\x02\x10\x02\x1a\x02\x08\x01", 8);
	expect_no_data("HDR-4", CKPTFMT_FAIL_BAD_HEADER);
	make();
	put(&m.header, "\x08\x02\x1a\x04\x08\x01\x10\x03", 8);
	expect_no_data("HDR-8", CKPTFMT_FAIL_UNSUPPORTED);
	make();
	put(&m.header, "\x08\x02\x1a\x05\x08\x01\x1a\x01\x02", 9);
	expect_no_data("HDR-9", CKPTFMT_FAIL_UNSUPPORTED);
	make();
	put(&m.header, "\x08", 1);
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_PROTO, "MSG-3", "", 4);
	run("header cut short");
}

static void test_big_endian(void)
{
	make();
	m.endianness = 1;
	fields_of("s")->dtype = CKPTFMT_UINT8;
	fields_of("s")->size = 3;
	fields_of("s")->masked_crc = ckptfmt_crc32c_mask(ckptfmt_crc32c(0, m.data[0].data + S, 3));
	maker_build(&m);
	expect_note("HDR-5", "", 3);
	expect_problem(CKPTFMT_FAIL_UNSUPPORTED, "VAR-6", "w", at("w"));
	run("big-endian");
}

/* ---- entries ---- */

static void entry_note(const char *name, const char *rule, const char *more, size_t size)
{
	make();
	put(more_of(name), more, size);
	maker_build(&m);
	expect_note(rule, name, at(name));
	run(rule);
}

static void entry_problem(const char *name, ckptfmt_failure failure, const char *rule)
{
	maker_build(&m);
	expect_problem(failure, rule, name, at(name));
	run(rule);
}

static void test_entry_deviations(void)
{
	entry_note("a", "MSG-8", "\x80\x01\x05", 3);
	entry_note("a", "MSG-15", "\x08\x01", 2);
	make();
	put(more_of("a"), "\x12\x02\x18\x01", 4);
	maker_build(&m);
	expect_note("MSG-15", "a", at("a"));
	expect_note("MSG-8", "a", at("a"));
	run("unknown rank");
	make();
	put(&maker_find(&m, "a")->raw, "\x08\x01\x12\x07\x12\x05\x08\x02\x12\x01n\x28\x08\x35\x59\x3c\xe5\x35", 18);
	maker_build(&m);
	expect_note("MSG-8", "a", at("a"));
	run("dimension name");
	make();
	put(&maker_find(&m, "z")->raw, "\x08\x07\x20\x2f\x28\x04\x35\xd8\xea\x82\xa2", 11);
	maker_build(&m);
	expect_note("ENT-2", "z", at("z"));
	/* A scalar string of 4 bytes has none for its size. */
	expect_problem(CKPTFMT_FAIL_BAD_ENTRY, "STR-2", "z", at("z"));
	run("no shape");
	make();
	fields_of("a")->dtype = 999;
	maker_build(&m);
	expect_note("DTY-6", "a", at("a"));
	run("unknown dtype");
	make();
	fields_of("v")->offset = 7;
	maker_build(&m);
	expect_note("ENT-7", "v", at("v"));
	run("location of a partitioned tensor");
}

static void test_broken_entries(void)
{
	uint64_t origin;
	static const int32_t impossible[] = {0, -1, 20, 101, 133};
	make();
	put(&maker_find(&m, "a")->raw, "\x08", 1);
	maker_build(&m);
	origin = at("a");
	expect_problem(CKPTFMT_FAIL_BAD_PROTO, "MSG-3", "a", origin + 1);
	run("a message cut short");
	for (size_t i = 0; i < CF_ARRAY_COUNT(impossible); i++) {
		make();
		fields_of("a")->dtype = impossible[i];
		entry_problem("a", CKPTFMT_FAIL_BAD_DTYPE, "DTY-5");
	}
	make();
	maker_find(&m, "a")->dims[0] = -2;
	entry_problem("a", CKPTFMT_FAIL_BAD_SHAPE, "SHP-2");
	make();
	maker_find(&m, "z")->dims[0] = INT64_MAX;
	entry_problem("z", CKPTFMT_FAIL_BAD_SHAPE, "SHP-4");
	make();
	fields_of("a")->shard = 2;
	entry_problem("a", CKPTFMT_FAIL_BAD_ENTRY, "ENT-3");
	make();
	fields_of("a")->shard = -1;
	entry_problem("a", CKPTFMT_FAIL_BAD_ENTRY, "ENT-3");
	make();
	fields_of("a")->offset = (uint64_t)-8;
	entry_problem("a", CKPTFMT_FAIL_BAD_ENTRY, "ENT-4");
	make();
	fields_of("a")->offset = INT64_MAX - 7;
	entry_problem("a", CKPTFMT_FAIL_BAD_ENTRY, "ENT-4");
	make();
	fields_of("a")->size = 9;
	entry_problem("a", CKPTFMT_FAIL_BAD_ENTRY, "ENT-5");
	make();
	fields_of("z")->masked_crc ^= 1;
	entry_problem("z", CKPTFMT_FAIL_CHECKSUM, "ENT-8");
	make();
	maker_find(&m, "s")->dims[0] = 1 << 20;
	entry_problem("s", CKPTFMT_FAIL_BAD_ENTRY, "STR-2");
	/* The problem of a slice's entry goes by the name of its tensor. */
	make();
	slices[1]->fields.shard = 9;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_ENTRY, "ENT-3", "v", maker_origin(&m, &slices[1]->key));
	run("the shard of a slice");
}

static void test_extensions(void)
{
	make();
	maker_find(&m, "x")->chunk_crcs[1] ^= 1;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_CHECKSUM, "EXT-6", "x", at("x"));
	expect_data(CKPTFMT_FAIL_CHECKSUM, "EXT-9", "x", data_1, X + 4);
	run("one chunk checksum");
	make();
	fields_of("x")->masked_crc ^= 1;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_CHECKSUM, "EXT-6", "x", at("x"));
	expect_data(CKPTFMT_FAIL_CHECKSUM, "DAT-6", "x", data_1, X);
	run("the checksum of a value in chunks");
	make();
	fields_of("x")->chunk_count = 2;
	entry_problem("x", CKPTFMT_FAIL_BAD_ENTRY, "EXT-4");
	make();
	put(more_of("a"), "\xa2\x06\x06\x1a\x04\x01\x02\x03\x04", 9);
	entry_problem("a", CKPTFMT_FAIL_BAD_ENTRY, "EXT-4");
	make();
	maker_chunks(maker_find(&m, "a"), 8, floats);
	entry_problem("a", CKPTFMT_FAIL_BAD_ENTRY, "EXT-5");
	/* What does not fit is done without: the value is checked all the same. */
	make();
	fields_of("x")->chunk_count = 2;
	maker_build(&m);
	m.data[1].data[X] ^= 1;
	expect_problem(CKPTFMT_FAIL_BAD_ENTRY, "EXT-4", "x", at("x"));
	expect_data(CKPTFMT_FAIL_CHECKSUM, "DAT-6", "x", data_1, X);
	run("chunk checksums that do not fit, and damage");
	make();
	put(more_of("a"), "\xa2\x06\x02\x08\x02", 5);
	entry_problem("a", CKPTFMT_FAIL_UNSUPPORTED, "EXT-3");
}

static void test_many_notes(void)
{
	static const int64_t one[1] = {1};
	static char names[30][16];
	begin();
	m.num_shards = 1;
	for (int i = 0; i < 30; i++) {
		snprintf(names[i], sizeof names[i], "n%02d", i);
		put(&maker_tensor(&m, names[i], CKPTFMT_UINT8, 1, one, 0, bytes_0_9, 1)->more, "\x80\x01\x05", 3);
	}
	maker_build(&m);
	for (int i = 0; i < 20; i++)
		expect_note("MSG-8", names[i], at(names[i]));
	expect_note("MSG-8", "", NOWHERE);
	run("thirty of one kind");
}

static ckptfmt_status put_index(void *state, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	cf_put_bytes(state, bytes, size);
	return cf_buffer_status(state, err);
}

/* 10,000 problems are told one by one, the rest are counted. */
static void test_many_problems(void)
{
	enum { COUNT = 10050 };
	cf_entry_fields fields = {.dtype = CKPTFMT_UINT8, .shard = 7, .size = 1};
	cf_table_writer writer;
	cf_buffer value = CF_BUFFER_EMPTY;
	ckptfmt_verifier *v;
	ckptfmt_progress progress;
	const ckptfmt_finding *last;
	uint64_t size;
	begin();
	cf_table_writer_open(&writer, (cf_sink){put_index, &m.index});
	cf_header_encode(&value, 1, 0, 0);
	CHECK_EQ(cf_table_writer_add(&writer, NULL, 0, value.data, value.size, NULL), CKPTFMT_OK);
	cf_buffer_clear(&value);
	cf_entry_encode(&value, &fields);
	for (int i = 0; i < COUNT; i++) {
		char name[16];
		snprintf(name, sizeof name, "n%06d", i);
		CHECK_EQ(cf_table_writer_add(&writer, (const uint8_t *)name, strlen(name), value.data, value.size, NULL),
			CKPTFMT_OK);
	}
	CHECK_EQ(cf_table_writer_finish(&writer, &size, NULL), CKPTFMT_OK);
	cf_table_writer_free(&writer);
	cf_buffer_free(&value);
	m.num_shards = 0;
	maker_save(&m);
	v = verify(1 << 16, NULL, &progress);
	/* And a note: the one data file is missing. */
	CHECK_EQ(progress.finding_count, 10002);
	CHECK_EQ(ckptfmt_verifier_finding(v, 9999)->error.failure, CKPTFMT_FAIL_BAD_ENTRY);
	CHECK_EQ(ckptfmt_verifier_finding(v, 10000)->severity, NOTE);
	last = ckptfmt_verifier_finding(v, 10001);
	CHECK_EQ(last->error.failure, CKPTFMT_FAIL_LIMIT);
	CHECK_EQ(last->severity, PROBLEM);
	CHECK(strncmp(last->error.message, "50 more ", 8) == 0);
	ckptfmt_verifier_close(v);
	remove_files();
	maker_free(&m);
}

static void test_limits(void)
{
	ckptfmt_limits limits;
	ckptfmt_open_options options = {.struct_size = sizeof options, .limits = &limits, .follow_symlinks = 1,
		.threads = 0};
	cf_limits_default(&limits);
	limits.entries_max = 4;
	make();
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_LIMIT, "TAB-13", "", at("b"));
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[0]->key));
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[1]->key));
	run_with("too many entries", &options);
	cf_limits_default(&limits);
	limits.tensor_bytes_max = 14;
	make();
	maker_build(&m);
	expect_data(CKPTFMT_FAIL_LIMIT, "", "s", data_0, S);
	run_with("a string too large to hold", &options);
}

/* ---- slices ---- */

static void test_slices(void)
{
	static const int64_t one[2] = {1, 0}, three[2] = {3, 0}, two_full[2] = {2, -1}, full[2] = {-1, -1}, zero[2];
	make();
	slices[0]->left_out = true;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-7", "v", at("v"));
	expect(NOTE, CKPTFMT_FAIL_NONE, "DAT-5", "", data_1, V0 + 2);
	run("a slice without entry");

	make();
	slices[1]->fields.dtype = CKPTFMT_INT32;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-8", "v", maker_origin(&m, &slices[1]->key));
	run("the dtype of a slice");

	make();
	slices[1]->dims[0] = 1;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-9", "v", maker_origin(&m, &slices[1]->key));
	run("the shape of a slice");

	make();
	slices[1]->fields.size = 44;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_ENTRY, "ENT-5", "v", maker_origin(&m, &slices[1]->key));
	run("the size of a slice");

	make();
	maker_slice(&m, maker_find(&m, "v"), "v", one, two_full, 1, floats, 48);
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-6", "v", at("v"));
	run("slices that overlap");

	make();
	cf_put_slice(&maker_find(&m, "v")->slices, 2, starts_v[0], lengths_v[0]);
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-6", "v", at("v"));
	run("a slice listed twice");

	make();
	maker_find(&m, "v")->slices.size /= 2;
	maker_find(&m, "v")->slices.size -= 1;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[1]->key));
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-11", "v", at("v"));
	run("a hole, and the orphan that would fill it");

	make();
	maker_slice(&m, maker_find(&m, "v"), "v", three, two_full, 1, floats, 48);
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-4", "v", at("v"));
	run("a slice outside its tensor");

	make();
	maker_find(&m, "v")->slices.size = 0;
	maker_slice(&m, maker_find(&m, "v"), "v", zero, full, 1, floats, 96);
	slices[0]->left_out = slices[1]->left_out = true;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-5", "v", at("v"));
	expect(NOTE, CKPTFMT_FAIL_NONE, "DAT-5", "", data_1, V0 + 2);
	run("a slice that is the whole tensor");

	make();
	cf_put_slice(&slices[1]->slices, 2, starts_v[0], lengths_v[0]);
	maker_build(&m);
	expect_note("SLC-10", "v", maker_origin(&m, &slices[1]->key));
	run("slices of a slice");

	make();
	maker_find(&m, "v")->slices.size = 0;
	put(&maker_find(&m, "v")->slices, "\x3a\x02\x0a\x00", 4);
	maker_build(&m);
	/* The slice ends behind dtype and shape (12 bytes) and its own four. */
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-2", "v", at("v") + 12 + 4);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[0]->key));
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[1]->key));
	run("a slice of another rank");

	make();
	maker_find(&m, "v")->slices.size = 0;
	put(&maker_find(&m, "v")->slices,
		"\x3a\x11\x0a\x02\x10\x02\x0a\x0b\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 19);
	cf_put_slice(&maker_find(&m, "v")->slices, 2, starts_v[1], lengths_v[1]);
	maker_build(&m);
	expect_note("MSG-15", "v", at("v"));
	run("a full extent written with a length");
}

static void test_orphan(void)
{
	static const int64_t dims[1] = {4}, start[1] = {0}, length[1] = {2};
	maker_entry *gone;
	make();
	gone = maker_partitioned(&m, "gone", CKPTFMT_FLOAT, 1, dims);
	maker_slice(&m, gone, "gone", start, length, 1, floats, 8);
	gone->left_out = true;
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "gone", maker_origin(&m, &m.entries[m.entry_count - 1].key));
	run("a slice without tensor");
}
int main(void)
{
	begin_tests();
	test_sound();
	test_not_found();
	test_footer();
	test_gap();
	test_damaged_blocks();
	test_order();
	test_deviating_blocks();
	test_header();
	test_big_endian();
	test_entry_deviations();
	test_broken_entries();
	test_extensions();
	test_many_notes();
	test_many_problems();
	test_limits();
	test_slices();
	test_orphan();
	return end_tests("test_verify");
}
