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

/* A number in the input: a varint or, with `fixed`, a u32. */
typedef struct fuzz_field {
	size_t position;
	size_t size;
	int fixed;
} fuzz_field;

enum { FUZZ_FIELDS_MAX = 2048 };

typedef struct fuzz_fields {
	fuzz_field fields[FUZZ_FIELDS_MAX];
	size_t count;
} fuzz_fields;

/* The numbers of one mutation. */
void fuzz_seed(unsigned int seed);
uint64_t fuzz_below(uint64_t bound);

/* Bytes of the varint at `at`, 0 if there is none before `end`. */
size_t fuzz_varint(const uint8_t *bytes, size_t at, size_t end, uint64_t *out);
uint32_t fuzz_load_u32(const uint8_t *from);
void fuzz_store_u32(uint8_t *to, uint32_t value);
void fuzz_note(fuzz_fields *list, size_t position, size_t size, int fixed);
/* Sets one of the numbers to a telling value, or to that of another one. `size`: of all the bytes. */
void fuzz_mutate_field(uint8_t *bytes, size_t size, const fuzz_fields *list);
/* Notes all numbers of a table but those inside values, and visits the values [begin, end) of its data blocks. Both
 * `list` and `visit` may be NULL. */
void fuzz_walk_table(uint8_t *table, size_t size, fuzz_fields *list,
	void (*visit)(uint8_t *table, size_t begin, size_t end, void *context), void *context);

/* Mends the magic number and the checksum of every block that the footer and the index lead to. */
void fuzz_repair_table(uint8_t *table, size_t size);
/* Mutate a table or a block, either as bytes or by setting one of its numbers to a telling value. A table is repaired
 * afterwards in 15 of 16 cases. */
size_t fuzz_mutate_table(uint8_t *data, size_t size, size_t capacity, unsigned int seed);
size_t fuzz_mutate_block(uint8_t *data, size_t size, size_t capacity, unsigned int seed);

#endif
