/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The array is a nest of loops over contiguous runs of bytes, merged as in plan.c; the destination is contiguous. A
 * take may begin and end anywhere, also within a run.
 *
 * Three ways to copy, fastest that applies first:
 *   run     the rest of one run by memcpy
 *   tile    several rounds of the innermost loop at once, where the loop around it has the shorter stride (a transposed
 *           matrix): through a small square, so that each cache line of either side is loaded once
 *   stride  one round of the innermost loop, with the size of the run known to the compiler
 */
#include "slices/gather.h"

#include "base/bytes.h"
#include "slices/box.h"

#include <assert.h>

enum {
	TILE_ROWS = 64,                 /* measured: several cache lines for each page of a column */
	PASS_SIZE = 256 * 1024          /* bytes copied before they are swapped: still in the second-level cache */
};

/* At least a cache line of each row of the destination. */
#define TILE_COLUMNS(size) ((size) >= 8 ? 8 : 64 / (size))

static CF_MUST_CHECK ckptfmt_status refuse(ckptfmt_error *err, const char *what)
{
	return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "%s", what);
}

/* As add_dimension of plan.c, with strides of any sign. False for a stride that leads out of int64. */
static CF_MUST_CHECK bool add_dimension(cf_gather *gather, uint64_t count, int64_t stride)
{
	cf_gather_loop *below = gather->loop_count == 0 ? NULL : &gather->loops[gather->loop_count - 1];
	int64_t reach, below_reach;
	if (count == 1)
		return true;
	if (!cf_mul_i64((int64_t)count, stride, &reach))
		return false;
	if (below == NULL && stride >= 0 && (uint64_t)stride == gather->run_size) {
		gather->run_size *= count;
		return true;
	}
	/* It fitted when `below` was added. */
	below_reach = below == NULL ? 0 : (int64_t)below->count * below->stride;
	if (below != NULL && stride == below_reach) {
		below->count *= count;
		return true;
	}
	assert(gather->loop_count < CF_GATHER_LOOPS_MAX);
	gather->loops[gather->loop_count++] = (cf_gather_loop){count, stride, 0};
	return true;
}

/* Offsets are sums of one multiple of each stride: no such sum leaves int64 if those of either sign do not. */
static CF_MUST_CHECK bool offsets_fit(const cf_gather *gather)
{
	int64_t low = 0, high = 0;
	for (uint32_t i = 0; i < gather->loop_count; i++) {
		int64_t reach = (int64_t)gather->loops[i].count * gather->loops[i].stride;
		int64_t *end = reach < 0 ? &low : &high;
		if (!cf_add_i64(*end, reach, end))
			return false;
	}
	return cf_add_i64(high, (int64_t)gather->run_size, &high);
}

ckptfmt_status cf_gather_init(cf_gather *gather, const uint8_t *data, int32_t rank, const int64_t *dims,
	const int64_t *strides, uint32_t itemsize, uint32_t swap_size, uint8_t mask, ckptfmt_error *err)
{
	int64_t count, size;
	assert(itemsize >= 1);
	assert(swap_size == 1 || swap_size == 2 || swap_size == 4 || swap_size == 8);
	assert(itemsize % swap_size == 0);
	gather->data = data;
	gather->at = 0;
	gather->run_size = itemsize;
	gather->run_used = 0;
	gather->size = 0;
	gather->left = 0;
	gather->loop_count = 0;
	gather->itemsize = itemsize;
	gather->swap_size = swap_size;
	gather->mask = mask;
	if (!cf_shape_count(rank, dims, &count))
		return refuse(err, "an array of negative size, of rank above 254 or of more than 2^63 - 1 elements");
	if (!cf_mul_i64(count, itemsize, &size))
		return refuse(err, "an array of more than 2^63 - 1 bytes");
	if (size == 0)
		return CKPTFMT_OK;
	if (strides == NULL) {
		gather->run_size = (uint64_t)size;
	} else {
		for (int32_t d = rank - 1; d >= 0; d--)
			if (!add_dimension(gather, (uint64_t)dims[d], strides[d]))
				return refuse(err, "strides that lead out of the address space");
		if (!offsets_fit(gather))
			return refuse(err, "strides that lead out of the address space");
	}
	gather->size = (uint64_t)size;
	gather->left = gather->size;
	return CKPTFMT_OK;
}

bool cf_gather_contiguous(const cf_gather *gather, const uint8_t **data, uint64_t *size)
{
	if (gather->loop_count != 0 || gather->swap_size != 1 || gather->mask != CF_MASK_NONE)
		return false;
	*data = gather->data;
	*size = gather->size;
	return true;
}

/* ---- copying ---- */

typedef struct one16 {
	uint64_t halves[2];
} one16;

/* Element by element with both sizes constant, so that each step is one load and one store. */
#define DEFINE_COPIES(name, type)                                                                                    \
	static void copy_stride_##name(uint8_t *to, const uint8_t *from, uint64_t count, int64_t stride)             \
	{                                                                                                            \
		for (uint64_t i = 0; i < count; i++) {                                                               \
			type value;                                                                                  \
			memcpy(&value, from + (int64_t)i * stride, sizeof value);                                    \
			memcpy(to + i * sizeof value, &value, sizeof value);                                         \
		}                                                                                                    \
	}                                                                                                            \
	static void copy_tile_##name(uint8_t *to, const uint8_t *from, uint64_t rows, uint64_t columns,              \
		uint64_t row_size, int64_t row_stride, int64_t column_stride)                                        \
	{                                                                                                            \
		type tile[TILE_COLUMNS(sizeof(type))][TILE_ROWS];                                                    \
		for (uint64_t c = 0; c < columns; c++) {                                                             \
			const uint8_t *column = from + (int64_t)c * column_stride;                                   \
			if (row_stride == (int64_t)sizeof(type))                                                     \
				memcpy(tile[c], column, (size_t)rows * sizeof(type));                                \
			else                                                                                         \
				copy_stride_##name((uint8_t *)tile[c], column, rows, row_stride);                    \
		}                                                                                                    \
		for (uint64_t r = 0; r < rows; r++)                                                                  \
			for (uint64_t c = 0; c < columns; c++)                                                       \
				memcpy(to + r * row_size + c * sizeof(type), &tile[c][r], sizeof(type));             \
	}

DEFINE_COPIES(1, uint8_t)
DEFINE_COPIES(2, uint16_t)
DEFINE_COPIES(4, uint32_t)
DEFINE_COPIES(8, uint64_t)
DEFINE_COPIES(16, one16)

static void copy_stride(uint8_t *to, const uint8_t *from, uint64_t count, int64_t stride, uint64_t size)
{
	switch (size) {
	case 1:
		copy_stride_1(to, from, count, stride);
		break;
	case 2:
		copy_stride_2(to, from, count, stride);
		break;
	case 4:
		copy_stride_4(to, from, count, stride);
		break;
	case 8:
		copy_stride_8(to, from, count, stride);
		break;
	case 16:
		copy_stride_16(to, from, count, stride);
		break;
	default:
		for (uint64_t i = 0; i < count; i++)
			memcpy(to + i * size, from + (int64_t)i * stride, (size_t)size);
		break;
	}
}

typedef void copy_tile(uint8_t *to, const uint8_t *from, uint64_t rows, uint64_t columns, uint64_t row_size,
	int64_t row_stride, int64_t column_stride);

/* NULL for a size that has none. */
static copy_tile *tile_for(uint64_t size)
{
	switch (size) {
	case 1:
		return copy_tile_1;
	case 2:
		return copy_tile_2;
	case 4:
		return copy_tile_4;
	case 8:
		return copy_tile_8;
	case 16:
		return copy_tile_16;
	default:
		return NULL;
	}
}

static uint64_t magnitude(int64_t value)
{
	return value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
}

/* How many whole rounds of the innermost loop can be copied as tiles; 0 where that would gain nothing. */
static uint64_t tile_rows(const cf_gather *gather, uint64_t runs)
{
	const cf_gather_loop *columns = &gather->loops[0];
	const cf_gather_loop *rows = &gather->loops[1];
	uint64_t count;
	if (gather->loop_count < 2 || columns->index != 0 || magnitude(rows->stride) >= magnitude(columns->stride) ||
		tile_for(gather->run_size) == NULL)
		return 0;
	count = cf_min_u64(runs / columns->count, rows->count - rows->index);
	return count >= 2 ? count : 0;
}

static void copy_tiles(const cf_gather *gather, uint8_t *to, uint64_t rows)
{
	copy_tile *copy = tile_for(gather->run_size);
	uint64_t columns = gather->loops[0].count;
	int64_t column_stride = gather->loops[0].stride;
	int64_t row_stride = gather->loops[1].stride;
	uint64_t row_size = columns * gather->run_size;
	uint64_t width = TILE_COLUMNS(gather->run_size);
	for (uint64_t r = 0; r < rows; r += TILE_ROWS)
		for (uint64_t c = 0; c < columns; c += width)
			copy(to + r * row_size + c * gather->run_size,
				gather->data + gather->at + (int64_t)r * row_stride + (int64_t)c * column_stride,
				cf_min_u64(rows - r, TILE_ROWS), cf_min_u64(columns - c, width), row_size, row_stride,
				column_stride);
}

/* Moves `steps` on in loop number `from`, carrying into those around it. REQUIRES: no more than that loop has left. */
static void advance(cf_gather *gather, uint32_t from, uint64_t steps)
{
	for (uint32_t i = from; i < gather->loop_count; i++) {
		cf_gather_loop *loop = &gather->loops[i];
		loop->index += steps;
		gather->at += (int64_t)steps * loop->stride;
		if (loop->index < loop->count)
			return;
		gather->at -= (int64_t)loop->count * loop->stride;
		loop->index = 0;
		steps = 1;
	}
}

/* Copies by one of the three ways; returns the bytes written, at least 1. */
static uint64_t copy_some(cf_gather *gather, uint8_t *to, uint64_t size)
{
	uint64_t runs = size / gather->run_size;
	uint64_t rows, steps;
	if (gather->run_used != 0 || runs == 0 || gather->loop_count == 0) {
		uint64_t part = cf_min_u64(size, gather->run_size - gather->run_used);
		memcpy(to, gather->data + gather->at + gather->run_used, (size_t)part);
		gather->run_used += part;
		if (gather->run_used == gather->run_size) {
			gather->run_used = 0;
			advance(gather, 0, 1);
		}
		return part;
	}
	rows = tile_rows(gather, runs);
	if (rows != 0) {
		copy_tiles(gather, to, rows);
		advance(gather, 1, rows);
		return rows * gather->loops[0].count * gather->run_size;
	}
	steps = cf_min_u64(runs, gather->loops[0].count - gather->loops[0].index);
	copy_stride(to, gather->data + gather->at, steps, gather->loops[0].stride, gather->run_size);
	advance(gather, 0, steps);
	return steps * gather->run_size;
}

static void apply_mask(uint8_t *data, uint64_t size, uint8_t mask)
{
	for (uint64_t i = 0; i < size; i++)
		data[i] &= mask;
}

/* How much to copy before going over it again. Tiles need several rows at once, however long those are. */
static uint64_t pass_size(const cf_gather *gather)
{
	uint64_t pass = PASS_SIZE;
	if (gather->swap_size == 1 && gather->mask == CF_MASK_NONE)
		return UINT64_MAX;
	if (gather->loop_count != 0)
		pass = cf_max_u64(pass, TILE_ROWS * cf_min_u64(gather->size / TILE_ROWS,
			gather->loops[0].count * gather->run_size));
	/* A pass ends between elements, or the bytes of one would be swapped apart. */
	return cf_max_u64(pass - pass % gather->itemsize, gather->itemsize);
}

void cf_gather_take(cf_gather *gather, uint8_t *to, uint64_t size)
{
	uint64_t pass_max = pass_size(gather);
	assert(size % gather->itemsize == 0);
	assert(size <= gather->left);
	gather->left -= size;
	while (size != 0) {
		uint64_t pass = cf_min_u64(size, pass_max);
		uint64_t done = 0;
		while (done < pass)
			done += copy_some(gather, to + done, pass - done);
		cf_swap_bytes(to, pass, gather->swap_size);
		if (gather->mask != CF_MASK_NONE)
			apply_mask(to, pass, gather->mask);
		to += pass;
		size -= pass;
	}
}

#define DEFINE_SWAP(bits)                                                                   \
	static void swap_##bits(uint8_t *data, uint64_t size)                               \
	{                                                                                   \
		for (uint64_t i = 0; i < size; i += sizeof(uint##bits##_t)) {               \
			uint##bits##_t value;                                               \
			memcpy(&value, data + i, sizeof value);                             \
			value = __builtin_bswap##bits(value);                               \
			memcpy(data + i, &value, sizeof value);                             \
		}                                                                           \
	}

DEFINE_SWAP(16)
DEFINE_SWAP(32)
DEFINE_SWAP(64)

void cf_swap_bytes(uint8_t *data, uint64_t size, uint32_t swap_size)
{
	assert(swap_size == 1 || swap_size == 2 || swap_size == 4 || swap_size == 8);
	assert(size % swap_size == 0);
	if (swap_size == 2)
		swap_16(data, size);
	else if (swap_size == 4)
		swap_32(data, size);
	else if (swap_size == 8)
		swap_64(data, size);
}
