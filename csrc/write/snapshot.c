/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies of what will be written, made while the caller waits: this is the time that a save in the background costs a
 * training loop. The sources are cut into pieces of some megabytes, which threads share: many small sources, or part of
 * a large one. A strided source is not divided.
 */
#include "base/memory.h"
#include "write/value.h"
#include "base/pages.h"
#include "base/workers.h"

#include <assert.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

enum {
	ALIGNMENT = 64,                 /* of each copy: a cache line */
	PIECE_SIZE = 4 << 20,
	POPULATED_SIZE = 16 * CF_PAGES_UNIT,
	STREAM_SIZE_MIN = 16 << 10      /* measured: below it the cache is the faster way */
};

/* ---- memory ---------------------------------------------------------------------------------------------- */

typedef struct populate_job {
	uint8_t *data;
	uint64_t size;
} populate_job;

static ckptfmt_status populate(void *argument, int32_t thread, uint64_t i, ckptfmt_error *err)
{
	const populate_job *job = argument;
	uint64_t at = i * POPULATED_SIZE;
	(void)thread;
	return cf_pages_populate(job->data + at, cf_min_u64(job->size - at, POPULATED_SIZE), err);
}

ckptfmt_status ckptfmt_memory_take(uint64_t size, int32_t threads, uint8_t **out, ckptfmt_error *err)
{
	populate_job job = {.size = size};
	ckptfmt_status status;
	*out = NULL;
	if (size == 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the size of the memory must not be 0");
	CF_TRY(cf_pages_map(size, &job.data, err));
	status = cf_workers_share(threads, (size - 1) / POPULATED_SIZE + 1, populate, &job, err);
	if (status != CKPTFMT_OK)
		cf_pages_unmap(job.data, size);
	else
		*out = job.data;
	return status;
}

void ckptfmt_memory_give(uint8_t *data, uint64_t size)
{
	cf_pages_unmap(data, size);
}

/* ---- bytes ----------------------------------------------------------------------------------------------- */

/* As memcpy. The copy is read much later, so large ones are stored past the CPU caches: that is twice as fast, because
 * the line to be overwritten is not fetched first, and the program's own data stays cached. */
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

typedef struct piece {
	uint64_t row;
	uint64_t row_count;         /* 0: some bytes of one source */
	uint64_t part, part_size;   /* these bytes */
	uint64_t offset;            /* of the copy of the first source */
} piece;

typedef struct copy_job {
	const ckptfmt_source *sources;
	uint8_t *to;
	cf_buffer pieces;
} copy_job;

static bool is_fixed(const ckptfmt_source *source)
{
	return ckptfmt_dtype_find(source->dtype)->storage == CKPTFMT_STORAGE_FIXED;
}

/* Bytes of its copy. What is not of fixed size is not copied. */
static uint64_t copy_size(const ckptfmt_source *source)
{
	return is_fixed(source) ? cf_source_size(source) : 0;
}

static ckptfmt_status init_gather(cf_gather *gather, const ckptfmt_source *source, ckptfmt_error *err)
{
	return cf_gather_init(gather, source->data, source->rank, source->dims, source->strides,
		ckptfmt_dtype_find(source->dtype)->size, 1, CF_MASK_NONE, err);
}

static uint64_t aligned(uint64_t size)
{
	return (size + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

/* Appends the pieces of a source that is divided. */
static void cut_source(copy_job *job, uint64_t row, uint64_t size, uint64_t offset)
{
	for (uint64_t part = 0; part < size; part += PIECE_SIZE) {
		piece next = {.row = row, .part = part, .part_size = cf_min_u64(PIECE_SIZE, size - part), .offset = offset};
		cf_put_bytes(&job->pieces, &next, sizeof next);
	}
}

static void cut_sources(copy_job *job, uint64_t count)
{
	piece small = {0};
	uint64_t size = 0, offset = 0;
	for (uint64_t row = 0; row < count; row++) {
		uint64_t more = copy_size(&job->sources[row]);
		if (small.row_count != 0 && size + more > PIECE_SIZE) {
			cf_put_bytes(&job->pieces, &small, sizeof small);
			small.row_count = 0;
		}
		if (more > PIECE_SIZE && job->sources[row].strides == NULL) {
			cut_source(job, row, more, offset);
		} else if (small.row_count++ == 0) {
			small = (piece){.row = row, .row_count = 1, .offset = offset};
			size = more;
		} else {
			size += more;
		}
		offset += aligned(more);
	}
	if (small.row_count != 0)
		cf_put_bytes(&job->pieces, &small, sizeof small);
}

/* REQUIRES: as ckptfmt_copy has checked. */
static void copy_whole(const ckptfmt_source *source, uint8_t *to)
{
	cf_gather gather;
	ckptfmt_status status;
	if (source->strides == NULL) {
		copy_bytes(to, source->data, copy_size(source));
		return;
	}
	status = init_gather(&gather, source, NULL);
	assert(status == CKPTFMT_OK);
	(void)status;
	cf_gather_take(&gather, to, cf_gather_size(&gather));
}

static ckptfmt_status copy_piece(void *argument, int32_t thread, uint64_t i, ckptfmt_error *err)
{
	const copy_job *job = argument;
	const piece *p = (const piece *)cf_buffer_items(&job->pieces) + i;
	uint8_t *to = job->to + p->offset;
	(void)thread;
	(void)err;
	if (p->row_count == 0)
		copy_bytes(to + p->part, job->sources[p->row].data + p->part, p->part_size);
	for (uint64_t k = 0; k < p->row_count; k++) {
		const ckptfmt_source *source = &job->sources[p->row + k];
		if (copy_size(source) != 0)
			copy_whole(source, to);
		to += aligned(copy_size(source));
	}
	return CKPTFMT_OK;
}

/* ---- sources --------------------------------------------------------------------------------------------- */

static ckptfmt_status check_source(const ckptfmt_source *source, ckptfmt_error *err)
{
	cf_gather gather;
	CF_TRY(cf_source_check(source, err));
	if (source->strides == NULL)
		return CKPTFMT_OK;
	return init_gather(&gather, source, err);
}

ckptfmt_status ckptfmt_copy_size(const ckptfmt_source *sources, uint64_t count, uint64_t *out, ckptfmt_error *err)
{
	uint64_t total = 0;
	*out = 0;
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_status status = check_source(&sources[i], err);
		/* No sum of two 63-bit numbers overflows. */
		total += status == CKPTFMT_OK ? aligned(copy_size(&sources[i])) : 0;
		if (total > INT64_MAX)
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
	copy_job job = {.sources = sources, .to = to, .pieces = CF_BUFFER_EMPTY};
	uint64_t needed, offset = 0;
	ckptfmt_status status;
	CF_TRY(ckptfmt_copy_size(sources, count, &needed, err));
	if (needed > size)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the copies need %llu bytes, not %llu",
			(unsigned long long)needed, (unsigned long long)size);
	if ((uintptr_t)to % ALIGNMENT != 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the memory must begin at a multiple of %d bytes",
			ALIGNMENT);
	cut_sources(&job, count);
	status = cf_buffer_status(&job.pieces, err);
	if (status == CKPTFMT_OK)
		status = cf_workers_share(threads, job.pieces.size / sizeof(piece), copy_piece, &job, err);
	cf_buffer_free(&job.pieces);
	CF_TRY(status);
	for (uint64_t i = 0; i < count; i++) {
		if (!is_fixed(&sources[i]))
			continue;
		sources[i].data = to + offset;
		sources[i].strides = NULL;
		offset += aligned(copy_size(&sources[i]));
	}
	return CKPTFMT_OK;
}
