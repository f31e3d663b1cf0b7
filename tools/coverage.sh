#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# coverage.sh PYTHON CC FLAGS: the Python tests against an extension that counts its branches. It is built in a copy of
# the sources in build/coverage/python, without optimisation, so that its branches are those of the C programs.
set -eu
python=$(cd "$(dirname "$1")" && pwd)/$(basename "$1")
cc=$2
flags=$3
cd "$(dirname "$0")/.."
copy=build/coverage/python
rm -rf "$copy"
mkdir -p "$copy"
cp -r csrc ckptfmt pyproject.toml setup.py build_ffi.py "$copy"
rm -f "$copy"/ckptfmt/_ckptfmt*.so
sed -i 's/"-O3"/"-O0"/' "$copy/build_ffi.py"
(cd "$copy" && CC=$cc CFLAGS=$flags LDFLAGS=--coverage "$python" setup.py --quiet build_ext --inplace)
export PYTHONPATH="$PWD/$copy"
"$python" -P -c '
import sys, ckptfmt._core
where = sys.modules["ckptfmt._ckptfmt"].__file__
assert "build/coverage/python" in where, where'
exec "$python" -P -m pytest -q -n 2 --ignore=tests/interop --ignore=tests/peers --ignore=tests/budgets \
	--ignore=tests/bench --ignore=tests/browser --ignore=tests/project --ignore=tests/reports --ignore=tests/soak \
	--ignore=tests/border tests
