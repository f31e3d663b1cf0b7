/* SPDX-License-Identifier: Apache-2.0 */
/* Every variant of the byte planes against the definition, for every unit, size and alignment; and back. */
#include "test.h"

#include "compress/planes.h"

enum { COUNT_MAX = 200, ALIGNMENTS = 8, LARGE_COUNT = 20003, CANARY = 0xa5 };
enum { SIZE_MAX_TRIED = 8 * LARGE_COUNT + ALIGNMENTS };

static const uint32_t units[] = {1, 2, 4, 8};

/* Byte p of unit number i, rotated by the bits of the unit taken one by one. */
static uint8_t defined(const uint8_t *from, uint64_t i, uint32_t unit, bool rotate, uint32_t p)
{
	unsigned byte = 0;
	for (unsigned bit = 0; bit < 8; bit++) {
		unsigned to = 8 * p + bit, bits = 8 * unit, source = rotate ? (to + bits - 1) % bits : to;
		byte |= (unsigned)(from[i * unit + source / 8] >> source % 8 & 1) << bit;
	}
	return (uint8_t)byte;
}

/* Memory that ends at unmapped pages; smaller content is at its end. */
static uint8_t *from_end, *back_end, *plane_ends[CF_PLANES_MAX];

static void try_one(const cf_planes_variant *variant, uint64_t count, uint32_t unit, bool rotate, unsigned apart)
{
	uint64_t size = count * unit;
	uint8_t *from = from_end - size - apart, *back = back_end - size - apart, *planes[CF_PLANES_MAX];
	const uint8_t *read[CF_PLANES_MAX];
	bool good = true;
	for (uint64_t i = 0; i < size; i++)
		from[i] = (uint8_t)test_random();
	for (uint32_t p = 0; p < unit; p++)
		read[p] = planes[p] = plane_ends[p] - count;
	variant->split(from, count, unit, rotate, planes);
	for (uint32_t p = 0; p < unit; p++)
		for (uint64_t i = 0; i < count; i++)
			good = good && planes[p][i] == defined(from, i, unit, rotate, p);
	CHECK(good);
	memset(back, CANARY, size + apart);
	variant->join(back, count, unit, rotate, read);
	CHECK(memcmp(back, from, size) == 0);
	for (unsigned i = 0; i < apart; i++)
		CHECK_EQ(back[size + i], CANARY);
}

static void test_variants(void)
{
	const cf_planes_variant *variant;
	for (uint32_t row = 0; (variant = cf_planes_variant_at(row)) != NULL; row++) {
		if (!variant->usable())
			continue;
		for (size_t u = 0; u < CF_ARRAY_COUNT(units); u++)
			for (int rotate = 0; rotate < 2; rotate++) {
				for (uint64_t count = 0; count <= COUNT_MAX; count++)
					try_one(variant, count, units[u], rotate != 0, (unsigned)(count % ALIGNMENTS));
				for (unsigned apart = 0; apart < ALIGNMENTS; apart++)
					try_one(variant, 97, units[u], rotate != 0, apart);
				try_one(variant, LARGE_COUNT, units[u], rotate != 0, 3);
			}
	}
}

/* What the rotation is for: of bfloat16 numbers the sign leaves the byte of the exponent. */
static void test_sign(void)
{
	const uint8_t from[4] = {0x80, 0x3f, 0x80, 0xbf};       /* 1.0 and -1.0 */
	uint8_t low[2], high[2], *const planes[2] = {low, high};
	cf_planes_split(from, 2, 2, true, planes);
	CHECK(high[0] == 0x7f && high[1] == 0x7f && low[0] == 0x00 && low[1] == 0x01);
}

int main(void)
{
	test_seed();
	from_end = test_guarded(SIZE_MAX_TRIED) + SIZE_MAX_TRIED;
	back_end = test_guarded(SIZE_MAX_TRIED) + SIZE_MAX_TRIED;
	for (unsigned p = 0; p < CF_PLANES_MAX; p++)
		plane_ends[p] = test_guarded(LARGE_COUNT) + LARGE_COUNT;
	test_variants();
	test_sign();
	return test_finish("planes");
}
