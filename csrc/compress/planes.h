/* SPDX-License-Identifier: Apache-2.0 */
/* Byte planes: for units of 1, 2, 4 or 8 bytes, plane p holds byte p of each unit, least significant first. With
 * `rotate` each unit, a little-endian number, is rotated left by one bit before the split and right after the join.
 * This moves the sign of a floating-point number out of the byte of its exponent. */
#ifndef CKPTFMT_COMPRESS_PLANES_H
#define CKPTFMT_COMPRESS_PLANES_H

#include "base/arith.h"

enum { CF_PLANES_MAX = 8 };

/* One implementation. Both functions work on whole units; planes[p] holds one byte a unit. */
typedef struct cf_planes_variant {
	const char *name;
	const char *isa;        /* what CKPTFMT_ISA calls it */
	bool (*usable)(void);
	void (*split)(const uint8_t *from, uint64_t count, uint32_t unit, bool rotate, uint8_t *const *planes);
	void (*join)(uint8_t *to, uint64_t count, uint32_t unit, bool rotate, const uint8_t *const *planes);
} cf_planes_variant;

/* By index, slowest first; NULL past the last. */
const cf_planes_variant *cf_planes_variant_at(uint32_t variant);

/* Use the fastest variant that this CPU supports and CKPTFMT_ISA allows. REQUIRES: unit is 1, 2, 4 or 8; no overlap. */
void cf_planes_split(const uint8_t *from, uint64_t count, uint32_t unit, bool rotate, uint8_t *const *planes);
void cf_planes_join(uint8_t *to, uint64_t count, uint32_t unit, bool rotate, const uint8_t *const *planes);

/* The tail after the vectors: units from index `at` on, one by one. */
void cf_planes_split_rest(const uint8_t *from, uint64_t at, uint64_t count, uint32_t unit, bool rotate,
	uint8_t *const *planes);
void cf_planes_join_rest(uint8_t *to, uint64_t at, uint64_t count, uint32_t unit, bool rotate,
	const uint8_t *const *planes);

extern const cf_planes_variant cf_planes_portable;
extern const cf_planes_variant cf_planes_avx2;

#endif
