/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A value is delivered in one of five ways:
 *   whole, straight into the caller's memory, checksummed while the bytes are in cache;
 *   whole and large, by direct I/O if it is not in the page cache: several reads are under way while one is copied and
 *   checksummed;
 *   whole, from a window that was read for several small neighbours at once;
 *   in part, after all of it was read and checked in the staging memory (small values, or on request);
 *   in part, reading only the chunks that are touched, each checked, several at once or, if one does not fit the
 *   staging memory, piece by piece; without chunk checksums only the requested bytes (and gaps too small to be worth
 *   another system call).
 */
#include "read/transfer.h"

#include "base/memory.h"

#include <assert.h>
#include <string.h>

enum {
	PIECE_SIZE = 512 << 10,     /* checksummed while it is still in the cache of the core that read it */
	LFS_POINTER_SIZE = 1024,    /* the most that the specification of Git LFS allows */
	RUN_STEP = 8 << 20          /* unchecked bytes are read in larger pieces, between which progress is reported */
};

void cf_transfer_begin(cf_transfer *transfer, ckptfmt_reader *reader, const ckptfmt_selection *selection,
	int32_t verify)
{
	memset(transfer, 0, sizeof *transfer);
	transfer->reader = reader;
	transfer->selection = selection;
	transfer->verify = verify;
	transfer->use.file.fd = -1;
}

static bool has_latency(const cf_transfer *transfer)
{
	return cf_os_has_latency(&transfer->reader->directory);
}

static void leave_shard(cf_transfer *transfer)
{
	if (transfer->shard_open)
		cf_shards_done(&transfer->reader->shards, &transfer->use);
	cf_os_direct_end(transfer->direct);
	transfer->direct = NULL;
	transfer->direct_tried = false;
	transfer->shard_open = false;
	transfer->window_size = 0;
}

void cf_transfer_end(cf_transfer *transfer)
{
	leave_shard(transfer);
	cf_release(transfer->staging);
	transfer->staging = NULL;
	cf_fetch_free(&transfer->fetch);
	cf_decoder_free(&transfer->decoder);
	cf_buffer_free(&transfer->coded);
	cf_buffer_free(&transfer->raw);
}

void cf_transfer_error(const cf_transfer *transfer, const ckptfmt_stored *stored, ckptfmt_error *err)
{
	char path[sizeof err->path];
	if (err == NULL)
		return;
	cf_reader_data_path(transfer->reader, stored->shard, path, sizeof path);
	cf_error_offset(err, stored->offset);
	cf_error_path(err, path);
}

static ckptfmt_status fail_short(uint64_t end, ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, end, "DAT-2: the data file ended while it was read");
}

static ckptfmt_status read_exactly(cf_transfer *transfer, uint8_t *to, uint64_t size, uint64_t offset,
	ckptfmt_error *err)
{
	char path[CF_NAME_SIZE];
	uint64_t got;
	ckptfmt_status status = has_latency(transfer)
		? cf_fetch_read(&transfer->fetch, transfer->reader, transfer->shard, &transfer->use, to, size, offset, &got,
			err)
		: cf_os_read_at(&transfer->use.file, "", to, size, offset, &got, err);
	if (status != CKPTFMT_OK) {
		/* The path is worth composing only for a failure. */
		cf_reader_data_path(transfer->reader, transfer->shard, path, sizeof path);
		cf_error_path(err, path);
		cf_error_offset(err, offset);
		return status;
	}
	return got < size ? fail_short(offset + got, err) : cf_progress_add(transfer->progress, size, err);
}

/* Whether the data file is the text that Git LFS leaves in place of a file that was not fetched. */
static bool is_lfs_pointer(cf_transfer *transfer)
{
	static const char first[] = "version https://git-lfs";
	uint8_t head[sizeof first - 1];
	return transfer->use.size >= sizeof head && transfer->use.size <= LFS_POINTER_SIZE &&
		read_exactly(transfer, head, sizeof head, 0, NULL) == CKPTFMT_OK &&
		memcmp(head, first, sizeof head) == 0;
}

ckptfmt_status cf_transfer_open(cf_transfer *transfer, const ckptfmt_stored *stored, ckptfmt_error *err)
{
	if (!transfer->shard_open || transfer->shard != stored->shard) {
		leave_shard(transfer);
		CF_TRY(cf_reader_shard(transfer->reader, stored->shard, &transfer->use, err));
		transfer->shard = stored->shard;
		transfer->shard_open = true;
	}
	/* DAT-2. A value of no bytes is whole wherever its file ends. */
	if (stored->size == 0 || cf_range_fits(stored->offset, stored->size, transfer->use.size))
		return CKPTFMT_OK;
	if (is_lfs_pointer(transfer))
		return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, stored->offset,
			"DAT-2: the data file is a Git LFS pointer: the file itself was never fetched (`git lfs pull`)");
	return cf_fail(err, CKPTFMT_FAIL_TRUNCATED, stored->offset,
		"DAT-2: %llu bytes at %llu, but the data file has %llu; it was cut short, or index and data "
		"belong to different saves",
		(unsigned long long)stored->size, (unsigned long long)stored->offset,
		(unsigned long long)transfer->use.size);
}

void cf_transfer_expect(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t begin, uint64_t end)
{
	uint64_t offset;
	if (has_latency(transfer) && begin < end && cf_add_u64(stored->offset, begin, &offset))
		cf_fetch_expect(&transfer->fetch, stored->shard, offset, end - begin);
}

static ckptfmt_status need_staging(cf_transfer *transfer, ckptfmt_error *err)
{
	if (transfer->staging == NULL)
		transfer->staging = cf_allocate(CF_WINDOW_SIZE);
	return transfer->staging == NULL ? cf_fail_memory(err) : CKPTFMT_OK;
}

static ckptfmt_status check_crc(uint64_t offset, uint32_t stored, uint32_t computed, ckptfmt_error *err)
{
	if (CF_LIKELY(stored == computed))
		return CKPTFMT_OK;
	/* DAT-6 */
	return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, offset,
		"DAT-6: Checksum does not match: stored 0x%08x, computed 0x%08x", stored, computed);
}

static ckptfmt_status check_chunk_crc(uint64_t offset, uint32_t stored, uint32_t computed, ckptfmt_error *err)
{
	if (CF_LIKELY(stored == computed))
		return CKPTFMT_OK;
	return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, offset,
		"EXT-9: Checksum does not match for a chunk: stored 0x%08x, computed 0x%08x", stored, computed);
}

ckptfmt_status cf_transfer_check_empty(const ckptfmt_stored *stored, ckptfmt_error *err)
{
	if (CF_LIKELY(stored->crc32c == 0))
		return CKPTFMT_OK;
	return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, CF_NO_OFFSET,
		"ENT-8: the checksum of no bytes is 0, not 0x%08x", stored->crc32c);
}

/* ---- whole ----------------------------------------------------------------------------------------------- */

static bool in_window(const cf_transfer *transfer, uint64_t offset, uint64_t size)
{
	return offset >= transfer->window_offset && offset - transfer->window_offset <= transfer->window_size &&
		size <= transfer->window_size - (offset - transfer->window_offset);
}

static ckptfmt_status fill_window(cf_transfer *transfer, uint64_t offset, uint64_t size, ckptfmt_error *err)
{
	CF_TRY(need_staging(transfer, err));
	transfer->window_size = 0;
	CF_TRY(read_exactly(transfer, transfer->staging, size, offset, err));
	transfer->window_offset = offset;
	transfer->window_size = size;
	return CKPTFMT_OK;
}

ckptfmt_status cf_transfer_show(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t done, uint64_t size,
	uint64_t ahead, const uint8_t **bytes, ckptfmt_error *err)
{
	uint64_t offset = stored->offset + done;
	CF_TRY(cf_transfer_open(transfer, stored, err));
	if (!in_window(transfer, offset, size)) {
		uint64_t end = cf_min_u64(cf_min_u64(ahead, transfer->use.size), offset + CF_WINDOW_SIZE);
		CF_TRY(fill_window(transfer, offset, cf_max_u64(end, offset + size) - offset, err));
	}
	*bytes = transfer->staging + (offset - transfer->window_offset);
	return CKPTFMT_OK;
}

static ckptfmt_status whole_from_window(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t ahead, bool check,
	uint8_t *destination, ckptfmt_error *err)
{
	const uint8_t *source;
	CF_TRY(cf_transfer_show(transfer, stored, 0, stored->size, ahead, &source, err));
	if (!check) {
		memcpy(destination, source, (size_t)stored->size);
		return CKPTFMT_OK;
	}
	return check_crc(stored->offset, stored->crc32c,
		ckptfmt_crc32c_copy(0, destination, source, stored->size), err);
}

/* Whether the value is read by direct I/O; if so, opens it. */
static bool goes_direct(cf_transfer *transfer, const ckptfmt_stored *stored)
{
	const ckptfmt_reader *reader = transfer->reader;
	if (stored->size < CF_DIRECT_VALUE || (transfer->direct_tried && transfer->direct == NULL) ||
		cf_os_is_cached(&transfer->use.file, stored->offset, stored->size))
		return false;
	if (!transfer->direct_tried) {
		char name[CF_NAME_SIZE];
		cf_data_name(reader->prefix.base, transfer->shard, reader->header.num_shards, name);
		transfer->direct = cf_os_direct_read(&reader->directory, name, reader->follow_symlinks,
			&transfer->use.file);
		transfer->direct_tried = true;
	}
	return transfer->direct != NULL;
}

/* A value that is read by direct I/O. If the destination is aligned, the blocks that are wholly part of it are read in
 * place. All others are read into the memory of the slots and copied. */
typedef struct direct_value {
	uint64_t offset, end;
	uint8_t *destination;
	bool straight;
} direct_value;

static bool is_inner(const direct_value *v, uint64_t at)
{
	return v->straight && at >= v->offset && v->end - at >= CF_DIRECT_ALIGNMENT;
}

/* Bytes of the blocks from `at` on that go in one transfer. */
static uint64_t blocks_size(const direct_value *v, uint64_t at)
{
	uint64_t left = v->end - at;
	if (is_inner(v, at))
		return cf_min_u64(left / CF_DIRECT_ALIGNMENT * CF_DIRECT_ALIGNMENT, CF_DIRECT_SLOT_SIZE);
	if (v->straight)
		return CF_DIRECT_ALIGNMENT;
	return cf_min_u64((left + CF_DIRECT_ALIGNMENT - 1) / CF_DIRECT_ALIGNMENT * CF_DIRECT_ALIGNMENT,
		CF_DIRECT_SLOT_SIZE);
}

/* Returns where they end. */
static uint64_t start_blocks(cf_transfer *transfer, const direct_value *v, unsigned slot, uint64_t at)
{
	uint64_t size = blocks_size(v, at);
	uint8_t *to = is_inner(v, at) ? v->destination + (at - v->offset) : NULL;
	bool placed = cf_os_direct_place(transfer->direct, slot, to);
	assert(placed);
	(void)placed;
	/* Pages that the system may take away (MADV_FREE) are written to first: kernels before 5.18 take them even
	 * while a file is read into them. */
	for (uint64_t i = 0; to != NULL && i < size; i += CF_DIRECT_ALIGNMENT)
		((volatile uint8_t *)to)[i] = 0;
	cf_os_direct_start(transfer->direct, slot, size, at);
	return at + size;
}

/* REQUIRES: the value is inside the file, and goes_direct. */
static ckptfmt_status read_direct(cf_transfer *transfer, const ckptfmt_stored *stored, bool check, uint8_t *destination,
	uint32_t *crc, ckptfmt_error *err)
{
	direct_value v = {stored->offset, stored->offset + stored->size, destination, false};
	uint64_t at = v.offset - v.offset % CF_DIRECT_ALIGNMENT, ahead = at;
	v.straight = cf_os_direct_place(transfer->direct, 0,
		destination + (CF_DIRECT_ALIGNMENT - v.offset % CF_DIRECT_ALIGNMENT) % CF_DIRECT_ALIGNMENT);
	for (unsigned slot = 0; slot < CF_DIRECT_SLOTS && ahead < v.end; slot++)
		ahead = start_blocks(transfer, &v, slot, ahead);
	for (unsigned slot = 0; at < v.end; slot = (slot + 1) % CF_DIRECT_SLOTS) {
		uint64_t size = blocks_size(&v, at), from = cf_max_u64(at, v.offset), to = cf_min_u64(at + size, v.end), got;
		uint8_t *place = destination + (from - v.offset);
		const uint8_t *bytes = cf_os_direct_memory(transfer->direct, slot) + (from - at);
		ckptfmt_status status = cf_os_direct_wait(transfer->direct, slot, "", &got, err);
		if (status == CKPTFMT_OK && got < to - at)
			status = fail_short(cf_max_u64(at + got, v.offset), err);
		CF_TRY(status);
		if (bytes == place)
			*crc = check ? ckptfmt_crc32c(*crc, place, to - from) : 0;
		else if (check)
			*crc = ckptfmt_crc32c_copy(*crc, place, bytes, to - from);
		else
			memcpy(place, bytes, (size_t)(to - from));
		CF_TRY(cf_progress_add(transfer->progress, to - from, err));
		at += size;
		if (ahead < v.end)
			ahead = start_blocks(transfer, &v, slot, ahead);
	}
	return CKPTFMT_OK;
}

static ckptfmt_status whole_direct(cf_transfer *transfer, const ckptfmt_stored *stored, bool check,
	uint8_t *destination, ckptfmt_error *err)
{
	uint32_t crc = 0;
	ckptfmt_status status = read_direct(transfer, stored, check, destination, &crc, err);
	if (status != CKPTFMT_OK) {
		/* Slots are under way. */
		cf_os_direct_end(transfer->direct);
		transfer->direct = NULL;
		return status;
	}
	return check ? check_crc(stored->offset, stored->crc32c, crc, err) : CKPTFMT_OK;
}

/* In steps of so many bytes; crc may be NULL. */
static ckptfmt_status read_steps(cf_transfer *transfer, uint64_t offset, uint64_t size, uint64_t step,
	uint8_t *destination, uint32_t *crc, ckptfmt_error *err)
{
	if (has_latency(transfer) && size >= CF_FETCH_DIRECT)
		step = CF_FETCH_WINDOW;
	for (uint64_t done = 0; done < size;) {
		uint64_t part = cf_min_u64(step, size - done);
		CF_TRY(read_exactly(transfer, destination + done, part, offset + done, err));
		if (crc != NULL)
			*crc = ckptfmt_crc32c(*crc, destination + done, part);
		done += part;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_transfer_whole(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t ahead, bool check,
	uint8_t *destination, ckptfmt_error *err)
{
	uint32_t crc = 0;
	uint64_t step = check ? PIECE_SIZE : UINT64_MAX;
	check = check && transfer->verify != CKPTFMT_VERIFY_OFF;
	CF_TRY(cf_transfer_open(transfer, stored, err));
	if (stored->size == 0)
		return check ? cf_transfer_check_empty(stored, err) : CKPTFMT_OK;
	if (stored->size <= CF_SMALL_VALUE && ahead > stored->offset + stored->size)
		return whole_from_window(transfer, stored, ahead, check, destination, err);
	if (in_window(transfer, stored->offset, stored->size))
		return whole_from_window(transfer, stored, 0, check, destination, err);
	if (goes_direct(transfer, stored))
		return whole_direct(transfer, stored, check, destination, err);
	CF_TRY(read_steps(transfer, stored->offset, stored->size, step, destination, check ? &crc : NULL, err));
	return check ? check_crc(stored->offset, stored->crc32c, crc, err) : CKPTFMT_OK;
}

bool cf_transfer_is_direct(cf_transfer *transfer, const ckptfmt_stored *stored)
{
	return cf_transfer_open(transfer, stored, NULL) == CKPTFMT_OK && goes_direct(transfer, stored);
}

ckptfmt_status cf_transfer_piece(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t done, uint64_t size,
	uint8_t *destination, uint32_t *crc, ckptfmt_error *err)
{
	*crc = 0;
	CF_TRY(cf_transfer_open(transfer, stored, err));
	return read_steps(transfer, stored->offset + done, size, PIECE_SIZE, destination,
		transfer->verify == CKPTFMT_VERIFY_OFF ? NULL : crc, err);
}

ckptfmt_status cf_transfer_check(const ckptfmt_stored *stored, uint32_t crc, ckptfmt_error *err)
{
	if ((stored->flags & CKPTFMT_STORED_COMPRESSED) && crc != stored->raw_crc32c)
		return cf_fail(err, CKPTFMT_FAIL_CHECKSUM, stored->offset,
			"CMP-19: Checksum does not match for the raw bytes: stored 0x%08x, computed 0x%08x",
			stored->raw_crc32c, crc);
	if (stored->flags & CKPTFMT_STORED_COMPRESSED)
		return CKPTFMT_OK;
	return check_crc(stored->offset, stored->crc32c, crc, err);
}

ckptfmt_status cf_transfer_range(cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t done, uint64_t size,
	uint8_t *destination, ckptfmt_error *err)
{
	CF_TRY(cf_transfer_open(transfer, stored, err));
	return read_exactly(transfer, destination, size, stored->offset + done, err);
}

/* ---- part ------------------------------------------------------------------------------------------------ */

/* Copies the bytes of the plan that are among the stored bytes [begin, begin + size), which are at `from`. *run is the
 * current run; *left is false after the last. */
static void scatter(cf_plan *plan, cf_run *run, bool *left, const uint8_t *from, uint64_t begin, uint64_t size,
	uint8_t *destination)
{
	uint64_t end = begin + size;
	while (*left && run->stored_offset < end) {
		uint64_t count = cf_min_u64(run->size, end - run->stored_offset);
		memcpy(destination + run->destination_offset, from + (run->stored_offset - begin), (size_t)count);
		run->stored_offset += count;
		run->destination_offset += count;
		run->size -= count;
		if (run->size == 0)
			*left = cf_plan_next(plan, run);
	}
}

static ckptfmt_status check_chunks(const cf_transfer *transfer, const ckptfmt_stored *stored, uint64_t begin,
	uint64_t size, ckptfmt_error *err)
{
	const uint32_t *crcs = (const uint32_t *)cf_buffer_items(&transfer->selection->chunk_crcs) + stored->chunks_first;
	for (uint64_t done = 0; done < size; done += stored->chunk_size) {
		uint64_t count = cf_min_u64(stored->chunk_size, size - done);
		CF_TRY(check_chunk_crc(stored->offset + begin + done, crcs[(begin + done) / stored->chunk_size],
			ckptfmt_crc32c(0, transfer->staging + done, count), err));
	}
	return CKPTFMT_OK;
}

/* Where the read for the run at hand should end: behind as many of the following runs as fit the staging memory without
 * much between them. `plan` is a copy: looking ahead must not move the real one. */
static uint64_t read_end(cf_plan *plan, const cf_run *run, uint64_t begin, uint64_t gap_max)
{
	uint64_t end = run->stored_offset + run->size;
	cf_run next;
	while (end - begin < CF_WINDOW_SIZE && cf_plan_next(plan, &next)) {
		if (next.stored_offset - end > gap_max)
			break;
		end = next.stored_offset + next.size;
	}
	return cf_min_u64(end, begin + CF_WINDOW_SIZE);
}

/* The value as a whole, or chunks that do not fit the staging memory: each one that the plan touches is read, summed
 * and delivered in pieces, and checked at its end. */
static ckptfmt_status part_by_pieces(cf_transfer *transfer, const ckptfmt_stored *stored, bool whole, cf_plan *plan,
	uint8_t *destination, ckptfmt_error *err)
{
	const uint32_t *crcs = (const uint32_t *)cf_buffer_items(&transfer->selection->chunk_crcs) + stored->chunks_first;
	uint64_t unit = whole ? stored->size : stored->chunk_size;
	cf_run run;
	bool left = cf_plan_next(plan, &run);
	CF_TRY(need_staging(transfer, err));
	transfer->window_size = 0;
	while (left) {
		uint64_t row = run.stored_offset / unit, begin = row * unit;
		uint64_t end = begin + cf_min_u64(unit, stored->size - begin);
		uint32_t crc = 0;
		for (uint64_t at = begin; at < end;) {
			uint64_t size = cf_min_u64(PIECE_SIZE, end - at);
			CF_TRY(read_exactly(transfer, transfer->staging, size, stored->offset + at, err));
			crc = ckptfmt_crc32c(crc, transfer->staging, size);
			scatter(plan, &run, &left, transfer->staging, at, size, destination);
			at += size;
		}
		CF_TRY(whole ? check_crc(stored->offset, stored->crc32c, crc, err)
			: check_chunk_crc(stored->offset + begin, crcs[row], crc, err));
	}
	return CKPTFMT_OK;
}

/* Reads the chunks that the plan touches, checks each, and delivers. */
static ckptfmt_status part_by_chunks(cf_transfer *transfer, const ckptfmt_stored *stored, cf_plan *plan,
	uint8_t *destination, ckptfmt_error *err)
{
	uint64_t chunk = stored->chunk_size;
	cf_run run;
	bool left = cf_plan_next(plan, &run);
	CF_TRY(need_staging(transfer, err));
	transfer->window_size = 0;
	while (left) {
		uint64_t begin = run.stored_offset / chunk * chunk;
		cf_plan ahead = *plan;
		uint64_t end = read_end(&ahead, &run, begin, chunk);
		/* Whole chunks only, and no more than staging takes. */
		end = cf_min_u64(begin + CF_WINDOW_SIZE / chunk * chunk, (end + chunk - 1) / chunk * chunk);
		end = cf_min_u64(end, stored->size);
		CF_TRY(read_exactly(transfer, transfer->staging, end - begin, stored->offset + begin, err));
		CF_TRY(check_chunks(transfer, stored, begin, end - begin, err));
		scatter(plan, &run, &left, transfer->staging, begin, end - begin, destination);
	}
	return CKPTFMT_OK;
}

/* Reads only the requested bytes, unchecked. */
static ckptfmt_status part_unchecked(cf_transfer *transfer, const ckptfmt_stored *stored, cf_plan *plan,
	uint8_t *destination, ckptfmt_error *err)
{
	cf_run run;
	bool left = cf_plan_next(plan, &run);
	while (left) {
		uint64_t end;
		cf_plan ahead;
		if (run.size >= CF_SMALL_VALUE) {
			CF_TRY(read_steps(transfer, stored->offset + run.stored_offset, run.size, RUN_STEP,
				destination + run.destination_offset, NULL, err));
			left = cf_plan_next(plan, &run);
			continue;
		}
		CF_TRY(need_staging(transfer, err));
		transfer->window_size = 0;
		ahead = *plan;
		end = read_end(&ahead, &run, run.stored_offset, CF_GAP_MAX);
		{
			uint64_t begin = run.stored_offset;
			CF_TRY(read_exactly(transfer, transfer->staging, end - begin, stored->offset + begin, err));
			scatter(plan, &run, &left, transfer->staging, begin, end - begin, destination);
		}
	}
	return CKPTFMT_OK;
}

/* How cf_transfer_part reads. */
typedef enum part_way { PART_UNCHECKED, PART_OF_WHOLE, PART_BY_LARGE_CHUNKS, PART_BY_CHUNKS } part_way;

static part_way way_of(const cf_transfer *transfer, const ckptfmt_stored *stored)
{
	bool by_chunks = stored->chunk_size != 0;
	if (transfer->verify == CKPTFMT_VERIFY_OFF)
		return PART_UNCHECKED;
	if (transfer->verify == CKPTFMT_VERIFY_FULL || (!by_chunks && stored->size <= CF_WHOLE_CHECK_MAX))
		return PART_OF_WHOLE;
	if (!by_chunks)
		return PART_UNCHECKED;
	return stored->chunk_size > CF_WINDOW_SIZE ? PART_BY_LARGE_CHUNKS : PART_BY_CHUNKS;
}

void cf_transfer_expect_part(cf_transfer *transfer, const ckptfmt_stored *stored, const cf_plan *plan)
{
	part_way way = way_of(transfer, stored);
	uint64_t unit = way == PART_UNCHECKED ? 1 : stored->chunk_size;
	cf_plan walked = *plan;
	cf_run run;
	if (!has_latency(transfer))
		return;
	if (way == PART_OF_WHOLE) {
		cf_transfer_expect(transfer, stored, 0, stored->size);
		return;
	}
	while (cf_plan_next(&walked, &run)) {
		uint64_t end = (run.stored_offset + run.size + unit - 1) / unit * unit;
		cf_transfer_expect(transfer, stored, run.stored_offset / unit * unit, cf_min_u64(end, stored->size));
	}
}

ckptfmt_status cf_transfer_part(cf_transfer *transfer, const ckptfmt_stored *stored, cf_plan *plan,
	uint8_t *destination, bool *verified, ckptfmt_error *err)
{
	part_way way = way_of(transfer, stored);
	*verified = transfer->verify != CKPTFMT_VERIFY_OFF && way != PART_UNCHECKED;
	CF_TRY(cf_transfer_open(transfer, stored, err));
	switch (way) {
	case PART_OF_WHOLE:
		return part_by_pieces(transfer, stored, true, plan, destination, err);
	case PART_BY_LARGE_CHUNKS:
		return part_by_pieces(transfer, stored, false, plan, destination, err);
	case PART_BY_CHUNKS:
		return part_by_chunks(transfer, stored, plan, destination, err);
	default:
		return part_unchecked(transfer, stored, plan, destination, err);
	}
}
