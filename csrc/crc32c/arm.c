/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C on AArch64 with the CRC32 extension (optional in ARMv8.0, mandatory from 8.1): three streams of CRC32CX,
 * joined by tables. A carry-less multiply would save nothing measurable: there is one join in 6 KiB. */
#include "crc32c/crc32c.h"

#if defined(__aarch64__)

#include <sys/auxv.h>

#if defined(__clang__)
#define STREAMS_TARGET __attribute__((target("crc")))
#else
#define STREAMS_TARGET __attribute__((target("+crc")))
#endif
#include <arm_acle.h>
#define STREAMS_U64(state, word) __crc32cd(state, word)
#define STREAMS_U8(state, byte) __crc32cb(state, byte)
#include "crc32c/streams.h"

/* HWCAP_CRC32 of Linux; not every C library has its header. */
enum { CAPABILITY_CRC32 = 1 << 7 };

static bool has_crc(void)
{
	return (getauxval(AT_HWCAP) & CAPABILITY_CRC32) != 0;
}

const cf_crc32c_variant cf_crc32c_arm[CF_CRC32C_ARM_COUNT] = {
	{"armv8", "armv8", has_crc, update_streams, cf_crc32c_shift_portable},
};

#endif
