/* SPDX-License-Identifier: Apache-2.0 */
/* A codec for tests: its zstd frames are one block that repeats a byte. What is not one byte repeated does not fit. */
#ifndef CKPTFMT_TESTS_RUN_CODEC_H
#define CKPTFMT_TESTS_RUN_CODEC_H

#include "ckptfmt_unstable.h"

typedef struct run_codec {
	ckptfmt_codec codec;        /* to give away */
	uint64_t encoded, decoded;  /* items so far */
	ckptfmt_status fails;       /* what every call returns */
	uint64_t too_much;          /* added to the sizes that it reports */
	uint8_t *changes;           /* memory that each encoding sets to another byte, as another thread may */
	uint64_t changes_size;
} run_codec;

/* At its place for good: the codec points to it. */
void run_codec_init(run_codec *codec);

#endif
