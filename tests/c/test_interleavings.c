/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every order, with a bound on preemptions, in which the calls of two or three threads can reach a storage: writers of
 * one prefix, readers and verifiers beside them, and threads that share a reader. After each call that changes a
 * checkpoint it must be sound; a reader gets one checkpoint as a whole. CKPTFMT_PREEMPTIONS=1: one preemption more.
 */
#include "schedule.h"
#include "schedule_storage.h"
#include "sources.h"

#include "base/limits.h"

#define PREFIX "d/ck"
#define INDEX "d/ck.index"

/* Sanitizers make each run many times slower. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static int more_preemptions = -1;
#else
static int more_preemptions;
#endif

static schedule_storage storage;
static schedule_plant plant;
static unsigned long wrong;         /* findings; the first is printed where none is expected */
static char first_wrong[512];
static ckptfmt_status result[SCHEDULE_THREADS_MAX];
static unsigned long seen[8];       /* by version, how often a reader read it; 0: it was replaced meanwhile */

static void note(const char *what, const char *more)
{
	if (wrong++ == 0)
		snprintf(first_wrong, sizeof first_wrong, "%s: %.400s", what, more);
}

/* ---- saving and reading ---- */

/* A checkpoint of two data files, "a" in one of them and "b" in the other, both with this value. */
static ckptfmt_status save(const ckptfmt_storage *to, float version, ckptfmt_error *err)
{
	const ckptfmt_write_options options = {.struct_size = sizeof options, .storage = to, .shards = 2};
	const ckptfmt_source sources[2] = {one_float("a", &version), one_float("b", &version)};
	return save_sources(PREFIX, &options, sources, 2, err);
}

static ckptfmt_open_options options_of(const ckptfmt_storage *from)
{
	return (ckptfmt_open_options){.struct_size = sizeof(ckptfmt_open_options), .follow_symlinks = 1, .threads = 1,
		.storage = from};
}

/* The version of a checkpoint whose tensors agree; -1 if they do not. */
static ckptfmt_status load(const ckptfmt_storage *from, int *version, ckptfmt_error *err)
{
	const ckptfmt_open_options options = options_of(from);
	ckptfmt_reader *reader;
	float values[2] = {0, 0};
	ckptfmt_status status = ckptfmt_reader_open(PREFIX, &options, &reader, err);
	*version = -1;
	if (status != CKPTFMT_OK)
		return status;
	for (int i = 0; i < 2 && status == CKPTFMT_OK; i++)
		status = ckptfmt_tensor_read(reader, (const uint8_t *)(i == 0 ? "a" : "b"), 1, NULL, (uint8_t *)&values[i],
			sizeof values[i], CKPTFMT_VERIFY_AUTO, err);
	ckptfmt_reader_close(reader);
	if (status == CKPTFMT_OK && values[0] == values[1])
		*version = (int)values[0];
	return status;
}

/* What `verify` finds, in *problem; empty: nothing. */
static ckptfmt_status verify(const ckptfmt_storage *from, char *problem, size_t size, ckptfmt_error *err)
{
	const ckptfmt_open_options options = options_of(from);
	ckptfmt_report *report;
	ckptfmt_status status = ckptfmt_verify(PREFIX, &options, &report, err);
	problem[0] = '\0';
	for (uint64_t i = 0; status == CKPTFMT_OK && i < report->finding_count; i++)
		if (report->findings[i].severity == CKPTFMT_SEVERITY_PROBLEM)
			snprintf(problem, size, "%s", report->findings[i].error.message);
	ckptfmt_report_free(report);
	return status;
}

/* ---- what must hold ---- */

static void check_sound(void)
{
	ckptfmt_error err;
	char problem[512];
	int version;
	if (verify(storage.inner, problem, sizeof problem, &err) != CKPTFMT_OK)
		note("there is no checkpoint", err.message);
	else if (problem[0] != '\0')
		note("verify", problem);
	else if (load(storage.inner, &version, &err) != CKPTFMT_OK)
		note("load", err.message);
	else if (version < 1)
		note("load", "a mixture");
}

static void count_name(void *to, const char *name)
{
	(void)name;
	++*(int *)to;
}

/* The checkpoint of the last writer, and no other file than its own. */
static void check_end(void)
{
	static const int versions[SCHEDULE_THREADS_MAX] = {2, 3, 0};
	const ckptfmt_storage *inner = storage.inner;
	ckptfmt_error err;
	int version = 0, files = 0, writer = storage.committed_by;
	int32_t count;
	check_sound();
	(void)!load(inner, &version, &err);
	if (writer >= 0 && version != versions[writer])
		note("the end", "it is not the last one that was committed");
	(void)!inner->list(inner->state, "d", count_name, &files, &err);
	(void)!ckptfmt_index_count(inner, INDEX, &count, &err);
	if (files != count + 1)
		note("the end", "files are left");
}

/* ---- threads ---- */

static void write_version(float version)
{
	ckptfmt_error err;
	ckptfmt_status status = save(&storage.functions, version, &err);
	result[schedule_self()] = status;
	if (status != CKPTFMT_OK)
		note("a writer", err.message);
}

static void write_2(void)
{
	write_version(2);
}

static void write_3(void)
{
	write_version(3);
}

/* Names of data files are used again by the generation after the next. */
static void write_twice(void)
{
	write_version(4);
	write_version(2);
}

static void read_it(void)
{
	ckptfmt_error err;
	int version;
	ckptfmt_status status = load(&storage.functions, &version, &err);
	if (status == CKPTFMT_OK && version > 0)
		seen[version]++;
	else if (status == CKPTFMT_OK)
		note("a reader", "a mixture");
	else if (err.failure == CKPTFMT_FAIL_GENERATION_GONE && schedule_has_latency)
		seen[0]++;
	else
		note("a reader", err.message);
}

static void verify_it(void)
{
	ckptfmt_error err;
	char problem[512];
	if (verify(&storage.functions, problem, sizeof problem, &err) != CKPTFMT_OK)
		note("a verifier", err.message);
	else if (problem[0] != '\0')
		note("a verifier", problem);
}

/* ---- the commit ---- */

static void begin(void)
{
	ckptfmt_error err;
	schedule_storage_open(&storage, INDEX);
	CHECK_OK(save(storage.inner, 1, &err), err);
	storage.plant = plant;
	storage.changed = check_sound;
}

static void check_closed(void)
{
	if (storage.open_objects != 0)
		note("the end", "objects are open");
}

static void end(void)
{
	storage.changed = NULL;
	check_end();
	check_closed();
	schedule_storage_close(&storage);
}

static bool is_wrong(void)
{
	return wrong != 0;
}

static void run(const char *name, schedule_plan plan)
{
	schedule_counts counts;
	wrong = 0;
	first_wrong[0] = '\0';
	memset(seen, 0, sizeof seen);
	if (plan.before == NULL) {
		plan.before = begin;
		plan.after = end;
	}
	if (plant == SCHEDULE_PLANT_NONE && plan.preemptions + more_preemptions > 0)
		plan.preemptions += more_preemptions;
	if (plant != SCHEDULE_PLANT_NONE)
		plan.enough = is_wrong;
	counts = schedule_all(&plan);
	wrong += counts.deadlocks;
	printf("interleavings: %s: %lu schedules of up to %lu points, preempted %d times at most, %lu wrong%s%s\n", name,
		counts.runs, counts.points, plan.preemptions, wrong, wrong == 0 ? "" : ", the first: ", first_wrong);
	CHECK(counts.runs > 50 || plan.enough != NULL);
	CHECK((wrong != 0) == (plant != SCHEDULE_PLANT_NONE));
}

static void run_planted(schedule_plant which, const char *name, schedule_plan plan)
{
	plant = which;
	run(name, plan);
	plant = SCHEDULE_PLANT_NONE;
}

static void check_commit(void)
{
	run("two writers", (schedule_plan){.bodies = {write_2, write_3}, .preemptions = 2});
	run("two writers and a reader", (schedule_plan){.bodies = {write_2, write_3, read_it}, .preemptions = 1});
	CHECK(seen[1] > 0 && seen[2] > 0 && seen[3] > 0);
	run("a writer and a reader of a store", (schedule_plan){.bodies = {write_twice, read_it}, .preemptions = 2});
	CHECK(seen[1] > 0 && seen[4] > 0 && seen[2] > 0 && seen[0] > 0);
	schedule_has_latency = false;
	run("a writer and a reader", (schedule_plan){.bodies = {write_twice, read_it}, .preemptions = 2});
	CHECK(seen[1] > 0 && seen[4] > 0 && seen[2] > 0 && seen[0] == 0);
	run("a writer and a verifier", (schedule_plan){.bodies = {write_twice, verify_it}, .preemptions = 1});
	schedule_has_latency = true;
	run_planted(SCHEDULE_PLANT_REMOVES_FIRST, "planted: data files removed before the commit",
		(schedule_plan){.bodies = {write_2, read_it}, .preemptions = 1});
	run_planted(SCHEDULE_PLANT_NO_LOCK, "planted: no lock",
		(schedule_plan){.bodies = {write_2, write_3}, .preemptions = 2});
	run_planted(SCHEDULE_PLANT_NEVER_UNLOCKS, "planted: a lock that stays",
		(schedule_plan){.bodies = {write_2, write_3}, .preemptions = 1});
	run_planted(SCHEDULE_PLANT_TWO_STEPS, "planted: a commit in two steps",
		(schedule_plan){.bodies = {write_2, read_it}, .preemptions = 1});
	run_planted(SCHEDULE_PLANT_TAKES_NAMES, "planted: names that are taken",
		(schedule_plan){.bodies = {write_2, write_3}, .preemptions = 1});
}

/* ---- threads that share a reader ---- */

enum { MANY = 70, NAME_SIZE = 8192 };   /* names so long that the index has several blocks */

static ckptfmt_reader *shared;
static char names[MANY][NAME_SIZE];

static void save_many(void)
{
	const ckptfmt_write_options options = {.struct_size = sizeof options, .storage = storage.inner, .shards = 3};
	ckptfmt_source sources[MANY];
	float values[MANY];
	ckptfmt_error err;
	for (int i = 0; i < MANY; i++) {
		memset(names[i], 'a' + i % 26, NAME_SIZE - 1);
		names[i][0] = (char)('0' + i);
		values[i] = (float)i;
		sources[i] = one_float(names[i], &values[i]);
	}
	CHECK_OK(save_sources(PREFIX, &options, sources, MANY, &err), err);
}

static void open_shared(void)
{
	ckptfmt_limits limits;
	ckptfmt_open_options options = options_of(&storage.functions);
	ckptfmt_error err;
	cf_limits_default(&limits);
	limits.open_files_max = 1;
	options.limits = &limits;
	CHECK_OK(ckptfmt_reader_open(PREFIX, &options, &shared, &err), err);
}

static void close_shared(void)
{
	ckptfmt_reader_close(shared);
	check_closed();
}

/* Only where there is a writer it may be replaced. */
static void read_shared(const char *name, float expected, bool replaced)
{
	ckptfmt_error err;
	float value = -1;
	ckptfmt_status status = ckptfmt_tensor_read(shared, (const uint8_t *)name, strlen(name), NULL, (uint8_t *)&value,
		sizeof value, CKPTFMT_VERIFY_AUTO, &err);
	if (status == CKPTFMT_OK)
		seen[1]++;
	else if (replaced && err.failure == CKPTFMT_FAIL_GENERATION_GONE)
		seen[0]++;
	else
		note("a shared reader", err.message);
	if (status == CKPTFMT_OK && value != expected)
		note("a shared reader", "another value");
}

/* The same blocks and data files in another order. */
static void read_up(void)
{
	read_shared(names[0], 0, false);
	read_shared(names[MANY - 1], MANY - 1, false);
	read_shared(names[MANY / 2], MANY / 2, false);
}

static void read_down(void)
{
	read_shared(names[MANY - 1], MANY - 1, false);
	read_shared(names[MANY / 2], MANY / 2, false);
	read_shared(names[1], 1, false);
}

static void read_a(void)
{
	read_shared("a", 1, true);
}

static void read_b(void)
{
	read_shared("b", 1, true);
}

static void begin_replaced(void)
{
	begin();
	open_shared();
}

static void end_replaced(void)
{
	ckptfmt_reader_close(shared);
	end();
}

static void check_shared_reader(void)
{
	ckptfmt_header header;
	schedule_storage_open(&storage, INDEX);
	save_many();
	open_shared();
	ckptfmt_reader_header(shared, &header);
	CHECK(header.block_count > 2);
	close_shared();
	run("two threads with one reader", (schedule_plan){.before = open_shared, .after = close_shared,
		.bodies = {read_up, read_down}, .preemptions = 3});
	schedule_storage_close(&storage);
	run("two threads with one reader, and a writer", (schedule_plan){.before = begin_replaced,
		.after = end_replaced, .bodies = {write_2, read_a, read_b}, .preemptions = 1});
	CHECK(seen[0] > 0 && seen[1] > 0);
}

int main(void)
{
	const char *more = getenv("CKPTFMT_PREEMPTIONS");
	if (more != NULL)
		more_preemptions = atoi(more);
	check_commit();
	check_shared_reader();
	return test_finish("test_interleavings");
}
