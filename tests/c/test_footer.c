/* SPDX-License-Identifier: Apache-2.0 */
/* Handles, trailers and the footer: rules FTR-2 to FTR-5, BLK-1 to BLK-3. */
#include "test.h"

#include "table/footer.h"

/* The footer of the smallest real file: metaindex at 41, 8 bytes; index at 54, 14 bytes. */
static const uint8_t real_footer[CF_FOOTER_SIZE] = {0x29, 0x08, 0x36, 0x0e, [40] = 0x57, 0xfb, 0x80, 0x8b, 0x24, 0x75,
	0x47, 0xdb};
/* The empty block with its trailer, as it stands in every real file. */
static const uint8_t empty_block[] = {0, 0, 0, 0, 1, 0, 0, 0, 0x00, 0xc0, 0xf2, 0xa1, 0xb0};

enum { AT = 5000 };

static ckptfmt_error err;

static void test_real(void)
{
	uint8_t *bytes = test_guarded_copy(real_footer, sizeof real_footer);
	cf_footer footer;
	cf_buffer out = CF_BUFFER_EMPTY;
	CHECK_OK(cf_footer_decode(bytes, AT, &footer, &err), err);
	CHECK_EQ(footer.metaindex.offset, 41);
	CHECK_EQ(footer.metaindex.size, 8);
	CHECK_EQ(footer.index.offset, 54);
	CHECK_EQ(footer.index.size, 14);
	cf_footer_put(&out, footer.metaindex, footer.index);
	CHECK_EQ(out.size, CF_FOOTER_SIZE);
	CHECK(memcmp(out.data, real_footer, sizeof real_footer) == 0);
	cf_buffer_free(&out);
}

static void test_largest(void)
{
	cf_handle most = {UINT64_MAX, UINT64_MAX - 1};
	cf_footer footer;
	cf_buffer out = CF_BUFFER_EMPTY;
	cf_footer_put(&out, most, most);
	CHECK_EQ(out.size, CF_FOOTER_SIZE);
	CHECK_OK(cf_footer_decode(out.data, 0, &footer, &err), err);
	CHECK(footer.index.offset == UINT64_MAX && footer.index.size == UINT64_MAX - 1);
	CHECK(footer.metaindex.offset == UINT64_MAX && footer.metaindex.size == UINT64_MAX - 1);
	cf_buffer_free(&out);
}

static void test_handle_check(void)
{
	static const cf_handle bad[] = {{1001, 0}, {0, 1001}, {996, 0}, {0, 996}, {900, 96}, {1000, 0},
		{0, UINT64_MAX}, {0, UINT64_MAX - 5}, {36, UINT64_MAX - 40}, {UINT64_MAX, UINT64_MAX}, {UINT64_MAX - 2, 1},
		{0, (uint64_t)1 << 63}, {0, (uint64_t)1 << 40}};
	static const cf_handle good[] = {{0, 0}, {0, 995}, {995, 0}, {900, 95}};
	for (size_t i = 0; i < CF_ARRAY_COUNT(bad); i++) {
		CHECK_FAILS(cf_handle_check(bad[i], 1000, 77, &err), err, CKPTFMT_FAIL_TRUNCATED, "FTR-5: ");
		CHECK_EQ(err.offset, 77);
	}
	for (size_t i = 0; i < CF_ARRAY_COUNT(good); i++)
		CHECK_OK(cf_handle_check(good[i], 1000, 77, &err), err);
	CHECK_FAILS(cf_handle_check((cf_handle){0, 0}, 4, 0, &err), err, CKPTFMT_FAIL_TRUNCATED, "FTR-5: ");
}

static void test_trailer(void)
{
	uint8_t *bytes = test_guarded_copy(empty_block, sizeof empty_block);
	uint8_t compression = 9;
	cf_buffer out = CF_BUFFER_EMPTY;
	CHECK_OK(cf_trailer_check(bytes, 8, AT, &compression, &err), err);
	CHECK_EQ(compression, CF_COMPRESSION_RAW);
	cf_put_bytes(&out, empty_block, 8);
	cf_trailer_put(&out);
	CHECK_EQ(out.size, sizeof empty_block);
	CHECK(memcmp(out.data, empty_block, sizeof empty_block) == 0);
	cf_buffer_free(&out);
	for (size_t i = 0; i < sizeof empty_block; i++)
		for (int bit = 0; bit < 8; bit++) {
			bytes[i] ^= (uint8_t)(1 << bit);
			CHECK_FAILS(cf_trailer_check(bytes, 8, AT, &compression, &err), err, CKPTFMT_FAIL_CHECKSUM, "BLK-2: ");
			CHECK_EQ(err.offset, AT);
			bytes[i] ^= (uint8_t)(1 << bit);
		}
	cf_store_u32(bytes + 9, ckptfmt_crc32c(0, bytes, 9));
	CHECK_FAILS(cf_trailer_check(bytes, 8, AT, &compression, &err), err, CKPTFMT_FAIL_CHECKSUM, "BLK-2: ");
	for (int type = 0; type < 256; type++) {
		bytes[8] = (uint8_t)type;
		cf_store_u32(bytes + 9, ckptfmt_crc32c_mask(ckptfmt_crc32c(0, bytes, 9)));
		if (type < 2) {
			CHECK_OK(cf_trailer_check(bytes, 8, AT, &compression, &err), err);
			CHECK_EQ(compression, type);
			continue;
		}
		CHECK_FAILS(cf_trailer_check(bytes, 8, AT, &compression, &err), err, CKPTFMT_FAIL_BAD_BLOCK, "BLK-3: ");
		CHECK_EQ(err.offset, AT + 8);
	}
}

int main(void)
{
	test_real();
	test_largest();
	test_handle_check();
	test_trailer();
	return test_finish("test_footer");
}
