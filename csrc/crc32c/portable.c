/* SPDX-License-Identifier: Apache-2.0 */
/* The checksum on any CPU: slicing by 16. */
#include "crc32c/crc32c.h"
#include "crc32c/tables.h"

static bool always(void)
{
	return true;
}

CF_CRC32C_INLINE uint32_t slice(uint32_t state, uint8_t *to, const uint8_t *from, size_t size, bool copy)
{
	size_t at = 0;
	for (; size - at >= CF_CRC32C_SLICES; at += CF_CRC32C_SLICES) {
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

const cf_crc32c_variant cf_crc32c_portable = {"portable", "portable", always, update_portable,
	cf_crc32c_shift_portable};
