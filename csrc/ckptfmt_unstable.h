/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the Python binding and the library's own parts need beyond ckptfmt.h. It may change in any release, and the
 * shared and static libraries do not export it. Conventions as in ckptfmt.h.
 */
#ifndef CKPTFMT_UNSTABLE_H
#define CKPTFMT_UNSTABLE_H

#include "ckptfmt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* ---- checksums ------------------------------------------------------------------------------------------- */

/* ckptfmt_crc32c, while copying to `destination` (the two do not overlap). The checksum is of the bytes copied. */
uint32_t ckptfmt_crc32c_copy(uint32_t crc, uint8_t *destination, const uint8_t *source, uint64_t size);
/* The stored ("masked") form and back. */
uint32_t ckptfmt_crc32c_mask(uint32_t crc);
uint32_t ckptfmt_crc32c_unmask(uint32_t masked);
/* The variants compiled in, worst first; NULL past the last. */
const char *ckptfmt_crc32c_variant_name(uint32_t variant);
/* 1 if this CPU can run the variant. */
int32_t ckptfmt_crc32c_variant_usable(uint32_t variant);
/* The variant in use. */
uint32_t ckptfmt_crc32c_variant(void);
/* ckptfmt_crc32c and ckptfmt_crc32c_copy (destination not NULL) by one variant, for tests and benchmarks.
 * REQUIRES: the variant is usable. */
uint32_t ckptfmt_crc32c_by(uint32_t variant, uint32_t crc, uint8_t *destination,
	const uint8_t *source, uint64_t size);

/* ---- data types ------------------------------------------------------------------------------------------ */

/* All data types, in ascending code; NULL past its end. */
const ckptfmt_dtype_info *ckptfmt_dtype_at(uint32_t row);

/* ---- counters -------------------------------------------------------------------------------------------- */

/* What this process asked of the operating system so far, counted where the calls are made. Never reset. */
typedef struct ckptfmt_counters {
	uint64_t opens, reads, bytes_read, writes, bytes_written, syncs, renames, links, unlinks, maps;
} ckptfmt_counters;

void ckptfmt_counters_get(ckptfmt_counters *counters);

/* ---- slice text ------------------------------------------------------------------------------------------ */

/* Parses a shape_and_slice text ("4 6 0,2:-"). The three arrays have room for CKPTFMT_RANK_MAX values each.
 * A full dimension ("-") gives start 0 and length -1. The empty text gives rank -1: the whole tensor.
 * INVALID: anything TensorFlow's SaveV2 would refuse or die of. */
ckptfmt_status ckptfmt_spec_parse(const uint8_t *text, uint64_t text_size, int32_t *rank, int64_t *dims,
	int64_t *starts, int64_t *lengths, ckptfmt_error *err);

/* ---- orphaned files -------------------------------------------------------------------------------------- */

/* 1 if no other machine may write to the file system of this open file or directory, by its kind: then the locks of
 * CMT-15 show every writer. 0 if that is unknown. */
int32_t ckptfmt_file_system_is_local(int32_t fd);

typedef enum ckptfmt_sweep_scope {
	CKPTFMT_SWEEP_ONE,          /* the checkpoint or other file `name` */
	CKPTFMT_SWEEP_NUMBERED,     /* the checkpoints "<name>-<n>", and the state files of their manager */
	CKPTFMT_SWEEP_ALL           /* `name` is ignored, and may be NULL */
} ckptfmt_sweep_scope;

/* Removes what killed writers left in a directory (CMT-15), or with `dry_run` finds it; *out has the names. What cannot
 * be removed stays; so does all if ckptfmt_file_system_is_local is 0. `fd` is the directory, `path` is for messages.
 * `sync`: the directory is synced before data files are removed. IO, NO_MEMORY.
 * REQUIRES: the directory's lock (CMT-14), by another descriptor. */
ckptfmt_status ckptfmt_sweep(int32_t fd, const char *path, const char *name, int32_t scope, int32_t dry_run,
	int32_t sync, ckptfmt_strings **out, ckptfmt_error *err);

/* Removes what killed saves of this prefix or file left (CKPTFMT_SWEEP_ONE), or of the checkpoints "<prefix>-<n>"
 * (CKPTFMT_SWEEP_NUMBERED), before another save begins. Best effort: nothing is removed while another process has the
 * directory's lock, or of one that does not exist in a directory of more than 4096 names. */
void ckptfmt_sweep_before_save(const char *prefix, int32_t scope);

/* ---- reading --------------------------------------------------------------------------------------------- */

/* Opens a checkpoint again in a forked child, where a reader of the parent must not be used. `old` is the parent's, as
 * the child sees it. Selections of `old` can be used with the new reader. IO with failure GENERATION_GONE: the
 * checkpoint was replaced. Else as ckptfmt_reader_open. */
ckptfmt_status ckptfmt_reader_reopen(const ckptfmt_reader *old, const char *prefix, ckptfmt_reader **out,
	ckptfmt_error *err);
/* The number of data files that the index file `path` names, whatever its own name is; 0 if there is no such file, or
 * it cannot be read as an index. `storage` NULL: the file system. NOT_FOUND, IO (its directory), INVALID, NO_MEMORY. */
ckptfmt_status ckptfmt_index_count(const ckptfmt_storage *storage, const char *path, int32_t *count,
	ckptfmt_error *err);

/* The place of one stored value. */
typedef struct ckptfmt_stored {
	uint64_t offset;
	uint64_t size;
	int32_t shard;
	uint32_t crc32c;        /* of all its bytes, unmasked */
	uint64_t chunks_first;  /* in `chunk_crcs`: ceil(raw_size / chunk_size) checksums of stored bytes, unmasked */
	uint64_t ends_first;    /* of a COMPRESSED value in `chunk_ends`, as many: where each ends, from `offset` on */
	uint64_t raw_size;      /* bytes of the value; of one that is not COMPRESSED `size` */
	uint32_t raw_crc32c;    /* of these, by the rules of the data type, unmasked */
	uint32_t chunk_size;    /* raw bytes a chunk that has a checksum of its own; 0: there are none */
	uint32_t flags;         /* ckptfmt_stored_flags */
	uint32_t broken_rule;   /* 0; else it is stored in a way that breaks a rule, and reading it fails with that */
} ckptfmt_stored;

typedef enum ckptfmt_stored_flags {
	CKPTFMT_STORED_MISSING = 1,       /* a slice that the tensor lists and the index does not hold */
	CKPTFMT_STORED_OTHER_DTYPE = 2,   /* a slice whose own entry has another dtype than the tensor */
	CKPTFMT_STORED_OTHER_SHAPE = 32,  /* or another shape than its extents */
	CKPTFMT_STORED_COMPRESSED = 64,   /* in chunks that are compressed one by one */
	CKPTFMT_STORED_EXPANDS = 128      /* to more than limits.expansion_max allows */
} ckptfmt_stored_flags;

/* One tensor of a selection. Its arrays are in the selection's shared columns, from the given position on.
 * Plain struct layout, so that a caller may see the rows as a table. */
typedef struct ckptfmt_row {
	uint64_t name_offset;       /* in `names` */
	uint64_t dims_first;        /* in `dims`: `rank` sizes */
	uint64_t slices_first;      /* in `slices`; slice_count of them */
	ckptfmt_stored stored;      /* of a tensor stored whole; zero for a partitioned one */
	uint32_t name_size;
	uint32_t slice_count;       /* 0: stored whole */
	int32_t dtype;              /* the code as stored, known or not */
	int32_t rank;
	int64_t element_count;
	uint64_t entry_offset;      /* of its entry in the index file (perhaps only of its block) */
} ckptfmt_row;

/* One slice of a partitioned tensor. */
typedef struct ckptfmt_slice_row {
	uint64_t extents_first;     /* in `dims`: `rank` starts, then `rank` lengths, -1 for a full dimension */
	ckptfmt_stored stored;
} ckptfmt_slice_row;

/* Views of a selection's columns, valid until ckptfmt_selection_free. The names are in the order of the rows, each
 * followed by a zero byte; names may hold zero bytes themselves. */
typedef struct ckptfmt_columns {
	const ckptfmt_row *rows;
	const ckptfmt_slice_row *slices;
	const int64_t *dims;
	const uint8_t *names;
	const uint32_t *chunk_crcs;
	const uint64_t *chunk_ends;
	uint64_t row_count, slice_count, dims_count, names_size, chunk_count, end_count;
} ckptfmt_columns;

void ckptfmt_selection_columns(const ckptfmt_selection *selection, ckptfmt_columns *out);
/* Views, valid until ckptfmt_strings_free: element i is bytes[offsets[i] .. offsets[i + 1]). */
typedef struct ckptfmt_strings_view {
	const uint8_t *bytes;
	const uint64_t *offsets;
	uint64_t count;
} ckptfmt_strings_view;

void ckptfmt_strings_get(const ckptfmt_strings *strings, ckptfmt_strings_view *out);

/* As ckptfmt_reader_list, with the tensors whose names are reserved for the format. */
ckptfmt_status ckptfmt_reader_list_all(ckptfmt_reader *reader, ckptfmt_selection **out,
	ckptfmt_error *err);
/* The names of all tensors in key order, as ckptfmt_reader_list finds them. Takes a fifth of its memory if
 * no tensor is stored in slices. */
ckptfmt_status ckptfmt_reader_names(ckptfmt_reader *reader, ckptfmt_strings **out, ckptfmt_error *err);

/* ---- the index as stored --------------------------------------------------------------------------------- */

/* One region of the index file, for people who read hex dumps. */
typedef struct ckptfmt_region {
	uint64_t offset;
	uint64_t size;              /* with the trailer */
	uint64_t entry_count;
	int32_t kind;               /* ckptfmt_region_kind */
	int32_t compression;        /* the type byte of a block: 0 raw, 1 Snappy; -1 for other regions */
	uint32_t crc32c;            /* stored, unmasked; 0 for other regions */
	uint32_t crc_good;          /* 1 if it matches */
} ckptfmt_region;

typedef enum ckptfmt_region_kind {
	CKPTFMT_REGION_DATA = 1, CKPTFMT_REGION_METAINDEX = 2, CKPTFMT_REGION_INDEX = 3, CKPTFMT_REGION_FOOTER = 4,
	CKPTFMT_REGION_GAP = 5
} ckptfmt_region_kind;

/* All regions in file order. Writes at most `capacity` of them and the full number to *count. */
ckptfmt_status ckptfmt_reader_regions(ckptfmt_reader *reader, ckptfmt_region *regions, uint64_t capacity,
	uint64_t *count, ckptfmt_error *err);

/* ---- damaged indexes ------------------------------------------------------------------------------------- */

typedef enum ckptfmt_salvage_outcome {
	CKPTFMT_SALVAGE_REPAIRED = 1,    /* one bit was changed, the only one with which the checksum holds */
	CKPTFMT_SALVAGE_LIKELY = 2,      /* one byte was changed, and another change may be the right one */
	CKPTFMT_SALVAGE_LOST = 3         /* no such change is known; the entries are those that decode as they are */
} ckptfmt_salvage_outcome;

/* One damaged region of an index file. */
typedef struct ckptfmt_damage {
	uint64_t offset;
	uint64_t size;              /* with the trailer of a block */
	uint64_t changed;           /* of REPAIRED and LIKELY: offset of the byte that was changed */
	uint64_t entry_count;       /* of a data block: entries in `sound` (REPAIRED) or `doubtful` (others) */
	int32_t kind;               /* ckptfmt_region_kind: DATA (also a torn block at the end), INDEX, FOOTER */
	int32_t outcome;            /* ckptfmt_salvage_outcome; of INDEX and FOOTER LOST: blocks were searched */
} ckptfmt_damage;

/* What is left of an index. `sound` is an index file of all data blocks whose checksum holds, repaired ones included,
 * each at the offset that it has in the file. `doubtful` is another one, of entries of the other blocks: their keys are
 * between those of the blocks around them, so that `sound` has none of them. Its size is 0 if there are none. Both have
 * a header. */
typedef struct ckptfmt_salvage {
	const uint8_t *sound, *doubtful;
	uint64_t sound_size, doubtful_size;
	const ckptfmt_damage *damages;   /* data blocks by offset, then index block or footer. None, and no header_lost:
	                                  * `sound` is the file as it is */
	uint64_t damage_count;
	int32_t header_lost;        /* 1: the header in both is made up: `num_shards`, little-endian */
	int32_t reserved;
} ckptfmt_salvage;

/* Finds what is sound in the bytes of an index file. CORRUPT: no entry is left, or the header is lost and num_shards is
 * 0; LIMIT, NO_MEMORY. */
ckptfmt_status ckptfmt_index_salvage(const uint8_t *bytes, uint64_t size, int32_t num_shards,
	const ckptfmt_limits *limits, ckptfmt_salvage **out, ckptfmt_error *err);
/* NULL is harmless. */
void ckptfmt_salvage_free(ckptfmt_salvage *salvage);

/* ---- building on another checkpoint ---------------------------------------------------------------------- */

/* Which tensors have not changed: same[i] is 1 if row rows[i] of the selection has the dtype, the shape and all bytes
 * with which sources[i] would be stored; names are not compared. Checksums are compared before bytes, so little is read
 * of tensors that differ. Tensors that are partitioned, damaged, missing or not comparable count as changed. INVALID: a
 * source that cannot be written, a row out of range; NO_MEMORY. */
ckptfmt_status ckptfmt_reader_compare(ckptfmt_reader *reader, const ckptfmt_selection *selection,
	const ckptfmt_source *sources, const uint64_t *rows, uint64_t count, uint8_t *same, ckptfmt_error *err);
/* The size of a data file in bytes. IO: it is missing; INVALID: the shard number is out of range. */
ckptfmt_status ckptfmt_reader_data_size(ckptfmt_reader *reader, int32_t shard, uint64_t *size,
	ckptfmt_error *err);
/* Takes tensors of another checkpoint into the one being written, bytes and checksums as they are, by giving their data
 * files a second name (a hard link). Their names become names[i], unless `names` is NULL. kept[i] is 0 where that
 * cannot be done (damaged values, missing slices, another byte order, entries with extensions for a writer without
 * chunks, other devices, file systems without links, a checkpoint that was replaced meanwhile): the caller adds such a
 * tensor itself. The reader may be closed and the other checkpoint removed as soon as this returns. INVALID: a name
 * that is empty or was added before, or a value was begun and not ended; IO, CORRUPT (index), NO_MEMORY.
 * Best called before the first ckptfmt_writer_add: the writer can then begin with fewer data files. */
ckptfmt_status ckptfmt_writer_keep(ckptfmt_writer *writer, ckptfmt_reader *reader,
	const ckptfmt_selection *selection, const uint64_t *rows, uint64_t count, const ckptfmt_bytes *names,
	uint8_t *kept, ckptfmt_error *err);

/* ---- copies in memory ------------------------------------------------------------------------------------ */

/* Memory for copies: `size` bytes at a multiple of 64, zeroed and already mapped, so that writing to them does not wait
 * for the system. Prepared by up to `threads` threads. A forked child does not have it. INVALID: the size is 0.
 * NO_MEMORY. Given back with the same size; NULL is harmless. */
ckptfmt_status ckptfmt_memory_take(uint64_t size, int32_t threads, uint8_t **out, ckptfmt_error *err);
void ckptfmt_memory_give(uint8_t *data, uint64_t size);

/* The bytes that copies of these sources take. Checks each source as ckptfmt_writer_add does. */
ckptfmt_status ckptfmt_copy_size(const ckptfmt_source *sources, uint64_t count, uint64_t *out,
	ckptfmt_error *err);
/* Copies the data of the sources of FIXED storage to `to`, row-major without gaps and in the byte order it has, and
 * makes `data` and `strides` of each say so. Other sources stay as they are. Each copy begins at a multiple of 64
 * bytes, in the order of the sources. Up to `threads` threads work on it. INVALID: `size` is less than
 * ckptfmt_copy_size says, `to` is not at a multiple of 64. NO_MEMORY. On failure the sources are unchanged. */
ckptfmt_status ckptfmt_copy(ckptfmt_source *sources, uint64_t count, uint8_t *to, uint64_t size,
	int32_t threads, ckptfmt_error *err);
/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
