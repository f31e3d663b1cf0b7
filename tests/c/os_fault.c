/* SPDX-License-Identifier: Apache-2.0 */
/* posix.c and its kin under other names, their system calls redirected to the `system` level, and around each of
 * their functions one with the name of storage/os.h that consults the plan first. */
#include "os_fault.h"

#include "base/system.h"
#include "storage/os.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---- system plane ---- */

static struct {
	uint64_t at, count, calls;
	int os_errno;
} systems[OS_SYSTEM_KIND_COUNT];

static uint64_t transfer_max;
static bool interrupt;
static uint64_t interrupt_turn;

void os_system_set(os_system_kind kind, uint64_t at, uint64_t count, int os_errno)
{
	pthread_mutex_lock(&lock);
	systems[kind].at = at;
	systems[kind].count = count;
	systems[kind].os_errno = os_errno;
	systems[kind].calls = 0;
	pthread_mutex_unlock(&lock);
}

uint64_t os_system_calls(os_system_kind kind)
{
	return systems[kind].calls;
}

void os_system_transfer_max(uint64_t bytes)
{
	transfer_max = bytes;
}

void os_system_interrupt(bool on)
{
	interrupt = on;
	interrupt_turn = 0;
}

/* True if the call fails, errno set; 0 in errno: it moves nothing. */
static bool system_fails(os_system_kind kind)
{
	bool fails = false;
	pthread_mutex_lock(&lock);
	if (interrupt && kind != OS_SYSTEM_CLOSE && kind != OS_SYSTEM_OPENDIR && interrupt_turn++ % 2 == 0) {
		errno = EINTR;
		fails = true;
	} else {
		uint64_t call = ++systems[kind].calls;
		uint64_t at = systems[kind].at;
		if (at != 0 && call >= at && call - at < systems[kind].count) {
			errno = systems[kind].os_errno;
			fails = true;
		}
	}
	pthread_mutex_unlock(&lock);
	return fails;
}

static size_t transfer_size(size_t size)
{
	return transfer_max != 0 && size > transfer_max ? (size_t)transfer_max : size;
}

static int system_openat(int directory, const char *name, int flags, mode_t mode)
{
	return system_fails(OS_SYSTEM_OPEN) ? -1 : openat(directory, name, flags, mode);
}

static int system_mkdir(const char *path, mode_t mode)
{
	return system_fails(OS_SYSTEM_MKDIR) ? -1 : mkdir(path, mode);
}

static int system_fstat(int fd, struct stat *out)
{
	return system_fails(OS_SYSTEM_FSTAT) ? -1 : fstat(fd, out);
}

static int system_fstatat(int directory, const char *name, struct stat *out, int flags)
{
	return system_fails(OS_SYSTEM_FSTATAT) ? -1 : fstatat(directory, name, out, flags);
}

static int system_close(int fd)
{
	int result = close(fd);
	return system_fails(OS_SYSTEM_CLOSE) ? -1 : result;
}

static ssize_t system_pread(int fd, void *to, size_t size, off_t offset)
{
	if (system_fails(OS_SYSTEM_PREAD))
		return errno == 0 ? 0 : -1;
	return pread(fd, to, transfer_size(size), offset);
}

static ssize_t system_pwrite(int fd, const void *from, size_t size, off_t offset)
{
	if (system_fails(OS_SYSTEM_PWRITE))
		return errno == 0 ? 0 : -1;
	return pwrite(fd, from, transfer_size(size), offset);
}

static int system_flock(int fd, int operation)
{
	return system_fails(OS_SYSTEM_FLOCK) ? -1 : flock(fd, operation);
}

static int system_fstatfs(int fd, struct statfs *out)
{
	return system_fails(OS_SYSTEM_FSTATFS) ? -1 : fstatfs(fd, out);
}

static int system_fsync(int fd)
{
	return system_fails(OS_SYSTEM_FSYNC) ? -1 : fsync(fd);
}

static int system_ftruncate(int fd, off_t size)
{
	return system_fails(OS_SYSTEM_FTRUNCATE) ? -1 : ftruncate(fd, size);
}

static int system_renameat(int from, const char *from_name, int to, const char *to_name)
{
	return system_fails(OS_SYSTEM_RENAME) ? -1 : renameat(from, from_name, to, to_name);
}

#if !CKPTFMT_PLAIN_POSIX
static int system_fallocate(int fd, int mode, off_t offset, off_t size)
{
	return system_fails(OS_SYSTEM_FALLOCATE) ? -1 : fallocate(fd, mode, offset, size);
}

static long system_syscall(long number, int from, const char *from_name, int to, const char *to_name, int flags)
{
	return system_fails(OS_SYSTEM_RENAME_NOREPLACE) ? -1 : syscall(number, from, from_name, to, to_name, flags);
}
#endif

static int system_linkat(int from, const char *from_name, int to, const char *to_name, int flags)
{
	/* Only a link that keeps the old name follows symbolic links. */
	os_system_kind kind = flags == 0 ? OS_SYSTEM_RENAME_LINK : OS_SYSTEM_LINK;
	return system_fails(kind) ? -1 : linkat(from, from_name, to, to_name, flags);
}

static int system_unlinkat(int directory, const char *name, int flags)
{
	return system_fails(OS_SYSTEM_UNLINK) ? -1 : unlinkat(directory, name, flags);
}

static void *system_mmap(void *wish, size_t size, int protection, int flags, int fd, off_t offset)
{
	return system_fails(OS_SYSTEM_MMAP) ? MAP_FAILED : mmap(wish, size, protection, flags, fd, offset);
}

static DIR *system_fdopendir(int fd)
{
	return system_fails(OS_SYSTEM_OPENDIR) ? NULL : fdopendir(fd);
}

static struct dirent *system_readdir(DIR *stream)
{
	return system_fails(OS_SYSTEM_READDIR) ? NULL : readdir(stream);
}

static int system_getentropy(void *to, size_t size)
{
	return system_fails(OS_SYSTEM_RANDOM) ? -1 : getentropy(to, size);
}

/* ---- the real functions, under other names ---- */

uint64_t real_page_size(void);
void real_path(const cf_directory *directory, const char *name, char *to, uint64_t size);

#define openat system_openat
#define mkdir system_mkdir
#define fstat(fd, out) system_fstat(fd, out)
#define fstatat system_fstatat
#define close system_close
#define pread system_pread
#define pwrite system_pwrite
#define flock system_flock
#define fstatfs system_fstatfs
#define fsync system_fsync
#define fallocate system_fallocate
#define ftruncate system_ftruncate
#define renameat system_renameat
#define syscall system_syscall
#define linkat system_linkat
#define unlinkat system_unlinkat
#define mmap system_mmap
#define readdir system_readdir
#define getentropy system_getentropy
#define fdopendir system_fdopendir

extern const cf_os real;
#define cf_local real
#define cf_os_path real_path
#define cf_os_directory_sync real_directory_sync
#define cf_os_reserve real_reserve
#define cf_os_trim real_trim
#define cf_os_sync_ahead real_sync_ahead
#define cf_os_sync real_sync
#define cf_storage_directory_remove real_directory_remove
#define cf_os_unmap real_unmap
#define cf_os_page_size real_page_size
#define cf_os_random real_random
#define cf_os_direct_write real_direct_write
#define cf_os_direct_read real_direct_read
#define cf_os_direct_memory real_direct_memory
#define cf_os_direct_place real_direct_place
#define cf_os_direct_start real_direct_start
#define cf_os_direct_wait real_direct_wait
#define cf_os_direct_end real_direct_end
#define cf_os_is_cached real_is_cached

#include "../../csrc/storage/posix.c"
#include "../../csrc/storage/posix_files.c"
#undef syscall
#include "os_fault_direct.h"
#define pthread_create system_pthread_create
#include "../../csrc/storage/posix_direct.c"

#undef cf_local
#undef cf_os_path
#undef cf_os_directory_sync
#undef cf_os_reserve
#undef cf_os_trim
#undef cf_os_sync_ahead
#undef cf_os_sync
#undef cf_storage_directory_remove
#undef cf_os_unmap
#undef cf_os_page_size
#undef cf_os_random
#undef cf_os_direct_write
#undef cf_os_direct_read
#undef cf_os_direct_memory
#undef cf_os_direct_place
#undef cf_os_direct_start
#undef cf_os_direct_wait
#undef cf_os_direct_end
#undef cf_os_is_cached

/* ---- plan and log ---- */

static os_fault_plan plan;
static uint64_t calls, hits;
static bool crashed;
static os_fault_record *records;
static uint64_t record_count, record_capacity;

void os_fault_set(const os_fault_plan *wanted)
{
	pthread_mutex_lock(&lock);
	plan = *wanted;
	calls = 0;
	hits = 0;
	crashed = false;
	pthread_mutex_unlock(&lock);
}

void os_fault_clear(void)
{
	pthread_mutex_lock(&lock);
	memset(&plan, 0, sizeof plan);
	crashed = false;
	memset(systems, 0, sizeof systems);
	transfer_max = 0;
	interrupt = false;
	pthread_mutex_unlock(&lock);
}

uint64_t os_fault_calls(void)
{
	return calls;
}

uint64_t os_fault_hits(void)
{
	return hits;
}

uint64_t os_fault_log_count(void)
{
	return record_count;
}

const os_fault_record *os_fault_log_at(uint64_t row)
{
	return &records[row];
}

uint64_t os_fault_log_count_of(os_fault_kind kind)
{
	uint64_t count = 0;
	for (uint64_t row = 0; row < record_count; row++)
		count += records[row].kind == kind;
	return count;
}

void os_fault_log_clear(void)
{
	pthread_mutex_lock(&lock);
	free(records);
	records = NULL;
	record_count = 0;
	record_capacity = 0;
	pthread_mutex_unlock(&lock);
}

const char *os_fault_kind_name(os_fault_kind kind)
{
	static const char *const names[OS_FAULT_KIND_COUNT] = {
		"any", "directory_open", "directory_sync", "directory_list", "open", "create", "stat", "file_info",
		"close", "read", "write", "reserve", "trim", "sync_ahead", "sync", "rename", "link", "rename_new",
		"unlink", "map", "random", "direct",
	};
	return (unsigned)kind < OS_FAULT_KIND_COUNT ? names[kind] : "unknown";
}

static void copy_last_part(char *to, size_t size, const char *path)
{
	const char *slash = strrchr(path, '/');
	(void)snprintf(to, size, "%s", slash == NULL ? path : slash + 1);
}

static void record(os_fault_kind kind, bool failed, const char *path, const char *target, uint64_t offset,
	uint64_t size)
{
	os_fault_record *row;
	if (record_count == record_capacity) {
		record_capacity = record_capacity == 0 ? 64 : record_capacity * 2;
		records = realloc(records, record_capacity * sizeof *records);
		if (records == NULL)
			abort();
	}
	row = &records[record_count++];
	memset(row, 0, sizeof *row);
	row->kind = kind;
	row->failed = failed;
	copy_last_part(row->name, sizeof row->name, path);
	copy_last_part(row->target, sizeof row->target, target);
	row->offset = offset;
	row->size = size;
}

/* What the plan says of the call that is being made. */
typedef struct verdict {
	bool fails;
	bool carried_out;
	bool silent;
	int os_errno;
	uint64_t partial;
} verdict;

static verdict judge(os_fault_kind kind, const char *path, const char *target, uint64_t offset, uint64_t size)
{
	verdict given = {false, true, false, 0, 0};
	void (*meanwhile)(void) = NULL;
	pthread_mutex_lock(&lock);
	if (plan.kind == OS_FAULT_ANY || plan.kind == kind) {
		calls++;
		given.fails = plan.at != 0 && (calls == plan.at || (plan.forever && calls > plan.at));
	}
	if (given.fails) {
		given.carried_out = plan.after;
		given.silent = plan.silent;
		given.partial = plan.partial;
	}
	if (crashed) {
		given = (verdict){true, false, false, 0, 0};
	} else if (given.fails && plan.crash) {
		crashed = true;
	}
	given.os_errno = plan.os_errno == 0 ? EIO : plan.os_errno;
	hits += given.fails;
	if (given.fails && plan.meanwhile != NULL) {
		meanwhile = plan.meanwhile;
		memset(&plan, 0, sizeof plan);
		given = (verdict){false, true, false, 0, 0};
	}
	record(kind, given.fails, path, target, offset, size);
	pthread_mutex_unlock(&lock);
	if (meanwhile != NULL)
		meanwhile();
	return given;
}

static ckptfmt_status refuse(const verdict *given, const char *path, ckptfmt_error *err)
{
	return cf_fail_os(err, given->os_errno, path, "fault");
}

static ckptfmt_status refuse_named(const verdict *given, const cf_directory *directory, const char *name,
	ckptfmt_error *err)
{
	char path[sizeof((ckptfmt_error *)0)->path];
	real_path(directory, name, path, sizeof path);
	return refuse(given, path, err);
}

/* The result of a call that was carried out or of none, as the plan wants it told. */
#define TELL(given, call, refusal)                                                     \
	do {                                                                           \
		ckptfmt_status told_ = (given).carried_out ? (call) : CKPTFMT_OK;      \
		return told_ != CKPTFMT_OK || !(given).fails ? told_ : (refusal);      \
	} while (0)

/* ---- the functions of storage/os.h ---- */

void cf_os_path(const cf_directory *directory, const char *name, char *to, uint64_t size)
{
	real_path(directory, name, to, size);
}

static ckptfmt_status faulty_directory_open(const ckptfmt_storage *storage, const char *path, bool make,
	bool sync_parents, cf_directory *out, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_DIRECTORY_OPEN, path, "", 0, 0);
	*out = (cf_directory){.fd = -1, .path = path};
	if (given.fails)
		return refuse(&given, path, err);
	return real.directory_open(storage, path, make, sync_parents, out, err);
}

ckptfmt_status cf_os_directory_sync(const cf_directory *directory, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_DIRECTORY_SYNC, directory->path, "", 0, 0);
	if (given.fails && given.silent)
		return CKPTFMT_OK;
	TELL(given, real_directory_sync(directory, err), refuse(&given, directory->path, err));
}

static ckptfmt_status faulty_directory_list(const cf_directory *directory, cf_buffer *names, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_DIRECTORY_LIST, directory->path, "", 0, 0);
	cf_buffer_clear(names);
	if (given.fails)
		return refuse(&given, directory->path, err);
	return real.directory_list(directory, names, err);
}

static ckptfmt_status faulty_open(const cf_directory *directory, const char *name, bool follow_symlinks, cf_file *out,
	cf_file_info *info, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_OPEN, name, "", 0, 0);
	*out = (cf_file){.fd = -1};
	if (given.fails)
		return refuse_named(&given, directory, name, err);
	return real.open(directory, name, follow_symlinks, out, info, err);
}

static ckptfmt_status faulty_create(const cf_directory *directory, const char *name, cf_file *out, bool *exists,
	ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_CREATE, name, "", 0, 0);
	*out = (cf_file){.fd = -1};
	*exists = false;
	if (given.fails)
		return refuse_named(&given, directory, name, err);
	return real.create(directory, name, out, exists, err);
}

static ckptfmt_status faulty_look_up(const cf_directory *directory, const char *name, bool follow_symlinks,
	cf_file_info *info, bool *exists, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_STAT, name, "", 0, 0);
	memset(info, 0, sizeof *info);
	*exists = false;
	if (given.fails)
		return refuse_named(&given, directory, name, err);
	return real.look_up(directory, name, follow_symlinks, info, exists, err);
}

static ckptfmt_status faulty_file_info(const cf_file *file, const char *path, cf_file_info *info, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_FILE_INFO, path, "", 0, 0);
	memset(info, 0, sizeof *info);
	if (given.fails)
		return refuse(&given, path, err);
	return real.file_info(file, path, info, err);
}

static ckptfmt_status faulty_close_held(cf_file *file, const char *path, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_CLOSE, path, "", 0, 0);
	if (given.fails) {
		real.close_quietly(file);
		return refuse(&given, path, err);
	}
	return real.close_held(file, path, err);
}

static ckptfmt_status faulty_read_at(const cf_file *file, const char *path, uint8_t *to, uint64_t size, uint64_t offset,
	uint64_t *got, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_READ, path, "", offset, size);
	*got = 0;
	if (given.fails && given.partial != 0)
		return real.read_at(file, path, to, cf_min_u64(size, given.partial), offset, got, err);
	if (given.fails) {
		ckptfmt_status status = refuse(&given, path, err);
		cf_error_offset(err, offset);
		return status;
	}
	return real.read_at(file, path, to, size, offset, got, err);
}

static ckptfmt_status faulty_write_at(const cf_file *file, const char *path, const uint8_t *from, uint64_t size,
	uint64_t offset, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_WRITE, path, "", offset, size);
	ckptfmt_status status;
	if (!given.fails)
		return real.write_at(file, path, from, size, offset, err);
	if (!given.carried_out)
		size = cf_min_u64(size, given.partial);
	status = real.write_at(file, path, from, size, offset, err);
	if (status != CKPTFMT_OK || given.silent)
		return status;
	status = refuse(&given, path, err);
	cf_error_offset(err, offset + size);
	return status;
}

void cf_os_reserve(const cf_file *file, uint64_t size)
{
	if (!judge(OS_FAULT_RESERVE, "", "", 0, size).fails)
		real_reserve(file, size);
}

void cf_os_trim(const cf_file *file, uint64_t size)
{
	if (!judge(OS_FAULT_TRIM, "", "", 0, size).fails)
		real_trim(file, size);
}

void cf_os_sync_ahead(const cf_file *file, uint64_t offset, uint64_t size)
{
	if (!judge(OS_FAULT_SYNC_AHEAD, "", "", offset, size).fails)
		real_sync_ahead(file, offset, size);
}

ckptfmt_status cf_os_sync(const cf_file *file, const char *path, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_SYNC, path, "", 0, 0);
	if (given.fails && given.silent)
		return CKPTFMT_OK;
	TELL(given, real_sync(file, path, err), refuse(&given, path, err));
}

static ckptfmt_status faulty_publish(const cf_directory *directory, const char *from, const char *to, bool replaces,
	bool *exists, ckptfmt_error *err)
{
	verdict given = judge(replaces ? OS_FAULT_RENAME : OS_FAULT_RENAME_NEW, from, to, 0, 0);
	*exists = false;
	TELL(given, real.publish(directory, from, to, replaces, exists, err), refuse_named(&given, directory, to, err));
}

static ckptfmt_status faulty_link(const cf_directory *from, const char *from_name, const cf_directory *to,
	const char *to_name, cf_link_result *result, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_LINK, from_name, to_name, 0, 0);
	*result = CF_LINK_DONE;
	TELL(given, real.link(from, from_name, to, to_name, result, err), refuse_named(&given, to, to_name, err));
}

static ckptfmt_status faulty_unlink(const cf_directory *directory, const char *name, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_UNLINK, name, "", 0, 0);
	TELL(given, real.unlink(directory, name, err), refuse_named(&given, directory, name, err));
}

void cf_storage_directory_remove(const ckptfmt_storage *storage, const char *path)
{
	verdict given = judge(OS_FAULT_UNLINK, path, "", 0, 0);
	if (given.carried_out)
		real_directory_remove(storage, path);
}

static ckptfmt_status faulty_map(const cf_file *file, const char *path, uint64_t offset, uint64_t size,
	const uint8_t **out, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_MAP, path, "", offset, size);
	*out = NULL;
	if (given.fails)
		return refuse(&given, path, err);
	return real.map(file, path, offset, size, out, err);
}

void cf_os_unmap(const uint8_t *data, uint64_t size)
{
	real_unmap(data, size);
}

uint64_t cf_os_page_size(void)
{
	return real_page_size();
}

ckptfmt_status cf_os_random(void *to, uint64_t size, ckptfmt_error *err)
{
	verdict given = judge(OS_FAULT_RANDOM, "", "", 0, size);
	if (given.fails)
		return refuse(&given, "", err);
	return real_random(to, size, err);
}

const cf_os cf_local = {
	.directory_open = faulty_directory_open, .directory_close = close_directory, .directory_lock = lock_directory,
	.directory_unlock = unlock_directory,
	.directory_list = faulty_directory_list, .open = faulty_open, .create = faulty_create, .look_up = faulty_look_up,
	.file_info = faulty_file_info, .close_held = faulty_close_held, .close_quietly = cf_posix_close,
	.read_at = faulty_read_at, .write_at = faulty_write_at, .publish = faulty_publish, .link = faulty_link,
	.unlink = faulty_unlink, .map = faulty_map,
};

#include "os_fault_direct.h"
