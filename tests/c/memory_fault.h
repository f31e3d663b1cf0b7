/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A heap that fails on purpose. Link tests/c/memory_fault.c in the place of csrc/base/memory.c.
 *
 *   for (n = 1; failed; n++) { memory_fault_set(n, false); failed = call() != CKPTFMT_OK; }
 *   memory_fault_clear(); CHECK_EQ(memory_fault_live(), 0);
 */
#ifndef CKPTFMT_TESTS_MEMORY_FAULT_H
#define CKPTFMT_TESTS_MEMORY_FAULT_H

#include <stdbool.h>
#include <stdint.h>

/* The `at`-th allocation from now (1: the next; 0: none) fails, with `forever` every later one as well. A
 * reallocation counts as one. */
void memory_fault_set(uint64_t at, bool forever);
/* No allocation fails. */
void memory_fault_clear(void);
/* Allocations asked for, and failed on purpose, since memory_fault_set. */
uint64_t memory_fault_calls(void);
uint64_t memory_fault_hits(void);
/* Allocations that were not released yet, and their bytes (a little more than asked for). */
uint64_t memory_fault_live(void);
uint64_t memory_fault_live_bytes(void);
/* The most bytes alive at once since memory_fault_set or memory_fault_clear. */
uint64_t memory_fault_peak_bytes(void);

#endif
