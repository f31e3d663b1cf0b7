/* SPDX-License-Identifier: Apache-2.0 */
/* Threads for the time of one call: nothing of them is left when it returns, so that a forked child lacks none. */
#ifndef CKPTFMT_IO_WORKERS_H
#define CKPTFMT_IO_WORKERS_H

#include "base/error.h"

#include <signal.h>

enum { CF_WORKERS_MAX = 64 };

/* The processors that this process may run on, at most `most`; 1 where nobody can tell. */
int32_t cf_workers_count(int32_t most);
/* The signals that a thread of ours must not get: they are for the threads of the program, which may wait for them.
 * Those for its own faults it gets, as whoever handles them expects. */
void cf_workers_signals(sigset_t *blocked);
/* Runs `work(job)` in this thread and in as many more as there can be, up to `threads` in all, and waits for them.
 * Where the system has no thread to give, those that there are do it all: `work` takes pieces until there is none. The
 * others get no signals. */
void cf_workers_run(int32_t threads, void *(*work)(void *), void *job);

/* One of the tasks of a call. `thread` is below the number of threads. */
typedef ckptfmt_status (*cf_workers_task)(void *job, int32_t thread, uint64_t i, ckptfmt_error *err);
/* Runs task(job, thread, i) for each i below `count`, in ascending order, in up to `threads` threads. After a failure
 * no task is begun any more. Returns the failure of the lowest i that failed; NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_workers_share(int32_t threads, uint64_t count, cf_workers_task task, void *job,
	ckptfmt_error *err);

#endif
