/* SPDX-License-Identifier: Apache-2.0 */
#include "base/workers.h"

#include "base/system.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

static int32_t processors(void)
{
#if !CKPTFMT_PLAIN_POSIX
	cpu_set_t set;
	if (sched_getaffinity(0, sizeof set, &set) == 0)
		return CPU_COUNT(&set);
#endif
	/* Also for more processors than a cpu_set_t holds. */
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

typedef struct sharing {
	cf_workers_task task;
	void *job;
	uint64_t count;
	_Atomic uint64_t next;
	_Atomic int32_t thread;
	pthread_mutex_t lock;       /* protects the rest */
	uint64_t failed;
	ckptfmt_status status;
	ckptfmt_error error;
} sharing;

static void *take_tasks(void *argument)
{
	sharing *s = argument;
	int32_t thread = atomic_fetch_add(&s->thread, 1);
	for (;;) {
		uint64_t i = atomic_fetch_add(&s->next, 1);
		ckptfmt_error err;
		ckptfmt_status status;
		if (i >= s->count)
			return NULL;
		status = s->task(s->job, thread, i, &err);
		if (status == CKPTFMT_OK)
			continue;
		atomic_store(&s->next, s->count);
		(void)pthread_mutex_lock(&s->lock);
		if (s->status == CKPTFMT_OK || i < s->failed) {
			s->status = status;
			s->failed = i;
			s->error = err;
		}
		(void)pthread_mutex_unlock(&s->lock);
	}
}

ckptfmt_status cf_workers_share(int32_t threads, uint64_t count, cf_workers_task task, void *job, ckptfmt_error *err)
{
	sharing s = {.task = task, .job = job, .count = count};
	if (count == 0)
		return CKPTFMT_OK;
	if (pthread_mutex_init(&s.lock, NULL) != 0)
		return cf_fail_memory(err);
	cf_workers_run(threads < 1 ? 1 : (int32_t)cf_min_u64(count, (uint64_t)threads), take_tasks, &s);
	(void)pthread_mutex_destroy(&s.lock);
	if (s.status != CKPTFMT_OK && err != NULL)
		*err = s.error;
	return s.status;
}
