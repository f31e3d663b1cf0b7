/* SPDX-License-Identifier: Apache-2.0 */
/* Large uncached values are read past the page cache with the same bytes and failures as others, at any alignment.
 * Other transfers: test_reader.c, test_bundle.c. */
#include "bundle_maker.h"
#include "storage/os.h"
#include "os_fault.h"
#include "scratch.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
	SLOT = CF_DIRECT_SLOT_SIZE,
	RING = CF_DIRECT_SLOTS * SLOT,
	TENSORS = 5
};

/* The first is small, so that the others begin inside a block. */
static const int64_t sizes[TENSORS] = {5, 2 * SLOT, RING + SLOT + 3, 2 * SLOT - 1, 2 * SLOT + 4096};

static ckptfmt_error err;
static uint8_t *bytes;      /* of all tensors in turn */
static uint8_t *found;      /* where addresses are as offsets in the file, or one byte further on */
static int32_t threads;

static uint64_t start_of(int row)
{
	uint64_t start = 0;
	for (int i = 0; i < row; i++)
		start += (uint64_t)sizes[i];
	return start;
}

static void save(int count)
{
	static bundle_maker m;
	maker_begin(&m, directory, "ck", 1);
	for (int i = 0; i < count; i++) {
		const char name[] = {'t', (char)('0' + i), '\0'};
		maker_tensor(&m, name, CKPTFMT_UINT8, 1, &sizes[i], 0, bytes + start_of(i), (uint64_t)sizes[i]);
	}
	maker_build(&m);
	maker_save(&m);
	maker_free(&m);
}

/* Reads the tensors from `first` on, in one call. */
static ckptfmt_status read_from(ckptfmt_reader *reader, int first, int32_t verify)
{
	ckptfmt_selection *selection;
	ckptfmt_request requests[TENSORS];
	ckptfmt_status status;
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	memset(requests, 0, sizeof requests);
	memset(found, 0xee, start_of(TENSORS));
	for (int i = first; i < TENSORS; i++) {
		requests[i].row = (uint64_t)i;
		requests[i].destination = found + start_of(i);
		requests[i].destination_size = (uint64_t)sizes[i];
	}
	memset(&err, 0, sizeof err);
	status = ckptfmt_reader_read(reader, selection, requests + first, (uint64_t)(TENSORS - first), verify, &err);
	for (int i = first; status == CKPTFMT_OK && i < TENSORS; i++)
		CHECK_EQ(requests[i].verified, verify != CKPTFMT_VERIFY_OFF);
	ckptfmt_selection_free(selection);
	return status;
}

static bool all_found(int first)
{
	uint64_t start = start_of(first);
	return memcmp(found + start, bytes + start, start_of(TENSORS) - start) == 0;
}

static ckptfmt_reader *open_reader(void)
{
	ckptfmt_open_options options = {.struct_size = sizeof options, .limits = NULL, .follow_symlinks = 1,
		.threads = threads};
	ckptfmt_reader *reader;
	CHECK_OK(ckptfmt_reader_open(path_of("ck"), &options, &reader, &err), err);
	return reader;
}

static void test_bytes(void)
{
	ckptfmt_reader *reader = open_reader();
	int fds = test_open_fds();
	for (int first = 0; first < TENSORS; first++) {
		/* Checked with one thread and not with two, or the other way round. */
		os_fault_log_clear();
		CHECK_OK(read_from(reader, first, (first + threads) % 2 == 0 ? CKPTFMT_VERIFY_AUTO : CKPTFMT_VERIFY_OFF), err);
		CHECK(all_found(first));
		CHECK(os_fault_log_count_of(OS_FAULT_DIRECT) >= 1);
		CHECK(os_fault_log_count_of(OS_FAULT_DIRECT) <= (uint64_t)threads);
		CHECK_EQ(test_open_fds(), fds);
	}
	/* What is cached is copied from there. */
	os_fault_uncached(false);
	CHECK_OK(read_from(reader, 0, CKPTFMT_VERIFY_AUTO), err);
	os_fault_log_clear();
	CHECK_OK(read_from(reader, 0, CKPTFMT_VERIFY_AUTO), err);
	CHECK(all_found(0));
	os_fault_uncached(true);
	ckptfmt_reader_close(reader);
}

static void truncate_data(void)
{
	CHECK_EQ(truncate(path_of("ck.data-00000-of-00001"), 0), 0);
}

/* Another process truncates the data file before the n-th call of the storage: the map fails or its bytes were checked
 * before, and no SIGBUS either way. */
static void test_map_truncated(void)
{
	bool truncated = true;
	uint64_t maps = 0;
	save(2);
	for (uint64_t n = 1; truncated; n++) {
		ckptfmt_reader *reader = open_reader();
		ckptfmt_selection *selection;
		ckptfmt_mapping *mapping;
		ckptfmt_status status;
		CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
		os_fault_set(&(os_fault_plan){.at = n, .meanwhile = truncate_data});
		status = ckptfmt_reader_map(reader, selection, 1, CKPTFMT_VERIFY_AUTO, &mapping, &err);
		truncated = os_fault_hits() != 0;
		os_fault_clear();
		maps += status == CKPTFMT_OK && truncated;
		CHECK(status == CKPTFMT_OK || (status == CKPTFMT_CORRUPT && err.failure == CKPTFMT_FAIL_TRUNCATED));
		ckptfmt_mapping_close(mapping);
		ckptfmt_selection_free(selection);
		ckptfmt_reader_close(reader);
		save(2);
	}
	save(TENSORS);
	CHECK(maps != 0);
}

static void test_map(void)
{
	ckptfmt_reader *reader = open_reader();
	ckptfmt_selection *selection;
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	for (uint64_t row = 0; row < TENSORS; row++) {
		ckptfmt_mapping *mapping;
		uint64_t size;
		CHECK_OK(ckptfmt_reader_map(reader, selection, row, CKPTFMT_VERIFY_AUTO, &mapping, &err), err);
		CHECK(memcmp(ckptfmt_mapping_data(mapping, &size), bytes + start_of((int)row), (size_t)sizes[row]) == 0);
		ckptfmt_mapping_close(mapping);
	}
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
}

/* When the system refuses direct reads, values are read through the page cache. */
static void test_refusals(void)
{
	ckptfmt_reader *reader = open_reader();
	int fds = test_open_fds();
	for (uint64_t at = 1; at < 12; at += 5) {
		os_system_set(OS_SYSTEM_THREAD, at, 4, EAGAIN);
		CHECK_OK(read_from(reader, 1, CKPTFMT_VERIFY_AUTO), err);
		CHECK(all_found(1));
		os_fault_clear();
		CHECK_EQ(test_open_fds(), fds);
	}
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_DIRECT, .at = 1});
	CHECK_OK(read_from(reader, 1, CKPTFMT_VERIFY_AUTO), err);
	CHECK(all_found(1));
	os_fault_clear();
	/* Another file has the name by now: the open one is read. */
	CHECK_EQ(rename(path_of("ck.data-00000-of-00001"), path_of("old")), 0);
	shell("printf x > '%s/ck.data-00000-of-00001'");
	CHECK_OK(read_from(reader, 1, CKPTFMT_VERIFY_AUTO), err);
	CHECK(all_found(1));
	CHECK_EQ(rename(path_of("old"), path_of("ck.data-00000-of-00001")), 0);
	ckptfmt_reader_close(reader);
}

static void test_failures_of_reads(void)
{
	ckptfmt_reader *reader = open_reader();
	int fds = test_open_fds();
	for (uint64_t at = 1;; at++) {
		ckptfmt_status status;
		uint64_t hits;
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_READ, .at = at, .os_errno = EIO});
		status = read_from(reader, 1, CKPTFMT_VERIFY_AUTO);
		hits = os_fault_hits();
		os_fault_clear();
		CHECK_EQ(test_open_fds(), fds);
		if (hits == 0)
			break;
		CHECK_EQ(status, CKPTFMT_IO);
		CHECK_EQ(err.os_errno, EIO);
		CHECK(strstr(err.path, "ck.data-00000-of-00001") != NULL);
		CHECK(err.tensor[0] == 't');
		CHECK(at < 1000);
	}
	for (uint64_t at = 2; at < 10; at += 3) {
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_READ, .at = at, .partial = 1});
		CHECK_FAILS(read_from(reader, 1, CKPTFMT_VERIFY_AUTO), err, CKPTFMT_FAIL_TRUNCATED, "DAT-2");
		os_fault_clear();
	}
	CHECK_OK(read_from(reader, 1, CKPTFMT_VERIFY_AUTO), err);
	CHECK(all_found(1));
	ckptfmt_reader_close(reader);
}

/* One byte anywhere, the first and the last included. */
static void test_damage(void)
{
	static const uint64_t places[] = {0, SLOT, RING, RING + SLOT + 2};
	ckptfmt_reader *reader = open_reader();
	for (size_t i = 0; i < CF_ARRAY_COUNT(places); i++) {
		uint64_t at = start_of(2) + places[i];
		flip(path_of("ck.data-00000-of-00001"), at);
		CHECK_FAILS(read_from(reader, 2, CKPTFMT_VERIFY_AUTO), err, CKPTFMT_FAIL_CHECKSUM, "DAT-6");
		CHECK_EQ(err.offset, start_of(2));
		CHECK(strcmp(err.tensor, "t2") == 0);
		CHECK_OK(read_from(reader, 2, CKPTFMT_VERIFY_OFF), err);
		flip(path_of("ck.data-00000-of-00001"), at);
	}
	CHECK_OK(read_from(reader, 2, CKPTFMT_VERIFY_AUTO), err);
	CHECK(all_found(2));
	/* Cut after it was opened. */
	CHECK_EQ(truncate(path_of("ck.data-00000-of-00001"), (off_t)start_of(TENSORS) - 1), 0);
	CHECK_FAILS(read_from(reader, 4, CKPTFMT_VERIFY_AUTO), err, CKPTFMT_FAIL_TRUNCATED, "DAT-2");
	CHECK_EQ(truncate(path_of("ck.data-00000-of-00001"), (off_t)start_of(3) - 2 * SLOT), 0);
	CHECK_FAILS(read_from(reader, 2, CKPTFMT_VERIFY_OFF), err, CKPTFMT_FAIL_TRUNCATED, "DAT-2");
	ckptfmt_reader_close(reader);
}

int main(void)
{
	test_seed();
	if (!make_directory())
		return 2;
	bytes = malloc(start_of(TENSORS) + 8);
	uint8_t *room = aligned_alloc(4096, (start_of(TENSORS) + 8192) / 4096 * 4096);
	for (uint64_t i = 0; i < start_of(TENSORS); i += 8) {
		uint64_t word = test_random();
		memcpy(bytes + i, &word, 8);
	}
	os_fault_uncached(true);
	for (int turn = 0; turn < 2; turn++) {
		threads = 1 + turn;
		found = room + turn;
		save(TENSORS);
		test_bytes();
		test_map();
		test_map_truncated();
		test_refusals();
		test_failures_of_reads();
		test_damage();
	}
	os_fault_uncached(false);
	free(bytes);
	free(room);
	os_fault_log_clear();
	remove_tree(directory);
	return test_finish("test_transfer");
}
