/* SPDX-License-Identifier: Apache-2.0 */
/*
 * spec   = (number SPACE)+ slice                                                  spec/format.md, TXT
 * slice  = ":"* piece (":"+ piece)* ":"*
 * piece  = "-" | ","* number ","+ number ","*
 * number = blank* ("+" | "-")? digit+ blank*         blank = HT LF VT FF CR; the value fits int64
 *
 * The language of TensorFlow's parser, measured: exactly one space between two sizes, though a tab is part of a number;
 * empty pieces are ignored. Only texts that end its process (a negative size, more than 254 sizes, an element count
 * past int64) or that overflow there (a slice whose end is past int64) are refused here and not there.
 */
#include "base/arith.h"
#include "slices/box.h"

#include <stdio.h>
#include <string.h>

typedef struct text {
	const uint8_t *bytes;
	uint64_t size;
} text;

enum {
	QUOTED_MAX = 64,                         /* bytes of the offending text that a message shows */
	QUOTED_SIZE = 4 * QUOTED_MAX + 4         /* each as \xNN, then "..." */
};

/* The text for a message: printable, bounded, unambiguous. */
static const char *quote(char to[QUOTED_SIZE], text from)
{
	static const char digits[] = "0123456789abcdef";
	size_t used = 0;
	for (uint64_t i = 0; i < from.size && i < QUOTED_MAX; i++) {
		uint8_t byte = from.bytes[i];
		if (byte >= 0x20 && byte < 0x7f && byte != '\\') {
			to[used++] = (char)byte;
		} else {
			to[used++] = '\\';
			to[used++] = 'x';
			to[used++] = digits[byte >> 4];
			to[used++] = digits[byte & 15];
		}
	}
	(void)snprintf(to + used, QUOTED_SIZE - used, "%s", from.size > QUOTED_MAX ? "..." : "");
	return to;
}

static CF_MUST_CHECK ckptfmt_status bad_text(ckptfmt_error *err, const char *what, text whole)
{
	char quoted[QUOTED_SIZE];
	return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "%s in the slice spec \"%s\"", what,
		quote(quoted, whole));
}

static bool is_blank(uint8_t byte)
{
	return byte == ' ' || (byte >= '\t' && byte <= '\r');
}

static bool parse_number(text from, int64_t *out)
{
	int64_t value = 0;
	bool negative = false;
	while (from.size != 0 && is_blank(from.bytes[0])) {
		from.bytes++;
		from.size--;
	}
	while (from.size != 0 && is_blank(from.bytes[from.size - 1]))
		from.size--;
	if (from.size != 0 && (from.bytes[0] == '+' || from.bytes[0] == '-')) {
		negative = from.bytes[0] == '-';
		from.bytes++;
		from.size--;
	}
	if (from.size == 0)
		return false;
	for (uint64_t i = 0; i < from.size; i++) {
		uint8_t byte = from.bytes[i];
		if (byte < '0' || byte > '9')
			return false;
		/* Negative numbers are built downwards: the smallest int64 has no positive counterpart. */
		if (!cf_mul_i64(value, 10, &value) ||
			!cf_add_i64(value, negative ? -(int64_t)(byte - '0') : (int64_t)(byte - '0'), &value))
			return false;
	}
	*out = value;
	return true;
}

/* Takes the bytes up to the next `separator` or the end off the front of *rest; false when nothing is left. */
static bool next_piece(text *rest, uint8_t separator, text *piece)
{
	const uint8_t *found;
	if (rest->size == 0)
		return false;
	found = memchr(rest->bytes, separator, (size_t)rest->size);
	piece->bytes = rest->bytes;
	piece->size = found == NULL ? rest->size : (uint64_t)(found - rest->bytes);
	rest->bytes += piece->size;
	rest->size -= piece->size;
	if (found != NULL) {
		rest->bytes++;
		rest->size--;
	}
	return true;
}

/* The next piece that is not empty. */
static bool next_full_piece(text *rest, uint8_t separator, text *piece)
{
	while (next_piece(rest, separator, piece))
		if (piece->size != 0)
			return true;
	return false;
}

static CF_MUST_CHECK ckptfmt_status parse_extent(text piece, text whole, int64_t *start, int64_t *length,
	ckptfmt_error *err)
{
	text rest = piece, first, second, third;
	*start = 0;
	*length = -1;
	if (piece.size == 1 && piece.bytes[0] == '-')
		return CKPTFMT_OK;
	if (!next_full_piece(&rest, ',', &first) || !next_full_piece(&rest, ',', &second) ||
		next_full_piece(&rest, ',', &third) || !parse_number(first, start) || !parse_number(second, length))
		return bad_text(err, "TXT-5: a dimension that is neither \"-\" nor \"start,length\"", whole);
	if (*start < 0 || *length <= 0)
		return bad_text(err, "TXT-6: a negative start or a length below 1", whole);
	return CKPTFMT_OK;
}

/* Fills the arrays as far as they go and counts all the pieces. */
static CF_MUST_CHECK ckptfmt_status parse_slice(text slice, text whole, uint64_t *count, int64_t *starts,
	int64_t *lengths, ckptfmt_error *err)
{
	text piece;
	*count = 0;
	while (next_full_piece(&slice, ':', &piece)) {
		int64_t start, length;
		CF_TRY(parse_extent(piece, whole, &start, &length, err));
		if (*count < CKPTFMT_RANK_MAX) {
			starts[*count] = start;
			lengths[*count] = length;
		}
		++*count;
	}
	return CKPTFMT_OK;
}

static CF_MUST_CHECK ckptfmt_status parse_dims(text sizes, text whole, uint64_t *count, int64_t *dims,
	ckptfmt_error *err)
{
	*count = 0;
	for (;;) {
		text piece = {sizes.bytes, 0};
		const uint8_t *found = sizes.size == 0 ? NULL : memchr(sizes.bytes, ' ', (size_t)sizes.size);
		int64_t dim;
		piece.size = found == NULL ? sizes.size : (uint64_t)(found - sizes.bytes);
		if (!parse_number(piece, &dim))
			return bad_text(err, "TXT-3: a size that is not a number", whole);
		if (dim < 0)
			return bad_text(err, "TXT-3: a negative size", whole);
		if (*count == CKPTFMT_RANK_MAX)
			return bad_text(err, "TXT-7: more than 254 sizes", whole);
		dims[(*count)++] = dim;
		if (found == NULL)
			return CKPTFMT_OK;
		sizes.bytes += piece.size + 1;
		sizes.size -= piece.size + 1;
	}
}

static CF_MUST_CHECK ckptfmt_status check_fit(text whole, uint64_t rank, const int64_t *dims, const int64_t *starts,
	const int64_t *lengths, ckptfmt_error *err)
{
	int64_t elements;
	if (!cf_shape_count((int32_t)rank, dims, &elements))
		return bad_text(err, "TXT-7: too many elements", whole);
	for (uint64_t d = 0; d < rank; d++)
		if (lengths[d] >= 0 && (starts[d] > dims[d] || lengths[d] > dims[d] - starts[d]))
			return bad_text(err, "TXT-6: a slice past the end of its dimension", whole);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_spec_parse(const uint8_t *bytes, uint64_t size, int32_t *rank, int64_t *dims, int64_t *starts,
	int64_t *lengths, ckptfmt_error *err)
{
	text whole = {bytes, size}, slice, sizes;
	uint64_t slice_rank, shape_rank, last = size;
	*rank = 0;
	if (size == 0) {
		*rank = -1;
		return CKPTFMT_OK;
	}
	/* The last space parts the sizes from the slice; the slice comes first, as in TensorFlow's errors. */
	while (last != 0 && bytes[last - 1] != ' ')
		last--;
	if (last == 0)
		return bad_text(err, "TXT-2: no space between shape and slice", whole);
	slice = (text){bytes + last, size - last};
	sizes = (text){bytes, last - 1};
	CF_TRY(parse_slice(slice, whole, &slice_rank, starts, lengths, err));
	CF_TRY(parse_dims(sizes, whole, &shape_rank, dims, err));
	if (slice_rank != shape_rank)
		return bad_text(err, "TXT-4: shape and slice differ in rank", whole);
	CF_TRY(check_fit(whole, shape_rank, dims, starts, lengths, err));
	*rank = (int32_t)shape_rank;
	return CKPTFMT_OK;
}
