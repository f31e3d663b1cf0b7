/* SPDX-License-Identifier: Apache-2.0 */
/* The table reader on damaged files, at its limits, and without memory. Rules FTR-1, FTR-5, BLK-2 to BLK-4, BLK-14,
 * SNP-3, TAB-1 to TAB-6, TAB-13, TAB-14. */
#include "base/limits.h"
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
	cf_limits_default(&limits);
	CHECK_FAILS(cf_table_open_memory(p.file.data, NULL, (uint64_t)8 << 40, &limits, &table, &err), err,
		CKPTFMT_FAIL_LIMIT, "TAB-13: ");
	limits.block_bytes_max = 20;
	CHECK_OK(open_copy(&p.file, &table), err);
	CHECK_FAILS(get(table, "keya", &found), err, CKPTFMT_FAIL_LIMIT, "BLK-14: ");
	cf_table_close(table);
	limits.block_bytes_max = 10;
	CHECK_FAILS(open_copy(&p.file, &table), err, CKPTFMT_FAIL_LIMIT, "BLK-14: ");
	cf_limits_default(&limits);
	limits.key_bytes_max = 3;
	CHECK_FAILS(open_copy(&p.file, &table), err, CKPTFMT_FAIL_LIMIT, "TAB-13: a key");
	cf_limits_default(&limits);
	limits.entries_max = 2;
	CHECK_OK(open_copy(&p.file, &table), err);
	CHECK_FAILS(iterate(table, &count), err, CKPTFMT_FAIL_LIMIT, "TAB-13: more than 2");
	CHECK_EQ(count, 2);
	cf_table_close(table);
	cf_limits_default(&limits);
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
	cf_limits_default(&limits);
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
	cf_limits_default(&limits);
	test_sizes();
	test_limits();
	test_memory();
	return test_finish("test_table_damage");
}
