/* SPDX-License-Identifier: Apache-2.0 */
/* Estimates from samples how well bytes compress. */
#ifndef CKPTFMT_COMPRESS_ENTROPY_H
#define CKPTFMT_COMPRESS_ENTROPY_H

#include "base/arith.h"

/* Returns 256 times the order-0 entropy in bits a byte, of samples spread evenly; 0 for no bytes. */
uint32_t cf_entropy(const uint8_t *bytes, uint64_t size);

/* Whether samples look like noise: in each plane all byte values are equally frequent, and 8-byte words hardly repeat.
 * False if in doubt. REQUIRES: unit is 1, 2, 4 or 8 and divides size. */
bool cf_is_incompressible(const uint8_t *raw, uint64_t size, uint32_t unit, bool rotate);
/* The same for one chunk of many: cheaper, since repetitions are searched for in 2 KiB only. */
bool cf_seems_incompressible(const uint8_t *raw, uint64_t size, uint32_t unit, bool rotate);

#endif
