/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that is kept for the next who asks: whose it is, how much of it, and that it is given back. */
#include "base/kept.h"

#include "base/pages.h"
#include "test.h"

#include <pthread.h>
#include <stdbool.h>
#include <sys/wait.h>

#if defined(__SANITIZE_ADDRESS__)
enum { KEEPS = 0 };
#else
enum { KEEPS = 1 };
#endif

static const uint64_t unit = 8 << 20;
static ckptfmt_error err;

static uint8_t *take(uint64_t size)
{
	uint8_t *data;
	CHECK_OK(cf_kept_take(size, &data, &err), err);
	CHECK(!KEEPS || (uintptr_t)data % CF_PAGES_UNIT == 0);
	data[0] = data[size - 1] = 1;
	return data;
}

/* Whether there is memory behind the address. */
static bool is_mapped(const uint8_t *data)
{
	unsigned char page;
	return mincore((void *)(uintptr_t)data, 1, &page) == 0;
}

static void test_used_again(void)
{
	uint8_t *a = take(unit), *b = take(unit), *c;
	cf_kept_give(a, unit);
	CHECK(is_mapped(a));
	CHECK(is_mapped(b));
	/* A little less is cut off. */
	c = take(unit - 100000);
	CHECK(c == a);
	CHECK(is_mapped(a + unit - 102400));
	CHECK(!is_mapped(a + unit - 98304));
	cf_kept_give(c, unit - 100000);
	/* Much less is other memory. */
	c = take(unit / 2);
	CHECK(c != a);
	cf_kept_give(c, unit / 2);
	cf_kept_give(b, unit);
	CHECK(cf_kept_release() > 0);
	CHECK(!is_mapped(a));
	CHECK(!is_mapped(b));
	CHECK_EQ(cf_kept_release(), 0);
}

/* In use and kept are as much as was in use at once: two units, as the test before has left it. */
static void test_bound(void)
{
	uint8_t *data[6];
	for (int i = 0; i < 2; i++)
		data[i] = take(unit);
	cf_kept_give(data[0], unit);
	/* Does not fit what is kept, which must go. */
	data[2] = take(unit / 4 * 3);
	CHECK(!is_mapped(data[0]) || data[2] == data[0]);
	cf_kept_give(data[1], unit);
	cf_kept_give(data[2], unit / 4 * 3);
	CHECK_EQ(cf_kept_release(), unit + unit / 4 * 3);
	/* More ranges than are remembered. */
	{
		enum { MANY = 300 };
		static uint8_t *many[MANY];
		for (int i = 0; i < MANY; i++)
			many[i] = take(65536);
		for (int i = 0; i < MANY; i++)
			cf_kept_give(many[i], 65536);
		CHECK(!is_mapped(many[0]));
		CHECK(is_mapped(many[MANY - 1]));
		CHECK_EQ(cf_kept_release(), 256 * 65536);
	}
}

static void test_too_much(void)
{
	uint8_t *data = take(unit), *none;
	static const uint64_t sizes[] = {(uint64_t)1 << 60, (uint64_t)INT64_MAX, UINT64_MAX};
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		CHECK_EQ(cf_kept_take(sizes[i], &none, &err), CKPTFMT_NO_MEMORY);
		CHECK(none == NULL);
	}
	cf_kept_give(data, unit);
	CHECK_EQ(cf_kept_release(), unit);
}

/* A child has a copy of what is in use and of what is kept. */
static void test_fork(void)
{
	uint8_t *kept = take(unit), *used = take(unit);
	int status;
	pid_t child;
	memset(used, 7, unit);
	cf_kept_give(kept, unit);
	child = fork();
	if (child == 0) {
		uint8_t *again;
		bool good = used[5] == 7 && cf_kept_take(unit, &again, NULL) == CKPTFMT_OK;
		if (good) {
			memset(again, 1, unit);
			cf_kept_give(again, unit);
			cf_kept_give(used, unit);
		}
		_exit(good ? 0 : 1);
	}
	CHECK_EQ(waitpid(child, &status, 0), child);
	CHECK_EQ(status, 0);
	CHECK_EQ(used[unit - 1], 7);
	cf_kept_give(used, unit);
	CHECK_EQ(cf_kept_release(), 2 * unit);
}

/* Nobody gets what somebody else has. */
static void *take_and_give(void *argument)
{
	uint8_t mark = *(uint8_t *)argument;
	for (int i = 0; i < 300; i++) {
		uint64_t size = (uint64_t)(1 + i % 3) << 20;
		uint8_t *data;
		if (cf_kept_take(size, &data, NULL) != CKPTFMT_OK)
			return NULL;
		for (uint64_t at = 0; at < size; at += 4096)
			data[at] = mark;
		for (uint64_t at = 0; at < size; at += 4096)
			if (data[at] != mark)
				return NULL;
		cf_kept_give(data, size);
		if (i % 50 == 0)
			(void)cf_kept_release();
	}
	return argument;
}

static void test_threads(void)
{
	pthread_t threads[4];
	uint8_t marks[4] = {1, 2, 3, 4};
	for (int i = 0; i < 4; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, take_and_give, &marks[i]), 0);
	for (int i = 0; i < 4; i++) {
		void *result;
		CHECK_EQ(pthread_join(threads[i], &result), 0);
		CHECK(result == &marks[i]);
	}
	(void)cf_kept_release();
}

int main(void)
{
	if (KEEPS) {
		test_used_again();
		test_bound();
		test_too_much();
		test_fork();
	}
	test_threads();
	return test_finish("test_kept");
}
