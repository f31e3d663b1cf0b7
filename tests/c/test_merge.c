/* SPDX-License-Identifier: Apache-2.0 */
/* Merges that are killed or that fail: at every moment the inputs or the result can be read, and running the merge
 * again ends in the same bytes as if nothing had happened. Links os_fault.c and memory_fault.c. */
#include "memory_fault.h"
#include "merge_stage.h"
#include "os_fault.h"
#include "proofs.h"

#include "base/bytes.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

/* ---- killed ---------------------------------------------------------------------------------------------- */

static uint64_t kill_merges(int count, bool consume, bool overwrite, int32_t durability)
{
	const bool directories = consume && !overwrite;
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = consume,
		.durability = durability, .remove_directories = directories};
	uint64_t points = 0;
	bool hit = true;
	set_stage(count, overwrite);
	CHECK_OK(merge(count, &options), err);
	CHECK(has_result(count) && has_inputs(count) == !consume);
	shell("rm -rf '%s'/whole && cd '%s' && mkdir whole && cp out/m.index out/m.data-* whole/");
	for (uint64_t n = 1; hit; n++) {
		set_stage(count, overwrite);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!merge(count, &options);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		points += hit;
		CHECK(has_result(count) || has_inputs(count));
		check_proofs(path_of("out"), "m");
		if (overwrite)
			CHECK(has("out/m", "o0", 9) || has_result(count));
		/* One that was killed is finished. After one that ended, a merge of inputs that are gone is a mistake. */
		if (merge(count, &options) != CKPTFMT_OK)
			CHECK(!hit && consume && err.failure == CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND);
		CHECK(has_result(count));
		if (!consume)
			check_no_orphans(path_of("out"), "m");
		CHECK_EQ(has_inputs(count), !consume);
		CHECK(access(path_of("out/m.merge-intent"), F_OK) != 0);
		CHECK(holds_same_files("out", "whole"));
		/* A generation that was replaced may be left where the kill came between rename and removal. */
		if (!overwrite)
			CHECK(holds_same_files("whole", "out"));
		if (directories)
			CHECK(access(path_of("in"), F_OK) != 0);
		else if (consume)
			CHECK(rmdir(path_of("in")) == 0);
	}
	return points;
}

/* ---- a save of four shards ------------------------------------------------------------------------------- */

enum { SHARDS = 4 };

/* As savers do it: parts in a directory of their own, then the merge. `run` makes that directory's name. */
static ckptfmt_status save_shards(int run, float value)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1};
	const ckptfmt_write_options write = {.struct_size = sizeof write, .durability = CKPTFMT_DURABILITY_RENAME};
	const char *prefixes[SHARDS];
	char name[64];
	for (int i = 0; i < SHARDS; i++) {
		const int64_t slice[3] = {SHARDS, i, 1};
		const char tensor[2] = {(char)('a' + i), '\0'};
		ckptfmt_source sources[2] = {one_float(tensor, &value), one_float("cut", &value)};
		sources[1].slice = slice;
		snprintf(name, sizeof name, "out/s_temp_%d/part-%05d-of-%05d", run, i, SHARDS);
		prefixes[i] = path_of(name);
		if (save_sources(prefixes[i], &write, sources, 2, &err) != CKPTFMT_OK)
			return err.status;
	}
	return ckptfmt_merge(prefixes, SHARDS, path_of("out/s"), &options, &err);
}

static bool has_save(float value)
{
	return has("out/s", "a", value) && has("out/s", "b", value) && has("out/s", "c", value) && has("out/s", "d", value);
}

static uint64_t kill_saves(bool overwrite)
{
	uint64_t points = 0;
	bool hit = true;
	remove_tree(path_of("out"));
	if (overwrite)
		CHECK_OK(save_shards(0, 1), err);
	CHECK_OK(save_shards(1, 2), err);
	shell("rm -rf '%s'/whole && cd '%s' && mkdir whole && cp out/s.index out/s.data-* whole/");
	for (uint64_t n = 1; hit; n++) {
		remove_tree(path_of("out"));
		if (overwrite)
			CHECK_OK(save_shards(0, 1), err);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!save_shards(1, 2);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		points += hit;
		check_proofs(path_of("out"), "s");
		CHECK(has_save(2) || (overwrite ? has_save(1) : access(path_of("out/s.index"), F_OK) != 0));
		/* The next save, under other temporary names, is the one that was not killed: bytes and all, if the killed one
		 * had not come to the commit. */
		if (!has_save(2)) {
			CHECK_OK(save_shards(2, 2), err);
			CHECK(holds_same_files("out", "whole"));
		} else {
			CHECK_OK(save_shards(2, 2), err);
		}
		CHECK(has_save(2));
		check_no_orphans(path_of("out"), "s");
	}
	return points;
}

/* ---- failing --------------------------------------------------------------------------------------------- */

static void fail_merges(int os_errno, bool forever, bool after)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1};
	bool hit = true, committed = false;
	int not_removed = 0;
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
		} else if (err.failure == CKPTFMT_FAIL_NOT_REMOVED) {
			CHECK(has_result(2) && err.message[0] != '\0' && strstr(err.path, "/in/") != NULL);
			not_removed++;
			CHECK_OK(merge(2, &options), err);
			CHECK(rmdir(path_of("in")) == 0);
		} else if (err.failure != CKPTFMT_FAIL_DURABILITY_UNKNOWN) {
			CHECK(err.message[0] != '\0' && err.path[0] != '\0');
			CHECK(has_inputs(2) && has("out/m", "o0", 9) != has_result(2));
			/* One fault stops what comes after it: from the one on that came after the commit, the result. */
			CHECK(!committed || has_result(2));
			committed = !forever && has_result(2);
			/* An intent may stay, and one file that could not be removed. */
			if (!forever)
				CHECK(count_entries(path_of("out")) <= files + 2);
		} else {
			CHECK(has_inputs(2) && has_result(2) != has("out/m", "o0", 9));
		}
		if (has_inputs(2))
			CHECK_OK(merge(2, &options), err);
		CHECK(has_result(2));
	}
	/* The data file and the index of each input, at least. */
	CHECK(not_removed >= 4);
}

static void fail_allocations(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
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
			CHECK(err.status == CKPTFMT_NO_MEMORY ? has_inputs(3) : has_result(3));
			CHECK(err.status == CKPTFMT_NO_MEMORY || err.failure == CKPTFMT_FAIL_NOT_REMOVED);
			CHECK_OK(merge(3, &options), err);
			CHECK(!has_inputs(1));
		}
		CHECK(has_result(3));
	}
}

/* ---- others ---------------------------------------------------------------------------------------------- */

/* A merge that was killed while its inputs went, and then is run with another list: what was merged is only at the
 * destination now. */
static void test_resume_with_others(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1,
		.consume = 1, .allow_missing = 1};
	bool hit = true;
	int refused = 0;
	for (uint64_t n = 1; hit; n++) {
		set_stage(3, false);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!merge(2, &options);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		if (has_inputs(2) || access(path_of("out/m.merge-intent"), F_OK) != 0)
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
		CHECK(access(path_of("out/m.merge-intent"), F_OK) != 0);
	}
	CHECK(refused >= 2);
}

/* The same list again, where one input went and the other was saved again; and with the first one twice. */
static void test_resume_of_a_part(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1,
		.consume = 1, .allow_missing = 1};
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
		CHECK(has_result(2) && access(path_of("out/m.merge-intent"), F_OK) == 0);
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
			const ckptfmt_merge_options keep = {.struct_size = sizeof keep, .partial = 1, .allow_missing = 1};
			CHECK_FAILS(merge(2, &keep), err, CKPTFMT_FAIL_MERGE_CONFLICT, "MRG-14");
		}
		save_inputs(2);
		CHECK_OK(merge(2, &options), err);
		CHECK(has_result(2) && access(path_of("out/m.merge-intent"), F_OK) != 0);
	}
	CHECK(parts >= 2);
}

/* The result of a merge that was killed lost its bytes, or has a symbolic link to an input instead: nothing is removed
 * for it. */
static void test_resume_without_the_bytes(const char *change)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1};
	set_stage(2, false);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_UNLINK, .at = 1, .crash = true});
	(void)!merge(2, &options);
	os_fault_clear();
	CHECK(has_inputs(2) && access(path_of("out/m.merge-intent"), F_OK) == 0);
	/* As copies that were not synced might be. */
	shell(change);
	CHECK_OK(merge(2, &options), err);
	CHECK(has_result(2) && !has_inputs(1));
}

/* The same merge at the same time: whichever comes first, all is in the result. */
static bool merged_meanwhile;

static void merge_meanwhile(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1,
		.consume = 1, .allow_missing = 1, .durability = CKPTFMT_DURABILITY_NONE};
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
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1,
		.consume = 1, .allow_missing = 1};
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
		CHECK(access(path_of("out/m.merge-intent"), F_OK) != 0);
	}
	CHECK(busy > 0);
}

/* A merge of other inputs that is killed before it commits keeps the intent in force. */
static void test_intent_of_another(void)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1};
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

/* Changes a byte of the intent, or cuts it there; with `repair` its size and checksum agree again. False: it is
 * shorter. */
static bool damage_intent(size_t at, bool cut, bool repair)
{
	uint8_t bytes[1024];
	FILE *file = fopen(path_of("out/m.merge-intent"), "r+b");
	size_t size = file == NULL ? 0 : fread(bytes, 1, sizeof bytes, file);
	CHECK(size > 28 && size < sizeof bytes);
	if (at >= size - 4) {
		fclose(file);
		return false;
	}
	if (cut)
		size = at + 4;
	else
		bytes[at] = bytes[at] == 0xff ? 0 : 0xff;
	if (repair && size >= 28) {
		if (cut)
			cf_store_u64(bytes + 16, size);
		cf_store_u32(bytes + size - 4, ckptfmt_crc32c(0, bytes, size - 4));
	}
	rewind(file);
	CHECK(fwrite(bytes, 1, size, file) == size && ftruncate(fileno(file), (off_t)size) == 0);
	fclose(file);
	return true;
}

/* A damaged intent is ignored. One that somebody forged can at most stop the merge that finds it, or remove inputs
 * whose tensors the result has. */
static void test_bad_intent(bool cut, bool repair)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1, .consume = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	for (size_t at = 0;; at++) {
		set_stage(2, false);
		save_to("other/c", "c", 3, 2, 1);
		/* Killed when the first input goes. */
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_UNLINK, .at = 1, .crash = true});
		(void)!merge(2, &options);
		os_fault_clear();
		CHECK(has_result(2) && has_inputs(2));
		if (!damage_intent(at, cut, repair))
			break;
		if (merge(2, &options) == CKPTFMT_OK)
			CHECK(!has_inputs(1));
		else
			CHECK(repair && err.failure == CKPTFMT_FAIL_MERGE_CONFLICT);
		CHECK(has_result(2) && has("other/c", "c", 3));
		CHECK_EQ(memory_fault_live(), 0);
	}
}

/* A writer that runs out of memory among many data files of others leaks nothing. */
static ckptfmt_status save_one(void)
{
	const float value = 1;
	const ckptfmt_write_options options = {.struct_size = sizeof options, .durability = CKPTFMT_DURABILITY_NONE};
	const ckptfmt_source source = one_float("a", &value);
	return save_sources(path_of("out/m"), &options, &source, 1, &err);
}

static void test_saves_without_memory(void)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_status status;
		shell("rm -rf '%s'/out && mkdir '%s'/out && cd '%s'/out && for i in $(seq -w 0 99); do "
			": > m.data-000$i-of-00100; : > m.data-000$i-of-00001; done");
		memory_fault_set(n, false);
		status = save_one();
		hit = memory_fault_hits() != 0;
		memory_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		CHECK(status == CKPTFMT_OK || err.status == CKPTFMT_NO_MEMORY);
	}
	CHECK(has("out/m", "a", 1));
}

/* NULL is not a prefix. */
static void test_null(void)
{
	ckptfmt_merge_options options = {.struct_size = sizeof options, .partial = 1,
		.durability = CKPTFMT_DURABILITY_NONE};
	const char *none = NULL, *one = path_of("in/a"), *two[2] = {one, path_of("in/missing")};
	ckptfmt_writer *writer;
	set_stage(1, false);
	CHECK_EQ(ckptfmt_writer_open(NULL, NULL, &writer, &err), CKPTFMT_INVALID);
	CHECK_EQ(ckptfmt_merge(&one, 1, NULL, &options, &err), CKPTFMT_INVALID);
	CHECK_EQ(ckptfmt_merge(&none, 1, path_of("out/m"), &options, &err), CKPTFMT_INVALID);
	for (options.metadata_from = -1; options.metadata_from <= 2; options.metadata_from += 3)
		CHECK_FAILS(merge(1, &options), err, CKPTFMT_FAIL_ARGUMENT, "metadata_from must be 0 to 1");
	options.metadata_from = 2;
	options.allow_missing = 1;
	CHECK_FAILS(ckptfmt_merge(two, 2, path_of("out/m"), &options, &err), err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND,
		"the input whose metadata");
	CHECK(access(path_of("out"), F_OK) != 0);
}

/* Without `partial`, nothing changes if a part is missing. */
static void test_incomplete(void)
{
	for (int consume = 0; consume < 2; consume++) {
		const ckptfmt_merge_options options = {.struct_size = sizeof options, .consume = consume};
		set_stage(2, false);
		CHECK_FAILS(merge(2, &options), err, CKPTFMT_FAIL_BAD_SLICE,
			"SLC-11: 2 of the 4 elements are missing, the first in [2:4]");
		CHECK(err.tensor_size == 3 && memcmp(err.tensor, "cut", 3) == 0);
		CHECK(has_inputs(2) && access(path_of("out"), F_OK) != 0);
	}
	/* Killed when the first input goes: the result is in place, and what finishes the merge does not look again. */
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_UNLINK, .at = 1, .crash = true});
	(void)!merge(2, &(ckptfmt_merge_options){.struct_size = sizeof(ckptfmt_merge_options), .consume = 1, .partial = 1});
	os_fault_clear();
	CHECK(has_result(2) && has_inputs(2));
	CHECK_OK(merge(2, &(ckptfmt_merge_options){.struct_size = sizeof(ckptfmt_merge_options), .consume = 1}), err);
	CHECK(has_result(2) && !has_inputs(1));
}

int main(void)
{
	if (!make_memory_directory())
		return 2;
	printf("kill points of a merge of two inputs: %llu\n",
		(unsigned long long)kill_merges(2, true, false, CKPTFMT_DURABILITY_FULL));
	printf("kill points of a save of four shards: %llu\n", (unsigned long long)kill_saves(false));
	printf("kill points of one that replaces another: %llu\n", (unsigned long long)kill_saves(true));
	kill_merges(2, false, false, CKPTFMT_DURABILITY_FULL);
	kill_merges(2, true, true, CKPTFMT_DURABILITY_FULL);
	kill_merges(2, false, true, CKPTFMT_DURABILITY_RENAME);
	kill_merges(3, true, true, CKPTFMT_DURABILITY_NONE);
	fail_merges(EIO, false, false);
	fail_merges(ENOSPC, true, false);
	fail_merges(EIO, false, true);
	test_null();
	test_incomplete();
	test_saves_without_memory();
	fail_allocations();
	test_resume_with_others();
	test_resume_of_a_part();
	test_resume_without_the_bytes("cd '%s'/out && rm m.data-00001-of-00002 && : > m.data-00001-of-00002");
	test_resume_without_the_bytes("cd '%s'/out && ln -sf ../in/b.data-00000-of-00001 m.data-00001-of-00002");
	test_twice_at_once();
	test_intent_of_another();
	for (int kind = 0; kind < 4; kind++)
		test_bad_intent(kind & 1, kind & 2);
	os_fault_log_clear();
	remove_tree(directory);
	return test_finish("merge");
}
