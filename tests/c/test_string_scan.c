/* SPDX-License-Identifier: Apache-2.0 */
/* Values that come in pieces: whatever the bytes are and wherever they are cut, what is found is what decoding the
 * whole finds. */
#include "proto/strings.h"

#include "test.h"

enum { COUNT = 5, SIZE_MAX_HERE = 1024 };

static ckptfmt_status scanned(int32_t storage, const cf_stored_value *value, uint64_t piece, ckptfmt_error *err)
{
	cf_string_scan scan = cf_string_scan_begin(storage, value);
	for (uint64_t done = 0; done < value->size; done += piece) {
		uint64_t some = value->size - done < piece ? value->size - done : piece;
		CF_TRY(cf_string_scan_take(&scan, value->bytes + done, some, err));
	}
	return CKPTFMT_OK;
}

static void compare(int32_t storage, const uint8_t *bytes, uint64_t size, uint64_t count, uint32_t crc, bool verify)
{
	static const uint64_t pieces[] = {1, 2, 3, 5, 7, 64, SIZE_MAX_HERE};
	uint64_t starts[COUNT + 1], sizes[COUNT + 1];
	cf_stored_value value = {test_guarded_copy(bytes, size), size, 500, count, crc, false, verify, false};
	ckptfmt_error one, other;
	ckptfmt_status expected;
	if (size == 0 || cf_string_tensor_check_count(storage, count, size, 500, &one) != CKPTFMT_OK)
		return;
	expected = cf_strings_decode(storage, &value, starts, sizes, &one);
	for (size_t i = 0; i < sizeof pieces / sizeof pieces[0]; i++) {
		CHECK_EQ(scanned(storage, &value, pieces[i], &other), expected);
		if (expected != CKPTFMT_OK)
			CHECK(one.failure == other.failure && strncmp(one.message, other.message, 5) == 0);
	}
}

static uint64_t put_strings(uint8_t *to, uint32_t *crc)
{
	static const uint64_t lengths[COUNT] = {0, 3, 200, 1, 0};
	uint64_t size = 0;
	*crc = 0;
	for (int i = 0; i < COUNT; i++) {
		size += cf_store_varint(to + size, lengths[i]);
		*crc = cf_string_length_crc(*crc, lengths[i]);
	}
	cf_store_u32(to + size, ckptfmt_crc32c_mask(*crc));
	*crc = ckptfmt_crc32c(*crc, to + size, 4);
	size += 4;
	for (int i = 0; i < 204; i++)
		to[size + (uint64_t)i] = (uint8_t)i;
	*crc = ckptfmt_crc32c(*crc, to + size, 204);
	return size + 204;
}

static uint64_t put_variants(uint8_t *to, uint32_t *crc)
{
	static const uint64_t lengths[COUNT] = {7, 0, 150, 0, 1};
	uint64_t size = 0;
	*crc = 0;
	for (int i = 0; i < COUNT; i++) {
		size += cf_store_varint(to + size, lengths[i]);
		memset(to + size, i, lengths[i]);
		*crc = ckptfmt_crc32c(cf_variant_length_crc(*crc, lengths[i]), to + size, lengths[i]);
		size += lengths[i];
		cf_store_u32(to + size, ckptfmt_crc32c_mask(*crc));
		*crc = ckptfmt_crc32c(*crc, to + size, 4);
		size += 4;
	}
	return size;
}

static void test_agreement(int32_t storage)
{
	uint8_t bytes[SIZE_MAX_HERE] = {0}, damaged[SIZE_MAX_HERE];
	uint32_t crc;
	uint64_t size = storage == CKPTFMT_STORAGE_STRING ? put_strings(bytes, &crc) : put_variants(bytes, &crc);
	cf_stored_value value = {bytes, size, 500, COUNT, crc, false, true, false};
	ckptfmt_error err;
	CHECK_OK(scanned(storage, &value, 3, &err), err);
	for (uint64_t count = 0; count <= COUNT + 1; count++) {
		compare(storage, bytes, size, count, crc, true);
		compare(storage, bytes, size, count, crc, false);
	}
	compare(storage, bytes, size, COUNT, crc ^ 1, true);
	for (uint64_t cut = 1; cut <= size + 2; cut++) {
		compare(storage, bytes, cut, COUNT, crc, true);
		compare(storage, bytes, cut, COUNT, crc, false);
	}
	for (uint64_t byte = 0; byte < size; byte++)
		for (int bit = 0; bit < 8; bit += 7) {
			memcpy(damaged, bytes, size);
			damaged[byte] ^= (uint8_t)(1 << bit);
			compare(storage, damaged, size, COUNT, crc, true);
			compare(storage, damaged, size, COUNT, crc, false);
		}
	memset(damaged, 0xff, sizeof damaged);
	compare(storage, damaged, 60, COUNT, crc, true);
	damaged[9] = 1;
	damaged[10] = 0x7f;
	for (uint64_t count = 1; count < 4; count++)
		compare(storage, damaged, 30, count, crc, false);
}

int main(void)
{
	test_agreement(CKPTFMT_STORAGE_STRING);
	test_agreement(CKPTFMT_STORAGE_VARIANT);
	return test_finish("string_scan");
}
