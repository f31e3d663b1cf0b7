/* SPDX-License-Identifier: Apache-2.0 */
/* Gathering: random strided arrays in random pieces against a copy element by element. */
#include "test.h"

#include "slices/gather.h"

enum { RANK = CKPTFMT_RANK_MAX, AXES_MAX = 6, BYTES_MAX = 1 << 17 };

static uint8_t expected[BYTES_MAX];

/* The row-major form by the definition: element by element, byte by byte. */
static uint64_t gather_plainly(const uint8_t *data, int32_t rank, const int64_t *dims, const int64_t *strides,
	uint32_t itemsize, uint32_t swap_size, uint8_t mask)
{
	int64_t cell[RANK] = {0};
	uint64_t used = 0;
	for (int32_t d = 0; d < rank; d++)
		if (dims[d] == 0)
			return 0;
	for (;;) {
		int64_t at = 0;
		int32_t d = rank - 1;
		for (int32_t e = 0; e < rank; e++)
			at += cell[e] * strides[e];
		for (uint32_t b = 0; b < itemsize; b++) {
			uint32_t unit = b / swap_size * swap_size;
			uint32_t from = unit + swap_size - 1 - b % swap_size;
			expected[used++] = data[at + (int64_t)from] & mask;
		}
		while (d >= 0 && ++cell[d] == dims[d])
			cell[d--] = 0;
		if (d < 0)
			return used;
	}
}

/* Takes everything in pieces of at most `piece_max` elements, to the end of readable memory each time. */
static void check_gather(const uint8_t *data, int32_t rank, const int64_t *dims, const int64_t *strides,
	const int64_t *given_strides, uint32_t itemsize, uint32_t swap_size, uint8_t mask, uint64_t piece_max)
{
	static uint8_t *room;
	cf_gather gather;
	ckptfmt_error err;
	const uint8_t *whole = NULL;
	uint64_t size = gather_plainly(data, rank, dims, strides, itemsize, swap_size, mask);
	uint64_t whole_size = 99, done = 0;
	if (room == NULL)
		room = test_guarded(BYTES_MAX);
	memset(&gather, 0xee, sizeof gather);
	CHECK_OK(cf_gather_init(&gather, data, rank, dims, given_strides, itemsize, swap_size, mask, &err), err);
	CHECK_EQ(cf_gather_size(&gather), size);
	if (cf_gather_contiguous(&gather, &whole, &whole_size)) {
		CHECK_EQ(whole_size, size);
		CHECK(swap_size == 1 && mask == CF_MASK_NONE);
		CHECK(size == 0 || (whole == data && memcmp(whole, expected, size) == 0));
	}
	while (cf_gather_left(&gather) != 0) {
		uint64_t elements = cf_gather_left(&gather) / itemsize;
		uint64_t piece = test_random_below(piece_max < elements ? piece_max + 1 : elements + 1) * itemsize;
		uint8_t *to = room + BYTES_MAX - piece - 1;
		to[0] = 0x5a;
		cf_gather_take(&gather, to + 1, piece);
		CHECK(to[0] == 0x5a);
		CHECK(memcmp(to + 1, expected + done, piece) == 0);
		done += piece;
		CHECK_EQ(cf_gather_left(&gather), size - done);
	}
	CHECK_EQ(done, size);
	cf_gather_take(&gather, room, 0);
}

typedef struct sizes {
	uint32_t item;
	uint32_t swap;
} sizes;

static const sizes all_sizes[] = {{1, 1}, {2, 1}, {2, 2}, {4, 1}, {4, 4}, {4, 2}, {8, 1}, {8, 8}, {8, 4}, {16, 1},
	{16, 8}, {16, 4}, {3, 1}, {6, 2}, {12, 4}, {24, 8}, {32, 1}};

/* Row-major over a random order of the axes, each with a random step, some run backwards, some standing still. */
static uint64_t random_strides(int32_t rank, const int64_t *dims, uint32_t itemsize, int64_t *strides, int64_t *first)
{
	int32_t order[AXES_MAX];
	int64_t next = (int64_t)itemsize;
	bool plain = test_random_below(3) == 0;
	*first = 0;
	for (int32_t i = 0; i < rank; i++) {
		int32_t other = (int32_t)test_random_below((uint64_t)i + 1);
		order[i] = order[other];
		order[other] = i;
	}
	for (int32_t i = 0; i < rank; i++) {
		int32_t d = order[i];
		int64_t steps = dims[d] == 0 ? 1 : dims[d];
		uint64_t kind = plain ? 9 : test_random_below(10);
		strides[d] = next;
		if (kind == 0) {
			strides[d] = 0;
			continue;
		}
		if (kind == 1)
			strides[d] = next * 2;
		if (kind == 2)
			strides[d] = next + 1;
		next = strides[d] * steps;
		if (kind <= 4) {
			strides[d] = -strides[d];
			*first -= strides[d] * (steps - 1);
		}
	}
	for (int32_t d = 0; d < rank; d++)
		if (dims[d] == 1 && test_random_below(2))
			strides[d] = (int64_t)test_random();
	return (uint64_t)next;
}

static void test_random_arrays(void)
{
	uint8_t *memory = test_guarded(BYTES_MAX);
	for (size_t i = 0; i < BYTES_MAX; i++)
		memory[i] = (uint8_t)test_random();
	for (int round = 0; round < 20000; round++) {
		static const uint8_t masks[] = {CF_MASK_NONE, CF_MASK_NONE, 0x0f, 0x03};
		int32_t rank = (int32_t)test_random_below(AXES_MAX + 1);
		sizes size = all_sizes[test_random_below(CF_ARRAY_COUNT(all_sizes))];
		int64_t dims[AXES_MAX], strides[AXES_MAX], first, used = 0;
		uint8_t mask = masks[test_random_below(CF_ARRAY_COUNT(masks))];
		uint64_t span;
		do {
			int64_t cells = size.item;
			for (int32_t d = 0; d < rank; d++) {
				dims[d] = (int64_t)test_random_below(rank > 3 ? 4 : rank == 2 ? 90 : 12) +
					(test_random_below(40) != 0);
				cells *= dims[d];
			}
			span = random_strides(rank, dims, size.item, strides, &first);
			used = cells;
		} while (span > BYTES_MAX || used > BYTES_MAX - 1);
		/* The array ends where memory ends. */
		check_gather(memory + BYTES_MAX - span + first, rank, dims, strides, strides, size.item, size.swap,
			mask, test_random_below(2) ? UINT64_MAX - 1 : 1 + test_random_below(300));
	}
}

static void test_contiguous(void)
{
	uint8_t data[240];
	int64_t dims[4] = {5, 1, 3, 4}, strides[4] = {48, 77, 16, 4};
	cf_gather gather;
	const uint8_t *whole;
	uint64_t size;
	ckptfmt_error err;
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)i;
	for (int given = 0; given < 2; given++) {
		const int64_t *s = given ? strides : NULL;
		CHECK_OK(cf_gather_init(&gather, data, 4, dims, s, 4, 1, CF_MASK_NONE, &err), err);
		CHECK(cf_gather_contiguous(&gather, &whole, &size) && whole == data && size == 240);
		CHECK_OK(cf_gather_init(&gather, data, 4, dims, s, 4, 4, CF_MASK_NONE, &err), err);
		CHECK(!cf_gather_contiguous(&gather, &whole, &size));
		CHECK_OK(cf_gather_init(&gather, data, 4, dims, s, 4, 1, 0x0f, &err), err);
		CHECK(!cf_gather_contiguous(&gather, &whole, &size));
		check_gather(data, 4, dims, strides, s, 4, 4, CF_MASK_NONE, 7);
	}
	strides[0] = 49;
	CHECK_OK(cf_gather_init(&gather, data, 4, dims, strides, 4, 1, CF_MASK_NONE, &err), err);
	CHECK(!cf_gather_contiguous(&gather, &whole, &size));
	/* Nothing at all, without data. */
	dims[2] = 0;
	CHECK_OK(cf_gather_init(&gather, NULL, 4, dims, strides, 4, 1, CF_MASK_NONE, &err), err);
	CHECK(cf_gather_contiguous(&gather, &whole, &size) && size == 0);
	CHECK_EQ(cf_gather_left(&gather), 0);
	/* A scalar. */
	CHECK_OK(cf_gather_init(&gather, data, 0, NULL, NULL, 8, 1, CF_MASK_NONE, &err), err);
	CHECK(cf_gather_contiguous(&gather, &whole, &size) && whole == data && size == 8);
}

/* Transposed matrices larger than a tile and than a pass, in every size that has its own loop. */
static void test_transposes(void)
{
	enum { ROWS = 150, COLUMNS = 67 };
	static const uint32_t items[] = {1, 2, 4, 8, 12};
	uint8_t *memory = test_guarded(BYTES_MAX);
	for (size_t i = 0; i < BYTES_MAX; i++)
		memory[i] = (uint8_t)(i * 31 + i / 256);
	for (size_t i = 0; i < CF_ARRAY_COUNT(items); i++) {
		int64_t item = (int64_t)items[i];
		int64_t dims[2] = {ROWS, COLUMNS}, strides[2] = {item, item * ROWS};
		const uint8_t *data = memory + BYTES_MAX - item * ROWS * COLUMNS;
		for (int turn = 0; turn < 20; turn++)
			check_gather(data, 2, dims, strides, strides, items[i], turn % 2 && item != 12 ? items[i] : 1,
				CF_MASK_NONE, turn < 4 ? UINT64_MAX - 1 : 1 + test_random_below(COLUMNS * 70));
		/* Backwards both ways. */
		strides[0] = -strides[0];
		strides[1] = -strides[1];
		check_gather(memory + BYTES_MAX - item, 2, dims, strides, strides, items[i], 1, CF_MASK_NONE, 4000);
	}
}

/* Swapping goes over the data in passes; where they end makes no difference. */
static void test_large_swap(void)
{
	enum { COUNT = 300000 };
	uint8_t *from = test_guarded(COUNT * 4), *to = test_guarded(COUNT * 4);
	int64_t dims[1] = {COUNT};
	cf_gather gather;
	ckptfmt_error err;
	bool same = true;
	for (size_t i = 0; i < COUNT * 4; i++)
		from[i] = (uint8_t)(i * 7 + i / 1000);
	CHECK_OK(cf_gather_init(&gather, from, 1, dims, NULL, 4, 4, CF_MASK_NONE, &err), err);
	cf_gather_take(&gather, to, COUNT * 4);
	for (size_t i = 0; i < COUNT * 4; i++)
		same = same && to[i] == from[i / 4 * 4 + 3 - i % 4];
	CHECK(same);
	cf_swap_bytes(to, COUNT * 4, 4);
	CHECK(memcmp(from, to, COUNT * 4) == 0);
	/* Rows longer than a pass, of an odd number of elements, every other one. */
	{
		int64_t dims2[2] = {3, 49999}, strides2[2] = {49999 * 8, 8};
		bool right = true;
		CHECK_OK(cf_gather_init(&gather, from, 2, dims2, strides2, 4, 4, CF_MASK_NONE, &err), err);
		cf_gather_take(&gather, to, cf_gather_size(&gather));
		for (size_t i = 0; i < 3 * 49999 * 4; i++)
			right = right && to[i] == from[i / 4 * 8 + 3 - i % 4];
		CHECK(right);
		/* And their transpose, in tiles. */
		CHECK_OK(cf_gather_init(&gather, from, 2, (int64_t[]){49999, 3}, (int64_t[]){4, 49999 * 4}, 4, 4,
			CF_MASK_NONE, &err), err);
		cf_gather_take(&gather, to, cf_gather_size(&gather));
		for (size_t i = 0; i < 3 * 49999 * 4; i++)
			right = right && to[i] == from[i / 4 % 3 * 49999 * 4 + i / 12 * 4 + 3 - i % 4];
		CHECK(right);
	}
	/* Elements larger than a pass. */
	CHECK_OK(cf_gather_init(&gather, from, 1, (int64_t[]){2}, NULL, 600000, 2, CF_MASK_NONE, &err), err);
	cf_gather_take(&gather, to, COUNT * 4);
	CHECK(to[0] == from[1] && to[COUNT * 4 - 1] == from[COUNT * 4 - 2] && to[600000] == from[600001]);
}

static void test_swap(void)
{
	uint8_t bytes[16], swapped[16];
	static const uint32_t units[] = {1, 2, 4, 8};
	for (size_t u = 0; u < CF_ARRAY_COUNT(units); u++) {
		for (size_t i = 0; i < sizeof bytes; i++) {
			bytes[i] = (uint8_t)(i + 1);
			swapped[i] = (uint8_t)(i / units[u] * units[u] + units[u] - 1 - i % units[u] + 1);
		}
		cf_swap_bytes(bytes, sizeof bytes, units[u]);
		CHECK(memcmp(bytes, swapped, sizeof bytes) == 0);
		cf_swap_bytes(bytes, 0, units[u]);
	}
}

static void test_full_rank(void)
{
	static int64_t dims[RANK], strides[RANK];
	uint8_t data[4096];
	int64_t next = 2;
	for (size_t i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)(i * 13 + i / 256);
	/* Eleven dimensions of 2, in Fortran order, among many of 1. */
	for (int d = 0; d < RANK; d++) {
		dims[d] = d % 23 == 3 && next < 4096 ? 2 : 1;
		strides[d] = dims[d] == 2 ? next : -7;
		next *= dims[d];
	}
	CHECK_EQ(next, 4096);
	check_gather(data, RANK, dims, strides, strides, 2, 1, CF_MASK_NONE, UINT64_MAX - 1);
	check_gather(data, RANK, dims, strides, strides, 2, 2, CF_MASK_NONE, 37);
}

static void refuse(int32_t rank, const int64_t *dims, const int64_t *strides, uint32_t itemsize, const char *message)
{
	cf_gather gather;
	ckptfmt_error err;
	uint8_t data[1] = {0};
	CHECK_FAILS(cf_gather_init(&gather, data, rank, dims, strides, itemsize, 1, CF_MASK_NONE, &err), err,
		CKPTFMT_FAIL_ARGUMENT, message);
	CHECK_EQ(cf_gather_left(&gather), 0);
}

static void test_refusals(void)
{
	static int64_t ones[RANK + 1];
	int64_t half = (int64_t)1 << 62;
	refuse(1, (int64_t[]){-1}, NULL, 1, "an array of negative size");
	refuse(RANK + 1, ones, NULL, 1, "an array of negative size");
	refuse(3, (int64_t[]){half, half, 0}, NULL, 1, "an array of negative size");
	refuse(1, (int64_t[]){half}, NULL, 2, "an array of more than 2^63 - 1 bytes");
	refuse(1, (int64_t[]){3}, (int64_t[]){half}, 1, "strides that lead out");
	refuse(1, (int64_t[]){3}, (int64_t[]){INT64_MIN}, 1, "strides that lead out");
	refuse(2, (int64_t[]){2, 3}, (int64_t[]){half - 1, half / 2}, 1, "strides that lead out");
	refuse(2, (int64_t[]){2, 3}, (int64_t[]){-half, -half / 2}, 1, "strides that lead out");
}

int main(void)
{
	test_seed();
	test_contiguous();
	test_random_arrays();
	test_transposes();
	test_large_swap();
	test_swap();
	test_full_rank();
	test_refusals();
	return test_finish("gather");
}
