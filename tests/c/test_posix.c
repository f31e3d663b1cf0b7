/* SPDX-License-Identifier: Apache-2.0 */
/* storage/os.h, files: every promise, on a real directory, and the loops of posix.c on a system that misbehaves. Linked
 * with os_fault.c, which is posix.c while nothing is planned. Directories and names: test_posix_files.c. */
#include "os_stage.h"

#include "memory_fault.h"
#include "os_fault.h"

#include <errno.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>

/* ---- paths ---- */

static void test_path(void)
{
	cf_directory directory = {.fd = -1, .path = "a/b"};
	char path[16];
	cf_os_path(&directory, "c", path, sizeof path);
	CHECK(strcmp(path, "a/b/c") == 0);
	directory.path = "a/b/";
	cf_os_path(&directory, "c", path, sizeof path);
	CHECK(strcmp(path, "a/b/c") == 0);
	directory.path = ".";
	cf_os_path(&directory, "c", path, sizeof path);
	CHECK(strcmp(path, "c") == 0);
	directory.path = "/";
	cf_os_path(&directory, "c", path, sizeof path);
	CHECK(strcmp(path, "/c") == 0);
	directory.path = "0123456789abcdef";
	cf_os_path(&directory, "name", path, sizeof path);
	CHECK(strcmp(path, "6789abcdef/name") == 0);
	cf_os_path(&directory, "0123456789abcde", path, sizeof path);
	CHECK(strcmp(path, "0123456789abcde") == 0);
	cf_os_path(&directory, "0123456789abcdef", path, sizeof path);
	CHECK(strcmp(path, "123456789abcdef") == 0);
	cf_os_path(&directory, "0123456789abcd", path, sizeof path);
	CHECK(strcmp(path, "/0123456789abcd") == 0);
	cf_os_path(&directory, "name", path, 1);
	CHECK(strcmp(path, "") == 0);
}

/* ---- opening ---- */

static void check_not_regular(const char *name, int wanted_errno)
{
	cf_file file;
	cf_file_info info;
	(void)alarm(600);
	CHECK_OS(cf_os_open(&here, name, true, &file, &info, &error), CKPTFMT_FAIL_OS, wanted_errno, name);
	CHECK_EQ(file.fd, -1);
	CHECK_EQ(info.size, 0);
	CHECK_OS(cf_os_open(&here, name, false, &file, NULL, &error), CKPTFMT_FAIL_OS, wanted_errno, name);
	(void)alarm(0);
}

static void make_socket(const char *name)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	char *where = getcwd(NULL, 0);
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	CHECK(chdir(root) == 0);
	(void)snprintf(address.sun_path, sizeof address.sun_path, "%s", name);
	CHECK_EQ(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
	CHECK(chdir(where) == 0);
	free(where);
	close(fd);
}

static void test_open(void)
{
	cf_file file;
	cf_file_info info, again;
	bool exists;
	struct stat found;
	cf_directory devices;
	int fds = test_open_fds();
	CHECK_OK(cf_os_open(&here, "five", false, &file, &info, &error), error);
	CHECK_EQ(info.size, 5);
	CHECK_EQ(info.link_count, 1);
	CHECK(stat(in_root("five"), &found) == 0);
	CHECK(info.inode == found.st_ino && info.device == found.st_dev);
	CHECK_EQ(info.mtime_seconds, found.st_mtim.tv_sec);
	CHECK_EQ(info.mtime_nanoseconds, found.st_mtim.tv_nsec);
	CHECK(fcntl(file.fd, F_GETFD) & FD_CLOEXEC);
	CHECK_OK(cf_os_file_info(&file, in_root("five"), &again, &error), error);
	CHECK(memcmp(&info, &again, sizeof info) == 0);
	CHECK_OK(cf_os_stat(&here, "five", &again, &exists, &error), error);
	CHECK(exists && memcmp(&info, &again, sizeof info) == 0);
	cf_os_close_quietly(&file);
	CHECK_EQ(file.fd, -1);
	cf_os_close_quietly(&file);

	CHECK_OK(cf_os_open(&here, "none", true, &file, &info, &error), error);
	CHECK_EQ(file.fd, -1);
	cf_os_close_quietly(&file);
	CHECK_OK(cf_os_stat(&here, "none", &info, &exists, &error), error);
	CHECK(!exists);

	check_not_regular("folder", EISDIR);
	CHECK_EQ(mkfifo(in_root("fifo"), 0666), 0);
	check_not_regular("fifo", EINVAL);
	make_socket("socket");
	check_not_regular("socket", ENXIO);
	CHECK_OK(cf_storage_directory_open(NULL, "/dev", false, false, &devices, &error), error);
	CHECK_OS(cf_os_open(&devices, "zero", true, &file, &info, &error), CKPTFMT_FAIL_OS, EINVAL, "/dev/zero");
	cf_os_directory_close(&devices);
	CHECK_OK(cf_os_stat(&here, "folder", &info, &exists, &error), error);
	CHECK(exists);
	CHECK_EQ(test_open_fds(), fds);
}

static void test_links(void)
{
	cf_file file;
	cf_file_info info;
	bool exists;
	char long_name[300];
	memset(long_name, 'n', sizeof long_name - 1);
	long_name[sizeof long_name - 1] = '\0';
	CHECK_OK(cf_os_open(&here, "to_five", true, &file, &info, &error), error);
	CHECK_EQ(info.size, 5);
	cf_os_close_quietly(&file);
	CHECK_OS(cf_os_open(&here, "to_five", false, &file, &info, &error), CKPTFMT_FAIL_BAD_PATH, 0, "/to_five");
	CHECK_EQ(file.fd, -1);
	CHECK_OK(cf_os_stat(&here, "to_five", &info, &exists, &error), error);
	CHECK(exists && info.size == 5 && info.regular);
	CHECK_OK(cf_os_lstat(&here, "to_five", &info, &exists, &error), error);
	CHECK(exists && !info.regular);
	CHECK_OK(cf_os_lstat(&here, "five", &info, &exists, &error), error);
	CHECK(exists && info.size == 5 && info.regular);
	CHECK_OK(cf_os_create(&here, "to_five", &file, &exists, &error), error);
	CHECK(exists && file.fd == -1);

	/* To nowhere: nothing to read, but the name is taken and nothing is made where it leads. */
	CHECK_OK(cf_os_open(&here, "dangling", true, &file, &info, &error), error);
	CHECK_EQ(file.fd, -1);
	CHECK_OK(cf_os_stat(&here, "dangling", &info, &exists, &error), error);
	CHECK(!exists);
	CHECK_OK(cf_os_lstat(&here, "dangling", &info, &exists, &error), error);
	CHECK(exists && !info.regular);
	CHECK_OK(cf_os_lstat(&here, "none", &info, &exists, &error), error);
	CHECK(!exists);
	CHECK_OK(cf_os_create(&here, "dangling", &file, &exists, &error), error);
	CHECK(exists && file.fd == -1 && !is_there("nowhere"));

	CHECK_OS(cf_os_open(&here, "loop", true, &file, &info, &error), CKPTFMT_FAIL_OS, ELOOP, "/loop");
	CHECK_OS(cf_os_open(&here, "loop", false, &file, &info, &error), CKPTFMT_FAIL_BAD_PATH, 0, "/loop");
	CHECK_OS(cf_os_stat(&here, "loop", &info, &exists, &error), CKPTFMT_FAIL_OS, ELOOP, "/loop");
	CHECK_OS(cf_os_open(&here, long_name, true, &file, &info, &error), CKPTFMT_FAIL_OS, ENAMETOOLONG, long_name);
	CHECK_OS(cf_os_create(&here, long_name, &file, &exists, &error), CKPTFMT_FAIL_OS, ENAMETOOLONG, long_name);
	CHECK_OS(cf_os_stat(&here, long_name, &info, &exists, &error), CKPTFMT_FAIL_OS, ENAMETOOLONG, long_name);
	CHECK_OS(cf_os_unlink(&here, long_name, &error), CKPTFMT_FAIL_OS, ENAMETOOLONG, long_name);
}

static void test_create(void)
{
	cf_file file;
	bool exists;
	struct stat found;
	mode_t mask = umask(0);
	static const mode_t masks[] = {0, 022, 077, 0777};
	for (size_t i = 0; i < CF_ARRAY_COUNT(masks); i++) {
		(void)umask(masks[i]);
		CHECK_OK(cf_os_create(&here, "made", &file, &exists, &error), error);
		CHECK(!exists);
		CHECK(fstat(file.fd, &found) == 0);
		CHECK_EQ(found.st_mode & 07777, 0666 & ~masks[i]);
		CHECK(fcntl(file.fd, F_GETFD) & FD_CLOEXEC);
		CHECK_OK(cf_os_write_at(&file, "made", (const uint8_t *)"abc", 3, 0, &error), error);
		CHECK_OK(cf_os_sync(&file, "made", &error), error);
		CHECK_OK(cf_os_close_held(&file, "made", &error), error);
		CHECK(file.fd >= 0);
		cf_os_close_quietly(&file);
		CHECK_OK(cf_os_create(&here, "made", &file, &exists, &error), error);
		CHECK(exists && file.fd == -1);
		CHECK_OK(cf_os_unlink(&here, "made", &error), error);
		CHECK_OK(cf_os_unlink(&here, "made", &error), error);
	}
	(void)umask(mask);
	CHECK_OK(cf_os_create(&here, "folder", &file, &exists, &error), error);
	CHECK(exists);
}

/* ---- reading and writing ---- */

static uint8_t pattern(uint64_t at)
{
	return (uint8_t)(at * 31 + (at >> 8) * 7);
}

static void check_transfers(void)
{
	enum { SIZE = 10000 };
	uint8_t *from = test_guarded(SIZE), *to = test_guarded(SIZE);
	cf_file file;
	uint64_t got;
	bool exists;
	for (uint64_t i = 0; i < SIZE; i++)
		from[i] = pattern(i);
	CHECK_OK(cf_os_create(&here, "moved", &file, &exists, &error), error);
	CHECK_OK(cf_os_write_at(&file, "moved", from + 5000, SIZE - 5000, 5000, &error), error);
	CHECK_OK(cf_os_write_at(&file, "moved", from, 5000, 0, &error), error);
	CHECK_OK(cf_os_write_at(&file, "moved", from, 0, 77777, &error), error);
	CHECK_OK(cf_os_read_at(&file, "moved", to, SIZE, 0, &got, &error), error);
	CHECK_EQ(got, SIZE);
	CHECK(memcmp(from, to, SIZE) == 0);
	memset(to, 0xee, SIZE);
	CHECK_OK(cf_os_read_at(&file, "moved", to, SIZE, 1, &got, &error), error);
	CHECK_EQ(got, SIZE - 1);
	CHECK(memcmp(from + 1, to, SIZE - 1) == 0 && to[SIZE - 1] == 0xee);
	CHECK_OK(cf_os_read_at(&file, "moved", to, 1, SIZE, &got, &error), error);
	CHECK_EQ(got, 0);
	CHECK_OK(cf_os_read_at(&file, "moved", to, 0, 0, &got, &error), error);
	CHECK_EQ(got, 0);
	CHECK_OK(cf_os_close_held(&file, "moved", &error), error);
	cf_os_close_quietly(&file);
	CHECK_OK(cf_os_unlink(&here, "moved", &error), error);
}

static void test_transfers(void)
{
	cf_file file;
	uint8_t bytes[8];
	uint64_t got;
	bool exists;
	cf_directory devices;
	check_transfers();
	for (uint64_t size = 1; size <= 4096; size = size * 2 + 1) {
		os_system_transfer_max(size);
		os_system_interrupt(true);
		check_transfers();
	}
	os_fault_clear();

	CHECK_OK(cf_os_create(&here, "far", &file, &exists, &error), error);
	CHECK_OK(cf_os_read_at(&file, "far", bytes, 8, UINT64_MAX, &got, &error), error);
	CHECK_EQ(got, 0);
	CHECK_OK(cf_os_read_at(&file, "far", bytes, 8, (uint64_t)INT64_MAX - 1, &got, &error), error);
	CHECK_EQ(got, 0);
	CHECK_OS(cf_os_write_at(&file, "p/far", bytes, 8, UINT64_MAX - 7, &error), CKPTFMT_FAIL_OS, EFBIG, "p/far");
	CHECK_EQ(error.offset, UINT64_MAX - 7);
	CHECK_OS(cf_os_write_at(&file, "p/far", bytes, 8, (uint64_t)INT64_MAX - 7, &error), CKPTFMT_FAIL_OS, EFBIG,
		"p/far");
	CHECK_OK(cf_os_unlink(&here, "far", &error), error);
	cf_os_close_quietly(&file);

	/* A descriptor that is not open for it. */
	CHECK_OK(cf_os_open(&here, "five", false, &file, NULL, &error), error);
	CHECK_OS(cf_os_write_at(&file, "p/five", bytes, 8, 0, &error), CKPTFMT_FAIL_OS, EBADF, "p/five");
	cf_os_close_quietly(&file);

	/* A device that is always full. */
	CHECK_OK(cf_storage_directory_open(NULL, "/dev", false, false, &devices, &error), error);
	file.fd = openat(devices.fd, "full", O_WRONLY | O_CLOEXEC);
	CHECK_OS(cf_os_write_at(&file, "/dev/full", bytes, 8, 0, &error), CKPTFMT_FAIL_OS, ENOSPC, "/dev/full");
	CHECK(strncmp(error.message, "cannot write 8 bytes with ", 26) == 0);
	cf_os_close_quietly(&file);
	cf_os_directory_close(&devices);
}

/* What one failing system call makes of a transfer: the errno, the offset, and that nothing is asked twice. */
static void test_transfer_faults(void)
{
	static const int reads[] = {EIO, EAGAIN, EISDIR, ESTALE, ENODATA};
	static const int writes[] = {EIO, EAGAIN, ENOSPC, EDQUOT, EFBIG};
	uint8_t bytes[64] = {0};
	cf_file file;
	uint64_t got;
	bool exists;
	CHECK_OK(cf_os_create(&here, "faulty", &file, &exists, &error), error);
	CHECK_OK(cf_os_write_at(&file, "p/faulty", bytes, 64, 0, &error), error);
	os_system_transfer_max(16);
	for (size_t i = 0; i < CF_ARRAY_COUNT(reads); i++) {
		os_system_set(OS_SYSTEM_PREAD, 3, 1, reads[i]);
		CHECK_OS(cf_os_read_at(&file, "p/faulty", bytes, 64, 0, &got, &error), CKPTFMT_FAIL_OS, reads[i],
			"p/faulty");
		CHECK_EQ(error.offset, 32);
		CHECK_EQ(got, 0);
		CHECK_EQ(os_system_calls(OS_SYSTEM_PREAD), 3);
	}
	for (size_t i = 0; i < CF_ARRAY_COUNT(writes); i++) {
		os_system_set(OS_SYSTEM_PWRITE, 2, 1, writes[i]);
		CHECK_OS(cf_os_write_at(&file, "p/faulty", bytes, 64, 100, &error), CKPTFMT_FAIL_OS, writes[i],
			"p/faulty");
		CHECK_EQ(error.offset, 116);
		CHECK_EQ(os_system_calls(OS_SYSTEM_PWRITE), 2);
	}
	os_system_set(OS_SYSTEM_PREAD, 2, 1, ENOMEM);
	CHECK_OS(cf_os_read_at(&file, "p/faulty", bytes, 64, 0, &got, &error), CKPTFMT_FAIL_NO_MEMORY, ENOMEM,
		"p/faulty");
	/* Nothing written: once or twice is no failure, forever is one and ends. */
	os_system_set(OS_SYSTEM_PWRITE, 2, 3, 0);
	CHECK_OK(cf_os_write_at(&file, "p/faulty", bytes, 64, 0, &error), error);
	CHECK_EQ(os_system_calls(OS_SYSTEM_PWRITE), 7);
	os_system_set(OS_SYSTEM_PWRITE, 2, UINT64_MAX, 0);
	CHECK_OS(cf_os_write_at(&file, "p/faulty", bytes, 64, 0, &error), CKPTFMT_FAIL_OS, EIO, "p/faulty");
	CHECK(os_system_calls(OS_SYSTEM_PWRITE) < 20);
	/* Nothing read: the end, here before the file's. */
	os_system_set(OS_SYSTEM_PREAD, 3, 1, 0);
	CHECK_OK(cf_os_read_at(&file, "p/faulty", bytes, 64, 0, &got, &error), error);
	CHECK_EQ(got, 32);
	os_fault_clear();

	os_system_set(OS_SYSTEM_FSYNC, 1, 1, EIO);
	CHECK_OS(cf_os_sync(&file, "p/faulty", &error), CKPTFMT_FAIL_OS, EIO, "p/faulty");
	CHECK_EQ(os_system_calls(OS_SYSTEM_FSYNC), 1);
	os_system_set(OS_SYSTEM_FSYNC, 1, 3, EINTR);
	CHECK_OK(cf_os_sync(&file, "p/faulty", &error), error);
	CHECK_EQ(os_system_calls(OS_SYSTEM_FSYNC), 4);
	os_system_set(OS_SYSTEM_CLOSE, 1, 1, EDQUOT);
	CHECK_OS(cf_os_close_held(&file, "p/faulty", &error), CKPTFMT_FAIL_OS, EDQUOT, "p/faulty");
	CHECK_EQ(os_system_calls(OS_SYSTEM_CLOSE), 2);
	CHECK_EQ(file.fd, -1);
	CHECK_OK(cf_os_open(&here, "faulty", false, &file, NULL, &error), error);
	os_system_set(OS_SYSTEM_CLOSE, 1, 1, EINTR);
	CHECK_OK(cf_os_close_held(&file, "p/faulty", &error), error);
	CHECK_EQ(os_system_calls(OS_SYSTEM_CLOSE), 1);
	cf_os_close_quietly(&file);
	os_system_set(OS_SYSTEM_FSTAT, 1, 1, EOVERFLOW);
	CHECK_OS(cf_os_open(&here, "faulty", false, &file, NULL, &error), CKPTFMT_FAIL_OS, EOVERFLOW, "/faulty");
	CHECK_EQ(file.fd, -1);
	os_fault_clear();
	CHECK_OK(cf_os_unlink(&here, "faulty", &error), error);
}

/* ---- the rest ---- */

static void test_map(void)
{
	uint64_t page = cf_os_page_size();
	uint8_t *bytes = malloc(3 * page);
	const uint8_t *data;
	cf_file file;
	CHECK(page >= 4096 && (page & (page - 1)) == 0);
	for (uint64_t i = 0; i < 3 * page; i++)
		bytes[i] = pattern(i);
	put_file("mapped", bytes, 3 * page - 5);
	CHECK_OK(cf_os_open(&here, "mapped", false, &file, NULL, &error), error);
	CHECK_OK(cf_os_map(&file, "mapped", page, page + 7, &data, &error), error);
	CHECK_OK(cf_os_unlink(&here, "mapped", &error), error);
	CHECK(memcmp(data, bytes + page, page + 7) == 0);
	cf_os_close_quietly(&file);
	CHECK(memcmp(data, bytes + page, page + 7) == 0);
	cf_os_unmap(data, page + 7);
	cf_os_unmap(NULL, 5);
	CHECK_OS(cf_os_map(&file, "p/gone", 0, page, &data, &error), CKPTFMT_FAIL_OS, EBADF, "p/gone");
	CHECK(data == NULL);
	CHECK_OS(cf_os_map(&file, "p/gone", 0, UINT64_MAX, &data, &error), CKPTFMT_FAIL_OS, EOVERFLOW, "p/gone");
	CHECK_OS(cf_os_map(&file, "p/gone", UINT64_MAX - page + 1, page, &data, &error), CKPTFMT_FAIL_OS, EOVERFLOW,
		"p/gone");
	os_system_set(OS_SYSTEM_MMAP, 1, 1, ENOMEM);
	CHECK_OS(cf_os_map(&file, "p/gone", 0, page, &data, &error), CKPTFMT_FAIL_NO_MEMORY, ENOMEM, "p/gone");
	os_fault_clear();
	free(bytes);
}

static void test_random_bytes(void)
{
	uint8_t a[1000] = {0}, b[1000] = {0};
	unsigned zeros = 0;
	int fds = test_open_fds();
	CHECK_OK(cf_os_random(a, sizeof a - 1, &error), error);
	CHECK_OK(cf_os_random(b, sizeof b - 1, &error), error);
	CHECK(memcmp(a, b, sizeof a) != 0);
	CHECK(a[999] == 0 && b[999] == 0);
	for (size_t i = 0; i < 999; i++)
		zeros += a[i] == 0;
	/* Expected: 4. */
	CHECK(zeros < 40);
	CHECK_OK(cf_os_random(a, 0, &error), error);
	os_system_set(OS_SYSTEM_RANDOM, 2, 1, ENOSYS);
	CHECK_OS(cf_os_random(a, 999, &error), CKPTFMT_FAIL_OS, ENOSYS, "");
	os_fault_clear();
	CHECK_EQ(test_open_fds(), fds);
}

static void test_counters(void)
{
	ckptfmt_counters before, after;
	cf_file file;
	uint8_t bytes[32] = {0};
	const uint8_t *data;
	uint64_t got;
	cf_link_result linked;
	bool exists;
	ckptfmt_counters_get(&before);
	CHECK_OK(cf_os_create(&here, "counted", &file, &exists, &error), error);
	os_system_transfer_max(10);
	CHECK_OK(cf_os_write_at(&file, "counted", bytes, 32, 0, &error), error);
	CHECK_OK(cf_os_read_at(&file, "counted", bytes, 25, 0, &got, &error), error);
	os_fault_clear();
	CHECK_OK(cf_os_sync(&file, "counted", &error), error);
	CHECK_OK(cf_os_map(&file, "counted", 0, 32, &data, &error), error);
	cf_os_unmap(data, 32);
	cf_os_close_quietly(&file);
	CHECK_OK(cf_os_link(&here, "counted", &here, "counted2", &linked, &error), error);
	CHECK_OK(cf_os_publish(&here, "counted", "counted3", true, &exists, &error), error);
	CHECK_OK(cf_os_unlink(&here, "counted2", &error), error);
	CHECK_OK(cf_os_unlink(&here, "counted3", &error), error);
	ckptfmt_counters_get(&after);
	CHECK_EQ(after.opens - before.opens, 1);
	CHECK_EQ(after.writes - before.writes, 4);
	CHECK_EQ(after.bytes_written - before.bytes_written, 32);
	CHECK_EQ(after.reads - before.reads, 3);
	CHECK_EQ(after.bytes_read - before.bytes_read, 25);
	CHECK_EQ(after.syncs - before.syncs, 1);
	CHECK_EQ(after.maps - before.maps, 1);
	CHECK_EQ(after.links - before.links, 1);
	CHECK_EQ(after.renames - before.renames, 1);
	CHECK_EQ(after.unlinks - before.unlinks, 2);
}

/* The plan of os_fault itself. */
static void test_fault_plan(void)
{
	cf_file file;
	uint64_t got;
	uint8_t bytes[8] = "abcdefg";
	bool exists;
	os_fault_log_clear();
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_WRITE, .at = 2, .os_errno = ENOSPC, .partial = 3});
	CHECK_OK(cf_os_create(&here, "plan", &file, &exists, &error), error);
	CHECK_OK(cf_os_write_at(&file, "p/plan", bytes, 2, 0, &error), error);
	CHECK_OS(cf_os_write_at(&file, "p/plan", bytes + 2, 5, 2, &error), CKPTFMT_FAIL_OS, ENOSPC, "p/plan");
	CHECK_EQ(error.offset, 5);
	CHECK(holds("plan", "abcde"));
	CHECK_OK(cf_os_write_at(&file, "p/plan", bytes + 5, 2, 5, &error), error);
	CHECK_EQ(os_fault_calls(), 3);
	CHECK_EQ(os_fault_hits(), 1);
	CHECK_EQ(os_fault_log_count(), 4);
	CHECK_EQ(os_fault_log_count_of(OS_FAULT_WRITE), 3);
	CHECK_EQ(os_fault_log_at(2)->kind, OS_FAULT_WRITE);
	CHECK(os_fault_log_at(2)->failed && strcmp(os_fault_log_at(2)->name, "plan") == 0);
	CHECK_EQ(os_fault_log_at(2)->offset, 2);
	CHECK_EQ(os_fault_log_at(2)->size, 5);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_READ, .at = 1, .partial = 4});
	CHECK_OK(cf_os_read_at(&file, "p/plan", bytes, 7, 0, &got, &error), error);
	CHECK_EQ(got, 4);
	os_fault_set(&(os_fault_plan){.at = 2, .crash = true, .os_errno = EROFS});
	CHECK_OK(cf_os_write_at(&file, "p/plan", bytes, 1, 0, &error), error);
	CHECK_OS(cf_os_publish(&here, "plan", "plan2", true, &exists, &error), CKPTFMT_FAIL_OS, EROFS, "/plan2");
	CHECK_OS(cf_os_write_at(&file, "p/plan", bytes, 1, 7, &error), CKPTFMT_FAIL_OS, EROFS, "p/plan");
	CHECK_OS(cf_os_unlink(&here, "plan", &error), CKPTFMT_FAIL_OS, EROFS, "/plan");
	CHECK_OS(cf_os_close_held(&file, "p/plan", &error), CKPTFMT_FAIL_OS, EROFS, "p/plan");
	CHECK_EQ(file.fd, -1);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_RENAME, .at = 1, .after = true});
	CHECK(holds("plan", "abcdefg"));
	CHECK_OS(cf_os_publish(&here, "plan", "plan2", true, &exists, &error), CKPTFMT_FAIL_OS, EIO, "/plan2");
	CHECK(!is_there("plan") && is_there("plan2"));
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_UNLINK, .at = 2, .forever = true});
	CHECK_OK(cf_os_unlink(&here, "plan2", &error), error);
	CHECK_OS(cf_os_unlink(&here, "plan2", &error), CKPTFMT_FAIL_OS, EIO, "/plan2");
	CHECK_OS(cf_os_unlink(&here, "plan2", &error), CKPTFMT_FAIL_OS, EIO, "/plan2");
	os_fault_clear();
	CHECK_OK(cf_os_unlink(&here, "plan2", &error), error);
	os_fault_log_clear();
}

int main(void)
{
	begin_tests();
	test_path();
	test_open();
	test_links();
	test_create();
	test_transfers();
	test_transfer_faults();
	test_map();
	test_random_bytes();
	test_counters();
	test_fault_plan();
	return end_tests("test_posix");
}
