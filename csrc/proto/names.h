/* SPDX-License-Identifier: Apache-2.0 */
/* A prefix, split into directory and base name, and the names of its files (NAM-1 to NAM-4). */
#ifndef CKPTFMT_PROTO_NAMES_H
#define CKPTFMT_PROTO_NAMES_H

#include "base/buffer.h"
#include "base/error.h"

enum {
	CF_BASE_SIZE_MAX = 1024,                     /* no file system allows longer names */
	CF_NAME_SIZE = CF_BASE_SIZE_MAX + 64         /* room for the name of any file of a checkpoint, and a NUL */
};

typedef struct cf_prefix {
	char *directory;            /* "." for a bare name; never empty */
	char *base;                 /* may be empty; holds no '/' */
	char *index_path;           /* for messages */
} cf_prefix;

/* NAM-1: taken literally, the base name may be empty. BAD_PATH, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_prefix_split(const char *prefix, cf_prefix *out, ckptfmt_error *err);
void cf_prefix_free(cf_prefix *prefix);

/* NAM-2 to NAM-4. `name` has room for CF_NAME_SIZE bytes. REQUIRES: the base of a prefix, and no negative number. */
void cf_index_name(const char *base, char *name);
void cf_data_name(const char *base, int32_t shard, int32_t shard_count, char *name);
/* "<directory>/<name>", cut at the front if `path` (of `size` bytes) is too small. For messages. */
void cf_join_path(const char *directory, const char *name, char *path, size_t size);
/* Parses "<base>.data-SSSSS-of-NNNNN". False, and unspecified numbers, if `name` is not a data file of this base. */
bool cf_data_name_parse(const char *base, const char *name, int32_t *shard, int32_t *count);
/* The N of "<base>.data-SSSSS-of-NNNNN"; 0 if `name` is not a data file of this base. */
int32_t cf_data_name_count(const char *base, const char *name);

#endif
