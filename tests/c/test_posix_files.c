/* SPDX-License-Identifier: Apache-2.0 */
/* Directories and names (storage/os.h): all promises on a real directory, and the loops and fall-backs of posix_files.c
 * on a system that misbehaves. Linked with os_fault.c, which is posix_files.c while nothing is planned. */
#include "os_stage.h"

#include "base/system.h"
#include "memory_fault.h"
#include "os_fault.h"

#include <errno.h>

/* ---- directories ---- */

static void check_made(const char *path, uint64_t synced)
{
	cf_directory directory;
	struct stat info;
	os_fault_clear();
	os_system_set(OS_SYSTEM_FSYNC, 0, 0, 0);
	CHECK_OK(cf_storage_directory_open(NULL, path, true, synced != 0, &directory, &error), error);
	CHECK_EQ(os_system_calls(OS_SYSTEM_FSYNC), synced);
	CHECK(stat(path, &info) == 0 && S_ISDIR(info.st_mode));
	CHECK_EQ(info.st_mode & 0777, 0777 & ~027);
	CHECK(fcntl(directory.fd, F_GETFD) & FD_CLOEXEC);
	CHECK(directory.path == path);
	cf_os_directory_close(&directory);
	CHECK_EQ(directory.fd, -1);
	cf_os_directory_close(&directory);
}

static void test_directory_open(void)
{
	cf_directory directory;
	mode_t mask = umask(027);
	char *where = getcwd(NULL, 0);
	CHECK_OS(cf_storage_directory_open(NULL, in_root("none"), false, false, &directory, &error),
		CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, 0, "/none");
	CHECK_EQ(directory.fd, -1);
	CHECK_OS(cf_storage_directory_open(NULL, "", false, false, &directory, &error), CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND,
		0, "");
	CHECK_OS(cf_storage_directory_open(NULL, "", true, true, &directory, &error), CKPTFMT_FAIL_OS, ENOENT, "");
	CHECK(!is_there("none"));

	check_made(in_root("d1"), 1);
	check_made(in_root("d2/e/f"), 3);
	check_made(in_root("d3/e/f"), 0);
	check_made(in_root("d3/e/g//h///"), 2);
	/* "d4", "d4/e", and the two ways around, which cannot be told from levels that others made just now. */
	check_made(in_root("d4/../d4/e"), 4);
	check_made(in_root("d4/../d5/"), 1);
	check_made(in_root("d4"), 0);
	CHECK(chdir(root) == 0);
	check_made("d6", 1);
	check_made("d7/e", 2);
	check_made("./d8/e", 2);
	CHECK(chdir(where) == 0);
	free(where);
	CHECK_OK(cf_storage_directory_open(NULL, "/", true, true, &directory, &error), error);
	cf_os_directory_close(&directory);
	(void)umask(mask);

	put_file("plain", "x", 1);
	CHECK_FAILS(cf_storage_directory_open(NULL, in_root("plain"), false, false, &directory, &error), error,
		CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, "the directory does not exist");
	CHECK_OS(cf_storage_directory_open(NULL, in_root("plain"), true, false, &directory, &error), CKPTFMT_FAIL_OS,
		ENOTDIR, "/plain");
	CHECK_OS(cf_storage_directory_open(NULL, in_root("plain/a/b"), true, false, &directory, &error), CKPTFMT_FAIL_OS,
		ENOTDIR, "/plain/a/b");
	CHECK_OS(cf_storage_directory_open(NULL, in_root("dangling/a"), true, false, &directory, &error), CKPTFMT_FAIL_OS,
		ENOENT, "/dangling/a");
	CHECK(!is_there("nowhere"));
	CHECK_OS(cf_storage_directory_open(NULL, in_root("loop"), false, false, &directory, &error), CKPTFMT_FAIL_OS, ELOOP,
		"/loop");
	CHECK_OS(cf_storage_directory_open(NULL, in_root("loop/a"), true, false, &directory, &error), CKPTFMT_FAIL_OS,
		ELOOP, "/loop/a");
}

/* Each system call on the way of a made directory, failing: the status, and no descriptor left. */
static void test_directory_faults(void)
{
	cf_directory directory;
	int fds = test_open_fds();
	os_system_set(OS_SYSTEM_MKDIR, 2, 1, EROFS);
	CHECK_OS(cf_storage_directory_open(NULL, in_root("m1/n/o"), true, true, &directory, &error), CKPTFMT_FAIL_OS, EROFS,
		"/m1/n");
	os_fault_clear();
	for (uint64_t n = 1; n <= 3; n++) {
		os_system_set(OS_SYSTEM_FSYNC, n, 1, EIO);
		CHECK_OS(cf_storage_directory_open(NULL, in_root("m2/n/o"), true, true, &directory, &error), CKPTFMT_FAIL_OS,
			EIO, n == 1 ? root : n == 2 ? "/m2" : "/m2/n");
		CHECK_EQ(directory.fd, -1);
		CHECK_EQ(os_system_calls(OS_SYSTEM_FSYNC), n);
		os_fault_clear();
		remove_tree(in_root("m2"));
	}
	/* 1: the first try, 2: a parent, 3: the directory once made. */
	for (uint64_t n = 1; n <= 3; n++) {
		os_system_set(OS_SYSTEM_OPEN, n, 1, EMFILE);
		CHECK_OS(cf_storage_directory_open(NULL, in_root("m3"), true, true, &directory, &error), CKPTFMT_FAIL_OS,
			EMFILE, n == 2 ? root : "/m3");
		os_fault_clear();
		remove_tree(in_root("m3"));
	}
	memory_fault_set(1, false);
	CHECK_OS(cf_storage_directory_open(NULL, in_root("m4"), true, true, &directory, &error), CKPTFMT_FAIL_NO_MEMORY, 0,
		"");
	memory_fault_clear();
	CHECK(!is_there("m4"));
	/* Another process makes a level first: not a failure, and synced. */
	CHECK_EQ(mkdir(in_root("m5"), 0777), 0);
	os_system_set(OS_SYSTEM_OPEN, 1, 1, ENOENT);
	CHECK_OK(cf_storage_directory_open(NULL, in_root("m5"), true, true, &directory, &error), error);
	cf_os_directory_close(&directory);
	os_fault_clear();

	CHECK_OK(cf_os_directory_sync(&here, &error), error);
	os_system_set(OS_SYSTEM_FSYNC, 1, 1, EINVAL);
	CHECK_OS(cf_os_directory_sync(&here, &error), CKPTFMT_FAIL_OS, EINVAL, root);
	os_fault_clear();
	CHECK_EQ(test_open_fds(), fds);
}

static void test_list(void)
{
	cf_directory directory;
	cf_buffer names = CF_BUFFER_EMPTY;
	unsigned seen = 0;
	int fds = test_open_fds();
	CHECK_OK(cf_storage_directory_open(NULL, in_root("list"), true, false, &directory, &error), error);
	cf_put_bytes(&names, "old", 4);
	CHECK_OK(cf_os_directory_list(&directory, &names, &error), error);
	CHECK_EQ(names.size, 0);
	put_file("list/a", "", 0);
	put_file("list/..b", "", 0);
	put_file("list/.\nc*?", "", 0);
	CHECK_EQ(mkdir(in_root("list/dir"), 0777), 0);
	for (int again = 0; again < 2; again++) {
		CHECK_OK(cf_os_directory_list(&directory, &names, &error), error);
		CHECK_EQ(names.size, 2 + 4 + 6 + 4);
		for (uint64_t at = 0; at < names.size; at += strlen((char *)names.data + at) + 1) {
			const char *name = (char *)names.data + at;
			seen += strcmp(name, "a") == 0 || strcmp(name, "..b") == 0 || strcmp(name, ".\nc*?") == 0 ||
				strcmp(name, "dir") == 0;
		}
	}
	CHECK_EQ(seen, 8);
	os_system_interrupt(true);
	CHECK_OK(cf_os_directory_list(&directory, &names, &error), error);
	CHECK_EQ(names.size, 16);
	os_fault_clear();
	for (uint64_t n = 1; n <= 3; n++) {
		os_system_set(OS_SYSTEM_READDIR, n, 1, EIO);
		CHECK_OS(cf_os_directory_list(&directory, &names, &error), CKPTFMT_FAIL_OS, EIO, "/list");
	}
	os_fault_clear();
	os_system_set(OS_SYSTEM_OPEN, 1, 1, EMFILE);
	CHECK_OS(cf_os_directory_list(&directory, &names, &error), CKPTFMT_FAIL_OS, EMFILE, "/list");
	os_fault_clear();
	os_system_set(OS_SYSTEM_OPENDIR, 1, 1, ENOMEM);
	CHECK_OS(cf_os_directory_list(&directory, &names, &error), CKPTFMT_FAIL_NO_MEMORY, ENOMEM, "/list");
	os_fault_clear();
	cf_buffer_free(&names);
	memory_fault_set(1, true);
	CHECK_OS(cf_os_directory_list(&directory, &names, &error), CKPTFMT_FAIL_NO_MEMORY, 0, "");
	memory_fault_clear();
	cf_buffer_free(&names);
	cf_os_directory_close(&directory);
	CHECK_EQ(test_open_fds(), fds);
}

/* Without permission: root is never refused, so the process becomes user nobody for a while. */
static void test_permissions(void)
{
	cf_directory directory, closed;
	cf_buffer names = CF_BUFFER_EMPTY;
	cf_file file;
	cf_file_info info;
	bool exists, was_root = geteuid() == 0;
	put_file("secret", "x", 1);
	CHECK_EQ(mkdir(in_root("locked"), 0777), 0);
	put_file("locked/in", "abc", 3);
	CHECK_EQ(chmod(in_root("secret"), 0), 0);
	CHECK_EQ(chmod(in_root("locked/in"), 0444), 0);
	CHECK_EQ(chmod(in_root("locked"), 0111), 0);
	CHECK_EQ(chmod(root, 0755), 0);
	if (was_root && seteuid(65534) != 0) {
		perror("seteuid");
		return;
	}
	if (access(root, X_OK) != 0 && was_root) {
		printf("permissions: not tested, others cannot reach %s\n", root);
	} else {
		CHECK_OS(cf_os_open(&here, "secret", true, &file, &info, &error), CKPTFMT_FAIL_OS, EACCES, "/secret");
		/* Searching is enough to read a file whose name is known. */
		CHECK_OK(cf_storage_directory_open(NULL, in_root("locked"), false, false, &directory, &error), error);
		CHECK_OK(cf_os_open(&directory, "in", false, &file, &info, &error), error);
		CHECK_EQ(info.size, 3);
		cf_os_close_quietly(&file);
		CHECK_OS(cf_os_directory_list(&directory, &names, &error), CKPTFMT_FAIL_OS, EACCES, "/locked");
		CHECK_OS(cf_os_directory_sync(&directory, &error), CKPTFMT_FAIL_OS, EBADF, "/locked");
		CHECK_OS(cf_os_create(&directory, "new", &file, &exists, &error), CKPTFMT_FAIL_OS, EACCES,
			"/locked/new");
		CHECK_OS(cf_os_unlink(&directory, "in", &error), CKPTFMT_FAIL_OS, EACCES, "/locked/in");
		CHECK_OS(cf_os_publish(&directory, "in", "out", true, &exists, &error), CKPTFMT_FAIL_OS, EACCES,
			"/locked/out");
		CHECK_OS(cf_os_publish(&directory, "in", "out", false, &exists, &error), CKPTFMT_FAIL_OS,
			EACCES, "/locked/out");
		cf_os_directory_close(&directory);
		CHECK_OS(cf_storage_directory_open(NULL, in_root("locked"), true, false, &closed, &error), CKPTFMT_FAIL_OS,
			EACCES, "/locked");
		CHECK_OS(cf_storage_directory_open(NULL, in_root("locked/deep/er"), true, false, &closed, &error),
			CKPTFMT_FAIL_OS, EACCES, "/locked/deep");
	}
	if (was_root)
		CHECK_EQ(seteuid(0), 0);
	cf_buffer_free(&names);
	CHECK_EQ(chmod(in_root("locked"), 0755), 0);
}

/* Names are looked up in the directory that was opened, even after it was moved. */
static void test_directory_moved(void)
{
	cf_directory directory;
	cf_file file;
	bool exists;
	CHECK_OK(cf_storage_directory_open(NULL, in_root("before"), true, false, &directory, &error), error);
	CHECK_EQ(rename(in_root("before"), in_root("behind")), 0);
	CHECK_EQ(mkdir(in_root("before"), 0777), 0);
	CHECK_OK(cf_os_create(&directory, "x", &file, &exists, &error), error);
	cf_os_close_quietly(&file);
	CHECK(is_there("behind/x") && !is_there("before/x"));
	cf_os_directory_close(&directory);
}

/* ---- names ---- */

static void test_rename(void)
{
	static const int no_links[] = {EXDEV, EPERM, EMLINK, ENOSYS, EOPNOTSUPP};
	cf_directory other;
	cf_link_result linked;
	bool exists;
	CHECK_OK(cf_storage_directory_open(NULL, in_root("other"), true, false, &other, &error), error);
	put_file("other/a", "A", 1);
	put_file("other/b", "B", 1);
	CHECK_EQ(mkdir(in_root("other/folder"), 0777), 0);
	CHECK_OK(cf_os_publish(&other, "a", "b", true, &exists, &error), error);
	CHECK(!exists && !is_there("other/a") && holds("other/b", "A"));
	CHECK_OS(cf_os_publish(&other, "a", "b", true, &exists, &error), CKPTFMT_FAIL_OS, ENOENT, "/other/b");
	CHECK_OS(cf_os_publish(&other, "b", "folder", true, &exists, &error), CKPTFMT_FAIL_OS, EISDIR, "/other/folder");
	CHECK_OK(cf_os_link(&other, "b", &here, "a", &linked, &error), error);
	CHECK(linked == CF_LINK_DONE && holds("a", "A") && holds("other/b", "A"));
	put_file("c", "C", 1);
	CHECK_OK(cf_os_link(&other, "b", &here, "c", &linked, &error), error);
	CHECK(linked == CF_LINK_EXISTS && holds("c", "C"));
	CHECK_OK(cf_os_link(&other, "none", &here, "d", &linked, &error), error);
	CHECK_EQ(linked, CF_LINK_NO_SOURCE);
	/* Of a link, the file behind it: the link itself would lead elsewhere from there. */
	CHECK_OK(cf_os_link(&here, "to_five", &other, "five", &linked, &error), error);
	CHECK(linked == CF_LINK_DONE && holds("other/five", "12345"));
	for (size_t i = 0; i < sizeof no_links / sizeof *no_links; i++) {
		os_system_set(OS_SYSTEM_LINK, 1, 1, no_links[i]);
		CHECK_OK(cf_os_link(&other, "b", &here, "d", &linked, &error), error);
		CHECK(linked == CF_LINK_IMPOSSIBLE && !is_there("d"));
	}
	os_system_set(OS_SYSTEM_LINK, 1, 1, ENOSPC);
	CHECK_OS(cf_os_link(&other, "b", &here, "d", &linked, &error), CKPTFMT_FAIL_OS, ENOSPC, "/d");
	os_fault_clear();
	CHECK_OK(cf_os_unlink(&here, "a", &error), error);
	CHECK_OK(cf_os_unlink(&here, "a", &error), error);
	CHECK(cf_os_unlink(&here, "folder", &error) == CKPTFMT_IO);
	CHECK_OK(cf_os_unlink(&other, "b", &error), error);
	CHECK_OK(cf_os_unlink(&other, "five", &error), error);
	CHECK_OK(cf_os_unlink(&here, "c", &error), error);
	CHECK(is_there("five"));
	cf_os_directory_close(&other);
}

/* A second open of one directory is another holder. */
static void test_lock(void)
{
	cf_directory other;
	uint64_t calls;
	CHECK_OK(cf_storage_directory_open(NULL, root, false, false, &other, &error), error);
	CHECK_OK(cf_os_directory_lock(&here, 0, &error), error);
	CHECK_OS(cf_os_directory_lock(&other, 0, &error), CKPTFMT_FAIL_BUSY, 0, "");
	CHECK(strcmp(error.path, root) == 0 && strstr(error.message, "lock") != NULL);
	errno = 12345;
	CHECK_EQ(cf_os_directory_lock(&other, 20, NULL), CKPTFMT_BUSY);
	CHECK_EQ(errno, 12345);
	/* 1, 2, 4, ..., 32, 50, 50 milliseconds and so on. */
	calls = os_system_calls(OS_SYSTEM_FLOCK);
	CHECK_EQ(cf_os_directory_lock(&other, 200, NULL), CKPTFMT_BUSY);
	CHECK_EQ(os_system_calls(OS_SYSTEM_FLOCK) - calls, 10);
	cf_os_directory_unlock(&here);
	CHECK_OK(cf_os_directory_lock(&other, 0, &error), error);
	cf_os_directory_close(&other);
	CHECK_OK(cf_os_directory_lock(&here, 0, &error), error);
	cf_os_directory_unlock(&here);
}

/* The three ways of cf_os_publish without `replaces` promise the same. `way` 0: the call, 1: link and unlink, 2: claim
 * and rename. */
static void choose_way(int way)
{
	os_fault_clear();
	if (way >= 1)
		os_system_set(OS_SYSTEM_RENAME_NOREPLACE, 1, UINT64_MAX, way == 1 ? ENOSYS : EINVAL);
	if (way >= 2)
		os_system_set(OS_SYSTEM_RENAME_LINK, 1, UINT64_MAX, way == 2 ? EPERM : EOPNOTSUPP);
}

static void test_rename_new(void)
{
	for (int way = 0; way <= 3; way++) {
		bool exists = true;
		int fds = test_open_fds();
		choose_way(way);
		os_system_interrupt(way != 0);
		put_file("n1", "1", 1);
		put_file("n2", "2", 1);
		CHECK_OK(cf_os_publish(&here, "n1", "n3", false, &exists, &error), error);
		CHECK(!exists && !is_there("n1") && holds("n3", "1"));
		CHECK_OK(cf_os_publish(&here, "n2", "n3", false, &exists, &error), error);
		CHECK(exists && holds("n2", "2") && holds("n3", "1"));
		CHECK_OK(cf_os_publish(&here, "n2", "dangling", false, &exists, &error), error);
		CHECK(exists && holds("n2", "2") && !is_there("nowhere"));
		CHECK_OK(cf_os_publish(&here, "n2", "folder", false, &exists, &error), error);
		CHECK(exists && holds("n2", "2"));
		CHECK_OS(cf_os_publish(&here, "none", "n4", false, &exists, &error), CKPTFMT_FAIL_OS, ENOENT, "/n4");
		CHECK(!exists && !is_there("n4"));
		os_fault_clear();
		CHECK_OK(cf_os_unlink(&here, "n2", &error), error);
		CHECK_OK(cf_os_unlink(&here, "n3", &error), error);
		CHECK_EQ(test_open_fds(), fds);
	}
	CHECK_EQ(os_system_calls(OS_SYSTEM_LINK), 0);
}

/* After any failure the old name exists and the new one does not. Plain POSIX has no way 0. */
static void test_rename_new_faults(void)
{
	static const struct {
		int way;
		os_system_kind kind;
		int os_errno;
	} faults[] = {
		{0, OS_SYSTEM_RENAME_NOREPLACE, ENOSPC}, {0, OS_SYSTEM_RENAME_NOREPLACE, EIO},
		{1, OS_SYSTEM_RENAME_LINK, EIO}, {1, OS_SYSTEM_RENAME_LINK, EXDEV}, {1, OS_SYSTEM_UNLINK, EIO},
		{2, OS_SYSTEM_OPEN, ENOSPC}, {2, OS_SYSTEM_RENAME, EIO}, {2, OS_SYSTEM_RENAME, EBUSY},
	};
	bool exists;
	for (size_t i = CKPTFMT_PLAIN_POSIX ? 2 : 0; i < CF_ARRAY_COUNT(faults); i++) {
		put_file("f1", "1", 1);
		choose_way(faults[i].way);
		os_system_set(faults[i].kind, 1, 1, faults[i].os_errno);
		CHECK_OS(cf_os_publish(&here, "f1", "f2", false, &exists, &error), CKPTFMT_FAIL_OS,
			faults[i].os_errno, "/f2");
		CHECK(!exists && holds("f1", "1") && !is_there("f2"));
		os_fault_clear();
	}
	/* A link that was made although its answer got lost: the file itself tells. */
	CHECK_EQ(link(in_root("f1"), in_root("f2")), 0);
	choose_way(1);
	CHECK_OK(cf_os_publish(&here, "f1", "f2", false, &exists, &error), error);
	CHECK(!exists && !is_there("f1") && holds("f2", "1"));
	os_fault_clear();
	os_system_set(OS_SYSTEM_UNLINK, 1, 1, EBUSY);
	CHECK_OS(cf_os_unlink(&here, "f2", &error), CKPTFMT_FAIL_OS, EBUSY, "/f2");
	os_fault_clear();
	CHECK_OK(cf_os_unlink(&here, "f2", &error), error);
}

int main(void)
{
	begin_tests();
	test_directory_open();
	test_directory_faults();
	test_list();
	test_permissions();
	test_rename();
	test_lock();
	test_rename_new();
	test_rename_new_faults();
	test_directory_moved();
	return end_tests("test_posix_files");
}
