/* SPDX-License-Identifier: Apache-2.0 */
/* Removal of a directory without starting a process for it. */
#ifndef CKPTFMT_TESTS_REMOVE_TREE_H
#define CKPTFMT_TESTS_REMOVE_TREE_H

#include <ftw.h>
#include <stdio.h>

static inline int remove_one(const char *path, const struct stat *info, int kind, struct FTW *where)
{
	(void)info;
	(void)kind;
	(void)where;
	return remove(path);
}

/* The directory with everything in it, or a file; nothing if there is none. */
static inline void remove_tree(const char *path)
{
	(void)nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline int remove_below(const char *path, const struct stat *info, int kind, struct FTW *where)
{
	return where->level == 0 ? 0 : remove_one(path, info, kind, where);
}

/* Everything in the directory. */
static inline void empty_tree(const char *path)
{
	(void)nftw(path, remove_below, 16, FTW_DEPTH | FTW_PHYS);
}

#endif
