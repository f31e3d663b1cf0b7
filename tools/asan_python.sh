#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# asan_python.sh PYTHON CC: the Python tests against an extension built with AddressSanitizer and UBSan.
# Python itself keeps memory, so that leaks are checked in the C tests only. Tests of what only Python does are left out,
# those of bounds of time, and those that preload or trace something themselves.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cc=$2
cd "$(dirname "$0")/.."
runtime=$($cc -print-file-name=libasan.so)
ubsan=$($cc -print-file-name=libubsan.so)
case $runtime in
/*) ;;
*)
	echo "asan: $cc has no shared sanitizer run time; the Python tests are NOT run under it" >&2
	exit 0
	;;
esac
. tools/extension.sh
build_extension asan "-g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer" \
	"-fsanitize=address,undefined"

export LD_PRELOAD="$runtime $ubsan"
# What was freed is held back up to a bound that a run reaches early: only then does memory settle.
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:quarantine_size_mb=64
run_tests asan --deselect=tests/races/test_races.py::test_ranks_that_die \
	--ignore=tests/interop --ignore=tests/peers --ignore=tests/budgets \
	--ignore=tests/bench --ignore=tests/browser --ignore=tests/cli --ignore=tests/project --ignore=tests/reports \
	--ignore=tests/faults --ignore=tests/powerloss --ignore=tests/soak --ignore=tests/objects --ignore=tests/manager \
	--ignore=tests/mutants --ignore=tests/sharded --ignore=tests/properties --ignore=tests/saving --ignore=tests/formats \
	--ignore=tests/format/test_reference_reads.py --ignore=tests/format/test_time_bounds.py tests
