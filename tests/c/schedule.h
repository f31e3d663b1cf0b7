/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cooperative scheduler, to run a few threads in every order there is.
 *
 * One thread runs at a time. At a scheduling point it may be preempted, that is, another thread goes on instead. All
 * schedules with at most so many preemptions are run one after the other, depth first: each run repeats the choices of
 * the last one but for the last of them that had another way. Waiting for a lock and ending are no preemptions. What
 * runs must do the same whenever the choices are the same.
 */
#ifndef CKPTFMT_TESTS_SCHEDULE_H
#define CKPTFMT_TESTS_SCHEDULE_H

#include <pthread.h>
#include <stdbool.h>

enum { SCHEDULE_THREADS_MAX = 3 };

typedef struct schedule_plan {
	void (*before)(void);                        /* each run */
	void (*bodies[SCHEDULE_THREADS_MAX])(void);  /* one a thread; NULL: no more */
	void (*after)(void);
	int preemptions;                             /* at most so many in a run */
	bool (*enough)(void);                        /* after a run: no more are needed; NULL: all are */
} schedule_plan;

typedef struct schedule_counts {
	unsigned long runs;
	unsigned long points;                        /* of the longest run */
	unsigned long deadlocks;                     /* runs in which all threads waited */
} schedule_counts;

schedule_counts schedule_all(const schedule_plan *plan);

/* The rest is called by the threads; in others it does nothing. */

void schedule_point(void);
/* Another thread goes on, and this one after schedule_wake of the same address. False: a deadlock, no other can. */
bool schedule_wait(const void *what);
void schedule_wake(const void *what);
/* The number of the thread, from 0; -1 in others. */
int schedule_self(void);
/* Until schedule_resume of the result there are no scheduling points. */
int schedule_pause(void);
void schedule_resume(int paused);

/* pthread_mutex_lock and pthread_mutex_unlock, as a scheduling point. */
int schedule_mutex_lock(pthread_mutex_t *mutex);
int schedule_mutex_unlock(pthread_mutex_t *mutex);

#endif
