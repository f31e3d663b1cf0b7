/* SPDX-License-Identifier: Apache-2.0 */
/* The part of os_fault.c that replaces storage/posix_direct.c; included there once, twice for its two planes. */
#ifndef OS_FAULT_DIRECT_SYSTEM
#define OS_FAULT_DIRECT_SYSTEM

static int system_pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*what)(void *), void *state)
{
	return system_fails(OS_SYSTEM_THREAD) ? errno : pthread_create(thread, how, what, state);
}

#else

static struct {
	cf_direct *direct;
	cf_file file;           /* the caller's */
	bool writes;
	struct {
		verdict given;
		uint64_t size, offset;
	} slots[CF_DIRECT_SLOTS];
} directs[2];

static bool uncached;

void os_fault_uncached(bool on)
{
	uncached = on;
}

/* REQUIRES: the lock is held. A row is its thread's own from then on. */
static unsigned direct_row(const cf_direct *direct)
{
	return directs[0].direct == direct ? 0 : 1;
}

static unsigned own_row(const cf_direct *direct)
{
	pthread_mutex_lock(&lock);
	unsigned row = direct_row(direct);
	pthread_mutex_unlock(&lock);
	return row;
}

static cf_direct *remember(cf_direct *direct, const cf_file *file, bool writes)
{
	if (direct != NULL) {
		pthread_mutex_lock(&lock);
		unsigned row = direct_row(NULL);
		memset(&directs[row], 0, sizeof directs[row]);
		directs[row].direct = direct;
		directs[row].file = *file;
		directs[row].writes = writes;
		pthread_mutex_unlock(&lock);
	}
	return direct;
}

cf_direct *cf_os_direct_write(const cf_file *file)
{
	if (judge(OS_FAULT_DIRECT, "", "", 0, 0).fails)
		return NULL;
	return remember(real_direct_write(file), file, true);
}

cf_direct *cf_os_direct_read(const cf_directory *directory, const char *name, bool follow_symlinks,
	const cf_file *file)
{
	if (judge(OS_FAULT_DIRECT, name, "", 0, 0).fails)
		return NULL;
	return remember(real_direct_read(directory, name, follow_symlinks, file), file, false);
}

uint8_t *cf_os_direct_memory(cf_direct *direct, unsigned slot)
{
	return real_direct_memory(direct, slot);
}

bool cf_os_direct_place(cf_direct *direct, unsigned slot, uint8_t *memory)
{
	return real_direct_place(direct, slot, memory);
}

void cf_os_direct_start(cf_direct *direct, unsigned slot, uint64_t size, uint64_t offset)
{
	unsigned row = own_row(direct);
	verdict given = judge(directs[row].writes ? OS_FAULT_WRITE : OS_FAULT_READ, "", "", offset, size);
	directs[row].slots[slot].given = given;
	directs[row].slots[slot].size = size;
	directs[row].slots[slot].offset = offset;
	if (!given.fails)
		real_direct_start(direct, slot, size, offset);
}

ckptfmt_status cf_os_direct_wait(cf_direct *direct, unsigned slot, const char *path, uint64_t *got, ckptfmt_error *err)
{
	unsigned row = own_row(direct);
	verdict given = directs[row].slots[slot].given;
	uint64_t size = directs[row].slots[slot].size, offset = directs[row].slots[slot].offset;
	uint8_t *memory = real_direct_memory(direct, slot);
	ckptfmt_status status = CKPTFMT_OK;
	if (!given.fails)
		return real_direct_wait(direct, slot, path, got, err);
	directs[row].slots[slot].given.fails = false;
	if (!directs[row].writes && given.partial != 0)
		return real.read_at(&directs[row].file, path, memory, cf_min_u64(size, given.partial), offset, got, err);
	if (directs[row].writes) {
		int flags = fcntl(directs[row].file.fd, F_GETFL);
		uint64_t written = given.carried_out ? size : cf_min_u64(size, given.partial);
		(void)fcntl(directs[row].file.fd, F_SETFL, flags & ~O_DIRECT);
		status = real.write_at(&directs[row].file, path, memory, written, offset, err);
		(void)fcntl(directs[row].file.fd, F_SETFL, flags);
		offset += written;
	}
	*got = given.silent ? size : 0;
	if (status != CKPTFMT_OK || given.silent)
		return status;
	status = refuse(&given, path, err);
	cf_error_offset(err, offset);
	return status;
}

void cf_os_direct_end(cf_direct *direct)
{
	pthread_mutex_lock(&lock);
	if (direct != NULL)
		directs[direct_row(direct)].direct = NULL;
	pthread_mutex_unlock(&lock);
	real_direct_end(direct);
}

bool cf_os_is_cached(const cf_file *file, uint64_t offset, uint64_t size)
{
	return !uncached && real_is_cached(file, offset, size);
}

#endif
