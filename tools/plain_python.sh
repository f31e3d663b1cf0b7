#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# plain_python.sh PYTHON CC: the Python tests of files against an extension that makes only the system calls of any
# POSIX system (base/system.h), and power cuts.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cc=$2
cd "$(dirname "$0")/.."
. tools/extension.sh
build_extension plain -DCKPTFMT_PLAIN_POSIX=1 ''
# For the canary of tests/powerloss.
export CKPTFMT_PLAIN_POSIX=1
run_tests plain tests/bundle tests/manager tests/faults
export CKPTFMT_POWERLOSS_IMAGES=200
run_tests plain --timeout 0 tests/powerloss
