/* SPDX-License-Identifier: Apache-2.0 */
/*
 * measure_paths                  lists the hot paths: name, count, unit, bytes that one unit moves
 * measure_paths PATH [COUNT]     prepares one, runs it once and removes what it made
 *
 * Run under callgrind with --zero-before=hot_path_run and --dump-after=hot_path_run, the first part of the profile is
 * the path and nothing else (bench/instructions.py).
 */
#include "hot_paths.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	const hot_path *path;
	if (argc < 2) {
		for (uint32_t row = 0; (path = hot_path_at(row)) != NULL; row++)
			printf("%s\t%" PRIu64 "\t%s\t%" PRIu64 "\n", path->name, path->count, path->unit, path->unit_bytes);
		return 0;
	}
	path = hot_path_find(argv[1]);
	if (path == NULL) {
		fprintf(stderr, "measure_paths: there is no path %s\n", argv[1]);
		return 2;
	}
	hot_path_prepare(path, argc > 2 ? strtoull(argv[2], NULL, 10) : path->count);
	hot_path_run(path);
	hot_path_finish(path);
	return 0;
}
