/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The checksum's register is linear: if one byte of a block was changed by `bits`, stored and computed checksum differ
 * by what the register makes of `bits`, followed by a zero byte for each byte after it. Stepped backwards over these
 * zero bytes, the difference becomes `bits`, which is below 256. So a walk from the end that looks for such a value
 * finds all changes of one byte. The stored checksum is masked, which is not linear: it is compared in that form.
 */
#include "rescue/syndrome.h"

#include "table/footer.h"

void cf_steps_init(cf_steps *steps)
{
	for (uint32_t i = 0; i < 256; i++) {
		const uint8_t byte = (uint8_t)i;
		/* A register of 0 is the checksum UINT32_MAX. */
		const uint32_t after = ~ckptfmt_crc32c(UINT32_MAX, &byte, 1);
		steps->forward[i] = after;
		steps->back[after >> 24] = after << 8 ^ i;
	}
}

static bool is_bit(uint32_t bits)
{
	return (bits & (bits - 1)) == 0;
}

uint64_t cf_changes_find(const cf_steps *steps, const uint8_t *stored, uint64_t size, bool one_bit, cf_change *out)
{
	const uint32_t computed = cf_trailer_crc_computed(stored, size);
	uint32_t state = computed ^ cf_trailer_crc(stored, size);
	uint32_t masked = ckptfmt_crc32c_mask(computed) ^ cf_load_u32(stored + size + 1);
	uint64_t count = 0, at = size + 1;
	for (; (masked & 0xff) == 0; at++)
		masked >>= 8;
	if (masked <= 0xff && (!one_bit || is_bit(masked)))
		out[count++] = (cf_change){at, (uint8_t)masked};
	for (at = size + 1; at-- > 0;) {
		state = state << 8 ^ steps->back[state >> 24];
		if (CF_UNLIKELY(state <= 0xff) && (!one_bit || is_bit(state))) {
			if (count < CF_CHANGES_MAX)
				out[count] = (cf_change){at, (uint8_t)state};
			count++;
		}
	}
	return count;
}

bool cf_end_next(const cf_steps *steps, cf_end_search *search, uint64_t *size)
{
	while (search->size >= CF_TRAILER_SIZE && search->next <= search->size - CF_TRAILER_SIZE) {
		const uint8_t *at = search->bytes + search->next;
		search->state = search->state >> 8 ^ steps->forward[(search->state ^ *at) & 0xff];
		*size = search->next++;
		if (*at <= CF_COMPRESSION_SNAPPY && ckptfmt_crc32c_mask(~search->state) == cf_load_u32(at + 1))
			return true;
	}
	return false;
}
