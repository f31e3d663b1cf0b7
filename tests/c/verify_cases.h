/* SPDX-License-Identifier: Apache-2.0 */
/* One bundle with a value of each kind, made anew for each damage, and the exact list of findings that verifying it
 * must give. */
#ifndef CKPTFMT_TESTS_VERIFY_CASES_H
#define CKPTFMT_TESTS_VERIFY_CASES_H

#include "test.h"

#include "bundle_maker.h"

#include "base/arith.h"
#include "base/bytes.h"

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

static inline void expect(int32_t severity, ckptfmt_failure failure, const char *rule, const char *tensor,
	const char *file, uint64_t offset)
{
	list[list_count++] = (expected){severity, (int32_t)failure, rule, tensor, file, offset};
}

static inline void expect_problem(ckptfmt_failure failure, const char *rule, const char *tensor, uint64_t offset)
{
	expect(PROBLEM, failure, rule, tensor, "m.index", offset);
}

static inline void expect_note(const char *rule, const char *tensor, uint64_t offset)
{
	expect(NOTE, CKPTFMT_FAIL_NONE, rule, tensor, "m.index", offset);
}

static const char data_0[] = "m.data-00000-of-00002", data_1[] = "m.data-00001-of-00002";

static inline void expect_data(ckptfmt_failure failure, const char *rule, const char *tensor, const char *file,
	uint64_t offset)
{
	expect(PROBLEM, failure, rule, tensor, file, offset);
}

/* A finding's rule with the end of it: "BLK-1" is not "BLK-11". */
static inline int has_rule(const char *message, const char *rule)
{
	size_t size = strlen(rule);
	if (size != 0 && message[size] != ':')
		return 0;
	return strncmp(message, rule, size) == 0;
}

static inline int is_expected(const ckptfmt_finding *found, const expected *want)
{
	const char *slash = strrchr(found->error.path, '/');
	return found->severity == want->severity && found->error.failure == want->failure &&
		has_rule(found->error.message, want->rule) && strcmp(found->error.tensor, want->tensor) == 0 &&
		slash != NULL && strcmp(slash + 1, want->file) == 0 && found->error.offset == want->offset;
}

static inline void print_finding(const ckptfmt_finding *f)
{
	fprintf(stderr, "  %s %s \"%s\" tensor \"%s\" offset %lld path %s\n", f->severity == NOTE ? "note" : "problem",
		ckptfmt_failure_name(f->error.failure), f->error.message, f->error.tensor, (long long)f->error.offset,
		f->error.path);
}

/* ---- running a verifier ---- */

static inline void prefix_path(char *prefix, size_t size)
{
	maker_path(&m, m.base, prefix, size);
}

static inline void check_progress(const ckptfmt_progress *before, const ckptfmt_progress *now)
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

static inline ckptfmt_verifier *verify(uint64_t budget, const ckptfmt_open_options *options, ckptfmt_progress *progress)
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
static inline void compare(const char *what, uint64_t budget, const ckptfmt_open_options *options)
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

static inline void remove_files(void)
{
	char command[128];
	snprintf(command, sizeof command, "rm -rf '%s'/*", directory);
	CHECK_EQ(system(command), 0);
}

/* Saves what is made, compares, and forgets all of it. */
static inline void run_with(const char *what, const ckptfmt_open_options *options)
{
	maker_save(&m);
	compare(what, 0, options);
	compare(what, UINT64_MAX, options);
	compare(what, 100, options);
	remove_files();
	maker_free(&m);
	list_count = 0;
}

static inline void run(const char *what)
{
	run_with(what, NULL);
}

/* ---- the bundle that is damaged ---- */

static const float float_values[48] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22,
	23, 24, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13, -14, -15, -16, -17, -18, -19, -20, -21, -22,
	-23, -24};
/* As they stand in a file, whatever the byte order here; filled by begin_tests. */
static uint8_t floats[4 * CF_ARRAY_COUNT(float_values)];
static const int64_t integer_values[3] = {1, -1, 1 << 20};
static uint8_t integers[8 * CF_ARRAY_COUNT(integer_values)];
static const uint8_t bytes_0_9[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
static const char *const strings[3] = {"hello", "", "wor"};
static const char *const payloads[2] = {"xy", "z"};
static const int64_t starts_v[2][2] = {{0, 0}, {2, 0}}, lengths_v[2][2] = {{2, -1}, {2, -1}};

/* Where the values lie. */
enum { A = 0, B = 8, S = 32, V0 = 0, V1 = 48, W = 96, X = 109, END_0 = 47, END_1 = 119 };

static maker_entry *slices[2];

static inline void begin(void)
{
	maker_begin(&m, directory, "m", 2);
}

static inline maker_entry *add_coded(const char *name, int32_t dtype, int64_t count, int32_t shard)
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

static inline void add_parts(int count)
{
	static const int64_t dims[2] = {4, 6};
	maker_entry *v = maker_partitioned(&m, "v", CKPTFMT_FLOAT, 2, dims);
	for (int i = 0; i < count; i++)
		slices[i] = maker_slice(&m, v, "v", starts_v[i], lengths_v[i], 1, floats + 48 * i, 48);
}

static inline void make(void)
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

static inline uint64_t at(const char *name)
{
	return maker_origin(&m, &maker_find(&m, name)->key);
}

static inline cf_buffer *more_of(const char *name)
{
	return &maker_find(&m, name)->more;
}

static inline cf_entry_fields *fields_of(const char *name)
{
	return &maker_find(&m, name)->fields;
}

static inline void put(cf_buffer *out, const char *bytes, size_t size)
{
	cf_put_bytes(out, bytes, size);
}
/* ---- the directory ---- */

static inline void begin_tests(void)
{
	const char *root = getenv("TMPDIR");
	for (size_t i = 0; i < CF_ARRAY_COUNT(float_values); i++) {
		uint32_t bits;
		memcpy(&bits, &float_values[i], sizeof bits);
		cf_store_u32(floats + 4 * i, bits);
	}
	for (size_t i = 0; i < CF_ARRAY_COUNT(integer_values); i++)
		cf_store_u64(integers + 8 * i, (uint64_t)integer_values[i]);
	snprintf(directory, sizeof directory, "%s/test_verify.XXXXXX", root != NULL && strlen(root) < 32 ? root : "/tmp");
	if (mkdtemp(directory) == NULL) {
		perror(directory);
		exit(2);
	}
}

static inline int end_tests(const char *name)
{
	CHECK_EQ(rmdir(directory), 0);
	return test_finish(name);
}

#endif
