/* SPDX-License-Identifier: Apache-2.0 */
/* base/ at its bounds: sizes that no machine has, texts of errors, arenas; and names of files (proto/names.h). */
#include "base/arena.h"
#include "base/buffer.h"
#include "base/memory.h"
#include "proto/names.h"
#include "test.h"

#include <errno.h>

/* A size above PTRDIFF_MAX is refused before anything is asked of the heap. */
static void test_sizes(void)
{
	static const uint64_t sizes[] = {(uint64_t)PTRDIFF_MAX + 1, UINT64_MAX - 1, UINT64_MAX};
	cf_arena arena = CF_ARENA_EMPTY;
	cf_buffer buffer = CF_BUFFER_EMPTY;
	for (int i = 0; i < 3; i++) {
		CHECK(cf_allocate(sizes[i]) == NULL && cf_reallocate(NULL, sizes[i]) == NULL);
		CHECK(cf_allocate_zero(1, sizes[i]) == NULL && cf_allocate_zero(sizes[i], 3) == NULL);
		CHECK(cf_arena_take(&arena, sizes[i]) == NULL);
		cf_put_bytes(&buffer, "x", 1);
		CHECK(!cf_buffer_reserve(&buffer, sizes[i]) && buffer.failed);
		cf_buffer_free(&buffer);
		buffer = CF_BUFFER_EMPTY;
	}
	CHECK(cf_arena_take(&arena, 1) != NULL);
	cf_arena_free(&arena);
}

static void test_errors(void)
{
	ckptfmt_error err;
	char path[2000], text[] = "a\x1f\x7f~ b";
	CHECK(strcmp(ckptfmt_status_name(CKPTFMT_BUSY), "BUSY") == 0);
	CHECK(strcmp(ckptfmt_status_name(-1), "unknown") == 0 && strcmp(ckptfmt_status_name(999), "unknown") == 0);
	CHECK(strcmp(ckptfmt_failure_name(CKPTFMT_FAIL_BAD_SLICE), "BAD_SLICE") == 0);
	CHECK(strcmp(ckptfmt_failure_name(-1), "unknown") == 0 && strcmp(ckptfmt_failure_name(999), "unknown") == 0);
	/* Control characters are replaced, and what a storage calls by an unknown number is the system's. */
	CHECK_EQ(ckptfmt_error_set(&err, CKPTFMT_FAIL_BUSY, 0, "there", text), CKPTFMT_BUSY);
	CHECK(strcmp(err.message, "a??~ b") == 0 && strcmp(err.path, "there") == 0);
	for (int failure = 0; failure >= -1; failure--)
		CHECK_EQ(ckptfmt_error_set(&err, (ckptfmt_failure)failure, EIO, NULL, "no"), CKPTFMT_IO);
	CHECK_EQ(ckptfmt_error_set(&err, (ckptfmt_failure)999, EIO, NULL, "no"), CKPTFMT_IO);
	CHECK_EQ(ckptfmt_error_set(&err, CKPTFMT_FAIL_OS, ENOMEM, NULL, "no"), CKPTFMT_NO_MEMORY);
	CHECK_EQ(ckptfmt_error_set(NULL, CKPTFMT_FAIL_OS, EIO, "p", "no"), CKPTFMT_IO);
	/* Of a long path its end is kept. */
	memset(path, 'a', sizeof path);
	memcpy(path + sizeof path - 4, "end", 4);
	(void)!ckptfmt_error_set(&err, CKPTFMT_FAIL_OS, 0, path, "no");
	CHECK(strlen(err.path) == sizeof err.path - 1 && strcmp(err.path + sizeof err.path - 4, "end") == 0);
	/* The first to name a tensor is right; a cancelled call is about none. */
	cf_error_tensor(&err, (const uint8_t *)"first", 5);
	cf_error_tensor(&err, (const uint8_t *)"second", 6);
	CHECK(strcmp(err.tensor, "first") == 0);
	(void)!ckptfmt_error_set(&err, CKPTFMT_FAIL_CANCELLED, 0, NULL, "no");
	cf_error_tensor(&err, (const uint8_t *)"first", 5);
	cf_error_tensor(NULL, (const uint8_t *)"first", 5);
	CHECK_EQ(err.tensor_size, 0);
}

/* Whether the name is that of data file `shard` of `count` of "model". */
static bool names(const char *name, int32_t shard, int32_t count)
{
	int32_t found_shard = -1, found_count = -1;
	return cf_data_name_parse("model", name, &found_shard, &found_count) && found_shard == shard &&
		found_count == count;
}

static void test_names(void)
{
	static const char *const others[] = {"model", "mode.data-00000-of-00001", "model.data_00000-of-00001",
		"model.data-0000-of-00001", "model.data-00000_of-00001", "model.data-00000-of-0001",
		"model.data-00000-of-00000", "model.data-00000-of-00001x", "model.data-2147483648-of-00001",
		"model.data-00000-of-2147483648", "model.data-99999999999999999999-of-00001"};
	char name[CF_BASE_SIZE_MAX + 40], path[10], base[CF_BASE_SIZE_MAX + 2];
	ckptfmt_error err;
	cf_prefix prefix;
	for (size_t i = 0; i < CF_ARRAY_COUNT(others); i++)
		CHECK(!names(others[i], 0, 1));
	CHECK(names("model.data-00000-of-00001", 0, 1) && names("model.data-00007-of-00003", 7, 3));
	CHECK(names("model.data-2147483647-of-2147483647", INT32_MAX, INT32_MAX));
	cf_data_name("model", INT32_MAX, 5, name);
	CHECK(strcmp(name, "model.data-2147483647-of-00005") == 0);
	/* A path that does not fit loses the begin of its directory. */
	cf_join_path("/a/b/c", "name", path, sizeof path);
	CHECK_EQ(strlen(path), sizeof path - 1);
	CHECK(strcmp(path + strlen(path) - 5, "/name") == 0);
	cf_join_path("/", "name", path, sizeof path);
	CHECK(strcmp(path, "/name") == 0);
	/* The longest base name, and one more. */
	memset(base, 'n', sizeof base);
	base[CF_BASE_SIZE_MAX] = '\0';
	CHECK_OK(cf_prefix_split(base, &prefix, &err), err);
	cf_prefix_free(&prefix);
	base[CF_BASE_SIZE_MAX] = 'n';
	base[CF_BASE_SIZE_MAX + 1] = '\0';
	CHECK_FAILS(cf_prefix_split(base, &prefix, &err), err, CKPTFMT_FAIL_BAD_PATH, "the base name");
	CHECK_FAILS(cf_prefix_split(NULL, &prefix, &err), err, CKPTFMT_FAIL_BAD_PATH, "the path is NULL");
}

int main(void)
{
	test_sizes();
	test_errors();
	test_names();
	return test_finish("base");
}
