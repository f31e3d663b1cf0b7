/* SPDX-License-Identifier: Apache-2.0 */
/* Calls a codec and checks its results: it may be the caller's. */
#ifndef CKPTFMT_COMPRESS_CODEC_H
#define CKPTFMT_COMPRESS_CODEC_H

#include "base/error.h"

/* Copies the caller's codec. INVALID: bad struct_size (cf_struct_take), or a function is missing. */
CF_MUST_CHECK ckptfmt_status cf_codec_take(ckptfmt_codec *to, const ckptfmt_codec *from, ckptfmt_error *err);
/* Encode or decode a batch. The size of an item that failed is 0 afterwards. INVALID: the codec failed, or reports more
 * bytes than the capacity; NO_MEMORY. */
CF_MUST_CHECK ckptfmt_status cf_codec_encode(const ckptfmt_codec *codec, ckptfmt_codec_item *items, uint64_t count,
	ckptfmt_error *err);
CF_MUST_CHECK ckptfmt_status cf_codec_decode(const ckptfmt_codec *codec, ckptfmt_codec_item *items, uint64_t count,
	ckptfmt_error *err);

#endif
