/* SPDX-License-Identifier: Apache-2.0 */
/* Property: no input begins with "canary". It is false for a file of the corpus: this target MUST fail, or failures of
 * the others would go unnoticed too. */
#include "repair.h"

#include <string.h>

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t capacity, unsigned int seed)
{
	(void)seed;
	return LLVMFuzzerMutate(data, size, capacity);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	FUZZ_CHECK(size < 6 || memcmp(data, "canary", 6) != 0);
	return 0;
}
