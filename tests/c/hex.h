/* SPDX-License-Identifier: Apache-2.0 */
/* Bytes as the tests of messages spell them. */
#ifndef CKPTFMT_TESTS_HEX_H
#define CKPTFMT_TESTS_HEX_H

#include "test.h"

#include "base/bytes.h"

/* Pairs of hex digits, with blanks between, before a guard page. */
static inline cf_bytes_view hex(const char *text)
{
	size_t size = 0;
	uint8_t bytes[512];
	for (const char *at = text; *at != '\0'; at++) {
		unsigned value;
		if (*at == ' ')
			continue;
		if (size == sizeof bytes || sscanf(at, "%2x", &value) != 1)
			abort();
		bytes[size++] = (uint8_t)value;
		at++;
	}
	return (cf_bytes_view){test_guarded_copy(bytes, size), size};
}

#endif
