/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every variant of the checksum against the definition, bit by bit. What depends on the choice of a variant, which is
 * made once a process, runs in a child process for each value of CKPTFMT_ISA.
 */
#include "test.h"

#include <pthread.h>
#include <sys/wait.h>

enum {
	SMALL_MAX = 1200,                 /* every size up to here */
	LARGE_MAX = (16 << 20) + 40000,   /* past the size from which copies bypass the caches */
	ALIGNMENTS = 64,
	CANARY_SIZE = 64,
	CANARY = 0xa5,
	SPLITS = 2000,
	THREADS = 4
};

static uint8_t *content;                          /* LARGE_MAX random bytes */
static uint32_t prefix_crc[SMALL_MAX + 1];        /* of the first bytes of content */

/* Around every size at which some variant changes its method: three streams, whole blocks of 64 rounds and what is
 * left of them, alignment, cache bypass. Ascending. */
static const size_t large_sizes[] = {
	2039, 2040, 2041, 2047, 2048, 2049, 4032, 4095, 4096, 4097, 4159, 4160, 8183, 8184, 8185, 8192, 8199,
	15871, 15872, 15873, 15872 + 2047, 15872 + 2048, 15872 + 248 * 13 + 5, 65536, 262144 + 3,
	(16 << 20) - 1, 16 << 20, (16 << 20) + 63, LARGE_MAX
};
enum { LARGE_COUNT = sizeof large_sizes / sizeof large_sizes[0] };
static uint32_t large_crc[LARGE_COUNT];

/* ---- the definition -------------------------------------------------------------------------------------- */

static uint32_t reference_step(uint32_t state, uint8_t byte)
{
	state ^= byte;
	for (int bit = 0; bit < 8; bit++)
		state = (state & 1) != 0 ? state >> 1 ^ UINT32_C(0x82f63b78) : state >> 1;
	return state;
}

static uint32_t reference(uint32_t crc, const uint8_t *data, size_t size)
{
	crc = ~crc;
	for (size_t i = 0; i < size; i++)
		crc = reference_step(crc, data[i]);
	return ~crc;
}

static uint32_t apply(const uint32_t *matrix, uint32_t vector)
{
	uint32_t sum = 0;
	for (int bit = 0; bit < 32; bit++)
		sum ^= (vector >> bit & 1) != 0 ? matrix[bit] : 0;
	return sum;
}

/* A zero byte is a linear map of the state; `size` of them are its power, by repeated squaring. */
static uint32_t reference_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b)
{
	uint32_t matrix[32];
	for (int bit = 0; bit < 32; bit++)
		matrix[bit] = reference_step(UINT32_C(1) << bit, 0);
	for (; size_b != 0; size_b >>= 1) {
		uint32_t square[32];
		if ((size_b & 1) != 0)
			crc_a = apply(matrix, crc_a);
		for (int bit = 0; bit < 32; bit++)
			square[bit] = apply(matrix, matrix[bit]);
		memcpy(matrix, square, sizeof matrix);
	}
	return crc_a ^ crc_b;
}

static void make_content(void)
{
	content = malloc(LARGE_MAX);
	if (content == NULL)
		exit(2);
	for (size_t i = 0; i < LARGE_MAX; i++)
		content[i] = (uint8_t)(test_random() >> 24);
	for (size_t size = 1; size <= SMALL_MAX; size++)
		prefix_crc[size] = reference(prefix_crc[size - 1], content + size - 1, 1);
	uint32_t crc = 0;
	size_t done = 0;
	for (int row = 0; row < LARGE_COUNT; row++) {
		crc = reference(crc, content + done, large_sizes[row] - done);
		done = large_sizes[row];
		large_crc[row] = crc;
	}
}

/* ---- one variant ----------------------------------------------------------------------------------------- */

static void test_vectors(uint32_t variant)
{
	static const struct {
		const char *bytes;
		int first, step;
		uint64_t size;
		uint32_t crc;
	} vectors[] = {
		{"", 0, 0, 0, 0},
		{"a", 0, 0, 1, 0xc1d04330},
		{"123456789", 0, 0, 9, 0xe3069283},
		{NULL, 0, 0, 32, 0x8a9136aa},
		{NULL, 0xff, 0, 32, 0x62a8ab43},
		{NULL, 0, 1, 32, 0x46dd794e},
		{NULL, 31, -1, 32, 0x113fdb5c},
	};
	for (size_t row = 0; row < sizeof vectors / sizeof vectors[0]; row++) {
		uint8_t bytes[32];
		for (int i = 0; i < 32; i++)
			bytes[i] = (uint8_t)(vectors[row].first + i * vectors[row].step);
		if (vectors[row].bytes != NULL)
			memcpy(bytes, vectors[row].bytes, vectors[row].size);
		CHECK_EQ(ckptfmt_crc32c_by(variant, 0, NULL, bytes, vectors[row].size), vectors[row].crc);
		CHECK_EQ(reference(0, bytes, vectors[row].size), vectors[row].crc);
	}
}

/* Copies from and to the given misalignments; the bytes arrive and nothing beside them changes. `room` and `source`
 * are aligned and large enough. */
static void check_copy(uint32_t variant, uint8_t *room, size_t to, const uint8_t *source, size_t size, uint32_t crc)
{
	uint8_t *destination = room + CANARY_SIZE + to;
	memset(destination - CANARY_SIZE, CANARY, size + 2 * CANARY_SIZE);
	CHECK_EQ(ckptfmt_crc32c_by(variant, 0, destination, source, size), crc);
	CHECK(memcmp(destination, source, size) == 0);
	int touched = 0;
	for (size_t i = 0; i < CANARY_SIZE; i++)
		touched |= (destination - CANARY_SIZE)[i] != CANARY || destination[size + i] != CANARY;
	CHECK(!touched);
}

static void test_small(uint32_t variant)
{
	static _Alignas(64) uint8_t from[SMALL_MAX + ALIGNMENTS];
	static _Alignas(64) uint8_t room[SMALL_MAX + ALIGNMENTS + 2 * CANARY_SIZE];
	for (size_t alignment = 0; alignment < ALIGNMENTS; alignment++) {
		uint8_t *source = from + alignment;
		memcpy(source, content, SMALL_MAX);
		for (size_t size = 0; size <= SMALL_MAX; size++)
			CHECK_EQ(ckptfmt_crc32c_by(variant, 0, NULL, source, size), prefix_crc[size]);
		for (size_t size = alignment % 7; size <= SMALL_MAX; size += 7)
			check_copy(variant, room, test_random_below(ALIGNMENTS), source, size, prefix_crc[size]);
	}
}

static void test_guard_pages(uint32_t variant)
{
	uint8_t *source_end = test_guarded_copy(content, SMALL_MAX) + SMALL_MAX;
	uint8_t *destination_end = test_guarded(SMALL_MAX) + SMALL_MAX;
	for (size_t size = 0; size <= SMALL_MAX; size++) {
		uint8_t *source = source_end - size;
		uint8_t *destination = destination_end - size;
		memcpy(source, content, size);
		memset(destination, 0, size);
		CHECK_EQ(ckptfmt_crc32c_by(variant, 0, NULL, source, size), prefix_crc[size]);
		CHECK_EQ(ckptfmt_crc32c_by(variant, 0, destination, source, size), prefix_crc[size]);
		CHECK(memcmp(destination, source, size) == 0);
	}
	for (int row = 0; row < LARGE_COUNT; row++) {
		size_t size = large_sizes[row];
		if (size > 65536 && size < LARGE_MAX)
			continue;
		uint8_t *source = test_guarded_copy(content, size);
		uint8_t *destination = test_guarded(size);
		CHECK_EQ(ckptfmt_crc32c_by(variant, 0, NULL, source, size), large_crc[row]);
		CHECK_EQ(ckptfmt_crc32c_by(variant, 0, destination, source, size), large_crc[row]);
		CHECK(memcmp(destination, source, size) == 0);
	}
}

static void test_large(uint32_t variant)
{
	uint8_t *from = aligned_alloc(64, LARGE_MAX + 192);
	uint8_t *room = aligned_alloc(64, LARGE_MAX + 192 + 2 * CANARY_SIZE);
	CHECK(from != NULL && room != NULL);
	size_t shift[][2] = {{0, 0}, {0, 1}, {8, 0}, {33, 16},
		{test_random_below(ALIGNMENTS), test_random_below(ALIGNMENTS)}};
	for (size_t pair = 0; pair < sizeof shift / sizeof shift[0]; pair++) {
		uint8_t *source = from + shift[pair][0];
		memcpy(source, content, LARGE_MAX);
		for (int row = 0; row < LARGE_COUNT; row++) {
			size_t size = large_sizes[row];
			/* Megabytes are slow under an emulator: fewer of them. */
			if (size >= 16 << 20 && pair % 4 != 0)
				continue;
			CHECK_EQ(ckptfmt_crc32c_by(variant, 0, NULL, source, size), large_crc[row]);
			check_copy(variant, room, shift[pair][1], source, size, large_crc[row]);
		}
	}
	free(from);
	free(room);
}

/* Begun anywhere with what came before, the end is the same. */
static void test_splits(uint32_t variant)
{
	static uint8_t room[65536];
	for (int i = 0; i < SPLITS; i++) {
		int row = (int)test_random_below(LARGE_COUNT);
		while (large_sizes[row] > sizeof room)
			row--;
		size_t size = large_sizes[row];
		uint8_t *destination = i % 2 == 0 ? room : NULL;
		uint32_t crc = 0;
		for (size_t done = 0; done < size;) {
			size_t step = 1 + test_random_below(i % 4 < 2 ? size : 700);
			step = step < size - done ? step : size - done;
			crc = ckptfmt_crc32c_by(variant, crc, destination == NULL ? NULL : destination + done,
				content + done, step);
			done += step;
		}
		CHECK_EQ(crc, large_crc[row]);
		CHECK(destination == NULL || memcmp(destination, content, size) == 0);
	}
}

/* What is summed is what is written, even if the source changes meanwhile. Callers never overlap the two; here it makes
 * every store change bytes of the source that were just loaded, so that loading them again would show. */
static void test_changing_source(uint32_t variant)
{
	enum { SHIFT = 4, SIZE_MAX_HERE = 65536 };
	static _Alignas(64) uint8_t room[SIZE_MAX_HERE + SHIFT];
	for (int row = -SMALL_MAX; row < LARGE_COUNT; row++) {
		size_t size = row < 0 ? (size_t)-row : large_sizes[row];
		if (size > SIZE_MAX_HERE)
			break;
		memcpy(room, content, size);
		uint32_t crc = ckptfmt_crc32c_by(variant, 0, room + SHIFT, room, size);
		CHECK_EQ(ckptfmt_crc32c_by(variant, 0, NULL, room + SHIFT, size), crc);
	}
}

/* ---- the variant chosen ---------------------------------------------------------------------------------- */

static void test_combine(void)
{
	static const uint64_t sizes[] = {
		0, 1, 2, 7, 8, 4096, 262144, 0x7ffffffe, 0x7fffffff, 0x80000000, 0xffffffff, 0x100000000, 0x100000001,
		UINT64_C(5) << 30, UINT64_C(0x7fffffff) * 3 + 1, UINT64_C(1) << 40, UINT64_C(1) << 63, UINT64_MAX - 1,
		UINT64_MAX
	};
	for (size_t row = 0; row < sizeof sizes / sizeof sizes[0]; row++) {
		uint32_t a = (uint32_t)test_random(), b = (uint32_t)test_random();
		CHECK_EQ(ckptfmt_crc32c_combine(a, b, sizes[row]), reference_combine(a, b, sizes[row]));
	}
	CHECK_EQ(ckptfmt_crc32c_combine(0x12345678, 0, 0), 0x12345678);
	for (int i = 0; i < SPLITS; i++) {
		size_t size = test_random_below(SMALL_MAX + 1);
		size_t split = test_random_below(size + 1);
		uint32_t tail = ckptfmt_crc32c(0, content + split, size - split);
		CHECK_EQ(ckptfmt_crc32c_combine(prefix_crc[split], tail, size - split), prefix_crc[size]);
		/* Both ways to join three parts, of sizes too large to sum. */
		uint32_t a = (uint32_t)test_random(), b = (uint32_t)test_random(), c = (uint32_t)test_random();
		uint64_t size_b = test_random() >> (1 + test_random_below(60));
		uint64_t size_c = test_random() >> (1 + test_random_below(60));
		uint32_t left = ckptfmt_crc32c_combine(ckptfmt_crc32c_combine(a, b, size_b), c, size_c);
		CHECK_EQ(ckptfmt_crc32c_combine(a, ckptfmt_crc32c_combine(b, c, size_c), size_b + size_c), left);
		CHECK_EQ(reference_combine(reference_combine(a, b, size_b), c, size_c), left);
	}
}

static void test_mask(void)
{
	CHECK_EQ(ckptfmt_crc32c_mask(0), 0xa282ead8);
	CHECK_EQ(ckptfmt_crc32c_mask(0xe3069283), 0xc78ab0e5);
	for (int i = 0; i < SPLITS; i++) {
		uint32_t crc = (uint32_t)test_random();
		CHECK_EQ(ckptfmt_crc32c_unmask(ckptfmt_crc32c_mask(crc)), crc);
		CHECK_EQ(ckptfmt_crc32c_mask(ckptfmt_crc32c_unmask(crc)), crc);
		CHECK_EQ(ckptfmt_crc32c_mask(crc), (uint32_t)((crc >> 15 | crc << 17) + 0xa282ead8u));
	}
}

static void *first_use(void *crc)
{
	*(uint32_t *)crc = ckptfmt_crc32c(0, content, SMALL_MAX);
	return NULL;
}

/* Several threads make the choice at once. */
static void test_race(void)
{
	pthread_t threads[THREADS];
	uint32_t crcs[THREADS];
	for (int i = 0; i < THREADS; i++)
		CHECK_EQ(pthread_create(&threads[i], NULL, first_use, &crcs[i]), 0);
	for (int i = 0; i < THREADS; i++) {
		CHECK_EQ(pthread_join(threads[i], NULL), 0);
		CHECK_EQ(crcs[i], prefix_crc[SMALL_MAX]);
	}
}

static uint32_t best_up_to(uint32_t highest)
{
	uint32_t best = 0;
	for (uint32_t row = 0; row <= highest && ckptfmt_crc32c_variant_name(row) != NULL; row++)
		best = ckptfmt_crc32c_variant_usable(row) ? row : best;
	return best;
}

/* REQUIRES: nothing in this process has asked for the variant. `name`: the variant of CKPTFMT_ISA=isa, or NULL. */
static void test_chosen(const char *isa, const char *name)
{
	pid_t child = fork();
	if (child == 0) {
		test_failures = 0;
		if (isa != NULL)
			setenv("CKPTFMT_ISA", isa, 1);
		else
			unsetenv("CKPTFMT_ISA");
		test_race();
		uint32_t highest = UINT32_MAX;
		for (uint32_t row = 0; name != NULL && ckptfmt_crc32c_variant_name(row) != NULL; row++)
			highest = strcmp(ckptfmt_crc32c_variant_name(row), name) == 0 ? row : highest;
		CHECK_EQ(ckptfmt_crc32c_variant(), best_up_to(highest));
		setenv("CKPTFMT_ISA", "portable", 1);
		CHECK_EQ(ckptfmt_crc32c_variant(), best_up_to(highest));
		test_combine();
		uint8_t copy[SMALL_MAX];
		CHECK_EQ(ckptfmt_crc32c_copy(0, copy, content, SMALL_MAX), prefix_crc[SMALL_MAX]);
		CHECK(memcmp(copy, content, SMALL_MAX) == 0);
		printf("CKPTFMT_ISA=%s: %s\n", isa != NULL ? isa : "(unset)",
			ckptfmt_crc32c_variant_name(ckptfmt_crc32c_variant()));
		fflush(stdout);
		_exit(test_failures == 0 ? 0 : 1);
	}
	int status = -1;
	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK_EQ(status, 0);
}

int main(void)
{
	static const char *const isas[][2] = {
		{NULL, NULL}, {"", NULL}, {"no-such-isa", NULL}, {"portable", "portable"}, {"sse42", "sse42"},
		{"avx2", "vpclmul256"}, {"armv8", "armv8"}
	};
	test_seed();
	make_content();
	fflush(stdout);
	for (size_t row = 0; row < sizeof isas / sizeof isas[0]; row++)
		test_chosen(isas[row][0], isas[row][1]);
	test_mask();
	uint32_t count = 0;
	for (uint32_t variant = 0; ckptfmt_crc32c_variant_name(variant) != NULL; variant++, count++) {
		int usable = ckptfmt_crc32c_variant_usable(variant);
		printf("%s: %s\n", ckptfmt_crc32c_variant_name(variant), usable ? "tested" : "not usable here");
		if (!usable)
			continue;
		test_vectors(variant);
		test_small(variant);
		test_guard_pages(variant);
		test_large(variant);
		test_splits(variant);
		test_changing_source(variant);
	}
	CHECK(count >= 1);
	CHECK(ckptfmt_crc32c_variant_usable(0) == 1);
	CHECK(ckptfmt_crc32c_variant_usable(count) == 0);
	CHECK(ckptfmt_crc32c_variant_name(UINT32_MAX) == NULL);
	free(content);
	return test_finish("test_crc32c");
}
