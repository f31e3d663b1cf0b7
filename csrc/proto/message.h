/* SPDX-License-Identifier: Apache-2.0 */
/* The values of the index table: header, entry and slice messages (rules MSG, HDR, ENT, SHP, SLC, EXT). Decoders accept
 * any field order and ignore unknown fields; encoders write the canonical form, which is TensorFlow's. */
#ifndef CKPTFMT_PROTO_MESSAGE_H
#define CKPTFMT_PROTO_MESSAGE_H

#include "base/buffer.h"
#include "base/cursor.h"
#include "ckptfmt_unstable.h"

enum {
	CF_FORMAT_VERSION = 1,      /* the producer that we write */
	CF_COMPRESSED_VERSION = 2,  /* producer and min_consumer if a value is compressed */
	CF_CONSUMER_VERSION = 2
};

/* Bytes that a chunk checksum covers, EXT-2. */
enum {
	CF_CHUNK_SIZE_UNIT = 16,
	CF_CHUNK_SIZE_MIN = 4096,
	CF_CHUNK_SIZE_MAX = 16 << 20
};

/* EXT-3 */
#define CF_FEATURE_COMPRESSED UINT64_C(1)

/* EXT-7, EXT-8 */
#define CF_RESERVED_PREFIX "_CKPTFMT_"
#define CF_METADATA_NAME "_CKPTFMT_METADATA"
#define CF_PLACEHOLDER_PREFIX "_CKPTFMT_SHARD_"

typedef struct cf_bytes_view {
	const uint8_t *data;
	uint64_t size;
} cf_bytes_view;

typedef struct cf_header {
	int32_t num_shards;
	int32_t endianness;         /* 0 little, 1 big */
	int32_t producer;
	int32_t min_consumer;
	bool bans_consumer;         /* bad_consumers holds CF_CONSUMER_VERSION */
	cf_bytes_view bytes;        /* the whole message, for merging */
	uint64_t origin;            /* file offset of the message */
} cf_header;

/* One BundleEntryProto. The views point into the decoded bytes. */
typedef struct cf_entry {
	int32_t dtype;
	int32_t rank;               /* dimensions found; they are in the caller's array */
	int32_t shard;
	int64_t offset;
	int64_t size;
	int64_t element_count;      /* by the shape */
	uint32_t masked_crc;        /* ENT-6; 0 if absent */
	bool has_shape;
	bool has_extension;
	uint64_t slice_count;
	uint64_t feature_flags;     /* of the extension field */
	uint64_t chunk_size;        /* 0: no chunk checksums */
	cf_bytes_view chunk_crcs;   /* 4 bytes each, if EXT-2 holds */
	cf_bytes_view chunk_sizes;  /* varints; these three of compressed values */
	uint64_t raw_size;
	uint32_t raw_crc32c;        /* unmasked */
	cf_bytes_view bytes;        /* the whole message, for cf_entry_next_slice and merging */
	uint64_t origin;            /* file offset of the message */
} cf_entry;

/* Parses and checks versions and endianness (HDR rules). BAD_HEADER, BAD_PROTO, UNSUPPORTED. */
CF_MUST_CHECK ckptfmt_status cf_header_decode(cf_bytes_view bytes, uint64_t origin, cf_header *out,
	ckptfmt_error *err);
/* The header of a new bundle: this min_consumer, and the producer that goes with it. */
void cf_header_encode(cf_buffer *out, int32_t num_shards, int32_t endianness, int32_t min_consumer);
/* The header of a merged bundle: the endianness and the canonical version of `like` with this producer and
 * min_consumer, without unknown fields (MRG-8).
 * REQUIRES of this and the next: the decoded bytes of the headers are still valid. BAD_PROTO, NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_header_reencode(cf_buffer *out, const cf_header *like, int32_t num_shards,
	int32_t producer, int32_t min_consumer, ckptfmt_error *err);
/* Whether the canonical forms of two versions are equal (MRG-2), except for producer and min_consumer if an input of
 * the merge has compressed values (MRG-15). An absent version equals an empty one. */
CF_MUST_CHECK ckptfmt_status cf_header_same_version(const cf_header *a, const cf_header *b, bool compressed,
	bool *same, ckptfmt_error *err);

/* Parses an entry and checks its shape (SHP rules); `dims` has room for CKPTFMT_RANK_MAX. The caller checks
 * what depends on more than the message (the size of the value, the number of shards). BAD_PROTO, BAD_SHAPE, LIMIT. */
CF_MUST_CHECK ckptfmt_status cf_entry_decode(cf_bytes_view bytes, uint64_t origin, uint64_t slices_max, int64_t *dims,
	cf_entry *out, ckptfmt_error *err);

/* The rules about how an entry stores its value, without a look at its bytes. */
typedef enum cf_stored_form {
	CF_STORED_SOUND,
	CF_STORED_EXT_2, CF_STORED_EXT_3, CF_STORED_EXT_4, CF_STORED_EXT_5,
	CF_STORED_CMP_1, CF_STORED_CMP_2, CF_STORED_CMP_3, CF_STORED_CMP_4, CF_STORED_CMP_5
} cf_stored_form;

/* The first rule that the entry breaks: EXT-3; of a COMPRESSED one then CMP-2, CMP-3, EXT-2, CMP-4, CMP-5 and CMP-1, of
 * others EXT-2, EXT-5 and EXT-4. If it breaks none, the ends of its compressed chunks, relative to its offset, are
 * appended to `ends`, whose status the caller checks. REQUIRES: it owns bytes. */
cf_stored_form cf_entry_form(const cf_entry *entry, cf_buffer *ends);
/* Fails for a rule that a value of `size` stored bytes breaks. BAD_ENTRY, UNSUPPORTED (EXT-3). */
CF_MUST_CHECK ckptfmt_status cf_form_fail(cf_stored_form rule, uint64_t size, uint64_t origin, ckptfmt_error *err);

/* ENT-3 and ENT-4. BAD_ENTRY. */
CF_MUST_CHECK ckptfmt_status cf_check_place(int32_t shard, int64_t offset, int64_t size, int32_t num_shards,
	uint64_t origin, ckptfmt_error *err);

/* DAT-2: whether the bytes that the entry owns are within a data file of `size` bytes; true if it owns none. */
static inline bool cf_entry_fits(const cf_entry *entry, bool owns_bytes, uint64_t size)
{
	if (!owns_bytes || entry->size == 0)
		return true;
	return entry->offset >= 0 && entry->size > 0 &&
		cf_range_fits((uint64_t)entry->offset, (uint64_t)entry->size, size);
}

/* Walks the slices of an entry in their order: *position begins at zero. *found is false past the last. The `rank`
 * starts and lengths (-1: full) are those of the message, unchecked; another number of extents is BAD_SLICE. */
CF_MUST_CHECK ckptfmt_status cf_entry_next_slice(const cf_entry *entry, uint64_t *position, int64_t *starts,
	int64_t *lengths, bool *found, ckptfmt_error *err);

/* The fields of an entry to encode. */
typedef struct cf_entry_fields {
	int32_t dtype;
	int32_t shard;
	uint64_t offset;
	uint64_t size;
	uint32_t masked_crc;
	int32_t rank;
	const int64_t *dims;
	cf_bytes_view slices;       /* from cf_put_slice, concatenated */
	uint32_t chunk_size;        /* 0: no extension field */
	const uint32_t *chunk_crcs; /* unmasked */
	uint64_t chunk_count;
	bool compressed;
	uint64_t raw_size;          /* these three of compressed values */
	uint32_t raw_crc32c;        /* unmasked */
	const uint64_t *chunk_sizes;
} cf_entry_fields;

void cf_entry_encode(cf_buffer *out, const cf_entry_fields *fields);
/* Appends one slice as a field of an entry. A length of -1 is a full dimension. */
void cf_put_slice(cf_buffer *out, int32_t rank, const int64_t *starts, const int64_t *lengths);

/* Appends the canonical form of a decoded entry with another shard id and `more_slices` after its own (MRG-7). `dims`
 * are its dimensions as decoded. *shard_at (unless NULL): where in that form the field of the shard id is, or belongs.
 * Allocates only in `out`, whose status the caller checks, unless the shape is given twice. BAD_PROTO if a slice is
 * malformed (the decoder does not check slices), NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_entry_reencode(cf_buffer *out, const cf_entry *entry, const int64_t *dims,
	int32_t shard, cf_bytes_view more_slices, uint64_t *shard_at, ckptfmt_error *err);
/* Appends the slices of `entry` in canonical form, as fields of an entry. */
CF_MUST_CHECK ckptfmt_status cf_entry_copy_slices(cf_buffer *out, const cf_entry *entry, ckptfmt_error *err);

#endif
