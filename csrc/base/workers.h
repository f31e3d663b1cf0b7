/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that live for one call: none is left when it returns, so a forked child misses none. */
#ifndef CKPTFMT_BASE_WORKERS_H
#define CKPTFMT_BASE_WORKERS_H

#include "base/error.h"

#include <signal.h>

enum { CF_WORKERS_MAX = 64 };

/* Returns the number of processors that this process may run on, at most `most`; 1 if unknown. */
int32_t cf_workers_count(int32_t most);
/* The signals to block in our threads: they belong to the program's threads, which may wait for them. Signals of the
 * thread's own faults (SIGSEGV and the like) are not blocked. */
void cf_workers_signals(sigset_t *blocked);
/* Runs `work(job)` in this thread and in up to `threads` - 1 others, and waits for them. `work` takes pieces of the job
 * until there are none, so fewer threads, where the system cannot create them, still do all of it. */
void cf_workers_run(int32_t threads, void *(*work)(void *), void *job);

/* One of the tasks of a call. `thread` is below the number of threads. */
typedef ckptfmt_status (*cf_workers_task)(void *job, int32_t thread, uint64_t i, ckptfmt_error *err);
/* Runs task(job, thread, i) for each i below `count`, in ascending order, in up to `threads` threads. After a failure
 * no further task is started. Returns the failure of the lowest i that failed; NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_workers_share(int32_t threads, uint64_t count, cf_workers_task task, void *job,
	ckptfmt_error *err);

#endif
