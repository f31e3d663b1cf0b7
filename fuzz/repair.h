/* SPDX-License-Identifier: Apache-2.0 */
/* What the fuzz targets share: a check that aborts, and a mutator that knows tables and blocks and mends checksums, so
 * that the code behind the checksums is reached without compiling them out. The mutator has parsers of its own: nothing
 * of the library under test is used here but its checksum. */
#ifndef CKPTFMT_FUZZ_REPAIR_H
#define CKPTFMT_FUZZ_REPAIR_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* A failed property: says which, and aborts. */
#define FUZZ_CHECK(condition)                                                                        \
	do {                                                                                         \
		if (!(condition)) {                                                                  \
			fprintf(stderr, "%s:%d: property failed: %s\n", __FILE__, __LINE__, #condition); \
			abort();                                                                     \
		}                                                                                    \
	} while (0)

/* Every input ends with this many bytes of parameters, so that the rest begins as the file or block that it is. */
enum { FUZZ_PARAMETERS_SIZE = 2 };

/* The engine's plain mutation: libFuzzer's, or that of standalone.c. */
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t capacity);

/* What a target defines. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed);

/* Mends the magic number and the checksum of every block that the footer and the index lead to. */
void fuzz_repair_table(uint8_t *table, size_t size);
/* Mutate a table or a block, either as bytes or by setting one of its numbers to a telling value. A table is repaired
 * afterwards in 15 of 16 cases. */
size_t fuzz_mutate_table(uint8_t *data, size_t size, size_t capacity, unsigned int seed);
size_t fuzz_mutate_block(uint8_t *data, size_t size, size_t capacity, unsigned int seed);

#endif
