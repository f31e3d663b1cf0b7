/* SPDX-License-Identifier: Apache-2.0 */
/* Saving upon another checkpoint, with every call failing in turn and killed at every call: the other checkpoint is
 * whole, and the one at the prefix the old or the new one. Links os_fault.c and memory_fault.c. */
#include "keep_stage.h"
#include "memory_fault.h"
#include "os_fault.h"
#include "proofs.h"

#include <errno.h>

static void fail_saves(int os_errno, bool forever, bool after, bool overwrite)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		upon u = upon_default();
		ckptfmt_status status;
		int files, fds = count_entries("/proc/self/fd");
		set_scene(overwrite);
		files = overwrite ? count_entries(path_of("out")) : 2;
		os_fault_set(&(os_fault_plan){.at = n, .forever = forever, .after = after, .os_errno = os_errno});
		status = save_upon(&u, "in/base", "out/n", some_new);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		CHECK_EQ(count_entries("/proc/self/fd"), fds);
		CHECK(holds("in/base", old_values));
		if (status == CKPTFMT_OK) {
			remove_base();
			CHECK(holds("out/n", some_new));
			continue;
		}
		CHECK(err.message[0] != '\0' && err.path[0] != '\0');
		if (overwrite)
			CHECK(holds("out/n", older) ||
				(err.failure == CKPTFMT_FAIL_DURABILITY_UNKNOWN && holds("out/n", some_new)));
		/* One file that could not be removed. */
		if (!forever && err.failure != CKPTFMT_FAIL_DURABILITY_UNKNOWN)
			CHECK(count_entries(path_of("out")) <= files + 1);
		CHECK_OK(save_upon(&u, "in/base", "out/n", some_new), err);
		CHECK(u.kept == 3 && holds("out/n", some_new));
	}
}

static uint64_t kill_saves(bool overwrite, int32_t durability)
{
	uint64_t points = 0;
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		upon u = upon_default();
		u.options.durability = durability;
		set_scene(overwrite);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!save_upon(&u, "in/base", "out/n", some_new);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		points += hit;
		CHECK(holds("in/base", old_values));
		check_proofs(path_of("out"), "n");
		CHECK(holds("out/n", some_new) ||
			(overwrite ? holds("out/n", older) : access(path_of("out/n.index"), F_OK) != 0));
		CHECK_OK(save_upon(&u, "in/base", "out/n", some_new), err);
		check_no_orphans(path_of("out"), "n");
		remove_base();
		CHECK(holds("out/n", some_new));
	}
	return points;
}

/* Upon itself. */
static void kill_updates(void)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		upon u = upon_default();
		empty_tree(directory);
		make_base("n");
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!save_upon(&u, "n", "n", some_new);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK(holds("n", some_new) || holds("n", old_values));
		check_proofs(directory, "n");
		CHECK_OK(save_upon(&u, "n", "n", all_new), err);
		check_no_orphans(directory, "n");
		CHECK(holds("n", all_new));
	}
}

static void fail_allocations(bool forever)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		upon u = upon_default();
		ckptfmt_status status;
		int files;
		set_scene(true);
		memory_fault_set(n, forever);
		status = save_upon(&u, "in/base", "out/n", some_new);
		hit = memory_fault_hits() != 0;
		memory_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		if (status != CKPTFMT_OK)
			CHECK_EQ(err.status, CKPTFMT_NO_MEMORY);
		CHECK(holds("out/n", status == CKPTFMT_OK ? some_new : older) && holds("in/base", old_values));
		/* Without memory the generation that was replaced may not be found to be removed. */
		files = count_entries(path_of("out")) - (2 + 1 + shards_of("out/n"));
		CHECK(files == 0 || (files == 1 && status == CKPTFMT_OK));
	}
}

int main(void)
{
	if (!make_memory_directory())
		return 2;
	fail_saves(EIO, false, false, false);
	fail_saves(EIO, false, false, true);
	fail_saves(ENOSPC, true, false, true);
	fail_saves(EIO, false, true, true);
	printf("kill points of a save upon another: %llu\n",
		(unsigned long long)kill_saves(false, CKPTFMT_DURABILITY_FULL));
	kill_saves(true, CKPTFMT_DURABILITY_FULL);
	kill_saves(true, CKPTFMT_DURABILITY_NONE);
	kill_updates();
	fail_allocations(false);
	fail_allocations(true);
	os_fault_log_clear();
	remove_tree(directory);
	return test_finish("keep_faults");
}
