/* SPDX-License-Identifier: Apache-2.0 */
/* The data files of an open checkpoint. Up to a limit all are opened at once and stay open, so that a generation
 * removed later stays readable and no read takes a lock. In storages with latency they are opened when they are
 * first used. Beyond the limit, or if the process runs out of descriptors, the least recently used files are
 * closed. A file that cannot be opened is an error only when it is used. */
#ifndef CKPTFMT_READ_DATA_FILES_H
#define CKPTFMT_READ_DATA_FILES_H

#include "base/error.h"
#include "storage/os.h"

#include <pthread.h>

typedef struct cf_shard_slot {
	cf_file file;               /* fd -1: missing, not to be opened, or the slot is free */
	uint64_t size;
	int32_t shard;              /* -1: free */
	uint32_t users;
	bool confirmed;             /* known to be of the generation of the index */
	bool dropped;               /* to be closed when its last user is done */
	bool failed;                /* of all_open: it could not be opened; each use tries again, with a file of its own */
	uint64_t last_use;
} cf_shard_slot;

typedef struct cf_shards {
	const cf_directory *directory;
	const char *base;
	int32_t count;              /* data files of the checkpoint */
	bool follow_symlinks;
	bool all_open;              /* slot i is shard i, and nothing changes until close; else by least recent use */
	uint32_t slot_count;
	cf_shard_slot *slots;
	uint64_t clock;
	pthread_mutex_t lock;       /* over the slots, unless all_open */
} cf_shards;

/* One data file in use by a read. */
typedef struct cf_shard_use {
	cf_file file;
	uint64_t size;              /* when it was opened */
	cf_shard_slot *slot;        /* NULL: the file is this use's own */
} cf_shard_use;

/* `directory` and `base` are borrowed. A file that is missing or cannot be opened is reported when it is used. If the
 * process runs out of descriptors, half of them are closed and the rest are used as a cache of recent files.
 * Files opened here count as of the generation of the index: the caller checks that, or closes them. NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_shards_open(cf_shards *out, const cf_directory *directory, const char *base,
	int32_t count, uint32_t open_max, bool follow_symlinks, ckptfmt_error *err);
void cf_shards_close(cf_shards *shards);

/* Closes the least recently used file without users; false if there is none, or if all stay open. */
bool cf_shards_close_idle(cf_shards *shards);
/* Whether a failure is EMFILE or ENFILE. */
bool cf_shards_ran_out(const ckptfmt_error *err);

/* *found false: there is no such file. *fresh: it was opened after the index and may belong to another generation
 * (CMT-12): the caller checks, and confirms it or drops it. REQUIRES: 0 <= shard < count. */
CF_MUST_CHECK ckptfmt_status cf_shards_use(cf_shards *shards, int32_t shard, cf_shard_use *out, bool *found,
	bool *fresh, ckptfmt_error *err);
void cf_shards_done(cf_shards *shards, cf_shard_use *use);
/* The file is of the generation of the index. */
void cf_shards_confirm(cf_shards *shards, const cf_shard_use *use);
/* Instead of cf_shards_done: the file must not be used again. */
void cf_shards_drop(cf_shards *shards, cf_shard_use *use);

#endif
