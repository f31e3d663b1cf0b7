/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ckptfmt: read and write TensorFlow V2 checkpoints ("TensorBundle"), and the levels beyond.
 *
 * Conventions of every function here
 *   1. Fallible functions return ckptfmt_status and take `ckptfmt_error *err` last. `err` is the caller's
 *      memory, may be NULL, and is written only on failure. No error is kept in a handle.
 *   2. Out-parameters are set to NULL or zero first and hold a result only on success.
 *   3. Every `_close`, `_free` and `_abandon` accepts NULL.
 *   4. Strings of the format (tensor names, slice text) are pointer and size, never NUL-terminated. Paths are
 *      the exception: the operating system wants them NUL-terminated. They are taken literally, never globbed.
 *   5. Nothing allocated here is freed by the caller and nothing allocated by the caller is freed here. Memory
 *      that leaves is a view; its comment says until when it is valid.
 *   6. `offset` counts bytes from the start of a file or buffer, `size` bytes, `count` items; `row` is an index.
 *   7. Threads: a reader and a selection may be used by any number of threads at once. A writer and a strings
 *      object belong to one thread at a time. Close is never concurrent with a call. A call may start threads,
 *      which have all signals blocked. They end with the call, those of a writer at the latest with the writer.
 *      Fork: a handle belongs to the process that opened it. A forked child neither uses nor closes it, and opens its
 *      own. In the child the files that an open writer holds are replaced by /dev/null (descriptors below 65536), so
 *      that the child cannot write to them, nor keep their locks after the writer's process has ended.
 *   8. A struct of options, limits, a codec or a storage begins with its size, which the caller sets:
 *      `ckptfmt_open_options options = {.struct_size = sizeof options};`. The library reads no field beyond it, and
 *      fields that it leaves out are zero. INVALID: a size of 0, or one beyond the struct of this library with
 *      anything but zero bytes in the part that the library does not know.
 *   9. File contents are never trusted: whatever the bytes are, a call ends in a result or a typed error, in time
 *      and memory bounded by the bytes read.
 *
 * The lines between the two `cffi` markers are also what the Python binding parses: plain declarations only.
 */
#ifndef CKPTFMT_H
#define CKPTFMT_H

#include <stddef.h>
#include <stdint.h>

/* Defined as nothing when the library is linked into another shared library, which then exports none of it. */
#if defined(CKPTFMT_API)
#elif defined(__GNUC__)
#define CKPTFMT_API __attribute__((visibility("default")))
#else
#define CKPTFMT_API
#endif

/* The version of this header; ckptfmt_version() is that of the library. */
#define CKPTFMT_VERSION_MAJOR 0
#define CKPTFMT_VERSION_MINOR 1
#define CKPTFMT_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin */

/* ---- errors ---------------------------------------------------------------------------------------------- */

/* Who must act: the programmer (INVALID), the operator (IO, BUSY, NO_MEMORY), the owner of the file (CORRUPT, CONFLICT,
 * NOT_FOUND), the one who sets the limits (LIMIT), or an upgrade is needed (UNSUPPORTED). CANCELLED: the caller's own
 * progress function ended the call. Frozen numbers. */
typedef enum ckptfmt_status {
	CKPTFMT_OK = 0, CKPTFMT_INVALID = 1, CKPTFMT_IO = 2, CKPTFMT_CORRUPT = 3, CKPTFMT_UNSUPPORTED = 4,
	CKPTFMT_NOT_FOUND = 5, CKPTFMT_LIMIT = 6, CKPTFMT_NO_MEMORY = 7, CKPTFMT_CONFLICT = 8, CKPTFMT_BUSY = 9,
	CKPTFMT_CANCELLED = 10
} ckptfmt_status;

/* What exactly was wrong; finer than the status. Frozen numbers. */
typedef enum ckptfmt_failure {
	CKPTFMT_FAIL_NONE = 0, CKPTFMT_FAIL_ARGUMENT = 1, CKPTFMT_FAIL_BAD_PATH = 2, CKPTFMT_FAIL_OS = 3,
	CKPTFMT_FAIL_BAD_MAGIC = 4, CKPTFMT_FAIL_TRUNCATED = 5, CKPTFMT_FAIL_CHECKSUM = 6, CKPTFMT_FAIL_BAD_BLOCK = 7,
	CKPTFMT_FAIL_BAD_ORDER = 8, CKPTFMT_FAIL_BAD_PROTO = 9, CKPTFMT_FAIL_BAD_HEADER = 10, CKPTFMT_FAIL_BAD_DTYPE = 11,
	CKPTFMT_FAIL_BAD_SHAPE = 12, CKPTFMT_FAIL_BAD_SLICE = 13, CKPTFMT_FAIL_BAD_ENTRY = 14,
	CKPTFMT_FAIL_SHARD_MISSING = 15, CKPTFMT_FAIL_GENERATION_GONE = 16, CKPTFMT_FAIL_DURABILITY_UNKNOWN = 17,
	CKPTFMT_FAIL_UNSUPPORTED = 18, CKPTFMT_FAIL_TENSOR_NOT_FOUND = 19, CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND = 20,
	CKPTFMT_FAIL_LIMIT = 21, CKPTFMT_FAIL_NO_MEMORY = 22, CKPTFMT_FAIL_MERGE_CONFLICT = 23, CKPTFMT_FAIL_BUSY = 24,
	CKPTFMT_FAIL_BAD_CHUNK = 25, CKPTFMT_FAIL_CANCELLED = 26, CKPTFMT_FAIL_NOT_REMOVED = 27
} ckptfmt_failure;

/* One failure. `offset` is a byte offset in the file `path`, UINT64_MAX where there is none. `path` and `tensor`
 * are NUL-terminated and may be empty; a long path keeps its end, a long name its beginning. `tensor` holds the
 * raw name cut to fit (tensor_size bytes of it). `message` is one sentence without file, tensor and offset,
 * control characters escaped; for CORRUPT it starts with the rule of spec/format.md that is broken. */
typedef struct ckptfmt_error {
	int32_t status;
	int32_t failure;
	int32_t os_errno;
	uint32_t tensor_size;
	uint64_t offset;
	char message[384];
	char tensor[256];
	char path[1024];
} ckptfmt_error;

/* Static strings; "unknown" for numbers that are not in the enum. Names as in the enum, without the prefix. */
CKPTFMT_API const char *ckptfmt_status_name(int32_t status);
CKPTFMT_API const char *ckptfmt_failure_name(int32_t failure);

/* "major.minor.patch" of this library. */
CKPTFMT_API const char *ckptfmt_version(void);

/* ---- memory ---------------------------------------------------------------------------------------------- */

/* What the library takes its heap memory from. Any thread may call, several at a time. Memory begins at a multiple of
 * alignof(max_align_t). NULL: out of memory. */
typedef struct ckptfmt_allocator {
	uint64_t struct_size;       /* sizeof(ckptfmt_allocator) */
	void *context;              /* first argument of the functions */
	void *(*allocate)(void *context, uint64_t size);    /* size is at least 1 */
	/* As C's realloc: `memory` may be NULL, and stays valid on failure. */
	void *(*reallocate)(void *context, void *memory, uint64_t size);
	void (*release)(void *context, void *memory);       /* `memory` is not NULL */
} ckptfmt_allocator;

/* Sets the allocator of this process; NULL: malloc, the default. The struct is copied. REQUIRES: no other call of the
 * library was made before, or every object that it returned is closed or freed, and no other thread is in a call. Not
 * taken from it: mapped files, large buffers of direct I/O and of copies, which are pages of the system, and what
 * libzstd and the C library take for themselves. INVALID: a function is missing. */
CKPTFMT_API ckptfmt_status ckptfmt_set_allocator(const ckptfmt_allocator *allocator, ckptfmt_error *err);

/* ---- limits ---------------------------------------------------------------------------------------------- */

/* Bounds on what a reader accepts from an untrusted file. A field that is 0 takes the default given here. */
typedef struct ckptfmt_limits {
	uint64_t struct_size;         /* sizeof(ckptfmt_limits) */
	uint64_t index_bytes_max;     /* size of an index file; 4 GiB */
	uint64_t block_bytes_max;     /* one decoded index block; 64 MiB */
	uint64_t key_bytes_max;       /* one key; 16 MiB */
	uint64_t keys_bytes_factor;   /* all decoded keys of a listing: at most this times the index file, 16 ... */
	uint64_t keys_bytes_floor;    /* ... or this, 64 MiB, whichever is more */
	uint64_t entries_max;         /* entries of an index; 2^24 */
	uint64_t slices_max;          /* slices of one tensor; 2^20 */
	uint64_t tensor_bytes_max;    /* one value read; UINT64_MAX */
	uint64_t expansion_max;       /* raw bytes of a compressed value for each byte stored of it; 65536 */
	uint32_t open_files_max;      /* data files a reader keeps open; 128 */
	uint32_t reserved;
} ckptfmt_limits;

/* ---- data types ------------------------------------------------------------------------------------------ */

typedef enum ckptfmt_dtype {
	CKPTFMT_FLOAT = 1, CKPTFMT_DOUBLE = 2, CKPTFMT_INT32 = 3, CKPTFMT_UINT8 = 4, CKPTFMT_INT16 = 5, CKPTFMT_INT8 = 6,
	CKPTFMT_STRING = 7, CKPTFMT_COMPLEX64 = 8, CKPTFMT_INT64 = 9, CKPTFMT_BOOL = 10, CKPTFMT_QINT8 = 11,
	CKPTFMT_QUINT8 = 12, CKPTFMT_QINT32 = 13, CKPTFMT_BFLOAT16 = 14, CKPTFMT_QINT16 = 15, CKPTFMT_QUINT16 = 16,
	CKPTFMT_UINT16 = 17, CKPTFMT_COMPLEX128 = 18, CKPTFMT_HALF = 19, CKPTFMT_RESOURCE = 20, CKPTFMT_VARIANT = 21,
	CKPTFMT_UINT32 = 22, CKPTFMT_UINT64 = 23, CKPTFMT_FLOAT8_E5M2 = 24, CKPTFMT_FLOAT8_E4M3FN = 25,
	CKPTFMT_FLOAT8_E4M3FNUZ = 26, CKPTFMT_FLOAT8_E4M3B11FNUZ = 27, CKPTFMT_FLOAT8_E5M2FNUZ = 28, CKPTFMT_INT4 = 29,
	CKPTFMT_UINT4 = 30, CKPTFMT_INT2 = 31, CKPTFMT_UINT2 = 32, CKPTFMT_FLOAT4_E2M1FN = 33
} ckptfmt_dtype;

/* How values of the type are stored. */
typedef enum ckptfmt_storage_class {
	CKPTFMT_STORAGE_FIXED = 1,    /* `size` bytes an element, row-major, no padding */
	CKPTFMT_STORAGE_STRING = 2,   /* lengths, their checksum, bytes */
	CKPTFMT_STORAGE_VARIANT = 3,  /* length, payload, checksum for each element */
	CKPTFMT_STORAGE_NONE = 4      /* cannot be stored */
} ckptfmt_storage_class;

typedef struct ckptfmt_dtype_info {
	const char *name;     /* TensorFlow's, lower case: "float", "bfloat16", ...; static */
	int32_t code;         /* ckptfmt_dtype */
	int32_t storage;      /* ckptfmt_storage_class */
	uint32_t size;        /* bytes an element in memory and on disk; 0 unless FIXED */
	uint32_t swap_size;   /* unit of byte order: 1, 2, 4 or 8 (half an element for complex) */
	uint32_t used_bits;   /* bits of an element that carry its value; below 8 for the types of 2 and 4 bits */
} ckptfmt_dtype_info;

/* By code; NULL for a code that this version does not know. */
CKPTFMT_API const ckptfmt_dtype_info *ckptfmt_dtype_find(int32_t code);

/* ---- checksums ------------------------------------------------------------------------------------------- */

/* CRC-32C (Castagnoli) of the bytes so far (`crc`, 0 to begin with) followed by `size` bytes at `data`.
 * The fastest variant that this CPU has is chosen once; CKPTFMT_ISA in the environment forces a lesser one. */
CKPTFMT_API uint32_t ckptfmt_crc32c(uint32_t crc, const uint8_t *data, uint64_t size);
/* Checksum of A followed by B, from those of A and of B and the size of B. */
CKPTFMT_API uint32_t ckptfmt_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t size_b);

/* The largest rank that the format stores. */
enum { CKPTFMT_RANK_MAX = 254 };

/* ---- codecs ------------------------------------------------------------------------------------------------ */

/* How hard to look for repetitions while encoding. */
typedef enum ckptfmt_effort {
	CKPTFMT_EFFORT_FAST = 0,    /* bytes that differ in frequency and hardly repeat: exponents of numbers */
	CKPTFMT_EFFORT_FULL = 1     /* the level that the codec was made for */
} ckptfmt_effort;

/* One piece of bytes to encode or decode. */
typedef struct ckptfmt_codec_item {
	const uint8_t *source;
	uint64_t source_size;
	uint8_t *destination;       /* does not overlap the source */
	uint64_t capacity;          /* bytes at `destination`; of a decoded item exactly its size */
	uint64_t size;              /* out: bytes written, at most `capacity`; 0 if it does not fit or does not decode */
	int32_t effort;             /* ckptfmt_effort, of an item to encode */
	int32_t reserved;
} ckptfmt_codec_item;

typedef enum ckptfmt_codec_flags {
	CKPTFMT_CODEC_THREADS = 1   /* may be called by several threads at once; else a call uses it in its own thread */
} ckptfmt_codec_flags;

/* Encodes and decodes zstd frames (RFC 8878). An item is one frame that states its content size, without dictionary and
 * with a window of at most 16 MiB. Both functions work on a batch and return OK even if single items fail, whose `size`
 * is then 0; any other status ends the call that needed them. `context` must stay valid as long as the reader,
 * writer that the codec was given to, or the verification. */
typedef struct ckptfmt_codec {
	uint64_t struct_size;       /* sizeof(ckptfmt_codec) */
	void *context;
	ckptfmt_status (*encode)(void *context, ckptfmt_codec_item *items, uint64_t count);
	ckptfmt_status (*decode)(void *context, ckptfmt_codec_item *items, uint64_t count);
	uint32_t flags;             /* ckptfmt_codec_flags */
	uint32_t reserved;
} ckptfmt_codec;

/* The codec over libzstd, which encodes with this level (1 to 22). UNSUPPORTED: the library was built without libzstd;
 * INVALID: another level. */
CKPTFMT_API ckptfmt_status ckptfmt_codec_zstd(int32_t level, ckptfmt_codec *out, ckptfmt_error *err);

/* ---- progress -------------------------------------------------------------------------------------------- */

/* Reports the progress of ckptfmt_reader_read, ckptfmt_writer_add (and add_tensor, add_strings, add_metadata),
 * ckptfmt_writer_commit, ckptfmt_merge and ckptfmt_verify, and can end them. All zero: nothing is reported.
 * `report` is called at the beginning of the call with bytes_done 0, then about every MiB, and at the end with
 * bytes_done equal to bytes_total, of a commit or a merge before the new index is in place. The bytes count from 0 in
 * each call; bytes_total is 0 as long as it is not known. `report` runs in the thread that made the call or in one that
 * the call started, never in two at once for one call. It must not use the same handle.
 * A result other than 0 ends the call soon with CANCELLED: `report` is not called again, nothing becomes visible, and
 * no temporary file is left. Then a reader can be used as before, a writer can only be abandoned (commit has freed it),
 * and a merge can be run again. A merge that only finishes one that was killed does not report. */
typedef struct ckptfmt_progress_hook {
	int32_t (*report)(void *context, uint64_t bytes_done, uint64_t bytes_total);
	void *context;
} ckptfmt_progress_hook;

/* ---- storage --------------------------------------------------------------------------------------------- */

typedef struct ckptfmt_object_info {
	uint64_t size;
	uint64_t identity;          /* differs where a name leads to another object than before: a hash of an etag, say */
} ckptfmt_object_info;

/* One range to read. */
typedef struct ckptfmt_object_read {
	void *object;
	uint64_t offset, size;
	uint8_t *destination;
	uint64_t got;               /* out: less than `size` if the object ends before */
} ckptfmt_object_read;

/* What came of giving an object a second name. */
typedef enum ckptfmt_adopt_result {
	CKPTFMT_ADOPT_DONE = 0, CKPTFMT_ADOPT_EXISTS, CKPTFMT_ADOPT_NO_SOURCE, CKPTFMT_ADOPT_IMPOSSIBLE
} ckptfmt_adopt_result;

/* Objects named by paths, in the place of files. Any thread may call, several at a time. A function that fails fills
 * *err (see ckptfmt_error_set), which is all zero before the call, and returns its status. INVALID: a function but
 * `lock` and `unlock` is missing. An object is written by one thread, from front to end. */
typedef struct ckptfmt_storage {
	uint64_t struct_size;       /* sizeof(ckptfmt_storage) */
	void *state;                /* first argument of all functions */
	/* *exists 0: nothing has this path, which is not an error. */
	ckptfmt_status (*info)(void *state, const char *path, ckptfmt_object_info *info, int32_t *exists,
		ckptfmt_error *err);
	/* Calls `each` with the last part of every path that begins with `directory` and "/". */
	ckptfmt_status (*list)(void *state, const char *directory, void (*each)(void *to, const char *name), void *to,
		ckptfmt_error *err);
	/* Opens an object for reading. *object NULL: it does not exist, which is not an error. */
	ckptfmt_status (*open)(void *state, const char *path, void **object, ckptfmt_object_info *info,
		ckptfmt_error *err);
	/* Reads all ranges; how many at a time, and whether neighbours in one, is the storage's business. */
	ckptfmt_status (*read_batch)(void *state, ckptfmt_object_read *reads, uint64_t count, ckptfmt_error *err);
	/* Begins an object. *exists 1 (nothing done): the path is taken. */
	ckptfmt_status (*create)(void *state, const char *path, void **object, int32_t *exists, ckptfmt_error *err);
	ckptfmt_status (*append)(void *state, void *object, const uint8_t *bytes, uint64_t size, ckptfmt_error *err);
	/* The object is complete, and as durable as the storage makes it. */
	ckptfmt_status (*finish)(void *state, void *object, ckptfmt_error *err);
	/* The object as it is, also one that is being written. */
	ckptfmt_status (*object_info)(void *state, void *object, ckptfmt_object_info *info, ckptfmt_error *err);
	/* An object that was created and not finished is removed. */
	void (*close)(void *state, void *object);
	/* Gives a finished object another path beside its own: by a link, a copy in the store, or shared bytes. */
	ckptfmt_status (*adopt)(void *state, const char *from, const char *to, int32_t *result, ckptfmt_error *err);
	/* Moves a finished object to the path `to`, atomically for all readers. If something is there: `replaces`
	 * replaces it, otherwise *exists is 1 and nothing is done. *exists 1 although it replaces: another writer has put
	 * an object there since it was opened, and nothing is done; the commit is BUSY. */
	ckptfmt_status (*publish)(void *state, const char *from, const char *to, int32_t replaces, int32_t *exists,
		ckptfmt_error *err);
	/* A missing object is not an error. */
	ckptfmt_status (*remove)(void *state, const char *path, ckptfmt_error *err);
	/* The lock of a directory among writers; NULL: there are none. After `timeout_ms`: BUSY. */
	ckptfmt_status (*lock)(void *state, const char *directory, uint64_t timeout_ms, ckptfmt_error *err);
	void (*unlock)(void *state, const char *directory);
} ckptfmt_storage;

/* Fills an error record and returns its status, for a storage to return. `err` may be NULL. `os_errno` 0: none; ENOMEM
 * makes it NO_MEMORY. */
CKPTFMT_API ckptfmt_status ckptfmt_error_set(ckptfmt_error *err, ckptfmt_failure failure, int32_t os_errno,
	const char *path, const char *message);

/* A storage in memory, empty. Paths are compared byte by byte. */
CKPTFMT_API ckptfmt_status ckptfmt_memory_storage_new(ckptfmt_storage **out, ckptfmt_error *err);
/* REQUIRES: no reader, writer or object of it is open. */
CKPTFMT_API void ckptfmt_memory_storage_free(ckptfmt_storage *storage);

/* ---- reading --------------------------------------------------------------------------------------------- */

typedef struct ckptfmt_reader ckptfmt_reader;
typedef struct ckptfmt_selection ckptfmt_selection;
typedef struct ckptfmt_strings ckptfmt_strings;
typedef struct ckptfmt_mapping ckptfmt_mapping;

typedef enum ckptfmt_verify_mode {
	CKPTFMT_VERIFY_AUTO = 0,   /* whole reads always; partial ones by chunk checksums, or if stored in <= 1 MiB */
	CKPTFMT_VERIFY_FULL = 1,   /* a partial read reads and checks all of each stored slice that it touches */
	CKPTFMT_VERIFY_OFF = 2     /* never (index blocks are checked all the same) */
} ckptfmt_verify_mode;

typedef struct ckptfmt_bytes {
	const uint8_t *data;
	uint64_t size;
} ckptfmt_bytes;

typedef struct ckptfmt_open_options {
	uint64_t struct_size;           /* sizeof(ckptfmt_open_options) */
	const ckptfmt_limits *limits;   /* NULL: the defaults */
	int32_t follow_symlinks;        /* 0: a symbolic link as index or data file is BAD_PATH */
	int32_t threads;                /* at most so many read for one call; 0: the processors it may use, up to 4 (of
	                                 * compressed values up to 16) */
	const ckptfmt_codec *codec;     /* copied; NULL: libzstd if the library was built with it, else compressed values
	                                 * are UNSUPPORTED */
	const ckptfmt_storage *storage; /* NULL: the file system. Must outlive the reader */
	ckptfmt_progress_hook progress; /* of ckptfmt_reader_read; two reads at once may report at once */
	const ckptfmt_bytes *index;     /* NULL: the index file; else read instead of its bytes. The file must exist all the
	                                 * same. The bytes must outlive the reader */
} ckptfmt_open_options;

typedef struct ckptfmt_header {
	int32_t num_shards;
	int32_t big_endian;
	int32_t producer;
	int32_t min_consumer;
	uint64_t index_size;        /* bytes of the index file */
	uint64_t block_count;       /* its data blocks */
} ckptfmt_header;

/* Opens `<prefix>.index` and the data files it needs (up to limits.open_files_max, and as long as the process has
 * descriptors). A data file that cannot be opened fails when it is read from. `options` may be NULL.
 * Reads the footer, the index block and the first data block.
 * NOT_FOUND, IO, CORRUPT, UNSUPPORTED (newer version, V1 file), LIMIT, NO_MEMORY. */
CKPTFMT_API ckptfmt_status ckptfmt_reader_open(const char *prefix, const ckptfmt_open_options *options,
	ckptfmt_reader **out, ckptfmt_error *err);
CKPTFMT_API void ckptfmt_reader_close(ckptfmt_reader *reader);
CKPTFMT_API void ckptfmt_reader_header(const ckptfmt_reader *reader, ckptfmt_header *out);

/* Every tensor of the checkpoint in key order, each partitioned tensor once, but for the names that begin with
 * "_CKPTFMT_": these are reserved for the format. CORRUPT, LIMIT, IO, NO_MEMORY. */
CKPTFMT_API ckptfmt_status ckptfmt_reader_list(ckptfmt_reader *reader, ckptfmt_selection **out, ckptfmt_error *err);
/* The tensors whose names begin with `prefix`, in key order; reads just the part of the index that holds them. INVALID
 * for a prefix that is empty or begins with a zero byte, else as ckptfmt_reader_list. */
CKPTFMT_API ckptfmt_status ckptfmt_reader_list_prefix(ckptfmt_reader *reader, const uint8_t *prefix,
	uint64_t prefix_size, ckptfmt_selection **out, ckptfmt_error *err);
/* The named tensors, in the order given, repeats allowed. `names` holds the names one after the other.
 * As ckptfmt_reader_list, and NOT_FOUND (the error names the first that is missing). */
CKPTFMT_API ckptfmt_status ckptfmt_reader_select(ckptfmt_reader *reader, const uint8_t *names,
	const uint64_t *name_sizes, uint64_t count, ckptfmt_selection **out, ckptfmt_error *err);
/* 1 if the checkpoint holds a tensor of this name (the key of a slice does not count), 0 if not, in *found. */
CKPTFMT_API ckptfmt_status ckptfmt_reader_contains(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size,
	int32_t *found, ckptfmt_error *err);
CKPTFMT_API uint64_t ckptfmt_selection_count(const ckptfmt_selection *selection);
/* The name of a tensor, *size bytes valid until ckptfmt_selection_free, followed by a zero byte; names may hold zero
 * bytes themselves. NULL past the last row. */
CKPTFMT_API const uint8_t *ckptfmt_selection_name(const ckptfmt_selection *selection, uint64_t row, uint64_t *size);

/* What the index says of a tensor. */
typedef struct ckptfmt_tensor {
	int64_t element_count;
	uint64_t byte_size;         /* of its elements in memory; of strings and variants 0, of an unknown dtype the stored
	                             * bytes */
	int32_t dtype;              /* ckptfmt_dtype, or a code that this version does not know */
	int32_t rank;
	uint32_t slice_count;       /* 0: stored whole */
	uint32_t reserved;
	int64_t dims[254];          /* the first `rank` of them */
} ckptfmt_tensor;

/* INVALID: no such row. UNSUPPORTED: the size does not fit 64 bits. */
CKPTFMT_API ckptfmt_status ckptfmt_selection_tensor(const ckptfmt_selection *selection, uint64_t row,
	ckptfmt_tensor *out, ckptfmt_error *err);
/* A selection does not need its reader to stay open; reading with it does, and takes that very reader: INVALID with
 * any other. */
CKPTFMT_API void ckptfmt_selection_free(ckptfmt_selection *selection);

/* One value to read: all of a tensor, or a box of it. */
typedef struct ckptfmt_request {
	uint64_t row;               /* in the selection */
	const int64_t *box;         /* NULL: all; else `rank` starts, then `rank` lengths (>= 0, inside the shape) */
	uint8_t *destination;       /* row-major, host byte order. NULL: nothing is read; it is checked, before there is
	                             * memory for it, that the box has no holes and that the data files have all its bytes.
	                             * Then the tensor may be of any data type, and the size does not matter */
	uint64_t destination_size;  /* must be what the box needs; of an unknown dtype all stored bytes, box NULL */
	uint32_t verified;          /* out: 1 if every byte delivered was checked */
	uint32_t reserved;
} ckptfmt_request;

/* Reads tensors of FIXED storage (and the raw bytes of unknown dtypes). The requests are served in the order of
 * the data files. Several threads share a large read; the failure reported is that of the first request in this
 * order. On failure the destinations hold unspecified bytes. `verify` is a
 * ckptfmt_verify_mode. CORRUPT, IO, NOT_FOUND (data file), INVALID, LIMIT, NO_MEMORY; UNSUPPORTED: a compressed value
 * and no codec. */
CKPTFMT_API ckptfmt_status ckptfmt_reader_read(ckptfmt_reader *reader, const ckptfmt_selection *selection,
	ckptfmt_request *requests, uint64_t count, int32_t verify, ckptfmt_error *err);

/* Reads the elements of a STRING or VARIANT tensor (variant: the payloads as they are); box as in ckptfmt_request. */
CKPTFMT_API ckptfmt_status ckptfmt_reader_read_strings(ckptfmt_reader *reader, const ckptfmt_selection *selection,
	uint64_t row, const int64_t *box, int32_t verify, ckptfmt_strings **out, ckptfmt_error *err);

/* Element i, row-major: *size bytes, valid until ckptfmt_strings_free. NULL past the last. */
CKPTFMT_API const uint8_t *ckptfmt_strings_at(const ckptfmt_strings *strings, uint64_t i, uint64_t *size);
CKPTFMT_API void ckptfmt_strings_free(ckptfmt_strings *strings);

/* ---- one tensor by name ---- */

/* These take no structs that hold pointers, for languages that cannot pass them. Each looks the name up, which costs
 * about a microsecond; NOT_FOUND if the tensor does not exist. Else as the calls above. */
CKPTFMT_API ckptfmt_status ckptfmt_tensor_find(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size,
	ckptfmt_tensor *out, ckptfmt_error *err);
CKPTFMT_API ckptfmt_status ckptfmt_tensor_read(ckptfmt_reader *reader, const uint8_t *name, uint64_t name_size,
	const int64_t *box, uint8_t *destination, uint64_t destination_size, int32_t verify, ckptfmt_error *err);
CKPTFMT_API ckptfmt_status ckptfmt_tensor_read_strings(ckptfmt_reader *reader, const uint8_t *name,
	uint64_t name_size, const int64_t *box, int32_t verify, ckptfmt_strings **out, ckptfmt_error *err);
/* The metadata of the checkpoint, a JSON object as one string; no string if it has none. */
CKPTFMT_API ckptfmt_status ckptfmt_reader_metadata(ckptfmt_reader *reader, ckptfmt_strings **out, ckptfmt_error *err);

/* Maps the stored bytes of a tensor that is stored whole, in the host's byte order and of FIXED storage, read-only.
 * `verify` other than OFF checks them once, now, with threads as for a read: it reads them into private memory in small
 * blocks, one extra pass over the page cache, and maps afterwards. The call itself does not touch the mapping. INVALID
 * for any other tensor, LIMIT for one of more bytes than tensor_bytes_max. The mapping outlives its reader. If another
 * process truncates the file, touching the mapping raises SIGBUS. The data is aligned as in the file: at a multiple of
 * options.alignment if the checkpoint was written with one, else perhaps not even to its element size. */
CKPTFMT_API ckptfmt_status ckptfmt_reader_map(ckptfmt_reader *reader, const ckptfmt_selection *selection,
	uint64_t row, int32_t verify, ckptfmt_mapping **out, ckptfmt_error *err);
CKPTFMT_API const uint8_t *ckptfmt_mapping_data(const ckptfmt_mapping *mapping, uint64_t *size);
/* The largest power of two, up to the page size, that divides the address of the data. */
CKPTFMT_API uint64_t ckptfmt_mapping_alignment(const ckptfmt_mapping *mapping);
CKPTFMT_API void ckptfmt_mapping_close(ckptfmt_mapping *mapping);

#define CKPTFMT_WHOLE 18446744073709551615u  /* instead of a slice's number: the tensor is stored whole */

/* Where the bytes of a stored value are. */
typedef struct ckptfmt_location {
	uint64_t offset;            /* in the file */
	uint64_t size;
	uint64_t raw_size;          /* of the value; not `size` if it is compressed */
	int32_t shard;
	uint32_t crc32c;            /* of the stored bytes, unmasked */
	int32_t compressed;         /* 1: in chunks compressed one by one */
	int32_t big_endian;         /* 1: the byte order of the numbers */
	char path[4096];            /* NUL-terminated; a longer path keeps its end */
} ckptfmt_location;

/* Locates slice `slice` of a partitioned tensor, or a tensor stored whole (CKPTFMT_WHOLE), for callers that map or read
 * the file themselves. The entry is checked, and that the file holds all the bytes; the bytes are not read.
 * CORRUPT, IO, UNSUPPORTED, INVALID. */
CKPTFMT_API ckptfmt_status ckptfmt_reader_locate(ckptfmt_reader *reader, const ckptfmt_selection *selection,
	uint64_t row, uint64_t slice, ckptfmt_location *out, ckptfmt_error *err);

/* ---- writing --------------------------------------------------------------------------------------------- */

typedef struct ckptfmt_writer ckptfmt_writer;

typedef enum ckptfmt_durability {
	CKPTFMT_DURABILITY_FULL = 0,     /* synced: when commit returns, a power cut cannot lose it */
	CKPTFMT_DURABILITY_RENAME = 1,   /* atomic for other processes, not synced */
	CKPTFMT_DURABILITY_NONE = 2      /* as RENAME, and without reading the index back */
} ckptfmt_durability;

/* All fields but the first zero: what SaveV2 writes. */
typedef struct ckptfmt_write_options {
	uint64_t struct_size;      /* sizeof(ckptfmt_write_options) */
	uint64_t alignment;        /* tensors start at multiples of it, with zero bytes between; 0 or 1: no padding */
	uint32_t chunk_size;       /* bytes a chunk checksum covers, a multiple of 16 and at least 4096; 0: none. Tensors of
	                            * one chunk get none */
	int32_t durability;        /* ckptfmt_durability */
	uint64_t data_size;        /* hint: allocate space for this many bytes of data and padding at once; 0: as needed */
	const ckptfmt_storage *storage;    /* NULL: the file system. Must outlive the writer */
	const ckptfmt_codec *codec;  /* copied; values are stored compressed where that takes less; NULL: none are. With a
	                             * codec chunk_size must be 4096 bytes to 16 MiB */
	int32_t shards;            /* data files of a fresh prefix, 1 (or 0, the same) to 1024. Each tensor, in the order of
	                            * adding, goes to the file with the fewest bytes. If much is added at once, each file is
	                            * written by its own thread. A checkpoint that replaces another one can have more */
	int32_t reserved;
	ckptfmt_progress_hook progress;
} ckptfmt_write_options;

/* One tensor, or one slice of one, to write. Everything it points to must stay as it is during the call; elements that
 * another thread changes meanwhile may be stored torn, with checksums that match what is stored. */
typedef struct ckptfmt_source {
	const uint8_t *name;
	uint64_t name_size;         /* at least 1 */
	const int64_t *dims;        /* `rank` sizes of the data given */
	const int64_t *strides;     /* bytes; NULL: row-major without gaps. FIXED storage only */
	const uint8_t *data;        /* first element; for STRING and VARIANT `const ckptfmt_bytes *`, one an element */
	const int64_t *slice;       /* NULL: a whole tensor; else `rank` full sizes, `rank` starts, `rank` lengths;
	                             * start 0 and length -1 is a full dimension, another spelling than 0 and its size */
	int32_t dtype;
	int32_t rank;
	int32_t swapped;            /* 1: the data is in the other byte order than this machine's */
	int32_t reserved;
} ckptfmt_source;

/* Begins a checkpoint at `prefix`; makes missing directories. Nothing under the final names changes before
 * ckptfmt_writer_commit. `options` may be NULL. */
CKPTFMT_API ckptfmt_status ckptfmt_writer_open(const char *prefix, const ckptfmt_write_options *options,
	ckptfmt_writer **out, ckptfmt_error *err);
/* Appends tensors in the order given. All sources are checked before a byte of the first is written. After any
 * failure the writer only takes ckptfmt_writer_abandon. Slices that cover the whole tensor are stored as whole
 * tensors. INVALID: empty, repeated or reserved name (those that begin with "_CKPTFMT_"), bad dtype, shape or
 * slice, parts that disagree. LIMIT: a name or a number of chunks that readers would refuse. */
CKPTFMT_API ckptfmt_status ckptfmt_writer_add(ckptfmt_writer *writer, const ckptfmt_source *sources, uint64_t count,
	ckptfmt_error *err);
/* One tensor from memory without gaps, in this machine's byte order. `data_size` must be what dtype and shape need. */
CKPTFMT_API ckptfmt_status ckptfmt_writer_add_tensor(ckptfmt_writer *writer, const uint8_t *name, uint64_t name_size,
	int32_t dtype, const int64_t *dims, int32_t rank, const uint8_t *data, uint64_t data_size, ckptfmt_error *err);
/* One string tensor, row-major: element i has sizes[i] of the bytes, one after the other. */
CKPTFMT_API ckptfmt_status ckptfmt_writer_add_strings(ckptfmt_writer *writer, const uint8_t *name, uint64_t name_size,
	const int64_t *dims, int32_t rank, const uint8_t *bytes, const uint64_t *sizes, ckptfmt_error *err);
/* Appends metadata: a JSON object in the form of EXT-12, which is not checked. May be called at any time before
 * ckptfmt_writer_commit; before the first ckptfmt_writer_add, a data file that is cut short later still has them.
 * INVALID: there are metadata already. */
CKPTFMT_API ckptfmt_status ckptfmt_writer_add_metadata(ckptfmt_writer *writer, const uint8_t *text, uint64_t size,
	ckptfmt_error *err);
/* Makes the checkpoint visible, all or nothing, and frees the writer whatever is returned. An older checkpoint of
 * this prefix is replaced by one rename, then its data files are removed. INVALID: slices of a tensor overlap. IO with
 * failure DURABILITY_UNKNOWN: the new checkpoint is in place but the final sync failed, so a power cut may bring the
 * old one back, whole. */
CKPTFMT_API ckptfmt_status ckptfmt_writer_commit(ckptfmt_writer *writer, ckptfmt_error *err);
/* Removes what was written and frees the writer. */
CKPTFMT_API void ckptfmt_writer_abandon(ckptfmt_writer *writer);


/* ---- merging --------------------------------------------------------------------------------------------- */

typedef struct ckptfmt_merge_options {
	uint64_t struct_size;          /* sizeof(ckptfmt_merge_options) */
	int32_t consume;               /* 1: the data files move and the inputs' indexes are removed; 0: hard links */
	int32_t allow_missing;         /* 1: inputs without an index are left out */
	int32_t durability;            /* ckptfmt_durability */
	int32_t remove_directories;    /* 1, with consume: so are the inputs' directories that are empty then */
	const ckptfmt_limits *limits;  /* NULL: the defaults */
	const ckptfmt_storage *storage;    /* NULL: the file system */
	ckptfmt_progress_hook progress;
	int32_t partial;               /* 1: the slices of a tensor need not cover it, as in a part of a later merge */
	int32_t metadata_from;         /* 1 + index of the prefix whose metadata the result has; 0: all must be equal */
} ckptfmt_merge_options;

/* Merges the bundles at `prefixes` into one at `destination`, moving no tensor bytes. Everything is checked before
 * the first change on disk. CONFLICT names both inputs. CORRUPT with the failure BAD_SLICE, unless `partial`: elements
 * of a tensor are in no input. With `consume` a merge that was killed is finished by calling
 * this again with the same arguments; NOT_FOUND, with a whole destination, if it had removed all inputs already. IO
 * with the failure NOT_REMOVED names an input: the result is in place, but the inputs could not all be removed; the
 * same call again finishes. */
CKPTFMT_API ckptfmt_status ckptfmt_merge(const char *const *prefixes, uint64_t count, const char *destination,
	const ckptfmt_merge_options *options, ckptfmt_error *err);

/* ---- verifying ------------------------------------------------------------------------------------------- */

typedef enum ckptfmt_severity {
	CKPTFMT_SEVERITY_NOTE = 1,      /* sound, but not what a canonical writer writes */
	CKPTFMT_SEVERITY_PROBLEM = 2    /* damaged, incomplete or contradictory */
} ckptfmt_severity;

/* One finding, shaped like an error. */
typedef struct ckptfmt_finding {
	int32_t severity;
	int32_t reserved;
	ckptfmt_error error;
} ckptfmt_finding;

/* Result of a verification, in memory of the library: fields may follow. */
typedef struct ckptfmt_report {
	const ckptfmt_finding *findings;    /* in the order found */
	uint64_t finding_count;
	uint64_t bytes_checked;     /* of the index and the data files */
	uint64_t tensors_checked;
} ckptfmt_report;

/* Checks everything that can be checked: every index block, every entry, every tensor checksum, sizes, overlaps,
 * slices without a tensor, data files missing or too many. Goes on after a problem. Fails only where there is nothing
 * to check (no such checkpoint, out of memory, CANCELLED); a damaged index is a finding.
 * Where another process replaces the checkpoint meanwhile, the findings so far are dropped and the new one is verified
 * from its beginning (ten times at most, then GENERATION_GONE is a finding). */
CKPTFMT_API ckptfmt_status ckptfmt_verify(const char *prefix, const ckptfmt_open_options *options,
	ckptfmt_report **out, ckptfmt_error *err);
CKPTFMT_API void ckptfmt_report_free(ckptfmt_report *report);

/* cffi: end */

#ifdef __cplusplus
}
#endif

#endif
