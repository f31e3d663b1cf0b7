/* SPDX-License-Identifier: Apache-2.0 */
#include "schedule.h"

#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHOICES_MAX = 4096 };

typedef struct one_thread {
	pthread_t id;
	sem_t turn;
	void (*body)(void);
	const void *waits_for;
	bool done;
} one_thread;

typedef struct choice {
	int taken, ways;
} choice;

static _Thread_local int self = -1;

/* Of the current run; only the thread whose turn it is uses it. */
static one_thread threads[SCHEDULE_THREADS_MAX];
static int thread_count, preemptions_left;
static sem_t over;
static bool deadlocked;
static unsigned long points;

/* The choices of the last run, of which the current one repeats the first `made`. */
static choice choices[CHOICES_MAX];
static int made, position;

static void wait_for(sem_t *semaphore)
{
	while (sem_wait(semaphore) != 0)
		;
}

static int choose(int ways)
{
	if (ways == 1)
		return 0;
	if (position == made) {
		if (made == CHOICES_MAX) {
			fprintf(stderr, "schedule.c: more than %d choices\n", CHOICES_MAX);
			abort();
		}
		choices[made++] = (choice){0, ways};
	}
	if (choices[position].ways != ways) {
		fprintf(stderr, "schedule.c: the same choices led elsewhere\n");
		abort();
	}
	return choices[position++].taken;
}

/* The threads that can go on, but for `but`. */
static int others(int but, int *to)
{
	int count = 0;
	for (int i = 0; i < thread_count; i++)
		if (i != but && !threads[i].done && threads[i].waits_for == NULL)
			to[count++] = i;
	return count;
}

static void switch_to(int next)
{
	(void)sem_post(&threads[next].turn);
	wait_for(&threads[self].turn);
}

void schedule_point(void)
{
	int ready[SCHEDULE_THREADS_MAX], taken;
	if (self < 0)
		return;
	points++;
	if (preemptions_left == 0)
		return;
	taken = choose(1 + others(self, ready));
	if (taken == 0)
		return;
	preemptions_left--;
	switch_to(ready[taken - 1]);
}

bool schedule_wait(const void *what)
{
	int ready[SCHEDULE_THREADS_MAX], count = self < 0 ? 0 : others(self, ready);
	if (count == 0) {
		deadlocked = true;
		return false;
	}
	threads[self].waits_for = what;
	switch_to(ready[choose(count)]);
	return true;
}

void schedule_wake(const void *what)
{
	for (int i = 0; self >= 0 && i < thread_count; i++)
		if (threads[i].waits_for == what)
			threads[i].waits_for = NULL;
}

int schedule_self(void)
{
	return self;
}

int schedule_pause(void)
{
	int paused = self;
	self = -1;
	return paused;
}

void schedule_resume(int paused)
{
	self = paused;
}

int schedule_mutex_lock(pthread_mutex_t *mutex)
{
	schedule_point();
	while (pthread_mutex_trylock(mutex) != 0) {
		if (!schedule_wait(mutex)) {
			fprintf(stderr, "schedule.c: deadlock\n");
			abort();
		}
	}
	return 0;
}

int schedule_mutex_unlock(pthread_mutex_t *mutex)
{
	int result = pthread_mutex_unlock(mutex);
	schedule_wake(mutex);
	return result;
}

static void hand_over(void)
{
	int ready[SCHEDULE_THREADS_MAX], count = others(self, ready);
	for (int i = 0; count == 0 && i < thread_count; i++) {
		if (threads[i].done)
			continue;
		deadlocked = true;
		threads[i].waits_for = NULL;
		ready[count++] = i;
	}
	(void)sem_post(count == 0 ? &over : &threads[ready[choose(count == 0 ? 1 : count)]].turn);
}

static void *run_thread(void *argument)
{
	one_thread *thread = argument;
	self = (int)(thread - threads);
	wait_for(&thread->turn);
	thread->body();
	thread->done = true;
	hand_over();
	return NULL;
}

static void run_once(const schedule_plan *plan)
{
	thread_count = position = 0;
	preemptions_left = plan->preemptions;
	deadlocked = false;
	points = 0;
	(void)sem_init(&over, 0, 0);
	while (thread_count < SCHEDULE_THREADS_MAX && plan->bodies[thread_count] != NULL) {
		one_thread *thread = &threads[thread_count];
		memset(thread, 0, sizeof *thread);
		thread->body = plan->bodies[thread_count];
		(void)sem_init(&thread->turn, 0, 0);
		if (pthread_create(&thread->id, NULL, run_thread, thread) != 0)
			abort();
		thread_count++;
	}
	(void)sem_post(&threads[choose(thread_count)].turn);
	wait_for(&over);
	for (int i = 0; i < thread_count; i++) {
		(void)pthread_join(threads[i].id, NULL);
		(void)sem_destroy(&threads[i].turn);
	}
	(void)sem_destroy(&over);
}

/* Of the choices of the last run, the last one that has another way takes it; false: none has. */
static bool next_run(void)
{
	while (made > 0 && choices[made - 1].taken + 1 == choices[made - 1].ways)
		made--;
	if (made == 0)
		return false;
	choices[made - 1].taken++;
	return true;
}

schedule_counts schedule_all(const schedule_plan *plan)
{
	schedule_counts counts = {0, 0, 0};
	made = 0;
	do {
		plan->before();
		run_once(plan);
		plan->after();
		counts.runs++;
		counts.deadlocks += deadlocked;
		if (points > counts.points)
			counts.points = points;
	} while (!(plan->enough != NULL && plan->enough()) && next_run());
	return counts;
}
