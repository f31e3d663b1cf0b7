/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying bundles with one damage each: the exact list of findings. And every flipped bit of a bundle is found. */
#include "test.h"

#include "bundle_maker.h"
#include "memory_fault.h"

#include "base/arith.h"

#include <sys/stat.h>

#define NOTE CKPTFMT_SEVERITY_NOTE
#define PROBLEM CKPTFMT_SEVERITY_PROBLEM
#define NOWHERE UINT64_MAX
#define FLIPPED ((uint64_t)1 << 63)

enum { EXPECTED_MAX = 32 };

static char directory[64];
static bundle_maker m;

/* ---- what is expected ---- */

typedef struct expected {
	int32_t severity;
	int32_t failure;
	const char *rule;
	const char *tensor;
	const char *file;
	uint64_t offset;
} expected;

static expected list[EXPECTED_MAX];
static size_t list_count;

static void expect(int32_t severity, ckptfmt_failure failure, const char *rule, const char *tensor, const char *file,
	uint64_t offset)
{
	list[list_count++] = (expected){severity, (int32_t)failure, rule, tensor, file, offset};
}

static void expect_problem(ckptfmt_failure failure, const char *rule, const char *tensor, uint64_t offset)
{
	expect(PROBLEM, failure, rule, tensor, "m.index", offset);
}

static void expect_note(const char *rule, const char *tensor, uint64_t offset)
{
	expect(NOTE, CKPTFMT_FAIL_NONE, rule, tensor, "m.index", offset);
}

static const char data_0[] = "m.data-00000-of-00002", data_1[] = "m.data-00001-of-00002";

static void expect_data(ckptfmt_failure failure, const char *rule, const char *tensor, const char *file, uint64_t offset)
{
	expect(PROBLEM, failure, rule, tensor, file, offset);
}

/* A finding's rule with the end of it: "BLK-1" is not "BLK-11". */
static int has_rule(const char *message, const char *rule)
{
	size_t size = strlen(rule);
	if (size != 0 && message[size] != ':')
		return 0;
	return strncmp(message, rule, size) == 0;
}

static int is_expected(const ckptfmt_finding *found, const expected *want)
{
	const char *slash = strrchr(found->error.path, '/');
	return found->severity == want->severity && found->error.failure == want->failure &&
		has_rule(found->error.message, want->rule) && strcmp(found->error.tensor, want->tensor) == 0 &&
		slash != NULL && strcmp(slash + 1, want->file) == 0 && found->error.offset == want->offset;
}

static void print_finding(const ckptfmt_finding *f)
{
	fprintf(stderr, "  %s %s \"%s\" tensor \"%s\" offset %lld path %s\n", f->severity == NOTE ? "note" : "problem",
		ckptfmt_failure_name(f->error.failure), f->error.message, f->error.tensor, (long long)f->error.offset,
		f->error.path);
}

/* ---- running a verifier ---- */

static void prefix_path(char *prefix, size_t size)
{
	maker_path(&m, m.base, prefix, size);
}

static void check_progress(const ckptfmt_progress *before, const ckptfmt_progress *now)
{
	CHECK(now->bytes_done <= now->bytes_total);
	CHECK(now->bytes_done >= before->bytes_done);
	CHECK(now->tensors_done <= now->tensors_total || !now->finished);
	CHECK(now->finding_count >= before->finding_count);
	if (now->finished) {
		CHECK_EQ(now->bytes_done, now->bytes_total);
		CHECK_EQ(now->tensors_done, now->tensors_total);
	}
}

static ckptfmt_verifier *verify(uint64_t budget, const ckptfmt_open_options *options, ckptfmt_progress *progress)
{
	char prefix[512];
	ckptfmt_verifier *v = NULL;
	ckptfmt_error err;
	memset(progress, 0, sizeof *progress);
	prefix_path(prefix, sizeof prefix);
	CHECK_OK(ckptfmt_verifier_open(prefix, options, &v, &err), err);
	while (v != NULL && !progress->finished) {
		ckptfmt_progress before = *progress;
		ckptfmt_status status = ckptfmt_verifier_step(v, budget, progress, &err);
		CHECK_OK(status, err);
		if (status != CKPTFMT_OK)
			break;
		check_progress(&before, progress);
	}
	return v;
}

/* Compares what a verifier finds with the list, whatever the size of its steps. */
static void compare(const char *what, uint64_t budget, const ckptfmt_open_options *options)
{
	ckptfmt_progress progress;
	ckptfmt_verifier *v = verify(budget, options, &progress);
	int good;
	if (v == NULL)
		return;
	good = progress.finding_count == list_count;
	for (size_t i = 0; i < list_count && good; i++)
		good = is_expected(ckptfmt_verifier_finding(v, i), &list[i]);
	CHECK(ckptfmt_verifier_finding(v, progress.finding_count) == NULL);
	CHECK(good);
	if (!good) {
		fprintf(stderr, "%s: found\n", what);
		for (uint64_t i = 0; i < progress.finding_count; i++)
			print_finding(ckptfmt_verifier_finding(v, i));
		fprintf(stderr, " expected\n");
		for (size_t i = 0; i < list_count; i++)
			fprintf(stderr, "  %s %s %s tensor \"%s\" offset %lld path %s\n",
				list[i].severity == NOTE ? "note" : "problem", ckptfmt_failure_name(list[i].failure),
				list[i].rule, list[i].tensor, (long long)list[i].offset, list[i].file);
	}
	ckptfmt_verifier_close(v);
}

static void remove_files(void)
{
	char command[128];
	snprintf(command, sizeof command, "rm -rf '%s'/*", directory);
	CHECK_EQ(system(command), 0);
}

/* Saves what is made, compares, and forgets all of it. */
static void run_with(const char *what, const ckptfmt_open_options *options)
{
	maker_save(&m);
	compare(what, 0, options);
	compare(what, UINT64_MAX, options);
	compare(what, 100, options);
	remove_files();
	maker_free(&m);
	list_count = 0;
}

static void run(const char *what)
{
	run_with(what, NULL);
}

/* ---- the bundle that is damaged ---- */

static const float floats[48] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24,
	-1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13, -14, -15, -16, -17, -18, -19, -20, -21, -22, -23, -24};
static const int64_t integers[3] = {1, -1, 1 << 20};
static const uint8_t bytes_0_9[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
static const char *const strings[3] = {"hello", "", "wor"};
static const char *const payloads[2] = {"xy", "z"};
static const int64_t starts_v[2][2] = {{0, 0}, {2, 0}}, lengths_v[2][2] = {{2, -1}, {2, -1}};

/* Where the values lie. */
enum { A = 0, B = 8, S = 32, V0 = 0, V1 = 48, W = 96, X = 109, END_0 = 47, END_1 = 119 };

static maker_entry *slices[2];

static void begin(void)
{
	maker_begin(&m, directory, "m", 2);
}

static maker_entry *add_coded(const char *name, int32_t dtype, int64_t count, int32_t shard)
{
	cf_buffer bytes = CF_BUFFER_EMPTY;
	bool variant = dtype == CKPTFMT_VARIANT;
	uint32_t crc = variant ? maker_put_variants(&bytes, payloads, (uint64_t)count)
		: maker_put_strings(&bytes, strings, (uint64_t)count);
	maker_entry *entry = maker_tensor(&m, name, dtype, 1, &count, shard, bytes.data, bytes.size);
	entry->fields.masked_crc = ckptfmt_crc32c_mask(crc);
	cf_buffer_free(&bytes);
	return entry;
}

static void add_parts(int count)
{
	static const int64_t dims[2] = {4, 6};
	maker_entry *v = maker_partitioned(&m, "v", CKPTFMT_FLOAT, 2, dims);
	for (int i = 0; i < count; i++)
		slices[i] = maker_slice(&m, v, "v", starts_v[i], lengths_v[i], 1, floats + 12 * i, 48);
}

static void make(void)
{
	static const int64_t two[1] = {2}, three[1] = {3}, ten[1] = {10}, none[2] = {0, 3};
	begin();
	maker_tensor(&m, "a", CKPTFMT_FLOAT, 1, two, 0, floats, 8);
	maker_tensor(&m, "b", CKPTFMT_INT64, 1, three, 0, integers, 24);
	add_coded("s", CKPTFMT_STRING, 3, 0);
	maker_tensor(&m, "z", CKPTFMT_FLOAT, 2, none, 0, floats, 0);
	add_parts(2);
	add_coded("w", CKPTFMT_VARIANT, 2, 1);
	maker_chunks(maker_tensor(&m, "x", CKPTFMT_UINT8, 1, ten, 1, bytes_0_9, 10), 4, bytes_0_9);
}

static uint64_t at(const char *name)
{
	return maker_origin(&m, &maker_find(&m, name)->key);
}

static cf_buffer *more_of(const char *name)
{
	return &maker_find(&m, name)->more;
}

static cf_entry_fields *fields_of(const char *name)
{
	return &maker_find(&m, name)->fields;
}

static void put(cf_buffer *out, const char *bytes, size_t size)
{
	cf_put_bytes(out, bytes, size);
}

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
	expect_note("FTR-4", "", m.index.size - CF_FOOTER_SIZE);
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
	expect_note("TAB-11", "", footer.index.offset);
	run("bytes before the footer");
}

/* Blocks of two entries: ["", v0] [v1, a] [b, s] [v, w] [x, z]. Each block that ends early is a note. */
static void make_blocks(void)
{
	make();
	m.block_entries = 2;
	maker_build(&m);
	CHECK_EQ(m.block_count, 5);
}

static void expect_short_blocks(uint64_t first)
{
	for (uint64_t i = first; i < m.block_count; i++)
		expect_note("TAB-9", "", m.blocks[i].offset);
}

static void test_damaged_blocks(void)
{
	uint64_t origin;
	make_blocks();
	expect_short_blocks(1);
	run("short blocks");

	make_blocks();
	origin = at("v");
	m.index.data[m.blocks[1].offset] ^= 1;
	expect_problem(CKPTFMT_FAIL_CHECKSUM, "BLK-2", "", m.blocks[1].offset);
	expect_short_blocks(3);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "SLC-7", "v", origin);
	run("the block of a slice and a tensor");

	make_blocks();
	origin = maker_origin(&m, &slices[0]->key);
	m.index.data[m.blocks[3].offset] ^= 1;
	expect_note("TAB-9", "", m.blocks[1].offset);
	expect_note("TAB-9", "", m.blocks[2].offset);
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
	expect_short_blocks(2);
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
	expect_note("TAB-9", "", m.blocks[1].offset);
	expect_note("TAB-9", "", m.blocks[2].offset);
	expect_problem(CKPTFMT_FAIL_BAD_ORDER, "TAB-5", "y", m.blocks[3].offset);
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[0]->key));
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[1]->key));
	run("a key above its index key");
}

static void test_odd_blocks(void)
{
	make();
	maker_build(&m);
	m.blocks[0] = (cf_handle){0, maker_footer(&m).metaindex.offset - CF_TRAILER_SIZE};
	memset(m.index.data + m.blocks[0].size - 4, 0, 4);
	maker_reseal(&m, m.blocks[0]);
	expect_note("TAB-9", "", 0);
	expect_note("BLK-5", "", 0);
	expect_problem(CKPTFMT_FAIL_BAD_HEADER, "HDR-1", "", 0);
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
	put(&m.header, "\x08\x02\x1a\x04\x08\x01\x10\x02", 8);
	expect_no_data("HDR-8", CKPTFMT_FAIL_UNSUPPORTED);
	make();
	put(&m.header, "\x08\x02\x1a\x05\x08\x01\x1a\x01\x01", 9);
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

static void test_entry_oddities(void)
{
	entry_note("a", "MSG-8", "\x80\x01\x05", 3);
	entry_note("a", "MSG-15", "\x08\x01", 2);
	make();
	put(more_of("a"), "\x12\x02\x18\x01", 4);
	maker_build(&m);
	expect_note("MSG-15", "a", at("a"));
	expect_note("SHP-5", "a", at("a"));
	run("unknown rank");
	make();
	put(&maker_find(&m, "a")->raw, "\x08\x01\x12\x07\x12\x05\x08\x02\x12\x01n\x28\x08\x35\x59\x3c\xe5\x35", 18);
	maker_build(&m);
	expect_note("SHP-6", "a", at("a"));
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
	expect_data(CKPTFMT_FAIL_CHECKSUM, "EXT-4", "x", data_1, X + 4);
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
	make();
	put(more_of("a"), "\xa2\x06\x02\x08\x01", 5);
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

static void test_limits(void)
{
	ckptfmt_limits limits;
	ckptfmt_open_options options = {&limits, 1, 0};
	ckptfmt_limits_default(&limits);
	limits.entries_max = 4;
	make();
	maker_build(&m);
	expect_problem(CKPTFMT_FAIL_LIMIT, "TAB-13", "", at("b"));
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[0]->key));
	expect_problem(CKPTFMT_FAIL_BAD_SLICE, "KEY-7", "v", maker_origin(&m, &slices[1]->key));
	run_with("too many entries", &options);
	ckptfmt_limits_default(&limits);
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
	put(&maker_find(&m, "v")->slices, "\x3a\x11\x0a\x02\x10\x02\x0a\x0b\x10\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 19);
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

/* ---- values ---- */

static void flip(int32_t shard, uint64_t offset, const char *rule, const char *tensor, uint64_t found_at)
{
	make();
	maker_build(&m);
	m.data[shard].data[offset] ^= 0x10;
	expect_data(CKPTFMT_FAIL_CHECKSUM, rule, tensor, shard == 0 ? data_0 : data_1, found_at);
	run(rule);
}

static void test_values(void)
{
	flip(0, A + 3, "DAT-6", "a", A);
	flip(0, B + 23, "DAT-6", "b", B);
	flip(1, V1 + 5, "DAT-6", "v", V1);
	flip(1, X + 9, "DAT-6", "x", X + 8);
	flip(0, S + 3, "STR-5", "s", S + 3);
	flip(0, S + 8, "STR-6", "s", S);
	flip(1, W + 1, "VAR-3", "w", W);
	make();
	fields_of("w")->masked_crc ^= 1;
	maker_build(&m);
	expect_data(CKPTFMT_FAIL_CHECKSUM, "VAR-4", "w", data_1, W);
	run("VAR-4");
	make();
	maker_build(&m);
	m.data[0].data[S] = 0x7f;
	expect_data(CKPTFMT_FAIL_CHECKSUM, "STR-5", "s", data_0, S + 3);
	run("a string's length");
	make();
	maker_build(&m);
	m.data[1].data[W] = 0x7f;
	expect_data(CKPTFMT_FAIL_BAD_ENTRY, "VAR-2", "w", data_1, W);
	run("a payload's length");
	make();
	fields_of("a")->masked_crc = 0;
	maker_build(&m);
	expect_data(CKPTFMT_FAIL_CHECKSUM, "DAT-6", "a", data_0, A);
	run("no checksum");
	make();
	fields_of("a")->dtype = 999;
	maker_build(&m);
	m.data[0].data[A] ^= 1;
	expect_note("DTY-6", "a", at("a"));
	expect_data(CKPTFMT_FAIL_CHECKSUM, "DAT-6", "a", data_0, A);
	run("the bytes of an unknown dtype");
}

static void test_large_value(void)
{
	static const int64_t dims[1] = {5 << 20};
	const uint64_t size = 5 << 20;
	uint8_t *bytes = malloc(size);
	maker_entry *entry;
	for (uint64_t i = 0; i < size; i++)
		bytes[i] = (uint8_t)(i * 7 >> 3);
	for (int damage = 0; damage < 2; damage++) {
		begin();
		m.num_shards = 1;
		entry = maker_tensor(&m, "large", CKPTFMT_UINT8, 1, dims, 0, bytes, size);
		maker_chunks(entry, 1 << 20, bytes);
		maker_build(&m);
		if (damage) {
			m.data[0].data[(3 << 20) + 17] ^= 1;
			expect_data(CKPTFMT_FAIL_CHECKSUM, "DAT-6", "large", "m.data-00000-of-00001", 3 << 20);
		}
		run("a value of many pieces");
	}
	free(bytes);
}

static void test_overlaps(void)
{
	make();
	fields_of("b")->offset = 4;
	fields_of("b")->masked_crc = ckptfmt_crc32c_mask(ckptfmt_crc32c(0, m.data[0].data + 4, 24));
	maker_build(&m);
	expect_data(CKPTFMT_FAIL_BAD_ENTRY, "DAT-8", "b", data_0, 4);
	run("two values overlap by a part");
	make();
	fields_of("b")->offset = 0;
	fields_of("b")->dtype = CKPTFMT_INT32;
	maker_find(&m, "b")->dims[0] = 2;
	fields_of("b")->size = 8;
	fields_of("b")->masked_crc = fields_of("a")->masked_crc;
	maker_build(&m);
	expect_data(CKPTFMT_FAIL_BAD_ENTRY, "DAT-8", "b", data_0, 0);
	expect(NOTE, CKPTFMT_FAIL_NONE, "DAT-5", "", data_0, 8);
	run("two values are the same bytes, and others nobody's");
}

/* All of many entries name the same bytes: they are not read more than twice. */
static void test_aliases(void)
{
	static const int64_t dims[1] = {1 << 16};
	static uint8_t bytes[1 << 16];
	static char names[40][16];
	ckptfmt_progress progress;
	ckptfmt_verifier *v;
	begin();
	m.num_shards = 1;
	for (int i = 0; i < 40; i++) {
		maker_entry *entry;
		snprintf(names[i], sizeof names[i], "n%02d", i);
		m.data[0].size = 0;
		entry = maker_tensor(&m, names[i], CKPTFMT_UINT8, 1, dims, 0, bytes, sizeof bytes);
		CHECK_EQ(entry->fields.offset, 0);
	}
	maker_build(&m);
	maker_save(&m);
	v = verify(UINT64_MAX, NULL, &progress);
	CHECK_EQ(progress.bytes_total, m.index.size + 2 * sizeof bytes);
	CHECK_EQ(progress.finding_count, 39);
	CHECK_EQ(progress.tensors_total, 40);
	ckptfmt_verifier_close(v);
	remove_files();
	maker_free(&m);
}

/* ---- data files ---- */

static void test_padding(void)
{
	static const int64_t five[1] = {5};
	static const uint8_t padding[16];
	begin();
	m.num_shards = 1;
	maker_tensor(&m, "a", CKPTFMT_UINT8, 1, five, 0, bytes_0_9, 5);
	cf_put_bytes(&m.data[0], padding, 11);
	maker_tensor(&m, "b", CKPTFMT_UINT8, 1, five, 0, bytes_0_9, 5);
	cf_put_bytes(&m.data[0], padding, 11);
	m.data[0].data[9] = 1;
	m.data[0].data[31] = 1;
	maker_build(&m);
	expect(NOTE, CKPTFMT_FAIL_NONE, "DAT-5", "", "m.data-00000-of-00001", 9);
	expect(NOTE, CKPTFMT_FAIL_NONE, "DAT-5", "", "m.data-00000-of-00001", 31);
	run("padding that is not zero");
	make();
	maker_build(&m);
	cf_put_bytes(&m.data[0], padding, 16);
	expect(NOTE, CKPTFMT_FAIL_NONE, "DAT-3", "", data_0, END_0);
	run("zeros after the last value that are no padding");
	make();
	maker_build(&m);
	cf_put_bytes(&m.data[1], "more", 4);
	expect(NOTE, CKPTFMT_FAIL_NONE, "DAT-3", "", data_1, END_1);
	run("bytes after the last value");
}

static void test_gap_of_megabytes(void)
{
	static const int64_t five[1] = {5};
	uint8_t *zeros = calloc(3, 1 << 20);
	begin();
	m.num_shards = 1;
	maker_tensor(&m, "a", CKPTFMT_UINT8, 1, five, 0, bytes_0_9, 5);
	cf_put_bytes(&m.data[0], zeros, 3 << 20);
	maker_tensor(&m, "b", CKPTFMT_UINT8, 1, five, 0, bytes_0_9, 5);
	maker_build(&m);
	expect(NOTE, CKPTFMT_FAIL_NONE, "DAT-3", "", "m.data-00000-of-00001", 5);
	run("a gap too large for padding");
	free(zeros);
}

static void test_missing_files(void)
{
	static const int64_t none[1] = {0};
	make();
	m.no_data[1] = true;
	maker_build(&m);
	expect_data(CKPTFMT_FAIL_SHARD_MISSING, "NAM-5", "", data_1, NOWHERE);
	run("a data file is missing");
	make();
	maker_build(&m);
	m.data[1].size -= 1;
	expect_data(CKPTFMT_FAIL_TRUNCATED, "DAT-2", "x", data_1, X);
	run("a data file is cut short");
	make();
	maker_build(&m);
	m.data[1].size = 0;
	expect_data(CKPTFMT_FAIL_TRUNCATED, "DAT-2", "v", data_1, V0);
	expect_data(CKPTFMT_FAIL_TRUNCATED, "DAT-2", "v", data_1, V1);
	expect_data(CKPTFMT_FAIL_TRUNCATED, "DAT-2", "w", data_1, W);
	expect_data(CKPTFMT_FAIL_TRUNCATED, "DAT-2", "x", data_1, X);
	run("a data file is empty");
	begin();
	m.num_shards = 3;
	maker_tensor(&m, "a", CKPTFMT_FLOAT, 1, none, 0, floats, 0);
	maker_tensor(&m, "b", CKPTFMT_FLOAT, 1, none, 1, floats, 0);
	m.no_data[1] = m.no_data[2] = true;
	cf_put_bytes(&m.data[0], "junk", 4);
	maker_build(&m);
	expect(NOTE, CKPTFMT_FAIL_NONE, "DAT-3", "", "m.data-00000-of-00003", 0);
	expect(NOTE, CKPTFMT_FAIL_NONE, "NAM-5", "", "m.data-00001-of-00003", NOWHERE);
	expect(NOTE, CKPTFMT_FAIL_NONE, "NAM-5", "", "m.data-00002-of-00003", NOWHERE);
	run("data files that nobody misses");
	begin();
	m.num_shards = 2;
	maker_tensor(&m, "a", CKPTFMT_FLOAT, 0, none, 0, floats, 4);
	maker_build(&m);
	expect(NOTE, CKPTFMT_FAIL_NONE, "CMT-6", "", data_1, NOWHERE);
	run("a data file that no entry names");
}

static void test_many_missing(void)
{
	static char names[20][40];
	begin();
	m.num_shards = INT32_MAX;
	for (int32_t i = 0; i < MAKER_SHARDS_MAX; i++)
		m.no_data[i] = true;
	maker_build(&m);
	for (int i = 0; i < 20; i++) {
		snprintf(names[i], sizeof names[i], "m.data-%05d-of-2147483647", i);
		expect(NOTE, CKPTFMT_FAIL_NONE, "NAM-5", "", names[i], NOWHERE);
	}
	expect_note("NAM-5", "", NOWHERE);
	run("as many shards as there can be");
}

static void test_leftovers(void)
{
	static const char *const ours[] = {"m.data-00000-of-00003", "m.data-00002-of-00002",
		"m.index.tempstate0123456789abcdef", "m.data-00000-of-00002.tempstate0123456789abcdef"};
	static const char *const others[] = {"m.data-00000-of-00003x", "mm.data-00000-of-00003", "m.index.tempstate0",
		"m.index.tempstate0123456789abcdeX", "m2.index", "m.data-000000-of-00003", "m.json",
		"m.tempstate0123456789abcdef"};
	for (size_t i = 0; i < CF_ARRAY_COUNT(ours); i++) {
		make();
		maker_build(&m);
		maker_write(&m, ours[i], "x", 1);
		expect(NOTE, CKPTFMT_FAIL_NONE, "NAM-8", "", ours[i], NOWHERE);
		run(ours[i]);
	}
	make();
	maker_build(&m);
	for (size_t i = 0; i < CF_ARRAY_COUNT(others); i++)
		maker_write(&m, others[i], "x", 1);
	run("files of others");
}

static void test_kinds_of_files(void)
{
	ckptfmt_open_options options = {NULL, 0, 0};
	char path[512], target[512];
	make();
	maker_build(&m);
	m.no_data[1] = true;
	maker_path(&m, data_1, path, sizeof path);
	CHECK_EQ(mkdir(path, 0777), 0);
	expect_data(CKPTFMT_FAIL_OS, "", "", data_1, NOWHERE);
	run("a directory in the place of a data file");
	make();
	maker_build(&m);
	m.no_data[1] = true;
	maker_write(&m, "elsewhere", m.data[1].data, m.data[1].size);
	maker_path(&m, "elsewhere", target, sizeof target);
	maker_path(&m, data_1, path, sizeof path);
	CHECK_EQ(symlink(target, path), 0);
	expect_data(CKPTFMT_FAIL_BAD_PATH, "", "", data_1, NOWHERE);
	run_with("a symbolic link, where they are not followed", &options);
}

static void test_replaced(void)
{
	char prefix[512];
	ckptfmt_verifier *v;
	ckptfmt_progress progress;
	ckptfmt_error err;
	const ckptfmt_finding *last;
	make();
	maker_build(&m);
	maker_save(&m);
	prefix_path(prefix, sizeof prefix);
	CHECK_OK(ckptfmt_verifier_open(prefix, NULL, &v, &err), err);
	CHECK_OK(ckptfmt_verifier_step(v, 0, &progress, &err), err);
	remove_files();
	while (!progress.finished)
		CHECK_OK(ckptfmt_verifier_step(v, 0, &progress, &err), err);
	CHECK(progress.finding_count >= 1);
	last = ckptfmt_verifier_finding(v, progress.finding_count - 1);
	CHECK_EQ(last->error.failure, CKPTFMT_FAIL_GENERATION_GONE);
	CHECK(has_rule(last->error.message, "CMT-12"));
	ckptfmt_verifier_close(v);
	maker_free(&m);
}

/* ---- all damages of a kind ---- */

/* The number of findings, after one byte of a file is another. */
static uint64_t findings_with(const char *name, const cf_buffer *bytes, uint64_t offset, uint8_t mask)
{
	char prefix[512];
	ckptfmt_verifier *v;
	ckptfmt_progress progress = {0};
	ckptfmt_error err;
	bytes->data[offset] ^= mask;
	maker_write(&m, name, bytes->data, bytes->size);
	bytes->data[offset] ^= mask;
	prefix_path(prefix, sizeof prefix);
	if (ckptfmt_verifier_open(prefix, NULL, &v, &err) != CKPTFMT_OK)
		return 0;
	while (!progress.finished)
		CHECK_OK(ckptfmt_verifier_step(v, UINT64_MAX, &progress, &err), err);
	ckptfmt_verifier_close(v);
	return progress.finding_count;
}

static void flip_all(const char *name, const cf_buffer *bytes)
{
	uint64_t unseen = 0;
	for (uint64_t bit = 0; bit < 8 * bytes->size; bit++)
		unseen += findings_with(name, bytes, bit / 8, (uint8_t)(1 << bit % 8)) == 0;
	CHECK_EQ(unseen, 0);
	maker_write(&m, name, bytes->data, bytes->size);
}

static void test_every_bit(void)
{
	make();
	m.block_entries = 4;
	maker_build(&m);
	maker_save(&m);
	flip_all("m.index", &m.index);
	flip_all(data_0, &m.data[0]);
	flip_all(data_1, &m.data[1]);
	remove_files();
	maker_free(&m);
}

/* With the block checksum repaired anything may be met: it must only end well. */
static void test_random_damage(void)
{
	make();
	maker_build(&m);
	maker_save(&m);
	m.blocks[0] = (cf_handle){0, maker_footer(&m).metaindex.offset - CF_TRAILER_SIZE};
	for (int round = 0; round < 1500; round++) {
		cf_buffer sound = CF_BUFFER_EMPTY;
		cf_put_bytes(&sound, m.index.data, m.index.size);
		for (uint64_t n = 1 + test_random_below(4); n > 0; n--)
			m.index.data[test_random_below(m.blocks[0].size)] = (uint8_t)test_random();
		maker_reseal(&m, m.blocks[0]);
		(void)findings_with("m.index", &m.index, 0, 0);
		memcpy(m.index.data, sound.data, sound.size);
		cf_buffer_free(&sound);
	}
	remove_files();
	maker_free(&m);
}

/* Every allocation fails, once or from then on: the verifier says so, or does with less. */
static void test_memory(bool forever)
{
	uint64_t alive;
	bool failed = true;
	make();
	maker_build(&m);
	maker_save(&m);
	alive = memory_fault_live();
	for (uint64_t n = 1; failed; n++) {
		char prefix[512];
		ckptfmt_verifier *v;
		ckptfmt_progress progress = {0};
		ckptfmt_error err;
		ckptfmt_status status;
		prefix_path(prefix, sizeof prefix);
		memory_fault_set(n, forever);
		status = ckptfmt_verifier_open(prefix, NULL, &v, &err);
		while (status == CKPTFMT_OK && !progress.finished)
			status = ckptfmt_verifier_step(v, 0, &progress, &err);
		failed = memory_fault_hits() != 0;
		/* A string that cannot be held is a finding, and nothing else may become one. */
		CHECK(status == CKPTFMT_NO_MEMORY || (status == CKPTFMT_OK && progress.finding_count <= (failed ? 2 : 0)));
		for (uint64_t i = 0; i < progress.finding_count; i++)
			CHECK_EQ(ckptfmt_verifier_finding(v, i)->error.failure, CKPTFMT_FAIL_LIMIT);
		ckptfmt_verifier_close(v);
		CHECK_EQ(memory_fault_live(), alive);
	}
	memory_fault_clear();
	remove_files();
	maker_free(&m);
}

int main(void)
{
	const char *root = getenv("TMPDIR");
	snprintf(directory, sizeof directory, "%s/test_verify.XXXXXX", root != NULL && strlen(root) < 32 ? root : "/tmp");
	if (mkdtemp(directory) == NULL) {
		perror(directory);
		return 2;
	}
	test_seed();
	test_sound();
	test_not_found();
	test_footer();
	test_gap();
	test_damaged_blocks();
	test_order();
	test_odd_blocks();
	test_header();
	test_big_endian();
	test_entry_oddities();
	test_broken_entries();
	test_extensions();
	test_many_notes();
	test_limits();
	test_slices();
	test_orphan();
	test_values();
	test_large_value();
	test_overlaps();
	test_aliases();
	test_padding();
	test_gap_of_megabytes();
	test_missing_files();
	test_many_missing();
	test_leftovers();
	test_kinds_of_files();
	test_replaced();
	test_every_bit();
	test_random_damage();
	test_memory(false);
	test_memory(true);
	CHECK_EQ(rmdir(directory), 0);
	return test_finish("test_verify");
}
