/* SPDX-License-Identifier: Apache-2.0 */
/* CKPTFMT_PLAIN_POSIX: 1 where only calls are used that any POSIX system has. The build may set it on Linux too, to run
 * there what other systems run (`make plain-posix`). */
#ifndef CKPTFMT_BASE_SYSTEM_H
#define CKPTFMT_BASE_SYSTEM_H

#ifndef CKPTFMT_PLAIN_POSIX
#ifdef __linux__
#define CKPTFMT_PLAIN_POSIX 0
#else
#define CKPTFMT_PLAIN_POSIX 1
#endif
#endif

#endif
