/* SPDX-License-Identifier: Apache-2.0 */
/* Shared by the variants of CRC-32C: their table, and loads that can also copy. The public functions are in ckptfmt.h.
 * A `state` is the CRC register: the bitwise complement of the checksum so far. */
#ifndef CKPTFMT_CRC32C_CRC32C_H
#define CKPTFMT_CRC32C_CRC32C_H

#include "base/arith.h"
#include "base/bytes.h"

/* One way to compute the checksum. */
typedef struct cf_crc32c_variant {
	const char *name;
	const char *isa;        /* what CKPTFMT_ISA calls it */
	bool (*usable)(void);   /* this CPU and this system can run it */
	/* Returns the state after `size` more bytes. Also copies them to `destination` unless it is NULL. The
	 * checksum is of the bytes written, even if another thread changes the source meanwhile. */
	uint32_t (*update)(uint32_t state, uint8_t *destination, const uint8_t *source, size_t size);
	/* Returns state * x^(8 * size): the effect of `size` zero bytes on a difference of states. */
	uint32_t (*shift)(uint32_t state, uint64_t size);
} cf_crc32c_variant;

extern const cf_crc32c_variant cf_crc32c_portable;
/* In ascending order of speed. */
enum {
	CF_CRC32C_X86_COUNT = 2,
	CF_CRC32C_ARM_COUNT = 1
};
extern const cf_crc32c_variant cf_crc32c_x86[CF_CRC32C_X86_COUNT];
extern const cf_crc32c_variant cf_crc32c_arm[CF_CRC32C_ARM_COUNT];

/* The shift of the variants without a carry-less multiply. */
uint32_t cf_crc32c_shift_portable(uint32_t state, uint64_t size);

/* For functions that every caller calls with constant flags (`copy`), so that each gets a specialised loop. */
#ifndef CF_CRC32C_INLINE
#define CF_CRC32C_INLINE static inline __attribute__((always_inline))
#endif

/* Before a short loop: at -O2 GCC unrolls it only when told to. */
#if defined(__clang__)
#define CF_CRC32C_UNROLL
#else
#define CF_CRC32C_UNROLL _Pragma("GCC unroll 8")
#endif

/* Makes the compiler store the register that is checksummed instead of loading the bytes twice. */
#define CF_CRC32C_PIN(word) __asm__("" : "+r"(word))

/* Loads 8 bytes at `at`, and copies them if `copy`; otherwise `to` may be NULL. */
CF_CRC32C_INLINE uint64_t cf_crc32c_take_u64(uint8_t *to, const uint8_t *from, size_t at, bool copy)
{
	uint64_t word = cf_load_u64(from + at);
	if (copy) {
		CF_CRC32C_PIN(word);
		cf_store_u64(to + at, word);
	}
	return word;
}

CF_CRC32C_INLINE uint8_t cf_crc32c_take_u8(uint8_t *to, const uint8_t *from, size_t at, bool copy)
{
	uint8_t byte = from[at];
	if (copy) {
		CF_CRC32C_PIN(byte);
		to[at] = byte;
	}
	return byte;
}

#endif
