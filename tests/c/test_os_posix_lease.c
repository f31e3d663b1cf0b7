/* SPDX-License-Identifier: Apache-2.0 */
/* storage/os.h: files to be written over: only this user's regular files, and a lease only where nobody else has
 * the file. The system decides here, not we: what it must see is an open, a mapping, a second writer. */
#include "os_stage.h"

#include "memory_fault.h"
#include "os_fault.h"

#include <errno.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <sys/wait.h>

static bool open_own(const char *name, cf_file *file)
{
	cf_file_info info;
	bool good = cf_os_open_own(&here, name, file, &info);
	CHECK_EQ(good, file->fd >= 0);
	return good;
}

static bool is_refused(const char *name)
{
	cf_file file;
	int fds = test_open_fds();
	bool refused = !open_own(name, &file);
	cf_os_close_quietly(&file);
	CHECK_EQ(test_open_fds(), fds);
	return refused;
}

static void test_opening(void)
{
	cf_file file;
	cf_file_info info;
	int fd;
	put_file("own", "12345", 5);
	CHECK(cf_os_open_own(&here, "own", &file, &info));
	CHECK(info.regular && info.size == 5 && info.link_count == 1 && info.owner == geteuid());
	CHECK_EQ(fcntl(file.fd, F_GETFL) & (O_ACCMODE | O_NONBLOCK), O_RDWR);
	CHECK_EQ(fcntl(file.fd, F_GETFD), FD_CLOEXEC);
	/* Whoever looks for files of dead writers sees that this one lives. */
	fd = openat(here.fd, "own", O_RDONLY | O_CLOEXEC);
	CHECK(flock(fd, LOCK_EX | LOCK_NB) != 0);
	cf_os_close_quietly(&file);
	CHECK_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
	CHECK(is_refused("own"));   /* who has the lock removes the file */
	CHECK_EQ(close(fd), 0);
	CHECK(is_refused("none"));
	CHECK_EQ(symlinkat("own", here.fd, "link"), 0);
	CHECK(is_refused("link"));
	CHECK(is_refused("folder"));
	CHECK_EQ(mkfifoat(here.fd, "fifo", 0666), 0);
	CHECK(is_refused("fifo"));
	if (geteuid() == 0) {
		put_file("other", "1", 1);
		CHECK_EQ(fchownat(here.fd, "other", 1, (gid_t)-1, 0), 0);
		CHECK(is_refused("other"));
	}
	os_system_set(OS_SYSTEM_FSTAT, 1, 1, EIO);
	CHECK(is_refused("own"));
	os_fault_clear();
	os_system_set(OS_SYSTEM_FCNTL, 1, 1, EINVAL);
	CHECK(is_refused("own"));
	os_fault_clear();
	CHECK(!is_refused("own"));
}

/* Whether this file system is one of those whose leases count. */
static bool has_leases(void)
{
	struct statfs found;
	return statfs(root, &found) == 0 && (found.f_type == 0xef53 || found.f_type == 0x01021994);
}

static void test_lease(void)
{
	cf_file file;
	int fd;
	void *map;
	put_file("leased", "12345", 5);
	CHECK(open_own("leased", &file));
	if (has_leases())
		CHECK(cf_os_is_alone(&file));
	if (!cf_os_is_alone(&file)) {
		printf("no leases here: nothing is ever alone\n");
		cf_os_close_quietly(&file);
		return;
	}
	/* Given back, with its signal. */
	CHECK_EQ(fcntl(file.fd, F_GETLEASE), F_UNLCK);
	CHECK_EQ(fcntl(file.fd, F_GETSIG), 0);
	fd = openat(here.fd, "leased", O_RDONLY | O_CLOEXEC);
	CHECK(!cf_os_is_alone(&file));
	map = mmap(NULL, 5, PROT_READ, MAP_SHARED, fd, 0);
	CHECK(map != MAP_FAILED);
	CHECK_EQ(close(fd), 0);
	CHECK(!cf_os_is_alone(&file));
	CHECK_EQ(munmap(map, 5), 0);
	CHECK(cf_os_is_alone(&file));
	fd = openat(here.fd, "leased", O_WRONLY | O_CLOEXEC);
	CHECK(!cf_os_is_alone(&file));
	CHECK_EQ(close(fd), 0);
	for (uint64_t n = 1; n <= 2; n++) {
		os_system_set(OS_SYSTEM_LEASE, n, 1, EAGAIN);
		errno = 0;
		CHECK(!cf_os_is_alone(&file));
		CHECK_EQ(errno, 0);
		os_fault_clear();
		CHECK_EQ(fcntl(file.fd, F_SETLEASE, F_UNLCK) == 0, n == 2);
	}
	os_system_set(OS_SYSTEM_FSTATFS, 1, 1, EIO);
	CHECK(!cf_os_is_alone(&file));
	os_fault_clear();
	os_system_set(OS_SYSTEM_FSTATFS, 1, 1, EINTR);
	CHECK(cf_os_is_alone(&file));
	os_fault_clear();
	os_system_set(OS_SYSTEM_FCNTL, 1, 1, EINVAL);
	CHECK(!cf_os_is_alone(&file));
	os_fault_clear();
	cf_os_close_quietly(&file);
}

/* Somebody opens the file all the time, and breaks a lease now and then: we live. */
static void test_breaking(void)
{
	cf_file file;
	pid_t child;
	put_file("broken", "1", 1);
	child = fork();
	if (child == 0) {
		for (;;) {
			int fd = openat(here.fd, "broken", O_RDONLY | O_CLOEXEC);
			(void)close(fd);
		}
	}
	CHECK(open_own("broken", &file));
	for (int i = 0; i < 20000; i++)
		(void)cf_os_is_alone(&file);
	cf_os_close_quietly(&file);
	CHECK_EQ(kill(child, SIGKILL), 0);
	CHECK_EQ(waitpid(child, NULL, 0), child);
}

int main(void)
{
	begin_tests();
	test_opening();
	test_lease();
	test_breaking();
	os_fault_log_clear();
	return end_tests("test_os_posix_lease");
}
