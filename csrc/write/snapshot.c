/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of what will be written, made while the caller waits: this is the time that a save beside training costs.
 *
 * The sources are cut into pieces of some megabytes: many small sources, or part of a large one. Threads take the next
 * piece until there is none. A part of an array without gaps is a range of bytes; of any other array it is a range of
 * its outermost dimension, gathered on its own.
 */
#include "base/memory.h"
#include "write/value.h"
#include "base/pages.h"
#include "base/workers.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
	ALIGNMENT = 64,                 /* of each copy: a cache line */
	PIECE_SIZE = 4 << 20,
	PIECE_ROWS = 64,                /* gathering transposed arrays needs some rows at once */
	STREAM_SIZE_MIN = 16 << 10      /* measured: below it the cache is the faster way */
};

/* ---- memory ---------------------------------------------------------------------------------------------- */

typedef struct populate_job {
	pthread_mutex_t lock;
	uint8_t *data;
	uint64_t size;
	uint64_t next;              /* where the part begins that nobody has taken */
	bool failed;
} populate_job;

static void *populate(void *argument)
{
	populate_job *job = argument;
	ckptfmt_status status = CKPTFMT_OK;
	for (;;) {
		uint64_t at, size;
		(void)pthread_mutex_lock(&job->lock);
		job->failed = job->failed || status != CKPTFMT_OK;
		at = job->failed ? job->size : job->next;
		size = cf_min_u64(job->size - at, 16 * CF_PAGES_UNIT);
		job->next = at + size;
		(void)pthread_mutex_unlock(&job->lock);
		if (size == 0)
			return NULL;
		status = cf_pages_populate(job->data + at, size, NULL);
	}
}

ckptfmt_status ckptfmt_memory_take(uint64_t size, int32_t threads, uint8_t **out, ckptfmt_error *err)
{
	populate_job job = {.size = size};
	*out = NULL;
	if (size == 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "no memory was asked for");
	CF_TRY(cf_pages_map(size, &job.data, err));
	if (pthread_mutex_init(&job.lock, NULL) != 0) {
		cf_pages_unmap(job.data, size);
		return cf_fail_memory(err);
	}
	cf_workers_run(threads, populate, &job);
	(void)pthread_mutex_destroy(&job.lock);
	if (job.failed) {
		cf_pages_unmap(job.data, size);
		return cf_fail_memory(err);
	}
	*out = job.data;
	return CKPTFMT_OK;
}

void ckptfmt_memory_give(uint8_t *data, uint64_t size)
{
	cf_pages_unmap(data, size);
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

/* As memcpy. Whoever reads the copy comes much later: where the processor can write past its caches it is twice as
 * fast, because the line to be overwritten is not fetched first, and what the program had in them stays. */
static void copy_bytes(uint8_t *to, const uint8_t *from, uint64_t size)
{
#ifdef __SSE2__
	if (size >= STREAM_SIZE_MIN) {
		uint64_t lines = size / ALIGNMENT;
		assert((uintptr_t)to % ALIGNMENT == 0);
		for (uint64_t i = 0; i < lines; i++, to += ALIGNMENT, from += ALIGNMENT) {
			const __m128i *line = (const __m128i *)(const void *)from;
			__m128i *out = (__m128i *)(void *)to;
			__m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
			__m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
			_mm_stream_si128(out, a);
			_mm_stream_si128(out + 1, b);
			_mm_stream_si128(out + 2, c);
			_mm_stream_si128(out + 3, d);
		}
		_mm_sfence();
		size %= ALIGNMENT;
	}
#endif
	if (size != 0)
		memcpy(to, from, (size_t)size);
}

/* ---- pieces ---------------------------------------------------------------------------------------------- */

typedef struct copy_job {
	pthread_mutex_t lock;
	const ckptfmt_source *sources;
	uint64_t count;
	uint8_t *to;
	/* What nobody has taken begins here. */
	uint64_t row;
	uint64_t part;              /* bytes of that source, or rows */
	uint64_t offset;            /* where its copy begins */
} copy_job;

typedef struct piece {
	uint64_t row;
	uint64_t row_count;         /* 0: part of one source */
	uint64_t part, part_size;
	uint64_t offset;
} piece;

static bool is_fixed(const ckptfmt_source *source)
{
	return ckptfmt_dtype_find(source->dtype)->storage == CKPTFMT_STORAGE_FIXED;
}

/* Bytes of its copy. What is not of fixed size is not copied. */
static uint64_t copy_size(const ckptfmt_source *source)
{
	return is_fixed(source) ? cf_source_size(source) : 0;
}

/* REQUIRES: ckptfmt_copy_size has added it up. */
static uint64_t aligned(uint64_t size)
{
	return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Those before have size 1. REQUIRES: the source has more than one element. */
static int32_t outermost(const ckptfmt_source *source)
{
	int32_t axis = 0;
	while (source->dims[axis] == 1)
		axis++;
	return axis;
}

/* REQUIRES: as ckptfmt_copy has checked. */
static void init_gather(cf_gather *gather, const ckptfmt_source *source, const uint8_t *data, const int64_t *dims)
{
	uint32_t itemsize = ckptfmt_dtype_find(source->dtype)->size;
	ckptfmt_status status = cf_gather_init(gather, data, source->rank, dims, source->strides, itemsize, 1,
		CF_MASK_NONE, NULL);
	assert(status == CKPTFMT_OK);
	(void)status;
}

/* The next piece, false if there is none. The lock is held. */
static bool next_piece(copy_job *job, piece *out)
{
	uint64_t size = 0;
	*out = (piece){.row = job->row, .part = job->part, .offset = job->offset};
	for (; job->row < job->count; job->row++, out->row_count++) {
		uint64_t more = copy_size(&job->sources[job->row]);
		if (more > PIECE_SIZE || size + more > PIECE_SIZE)
			break;
		size += more;
		job->offset += aligned(more);
	}
	if (out->row_count == 0 && job->row < job->count) {
		const ckptfmt_source *source = &job->sources[job->row];
		uint64_t whole = copy_size(source), end = whole;
		out->part_size = PIECE_SIZE;
		if (source->strides != NULL) {
			end = (uint64_t)source->dims[outermost(source)];
			out->part_size = cf_max_u64(PIECE_SIZE / (whole / end), PIECE_ROWS);
		}
		out->part_size = cf_min_u64(out->part_size, end - out->part);
		job->part += out->part_size;
		if (job->part == end) {
			job->row++;
			job->part = 0;
			job->offset += aligned(whole);
		}
		return true;
	}
	return out->row_count != 0;
}

static void copy_part(const ckptfmt_source *source, uint64_t part, uint64_t part_size, uint8_t *to)
{
	int64_t dims[CKPTFMT_RANK_MAX];
	int32_t axis;
	uint64_t row_size;
	cf_gather gather;
	if (source->strides == NULL) {
		copy_bytes(to + part, source->data + part, part_size);
		return;
	}
	axis = outermost(source);
	row_size = copy_size(source) / (uint64_t)source->dims[axis];
	memcpy(dims, source->dims, (size_t)source->rank * sizeof *dims);
	dims[axis] = (int64_t)part_size;
	init_gather(&gather, source, source->data + (int64_t)part * source->strides[axis], dims);
	cf_gather_take(&gather, to + part * row_size, part_size * row_size);
}

static void copy_whole(const ckptfmt_source *source, uint8_t *to)
{
	cf_gather gather;
	if (source->strides == NULL) {
		copy_bytes(to, source->data, copy_size(source));
		return;
	}
	init_gather(&gather, source, source->data, source->dims);
	cf_gather_take(&gather, to, cf_gather_size(&gather));
}

static void *copy_pieces(void *argument)
{
	copy_job *job = argument;
	for (;;) {
		piece mine;
		bool found;
		(void)pthread_mutex_lock(&job->lock);
		found = next_piece(job, &mine);
		(void)pthread_mutex_unlock(&job->lock);
		if (!found)
			return NULL;
		if (mine.row_count == 0)
			copy_part(&job->sources[mine.row], mine.part, mine.part_size, job->to + mine.offset);
		for (uint64_t i = 0; i < mine.row_count; i++) {
			const ckptfmt_source *source = &job->sources[mine.row + i];
			uint64_t size = copy_size(source);
			if (size != 0)
				copy_whole(source, job->to + mine.offset);
			mine.offset += aligned(size);
		}
	}
}

/* ---- sources --------------------------------------------------------------------------------------------- */

static ckptfmt_status check_source(const ckptfmt_source *source, ckptfmt_error *err)
{
	cf_gather gather;
	CF_TRY(cf_source_check(source, err));
	if (source->strides == NULL)
		return CKPTFMT_OK;
	return cf_gather_init(&gather, source->data, source->rank, source->dims, source->strides,
		ckptfmt_dtype_find(source->dtype)->size, 1, CF_MASK_NONE, err);
}

ckptfmt_status ckptfmt_copy_size(const ckptfmt_source *sources, uint64_t count, uint64_t *out, ckptfmt_error *err)
{
	uint64_t total = 0;
	*out = 0;
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_status status = check_source(&sources[i], err);
		uint64_t size;
		if (status == CKPTFMT_OK && (!cf_align_u64(copy_size(&sources[i]), ALIGNMENT, &size) ||
			!cf_add_u64(total, size, &total) || total > INT64_MAX))
			status = cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the copies would not fit 63 bits");
		if (status != CKPTFMT_OK) {
			cf_error_tensor(err, sources[i].name, sources[i].name_size);
			return status;
		}
	}
	*out = total;
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_copy(ckptfmt_source *sources, uint64_t count, uint8_t *to, uint64_t size, int32_t threads,
	ckptfmt_error *err)
{
	copy_job job = {.sources = sources, .count = count, .to = to};
	uint64_t needed, offset = 0;
	CF_TRY(ckptfmt_copy_size(sources, count, &needed, err));
	if (needed > size)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the copies need %llu bytes, and there are %llu",
			(unsigned long long)needed, (unsigned long long)size);
	if ((uintptr_t)to % ALIGNMENT != 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the memory does not begin at a multiple of %d",
			ALIGNMENT);
	if (pthread_mutex_init(&job.lock, NULL) != 0)
		return cf_fail_memory(err);
	/* No more threads than pieces. */
	cf_workers_run((int32_t)cf_min_u64(threads < 1 ? 1 : (uint64_t)threads, needed / PIECE_SIZE + 1), copy_pieces,
		&job);
	(void)pthread_mutex_destroy(&job.lock);
	for (uint64_t i = 0; i < count; i++) {
		if (!is_fixed(&sources[i]))
			continue;
		sources[i].data = to + offset;
		sources[i].strides = NULL;
		offset += aligned(copy_size(&sources[i]));
	}
	return CKPTFMT_OK;
}
