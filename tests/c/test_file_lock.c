/* SPDX-License-Identifier: Apache-2.0 */
/* The lock of a file that is being written (CMT-15): held from the first moment to the last, under every name. */
#include "test.h"

#include "storage/file_writer.h"
#include "os_fault.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

static char root[512];
static cf_directory here;
static ckptfmt_error error;

static int count_and_remove(void)
{
	int count = 0;
	struct dirent *entry;
	DIR *stream = opendir(root);
	while ((entry = readdir(stream)) != NULL)
		count += unlinkat(here.fd, entry->d_name, 0) == 0;
	closedir(stream);
	return count;
}

/* Whether another open of the file could take the exclusive lock: its writer does not live. */
static bool is_free(const char *name)
{
	int fd = openat(here.fd, name, O_RDONLY | O_CLOEXEC);
	bool is = fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0;
	close(fd);
	return is;
}

static void test_lock(void)
{
	cf_file_writer writer;
	bool exists;
	for (int let_go = 0; let_go < 2; let_go++) {
		CHECK_OK(cf_file_writer_open(&writer, &here, "l", &error), error);
		CHECK(!is_free(writer.name));
		CHECK_OK(cf_file_writer_finish(&writer, true, &error), error);
		CHECK(!is_free(writer.name));
		if (let_go)
			cf_file_writer_unlock(&writer);
		CHECK_EQ(is_free(writer.name), let_go);
		CHECK_OK(cf_file_writer_link_new(&writer, "l", &exists, &error), error);
		CHECK_EQ(is_free("l"), let_go);
		cf_file_writer_abandon(&writer);
		CHECK(is_free("l"));
		CHECK_EQ(count_and_remove(), 1);
	}
	/* Somebody who looks for files of dead writers has locked the new file already, or removed it: another one. */
	for (int way = 0; way < 2; way++) {
		os_system_set(way ? OS_SYSTEM_FSTATAT : OS_SYSTEM_FLOCK, 1, 2, way ? ENOENT : EWOULDBLOCK);
		CHECK_OK(cf_file_writer_open(&writer, &here, "l", &error), error);
		os_fault_clear();
		CHECK(!is_free(writer.name));
		cf_file_writer_abandon(&writer);
		CHECK_EQ(count_and_remove(), 2);
	}
	/* A file system without locks. */
	os_system_set(OS_SYSTEM_FLOCK, 1, 1, EOPNOTSUPP);
	CHECK_OK(cf_file_writer_open(&writer, &here, "l", &error), error);
	os_fault_clear();
	CHECK(is_free(writer.name));
	cf_file_writer_abandon(&writer);
	CHECK_EQ(count_and_remove(), 0);
}

/* Closing reports what it has to report, and a lock that cannot be held is no lock. */
static void test_closing(void)
{
	cf_file_writer writer;
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_CLOSE, .at = 1, .os_errno = EDQUOT});
	CHECK_OK(cf_file_writer_open(&writer, &here, "c", &error), error);
	CHECK_FAILS(cf_file_writer_finish(&writer, false, &error), error, CKPTFMT_FAIL_OS, "");
	CHECK_EQ(error.os_errno, EDQUOT);
	os_fault_clear();
	cf_file_writer_abandon(&writer);
	CHECK_EQ(count_and_remove(), 0);
}

int main(void)
{
	const char *base = getenv("TMPDIR");
	(void)snprintf(root, sizeof root, "%s/ckptfmt-lock-XXXXXX", base == NULL ? "/tmp" : base);
	if (mkdtemp(root) == NULL) {
		perror(root);
		return 2;
	}
	CHECK_OK(cf_storage_directory_open(NULL, root, false, false, &here, &error), error);
	test_lock();
	test_closing();
	cf_os_directory_close(&here);
	os_fault_log_clear();
	CHECK_EQ(rmdir(root), 0);
	return test_finish("test_file_lock");
}
