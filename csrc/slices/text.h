/* SPDX-License-Identifier: Apache-2.0 */
/* The shape_and_slice text of the save and restore operations ("4 6 0,2:-"). Its parser is public:
 * ckptfmt_spec_parse. */
#ifndef CKPTFMT_SLICES_TEXT_H
#define CKPTFMT_SLICES_TEXT_H

#include "base/buffer.h"

/* Appends a slice: dimensions joined by ':', each "-" (start 0, length -1) or "start,length". */
void cf_slice_print(cf_buffer *out, int32_t rank, const int64_t *starts, const int64_t *lengths);

#endif
