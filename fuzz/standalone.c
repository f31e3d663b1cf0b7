/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A driver for the fuzz targets that any compiler builds:
 *   TARGET [--mutate N] [--seed S] FILE-OR-FOLDER...
 * runs the target on every file, then on N mutations of them made by the target's own mutator. The seed is printed; the
 * same seed and files give the same run. A failed property aborts, and the input is kept in `failed-input`.
 */
#include "repair.h"

#include <dirent.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { INPUT_SIZE_MAX = 1 << 16, PATH_SIZE_MAX = 4096, MUTATIONS_MAX = 6 };

typedef struct input {
	uint8_t *data;
	size_t size;
} input;

static input *inputs;
static size_t input_count;
static const uint8_t *current;
static size_t current_size;
static uint64_t state;

static uint64_t random_below(uint64_t bound)
{
	uint64_t z = (state += 0x9e3779b97f4a7c15u);
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return (z ^ (z >> 31)) % bound;
}

static void die(const char *what, const char *path)
{
	fprintf(stderr, "%s: %s\n", what, path);
	exit(2);
}

/* ---- plain mutation ---- */

static size_t insert_bytes(uint8_t *data, size_t size, size_t capacity)
{
	size_t at = random_below(size + 1), count = random_below(8) + 1;
	int repeat = random_below(2) == 0 && at >= count;
	if (count > capacity - size)
		return size;
	memmove(data + at + count, data + at, size - at);
	for (size_t i = 0; i < count; i++)
		data[at + i] = repeat ? data[at - count + i] : (uint8_t)random_below(256);
	return size + count;
}

static size_t erase_bytes(uint8_t *data, size_t size)
{
	size_t at = random_below(size), count = random_below(random_below(4) == 0 ? size : 8) + 1;
	if (count > size - at)
		count = size - at;
	memmove(data + at, data + at + count, size - at - count);
	return size - count;
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t capacity)
{
	static const uint8_t telling[] = {0, 1, 2, 4, 5, 0x10, 0x7f, 0x80, 0x81, 0xfe, 0xff};
	switch (size == 0 ? 0 : random_below(6)) {
	case 0:
		return insert_bytes(data, size, capacity);
	case 1:
		return erase_bytes(data, size);
	case 2:
		data[random_below(size)] = telling[random_below(sizeof telling)];
		return size;
	case 3:
		data[random_below(size)] += (uint8_t)(random_below(2) == 0 ? 1 : 255);
		return size;
	case 4:
		data[random_below(size)] ^= (uint8_t)(1u << random_below(8));
		return size;
	default: {
		size_t from = random_below(size), to = random_below(size), count = random_below(16) + 1;
		if (count > size - from)
			count = size - from;
		if (count > size - to)
			count = size - to;
		memmove(data + to, data + from, count);
		return size;
	}
	}
}

/* ---- running ---- */

/* The process is lost anyway; what matters is the input that did it. */
static void keep_input(int signal_number)
{
	FILE *file = fopen("failed-input", "wb");
	if (file != NULL) {
		(void)!fwrite(current, 1, current_size, file);
		fclose(file);
	}
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

/* On memory of exactly this size, so that a sanitizer sees one byte too far. */
static void run(const uint8_t *data, size_t size)
{
	uint8_t *copy = malloc(size + (size == 0));
	if (copy == NULL)
		die("no memory", "");
	memcpy(copy, data, size);
	current = copy;
	current_size = size;
	(void)LLVMFuzzerTestOneInput(copy, size);
	free(copy);
}

static void add_file(const char *path)
{
	FILE *file = fopen(path, "rb");
	input *grown = realloc(inputs, (input_count + 1) * sizeof *inputs);
	uint8_t *data = malloc(INPUT_SIZE_MAX);
	if (file == NULL || grown == NULL || data == NULL)
		die("cannot read", path);
	inputs = grown;
	inputs[input_count++] = (input){data, fread(data, 1, INPUT_SIZE_MAX, file)};
	fclose(file);
}

static int skip_dots(const struct dirent *entry)
{
	return entry->d_name[0] != '.';
}

static void add_path(const char *path)
{
	struct stat info;
	struct dirent **names;
	int count;
	if (stat(path, &info) != 0)
		die("no such file", path);
	if (!S_ISDIR(info.st_mode)) {
		add_file(path);
		return;
	}
	/* Sorted, so that a seed means the same everywhere. */
	count = scandir(path, &names, skip_dots, alphasort);
	for (int i = 0; i < count; i++) {
		char inner[PATH_SIZE_MAX];
		if ((size_t)snprintf(inner, sizeof inner, "%s/%s", path, names[i]->d_name) >= sizeof inner)
			die("path too long", path);
		add_path(inner);
		free(names[i]);
	}
	if (count >= 0)
		free(names);
}

static void run_mutations(uint64_t count)
{
	static uint8_t data[INPUT_SIZE_MAX];
	for (uint64_t i = 0; i < count && input_count != 0; i++) {
		const input *from = &inputs[random_below(input_count)];
		size_t size = from->size;
		memcpy(data, from->data, size);
		for (uint64_t j = random_below(MUTATIONS_MAX) + 1; j > 0; j--)
			size = LLVMFuzzerCustomMutator(data, size, sizeof data, (unsigned int)random_below(UINT32_MAX));
		run(data, size);
	}
}

int main(int argc, char **argv)
{
	uint64_t mutations = 0, seed = (uint64_t)time(NULL) * 1000003u + (uint64_t)getpid();
	for (int i = 1; i < argc; i++) {
		if (i + 1 < argc && strcmp(argv[i], "--mutate") == 0)
			mutations = strtoull(argv[++i], NULL, 0);
		else if (i + 1 < argc && strcmp(argv[i], "--seed") == 0)
			seed = strtoull(argv[++i], NULL, 0);
		else
			add_path(argv[i]);
	}
	if (input_count == 0)
		die("usage: TARGET [--mutate N] [--seed S] FILE-OR-FOLDER", "no inputs");
	signal(SIGABRT, keep_input);
	for (size_t i = 0; i < input_count; i++)
		run(inputs[i].data, inputs[i].size);
	printf("%zu files, %" PRIu64 " mutations, --seed %" PRIu64 "\n", input_count, mutations, seed);
	fflush(stdout);
	state = seed;
	run_mutations(mutations);
	for (size_t i = 0; i < input_count; i++)
		free(inputs[i].data);
	free(inputs);
	return 0;
}
