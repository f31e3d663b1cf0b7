/* SPDX-License-Identifier: Apache-2.0 */
/* storage/file_writer.h: every byte in its place whatever the sizes, nothing left behind whatever fails. */
#include "test.h"

#include "storage/file_writer.h"
#include "memory_fault.h"
#include "os_fault.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

enum {
	STAGING = CF_FILE_WRITER_STAGING_SIZE,
	BYTES_MAX = 5 * STAGING
};

static char root[512];
static cf_directory here;
static ckptfmt_error error;
static uint8_t *bytes;      /* BYTES_MAX of them, random */
static uint8_t *stored;     /* room for as many */

#define CHECK_OS(call, expected, wanted_errno, part)                \
	do {                                                        \
		memset(&error, 0, sizeof error);                    \
		CHECK_FAILS(call, error, expected, "");             \
		CHECK_EQ(error.os_errno, wanted_errno);             \
		CHECK(strstr(error.path, part) != NULL);            \
	} while (0)

/* Files in the directory whose names hold `part`. */
static int count_files(const char *part)
{
	int count = 0;
	struct dirent *entry;
	DIR *stream = opendir(root);
	while ((entry = readdir(stream)) != NULL)
		count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
			strstr(entry->d_name, part) != NULL;
	closedir(stream);
	return count;
}

static void remove_files(void)
{
	char path[1024];
	struct dirent *entry;
	DIR *stream = opendir(root);
	while ((entry = readdir(stream)) != NULL) {
		(void)snprintf(path, sizeof path, "%s/%s", root, entry->d_name);
		(void)unlink(path);
	}
	closedir(stream);
}

static struct stat stat_of(const char *name)
{
	struct stat info;
	memset(&info, 0, sizeof info);
	(void)fstatat(here.fd, name, &info, 0);
	return info;
}

/* Whether the file holds exactly these bytes. */
static bool holds(const char *name, const uint8_t *wanted, uint64_t size)
{
	int fd = openat(here.fd, name, O_RDONLY | O_CLOEXEC);
	uint64_t done = 0;
	bool same;
	struct stat info;
	if (fd < 0)
		return false;
	same = fstat(fd, &info) == 0 && (uint64_t)info.st_size == size;
	while (same && done < size) {
		ssize_t moved = read(fd, stored + done, (size_t)(size - done));
		same = moved > 0;
		done += same ? (uint64_t)moved : 0;
	}
	close(fd);
	return same && (size == 0 || memcmp(stored, wanted, (size_t)size) == 0);
}

/* ---- bytes ---- */

typedef enum put_way { PUT, PUT_CRC, ROOM, MIX, WAY_COUNT } put_way;

static void put_room(cf_file_writer *writer, const uint8_t *from, uint64_t size)
{
	while (size > 0) {
		uint8_t *to;
		uint64_t room, part;
		CHECK_OK(cf_file_writer_room(writer, &to, &room, &error), error);
		CHECK(room >= CF_FILE_WRITER_ROOM_MIN);
		part = cf_min_u64(cf_min_u64(size, room), 1 + test_random_below(2 * CF_FILE_WRITER_ROOM_MIN));
		memset(to, 0xee, (size_t)room);
		memcpy(to, from, (size_t)part);
		cf_file_writer_advance(writer, part);
		from += part;
		size -= part;
	}
}

/* Writes bytes[0 .. size) in pieces of at most `piece`. */
static void write_file(const char *name, uint64_t size, put_way way, uint64_t piece)
{
	cf_file_writer writer;
	bool unknown;
	uint64_t at = 0;
	CHECK_OK(cf_file_writer_open(&writer, &here, name, &error), error);
	while (at < size) {
		uint64_t part = cf_min_u64(size - at, piece == STAGING ? piece : 1 + test_random_below(piece));
		uint32_t crc = ckptfmt_crc32c(0, bytes, at);
		unsigned choice = way == MIX ? (unsigned)test_random_below(5) : (unsigned)way;
		if (choice == PUT)
			CHECK_OK(cf_file_writer_put(&writer, bytes + at, part, &error), error);
		if (choice == PUT_CRC) {
			CHECK_OK(cf_file_writer_put_crc(&writer, bytes + at, part, &crc, &error), error);
			CHECK_EQ(crc, ckptfmt_crc32c(0, bytes, at + part));
		}
		if (choice == ROOM)
			put_room(&writer, bytes + at, part);
		if (choice >= 3) {
			if (choice == 4)
				CHECK_OK(cf_file_writer_flush(&writer, &error), error);
			memset(bytes + at, 0, (size_t)part);
			CHECK_OK(cf_file_writer_zeros(&writer, part, &error), error);
		}
		at += part;
		CHECK_EQ(cf_file_writer_position(&writer), at);
	}
	CHECK_OK(cf_file_writer_put(&writer, NULL, 0, &error), error);
	CHECK_OK(cf_file_writer_zeros(&writer, 0, &error), error);
	CHECK_OK(cf_file_writer_finish(&writer, false, &error), error);
	CHECK_EQ(cf_file_writer_position(&writer), size);
	CHECK(holds(writer.name, bytes, size));
	CHECK_OK(cf_file_writer_replace(&writer, name, &unknown, &error), error);
	cf_file_writer_abandon(&writer);
	CHECK(holds(name, bytes, size));
	CHECK_EQ(count_files(""), 1);
	remove_files();
}

static void fill_random(void)
{
	for (uint64_t i = 0; i < BYTES_MAX; i += 8) {
		uint64_t word = test_random();
		memcpy(bytes + i, &word, 8);
	}
}

static void test_sizes(void)
{
	static const uint64_t sizes[] = {
		0, 1, 4095, 4096, 4097, STAGING - 4097, STAGING - 4096, STAGING - 4095, STAGING - 1, STAGING,
		STAGING + 1, STAGING + 4095, STAGING + 4096, STAGING + 4097, 2 * STAGING - 1, 2 * STAGING,
		2 * STAGING + 1, 4 * STAGING, 4 * STAGING + 12345,
	};
	for (size_t i = 0; i < CF_ARRAY_COUNT(sizes); i++)
		for (put_way way = PUT; way < WAY_COUNT; way++) {
			fill_random();
			write_file("sized", sizes[i], way, STAGING);
			write_file("sized", sizes[i], way, 3 * STAGING);
			write_file("sized", sizes[i], way, STAGING / 3);
		}
	for (int i = 0; i < 20; i++) {
		fill_random();
		write_file("sized", test_random_below(BYTES_MAX), MIX, 1 + test_random_below(200000));
	}
	fill_random();
}

/* Writes begin at page boundaries of the file and are large, also after bytes that fit no page. */
static void test_writes(void)
{
	cf_file_writer writer;
	uint64_t allocations = memory_fault_calls();
	uint32_t crc = 0;
	os_fault_log_clear();
	CHECK_OK(cf_file_writer_open(&writer, &here, "w", &error), error);
	CHECK_OK(cf_file_writer_put(&writer, bytes, 2 * STAGING, &error), error);
	CHECK_EQ(memory_fault_calls(), allocations);
	CHECK_EQ(os_fault_log_count_of(OS_FAULT_WRITE), 1);
	CHECK_OK(cf_file_writer_put(&writer, bytes + 2 * STAGING, 7, &error), error);
	CHECK_OK(cf_file_writer_flush(&writer, &error), error);
	CHECK_OK(cf_file_writer_flush(&writer, &error), error);
	CHECK_EQ(os_fault_log_count_of(OS_FAULT_WRITE), 2);
	CHECK_OK(cf_file_writer_put_crc(&writer, bytes + 2 * STAGING + 7, STAGING + 100, &crc, &error), error);
	put_room(&writer, bytes + 3 * STAGING + 107, STAGING);
	CHECK_OK(cf_file_writer_put(&writer, bytes + 4 * STAGING + 107, 1000, &error), error);
	CHECK_OK(cf_file_writer_finish(&writer, false, &error), error);
	CHECK(holds(writer.name, bytes, 4 * STAGING + 1107));
	CHECK(os_fault_log_count_of(OS_FAULT_WRITE) <= 5);
	for (uint64_t row = 0, seen = 0; row < os_fault_log_count(); row++)
		if (os_fault_log_at(row)->kind == OS_FAULT_WRITE && seen++ != 2)
			CHECK_EQ(os_fault_log_at(row)->offset % 4096, 0);
	cf_file_writer_abandon(&writer);
	CHECK_EQ(count_files(""), 0);
	os_fault_log_clear();
}

static _Atomic bool stop_flipping;

static void *flip(void *given)
{
	volatile uint8_t *at = given;
	for (uint64_t i = 0; !stop_flipping; i++)
		at[i * 4099 % (2 * STAGING)] ^= 0xff;
	return NULL;
}

/* The source changes under the copy: the checksum is that of what was stored. */
static void __attribute__((unused)) test_changing_source(void)
{
	uint8_t *source = malloc(2 * STAGING);
	cf_file_writer writer;
	uint32_t crc = 0;
	pthread_t thread;
	memcpy(source, bytes, 2 * STAGING);
	CHECK_OK(cf_file_writer_open(&writer, &here, "c", &error), error);
	stop_flipping = false;
	CHECK_EQ(pthread_create(&thread, NULL, flip, source), 0);
	CHECK_OK(cf_file_writer_put_crc(&writer, source, 2 * STAGING, &crc, &error), error);
	stop_flipping = true;
	CHECK_EQ(pthread_join(thread, NULL), 0);
	CHECK_OK(cf_file_writer_finish(&writer, false, &error), error);
	(void)holds(writer.name, bytes, 2 * STAGING);
	CHECK_EQ(ckptfmt_crc32c(0, stored, 2 * STAGING), crc);
	cf_file_writer_abandon(&writer);
	free(source);
}

/* ---- names ---- */

static void test_names(void)
{
	cf_file_writer writer;
	char name[256];
	mode_t mask = umask(027);
	int fds = test_open_fds();
	bool exists, unknown;
	CHECK_OK(cf_file_writer_open(&writer, &here, "x.index", &error), error);
	CHECK_EQ(writer.state, CF_FILE_WRITER_WRITING);
	CHECK(strncmp(writer.name, "x.index.tempstate", 17) == 0 && isalpha(writer.name[17]));
	CHECK_EQ(strlen(writer.name), 17 + 16);
	CHECK_EQ(strspn(writer.name + 17, "0123456789abcdef"), 16);
	CHECK(strstr(writer.path, root) == writer.path && strstr(writer.path, writer.name) != NULL);
	CHECK_EQ(stat_of(writer.name).st_mode & 07777, 0666 & ~027);
	CHECK_OK(cf_file_writer_put(&writer, "new", 3, &error), error);
	CHECK_OK(cf_file_writer_finish(&writer, true, &error), error);
	CHECK_EQ(writer.state, CF_FILE_WRITER_FINISHED);
	CHECK_EQ(test_open_fds(), fds + 1);   /* its lock */
	CHECK_EQ(memory_fault_live(), 0);
	CHECK_EQ(count_files(""), 1);
	CHECK(holds(writer.name, (const uint8_t *)"new", 3));
	/* Taken: nothing happens, another name may be tried. */
	CHECK_EQ(close(openat(here.fd, "taken", O_WRONLY | O_CREAT, 0600)), 0);
	CHECK_OK(cf_file_writer_link_new(&writer, "taken", &exists, &error), error);
	CHECK(exists && stat_of("taken").st_size == 0);
	CHECK_EQ(writer.state, CF_FILE_WRITER_FINISHED);
	CHECK_OK(cf_file_writer_link_new(&writer, "free", &exists, &error), error);
	CHECK(!exists && holds("free", (const uint8_t *)"new", 3));
	CHECK_EQ(writer.state, CF_FILE_WRITER_PUBLISHED);
	CHECK_EQ(stat_of("free").st_mode & 07777, 0666 & ~027);
	cf_file_writer_abandon(&writer);
	cf_file_writer_abandon(&writer);
	CHECK_EQ(writer.state, CF_FILE_WRITER_CLOSED);
	CHECK_EQ(test_open_fds(), fds);
	CHECK_EQ(count_files(""), 2);
	(void)umask(mask);

	/* Over a file. */
	CHECK_OK(cf_file_writer_open(&writer, &here, "taken", &error), error);
	CHECK_OK(cf_file_writer_put(&writer, "over", 4, &error), error);
	CHECK_OK(cf_file_writer_finish(&writer, false, &error), error);
	CHECK_OK(cf_file_writer_replace(&writer, "taken", &unknown, &error), error);
	CHECK(holds("taken", (const uint8_t *)"over", 4));
	CHECK_EQ(count_files("tempstate"), 0);
	cf_file_writer_abandon(&writer);
	remove_files();

	/* The longest name that leaves room for the suffix, and one more. */
	memset(name, 'n', sizeof name);
	name[255 - 26] = '\0';
	CHECK_OK(cf_file_writer_open(&writer, &here, name, &error), error);
	CHECK_EQ(strlen(writer.name), 255);
	cf_file_writer_abandon(&writer);
	name[255 - 26] = 'n';
	name[256 - 26] = '\0';
	CHECK_OS(cf_file_writer_open(&writer, &here, name, &error), CKPTFMT_FAIL_OS, ENAMETOOLONG, name);
	CHECK_EQ(writer.state, CF_FILE_WRITER_CLOSED);
	cf_file_writer_abandon(&writer);
	CHECK_EQ(count_files(""), 0);
}

static void test_collisions(void)
{
	cf_file_writer writer;
	os_fault_log_clear();
	os_system_set(OS_SYSTEM_OPEN, 1, 15, EEXIST);
	CHECK_OK(cf_file_writer_open(&writer, &here, "k", &error), error);
	CHECK_EQ(os_system_calls(OS_SYSTEM_OPEN), 16);
	for (uint64_t row = 3; row < os_fault_log_count(); row += 2)
		CHECK(strcmp(os_fault_log_at(row)->name, os_fault_log_at(row - 2)->name) != 0);
	cf_file_writer_abandon(&writer);
	os_system_set(OS_SYSTEM_OPEN, 1, 16, EEXIST);
	CHECK_OS(cf_file_writer_open(&writer, &here, "k", &error), CKPTFMT_FAIL_OS, EEXIST, "/k.tempstate");
	CHECK_EQ(os_system_calls(OS_SYSTEM_OPEN), 16);
	os_fault_clear();
	os_fault_log_clear();
	CHECK_EQ(count_files(""), 0);
}

/* ---- ends ---- */

static void test_abandon(void)
{
	for (int stop = 0; stop < 5; stop++) {
		cf_file_writer writer;
		int fds = test_open_fds();
		memset(&writer, 0, sizeof writer);
		if (stop > 0)
			CHECK_OK(cf_file_writer_open(&writer, &here, "a", &error), error);
		if (stop > 1)
			CHECK_OK(cf_file_writer_put(&writer, bytes, 100, &error), error);
		if (stop > 2)
			CHECK_OK(cf_file_writer_put(&writer, bytes, 2 * STAGING, &error), error);
		if (stop > 3)
			CHECK_OK(cf_file_writer_finish(&writer, false, &error), error);
		CHECK_EQ(count_files(""), stop > 0);
		errno = 12345;
		cf_file_writer_abandon(&writer);
		cf_file_writer_abandon(&writer);
		CHECK_EQ(errno, 12345);
		CHECK_EQ(count_files(""), 0);
		CHECK_EQ(test_open_fds(), fds);
		CHECK_EQ(memory_fault_live(), 0);
	}
}

static void test_wishes(void)
{
	cf_file_writer writer;
	os_fault_log_clear();
	CHECK_OK(cf_file_writer_open(&writer, &here, "r", &error), error);
	cf_file_writer_reserve(&writer, 4 << 20);
	cf_file_writer_reserve(&writer, 1 << 20);
	CHECK_EQ(os_fault_log_count_of(OS_FAULT_RESERVE), 1);
	cf_file_writer_sync_ahead(&writer);
	CHECK_OK(cf_file_writer_put(&writer, bytes, 5, &error), error);
	CHECK_OK(cf_file_writer_finish(&writer, true, &error), error);
	CHECK_EQ(os_fault_log_count_of(OS_FAULT_TRIM), 1);
	CHECK(holds(writer.name, bytes, 5));
	CHECK(stat_of(writer.name).st_blocks * 512 < 1 << 20);
	cf_file_writer_abandon(&writer);

	os_fault_log_clear();
	CHECK_OK(cf_file_writer_open(&writer, &here, "r", &error), error);
	cf_file_writer_reserve(&writer, 20 << 20);
	cf_file_writer_sync_ahead(&writer);
	for (int i = 0; i < 4; i++)
		CHECK_OK(cf_file_writer_put(&writer, bytes, 5 << 20, &error), error);
	CHECK_OK(cf_file_writer_finish(&writer, true, &error), error);
	CHECK_EQ(os_fault_log_count_of(OS_FAULT_TRIM), 0);
	CHECK_EQ(os_fault_log_count_of(OS_FAULT_SYNC_AHEAD), 2);
	CHECK_EQ(os_fault_log_count_of(OS_FAULT_SYNC), 1);
	cf_file_writer_abandon(&writer);
	os_fault_log_clear();
	CHECK_EQ(count_files(""), 0);
}

/* Another process truncated the file while it was written. */
static void test_cut_file(void)
{
	cf_file_writer writer;
	CHECK_OK(cf_file_writer_open(&writer, &here, "cut", &error), error);
	CHECK_OK(cf_file_writer_put(&writer, bytes, 100, &error), error);
	CHECK_OK(cf_file_writer_flush(&writer, &error), error);
	CHECK_EQ(ftruncate(writer.file.fd, 99), 0);
	CHECK_OS(cf_file_writer_finish(&writer, false, &error), CKPTFMT_FAIL_OS, EIO, "/cut.tempstate");
	cf_file_writer_abandon(&writer);
	CHECK_EQ(count_files(""), 0);
}

/* ---- failures ---- */

static void finish_small(cf_file_writer *writer)
{
	CHECK_OK(cf_file_writer_open(writer, &here, "p", &error), error);
	CHECK_OK(cf_file_writer_put(writer, "new", 3, &error), error);
	CHECK_OK(cf_file_writer_finish(writer, false, &error), error);
}

/* Renames that fail, and renames that only say so. */
static void test_publish_failures(void)
{
	cf_file_writer writer;
	bool exists, unknown;
	finish_small(&writer);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_RENAME_NEW, .at = 1, .os_errno = EXDEV});
	CHECK_OS(cf_file_writer_link_new(&writer, "p", &exists, &error), CKPTFMT_FAIL_OS, EXDEV, "/p");
	CHECK(!exists && count_files("") == 1);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_RENAME, .at = 1, .os_errno = EBUSY});
	CHECK_OS(cf_file_writer_replace(&writer, "p", &unknown, &error), CKPTFMT_FAIL_OS, EBUSY, "/p");
	CHECK_EQ(count_files("p.tempstate"), 1);
	os_fault_clear();
	CHECK_OK(cf_file_writer_link_new(&writer, "p", &exists, &error), error);
	CHECK(!exists && holds("p", (const uint8_t *)"new", 3) && count_files("") == 1);
	cf_file_writer_abandon(&writer);
	remove_files();

	finish_small(&writer);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_RENAME_NEW, .at = 1, .after = true});
	CHECK_OK(cf_file_writer_link_new(&writer, "p", &exists, &error), error);
	CHECK(!exists && writer.state == CF_FILE_WRITER_PUBLISHED);
	cf_file_writer_abandon(&writer);
	finish_small(&writer);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_RENAME, .at = 1, .after = true});
	CHECK_OK(cf_file_writer_replace(&writer, "p", &unknown, &error), error);
	CHECK_EQ(writer.state, CF_FILE_WRITER_PUBLISHED);
	CHECK(!unknown && count_files("") == 1);
	os_fault_clear();
	cf_file_writer_abandon(&writer);
	/* A rename reports failure and no later call can say whether it happened: both names are kept. */
	for (int done = 0; done < 2; done++) {
		finish_small(&writer);
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_ANY, .at = 1, .forever = true, .after = done == 1,
			.os_errno = ESTALE});
		CHECK_OS(cf_file_writer_replace(&writer, "p", &unknown, &error), CKPTFMT_FAIL_OS, ESTALE, "/p");
		os_fault_clear();
		CHECK(unknown && writer.state == CF_FILE_WRITER_PUBLISHED);
		cf_file_writer_abandon(&writer);
		CHECK_EQ(count_files(""), done == 1 ? 1 : 2);
		remove_files();
		finish_small(&writer);
		CHECK_OK(cf_file_writer_replace(&writer, "p", &unknown, &error), error);
		cf_file_writer_abandon(&writer);
	}
	/* By link, done, but neither the old name nor the new one could be removed. */
	finish_small(&writer);
	os_system_set(OS_SYSTEM_RENAME_NOREPLACE, 1, 1, ENOSYS);
	os_system_set(OS_SYSTEM_UNLINK, 1, 2, EIO);
	CHECK_OK(cf_file_writer_link_new(&writer, "q", &exists, &error), error);
	CHECK(!exists && writer.state == CF_FILE_WRITER_PUBLISHED);
	CHECK(holds("q", (const uint8_t *)"new", 3) && count_files("tempstate") == 0);
	os_fault_clear();
	cf_file_writer_abandon(&writer);
	remove_files();
}

/* All a file writer does, as the writers of shards and indexes use it. */
static ckptfmt_status scenario(cf_file_writer *writer, ckptfmt_error *err)
{
	uint32_t crc = 0;
	uint8_t *to;
	uint64_t room;
	bool exists;
	CF_TRY(cf_file_writer_open(writer, &here, "f", err));
	cf_file_writer_reserve(writer, 3 * STAGING);
	cf_file_writer_sync_ahead(writer);
	CF_TRY(cf_file_writer_put_crc(writer, bytes, STAGING + 5, &crc, err));
	CF_TRY(cf_file_writer_room(writer, &to, &room, err));
	memcpy(to, bytes + STAGING + 5, CF_FILE_WRITER_ROOM_MIN);
	cf_file_writer_advance(writer, CF_FILE_WRITER_ROOM_MIN);
	CF_TRY(cf_file_writer_put(writer, bytes + cf_file_writer_position(writer), STAGING, err));
	CF_TRY(cf_file_writer_finish(writer, true, err));
	CF_TRY(cf_file_writer_link_new(writer, "taken", &exists, err));
	CF_TRY(cf_file_writer_link_new(writer, "f", &exists, err));
	return CKPTFMT_OK;
}

enum { SCENARIO_SIZE = 2 * STAGING + 5 + CF_FILE_WRITER_ROOM_MIN };

/* Runs it under the plan; true if the plan had nothing left to spoil. */
static bool run_scenario(const os_fault_plan *plan)
{
	cf_file_writer writer;
	ckptfmt_status status;
	int fds = test_open_fds();
	uint64_t hits;
	memset(&writer, 0, sizeof writer);
	memset(&error, 0, sizeof error);
	CHECK_EQ(close(openat(here.fd, "taken", O_WRONLY | O_CREAT, 0600)), 0);
	os_fault_set(plan);
	status = scenario(&writer, &error);
	cf_file_writer_abandon(&writer);
	hits = os_fault_hits();
	os_fault_clear();
	CHECK_EQ(test_open_fds(), fds);
	CHECK_EQ(memory_fault_live(), 0);
	CHECK_EQ(stat_of("taken").st_size, 0);
	if (status == CKPTFMT_OK) {
		CHECK(holds("f", bytes, SCENARIO_SIZE));
		CHECK_EQ(count_files(""), 2);
	} else {
		CHECK(hits > 0);
		CHECK_EQ(error.failure, CKPTFMT_FAIL_OS);
		CHECK_EQ(error.os_errno, plan->os_errno);
		/* Under its own name it is complete or not there. */
		if (plan->crash)
			CHECK(count_files("tempstate") <= 1);
		else
			CHECK_EQ(count_files(""), 1);
	}
	remove_files();
	return hits == 0;
}

static void test_faults(void)
{
	uint64_t n = 0;
	do {
		n++;
		CHECK(n < 100);
	} while (!run_scenario(&(os_fault_plan){.at = n, .os_errno = ENOSPC}));
	CHECK(n > 12);
	for (n = 1; !run_scenario(&(os_fault_plan){.at = n, .crash = true, .os_errno = EROFS, .partial = 777}); n++)
		CHECK(n < 100);
	for (os_fault_kind kind = OS_FAULT_ANY + 1; kind < OS_FAULT_KIND_COUNT; kind++) {
		if (kind == OS_FAULT_UNLINK)
			continue;
		os_fault_plan forever = {.kind = kind, .at = 1, .forever = true, .os_errno = EIO};
		os_fault_plan once = {.kind = kind, .at = 1, .partial = 9, .os_errno = EDQUOT};
		for (; !run_scenario(&forever); forever.at++)
			CHECK(forever.at < 100);
		for (; !run_scenario(&once); once.at++)
			CHECK(once.at < 100);
	}
	/* The file cannot be removed either: the first failure is the one reported. */
	cf_file_writer writer;
	memset(&writer, 0, sizeof writer);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_WRITE, .at = 1, .os_errno = EIO});
	os_system_set(OS_SYSTEM_UNLINK, 1, UINT64_MAX, EROFS);
	CHECK_OS(scenario(&writer, &error), CKPTFMT_FAIL_OS, EIO, "/f.tempstate");
	cf_file_writer_abandon(&writer);
	CHECK_EQ(error.os_errno, EIO);
	os_fault_clear();
	CHECK_EQ(count_files("f.tempstate"), 1);
	remove_files();
	os_fault_log_clear();
}

static void test_memory_faults(void)
{
	for (uint64_t n = 1;; n++) {
		cf_file_writer writer;
		ckptfmt_status status;
		uint64_t hits;
		int fds = test_open_fds();
		memset(&writer, 0, sizeof writer);
		CHECK_EQ(close(openat(here.fd, "taken", O_WRONLY | O_CREAT, 0600)), 0);
		memory_fault_set(n, false);
		status = scenario(&writer, &error);
		hits = memory_fault_hits();
		if (status != CKPTFMT_OK) {
			CHECK_EQ(status, CKPTFMT_NO_MEMORY);
			CHECK_EQ(cf_file_writer_flush(&writer, &error), CKPTFMT_NO_MEMORY);
		}
		memory_fault_clear();
		cf_file_writer_abandon(&writer);
		CHECK_EQ(memory_fault_live(), 0);
		CHECK_EQ(test_open_fds(), fds);
		CHECK_EQ(count_files("tempstate"), 0);
		remove_files();
		if (hits == 0)
			break;
		CHECK(n < 100);
	}
	os_fault_log_clear();
}

/* Short transfers and interrupts below change nothing above. */
static void test_bad_system(void)
{
	os_system_transfer_max(5000);
	os_system_interrupt(true);
	write_file("i", STAGING + 77, MIX, 100000);
	os_fault_clear();
	fill_random();
}

int main(void)
{
	const char *base = getenv("TMPDIR");
	test_seed();
	(void)snprintf(root, sizeof root, "%s/ckptfmt-writer-XXXXXX", base == NULL ? "/tmp" : base);
	if (mkdtemp(root) == NULL) {
		perror(root);
		return 2;
	}
	bytes = malloc(BYTES_MAX);
	stored = malloc(BYTES_MAX);
	fill_random();
	CHECK_OK(cf_storage_directory_open(NULL, root, false, false, &here, &error), error);
	test_sizes();
	test_writes();
#ifndef __SANITIZE_THREAD__   /* The race is meant. */
	test_changing_source();
#endif
	test_names();
	test_collisions();
	test_abandon();
	test_wishes();
	test_cut_file();
	test_publish_failures();
	test_faults();
	test_memory_faults();
	test_bad_system();
	cf_os_directory_close(&here);
	os_fault_log_clear();
	remove_files();
	CHECK_EQ(rmdir(root), 0);
	free(bytes);
	free(stored);
	CHECK_EQ(memory_fault_live(), 0);
	return test_finish("test_file_writer");
}
