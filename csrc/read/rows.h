/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ckptfmt_selection, for the files of this folder. */
#ifndef CKPTFMT_READ_ROWS_H
#define CKPTFMT_READ_ROWS_H

#include "base/buffer.h"
#include "ckptfmt.h"

#include <stdatomic.h>

/* The slices of one tensor, sorted by their start in one dimension, to find those of a box (values.c). */
typedef struct cf_slice_place {
	int64_t start;
	int64_t end_max;            /* of this slice and all before it */
	uint64_t slice;
} cf_slice_place;

typedef struct cf_slice_order {
	cf_slice_place *places;     /* ascending by start; one a slice */
	int32_t dimension;
} cf_slice_order;

struct ckptfmt_selection {
	uint64_t reader_id;         /* of the reader that made it, the only one it can be used with */
	cf_buffer rows;             /* ckptfmt_row */
	cf_buffer slices;           /* ckptfmt_slice_row */
	cf_buffer dims;             /* int64_t */
	cf_buffer names;
	cf_buffer chunk_crcs;       /* uint32_t */
	cf_buffer chunk_ends;       /* uint64_t */
	int32_t num_shards;         /* of the checkpoint */
	bool big_endian;
	/* One a row, both allocated when the selection is complete and NULL where no tensor is partitioned. */
	_Atomic uint8_t *disjoint;              /* 1 once its slices were found disjoint */
	_Atomic(cf_slice_order *) *orders;      /* NULL until a box of a tensor of many slices was read */
};

static inline const ckptfmt_row *cf_selection_row(const ckptfmt_selection *selection, uint64_t row)
{
	return (const ckptfmt_row *)cf_buffer_items(&selection->rows) + row;
}

static inline uint64_t cf_selection_count(const ckptfmt_selection *selection)
{
	return selection->rows.size / sizeof(ckptfmt_row);
}

static inline const int64_t *cf_selection_dims(const ckptfmt_selection *selection, uint64_t first)
{
	return cf_buffer_int64s(&selection->dims, first);
}

static inline const ckptfmt_slice_row *cf_selection_slices(const ckptfmt_selection *selection, const ckptfmt_row *row)
{
	return (const ckptfmt_slice_row *)cf_buffer_items(&selection->slices) + row->slices_first;
}

static inline const uint8_t *cf_selection_name(const ckptfmt_selection *selection, const ckptfmt_row *row)
{
	return (const uint8_t *)cf_buffer_items(&selection->names) + row->name_offset;
}

#endif
