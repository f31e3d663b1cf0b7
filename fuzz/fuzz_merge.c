/* SPDX-License-Identifier: Apache-2.0 */
/* Property: bundles that hold the parts of a model merge into that model, kept or consumed, also over a checkpoint that
 * is there. Where two of them hold the same, the merge is a CONFLICT, and where one of them is missing it fails; then
 * the storage is as before.
 *
 * Input: bytes that choose the model (model.c), which of two to four bundles gets each tensor or part of one, the
 * options of each bundle, and what is wrong. */
#include "blocks.h"
#include "model.h"

#include <string.h>

enum { BUNDLES_MAX = 4, PATH_SIZE = 64 };
typedef enum mistake { NONE, TWICE, MISSING, MISTAKES } mistake;

static ckptfmt_storage *storage;
static ckptfmt_error err;

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	(void)seed;
	return LLVMFuzzerMutate(data, size, capacity);
}

/* ---- the storage as a whole ---- */

typedef struct summary {
	uint64_t count, sum;        /* of the checksums of names and contents, in any order */
} summary;

typedef struct names {
	char paths[64][PATH_SIZE];
	uint32_t count;
} names;

static void add_name(void *to, const char *name)
{
	names *all = to;
	FUZZ_CHECK(all->count < 64 && snprintf(all->paths[all->count++], PATH_SIZE, "/d/%s", name) < PATH_SIZE);
}

static void add_object(summary *all, const char *path)
{
	static uint8_t bytes[1 << 18];
	void *object;
	ckptfmt_object_info info;
	ckptfmt_object_read read = {.destination = bytes};
	uint32_t crc = ckptfmt_crc32c(0, (const uint8_t *)path, strlen(path));
	FUZZ_CHECK(storage->open(storage->state, path, &object, &info, &err) == CKPTFMT_OK && object != NULL);
	FUZZ_CHECK(info.size <= sizeof bytes);
	read.object = object;
	read.size = info.size;
	FUZZ_CHECK(storage->read_batch(storage->state, &read, 1, &err) == CKPTFMT_OK && read.got == info.size);
	storage->close(storage->state, object);
	all->sum += (uint64_t)ckptfmt_crc32c(crc, bytes, info.size) * (crc | 1);
	all->count++;
}

static summary summarize(void)
{
	summary all = {0};
	names found = {.count = 0};
	FUZZ_CHECK(storage->list(storage->state, "/d", add_name, &found, &err) == CKPTFMT_OK);
	for (uint32_t i = 0; i < found.count; i++)
		add_object(&all, found.paths[i]);
	return all;
}

/* ---- the bundles ---- */

typedef struct bundles {
	char paths[BUNDLES_MAX][PATH_SIZE];
	ckptfmt_writer *writers[BUNDLES_MAX];
	uint32_t count;
} bundles;

static void begin(bundles *b, fuzz_bytes *in)
{
	b->count = 2 + fuzz_choose(in, BUNDLES_MAX - 1);
	for (uint32_t i = 0; i < b->count; i++) {
		ckptfmt_write_options options;
		model_take_options(&options, in);
		options.storage = storage;
		snprintf(b->paths[i], PATH_SIZE, "/d/in%u", i);
		FUZZ_CHECK(ckptfmt_writer_open(b->paths[i], &options, &b->writers[i], &err) == CKPTFMT_OK);
	}
}

static void put(bundles *b, uint32_t into, const model_tensor *t, uint32_t part)
{
	int64_t slice[3 * MODEL_RANK_MAX];
	ckptfmt_source source = model_part(t, part, slice);
	FUZZ_CHECK(ckptfmt_writer_add(b->writers[into], &source, 1, &err) == CKPTFMT_OK);
}

/* The same part, or of the first one less, so that slices differ and still overlap. */
static void put_again(bundles *b, uint32_t into, const model_tensor *t, uint32_t part)
{
	static model_tensor finer;
	finer = *t;
	finer.parts += t->parts != 0 && part == 0 && t->dims[0] > (int64_t)t->parts;
	put(b, into, &finer, part);
}

/* Each tensor or part goes to one bundle. TWICE: one of them to another as well; false if there is none. */
static bool distribute(bundles *b, const model *m, fuzz_bytes *in, mistake wrong)
{
	bool done = wrong != TWICE;
	for (uint32_t i = 0; i < m->count; i++) {
		const model_tensor *t = &m->tensors[i];
		for (uint32_t part = 0; part < (t->parts == 0 ? 1 : t->parts); part++) {
			uint32_t into = fuzz_choose(in, b->count);
			put(b, into, t, part);
			if (!done && fuzz_choose(in, 2) == 0) {
				put_again(b, (into + 1) % b->count, t, part);
				done = true;
			}
		}
	}
	for (uint32_t i = 0; i < b->count; i++)
		FUZZ_CHECK(ckptfmt_writer_commit(b->writers[i], &err) == CKPTFMT_OK);
	return done;
}

static void exists(void *to, const char *name)
{
	*(int *)to += strncmp(name, "in", 2) == 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static model m, other;
	fuzz_bytes in = {data, size};
	const char *prefixes[BUNDLES_MAX];
	ckptfmt_write_options options;
	ckptfmt_merge_options merging = {.struct_size = sizeof merging};
	mistake wrong = (mistake)fuzz_choose(&in, MISTAKES);
	bundles b;
	summary before;
	ckptfmt_status status;
	int inputs = 0;
	fuzz_keep_blocks();
	FUZZ_CHECK(ckptfmt_memory_storage_new(&storage, &err) == CKPTFMT_OK);
	merging.storage = storage;
	merging.consume = (int32_t)fuzz_choose(&in, 2);
	model_take(&m, &in);
	begin(&b, &in);
	if (!distribute(&b, &m, &in, wrong))
		wrong = NONE;
	if (fuzz_choose(&in, 2) == 1) {
		model_take_options(&options, &in);
		options.storage = storage;
		model_take(&other, &in);
		FUZZ_CHECK(model_write(&other, "/d/out", &options, &err) == CKPTFMT_OK);
	}
	for (uint32_t i = 0; i < b.count; i++)
		prefixes[i] = b.paths[i];
	if (wrong == MISSING)
		prefixes[b.count - 1] = "/d/none";
	before = summarize();
	status = ckptfmt_merge(prefixes, b.count, "/d/out", &merging, &err);
	if (wrong == NONE) {
		FUZZ_CHECK(status == CKPTFMT_OK);
		FUZZ_CHECK(model_compare(&m, "/d/out", storage, &err) == MODEL_SAME);
		FUZZ_CHECK(model_problems("/d/out", storage, &err) == 0);
		FUZZ_CHECK(storage->list(storage->state, "/d", exists, &inputs, &err) == CKPTFMT_OK);
		FUZZ_CHECK((inputs == 0) == (merging.consume != 0));
	} else {
		summary after = summarize();
		FUZZ_CHECK(status == (wrong == TWICE ? CKPTFMT_CONFLICT : CKPTFMT_NOT_FOUND));
		FUZZ_CHECK(after.count == before.count && after.sum == before.sum);
	}
	ckptfmt_memory_storage_free(storage);
	return 0;
}
