/* SPDX-License-Identifier: Apache-2.0 */
/* Byte planes on any CPU: units of 8 bytes eight at a time, an 8x8 byte matrix transposed in registers; others one by
 * one. */
#include "compress/planes.h"

#include "base/bytes.h"

/* ---- one unit at a time ---- */

static inline uint64_t load_unit(const uint8_t *from, uint32_t unit)
{
	uint64_t value = 0;
	for (uint32_t i = 0; i < unit; i++)
		value |= (uint64_t)from[i] << 8 * i;
	return value;
}

static inline uint64_t rotate_left(uint64_t value, uint32_t bits)
{
	return value << 1 | value >> (bits - 1);
}

static inline uint64_t rotate_right(uint64_t value, uint32_t bits)
{
	return value >> 1 | (value & 1) << (bits - 1);
}

static inline void split_units(const uint8_t *from, uint64_t at, uint64_t count, uint32_t unit, bool rotate,
	uint8_t *const *planes)
{
	for (; at < count; at++) {
		uint64_t value = load_unit(from + at * unit, unit);
		if (rotate)
			value = rotate_left(value, 8 * unit);
		for (uint32_t p = 0; p < unit; p++)
			planes[p][at] = (uint8_t)(value >> 8 * p);
	}
}

static inline void join_units(uint8_t *to, uint64_t at, uint64_t count, uint32_t unit, bool rotate,
	const uint8_t *const *planes)
{
	for (; at < count; at++) {
		uint64_t value = 0;
		for (uint32_t p = 0; p < unit; p++)
			value |= (uint64_t)planes[p][at] << 8 * p;
		if (rotate)
			value = rotate_right(value, 8 * unit);
		for (uint32_t p = 0; p < unit; p++)
			to[at * unit + p] = (uint8_t)(value >> 8 * p);
	}
}

void cf_planes_split_rest(const uint8_t *from, uint64_t at, uint64_t count, uint32_t unit, bool rotate,
	uint8_t *const *planes)
{
	split_units(from, at, count, unit, rotate, planes);
}

void cf_planes_join_rest(uint8_t *to, uint64_t at, uint64_t count, uint32_t unit, bool rotate,
	const uint8_t *const *planes)
{
	join_units(to, at, count, unit, rotate, planes);
}

/* ---- eight units of 8 bytes ---- */

/* Transposes: byte c of row r becomes byte r of row c. */
static inline void transpose(uint64_t rows[8])
{
	static const uint64_t masks[3] = {
		UINT64_C(0x00000000ffffffff), UINT64_C(0x0000ffff0000ffff), UINT64_C(0x00ff00ff00ff00ff)};
	for (unsigned step = 0; step < 3; step++) {
		unsigned apart = 4u >> step, bits = 8 * apart;
		for (unsigned r = 0; r < 8; r++) {
			uint64_t swapped;
			if (r & apart)
				continue;
			swapped = (rows[r] >> bits ^ rows[r + apart]) & masks[step];
			rows[r] ^= swapped << bits;
			rows[r + apart] ^= swapped;
		}
	}
}

static uint64_t split_8(const uint8_t *from, uint64_t count, bool rotate, uint8_t *const *planes)
{
	uint64_t at = 0, rows[8];
	for (; count - at >= 8; at += 8) {
		for (unsigned r = 0; r < 8; r++) {
			rows[r] = cf_load_u64(from + (at + r) * 8);
			if (rotate)
				rows[r] = rotate_left(rows[r], 64);
		}
		transpose(rows);
		for (unsigned p = 0; p < 8; p++)
			cf_store_u64(planes[p] + at, rows[p]);
	}
	return at;
}

static uint64_t join_8(uint8_t *to, uint64_t count, bool rotate, const uint8_t *const *planes)
{
	uint64_t at = 0, rows[8];
	for (; count - at >= 8; at += 8) {
		for (unsigned p = 0; p < 8; p++)
			rows[p] = cf_load_u64(planes[p] + at);
		transpose(rows);
		for (unsigned r = 0; r < 8; r++)
			cf_store_u64(to + (at + r) * 8, rotate ? rotate_right(rows[r], 64) : rows[r]);
	}
	return at;
}

/* ---- portable ---- */

static bool always(void)
{
	return true;
}

static void split_portable(const uint8_t *from, uint64_t count, uint32_t unit, bool rotate, uint8_t *const *planes)
{
	uint64_t done = unit == 8 ? split_8(from, count, rotate, planes) : 0;
	/* The constants let the compiler unroll. */
	switch (unit) {
	case 1: split_units(from, 0, count, 1, rotate, planes); break;
	case 2: split_units(from, 0, count, 2, rotate, planes); break;
	case 4: split_units(from, 0, count, 4, rotate, planes); break;
	default: split_units(from, done, count, 8, rotate, planes); break;
	}
}

static void join_portable(uint8_t *to, uint64_t count, uint32_t unit, bool rotate, const uint8_t *const *planes)
{
	uint64_t done = unit == 8 ? join_8(to, count, rotate, planes) : 0;
	switch (unit) {
	case 1: join_units(to, 0, count, 1, rotate, planes); break;
	case 2: join_units(to, 0, count, 2, rotate, planes); break;
	case 4: join_units(to, 0, count, 4, rotate, planes); break;
	default: join_units(to, done, count, 8, rotate, planes); break;
	}
}

const cf_planes_variant cf_planes_portable = {"portable", "portable", always, split_portable, join_portable};
