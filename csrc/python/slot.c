/* SPDX-License-Identifier: Apache-2.0 */
#include "python/slot.h"

#include <unistd.h>

ckptfmt_status cf_writer_slot_open(const char *prefix, const ckptfmt_write_options *options, cf_writer_slot *slot,
				   ckptfmt_error *err)
{
	slot->process = getpid();
	return ckptfmt_writer_open(prefix, options, &slot->writer, err);
}

ckptfmt_status cf_writer_slot_commit(cf_writer_slot *slot, ckptfmt_error *err)
{
	ckptfmt_writer *writer = slot->writer;

	slot->writer = NULL;
	return ckptfmt_writer_commit(writer, err);
}

void cf_writer_slot_free(cf_writer_slot *slot)
{
	if (slot->process == getpid())
		ckptfmt_writer_abandon(slot->writer);
	slot->writer = NULL;
}

ckptfmt_status cf_reader_slot_open(const char *prefix, const ckptfmt_open_options *options, cf_reader_slot *slot,
				   ckptfmt_error *err)
{
	slot->process = getpid();
	return ckptfmt_reader_open(prefix, options, &slot->reader, err);
}

ckptfmt_status cf_reader_slot_reopen(const ckptfmt_reader *reader, const char *absolute, cf_reader_slot *slot,
				     ckptfmt_error *err)
{
	slot->process = getpid();
	return ckptfmt_reader_reopen(reader, absolute, &slot->reader, err);
}

void cf_reader_slot_free(cf_reader_slot *slot)
{
	if (slot->process == getpid())
		ckptfmt_reader_close(slot->reader);
	slot->reader = NULL;
}
