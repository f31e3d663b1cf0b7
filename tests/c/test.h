/* SPDX-License-Identifier: Apache-2.0 */
/* What every C test uses: checks that count, guard pages, a seeded generator. One plain program a module. */
#ifndef CKPTFMT_TESTS_TEST_H
#define CKPTFMT_TESTS_TEST_H

#include "ckptfmt_unstable.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static unsigned long test_checks;
static unsigned long test_failures;

#define CHECK(condition)                                                                          \
	do {                                                                                      \
		test_checks++;                                                                    \
		if (!(condition)) {                                                               \
			test_failures++;                                                          \
			fprintf(stderr, "%s:%d: CHECK(%s) failed\n", __FILE__, __LINE__, #condition); \
		}                                                                                 \
	} while (0)

#define CHECK_EQ(a, b)                                                                            \
	do {                                                                                      \
		long long test_a_ = (long long)(a), test_b_ = (long long)(b);                     \
		test_checks++;                                                                    \
		if (test_a_ != test_b_) {                                                         \
			test_failures++;                                                          \
			fprintf(stderr, "%s:%d: %s is %lld, not %lld (%s)\n", __FILE__, __LINE__, #a, \
				test_a_, test_b_, #b);                                            \
		}                                                                                 \
	} while (0)

/* The call succeeds; `error` is the ckptfmt_error it was given. */
#define CHECK_OK(call, error)                                                                     \
	do {                                                                                      \
		ckptfmt_status test_status_ = (call);                                             \
		test_checks++;                                                                    \
		if (test_status_ != CKPTFMT_OK) {                                                 \
			test_failures++;                                                          \
			fprintf(stderr, "%s:%d: %s: %s (%s)\n", __FILE__, __LINE__, #call,        \
				ckptfmt_status_name((int32_t)test_status_), (error).message);     \
		}                                                                                 \
	} while (0)

/* The call fails with this ckptfmt_failure and its message starts with this rule. */
#define CHECK_FAILS(call, error, expected, rule)                                                  \
	do {                                                                                      \
		ckptfmt_status test_status_ = (call);                                             \
		test_checks++;                                                                    \
		if (test_status_ == CKPTFMT_OK || (error).failure != (int32_t)(expected) ||       \
			strncmp((error).message, (rule), strlen(rule)) != 0) {                    \
			test_failures++;                                                          \
			fprintf(stderr, "%s:%d: %s: got %s %s \"%s\", not %s \"%s...\"\n", __FILE__, \
				__LINE__, #call, ckptfmt_status_name((int32_t)test_status_),      \
				test_status_ == CKPTFMT_OK ? "" : ckptfmt_failure_name((error).failure), \
				test_status_ == CKPTFMT_OK ? "" : (error).message,                \
				ckptfmt_failure_name((int32_t)(expected)), rule);                 \
		}                                                                                 \
	} while (0)

/* `size` bytes that end right before an unmapped page: one byte too far faults, sanitizer or not. Never freed. */
static inline uint8_t *test_guarded(size_t size)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	size_t pages = (size + page - 1) / page;
	uint8_t *base = mmap(NULL, (pages + 1) * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (base == MAP_FAILED || mprotect(base + pages * page, page, PROT_NONE) != 0) {
		perror("test_guarded");
		exit(2);
	}
	return base + pages * page - size;
}

static inline uint8_t *test_guarded_copy(const void *bytes, size_t size)
{
	uint8_t *copy = test_guarded(size);
	if (size != 0)
		memcpy(copy, bytes, size);
	return copy;
}

/* To compare: more while more files are open. 0 where there is no /proc. */
static inline int test_open_fds(void)
{
	int count = 0;
	DIR *stream = opendir("/proc/self/fd");
	if (stream == NULL)
		return 0;
	while (readdir(stream) != NULL)
		count++;
	closedir(stream);
	return count;
}

/* splitmix64; the seed is CKPTFMT_TEST_SEED, 1 if it is not set. */
static uint64_t test_seed_state;

static inline void test_seed(void)
{
	const char *given = getenv("CKPTFMT_TEST_SEED");
	test_seed_state = given != NULL ? strtoull(given, NULL, 0) : 1;
	printf("seed: CKPTFMT_TEST_SEED=%" PRIu64 "\n", test_seed_state);
}

static inline uint64_t test_random(void)
{
	uint64_t z = (test_seed_state += 0x9e3779b97f4a7c15u);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static inline uint64_t test_random_below(uint64_t bound)
{
	return test_random() % bound;
}

/* Calls until the next one that fails: a sample, every call with CKPTFMT_EVERY_FAULT set. */
static inline uint64_t test_fault_step(void)
{
	return getenv("CKPTFMT_EVERY_FAULT") != NULL ? 1 : 1 + test_random_below(9);
}

/* The last line of every test program. */
static inline int test_finish(const char *name)
{
	printf("%s: %lu checks, %lu failures\n", name, test_checks, test_failures);
	return test_failures == 0 ? 0 : 1;
}

#endif
