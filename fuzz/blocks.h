/* SPDX-License-Identifier: Apache-2.0 */
/* Keeps the large blocks that the library frees, for its next calls: under a sanitizer, mapping and unmapping them is
 * most of the work of a short run. Small blocks go to malloc, so that the use of freed memory is seen. */
#ifndef CKPTFMT_FUZZ_BLOCKS_H
#define CKPTFMT_FUZZ_BLOCKS_H

/* REQUIRES: the library holds no memory. */
void fuzz_keep_blocks(void);

#endif
