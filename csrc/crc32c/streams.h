/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop over a CPU's CRC instruction. The instruction takes 8 bytes and has a latency of three cycles and a
 * throughput of one a cycle. So three streams run in parallel over the thirds of a block and are joined by tables at
 * its end. Block sizes decrease in steps so that short inputs gain as well.
 *
 * Not a standalone header: the file that includes it defines
 *   STREAMS_TARGET            the function attribute that allows the instruction
 *   STREAMS_U64(state, word)  state after 8 bytes
 *   STREAMS_U8(state, byte)   state after one
 */
#include "crc32c/crc32c.h"
#include "crc32c/tables.h"

/* One stream: fastest below about 100 bytes, and for the tail of larger inputs. */
CF_CRC32C_INLINE STREAMS_TARGET uint32_t one_stream(uint32_t state, uint8_t *to, const uint8_t *from, size_t at,
	size_t end, bool copy)
{
	for (; end - at >= 8; at += 8)
		state = STREAMS_U64(state, cf_crc32c_take_u64(to, from, at, copy));
	for (; at < end; at++)
		state = STREAMS_U8(state, cf_crc32c_take_u8(to, from, at, copy));
	return state;
}

static uint32_t skip(uint32_t state, const uint32_t table[8][16])
{
	uint32_t result = 0;
	CF_CRC32C_UNROLL
	for (unsigned row = 0; row < 8; row++)
		result ^= table[row][state >> 4 * row & 15];
	return result;
}

CF_CRC32C_INLINE STREAMS_TARGET uint32_t three_streams(uint32_t state, uint8_t *to, const uint8_t *from, size_t size,
	bool copy)
{
	size_t at = 0;
	for (unsigned level = 0; level < CF_CRC32C_SKIP_COUNT; level++) {
		size_t part = cf_crc32c_skip_sizes[level];
		while (size - at >= 3 * part) {
			uint32_t second = 0;
			uint32_t third = 0;
			for (size_t end = at + part; at < end; at += 8) {
				state = STREAMS_U64(state, cf_crc32c_take_u64(to, from, at, copy));
				second = STREAMS_U64(second, cf_crc32c_take_u64(to, from, at + part, copy));
				third = STREAMS_U64(third, cf_crc32c_take_u64(to, from, at + 2 * part, copy));
			}
			at += 2 * part;
			state = skip(skip(state, cf_crc32c_skip[level]) ^ second, cf_crc32c_skip[level]) ^ third;
		}
	}
	return one_stream(state, to, from, at, size, copy);
}

static STREAMS_TARGET uint32_t update_streams(uint32_t state, uint8_t *destination, const uint8_t *source, size_t size)
{
	if (destination == NULL)
		return three_streams(state, NULL, source, size, false);
	return three_streams(state, destination, source, size, true);
}
