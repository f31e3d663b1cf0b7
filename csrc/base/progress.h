/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of one call of the public API, for the caller's ckptfmt_progress_hook. Threads of the call may share it. */
#ifndef CKPTFMT_BASE_PROGRESS_H
#define CKPTFMT_BASE_PROGRESS_H

#include "base/error.h"

#include <pthread.h>
#include <stdatomic.h>

typedef struct cf_progress {
	ckptfmt_progress_hook hook;
	uint64_t total;
	_Atomic uint64_t done;
	pthread_mutex_t lock;       /* held while the hook runs; protects the rest */
	uint64_t reported;
	bool cancelled;
} cf_progress;

/* The functions below do nothing without a hook, or if `progress` is NULL. Each returns CANCELLED once the hook has
 * ended the call. The initial state owns nothing. */
void cf_progress_init(cf_progress *progress, const ckptfmt_progress_hook *hook);
/* Begins to count `total` bytes from 0, and reports that. REQUIRES: no other thread uses it. */
CF_MUST_CHECK ckptfmt_status cf_progress_begin(cf_progress *progress, uint64_t total, ckptfmt_error *err);
/* Counts `size` more bytes, and reports from time to time. */
CF_MUST_CHECK ckptfmt_status cf_progress_add(cf_progress *progress, uint64_t size, ckptfmt_error *err);
/* Reports, whether or not bytes were counted. */
CF_MUST_CHECK ckptfmt_status cf_progress_check(cf_progress *progress, ckptfmt_error *err);
/* Reports that all bytes are done. */
CF_MUST_CHECK ckptfmt_status cf_progress_end(cf_progress *progress, ckptfmt_error *err);

#endif
