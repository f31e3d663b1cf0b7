/* SPDX-License-Identifier: Apache-2.0 */
/* What the tests of storage/os.h share: a scratch directory with a few things in it, and looks at it past the seam. */
#ifndef CKPTFMT_TESTS_OS_STAGE_H
#define CKPTFMT_TESTS_OS_STAGE_H

#include "test.h"

#include "storage/os.h"
#include "memory_fault.h"
#include "os_fault.h"
#include "remove_tree.h"

#include <fcntl.h>
#include <sys/stat.h>

static char root[512];
static cf_directory here;
static ckptfmt_error error;

/* The call fails as `failure` with this errno, its path ends with `end`. */
#define CHECK_OS(call, expected, wanted_errno, end)                                                       \
	do {                                                                                              \
		memset(&error, 0, sizeof error);                                                          \
		CHECK_FAILS(call, error, expected, "");                                                   \
		CHECK_EQ(error.os_errno, wanted_errno);                                                   \
		CHECK(strlen(error.path) >= strlen(end) &&                                                \
			strcmp(error.path + strlen(error.path) - strlen(end), end) == 0);                 \
	} while (0)

static inline const char *in_root(const char *name)
{
	/* Of the last few calls, since a directory borrows its path. */
	static char paths[64][1024];
	static unsigned turn;
	char *path = paths[turn++ % 64];
	(void)snprintf(path, sizeof paths[0], "%s/%s", root, name);
	return path;
}

static inline void put_file(const char *name, const void *bytes, size_t size)
{
	int fd = open(in_root(name), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
	CHECK(fd >= 0);
	CHECK_EQ(write(fd, bytes, size), size);
	CHECK_EQ(close(fd), 0);
}

static inline bool is_there(const char *name)
{
	struct stat info;
	return lstat(in_root(name), &info) == 0;
}

static inline bool holds(const char *name, const char *text)
{
	char bytes[256];
	int fd = open(in_root(name), O_RDONLY | O_CLOEXEC);
	ssize_t size;
	if (fd < 0)
		return false;
	size = read(fd, bytes, sizeof bytes);
	close(fd);
	return size == (ssize_t)strlen(text) && memcmp(bytes, text, (size_t)size) == 0;
}

static int fds_before;

/* Makes the directory and in it what the tests find there: the file "five" of five bytes, the link "to_five", the
 * directory "folder", the link "dangling" to "nowhere", which is not there, and "loop", a link to itself. */
static inline void begin_tests(void)
{
	const char *base = getenv("TMPDIR");
	fds_before = test_open_fds();
	(void)snprintf(root, sizeof root, "%s/ckptfmt-os-XXXXXX", base == NULL ? "/tmp" : base);
	if (mkdtemp(root) == NULL) {
		perror(root);
		exit(2);
	}
	CHECK_OK(cf_storage_directory_open(NULL, root, false, false, &here, &error), error);
	put_file("five", "12345", 5);
	CHECK_EQ(symlink("five", in_root("to_five")), 0);
	CHECK_EQ(mkdir(in_root("folder"), 0777), 0);
	CHECK_EQ(symlink("nowhere", in_root("dangling")), 0);
	CHECK_EQ(symlink("loop", in_root("loop")), 0);
}

static inline int end_tests(const char *name)
{
	cf_os_directory_close(&here);
	remove_tree(root);
	CHECK_EQ(test_open_fds(), fds_before);
	CHECK_EQ(memory_fault_live(), 0);
	return test_finish(name);
}

#endif
