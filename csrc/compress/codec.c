/* SPDX-License-Identifier: Apache-2.0 */
#include "compress/codec.h"

#include "base/limits.h"

ckptfmt_status cf_codec_take(ckptfmt_codec *to, const ckptfmt_codec *from, ckptfmt_error *err)
{
	CF_TRY(cf_struct_take(to, sizeof *to, from, "ckptfmt_codec", err));
	if (to->encode == NULL || to->decode == NULL)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the codec must have encode and decode");
	return CKPTFMT_OK;
}

static ckptfmt_status run(const ckptfmt_codec *codec, bool encodes, ckptfmt_codec_item *items, uint64_t count,
	ckptfmt_error *err)
{
	ckptfmt_status status;
	if (count == 0)
		return CKPTFMT_OK;
	for (uint64_t i = 0; i < count; i++)
		items[i].size = 0;
	status = (encodes ? codec->encode : codec->decode)(codec->context, items, count);
	if (status == CKPTFMT_NO_MEMORY)
		return cf_fail_memory(err);
	if (status != CKPTFMT_OK)
		return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET, "the codec failed with status %d", (int)status);
	for (uint64_t i = 0; i < count; i++)
		if (items[i].size > items[i].capacity)
			return cf_fail(err, CKPTFMT_FAIL_ARGUMENT, CF_NO_OFFSET,
				"the codec wrote %llu bytes, over the capacity of %llu",
				(unsigned long long)items[i].size, (unsigned long long)items[i].capacity);
	return CKPTFMT_OK;
}

ckptfmt_status cf_codec_encode(const ckptfmt_codec *codec, ckptfmt_codec_item *items, uint64_t count,
	ckptfmt_error *err)
{
	return run(codec, true, items, count, err);
}

ckptfmt_status cf_codec_decode(const ckptfmt_codec *codec, ckptfmt_codec_item *items, uint64_t count,
	ckptfmt_error *err)
{
	return run(codec, false, items, count, err);
}
