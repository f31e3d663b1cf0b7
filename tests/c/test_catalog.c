/* SPDX-License-Identifier: Apache-2.0 */
/* write/catalog.h: the same table in whatever order the keys came, no key twice, and a way back. */
#include "write/catalog.h"

#include "memory_fault.h"
#include "sources.h"

enum { COUNT_MAX = 80, NAME_SIZE = 16 };

static ckptfmt_error error;
static char names[COUNT_MAX][NAME_SIZE];    /* ascending */

static ckptfmt_status put_to_buffer(void *state, const uint8_t *bytes, uint64_t size, ckptfmt_error *err)
{
	cf_put_bytes(state, bytes, size);
	return cf_buffer_status(state, err);
}

static ckptfmt_status add(cf_catalog *catalog, uint64_t number, ckptfmt_error *err)
{
	const int64_t dims[1] = {(int64_t)number};
	const ckptfmt_source source = source_of(names[number], CKPTFMT_FLOAT, 1, dims, NULL);
	uint64_t row = UINT64_MAX;
	CF_TRY(cf_catalog_add(catalog, &source, &row, err));
	CHECK_EQ(row, cf_catalog_count(catalog) - 1);
	cf_catalog_row_at(catalog, row)->offset = number;
	return CKPTFMT_OK;
}

static void write_table(const cf_catalog *catalog, cf_buffer *out)
{
	cf_table_writer table;
	uint64_t size;
	cf_buffer_clear(out);
	cf_table_writer_open(&table, (cf_sink){put_to_buffer, out});
	CHECK_OK(cf_catalog_write(catalog, 1, 0, &table, &error), error);
	CHECK_OK(cf_table_writer_finish(&table, &size, &error), error);
	CHECK_EQ(size, out->size);
	cf_table_writer_free(&table);
}

/* Adding the names of these numbers, those of all names below `count`, gives the table; each can be added once. */
static void check_order(const uint64_t *numbers, uint64_t count, const cf_buffer *wanted)
{
	cf_catalog catalog;
	cf_buffer table = CF_BUFFER_EMPTY;
	CHECK_OK(cf_catalog_open(&catalog, &error), error);
	for (uint64_t i = 0; i < count; i++)
		CHECK_OK(add(&catalog, numbers[i], &error), error);
	CHECK_EQ(cf_catalog_count(&catalog), count);
	write_table(&catalog, &table);
	CHECK(table.size == wanted->size && memcmp(table.data, wanted->data, (size_t)table.size) == 0);
	for (uint64_t i = 0; i < count; i++)
		CHECK_FAILS(add(&catalog, numbers[i], &error), error, CKPTFMT_FAIL_ARGUMENT, "the name is added twice");
	cf_buffer_free(&table);
	cf_catalog_free(&catalog);
}

static void test_orders(void)
{
	static const uint64_t counts[] = {1, 2, 3, 17, COUNT_MAX};
	for (size_t c = 0; c < CF_ARRAY_COUNT(counts); c++) {
		uint64_t count = counts[c], numbers[COUNT_MAX];
		cf_buffer wanted = CF_BUFFER_EMPTY;
		cf_catalog catalog;
		CHECK_OK(cf_catalog_open(&catalog, &error), error);
		for (uint64_t i = 0; i < count; i++)
			CHECK_OK(add(&catalog, numbers[i] = i, &error), error);
		write_table(&catalog, &wanted);
		cf_catalog_free(&catalog);
		check_order(numbers, count, &wanted);
		for (int turn = 0; turn < 20; turn++) {
			for (uint64_t i = count - 1; i > 0; i--) {
				uint64_t other = test_random_below(i + 1), kept = numbers[i];
				numbers[i] = numbers[other];
				numbers[other] = kept;
			}
			check_order(numbers, count, &wanted);
		}
		cf_buffer_free(&wanted);
	}
}

/* Running out of memory while adding leaves the catalog as it was. */
static void test_no_memory(void)
{
	cf_buffer before = CF_BUFFER_EMPTY, after = CF_BUFFER_EMPTY;
	cf_catalog catalog;
	CHECK_OK(cf_catalog_open(&catalog, &error), error);
	for (uint64_t i = 0; i < 8; i++)
		if (i != 3)
			CHECK_OK(add(&catalog, i, &error), error);
	CHECK_OK(add(&catalog, 3, &error), error);
	write_table(&catalog, &before);
	memory_fault_set(1, false);
	CHECK_EQ(cf_catalog_reserve(&catalog, 1000, 1000, &error), CKPTFMT_NO_MEMORY);
	memory_fault_clear();
	CHECK_EQ(cf_catalog_reserve(&catalog, UINT64_MAX / 2, 0, &error), CKPTFMT_NO_MEMORY);
	write_table(&catalog, &after);
	CHECK(after.size == before.size && memcmp(after.data, before.data, (size_t)after.size) == 0);
	CHECK_FAILS(add(&catalog, 5, &error), error, CKPTFMT_FAIL_ARGUMENT, "the name is added twice");
	cf_buffer_free(&before);
	cf_buffer_free(&after);
	cf_catalog_free(&catalog);
}

int main(void)
{
	test_seed();
	for (uint64_t i = 0; i < COUNT_MAX; i++)
		(void)snprintf(names[i], NAME_SIZE, "layer/%03u", (unsigned)i);
	test_orders();
	test_no_memory();
	CHECK_EQ(memory_fault_live(), 0);
	return test_finish("catalog");
}
