/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Jobs are divided into units of some megabytes: many small jobs, one job, a piece of a large value, or the part of a
 * box in some of its chunks. Each thread takes the next unit until none is left. The checksum of a value read in pieces
 * is combined from those of the pieces.
 *
 * Units are taken in order, and a unit that was taken is finished. After a failure no more are taken, and the failure
 * of the first unit is reported, as a single thread would do.
 */
#include "read/jobs.h"

#include "base/memory.h"
#include "read/values.h"
#include "read/transfer.h"
#include "base/workers.h"

#include <pthread.h>

enum {
	THREADS_MAX = 4,            /* by default: the rest of the program needs processors too, */
	DECODING_MAX = 16,          /* but decoding takes far longer than reading, */
	FETCHING_MAX = 8            /* and a thread that fetches waits for a server most of the time */
};

static uint64_t unit_size(const ckptfmt_reader *reader)
{
	return cf_os_has_latency(&reader->directory) ? CF_FETCH_UNIT : CF_READ_UNIT;
}

/* ---- one job after the other ----------------------------------------------------------------------------- */

static bool is_compressed(const cf_read_job *j)
{
	return (j->stored->flags & CKPTFMT_STORED_COMPRESSED) != 0;
}

/* Only checks that the bytes exist; reads none. */
static bool is_dry(const cf_read_job *j)
{
	return j->request->destination == NULL && j->stored->size != 0;
}

static bool is_small(const cf_read_job *j)
{
	return !is_compressed(j) && !is_dry(j) && j->slice == CF_WHOLE_TENSOR && j->request->box == NULL &&
		j->stored->size <= CF_SMALL_VALUE;
}

/* The end of the small whole values that follow closely: the end of a shared read. */
static uint64_t shared_end(const cf_read_work *w, uint64_t row, uint64_t end_row)
{
	const cf_read_job *first = &w->jobs[row];
	uint64_t end = first->stored->offset + first->stored->size;
	for (uint64_t i = row + 1; i < end_row; i++) {
		const cf_read_job *next = &w->jobs[i];
		if (!is_small(next) || next->stored->shard != first->stored->shard || next->stored->offset < end ||
			next->stored->offset - end > CF_GAP_MAX ||
			next->stored->offset + next->stored->size - first->stored->offset > CF_WINDOW_SIZE)
			break;
		end = next->stored->offset + next->stored->size;
	}
	return end;
}

static ckptfmt_status plan_of(const cf_read_work *w, const cf_read_job *j, cf_plan *plan, ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(w->selection, j->request->row);
	return cf_geometry_plan(w->selection, row, j->slice, j->request->box, ckptfmt_dtype_find(row->dtype)->size, plan,
		err);
}

static bool is_one_run(const cf_read_job *j, const cf_plan *plan)
{
	return cf_plan_run_count(plan) == 1 && cf_plan_run_size(plan) == j->stored->raw_size;
}

/* How a compressed value is delivered. */
typedef struct decoding {
	cf_compressed value;
	cf_plan plan;
	bool any;                   /* some of it is requested */
	bool all;                   /* all of it is decoded, so that its checksum can be compared */
	uint8_t *straight;          /* its place, if that is contiguous; else NULL, and the plan is used */
} decoding;

static ckptfmt_status plan_decoding(const cf_read_work *w, const cf_read_job *j, decoding *out, ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(w->selection, j->request->row);
	CF_TRY(plan_of(w, j, &out->plan, err));
	out->value = (cf_compressed){j->stored, ckptfmt_dtype_find(row->dtype)->swap_size};
	out->any = cf_plan_run_count(&out->plan) != 0;
	out->all = w->verify == CKPTFMT_VERIFY_FULL ||
		cf_plan_run_count(&out->plan) * cf_plan_run_size(&out->plan) == j->stored->raw_size;
	out->straight = is_one_run(j, &out->plan) ? j->request->destination + out->plan.first_destination : NULL;
	return CKPTFMT_OK;
}

/* The raw bytes [begin, end), which are whole chunks. *crc is set if all of them are decoded and verified. */
static ckptfmt_status decode_part(const cf_read_work *w, cf_transfer *transfer, const decoding *d, uint64_t begin,
	uint64_t end, uint8_t *destination, uint32_t *crc, ckptfmt_error *err)
{
	bool checked = d->all && w->verify != CKPTFMT_VERIFY_OFF;
	*crc = 0;
	if (d->straight != NULL)
		return cf_transfer_decode(transfer, &d->value, begin, end, NULL, true, d->straight + begin,
			checked ? crc : NULL, err);
	return cf_transfer_decode(transfer, &d->value, begin, end, &d->plan, d->all, destination, checked ? crc : NULL,
		err);
}

static ckptfmt_status run_compressed(const cf_read_work *w, cf_transfer *transfer, const cf_read_job *j,
	ckptfmt_error *err)
{
	decoding d;
	uint32_t crc;
	CF_TRY(plan_decoding(w, j, &d, err));
	if (!d.any)
		return CKPTFMT_OK;
	CF_TRY(decode_part(w, transfer, &d, 0, j->stored->raw_size, j->request->destination, &crc, err));
	return d.all && w->verify != CKPTFMT_VERIFY_OFF ? cf_transfer_check(j->stored, crc, err) : CKPTFMT_OK;
}

/* *checked: as far as this job goes. */
static ckptfmt_status run_job(const cf_read_work *w, cf_transfer *transfer, const cf_read_job *j, uint64_t ahead,
	bool *checked, ckptfmt_error *err)
{
	cf_plan plan;
	*checked = true;
	if (is_dry(j))
		return cf_transfer_open(transfer, j->stored, err);
	if (is_compressed(j)) {
		*checked = w->verify != CKPTFMT_VERIFY_OFF;
		return run_compressed(w, transfer, j, err);
	}
	if (j->slice == CF_WHOLE_TENSOR && j->request->box == NULL)
		return cf_transfer_whole(transfer, j->stored, ahead, true, j->request->destination, err);
	CF_TRY(plan_of(w, j, &plan, err));
	if (cf_plan_run_count(&plan) == 0)
		return CKPTFMT_OK;
	if (is_one_run(j, &plan))
		return cf_transfer_whole(transfer, j->stored, 0, true, j->request->destination + plan.first_destination,
			err);
	return cf_transfer_part(transfer, j->stored, &plan, j->request->destination, checked, err);
}

/* Announces what the job will read of the bytes [begin, end): raw ones of a compressed value, else stored ones. */
static void expect_job(const cf_read_work *w, cf_transfer *transfer, const cf_read_job *j, uint64_t begin, uint64_t end)
{
	cf_plan plan;
	decoding d;
	if (is_dry(j))
		return;
	if (is_compressed(j)) {
		if (plan_decoding(w, j, &d, NULL) == CKPTFMT_OK && d.any)
			cf_transfer_expect_chunks(transfer, j->stored, begin, end, d.all ? NULL : &d.plan);
		return;
	}
	if (j->slice == CF_WHOLE_TENSOR && j->request->box == NULL) {
		if (end - begin < CF_FETCH_DIRECT)
			cf_transfer_expect(transfer, j->stored, begin, end);
		return;
	}
	if (plan_of(w, j, &plan, NULL) != CKPTFMT_OK || cf_plan_run_count(&plan) == 0)
		return;
	if (is_one_run(j, &plan)) {
		if (end - begin < CF_FETCH_DIRECT)
			cf_transfer_expect(transfer, j->stored, begin, end);
		return;
	}
	if (begin != 0 || end != j->stored->raw_size)
		cf_plan_limit(&plan, begin, end);
	cf_transfer_expect_part(transfer, j->stored, &plan);
}

static void expect_jobs(const cf_read_work *w, cf_transfer *transfer, uint64_t first, uint64_t end)
{
	if (!cf_os_has_latency(&w->reader->directory))
		return;
	cf_fetch_clear(&transfer->fetch);
	for (uint64_t i = first; i < end; i++)
		expect_job(w, transfer, &w->jobs[i], 0, w->jobs[i].stored->raw_size);
}

static void add_context(const cf_read_work *w, const cf_transfer *transfer, const cf_read_job *j, ckptfmt_error *err)
{
	const ckptfmt_row *row = cf_selection_row(w->selection, j->request->row);
	cf_transfer_error(transfer, j->stored, err);
	cf_error_tensor(err, cf_selection_name(w->selection, row), row->name_size);
}

static void unverify(const cf_read_job *j, pthread_mutex_t *lock)
{
	if (lock != NULL)
		(void)pthread_mutex_lock(lock);
	j->request->verified = 0;
	if (lock != NULL)
		(void)pthread_mutex_unlock(lock);
}

/* Jobs [first, end). `lock` is over what jobs of one request share; NULL: no other thread works on them. */
static ckptfmt_status run_jobs(const cf_read_work *w, cf_transfer *transfer, uint64_t first, uint64_t end,
	pthread_mutex_t *lock, ckptfmt_error *err)
{
	uint64_t ahead = 0;
	expect_jobs(w, transfer, first, end);
	for (uint64_t i = first; i < end; i++) {
		const cf_read_job *j = &w->jobs[i];
		ckptfmt_status status;
		bool checked;
		/* Prefetched data is valid until its end is passed. */
		if (!is_small(j))
			ahead = 0;
		else if (i == first || w->jobs[i - 1].stored->shard != j->stored->shard ||
			j->stored->offset + j->stored->size > ahead)
			ahead = shared_end(w, i, end);
		status = run_job(w, transfer, j, ahead, &checked, err);
		if (status != CKPTFMT_OK) {
			add_context(w, transfer, j, err);
			return status;
		}
		if (CF_UNLIKELY(!checked))
			unverify(j, lock);
	}
	return CKPTFMT_OK;
}

/* ---- several threads ------------------------------------------------------------------------------------- */

/* A value that is read in pieces. */
typedef struct split {
	uint8_t *to;
	uint64_t left;              /* bytes of pieces that are not done */
	uint64_t last;              /* the unit of its last piece, of those that were taken */
	uint32_t crc;               /* sum of what the pieces contribute */
} split;

/* The stored bytes of a job that is done in pieces. */
typedef struct cut {
	uint64_t next, end;         /* those not yet taken */
	uint64_t step;              /* bytes of a piece */
	split *split;               /* NULL: of a box */
} cut;

typedef struct sharing {
	const cf_read_work *work;
	uint64_t unit;              /* bytes of a unit, about */
	pthread_mutex_t lock;       /* over all that follows */
	/* The first job not yet taken. */
	uint64_t row;
	cut cut;                    /* of that job */
	uint64_t taken;             /* units */
	split *splits;              /* room for those that there can be */
	uint64_t split_count;
	/* The failure of the first unit that failed. */
	ckptfmt_status status;
	uint64_t failed;            /* that unit */
	ckptfmt_error error;
} sharing;

typedef struct unit {
	uint64_t number;
	uint64_t first, end;        /* jobs */
	split *split;               /* NULL: not a piece of a whole value */
	uint64_t part, part_size;   /* stored bytes of a piece of the only one; size 0: the jobs as they are */
} unit;

/* Whether the job is all of a large value, to one place. */
static bool is_large_whole(const cf_read_work *w, const cf_read_job *j, uint8_t **to)
{
	cf_plan plan;
	decoding d;
	*to = j->request->destination;
	if (j->stored->raw_size <= unit_size(w->reader) || is_dry(j))
		return false;
	if (is_compressed(j))
		return plan_decoding(w, j, &d, NULL) == CKPTFMT_OK && d.any && d.all;
	if (j->slice == CF_WHOLE_TENSOR && j->request->box == NULL)
		return true;
	if (plan_of(w, j, &plan, NULL) != CKPTFMT_OK || !is_one_run(j, &plan))
		return false;
	*to += plan.first_destination;
	return true;
}

/* Whether the job is a box of many bytes of a larger value, of which any chunks can be read by themselves. */
static bool is_wide_box(const cf_read_work *w, const cf_read_job *j, cf_plan *plan)
{
	uint64_t bytes = unit_size(w->reader);
	return !is_dry(j) && j->request->box != NULL && j->stored->raw_size > bytes &&
		w->verify != CKPTFMT_VERIFY_FULL && plan_of(w, j, plan, NULL) == CKPTFMT_OK && !is_one_run(j, plan) &&
		cf_plan_run_count(plan) * cf_plan_run_size(plan) / bytes >= 2;
}

/* Pieces end at chunks, so that no chunk is read twice. */
static cut cut_of_box(const sharing *s, const cf_read_job *j, const cf_plan *plan)
{
	uint64_t chunk = cf_max_u64(j->stored->chunk_size, 1), end = cf_plan_last_byte(plan) + 1;
	uint64_t begin = cf_plan_first_byte(plan) / chunk * chunk;
	uint64_t step = (end - begin) / (cf_plan_run_count(plan) * cf_plan_run_size(plan) / s->unit);
	return (cut){begin, end, (step + chunk - 1) / chunk * chunk, NULL};
}

/* Whether the next job is done in pieces; then they are there to be taken. */
static bool begin_cut(sharing *s, cf_transfer *transfer, const cf_read_job *j)
{
	cf_plan plan;
	uint8_t *to;
	if (is_large_whole(s->work, j, &to)) {
		uint64_t chunk = is_compressed(j) ? j->stored->chunk_size : 1;
		/* What goes past the page cache keeps the disk busy by itself. */
		if (!is_compressed(j) && cf_transfer_is_direct(transfer, j->stored))
			return false;
		s->cut = (cut){0, j->stored->raw_size, cf_max_u64(s->unit / chunk, 1) * chunk,
			&s->splits[s->split_count]};
		s->splits[s->split_count++] = (split){to, j->stored->raw_size, 0, 0};
		return true;
	}
	if (!is_wide_box(s->work, j, &plan))
		return false;
	s->cut = cut_of_box(s, j, &plan);
	return true;
}

/* REQUIRES: the lock is held, and a unit is left. */
static void take_unit(sharing *s, cf_transfer *transfer, unit *out)
{
	const cf_read_work *w = s->work;
	const cf_read_job *j = &w->jobs[s->row];
	*out = (unit){.number = s->taken++, .first = s->row};
	if (j->stored->raw_size <= s->unit) {
		for (uint64_t left = s->unit; s->row < w->count && w->jobs[s->row].stored->raw_size <= left; s->row++)
			left -= w->jobs[s->row].stored->raw_size;
		out->end = s->row;
		return;
	}
	if (s->cut.next == s->cut.end && !begin_cut(s, transfer, j)) {
		out->end = ++s->row;
		return;
	}
	out->split = s->cut.split;
	if (out->split != NULL)
		out->split->last = out->number;
	out->part = s->cut.next;
	out->part_size = cf_min_u64(s->cut.step, s->cut.end - s->cut.next);
	out->end = s->row + 1;
	s->cut.next += out->part_size;
	if (s->cut.next == s->cut.end)
		s->row++;
}

static bool next_unit(sharing *s, cf_transfer *transfer, unit *out)
{
	bool found;
	(void)pthread_mutex_lock(&s->lock);
	found = s->status == CKPTFMT_OK && s->row < s->work->count;
	if (found)
		take_unit(s, transfer, out);
	(void)pthread_mutex_unlock(&s->lock);
	return found;
}

static void fail(sharing *s, uint64_t number, ckptfmt_status status, const ckptfmt_error *err)
{
	(void)pthread_mutex_lock(&s->lock);
	if (s->status == CKPTFMT_OK || number < s->failed) {
		s->status = status;
		s->failed = number;
		s->error = *err;
	}
	(void)pthread_mutex_unlock(&s->lock);
}

/* The checksum of a value is the sum of those of its pieces, each moved past the bytes behind it. */
static void end_piece(sharing *s, const cf_transfer *transfer, const unit *mine, uint32_t crc)
{
	const cf_read_job *j = &s->work->jobs[mine->first];
	uint32_t moved = ckptfmt_crc32c_combine(crc, 0, j->stored->raw_size - mine->part - mine->part_size);
	uint64_t left, last;
	ckptfmt_error err;
	ckptfmt_status status = CKPTFMT_OK;
	(void)pthread_mutex_lock(&s->lock);
	mine->split->crc ^= moved;
	left = mine->split->left -= mine->part_size;
	last = mine->split->last;
	crc = mine->split->crc;
	(void)pthread_mutex_unlock(&s->lock);
	if (left == 0 && s->work->verify != CKPTFMT_VERIFY_OFF)
		status = cf_transfer_check(j->stored, crc, &err);
	if (status != CKPTFMT_OK) {
		add_context(s->work, transfer, j, &err);
		fail(s, last, status, &err);
	}
}

static ckptfmt_status run_piece(sharing *s, cf_transfer *transfer, const unit *mine, ckptfmt_error *err)
{
	const cf_read_job *j = &s->work->jobs[mine->first];
	uint64_t end = cf_min_u64(mine->part + mine->part_size, j->stored->raw_size);
	bool checked = true;
	uint32_t crc = 0;
	ckptfmt_status status;
	if (cf_os_has_latency(&s->work->reader->directory)) {
		cf_fetch_clear(&transfer->fetch);
		expect_job(s->work, transfer, j, mine->part, end);
	}
	if (is_compressed(j)) {
		decoding d;
		checked = s->work->verify != CKPTFMT_VERIFY_OFF;
		status = plan_decoding(s->work, j, &d, err);
		if (status == CKPTFMT_OK)
			status = decode_part(s->work, transfer, &d, mine->part, end, j->request->destination, &crc, err);
	} else if (mine->split != NULL) {
		status = cf_transfer_piece(transfer, j->stored, mine->part, mine->part_size, mine->split->to + mine->part,
			&crc, err);
	} else {
		cf_plan plan;
		status = plan_of(s->work, j, &plan, err);
		if (status == CKPTFMT_OK) {
			cf_plan_limit(&plan, mine->part, mine->part + mine->part_size);
			status = cf_transfer_part(transfer, j->stored, &plan, j->request->destination, &checked, err);
		}
	}
	if (status != CKPTFMT_OK)
		add_context(s->work, transfer, j, err);
	else if (mine->split != NULL)
		end_piece(s, transfer, mine, crc);
	else if (!checked)
		unverify(j, &s->lock);
	return status;
}

static void *read_units(void *argument)
{
	sharing *s = argument;
	const cf_read_work *w = s->work;
	cf_transfer transfer;
	unit mine;
	cf_transfer_begin(&transfer, w->reader, w->selection, w->verify);
	transfer.progress = w->progress;
	while (next_unit(s, &transfer, &mine)) {
		ckptfmt_error err;
		ckptfmt_status status = mine.part_size == 0
			? run_jobs(w, &transfer, mine.first, mine.end, &s->lock, &err)
			: run_piece(s, &transfer, &mine, &err);
		if (status != CKPTFMT_OK)
			fail(s, mine.number, status, &err);
	}
	cf_transfer_end(&transfer);
	return NULL;
}

/* *shared false: memory or descriptors do not suffice for several threads; nothing was read. */
static ckptfmt_status run_shared(const cf_read_work *w, int32_t threads, bool *shared, ckptfmt_error *err)
{
	sharing s = {.work = w, .unit = unit_size(w->reader)};
	uint64_t large = 0;
	for (uint64_t i = 0; i < w->count; i++)
		large += w->jobs[i].stored->raw_size > s.unit;
	s.splits = cf_allocate_zero(large + 1, sizeof *s.splits);
	*shared = s.splits != NULL && pthread_mutex_init(&s.lock, NULL) == 0;
	if (!*shared) {
		cf_release(s.splits);
		return CKPTFMT_OK;
	}
	cf_workers_run(threads, read_units, &s);
	(void)pthread_mutex_destroy(&s.lock);
	cf_release(s.splits);
	*shared = s.status == CKPTFMT_OK || !cf_shards_ran_out(&s.error);
	if (s.status != CKPTFMT_OK && *shared && err != NULL)
		*err = s.error;
	return s.status;
}

int32_t cf_read_threads(const ckptfmt_reader *reader, uint64_t bytes, bool decodes)
{
	uint64_t units = bytes / unit_size(reader);
	int32_t most = reader->threads;
	if (most == 0 && cf_os_has_latency(&reader->directory))
		most = FETCHING_MAX;
	if (units < 2 || (decodes && (reader->codec->flags & CKPTFMT_CODEC_THREADS) == 0))
		return 1;
	if (most == 0)
		most = cf_workers_count(decodes ? DECODING_MAX : THREADS_MAX);
	return most < 1 ? 1 : (int32_t)cf_min_u64(cf_min_u64((uint64_t)most, units), CF_WORKERS_MAX);
}

static int32_t threads_for(const cf_read_work *w)
{
	int32_t threads = cf_read_threads(w->reader, w->bytes, w->decodes);
	cf_plan plan;
	uint8_t *to;
	return threads > 1 && w->count == 1 && !is_large_whole(w, w->jobs, &to) && !is_wide_box(w, w->jobs, &plan) ? 1
		: threads;
}

/* Whether all stored bytes of compressed values are there, before any are decoded: that takes far longer. */
static ckptfmt_status check_compressed(const cf_read_work *w, ckptfmt_error *err)
{
	cf_transfer transfer;
	ckptfmt_status status = CKPTFMT_OK;
	cf_transfer_begin(&transfer, w->reader, w->selection, w->verify);
	for (uint64_t i = 0; i < w->count && status == CKPTFMT_OK; i++) {
		if (!is_compressed(&w->jobs[i]))
			continue;
		status = cf_transfer_open(&transfer, w->jobs[i].stored, err);
		if (status != CKPTFMT_OK)
			add_context(w, &transfer, &w->jobs[i], err);
	}
	cf_transfer_end(&transfer);
	return status;
}

ckptfmt_status cf_read_run(const cf_read_work *work, ckptfmt_error *err)
{
	int32_t threads = threads_for(work);
	cf_transfer transfer;
	ckptfmt_status status;
	if (work->decodes)
		CF_TRY(check_compressed(work, err));
	if (threads > 1) {
		bool shared;
		status = run_shared(work, threads, &shared, err);
		if (shared)
			return status;
	}
	cf_transfer_begin(&transfer, work->reader, work->selection, work->verify);
	transfer.progress = work->progress;
	status = run_jobs(work, &transfer, 0, work->count, NULL, err);
	cf_transfer_end(&transfer);
	return status;
}
