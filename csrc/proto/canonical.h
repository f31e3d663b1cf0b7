/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The canonical form of messages: what a protobuf library writes after it has read a message (MRG-7). A schema says
 * which fields are known; all others follow them unchanged. Nothing is stored between reading and writing: the message
 * is walked once for each known field, and once more for the unknown ones.
 */
#ifndef CKPTFMT_PROTO_CANONICAL_H
#define CKPTFMT_PROTO_CANONICAL_H

#include "base/buffer.h"
#include "proto/message.h"

typedef enum cf_kind {
	CF_KIND_INT32 = 1,          /* also enums; cut to 32 bits and written as its 64-bit sign extension */
	CF_KIND_INT64 = 2,
	CF_KIND_BOOL = 3,           /* any value but 0 is written as 1 */
	CF_KIND_FIXED32 = 4,
	CF_KIND_TEXT = 5,
	CF_KIND_MESSAGE = 6
} cf_kind;

typedef enum cf_label {
	CF_LABEL_PLAIN = 1,         /* the last one counts; left out if it is 0, false or empty */
	CF_LABEL_PRESENT = 2,       /* the last one counts (of messages: all, joined); written if it was there */
	CF_LABEL_REPEATED = 3       /* of CF_KIND_INT32, read packed or not and written packed, or CF_KIND_MESSAGE */
} cf_label;

/* KEPT keeps unknown fields, names of dimensions and unknown_rank; the extension of an entry is an unknown field to it.
 * STRICT is what a canonical writer writes: it drops these and knows the extension. A message that differs from its
 * forms deviates (MSG-8, MSG-15). */
typedef enum cf_form {
	CF_FORM_KEPT = 1,
	CF_FORM_STRICT = 2,
	CF_FORM_BOTH = 3            /* of rules: a field of either form */
} cf_form;

typedef struct cf_field_rule {
	uint32_t number;
	cf_kind kind;
	cf_label label;
	const struct cf_schema *schema;     /* of CF_KIND_MESSAGE */
	cf_form forms;
} cf_field_rule;

/* Invariant: fields by ascending number, and no schema contains itself, so that recursion ends. */
typedef struct cf_schema {
	const cf_field_rule *fields;
	size_t count;
} cf_schema;

extern const cf_schema cf_entry_schema;     /* BundleEntryProto */
extern const cf_schema cf_header_schema;    /* BundleHeaderProto */

/* Append, in form KEPT, one known field of a message with its tags (nothing if it is absent; REQUIRES: the schema has
 * that number), and its unknown fields. `origin` is the file offset of the message. Time is linear in its size.
 * BAD_PROTO if it is malformed (then part of the field may have been appended), NO_MEMORY; a failed growth of `out` is
 * reported by its status. Text is not checked (MSG-16: the decoders do). */
CF_MUST_CHECK ckptfmt_status cf_canonical_put_field(cf_buffer *out, const cf_schema *schema, uint32_t number,
	cf_bytes_view message, uint64_t origin, ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_canonical_put_unknown(cf_buffer *out, const cf_schema *schema, cf_bytes_view message,
	uint64_t origin, ckptfmt_error *err);
/* The whole message. */
CF_MUST_CHECK ckptfmt_status cf_canonical_put(cf_buffer *out, const cf_schema *schema, cf_form form,
	cf_bytes_view message, uint64_t origin, ckptfmt_error *err);

#endif
