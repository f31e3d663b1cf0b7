/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storage of the caller's that lies: every function fails, at its n-th call, with each status and with error
 * records that are left as they are, filled with garbage, too full, or sound; it answers "exists" where it must
 * replace; or it has no such function. No answer crashes the library, is read beyond its fields, or costs a checkpoint
 * that is in place.
 */
#include "sources.h"
#include "test.h"

#include <stdbool.h>
#include <stddef.h>

enum {
	COUNT = 9000,           /* elements of a tensor: 36,000 bytes */
	CALLS_MAX = 400
};

typedef enum function {
	INFO, LIST, OPEN, READ_BATCH, CREATE, APPEND, FINISH, OBJECT_INFO, ADOPT, PUBLISH, REMOVE, LOCK, FUNCTION_COUNT
} function;

typedef enum lie {
	NOT_FILLED, GARBAGE, OVERFULL, SOUND, LIE_COUNT
} lie;

static ckptfmt_storage *memory;
static ckptfmt_storage seam;
static ckptfmt_error err;

/* What fails: the call number `at` of `chosen`, and if `always` those after it. */
static struct {
	bool on;
	function chosen;
	lie lie;
	int32_t status;
	uint64_t at;
	bool always;
	bool loses;     /* publish answers "exists" instead */
	uint64_t calls;
	bool told;
} plan;

/* Whether this call fails; fills the record as planned. */
static bool fails(function f, ckptfmt_error *record)
{
	if (!plan.on || f != plan.chosen)
		return false;
	uint64_t call = plan.calls++;
	if (call != plan.at && !(plan.always && call > plan.at))
		return false;
	plan.told = true;
	if (plan.lie == GARBAGE || plan.lie == OVERFULL)
		memset(record, 0xff, sizeof *record);
	if (plan.lie == OVERFULL)
		record->failure = CKPTFMT_FAIL_OS;      /* with texts that do not end */
	if (plan.lie == SOUND)
		(void)ckptfmt_error_set(record, CKPTFMT_FAIL_OS, 5, "somewhere", "planned");
	return true;
}

#define ANSWER(f, call) return fails(f, e) ? (ckptfmt_status)plan.status : memory->call

static ckptfmt_status info(void *s, const char *path, ckptfmt_object_info *to, int32_t *exists, ckptfmt_error *e)
{
	ANSWER(INFO, info(s, path, to, exists, e));
}

static ckptfmt_status list(void *s, const char *directory, void (*each)(void *, const char *), void *to,
	ckptfmt_error *e)
{
	ANSWER(LIST, list(s, directory, each, to, e));
}

static ckptfmt_status open_object(void *s, const char *path, void **object, ckptfmt_object_info *to, ckptfmt_error *e)
{
	ANSWER(OPEN, open(s, path, object, to, e));
}

static ckptfmt_status read_batch(void *s, ckptfmt_object_read *reads, uint64_t count, ckptfmt_error *e)
{
	ANSWER(READ_BATCH, read_batch(s, reads, count, e));
}

static ckptfmt_status create(void *s, const char *path, void **object, int32_t *exists, ckptfmt_error *e)
{
	ANSWER(CREATE, create(s, path, object, exists, e));
}

static ckptfmt_status append(void *s, void *object, const uint8_t *bytes, uint64_t size, ckptfmt_error *e)
{
	ANSWER(APPEND, append(s, object, bytes, size, e));
}

static ckptfmt_status finish(void *s, void *object, ckptfmt_error *e)
{
	ANSWER(FINISH, finish(s, object, e));
}

static ckptfmt_status object_info(void *s, void *object, ckptfmt_object_info *to, ckptfmt_error *e)
{
	ANSWER(OBJECT_INFO, object_info(s, object, to, e));
}

static ckptfmt_status adopt(void *s, const char *from, const char *to, int32_t *result, ckptfmt_error *e)
{
	ANSWER(ADOPT, adopt(s, from, to, result, e));
}

static ckptfmt_status publish(void *s, const char *from, const char *to, int32_t replaces, int32_t *exists,
	ckptfmt_error *e)
{
	if (!plan.loses)
		ANSWER(PUBLISH, publish(s, from, to, replaces, exists, e));
	if (!replaces || !fails(PUBLISH, e))
		return memory->publish(s, from, to, replaces, exists, e);
	*exists = 1;
	return CKPTFMT_OK;
}

static ckptfmt_status remove_object(void *s, const char *path, ckptfmt_error *e)
{
	ANSWER(REMOVE, remove(s, path, e));
}

static ckptfmt_status lock(void *s, const char *directory, uint64_t timeout_ms, ckptfmt_error *e)
{
	ANSWER(LOCK, lock(s, directory, timeout_ms, e));
}

static void make_seam(void)
{
	CHECK_OK(ckptfmt_memory_storage_new(&memory, &err), err);
	seam = *memory;
	seam.info = info;
	seam.list = list;
	seam.open = open_object;
	seam.read_batch = read_batch;
	seam.create = create;
	seam.append = append;
	seam.finish = finish;
	seam.object_info = object_info;
	seam.adopt = adopt;
	seam.publish = publish;
	seam.remove = remove_object;
	if (memory->lock != NULL)
		seam.lock = lock;
}

/* ---- what is done ---- */

/* A failure that reaches the caller is a whole record. */
static ckptfmt_status checked(ckptfmt_status status)
{
	if (status == CKPTFMT_OK)
		return status;
	CHECK(status >= CKPTFMT_INVALID && status <= CKPTFMT_CANCELLED);
	CHECK_EQ(err.status, status);
	CHECK(err.failure > 0 && strcmp(ckptfmt_failure_name(err.failure), "unknown") != 0);
	CHECK(err.tensor_size < sizeof err.tensor);
	CHECK(memchr(err.message, 0, sizeof err.message) != NULL && err.message[0] != '\0');
	CHECK(memchr(err.path, 0, sizeof err.path) != NULL);
	return status;
}

static ckptfmt_status save(const char *prefix, int64_t value)
{
	static float data[COUNT];
	const ckptfmt_write_options options = {.struct_size = sizeof options, .storage = &seam};
	const int64_t dims[1] = {COUNT};
	ckptfmt_source source = source_of("x", CKPTFMT_FLOAT, 1, dims, data);
	ckptfmt_writer *writer;
	ckptfmt_status status;
	for (int64_t i = 0; i < COUNT; i++)
		data[i] = (float)value;
	status = checked(ckptfmt_writer_open(prefix, &options, &writer, &err));
	if (status == CKPTFMT_OK)
		status = checked(ckptfmt_writer_add(writer, &source, 1, &err));
	if (status == CKPTFMT_OK)
		return checked(ckptfmt_writer_commit(writer, &err));
	ckptfmt_writer_abandon(writer);
	return status;
}

/* The value that is stored; -1 if the read fails. */
static int64_t load(const char *prefix)
{
	static float data[COUNT];
	const ckptfmt_open_options options = {.struct_size = sizeof options, .storage = &seam};
	ckptfmt_reader *reader;
	ckptfmt_status status = checked(ckptfmt_reader_open(prefix, &options, &reader, &err));
	if (status == CKPTFMT_OK)
		status = checked(ckptfmt_tensor_read(reader, (const uint8_t *)"x", 1, NULL, (uint8_t *)data, sizeof data, 0,
			&err));
	ckptfmt_reader_close(reader);
	if (status != CKPTFMT_OK)
		return -1;
	CHECK(data[0] == data[COUNT - 1]);
	return (int64_t)data[0];
}

static void verify(const char *prefix)
{
	const ckptfmt_open_options options = {.struct_size = sizeof options, .storage = &seam};
	ckptfmt_report *report;
	ckptfmt_status status = checked(ckptfmt_verify(prefix, &options, &report, &err));
	for (uint64_t i = 0; status == CKPTFMT_OK && i < report->finding_count; i++) {
		/* A storage that fails is not damage. */
		const ckptfmt_finding *finding = &report->findings[i];
		CHECK(finding->severity == CKPTFMT_SEVERITY_NOTE || finding->error.status != CKPTFMT_CORRUPT);
	}
	ckptfmt_report_free(report);
}

static ckptfmt_status merge(void)
{
	const char *inputs[] = {"d/one"};
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .storage = &seam};
	return checked(ckptfmt_merge(inputs, 1, "d/merged", &options, &err));
}

/* An overwrite, a merge, a load and a verification under the plan, and then without. Returns whether it was reached. */
static bool scenario(void)
{
	make_seam();
	plan.on = false;
	CHECK_OK(save("d/m", 1), err);
	CHECK_OK(save("d/one", 3), err);
	CHECK_OK(save("d/merged", 4), err);
	plan.on = true;
	plan.calls = 0;
	plan.told = false;
	ckptfmt_status saved = save("d/m", 2), merged = merge();
	int64_t found = load("d/m");
	CHECK(found == -1 || found == 1 || found == 2);
	verify("d/m");
	plan.on = false;
	found = load("d/m");
	CHECK(found == 2 || (found == 1 && saved != CKPTFMT_OK));
	found = load("d/merged");
	CHECK(found == 3 || (found == 4 && merged != CKPTFMT_OK));
	CHECK_OK(save("d/m", 5), err);
	CHECK_EQ(load("d/m"), 5);
	ckptfmt_memory_storage_free(memory);
	return plan.told;
}

static void fail_each(void)
{
	static const int32_t statuses[] = {CKPTFMT_IO, 99, -1, CKPTFMT_CORRUPT, CKPTFMT_BUSY, CKPTFMT_NO_MEMORY};
	for (int f = 0; f < FUNCTION_COUNT; f++)
		for (int l = 0; l < LIE_COUNT; l++)
			for (size_t s = 0; s < sizeof statuses / sizeof *statuses; s++)
				for (int always = 0; always < 2; always++) {
					plan.chosen = (function)f;
					plan.lie = (lie)l;
					plan.status = statuses[s];
					plan.always = always != 0;
					for (plan.at = 0; plan.at < CALLS_MAX && scenario(); plan.at++)
						;
				}
}

static void lose_each(void)
{
	plan.chosen = PUBLISH;
	plan.lie = NOT_FILLED;
	plan.always = false;
	plan.loses = true;
	for (plan.at = 0; scenario(); plan.at++)
		;
	CHECK(plan.at >= 2);
	make_seam();
	plan.on = false;
	CHECK_OK(save("d/m", 1), err);
	plan.on = true;
	plan.calls = plan.at = 0;
	CHECK_FAILS(save("d/m", 2), err, CKPTFMT_FAIL_BUSY, "another writer");
	plan.on = plan.loses = false;
	CHECK_EQ(load("d/m"), 1);
	ckptfmt_memory_storage_free(memory);
}

/* ---- the struct ---- */

static void check_struct(ckptfmt_failure expected)
{
	const ckptfmt_merge_options options = {.struct_size = sizeof options, .storage = &seam};
	const ckptfmt_write_options writing = {.struct_size = sizeof writing, .storage = &seam};
	const ckptfmt_open_options reading = {.struct_size = sizeof reading, .storage = &seam};
	const char *inputs[] = {"d/one"};
	ckptfmt_reader *reader;
	ckptfmt_writer *writer;
	ckptfmt_report *report;
	int32_t count;
	CHECK_FAILS(ckptfmt_reader_open("d/one", &reading, &reader, &err), err, expected, "");
	CHECK_FAILS(ckptfmt_verify("d/one", &reading, &report, &err), err, expected, "");
	CHECK_FAILS(ckptfmt_writer_open("d/new", &writing, &writer, &err), err, expected, "");
	CHECK_FAILS(ckptfmt_merge(inputs, 1, "d/new", &options, &err), err, expected, "");
	CHECK_FAILS(ckptfmt_index_count(&seam, "d/one.index", &count, &err), err, expected, "");
}

static void check_structs(void)
{
	static const size_t functions[] = {offsetof(ckptfmt_storage, info), offsetof(ckptfmt_storage, list),
		offsetof(ckptfmt_storage, open), offsetof(ckptfmt_storage, read_batch), offsetof(ckptfmt_storage, create),
		offsetof(ckptfmt_storage, append), offsetof(ckptfmt_storage, finish),
		offsetof(ckptfmt_storage, object_info), offsetof(ckptfmt_storage, close), offsetof(ckptfmt_storage, adopt),
		offsetof(ckptfmt_storage, publish), offsetof(ckptfmt_storage, remove)};
	ckptfmt_storage whole;
	struct {
		ckptfmt_storage known;
		uint64_t tail;
	} longer;
	make_seam();
	whole = seam;
	CHECK_OK(save("d/one", 7), err);
	for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
		void *none = NULL;
		memcpy((char *)&seam + functions[i], &none, sizeof none);
		check_struct(CKPTFMT_FAIL_ARGUMENT);
		seam = whole;
	}
	/* Shorter: without the functions that it need not have; beyond it nothing is read. */
	seam.struct_size = offsetof(ckptfmt_storage, lock);
	memset((char *)&seam + offsetof(ckptfmt_storage, lock), 0xff, sizeof seam - offsetof(ckptfmt_storage, lock));
	CHECK_OK(save("d/one", 8), err);
	CHECK_EQ(load("d/one"), 8);
	seam.struct_size = offsetof(ckptfmt_storage, remove);
	check_struct(CKPTFMT_FAIL_ARGUMENT);
	seam.struct_size = 0;
	check_struct(CKPTFMT_FAIL_ARGUMENT);
	/* Longer: as the other structs. */
	seam = whole;
	longer.known = whole;
	longer.known.struct_size = sizeof longer;
	longer.tail = 0;
	const ckptfmt_open_options reading = {.struct_size = sizeof reading, .storage = &longer.known};
	ckptfmt_reader *reader;
	CHECK_OK(ckptfmt_reader_open("d/one", &reading, &reader, &err), err);
	ckptfmt_reader_close(reader);
	longer.tail = UINT64_MAX;
	CHECK_FAILS(ckptfmt_reader_open("d/one", &reading, &reader, &err), err, CKPTFMT_FAIL_ARGUMENT, "struct_size");
	ckptfmt_memory_storage_free(memory);
}

int main(void)
{
	check_structs();
	lose_each();
	fail_each();
	return test_finish("seam");
}
