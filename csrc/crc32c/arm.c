/* SPDX-License-Identifier: Apache-2.0 */
/* CRC-32C on AArch64 with the CRC32 extension (optional in ARMv8.0, mandatory from 8.1): three streams of CRC32CX,
 * joined by tables. A carry-less multiply would save nothing measurable: there is one join in 6 KiB. */
#include "base/system.h"
#include "crc32c/crc32c.h"

#if defined(__aarch64__)

#if !CKPTFMT_PLAIN_POSIX
#include <sys/auxv.h>
#elif defined(__APPLE__)
#include <sys/sysctl.h>
#endif

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
#if !CKPTFMT_PLAIN_POSIX
	return (getauxval(AT_HWCAP) & CAPABILITY_CRC32) != 0;
#elif defined(__APPLE__)
	int found = 0;
	size_t size = sizeof found;
	return sysctlbyname("hw.optional.armv8_crc32", &found, &size, NULL, 0) == 0 && found != 0;
#else
	return false;
#endif
}

const cf_crc32c_variant cf_crc32c_arm[CF_CRC32C_ARM_COUNT] = {
	{"armv8", "armv8", has_crc, update_streams, cf_crc32c_shift_portable},
};

#endif
