/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storage in memory, each call of which is a scheduling point, with the lock of a directory. Linked with it, the
 * locks of a reader's data files are scheduling points as well: schedule_storage.c has csrc/read/data_files.c in it.
 */
#ifndef CKPTFMT_TESTS_SCHEDULE_STORAGE_H
#define CKPTFMT_TESTS_SCHEDULE_STORAGE_H

#include "ckptfmt_unstable.h"

#include <stdbool.h>

/* Wrong on purpose, to see that it is noticed. */
typedef enum schedule_plant {
	SCHEDULE_PLANT_NONE = 0,
	SCHEDULE_PLANT_REMOVES_FIRST,   /* the old data files are removed before the index is replaced */
	SCHEDULE_PLANT_NO_LOCK,         /* the directory's lock excludes nothing */
	SCHEDULE_PLANT_NEVER_UNLOCKS,
	SCHEDULE_PLANT_TWO_STEPS,       /* an object is removed before another one takes its path */
	SCHEDULE_PLANT_TAKES_NAMES      /* an object replaces another one where it must not */
} schedule_plant;

typedef struct schedule_storage {
	ckptfmt_storage functions;      /* to give away */
	ckptfmt_storage *inner;
	const char *index;              /* path of the index that is watched */
	schedule_plant plant;
	bool locked;
	int committed_by;               /* the thread that replaced the index last; -1: none */
	long open_objects;
	void (*changed)(void);          /* after each call that may have changed a checkpoint; no scheduling point */
} schedule_storage;

void schedule_storage_open(schedule_storage *storage, const char *index);
void schedule_storage_close(schedule_storage *storage);

/* True, the default: readers open data files when they are read from, as in stores. False: as on a file system, when
 * the index is opened. */
extern bool schedule_has_latency;

#endif
