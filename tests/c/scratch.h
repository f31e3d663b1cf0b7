/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of its own for a test of whole checkpoints. */
#ifndef CKPTFMT_TESTS_SCRATCH_H
#define CKPTFMT_TESTS_SCRATCH_H

#include "test.h"

#include <dirent.h>
#include <stdbool.h>

static char directory[256];

/* False, and said why, if it cannot be made. */
static inline bool make_directory(void)
{
	const char *parent = getenv("TMPDIR");
	snprintf(directory, sizeof directory, "%s/ckptfmt-test-XXXXXX", parent != NULL ? parent : "/tmp");
	if (mkdtemp(directory) != NULL)
		return true;
	perror("mkdtemp");
	return false;
}

/* The path of a file in it, of the last 16 calls. */
static inline const char *path_of(const char *name)
{
	static char paths[16][512];
	static int next;
	char *path = paths[next++ % 16];
	snprintf(path, sizeof paths[0], "%s/%s", directory, name);
	return path;
}

/* Runs a command with the directory's path up to four times in it. */
static inline void shell(const char *format)
{
	char command[2048];
	snprintf(command, sizeof command, format, directory, directory, directory, directory);
	CHECK_EQ(system(command), 0);
}

/* Entries of a directory, or -1; of /proc/self/fd the open files. */
static inline int count_entries(const char *path)
{
	DIR *dir = opendir(path);
	int count = 0;
	if (dir == NULL)
		return -1;
	while (readdir(dir) != NULL)
		count++;
	closedir(dir);
	return count;
}

#endif
