/* SPDX-License-Identifier: Apache-2.0 */
/* proto/strings.h: TensorFlow's bytes of string tensors, and that a value read in pieces, damaged or not, gives what
 * decoding the whole gives. Each damage by its rule: the vectors str-* and var-*. */
#include "proto/strings.h"

#include "test.h"

static cf_stored_value stored(const void *bytes, size_t size, uint64_t count, uint32_t crc)
{
	cf_stored_value value = {test_guarded_copy(bytes, size), size, 500, count, crc, false, true, false};
	return value;
}

/* "hello", "", "wor\0ld" as TensorFlow stores them. */
static const uint8_t three[] = {
	0x05, 0x00, 0x06, 0xfe, 0x21, 0x41, 0xea, 'h', 'e', 'l', 'l', 'o', 'w', 'o', 'r', 0, 'l', 'd',
};
static const uint32_t three_crc = 0x55dc920f;

static void test_strings(void)
{
	ckptfmt_error err;
	uint64_t starts[3], sizes[3];
	cf_stored_value value = stored(three, sizeof three, 3, three_crc);
	CHECK_OK(cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err), err);
	CHECK(sizes[0] == 5 && sizes[1] == 0 && sizes[2] == 6 && starts[0] == 7 && starts[1] == 12 && starts[2] == 12);
	/* No elements: four bytes, or nothing at all. */
	value = stored("\xd8\xea\x82\xa2", 4, 0, ckptfmt_crc32c_unmask(0x640cc1f6));
	CHECK_OK(cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err), err);
	value = stored("", 0, 0, 0);
	CHECK_OK(cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err), err);
	/* The scalar "". */
	value = stored("\x00\xa6\x7b\x11\x3a", 5, 1, ckptfmt_crc32c_unmask(0xbe0767bd));
	CHECK_OK(cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err), err);
	/* An overlong length is the same length. */
	{
		uint8_t overlong[sizeof three + 1] = {0x85, 0x00};
		memcpy(overlong + 2, three + 1, sizeof three - 1);
		value = stored(overlong, sizeof overlong, 3, three_crc);
		CHECK_OK(cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err), err);
		CHECK(sizes[0] == 5 && starts[0] == 8);
	}
}

/* A length enters the checksum as four bytes while it fits them, as eight beyond. */
static void test_length_rule(void)
{
	uint8_t bytes[8];
	cf_store_u32(bytes, UINT32_MAX);
	CHECK_EQ(cf_string_length_crc(1, UINT32_MAX), ckptfmt_crc32c(1, bytes, 4));
	cf_store_u64(bytes, (uint64_t)UINT32_MAX + 1);
	CHECK_EQ(cf_string_length_crc(1, (uint64_t)UINT32_MAX + 1), ckptfmt_crc32c(1, bytes, 8));
	cf_store_u64(bytes, 3);
	CHECK_EQ(cf_variant_length_crc(1, 3), ckptfmt_crc32c(1, bytes, 8));
}

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
	test_strings();
	test_length_rule();
	test_agreement(CKPTFMT_STORAGE_STRING);
	test_agreement(CKPTFMT_STORAGE_VARIANT);
	return test_finish("test_strings");
}
