/* SPDX-License-Identifier: Apache-2.0 */
/* The data files of a prefix in a directory, grouped by generation: the N of "-of-N" (commit.h). */
#ifndef CKPTFMT_WRITE_GENERATIONS_H
#define CKPTFMT_WRITE_GENERATIONS_H

#include "proto/names.h"
#include "storage/os.h"

/* If so many consecutive numbers are taken, a writer fails (LIMIT): it would have to create as many data files. */
enum { CF_GENERATIONS_MAX = 1024 };

typedef struct cf_generation_file {
	int32_t count;              /* N */
	int32_t shard;
	bool canonical;             /* spelled as writers spell it, with a shard id below N (NAM-4) */
} cf_generation_file;

typedef struct cf_generations {
	cf_buffer files;            /* cf_generation_file, by N and shard */
} cf_generations;

CF_MUST_CHECK ckptfmt_status cf_generations_list(cf_generations *out, const cf_directory *directory, const char *base,
	ckptfmt_error *err);
void cf_generations_free(cf_generations *generations);

/* The data files of one generation: *count of them, in order; NULL if there are none. */
const cf_generation_file *cf_generations_find(const cf_generations *generations, int32_t number, uint64_t *count);

#endif
