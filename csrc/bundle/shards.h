/* SPDX-License-Identifier: Apache-2.0 */
/* The data files of an open checkpoint. Up to a limit all are opened at once and stay open, so that a generation
 * removed later stays readable and no read takes a lock; beyond it the least recently used make room. */
#ifndef CKPTFMT_BUNDLE_SHARDS_H
#define CKPTFMT_BUNDLE_SHARDS_H

#include "base/error.h"
#include "io/os.h"

#include <pthread.h>

typedef struct cf_shard_slot {
	cf_file file;               /* fd -1: missing, or the slot is free */
	uint64_t size;
	int32_t shard;              /* -1: free */
	uint32_t users;
	bool confirmed;             /* known to be of the generation of the index */
	bool dropped;               /* to be closed when its last user is done */
	uint64_t last_use;
} cf_shard_slot;

typedef struct cf_shards {
	const cf_directory *directory;
	const char *base;
	int32_t count;              /* data files of the checkpoint */
	bool follow_symlinks;
	bool all_open;              /* slot i is shard i, and nothing changes until close */
	uint32_t slot_count;
	cf_shard_slot *slots;
	uint64_t clock;
	pthread_mutex_t lock;       /* over the slots, unless all_open */
} cf_shards;

/* One data file for the time of a read. */
typedef struct cf_shard_use {
	cf_file file;
	uint64_t size;              /* when it was opened */
	cf_shard_slot *slot;        /* NULL: the file is this use's own */
} cf_shard_use;

/* `directory` and `base` are borrowed. A file that is not there shows when it is used. */
CF_MUST_CHECK ckptfmt_status cf_shards_open(cf_shards *out, const cf_directory *directory, const char *base,
	int32_t count, uint32_t open_max, bool follow_symlinks, ckptfmt_error *err);
void cf_shards_close(cf_shards *shards);

/* *found false: there is no such file. *fresh: it was opened after the index was, and may be another generation's
 * (CMT-12): the caller checks, and confirms it or drops it. REQUIRES: 0 <= shard < count. */
CF_MUST_CHECK ckptfmt_status cf_shards_use(cf_shards *shards, int32_t shard, cf_shard_use *out, bool *found,
	bool *fresh, ckptfmt_error *err);
void cf_shards_done(cf_shards *shards, cf_shard_use *use);
/* The file is of the generation of the index. */
void cf_shards_confirm(cf_shards *shards, const cf_shard_use *use);
/* Instead of cf_shards_done: the file is not to be used again. */
void cf_shards_drop(cf_shards *shards, cf_shard_use *use);

#endif
