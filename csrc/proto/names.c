/* SPDX-License-Identifier: Apache-2.0 */
#include "proto/names.h"

#include "base/memory.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static char *copy_text(const char *text, size_t size)
{
	char *copy = cf_allocate((uint64_t)size + 1);
	if (copy != NULL) {
		memcpy(copy, text, size);
		copy[size] = '\0';
	}
	return copy;
}

ckptfmt_status cf_prefix_split(const char *prefix, cf_prefix *out, ckptfmt_error *err)
{
	const char *slash, *base;
	size_t directory_size, path_size;
	memset(out, 0, sizeof *out);
	if (prefix == NULL)
		return cf_fail(err, CKPTFMT_FAIL_BAD_PATH, CF_NO_OFFSET, "the path is NULL");
	slash = strrchr(prefix, '/');
	base = slash == NULL ? prefix : slash + 1;
	directory_size = slash == NULL ? 0 : (size_t)(slash - prefix);
	path_size = strlen(prefix) + sizeof ".index";
	if (strlen(base) > CF_BASE_SIZE_MAX) {
		ckptfmt_status status = cf_fail(err, CKPTFMT_FAIL_BAD_PATH, CF_NO_OFFSET,
			"the base name is %zu bytes long; no file system allows that", strlen(base));
		cf_error_path(err, prefix);
		return status;
	}
	if (slash == NULL)
		out->directory = copy_text(".", 1);
	else
		out->directory = directory_size == 0 ? copy_text("/", 1) : copy_text(prefix, directory_size);
	out->base = copy_text(base, strlen(base));
	out->index_path = cf_allocate(path_size);
	if (out->directory == NULL || out->base == NULL || out->index_path == NULL) {
		cf_prefix_free(out);
		return cf_fail_memory(err);
	}
	(void)snprintf(out->index_path, path_size, "%s.index", prefix);
	return CKPTFMT_OK;
}

void cf_prefix_free(cf_prefix *prefix)
{
	cf_release(prefix->directory);
	cf_release(prefix->base);
	cf_release(prefix->index_path);
	memset(prefix, 0, sizeof *prefix);
}

/* Without snprintf: a merge makes several names for each input, and formatting would dominate its cost. */

static char *store_base(char *name, const char *base)
{
	size_t size = strlen(base);
	assert(size <= CF_BASE_SIZE_MAX);
	memcpy(name, base, size);
	return name + size;
}

/* At least five digits. */
static char *store_shard(char *to, int32_t number)
{
	char digits[10];
	int count = 0;
	assert(number >= 0);
	for (uint32_t left = (uint32_t)number; left != 0 || count < 5; left /= 10)
		digits[count++] = (char)('0' + left % 10);
	while (count > 0)
		*to++ = digits[--count];
	return to;
}

/* NAM-2 */
void cf_index_name(const char *base, char *name)
{
	memcpy(store_base(name, base), ".index", sizeof ".index");
}

void cf_data_name(const char *base, int32_t shard, int32_t shard_count, char *name)
{
	char *to = store_base(name, base);
	memcpy(to, ".data-", 6);
	to = store_shard(to + 6, shard);
	memcpy(to, "-of-", 4);
	to = store_shard(to + 4, shard_count);
	*to = '\0';
}

void cf_join_path(const char *directory, const char *name, char *path, size_t size)
{
	size_t directory_size = strlen(directory), name_size = strlen(name);
	size_t wanted = directory_size + 1 + name_size + 1;
	if (wanted > size)
		directory += cf_min_u64(wanted - size, directory_size);
	(void)snprintf(path, size, "%s%s%s", directory, strcmp(directory, "/") == 0 ? "" : "/", name);
}

/* Moves *text past at least five digits; -1 if there are fewer or the number does not fit. */
static int64_t take_number(const char **text)
{
	int64_t value = 0;
	size_t digits = 0;
	for (; **text >= '0' && **text <= '9'; (*text)++, digits++) {
		value = value * 10 + (**text - '0');
		if (value > INT32_MAX)
			return -1;
	}
	return digits >= 5 ? value : -1;
}

bool cf_data_name_parse(const char *base, const char *name, int32_t *shard, int32_t *count)
{
	size_t base_size = strlen(base);
	int64_t number;
	if (strncmp(name, base, base_size) != 0)
		return false;
	name += base_size;
	if (strncmp(name, ".data-", 6) != 0)
		return false;
	name += 6;
	number = take_number(&name);
	if (number < 0 || strncmp(name, "-of-", 4) != 0)
		return false;
	*shard = (int32_t)number;
	name += 4;
	number = take_number(&name);
	*count = (int32_t)number;
	return number >= 1 && *name == '\0';
}

int32_t cf_data_name_count(const char *base, const char *name)
{
	int32_t shard, count;
	return cf_data_name_parse(base, name, &shard, &count) ? count : 0;
}
