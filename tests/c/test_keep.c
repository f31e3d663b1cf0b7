/* SPDX-License-Identifier: Apache-2.0 */
/* Saving upon another checkpoint: what is linked, how the data files are numbered, what is left to be written, and what
 * others may do meanwhile. Links os_fault.c and memory_fault.c. */
#include "base/limits.h"
#include "proto/names.h"
#include "read/index.h"
#include "table/table.h"
#include "bundle_maker.h"
#include "keep_stage.h"
#include "memory_fault.h"
#include "os_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>

/* ---- what becomes of the files --------------------------------------------------------------------------- */

static void test_numbers(void)
{
	upon u = upon_default();
	set_scene(false);
	/* Nothing changed: no data file of its own. */
	CHECK_OK(save_upon(&u, "in/base", "out/n", old_values), err);
	CHECK(u.kept == 4 && u.written == 0 && shards_of("out/n") == 2);
	CHECK(links_of("out/n.data-00000-of-00002") == 2 && links_of("out/n.data-00001-of-00002") == 2);
	CHECK_EQ(count_entries(path_of("out")), 2 + 3);
	/* Upon itself, twice: the number must be another one, and a placeholder makes it up. */
	CHECK_OK(save_upon(&u, "out/n", "out/n", old_values), err);
	CHECK(u.kept == 4 && shards_of("out/n") == 3 && links_of("out/n.data-00000-of-00003") == 2);
	CHECK(has("out/n", "_CKPTFMT_SHARD_2", -1) == false && count_entries(path_of("out")) == 2 + 4);
	CHECK_OK(save_upon(&u, "out/n", "out/n", some_new), err);
	CHECK(u.kept == 3 && u.written == 1 && shards_of("out/n") == 4 && count_entries(path_of("out")) == 2 + 5);
	CHECK(holds("out/n", some_new));
	/* The files kept come first, in the order of the base. */
	CHECK(links_of("out/n.data-00000-of-00004") == 2 && links_of("out/n.data-00001-of-00004") == 2 &&
		links_of("out/n.data-00002-of-00004") == 1);
	remove_base();
	CHECK(holds("out/n", some_new));
	/* A file in which nothing is left is not linked, */
	CHECK_OK(save_upon(&u, "out/n", "out/m", all_new), err);
	CHECK(u.kept == 1 && shards_of("out/m") == 2 && links_of("out/n.data-00000-of-00004") == 1);
	/* and where nothing is, it is a save like any other. */
	CHECK_OK(save_upon(&u, "out/m", "out/k", older), err);
	CHECK(u.kept == 0 && shards_of("out/k") == 1 && holds("out/k", older) && holds("out/m", all_new));
	/* Over another checkpoint, of one file: the new file and one that is kept. */
	CHECK_OK(save_upon(&u, "out/m", "out/k", all_new), err);
	CHECK(u.kept == 4 && shards_of("out/k") == 2 && holds("out/k", all_new));
	/* The number that an index claims is taken, its data files or no. */
	shell("rm '%s'/out/k.data-*");
	CHECK_OK(save_upon(&u, "out/m", "out/k", all_new), err);
	CHECK(u.kept == 4 && shards_of("out/k") == 3 && holds("out/k", all_new));
}

/* Two data files of the base that are one file stay one. */
static void test_one_file_twice(void)
{
	const int64_t dims[1] = {1};
	upon u = upon_default();
	bundle_maker m;
	empty_tree(directory);
	maker_begin(&m, directory, "base", 2);
	for (int i = 0; i < TENSORS; i++) {
		maker_tensor(&m, names[i], CKPTFMT_FLOAT, 1, dims, 0, &old_values[i], 4);
		m.entries[m.entry_count - 1].fields.shard = i % 2;
	}
	maker_build(&m);
	maker_save(&m);
	maker_free(&m);
	shell("cd '%s' && ln -f base.data-00000-of-00002 base.data-00001-of-00002");
	CHECK_OK(save_upon(&u, "base", "n", old_values), err);
	CHECK(u.kept == 4 && shards_of("n") == 1 && links_of("n.data-00000-of-00001") == 3 && holds("n", old_values));
}

/* ---- entries --------------------------------------------------------------------------------------------- */

static bool has_entry(const char *prefix, const char *name, const void *end, uint64_t end_size)
{
	const cf_directory here = {open(directory, O_RDONLY | O_DIRECTORY), directory, NULL, 0};
	char index[CF_NAME_SIZE];
	ckptfmt_limits limits;
	cf_file file = {.fd = -1};
	cf_file_info info;
	cf_table *table = NULL;
	cf_table_value value;
	bool found = false;
	cf_limits_default(&limits);
	cf_index_name(prefix, index);
	CHECK_OK(cf_os_open(&here, index, true, &file, &info, &err), err);
	CHECK_OK(cf_index_open(&file, index, info.size, &limits, &table, &err), err);
	CHECK_OK(cf_table_get(table, (const uint8_t *)name, strlen(name), &value, &found, &err), err);
	found = found && value.size >= end_size && memcmp(value.data + value.size - end_size, end, (size_t)end_size) == 0;
	cf_table_close(table);
	cf_os_close_quietly(&file);
	close(here.fd);
	return found;
}

/* Unknown extensions and fields are kept to the byte, by a writer that has extensions itself; one of level V2
 * is left to write such tensors. */
static void test_extensions(void)
{
	static const uint8_t unknown[] = {0xba, 0x3e, 0x03, 'x', 'y', 'z'};     /* field 999 */
	const int64_t dims[1] = {8}, starts[1] = {0}, lengths[1] = {8};
	const uint8_t bytes[8] = {1, 2, 3, 4, 5, 6, 7, 8};
	for (int big = 0; big < 2; big++)
		for (int plain = 0; plain < 2; plain++) {
			ckptfmt_write_options options;
			ckptfmt_reader *reader;
			ckptfmt_selection *selection;
			ckptfmt_writer *writer;
			const uint64_t rows[4] = {0, 1, 2, 3};
			uint8_t kept[4] = {7, 7, 7, 7};
			bundle_maker m;
			maker_entry *entry;
			empty_tree(directory);
			maker_begin(&m, directory, "base", 1);
			m.endianness = big;
			maker_tensor(&m, "_CKPTFMT_SHARD_0", CKPTFMT_UINT8, 1, dims, 0, bytes, 8);
			entry = maker_tensor(&m, "chunks", CKPTFMT_UINT8, 1, dims, 0, bytes, 8);
			maker_chunks(entry, 4, bytes);
			cf_put_bytes(&entry->more, unknown, sizeof unknown);
			entry = maker_partitioned(&m, "cut", CKPTFMT_UINT8, 1, dims);
			maker_slice(&m, entry, "cut", starts, lengths, 0, bytes, 8);
			maker_tensor(&m, "plain", CKPTFMT_UINT8, 1, dims, 0, bytes, 8);
			maker_build(&m);
			maker_save(&m);
			maker_free(&m);
			options = (ckptfmt_write_options){.struct_size = sizeof options};
			options.chunk_size = plain ? 0 : 1 << 18;
			CHECK_OK(ckptfmt_reader_open(path_of("base"), NULL, &reader, &err), err);
			CHECK_OK(ckptfmt_reader_list_all(reader, &selection, &err), err);
			CHECK_OK(ckptfmt_writer_open(path_of("n"), &options, &writer, &err), err);
			CHECK_OK(ckptfmt_writer_keep(writer, reader, selection, rows, 4, NULL, kept, &err), err);
			ckptfmt_selection_free(selection);
			ckptfmt_reader_close(reader);
			CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
			CHECK(kept[0] == 0 && kept[1] == (!big && !plain) && kept[2] == !big && kept[3] == !big);
			CHECK_EQ(has_entry("n", "chunks", unknown, sizeof unknown), !big && !plain);
			CHECK_EQ(has_entry("n", "plain", "", 0), !big);
		}
}

static const ckptfmt_bytes new_names[2] = {{(const uint8_t *)"q", 1}, {(const uint8_t *)"v", 1}};

/* Keeps all tensors of the base under new names. */
static ckptfmt_status rename_all(const ckptfmt_bytes *wanted, uint8_t *kept)
{
	const uint64_t rows[2] = {0, 1};
	const ckptfmt_write_options options = {.struct_size = sizeof options, .durability = CKPTFMT_DURABILITY_NONE};
	ckptfmt_reader *reader;
	ckptfmt_selection *selection;
	ckptfmt_writer *writer;
	ckptfmt_status status;
	CF_TRY(ckptfmt_reader_open(path_of("base"), NULL, &reader, &err));
	status = ckptfmt_reader_list(reader, &selection, &err);
	if (status == CKPTFMT_OK) {
		status = ckptfmt_writer_open(path_of("n"), &options, &writer, &err);
		if (status == CKPTFMT_OK) {
			status = ckptfmt_writer_keep(writer, reader, selection, rows, 2, wanted, kept, &err);
			if (status == CKPTFMT_OK)
				status = ckptfmt_writer_commit(writer, &err);
			else
				ckptfmt_writer_abandon(writer);
		}
		ckptfmt_selection_free(selection);
	}
	ckptfmt_reader_close(reader);
	return status;
}

/* A partitioned tensor and one in the last of its data files get new names; the data files stay in their order. A slice
 * that cannot be linked leaves the whole tensor to the caller. */
static void test_new_names(void)
{
	const int64_t dims[1] = {3}, one[1] = {1}, starts[3] = {2, 0, 1};
	const float values[3] = {30, 10, 20}, whole = 5;
	float got[3];
	uint8_t kept[2];
	bundle_maker m;
	maker_entry *entry;
	empty_tree(directory);
	maker_begin(&m, directory, "base", 3);
	entry = maker_partitioned(&m, "p", CKPTFMT_FLOAT, 1, dims);
	for (int i = 0; i < 3; i++)
		maker_slice(&m, entry, "p", &starts[i], one, i == 0 ? 2 : i - 1, &values[i], 4);
	maker_tensor(&m, "w", CKPTFMT_FLOAT, 1, one, 2, &whole, 4);
	maker_build(&m);
	maker_save(&m);
	maker_free(&m);
	for (uint64_t n = 0, hit = true; hit; n++) {
		ckptfmt_status status;
		if (n != 0)
			memory_fault_set(n, false);
		status = rename_all(new_names, kept);
		hit = n == 0 || memory_fault_hits() != 0;
		memory_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		CHECK(status == CKPTFMT_OK || (n != 0 && status == CKPTFMT_NO_MEMORY));
		if (status != CKPTFMT_OK)
			continue;
		CHECK(kept[0] == 1 && kept[1] == 1 && has("n", "v", 5));
		CHECK_OK(read_one(path_of("n"), "q", got, sizeof got, &err), err);
		CHECK(got[0] == 10 && got[1] == 20 && got[2] == 30);
		CHECK(read_one(path_of("n"), "p", got, sizeof got, &err) == CKPTFMT_NOT_FOUND);
		if (n != 0)
			continue;
		CHECK_EQ(shards_of("n"), 3);
		shell("cd '%s' && for i in 0 1 2; do test base.data-0000$i-of-00003 -ef n.data-0000$i-of-00003; done");
	}
	/* A file whose fstat fails once: what is kept is whole. */
	for (uint64_t n = 1, hit = true; hit; n++) {
		ckptfmt_status status;
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_FILE_INFO, .at = n});
		status = rename_all(new_names, kept);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK(status == CKPTFMT_OK || (hit && status == CKPTFMT_IO));
		if (status != CKPTFMT_OK)
			continue;
		CHECK_EQ(read_one(path_of("n"), "q", got, sizeof got, &err), kept[0] ? CKPTFMT_OK : CKPTFMT_NOT_FOUND);
		CHECK_EQ(has("n", "v", 5), kept[1]);
	}
	CHECK(rename_all((ckptfmt_bytes[2]){new_names[0], {(const uint8_t *)"", 0}}, kept) == CKPTFMT_INVALID);
	CHECK(strstr(err.message, "TAB-12") != NULL && kept[0] == 0);
	CHECK(rename_all((ckptfmt_bytes[2]){new_names[0], new_names[0]}, kept) == CKPTFMT_INVALID);
	shell("rm '%s'/base.data-00001-of-00003");
	CHECK_OK(rename_all(new_names, kept), err);
	CHECK(kept[0] == 0 && kept[1] == 1 && shards_of("n") >= 1);
}

static void test_misuse(void)
{
	ckptfmt_source sources[TENSORS];
	ckptfmt_reader *reader, *other;
	ckptfmt_selection *selection;
	ckptfmt_writer *writer;
	uint64_t rows[2] = {0, 4};
	uint8_t kept[2];
	set_scene(false);
	make_sources(sources, some_new);
	CHECK_OK(ckptfmt_reader_open(path_of("in/base"), NULL, &reader, &err), err);
	CHECK_OK(ckptfmt_reader_open(path_of("in/base"), NULL, &other, &err), err);
	CHECK_OK(ckptfmt_reader_list(reader, &selection, &err), err);
	CHECK_OK(ckptfmt_writer_open(path_of("out/n"), NULL, &writer, &err), err);
	CHECK_FAILS(ckptfmt_writer_keep(writer, reader, selection, rows, 2, NULL, kept, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"row 4 of 4");
	ckptfmt_writer_abandon(writer);
	CHECK_OK(ckptfmt_writer_open(path_of("out/n"), NULL, &writer, &err), err);
	CHECK_FAILS(ckptfmt_writer_keep(writer, other, selection, rows, 1, NULL, kept, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the selection belongs to another reader");
	rows[1] = 0;
	CHECK_FAILS(ckptfmt_writer_keep(writer, reader, selection, rows, 2, NULL, kept, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the name is added twice");
	CHECK(kept[0] == 0 && kept[1] == 0 && strcmp(err.tensor, "a") == 0);
	ckptfmt_writer_abandon(writer);
	CHECK_OK(ckptfmt_writer_open(path_of("out/n"), NULL, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_add(writer, sources + 1, 3, &err), err);
	rows[0] = 1;
	CHECK_FAILS(ckptfmt_writer_keep(writer, reader, selection, rows, 1, NULL, kept, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the name is added twice");
	ckptfmt_writer_abandon(writer);
	CHECK_OK(ckptfmt_writer_open(path_of("out/n"), NULL, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_add(writer, sources + 1, 3, &err), err);
	rows[0] = 0;
	CHECK_OK(ckptfmt_writer_keep(writer, reader, selection, NULL, 0, NULL, NULL, &err), err);
	CHECK_OK(ckptfmt_writer_keep(writer, reader, selection, rows, 1, NULL, kept, &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
	CHECK(holds("out/n", some_new) && shards_of("out/n") == 2 && count_entries(path_of("out")) == 2 + 3);
	/* Kept and abandoned: no trace. */
	CHECK_OK(ckptfmt_writer_open(path_of("out/k"), NULL, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_keep(writer, reader, selection, rows, 1, NULL, kept, &err), err);
	CHECK_EQ(links_of("in/base.data-00000-of-00002"), 3);
	ckptfmt_writer_abandon(writer);
	CHECK_EQ(links_of("in/base.data-00000-of-00002"), 2);
	CHECK_EQ(count_entries(path_of("out")), 2 + 3);
	/* Nothing at all, after a call that kept nothing. */
	CHECK_OK(ckptfmt_writer_open(path_of("out/n"), NULL, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_keep(writer, reader, selection, NULL, 0, NULL, NULL, &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
	CHECK(shards_of("out/n") == 1 && count_entries(path_of("out")) == 2 + 2);
	ckptfmt_selection_free(selection);
	ckptfmt_reader_close(reader);
	ckptfmt_reader_close(other);
}

/* ---- no links -------------------------------------------------------------------------------------------- */

/* Where there are none, all is written. */
static void test_no_links(void)
{
	static const int codes[] = {EXDEV, EPERM, EMLINK, EOPNOTSUPP, ENOSYS, ENOSPC, EIO};
	for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
		for (int overwrite = 0; overwrite < 2; overwrite++) {
			upon u = upon_default();
			set_scene(overwrite);
			os_system_set(OS_SYSTEM_LINK, 1, 1000, codes[i]);
			CHECK_OK(save_upon(&u, "in/base", "out/n", some_new), err);
			os_fault_clear();
			CHECK(u.kept == 0 && links_of("in/base.data-00000-of-00002") == 1);
			CHECK(holds("out/n", some_new) && holds("in/base", old_values));
			CHECK_EQ(count_entries(path_of("out")), 2 + 1 + shards_of("out/n"));
		}
}

/* A file with 1000 links is written anew: file systems limit them. */
static void test_many_links(void)
{
	for (int more = 998; more <= 999; more++) {
		upon u = upon_default();
		set_scene(false);
		for (int i = 0; i < more; i++) {
			char name[32];
			(void)snprintf(name, sizeof name, "part/%d.link", i);
			CHECK_EQ(link(path_of("in/base.data-00000-of-00002"), path_of(name)), 0);
		}
		CHECK_OK(save_upon(&u, "in/base", "out/n", some_new), err);
		CHECK(u.kept == (more == 998 ? 3 : 1) && holds("out/n", some_new));
		CHECK_EQ(links_of("in/base.data-00000-of-00002"), 1000);
	}
}

/* A file of the base that cannot be synced is not relied upon, and each that is linked is synced. */
static void test_sync(void)
{
	upon u = upon_default();
	int synced = 0;
	set_scene(false);
	os_fault_log_clear();
	CHECK_OK(save_upon(&u, "in/base", "out/n", some_new), err);
	CHECK_EQ(u.kept, 3);
	for (uint64_t i = 0; i < os_fault_log_count(); i++)
		synced += os_fault_log_at(i)->kind == OS_FAULT_SYNC && strstr(os_fault_log_at(i)->name, "base.data-") != NULL;
	CHECK_EQ(synced, 2);
	set_scene(false);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_SYNC, .at = 1});
	CHECK_OK(save_upon(&u, "in/base", "out/n", some_new), err);
	os_fault_clear();
	CHECK(u.kept == 1 && holds("out/n", some_new) && links_of("in/base.data-00000-of-00002") == 1);
	set_scene(false);
	u.options.durability = CKPTFMT_DURABILITY_RENAME;
	os_fault_log_clear();
	CHECK_OK(save_upon(&u, "in/base", "out/n", some_new), err);
	CHECK(u.kept == 3 && os_fault_log_count_of(OS_FAULT_SYNC) == 0);
}

/* ---- meanwhile ------------------------------------------------------------------------------------------- */

static ckptfmt_error kept_error;

static void replace_base(void)
{
	kept_error = err;
	save_all("in/base", older);
	err = kept_error;
}

static void drop_base(void)
{
	kept_error = err;
	shell("rm -rf '%s'/in && mkdir '%s'/in");
	err = kept_error;
}

static void swap_files(void)
{
	shell("cd '%s'/in && head -c 8 /dev/zero > x && mv x base.data-00000-of-00002");
}

/* Whatever is done to the base while it is saved upon, what is saved is what was in memory. */
static void test_base_changes(void)
{
	void (*const acts[3])(void) = {replace_base, drop_base, swap_files};
	for (int act = 0; act < 3; act++) {
		bool hit = true;
		int kept[TENSORS + 1] = {0};
		for (uint64_t n = 1; hit; n++) {
			upon u = upon_default();
			ckptfmt_status status;
			set_scene(true);
			os_fault_set(&(os_fault_plan){.at = n, .meanwhile = acts[act]});
			status = save_upon(&u, "in/base", "out/n", some_new);
			hit = os_fault_hits() != 0;
			os_fault_clear();
			if (status != CKPTFMT_OK) {
				/* It was gone before it was open. */
				CHECK(err.failure == CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND && act == 1);
				CHECK(holds("out/n", older));
				continue;
			}
			kept[u.kept]++;
			CHECK(holds("out/n", some_new));
			CHECK_EQ(count_entries(path_of("out")), 2 + 1 + shards_of("out/n"));
		}
		CHECK(kept[3] > 0 && kept[act == 2 ? 1 : 0] > 0);
	}
}

static void cut_file(void)
{
	CHECK_EQ(truncate(path_of("in/base.data-00000-of-00002"), 2), 0);
}

/* A data file of the base that is cut in place at any moment up to the last look at it. */
static void test_base_is_cut(void)
{
	uint64_t last = 0;
	int kept[TENSORS + 1] = {0}, busy = 0;
	for (uint64_t n = 0; n <= last; n++) {
		upon u = upon_default();
		ckptfmt_status status;
		set_scene(true);
		os_fault_log_clear();
		os_fault_set(&(os_fault_plan){.at = n, .meanwhile = cut_file});
		status = save_upon(&u, "in/base", "out/n", some_new);
		os_fault_clear();
		for (uint64_t i = 0; n == 0 && i < os_fault_log_count(); i++)
			if (os_fault_log_at(i)->kind == OS_FAULT_STAT && strstr(os_fault_log_at(i)->name, "n.data-00000") != NULL)
				last = i + 1;
		kept[u.kept] += status == CKPTFMT_OK;
		busy += status != CKPTFMT_OK;
		CHECK(status == CKPTFMT_OK || err.failure == CKPTFMT_FAIL_BUSY);
		CHECK(holds("out/n", status == CKPTFMT_OK ? some_new : older));
	}
	CHECK(kept[3] == 1 && kept[1] > 0 && busy > 0);
}

/* Another process saves the same upon the same, to the same prefix. */
static bool saved_meanwhile;

static void save_meanwhile(void)
{
	upon u = upon_default();
	int fd = open(path_of("out"), O_RDONLY | O_DIRECTORY);
	kept_error = err;
	saved_meanwhile = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0;
	if (fd >= 0)
		close(fd);
	if (saved_meanwhile)
		CHECK_OK(save_upon(&u, "in/base", "out/n", some_new), err);
	err = kept_error;
}

static void test_twice_at_once(void)
{
	bool hit = true;
	int twice = 0;
	for (uint64_t n = 1; hit; n++) {
		upon u = upon_default();
		ckptfmt_status status;
		set_scene(n % 2 == 0);
		saved_meanwhile = false;
		os_fault_set(&(os_fault_plan){.at = n, .meanwhile = save_meanwhile});
		status = save_upon(&u, "in/base", "out/n", some_new);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		if (status != CKPTFMT_OK)
			CHECK(err.failure == CKPTFMT_FAIL_BUSY && saved_meanwhile);
		twice += saved_meanwhile;
		CHECK(holds("out/n", some_new) && holds("in/base", old_values));
	}
	CHECK(twice > 10);
}

/* Another process saves the same upon the same but for one tensor, and this one dies before it commits. */
static const float others[TENSORS] = {1, 2, 3, 77};
static bool was_called;

static void save_other_and_die(void)
{
	upon u = upon_default();
	int fd = open(path_of("out"), O_RDONLY | O_DIRECTORY);
	kept_error = err;
	was_called = true;
	saved_meanwhile = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) == 0;
	if (fd >= 0)
		close(fd);
	if (saved_meanwhile)
		CHECK_OK(save_upon(&u, "in/base", "out/n", others), err);
	os_fault_set(&(os_fault_plan){.kind = OS_FAULT_RENAME, .at = 1, .crash = true});
	err = kept_error;
}

/* A name that another process gave to the same file is neither moved nor removed. */
static void test_names_of_others(void)
{
	int saved = 0;
	was_called = true;
	for (uint64_t n = 1; was_called; n++) {
		upon u = upon_default();
		set_scene(false);
		was_called = saved_meanwhile = false;
		os_fault_set(&(os_fault_plan){.at = n, .meanwhile = save_other_and_die});
		(void)!save_upon(&u, "in/base", "out/n", some_new);
		os_fault_clear();
		saved += saved_meanwhile;
		if (saved_meanwhile)
			CHECK(holds("out/n", others) || holds("out/n", some_new));
	}
	CHECK(saved > 10);
}

/* A merge takes the new names and no others. */
static void test_merged(void)
{
	upon u = upon_default();
	for (int consume = 0; consume < 2; consume++) {
		const ckptfmt_merge_options options = {.struct_size = sizeof options, .consume = consume};
		const char *inputs[2] = {path_of("out/n"), path_of("other/e")};
		set_scene(false);
		CHECK_OK(save_upon(&u, "in/base", "out/n", some_new), err);
		save_to("other/e", "e", 5, -1, 1);
		CHECK_OK(ckptfmt_merge(inputs, 2, path_of("all/m"), &options, &err), err);
		CHECK(holds("all/m", some_new) && has("all/m", "e", 5) && shards_of("all/m") == 4);
		CHECK_EQ(holds("out/n", some_new), !consume);
		CHECK(holds("in/base", old_values));
		CHECK_EQ(links_of("in/base.data-00000-of-00002"), consume ? 2 : 3);
	}
}

int main(void)
{
	if (!make_memory_directory())
		return 2;
	test_numbers();
	test_one_file_twice();
	test_extensions();
	test_new_names();
	test_misuse();
	test_no_links();
	test_many_links();
	test_sync();
	test_base_changes();
	test_base_is_cut();
	test_twice_at_once();
	test_names_of_others();
	test_merged();
	os_fault_log_clear();
	remove_tree(directory);
	return test_finish("keep");
}
