/* SPDX-License-Identifier: Apache-2.0 */
/* Reads stored values for requests that were checked: on the calling thread or, for many bytes, on several. */
#ifndef CKPTFMT_READ_JOBS_H
#define CKPTFMT_READ_JOBS_H

#include "base/progress.h"
#include "read/reader.h"

enum {
	CF_READ_UNIT = 4 << 20,     /* starting a thread takes as long as reading a tenth of it */
	CF_FETCH_UNIT = 8 << 20     /* of a storage with latency: a round trip takes as long as transferring some of it */
};

/* The number of threads for this many bytes, which can be split anywhere. */
int32_t cf_read_threads(const ckptfmt_reader *reader, uint64_t bytes, bool decodes);

typedef struct cf_read_job {
	const ckptfmt_stored *stored;
	ckptfmt_request *request;   /* `verified` is set on entry, and cleared for what was not verified */
	uint64_t slice;             /* of a partitioned tensor; CF_WHOLE_TENSOR for one stored whole */
} cf_read_job;

typedef struct cf_read_work {
	ckptfmt_reader *reader;
	const ckptfmt_selection *selection;
	int32_t verify;             /* ckptfmt_verify_mode */
	const cf_read_job *jobs;    /* in the order of the data files */
	uint64_t count;
	uint64_t bytes;             /* that will be moved, about */
	bool decodes;               /* some of the values are compressed */
	cf_progress *progress;
} cf_read_work;

/* Runs all jobs. The failure is that of the first job that fails, however many threads there were.
 * REQUIRES: cf_value_check and cf_geometry_check_cover passed; each destination has room. */
CF_MUST_CHECK ckptfmt_status cf_read_run(const cf_read_work *work, ckptfmt_error *err);

#endif
