/* SPDX-License-Identifier: Apache-2.0 */
/* The table reader on damaged files, at its limits, and without memory. Rules FTR-1, FTR-5, BLK-2 to BLK-4, BLK-14,
 * SNP-3, TAB-1 to TAB-6, TAB-13, TAB-14. */
#include "table_parts.h"

#include "memory_fault.h"

/* ---- damaged files ---- */

static void test_sizes(void)
{
	cf_buffer file = CF_BUFFER_EMPTY;
	cf_table *table;
	cf_put_bytes(&file, real_one, sizeof real_one);
	/* Every file that ends too early; the magic is missed before the handles are. */
	for (uint64_t size = 0; size < sizeof real_one; size++) {
		const uint8_t *cut = test_guarded_copy(real_one, size);
		bool short_file = size < CF_FOOTER_SIZE;
		CHECK_FAILS(cf_table_open_memory(cut, NULL, size, &limits, &table, &err), err,
			short_file ? CKPTFMT_FAIL_TRUNCATED : CKPTFMT_FAIL_BAD_MAGIC, short_file ? "FTR-1: " : "FTR-2: ");
		CHECK_EQ(err.offset, short_file ? size : size - 8);
		CHECK(table == NULL);
	}
	for (uint64_t cut = 1; cut <= sizeof real_one - CF_FOOTER_SIZE; cut++) {
		uint64_t size = sizeof real_one - cut;
		const uint8_t *copy = test_guarded_copy(real_one + cut, size);
		CHECK_FAILS(cf_table_open_memory(copy, NULL, size, &limits, &table, &err), err, CKPTFMT_FAIL_TRUNCATED,
			"FTR-5: ");
	}
	cf_put_u8(&file, 0);
	CHECK_FAILS(open_copy(&file, &table), err, CKPTFMT_FAIL_BAD_MAGIC, "FTR-2: ");
	cf_buffer_free(&file);
}

/* Every bit of a real file: an error or the right number of entries. */
static void test_every_bit(void)
{
	uint8_t *bytes = test_guarded_copy(real_one, sizeof real_one);
	for (size_t i = 0; i < 8 * sizeof real_one; i++) {
		cf_table *table;
		uint64_t count = 0;
		bytes[i / 8] ^= (uint8_t)(1 << i % 8);
		ckptfmt_status status = cf_table_open_memory(bytes, NULL, sizeof real_one, &limits, &table, &err);
		if (status == CKPTFMT_OK) {
			uint64_t failures = count_failures(table);
			status = iterate(table, &count);
			CHECK_EQ(status != CKPTFMT_OK, failures != 0);
			cf_table_close(table);
		}
		CHECK(status == CKPTFMT_CORRUPT || (status == CKPTFMT_OK && count == 2));
		bytes[i / 8] ^= (uint8_t)(1 << i % 8);
	}
}

static void test_handles(void)
{
	static const struct {
		uint64_t offset, size;
		const char *rule;
	} cases[] = {
		/* Blocks end at 13 and 18, the metaindex at 31, where the index begins. */
		{1 << 20, 4, "FTR-5: "}, {0, 1 << 20, "FTR-5: "}, {0, UINT64_MAX, "FTR-5: "}, {4, UINT64_MAX - 5, "FTR-5: "},
		{0, (uint64_t)1 << 63, "FTR-5: "}, {UINT64_MAX, UINT64_MAX, "FTR-5: "}, {31, 10, "TAB-4: "},
		{20, 7, "TAB-4: "}, {0, 27, "TAB-4: "},
	};
	parts p = {0};
	for (size_t i = 0; i < CF_ARRAY_COUNT(cases); i++) {
		cf_buffer contents = block_of(CF_TABLE_RESTART_INTERVAL, "");
		put_stored(&p, &contents, CF_COMPRESSION_RAW);
		cf_buffer_clear(&contents);
		put_stored(&p, &contents, CF_COMPRESSION_RAW);
		p.index_count = 0;
		put_index_entry(&p, "b", (cf_handle){cases[i].offset, cases[i].size}, "");
		put_end(&p);
		bool order = cases[i].rule[0] == 'T';
		check_open_fails(&p, order ? CKPTFMT_FAIL_BAD_BLOCK : CKPTFMT_FAIL_TRUNCATED, cases[i].rule, 31 + 4);
		cf_buffer_free(&contents);
	}
	/* The index handle itself. */
	static const cf_handle index[] = {{1 << 20, 4}, {0, UINT64_MAX}, {40, 20}, {0, (uint64_t)1 << 40}};
	for (size_t i = 0; i < CF_ARRAY_COUNT(index); i++) {
		put_data(&p, "b", "a\0");
		put_index(&p);
		uint64_t offset = p.file.size;
		cf_footer_put(&p.file, p.last, index[i]);
		check_open_fails(&p, CKPTFMT_FAIL_TRUNCATED, "FTR-5: ", offset);
	}
	/* A handle that cannot be read. */
	put_data(&p, "b", "a\0");
	p.index.data[4] = 0x80;
	p.index.data[5] = 0x80;
	put_end(&p);
	check_open_fails(&p, CKPTFMT_FAIL_BAD_BLOCK, "TAB-2: ", p.place.offset + 4);
}

/* Blocks in another order, twice, or overlapping. */
static void test_block_order(void)
{
	parts p = {0};
	cf_handle first;
	put_data(&p, "b", "a\0");
	first = p.last;
	put_index_entry(&p, "c", first, "");
	put_end(&p);
	check_open_fails(&p, CKPTFMT_FAIL_BAD_BLOCK, "TAB-4: ", 18 + 13 + 6 + 4);
	put_data(&p, "b", "a\0");
	put_index_entry(&p, "c", (cf_handle){p.last.offset + p.last.size + 4, 4}, "");
	put_end(&p);
	check_open_fails(&p, CKPTFMT_FAIL_BAD_BLOCK, "TAB-4: ", 18 + 13 + 6 + 4);
	/* Index keys that do not increase. */
	put_data(&p, "c", "a\0");
	put_data(&p, "b", "b\0");
	put_end(&p);
	check_open_fails(&p, CKPTFMT_FAIL_BAD_ORDER, "TAB-6: ", 2 * 18 + 13 + 6);
	put_data(&p, "c", "a\0");
	put_data(&p, "c", "d\0");
	put_end(&p);
	check_open_fails(&p, CKPTFMT_FAIL_BAD_ORDER, "TAB-6: ", 2 * 18 + 13 + 6);
}

static void test_key_order(void)
{
	parts p = {0};
	static const char unsorted[] = "\0\1\0b\0\1\0a\0\0\0\0\1\0\0";
	cf_buffer contents = CF_BUFFER_EMPTY;
	cf_put_bytes(&contents, "gap", 3);
	cf_put_bytes(&p.file, contents.data, 3);
	cf_buffer_clear(&contents);
	cf_put_bytes(&contents, unsorted, sizeof unsorted);
	put_stored(&p, &contents, CF_COMPRESSION_RAW);
	put_index_entry(&p, "c", p.last, "");
	put_end(&p);
	check_reading_fails(&p, "b", CKPTFMT_FAIL_BAD_ORDER, "TAB-1: ", 3 + 4);
	cf_buffer_free(&contents);
	/* A last key above its index key; a first key not above the one before. */
	put_data(&p, "b", "a\0c\0");
	put_end(&p);
	check_reading_fails(&p, "a", CKPTFMT_FAIL_BAD_ORDER, "TAB-5: ", 0);
	put_data(&p, "c", "a\0b\0");
	put_data(&p, "e", "c\0d\0");
	put_end(&p);
	check_reading_fails(&p, "d", CKPTFMT_FAIL_BAD_ORDER, "TAB-5: ", 23);
	put_data(&p, "c", "a\0b\0");
	put_data(&p, "e", "b\0d\0");
	put_end(&p);
	check_reading_fails(&p, "d", CKPTFMT_FAIL_BAD_ORDER, "TAB-5: ", 23);
}

static void test_bad_data_block(void)
{
	parts p = {0};
	cf_buffer contents = CF_BUFFER_EMPTY;
	put_data(&p, "b", "a\0");
	p.file.data[4] ^= 1;
	put_end(&p);
	check_reading_fails(&p, "a", CKPTFMT_FAIL_CHECKSUM, "BLK-2: ", 0);
	/* Types and sizes with good checksums. */
	put_stored(&p, &contents, CF_COMPRESSION_RAW);
	put_index_entry(&p, "b", p.last, "");
	put_end(&p);
	check_reading_fails(&p, "a", CKPTFMT_FAIL_BAD_BLOCK, "BLK-4: ", 0);
	cf_put_u32(&contents, 7);
	put_stored(&p, &contents, 2);
	put_index_entry(&p, "b", p.last, "");
	put_end(&p);
	check_reading_fails(&p, "a", CKPTFMT_FAIL_BAD_BLOCK, "BLK-3: ", 4);
	put_stored(&p, &contents, CF_COMPRESSION_RAW);
	put_index_entry(&p, "b", p.last, "");
	put_end(&p);
	check_reading_fails(&p, "a", CKPTFMT_FAIL_BAD_BLOCK, "BLK-4: ", 0);
	/* Snappy that claims 4 GiB, and that is nothing. */
	cf_buffer_clear(&contents);
	cf_put_bytes(&contents, "\xf0\xff\xff\xff\x0f\0a", 7);
	cf_put_bytes(&p.file, "gap", 3);
	put_stored(&p, &contents, CF_COMPRESSION_SNAPPY);
	put_index_entry(&p, "b", p.last, "");
	put_end(&p);
	check_reading_fails(&p, "a", CKPTFMT_FAIL_BAD_BLOCK, "SNP-3: ", 3);
	cf_buffer_clear(&contents);
	cf_put_u8(&contents, 0);
	put_stored(&p, &contents, CF_COMPRESSION_SNAPPY);
	put_index_entry(&p, "b", p.last, "");
	put_end(&p);
	check_reading_fails(&p, "a", CKPTFMT_FAIL_BAD_BLOCK, "BLK-4: ", 0);
	/* The index block. */
	put_data(&p, "b", "a\0");
	put_end(&p);
	p.file.data[p.place.offset + 2] ^= 1;
	check_open_fails(&p, CKPTFMT_FAIL_CHECKSUM, "BLK-2: ", p.place.offset);
	cf_buffer_free(&contents);
}

/* The check goes on after damage, and says where it was. */
static void test_check_goes_on(void)
{
	parts p = {0};
	cf_table *table;
	cf_table_check check;
	bool more;
	put_data(&p, "a", "a\0");
	put_data(&p, "c", "b\0");
	p.file.data[p.last.offset + 1] ^= 1;
	put_data(&p, "f", "e\0");
	put_end(&p);
	CHECK_OK(open_copy(&p.file, &table), err);
	cf_table_check_open(&check, table);
	CHECK_OK(cf_table_check_next(&check, &more, &err), err);
	CHECK(more && check.offset == 0 && check.size == 18 && check.entry_count == 1);
	CHECK_FAILS(cf_table_check_next(&check, &more, &err), err, CKPTFMT_FAIL_CHECKSUM, "BLK-2: ");
	CHECK(more && check.offset == 18 && err.offset == 18);
	CHECK_OK(cf_table_check_next(&check, &more, &err), err);
	CHECK(more && check.offset == 36 && check.entry_count == 1);
	CHECK_OK(cf_table_check_next(&check, &more, &err), err);
	CHECK(!more);
	cf_table_check_close(&check);
	ckptfmt_region regions[8];
	uint64_t count;
	CHECK_OK(cf_table_regions(table, regions, 8, &count, &err), err);
	CHECK(count == 6 && regions[0].crc_good == 1 && regions[1].crc_good == 0 && regions[1].entry_count == 0);
	cf_table_close(table);
	free_parts(&p);
}

/* ---- limits ---- */

static void test_limits(void)
{
	parts p = {0};
	cf_table *table;
	uint64_t count, size;
	bool found;
	put_data(&p, "keyd", "keya\0keyb\0keyc\0");
	put_end(&p);
	size = p.file.size;
	limits.index_bytes_max = size - 1;
	CHECK_FAILS(open_copy(&p.file, &table), err, CKPTFMT_FAIL_LIMIT, "TAB-13: ");
	/* A huge file is refused by its size alone: there are no such bytes here. */
	ckptfmt_limits_default(&limits);
	CHECK_FAILS(cf_table_open_memory(p.file.data, NULL, (uint64_t)8 << 40, &limits, &table, &err), err,
		CKPTFMT_FAIL_LIMIT, "TAB-13: ");
	limits.block_bytes_max = 20;
	CHECK_OK(open_copy(&p.file, &table), err);
	CHECK_FAILS(get(table, "keya", &found), err, CKPTFMT_FAIL_LIMIT, "BLK-14: ");
	cf_table_close(table);
	limits.block_bytes_max = 10;
	CHECK_FAILS(open_copy(&p.file, &table), err, CKPTFMT_FAIL_LIMIT, "BLK-14: ");
	ckptfmt_limits_default(&limits);
	limits.key_bytes_max = 3;
	CHECK_FAILS(open_copy(&p.file, &table), err, CKPTFMT_FAIL_LIMIT, "TAB-13: a key");
	ckptfmt_limits_default(&limits);
	limits.entries_max = 2;
	CHECK_OK(open_copy(&p.file, &table), err);
	CHECK_FAILS(iterate(table, &count), err, CKPTFMT_FAIL_LIMIT, "TAB-13: more than 2");
	CHECK_EQ(count, 2);
	cf_table_close(table);
	ckptfmt_limits_default(&limits);
	limits.keys_bytes_floor = 11;
	limits.keys_bytes_factor = 0;
	CHECK_OK(open_copy(&p.file, &table), err);
	CHECK_FAILS(iterate(table, &count), err, CKPTFMT_FAIL_LIMIT, "TAB-13: the keys");
	CHECK_EQ(count, 2);
	cf_table_close(table);
	/* The factor counts where it gives more than the floor. */
	limits.keys_bytes_factor = 1;
	CHECK_OK(open_copy(&p.file, &table), err);
	CHECK_OK(iterate(table, &count), err);
	cf_table_close(table);
	ckptfmt_limits_default(&limits);
	free_parts(&p);
}

/* ---- memory ---- */

/* Everything a reader and a writer do, with each allocation failing in turn, from then on for good. */
static ckptfmt_status use_all(const cf_buffer *file, cf_buffer *written)
{
	cf_table *table = NULL;
	cf_table_writer writer;
	cf_table_iterator it;
	cf_table_check check;
	cf_table_value value;
	ckptfmt_region regions[8];
	uint64_t count, total;
	bool more = true, found;
	ckptfmt_status status = cf_table_open_memory(file->data, NULL, file->size, &limits, &table, &err);
	if (status != CKPTFMT_OK)
		return status;
	cf_table_writer_open(&writer, (cf_sink){put, written});
	cf_table_iterator_open(&it, table);
	cf_table_check_open(&check, table);
	while (status == CKPTFMT_OK && more) {
		status = cf_table_iterator_next(&it, &more, &err);
		if (status == CKPTFMT_OK && more)
			status = cf_table_writer_add(&writer, it.key, it.key_size, it.value, it.value_size, &err);
	}
	if (status == CKPTFMT_OK)
		status = cf_table_writer_finish(&writer, &total, &err);
	if (status == CKPTFMT_OK)
		status = cf_table_get(table, (const uint8_t *)"ab", 2, &value, &found, &err);
	if (status == CKPTFMT_OK)
		status = cf_table_regions(table, regions, 8, &count, &err);
	for (more = true; status == CKPTFMT_OK && more;)
		status = cf_table_check_next(&check, &more, &err);
	cf_table_check_close(&check);
	cf_table_iterator_close(&it);
	cf_table_writer_free(&writer);
	cf_table_close(table);
	return status;
}

static void test_memory(void)
{
	parts p = {0};
	cf_buffer contents = block_of(CF_TABLE_RESTART_INTERVAL, "a\0ab\0abc\0"), stored = literals(&contents);
	bool failed = true;
	put_stored(&p, &stored, CF_COMPRESSION_SNAPPY);
	put_index_entry(&p, "abcd", p.last, "");
	put_data(&p, "f", "d\0e\0");
	put_end(&p);
	for (uint64_t n = 1; failed; n++) {
		cf_buffer written = CF_BUFFER_EMPTY;
		uint64_t before = memory_fault_live();
		memory_fault_set(n, true);
		ckptfmt_status status = use_all(&p.file, &written);
		failed = memory_fault_hits() != 0;
		memory_fault_clear();
		CHECK_EQ(status, failed ? CKPTFMT_NO_MEMORY : CKPTFMT_OK);
		cf_buffer_free(&written);
		CHECK_EQ(memory_fault_live(), before);
	}
	cf_buffer_free(&contents);
	cf_buffer_free(&stored);
	free_parts(&p);
	CHECK_EQ(memory_fault_live(), 0);
}

int main(void)
{
	ckptfmt_limits_default(&limits);
	test_sizes();
	test_every_bit();
	test_handles();
	test_block_order();
	test_key_order();
	test_bad_data_block();
	test_check_goes_on();
	test_limits();
	test_memory();
	return test_finish("test_table_damage");
}
