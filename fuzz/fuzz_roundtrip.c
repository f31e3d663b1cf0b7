/* SPDX-License-Identifier: Apache-2.0 */
/* Property: what is written with any options is read back: names in order, data types, shapes and values, whole and in
 * part; verifying finds no problem. A checkpoint written over another one leaves the new one and none of the old one's
 * files.
 *
 * Input: bytes that choose options and tensors (model.c), for each of the checkpoints of a prefix. */
#include "blocks.h"
#include "model.h"

#include <string.h>

enum { SAVES_MAX = 3 };

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	(void)seed;
	return LLVMFuzzerMutate(data, size, capacity);
}

typedef struct seen {
	uint32_t files;
	uint32_t named_for;         /* data files that the name of the first one counts */
} seen;

static void look(void *to, const char *name)
{
	seen *all = to;
	const char *count = strstr(name, "-of-");
	all->files++;
	FUZZ_CHECK(strstr(name, "tempstate") == NULL);
	if (count != NULL) {
		uint32_t number = (uint32_t)strtoul(count + 4, NULL, 10);
		FUZZ_CHECK(all->named_for == 0 || all->named_for == number);
		all->named_for = number;
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static model m;
	fuzz_bytes in = {data, size};
	ckptfmt_storage *storage;
	ckptfmt_error err = {0};
	uint32_t saves = 1 + fuzz_choose(&in, SAVES_MAX);
	fuzz_keep_blocks();
	FUZZ_CHECK(ckptfmt_memory_storage_new(&storage, &err) == CKPTFMT_OK);
	while (saves-- > 0) {
		ckptfmt_write_options options;
		seen all = {0};
		model_take_options(&options, &in);
		options.storage = storage;
		model_take(&m, &in);
		FUZZ_CHECK(model_write(&m, "/d/p", &options, &err) == CKPTFMT_OK);
		FUZZ_CHECK(model_compare(&m, "/d/p", storage, &err) == MODEL_SAME);
		FUZZ_CHECK(model_problems("/d/p", storage, &err) == 0);
		FUZZ_CHECK(storage->list(storage->state, "/d", look, &all, &err) == CKPTFMT_OK);
		FUZZ_CHECK(all.files == 1 + all.named_for);
	}
	ckptfmt_memory_storage_free(storage);
	return 0;
}
