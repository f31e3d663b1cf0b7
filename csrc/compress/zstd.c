/* SPDX-License-Identifier: Apache-2.0 */
/* The codec over libzstd, if the library is built with it (CKPTFMT_WITH_ZSTD). It keeps no state between batches, so
 * any number of threads may use it. */
#include "base/error.h"

enum { LEVEL_MAX = 22 };

#ifdef CKPTFMT_WITH_ZSTD

#include <zstd.h>
#include <zstd_errors.h>

/* The window holds a chunk of the default size. */
enum { WINDOW_LOG = 18 };

/* EFFORT_FAST relies on entropy coding and hardly searches for matches: in the exponents of numbers, random matches
 * cost more than they save, in bytes and in time. */
static size_t set_effort(ZSTD_CCtx *coder, int32_t effort, int level)
{
	size_t code = ZSTD_CCtx_reset(coder, ZSTD_reset_session_and_parameters);
	if (!ZSTD_isError(code))
		code = ZSTD_CCtx_setParameter(coder, ZSTD_c_windowLog, WINDOW_LOG);
	if (effort == CKPTFMT_EFFORT_FULL)
		return ZSTD_isError(code) ? code : ZSTD_CCtx_setParameter(coder, ZSTD_c_compressionLevel, level);
	if (!ZSTD_isError(code))
		code = ZSTD_CCtx_setParameter(coder, ZSTD_c_strategy, ZSTD_fast);
	if (!ZSTD_isError(code))
		code = ZSTD_CCtx_setParameter(coder, ZSTD_c_minMatch, 7);
	return ZSTD_isError(code) ? code : ZSTD_CCtx_setParameter(coder, ZSTD_c_hashLog, 6);
}

static ckptfmt_status encode(void *context, ckptfmt_codec_item *items, uint64_t count)
{
	int level = (int)(intptr_t)context;
	int32_t effort = -1;
	ZSTD_CCtx *coder = ZSTD_createCCtx();
	if (coder == NULL)
		return CKPTFMT_NO_MEMORY;
	for (uint64_t i = 0; i < count; i++) {
		ckptfmt_codec_item *item = &items[i];
		size_t size = 0;
		if (item->effort != effort)
			size = set_effort(coder, item->effort, level);
		effort = item->effort;
		if (!ZSTD_isError(size))
			size = ZSTD_compress2(coder, item->destination, item->capacity, item->source, item->source_size);
		if (ZSTD_isError(size) && ZSTD_getErrorCode(size) == ZSTD_error_memory_allocation) {
			ZSTD_freeCCtx(coder);
			return CKPTFMT_NO_MEMORY;
		}
		item->size = ZSTD_isError(size) ? 0 : size;
	}
	ZSTD_freeCCtx(coder);
	return CKPTFMT_OK;
}

static ckptfmt_status decode(void *context, ckptfmt_codec_item *items, uint64_t count)
{
	ZSTD_DCtx *decoder = ZSTD_createDCtx();
	(void)context;
	if (decoder == NULL)
		return CKPTFMT_NO_MEMORY;
	for (uint64_t i = 0; i < count; i++) {
		size_t size = ZSTD_decompressDCtx(decoder, items[i].destination, items[i].capacity, items[i].source,
			items[i].source_size);
		items[i].size = ZSTD_isError(size) ? 0 : size;
	}
	ZSTD_freeDCtx(decoder);
	return CKPTFMT_OK;
}

#endif

ckptfmt_status ckptfmt_codec_zstd(int32_t level, ckptfmt_codec *out, ckptfmt_error *err)
{
	*out = (ckptfmt_codec){.struct_size = sizeof *out};
	if (level < 1 || level > LEVEL_MAX)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "zstd level %d must be from 1 to %d", (int)level,
			LEVEL_MAX);
#ifdef CKPTFMT_WITH_ZSTD
	out->context = (void *)(intptr_t)level;
	out->encode = encode;
	out->decode = decode;
	out->flags = CKPTFMT_CODEC_THREADS;
	return CKPTFMT_OK;
#else
	return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET,
		"this library was built without libzstd: pass a codec of your own");
#endif
}
