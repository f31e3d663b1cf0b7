/* SPDX-License-Identifier: Apache-2.0 */
/* Oddities: what a canonical writer would not have written and a lenient reader tolerates. Decoders collect them as
 * bits; strict reading (verify, tests) reports each. One line of the table in spec/format.md for each. */
#ifndef CKPTFMT_BASE_ODDITY_H
#define CKPTFMT_BASE_ODDITY_H

typedef enum cf_oddity {
	CF_ODD_OVERLONG_VARINT = 1 << 0,    /* a varint longer than it need be */
	CF_ODD_UNKNOWN_FIELD = 1 << 1,      /* a message field this version does not know, groups included */
	CF_ODD_FIELD_ORDER = 1 << 2,        /* fields repeated or out of ascending order, or written at their default */
	CF_ODD_FOOTER_PADDING = 1 << 3,     /* non-zero padding in the footer */
	CF_ODD_TABLE_GAP = 1 << 4,          /* bytes of the index file that no block covers */
	CF_ODD_METAINDEX = 1 << 5,          /* a metaindex block that is not the empty one */
	CF_ODD_HANDLE_TAIL = 1 << 6,        /* bytes after a block handle */
	CF_ODD_SNAPPY = 1 << 7,             /* a Snappy block */
	CF_ODD_RESTARTS = 1 << 8,           /* restart points other than every 16th entry (index block: every one) */
	CF_ODD_PREFIX = 1 << 9,             /* a key that shares less than it could */
	CF_ODD_SEPARATOR = 1 << 10,         /* an index key other than the shortest separator */
	CF_ODD_BLOCK_SIZE = 1 << 11,        /* a block that ends earlier or later than the flush rule says */
	CF_ODD_NO_RESTARTS = 1 << 12,       /* a block with a restart count of zero: read as empty */
	CF_ODD_UNKNOWN_RANK = 1 << 13,      /* shape says unknown_rank */
	CF_ODD_DIM_NAME = 1 << 14,          /* a dimension with a name */
	CF_ODD_NO_SHAPE = 1 << 15,          /* an entry without a shape message */
	CF_ODD_SLICE_LOCATION = 1 << 16,    /* a partitioned tensor whose own entry names bytes */
	CF_ODD_NESTED_SLICES = 1 << 17,     /* a slice's entry lists slices */
	CF_ODD_BIG_ENDIAN = 1 << 18,        /* a big-endian bundle */
	CF_ODD_UNKNOWN_DTYPE = 1 << 19      /* a dtype code this version does not know */
} cf_oddity;

#endif
