/* SPDX-License-Identifier: Apache-2.0 */
#ifndef CKPTFMT_COMPRESS_NOISE_H
#define CKPTFMT_COMPRESS_NOISE_H

#include "base/arith.h"

/* Whether samples of a chunk look like noise, which does not compress: in each plane all byte values are equally
 * frequent, and 8-byte words hardly repeat. False if in doubt. REQUIRES: unit is 1, 2, 4 or 8 and divides size. */
bool cf_is_noise(const uint8_t *raw, uint64_t size, uint32_t unit, bool rotate);

#endif
