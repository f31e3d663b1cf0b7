/* SPDX-License-Identifier: Apache-2.0 */
/* verify: the exact findings for damage in the data files and the directory, replaced checkpoints, limits and lack of
 * memory. Damage in the index: tests/format/test_vectors.py, vector_places.json. */
#include "scratch.h"

#include "base/arith.h"
#include "base/bytes.h"
#include "base/limits.h"
#include "bundle_maker.h"
#include "memory_fault.h"
#include "table/writer.h"

#include <sys/stat.h>

#define NOTE CKPTFMT_SEVERITY_NOTE
#define PROBLEM CKPTFMT_SEVERITY_PROBLEM
#define NOWHERE UINT64_MAX

enum { EXPECTED_MAX = 32 };

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

static void expect(int32_t severity, ckptfmt_failure failure, const char *rule, const char *tensor,
	const char *file, uint64_t offset)
{
	list[list_count++] = (expected){severity, (int32_t)failure, rule, tensor, file, offset};
}

static void expect_note(const char *rule, const char *tensor, uint64_t offset)
{
	expect(NOTE, CKPTFMT_FAIL_NONE, rule, tensor, "m.index", offset);
}

static const char data_0[] = "m.data-00000-of-00002", data_1[] = "m.data-00001-of-00002";

static void expect_data(ckptfmt_failure failure, const char *rule, const char *tensor, const char *file,
	uint64_t offset)
{
	expect(PROBLEM, failure, rule, tensor, file, offset);
}

/* Whether the message begins with the rule. "BLK-1" does not match "BLK-11". */
static int has_rule(const char *message, const char *rule)
{
	size_t size = strlen(rule);
	if (size != 0 && message[size] != ':')
		return 0;
	return strncmp(message, rule, size) == 0;
}

static bool is_expected(const ckptfmt_finding *found, const expected *want)
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

/* ---- verifying ---- */

static bool is_past(uint64_t *done, uint64_t now, uint64_t total)
{
	bool past = now > total || now < *done;
	*done = now;
	return past;
}

/* Progress never goes back. */
static int32_t watch(void *done, uint64_t bytes_done, uint64_t bytes_total)
{
	CHECK(!is_past(done, bytes_done, bytes_total));
	return 0;
}

static ckptfmt_report *verify(const ckptfmt_open_options *with)
{
	uint64_t done = 0;
	ckptfmt_open_options options = {.struct_size = sizeof options, .follow_symlinks = 1};
	ckptfmt_report *report = NULL;
	ckptfmt_error err;
	if (with != NULL)
		options = *with;
	options.progress = (ckptfmt_progress_hook){watch, &done};
	CHECK_OK(ckptfmt_verify(path_of("m"), &options, &report, &err), err);
	CHECK(report == NULL || done == report->bytes_checked);
	return report;
}

/* Compares the findings with the list. */
static void compare(const char *what, const ckptfmt_open_options *options)
{
	ckptfmt_report *report = verify(options);
	bool good;
	if (report == NULL)
		return;
	good = report->finding_count == list_count;
	for (size_t i = 0; i < list_count && good; i++)
		good = is_expected(&report->findings[i], &list[i]);
	CHECK(good);
	if (!good) {
		fprintf(stderr, "%s: found\n", what);
		for (uint64_t i = 0; i < report->finding_count; i++)
			print_finding(&report->findings[i]);
	}
	ckptfmt_report_free(report);
}

/* Saves the bundle, compares the findings, and removes all. */
static void run_with(const char *what, const ckptfmt_open_options *options)
{
	maker_save(&m);
	compare(what, options);
	empty_tree(directory);
	maker_free(&m);
	list_count = 0;
}

static void run(const char *what)
{
	run_with(what, NULL);
}

/* ---- the bundle that is damaged ---- */

static const float float_values[48] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
	23, 24, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13, -14, -15, -16, -17, -18, -19, -20, -21, -22,
	-23, -24};
/* Little-endian, as in a file; filled by fill_values. */
static uint8_t floats[4 * CF_ARRAY_COUNT(float_values)];
static const int64_t integer_values[3] = {1, -1, 1 << 20};
static uint8_t integers[8 * CF_ARRAY_COUNT(integer_values)];
static const uint8_t bytes_0_9[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
static const char *const strings[3] = {"hello", "", "wor"};
static const char *const payloads[2] = {"xy", "z"};
static const int64_t starts_v[2][2] = {{0, 0}, {2, 0}}, lengths_v[2][2] = {{2, -1}, {2, -1}};

/* Offsets of the values in their data files. */
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
		slices[i] = maker_slice(&m, v, "v", starts_v[i], lengths_v[i], 1, floats + 48 * i, 48);
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

static cf_entry_fields *fields_of(const char *name)
{
	return &maker_find(&m, name)->fields;
}

static void put(cf_buffer *out, const char *bytes, size_t size)
{
	cf_put_bytes(out, bytes, size);
}

static void fill_values(void)
{
	for (size_t i = 0; i < CF_ARRAY_COUNT(float_values); i++) {
		uint32_t bits;
		memcpy(&bits, &float_values[i], sizeof bits);
		cf_store_u32(floats + 4 * i, bits);
	}
	for (size_t i = 0; i < CF_ARRAY_COUNT(integer_values); i++)
		cf_store_u64(integers + 8 * i, (uint64_t)integer_values[i]);
}

/* ---- many findings ---- */

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

/* 10,000 problems are listed, the rest are counted. */
static void test_many_problems(void)
{
	enum { COUNT = 10050 };
	cf_entry_fields fields = {.dtype = CKPTFMT_UINT8, .shard = 7, .size = 1};
	cf_table_writer writer;
	cf_buffer value = CF_BUFFER_EMPTY;
	ckptfmt_report *report;
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
	report = verify(NULL);
	/* And a note: the one data file is missing. */
	CHECK_EQ(report->finding_count, 10002);
	CHECK_EQ(report->findings[9999].error.failure, CKPTFMT_FAIL_BAD_ENTRY);
	CHECK_EQ(report->findings[10000].severity, NOTE);
	last = &report->findings[10001];
	CHECK_EQ(last->error.failure, CKPTFMT_FAIL_LIMIT);
	CHECK_EQ(last->severity, PROBLEM);
	CHECK(strncmp(last->error.message, "50 more ", 8) == 0);
	ckptfmt_report_free(report);
	empty_tree(directory);
	maker_free(&m);
}

static void test_limit(void)
{
	ckptfmt_limits limits;
	ckptfmt_open_options options = {.struct_size = sizeof options, .limits = &limits, .follow_symlinks = 1,
		.threads = 0};
	cf_limits_default(&limits);
	limits.tensor_bytes_max = 14;
	make();
	maker_build(&m);
	expect_data(CKPTFMT_FAIL_LIMIT, "", "s", data_0, S);
	run_with("a string too large to hold", &options);
}

/* ---- values ---- */

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
	run("two values share their bytes, and no value has others");
}

/* Many entries share the same bytes: these are read at most twice. */
static void test_aliases(void)
{
	static const int64_t dims[1] = {1 << 16};
	static uint8_t bytes[1 << 16];
	static char names[40][16];
	ckptfmt_report *report;
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
	report = verify(NULL);
	CHECK_EQ(report->bytes_checked, m.index.size + 2 * sizeof bytes);
	CHECK_EQ(report->finding_count, 39);
	CHECK_EQ(report->tensors_checked, 40);
	ckptfmt_report_free(report);
	empty_tree(directory);
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
	begin();
	m.num_shards = 3;
	maker_tensor(&m, "a", CKPTFMT_FLOAT, 1, none, 0, floats, 0);
	maker_tensor(&m, "b", CKPTFMT_FLOAT, 1, none, 1, floats, 0);
	m.no_data[1] = m.no_data[2] = true;
	cf_put_bytes(&m.data[0], "junk", 4);
	maker_build(&m);
	expect(NOTE, CKPTFMT_FAIL_NONE, "DAT-3", "", "m.data-00000-of-00003", 0);
	expect_data(CKPTFMT_FAIL_SHARD_MISSING, "NAM-5", "", "m.data-00001-of-00003", NOWHERE);
	expect(NOTE, CKPTFMT_FAIL_NONE, "NAM-5", "", "m.data-00002-of-00003", NOWHERE);
	run("missing data files, one with a value without bytes");
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
	ckptfmt_open_options options = {.struct_size = sizeof options, .limits = NULL, .follow_symlinks = 0,
		.threads = 0};
	make();
	maker_build(&m);
	m.no_data[1] = true;
	CHECK_EQ(mkdir(path_of(data_1), 0777), 0);
	expect_data(CKPTFMT_FAIL_OS, "", "", data_1, NOWHERE);
	run("a directory in the place of a data file");
	make();
	maker_build(&m);
	m.no_data[1] = true;
	maker_write(&m, "elsewhere", m.data[1].data, m.data[1].size);
	CHECK_EQ(symlink(path_of("elsewhere"), path_of(data_1)), 0);
	expect_data(CKPTFMT_FAIL_BAD_PATH, "", "", data_1, NOWHERE);
	run_with("a symbolic link, where they are not followed", &options);
}

/* Replaces the checkpoint by a sound one with other content. */
static void replace(uint64_t number)
{
	empty_tree(directory);
	maker_free(&m);
	make();
	m.num_shards = 2;
	put(&m.data[0], (const char *)&number, 1 + number % 7);
	maker_build(&m);
	maker_save(&m);
}

/* What another process does each time that verifying begins: removes the checkpoint, or replaces it while `left` is not
 * 0. */
typedef struct other {
	bool removes;
	uint64_t left;
} other;

static int32_t interfere(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
	other *with = context;
	if (bytes_done != 0 || bytes_total == 0)
		return 0;
	if (with->removes)
		empty_tree(directory);
	else if (with->left != 0)
		replace(with->left--);
	return 0;
}

/* Verifying drops what it found in an earlier generation, and gives up after ten. That it may be replaced at any of its
 * calls: test_interleavings.c. */
static void test_replaced(void)
{
	const other all[] = {{true, 0}, {false, 1}, {false, 10}, {false, UINT64_MAX}};
	for (size_t i = 0; i < CF_ARRAY_COUNT(all); i++) {
		other with = all[i];
		const ckptfmt_open_options options = {.struct_size = sizeof options, .progress = {interfere, &with}};
		bool gone = with.removes || with.left > 10;
		uint64_t problems = 0;
		ckptfmt_report *report;
		ckptfmt_error err;
		replace(0);
		CHECK_OK(ckptfmt_verify(path_of("m"), &options, &report, &err), err);
		for (uint64_t row = 0; row < report->finding_count; row++)
			problems += report->findings[row].severity == PROBLEM;
		CHECK_EQ(problems != 0, gone);
		if (gone) {
			const ckptfmt_error *last = &report->findings[report->finding_count - 1].error;
			CHECK_EQ(last->failure, CKPTFMT_FAIL_GENERATION_GONE);
			CHECK(has_rule(last->message, "CMT-12"));
		}
		ckptfmt_report_free(report);
	}
	empty_tree(directory);
	maker_free(&m);
}

static int32_t cancel(void *at, uint64_t bytes_done, uint64_t bytes_total)
{
	(void)bytes_total;
	return bytes_done >= *(const uint64_t *)at;
}

/* The progress function can end it: at the beginning, in a value, at the end. */
static void test_cancelled(void)
{
	static const int64_t dims[1] = {5 << 20};
	uint8_t *zeros = calloc(5, 1 << 20);
	begin();
	m.num_shards = 1;
	maker_tensor(&m, "large", CKPTFMT_UINT8, 1, dims, 0, zeros, 5 << 20);
	maker_build(&m);
	maker_save(&m);
	for (uint64_t at = 0; at <= m.index.size + (5 << 20); at += (m.index.size + (5 << 20)) / 2) {
		const ckptfmt_open_options options = {.struct_size = sizeof options, .progress = {cancel, &at}};
		ckptfmt_report *report;
		ckptfmt_error err;
		CHECK_FAILS(ckptfmt_verify(path_of("m"), &options, &report, &err), err, CKPTFMT_FAIL_CANCELLED, "");
		CHECK(report == NULL);
	}
	empty_tree(directory);
	maker_free(&m);
	free(zeros);
}

/* ---- all damages of a kind ---- */

/* Random bytes behind a repaired block checksum: no crash, and verifying ends. */
static void test_random_damage(void)
{
	make();
	maker_build(&m);
	maker_save(&m);
	m.blocks[0] = (cf_handle){0, maker_footer(&m).metaindex.offset - CF_TRAILER_SIZE};
	for (int round = 0; round < 1500; round++) {
		cf_buffer sound = CF_BUFFER_EMPTY;
		ckptfmt_report *report;
		cf_put_bytes(&sound, m.index.data, m.index.size);
		for (uint64_t n = 1 + test_random_below(4); n > 0; n--)
			m.index.data[test_random_below(m.blocks[0].size)] = (uint8_t)test_random();
		maker_reseal(&m, m.blocks[0]);
		maker_write(&m, "m.index", m.index.data, m.index.size);
		(void)ckptfmt_verify(path_of("m"), NULL, &report, NULL);
		ckptfmt_report_free(report);
		memcpy(m.index.data, sound.data, sound.size);
		cf_buffer_free(&sound);
	}
	empty_tree(directory);
	maker_free(&m);
}

/* Each allocation fails, once or from then on: verifying reports it or uses less memory. */
static void test_memory(bool forever, int32_t shards)
{
	static const int64_t two[1] = {2};
	uint64_t alive;
	bool failed = true;
	if (shards == 1) {
		maker_begin(&m, directory, "m", 1);
		maker_tensor(&m, "a", CKPTFMT_FLOAT, 1, two, 0, floats, 8);
	} else {
		make();
	}
	maker_build(&m);
	maker_save(&m);
	alive = memory_fault_live();
	for (uint64_t n = 1; failed; n++) {
		ckptfmt_report *report;
		ckptfmt_error err;
		ckptfmt_status status;
		memory_fault_set(n, forever);
		status = ckptfmt_verify(path_of("m"), NULL, &report, &err);
		failed = memory_fault_hits() != 0;
		/* A string tensor that does not fit into memory is the only finding allowed. */
		CHECK(status == CKPTFMT_NO_MEMORY || (status == CKPTFMT_OK && report->finding_count <= (failed ? 2 : 0)));
		for (uint64_t i = 0; report != NULL && i < report->finding_count; i++)
			CHECK_EQ(report->findings[i].error.failure, CKPTFMT_FAIL_LIMIT);
		ckptfmt_report_free(report);
		CHECK_EQ(memory_fault_live(), alive);
	}
	memory_fault_clear();
	empty_tree(directory);
	maker_free(&m);
}

int main(void)
{
	if (!make_memory_directory())
		return 2;
	fill_values();
	test_seed();
	test_many_notes();
	test_many_problems();
	test_limit();
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
	test_cancelled();
	test_random_damage();
	for (int32_t shards = 1; shards <= 2; shards++) {
		test_memory(false, shards);
		test_memory(true, shards);
	}
	CHECK_EQ(rmdir(directory), 0);
	return test_finish("test_verify");
}
