/* SPDX-License-Identifier: Apache-2.0 */
/* Writing over the data files of removed checkpoints: the same bytes as otherwise, in the file that was there; and
 * whoever has that file, by any means, keeps what it held. Links os_fault.c and memory_fault.c. */
#include "scratch.h"

#include "base/error.h"
#include "storage/file_writer.h"
#include "memory_fault.h"
#include "os_fault.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { SIZE_MAX_HERE = 160 << 20, SMALL = 300000, LARGE = (CF_FILE_WRITER_DIRECT_MIN + 8192) };

static ckptfmt_error err;
static uint8_t *bytes;      /* SIZE_MAX_HERE of them, random */
static bool leases;         /* whether files are ever to be had here */

/* ---- checkpoints ---- */

typedef struct part {
	uint64_t first, size;   /* of `bytes` */
} part;

/* One tensor a part, each put by a call of its own. */
static ckptfmt_status save(const char *prefix, int32_t durability, const part *parts, int count, ckptfmt_spare *spare)
{
	static const char *const names[] = {"a", "b", "c"};
	ckptfmt_write_options options;
	ckptfmt_writer *writer;
	ckptfmt_status status;
	ckptfmt_write_options_default(&options);
	options.durability = durability;
	status = ckptfmt_writer_open(path_of(prefix), &options, &writer, &err);
	if (status != CKPTFMT_OK) {
		ckptfmt_spare_close(spare, 1);
		return status;
	}
	if (spare != NULL)
		status = ckptfmt_writer_recycle(writer, spare, &err);
	for (int i = 0; i < count && status == CKPTFMT_OK; i++) {
		const int64_t dims[1] = {(int64_t)parts[i].size};
		ckptfmt_source source;
		memset(&source, 0, sizeof source);
		source.name = (const uint8_t *)names[i];
		source.name_size = 1;
		source.dims = dims;
		source.rank = 1;
		source.dtype = CKPTFMT_UINT8;
		source.data = bytes + parts[i].first;
		status = ckptfmt_writer_add(writer, &source, 1, &err);
	}
	if (status == CKPTFMT_OK)
		return ckptfmt_writer_commit(writer, &err);
	ckptfmt_writer_abandon(writer);
	return status;
}

static const char *data_name(const char *prefix)
{
	static char names[8][64];
	static int next;
	char *name = names[next++ % 8];
	(void)snprintf(name, sizeof names[0], "%s.data-00000-of-00001", prefix);
	return name;
}

/* A checkpoint of `size` bytes that has lost its index; the inode of its data file. */
static ino_t make_old(const char *prefix, uint64_t size)
{
	char index[64];
	struct stat info;
	const part whole = {7, size};
	CHECK_OK(save(prefix, CKPTFMT_DURABILITY_NONE, &whole, 1, NULL), err);
	(void)snprintf(index, sizeof index, "%s.index", prefix);
	CHECK_EQ(unlink(path_of(index)), 0);
	CHECK_EQ(stat(path_of(data_name(prefix)), &info), 0);
	return info.st_ino;
}

static ckptfmt_spare *take(const char *prefix)
{
	ckptfmt_spare *spare;
	CHECK_OK(ckptfmt_spare_take(path_of(data_name(prefix)), UINT64_MAX, &spare, &err), err);
	return spare;
}

/* The name of the one temporary file there is; "" if there is none, or there are several. */
static const char *temporary_name(void)
{
	static char name[300];
	const struct dirent *entry;
	int count = 0;
	DIR *stream = opendir(directory);
	name[0] = '\0';
	while ((entry = readdir(stream)) != NULL)
		if (strstr(entry->d_name, ".tempstate") != NULL) {
			count++;
			(void)snprintf(name, sizeof name, "%s", entry->d_name);
		}
	closedir(stream);
	if (count != 1)
		name[0] = '\0';
	return name;
}

static bool holds(const char *name, uint64_t first, uint64_t size)
{
	struct stat info;
	bool same = false;
	int fd = open(path_of(name), O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	CHECK_EQ(fstat(fd, &info), 0);
	if ((uint64_t)info.st_size == size && size != 0) {
		void *map = mmap(NULL, (size_t)size, PROT_READ, MAP_SHARED, fd, 0);
		same = map != MAP_FAILED && memcmp(map, bytes + first, (size_t)size) == 0;
		(void)munmap(map, (size_t)size);
	}
	close(fd);
	return same;
}

static bool has_inode(const char *name, ino_t inode)
{
	struct stat info;
	return stat(path_of(name), &info) == 0 && info.st_ino == inode;
}

static bool is_sound(const char *prefix)
{
	ckptfmt_verifier *verifier;
	ckptfmt_progress progress;
	int problems = 0;
	memset(&progress, 0, sizeof progress);
	if (ckptfmt_verifier_open(path_of(prefix), NULL, &verifier, &err) != CKPTFMT_OK)
		return false;
	while (!progress.finished && ckptfmt_verifier_step(verifier, UINT64_MAX, &progress, &err) == CKPTFMT_OK)
		continue;
	for (uint64_t i = 0; i < progress.finding_count; i++)
		problems += ckptfmt_verifier_finding(verifier, i)->severity == CKPTFMT_SEVERITY_PROBLEM;
	ckptfmt_verifier_close(verifier);
	return progress.finished && problems == 0;
}

/* ---- tests ---- */

static void test_bytes(void)
{
	/* Parts of the new checkpoint, and the size of the old one. */
	static const struct {
		uint64_t old;
		uint64_t sizes[3];
		int count;
		int32_t durability;
	} cases[] = {
		{SMALL, {SMALL}, 1, CKPTFMT_DURABILITY_FULL},
		{SMALL, {SMALL - 1}, 1, CKPTFMT_DURABILITY_NONE},
		{SMALL, {1}, 1, CKPTFMT_DURABILITY_RENAME},
		{SMALL, {0}, 1, CKPTFMT_DURABILITY_FULL},
		{SMALL, {SMALL, SMALL, 5}, 3, CKPTFMT_DURABILITY_FULL},
		{SMALL, {3 << 20}, 1, CKPTFMT_DURABILITY_NONE},
		{1, {SMALL}, 1, CKPTFMT_DURABILITY_FULL},
		{LARGE, {LARGE}, 1, CKPTFMT_DURABILITY_FULL},
		{LARGE, {LARGE - 12345}, 1, CKPTFMT_DURABILITY_FULL},
		{LARGE, {LARGE, 1, SMALL}, 3, CKPTFMT_DURABILITY_FULL},
		{2 * LARGE, {LARGE, 1000}, 2, CKPTFMT_DURABILITY_FULL},
		{SMALL, {LARGE}, 1, CKPTFMT_DURABILITY_FULL},
		{LARGE, {SMALL}, 1, CKPTFMT_DURABILITY_FULL},
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		ino_t inode = make_old("old", cases[i].old);
		part parts[3];
		uint64_t total = 0;
		ckptfmt_spare *spare;
		for (int k = 0; k < cases[i].count; k++) {
			parts[k] = (part){total, cases[i].sizes[k]};
			total += parts[k].size;
		}
		CHECK_OK(save("fresh", cases[i].durability, parts, cases[i].count, NULL), err);
		spare = take("old");
		CHECK_EQ(spare != NULL, leases);
		CHECK(access(path_of(data_name("old")), F_OK) != 0 || !leases);
		CHECK_OK(save("new", cases[i].durability, parts, cases[i].count, spare), err);
		CHECK(total == 0 || holds(data_name("new"), 0, total));
		CHECK_EQ(has_inode(data_name("new"), inode), leases);
		CHECK(is_sound("new"));
		shell("cmp %s/new.index %s/fresh.index && rm %s/new.* %s/fresh.*");
		CHECK_EQ(count_entries(directory), leases ? 2 : 3);
		(void)unlink(path_of(data_name("old")));
	}
}

/* The file has its blocks until it has its final size: nothing is cut while more may come. */
static void test_blocks(void)
{
	const part parts[2] = {{0, LARGE}, {LARGE, LARGE}};
	uint64_t trims = 0;
	ckptfmt_spare *spare;
	(void)make_old("old", 2 * LARGE + 4096);
	spare = take("old");
	os_fault_log_clear();
	CHECK_OK(save("new", CKPTFMT_DURABILITY_FULL, parts, 2, spare), err);
	for (uint64_t i = 0; i < os_fault_log_count(); i++) {
		const os_fault_record *row = os_fault_log_at(i);
		if (row->kind == OS_FAULT_TRIM && row->size != 0) {
			trims++;
			CHECK_EQ(row->size, 2 * (uint64_t)LARGE);
		}
	}
	CHECK(!leases || trims == 1);
	CHECK(!leases || os_fault_log_count_of(OS_FAULT_RESERVE) == 0);
	/* One that is larger than the next one can use is none, and stays. */
	shell("rm %s/new.*");
	(void)make_old("old", SMALL);
	CHECK_OK(ckptfmt_spare_take(path_of(data_name("old")), SMALL - 1, &spare, &err), err);
	CHECK(spare == NULL);
	CHECK(holds(data_name("old"), 7, SMALL));
	CHECK_OK(ckptfmt_spare_take(path_of(data_name("old")), SMALL, &spare, &err), err);
	if (leases) {
		/* It is as it was until it is written over: a link may have been on its way. */
		struct stat info;
		CHECK_EQ(stat(path_of(temporary_name()), &info), 0);
		CHECK_EQ(info.st_size, SMALL);
		CHECK_OK(save("new", CKPTFMT_DURABILITY_NONE, &(part){0, 1000}, 1, spare), err);
		CHECK(holds(data_name("new"), 0, 1000));
		shell("rm %s/new.*");
		/* One that cannot be cut fails the save that cannot do without. */
		(void)make_old("old", SMALL);
		spare = take("old");
		os_fault_set(&(os_fault_plan){.kind = OS_FAULT_TRIM, .at = 1, .forever = true});
		CHECK_FAILS(save("new", CKPTFMT_DURABILITY_NONE, &(part){0, 1000}, 1, spare), err, CKPTFMT_FAIL_OS,
			"the file has 300000 bytes after 1000");
		os_fault_clear();
	}
	(void)unlink(path_of(data_name("old")));
	CHECK_EQ(count_entries(directory), 2);
}

/* Ways to have a file, or to get hold of it. */
typedef enum way { OPEN, MAPPED, OPEN_TO_WRITE, LINKED, WAYS } way;

typedef struct holder {
	int fd;
	void *map;
} holder;

static holder hold(const char *name, way by)
{
	holder h = {-1, MAP_FAILED};
	if (by == LINKED) {
		CHECK_EQ(link(path_of(name), path_of("linked")), 0);
		return h;
	}
	h.fd = open(path_of(name), (by == OPEN_TO_WRITE ? O_WRONLY : O_RDONLY) | O_CLOEXEC);
	CHECK(h.fd >= 0);
	if (by == MAPPED) {
		h.map = mmap(NULL, SMALL, PROT_READ, MAP_SHARED, h.fd, 0);
		close(h.fd);
		h.fd = -1;
	}
	return h;
}

/* It has what the old checkpoint held. */
static void check_held(holder *h, way by)
{
	static uint8_t found[SMALL];
	if (by == OPEN) {
		CHECK_EQ(pread(h->fd, found, SMALL, 0), SMALL);
		CHECK(memcmp(found, bytes + 7, SMALL) == 0);
	}
	if (by == MAPPED) {
		CHECK(memcmp(h->map, bytes + 7, SMALL) == 0);
		CHECK_EQ(munmap(h->map, SMALL), 0);
	}
	if (by == LINKED) {
		CHECK(holds("linked", 7, SMALL));
		CHECK_EQ(unlink(path_of("linked")), 0);
	}
	if (h->fd >= 0)
		close(h->fd);
}

static void test_holders(void)
{
	const part whole = {1000, SMALL};
	for (way by = 0; by < WAYS; by++) {
		/* Before the file is taken, ... */
		ino_t inode = make_old("old", SMALL);
		holder h = hold(data_name("old"), by);
		CHECK(take("old") == NULL);
		/* A file of two names keeps this one; others may be gone, and are the caller's to remove. */
		CHECK(by != LINKED || has_inode(data_name("old"), inode));
		(void)unlink(path_of(data_name("old")));
		check_held(&h, by);
		CHECK_EQ(count_entries(directory), 2);
		/* ... and before it is used. */
		inode = make_old("old", SMALL);
		if (leases) {
			ckptfmt_spare *spare = take("old");
			h = hold(temporary_name(), by);
			CHECK_OK(save("new", CKPTFMT_DURABILITY_NONE, &whole, 1, spare), err);
			CHECK(holds(data_name("new"), 1000, SMALL) && !has_inode(data_name("new"), inode));
			check_held(&h, by);
			shell("rm %s/new.*");
		}
		(void)unlink(path_of(data_name("old")));
		CHECK_EQ(count_entries(directory), 2);
	}
}

static void test_uses(void)
{
	const part whole = {0, SMALL};
	const int64_t dims[1] = {SMALL};
	ckptfmt_source source;
	ckptfmt_writer *writer;
	ckptfmt_spare *first, *second;
	ino_t inode;
	/* No file, no name, no directory. */
	CHECK_OK(ckptfmt_spare_take(path_of("none"), 1, &first, &err), err);
	CHECK(first == NULL);
	CHECK_OK(ckptfmt_spare_take(path_of(""), 1, &first, &err), err);
	CHECK(first == NULL);
	CHECK_FAILS(ckptfmt_spare_take(path_of("none/file"), 1, &first, &err), err, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND, "");
	CHECK(first == NULL);
	ckptfmt_spare_close(NULL, 1);
	if (!leases)
		return;
	/* Closed: it is gone. In a forked child: it stays. */
	(void)make_old("old", SMALL);
	ckptfmt_spare_close(take("old"), 1);
	CHECK_EQ(count_entries(directory), 2);
	inode = make_old("old", SMALL);
	ckptfmt_spare_close(take("old"), 0);
	CHECK(has_inode(temporary_name(), inode));
	CHECK_EQ(unlink(path_of(temporary_name())), 0);
	/* A second one takes the place of the first; after a tensor none does. All go. */
	(void)make_old("old", SMALL);
	first = take("old");
	inode = make_old("old", SMALL);
	second = take("old");
	CHECK_OK(ckptfmt_writer_open(path_of("new"), NULL, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_recycle(writer, first, &err), err);
	CHECK_OK(ckptfmt_writer_recycle(writer, second, &err), err);
	memset(&source, 0, sizeof source);
	source.name = (const uint8_t *)"a";
	source.name_size = 1;
	source.dims = dims;
	source.rank = 1;
	source.dtype = CKPTFMT_UINT8;
	source.data = bytes;
	CHECK_OK(ckptfmt_writer_add(writer, &source, 1, &err), err);
	(void)make_old("old", SMALL);
	CHECK_OK(ckptfmt_writer_recycle(writer, take("old"), &err), err);
	CHECK_OK(ckptfmt_writer_commit(writer, &err), err);
	CHECK(has_inode(data_name("new"), inode) && holds(data_name("new"), 0, SMALL));
	shell("rm %s/new.*");
	CHECK_EQ(count_entries(directory), 2);
	/* Of another directory, and abandoned. */
	shell("mkdir %s/sub");
	inode = make_old("sub/old", SMALL);
	CHECK_OK(save("new", CKPTFMT_DURABILITY_FULL, &whole, 1, take("sub/old")), err);
	CHECK(has_inode(data_name("new"), inode));
	shell("rm %s/new.* && rmdir %s/sub");
	(void)make_old("old", SMALL);
	CHECK_OK(ckptfmt_writer_open(path_of("new"), NULL, &writer, &err), err);
	CHECK_OK(ckptfmt_writer_recycle(writer, take("old"), &err), err);
	ckptfmt_writer_abandon(writer);
	CHECK_EQ(count_entries(directory), 2);
}

/* Every call fails in turn, or is the last before a kill. */
static void test_faults(bool crash, bool after)
{
	const part whole = {5000, SMALL};
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		int fds = count_entries("/proc/self/fd");
		ckptfmt_spare *spare = NULL;
		ckptfmt_status status;
		(void)make_old("old", SMALL);
		os_fault_set(&(os_fault_plan){.at = n, .crash = crash, .after = after, .os_errno = EIO});
		status = ckptfmt_spare_take(path_of(data_name("old")), SMALL, &spare, &err);
		if (status == CKPTFMT_OK)
			status = save("new", CKPTFMT_DURABILITY_FULL, &whole, 1, spare);
		hit = os_fault_hits() != 0;
		os_fault_clear();
		CHECK_EQ(memory_fault_live(), 0);
		CHECK_EQ(count_entries("/proc/self/fd"), fds);
		/* There is a checkpoint or there is none, and the old data file is as it was under its name. */
		CHECK(status != CKPTFMT_OK || holds(data_name("new"), 5000, SMALL));
		CHECK(access(path_of("new.index"), F_OK) != 0 ||
			(is_sound("new") && holds(data_name("new"), 5000, SMALL)));
		CHECK(access(path_of(data_name("old")), F_OK) != 0 || holds(data_name("old"), 7, SMALL));
		/* At most one name could not be removed. */
		if (!crash && status == CKPTFMT_OK)
			CHECK(count_entries(directory) <= 5);
		shell("rm -f %s/*");
	}
}

static void test_memory(void)
{
	const part whole = {5000, SMALL};
	bool hit = true;
	for (uint64_t n = 1; hit; n++) {
		ckptfmt_spare *spare = NULL;
		ckptfmt_status status;
		(void)make_old("old", SMALL);
		memory_fault_set(n, false);
		status = ckptfmt_spare_take(path_of(data_name("old")), SMALL, &spare, &err);
		if (status == CKPTFMT_OK)
			status = save("new", CKPTFMT_DURABILITY_NONE, &whole, 1, spare);
		hit = memory_fault_hits() != 0;
		memory_fault_clear();
		CHECK(status == CKPTFMT_OK || status == CKPTFMT_NO_MEMORY);
		CHECK_EQ(memory_fault_live(), 0);
		CHECK(status != CKPTFMT_OK || holds(data_name("new"), 5000, SMALL));
		shell("rm -f %s/*");
	}
}

static ino_t looked_at;
static int kept_open;

/* The name that the file has now. */
static const char *name_now(void)
{
	static char name[300];
	const struct dirent *entry;
	DIR *stream = opendir(directory);
	name[0] = '\0';
	while ((entry = readdir(stream)) != NULL)
		if (entry->d_ino == looked_at)
			(void)snprintf(name, sizeof name, "%s", entry->d_name);
	closedir(stream);
	return name;
}

/* Somebody finds the file under its temporary name just before the system is asked. */
static void open_and_keep(void)
{
	kept_open = open(path_of(name_now()), O_RDONLY | O_CLOEXEC);
	CHECK(kept_open >= 0);
}

static void link_it(void)
{
	CHECK_EQ(link(path_of(name_now()), path_of("linked")), 0);
}

static void test_moments(void)
{
	const part whole = {5000, SMALL};
	for (int use = 0; use < 2 && leases; use++) {
		for (int links = 0; links < 2; links++) {
			static uint8_t found[SMALL];
			ckptfmt_spare *spare;
			looked_at = make_old("old", SMALL);
			os_fault_set(&(os_fault_plan){.kind = OS_FAULT_LEASE, .at = 1 + (uint64_t)use,
				.meanwhile = links ? link_it : open_and_keep});
			spare = take("old");
			CHECK_EQ(spare != NULL, use);
			if (use)
				CHECK_OK(save("new", CKPTFMT_DURABILITY_NONE, &whole, 1, spare), err);
			os_fault_clear();
			if (links) {
				CHECK(holds("linked", 7, SMALL));
			} else {
				CHECK_EQ(pread(kept_open, found, SMALL, 0), SMALL);
				CHECK(memcmp(found, bytes + 7, SMALL) == 0);
				CHECK_EQ(close(kept_open), 0);
			}
			CHECK(!use || holds(data_name("new"), 5000, SMALL));
			shell("rm -f %s/*");
		}
	}
}

int main(void)
{
	ckptfmt_spare *spare;
	test_seed();
	if (!make_directory())
		return 2;
	bytes = malloc(SIZE_MAX_HERE);
	for (uint64_t i = 0; i < SIZE_MAX_HERE; i += 8) {
		uint64_t word = test_random();
		memcpy(bytes + i, &word, 8);
	}
	(void)make_old("old", 10);
	spare = take("old");
	leases = spare != NULL;
	ckptfmt_spare_close(spare, 1);
	shell("rm -f %s/*");
	if (!leases)
		printf("no leases here: no file is written over\n");
	test_bytes();
	test_blocks();
	test_holders();
	test_uses();
	test_faults(false, false);
	test_faults(false, true);
	test_faults(true, false);
	test_memory();
	test_moments();
	CHECK_EQ(rmdir(directory), 0);
	free(bytes);
	os_fault_log_clear();
	return test_finish("test_spare");
}
