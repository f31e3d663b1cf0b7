/* SPDX-License-Identifier: Apache-2.0 */
/* The part of os_fault.c that stands for os_posix_lease.c; included there once, twice for its two planes. */
#ifndef OS_FAULT_LEASE_SYSTEM
#define OS_FAULT_LEASE_SYSTEM

#include <sys/vfs.h>

static int system_fcntl(int fd, int command, int value)
{
	os_system_kind kind = command == F_SETLEASE ? OS_SYSTEM_LEASE : OS_SYSTEM_FCNTL;
	return system_fails(kind) ? -1 : fcntl(fd, command, value);
}

static int system_fstatfs(int fd, struct statfs *out)
{
	return system_fails(OS_SYSTEM_FSTATFS) ? -1 : fstatfs(fd, out);
}

#define fcntl system_fcntl
#define fstatfs system_fstatfs

#else

bool cf_os_open_own(const cf_directory *directory, const char *name, cf_file *out, cf_file_info *info)
{
	out->fd = -1;
	return !judge(OS_FAULT_OPEN, name, "", 0, 0).fails && real_open_own(directory, name, out, info);
}

bool cf_os_is_alone(const cf_file *file)
{
	return !judge(OS_FAULT_LEASE, "", "", 0, 0).fails && real_is_alone(file);
}

#endif
