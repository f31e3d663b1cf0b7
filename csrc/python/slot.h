/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For the Python binding alone: the owner of a writer or reader exists before that does, and frees it without running a
 * line of Python. A KeyboardInterrupt can be raised before or after these calls, and never between making a writer or
 * reader and owning it, or while it is being freed.
 */
#ifndef CKPTFMT_PYTHON_SLOT_H
#define CKPTFMT_PYTHON_SLOT_H

#include "ckptfmt_unstable.h"

/* cffi: begin */

typedef struct cf_writer_slot {
	ckptfmt_writer *writer; /* NULL: none yet, or no longer */
	int64_t process;        /* set by cf_writer_slot_open */
} cf_writer_slot;

/* As ckptfmt_writer_open, into the slot. */
ckptfmt_status cf_writer_slot_open(const char *prefix, const ckptfmt_write_options *options, cf_writer_slot *slot,
				   ckptfmt_error *err);

/* As ckptfmt_writer_commit, which frees the writer. */
ckptfmt_status cf_writer_slot_commit(cf_writer_slot *slot, ckptfmt_error *err);

/* Abandons the writer of the slot, if there is one, in the process that opened it. */
void cf_writer_slot_free(cf_writer_slot *slot);

typedef struct cf_reader_slot {
	ckptfmt_reader *reader; /* NULL: none yet */
	int64_t process;        /* set when it is opened */
} cf_reader_slot;

/* As ckptfmt_reader_open and ckptfmt_reader_reopen, into the slot. */
ckptfmt_status cf_reader_slot_open(const char *prefix, const ckptfmt_open_options *options, cf_reader_slot *slot,
				   ckptfmt_error *err);
ckptfmt_status cf_reader_slot_reopen(const ckptfmt_reader *reader, const char *absolute, cf_reader_slot *slot,
				     ckptfmt_error *err);

/* Closes the reader of the slot, if there is one, in the process that opened it. */
void cf_reader_slot_free(cf_reader_slot *slot);

/* cffi: end */

#endif
