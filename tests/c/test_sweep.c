/* SPDX-License-Identifier: Apache-2.0 */
/* The remover of CMT-15 where the system fails, and what a save removes before it begins. tests/manager/test_sweep.py
 * has the rules on names and locks. */
#include "base/error.h"
#include "memory_fault.h"
#include "os_fault.h"
#include "scratch.h"
#include "sources.h"
#include "ckptfmt_unstable.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

#define HEX "a123456789abcdef"

static ckptfmt_error err;
static int here;                /* the directory */

static int file_count(void)
{
	return count_entries(directory) - 2;
}

static void save(const char *prefix)
{
	ckptfmt_write_options options = {.struct_size = sizeof options, .durability = CKPTFMT_DURABILITY_NONE};
	const uint8_t byte = 1;
	ckptfmt_source source = source_of("x", CKPTFMT_UINT8, 0, NULL, &byte);
	CHECK_OK(save_sources(path_of(prefix), &options, &source, 1, &err), err);
}

/* What a writer that was killed before its commit leaves: a data file, the index that proves it, and an intent. */
static void leave(void)
{
	empty_tree(directory);
	save("ck");
	shell("cd '%s' && mv ck.index ck.index.tempstate" HEX " && touch ck.merge-intent");
}

/* The temporary directory of a killed save, with two parts. */
static void leave_directory(void)
{
	empty_tree(directory);
	save("part-00000-of-00001");
	shell("cd '%s' && mkdir ck_temp_" HEX " && touch ck_temp_" HEX "/writer.lock && mv part-* ck_temp_" HEX);
}

/* The number of names that are removed. */
static int sweep_all(int32_t sync)
{
	ckptfmt_strings *gone;
	uint64_t size;
	int count = 0;
	CHECK_OK(ckptfmt_sweep(here, directory, NULL, CKPTFMT_SWEEP_ALL, 0, sync, &gone, &err), err);
	while (ckptfmt_strings_at(gone, (uint64_t)count, &size) != NULL)
		count++;
	ckptfmt_strings_free(gone);
	return count;
}

/* While the proof exists, another remover can continue. */
static void be_killed(void)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		leave();
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_UNLINK, .at = n, .crash = true});
		(void)sweep_all(0);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK(!hit || access(path_of("ck.index.tempstate" HEX), F_OK) == 0);
		(void)sweep_all(0);
		CHECK_EQ(file_count(), 0);
	}
}

static void fail_to_remove(void)
{
	for (uint64_t n = 1; n <= 2; n++) {
		leave();
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_UNLINK, .at = n, .os_errno = EACCES});
		CHECK_EQ(sweep_all(0), 1);
		os_fault_clear();
		CHECK_EQ(sweep_all(0), 2);
		CHECK_EQ(file_count(), 0);
	}
	/* The lock of a temporary directory, and the directory: another process has come. */
	for (uint64_t n = 1; n <= 4; n++) {
		leave_directory();
		os_system_set(OS_SYSTEM_UNLINK, n, 1, ENOTEMPTY);
		CHECK_EQ(sweep_all(0), 0);
		os_fault_clear();
		CHECK_EQ(file_count(), 1);
		CHECK_EQ(sweep_all(0), 1);
		CHECK_EQ(file_count(), 0);
	}
}

/* Nothing is removed where locks show nothing, or where a file cannot be examined. */
static void see_no_locks(void)
{
	static const int numbers[4] = {ENOLCK, EOPNOTSUPP, ENOSYS, EBADF};
	for (int i = 0; i < 4; i++) {
		leave();
		os_system_set(OS_SYSTEM_FLOCK, 1, UINT64_MAX, numbers[i]);
		CHECK_EQ(sweep_all(0), 0);
		save("ck");
		os_fault_clear();
		CHECK_EQ(file_count(), 3 + 3);
	}
	for (int i = 0; i < 2; i++) {
		leave();
		os_system_set(OS_SYSTEM_FSTATFS, 1, 2, EIO);
		CHECK_EQ(sweep_all(0), 0);
		os_fault_clear();
		CHECK_EQ(file_count(), 3);
	}
	int system = open("/proc", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK_EQ(ckptfmt_file_system_is_local(system), 0);
	CHECK_EQ(ckptfmt_file_system_is_local(here), 1);
	close(system);
	CHECK_EQ(ckptfmt_file_system_is_local(-1), 0);
}

static uint64_t first_of(os_fault_kind kind, const char *name)
{
	for (uint64_t at = 0; at < os_fault_log_count(); at++)
		if (os_fault_log_at(at)->kind == kind && (name == NULL || strcmp(os_fault_log_at(at)->name, name) == 0))
			return at;
	return UINT64_MAX;
}

/* A power cut must not bring back an index whose data files are gone. */
static void order(void)
{
	for (int32_t sync = 0; sync < 2; sync++) {
		leave();
		os_fault_log_clear();
		CHECK_EQ(sweep_all(sync), 3);
		CHECK_EQ(os_fault_log_count_of(OS_FAULT_DIRECTORY_SYNC), (uint64_t)sync);
		CHECK(!sync || first_of(OS_FAULT_DIRECTORY_SYNC, NULL) < first_of(OS_FAULT_UNLINK, NULL));
		CHECK(first_of(OS_FAULT_UNLINK, "ck.data-00000-of-00001") <
			first_of(OS_FAULT_UNLINK, "ck.index.tempstate" HEX));
	}
}

static void add_part(void)
{
	shell("touch '%s'/ck_temp_" HEX "/part-00001-of-00002.index");
}

static void before_a_save(void)
{
	int other;
	leave();
	/* Another process has the directory's lock: the save does not wait, and leaves all. */
	other = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	CHECK_EQ(flock(other, LOCK_EX), 0);
	ckptfmt_sweep_before_save(path_of("ck"), CKPTFMT_SWEEP_ONE);
	CHECK_EQ(file_count(), 3);
	CHECK_EQ(flock(other, LOCK_UN), 0);
	/* Neither a save of another name, nor one in a large directory. */
	save("other");
	CHECK_EQ(file_count(), 3 + 2);
	shell("cd '%s' && seq 4092 | xargs touch");
	ckptfmt_sweep_before_save(path_of("ck"), CKPTFMT_SWEEP_ONE);
	CHECK_EQ(file_count(), 3 + 2 + 4092);
	shell("rm '%s'/1");
	ckptfmt_sweep_before_save(path_of("ck"), CKPTFMT_SWEEP_ONE);
	CHECK_EQ(file_count(), 2 + 4091);
	/* An overwritten prefix is listed in any case. */
	shell("cd '%s' && seq 5000 | xargs touch && touch other.index.tempstate" HEX);
	save("other");
	CHECK_EQ(file_count(), 3 + 5000);
	/* A part that another process adds before the lock of its directory is taken. */
	leave_directory();
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_DIRECTORY_LIST, .at = 2, .meanwhile = add_part});
	save("ck");
	os_fault_clear();
	CHECK_EQ(file_count(), 2);
	close(other);
	/* A temporary file of a temporary file, as HDF5 is written. */
	shell("cd '%s' && touch out.h5.tempstate" HEX ".tempstate" HEX);
	ckptfmt_sweep_before_save(path_of("out.h5"), CKPTFMT_SWEEP_ONE);
	CHECK_EQ(file_count(), 2);
	/* Paths that lead nowhere. */
	ckptfmt_sweep_before_save("", CKPTFMT_SWEEP_ONE);
	ckptfmt_sweep_before_save("/nowhere/ck", CKPTFMT_SWEEP_ONE);
}

/* ---- names ----------------------------------------------------------------------------------------------- */

/* Names that no writer gives, or that TensorFlow does: whatever the scope, they stay. */
static void names_of_others(void)
{
	static const char *const others[] = {
		"x.data-00000", "x.data-00000-to-00001", "x.data-00000000001-of-00001", "x.data-000001-of-00002",
		"x.data-00000-of-4294967296", "x.index.tempstateazzzzzzzzzzzzzzz", ".tempstate" HEX, "notes.tempstate77",
		"x.index.tempstate123456789012345678901", "_temp", "_temp_" HEX, "x_temp_zzzzzzzzzzzzzzzz",
	};
	static const char *const numbered[] = {
		"ckptx3.index.tempstate" HEX, "ckpt-.index.tempstate" HEX, "ckpt--0.index.tempstate" HEX,
		"checkpoinX.tempstate" HEX, "ckpt-5-.claim", "ckpt-5-embedding.claimX",
	};
	enum { OTHERS = sizeof others / sizeof *others, NUMBERED = sizeof numbered / sizeof *numbered };
	ckptfmt_strings *gone;
	uint64_t size;
	empty_tree(directory);
	for (int i = 0; i < OTHERS; i++)
		CHECK_EQ(close(open(path_of(others[i]), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)), 0);
	CHECK_EQ(sweep_all(0), 0);
	for (int i = 0; i < NUMBERED; i++)
		CHECK_EQ(close(open(path_of(numbered[i]), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)), 0);
	shell("touch '%s'/ckpt-3.index.tempstate" HEX);
	CHECK_OK(ckptfmt_sweep(here, directory, "ckpt", CKPTFMT_SWEEP_NUMBERED, 0, 0, &gone, &err), err);
	CHECK(ckptfmt_strings_at(gone, 0, &size) != NULL && ckptfmt_strings_at(gone, 1, &size) == NULL);
	ckptfmt_strings_free(gone);
	CHECK_EQ(file_count(), OTHERS + NUMBERED);
}

/* A temporary directory with a file that a save does not write there stays as it is. */
static void parts_of_others(void)
{
	static const char *const others[] = {
		"part-00000.index", "part-00000-to-00001.index", "part-000-of-00001.index", "part-00000-of-001.index",
		"part-00000000000-of-00001.index", "part-00000-of-00000000001.index", "part-00000-of-00001x.index",
	};
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		char name[128];
		leave_directory();
		(void)snprintf(name, sizeof name, "ck_temp_" HEX "/%s", others[i]);
		CHECK_EQ(close(open(path_of(name), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666)), 0);
		CHECK_EQ(sweep_all(0), 0);
		CHECK_EQ(count_entries(path_of("ck_temp_" HEX)), 2 + 4);
		CHECK_EQ(unlink(path_of(name)), 0);
		CHECK_EQ(sweep_all(0), 1);
	}
}

/* ---- each call fails in turn ----------------------------------------------------------------------------- */

/* Orphaned files of three kinds, and a checkpoint, of which a killed writer left the claim. */
static void leave_all(void)
{
	leave_directory();
	save("ckpt-1");
	save("ckpt-2");
	save("ckpt-2");
	shell("cd '%s' && mv ckpt-1.index ckpt-1.index.tempstate" HEX " && cp -p ckpt-1.index.tempstate" HEX
		" ckpt-1.index.tempstateb123456789abcdef && touch checkpoint.tempstate" HEX " ckpt-2-x.claim ckpt-2_temp_" HEX);
	shell("mv '%s'/ck_temp_" HEX " '%s'/ckpt-3_temp_" HEX);
}

enum { LEFT = 6, WHOLE = 4 };   /* entries of the directory: orphaned, and of others */

/* Sweeps the checkpoints of "ckpt". */
static ckptfmt_status sweep_numbered(int32_t dry_run, uint64_t *count)
{
	ckptfmt_strings *gone;
	uint64_t size;
	CF_TRY(ckptfmt_sweep(here, directory, "ckpt", CKPTFMT_SWEEP_NUMBERED, dry_run, 1, &gone, &err));
	for (*count = 0; ckptfmt_strings_at(gone, *count, &size) != NULL; ++*count)
		continue;
	ckptfmt_strings_free(gone);
	return CKPTFMT_OK;
}

/* What remains can be removed by the next look, and the checkpoint is whole. */
static void check_next(ckptfmt_status status, uint64_t gone)
{
	uint8_t byte = 0;
	uint64_t rest;
	if (status != CKPTFMT_OK)
		CHECK(err.status == CKPTFMT_IO || err.status == CKPTFMT_NO_MEMORY);
	else
		CHECK_EQ((uint64_t)file_count(), LEFT + WHOLE - gone);
	CHECK_EQ(memory_fault_live(), 0);
	CHECK_OK(sweep_numbered(0, &rest), err);
	CHECK_EQ(file_count(), WHOLE);
	CHECK_OK(read_one(path_of("ckpt-2"), "x", &byte, 1, &err), err);
	CHECK_EQ(byte, 1);
}

static void fail_each_call(void)
{
	uint64_t gone = 0;
	leave_all();
	CHECK_OK(sweep_numbered(1, &gone), err);
	CHECK(gone == LEFT && file_count() == LEFT + WHOLE);
	for (uint64_t n = 1, hit = true; hit; n++) {
		ckptfmt_status status;
		int fds = count_entries("/proc/self/fd");
		leave_all();
		os_fault_set(&(os_fault_plan){.at = n});
		status = sweep_numbered(0, &gone);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		check_next(status, gone);
		CHECK_EQ(count_entries("/proc/self/fd"), fds);
	}
	for (uint64_t n = 1, hit = true; hit; n++) {
		ckptfmt_status status;
		leave_all();
		memory_fault_set(n, false);
		status = sweep_numbered(0, &gone);
		hit = memory_fault_hits() != 0;
		memory_fault_clear();
		check_next(status, gone);
	}
	/* Before a save, which goes on whatever fails. */
	for (uint64_t n = 1, hit = true; hit; n++) {
		leave_all();
		os_fault_set(&(os_fault_plan){.at = n});
		ckptfmt_sweep_before_save(path_of("ckpt"), CKPTFMT_SWEEP_NUMBERED);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		check_next(CKPTFMT_OK, (uint64_t)(LEFT + WHOLE - file_count()));
	}
}

int main(void)
{
	if (!make_memory_directory())
		return 2;
	here = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	be_killed();
	fail_to_remove();
	see_no_locks();
	order();
	before_a_save();
	names_of_others();
	parts_of_others();
	fail_each_call();
	close(here);
	os_fault_log_clear();
	remove_tree(directory);
	return test_finish("sweep");
}
