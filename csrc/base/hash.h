/* SPDX-License-Identifier: Apache-2.0 */
/* A keyed hash of byte strings for in-memory tables; never stored. Each table has a random key, so that an attacker
 * cannot choose names that collide. */
#ifndef CKPTFMT_BASE_HASH_H
#define CKPTFMT_BASE_HASH_H

#include "base/bytes.h"

typedef struct cf_hash_key {
	uint64_t words[2];
} cf_hash_key;

/* The xor of the two halves of the 128-bit product. */
static inline uint64_t cf_hash_mix(uint64_t a, uint64_t b)
{
#if defined(__SIZEOF_INT128__)
	__extension__ typedef unsigned __int128 wide;
	wide product = (wide)a * b;
	return (uint64_t)product ^ (uint64_t)(product >> 64);
#else
	uint64_t a_low = (uint32_t)a, a_high = a >> 32, b_low = (uint32_t)b, b_high = b >> 32;
	uint64_t low = a_low * b_low, first = a_high * b_low, second = a_low * b_high;
	uint64_t middle = (low >> 32) + (uint32_t)first + (uint32_t)second;
	uint64_t high = a_high * b_high + (first >> 32) + (second >> 32) + (middle >> 32);
	return (middle << 32 | (uint32_t)low) ^ high;
#endif
}

static inline uint64_t cf_hash(const cf_hash_key *key, const uint8_t *bytes, uint64_t size)
{
	uint64_t hash = key->words[0] ^ size, word;
	uint64_t multiplier = key->words[1] | 1;
	uint8_t tail[8] = {0};
	for (; size >= 8; size -= 8, bytes += 8) {
		memcpy(&word, bytes, 8);
		hash = cf_hash_mix(hash ^ word, multiplier);
	}
	memcpy(tail, bytes, (size_t)size);
	memcpy(&word, tail, 8);
	return cf_hash_mix(cf_hash_mix(hash ^ word, multiplier), key->words[0] | 1);
}

#endif
