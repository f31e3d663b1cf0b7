/* SPDX-License-Identifier: Apache-2.0 */
/* Property: in a program of saves, merges, reads and verifications over a storage that fails at any of its calls, once
 * or from then on, every checkpoint is at every moment what it was or what the call that failed was to make of it; what
 * a call returned OK for is there. No failure of the storage is taken for damage. A merge that consumes its inputs and
 * met a failure, if only of removing them, is finished by the same call.
 *
 * Input: bytes that choose the calls, the failures, and the checkpoints (model.c). */
#include "blocks.h"
#include "failing.h"
#include "model.h"

#include <errno.h>
#include <string.h>

enum { STEPS_MAX = 8, CALLS_MAX = 40, SLOTS = 3, RESULT = 2 };

typedef struct slot {
	const char *prefix;
	bool there;
	model contents;
} slot;

static slot slots[SLOTS] = {{.prefix = "/d/a"}, {.prefix = "/d/b"}, {.prefix = "/d/merged"}};
static model next;
static ckptfmt_storage *storage;
static failing faults;
static ckptfmt_error err;

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	(void)seed;
	return LLVMFuzzerMutate(data, size, capacity);
}

/* ---- faults ---- */

static void set_faults(fuzz_bytes *in)
{
	static const int32_t errnos[] = {EIO, ENOSPC, ENOMEM, EACCES, ESTALE};
	uint8_t kind = fuzz_take(in);
	faults.calls = faults.failed = 0;
	faults.first = kind % 4 == 0 ? 0 : 1 + fuzz_choose(in, CALLS_MAX);
	faults.always = kind % 4 == 1;
	faults.os_errno = errnos[kind / 4 % (sizeof errnos / sizeof *errnos)];
}

/* What the storage's failures are told as: the operator's affair, never damage. A failure that was not asked for is
 * none. */
static void check_failure(void)
{
	FUZZ_CHECK(faults.failed > 0);
	FUZZ_CHECK(err.status == CKPTFMT_IO || err.status == CKPTFMT_NO_MEMORY);
	FUZZ_CHECK(err.failure == CKPTFMT_FAIL_OS || err.failure == CKPTFMT_FAIL_NO_MEMORY ||
		err.failure == CKPTFMT_FAIL_DURABILITY_UNKNOWN || err.failure == CKPTFMT_FAIL_NOT_REMOVED);
	FUZZ_CHECK(err.message[0] != '\0');
}

/* ---- the state ---- */

static bool is_at(const slot *s, const model *m)
{
	return model_compare(m, s->prefix, storage, &err) == MODEL_SAME;
}

/* The checkpoint is what it was. */
static bool is_kept(const slot *s)
{
	return s->there ? is_at(s, &s->contents) : model_compare(&s->contents, s->prefix, storage, &err) == MODEL_NONE;
}

static void replace(slot *s, const model *with)
{
	s->contents = *with;
	s->there = true;
	model_moved(&s->contents);
}

/* After a call that was to make `next` of the checkpoint. */
static void settle(slot *s, ckptfmt_status status)
{
	if (status == CKPTFMT_OK || is_at(s, &next))
		replace(s, &next);
	FUZZ_CHECK(is_kept(s));
	FUZZ_CHECK(!s->there || model_problems(s->prefix, storage, &err) == 0);
}

/* ---- steps ---- */

static void save(fuzz_bytes *in, slot *s)
{
	ckptfmt_write_options options;
	ckptfmt_status status;
	model_take_options(&options, in);
	options.storage = &faults.storage;
	model_take(&next, in);
	status = model_write(&next, s->prefix, &options, &err);
	if (status != CKPTFMT_OK)
		check_failure();
	settle(s, status);
}

/* The tensors of both; false if they share a name. */
static bool unite(const model *a, const model *b, model *out)
{
	uint32_t i = 0, j = 0;
	out->count = 0;
	while (i < a->count || j < b->count) {
		const model_tensor *x = i < a->count ? &a->tensors[i] : NULL, *y = j < b->count ? &b->tensors[j] : NULL;
		int order = x == NULL ? 1 : y == NULL ? -1 : model_order(x, y);
		if (order == 0 || out->count == MODEL_TENSORS_MAX)
			return false;
		out->tensors[out->count++] = order < 0 ? *x : *y;
		i += order < 0;
		j += order > 0;
	}
	model_moved(out);
	return true;
}

static void merge(fuzz_bytes *in)
{
	const char *prefixes[2] = {slots[0].prefix, slots[1].prefix};
	ckptfmt_merge_options options = {.struct_size = sizeof options, .consume = (int32_t)fuzz_choose(in, 2),
		.storage = &faults.storage};
	ckptfmt_status status;
	if (!slots[0].there || !slots[1].there || !unite(&slots[0].contents, &slots[1].contents, &next))
		return;
	status = ckptfmt_merge(prefixes, 2, slots[RESULT].prefix, &options, &err);
	if (status != CKPTFMT_OK)
		check_failure();
	if (faults.failed > 0 && options.consume) {
		faults.first = 0;
		status = ckptfmt_merge(prefixes, 2, slots[RESULT].prefix, &options, &err);
		/* It had ended, the removal of its inputs included. */
		FUZZ_CHECK(status == CKPTFMT_OK || (err.failure == CKPTFMT_FAIL_CHECKPOINT_NOT_FOUND &&
			is_at(&slots[RESULT], &next)));
	}
	settle(&slots[RESULT], status);
	for (int i = 0; i < 2; i++) {
		slots[i].there = slots[i].there && !options.consume;
		FUZZ_CHECK(is_kept(&slots[i]));
	}
}

static void look(slot *s, bool verify)
{
	model_result result;
	if (verify && s->there) {
		if (model_problems(s->prefix, &faults.storage, &err) > 0)
			check_failure();
		return;
	}
	result = model_compare(&s->contents, s->prefix, &faults.storage, &err);
	FUZZ_CHECK(result == MODEL_FAILED || result == (s->there ? MODEL_SAME : MODEL_NONE));
	if (result == MODEL_FAILED)
		check_failure();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	fuzz_bytes in = {data, size};
	uint32_t steps = 1 + fuzz_choose(&in, STEPS_MAX);
	fuzz_keep_blocks();
	FUZZ_CHECK(ckptfmt_memory_storage_new(&storage, &err) == CKPTFMT_OK);
	failing_init(&faults, storage);
	for (int i = 0; i < SLOTS; i++)
		slots[i].there = false;
	while (steps-- > 0) {
		uint8_t what = fuzz_take(&in);
		set_faults(&in);
		switch (what % 4) {
		case 0:
		case 1:
			save(&in, &slots[what % 2]);
			break;
		case 2:
			merge(&in);
			break;
		default:
			look(&slots[what / 4 % SLOTS], what >= 128);
			break;
		}
	}
	ckptfmt_memory_storage_free(storage);
	return 0;
}
