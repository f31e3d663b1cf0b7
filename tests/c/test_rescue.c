/* SPDX-License-Identifier: Apache-2.0 */
/* Salvage of damaged indexes: every flipped bit, drawn damage, cuts, and the cases of which the outcome is known.
 * `test_rescue N` draws N damages, half of them of two bits. */
#include "test.h"

#include "base/limits.h"
#include "bundle_maker.h"
#include "memory_fault.h"
#include "table/table.h"

enum { TENSORS = 16, SHARDS = 2, QUICK_FLIPS = 4000, ALL_FLIPS = 200000, METAINDEX_SIZE = 8 + CF_TRAILER_SIZE };

static ckptfmt_error err;
static ckptfmt_limits limits;

/* ---- indexes ---- */

/* TENSORS tensors, one of them in slices, in blocks of `block_entries`. */
static cf_buffer make_index(uint64_t block_entries)
{
	const float values[4] = {1, 2, 3, 4};
	const int64_t dims[2] = {2, 2}, starts[2] = {0, 0}, lengths[2] = {1, -1}, starts_1[2] = {1, 0};
	bundle_maker m;
	cf_buffer index;
	maker_entry *whole;
	maker_begin(&m, "", "ck", SHARDS);
	m.block_entries = block_entries;
	for (int i = 0; i < TENSORS; i++) {
		char name[32];
		snprintf(name, sizeof name, "layer_%d/kernel", i);
		maker_tensor(&m, name, CKPTFMT_FLOAT, 2, dims, i % SHARDS, values, sizeof values);
	}
	whole = maker_partitioned(&m, "parts", CKPTFMT_FLOAT, 2, dims);
	maker_slice(&m, whole, "parts", starts, lengths, 0, values, 8);
	maker_slice(&m, whole, "parts", starts_1, lengths, 1, values, 8);
	maker_build(&m);
	index = m.index;
	m.index = CF_BUFFER_EMPTY;
	maker_free(&m);
	return index;
}

static cf_table *open_table(const uint8_t *bytes, uint64_t size)
{
	cf_table *table = NULL;
	CHECK_OK(cf_table_open_memory(bytes, NULL, size, &limits, &table, &err), err);
	return table;
}

static cf_handle put_block(cf_buffer *out, const cf_buffer *stored, uint8_t type)
{
	cf_handle at = {out->size, stored->size};
	uint64_t start = out->size;
	cf_put_bytes(out, stored->data, stored->size);
	cf_put_u8(out, type);
	cf_put_u32(out, ckptfmt_crc32c_mask(ckptfmt_crc32c(0, out->data + start, out->size - start)));
	return at;
}

/* The same table with Snappy blocks, of literals. */
static cf_buffer snappy_of(const cf_buffer *index)
{
	cf_table *table = open_table(index->data, index->size);
	const cf_footer footer = cf_table_footer(table);
	cf_buffer out = CF_BUFFER_EMPTY, stored = CF_BUFFER_EMPTY;
	cf_block_iterator row;
	cf_block_builder rows;
	cf_block block;
	uint64_t metaindex;
	cf_block_builder_init(&rows, 1);
	cf_block_iterator_init(&row);
	CHECK_OK(cf_block_open(index->data + footer.index.offset, footer.index.size, 0, false, 100, &block, &err), err);
	cf_block_iterator_open(&row, &block);
	CHECK_OK(cf_block_first(&row, &err), err);
	for (uint64_t i = 0; row.valid; i++) {
		const cf_handle from = cf_table_block_handle(table, i);
		cf_handle at;
		cf_buffer_clear(&stored);
		cf_put_varint(&stored, from.size);
		for (uint64_t done = 0; done < from.size; done += 50) {
			uint64_t part = cf_min_u64(50, from.size - done);
			cf_put_u8(&stored, (uint8_t)((part - 1) << 2));
			cf_put_bytes(&stored, index->data + from.offset + done, part);
		}
		at = put_block(&out, &stored, CF_COMPRESSION_SNAPPY);
		cf_buffer_clear(&stored);
		cf_handle_put(&stored, at);
		CHECK_OK(cf_block_builder_add(&rows, row.key.data, row.key.size, stored.data, stored.size, &err), err);
		CHECK_OK(cf_block_next(&row, &err), err);
	}
	metaindex = out.size;
	cf_put_bytes(&out, index->data + footer.metaindex.offset, METAINDEX_SIZE);
	CHECK_OK(cf_block_builder_finish(&rows, &err), err);
	cf_footer_put(&out, (cf_handle){metaindex, METAINDEX_SIZE - CF_TRAILER_SIZE},
		put_block(&out, &rows.bytes, CF_COMPRESSION_RAW));
	cf_block_builder_free(&rows);
	cf_block_iterator_free(&row);
	cf_buffer_free(&stored);
	cf_table_close(table);
	return out;
}

/* ---- what is found ---- */

/* Entries of a table that the index has with the same value; *others: those that it has not. */
static uint64_t count_same(const uint8_t *bytes, uint64_t size, const cf_buffer *index, uint64_t *others)
{
	cf_table *known = open_table(index->data, index->size), *table = open_table(bytes, size);
	cf_table_iterator entry;
	uint64_t same = 0;
	bool more;
	*others = 0;
	cf_table_iterator_open(&entry, table);
	for (;;) {
		cf_table_value value;
		bool found;
		CHECK_OK(cf_table_iterator_next(&entry, &more, &err), err);
		if (!more)
			break;
		CHECK_OK(cf_table_get(known, entry.key, entry.key_size, &value, &found, &err), err);
		if (found && value.size == entry.value_size && memcmp(value.data, entry.value, entry.value_size) == 0)
			same++;
		else
			++*others;
	}
	cf_table_iterator_close(&entry);
	cf_table_close(table);
	cf_table_close(known);
	return same;
}

typedef struct found {
	uint64_t sound, doubtful, wrong;    /* entries as stored in either table; others, in `doubtful` */
	uint64_t damage_count;
	ckptfmt_damage damage;              /* the first */
	bool header_lost, exact;            /* `sound` is the index, byte for byte */
} found;

/* False: CORRUPT. No entry of `sound` but the header is another than a stored one. */
static bool salvage(const uint8_t *bytes, uint64_t size, const cf_buffer *index, found *out)
{
	ckptfmt_salvage *all;
	uint64_t others;
	*out = (found){.sound = 0};
	if (ckptfmt_index_salvage(bytes, size, SHARDS, NULL, &all, &err) != CKPTFMT_OK) {
		CHECK(err.status == CKPTFMT_CORRUPT && all == NULL);
		return false;
	}
	out->sound = count_same(all->sound, all->sound_size, index, &others);
	CHECK_EQ(others, 0);
	if (all->doubtful_size != 0)
		out->doubtful = count_same(all->doubtful, all->doubtful_size, index, &out->wrong);
	out->damage_count = all->damage_count;
	if (all->damage_count != 0)
		out->damage = all->damages[0];
	out->header_lost = all->header_lost == 1;
	out->exact = all->sound_size == index->size && memcmp(all->sound, index->data, index->size) == 0;
	ckptfmt_salvage_free(all);
	return true;
}

static uint64_t entries_of(const cf_buffer *index)
{
	uint64_t others;
	return count_same(index->data, index->size, index, &others);
}

/* The end of the data blocks. */
static uint64_t data_end(const cf_buffer *index)
{
	cf_table *table = open_table(index->data, index->size);
	const uint64_t end = cf_table_footer(table).metaindex.offset;
	cf_table_close(table);
	return end;
}

static void flip(const cf_buffer *bytes, uint64_t bit)
{
	bytes->data[bit / 8] ^= (uint8_t)(1 << bit % 8);
}

static cf_buffer copy_of(const cf_buffer *index)
{
	cf_buffer copy = CF_BUFFER_EMPTY;
	cf_put_bytes(&copy, index->data, index->size);
	return copy;
}

/* ---- tests ---- */

/* The file comes back, except that what readers ignore stays as it is: the metaindex block and the footer's padding. */
static void test_every_bit(const cf_buffer *index)
{
	const uint64_t entries = entries_of(index), end = data_end(index), size = index->size;
	const cf_buffer copy = {test_guarded_copy(index->data, (size_t)size), size, size, false};
	for (uint64_t bit = 0; bit < size * 8; bit++) {
		const uint64_t at = bit / 8;
		found f;
		flip(&copy, bit);
		CHECK(salvage(copy.data, size, index, &f));
		flip(&copy, bit);
		CHECK(f.sound == entries && f.doubtful == 0 && !f.header_lost && f.exact == (f.damage_count != 0));
		if (f.damage_count == 0) {
			CHECK(at >= end);
			CHECK(at < end + METAINDEX_SIZE || at >= size - CF_FOOTER_SIZE);
		} else if (at < size - CF_FOOTER_SIZE) {
			CHECK(f.damage_count == 1 && f.damage.outcome == CKPTFMT_SALVAGE_REPAIRED && f.damage.changed == at);
			CHECK_EQ(f.damage.kind, at < end ? CKPTFMT_REGION_DATA : CKPTFMT_REGION_INDEX);
			CHECK(at - f.damage.offset < f.damage.size);
		} else {
			CHECK(f.damage_count == 1 && f.damage.outcome == CKPTFMT_SALVAGE_LOST);
			CHECK_EQ(f.damage.kind, CKPTFMT_REGION_FOOTER);
		}
	}
}

/* A cut after the data blocks loses nothing, one before loses the last block and what follows. After a cut behind any
 * block, or one byte later, more blocks may have followed. */
static void test_every_cut(const cf_buffer *index)
{
	const uint64_t entries = entries_of(index), end = data_end(index);
	for (uint64_t size = 0; size < index->size; size++) {
		cf_buffer cut = {test_guarded_copy(index->data, (size_t)size), size, size, false};
		found f;
		if (!salvage(cut.data, size, index, &f)) {
			CHECK(size < end);
			continue;
		}
		CHECK_EQ(f.wrong, 0);
		CHECK(f.damage_count >= 1 && f.sound + f.doubtful <= entries + 2);
		if (size >= end)
			CHECK(f.exact && f.damage.kind == (size < end + 2 ? CKPTFMT_REGION_DATA : CKPTFMT_REGION_FOOTER));
		else
			CHECK(f.damage.kind == CKPTFMT_REGION_DATA);
	}
}

static void test_drawn(const cf_buffer *index, uint64_t count)
{
	uint64_t exact = 0;
	for (uint64_t i = 0; i < count; i++) {
		cf_buffer copy = copy_of(index);
		uint64_t kind = test_random_below(4), changes = kind < 2 ? 2 : kind == 2 ? 1 : 3 + test_random_below(20);
		found f;
		for (uint64_t c = 0; c < changes; c++)
			if (kind < 2)
				flip(&copy, test_random_below(index->size * 8));
			else
				copy.data[test_random_below(index->size)] ^= (uint8_t)(1 + test_random_below(255));
		(void)salvage(copy.data, copy.size, index, &f);
		cf_buffer_free(&copy);
		exact += f.exact;
	}
	CHECK(exact != 0);
}

static void test_garbage(void)
{
	uint8_t *end = test_guarded(300) + 300;
	for (int i = 0; i < 2000; i++) {
		size_t size = (size_t)test_random_below(300);
		uint8_t *bytes = end - size;
		ckptfmt_salvage *all;
		for (size_t at = 0; at < size; at++)
			bytes[at] = (uint8_t)(i % 2 == 0 ? test_random() : test_random_below(3));
		if (ckptfmt_index_salvage(bytes, size, 1, NULL, &all, &err) == CKPTFMT_OK)
			ckptfmt_salvage_free(all);
		else
			CHECK_EQ(err.status, CKPTFMT_CORRUPT);
	}
}

/* Two bytes changed in the first of several blocks: the others, and a header of ours. */
static void test_lost_header(const cf_buffer *index)
{
	const uint64_t entries = entries_of(index);
	ckptfmt_salvage *all;
	cf_buffer copy = copy_of(index);
	cf_table *table;
	cf_table_value value;
	cf_header header;
	found f;
	bool has;
	copy.data[4] ^= 0xff;
	copy.data[20] ^= 0xff;
	CHECK(salvage(copy.data, copy.size, index, &f));
	CHECK(f.header_lost && f.sound + f.doubtful > 5 && f.sound < entries && f.damage_count == 1);
	CHECK_EQ(f.damage.outcome, CKPTFMT_SALVAGE_LOST);
	CHECK_OK(ckptfmt_index_salvage(copy.data, copy.size, 7, NULL, &all, &err), err);
	table = open_table(all->sound, all->sound_size);
	CHECK_OK(cf_table_get(table, copy.data, 0, &value, &has, &err), err);
	CHECK_OK(cf_header_decode((cf_bytes_view){value.data, value.size}, 0, &header, &err), err);
	CHECK(has && header.num_shards == 7 && header.endianness == 0 && header.producer == CF_FORMAT_VERSION);
	cf_table_close(table);
	ckptfmt_salvage_free(all);
	CHECK_FAILS(ckptfmt_index_salvage(copy.data, copy.size, 0, NULL, &all, &err), err, CKPTFMT_FAIL_CHECKSUM, "BLK-2");
	cf_buffer_free(&copy);
}

static void reseal(const cf_buffer *index, cf_handle block)
{
	uint8_t *stored = index->data + block.offset;
	cf_store_u32(stored + block.size + 1, ckptfmt_crc32c_mask(cf_trailer_crc_computed(stored, block.size)));
}

/* The only bit with which the checksum holds gives keys above those of the next block: it is not accepted. */
static void test_order(const cf_buffer *index)
{
	cf_buffer copy = copy_of(index);
	cf_table *table = open_table(index->data, index->size);
	const cf_handle block = cf_table_block_handle(table, 1);
	found f;
	CHECK_EQ(copy.data[block.offset + 3], 'l');
	copy.data[block.offset + 3] = 'z';
	reseal(&copy, block);
	flip(&copy, 8 * (block.offset + block.size));
	CHECK(salvage(copy.data, copy.size, index, &f));
	CHECK(f.sound == entries_of(index) - 4 && f.damage_count == 1 && f.doubtful == 0 && f.wrong == 0);
	CHECK(f.damage.offset == block.offset && f.damage.outcome == CKPTFMT_SALVAGE_LOST);
	cf_table_close(table);
	cf_buffer_free(&copy);
}

/* Two changes of one byte, at a distance of 190235 (there is none below), have the same effect on the checksum. Both
 * decode, as they are in an unknown field, and neither is taken. */
static void test_two_candidates(void)
{
	enum { DISTANCE = 190235, SIZE = DISTANCE + 1000 };
	static const uint8_t zeros[SIZE];
	const float value = 1;
	bundle_maker m;
	cf_buffer copy;
	maker_entry *entry;
	uint64_t at;
	found f;
	maker_begin(&m, "", "ck", SHARDS);
	entry = maker_tensor(&m, "a", CKPTFMT_FLOAT, 0, NULL, 0, &value, sizeof value);
	cf_put_varint(&entry->more, 101 << 3 | 2);
	cf_put_varint(&entry->more, SIZE);
	cf_put_bytes(&entry->more, zeros, SIZE);
	maker_build(&m);
	copy = copy_of(&m.index);
	at = data_end(&copy) - 500;
	for (int second = 0; second < 2; second++) {
		const uint64_t changed = second ? at : at - DISTANCE;
		const uint8_t bits = second ? 0x4c : 0xdf;
		copy.data[changed] ^= bits;
		CHECK(salvage(copy.data, copy.size, &m.index, &f));
		CHECK(f.damage_count == 1 && f.damage.outcome == CKPTFMT_SALVAGE_LOST && f.header_lost);
		CHECK(f.sound == 1 && f.doubtful == 1 && f.wrong == 1);
		copy.data[changed] ^= bits ^ 1;
		CHECK(salvage(copy.data, copy.size, &m.index, &f) && f.exact);
		copy.data[changed] ^= 2;
		CHECK(salvage(copy.data, copy.size, &m.index, &f));
		CHECK(f.damage.outcome == CKPTFMT_SALVAGE_LIKELY && f.damage.changed == changed && f.doubtful == 2);
		copy.data[changed] ^= 3;
	}
	cf_buffer_free(&copy);
	maker_free(&m);
}

static void test_limits(const cf_buffer *index)
{
	ckptfmt_limits small = {.struct_size = sizeof small, .index_bytes_max = index->size - 1};
	ckptfmt_salvage *all;
	CHECK_FAILS(ckptfmt_index_salvage(index->data, index->size, 0, &small, &all, &err), err, CKPTFMT_FAIL_LIMIT,
		"TAB-13");
	small.index_bytes_max = 0;
	small.block_bytes_max = 30;
	CHECK_FAILS(ckptfmt_index_salvage(index->data, index->size, 0, &small, &all, &err), err, CKPTFMT_FAIL_LIMIT,
		"BLK-14");
}

/* Each allocation fails once, with a repaired, a likely and a lost block in the file. */
static void test_memory(const cf_buffer *index)
{
	cf_buffer copy = copy_of(index);
	cf_table *table = open_table(index->data, index->size);
	ckptfmt_status status;
	flip(&copy, 8 * cf_table_block_handle(table, 0).offset + 80);
	copy.data[cf_table_block_handle(table, 1).offset + 30] ^= 0x18;
	copy.data[cf_table_block_handle(table, 2).offset + 10] ^= 0x18;
	copy.data[cf_table_block_handle(table, 2).offset + 50] ^= 0x18;
	cf_table_close(table);
	for (uint64_t n = 1;; n++) {
		uint64_t before = memory_fault_live();
		ckptfmt_salvage *all;
		bool failed;
		memory_fault_set(n, true);
		status = ckptfmt_index_salvage(copy.data, copy.size, 0, NULL, &all, &err);
		failed = memory_fault_hits() != 0;
		memory_fault_clear();
		if (!failed && status == CKPTFMT_OK) {
			CHECK_EQ(all->damage_count, 3);
			for (int i = 0; i < 3; i++)
				CHECK_EQ(all->damages[i].outcome, CKPTFMT_SALVAGE_REPAIRED + i);
		}
		ckptfmt_salvage_free(all);
		CHECK_EQ(memory_fault_live(), before);
		if (!failed)
			break;
		CHECK_EQ(status, CKPTFMT_NO_MEMORY);
	}
	CHECK_OK(status, err);
	cf_buffer_free(&copy);
}

int main(int argument_count, char **arguments)
{
	const uint64_t flips = argument_count > 1 ? strtoull(arguments[1], NULL, 0)
		: getenv("CKPTFMT_EVERY_FAULT") != NULL ? ALL_FLIPS : QUICK_FLIPS;
	cf_buffer indexes[4];
	test_seed();
	cf_limits_default(&limits);
	indexes[0] = make_index(0);
	indexes[1] = make_index(4);
	for (int i = 0; i < 2; i++)
		indexes[2 + i] = snappy_of(&indexes[i]);
	for (int i = 0; i < 4; i++) {
		test_every_bit(&indexes[i]);
		test_every_cut(&indexes[i]);
		test_drawn(&indexes[i], flips / 4);
	}
	test_lost_header(&indexes[1]);
	test_order(&indexes[1]);
	test_two_candidates();
	test_limits(&indexes[1]);
	test_memory(&indexes[1]);
	test_garbage();
	for (int i = 0; i < 4; i++)
		cf_buffer_free(&indexes[i]);
	ckptfmt_salvage_free(NULL);
	return test_finish("rescue");
}
