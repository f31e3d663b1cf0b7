/* SPDX-License-Identifier: Apache-2.0 */
/* storage/os.h: transfers past the page cache: the same bytes whatever the system refuses, and when. Where there
 * is none of it, only that this is told. */
#include "os_stage.h"

#include "memory_fault.h"
#include "os_fault.h"

#include <errno.h>
#include <linux/magic.h>
#include <sys/vfs.h>

enum {
	SLOT = CF_DIRECT_SLOT_SIZE,
	BLOCK = CF_DIRECT_ALIGNMENT,
	SIZE_MAX_BYTES = 3 * SLOT + 2 * BLOCK
};

static uint8_t *bytes;      /* SIZE_MAX_BYTES of them, random */
static bool there;          /* the file system takes it */

static cf_file make_file(const char *name)
{
	cf_file file;
	bool exists;
	CHECK_OK(cf_os_create(&here, name, &file, &exists, &error), error);
	CHECK(!exists);
	return file;
}

static void end_file(cf_file *file, const char *name)
{
	cf_os_close_quietly(file);
	CHECK_OK(cf_os_unlink(&here, name, &error), error);
}

/* Writes `size` of the bytes in pieces of a slot at most; the first failure. */
static ckptfmt_status write_all(cf_direct *direct, uint64_t size, ckptfmt_error *err)
{
	uint64_t got, at = 0;
	for (unsigned slot = 0; at < size; slot = (slot + 1) % CF_DIRECT_SLOTS) {
		uint64_t part = cf_min_u64(size - at, SLOT);
		CF_TRY(cf_os_direct_wait(direct, slot, "w", &got, err));
		memcpy(cf_os_direct_memory(direct, slot), bytes + at, (size_t)part);
		cf_os_direct_start(direct, slot, part, at);
		at += part;
	}
	for (unsigned slot = 0; slot < CF_DIRECT_SLOTS; slot++)
		CF_TRY(cf_os_direct_wait(direct, slot, "w", &got, err));
	return CKPTFMT_OK;
}

/* The file holds these many of the bytes, read in the ordinary way. */
static bool file_holds(const cf_file *file, uint64_t size)
{
	uint8_t *found = malloc(SIZE_MAX_BYTES + 1);
	uint64_t got;
	bool same;
	CHECK_OK(cf_os_read_at(file, "", found, SIZE_MAX_BYTES + 1, 0, &got, &error), error);
	same = got == size && memcmp(found, bytes, (size_t)size) == 0;
	free(found);
	return same;
}

static bool is_direct(const cf_file *file)
{
	return (fcntl(file->fd, F_GETFL) & O_DIRECT) != 0;
}

static void test_write(void)
{
	static const uint64_t sizes[] = {BLOCK, SLOT - BLOCK, SLOT, SLOT + BLOCK, SIZE_MAX_BYTES};
	for (size_t i = 0; i < CF_ARRAY_COUNT(sizes); i++) {
		cf_file file = make_file("w");
		cf_direct *direct = cf_os_direct_write(&file);
		ckptfmt_counters before, after;
		if (direct != NULL) {
			there = true;
			CHECK(is_direct(&file));
			ckptfmt_counters_get(&before);
			CHECK_OK(write_all(direct, sizes[i], &error), error);
			ckptfmt_counters_get(&after);
			CHECK_EQ(after.bytes_written - before.bytes_written, sizes[i]);
			CHECK_EQ(after.writes - before.writes, (sizes[i] + SLOT - 1) / SLOT);
			cf_os_direct_end(direct);
			CHECK(file_holds(&file, sizes[i]));
		}
		CHECK(!is_direct(&file));
		end_file(&file, "w");
	}
	cf_os_direct_end(NULL);
}

/* What the kernel refuses, or takes only in part, is written in the ordinary way. */
static void test_refusals(void)
{
	static const struct {
		uint64_t count;
		int os_errno;
	} refusals[] = {{1, EINVAL}, {1, ENOTSUP}, {1, EINTR}, {1, EIO}, {1, 0}, {2, EINVAL}};
	for (size_t i = 0; there && i < CF_ARRAY_COUNT(refusals); i++)
		for (uint64_t at = 1; at <= 4; at++) {
			cf_file file = make_file("w");
			cf_direct *direct = cf_os_direct_write(&file);
			CHECK(direct != NULL);
			/* The second failure is met by a thread, or by the ordinary write that follows the first. */
			os_system_set(OS_SYSTEM_PWRITE, at, refusals[i].count, refusals[i].os_errno);
			if (refusals[i].count == 1)
				CHECK_OK(write_all(direct, SIZE_MAX_BYTES, &error), error);
			else
				(void)!write_all(direct, SIZE_MAX_BYTES, NULL);
			os_fault_clear();
			cf_os_direct_end(direct);
			CHECK(refusals[i].count > 1 || file_holds(&file, SIZE_MAX_BYTES));
			CHECK(!is_direct(&file));
			end_file(&file, "w");
		}
	for (int i = 0; there && i < 2; i++) {
		cf_file file = make_file("w");
		cf_direct *direct = cf_os_direct_write(&file);
		CHECK(direct != NULL);
		if (i == 0)
			os_system_transfer_max(SLOT / 2 + 512);
		else
			os_system_interrupt(true);
		CHECK_OK(write_all(direct, SIZE_MAX_BYTES, &error), error);
		os_fault_clear();
		cf_os_direct_end(direct);
		CHECK(file_holds(&file, SIZE_MAX_BYTES));
		end_file(&file, "w");
	}
}

/* With fewer threads than wanted it works, without any it does not begin. */
static void test_threads(void)
{
	for (uint64_t at = 1; there && at <= 4; at++) {
		cf_file file = make_file("w");
		cf_direct *direct;
		os_system_set(OS_SYSTEM_THREAD, at, 100, EAGAIN);
		direct = cf_os_direct_write(&file);
		os_fault_clear();
		CHECK_EQ(direct != NULL, at > 1);
		CHECK_EQ(is_direct(&file), at > 1);
		if (direct != NULL)
			CHECK_OK(write_all(direct, SIZE_MAX_BYTES, &error), error);
		cf_os_direct_end(direct);
		CHECK(at == 1 || file_holds(&file, SIZE_MAX_BYTES));
		end_file(&file, "w");
	}
}

/* What cannot be written in the ordinary way either is a failure, told as there. */
static void test_full_disk(void)
{
	for (uint64_t at = 1; there && at <= 3; at++) {
		cf_file file = make_file("w");
		cf_direct *direct = cf_os_direct_write(&file);
		CHECK(direct != NULL);
		os_system_set(OS_SYSTEM_PWRITE, at, 100, ENOSPC);
		CHECK_OS(write_all(direct, SIZE_MAX_BYTES, &error), CKPTFMT_FAIL_OS, ENOSPC, "w");
		CHECK(strstr(error.message, "cannot write") != NULL);
		/* Which of the slots the last good calls wrote is a matter of threads. */
		CHECK(error.offset % SLOT == 0 && error.offset <= (at - 1) * SLOT);
		os_fault_clear();
		/* With some under way that nobody waits for. */
		cf_os_direct_end(direct);
		CHECK(!is_direct(&file));
		end_file(&file, "w");
	}
}

static void test_none(void)
{
	cf_file file = make_file("w");
	cf_direct *one, *other;
	uint64_t live = memory_fault_live();
	os_system_set(OS_SYSTEM_THREAD, 1, 100, EAGAIN);
	CHECK(cf_os_direct_write(&file) == NULL);
	os_fault_clear();
	memory_fault_set(1, false);
	CHECK(cf_os_direct_write(&file) == NULL);
	memory_fault_clear();
	CHECK(!is_direct(&file));
	/* Two at a time. */
	errno = 12345;
	one = cf_os_direct_write(&file);
	other = cf_os_direct_read(&here, "w", true, &file);
	CHECK_EQ(one != NULL, there);
	CHECK_EQ(other != NULL, there);
	CHECK(cf_os_direct_read(&here, "w", true, &file) == NULL);
	CHECK(cf_os_direct_write(&file) == NULL);
	cf_os_direct_end(other);
	other = cf_os_direct_read(&here, "w", true, &file);
	CHECK_EQ(other != NULL, there);
	cf_os_direct_end(other);
	cf_os_direct_end(one);
	CHECK_EQ(errno, 12345);
	CHECK_EQ(memory_fault_live(), live);
	end_file(&file, "w");
}

static void test_read(void)
{
	uint64_t size = 2 * SLOT + 777, got;
	cf_file file = make_file("r"), other = make_file("other");
	CHECK_OK(cf_os_write_at(&file, "r", bytes, size, 0, &error), error);
	CHECK_EQ(symlink("r", in_root("to_r")), 0);
	for (int refused = 0; refused < 5; refused++) {
		cf_direct *direct = cf_os_direct_read(&here, refused == 1 ? "to_r" : "r", true, &file);
		CHECK_EQ(direct != NULL, there);
		if (direct == NULL)
			continue;
		if (refused == 2)
			os_system_set(OS_SYSTEM_PREAD, 2, 1, EINVAL);
		if (refused == 3)
			os_system_transfer_max(SLOT / 2 + 512);
		if (refused == 4)
			os_system_interrupt(true);
		for (unsigned slot = 0; slot < 4; slot++)
			cf_os_direct_start(direct, slot, SLOT, slot * (uint64_t)SLOT);
		for (unsigned slot = 0; slot < 4; slot++) {
			uint64_t wanted = slot < 2 ? SLOT : slot == 2 ? 777 : 0;
			CHECK_OK(cf_os_direct_wait(direct, slot, "r", &got, &error), error);
			CHECK_EQ(got, wanted);
			CHECK(memcmp(cf_os_direct_memory(direct, slot), bytes + slot * (uint64_t)SLOT, (size_t)wanted) == 0);
			CHECK_OK(cf_os_direct_wait(direct, slot, "r", &got, &error), error);
			CHECK_EQ(got, 0);
		}
		os_fault_clear();
		cf_os_direct_end(direct);
	}
	if (there) {
		cf_direct *direct = cf_os_direct_read(&here, "r", true, &file);
		os_system_set(OS_SYSTEM_PREAD, 1, 2, EIO);
		cf_os_direct_start(direct, 0, SLOT, SLOT);
		CHECK_OS(cf_os_direct_wait(direct, 0, "r", &got, &error), CKPTFMT_FAIL_OS, EIO, "r");
		CHECK_EQ(error.offset, SLOT);
		os_fault_clear();
		cf_os_direct_end(direct);
	}
	/* Another file, none, a link that is not to be followed. */
	CHECK(cf_os_direct_read(&here, "other", true, &file) == NULL);
	CHECK(cf_os_direct_read(&here, "nobody", true, &file) == NULL);
	CHECK(cf_os_direct_read(&here, "to_r", false, &file) == NULL);
	CHECK(cf_os_direct_read(&here, "folder", true, &file) == NULL);
	end_file(&file, "r");
	end_file(&other, "other");
}

static void test_cached(void)
{
	cf_file file = make_file("c");
	struct statfs system;
	CHECK_OK(cf_os_write_at(&file, "c", bytes, SIZE_MAX_BYTES, 0, &error), error);
	errno = 12345;
	CHECK(cf_os_is_cached(&file, 0, SIZE_MAX_BYTES));
	CHECK(cf_os_is_cached(&file, 5, SLOT));
	CHECK(cf_os_is_cached(&file, 5, 0));
	CHECK(cf_os_is_cached(&file, UINT64_MAX - 5, 5));
	CHECK_OK(cf_os_sync(&file, "c", &error), error);
	/* What is told to go and is written out goes; where files are in memory only it stays. */
	CHECK_EQ(posix_fadvise(file.fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(fstatfs(file.fd, &system), 0);
	CHECK(!there || system.f_type == TMPFS_MAGIC || !cf_os_is_cached(&file, 7, SIZE_MAX_BYTES - 7));
	os_system_set(OS_SYSTEM_MMAP, 1, 1, ENOMEM);
	CHECK(cf_os_is_cached(&file, 7, SIZE_MAX_BYTES - 7));
	os_fault_clear();
	CHECK_EQ(errno, 12345);
	end_file(&file, "c");
}

int main(void)
{
	begin_tests();
	test_seed();
	bytes = malloc(SIZE_MAX_BYTES);
	for (uint64_t i = 0; i < SIZE_MAX_BYTES; i += 8) {
		uint64_t word = test_random();
		memcpy(bytes + i, &word, 8);
	}
	test_write();
	test_refusals();
	test_threads();
	test_full_disk();
	test_none();
	test_read();
	test_cached();
	free(bytes);
	os_fault_log_clear();
	return end_tests("test_posix_direct");
}
