/* SPDX-License-Identifier: Apache-2.0 */
/* What samples of bytes tell of how far they can be compressed. */
#ifndef CKPTFMT_BASE_ENTROPY_H
#define CKPTFMT_BASE_ENTROPY_H

#include "base/arith.h"

/* 256 times the bits that a byte takes by itself, of samples spread evenly; 0 of no bytes. */
uint32_t cf_entropy(const uint8_t *bytes, uint64_t size);

/* True when samples show nothing to gain: in each plane all bytes occur alike, and hardly any eight come again. False
 * when in doubt. REQUIRES: unit is 1, 2, 4 or 8 and divides size. */
bool cf_is_incompressible(const uint8_t *raw, uint64_t size, uint32_t unit, bool rotate);
/* The same at a glance, for one chunk of many: what comes again is sought in 2 KiB alone. */
bool cf_seems_incompressible(const uint8_t *raw, uint64_t size, uint32_t unit, bool rotate);

#endif
