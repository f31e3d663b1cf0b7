/* SPDX-License-Identifier: Apache-2.0 */
#include "write/generations.h"

#include <stdlib.h>
#include <string.h>

static int compare(const void *a, const void *b)
{
	const cf_generation_file *x = a, *y = b;
	if (x->count != y->count)
		return x->count < y->count ? -1 : 1;
	return x->shard < y->shard ? -1 : x->shard > y->shard;
}

static void add_name(cf_generations *out, const char *base, const char *name)
{
	cf_generation_file file;
	char canonical[CF_NAME_SIZE];
	memset(&file, 0, sizeof file);
	if (!cf_data_name_parse(base, name, &file.shard, &file.count))
		return;
	cf_data_name(base, file.shard, file.count, canonical);
	file.canonical = file.shard < file.count && strcmp(canonical, name) == 0;
	cf_put_bytes(&out->files, &file, sizeof file);
}

ckptfmt_status cf_generations_list(cf_generations *out, const cf_directory *directory, const char *base,
	ckptfmt_error *err)
{
	cf_buffer names = CF_BUFFER_EMPTY;
	ckptfmt_status status = cf_os_directory_list(directory, &names, err);
	out->files = CF_BUFFER_EMPTY;
	for (uint64_t at = 0; status == CKPTFMT_OK && at < names.size; at += strlen((const char *)names.data + at) + 1)
		add_name(out, base, (const char *)names.data + at);
	if (status == CKPTFMT_OK)
		status = cf_buffer_status(&out->files, err);
	if (status == CKPTFMT_OK && out->files.size != 0)
		qsort(out->files.data, (size_t)(out->files.size / sizeof(cf_generation_file)), sizeof(cf_generation_file),
			compare);
	if (status != CKPTFMT_OK)
		cf_buffer_free(&out->files);
	cf_buffer_free(&names);
	return status;
}

void cf_generations_free(cf_generations *generations)
{
	cf_buffer_free(&generations->files);
}

const cf_generation_file *cf_generations_find(const cf_generations *generations, int32_t number, uint64_t *count)
{
	const cf_generation_file *files = (const cf_generation_file *)cf_buffer_items(&generations->files);
	uint64_t total = generations->files.size / sizeof *files, low = 0, high = total, end;
	while (low < high) {
		uint64_t middle = low + (high - low) / 2;
		if (files[middle].count < number)
			low = middle + 1;
		else
			high = middle;
	}
	for (end = low; end < total && files[end].count == number; end++)
		;
	*count = end - low;
	return *count == 0 ? NULL : files + low;
}
