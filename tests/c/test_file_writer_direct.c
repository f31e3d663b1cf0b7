/* SPDX-License-Identifier: Apache-2.0 */
/* storage/file_writer.h, large files: the same bytes, past the page cache or not, and no files left whatever fails. */
#include "os_stage.h"

#include "base/system.h"
#include "storage/file_writer.h"
#include "memory_fault.h"
#include "os_fault.h"

#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>

enum {
	SLOT = CF_DIRECT_SLOT_SIZE,
	RING = CF_DIRECT_SLOTS * SLOT,
	MIN = CF_FILE_WRITER_DIRECT_MIN,
	BYTES_MAX = RING + 2 * SLOT
};

static uint8_t *bytes;      /* BYTES_MAX of them, random */
static uint8_t *stored;     /* room for one more */

/* The file holds these many of the bytes. */
static bool has(const char *name, uint64_t size)
{
	cf_file file;
	uint64_t got = 0;
	CHECK_OK(cf_os_open(&here, name, true, &file, NULL, &error), error);
	if (file.fd < 0)
		return false;
	CHECK_OK(cf_os_read_at(&file, "", stored, BYTES_MAX + 1, 0, &got, &error), error);
	cf_os_close_quietly(&file);
	return got == size && memcmp(stored, bytes, (size_t)size) == 0;
}

/* The file holds the first of the bytes, so many, several times. */
static bool has_times(const char *name, uint64_t size, int times)
{
	cf_file file;
	uint64_t got = 0;
	bool same = true;
	CHECK_OK(cf_os_open(&here, name, true, &file, NULL, &error), error);
	for (int i = 0; i < times && same; i++) {
		CHECK_OK(cf_os_read_at(&file, "", stored, size, (uint64_t)i * size, &got, &error), error);
		same = got == size && memcmp(stored, bytes, (size_t)size) == 0;
	}
	CHECK_OK(cf_os_read_at(&file, "", stored, 1, (uint64_t)times * size, &got, &error), error);
	cf_os_close_quietly(&file);
	return same && got == 0;
}

static int count_files(void)
{
	int count = 0;
	struct dirent *entry;
	DIR *stream = opendir(root);
	while ((entry = readdir(stream)) != NULL)
		count += strncmp(entry->d_name, "big", 3) == 0;
	closedir(stream);
	return count;
}

static ckptfmt_status put_some(cf_file_writer *writer, uint64_t size, int way, ckptfmt_error *err)
{
	const uint8_t *from = bytes + cf_file_writer_position(writer);
	uint32_t crc = 0;
	if (way == 0)
		return cf_file_writer_put(writer, from, size, err);
	if (way == 1) {
		CF_TRY(cf_file_writer_put_crc(writer, from, size, &crc, err));
		CHECK_EQ(crc, ckptfmt_crc32c(0, from, size));
		return CKPTFMT_OK;
	}
	for (uint64_t done = 0; done < size;) {
		uint8_t *to;
		uint64_t room, part;
		CF_TRY(cf_file_writer_room(writer, &to, &room, err));
		part = cf_min_u64(size - done, room);
		if (part > 3)
			part -= part % 3;
		memcpy(to, from + done, (size_t)part);
		cf_file_writer_advance(writer, part);
		done += part;
	}
	return CKPTFMT_OK;
}

/* A few bytes before the size is known, then so many in all, in pieces of at most `piece`. */
static ckptfmt_status write_big(cf_file_writer *writer, uint64_t size, uint64_t piece, int way, ckptfmt_error *err)
{
	bool exists;
	CF_TRY(cf_file_writer_open(writer, &here, "big", err));
	cf_file_writer_sync_ahead(writer);
	if (size > 5 && way != 0)
		CF_TRY(put_some(writer, 5, way, err));
	cf_file_writer_reserve(writer, MIN + 5);
	while (cf_file_writer_position(writer) < size)
		CF_TRY(put_some(writer, cf_min_u64(piece, size - cf_file_writer_position(writer)), way, err));
	CF_TRY(cf_file_writer_finish(writer, true, err));
	return cf_file_writer_link_new(writer, "big", &exists, err);
}

static void check_big(uint64_t size, uint64_t piece, int way)
{
	cf_file_writer writer;
	uint64_t live = memory_fault_live();
	CHECK_OK(write_big(&writer, size, piece, way, &error), error);
	CHECK_EQ(cf_file_writer_position(&writer), size);
	CHECK_EQ(memory_fault_live(), live);
	CHECK(has("big", size));
	cf_file_writer_abandon(&writer);
	CHECK_EQ(count_files(), 1);
	CHECK_OK(cf_os_unlink(&here, "big", &error), error);
}

static void test_sizes(void)
{
	static const uint64_t sizes[] = {
		0, 1, 5, 4095, 4096, 4097, SLOT - 1, SLOT, SLOT + 1, SLOT + 4095, SLOT + 4096, SLOT + 4097,
		RING - 1, RING, RING + 1, RING + SLOT + 12345,
	};
	for (size_t i = 0; i < CF_ARRAY_COUNT(sizes); i++)
		for (size_t way = 0; way < 3; way++)
			check_big(sizes[i], way == i % 3 ? BYTES_MAX : 1 + test_random_below(3 * SLOT), (int)way);
}

/* It goes in whole slots, at their boundaries; what is not a block at the end. */
static void test_writes(void)
{
	cf_file_writer writer;
	os_fault_log_clear();
	CHECK_OK(write_big(&writer, 3 * SLOT + 4096 + 7, BYTES_MAX, 1, &error), error);
	CHECK_EQ(os_fault_log_count_of(OS_FAULT_DIRECT), 1);
	CHECK(CKPTFMT_PLAIN_POSIX || os_fault_log_count_of(OS_FAULT_WRITE) == 5);
	CHECK_EQ(os_fault_log_count_of(OS_FAULT_SYNC), 1);
	for (uint64_t row = 0; row < os_fault_log_count(); row++)
		if (os_fault_log_at(row)->kind == OS_FAULT_WRITE)
			CHECK_EQ(os_fault_log_at(row)->offset % 4096, 0);
	cf_file_writer_abandon(&writer);
	CHECK_OK(cf_os_unlink(&here, "big", &error), error);
	/* Not for a file whose size is small or unknown, or that will not be synced. */
	for (int what = 0; what < 3; what++) {
		os_fault_log_clear();
		CHECK_OK(cf_file_writer_open(&writer, &here, "big", &error), error);
		if (what < 2)
			cf_file_writer_sync_ahead(&writer);
		if (what != 0)
			cf_file_writer_reserve(&writer, what == 1 ? MIN - 1 : MIN);
		CHECK_OK(cf_file_writer_put(&writer, bytes, SLOT, &error), error);
		CHECK_OK(cf_file_writer_finish(&writer, true, &error), error);
		CHECK(has(writer.name, SLOT));
		CHECK_EQ(os_fault_log_count_of(OS_FAULT_DIRECT), 0);
		cf_file_writer_abandon(&writer);
	}
	/* A flush in the middle, the size that grows, and then once more. */
	CHECK_OK(cf_file_writer_open(&writer, &here, "big", &error), error);
	cf_file_writer_sync_ahead(&writer);
	cf_file_writer_reserve(&writer, MIN);
	CHECK_OK(put_some(&writer, SLOT + 4096, 1, &error), error);
	CHECK_OK(cf_file_writer_flush(&writer, &error), error);
	cf_file_writer_reserve(&writer, MIN + 2 * SLOT);
	CHECK_OK(put_some(&writer, SLOT, 2, &error), error);
	cf_file_writer_reserve(&writer, MIN + 3 * SLOT);
	CHECK_OK(put_some(&writer, 77, 1, &error), error);
	CHECK_OK(cf_file_writer_flush(&writer, &error), error);
	cf_file_writer_reserve(&writer, 3 * MIN);
	CHECK_OK(put_some(&writer, 2 * SLOT, 0, &error), error);
	CHECK_OK(put_some(&writer, 2 * SLOT, 1, &error), error);
	CHECK_OK(cf_file_writer_finish(&writer, true, &error), error);
	CHECK(has(writer.name, 6 * SLOT + 4096 + 77));
	cf_file_writer_abandon(&writer);
	/* The wish for less than what was written already takes none of it away. */
	CHECK_OK(cf_file_writer_open(&writer, &here, "big", &error), error);
	cf_file_writer_sync_ahead(&writer);
	cf_file_writer_reserve(&writer, MIN);
	for (int i = 0; i < 4; i++) {
		CHECK_OK(cf_file_writer_put(&writer, bytes, 5 * SLOT, &error), error);
		if (i == 3)
			cf_file_writer_reserve(&writer, MIN + 1);
	}
	CHECK_OK(cf_file_writer_finish(&writer, true, &error), error);
	CHECK(has_times(writer.name, 5 * SLOT, 4));
	cf_file_writer_abandon(&writer);
	CHECK_EQ(count_files(), 0);
}

/* Too small to go past the page cache, or refused: writing to the device begins while more is put. */
static void test_sync_ahead(void)
{
	cf_file_writer writer;
	uint64_t end = 0;
	for (int what = 0; what < 2; what++) {
		os_fault_log_clear();
		CHECK_OK(cf_file_writer_open(&writer, &here, "big", &error), error);
		cf_file_writer_sync_ahead(&writer);
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_DIRECT, .at = (uint64_t)what});
		cf_file_writer_reserve(&writer, what == 0 ? MIN - 1 : MIN);
		os_fault_clear();
		CHECK_EQ(os_fault_log_count_of(OS_FAULT_DIRECT), what);
		CHECK_OK(put_some(&writer, RING, 1, &error), error);
		CHECK(os_fault_log_count_of(OS_FAULT_SYNC_AHEAD) >= 2);
		CHECK_OK(cf_file_writer_finish(&writer, true, &error), error);
		for (uint64_t row = 0; row < os_fault_log_count(); row++) {
			const os_fault_record *at = os_fault_log_at(row);
			if (at->kind != OS_FAULT_SYNC_AHEAD)
				continue;
			CHECK_EQ(at->offset, end);
			end = at->offset + at->size;
		}
		CHECK(end <= RING);
		CHECK(has(writer.name, RING));
		cf_file_writer_abandon(&writer);
		end = 0;
	}
	os_fault_log_clear();
	CHECK_EQ(count_files(), 0);
}

/* A process forked in the middle has no thread and none of the memory: it can give the writer up, and the first one
 * goes on. */
static void test_fork(void)
{
	cf_file_writer writer;
	int status = -1;
	pid_t child;
	CHECK_OK(cf_file_writer_open(&writer, &here, "big", &error), error);
	cf_file_writer_sync_ahead(&writer);
	cf_file_writer_reserve(&writer, MIN);
	CHECK_OK(put_some(&writer, RING, 1, &error), error);
	child = fork();
	if (child == 0) {
		/* Likely to lie where the memory of the slots would be. */
		uint8_t *own = mmap(NULL, RING, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		alarm(600);
		cf_os_direct_end(writer.direct);
		memset(own, 1, RING);
		_exit(writer.direct == NULL);
	}
	CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
	CHECK_OK(put_some(&writer, SLOT + 5, 1, &error), error);
	CHECK_OK(cf_file_writer_finish(&writer, false, &error), error);
	CHECK(has(writer.name, RING + SLOT + 5));
	cf_file_writer_abandon(&writer);
	CHECK_EQ(count_files(), 0);
}

/* Files of the process beyond those that have slots are written without. */
static void test_many(void)
{
	enum { FILES = 4 };
	cf_file_writer writers[FILES];
	int by_slots = 0;
	for (int i = 0; i < FILES; i++) {
		CHECK_OK(cf_file_writer_open(&writers[i], &here, "big", &error), error);
		cf_file_writer_sync_ahead(&writers[i]);
		cf_file_writer_reserve(&writers[i], MIN);
		by_slots += writers[i].direct != NULL;
	}
	CHECK_EQ(by_slots, 2);
	for (int i = 0; i < FILES; i++)
		CHECK_OK(put_some(&writers[i], SLOT + 77, i % 3, &error), error);
	for (int i = 0; i < FILES; i++) {
		CHECK_OK(cf_file_writer_finish(&writers[i], true, &error), error);
		CHECK(has(writers[i].name, SLOT + 77));
		cf_file_writer_abandon(&writers[i]);
	}
	CHECK_EQ(count_files(), 0);
}

enum { SCENARIO_SIZE = 2 * SLOT + 4096 + 3 };

/* Runs it under the plan; true if the plan had nothing left to spoil. */
static bool run_scenario(const os_fault_plan *plan)
{
	cf_file_writer writer;
	ckptfmt_status status;
	uint64_t hits;
	int fds = test_open_fds();
	memset(&writer, 0, sizeof writer);
	memset(&error, 0, sizeof error);
	os_fault_set(plan);
	status = write_big(&writer, SCENARIO_SIZE, SLOT / 2, 1, &error);
	if (writer.state == CF_FILE_WRITER_FAILED)
		CHECK(cf_file_writer_flush(&writer, NULL) == CKPTFMT_IO);
	cf_file_writer_abandon(&writer);
	hits = os_fault_hits();
	os_fault_clear();
	CHECK_EQ(test_open_fds(), fds);
	CHECK_EQ(memory_fault_live(), 0);
	if (status == CKPTFMT_OK) {
		CHECK(has("big", SCENARIO_SIZE));
		CHECK_EQ(count_files(), 1);
		CHECK_OK(cf_os_unlink(&here, "big", &error), error);
	} else {
		CHECK(hits > 0);
		CHECK_EQ(error.failure, CKPTFMT_FAIL_OS);
		/* What cannot be trimmed is too long. */
		CHECK(error.os_errno == plan->os_errno || (plan->kind == OS_FAULT_TRIM && error.os_errno == EIO) ||
			(plan->kind == OS_FAULT_ANY && error.os_errno == EIO));
		/* Under its own name it is complete or not there. */
		CHECK_EQ(count_files(), 0);
	}
	return hits == 0;
}

static void test_faults(void)
{
	static const os_fault_kind kinds[] = {OS_FAULT_WRITE, OS_FAULT_TRIM, OS_FAULT_DIRECT, OS_FAULT_SYNC,
		OS_FAULT_RESERVE, OS_FAULT_FILE_INFO};
	uint64_t n;
	for (n = 1; !run_scenario(&(os_fault_plan){.at = n, .os_errno = ENOSPC}); n++)
		CHECK(n < 100);
	CHECK(n > 8);
	for (size_t i = 0; i < CF_ARRAY_COUNT(kinds); i++) {
		os_fault_plan forever = {.kind = kinds[i], .at = 1, .forever = true, .os_errno = ENOSPC};
		os_fault_plan once = {.kind = kinds[i], .at = 1, .partial = 4099, .os_errno = EDQUOT};
		for (; !run_scenario(&forever); forever.at++)
			CHECK(forever.at < 100);
		for (; !run_scenario(&once); once.at++)
			CHECK(once.at < 100);
	}
	os_fault_log_clear();
}

/* A crash at any call: under its own name the file is complete or not there. */
static void test_crashes(void)
{
	for (uint64_t n = 1;; n++) {
		cf_file_writer writer;
		uint64_t hits;
		memset(&writer, 0, sizeof writer);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true, .partial = 777});
		(void)!write_big(&writer, SCENARIO_SIZE, SLOT, 1, &error);
		cf_file_writer_abandon(&writer);
		hits = os_fault_hits();
		os_fault_clear();
		CHECK(!is_there("big") || has("big", SCENARIO_SIZE));
		if (writer.name[0] != '\0')
			CHECK_OK(cf_os_unlink(&here, writer.name, &error), error);
		CHECK_OK(cf_os_unlink(&here, "big", &error), error);
		CHECK_EQ(count_files(), 0);
		if (hits == 0)
			break;
		CHECK(n < 100);
	}
	os_fault_log_clear();
}

/* The kernel refuses, at once or in the middle, or gives in part; memory runs out. Nobody notices. */
static void test_refusals(void)
{
	for (uint64_t at = 1; at <= 3; at++)
		for (uint64_t count = 1; count <= 100; count += 99) {
			os_system_set(OS_SYSTEM_THREAD, at, count, EAGAIN);
			check_big(SCENARIO_SIZE, SLOT / 3, 1);
			os_fault_clear();
		}
	/* A write of a thread that fails once is done again, and so is what it lacked. */
	for (uint64_t at = 1; at <= 3; at++)
		for (int kind = 0; kind < 2; kind++) {
			os_system_set(OS_SYSTEM_PWRITE, at, 1, kind == 0 ? ENOMEM : 0);
			check_big(SCENARIO_SIZE, SLOT / 3, 1);
			os_fault_clear();
		}
	os_system_transfer_max(SLOT / 4 + 5);
	check_big(SCENARIO_SIZE, SLOT, 1);
	os_fault_clear();
	os_system_interrupt(true);
	check_big(SCENARIO_SIZE, SLOT, 2);
	os_fault_clear();
	for (uint64_t n = 1;; n++) {
		cf_file_writer writer;
		uint64_t hits;
		ckptfmt_status status;
		memset(&writer, 0, sizeof writer);
		memory_fault_set(n, false);
		status = write_big(&writer, SCENARIO_SIZE, SLOT, 1, &error);
		hits = memory_fault_hits();
		memory_fault_clear();
		CHECK(status == CKPTFMT_OK ? has("big", SCENARIO_SIZE) : status == CKPTFMT_NO_MEMORY);
		cf_file_writer_abandon(&writer);
		CHECK_EQ(memory_fault_live(), 0);
		CHECK_OK(cf_os_unlink(&here, "big", &error), error);
		CHECK_EQ(count_files(), 0);
		if (hits == 0)
			break;
	}
}

int main(void)
{
	begin_tests();
	test_seed();
	bytes = malloc(BYTES_MAX);
	stored = malloc(BYTES_MAX + 1);
	for (uint64_t i = 0; i < BYTES_MAX; i += 8) {
		uint64_t word = test_random();
		memcpy(bytes + i, &word, 8);
	}
	test_sizes();
	test_writes();
	test_faults();
	test_crashes();
	test_sync_ahead();
	if (!CKPTFMT_PLAIN_POSIX) { /* nothing goes past the page cache there */
		test_many();
		test_refusals();
		test_fork();
	}
	free(bytes);
	free(stored);
	os_fault_log_clear();
	return end_tests("test_file_writer_direct");
}
