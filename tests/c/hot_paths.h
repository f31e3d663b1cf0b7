/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The paths on which a checkpoint of many tensors spends its time, each as something to prepare and something to
 * measure: measure_paths.c counts the instructions of one, test_allocations.c what they ask of the heap.
 *
 *   hot_path_prepare(path, count);      // files and arguments, in a directory of its own
 *   hot_path_run(path);                 // the operation and nothing else
 *   hot_path_finish(path);              // removes all
 *
 * Whatever fails ends the program with status 2 and says why.
 */
#ifndef CKPTFMT_TESTS_HOT_PATHS_H
#define CKPTFMT_TESTS_HOT_PATHS_H

#include <stdint.h>

typedef struct hot_path {
	const char *name;
	uint64_t count;         /* of operations at once, by default */
	const char *unit;       /* one of them */
	uint64_t unit_bytes;    /* of data that one of them moves; 0: none */
	void (*prepare)(uint64_t count);
	void (*run)(void);
} hot_path;

/* In order; NULL past the last. */
const hot_path *hot_path_at(uint32_t row);
/* NULL: there is none of this name. */
const hot_path *hot_path_find(const char *name);

void hot_path_prepare(const hot_path *path, uint64_t count);
void hot_path_run(const hot_path *path);
void hot_path_finish(const hot_path *path);

#endif
