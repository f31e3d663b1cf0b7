/* SPDX-License-Identifier: Apache-2.0 */
/* Merges that are killed, that fail, and that meet others: at every moment the inputs or the result can be read, and
 * running the merge again ends in the same bytes as if nothing had happened. Links os_fault.c and memory_fault.c. */
#include "memory_fault.h"
#include "os_fault.h"
#include "test.h"

#include "io/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static char directory[256];
static ckptfmt_error err;

static const char *path_of(const char *name)
{
	static char paths[16][512];
	static int next;
	char *path = paths[next++ % 16];
	snprintf(path, sizeof paths[0], "%s/%s", directory, name);
	return path;
}

static void shell(const char *format)
{
	char command[2048];
	snprintf(command, sizeof command, format, directory, directory, directory, directory);
	CHECK_EQ(system(command), 0);
}

static int count_entries(const char *path)
{
	DIR *dir = opendir(path);
	int count = 0;
	if (dir == NULL)
		return -1;
	while (readdir(dir) != NULL)
		count++;
	closedir(dir);
	return count;
}

/* ---- bundles --------------------------------------------------------------------------------------------- */

/* A float tensor of one element. With `rows` a row of "cut", a [4] tensor of which each input has one. */
static void save_to(const char *prefix, const char *name, float value, int row, uint64_t alignment)
{
	const int64_t dims[1] = {1}, slice[3] = {4, row, 1};
	ckptfmt_write_options options;
	ckptfmt_source sources[2];
	ckptfmt_writer *writer;
	ckptfmt_write_options_default(&options);
	options.alignment = alignment;
	options.durability = CKPTFMT_DURABILITY_NONE;
	memset(sources, 0, sizeof sources);
	for (int i = 0; i < 2; i++) {
		sources[i].name = (const uint8_t *)(i == 0 ? name : "cut");
		sources[i].name_size = strlen(i == 0 ? name : "cut");
		sources[i].dims = dims;
		sources[i].rank = 1;
		sources[i].dtype = CKPTFMT_FLOAT;
		sources[i].data = (const uint8_t *)&value;
	}
	sources[1].slice = slice;
	CHECK_OK(ckptfmt_writer_open(path_of(prefix), &options, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_add(writer, sources, row < 0 ? 1 : 2, &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
}

static ckptfmt_status read_float(const char *prefix, const char *name, float *out)
{
	ckptfmt_reader *reader;
	ckptfmt_selection *selection = NULL;
	const uint64_t size = strlen(name);
	ckptfmt_request request = {0, NULL, (uint8_t *)out, sizeof *out, 0, 0};
	ckptfmt_status status = ckptfmt_reader_open(path_of(prefix), NULL, &reader, &err);
	if (status != CKPTFMT_OK)
		return status;
	status = ckptfmt_reader_select(reader, (const uint8_t *)name, &size, 1, &selection, &err);
	if (status == CKPTFMT_OK)
		status = ckptfmt_reader_read(reader, selection, &request, 1, CKPTFMT_VERIFY_AUTO, &err);
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	return status;
}

static bool has(const char *prefix, const char *name, float value)
{
	float got = -1;
	return read_float(prefix, name, &got) == CKPTFMT_OK && got == value;
}

enum { INPUTS_MAX = 3 };
static const char *const input_names[INPUTS_MAX] = {"in/a", "in/b", "other/c"};
static const char *const tensor_names[INPUTS_MAX] = {"a", "b", "c"};

static void save_inputs(int count)
{
	for (int i = 0; i < count; i++)
		save_to(input_names[i], tensor_names[i], (float)(i + 1), i, 1);
}

static ckptfmt_status merge(int count, const ckptfmt_merge_options *options)
{
	const char *prefixes[INPUTS_MAX];
	for (int i = 0; i < count; i++)
		prefixes[i] = path_of(input_names[i]);
	return ckptfmt_merge(prefixes, (uint64_t)count, path_of("out/m"), options, &err);
}

static bool has_inputs(int count)
{
	for (int i = 0; i < count; i++)
		if (!has(input_names[i], tensor_names[i], (float)(i + 1)))
			return false;
	return true;
}

static bool has_result(int count)
{
	for (int i = 0; i < count; i++)
		if (!has("out/m", tensor_names[i], (float)(i + 1)))
			return false;
	return true;
}

/* ---- killed ---------------------------------------------------------------------------------------------- */

/* The bytes of the result and nothing else: index and the data files that it counts. */
static void keep_result(const char *as)
{
	char command[2048];
	snprintf(command, sizeof command, "cd '%s' && rm -rf %s && mkdir %s && cp out/m.index out/m.data-* %s/",
		directory, as, as, as);
	CHECK_EQ(system(command), 0);
}

/* Sets the stage: the inputs, and at the destination nothing, or an older checkpoint of as many data files as the
 * result would have. */
static void set_stage(int count, bool overwrite)
{
	shell("rm -rf '%s'/in '%s'/other '%s'/out");
	if (overwrite) {
		const char *old[INPUTS_MAX] = {path_of("in/o0"), path_of("in/o1"), path_of("in/o2")};
		const ckptfmt_merge_options consume = {1, 0, CKPTFMT_DURABILITY_NONE, 0, NULL};
		for (int i = 0; i < count; i++) {
			char name[] = {'o', (char)('0' + i), 0}, prefix[] = {'i', 'n', '/', 'o', (char)('0' + i), 0};
			save_to(prefix, name, 9, -1, 1);
		}
		CHECK_OK(ckptfmt_merge(old, (uint64_t)count, path_of("out/m"), &consume, &err), err);
	}
	save_inputs(count);
}

static uint64_t kill_merges(int count, bool consume, bool overwrite, int32_t durability)
{
	const ckptfmt_merge_options options = {consume, 0, durability, 0, NULL};
	uint64_t points = 0;
	int files;
	bool hit = true;
	set_stage(count, overwrite);
	CHECK_OK(merge(count, &options), err);
	CHECK(has_result(count) && has_inputs(count) == !consume);
	keep_result("whole");
	files = count_entries(path_of("whole"));
	for (uint64_t n = 1; hit; n++) {
		set_stage(count, overwrite);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!merge(count, &options);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		points += hit;
		CHECK(has_result(count) || has_inputs(count));
		if (overwrite)
			CHECK(has("out/m", "o0", 9) || has_result(count));
		/* After the last call all is done, and a merge of inputs that are gone is a mistake. */
		if (merge(count, &options) != CKPTFMT_OK)
			CHECK(err.failure == CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND && consume &&
				access(path_of("out/m.merge-journal"), F_OK) != 0);
		CHECK(has_result(count));
		CHECK_EQ(has_inputs(count), !consume);
		CHECK(access(path_of("out/m.merge-journal"), F_OK) != 0);
		shell("cd '%s' && for f in whole/*; do cmp $f out/${f#whole/} || exit 1; done");
		keep_result("again");
		/* A generation that was replaced may be left where the kill came between rename and removal. */
		if (!overwrite)
			CHECK_EQ(count_entries(path_of("again")), files);
		if (consume)
			shell("test -z \"$(ls -A '%s'/in)\"");
	}
	return points;
}

/* ---- failing --------------------------------------------------------------------------------------------- */

static void fail_merges(int os_errno, bool forever, bool after)
{
	const ckptfmt_merge_options options = {1, 0, CKPTFMT_DURABILITY_FULL, 0, NULL};
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_status status;
		int files, fds = count_entries("/proc/self/fd");
		set_stage(2, true);
		files = count_entries(path_of("out"));
		os_fault_set(&(os_fault_plan){.at = n, .forever = forever, .after = after, .os_errno = os_errno});
		status = merge(2, &options);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		CHECK_EQ(count_entries("/proc/self/fd"), fds);
		if (status == CKPTFMT_OK) {
			CHECK(has_result(2));
		} else if (err.failure != CKPTFMT_FAIL_DURABILITY_UNKNOWN) {
			CHECK(err.message[0] != '\0' && err.path[0] != '\0');
			CHECK(has_inputs(2) && (has("out/m", "o0", 9) || has_result(2)));
			/* A journal without its result may stay, and one file that could not be removed. */
			if (!forever)
				CHECK(count_entries(path_of("out")) <= files + 2);
		} else {
			CHECK(has_inputs(2) && (has_result(2) || has("out/m", "o0", 9)));
		}
		if (has_inputs(2))
			CHECK_OK(merge(2, &options), err);
		CHECK(has_result(2));
	}
}

static void fail_allocations(void)
{
	const ckptfmt_merge_options options = {1, 0, CKPTFMT_DURABILITY_NONE, 0, NULL};
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_status status;
		set_stage(3, false);
		memory_fault_set(n, false);
		status = merge(3, &options);
		hit = memory_fault_hits() != 0;
		memory_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		if (status != CKPTFMT_OK) {
			CHECK_EQ(err.status, CKPTFMT_NO_MEMORY);
			CHECK(has_inputs(3));
			CHECK_OK(merge(3, &options), err);
		}
		CHECK(has_result(3));
	}
}

/* ---- others ---------------------------------------------------------------------------------------------- */

/* A merge that was killed while its inputs went, and then is run with another list: what was merged is only at the
 * destination now. */
static void test_resume_with_others(void)
{
	const ckptfmt_merge_options options = {1, 1, CKPTFMT_DURABILITY_FULL, 0, NULL};
	bool hit = true;
	int refused = 0;
	for (uint64_t n = 1; hit; n++) {
		set_stage(3, false);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!merge(2, &options);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		if (has_inputs(2) || access(path_of("out/m.merge-journal"), F_OK) != 0)
			continue;
		CHECK_FAILS(merge(3, &options), err, CKPTFMT_FAIL_MERGE_CONFLICT, "MRG-14");
		CHECK(has_result(2) && has("other/c", "c", 3));
		refused++;
		/* The same list again is right, and saving them anew is a new beginning. */
		if (n % 2 == 0) {
			CHECK_OK(merge(2, &options), err);
			CHECK(has_result(2));
		} else {
			save_inputs(2);
			CHECK_OK(merge(3, &options), err);
			CHECK(has_result(3));
		}
		CHECK(access(path_of("out/m.merge-journal"), F_OK) != 0);
	}
	CHECK(refused >= 2);
}

/* The same list again, where one input went and the other was saved again; and with the first one twice. */
static void test_resume_of_a_part(void)
{
	const ckptfmt_merge_options options = {1, 1, CKPTFMT_DURABILITY_FULL, 0, NULL};
	const char *twice[2];
	bool hit = true;
	int parts = 0;
	for (uint64_t n = 1; hit; n++) {
		set_stage(2, false);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!merge(2, &options);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		if (access(path_of("in/a.index"), F_OK) == 0 || access(path_of("in/b.index"), F_OK) != 0)
			continue;
		parts++;
		CHECK(has_result(2));
		twice[0] = path_of("in/a");
		twice[1] = path_of("in/a");
		CHECK_FAILS(ckptfmt_merge(twice, 2, path_of("out/m"), &options, &err), err,
			CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, "MRG-1");
		CHECK(has_result(2) && access(path_of("out/m.merge-journal"), F_OK) == 0);
		save_to("in/b", "b", 7, 1, 1);
		CHECK_FAILS(merge(2, &options), err, CKPTFMT_FAIL_MERGE_CONFLICT, "MRG-14");
		CHECK(has_result(2) && has("in/b", "b", 7));
		/* Spelled otherwise they are the same. */
		twice[0] = path_of("in/../in/a");
		twice[1] = path_of("in/../in/b");
		CHECK_FAILS(ckptfmt_merge(twice, 2, path_of("out/m"), &options, &err), err, CKPTFMT_FAIL_MERGE_CONFLICT,
			"MRG-14");
		{
			/* Inputs that stay do not make it better. */
			const ckptfmt_merge_options keep = {0, 1, CKPTFMT_DURABILITY_FULL, 0, NULL};
			CHECK_FAILS(merge(2, &keep), err, CKPTFMT_FAIL_MERGE_CONFLICT, "MRG-14");
		}
		save_inputs(2);
		CHECK_OK(merge(2, &options), err);
		CHECK(has_result(2) && access(path_of("out/m.merge-journal"), F_OK) != 0);
	}
	CHECK(parts >= 2);
}

/* The result of a merge that was killed lost its bytes: nothing is removed for it. */
static void test_resume_without_the_bytes(void)
{
	const ckptfmt_merge_options options = {1, 0, CKPTFMT_DURABILITY_FULL, 0, NULL};
	set_stage(2, false);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_UNLINK, .at = 1, .crash = true});
	(void)!merge(2, &options);
	os_fault_clear();
	CHECK(has_inputs(2) && access(path_of("out/m.merge-journal"), F_OK) == 0);
	/* As copies that were not synced might be. */
	shell("cd '%s'/out && rm m.data-00001-of-00002 && : > m.data-00001-of-00002");
	CHECK_OK(merge(2, &options), err);
	CHECK(has_result(2) && !has_inputs(1));
}

/* The same merge at the same time: whichever comes first, all is in the result. */
static bool merged_meanwhile;

static void merge_meanwhile(void)
{
	const ckptfmt_merge_options options = {1, 1, CKPTFMT_DURABILITY_NONE, 0, NULL};
	const char *const directories[3] = {"in", "other", "out"};
	ckptfmt_error kept = err;
	merged_meanwhile = true;
	for (int i = 0; i < 3; i++) {
		int fd = open(path_of(directories[i]), O_RDONLY | O_DIRECTORY);
		merged_meanwhile = merged_meanwhile && (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0);
		close(fd);
	}
	if (merged_meanwhile)
		CHECK_OK(merge(2, &options), err);
	err = kept;
}

static void test_twice_at_once(void)
{
	const ckptfmt_merge_options options = {1, 1, CKPTFMT_DURABILITY_FULL, 0, NULL};
	bool hit = true;
	int busy = 0;
	for (uint64_t n = 1; hit; n++) {
		set_stage(2, false);
		merged_meanwhile = false;
		os_fault_set(&(os_fault_plan){.at = n, .meanwhile = merge_meanwhile});
		if (merge(2, &options) != CKPTFMT_OK) {
			CHECK(merged_meanwhile);
			CHECK(err.failure == CKPTFMT_FAIL_BUSY || err.failure == CKPTFMT_FAIL_MERGE_CONFLICT ||
				err.failure == CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND);
			busy++;
		}
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK(has_result(2));
		CHECK(access(path_of("out/m.merge-journal"), F_OK) != 0);
	}
	CHECK(busy > 0);
}

/* A merge of other inputs that is killed before it commits leaves the journal in force alone. */
static void test_journal_of_another(void)
{
	const ckptfmt_merge_options options = {1, 0, CKPTFMT_DURABILITY_FULL, 0, NULL};
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		const char *other = path_of("other/c");
		set_stage(3, false);
		/* Killed when the second input goes. */
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_UNLINK, .at = 3, .crash = true});
		(void)!merge(2, &options);
		os_fault_clear();
		CHECK(!has("in/a", "a", 1) && has("in/b", "b", 2) && has_result(2));
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!ckptfmt_merge(&other, 1, path_of("out/m"), &options, &err);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		if (has_result(2)) {
			CHECK_OK(merge(2, &options), err);
			CHECK(has_result(2) && !has_inputs(1) && has("other/c", "c", 3));
		} else {
			CHECK(has("out/m", "c", 3));
		}
	}
}

/* What is no journal is not read whole. */
static void test_large_journal(void)
{
	const ckptfmt_merge_options options = {1, 0, CKPTFMT_DURABILITY_NONE, 0, NULL};
	set_stage(2, false);
	shell("mkdir '%s'/out && truncate -s 20G '%s'/out/m.merge-journal && printf 'ckptfmt merge 1\n' | "
		"dd of='%s'/out/m.merge-journal conv=notrunc status=none");
	CHECK_OK(merge(2, &options), err);
	CHECK(has_result(2) && !has_inputs(1));
	set_stage(2, false);
	CHECK_EQ(mkdir(path_of("out"), 0777), 0);
	CHECK_EQ(mkfifo(path_of("out/m.merge-journal"), 0666), 0);
	CHECK_OK(merge(2, &options), err);
	CHECK(has_result(2) && !has_inputs(1));
}

/* Many generations in the way: quick, and an end to it. */
static void test_taken_numbers(void)
{
	const ckptfmt_merge_options options = {0, 0, CKPTFMT_DURABILITY_NONE, 0, NULL};
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
	const ckptfmt_merge_options options = {0, 0, CKPTFMT_DURABILITY_NONE, 0, NULL};
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

/* A journal that is damaged, or of another index, is none. */
static void test_bad_journal(void)
{
	const ckptfmt_merge_options options = {1, 0, CKPTFMT_DURABILITY_NONE, 0, NULL};
	for (int byte = 0; byte < 400; byte += 7) {
		set_stage(2, false);
		/* Killed when the first input goes. */
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_UNLINK, .at = 1, .crash = true});
		(void)!merge(2, &options);
		os_fault_clear();
		CHECK(has_result(2) && has_inputs(2));
		{
			int fd = open(path_of("out/m.merge-journal"), O_RDWR);
			uint8_t value;
			CHECK(fd >= 0);
			if (pread(fd, &value, 1, byte) == 1) {
				value ^= 0x10;
				CHECK_EQ(pwrite(fd, &value, 1, byte), 1);
			}
			close(fd);
		}
		CHECK_OK(merge(2, &options), err);
		CHECK(has_result(2) && !has_inputs(1));
	}
}

/* An input that is saved again while it is being merged, by somebody who waits for the directory's lock. */
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
	const ckptfmt_merge_options options = {1, 0, CKPTFMT_DURABILITY_NONE, 0, NULL};
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

/* File systems without links, and inputs that lie on another device: copies. */
static void test_without_links(void)
{
	for (int consume = 0; consume < 2; consume++) {
		const ckptfmt_merge_options options = {consume, 0, CKPTFMT_DURABILITY_FULL, 0, NULL};
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

/* Many inputs, few descriptors. */
static void test_descriptors(void)
{
	enum { COUNT = 300 };
	char name[64];
	const char *prefixes[COUNT];
	const ckptfmt_merge_options options = {1, 0, CKPTFMT_DURABILITY_NONE, 0, NULL};
	const struct rlimit few = {24, 24};
	struct rlimit before;
	shell("rm -rf '%s'/in '%s'/other '%s'/out");
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

/* Indexes of many blocks, which are read again for each pass. */
static void save_many(const char *prefix, int first, int step, int count)
{
	ckptfmt_write_options options;
	ckptfmt_writer *writer;
	ckptfmt_write_options_default(&options);
	options.durability = CKPTFMT_DURABILITY_NONE;
	CHECK_OK(ckptfmt_writer_open(path_of(prefix), &options, &writer, &err), err);
	for (int i = 0; i < count; i++) {
		static const int64_t dims[1] = {1};
		char name[200];
		const float value = (float)(first + i * step);
		ckptfmt_source source;
		memset(&source, 0, sizeof source);
		snprintf(name, sizeof name, "%0150d", first + i * step);
		source.name = (const uint8_t *)name;
		source.name_size = strlen(name);
		source.dims = dims;
		source.rank = 1;
		source.dtype = CKPTFMT_FLOAT;
		source.data = (const uint8_t *)&value;
		CHECK_OK(ckptfmt_writer_add(writer, &source, 1, &err), err);
	}
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
}

static void test_many_blocks(void)
{
	enum { COUNT = 12000 };
	const ckptfmt_merge_options options = {1, 0, CKPTFMT_DURABILITY_NONE, 0, NULL};
	char name[200];
	shell("rm -rf '%s'/in '%s'/other '%s'/out '%s'/whole");
	for (int i = 0; i < 3; i++)
		save_many(input_names[i], i, 3, COUNT);
	save_many("one/m", 0, 1, 3 * COUNT);
	CHECK_OK(merge(3, &options), err);
	for (int i = 0; i < 3 * COUNT; i += 999) {
		snprintf(name, sizeof name, "%0150d", i);
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
	const ckptfmt_merge_options options = {0, 0, CKPTFMT_DURABILITY_NONE, 0, NULL};
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

int main(void)
{
	const char *parent = getenv("TMPDIR");
	uint64_t points = 0;
	snprintf(directory, sizeof directory, "%s/ckptfmt-test-XXXXXX", parent != NULL ? parent : "/tmp");
	if (mkdtemp(directory) == NULL) {
		perror("mkdtemp");
		return 2;
	}
	points += kill_merges(2, true, false, CKPTFMT_DURABILITY_FULL);
	printf("kill points of a merge of two inputs: %llu\n", (unsigned long long)points);
	kill_merges(2, false, false, CKPTFMT_DURABILITY_FULL);
	kill_merges(2, true, true, CKPTFMT_DURABILITY_FULL);
	kill_merges(2, false, true, CKPTFMT_DURABILITY_RENAME);
	kill_merges(3, true, true, CKPTFMT_DURABILITY_NONE);
	fail_merges(EIO, false, false);
	fail_merges(ENOSPC, true, false);
	fail_merges(EIO, false, true);
	fail_allocations();
	test_resume_with_others();
	test_resume_of_a_part();
	test_resume_without_the_bytes();
	test_twice_at_once();
	test_journal_of_another();
	test_large_journal();
	test_taken_numbers();
	test_errors();
	test_bad_journal();
	test_changed_inputs();
	test_without_links();
	test_descriptors();
	test_many_blocks();
	test_links_of_inputs();
	os_fault_log_clear();
	shell("rm -rf '%s'");
	return test_finish("merge");
}
