/* SPDX-License-Identifier: Apache-2.0 */
/* Slice text: the spellings that TensorFlow takes and those it refuses or dies of (each was tried with its SaveV2) that
 * are not vectors, and all short texts against a second, plainer parser. */
#include "test.h"

#include "base/buffer.h"
#include "slices/box.h"

#include <errno.h>

static int64_t dims[CKPTFMT_RANK_MAX], starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];

static ckptfmt_status parse(const char *text, size_t size, int32_t *rank, ckptfmt_error *err)
{
	return ckptfmt_spec_parse((const uint8_t *)text, size, rank, dims, starts, lengths, err);
}

#define SPEC(text) text, sizeof(text) - 1

static const struct {
	const char *text;
	size_t size;
	const char *printed;
} accepted[] = {
	{SPEC("4 6 +0,2:-"), "4 6 0,2:-"},
	{SPEC("4 6 0,+2:-"), "4 6 0,2:-"},
	{SPEC("+4 6 0,2:-"), "4 6 0,2:-"},
	{SPEC("-0 6 -:-"), "0 6 -:-"},
	{SPEC("4 6 -0,2:-"), "4 6 0,2:-"},
	{SPEC("4 6 \t0,2:-"), "4 6 0,2:-"},
	{SPEC("4 6 0,2\t:-"), "4 6 0,2:-"},
	{SPEC("4 6 0\t,\t2:-"), "4 6 0,2:-"},
	{SPEC("\t4 6 -:-"), "4 6 -:-"},
	{SPEC("4\t 6 -:-"), "4 6 -:-"},
	{SPEC("4 \n6\v\f\r -:-"), "4 6 -:-"},
	{SPEC("4 6 \n0,2:-"), "4 6 0,2:-"},
	{SPEC("04 6 -:-"), "4 6 -:-"},
	{SPEC("000000000000000000000000000004 6 -:-"), "4 6 -:-"},
	{SPEC("4 6 00,02:-"), "4 6 0,2:-"},
	{SPEC("4 6 0,2,:-"), "4 6 0,2:-"},
	{SPEC("4 6 ,0,2:-"), "4 6 0,2:-"},
	{SPEC("4 6 ,,0,,2,,:-"), "4 6 0,2:-"},
	{SPEC("4 6 -:-:"), "4 6 -:-"},
	{SPEC("4 6 ::-::-"), "4 6 -:-"},
	{SPEC("4 6 0,2::-"), "4 6 0,2:-"},
	{SPEC("4 -"), "4 -"},
	{SPEC("4 0,4"), "4 0,4"},
	{SPEC("4 3,1"), "4 3,1"},
	{SPEC("9223372036854775807 -"), "9223372036854775807 -"},
	{SPEC("17179869190 17179869189,1"), "17179869190 17179869189,1"},
};

static const struct {
	const char *text;
	size_t size;
	const char *rule;
} refused[] = {
	{SPEC("+"), "TXT-2: no space"},
	{SPEC("\t"), "TXT-2: no space"},
	{SPEC(" "), "TXT-3: a size that is not a number"},
	{SPEC(" -"), "TXT-3: a size that is not a number"},
	{SPEC(" 4 6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("4  6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("4 6  -:-"), "TXT-3: a size that is not a number"},
	{SPEC("4 6 -:- "), "TXT-3: a size that is not a number"},
	{SPEC("4 6 - :-"), "TXT-3: a size that is not a number"},
	{SPEC("4 6 0,2 :-"), "TXT-3: a size that is not a number"},
	{SPEC("4\t6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("4\0 6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("4\x1f 6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("4\xa0 6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("0x4 6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("4. 6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("1_0 6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("++4 6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("+ 6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("- 6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("4,6 -:-"), "TXT-3: a size that is not a number"},
	{SPEC("99999999999999999999999 -"), "TXT-3: a size that is not a number"},
	{SPEC("-4 6 -:-"), "TXT-3: a negative size"},
	{SPEC("-9223372036854775808 -"), "TXT-3: a negative size"},
	{SPEC("-9223372036854775809 -"), "TXT-3: a size that is not a number"},
	{SPEC("4 "), "TXT-4: shape and slice differ in rank"},
	{SPEC("4 :"), "TXT-4: shape and slice differ in rank"},
	{SPEC("4 ,"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 --:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 -,:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 -,-:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 0,2:-\n"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 \t-:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 \t:-:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 0,2:-\0"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 0,2\0:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 0,\t,2:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 0, 2:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 0:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 0,1,2:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 0;2:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 0,+:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 6 +-0,2:-"), "TXT-5: a dimension that is neither"},
	{SPEC("4 9223372036854775808,1"), "TXT-5: a dimension that is neither"},
	{SPEC("a b"), "TXT-5: a dimension that is neither"},
	{SPEC("-1 x"), "TXT-5: a dimension that is neither"},
	{SPEC("4 0,5"), "TXT-6: a slice past"},
	{SPEC("4 1,4"), "TXT-6: a slice past"},
	{SPEC("4 4,1"), "TXT-6: a slice past"},
	{SPEC("4 5,1"), "TXT-6: a slice past"},
	{SPEC("0 0,1"), "TXT-6: a slice past"},
	{SPEC("10 9223372036854775807,1"), "TXT-6: a slice past"},
	{SPEC("10 1,9223372036854775807"), "TXT-6: a slice past"},
	{SPEC("4294967296 4294967296 -:-"), "TXT-7: too many elements"},
};

/* What was parsed, in its shortest form; nothing for the empty text. */
static void print_spec(cf_buffer *out, int32_t rank)
{
	char text[48];
	for (int32_t d = 0; d < rank; d++)
		cf_put_bytes(out, text, (uint64_t)snprintf(text, sizeof text, "%lld ", (long long)dims[d]));
	for (int32_t d = 0; d < rank; d++) {
		if (d != 0)
			cf_put_u8(out, ':');
		if (lengths[d] == -1)
			cf_put_u8(out, '-');
		else
			cf_put_bytes(out, text, (uint64_t)snprintf(text, sizeof text, "%lld,%lld", (long long)starts[d],
				(long long)lengths[d]));
	}
}

static void test_tables(void)
{
	cf_buffer printed = CF_BUFFER_EMPTY;
	ckptfmt_error err;
	int32_t rank;
	for (size_t i = 0; i < CF_ARRAY_COUNT(accepted); i++) {
		const char *copy = (const char *)test_guarded_copy(accepted[i].text, accepted[i].size);
		CHECK_OK(parse(copy, accepted[i].size, &rank, &err), err);
		cf_buffer_clear(&printed);
		print_spec(&printed, rank);
		CHECK_EQ(printed.size, strlen(accepted[i].printed));
		CHECK(memcmp(printed.data, accepted[i].printed, printed.size) == 0);
	}
	for (size_t i = 0; i < CF_ARRAY_COUNT(refused); i++) {
		const char *copy = (const char *)test_guarded_copy(refused[i].text, refused[i].size);
		rank = 9;
		CHECK_FAILS(parse(copy, refused[i].size, &rank, &err), err, CKPTFMT_FAIL_ARGUMENT, refused[i].rule);
		CHECK_EQ(err.status, CKPTFMT_INVALID);
		CHECK_EQ(rank, 0);
		CHECK(parse(copy, refused[i].size, &rank, NULL) == CKPTFMT_INVALID);
	}
	CHECK_OK(parse("", 0, &rank, &err), err);
	CHECK_EQ(rank, -1);
	CHECK_OK(ckptfmt_spec_parse(NULL, 0, &rank, dims, starts, lengths, &err), err);
	CHECK_EQ(rank, -1);
	cf_buffer_free(&printed);
}

static void test_fields(void)
{
	ckptfmt_error err;
	int32_t rank;
	CHECK_OK(parse(SPEC("4 6 8 1,3:-:0,8"), &rank, &err), err);
	CHECK_EQ(rank, 3);
	CHECK_EQ(dims[0], 4);
	CHECK_EQ(dims[1], 6);
	CHECK_EQ(dims[2], 8);
	CHECK_EQ(starts[0], 1);
	CHECK_EQ(starts[1], 0);
	CHECK_EQ(starts[2], 0);
	CHECK_EQ(lengths[0], 3);
	CHECK_EQ(lengths[1], -1);
	CHECK_EQ(lengths[2], 8);
}

/* Rank 254 is read; 255 is refused without a byte behind the arrays being written (they are guarded). */
static void test_rank_edge(void)
{
	size_t room = CKPTFMT_RANK_MAX * sizeof(int64_t);
	int64_t *d = (int64_t *)(void *)test_guarded(room);
	int64_t *s = (int64_t *)(void *)test_guarded(room);
	int64_t *l = (int64_t *)(void *)test_guarded(room);
	for (int32_t count = 253; count <= 300; count++) {
		uint8_t text[2000];
		size_t size = 0;
		ckptfmt_error err;
		int32_t rank;
		for (int32_t i = 0; i < count; i++) {
			text[size++] = '1';
			text[size++] = ' ';
		}
		for (int32_t i = 0; i < count; i++) {
			text[size++] = ':';
			text[size++] = '-';
		}
		if (count <= CKPTFMT_RANK_MAX) {
			CHECK_OK(ckptfmt_spec_parse(text, size, &rank, d, s, l, &err), err);
			CHECK_EQ(rank, count);
			CHECK_EQ(l[count - 1], -1);
		} else {
			CHECK_FAILS(ckptfmt_spec_parse(text, size, &rank, d, s, l, &err), err, CKPTFMT_FAIL_ARGUMENT,
				"TXT-7: more than 254 sizes");
		}
	}
}

/* The text in a message is cut and escaped. */
static void test_quoting(void)
{
	char text[1000];
	ckptfmt_error err;
	int32_t rank;
	CHECK_FAILS(parse(SPEC("a\n\"\\\x1b[31m\xff"), &rank, &err), err, CKPTFMT_FAIL_ARGUMENT,
		"TXT-2: no space between shape and slice in the slice spec \"a\\x0a\"\\x5c\\x1b[31m\\xff\"");
	memset(text, 0xfe, sizeof text);
	CHECK_FAILS(parse(text, sizeof text, &rank, &err), err, CKPTFMT_FAIL_ARGUMENT, "TXT-2");
	CHECK(strlen(err.message) > 4 * 64);
	CHECK(strcmp(err.message + strlen(err.message) - 8, "\\xfe...\"") == 0);
}

/* ---- a second parser: copies, splits into lists, uses the C library's numbers ---- */

typedef struct pieces {
	char text[40][16];
	size_t count;
} pieces;

static void split(const char *text, char separator, int keep_empty, pieces *out)
{
	size_t used = 0;
	out->count = 0;
	memset(out->text, 0, sizeof out->text);
	for (;; text++) {
		if (*text != separator && *text != '\0') {
			out->text[out->count][used++] = *text;
			continue;
		}
		if (used != 0 || keep_empty)
			out->count++;
		used = 0;
		if (*text == '\0')
			return;
	}
}

static int number(const char *text, long long *out)
{
	char *end;
	errno = 0;
	*out = strtoll(text, &end, 10);
	if (end == text)
		return 0;
	while (*end == '\t')
		end++;
	return *end == '\0' && errno == 0;
}

static int plain_slice(const char *text, int64_t *s, int64_t *l, size_t *count)
{
	pieces parts, pair;
	split(text, ':', 0, &parts);
	*count = parts.count;
	for (size_t i = 0; i < parts.count; i++) {
		long long a = 0, b = -1;
		if (strcmp(parts.text[i], "-") != 0) {
			split(parts.text[i], ',', 0, &pair);
			if (pair.count != 2 || !number(pair.text[0], &a) || !number(pair.text[1], &b) || a < 0 ||
				b < 1)
				return 0;
		}
		s[i] = a;
		l[i] = b;
	}
	return 1;
}

static int plain_parse(const char *text, int32_t *rank, int64_t *d, int64_t *s, int64_t *l)
{
	pieces words;
	size_t count;
	split(text, ' ', 1, &words);
	if (words.count < 2 || !plain_slice(words.text[words.count - 1], s, l, &count) || count != words.count - 1)
		return 0;
	for (size_t i = 0; i < count; i++) {
		long long size;
		if (!number(words.text[i], &size) || size < 0)
			return 0;
		if (l[i] != -1 && s[i] + l[i] > size)
			return 0;
		d[i] = size;
	}
	*rank = (int32_t)count;
	return 1;
}

static void check_same(const char *text)
{
	int64_t d[16], s[16], l[16];
	int32_t rank, expected_rank = 0;
	ckptfmt_error err;
	ckptfmt_status status = parse(text, strlen(text), &rank, &err);
	int expected = plain_parse(text, &expected_rank, d, s, l);
	if ((status == CKPTFMT_OK) != expected)
		fprintf(stderr, "spec \"%s\"\n", text);
	CHECK_EQ(status == CKPTFMT_OK, expected);
	if (status != CKPTFMT_OK || !expected)
		return;
	CHECK_EQ(rank, expected_rank);
	for (int32_t i = 0; i < rank; i++)
		CHECK(dims[i] == d[i] && starts[i] == s[i] && lengths[i] == l[i]);
}

/* Every text of up to six letters of the grammar, alone and behind a sound beginning. */
static void test_all_short(void)
{
	static const char letters[] = "02,:- +\t";
	for (size_t size = 1; size <= 6; size++) {
		size_t total = 1;
		for (size_t i = 0; i < size; i++)
			total *= 8;
		for (size_t n = 0; n < total; n++) {
			char text[16] = "4 2 ";
			for (size_t i = 0, rest = n; i < size; i++, rest /= 8)
				text[4 + i] = letters[rest % 8];
			text[4 + size] = '\0';
			check_same(text);
			check_same(text + 4);
		}
	}
}

int main(void)
{
	test_tables();
	test_fields();
	test_rank_edge();
	test_quoting();
	test_all_short();
	return test_finish("slice_text");
}
