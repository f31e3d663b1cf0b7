/* SPDX-License-Identifier: Apache-2.0 */
#include "base/workers.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

static int32_t processors(void)
{
#ifdef __linux__
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) == 0)
		return CPU_COUNT(&set);
#endif
	/* Of more than a cpu_set_t has room for, too. */
	{
		long count = sysconf(_SC_NPROCESSORS_ONLN);
		return count < 1 ? 1 : count > CF_WORKERS_MAX ? CF_WORKERS_MAX : (int32_t)count;
	}
}

int32_t cf_workers_count(int32_t most)
{
	int kept = errno;
	int32_t count = processors();
	errno = kept;
	return count < most ? count : most;
}

void cf_workers_signals(sigset_t *blocked)
{
	(void)sigfillset(blocked);
	(void)sigdelset(blocked, SIGBUS);
	(void)sigdelset(blocked, SIGSEGV);
	(void)sigdelset(blocked, SIGFPE);
	(void)sigdelset(blocked, SIGILL);
}

void cf_workers_run(int32_t threads, void *(*work)(void *), void *job)
{
	pthread_t started[CF_WORKERS_MAX];
	int32_t count = 0;
	sigset_t all, before;
	if (threads > 1) {
		cf_workers_signals(&all);
		(void)pthread_sigmask(SIG_SETMASK, &all, &before);
		while (count + 1 < threads && count < CF_WORKERS_MAX &&
			pthread_create(&started[count], NULL, work, job) == 0)
			count++;
		(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	(void)work(job);
	while (count > 0)
		(void)pthread_join(started[--count], NULL);
}
