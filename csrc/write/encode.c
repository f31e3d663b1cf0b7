/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group is several values of at most SECTION_SIZE bytes together, or one larger value, which is encoded section by
 * section while it is written. A value is compressed if that saves more than chunks and index cost (CMP-10). A small
 * value is written when that is known. A large one is written as soon as the sections encoded so far save enough; those
 * sections were not stored, and are encoded again.
 */
#include "write/encode.h"

#include "base/memory.h"
#include "base/workers.h"
#include "proto/message.h"

enum {
	VALUE_MIN = 4 << 10,        /* smaller values save less than the entry's extension takes */
	JOB_SIZE = 2 << 20,         /* raw bytes that a thread encodes in one batch */
	SECTION_SIZE = 32 << 20,    /* raw bytes that are encoded in memory before they are written */
	THREADS_MAX = 16,           /* more are limited by memory bandwidth */
	CHUNK_COST = 9,             /* extra bytes of a compressed chunk, in its header and in the index, */
	ENTRY_COST = 32             /* and of its entry */
};

typedef struct job {
	uint64_t section;
	uint64_t begin, size;       /* raw bytes of it: whole chunks */
} job;

static cf_section *section_at(const cf_encoding *e, uint64_t i)
{
	return (cf_section *)cf_buffer_items(&e->sections) + i;
}

static uint64_t section_count(const cf_encoding *e)
{
	return e->sections.size / sizeof(cf_section);
}

static uint64_t *sizes_of(const cf_encoding *e, const cf_section *s)
{
	return (uint64_t *)cf_buffer_items(&e->sizes) + s->first_chunk;
}

static uint32_t *crcs_of(const cf_buffer *crcs, const cf_section *s)
{
	return (uint32_t *)cf_buffer_items(crcs) + s->first_chunk;
}

static uint64_t chunk_count(const cf_section *s)
{
	return cf_chunk_count(s->raw.size, s->raw.chunk_size);
}

static uint64_t job_size(const cf_encoding *e)
{
	return cf_max_u64(JOB_SIZE / e->chunk_size, 1) * e->chunk_size;
}

/* The place of a job's chunks: each has room for its largest encoding. */
static uint64_t job_place(const cf_section *s, uint64_t begin)
{
	return s->place + begin + begin / s->raw.chunk_size * CF_CHUNK_HEAD_MAX;
}

ckptfmt_status cf_encoding_open(cf_encoding *e, const ckptfmt_codec *codec, uint64_t chunk_size, ckptfmt_error *err)
{
	memset(e, 0, sizeof *e);
	e->codec = codec;
	e->chunk_size = chunk_size;
	e->threads = codec->flags & CKPTFMT_CODEC_THREADS ? cf_workers_count(THREADS_MAX) : 1;
	e->encoders = cf_allocate_zero((uint64_t)e->threads, sizeof *e->encoders);
	if (e->encoders == NULL)
		return cf_fail_memory(err);
	for (int32_t i = 0; i < e->threads; i++)
		e->encoders[i].codec = codec;
	return CKPTFMT_OK;
}

static void clear_group(cf_encoding *e)
{
	for (uint64_t i = 0; i < section_count(e); i++)
		cf_buffer_free(&section_at(e, i)->memory);
	cf_buffer_clear(&e->sections);
}

void cf_encoding_close(cf_encoding *e)
{
	clear_group(e);
	for (int32_t i = 0; i < e->threads && e->encoders != NULL; i++)
		cf_encoder_free(&e->encoders[i]);
	cf_release(e->encoders);
	cf_buffer_free(&e->sections);
	cf_buffer_free(&e->jobs);
	cf_buffer_free(&e->coded);
	cf_buffer_free(&e->sizes);
	cf_buffer_free(&e->crcs);
	cf_buffer_free(&e->raw_crcs);
	cf_buffer_free(&e->noise);
}

/* ---- raw bytes ------------------------------------------------------------------------------------------- */

/* Floating-point types of more than a byte, whose sign is in the byte of the exponent. */
static bool rotates(int32_t dtype)
{
	switch (dtype) {
	case CKPTFMT_FLOAT:
	case CKPTFMT_DOUBLE:
	case CKPTFMT_COMPLEX64:
	case CKPTFMT_COMPLEX128:
	case CKPTFMT_BFLOAT16:
	case CKPTFMT_HALF: return true;
	default: return false;
	}
}

static bool is_fixed(const ckptfmt_source *source)
{
	return ckptfmt_dtype_find(source->dtype)->storage == CKPTFMT_STORAGE_FIXED;
}

static cf_raw raw_of(const cf_encoding *e, const ckptfmt_source *source)
{
	uint32_t unit = is_fixed(source) ? ckptfmt_dtype_find(source->dtype)->swap_size : 1;
	return (cf_raw){NULL, 0, e->chunk_size, unit, rotates(source->dtype)};
}

/* Loads all raw bytes of a value: those of the source, or a copy if they are not contiguous. */
static ckptfmt_status load_raw(cf_section *s, ckptfmt_error *err)
{
	cf_gather gather;
	uint8_t *to;
	if (!is_fixed(s->source)) {
		CF_TRY(cf_source_elements(s->source, &s->memory, &s->raw_crc32c, err));
		s->raw.bytes = s->memory.data;
		s->raw.size = s->memory.size;
		return CKPTFMT_OK;
	}
	CF_TRY(cf_source_gather(s->source, &gather, err));
	if (cf_gather_contiguous(&gather, &s->raw.bytes, &s->raw.size))
		return CKPTFMT_OK;
	s->raw.size = cf_gather_size(&gather);
	to = cf_buffer_extend(&s->memory, s->raw.size);
	CF_TRY(cf_buffer_status(&s->memory, err));
	cf_gather_take(&gather, to, s->raw.size);
	s->raw.bytes = to;
	return CKPTFMT_OK;
}

/* Whether the value is not worth compressing, whatever it holds. */
static bool is_stored_raw(const ckptfmt_source *source)
{
	size_t reserved = sizeof CF_RESERVED_PREFIX - 1;
	return cf_source_size(source) < VALUE_MIN ||
		(source->name_size >= reserved && memcmp(source->name, CF_RESERVED_PREFIX, reserved) == 0);
}

/* ---- encoding -------------------------------------------------------------------------------------------- */

/* Chooses how to encode the section. */
static ckptfmt_status choose(cf_encoding *e, cf_encoder *encoder, cf_section *s, ckptfmt_error *err)
{
	uint8_t *noise = e->noise.data + s->first_chunk;
	cf_find_noise(&s->raw, noise);
	return cf_choose(encoder, &s->raw, noise, &s->choice, &s->chosen, err);
}

static ckptfmt_status prepare_one(void *encoding, int32_t thread, uint64_t i, ckptfmt_error *err)
{
	cf_encoding *e = encoding;
	cf_section *s = section_at(e, i);
	ckptfmt_status status;
	if (s->raw.chunk_size == 0)
		return CKPTFMT_OK;
	status = load_raw(s, err);
	if (status == CKPTFMT_OK)
		status = choose(e, &e->encoders[thread], s, err);
	if (status != CKPTFMT_OK)
		cf_error_tensor(err, s->source->name, s->source->name_size);
	return status;
}

static ckptfmt_status encode_job(void *encoding, int32_t thread, uint64_t i, ckptfmt_error *err)
{
	cf_encoding *e = encoding;
	const job *j = (const job *)cf_buffer_items(&e->jobs) + i;
	const cf_section *s = section_at(e, j->section);
	uint64_t first = j->begin / s->raw.chunk_size;
	cf_raw raw = s->raw;
	ckptfmt_status status;
	raw.bytes += j->begin;
	raw.size = j->size;
	status = cf_encode(&e->encoders[thread], &raw, &s->choice, e->noise.data + s->first_chunk + first,
		e->coded.data + job_place(s, j->begin), sizes_of(e, s) + first, crcs_of(&e->crcs, s) + first,
		crcs_of(&e->raw_crcs, s) + first, err);
	if (status != CKPTFMT_OK)
		cf_error_tensor(err, s->source->name, s->source->name_size);
	return status;
}

/* Encodes all sections that are chosen. */
static ckptfmt_status encode_all(cf_encoding *e, ckptfmt_error *err)
{
	cf_buffer_clear(&e->jobs);
	for (uint64_t i = 0; i < section_count(e); i++) {
		const cf_section *s = section_at(e, i);
		for (uint64_t begin = 0; s->chosen && begin < s->raw.size; begin += job_size(e)) {
			job j = {i, begin, cf_min_u64(job_size(e), s->raw.size - begin)};
			cf_put_bytes(&e->jobs, &j, sizeof j);
		}
	}
	CF_TRY(cf_buffer_status(&e->jobs, err));
	return cf_workers_share(e->threads, e->jobs.size / sizeof(job), encode_job, e, err);
}

/* Allocates memory for so many chunks and raw bytes of a group. */
static ckptfmt_status need_room(cf_encoding *e, uint64_t chunks, uint64_t size, ckptfmt_error *err)
{
	struct { cf_buffer *buffer; uint64_t size; } parts[] = {
		{&e->sizes, chunks * sizeof(uint64_t)}, {&e->crcs, chunks * sizeof(uint32_t)},
		{&e->raw_crcs, chunks * sizeof(uint32_t)}, {&e->noise, chunks},
		{&e->coded, size + chunks * CF_CHUNK_HEAD_MAX},
	};
	for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
		cf_buffer_clear(parts[i].buffer);
		(void)cf_buffer_extend(parts[i].buffer, parts[i].size);
		CF_TRY(cf_buffer_status(parts[i].buffer, err));
	}
	return CKPTFMT_OK;
}

/* Makes the sources of the next group sections. A source that is not compressed has chunk size 0. */
static ckptfmt_status collect(cf_encoding *e, const ckptfmt_source *sources, uint64_t count, uint64_t *chunks,
	uint64_t *size, ckptfmt_error *err)
{
	for (uint64_t i = 0; i < count; i++) {
		cf_section s = {.source = &sources[i], .place = *size + *chunks * CF_CHUNK_HEAD_MAX, .first_chunk = *chunks};
		uint64_t own = cf_source_size(&sources[i]);
		if (!is_stored_raw(&sources[i])) {
			if (i != 0 && own > SECTION_SIZE - cf_min_u64(*size, SECTION_SIZE))
				break;
			s.raw = raw_of(e, &sources[i]);
			s.large = own > SECTION_SIZE;
			*size += s.large ? 0 : own;
			*chunks += s.large ? 0 : cf_chunk_count(own, e->chunk_size);
		}
		cf_put_bytes(&e->sections, &s, sizeof s);
		CF_TRY(cf_buffer_status(&e->sections, err));
		if (s.large)
			break;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_encoding_next(cf_encoding *e, const ckptfmt_source *sources, uint64_t count, uint64_t *taken,
	ckptfmt_error *err)
{
	uint64_t chunks = 0, size = 0;
	clear_group(e);
	CF_TRY(collect(e, sources, count, &chunks, &size, err));
	*taken = section_count(e);
	if (section_at(e, 0)->large || size == 0)
		return CKPTFMT_OK;
	CF_TRY(need_room(e, chunks, size, err));
	CF_TRY(cf_workers_share(e->threads, *taken, prepare_one, e, err));
	return encode_all(e, err);
}

/* ---- writing --------------------------------------------------------------------------------------------- */

static uint64_t stored_size(const cf_encoding *e, const cf_section *s)
{
	uint64_t size = 0;
	for (uint64_t i = 0; s->chosen && i < chunk_count(s); i++)
		size += sizes_of(e, s)[i];
	return size;
}

/* The bytes that encoding the section saves. */
static int64_t saved_by(const cf_encoding *e, const cf_section *s)
{
	return s->chosen ? (int64_t)s->raw.size - (int64_t)stored_size(e, s) : 0;
}

static int64_t cost_of(const cf_encoding *e, uint64_t raw_size)
{
	return (int64_t)(CHUNK_COST * cf_chunk_count(raw_size, e->chunk_size)) + ENTRY_COST;
}

static void begin_value(cf_file_writer *file, cf_catalog *catalog, uint64_t number)
{
	cf_catalog_row *row = cf_catalog_row_at(catalog, number);
	row->compressed = true;
	row->chunks_first = catalog->chunk_crcs.size / sizeof(uint32_t);
	row->sizes_first = catalog->chunk_sizes.size / sizeof(uint64_t);
	row->offset = cf_file_writer_position(file);
	catalog->compressed = true;
}

/* Appends the chunks of an encoded section. */
static ckptfmt_status put_section(const cf_encoding *e, const cf_section *s, cf_file_writer *file, cf_catalog *catalog,
	uint64_t number, ckptfmt_error *err)
{
	cf_catalog_row *row = cf_catalog_row_at(catalog, number);
	const uint64_t *sizes = sizes_of(e, s);
	const uint32_t *crcs = crcs_of(&e->crcs, s), *raw_crcs = crcs_of(&e->raw_crcs, s);
	uint64_t count = chunk_count(s), each = job_size(e) / e->chunk_size;
	cf_put_bytes(&catalog->chunk_crcs, crcs, count * sizeof *crcs);
	cf_put_bytes(&catalog->chunk_sizes, sizes, count * sizeof *sizes);
	CF_TRY(cf_buffer_status(&catalog->chunk_crcs, err));
	CF_TRY(cf_buffer_status(&catalog->chunk_sizes, err));
	for (uint64_t first = 0; first < count; first += each) {
		uint64_t size = 0;
		for (uint64_t i = first; i < cf_min_u64(first + each, count); i++) {
			uint64_t raw = cf_min_u64(e->chunk_size, s->raw.size - i * e->chunk_size);
			row->crc32c = ckptfmt_crc32c_combine(row->crc32c, crcs[i], sizes[i]);
			row->raw_crc32c = ckptfmt_crc32c_combine(row->raw_crc32c, raw_crcs[i], raw);
			size += sizes[i];
		}
		CF_TRY(cf_file_writer_put(file, e->coded.data + job_place(s, first * e->chunk_size), size, err));
		row->size += size;
	}
	row->chunk_count += (uint32_t)count;
	row->raw_size += s->raw.size;
	return CKPTFMT_OK;
}

/* A large value that is being encoded. */
typedef struct large {
	cf_gather gather;           /* of FIXED storage, */
	const uint8_t *bytes;       /* where it is not contiguous: else these */
	uint64_t size, done;
} large;

static ckptfmt_status open_large(cf_section *s, large *out, ckptfmt_error *err)
{
	*out = (large){.bytes = s->memory.data, .size = s->memory.size};
	if (!is_fixed(s->source))
		return CKPTFMT_OK;
	CF_TRY(cf_source_gather(s->source, &out->gather, err));
	if (!cf_gather_contiguous(&out->gather, &out->bytes, &out->size))
		*out = (large){.gather = out->gather, .size = cf_gather_size(&out->gather)};
	return CKPTFMT_OK;
}

/* Makes the next section of the value the only one of the group. `staging` is for values that are not contiguous. */
static ckptfmt_status next_section(cf_encoding *e, large *l, cf_section *s, cf_buffer *staging, ckptfmt_error *err)
{
	uint64_t most = SECTION_SIZE / e->chunk_size * e->chunk_size;
	s->raw.size = cf_min_u64(most, l->size - l->done);
	s->place = s->first_chunk = 0;
	if (l->bytes != NULL) {
		s->raw.bytes = l->bytes + l->done;
	} else {
		cf_buffer_clear(staging);
		s->raw.bytes = cf_buffer_extend(staging, s->raw.size);
		CF_TRY(cf_buffer_status(staging, err));
		cf_gather_take(&l->gather, staging->data, s->raw.size);
	}
	l->done += s->raw.size;
	return need_room(e, chunk_count(s), s->raw.size, err);
}

/* Encodes again, and writes, the sections before raw byte `end`. */
static ckptfmt_status write_again(cf_encoding *e, cf_section *s, const cf_choice *choices, uint64_t end,
	cf_buffer *staging, cf_file_writer *file, cf_catalog *catalog, uint64_t number, ckptfmt_error *err)
{
	large again;
	CF_TRY(open_large(s, &again, err));
	for (uint64_t i = 0; again.done < end; i++) {
		CF_TRY(next_section(e, &again, s, staging, err));
		cf_find_noise(&s->raw, e->noise.data);
		s->choice = choices[i];
		s->chosen = true;
		CF_TRY(encode_all(e, err));
		CF_TRY(put_section(e, s, file, catalog, number, err));
	}
	return CKPTFMT_OK;
}

/* *begun: the value was written, compressed. */
static ckptfmt_status encode_large(cf_encoding *e, cf_section *s, cf_choice *choices, cf_buffer *staging,
	cf_file_writer *file, cf_catalog *catalog, uint64_t number, bool *begun, ckptfmt_error *err)
{
	int64_t saved = 0;
	large l;
	CF_TRY(open_large(s, &l, err));
	for (uint64_t i = 0; l.done < l.size; i++) {
		CF_TRY(cf_progress_check(file->progress, err));
		CF_TRY(next_section(e, &l, s, staging, err));
		CF_TRY(choose(e, &e->encoders[0], s, err));
		choices[i] = s->choice;
		s->chosen = s->chosen || *begun;
		CF_TRY(encode_all(e, err));
		saved += saved_by(e, s);
		if (*begun) {
			CF_TRY(put_section(e, s, file, catalog, number, err));
		} else if (saved > cost_of(e, l.size)) {
			*begun = true;
			begin_value(file, catalog, number);
			CF_TRY(write_again(e, s, choices, l.done, staging, file, catalog, number, err));
		}
	}
	return CKPTFMT_OK;
}

static ckptfmt_status write_large(cf_encoding *e, cf_section *s, cf_file_writer *file, cf_catalog *catalog,
	uint64_t number, bool *begun, ckptfmt_error *err)
{
	cf_buffer staging = CF_BUFFER_EMPTY;
	cf_choice *choices;
	ckptfmt_status status = CKPTFMT_OK;
	if (!is_fixed(s->source))
		CF_TRY(cf_source_elements(s->source, &s->memory, &s->raw_crc32c, err));
	choices = cf_allocate_zero(cf_source_size(s->source) / (SECTION_SIZE / 2) + 1, sizeof *choices);
	if (choices == NULL)
		return cf_fail_memory(err);
	status = encode_large(e, s, choices, &staging, file, catalog, number, begun, err);
	cf_buffer_free(&staging);
	cf_release(choices);
	return status;
}

ckptfmt_status cf_encoding_write(cf_encoding *e, uint64_t i, cf_file_writer *file, cf_catalog *catalog, uint64_t number,
	ckptfmt_error *err)
{
	cf_section *s = section_at(e, i);
	bool compressed = false;
	if (s->large) {
		CF_TRY(write_large(e, s, file, catalog, number, &compressed, err));
	} else if (saved_by(e, s) > cost_of(e, s->raw.size)) {
		compressed = true;
		begin_value(file, catalog, number);
		CF_TRY(put_section(e, s, file, catalog, number, err));
	}
	if (!compressed) {
		cf_catalog_row *row = cf_catalog_row_at(catalog, number);
		CF_TRY(cf_value_plan(s->source, (uint32_t)e->chunk_size, row, catalog, err));
		return cf_value_write(file, s->source, (uint32_t)e->chunk_size, row, catalog, err);
	}
	/* CMP-6: the checksum of strings and variants is that of their elements. */
	if (!is_fixed(s->source))
		cf_catalog_row_at(catalog, number)->raw_crc32c = s->raw_crc32c;
	return CKPTFMT_OK;
}
