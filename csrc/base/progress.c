/* SPDX-License-Identifier: Apache-2.0 */
#include "base/progress.h"

#include "base/arith.h"

enum { STEP = 1 << 20 };    /* bytes between two reports */

static bool is_silent(const cf_progress *p)
{
	return p == NULL || p->hook.report == NULL;
}

void cf_progress_init(cf_progress *p, const ckptfmt_progress_hook *hook)
{
	*p = (cf_progress){.hook = *hook, .lock = PTHREAD_MUTEX_INITIALIZER};
}

/* Estimates may be too low: no more than all bytes are reported as done. */
static ckptfmt_status report(cf_progress *p, ckptfmt_error *err)
{
	bool cancelled;
	(void)pthread_mutex_lock(&p->lock);
	if (!p->cancelled) {
		p->reported = cf_min_u64(atomic_load(&p->done), p->total);
		p->cancelled = p->hook.report(p->hook.context, p->reported, p->total) != 0;
	}
	cancelled = p->cancelled;
	(void)pthread_mutex_unlock(&p->lock);
	return cancelled ? cf_fail(err, CKPTFMT_FAIL_CANCELLED, CF_NO_OFFSET,
		"the caller's progress function ended the call") : CKPTFMT_OK;
}

ckptfmt_status cf_progress_begin(cf_progress *p, uint64_t total, ckptfmt_error *err)
{
	if (is_silent(p))
		return CKPTFMT_OK;
	p->total = total;
	atomic_store(&p->done, 0);
	return report(p, err);
}

ckptfmt_status cf_progress_add(cf_progress *p, uint64_t size, ckptfmt_error *err)
{
	uint64_t before;
	if (is_silent(p))
		return CKPTFMT_OK;
	before = atomic_fetch_add(&p->done, size);
	/* The end has its own report. */
	return before / STEP == (before + size) / STEP ? CKPTFMT_OK : report(p, err);
}

ckptfmt_status cf_progress_check(cf_progress *p, ckptfmt_error *err)
{
	return is_silent(p) ? CKPTFMT_OK : report(p, err);
}

ckptfmt_status cf_progress_end(cf_progress *p, ckptfmt_error *err)
{
	if (is_silent(p))
		return CKPTFMT_OK;
	atomic_store(&p->done, p->total);
	return report(p, err);
}
