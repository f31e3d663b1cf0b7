/* SPDX-License-Identifier: Apache-2.0 */
/* Small checkpoints made of the bytes of an input, written through the library, and compared with what it reads. */
#ifndef CKPTFMT_FUZZ_MODEL_H
#define CKPTFMT_FUZZ_MODEL_H

#include "repair.h"

#include "ckptfmt.h"

#include <stdbool.h>

enum { MODEL_TENSORS_MAX = 8, MODEL_RANK_MAX = 3, MODEL_VALUE_MAX = 1 << 13, MODEL_STRINGS_MAX = 12 };
enum { MODEL_PARTS_MAX = 4 };

/* Bytes that are not there are 0. */
typedef struct fuzz_bytes {
	const uint8_t *data;
	size_t left;
} fuzz_bytes;

uint8_t fuzz_take(fuzz_bytes *in);
/* A number from 0 to `bound` less 1, of one byte. */
uint32_t fuzz_choose(fuzz_bytes *in, uint32_t bound);

typedef struct model_tensor {
	uint8_t name[8];
	uint64_t name_size;
	int32_t dtype;
	int32_t rank;
	int64_t dims[MODEL_RANK_MAX];
	uint64_t count;                 /* elements */
	uint64_t size;                  /* bytes of numbers, row-major */
	uint32_t parts;                 /* slices along the first dimension; 0: stored whole */
	uint8_t bytes[MODEL_VALUE_MAX]; /* of numbers, or of strings one after the other */
	ckptfmt_bytes strings[MODEL_STRINGS_MAX];
} model_tensor;

/* Tensors in the order of their names, no name twice. */
typedef struct model {
	model_tensor tensors[MODEL_TENSORS_MAX];
	uint32_t count;
} model;

/* Below 0, 0 or above 0, as the names of the tensors are in order. */
int model_order(const model_tensor *a, const model_tensor *b);
/* To be called once tensors were copied: their strings are where they were copied from. */
void model_moved(model *m);
void model_take(model *m, fuzz_bytes *in);
/* Alignment, chunk checksums, compression and so on, not the storage. */
void model_take_options(ckptfmt_write_options *options, fuzz_bytes *in);
/* Part `part` of `parts` as a source; the full size, start and length of each dimension go to `slice`, which has room
 * for 3 * MODEL_RANK_MAX. */
ckptfmt_source model_part(const model_tensor *tensor, uint32_t part, int64_t *slice);
/* All of the model, as one checkpoint. On failure the writer was abandoned. */
ckptfmt_status model_write(const model *m, const char *prefix, const ckptfmt_write_options *options,
	ckptfmt_error *err);

/* What reading gives is the model: MODEL_SAME; it is something else: MODEL_OTHER; there is no such checkpoint:
 * MODEL_NONE. MODEL_FAILED: *err says what failed. */
typedef enum model_result { MODEL_SAME, MODEL_OTHER, MODEL_NONE, MODEL_FAILED } model_result;
model_result model_compare(const model *m, const char *prefix, const ckptfmt_storage *storage, ckptfmt_error *err);
/* The number of problems that verifying finds; a failure to verify counts as one, and *err then says why. */
uint64_t model_problems(const char *prefix, const ckptfmt_storage *storage, ckptfmt_error *err);

#endif
