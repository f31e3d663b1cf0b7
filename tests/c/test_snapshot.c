/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of sources in memory: random arrays against a copy element by element, by one thread and by several. */
#include "test.h"

#include <pthread.h>
#include <stdbool.h>

enum { AXES_MAX = 3, SOURCES_MAX = 40, MEGABYTE = 1 << 20, PIECE = 4 * MEGABYTE, ALIGNMENT = 64 };

typedef struct given {
	int64_t dims[AXES_MAX];
	int64_t strides[AXES_MAX];
} given;

typedef struct set {
	ckptfmt_source sources[SOURCES_MAX];
	given given[SOURCES_MAX];
	uint64_t count;
} set;

static uint8_t *pool;           /* what the arrays of all sets lie in */
static const uint64_t pool_size = 40 * MEGABYTE;

static uint64_t itemsize(const ckptfmt_source *source)
{
	return ckptfmt_dtype_find(source->dtype)->size;
}

static bool is_text(const ckptfmt_source *source)
{
	return source->dtype == CKPTFMT_STRING;
}

static uint64_t copy_size(const ckptfmt_source *source)
{
	uint64_t size = itemsize(source);
	for (int32_t d = 0; d < source->rank; d++)
		size *= (uint64_t)source->dims[d];
	return is_text(source) ? 0 : size;
}

/* An array somewhere in the pool: row-major, or over the axes in a random order with random steps of either sign. */
static ckptfmt_source *add(set *to, int32_t dtype, int32_t rank, const int64_t *dims, bool dense)
{
	ckptfmt_source *source = &to->sources[to->count];
	given *own = &to->given[to->count++];
	int64_t low = 0, high, reach;
	int32_t order[AXES_MAX] = {0, 1, 2};
	memset(source, 0, sizeof *source);
	source->name = (const uint8_t *)"name";
	source->name_size = 4;
	source->dtype = dtype;
	source->rank = rank;
	source->dims = memcpy(own->dims, dims, (size_t)rank * sizeof *dims);
	reach = (int64_t)itemsize(source);
	high = reach;
	for (int32_t d = rank - 1; d > 0; d--) {
		int32_t other = (int32_t)test_random_below((uint64_t)d + 1), kept = order[d];
		order[d] = dense ? order[d] : order[other];
		order[other] = dense ? order[other] : kept;
	}
	for (int32_t i = rank - 1; i >= 0; i--) {
		/* Gaps only as long as what is left of the axes still fits the pool. */
		int64_t span = reach, step;
		for (int32_t j = i; j >= 0; j--)
			span *= dims[order[j]];
		step = reach * (dense || (uint64_t)span > pool_size / 2 ? 1 : 1 + (int64_t)test_random_below(2));
		int64_t sign = !dense && test_random_below(3) == 0 ? -1 : 1;
		own->strides[order[i]] = sign * step;
		low += sign < 0 ? (dims[order[i]] - 1) * -step : 0;
		high += sign > 0 ? (dims[order[i]] - 1) * step : 0;
		reach = step * (dims[order[i]] > 1 ? dims[order[i]] : 1);
	}
	if (copy_size(source) == 0)
		low = high = 0;
	CHECK((uint64_t)(high - low) <= pool_size);
	source->strides = dense ? NULL : own->strides;
	source->data = pool - low + test_random_below(pool_size - (uint64_t)(high - low) + 1);
	return source;
}

static void check_copy(const ckptfmt_source *was, const given *own, const uint8_t *copy)
{
	int64_t cell[AXES_MAX] = {0};
	uint64_t size = itemsize(was), elements = copy_size(was) / size, wrong = 0;
	for (uint64_t i = 0; i < elements; i++) {
		int64_t at = 0;
		for (int32_t d = 0; d < was->rank; d++)
			at += cell[d] * own->strides[d];
		wrong += memcmp(copy + i * size, was->data + at, (size_t)size) != 0;
		for (int32_t d = was->rank - 1; d >= 0 && ++cell[d] == was->dims[d]; d--)
			cell[d] = 0;
	}
	CHECK_EQ(wrong, 0);
}

static void check_copies(const set *given_set, int32_t threads)
{
	set own = *given_set;
	uint64_t needed = 0, said, offset = 0;
	uint8_t *memory;
	ckptfmt_error err;
	for (uint64_t i = 0; i < own.count; i++)
		needed += (copy_size(&own.sources[i]) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	CHECK_OK(ckptfmt_copy_size(own.sources, own.count, &said, &err), err);
	CHECK_EQ(said, needed);
	CHECK_OK(ckptfmt_memory_take(needed + ALIGNMENT, threads, &memory, &err), err);
	memset(memory + needed, 0x5a, ALIGNMENT);
	CHECK_OK(ckptfmt_copy(own.sources, own.count, memory, needed, threads, &err), err);
	for (uint64_t i = 0; i < own.count; i++) {
		const ckptfmt_source *was = &given_set->sources[i], *now = &own.sources[i];
		CHECK(now->name == was->name && now->dims == was->dims && now->slice == was->slice);
		CHECK(now->dtype == was->dtype && now->rank == was->rank && now->swapped == was->swapped);
		CHECK(now->strides == NULL);
		if (is_text(was)) {
			CHECK(now->data == was->data);
			continue;
		}
		CHECK(now->data == memory + offset);
		check_copy(was, &given_set->given[i], now->data);
		offset += (copy_size(was) + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
	}
	for (int i = 0; i < ALIGNMENT; i++)
		CHECK(memory[needed + (uint64_t)i] == 0x5a);
	ckptfmt_memory_give(memory, needed + ALIGNMENT);
}

static void random_set(set *out)
{
	static const int32_t dtypes[] = {CKPTFMT_FLOAT, CKPTFMT_DOUBLE, CKPTFMT_UINT8, CKPTFMT_HALF, CKPTFMT_COMPLEX128,
		CKPTFMT_INT4};
	out->count = 0;
	for (uint64_t i = test_random_below(SOURCES_MAX); i > 0; i--) {
		int64_t dims[AXES_MAX];
		int32_t dtype = dtypes[test_random_below(sizeof dtypes / sizeof *dtypes)];
		int32_t rank = (int32_t)test_random_below(AXES_MAX + 1);
		for (int32_t d = 0; d < rank; d++)
			dims[d] = (int64_t)test_random_below(test_random_below(4) == 0 ? 3 : 60);
		add(out, dtype, rank, dims, test_random_below(2) == 0)->swapped = (int32_t)test_random_below(2);
	}
}

static void test_random_sets(void)
{
	for (int round = 0; round < 30; round++) {
		set some;
		random_set(&some);
		check_copies(&some, round % 4);
	}
}

/* Around the bounds of a piece, among small ones, and cut along the outermost dimension. */
static void test_large(void)
{
	static const int64_t sizes[] = {PIECE - 64, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 2 * PIECE + 77};
	set some = {.count = 0};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		(void)add(&some, CKPTFMT_UINT8, 1, &sizes[i], true);
		(void)add(&some, CKPTFMT_UINT8, 1, (int64_t[]){(int64_t)i}, true);
	}
	(void)add(&some, CKPTFMT_FLOAT, 3, (int64_t[]){1, 1500, 1000}, false);
	(void)add(&some, CKPTFMT_FLOAT, 2, (int64_t[]){2, 1000001}, false);
	(void)add(&some, CKPTFMT_HALF, 3, (int64_t[]){300, 10, 801}, false);
	(void)add(&some, CKPTFMT_UINT8, 1, (int64_t[]){PIECE + 3}, false);
	/* A transposed matrix, and one row for all. */
	some.sources[some.count] = (ckptfmt_source){.name = (const uint8_t *)"t", .name_size = 1, .data = pool + 1,
		.dtype = CKPTFMT_FLOAT, .rank = 2};
	some.given[some.count] = (given){{1100, 1300, 0}, {4, 4 * 1100, 0}};
	some.count++;
	some.sources[some.count] = (ckptfmt_source){.name = (const uint8_t *)"b", .name_size = 1, .data = pool + 3,
		.dtype = CKPTFMT_FLOAT, .rank = 2};
	some.given[some.count] = (given){{1100, 1300, 0}, {0, 4, 0}};
	some.count++;
	for (uint64_t i = some.count - 2; i < some.count; i++) {
		some.sources[i].dims = some.given[i].dims;
		some.sources[i].strides = some.given[i].strides;
	}
	check_copies(&some, 1);
	check_copies(&some, 3);
}

/* Copies of many programs' threads do not disturb each other. */
static void *copy_often(void *argument)
{
	const set *some = argument;
	for (int i = 0; i < 20; i++) {
		uint64_t size;
		uint8_t *memory;
		set own = *some;
		ckptfmt_error err;
		if (ckptfmt_copy_size(own.sources, own.count, &size, &err) != CKPTFMT_OK ||
			ckptfmt_memory_take(size, 2, &memory, &err) != CKPTFMT_OK)
			return argument;
		if (ckptfmt_copy(own.sources, own.count, memory, size, 3, &err) != CKPTFMT_OK ||
			memcmp(memory, some->sources[0].data, (size_t)copy_size(&some->sources[0])) != 0)
			return argument;
		ckptfmt_memory_give(memory, size);
	}
	return NULL;
}

static void test_at_once(void)
{
	static set some;
	pthread_t threads[3];
	void *result;
	(void)add(&some, CKPTFMT_UINT8, 1, (int64_t[]){PIECE + 5}, true);
	(void)add(&some, CKPTFMT_FLOAT, 2, (int64_t[]){700, 900}, true);
	for (int i = 0; i < 3; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, copy_often, &some), 0);
	for (int i = 0; i < 3; i++) {
		CHECK_EQ(pthread_join(threads[i], &result), 0);
		CHECK(result == NULL);
	}
}

static void test_strings_stay(void)
{
	static const ckptfmt_bytes texts[] = {{(const uint8_t *)"one", 3}, {NULL, 0}};
	set some = {.count = 0};
	(void)add(&some, CKPTFMT_UINT8, 1, (int64_t[]){5}, true);
	some.sources[some.count] = (ckptfmt_source){.name = (const uint8_t *)"s", .name_size = 1,
		.data = (const uint8_t *)texts, .dtype = CKPTFMT_STRING, .rank = 1};
	some.given[some.count].dims[0] = 2;
	some.sources[some.count].dims = some.given[some.count].dims;
	some.count++;
	(void)add(&some, CKPTFMT_UINT8, 1, (int64_t[]){9}, true);
	check_copies(&some, 2);
}

static void test_nothing(void)
{
	set none = {.count = 0};
	uint64_t size = 99;
	uint8_t *memory = pool;
	ckptfmt_error err;
	CHECK_OK(ckptfmt_copy_size(none.sources, 0, &size, &err), err);
	CHECK_EQ(size, 0);
	CHECK_OK(ckptfmt_copy(none.sources, 0, NULL, 0, 4, &err), err);
	CHECK_FAILS(ckptfmt_memory_take(0, 1, &memory, &err), err, CKPTFMT_FAIL_ARGUMENT, "the size of the memory");
	CHECK(memory == NULL);
	CHECK_FAILS(ckptfmt_memory_take(UINT64_MAX, 1, &memory, &err), err, CKPTFMT_FAIL_NO_MEMORY, "");
	CHECK_FAILS(ckptfmt_memory_take((uint64_t)1 << 62, 1, &memory, &err), err, CKPTFMT_FAIL_NO_MEMORY, "");
	ckptfmt_memory_give(NULL, 0);
}

static void test_memory_is_there(void)
{
	uint64_t size = 70 * MEGABYTE + 1, wrong = 0;
	uint8_t *memory;
	ckptfmt_error err;
	CHECK_OK(ckptfmt_memory_take(size, 3, &memory, &err), err);
	for (uint64_t i = 0; i < size; i++)
		wrong += memory[i] != 0;
	CHECK_EQ(wrong, 0);
	CHECK_EQ((uintptr_t)memory % ALIGNMENT, 0);
	ckptfmt_memory_give(memory, size);
}

static void test_refusals(void)
{
	set some = {.count = 0};
	ckptfmt_source before;
	ckptfmt_error err;
	uint64_t size = 99;
	uint8_t *memory = pool + (ALIGNMENT - (uintptr_t)pool % ALIGNMENT) % ALIGNMENT;
	int64_t half = (int64_t)1 << 62;
	(void)add(&some, CKPTFMT_UINT8, 1, (int64_t[]){65}, true);
	before = some.sources[0];
	CHECK_FAILS(ckptfmt_copy(some.sources, 1, memory, 127, 1, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the copies need 128 bytes, not 127");
	CHECK_FAILS(ckptfmt_copy(some.sources, 1, memory + 1, 128, 1, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the memory must begin at a multiple of 64");
	CHECK(memcmp(&before, &some.sources[0], sizeof before) == 0);
	some.sources[0].dtype = CKPTFMT_RESOURCE;
	CHECK_FAILS(ckptfmt_copy_size(some.sources, 1, &size, &err), err, CKPTFMT_FAIL_ARGUMENT, "data type 20");
	CHECK_EQ(size, 0);
	CHECK(err.tensor_size == 4 && memcmp(err.tensor, "name", 4) == 0);
	some.sources[0].dtype = CKPTFMT_UINT8;
	some.given[0].dims[0] = 3;
	some.given[0].strides[0] = half;
	some.sources[0].dims = some.given[0].dims;
	some.sources[0].strides = some.given[0].strides;
	CHECK_FAILS(ckptfmt_copy_size(some.sources, 1, &size, &err), err, CKPTFMT_FAIL_ARGUMENT, "strides that lead");
	some.given[0].dims[0] = half;
	some.sources[0].strides = NULL;
	some.sources[1] = some.sources[0];
	CHECK_FAILS(ckptfmt_copy_size(some.sources, 2, &size, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"the copies would not fit 63 bits");
}

int main(void)
{
	test_seed();
	pool = malloc((size_t)pool_size);
	if (pool == NULL)
		return 2;
	for (uint64_t i = 0; i < pool_size; i += sizeof(uint64_t)) {
		uint64_t value = test_random();
		memcpy(pool + i, &value, sizeof value);
	}
	test_random_sets();
	test_large();
	test_at_once();
	test_strings_stay();
	test_nothing();
	test_memory_is_there();
	test_refusals();
	free(pool);
	return test_finish("snapshot");
}
