/* SPDX-License-Identifier: Apache-2.0 */
/* Slice keys: round trips, order, and every damaged key refused. The format's keys are vectors. */
#include "test.h"

#include "slices/key.h"

enum { RANK = CKPTFMT_RANK_MAX };

static void encode(cf_buffer *out, const char *name, size_t name_size, int32_t rank, const int64_t *starts,
	const int64_t *lengths)
{
	ckptfmt_error err;
	cf_buffer_clear(out);
	cf_slice_key_encode(out, (const uint8_t *)name, name_size, rank, starts, lengths);
	CHECK_OK(cf_buffer_status(out, &err), err);
}

#define KEY(text) text, sizeof(text) - 1

static void check_decodes(const uint8_t *key, uint64_t key_size, const char *name, size_t name_size, int32_t rank,
	const int64_t *starts, const int64_t *lengths)
{
	static int64_t found_starts[RANK], found_lengths[RANK];
	cf_buffer found_name = CF_BUFFER_EMPTY;
	int32_t found_rank;
	cf_put_bytes(&found_name, "rest", 4);
	CHECK(cf_slice_key_decode(key, key_size, &found_name, &found_rank, found_starts, found_lengths));
	CHECK_EQ(found_rank, rank);
	CHECK_EQ(found_name.size, name_size);
	CHECK(found_name.size == name_size && (name_size == 0 || memcmp(found_name.data, name, name_size) == 0));
	CHECK(memcmp(found_starts, starts, (size_t)rank * sizeof *starts) == 0);
	CHECK(memcmp(found_lengths, lengths, (size_t)rank * sizeof *lengths) == 0);
	cf_buffer_free(&found_name);
}

static void refuse(const uint8_t *key, size_t size)
{
	static int64_t starts[RANK], lengths[RANK];
	cf_buffer name = CF_BUFFER_EMPTY;
	int32_t rank = 7;
	CHECK(!cf_slice_key_decode(key, size, &name, &rank, starts, lengths));
	CHECK_EQ(rank, 0);
	cf_buffer_free(&name);
}

static void refuse_text(const char *key, size_t size)
{
	refuse(test_guarded_copy(key, size), size);
}

/* Start or length of a value that only sometimes can exist: a valid slice of random extents. */
static int64_t random_start(void)
{
	return (int64_t)(test_random() >> 1 >> test_random_below(63));
}

static void random_extent(int64_t *start, int64_t *length)
{
	*start = 0;
	*length = -1;
	if (test_random_below(4) == 0)
		return;
	*start = random_start();
	if (*start == INT64_MAX)
		*start = 0;
	*length = random_start() % (INT64_MAX - *start) + 1;
}

static size_t random_name(char *name, size_t size_max)
{
	static const char bytes[] = {0, 1, 'a', 'b', (char)0xfe, (char)0xff};
	size_t size = test_random_below(size_max + 1);
	for (size_t i = 0; i < size; i++)
		name[i] = bytes[test_random_below(sizeof bytes)];
	return size;
}

static void test_round_trip(void)
{
	static int64_t starts[RANK], lengths[RANK];
	cf_buffer key = CF_BUFFER_EMPTY;
	for (int round = 0; round < 3000; round++) {
		char name[12];
		size_t name_size = random_name(name, sizeof name);
		int32_t rank = round < 4 ? RANK - round : (int32_t)test_random_below(6) + 1;
		for (int32_t d = 0; d < rank; d++)
			random_extent(&starts[d], &lengths[d]);
		encode(&key, name, name_size, rank, starts, lengths);
		check_decodes(key.data, key.size, name, name_size, rank, starts, lengths);
	}
	cf_buffer_free(&key);
}

static int sign(int64_t value)
{
	return value < 0 ? -1 : value > 0;
}

typedef struct tuple {
	char name[4];
	size_t name_size;
	int32_t rank;
	int64_t extents[6];     /* start and length in turn, any values */
} tuple;

/* Numbers where the ordered code takes one byte more. */
static const int64_t edges[] = {0, 63, 64, 8191, 8192, 1 << 20, (int64_t)1 << 55,
	((int64_t)1 << 62) - 1, (int64_t)1 << 62, INT64_MAX, -64, -65, -8192, INT64_MIN};

static tuple random_tuple(void)
{
	tuple t;
	t.name_size = random_name(t.name, 2);
	t.rank = (int32_t)test_random_below(4);
	for (int i = 0; i < 6; i++) {
		t.extents[i] = test_random_below(2) ? (int64_t)test_random_below(3) - 1
			: edges[test_random_below(CF_ARRAY_COUNT(edges))];
		if (test_random_below(4) == 0)
			t.extents[i] = (int64_t)((uint64_t)t.extents[i] + test_random_below(3) - 1);
	}
	return t;
}

static int compare_bytes(const void *a, size_t a_size, const void *b, size_t b_size)
{
	int order = memcmp(a, b, a_size < b_size ? a_size : b_size);
	return order != 0 ? sign(order) : sign((int64_t)a_size - (int64_t)b_size);
}

static int compare_tuples(const tuple *a, const tuple *b)
{
	int order = compare_bytes(a->name, a->name_size, b->name, b->name_size);
	if (order == 0)
		order = sign(a->rank - b->rank);
	for (int i = 0; i < 2 * a->rank && order == 0; i++)
		order = (a->extents[i] > b->extents[i]) - (a->extents[i] < b->extents[i]);
	return order;
}

static void encode_tuple(cf_buffer *out, const tuple *t)
{
	int64_t starts[3], lengths[3];
	for (int d = 0; d < 3; d++) {
		starts[d] = t->extents[2 * d];
		lengths[d] = t->extents[2 * d + 1];
	}
	encode(out, t->name, t->name_size, t->rank, starts, lengths);
}

static void test_order(void)
{
	cf_buffer a_key = CF_BUFFER_EMPTY, b_key = CF_BUFFER_EMPTY;
	for (int round = 0; round < 20000; round++) {
		tuple a = random_tuple();
		tuple b = random_tuple();
		if (test_random_below(2)) {
			/* Neighbours: the same but for one place. */
			size_t at = test_random_below(6);
			int64_t value = b.extents[at];
			b = a;
			b.extents[at] = value;
		}
		encode_tuple(&a_key, &a);
		encode_tuple(&b_key, &b);
		CHECK_EQ(compare_bytes(a_key.data, a_key.size, b_key.data, b_key.size), compare_tuples(&a, &b));
	}
	cf_buffer_free(&a_key);
	cf_buffer_free(&b_key);
}

static void test_damage(void)
{
	/* The wrong beginning, number by number. */
	refuse_text(KEY(""));    /* KEY-2 */
	refuse_text(KEY("v"));    /* KEY-2 */
	refuse_text(KEY("\x01\x01v\x00\x01\x01\x01\x80\x82"));    /* KEY-1 */
	refuse_text(KEY("\x01\x00v\x00\x01\x01\x01\x80\x82"));    /* KEY-8 */
	/* The name. */
	refuse_text(KEY("\x00v"));    /* KEY-3 */
	refuse_text(KEY("\x00v\x00"));    /* KEY-3 */
	refuse_text(KEY("\x00v\x00\x02\x01\x01\x80\x82"));    /* KEY-3 */
	refuse_text(KEY("\x00v\xff\xff\x01\x01\x80\x82"));    /* KEY-3 */
	refuse_text(KEY("\x00v\xff\x01\x01\x01\x80\x82"));    /* KEY-3 */
	refuse_text(KEY("\x00v\x00\x00\x01\x01\x80\x82"));    /* KEY-3 */
	/* The rank. */
	refuse_text(KEY("\x00v\x00\x01"));    /* KEY-2 */
	refuse_text(KEY("\x00v\x00\x01\x00"));    /* KEY-1 */
	refuse_text(KEY("\x00v\x00\x01\x02\x00\x01\x80\x82"));    /* KEY-8 */
	refuse_text(KEY("\x00v\x00\x01\x09\x01\x01\x01\x01\x01\x01\x01\x01\x01\x80\x82"));    /* KEY-2 */
	refuse_text(KEY("\x00v\x00\x01\x01\xff\x80\x82"));    /* KEY-1 */
	refuse_text(KEY("\x00v\x00\x01\x08\xff\xff\xff\xff\xff\xff\xff\xff\x80\x82"));    /* KEY-1 */
	refuse_text(KEY("\x00v\x00\x01\x08\x01"));    /* KEY-2 */
	/* The extents. */
	refuse_text(KEY("\x00v\x00\x01\x01\x01"));    /* KEY-4 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\x80"));    /* KEY-4 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\xff"));    /* KEY-4 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\xc0"));    /* KEY-4 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\xc0\x3f\x82"));    /* KEY-8 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\x80\x3f\xc0"));    /* KEY-8 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\xff\xe0\x40\x00\x00\x00\x00\x00\x00\x00\x00\x82"));    /* KEY-4 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\x00\x1f\x40\x00\x00\x00\x00\x00\x00\x00\x00\x82"));    /* KEY-4 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\xff\xff\x40\x00\x00\x00\x00\x00\x00\x00\x00\x82"));    /* KEY-4 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\xff\xc0\x80\x00\x00\x00\x00\x00\x00\x00\x82"));    /* KEY-8 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\xff\xc1\x40\x00\x00\x00\x00\x00\x00\x00\x82"));    /* KEY-8 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\x80\x80"));    /* KEY-5 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\x81\x7f"));    /* KEY-5 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\x7f\x81"));    /* KEY-5 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\x80\x7e"));    /* KEY-5 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\xff\xc0\x7f\xff\xff\xff\xff\xff\xff\xff\x81"));    /* KEY-5 */
	refuse_text(KEY("\x00v\x00\x01\x01\x01\x80\x82\x80"));    /* KEY-1 */
}

/* Every truncation is refused, at the very end of readable memory. */
static void test_truncation(void)
{
	static const char whole[] = "\x00" "a\x00\xff" "b\xff\x00" "c\x00\x01\x01\x03\x80\x7f\xc0\x64\xdf\xff"
		"\xff\xbf\xff\xff\xff\xff\xff\xff\xff\x81";
	int64_t starts[3] = {0, 100, ((int64_t)1 << 62) - 1};
	int64_t lengths[3] = {-1, 8191, 1};
	uint8_t *copy = test_guarded_copy(KEY(whole));
	check_decodes(copy, sizeof whole - 1, KEY("a\0b\xff" "c"), 3, starts, lengths);
	for (size_t size = 0; size < sizeof whole - 1; size++)
		refuse(test_guarded_copy(whole, size), size);
}

/* Whatever is accepted is what the encoder writes. */
static void test_canonical(void)
{
	static int64_t starts[RANK], lengths[RANK];
	static const uint8_t bytes[] = {0, 1, 2, 0x3f, 0x40, 0x7f, 0x80, 0x81, 0xc0, 0xff};
	uint8_t *room = test_guarded(16);
	cf_buffer name = CF_BUFFER_EMPTY, again = CF_BUFFER_EMPTY;
	unsigned long accepted = 0;
	for (int round = 0; round < 300000; round++) {
		size_t size = test_random_below(17);
		uint8_t *key = room + 16 - size;
		int32_t rank;
		for (size_t i = 0; i < size; i++)
			key[i] = bytes[test_random_below(sizeof bytes)];
		/* Half with a sound beginning, to come to the extents. */
		if (size > 6 && test_random_below(2))
			memcpy(key, "\x00v\x00\x01\x01\x01", 6);
		if (!cf_slice_key_decode(key, size, &name, &rank, starts, lengths))
			continue;
		accepted++;
		encode(&again, (const char *)name.data, name.size, rank, starts, lengths);
		CHECK(again.size == size && memcmp(again.data, key, size) == 0);
	}
	CHECK(accepted > 100);
	cf_buffer_free(&name);
	cf_buffer_free(&again);
}

int main(void)
{
	test_seed();
	test_round_trip();
	test_order();
	test_damage();
	test_truncation();
	test_canonical();
	return test_finish("slice_key");
}
