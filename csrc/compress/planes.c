/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a variant: planes_portable.c or planes_x86.c (AVX2). Units of 8 bytes use the portable code on every
 * CPU: it is faster than the coders that follow it. */
#include "compress/planes.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

const cf_planes_variant *cf_planes_variant_at(uint32_t variant)
{
	if (variant == 0)
		return &cf_planes_portable;
#if defined(__x86_64__)
	if (variant == 1)
		return &cf_planes_avx2;
#endif
	return NULL;
}

/* CKPTFMT_ISA names checksum variants; those below AVX2 select the portable planes. */
static uint32_t choose(void)
{
	const char *isa = getenv("CKPTFMT_ISA");
	bool lesser = isa != NULL && (strcmp(isa, "portable") == 0 || strcmp(isa, "sse42") == 0);
	const cf_planes_variant *best = cf_planes_variant_at(1);
	return best != NULL && !lesser && best->usable() ? 1 : 0;
}

/* As in crc32c.c. */
static atomic_uint chosen;

static const cf_planes_variant *variant(void)
{
	uint32_t known = atomic_load_explicit(&chosen, memory_order_relaxed);
	if (CF_UNLIKELY(known == 0)) {
		known = choose() + 1;
		atomic_store_explicit(&chosen, known, memory_order_relaxed);
	}
	return cf_planes_variant_at(known - 1);
}

void cf_planes_split(const uint8_t *from, uint64_t count, uint32_t unit, bool rotate, uint8_t *const *planes)
{
	variant()->split(from, count, unit, rotate, planes);
}

void cf_planes_join(uint8_t *to, uint64_t count, uint32_t unit, bool rotate, const uint8_t *const *planes)
{
	variant()->join(to, count, unit, rotate, planes);
}
