/* SPDX-License-Identifier: Apache-2.0 */
/* Stored strings and variants: TensorFlow's bytes, and every way to be damaged, checksums right and wrong. */
#include "proto/strings.h"

#include "base/buffer.h"
#include "base/bytes.h"
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

static void test_damaged_strings(void)
{
	ckptfmt_error err;
	uint64_t starts[3], sizes[3];
	cf_stored_value value;
	for (size_t cut = 0; cut < sizeof three; cut++) {
		value = stored(three, cut, 3, three_crc);
		if (cut < 7)
			CHECK_FAILS(cf_string_tensor_check_count(CKPTFMT_STORAGE_STRING, 3, cut, 500, &err), err,
				CKPTFMT_FAIL_BAD_ENTRY, "STR-2");
		else
			CHECK_FAILS(cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err), err,
				CKPTFMT_FAIL_BAD_ENTRY, "STR-4");
	}
	for (size_t byte = 0; byte < sizeof three; byte++)
		for (int bit = 0; bit < 8; bit++) {
			uint8_t damaged[sizeof three];
			ckptfmt_status status;
			memcpy(damaged, three, sizeof three);
			damaged[byte] ^= (uint8_t)(1 << bit);
			value = stored(damaged, sizeof damaged, 3, three_crc);
			status = cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err);
			CHECK_EQ(status, CKPTFMT_CORRUPT);
			CHECK(err.offset >= 500 && err.offset <= 500 + sizeof three);
			if (byte >= 7)
				CHECK(err.failure == CKPTFMT_FAIL_CHECKSUM && strncmp(err.message, "STR-6", 5) == 0);
			else if (byte >= 3)
				CHECK(err.failure == CKPTFMT_FAIL_CHECKSUM && strncmp(err.message, "STR-5", 5) == 0 &&
					err.offset == 503);
		}
	/* Unchecked, the lengths must still fit. */
	value = stored("\x05\x00\x07____helloworld", 17, 3, 0);
	value.verify = false;
	CHECK_FAILS(cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err), err,
		CKPTFMT_FAIL_BAD_ENTRY, "STR-4");
	value = stored("\x05\x00\x04____helloworld", 17, 3, 0);
	value.verify = false;
	CHECK_FAILS(cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err), err,
		CKPTFMT_FAIL_BAD_ENTRY, "STR-4");
	CHECK_EQ(err.offset, 516);
	value = stored("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02____", 14, 1, 0);
	CHECK_FAILS(cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err), err,
		CKPTFMT_FAIL_BAD_ENTRY, "STR-3");
	value = stored("\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01____", 14, 1, 0);
	value.verify = false;
	CHECK_FAILS(cf_strings_decode(CKPTFMT_STORAGE_STRING, &value, starts, sizes, &err), err,
		CKPTFMT_FAIL_BAD_ENTRY, "STR-4");
}

static void test_counts(void)
{
	ckptfmt_error err;
	CHECK_OK(cf_string_tensor_check_count(CKPTFMT_STORAGE_STRING, 0, 0, 0, &err), err);
	CHECK_OK(cf_string_tensor_check_count(CKPTFMT_STORAGE_STRING, 60, 64, 0, &err), err);
	CHECK_FAILS(cf_string_tensor_check_count(CKPTFMT_STORAGE_STRING, 61, 64, 0, &err), err, CKPTFMT_FAIL_BAD_ENTRY,
		"STR-2");
	CHECK_FAILS(cf_string_tensor_check_count(CKPTFMT_STORAGE_STRING, UINT64_MAX, 64, 0, &err), err,
		CKPTFMT_FAIL_BAD_ENTRY, "STR-2");
	CHECK_OK(cf_string_tensor_check_count(CKPTFMT_STORAGE_VARIANT, 2, 10, 0, &err), err);
	CHECK_FAILS(cf_string_tensor_check_count(CKPTFMT_STORAGE_VARIANT, 3, 10, 0, &err), err, CKPTFMT_FAIL_BAD_ENTRY,
		"VAR-2");
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

static size_t put_variant(uint8_t *to, const char *text, uint32_t *crc)
{
	size_t size = strlen(text);
	to[0] = (uint8_t)size;
	memcpy(to + 1, text, size);
	*crc = ckptfmt_crc32c(cf_variant_length_crc(*crc, size), to + 1, size);
	cf_store_u32(to + 1 + size, ckptfmt_crc32c_mask(*crc));
	*crc = ckptfmt_crc32c(*crc, to + 1 + size, 4);
	return size + 5;
}

static void test_variants(void)
{
	uint8_t bytes[64];
	uint64_t starts[2], sizes[2];
	uint32_t crc = 0;
	ckptfmt_error err;
	size_t size = put_variant(bytes, "first", &crc);
	cf_stored_value value;
	size += put_variant(bytes + size, "2nd", &crc);
	value = stored(bytes, size, 2, crc);
	CHECK_OK(cf_strings_decode(CKPTFMT_STORAGE_VARIANT, &value, starts, sizes, &err), err);
	CHECK(starts[0] == 1 && sizes[0] == 5 && starts[1] == 11 && sizes[1] == 3);
	for (size_t byte = 0; byte < size; byte++) {
		uint8_t damaged[64];
		memcpy(damaged, bytes, size);
		damaged[byte] ^= 1;
		value = stored(damaged, size, 2, crc);
		CHECK_EQ(cf_strings_decode(CKPTFMT_STORAGE_VARIANT, &value, starts, sizes, &err), CKPTFMT_CORRUPT);
	}
	for (size_t cut = 0; cut < size; cut++) {
		value = stored(bytes, cut, 2, crc);
		CHECK_FAILS(cf_strings_decode(CKPTFMT_STORAGE_VARIANT, &value, starts, sizes, &err), err,
			CKPTFMT_FAIL_BAD_ENTRY, "VAR-2");
	}
	value = stored(bytes, size, 2, crc ^ 1);
	CHECK_FAILS(cf_strings_decode(CKPTFMT_STORAGE_VARIANT, &value, starts, sizes, &err), err,
		CKPTFMT_FAIL_CHECKSUM, "VAR-4");
	value = stored(bytes, size, 1, crc);
	CHECK_FAILS(cf_strings_decode(CKPTFMT_STORAGE_VARIANT, &value, starts, sizes, &err), err,
			CKPTFMT_FAIL_BAD_ENTRY, "VAR-2");
}

int main(void)
{
	test_strings();
	test_damaged_strings();
	test_counts();
	test_length_rule();
	test_variants();
	return test_finish("string_tensor");
}
