/* SPDX-License-Identifier: Apache-2.0 */
/* Verifying bundles with damage in the data files or the directory; and every flipped bit of a bundle is found. */
#include "bundle_maker.h"
#include "memory_fault.h"
#include "verify_cases.h"

#include <sys/stat.h>

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
	ckptfmt_open_options options = {.struct_size = sizeof options, .limits = NULL, .follow_symlinks = 0,
		.threads = 0};
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

/* Saves a sound checkpoint over what is there, of another content each time. */
static void replace(uint64_t number)
{
	remove_files();
	maker_free(&m);
	make();
	m.num_shards = 2;
	put(&m.data[0], (const char *)&number, 1 + number % 7);
	maker_build(&m);
	maker_save(&m);
}

/* A checkpoint that is replaced after any number of steps is verified again from its new index, and is sound. */
static void test_replaced_by_another(void)
{
	char prefix[512];
	uint64_t steps = 1, taken;
	ckptfmt_verifier *v;
	ckptfmt_progress progress;
	ckptfmt_error err;
	do {
		memset(&progress, 0, sizeof progress);
		replace(steps);
		prefix_path(prefix, sizeof prefix);
		CHECK_OK(ckptfmt_verifier_open(prefix, NULL, &v, &err), err);
		for (taken = 0; taken < steps && !progress.finished; taken++)
			CHECK_OK(ckptfmt_verifier_step(v, 0, &progress, &err), err);
		if (!progress.finished)
			replace(steps + 1);
		while (!progress.finished)
			CHECK_OK(ckptfmt_verifier_step(v, 0, &progress, &err), err);
		for (uint64_t i = 0; i < progress.finding_count; i++)
			CHECK_EQ(ckptfmt_verifier_finding(v, i)->severity, NOTE);
		ckptfmt_verifier_close(v);
		taken = taken == steps;
		steps += 2;
	} while (taken != 0 && steps < 1000);
	CHECK(steps > 10 && steps < 1000);
	remove_files();
	maker_free(&m);
}

/* One that is replaced all the time is given up. */
static void test_replaced_all_the_time(void)
{
	char prefix[512];
	ckptfmt_verifier *v;
	ckptfmt_progress progress = {0};
	ckptfmt_error err;
	replace(0);
	prefix_path(prefix, sizeof prefix);
	CHECK_OK(ckptfmt_verifier_open(prefix, NULL, &v, &err), err);
	for (uint64_t number = 1; !progress.finished; number++) {
		replace(number);
		CHECK_OK(ckptfmt_verifier_step(v, 0, &progress, &err), err);
	}
	CHECK_EQ(ckptfmt_verifier_finding(v, progress.finding_count - 1)->error.failure, CKPTFMT_FAIL_GENERATION_GONE);
	ckptfmt_verifier_close(v);
	remove_files();
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
	begin_tests();
	test_seed();
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
	test_replaced_by_another();
	test_replaced_all_the_time();
	test_every_bit();
	test_random_damage();
	test_memory(false);
	test_memory(true);
	return end_tests("test_verify_damage");
}
