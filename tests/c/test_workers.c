/* SPDX-License-Identifier: Apache-2.0 */
/* Links no seam: work shared by threads. */
#include "base/workers.h"
#include "test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

enum { PARTS = 1000 };

typedef struct job {
	_Atomic uint32_t next, workers, signals;
	_Atomic uint32_t done[PARTS];
	pthread_t caller;
} job;

static void *work(void *argument)
{
	job *j = argument;
	uint32_t part;
	sigset_t blocked;
	(void)atomic_fetch_add(&j->workers, 1);
	(void)pthread_sigmask(SIG_SETMASK, NULL, &blocked);
	if (!sigismember(&blocked, SIGINT))
		(void)atomic_fetch_add(&j->signals, 1);
	while ((part = atomic_fetch_add(&j->next, 1)) < PARTS)
		(void)atomic_fetch_add(&j->done[part], 1);
	return NULL;
}

static void test_shared(int32_t threads, uint32_t workers)
{
	static job j;
	uint32_t done = 0;
	memset(&j, 0, sizeof j);
	cf_workers_run(threads, work, &j);
	for (uint32_t i = 0; i < PARTS; i++)
		done += j.done[i] == 1;
	CHECK_EQ(done, PARTS);
	CHECK_EQ(j.workers, workers);
	/* Only the thread that asked may get a signal. */
	CHECK_EQ(j.signals, 1);
}

int main(void)
{
	test_shared(0, 1);
	test_shared(1, 1);
	test_shared(2, 2);
	test_shared(7, 7);
	test_shared(1000, 65);
	return test_finish("workers");
}
