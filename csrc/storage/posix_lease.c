/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files to be written over (storage/os.h): on Linux a lease proves that nobody else has a file open. Elsewhere
 * nothing does.
 */
#include "storage/posix_private.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#if defined(__linux__)
#include <sys/vfs.h>
#endif

bool cf_os_open_own(const cf_directory *directory, const char *name, cf_file *out, cf_file_info *info)
{
	/* O_NONBLOCK: who has a lease of it is not waited for. A write must wait, though. */
	const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY;
	int kept = errno;
	bool good;
	assert(cf_posix_is_name(name));
	out->fd = cf_posix_open(directory->fd, name, flags, 0);
	good = out->fd >= 0 && cf_os_file_info(out, "", info, NULL) == CKPTFMT_OK && info->regular &&
		info->owner == (uint64_t)geteuid() && fcntl(out->fd, F_SETFL, 0) == 0 &&
		!cf_posix_is_taken_away(directory, name, out->fd);
	if (!good)
		cf_os_close_quietly(out);
	errno = kept;
	return good;
}

#if defined(__linux__) && defined(F_SETLEASE) && defined(F_SETSIG)

/* Those whose leases count every open and every mapping, and that no other machine can have mounted. An overlay does
 * not: what is mapped is a file below it. */
static bool is_local(int fd)
{
	static const unsigned long kinds[] = {
		0xef53,                /* ext2, ext3, ext4 */
		0x58465342,            /* XFS */
		0xf2f52010,            /* F2FS */
		0x9123683e,            /* Btrfs */
		0x01021994             /* tmpfs */
	};
	struct statfs found;
	int result;
	do
		result = fstatfs(fd, &found);
	while (result != 0 && errno == EINTR);
	for (size_t i = 0; result == 0 && i < sizeof kinds / sizeof kinds[0]; i++)
		if (((unsigned long)found.f_type & 0xffffffff) == kinds[i])
			return true;
	return false;
}

bool cf_os_is_alone(const cf_file *file)
{
	int kept = errno;
	/* Who opens the file while it is leased makes the system send a signal. The usual one ends a process that does not
	 * know of it; this one is ignored then. The lease takes it along. */
	bool alone = is_local(file->fd) && fcntl(file->fd, F_SETSIG, SIGURG) == 0 &&
		fcntl(file->fd, F_SETLEASE, F_WRLCK) == 0 && fcntl(file->fd, F_SETLEASE, F_UNLCK) == 0;
	errno = kept;
	return alone;
}

#else

bool cf_os_is_alone(const cf_file *file)
{
	(void)file;
	return false;
}

#endif
