/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ckptfmt_reader, for the files of this folder. Nothing in a reader changes after open but caches that are
 * published atomically, so any number of threads may read. */
#ifndef CKPTFMT_READ_READER_H
#define CKPTFMT_READ_READER_H

#include "base/buffer.h"
#include "proto/names.h"
#include "read/data_files.h"
#include "read/rows.h"
#include "table/table.h"
#include "ckptfmt_unstable.h"
#include "proto/message.h"
#include "storage/os.h"

struct ckptfmt_reader {
	uint64_t id;                /* no other reader of this process has it, nor had */
	cf_prefix prefix;
	cf_directory directory;
	ckptfmt_limits limits;
	cf_file index;
	cf_file_info index_info;
	cf_table *table;
	cf_header header;           /* its `bytes` view points into the table's first block */
	cf_shards shards;
	bool follow_symlinks;
	int32_t threads;            /* as in ckptfmt_open_options, */
	ckptfmt_progress_hook progress;     /* and this */
	ckptfmt_bytes own_given;    /* a copy of the caller's */
	const ckptfmt_bytes *given; /* read instead of the index file; NULL: none */
	ckptfmt_codec own_codec;    /* a copy of the caller's */
	const ckptfmt_codec *codec; /* NULL: none */
	_Atomic(ckptfmt_selection *) listing;   /* of all; NULL until a name that looks like a slice's key is looked up */
};

struct ckptfmt_strings {
	uint8_t *bytes;
	uint64_t *offsets;          /* count + 1 */
	uint64_t count;
};

/* ---- opening in parts: what ckptfmt_reader_open does, and the verifier by itself ---- */

/* A reader with its options, its prefix and its directory, and no file open. CHECKPOINT_NOT_FOUND, BAD_PATH, IO,
 * NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_reader_new(const char *prefix, const ckptfmt_open_options *options,
	ckptfmt_reader **out, ckptfmt_error *err);
/* Opens the index file and does not look into it. CHECKPOINT_NOT_FOUND, BAD_PATH, IO. */
CF_MUST_CHECK ckptfmt_status cf_reader_open_index(ckptfmt_reader *reader, ckptfmt_error *err);
/* Opens the table of that file, or of the bytes given instead. */
CF_MUST_CHECK ckptfmt_status cf_reader_open_table(ckptfmt_reader *reader, ckptfmt_error *err);
/* Closes the index and the data files, so that the index can be opened again. */
void cf_reader_close_files(ckptfmt_reader *reader);
/* Whether the index on disk is still the one that was opened. */
CF_MUST_CHECK ckptfmt_status cf_reader_is_current(ckptfmt_reader *reader, bool *current, ckptfmt_error *err);

/* What every reading call asks of its arguments: a selection that this reader made, a verify mode that there is.
 * INVALID. */
CF_MUST_CHECK ckptfmt_status cf_reader_check_call(const ckptfmt_reader *reader, const ckptfmt_selection *selection,
	int32_t verify, ckptfmt_error *err);

/* The path of a data file, for messages; the end kept where `path` is too small. */
void cf_reader_data_path(const ckptfmt_reader *reader, int32_t shard, char *path, size_t size);
/* The data file of a stored value, for the time of a read. IO where it is missing.
 * REQUIRES: 0 <= shard < num_shards. */
CF_MUST_CHECK ckptfmt_status cf_reader_shard(ckptfmt_reader *reader, int32_t shard, cf_shard_use *out,
	ckptfmt_error *err);

static inline bool cf_reader_swaps(const ckptfmt_reader *reader)
{
	return (reader->header.endianness == 1) != (CF_HOST_BIG_ENDIAN == 1);
}

/* INVALID: the selection has no such row. */
CF_MUST_CHECK ckptfmt_status cf_selection_check_row(const ckptfmt_selection *selection, uint64_t row,
	ckptfmt_error *err);
/* Adds the tensor, the path of the index and the offset of the entry to a failure, where these are missing. */
void cf_reader_error(const ckptfmt_reader *reader, const ckptfmt_selection *selection, const ckptfmt_row *row,
	ckptfmt_error *err);

/* ---- building a selection (selection.c) ---- */

/* An empty one, to be used with this reader; NULL: no memory. */
ckptfmt_selection *cf_selection_new(const ckptfmt_reader *reader);

/* Appends the tensor `name` with this entry as a row; its slices are listed with the MISSING flag until filled in. */
CF_MUST_CHECK ckptfmt_status cf_selection_add(ckptfmt_selection *selection, const ckptfmt_reader *reader,
	cf_bytes_view name, cf_bytes_view value, uint64_t origin, ckptfmt_error *err);
/* Fills slice number `slice` of the row from the slice's own entry. */
CF_MUST_CHECK ckptfmt_status cf_selection_fill_slice(ckptfmt_selection *selection, const ckptfmt_reader *reader,
	uint64_t row, uint64_t slice, cf_bytes_view value, uint64_t origin, ckptfmt_error *err);
/* TAB-13: the keys of the row's slices, each of which contains the tensor's name, and those of earlier tensors
 * (*key_bytes) are together at most as large as all keys of the table may be. Adds them to *key_bytes. LIMIT. */
CF_MUST_CHECK ckptfmt_status cf_selection_check_slice_keys(const ckptfmt_selection *selection,
	const ckptfmt_reader *reader, uint64_t row, uint64_t *key_bytes, ckptfmt_error *err);
/* Looks for the slices of the row by their keys, and fills in those that there are; `key` is scratch. Counts their keys
 * as cf_selection_check_slice_keys. */
CF_MUST_CHECK ckptfmt_status cf_selection_fill_by_key(ckptfmt_selection *selection, ckptfmt_reader *reader,
	uint64_t row, uint64_t *key_bytes, cf_buffer *key, ckptfmt_error *err);
/* The key of that slice's entry, appended to `key`. */
void cf_selection_slice_key(const ckptfmt_selection *selection, uint64_t row, uint64_t slice, cf_buffer *key);
CF_MUST_CHECK ckptfmt_status cf_selection_finish(ckptfmt_selection *selection, ckptfmt_error *err);

#endif
