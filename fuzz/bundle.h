/* SPDX-License-Identifier: Apache-2.0 */
/* A bundle as one input: its index and its data files one after the other, each with its size (two bytes, lowest first)
 * before it, and two bytes of parameters behind them. */
#ifndef CKPTFMT_FUZZ_BUNDLE_H
#define CKPTFMT_FUZZ_BUNDLE_H

#include "repair.h"

enum { FUZZ_PIECES_MAX = 4 };

typedef struct fuzz_piece {
	uint8_t *bytes;
	size_t size;
} fuzz_piece;

typedef struct fuzz_bundle {
	fuzz_piece pieces[FUZZ_PIECES_MAX];     /* the index first */
	size_t count;
	uint8_t parameters[FUZZ_PARAMETERS_SIZE];
} fuzz_bundle;

/* The pieces are views of the input; a size beyond its end is cut. */
void fuzz_split_bundle(uint8_t *data, size_t size, fuzz_bundle *out);
/* Mutates one piece as bytes, or one of the numbers of the index, those of entries included. In 15 of 16 cases the
 * checksums of values, chunks and blocks are mended afterwards. */
size_t fuzz_mutate_bundle(uint8_t *data, size_t size, size_t capacity, unsigned int seed);

#endif
