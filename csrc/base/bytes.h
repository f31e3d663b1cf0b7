/* SPDX-License-Identifier: Apache-2.0 */
/* Little-endian loads and stores. No bounds checks: callers check. */
#ifndef CKPTFMT_BASE_BYTES_H
#define CKPTFMT_BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define CF_HOST_BIG_ENDIAN 1
#else
#define CF_HOST_BIG_ENDIAN 0
#endif

enum {
	CF_VARINT32_SIZE_MAX = 5,
	CF_VARINT64_SIZE_MAX = 10
};

static inline uint32_t cf_load_u32(const uint8_t *from)
{
	uint32_t value;
	memcpy(&value, from, sizeof value);
	return CF_HOST_BIG_ENDIAN ? __builtin_bswap32(value) : value;
}

static inline uint64_t cf_load_u64(const uint8_t *from)
{
	uint64_t value;
	memcpy(&value, from, sizeof value);
	return CF_HOST_BIG_ENDIAN ? __builtin_bswap64(value) : value;
}

static inline void cf_store_u32(uint8_t *to, uint32_t value)
{
	value = CF_HOST_BIG_ENDIAN ? __builtin_bswap32(value) : value;
	memcpy(to, &value, sizeof value);
}

static inline void cf_store_u64(uint8_t *to, uint64_t value)
{
	value = CF_HOST_BIG_ENDIAN ? __builtin_bswap64(value) : value;
	memcpy(to, &value, sizeof value);
}

/* memcpy that is inlined for up to 32 bytes: the last load overlaps the first ones. REQUIRES: no overlap. */
static inline void cf_copy_few(uint8_t *to, const uint8_t *from, uint64_t size)
{
	if (size > 32) {
		memcpy(to, from, (size_t)size);
	} else if (size >= 16) {
		memcpy(to, from, 16);
		memcpy(to + size - 16, from + size - 16, 16);
	} else if (size >= 8) {
		memcpy(to, from, 8);
		memcpy(to + size - 8, from + size - 8, 8);
	} else if (size >= 4) {
		memcpy(to, from, 4);
		memcpy(to + size - 4, from + size - 4, 4);
	} else if (size != 0) {
		to[0] = from[0];
		to[size / 2] = from[size / 2];
		to[size - 1] = from[size - 1];
	}
}

/* Writes the shortest varint and returns its size. REQUIRES: room for CF_VARINT64_SIZE_MAX. */
static inline size_t cf_store_varint(uint8_t *to, uint64_t value)
{
	size_t size = 0;
	while (value >= 0x80) {
		to[size++] = (uint8_t)(value | 0x80);
		value >>= 7;
	}
	to[size++] = (uint8_t)value;
	return size;
}

static inline size_t cf_varint_size(uint64_t value)
{
	size_t size = 1;
	while (value >= 0x80) {
		value >>= 7;
		size++;
	}
	return size;
}

#endif
