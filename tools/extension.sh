# SPDX-License-Identifier: Apache-2.0
# Sourced in the root of the checkout: the Python tests against an extension that is built with other flags. It is built
# with a copy of the package into build/NAME/python, which precedes the checkout on the path. Needs $python, an absolute
# path, and $cc.

build_extension() { # NAME CFLAGS LDFLAGS
	target=build/$1/python
	mkdir -p "$target"
	rm -rf "$target/ckptfmt"
	CC=$cc CFLAGS=$2 LDFLAGS=$3 "$python" setup.py --quiet build_ext --build-temp "build/$1/base" --build-lib "$target"
	cp -r ckptfmt "$target/package"
	rm -f "$target"/package/_ckptfmt*.so
	cp -r "$target"/package/. "$target/ckptfmt/"
	rm -rf "$target/package"
}

run_tests() { # NAME, arguments of pytest
	name=$1
	shift
	# Also for the processes that tests start: the current directory, which has the checkout's package, must not be first.
	export PYTHONSAFEPATH=1 PYTHONPATH="$PWD/build/$name/python"
	"$python" -c '
import sys, ckptfmt._core
where = sys.modules["ckptfmt._ckptfmt"].__file__
assert f"build/{sys.argv[1]}/python" in where, where
print("Python tests with", where.rpartition("build/")[2])' "$name"
	"$python" -m pytest -q -n 2 "$@"
}
