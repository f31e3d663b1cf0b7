/* SPDX-License-Identifier: Apache-2.0 */
/* A directory of its own for a test of whole checkpoints. */
#ifndef CKPTFMT_TESTS_SCRATCH_H
#define CKPTFMT_TESTS_SCRATCH_H

#include "remove_tree.h"
#include "test.h"

#include <dirent.h>
#include <stdbool.h>
#include <unistd.h>

static char directory[256];

/* False, with a message, if it cannot be made. */
static inline bool make_directory_in(const char *parent)
{
	snprintf(directory, sizeof directory, "%s/ckptfmt-test-XXXXXX", parent != NULL ? parent : "/tmp");
	if (mkdtemp(directory) != NULL)
		return true;
	perror("mkdtemp");
	return false;
}

static inline bool make_directory(void)
{
	return make_directory_in(getenv("TMPDIR"));
}

/* In memory where the system has a file system there: for thousands of saves whose faults are simulated. */
static inline bool make_memory_directory(void)
{
	return make_directory_in(access("/dev/shm", W_OK) == 0 ? "/dev/shm" : getenv("TMPDIR"));
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

/* Whether two files are there and hold the same bytes. */
static inline bool same_bytes(const char *first, const char *second)
{
	FILE *one = fopen(first, "rb"), *other = fopen(second, "rb");
	bool same = one != NULL && other != NULL;
	for (int a = 0; same && a != EOF;) {
		a = getc(one);
		same = a == getc(other);
	}
	if (one != NULL)
		fclose(one);
	if (other != NULL)
		fclose(other);
	return same;
}

/* Whether each file of the directory `wanted` is in `folder` too, with the same bytes. */
static inline bool holds_same_files(const char *folder, const char *wanted)
{
	DIR *dir = opendir(path_of(wanted));
	struct dirent *entry;
	bool same = dir != NULL;
	while (same && (entry = readdir(dir)) != NULL) {
		char first[1024], second[1024];
		if (entry->d_name[0] == '.')
			continue;
		snprintf(first, sizeof first, "%s/%s/%s", directory, folder, entry->d_name);
		snprintf(second, sizeof second, "%s/%s/%s", directory, wanted, entry->d_name);
		same = same_bytes(first, second);
	}
	if (dir != NULL)
		closedir(dir);
	return same;
}

/* Flips a bit of the byte at this offset. */
static inline void flip(const char *path, uint64_t offset)
{
	FILE *file = fopen(path, "r+b");
	int byte;
	CHECK(file != NULL && fseek(file, (long)offset, SEEK_SET) == 0);
	byte = fgetc(file);
	CHECK(fseek(file, (long)offset, SEEK_SET) == 0 && fputc(byte ^ 1, file) != EOF);
	CHECK_EQ(fclose(file), 0);
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
