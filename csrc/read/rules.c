/* SPDX-License-Identifier: Apache-2.0 */
#include "read/rules.h"

#include "proto/message.h"
#include "proto/strings.h"
#include "read/transfer.h"
#include "slices/box.h"

static ckptfmt_status check_listed(const ckptfmt_row *row, uint64_t slice, uint32_t flags, ckptfmt_error *err)
{
	if (flags & CKPTFMT_STORED_MISSING)
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET, "SLC-7: slice %llu of %lu has no entry of its own",
			(unsigned long long)slice, (unsigned long)row->slice_count);
	if (flags & CKPTFMT_STORED_OTHER_DTYPE)
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET,
			"SLC-8: the entry of slice %llu has another dtype than the tensor", (unsigned long long)slice);
	if (flags & CKPTFMT_STORED_OTHER_SHAPE)
		return cf_fail(err, CKPTFMT_FAIL_BAD_SLICE, CF_NO_OFFSET,
			"SLC-9: the entry of slice %llu has another shape than the slice", (unsigned long long)slice);
	return CKPTFMT_OK;
}

static uint64_t count_elements(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice)
{
	int64_t starts[CKPTFMT_RANK_MAX], lengths[CKPTFMT_RANK_MAX];
	if (slice == CF_WHOLE_TENSOR)
		return (uint64_t)row->element_count;
	cf_geometry_resolve(selection, row, slice, starts, lengths);
	return (uint64_t)cf_box_count(row->rank, lengths);
}

static ckptfmt_status check_size(const ckptfmt_stored *stored, uint64_t count, uint64_t itemsize, ckptfmt_error *err)
{
	uint64_t expected;
	if (!cf_mul_u64(count, itemsize, &expected))
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET, "ENT-5: the size in bytes does not fit 64 bits");
	if (stored->raw_size != expected)
		return cf_fail(err, CKPTFMT_FAIL_BAD_ENTRY, CF_NO_OFFSET,
			"ENT-5: %lld bytes are stored, dtype and shape take %llu", (long long)stored->raw_size,
			(unsigned long long)expected);
	return CKPTFMT_OK;
}

ckptfmt_status cf_value_check_rule(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice,
	cf_value_rule rule, ckptfmt_error *err)
{
	const ckptfmt_stored *stored = cf_value_stored(selection, row, slice);
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(row->dtype);
	int32_t storage = dtype == NULL ? CKPTFMT_STORAGE_NONE : dtype->storage;
	bool compressed = (stored->flags & CKPTFMT_STORED_COMPRESSED) != 0;
	switch (rule) {
	case CF_VALUE_LISTED:
		return check_listed(row, slice, stored->flags, err);
	case CF_VALUE_DTYPE:
		return !compressed || dtype != NULL ? CKPTFMT_OK : cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET,
			"DTY-6: a compressed value of data type %d, which is not known", (int)row->dtype);
	case CF_VALUE_FEATURES:
		return stored->broken_rule != CF_STORED_EXT_3 ? CKPTFMT_OK
			: cf_form_fail(CF_STORED_EXT_3, stored->size, CF_NO_OFFSET, err);
	case CF_VALUE_BYTE_ORDER:
		return !compressed || !selection->big_endian ? CKPTFMT_OK : cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED,
			CF_NO_OFFSET, "CMP-9: compressed values of a big-endian bundle");
	case CF_VALUE_CHUNKS:
		/* Chunks of a compressed value in a big-endian bundle have no defined form: CMP-9 says all. */
		return stored->broken_rule == CF_STORED_SOUND || (compressed && selection->big_endian) ? CKPTFMT_OK
			: cf_form_fail((cf_stored_form)stored->broken_rule, stored->size, CF_NO_OFFSET, err);
	case CF_VALUE_PLACE:
		return cf_check_place(stored->shard, (int64_t)stored->offset, (int64_t)stored->size, selection->num_shards,
			CF_NO_OFFSET, err);
	case CF_VALUE_SIZE:
		return storage != CKPTFMT_STORAGE_FIXED ? CKPTFMT_OK
			: check_size(stored, count_elements(selection, row, slice), dtype->size, err);
	case CF_VALUE_EXPANSION:
		return (stored->flags & CKPTFMT_STORED_EXPANDS) == 0 ? CKPTFMT_OK : cf_fail(err, CKPTFMT_FAIL_LIMIT,
			CF_NO_OFFSET, "CMP-20: %llu stored bytes claim to be %llu, more than limit expansion_max allows",
			(unsigned long long)stored->size, (unsigned long long)stored->raw_size);
	case CF_VALUE_VARIANT:
		return storage != CKPTFMT_STORAGE_VARIANT || !selection->big_endian ? CKPTFMT_OK : cf_fail(err,
			CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET, "VAR-6: variants of a big-endian bundle");
	case CF_VALUE_COUNT:
		return storage != CKPTFMT_STORAGE_STRING && storage != CKPTFMT_STORAGE_VARIANT ? CKPTFMT_OK
			: cf_string_tensor_check_count(storage, count_elements(selection, row, slice), stored->raw_size,
				CF_NO_OFFSET, err);
	case CF_VALUE_EMPTY:
		return stored->size != 0 ? CKPTFMT_OK : cf_transfer_check_empty(stored, err);
	case CF_VALUE_RULES:
		break;
	}
	return CKPTFMT_OK;
}

ckptfmt_status cf_value_check(const ckptfmt_selection *selection, const ckptfmt_row *row, uint64_t slice,
	ckptfmt_error *err)
{
	const ckptfmt_stored *stored = cf_value_stored(selection, row, slice);
	/* Nearly every value is uncompressed and has no mark, which leaves its place and size. */
	bool plain = stored->flags == 0 && stored->broken_rule == CF_STORED_SOUND;
	uint32_t first = plain ? CF_VALUE_PLACE : CF_VALUE_LISTED, last = plain ? CF_VALUE_SIZE : CF_VALUE_EXPANSION;
	for (uint32_t rule = first; rule <= last; rule++)
		CF_TRY(cf_value_check_rule(selection, row, slice, (cf_value_rule)rule, err));
	return CKPTFMT_OK;
}

ckptfmt_status cf_dtype_check(int32_t code, uint64_t origin, ckptfmt_error *err)
{
	const ckptfmt_dtype_info *dtype = ckptfmt_dtype_find(code);
	bool reference = code > 100 && code <= 100 + CKPTFMT_FLOAT4_E2M1FN;
	if (code >= 1 && !reference && (dtype == NULL || dtype->storage != CKPTFMT_STORAGE_NONE))
		return CKPTFMT_OK;
	return cf_fail(err, CKPTFMT_FAIL_BAD_DTYPE, origin, "DTY-5: data type %d cannot be stored", (int)code);
}

ckptfmt_status cf_value_check_limit(const ckptfmt_limits *limits, uint64_t size, bool compressed, uint64_t offset,
	ckptfmt_error *err)
{
	return size <= limits->tensor_bytes_max ? CKPTFMT_OK : cf_fail(err, CKPTFMT_FAIL_LIMIT, offset,
		"%s: a value of %llu bytes, above limit tensor_bytes_max (%llu)", compressed ? "CMP-20" : "TAB-13",
		(unsigned long long)size, (unsigned long long)limits->tensor_bytes_max);
}

ckptfmt_status cf_fail_codec(ckptfmt_error *err)
{
	return cf_fail(err, CKPTFMT_FAIL_UNSUPPORTED, CF_NO_OFFSET,
		"the value is compressed with zstd, which needs a codec: build the library with libzstd, or open the "
		"checkpoint with one");
}
