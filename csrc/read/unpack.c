/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compressed values, as far as they go without a decoder of zstd: which chunks a box needs, their stored bytes with
 * checksums and structure checked, and their raw bytes put where the box wants them. Between the last two the caller
 * decodes the frames. Each call stands for itself, so that threads share the runs of a value.
 */
#include "read/reader.h"

#include "base/memory.h"
#include "read/values.h"
#include "read/transfer.h"
#include "slices/box.h"
#include "compress/chunk.h"
#include "slices/gather.h"
#include "proto/string_scan.h"

CF_STATIC_ASSERT(CKPTFMT_WHOLE == CF_WHOLE_TENSOR, "one number for a tensor stored whole");

/* One compressed value, checked as far as the index goes. */
typedef struct packed {
	const ckptfmt_selection *selection;
	const ckptfmt_row *row;
	const ckptfmt_stored *stored;
	const ckptfmt_dtype_info *dtype;
	uint64_t slice;
	uint64_t chunk_count;
} packed;

static uint32_t unit_of(const packed *v)
{
	return v->dtype->storage == CKPTFMT_STORAGE_FIXED ? v->dtype->swap_size : 1;
}

static const ckptfmt_stored *stored_of(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice)
{
	return slice == CF_WHOLE_TENSOR ? &row->stored : &cf_selection_slices(selection, row)[slice].stored;
}

/* Where the stored bytes of a chunk end. */
static uint64_t chunk_end(const packed *v, uint64_t chunk)
{
	return ((const uint64_t *)(const void *)v->selection->chunk_ends.data)[v->stored->ends_first + chunk];
}

static uint64_t chunk_begin(const packed *v, uint64_t chunk)
{
	return chunk == 0 ? 0 : chunk_end(v, chunk - 1);
}

static uint64_t raw_begin(const packed *v, uint64_t chunk)
{
	return cf_min_u64(chunk * v->stored->chunk_size, v->stored->raw_size);
}

static uint64_t raw_size_of(const packed *v, uint64_t chunk)
{
	return raw_begin(v, chunk + 1) - raw_begin(v, chunk);
}

static ckptfmt_status check_row(const ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	ckptfmt_error *err)
{
	CF_TRY(cf_reader_check_call(reader, selection, CKPTFMT_VERIFY_AUTO, err));
	if (row >= cf_selection_count(selection))
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "row %llu of %llu", (unsigned long long)row,
			(unsigned long long)cf_selection_count(selection));
	return CKPTFMT_OK;
}

/* REQUIRES: check_row passed; of a slice, cf_geometry_check_cover did before. */
static ckptfmt_status find_value(const ckptfmt_selection *selection, uint64_t row_number, uint64_t slice, packed *out,
	ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(selection, row_number);
	memset(out, 0, sizeof *out);
	out->selection = selection;
	out->row = row;
	out->slice = slice;
	if (slice == CF_WHOLE_TENSOR ? row->slice_count != 0 : slice >= row->slice_count)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "slice %llu of %lu", (unsigned long long)slice,
			(unsigned long)row->slice_count);
	out->stored = stored_of(selection, row, slice);
	out->dtype = ckptfmt_dtype_find(row->dtype);
	CF_TRY(cf_geometry_check_value(selection, row, slice, out->dtype == NULL ? 0 : out->dtype->size, err));
	if (out->dtype == NULL || (out->stored->flags & CKPTFMT_STORED_COMPRESSED) == 0)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the value is not compressed");
	out->chunk_count = out->stored->raw_size / out->stored->chunk_size +
		(out->stored->raw_size % out->stored->chunk_size != 0);
	return CKPTFMT_OK;
}

/* Says in a failure which tensor and file it is about. */
static ckptfmt_status tell(const ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row_number,
	const ckptfmt_stored *data, ckptfmt_status status, ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(selection, row_number);
	char path[CF_NAME_SIZE + sizeof err->path];
	if (status == CKPTFMT_OK || err == NULL)
		return status;
	cf_error_tensor(err, cf_selection_name(selection, row), row->name_size);
	if (data != NULL) {
		cf_reader_data_path(reader, data->shard, path, sizeof path);
		cf_error_path(err, path);
		cf_error_offset(err, data->offset);
	} else {
		cf_error_path(err, reader->prefix.index_path);
		cf_error_entry(err, row);
	}
	return status;
}

/* find_value of a slice whose tensor's slices nobody has looked at. */
static ckptfmt_status find_placed(const ckptfmt_selection *selection, uint64_t row_number, uint64_t slice, packed *out,
	ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(selection, row_number);
	int64_t count;
	if (slice < row->slice_count)
		CF_TRY(cf_geometry_check_extents(selection, row, slice, &count, err));
	return find_value(selection, row_number, slice, out, err);
}

/* ---- planning -------------------------------------------------------------------------------------------- */

typedef struct planning {
	ckptfmt_reader *reader;
	cf_transfer transfer;
	uint64_t bytes_max;
	ckptfmt_chunk_run *runs;
	uint64_t capacity, count;
} planning;

static void add_run(planning *p, const packed *v, uint64_t first, uint64_t count)
{
	while (count != 0) {
		uint64_t some = cf_min_u64(count, cf_max_u64(p->bytes_max / v->stored->chunk_size, 1));
		if (p->count < p->capacity)
			p->runs[p->count] = (ckptfmt_chunk_run){v->slice, first, some,
				chunk_end(v, first + some - 1) - chunk_begin(v, first),
				raw_begin(v, first + some) - raw_begin(v, first)};
		p->count++;
		first += some;
		count -= some;
	}
}

static ckptfmt_status plan_boxed(planning *p, const packed *v, const int64_t *box, ckptfmt_error *err)
{
	uint64_t first = 0, count = 0;
	cf_plan plan;
	cf_run run;
	CF_TRY(cf_geometry_plan(v->selection, v->row, v->slice, box, v->dtype->size, &plan, err));
	if (p->transfer.verify == CKPTFMT_VERIFY_FULL) {
		add_run(p, v, 0, cf_plan_run_count(&plan) == 0 ? 0 : v->chunk_count);
		return CKPTFMT_OK;
	}
	while (cf_plan_next(&plan, &run)) {
		uint64_t begin = run.stored_offset / v->stored->chunk_size;
		uint64_t end = (run.stored_offset + run.size - 1) / v->stored->chunk_size + 1;
		/* A run may begin in a chunk that is wanted already. */
		begin = cf_max_u64(begin, first + count);
		if (count != 0 && begin > first + count) {
			add_run(p, v, first, count);
			count = 0;
		}
		if (count == 0)
			first = begin;
		if (end > first + count)
			count = end - first;
		/* On to what begins, or goes on, behind the chunks wanted so far. */
		if (run.stored_offset + run.size < (first + count) * v->stored->chunk_size)
			cf_plan_seek(&plan, (first + count) * v->stored->chunk_size);
	}
	add_run(p, v, first, count);
	return CKPTFMT_OK;
}

static ckptfmt_status plan_value(planning *p, const packed *v, const int64_t *box, ckptfmt_error *err)
{
	bool fixed = v->dtype->storage == CKPTFMT_STORAGE_FIXED;
	ckptfmt_status status = CKPTFMT_OK;
	/* CMP-6: STR-2, VAR-2 */
	if (!fixed) {
		const ckptfmt_slice_row *part = v->slice == CF_WHOLE_TENSOR ? NULL
			: &cf_selection_slices(v->selection, v->row)[v->slice];
		int64_t count = v->row->element_count;
		if (part != NULL)
			CF_TRY(cf_geometry_check_extents(v->selection, v->row, v->slice, &count, err));
		status = cf_string_tensor_check_count(v->dtype->storage, (uint64_t)count, v->stored->raw_size,
			v->stored->offset, err);
	}
	if (status == CKPTFMT_OK && v->stored->raw_size > p->reader->limits.tensor_bytes_max)
		status = cf_fail(err, CKPTFMT_FAIL_LIMIT, CF_NO_OFFSET, "CMP-20: a value of %llu bytes",
			(unsigned long long)v->stored->raw_size);
	if (status == CKPTFMT_OK)
		status = cf_transfer_open(&p->transfer, v->stored, err);
	if (status != CKPTFMT_OK) {
		cf_transfer_error(&p->transfer, v->stored, err);
		return status;
	}
	if (fixed && box != NULL)
		return plan_boxed(p, v, box, err);
	add_run(p, v, 0, v->chunk_count);
	return CKPTFMT_OK;
}

static ckptfmt_status plan_row(planning *p, const ckptfmt_selection *selection, uint64_t row_number, const int64_t *box,
	ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(selection, row_number);
	cf_geometry_walk walk;
	uint64_t slice = CF_WHOLE_TENSOR;
	packed v;
	if (box != NULL)
		CF_TRY(cf_box_check_request(row->rank, cf_selection_dims(selection, row->dims_first), box, box + row->rank,
			err));
	if (row->slice_count == 0) {
		if ((row->stored.flags & CKPTFMT_STORED_COMPRESSED) == 0)
			return CKPTFMT_OK;
		CF_TRY(find_value(selection, row_number, slice, &v, err));
		return plan_value(p, &v, box, err);
	}
	CF_TRY(cf_geometry_check_cover(selection, row, box, err));
	walk = cf_geometry_walk_begin(selection, row, box);
	while (cf_geometry_walk_next(&walk, &slice)) {
		if ((stored_of(selection, row, slice)->flags & CKPTFMT_STORED_COMPRESSED) == 0)
			continue;
		CF_TRY(find_value(selection, row_number, slice, &v, err));
		CF_TRY(plan_value(p, &v, box, err));
	}
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_plan_chunks(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	const int64_t *box, int32_t verify, uint64_t bytes_max, ckptfmt_chunk_run *runs, uint64_t capacity, uint64_t *count,
	ckptfmt_error *err)
{
	planning p = {reader, {0}, bytes_max, runs, capacity, 0};
	ckptfmt_status status;
	*count = 0;
	CF_TRY(check_row(reader, selection, row, err));
	CF_TRY(cf_reader_check_call(reader, selection, verify, err));
	cf_transfer_begin(&p.transfer, reader, selection, verify);
	status = plan_row(&p, selection, row, box, err);
	cf_transfer_end(&p.transfer);
	*count = status == CKPTFMT_OK ? p.count : 0;
	return tell(reader, selection, row, NULL, status, err);
}

ckptfmt_status ckptfmt_reader_plan_value(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	uint64_t slice, uint64_t bytes_max, ckptfmt_chunk_run *runs, uint64_t capacity, uint64_t *count,
	ckptfmt_error *err)
{
	planning p = {reader, {0}, bytes_max, runs, capacity, 0};
	ckptfmt_status status;
	packed v;
	*count = 0;
	CF_TRY(check_row(reader, selection, row, err));
	cf_transfer_begin(&p.transfer, reader, selection, CKPTFMT_VERIFY_FULL);
	status = find_placed(selection, row, slice, &v, err);
	if (status == CKPTFMT_OK)
		status = plan_value(&p, &v, NULL, err);
	cf_transfer_end(&p.transfer);
	*count = status == CKPTFMT_OK ? p.count : 0;
	return tell(reader, selection, row, NULL, status, err);
}

/* ---- reading --------------------------------------------------------------------------------------------- */

/* The run is one that ckptfmt_reader_plan_chunks could have given. */
static ckptfmt_status check_run(const packed *v, const ckptfmt_chunk_run *run, ckptfmt_error *err)
{
	if (run->count == 0 || !cf_range_fits(run->first, run->count, v->chunk_count) ||
		run->stored_size != chunk_end(v, run->first + run->count - 1) - chunk_begin(v, run->first) ||
		run->raw_size != raw_begin(v, run->first + run->count) - raw_begin(v, run->first))
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "no run of chunks of this value");
	return CKPTFMT_OK;
}

/* CMP-11, then CMP-12 to CMP-18. */
static ckptfmt_status check_chunk(const packed *v, uint64_t chunk, const uint8_t *bytes, bool verify, cf_chunk *out,
	ckptfmt_error *err)
{
	const uint32_t *crcs = (const uint32_t *)(const void *)v->selection->chunk_crcs.data + v->stored->chunks_first;
	uint64_t origin = v->stored->offset + chunk_begin(v, chunk), size = chunk_end(v, chunk) - chunk_begin(v, chunk);
	if (verify) {
		uint32_t computed = ckptfmt_crc32c(0, bytes, size);
		if (computed != crcs[chunk])
			return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, origin,
				"CMP-11: chunk %llu does not match its checksum: stored 0x%08x, computed 0x%08x",
				(unsigned long long)chunk, crcs[chunk], computed);
	}
	return cf_chunk_parse(bytes, size, raw_size_of(v, chunk), unit_of(v), origin, out, err);
}

static ckptfmt_status find_frames(const packed *v, const ckptfmt_chunk_run *run, bool verify, const uint8_t *stored,
	ckptfmt_frame *frames, uint64_t *count, ckptfmt_error *err)
{
	uint64_t base = chunk_begin(v, run->first);
	for (uint64_t i = run->first; i < run->first + run->count; i++) {
		uint64_t at = chunk_begin(v, i) - base;
		cf_chunk chunk;
		CF_TRY(check_chunk(v, i, stored + at, verify, &chunk, err));
		for (uint32_t p = 0; p < chunk.part_count; p++)
			if (chunk.parts[p].zstd)
				frames[(*count)++] = (ckptfmt_frame){at + chunk.parts[p].offset, chunk.parts[p].size,
					chunk.parts[p].raw_size, i};
	}
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_read_chunks(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	const ckptfmt_chunk_run *run, int32_t verify, uint8_t *stored, ckptfmt_frame *frames, uint64_t *frame_count,
	ckptfmt_error *err)
{
	cf_transfer transfer;
	ckptfmt_status status;
	packed v;
	*frame_count = 0;
	CF_TRY(check_row(reader, selection, row, err));
	CF_TRY(cf_reader_check_call(reader, selection, verify, err));
	CF_TRY(tell(reader, selection, row, NULL, find_value(selection, row, run->slice, &v, err), err));
	CF_TRY(check_run(&v, run, err));
	cf_transfer_begin(&transfer, reader, selection, verify);
	status = cf_transfer_range(&transfer, v.stored, chunk_begin(&v, run->first), run->stored_size, stored, err);
	if (status == CKPTFMT_OK)
		status = find_frames(&v, run, verify != CKPTFMT_VERIFY_OFF, stored, frames, frame_count, err);
	cf_transfer_end(&transfer);
	return tell(reader, selection, row, v.stored, status, err);
}

/* ---- placing --------------------------------------------------------------------------------------------- */

/* Where the raw bytes of a run go. */
typedef struct placing {
	const packed *v;
	bool straight;              /* one after the other: a whole tensor, or strings */
	uint64_t base;              /* the byte of the raw value that goes to the start of `destination` */
	bool nowhere;               /* they are only summed */
	cf_plan plan;
	uint8_t *destination;
	uint8_t *scratch;           /* of a chunk; NULL while `straight` */
	bool swap;
	uint32_t *crcs;
} placing;

static void place_chunk(placing *p, uint64_t chunk, const cf_chunk *parts, const uint8_t *bytes,
	const uint8_t *const *decoded, uint32_t *crc)
{
	uint64_t begin = raw_begin(p->v, chunk), size = raw_size_of(p->v, chunk), end = begin + size;
	uint8_t *to = p->straight ? p->destination + (begin - p->base) : p->scratch;
	cf_run run;
	cf_chunk_join(parts, bytes, decoded, unit_of(p->v), to, size);
	if (crc != NULL)
		*crc = ckptfmt_crc32c(0, to, size);
	if (p->swap)
		cf_swap_bytes(to, size, unit_of(p->v));
	if (p->straight || p->nowhere)
		return;
	cf_plan_seek(&p->plan, begin);
	while (cf_plan_next(&p->plan, &run) && run.stored_offset < end) {
		uint64_t from = cf_max_u64(run.stored_offset, begin), until = cf_min_u64(run.stored_offset + run.size, end);
		memcpy(p->destination + run.destination_offset + (from - run.stored_offset), to + (from - begin),
			(size_t)(until - from));
	}
}

static ckptfmt_status prepare_place(placing *p, const ckptfmt_chunk_run *run, const int64_t *box,
	uint64_t destination_size, ckptfmt_error *err)
{
	const packed *v = p->v;
	bool fixed = v->dtype->storage == CKPTFMT_STORAGE_FIXED;
	uint64_t needed = v->stored->raw_size;
	p->nowhere = p->destination == NULL;
	p->straight = !p->nowhere && (!fixed || (box == NULL && v->slice == CF_WHOLE_TENSOR));
	if (!p->straight) {
		p->scratch = cf_allocate(v->stored->chunk_size);
		if (p->scratch == NULL)
			return cf_fail_memory(err);
	}
	if (p->nowhere)
		return CKPTFMT_OK;
	if (!fixed && destination_size == run->raw_size) {
		p->base = raw_begin(v, run->first);
		return CKPTFMT_OK;
	}
	if (!p->straight) {
		const int64_t *dims = cf_selection_dims(v->selection, v->row->dims_first);
		int64_t count = v->row->element_count;
		if (box != NULL) {
			CF_TRY(cf_box_check_request(v->row->rank, dims, box, box + v->row->rank, err));
			count = cf_box_count(v->row->rank, box + v->row->rank);
		}
		if (!cf_mul_u64((uint64_t)count, v->dtype->size, &needed))
			return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET, "ENT-5: the size in bytes does not fit 64 bits");
		CF_TRY(cf_geometry_plan(v->selection, v->row, v->slice, box, v->dtype->size, &p->plan, err));
	}
	if (needed != destination_size)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the destination has %llu bytes, the value %llu",
			(unsigned long long)destination_size, (unsigned long long)needed);
	return CKPTFMT_OK;
}

static ckptfmt_status place_run(placing *p, const ckptfmt_chunk_run *run, const uint8_t *stored,
	const uint8_t *const *decoded, uint64_t frame_count, ckptfmt_error *err)
{
	uint64_t base = chunk_begin(p->v, run->first);
	for (uint64_t i = run->first; i < run->first + run->count; i++) {
		const uint8_t *bytes = stored + (chunk_begin(p->v, i) - base);
		uint64_t frames = 0;
		cf_chunk chunk;
		/* What was sound before is looked at again: the bytes were out of our hands meanwhile. */
		CF_TRY(check_chunk(p->v, i, bytes, false, &chunk, err));
		for (uint32_t k = 0; k < chunk.part_count; k++)
			frames += chunk.parts[k].zstd;
		if (frames > frame_count)
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "fewer decoded frames than the run has");
		place_chunk(p, i, &chunk, bytes, decoded, p->crcs == NULL ? NULL : p->crcs + (i - run->first));
		decoded += frames;
		frame_count -= frames;
	}
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_place_chunks(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	const ckptfmt_chunk_run *run, const uint8_t *stored, const uint8_t *const *decoded, uint64_t frame_count,
	const int64_t *box, uint8_t *destination, uint64_t destination_size, uint32_t *crcs, ckptfmt_error *err)
{
	packed v;
	placing p = {.v = &v, .destination = destination, .crcs = crcs};
	ckptfmt_status status;
	CF_TRY(check_row(reader, selection, row, err));
	CF_TRY(tell(reader, selection, row, NULL, find_value(selection, row, run->slice, &v, err), err));
	CF_TRY(check_run(&v, run, err));
	p.swap = CF_HOST_BIG_ENDIAN == 1 && unit_of(&v) > 1;
	status = prepare_place(&p, run, box, destination_size, err);
	if (status == CKPTFMT_OK)
		status = place_run(&p, run, stored, decoded, frame_count, err);
	cf_release(p.scratch);
	return tell(reader, selection, row, v.stored, status, err);
}

/* ---- checking -------------------------------------------------------------------------------------------- */

ckptfmt_status ckptfmt_reader_check_raw(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	uint64_t slice, const uint32_t *crcs, uint64_t count, ckptfmt_error *err)
{
	uint32_t crc = 0;
	ckptfmt_status status = CKPTFMT_OK;
	packed v;
	CF_TRY(check_row(reader, selection, row, err));
	CF_TRY(tell(reader, selection, row, NULL, find_value(selection, row, slice, &v, err), err));
	if (count != v.chunk_count)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "%llu checksums of %llu chunks",
			(unsigned long long)count, (unsigned long long)v.chunk_count);
	/* CMP-19; strings and variants are summed element by element, when these are found. */
	if (v.dtype->storage != CKPTFMT_STORAGE_FIXED)
		return CKPTFMT_OK;
	for (uint64_t i = 0; i < count; i++)
		crc = ckptfmt_crc32c_combine(crc, crcs[i], raw_size_of(&v, i));
	if (crc != v.stored->raw_crc32c)
		status = cf_fail(err, CKPTFMT_FAIL_CHECKSUM, v.stored->offset,
			"CMP-19: the raw bytes do not match their checksum: stored 0x%08x, computed 0x%08x",
			v.stored->raw_crc32c, crc);
	return tell(reader, selection, row, v.stored, status, err);
}

struct ckptfmt_strings_scan {
	cf_string_scan scan;
	uint64_t row, slice;
};

static ckptfmt_status begin_scan(const packed *v, ckptfmt_strings_scan *scan, ckptfmt_error *err)
{
	cf_stored_value value = {NULL, v->stored->raw_size, v->stored->offset, (uint64_t)v->row->element_count,
		v->stored->raw_crc32c, false, true};
	int64_t count;
	if (v->dtype->storage != CKPTFMT_STORAGE_STRING && v->dtype->storage != CKPTFMT_STORAGE_VARIANT)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "data type %d holds no strings", (int)v->row->dtype);
	if (v->slice != CF_WHOLE_TENSOR) {
		CF_TRY(cf_geometry_check_extents(v->selection, v->row, v->slice, &count, err));
		value.count = (uint64_t)count;
	}
	CF_TRY(cf_string_tensor_check_count(v->dtype->storage, value.count, value.size, value.origin, err));
	scan->scan = cf_string_scan_begin(v->dtype->storage, &value);
	return CKPTFMT_OK;
}

ckptfmt_status ckptfmt_reader_scan_open(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	uint64_t slice, ckptfmt_strings_scan **out, ckptfmt_error *err)
{
	ckptfmt_strings_scan *scan;
	ckptfmt_status status;
	packed v;
	*out = NULL;
	CF_TRY(check_row(reader, selection, row, err));
	CF_TRY(tell(reader, selection, row, NULL, find_placed(selection, row, slice, &v, err), err));
	scan = cf_allocate_zero(1, sizeof *scan);
	if (scan == NULL)
		return cf_fail_memory(err);
	scan->row = row;
	scan->slice = slice;
	status = begin_scan(&v, scan, err);
	if (status == CKPTFMT_OK)
		*out = scan;
	else
		ckptfmt_strings_scan_free(scan);
	return tell(reader, selection, row, v.stored, status, err);
}

ckptfmt_status ckptfmt_reader_scan_take(ckptfmt_reader *reader, const ckptfmt_selection *selection,
	ckptfmt_strings_scan *scan, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	CF_TRY(check_row(reader, selection, scan->row, err));
	if (size > scan->scan.value.size - scan->scan.taken)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "%llu of %llu bytes left", (unsigned long long)size,
			(unsigned long long)(scan->scan.value.size - scan->scan.taken));
	return tell(reader, selection, scan->row, stored_of(selection, cf_selection_row(selection, scan->row), scan->slice),
		cf_string_scan_take(&scan->scan, bytes, size, err), err);
}

void ckptfmt_strings_scan_free(ckptfmt_strings_scan *scan)
{
	cf_release(scan);
}

ckptfmt_status ckptfmt_reader_bad_frame(ckptfmt_reader *reader, const ckptfmt_selection *selection, uint64_t row,
	uint64_t slice, uint64_t chunk, ckptfmt_error *err)
{
	ckptfmt_status status;
	packed v;
	CF_TRY(check_row(reader, selection, row, err));
	CF_TRY(tell(reader, selection, row, NULL, find_value(selection, row, slice, &v, err), err));
	if (chunk >= v.chunk_count)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "no chunk %llu", (unsigned long long)chunk);
	status = cf_fail(err, CKPTFMT_FAIL_BAD_CHUNK, v.stored->offset + chunk_begin(&v, chunk),
		"CMP-18: a zstd frame of chunk %llu does not decode to what it says", (unsigned long long)chunk);
	return tell(reader, selection, row, v.stored, status, err);
}
