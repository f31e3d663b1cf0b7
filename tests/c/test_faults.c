/* SPDX-License-Identifier: Apache-2.0 */
/* Whole operations with every call of the operating system and every allocation failing in turn: a typed error or
 * success, nothing leaked, the old checkpoint or the new one and never a mixture, and no file left over that a fault
 * (other than a crash) could have cleaned up. Links os_fault.c and memory_fault.c in the place of the real ones. */
#include "memory_fault.h"
#include "os_fault.h"
#include "proofs.h"
#include "scratch.h"
#include "sources.h"

#include <errno.h>

static int32_t shards = 1;      /* data files of a save */

static ckptfmt_status save(const char *prefix, float first, ckptfmt_error *err)
{
	ckptfmt_write_options options = {.struct_size = sizeof options, .shards = shards};
	static const int64_t dims[1] = {2}, slice[3] = {4, 0, 2};
	const float values[2] = {first, 7};
	const ckptfmt_bytes texts[2] = {{(const uint8_t *)"one", 3}, {(const uint8_t *)"", 0}};
	ckptfmt_source sources[3] = {source_of("v", CKPTFMT_FLOAT, 1, dims, values),
		source_of("part", CKPTFMT_FLOAT, 1, dims, values), source_of("text", CKPTFMT_STRING, 1, dims, texts)};
	sources[1].slice = slice;
	return save_sources(path_of(prefix), &options, sources, 3, err);
}

static ckptfmt_status load(const char *prefix, float *first, ckptfmt_error *err)
{
	float values[2] = {0, 0};
	ckptfmt_reader *reader;
	ckptfmt_selection *all = NULL, *named = NULL;
	ckptfmt_strings *strings = NULL;
	uint64_t sizes[2] = {1, 4};
	ckptfmt_request request = {0, NULL, (uint8_t *)values, sizeof values, 0, 0};
	ckptfmt_status status = ckptfmt_reader_open(path_of(prefix), NULL, &reader, err);
	if (status != CKPTFMT_OK)
		return status;
	status = ckptfmt_reader_list(reader, &all, err);
	if (status == CKPTFMT_OK)
		status = ckptfmt_reader_select(reader, (const uint8_t *)"vtext", sizes, 2, &named, err);
	if (status == CKPTFMT_OK)
		status = ckptfmt_reader_read(reader, named, &request, 1, CKPTFMT_VERIFY_AUTO, err);
	if (status == CKPTFMT_OK)
		status = ckptfmt_reader_read_strings(reader, named, 1, NULL, CKPTFMT_VERIFY_AUTO, &strings, err);
	if (status == CKPTFMT_OK) {
		ckptfmt_strings_view view;
		ckptfmt_strings_get(strings, &view);
		CHECK(view.count == 2 && view.offsets[1] == 3 && memcmp(view.bytes, "one", 3) == 0);
		CHECK(values[1] == 7);
	}
	*first = values[0];
	ckptfmt_strings_free(strings);
	ckptfmt_selection_free(named);
	ckptfmt_selection_free(all);
	ckptfmt_reader_close(reader);
	return status;
}

/* Errors name the file; only a lack of memory need not. */
static void check_error(const ckptfmt_error *err)
{
	CHECK(err->failure == CKPTFMT_FAIL_NO_MEMORY || err->path[0] != '\0' || err->failure == CKPTFMT_FAIL_OS);
	CHECK(err->message[0] != '\0');
}

static void check_checkpoint(const char *prefix, float one, float other)
{
	ckptfmt_error err;
	float first = -1;
	CHECK_OK(load(prefix, &first, &err), err);
	CHECK(first == one || first == other);
}

/* ---- the operating system -------------------------------------------------------------------------------- */

static void fail_saves(int os_errno, bool forever)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_error err;
		ckptfmt_status status;
		int open_files, files;
		empty_tree(directory);
		CHECK_OK(save("ck", 1, &err), err);
		open_files = count_entries("/proc/self/fd");
		files = count_entries(directory);
		os_fault_set(&(os_fault_plan){.at = n, .forever = forever, .os_errno = os_errno});
		status = save("ck", 2, &err);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK_EQ(count_entries("/proc/self/fd"), open_files);
		CHECK_EQ(memory_fault_live(), 0);
		if (status == CKPTFMT_OK)
			check_checkpoint("ck", 2, 2);
		else
			check_error(&err);
		check_checkpoint("ck", 1, 2);
		/* With every later call failing nothing can be removed either. */
		if (!forever && status != CKPTFMT_OK && err.failure != CKPTFMT_FAIL_DURABILITY_UNKNOWN)
			CHECK(count_entries(directory) <= files + 1);
		CHECK_OK(save("ck", 3, &err), err);
		check_checkpoint("ck", 3, 3);
	}
}

/* The size of a single data file is reserved once if it is known, else as tensors are added. Of two files one gets more
 * than the half that was reserved for it. */
static void reserve_room(void)
{
	static const uint8_t values[3 << 20] = {0};
	static const int64_t dims[1] = {sizeof values};
	empty_tree(directory);
	for (int told = 0; told < 2; told++)
		for (uint64_t files = 1; files <= 2; files++) {
			ckptfmt_error err;
			ckptfmt_write_options options = {.struct_size = sizeof options, .shards = (int32_t)files,
				.data_size = told ? 3 * sizeof values : 0};
			ckptfmt_writer *writer;
			os_fault_log_clear();
			CHECK_OK(ckptfmt_writer_open(path_of("room"), &options, &writer, &err), err);
			for (uint64_t i = 0; i < 3; i++) {
				static const char *const names[3] = {"a", "b", "c"};
				ckptfmt_source source = source_of(names[i], CKPTFMT_UINT8, 1, dims, values);
				CHECK_OK(ckptfmt_writer_add(writer, &source, 1, &err), err);
			}
			CHECK_EQ(os_fault_log_count_of(OS_FAULT_RESERVE), told && files == 1 ? 1 : 3);
			CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
			if (files == 2)
				empty_tree(directory);
		}
}

static void check_before_save(void)
{
	check_no_orphans(directory, "ck");
}

/* What a killed save left is removed before the next one creates its first file, as a full disk needs it. */
static void save_again(void)
{
	ckptfmt_error err;
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_CREATE, .at = 1, .meanwhile = check_before_save});
	CHECK_OK(save("ck", 3, &err), err);
	os_fault_clear();
	check_no_orphans(directory, "ck");
	check_checkpoint("ck", 3, 3);
}

/* Nothing reaches the disk after the n-th call: what a killed process leaves. */
static void crash_saves(void)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_error err;
		empty_tree(directory);
		CHECK_OK(save("ck", 1, &err), err);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!save("ck", 2, &err);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		check_checkpoint("ck", 1, 2);
		check_proofs(directory, "ck");
		save_again();
		empty_tree(directory);
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!save("ck", 2, &err);
		hit = hit || os_fault_hits() != 0;
		os_fault_clear();
		check_proofs(directory, "ck");
		save_again();
	}
}

/* Another writer takes a number that this one has begun to give names of: it goes on with the next, and then with the
 * one after. */
static void crash_where_numbers_are_taken(void)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_error err;
		ckptfmt_writer *writer;
		empty_tree(directory);
		CHECK_OK(save("ck", 1, &err), err);
		CHECK_OK(ckptfmt_writer_open(path_of("ck"), NULL, &writer, &err), err);
		CHECK_OK(save("other", 2, &err), err);
		shell("cd '%s' && cp other.data-00000-of-00001 ck.data-00001-of-00002");
		os_fault_set(&(os_fault_plan){.at = n, .crash = true});
		(void)!ckptfmt_writer_commit(writer, &err);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		shell("rm '%s'/ck.data-00001-of-00002");
		check_proofs(directory, "ck");
		if (!hit)
			CHECK_EQ(count_entries(directory), 2 + 2 + 1 + 3);
	}
}

/* ---- other processes ------------------------------------------------------------------------------------- */

static const char *meanwhile_command;

static void run_meanwhile(void)
{
	shell(meanwhile_command);
}

/* Another process changes the files of a save before it reads the index back, or before it replaces the older one. */
static void change_files_meanwhile(void)
{
	static const struct {
		const char *command;
		uint64_t open;          /* before which one of the save: the second reads the index back */
		ckptfmt_failure failure;
	} cases[] = {
		{"rm '%s'/ck.index.tempstate*", 2, CKPTFMT_FAIL_OS},
		{"cd '%s' && cp three.index ck.index.tempstate*", 2, CKPTFMT_FAIL_BAD_ENTRY},
		{"cd '%s' && cp large.index ck.index.tempstate*", 2, CKPTFMT_FAIL_TRUNCATED},
		{"rm '%s'/ck.data-00000-of-00002", 3, CKPTFMT_FAIL_BUSY},
		{"truncate -s 3 '%s'/ck.data-00000-of-00002", 3, CKPTFMT_FAIL_BUSY},
	};
	static const uint8_t bytes[4096] = {0};
	static const int64_t dims[1] = {sizeof bytes};
	const ckptfmt_source large = source_of("large", CKPTFMT_UINT8, 1, dims, bytes);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		ckptfmt_error err;
		empty_tree(directory);
		CHECK_OK(save_sources(path_of("large"), NULL, &large, 1, &err), err);
		shards = 3;
		CHECK_OK(save("three", 9, &err), err);
		shards = 1;
		CHECK_OK(save("ck", 1, &err), err);
		meanwhile_command = cases[i].command;
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_OPEN, .at = cases[i].open, .meanwhile = run_meanwhile});
		CHECK_FAILS(save("ck", 2, &err), err, cases[i].failure, "");
		os_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		check_checkpoint("ck", 1, 1);
		CHECK_EQ(count_entries(directory), 2 + 2 + 4 + 2);
		/* Without the older index nothing is left to replace. */
		meanwhile_command = "rm '%s'/ck.index";
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_STAT, .at = 3, .meanwhile = run_meanwhile});
		CHECK_OK(save("ck", 3, &err), err);
		os_fault_clear();
		check_checkpoint("ck", 3, 3);
		CHECK_EQ(count_entries(directory), 2 + 2 + 4 + 3);
	}
}

/* Each time that a writer names its files, another one has just taken the number. */
static int32_t taken;

static void take_number(void)
{
	FILE *file;
	char name[64];
	(void)snprintf(name, sizeof name, "ck.data-00000-of-%05d", (int)++taken);
	file = fopen(path_of(name), "wx");
	CHECK(file != NULL && fclose(file) == 0);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_RENAME_NEW, .at = 1, .meanwhile = take_number});
}

static void take_each_number(void)
{
	ckptfmt_error err;
	empty_tree(directory);
	taken = 0;
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_RENAME_NEW, .at = 1, .meanwhile = take_number});
	CHECK_FAILS(save("ck", 1, &err), err, CKPTFMT_FAIL_BUSY, "");
	os_fault_clear();
	CHECK(taken == 16 && count_entries(directory) == 2 + taken);
	/* So many numbers in a row are not looked through. */
	shell("cd '%s' && seq -f ck.data-00000-of-%%05g 1025 | xargs touch");
	CHECK_FAILS(save("ck", 1, &err), err, CKPTFMT_FAIL_LIMIT, "");
	CHECK_EQ(count_entries(directory), 2 + 1025);
}

/* Files that a writer would not have named so stay when the generation of their number is replaced. */
static void keep_names_of_others(void)
{
	ckptfmt_error err;
	empty_tree(directory);
	CHECK_OK(save("ck", 1, &err), err);
	shell("cd '%s' && touch ck.data-00001-of-00001 ck.data-000000-of-00001");
	CHECK_OK(save("ck", 2, &err), err);
	CHECK_EQ(count_entries(directory), 2 + 2 + 3);
	CHECK(access(path_of("ck.data-00000-of-00001"), F_OK) != 0);
}

/* A checkpoint without tensors, of which a fresh prefix has the bytes of TensorFlow's. */
static void fail_empty_saves(void)
{
	uint64_t from_memory = 0;
	bool hit = true;
	for (uint64_t n = 1; hit || from_memory == 0; n++) {
		ckptfmt_error err;
		ckptfmt_reader *reader;
		if (!hit)
			from_memory = n - 1;
		empty_tree(directory);
		if (from_memory == 0)
			os_fault_set(&(os_fault_plan){.at = n});
		else
			memory_fault_set(n - from_memory, false);
		if (save_sources(path_of("ck"), NULL, NULL, 0, &err) != CKPTFMT_OK)
			check_error(&err);
		hit = os_fault_hits() + memory_fault_hits() != 0;
		os_fault_clear();
		memory_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		if (access(path_of("ck.index"), F_OK) != 0)
			continue;
		CHECK_OK(ckptfmt_reader_open(path_of("ck"), NULL, &reader, &err), err);
		ckptfmt_reader_close(reader);
	}
}

/* The number that an index names, whatever the name of its file. */
static void count_of_indexes(void)
{
	ckptfmt_error err;
	int32_t count = 7;
	empty_tree(directory);
	CHECK_OK(save("ck", 1, &err), err);
	CHECK_OK(save("ck", 2, &err), err);
	shell("cd '%s' && mv ck.index ck.index.tempstatea && echo no > damaged && mkdir place");
	CHECK_OK(ckptfmt_index_count(NULL, path_of("ck.index.tempstatea"), &count, &err), err);
	CHECK_EQ(count, 2);
	for (int i = 0; i < 3; i++) {
		static const char *const names[3] = {"ck.index", "damaged", "place"};
		count = 7;
		CHECK_OK(ckptfmt_index_count(NULL, path_of(names[i]), &count, &err), err);
		CHECK_EQ(count, 0);
	}
	CHECK_EQ(ckptfmt_index_count(NULL, path_of("none/ck.index"), &count, &err), CKPTFMT_NOT_FOUND);
}

static void fail_loads(int os_errno)
{
	bool hit = true;
	int in_spite = 0;
	ckptfmt_error err;
	empty_tree(directory);
	CHECK_OK(save("ck", 1, &err), err);
	for (uint64_t n = 1; hit; n++) {
		float first = -1;
		int open_files = count_entries("/proc/self/fd");
		ckptfmt_status status;
		os_fault_set(&(os_fault_plan){.at = n, .os_errno = os_errno});
		status = load("ck", &first, &err);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		in_spite += status == CKPTFMT_OK && hit;
		if (status != CKPTFMT_OK)
			check_error(&err);
		else
			CHECK(first == 1);
		CHECK(hit || status == CKPTFMT_OK);
		CHECK_EQ(count_entries("/proc/self/fd"), open_files);
		CHECK_EQ(memory_fault_live(), 0);
	}
	/* Opening the data file is tried again when it is read from. */
	CHECK_EQ(in_spite, 1);
	/* A read that gives a byte at a time is slow and nothing else. */
	os_system_transfer_max(1);
	os_system_interrupt(true);
	check_checkpoint("ck", 1, 1);
	CHECK_OK(save("ck", 2, &err), err);
	os_fault_clear();
	check_checkpoint("ck", 2, 2);
}

/* A system call that fails below the calls above, between an open and the close that belongs to it. */
static void fail_system_calls(os_system_kind kind)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_error err;
		float first = -1;
		int open_files = count_entries("/proc/self/fd");
		empty_tree(directory);
		CHECK_OK(save("ck", 1, &err), err);
		os_system_set(kind, n, 1, EIO);
		if (save("ck", 1, &err) != CKPTFMT_OK)
			check_error(&err);
		hit = os_system_calls(kind) >= n;
		os_fault_clear();
		CHECK_EQ(count_entries("/proc/self/fd"), open_files);
		os_system_set(kind, n, 1, EIO);
		if (load("ck", &first, &err) != CKPTFMT_OK)
			check_error(&err);
		else
			CHECK(first == 1);
		hit = hit || os_system_calls(kind) >= n;
		os_fault_clear();
		CHECK_EQ(count_entries("/proc/self/fd"), open_files);
		CHECK_EQ(memory_fault_live(), 0);
	}
}

/* A file that ends early, wherever a read may meet it. */
static void truncate_reads(void)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_error err;
		float first = -1;
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_READ, .at = n, .partial = 1});
		if (load("ck", &first, &err) == CKPTFMT_OK)
			CHECK(first == 2);
		else
			CHECK(err.failure == CKPTFMT_FAIL_TRUNCATED && err.offset != UINT64_MAX);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
	}
}

/* ---- the heap -------------------------------------------------------------------------------------------- */

static void fail_allocations(bool forever)
{
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_error err;
		float first = -1;
		empty_tree(directory);
		CHECK_OK(save("ck", 1, &err), err);
		memory_fault_set(n, forever);
		if (save("ck", 2, &err) != CKPTFMT_OK)
			CHECK_EQ(err.status, CKPTFMT_NO_MEMORY);
		hit = memory_fault_hits() != 0;
		memory_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		check_checkpoint("ck", 1, 2);
		memory_fault_set(n, forever);
		if (load("ck", &first, &err) != CKPTFMT_OK)
			CHECK_EQ(err.status, CKPTFMT_NO_MEMORY);
		hit = hit || memory_fault_hits() != 0;
		memory_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
	}
}

/* Directories that a save or a merge by rename makes are synced into their parents: a synced save may follow. */
static void sync_parents_of_new_directories(void)
{
	static const uint64_t wanted[] = {[CKPTFMT_DURABILITY_RENAME] = 2, [CKPTFMT_DURABILITY_NONE] = 0};
	for (int32_t durability = CKPTFMT_DURABILITY_RENAME; durability <= CKPTFMT_DURABILITY_NONE; durability++) {
		ckptfmt_write_options options = {.struct_size = sizeof options, .durability = durability};
		ckptfmt_error err;
		ckptfmt_merge_options merge = {.struct_size = sizeof merge};
		const char *input = path_of("new/deep/ck");
		uint64_t before = os_system_calls(OS_SYSTEM_FSYNC);
		CHECK_OK(save_sources(path_of("new/deep/ck"), &options, NULL, 0, &err), err);
		CHECK_EQ(os_system_calls(OS_SYSTEM_FSYNC) - before, wanted[durability]);
		merge.durability = durability;
		before = os_system_calls(OS_SYSTEM_FSYNC);
		CHECK_OK(ckptfmt_merge(&input, 1, path_of("merged/deep/ck"), &merge, &err), err);
		CHECK_EQ(os_system_calls(OS_SYSTEM_FSYNC) - before, wanted[durability]);
		shell("rm -rf '%s'/new '%s'/merged");
	}
}

int main(void)
{
	if (!make_memory_directory())
		return 2;
	sync_parents_of_new_directories();
	for (shards = 1; shards <= 2; shards++) {
		fail_saves(EIO, false);
		fail_saves(ENOSPC, true);
		crash_saves();
	}
	shards = 1;
	crash_where_numbers_are_taken();
	change_files_meanwhile();
	take_each_number();
	keep_names_of_others();
	fail_empty_saves();
	count_of_indexes();
	reserve_room();
	fail_system_calls(OS_SYSTEM_FSTAT);
	fail_system_calls(OS_SYSTEM_FSTATAT);
	fail_system_calls(OS_SYSTEM_FLOCK);
	fail_loads(EIO);
	truncate_reads();
	fail_allocations(false);
	fail_allocations(true);
	os_fault_log_clear();
	remove_tree(directory);
	return test_finish("faults");
}
