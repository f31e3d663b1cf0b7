/* SPDX-License-Identifier: Apache-2.0 */
/* The remover of CMT-15 where the system fails, and what a save removes before it begins. tests/manager/test_sweep.py
 * has the rules on names and locks. */
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
	close(here);
	os_fault_log_clear();
	remove_tree(directory);
	return test_finish("sweep");
}
