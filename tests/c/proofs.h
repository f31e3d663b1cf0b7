/* SPDX-License-Identifier: Apache-2.0 */
/* What those go by who remove what killed writers left (CMT-15). */
#ifndef CKPTFMT_TESTS_PROOFS_H
#define CKPTFMT_TESTS_PROOFS_H

#include "test.h"

#include <stdbool.h>

/* Whether an index under a temporary name says that there are so many data files. */
static inline bool has_proof(const char *place, const char *base, int wanted)
{
	char begin[256], path[1024];
	const struct dirent *entry;
	bool found = false;
	DIR *dir = opendir(place);
	snprintf(begin, sizeof begin, "%s.index.tempstate", base);
	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		int32_t count = 0;
		ckptfmt_error why;
		if (strncmp(entry->d_name, begin, strlen(begin)) != 0)
			continue;
		snprintf(path, sizeof path, "%s/%s", place, entry->d_name);
		CHECK_OK(ckptfmt_index_count(NULL, path, &count, &why), why);
		found = found || count == wanted;
	}
	if (dir != NULL)
		closedir(dir);
	return found;
}

/* Every data file of the checkpoint has an index that names it, or did or would. */
static inline void check_proofs(const char *place, const char *base)
{
	char begin[256], path[1024];
	const struct dirent *entry;
	ckptfmt_error why;
	int32_t in_force = 0;
	DIR *dir = opendir(place);
	snprintf(path, sizeof path, "%s/%s.index", place, base);
	CHECK(dir == NULL || ckptfmt_index_count(NULL, path, &in_force, &why) == CKPTFMT_OK);
	snprintf(begin, sizeof begin, "%s.data-", base);
	while (dir != NULL && (entry = readdir(dir)) != NULL) {
		const char *of = strstr(entry->d_name, "-of-");
		if (strncmp(entry->d_name, begin, strlen(begin)) != 0 || strstr(entry->d_name, ".temp") != NULL || of == NULL)
			continue;
		CHECK(atoi(of + 4) == in_force || has_proof(place, base, atoi(of + 4)));
	}
	if (dir != NULL)
		closedir(dir);
}

/* The directory has the files of at most one checkpoint, and none of killed writers. */
static inline void check_no_orphans(const char *place, const char *base)
{
	char path[1024];
	const struct dirent *entry;
	ckptfmt_error why;
	int32_t count = 0;
	int files = 0;
	DIR *dir = opendir(place);
	snprintf(path, sizeof path, "%s/%s.index", place, base);
	if (dir == NULL)
		return;
	while ((entry = readdir(dir)) != NULL)
		files += entry->d_type != DT_DIR;
	closedir(dir);
	CHECK_OK(ckptfmt_index_count(NULL, path, &count, &why), why);
	CHECK_EQ(files, count == 0 ? 0 : 1 + count);
}

#endif
