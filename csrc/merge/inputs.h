/* SPDX-License-Identifier: Apache-2.0 */
/* The inputs of a merge: their indexes, which the walk reads block by block unless they are small, and their data
 * files. Between two calls only the directory used last is open, so that any number of inputs can be merged. An index
 * is identified by inode, size and time; an input that is saved again during the merge is BUSY. */
#ifndef CKPTFMT_MERGE_INPUTS_H
#define CKPTFMT_MERGE_INPUTS_H

#include "proto/names.h"
#include "table/table.h"
#include "ckptfmt_unstable.h"
#include "proto/message.h"
#include "base/arena.h"
#include "base/progress.h"
#include "storage/os.h"

/* A data file of an input. */
typedef struct cf_merge_file {
	cf_file_info info;
	int32_t new_shard;          /* its number in the result; -1: the result has no entry in it */
	bool known;                 /* it exists, and `info` is set */
	bool referenced;            /* by an entry of the result */
} cf_merge_file;

/* A header may claim any number of data files, so memory is allocated only in pages with files that exist. */
enum { CF_MERGE_PAGE_SIZE = 16 };
typedef struct cf_merge_page {
	cf_merge_file files[CF_MERGE_PAGE_SIZE];
} cf_merge_page;

typedef struct cf_merge_inputs cf_merge_inputs;

typedef struct cf_merge_input {
	cf_merge_inputs *all;
	const char *name;           /* the prefix as given */
	cf_prefix prefix;
	cf_file index;              /* open only while the input is opened */
	cf_file_info info;          /* of the index */
	cf_table *table;            /* NULL: not opened */
	cf_table_iterator at;       /* over the table, once in each pass */
	cf_header header;           /* its bytes are in `header_bytes` */
	cf_buffer header_bytes;
	struct cf_merge_page **pages;   /* of the known data files, by shard number */
	cf_buffer order;            /* int32_t: shard numbers in the order in which entries of the result need them */
} cf_merge_input;

struct cf_merge_inputs {
	cf_merge_input *rows;
	uint64_t count;
	ckptfmt_limits limits;
	const ckptfmt_storage *storage;
	cf_progress *progress;      /* of the merge */
	const cf_merge_input *metadata;     /* whose metadata the result has; NULL: those of all must be equal (MRG-16) */
	cf_arena memory;            /* of indexes that were read whole */
	cf_directory directory;     /* of the input used last, */
	cf_file_info place;         /* and its identity */
};

/* The last part of a name that is too long for a message; it distinguishes names better than the first. */
const char *cf_merge_name(const char *name);

/* Opens the inputs in the order given and reads their headers (MRG-1, MRG-2, MRG-10). `prefixes` must outlive
 * `inputs`, whose limits and storage are set by the caller. ARGUMENT, CHECKPOINT_NOT_FOUND, MERGE_CONFLICT and what
 * tables fail with. */
CF_MUST_CHECK ckptfmt_status cf_merge_inputs_open(cf_merge_inputs *inputs, const char *const *prefixes, uint64_t count,
	bool allow_missing, ckptfmt_error *err);
void cf_merge_inputs_close(cf_merge_inputs *inputs);

/* The directory of an input, until the next call. */
CF_MUST_CHECK ckptfmt_status cf_merge_input_directory(cf_merge_input *in, const cf_directory **out,
	ckptfmt_error *err);

/* The data file of that number, which must exist (NAM-5: SHARD_MISSING, or BUSY). */
CF_MUST_CHECK ckptfmt_status cf_merge_input_file(cf_merge_input *in, int32_t shard, cf_merge_file **out,
	ckptfmt_error *err);
/* The same without a system call: NULL if it is not known. REQUIRES: 0 <= shard < num_shards. */
static inline cf_merge_file *cf_merge_input_known_file(const cf_merge_input *in, int32_t shard)
{
	cf_merge_page *page = in->pages[shard / CF_MERGE_PAGE_SIZE];
	cf_merge_file *file = page == NULL ? NULL : &page->files[shard % CF_MERGE_PAGE_SIZE];
	return file != NULL && file->known ? file : NULL;
}
/* BUSY if the index on disk is not the one that was read. */
CF_MUST_CHECK ckptfmt_status cf_merge_input_check_unchanged(cf_merge_input *in, ckptfmt_error *err);

static inline bool cf_same_file(const cf_file_info *a, const cf_file_info *b)
{
	return a->device == b->device && a->inode == b->inode;
}

/* The same file, unchanged. (The device number may change with a reboot.) */
static inline bool cf_same_state(const cf_file_info *a, const cf_file_info *b)
{
	return a->inode == b->inode && a->size == b->size && a->mtime_seconds == b->mtime_seconds &&
		a->mtime_nanoseconds == b->mtime_nanoseconds;
}

#endif
