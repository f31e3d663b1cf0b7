/* SPDX-License-Identifier: Apache-2.0 */
/* Merges of inputs that change meanwhile, of many, of large ones, beside other files, and on file systems that cannot
 * link. Links os_fault.c and memory_fault.c. */
#include "memory_fault.h"
#include "merge_stage.h"
#include "os_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

/* A file that is too large for an intent, or not regular, is not read. */
static void test_large_intent(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	set_stage(2, false);
	shell("mkdir '%s'/out && truncate -s 20G '%s'/out/m.merge-intent && printf 'ckptfmt merge 2\n' | "
		"dd of='%s'/out/m.merge-intent conv=notrunc status=none");
	CHECK_OK(merge(2, &options), err);
	CHECK(has_result(2) && !has_inputs(1));
	set_stage(2, false);
	CHECK_EQ(mkdir(path_of("out"), 0777), 0);
	CHECK_EQ(mkfifo(path_of("out/m.merge-intent"), 0666), 0);
	CHECK_OK(merge(2, &options), err);
	CHECK(has_result(2) && !has_inputs(1));
}

/* Many generations in the way: quick, and an end to it. */
static void test_taken_numbers(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	char name[64];
	set_stage(2, false);
	CHECK_EQ(mkdir(path_of("out"), 0777), 0);
	for (int i = 1; i <= 1026; i++) {
		snprintf(name, sizeof name, "out/m.data-00000-of-%05d", i);
		close(open(path_of(name), O_CREAT | O_WRONLY, 0666));
	}
	CHECK_FAILS(merge(2, &options), err, CKPTFMT_FAIL_LIMIT, "CMT-5");
	CHECK_EQ(unlink(path_of("out/m.data-00000-of-01000")), 0);
	CHECK_OK(merge(2, &options), err);
	CHECK(has_result(2));
}

/* Messages tell inputs with long paths apart; errors are written on failure only; data files are files. */
static void test_errors(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	char deep[300], a[400], b[400];
	const char *prefixes[2] = {a, b};
	set_stage(2, false);
	memset(deep, 'd', sizeof deep);
	deep[200] = '\0';
	snprintf(a, sizeof a, "%s/a", deep);
	snprintf(b, sizeof b, "%s/b", deep);
	save_to(a, "x", 1, -1, 1);
	save_to(b, "x", 1, -1, 1);
	prefixes[0] = path_of(a);
	prefixes[1] = path_of(b);
	CHECK_FAILS(ckptfmt_merge(prefixes, 2, path_of("out/m"), &options, &err), err, CKPTFMT_FAIL_MERGE_CONFLICT,
		"MRG-3");
	CHECK(strstr(err.message, "/a and ") != NULL && strstr(err.message, "/b") != NULL);
	CHECK_EQ(strcmp(err.tensor, "x"), 0);
	shell("mkdir -p '%s'/out && echo garbage > '%s'/out/m.index");
	memset(&err, 0, sizeof err);
	CHECK_OK(merge(2, &options), err);
	CHECK(err.status == CKPTFMT_OK && err.message[0] == '\0' && has_result(2));
	CHECK_EQ(unlink(path_of("in/a.data-00000-of-00001")), 0);
	CHECK_EQ(mkfifo(path_of("in/a.data-00000-of-00001"), 0666), 0);
	CHECK_FAILS(merge(2, &options), err, CKPTFMT_FAIL_OS, "NAM-6");
}

/* An input that another process saves again during the merge, having waited for the directory's lock. */
static bool waits;

static void save_again(void)
{
	int fd = open(path_of("in"), O_RDONLY | O_DIRECTORY);
	waits = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0;
	close(fd);
	if (!waits)
		save_to("in/a", "a", 77, -1, 1);
}

static void test_changed_inputs(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	int busy = 0, both = 0, first = 0;
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_status status;
		set_stage(2, false);
		waits = false;
		os_fault_set(&(os_fault_plan){.at = n, .meanwhile = save_again});
		status = merge(2, &options);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		if (waits)
			save_to("in/a", "a", 77, -1, 1);
		if (!hit) {
			CHECK(status == CKPTFMT_OK && has_result(2));
		} else if (status != CKPTFMT_OK) {
			CHECK_EQ(err.failure, CKPTFMT_FAIL_BUSY);
			CHECK(has("in/a", "a", 77) && has("in/b", "b", 2));
			CHECK(access(path_of("out/m.index"), F_OK) != 0);
			busy++;
		} else if (has("out/m", "a", 77)) {
			first++;
		} else {
			/* The merge had the old one, and left the new one alone. */
			CHECK(has_result(2) && has("in/a", "a", 77));
			both++;
		}
	}
	CHECK(busy > 0 && both > 0 && first > 0);
}

static void cut_file(void)
{
	CHECK_EQ(truncate(path_of("in/a.data-00000-of-00001"), 2), 0);
}

/* A data file of an input that is cut in place at any moment, if it is linked up to the last look at it. */
static void test_cut_inputs(bool linked)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	uint64_t last = 0;
	int done = 0, refused = 0;
	for (uint64_t n = 0; n <= last; n++) {
		ckptfmt_status status;
		set_stage(2, false);
		os_fault_log_clear();
		os_fault_set(&(os_fault_plan){.at = n, .meanwhile = cut_file});
		os_system_set(OS_SYSTEM_LINK, 1, linked ? 0 : 1000, EPERM);
		status = merge(2, &options);
		os_fault_clear();
		for (uint64_t i = 0; n == 0 && i < os_fault_log_count(); i++)
			if (!linked || (os_fault_log_at(i)->kind == OS_FAULT_STAT &&
				strstr(os_fault_log_at(i)->name, "m.data-00000") != NULL))
				last = i + 1;
		done += status == CKPTFMT_OK;
		refused += status != CKPTFMT_OK;
		CHECK(status != CKPTFMT_OK || has_result(2));
		CHECK(status == CKPTFMT_OK || access(path_of("out/m.index"), F_OK) != 0);
	}
	CHECK(done > 0 && refused > 0);
}

/* File systems without links, and inputs that lie on another device: copies. */
static void test_without_links(void)
{
	for (int consume = 0; consume < 2; consume++) {
		const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = consume};
		static const int errors[] = {EXDEV, EPERM};
		for (int i = 0; i < 2; i++) {
			set_stage(3, i == 1);
			/* The second file only: what was linked before is taken back. */
			os_system_set(OS_SYSTEM_LINK, 2, 1000, errors[i]);
			CHECK_OK(merge(3, &options), err);
			os_fault_clear();
			CHECK(has_result(3) && has_inputs(3) == !consume);
			CHECK_EQ(count_entries(path_of("out")), 2 + 1 + 3 + i);
		}
	}
}

/* Killed while it copies: the intent lists the copies, so that they are removed and the result gets the same name. */
static void kill_copies(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1};
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		set_stage(2, false);
		os_system_set(OS_SYSTEM_LINK, 1, 1000, EPERM);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		os_system_set(OS_SYSTEM_LINK, 1, 1000, EPERM);
		(void)!merge(2, &options);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK(has_result(2) || has_inputs(2));
		os_system_set(OS_SYSTEM_LINK, 1, 1000, EPERM);
		if (merge(2, &options) != CKPTFMT_OK)
			CHECK(!hit && err.failure == CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND);
		os_fault_clear();
		CHECK(has_result(2));
		CHECK(access(path_of("out/m.data-00001-of-00002"), F_OK) == 0);
	}
}

/* Many inputs, few descriptors. */
static void test_descriptors(void)
{
	enum { COUNT = 300 };
	char name[64];
	const char *prefixes[COUNT];
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	const struct rlimit few = {24, 24};
	struct rlimit before;
	remove_tree(path_of("in"));
	remove_tree(path_of("other"));
	remove_tree(path_of("out"));
	for (int i = 0; i < COUNT; i++) {
		char tensor[16];
		snprintf(tensor, sizeof tensor, "t%d", i);
		snprintf(name, sizeof name, "in/%d/p%d", i % 7, i);
		save_to(name, tensor, (float)i, -1, 1);
		prefixes[i] = strdup(path_of(name));
	}
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &(struct rlimit){few.rlim_cur, before.rlim_max}), 0);
	CHECK_OK(ckptfmt_merge(prefixes, COUNT, path_of("out/m"), &options, &err), err);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
	for (int i = 0; i < COUNT; i++)
		free((void *)(uintptr_t)prefixes[i]);
	CHECK(has("out/m", "t0", 0) && has("out/m", "t299", 299));
	CHECK_EQ(count_entries(path_of("out")), 2 + 1 + COUNT);
}

/* Many inputs: one that is damaged, missing or repeated is named. */
static void test_many_inputs(void)
{
	enum { COUNT = 150, ONE = 70 };
	static char texts[COUNT][512];
	const char *prefixes[COUNT];
	char tensor[16], name[64];
	for (int turn = 0; turn < 6; turn++) {
		const bool missing = turn == 1 || turn == 2, damaged = turn == 3, twice = turn == 4;
		const bool other_place = turn == 5;
		const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1,
			.allow_missing = turn == 2, .durability = CKPTFMT_DURABILITY_NONE};
		ckptfmt_status status;
		remove_tree(path_of("in"));
		remove_tree(path_of("out"));
		for (int i = 0; i < COUNT; i++) {
			snprintf(tensor, sizeof tensor, "t%03d", (i * 7) % COUNT);
			snprintf(name, sizeof name, "in/%d/p%03d", other_place ? i % 3 : 0, i);
			snprintf(texts[i], sizeof texts[i], "%s", path_of(name));
			if (!(missing && i == ONE))
				save_to(name, tensor, (float)i, -1, 1);
			prefixes[i] = texts[twice && i == ONE ? 3 : i];
		}
		if (damaged)
			shell("echo garbage > '%s'/in/0/p070.index");
		status = ckptfmt_merge(prefixes, COUNT, path_of("out/m"), &options, &err);
		if (turn == 1)
			CHECK_FAILS(status, err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, "MRG-1");
		else if (damaged)
			CHECK_EQ(err.failure, CKPTFMT_FAIL_TRUNCATED);
		else if (twice)
			CHECK_FAILS(status, err, CKPTFMT_FAIL_ARGUMENT, "MRG-10");
		else
			CHECK_OK(status, err);
		if (turn == 1 || damaged)
			CHECK(strstr(err.path, "/p070") != NULL);
		CHECK_EQ(memory_fault_live(), 0);
		if (status != CKPTFMT_OK) {
			CHECK(has("in/0/p000", "t000", 0) && has("in/0/p149", "t143", 149));
			CHECK(access(path_of("out"), F_OK) != 0);
			continue;
		}
		for (int i = 0; i < COUNT; i++) {
			snprintf(tensor, sizeof tensor, "t%03d", (i * 7) % COUNT);
			CHECK_EQ(has("out/m", tensor, (float)i), !(missing && i == ONE));
		}
		CHECK_EQ(count_entries(path_of("out")), 2 + 1 + COUNT - missing);
		CHECK_EQ(count_entries(path_of("in/0")), 2);
	}
}

/* ---- indexes of many blocks, which are read again for each pass ---- */

static void name_one(char *name, size_t size, int number, bool early)
{
	/* Keys share much or little with the one before. */
	if (early)
		snprintf(name, size, "%05d%0145d", number, 0);
	else
		snprintf(name, size, "%0150d", number);
}

static void save_many(const char *prefix, int first, int step, int count, bool early)
{
	ckptfmt_write_options options = {.struct_size = sizeof options, .durability = CKPTFMT_DURABILITY_NONE};
	ckptfmt_writer *writer;
	CHECK_OK(ckptfmt_writer_open(path_of(prefix), &options, &writer, &err), err);
	for (int i = 0; i < count; i++) {
		const float value = (float)(first + i * step);
		char name[200];
		ckptfmt_source source;
		name_one(name, sizeof name, first + i * step, early);
		source = one_float(name, &value);
		CHECK_OK(ckptfmt_writer_add(writer, &source, 1, &err), err);
	}
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
}

static void test_many_blocks(bool early)
{
	enum { COUNT = 12000 };
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	char name[200];
	remove_tree(path_of("in"));
	remove_tree(path_of("other"));
	remove_tree(path_of("out"));
	remove_tree(path_of("whole"));
	for (int i = 0; i < 3; i++)
		save_many(input_names[i], i, 3, COUNT, early);
	/* The last key of all is the last input's as well. */
	save_many("one/m", 3 * COUNT - 1, 1, 1, early);
	{
		const char *prefixes[2] = {path_of(input_names[2]), path_of("one/m")};
		CHECK_FAILS(ckptfmt_merge(prefixes, 2, path_of("out/m"), &options, &err), err,
			CKPTFMT_FAIL_MERGE_CONFLICT, "MRG-3");
		CHECK(access(path_of("out"), F_OK) != 0);
	}
	CHECK_OK(merge(3, &options), err);
	for (int i = 0; i < 3 * COUNT; i += 999) {
		name_one(name, sizeof name, i, early);
		CHECK(has("out/m", name, (float)i));
	}
	{
		ckptfmt_reader *reader;
		ckptfmt_header header;
		CHECK_OK(ckptfmt_reader_open(path_of("out/m"), NULL, &reader, &err), err);
		ckptfmt_reader_header(reader, &header);
		CHECK(header.num_shards == 3 && header.block_count > 4);
		ckptfmt_reader_close(reader);
	}
}

/* Names that only the library may give, and one that an input took by other means. */
static void test_links_of_inputs(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	const char *prefix;
	set_stage(1, false);
	/* A destination whose index is a hard link of the input's is another checkpoint. */
	CHECK_EQ(mkdir(path_of("out"), 0777), 0);
	CHECK_EQ(link(path_of("in/a.index"), path_of("out/m.index")), 0);
	CHECK_OK(merge(1, &options), err);
	CHECK(has_result(1) && has_inputs(1));
	prefix = path_of("in/a");
	CHECK_FAILS(ckptfmt_merge(&prefix, 1, path_of("in/../in/a"), &options, &err), err, CKPTFMT_FAIL_ARGUMENT, "MRG-10");
}

/* A symbolic link to an input's data file is not a file that a killed merge moved; a hard link may be. */
static void test_links_to_inputs(bool symbolic)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	char from[64], to[64];
	for (int linked = 1; linked <= 2; linked++) {
		set_stage(2, false);
		CHECK_EQ(mkdir(path_of("out"), 0777), 0);
		for (int i = 0; i < linked; i++) {
			snprintf(from, sizeof from, "%s.data-00000-of-00001", input_names[i]);
			snprintf(to, sizeof to, "out/m.data-%05d-of-00002", i);
			CHECK_EQ(symbolic ? symlink(path_of(from), path_of(to)) : link(path_of(from), path_of(to)), 0);
		}
		CHECK_OK(merge(2, &options), err);
		CHECK(has_result(2) && !has_inputs(1));
		CHECK_EQ(access(path_of("out/m.data-00000-of-00003"), F_OK) == 0, symbolic);
	}
}

int main(void)
{
	if (!make_memory_directory())
		return 2;
	test_large_intent();
	test_taken_numbers();
	test_errors();
	test_changed_inputs();
	test_cut_inputs(true);
	test_cut_inputs(false);
	test_without_links();
	kill_copies();
	test_many_inputs();
	test_descriptors();
	test_many_blocks(false);
	test_many_blocks(true);
	test_links_of_inputs();
	test_links_to_inputs(true);
	test_links_to_inputs(false);
	os_fault_log_clear();
	remove_tree(directory);
	return test_finish("merge_inputs");
}
