/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C: the public functions, the choice of a variant, and the portable one.
 *
 *   crc32c.c          portable (slicing by 16), combine, mask, dispatch
 *   crc32c_streams.h  three streams of the CPU's CRC instruction: sse42, armv8
 *   crc32c_fold.h     carry-less folding of vectors beside such streams: pclmul, vpclmul256, vpclmul512
 *   crc32c_x86.c      the x86-64 variants     crc32c_arm.c   the AArch64 ones
 *   crc32c_tables.h   all constants, made by tools/gen_crc32c_tables.py, which explains the mathematics
 *
 * Variants are compiled with function attributes, so that one library runs everywhere and picks at run time. The choice
 * is made by whoever comes first and kept in one atomic; threads that race come to the same answer.
 */
#include "crc32c/crc32c.h"
#include "crc32c/tables.h"
#include "ckptfmt_unstable.h"

#include <stdatomic.h>
#include <stdlib.h>

enum {
	VARIANT_COUNT_MAX = 1 + CF_CRC32C_X86_COUNT + CF_CRC32C_ARM_COUNT,
	SOFTWARE_BLOCK = CF_CRC32C_SLICES
};

/* ---- portable -------------------------------------------------------------------------------------------- */

static bool always(void)
{
	return true;
}

CF_CRC32C_INLINE uint32_t slice(uint32_t state, uint8_t *to, const uint8_t *from, size_t size, bool copy)
{
	size_t at = 0;
	for (; size - at >= SOFTWARE_BLOCK; at += SOFTWARE_BLOCK) {
		uint64_t low = cf_crc32c_take_u64(to, from, at, copy) ^ state;
		uint64_t high = cf_crc32c_take_u64(to, from, at + 8, copy);
		state = 0;
		CF_CRC32C_UNROLL
		for (unsigned i = 0; i < 8; i++) {
			state ^= cf_crc32c_byte[15 - i][low >> 8 * i & 0xff];
			state ^= cf_crc32c_byte[7 - i][high >> 8 * i & 0xff];
		}
	}
	for (; at < size; at++)
		state = state >> 8 ^ cf_crc32c_byte[0][(state ^ cf_crc32c_take_u8(to, from, at, copy)) & 0xff];
	return state;
}

static uint32_t update_portable(uint32_t state, uint8_t *destination, const uint8_t *source, size_t size)
{
	if (destination == NULL)
		return slice(state, NULL, source, size, false);
	return slice(state, destination, source, size, true);
}

/* The product of two registers modulo the polynomial. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;
	for (uint32_t bit = UINT32_C(1) << 31; bit != 0; bit >>= 1) {
		product ^= a & (b & bit ? UINT32_MAX : 0);
		a = a >> 1 ^ (a & 1 ? UINT32_C(0x82f63b78) : 0);
	}
	return product;
}

uint32_t cf_crc32c_shift_portable(uint32_t state, uint64_t size)
{
	uint32_t rest = (uint32_t)(size % CF_CRC32C_ORDER);
	for (unsigned k = 0; rest != 0; k++, rest >>= 1) {
		if (rest & 1)
			state = multiply(state, cf_crc32c_power[k]);
	}
	return state;
}

/* ---- dispatch -------------------------------------------------------------------------------------------- */

static const cf_crc32c_variant portable = {"portable", "portable", always, update_portable, cf_crc32c_shift_portable};

static const cf_crc32c_variant *variant_at(uint32_t variant)
{
	if (variant == 0)
		return &portable;
#if defined(__x86_64__)
	if (variant <= CF_CRC32C_X86_COUNT)
		return &cf_crc32c_x86[variant - 1];
#elif defined(__aarch64__)
	if (variant <= CF_CRC32C_ARM_COUNT)
		return &cf_crc32c_arm[variant - 1];
#endif
	return NULL;
}

/* The best usable variant that CKPTFMT_ISA allows. */
static uint32_t choose(void)
{
	const char *isa = getenv("CKPTFMT_ISA");
	uint32_t highest = VARIANT_COUNT_MAX;
	const cf_crc32c_variant *candidate;
	if (isa != NULL) {
		for (uint32_t row = 0; (candidate = variant_at(row)) != NULL; row++) {
			if (strcmp(candidate->isa, isa) == 0)
				highest = row;
		}
	}
	uint32_t best = 0;
	for (uint32_t row = 0; row <= highest && (candidate = variant_at(row)) != NULL; row++) {
		if (candidate->usable())
			best = row;
	}
	return best;
}

/* One more than the variant chosen, 0 before. Relaxed: the tables it leads to are constant. */
static atomic_uint chosen;

uint32_t ckptfmt_crc32c_variant(void)
{
	uint32_t known = atomic_load_explicit(&chosen, memory_order_relaxed);
	if (CF_UNLIKELY(known == 0)) {
		known = choose() + 1;
		atomic_store_explicit(&chosen, known, memory_order_relaxed);
	}
	return known - 1;
}

const char *ckptfmt_crc32c_variant_name(uint32_t variant)
{
	const cf_crc32c_variant *found = variant_at(variant);
	return found != NULL ? found->name : NULL;
}

int32_t ckptfmt_crc32c_variant_usable(uint32_t variant)
{
	const cf_crc32c_variant *found = variant_at(variant);
	return found != NULL && found->usable();
}

/* ---- public ---------------------------------------------------------------------------------------------- */

uint32_t ckptfmt_crc32c_by(uint32_t variant, uint32_t crc, uint8_t *destination, const uint8_t *source, uint64_t size)
{
	return ~variant_at(variant)->update(~crc, destination, source, (size_t)size);
}

uint32_t ckptfmt_crc32c(uint32_t crc, const uint8_t *data, uint64_t size)
{
	return ckptfmt_crc32c_by(ckptfmt_crc32c_variant(), crc, NULL, data, size);
}

uint32_t ckptfmt_crc32c_copy(uint32_t crc, uint8_t *destination, const uint8_t *source, uint64_t size)
{
	return ckptfmt_crc32c_by(ckptfmt_crc32c_variant(), crc, destination, source, size);
}

/* The complements at the beginning and the end cancel out: the checksum of B begins with the state that is left over
 * when A's is taken away. */
uint32_t ckptfmt_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
	return variant_at(ckptfmt_crc32c_variant())->shift(crc_a, size_b) ^ crc_b;
}

/* A checksum over bytes that hold checksums is weak, so a stored one is rotated and moved. */
static const uint32_t mask_delta = UINT32_C(0xa282ead8);

uint32_t ckptfmt_crc32c_mask(uint32_t crc)
{
	return (crc >> 15 | crc << 17) + mask_delta;
}

uint32_t ckptfmt_crc32c_unmask(uint32_t masked)
{
	uint32_t rotated = masked - mask_delta;
	return rotated >> 17 | rotated << 15;
}
