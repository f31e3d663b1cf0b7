/* SPDX-License-Identifier: Apache-2.0 */
/* Tables: the writer to the byte, the reader on sound files and on deviating ones that it accepts, and lack of memory.
 * Rules SNP-1, TAB-1 to TAB-3, TAB-7 to TAB-12. */
#include "base/limits.h"
#include "memory_fault.h"
#include "table_parts.h"
#include "read/index.h"

#include <pthread.h>

/* ---- writer ---- */

static void test_writer_real(void)
{
	cf_buffer file = CF_BUFFER_EMPTY;
	cf_table_writer writer;
	uint64_t total;
	cf_table_writer_open(&writer, (cf_sink){put, &file});
	CHECK_OK(cf_table_writer_add(&writer, NULL, 0, real_one + 3, 6, &err), err);
	CHECK_OK(cf_table_writer_add(&writer, real_one + 12, 1, real_one + 13, 15, &err), err);
	CHECK_OK(cf_table_writer_finish(&writer, &total, &err), err);
	CHECK(total == sizeof real_one && file.size == total && memcmp(file.data, real_one, total) == 0);
	cf_table_writer_free(&writer);
	cf_buffer_clear(&file);
	cf_table_writer_open(&writer, (cf_sink){put, &file});
	CHECK_OK(cf_table_writer_add(&writer, NULL, 0, real_one + 3, 6, &err), err);
	CHECK_OK(cf_table_writer_finish(&writer, &total, &err), err);
	CHECK(total == sizeof real_none && file.size == total && memcmp(file.data, real_none, total) == 0);
	cf_table_writer_free(&writer);
	cf_buffer_free(&file);
}

/* A table without entries: no data block, an index block without entries. */
static void test_empty_table(void)
{
	cf_buffer file = CF_BUFFER_EMPTY;
	cf_table_writer writer;
	cf_table *table;
	uint64_t total, count;
	bool found = true;
	cf_table_writer_open(&writer, (cf_sink){put, &file});
	CHECK_OK(cf_table_writer_finish(&writer, &total, &err), err);
	CHECK_EQ(total, 13 + 13 + 48);
	CHECK_OK(open_copy(&file, &table), err);
	CHECK_EQ(cf_table_block_count(table), 0);
	CHECK_OK(get(table, "", &found), err);
	CHECK(!found);
	CHECK_OK(iterate(table, &count), err);
	CHECK_EQ(count, 0);
	CHECK_EQ(count_failures(table), 0);
	cf_table_close(table);
	cf_table_writer_free(&writer);
	cf_buffer_free(&file);
}

static ckptfmt_status put_fails(void *left, const uint8_t *bytes, uint64_t size, ckptfmt_error *error)
{
	(void)bytes;
	(void)size;
	return (*(int *)left)-- > 0 ? CKPTFMT_OK : cf_fail(error, CKPTFMT_FAIL_OS, CF_NO_OFFSET, "disk full");
}

static void test_sink_failure(void)
{
	for (int good = 0; good < 5; good++) {
		int left = good;
		cf_table_writer writer;
		uint64_t total;
		cf_table_writer_open(&writer, (cf_sink){put_fails, &left});
		CHECK_OK(cf_table_writer_add(&writer, (const uint8_t *)"k", 1, NULL, 0, &err), err);
		ckptfmt_status status = cf_table_writer_finish(&writer, &total, &err);
		CHECK_EQ(status, good < 4 ? CKPTFMT_IO : CKPTFMT_OK);
		CHECK(good >= 4 || strcmp(err.message, "disk full") == 0);
		cf_table_writer_free(&writer);
	}
}

/* Offsets and entry counts of the data blocks of a table with these entries: TAB-9. `sizes` are value sizes. */
static void check_blocks(const uint64_t *sizes, uint64_t count, const uint64_t *entry_counts, uint64_t block_count)
{
	cf_buffer file = CF_BUFFER_EMPTY, value = CF_BUFFER_EMPTY;
	cf_table_writer writer;
	cf_table *table;
	ckptfmt_region regions[16];
	uint64_t total, region_count;
	cf_table_writer_open(&writer, (cf_sink){put, &file});
	for (uint64_t i = 0; i < count; i++) {
		uint8_t key[2] = {'k', (uint8_t)i};
		cf_buffer_clear(&value);
		memset(cf_buffer_extend(&value, sizes[i] + 1), 'v', sizes[i] + 1);
		CHECK_OK(cf_table_writer_add(&writer, key, 2, value.data, sizes[i], &err), err);
	}
	CHECK_OK(cf_table_writer_finish(&writer, &total, &err), err);
	CHECK_OK(open_copy(&file, &table), err);
	CHECK_EQ(cf_table_block_count(table), block_count);
	CHECK_OK(cf_table_regions(table, regions, 16, &region_count, &err), err);
	CHECK_EQ(region_count, block_count + 3);
	for (uint64_t i = 0; i < block_count && i < region_count; i++)
		CHECK_EQ(regions[i].entry_count, entry_counts[i]);
	CHECK_EQ(count_failures(table), 0);
	cf_table_close(table);
	cf_table_writer_free(&writer);
	cf_buffer_free(&file);
	cf_buffer_free(&value);
}

static void test_flush_rule(void)
{
	enum { ONE = CF_TABLE_BLOCK_SIZE - 8 - 4 - 2 - 3, LARGE = CF_TABLE_LARGE_ENTRY - 2 };
	/* Just full: 1 + 1 + 3 bytes of sizes, the key, the value, two words of tail. And one byte less. */
	check_blocks((const uint64_t[]){ONE + 2, 0}, 2, (const uint64_t[]){1, 1}, 2);
	check_blocks((const uint64_t[]){ONE + 1, 0}, 2, (const uint64_t[]){2}, 1);
	/* A large entry ends the block before it, unless that is empty; the one after starts its own. */
	check_blocks((const uint64_t[]){0, LARGE, 0}, 3, (const uint64_t[]){1, 1, 1}, 3);
	check_blocks((const uint64_t[]){0, LARGE - 1, 0}, 3, (const uint64_t[]){2, 1}, 2);
	check_blocks((const uint64_t[]){LARGE, LARGE, 0}, 3, (const uint64_t[]){1, 1, 1}, 3);
}

/* ---- reader on sound files ---- */

static void test_real_file(void)
{
	cf_buffer file = CF_BUFFER_EMPTY;
	cf_table *table;
	cf_table_value value;
	ckptfmt_region regions[5];
	uint64_t count;
	bool found;
	cf_put_bytes(&file, real_one, sizeof real_one);
	CHECK_OK(open_copy(&file, &table), err);
	CHECK_EQ(cf_table_block_count(table), 1);
	CHECK_EQ(cf_table_size(table), 121);
	CHECK_OK(cf_table_get(table, (const uint8_t *)"x", 1, &value, &found, &err), err);
	CHECK(found && value.offset == 13 && value.size == 15 && memcmp(value.data, real_one + 13, 15) == 0);
	CHECK_OK(cf_table_get(table, NULL, 0, &value, &found, &err), err);
	CHECK(found && value.offset == 3 && value.size == 6);
	static const char *const missing[] = {"a", "w", "x ", "xx", "y", "z", "\xff"};
	for (size_t i = 0; i < CF_ARRAY_COUNT(missing); i++) {
		CHECK_OK(get(table, missing[i], &found), err);
		CHECK(!found);
	}
	CHECK_EQ(count_failures(table), 0);
	CHECK_OK(cf_table_regions(table, NULL, 0, &count, &err), err);
	CHECK_EQ(count, 4);
	memset(regions, 0xee, sizeof regions);
	CHECK_OK(cf_table_regions(table, regions, 5, &count, &err), err);
	static const ckptfmt_region wanted[4] = {
		{0, 41, 2, CKPTFMT_REGION_DATA, 0, 0, 1}, {41, 13, 0, CKPTFMT_REGION_METAINDEX, 0, 0, 1},
		{54, 19, 1, CKPTFMT_REGION_INDEX, 0, 0, 1}, {73, 48, 0, CKPTFMT_REGION_FOOTER, -1, 0, 0}};
	for (int i = 0; i < 4; i++) {
		CHECK(regions[i].offset == wanted[i].offset && regions[i].size == wanted[i].size);
		CHECK(regions[i].entry_count == wanted[i].entry_count && regions[i].kind == wanted[i].kind);
		CHECK(regions[i].compression == wanted[i].compression && regions[i].crc_good == wanted[i].crc_good);
	}
	CHECK_EQ(regions[0].crc32c, ckptfmt_crc32c(0, real_one, 37));
	cf_table_close(table);
	cf_buffer_free(&file);
}

enum { MANY = 20000 };

/* Keys of many shapes over several blocks. */
static uint64_t many_key(uint64_t i, uint8_t *key)
{
	return (uint64_t)snprintf((char *)key, 64, "layer_%02u/%05u/%s%c", (unsigned)(i / 1000), (unsigned)i,
		i % 3 == 0 ? "ab" : "abc", i % 7 == 0 ? '\xff' : 'x');
}

static cf_buffer many_table(void)
{
	cf_buffer file = CF_BUFFER_EMPTY;
	cf_table_writer writer;
	uint64_t total;
	uint8_t key[64], value[40] = {0};
	cf_table_writer_open(&writer, (cf_sink){put, &file});
	for (uint64_t i = 0; i < MANY; i++) {
		cf_store_u64(value, i);
		CHECK_OK(cf_table_writer_add(&writer, key, many_key(i, key), value, 8 + i % 32, &err), err);
	}
	CHECK_OK(cf_table_writer_finish(&writer, &total, &err), err);
	cf_table_writer_free(&writer);
	return file;
}

static uint64_t wrong_lookups(cf_table *table, uint64_t from, uint64_t step)
{
	uint64_t wrong = 0;
	uint8_t key[64];
	for (uint64_t i = from; i < MANY; i += step) {
		cf_table_value value;
		ckptfmt_error error;
		bool found;
		uint64_t size = many_key(i, key);
		wrong += cf_table_get(table, key, size, &value, &found, &error) != CKPTFMT_OK || !found ||
			value.size != 8 + i % 32 || cf_load_u64(value.data) != i;
		wrong += cf_table_get(table, key, size - 1, &value, &found, &error) != CKPTFMT_OK || found;
	}
	return wrong;
}

static void test_many(void)
{
	cf_buffer file = many_table();
	cf_table *table;
	cf_table_iterator it;
	uint64_t row = 0;
	bool more;
	uint8_t key[64];
	CHECK_OK(open_copy(&file, &table), err);
	CHECK(cf_table_block_count(table) >= 3);
	for (int round = 0; round < 2; round++) {
		/* First from the file, then from the blocks that lookups have loaded. */
		cf_table_iterator_open(&it, table);
		for (row = 0; cf_table_iterator_next(&it, &more, &err) == CKPTFMT_OK && more; row++)
			if (it.key_size != many_key(row, key) || memcmp(it.key, key, it.key_size) != 0 ||
				cf_load_u64(it.value) != row || memcmp(file.data + it.value_offset, it.value, it.value_size))
				break;
		CHECK_EQ(row, MANY);
		CHECK(!more);
		cf_table_iterator_close(&it);
		CHECK_EQ(wrong_lookups(table, 0, 1), 0);
	}
	CHECK_EQ(count_failures(table), 0);
	cf_table_close(table);
	cf_buffer_free(&file);
}

typedef struct reader_thread {
	pthread_t thread;
	cf_table *table;
	uint64_t wrong;
} reader_thread;

static void *look_up(void *argument)
{
	reader_thread *self = argument;
	self->wrong = wrong_lookups(self->table, 0, 37);
	return NULL;
}

/* All threads want all blocks at once, often enough for maps, again and again on a fresh table. */
static void test_threads(void)
{
	cf_buffer file = many_table();
	for (int round = 0; round < 20; round++) {
		reader_thread threads[4];
		cf_table *table;
		CHECK_OK(cf_table_open_memory(file.data, NULL, file.size, &limits, &table, &err), err);
		for (size_t i = 0; i < CF_ARRAY_COUNT(threads); i++) {
			threads[i].table = table;
			CHECK_EQ(pthread_create(&threads[i].thread, NULL, look_up, &threads[i]), 0);
		}
		for (size_t i = 0; i < CF_ARRAY_COUNT(threads); i++) {
			CHECK_EQ(pthread_join(threads[i].thread, NULL), 0);
			CHECK_EQ(threads[i].wrong, 0);
		}
		cf_table_close(table);
	}
	cf_buffer_free(&file);
}

/* ---- odd files, which are read ---- */

static void test_snappy(void)
{
	parts p = {0};
	cf_buffer contents = block_of(CF_TABLE_RESTART_INTERVAL, "a\0ab\0abc\0"), stored = literals(&contents);
	cf_table *table;
	cf_table_value value;
	ckptfmt_region regions[5];
	uint64_t count;
	bool found;
	cf_put_bytes(&p.file, "gap", 3);
	put_stored(&p, &stored, CF_COMPRESSION_SNAPPY);
	put_index_entry(&p, "b", p.last, "");
	put_end(&p);
	CHECK_OK(open_copy(&p.file, &table), err);
	CHECK_OK(get(table, "abc", &found), err);
	CHECK(found);
	/* Only the block has an offset. */
	CHECK_OK(cf_table_get(table, (const uint8_t *)"ab", 2, &value, &found, &err), err);
	CHECK(found && value.offset == (CF_ONE_OFFSET | 3));
	CHECK_OK(cf_table_regions(table, regions, 5, &count, &err), err);
	CHECK_EQ(count, 5);
	CHECK(regions[0].kind == CKPTFMT_REGION_GAP && regions[0].size == 3 && regions[0].compression == -1);
	CHECK(regions[1].compression == 1 && regions[1].entry_count == 3 && regions[1].crc_good == 1);
	cf_table_close(table);
	check_sound(&p, 3);
	cf_buffer_free(&contents);
	cf_buffer_free(&stored);
}

/* One block of two entries, "a" and "b", with values of these sizes. */
static void check_large_block(uint64_t first, uint64_t second)
{
	parts p = {0};
	cf_block_builder builder;
	cf_buffer value = CF_BUFFER_EMPTY;
	memset(cf_buffer_extend(&value, CF_TABLE_LARGE_ENTRY), 'v', CF_TABLE_LARGE_ENTRY);
	cf_block_builder_init(&builder, CF_TABLE_RESTART_INTERVAL);
	CHECK_OK(cf_block_builder_add(&builder, (const uint8_t *)"a", 1, value.data, first, &err), err);
	CHECK_OK(cf_block_builder_add(&builder, (const uint8_t *)"b", 1, value.data, second, &err), err);
	CHECK_OK(cf_block_builder_finish(&builder, &err), err);
	put_stored(&p, &builder.bytes, CF_COMPRESSION_RAW);
	put_index_entry(&p, "c", p.last, "");
	put_end(&p);
	check_sound(&p, 2);
	cf_block_builder_free(&builder);
	cf_buffer_free(&value);
}

/* Blocks that go on where a canonical writer would have ended them. */
static void test_late_flush(void)
{
	enum { FULL = CF_TABLE_BLOCK_SIZE - 8 - 5 - 1 };
	check_large_block(FULL - 1, 0);
	check_large_block(FULL, 0);
	check_large_block(0, CF_TABLE_LARGE_ENTRY - 2);
	check_large_block(0, CF_TABLE_LARGE_ENTRY - 1);
}

/* ---- files ---- */

/* Entries, a number each as a value, under keys of a common beginning of `common` bytes. */
static cf_buffer sparse_file(uint32_t restart_interval, int entries, uint64_t common)
{
	cf_block_builder builder;
	parts p = {0};
	cf_buffer key = CF_BUFFER_EMPTY;
	cf_block_builder_init(&builder, restart_interval);
	for (int i = 0; i < entries; i++) {
		char tail[16], value[16];
		snprintf(tail, sizeof tail, "%05d", 2 * i);
		snprintf(value, sizeof value, "%d", i);
		cf_buffer_clear(&key);
		for (uint64_t k = 0; k < common; k++)
			cf_put_u8(&key, 'k');
		cf_put_bytes(&key, tail, strlen(tail));
		CHECK_OK(cf_block_builder_add(&builder, key.data, key.size, (const uint8_t *)value, strlen(value),
			&err), err);
	}
	CHECK_OK(cf_block_builder_finish(&builder, &err), err);
	put_stored(&p, &builder.bytes, CF_COMPRESSION_RAW);
	put_index_entry(&p, "l", p.last, "");
	put_end(&p);
	cf_buffer_free(&p.index);
	cf_buffer_free(&key);
	cf_block_builder_free(&builder);
	return p.file;
}

/* A block with long stretches between restarts is held rebuilt: lookups find what they did, at the block's offset. */
static void test_sparse_restarts(void)
{
	enum { ENTRIES = 3000 };
	static const struct { uint32_t interval; bool rebuilt; } cases[] =
		{{16, false}, {64, false}, {65, true}, {ENTRIES, true}};
	for (size_t c = 0; c < CF_ARRAY_COUNT(cases); c++) {
		cf_buffer file = sparse_file(cases[c].interval, ENTRIES, 3);
		cf_table *table;
		uint64_t count, at_block = 0, wrong = 0;
		CHECK_OK(open_copy(&file, &table), err);
		for (int i = -1; i < 2 * ENTRIES; i++) {
			char key[16], expected[16];
			cf_table_value value;
			bool found;
			snprintf(key, sizeof key, "kkk%05d", i);
			snprintf(expected, sizeof expected, "%d", i / 2);
			CHECK_OK(cf_table_get(table, (const uint8_t *)key, strlen(key), &value, &found, &err), err);
			wrong += found != (i >= 0 && i % 2 == 0);
			if (!found)
				continue;
			wrong += value.size != strlen(expected) || memcmp(value.data, expected, strlen(expected)) != 0;
			at_block += value.offset == CF_ONE_OFFSET;
			wrong += value.offset != CF_ONE_OFFSET &&
				memcmp(file.data + value.offset, expected, strlen(expected)) != 0;
		}
		CHECK_EQ(wrong, 0);
		CHECK_EQ(at_block, cases[c].rebuilt ? ENTRIES : 0);
		/* Going over it and checking it see what the file holds. */
		CHECK_OK(iterate(table, &count), err);
		CHECK_EQ(count, ENTRIES);
		CHECK_EQ(count_failures(table), 0);
		cf_table_close(table);
		cf_buffer_free(&file);
	}
	/* What rebuilding may take is what a listing may: 100 keys of 1005 bytes. */
	for (uint64_t allowed = 100499; allowed <= 100500; allowed++) {
		cf_buffer file = sparse_file(100, 100, 1000);
		cf_table *table;
		cf_table_value value;
		uint64_t count;
		bool found;
		limits.keys_bytes_factor = 0;
		limits.keys_bytes_floor = allowed;
		CHECK_OK(open_copy(&file, &table), err);
		if (allowed == 100500) {
			CHECK_OK(cf_table_get(table, (const uint8_t *)"k", 1, &value, &found, &err), err);
			CHECK_OK(iterate(table, &count), err);
		} else {
			CHECK_FAILS(cf_table_get(table, (const uint8_t *)"k", 1, &value, &found, &err), err,
				CKPTFMT_FAIL_LIMIT, "TAB-13: ");
			CHECK_EQ(err.offset, 0);
			CHECK_FAILS(iterate(table, &count), err, CKPTFMT_FAIL_LIMIT, "TAB-13: ");
		}
		cf_limits_default(&limits);
		cf_table_close(table);
		cf_buffer_free(&file);
	}
}

static ckptfmt_status put_to_buffer(void *state, const uint8_t *bytes, uint64_t size, ckptfmt_error *error)
{
	cf_put_bytes(state, bytes, size);
	return cf_buffer_status(state, error);
}

/* Under the limits as they are, a walk gets so far of all entries, and fails if that is not all. */
static void check_entries(const cf_buffer *file, uint64_t expected, uint64_t all)
{
	cf_table *table;
	uint64_t count;
	CHECK_OK(open_copy(file, &table), err);
	CHECK_EQ(iterate(table, &count) == CKPTFMT_OK, expected == all);
	CHECK_EQ(count, expected);
	cf_table_close(table);
}

/* TAB-13: a listing stops at exactly the entry that passes a limit. */
static void test_limits_of_iteration(void)
{
	enum { COUNT = 90, LONG = 300 };
	uint8_t key[LONG];
	uint64_t sizes[COUNT], all = 0, size;
	cf_buffer file = CF_BUFFER_EMPTY;
	cf_table_writer writer;
	cf_table_writer_open(&writer, (cf_sink){put_to_buffer, &file});
	memset(key, 'k', sizeof key);
	for (uint64_t i = 0; i < COUNT; i++) {
		key[4] = (uint8_t)('0' + i / 10);
		key[5] = (uint8_t)('0' + i % 10);
		sizes[i] = i % 11 == 5 ? LONG : i % 40 < 20 ? 6 + i % 7 : 120;
		all += sizes[i];
		CHECK_OK(cf_table_writer_add(&writer, key, sizes[i], (const uint8_t *)"value", 5, &err), err);
	}
	CHECK_OK(cf_table_writer_finish(&writer, &size, &err), err);
	cf_table_writer_free(&writer);
	for (uint64_t most = 0; most <= COUNT; most++) {
		limits.entries_max = most;
		check_entries(&file, most, COUNT);
	}
	cf_limits_default(&limits);
	limits.keys_bytes_factor = 0;
	for (uint64_t most = 400; most <= all; most++) {
		uint64_t expected = 0, sum = 0;
		while (expected < COUNT && sum + sizes[expected] <= most)
			sum += sizes[expected++];
		limits.keys_bytes_floor = most;
		check_entries(&file, expected, COUNT);
	}
	cf_limits_default(&limits);
	cf_buffer_free(&file);
}

static void test_file(void)
{
	char path[] = "/tmp/test_table_XXXXXX";
	cf_file file = {mkstemp(path), NULL, NULL};
	cf_buffer bytes = many_table();
	cf_table *table;
	uint64_t count;
	bool found;
	CHECK(file.fd >= 0 && write(file.fd, bytes.data, bytes.size) == (ssize_t)bytes.size);
	CHECK_OK(cf_index_open(&file, path, bytes.size, &limits, &table, &err), err);
	CHECK_EQ(wrong_lookups(table, 1, 100), 0);
	CHECK_OK(iterate(table, &count), err);
	CHECK_EQ(count, MANY);
	cf_table_close(table);
	/* Blocks not yet read are gone when the file is cut; what was read stays. */
	CHECK_OK(cf_index_open(&file, path, bytes.size, &limits, &table, &err), err);
	CHECK_OK(get(table, "layer", &found), err);
	CHECK(ftruncate(file.fd, 300000) == 0);
	CHECK_OK(get(table, "layer", &found), err);
	CHECK_FAILS(iterate(table, &count), err, CKPTFMT_FAIL_TRUNCATED, "FTR-5: ");
	CHECK_EQ(err.offset, 300000);
	CHECK(strcmp(err.path, path) == 0);
	cf_table_close(table);
	/* And a file that was never as long as it was said to be. */
	CHECK_FAILS(cf_index_open(&file, path, bytes.size, &limits, &table, &err), err, CKPTFMT_FAIL_TRUNCATED,
		"FTR-5: ");
	CHECK(strcmp(err.path, path) == 0);
	close(file.fd);
	unlink(path);
	cf_buffer_free(&bytes);
}

/* ---- memory ---- */

/* Read all, write it again, look up, list the regions and check. */
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
	test_writer_real();
	test_empty_table();
	test_sink_failure();
	test_flush_rule();
	test_real_file();
	test_many();
	test_threads();
	test_snappy();
	test_late_flush();
	test_sparse_restarts();
	test_limits_of_iteration();
	test_file();
	test_memory();
	return test_finish("test_table");
}
