/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Inside of ckptfmt_verify, which goes through these stages in order:
 *
 *   index         the blocks of the index, and the entries of each sound block                        index.c
 *   tensors       the slices of each tensor, its sizes; collects the values to read                   tensors.c
 *   data          the bytes of the values, and of the gaps between them                               data.c
 *   files         unreferenced and orphaned data files                                                files.c
 *
 * A checkpoint that another process replaces meanwhile is verified again from its new index (verify.c).
 *
 * A check is a function that fails like any other; its caller turns the failure into a finding and goes on
 * (findings.c). Only running out of memory, or the progress hook, ends a verification.
 */
#ifndef CKPTFMT_VERIFY_PRIVATE_H
#define CKPTFMT_VERIFY_PRIVATE_H

#include "base/progress.h"
#include "crc32c/chunk_sum.h"
#include "proto/strings.h"
#include "read/deferred.h"
#include "read/rules.h"
#include "read/transfer.h"
#include "table/footer.h"
#include "table/writer.h"

enum {
	CF_VERIFY_RESTARTS_MAX = 10,
	CF_VERIFY_NOTES_MAX = 20,           /* notes of one kind; then their number */
	CF_VERIFY_PROBLEMS_MAX = 10000      /* problems in all; then their number */
};

/* Kinds of notes, counted separately. */
enum {
	CF_VERIFY_NOT_CANONICAL,                  /* a message that is not in canonical form */
	CF_VERIFY_UNKNOWN,                        /* a message with fields that no canonical writer writes */
	CF_VERIFY_NO_SHAPE,                       /* an entry without a shape */
	CF_VERIFY_UNKNOWN_DTYPE,
	CF_VERIFY_BIG_ENDIAN,
	CF_VERIFY_SLICE_LOCATION,                 /* a partitioned tensor whose own entry names bytes */
	CF_VERIFY_NESTED_SLICES,                  /* the entry of a slice that lists slices */
	CF_VERIFY_SNAPPY,                         /* this and the next five: the first deviation of the index file */
	CF_VERIFY_BLOCK,
	CF_VERIFY_METAINDEX,
	CF_VERIFY_SEPARATOR,
	CF_VERIFY_FOOTER,
	CF_VERIFY_GAP,
	CF_VERIFY_PADDING,                        /* padding that is not zero */
	CF_VERIFY_UNNAMED,                        /* bytes that belong to no value */
	CF_VERIFY_UNREFERENCED,                   /* a data file that no entry names */
	CF_VERIFY_UNNEEDED,                       /* a missing data file that no value needs */
	CF_VERIFY_LEFTOVER,                       /* a data file of another save */
	CF_VERIFY_TEMPORARY,                      /* a temporary file */
	CF_VERIFY_UNLISTED,                       /* a directory that cannot be listed */
	CF_VERIFY_NOTE_KINDS
};

/* What a finding is about. */
typedef struct cf_verify_place {
	const char *path;
	cf_bytes_view key;          /* of the entry; shown as the tensor's name, also where it is a slice's key */
	uint64_t offset;
} cf_verify_place;

/* Beside each row of the selection. */
typedef struct cf_verify_row {
	uint64_t origin;            /* file offset of the entry */
	uint32_t pending;           /* values still to be read */
} cf_verify_row;

typedef enum cf_verify_part_state {
	CF_VERIFY_ABSENT,           /* no entry */
	CF_VERIFY_FOUND,
	CF_VERIFY_BROKEN,           /* an entry that cannot be used, which was reported */
	CF_VERIFY_REPEATED          /* the entry of an earlier slice of the list, which is the same */
} cf_verify_part_state;

/* Beside each slice of the selection. */
typedef struct cf_verify_part {
	uint64_t origin;
	cf_verify_part_state state;
} cf_verify_part;

/* A stored value of at least one byte. */
typedef struct cf_verify_value {
	ckptfmt_stored stored;
	uint64_t row;
	uint64_t element_count;
	int32_t storage;            /* ckptfmt_storage_class; NONE: its checksum means nothing to us */
	int32_t decoded_storage;    /* ckptfmt_storage_class of what a compressed value decodes to; 0: it is not decoded */
} cf_verify_value;

/* The data file at hand. */
typedef struct cf_verify_file {
	int32_t shard;              /* -1: none */
	bool usable;                /* it is open */
	uint64_t size;
	uint64_t end;               /* the end of all values so far */
	uint64_t again;             /* bytes that may still be read a second time */
	uint64_t unit;              /* greatest common divisor of the offsets so far */
	char path[sizeof((ckptfmt_error *)NULL)->path];
} cf_verify_file;

/* The checks of the value at hand. */
typedef struct cf_verify_work {
	uint64_t done;              /* stored bytes */
	uint64_t decoded;           /* raw bytes of a compressed value */
	uint32_t crc;               /* of these */
	cf_chunk_sum sum;           /* of the stored bytes */
	uint64_t chunk;             /* number of the one at hand */
	uint64_t bad_chunks, first_bad_chunk;
	cf_string_scan scan;        /* of a string or variant */
} cf_verify_work;

typedef struct cf_verifier {
	ckptfmt_reader *reader;     /* opens data files one at a time */
	cf_progress *progress;
	ckptfmt_error fatal;        /* the error that ended it; status OK: none */
	uint32_t restarts;          /* for checkpoints that were replaced while they were verified */

	cf_buffer findings;         /* ckptfmt_finding */
	uint64_t note_counts[CF_VERIFY_NOTE_KINDS];
	uint64_t problem_count;
	uint64_t bytes_done;
	uint64_t tensors_done;

	cf_table_check check;
	cf_table_writer writer;     /* of the canonical table, while `writing` */
	bool writing;
	bool table_differs;         /* and from which byte on: */
	uint64_t table_same;        /* bytes that are the same */
	cf_block_iterator entries;
	uint64_t entry_count, key_bytes;
	uint64_t slice_key_bytes;   /* of the slices looked for */
	bool header_known;
	bool full;                  /* a limit was reached: later entries are skipped */
	bool uncertain;             /* some entries could not be read: unreferenced bytes may be theirs */

	ckptfmt_selection *selection;
	cf_buffer rows;             /* cf_verify_row */
	cf_buffer parts;            /* cf_verify_part */
	cf_deferred deferred;
	cf_deferred_place *places;  /* of these, by size */
	cf_buffer named;            /* int32_t: shards that entries name */
	cf_buffer key;              /* scratch */

	cf_buffer values;           /* cf_verify_value; data.c sorts them by shard and offset */
	uint64_t value_number;      /* of the value at hand */
	cf_buffer needed;           /* int32_t: shards with values, ascending */
	cf_verify_file file;
	cf_verify_work value;
	cf_transfer transfer;       /* reads and decodes values */
	cf_buffer raw;              /* decoded strings or variants */
	bool codec_missed;          /* reported */
} cf_verifier;

/* ---- findings (findings.c) ---- */

/* True if `status` is OK. Otherwise `error`, completed from `place`, becomes a problem; NO_MEMORY and CANCELLED end the
 * verification instead. */
bool cf_verify_ok(cf_verifier *v, ckptfmt_status status, ckptfmt_error *error, const cf_verify_place *place);
void cf_verify_problem(cf_verifier *v, ckptfmt_failure failure, const cf_verify_place *place,
	const char *format, ...) CF_PRINTF(4, 5);
void cf_verify_note(cf_verifier *v, uint32_t kind, const cf_verify_place *place, const char *format, ...)
	CF_PRINTF(4, 5);
/* Adds the numbers of notes of each kind, and of problems, that were not listed. */
void cf_verify_close_findings(cf_verifier *v);

static inline bool cf_verify_failed(const cf_verifier *v)
{
	return v->fatal.status != CKPTFMT_OK;
}

static inline const char *cf_verify_index_path(const cf_verifier *v)
{
	return v->reader->prefix.index_path;
}

/* Counts bytes that were checked, and reports the progress. */
void cf_verify_count(cf_verifier *v, uint64_t bytes);

/* ---- stages ---- */

void cf_verify_index(cf_verifier *v);
void cf_verify_tensors(cf_verifier *v);
void cf_verify_data(cf_verifier *v);
void cf_verify_files(cf_verifier *v);

/* ---- what they share ---- */

static inline cf_verify_row *cf_verify_row_at(const cf_verifier *v, uint64_t row)
{
	return (cf_verify_row *)cf_buffer_items(&v->rows) + row;
}

/* The end of a chunk in the stored bytes of its value. */
static inline uint64_t cf_verify_chunk_end(const cf_verifier *v, const ckptfmt_stored *stored, uint64_t chunk)
{
	if (stored->flags & CKPTFMT_STORED_COMPRESSED)
		return ((const uint64_t *)cf_buffer_items(&v->selection->chunk_ends))[stored->ends_first + chunk];
	return cf_min_u64((chunk + 1) * stored->chunk_size, stored->size);
}

/* A row for this entry (index.c). */
void cf_verify_add_row(cf_verifier *v, cf_bytes_view key, cf_bytes_view value, uint64_t origin);
/* What is asked of an entry that lists slices under a tensor's name (index.c): EXT-3, EXT-5, ENT-3, ENT-7. */
void cf_verify_list_entry(cf_verifier *v, const cf_entry *entry, const cf_verify_place *place);

/* ---- strict mode (strict.c) ---- */

/* Notes for a header or entry that deviates from its canonical form. REQUIRES: it was decoded. */
void cf_verify_strict_header(cf_verifier *v, cf_bytes_view bytes, const cf_verify_place *place);
void cf_verify_strict_entry(cf_verifier *v, const cf_entry *entry, const cf_verify_place *place);
/* Compares the index file with a canonical table of the entries, which are given in order; the end notes where it first
 * deviates. After abandon, which a damaged block calls for, these do nothing. */
void cf_verify_table_begin(cf_verifier *v);
void cf_verify_table_entry(cf_verifier *v, cf_bytes_view key, cf_bytes_view value);
void cf_verify_table_end(cf_verifier *v);
void cf_verify_table_abandon(cf_verifier *v);

/* ---- shared between stages ---- */

/* One value of the row was checked. */
void cf_verify_value_done(cf_verifier *v, uint64_t row);

#endif
