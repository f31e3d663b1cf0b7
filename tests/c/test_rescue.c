/* SPDX-License-Identifier: Apache-2.0 */
/* Salvage of damaged indexes. */
#include "test.h"

#include "bundle_maker.h"

static ckptfmt_error err;

static void test_sound(void)
{
	const float value = 1;
	ckptfmt_salvage *found;
	bundle_maker m;
	maker_begin(&m, "", "ck", 1);
	maker_tensor(&m, "a", CKPTFMT_FLOAT, 0, NULL, 0, &value, sizeof value);
	maker_build(&m);
	CHECK_OK(ckptfmt_index_salvage(m.index.data, m.index.size, 0, NULL, &found, &err), err);
	CHECK(found->sound_size == m.index.size && memcmp(found->sound, m.index.data, m.index.size) == 0);
	CHECK(found->doubtful_size == 0 && found->damage_count == 0 && found->header_lost == 0);
	ckptfmt_salvage_free(found);
	maker_free(&m);
}

int main(void)
{
	test_sound();
	ckptfmt_salvage_free(NULL);
	return test_finish("rescue");
}
