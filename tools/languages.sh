#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the library into a temporary prefix, builds the examples in C, C++, Rust and Go against it with the tools
# that are there, and runs each. They check their own results. Run by `make languages`.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
root=$scratch/installed
make -s install PREFIX="$root" >/dev/null
export PKG_CONFIG_PATH="$root/lib/pkgconfig" LD_LIBRARY_PATH="$root/lib"

run() { # name, program
	"$2" "$scratch/$1-files/model" >"$scratch/output"
	grep -q -e '^kernel$' -e '^layer/kernel ' "$scratch/output" ||
		{ echo "languages: unexpected output of the $1 example:" >&2; cat "$scratch/output" >&2; exit 1; }
	echo "languages: $1 passed"
}

missing() {
	echo "languages: $1 NOT RUN: needs $2"
}

if command -v pkg-config >/dev/null; then
	# Options of several words.
	shared=$(pkg-config --cflags --libs ckptfmt)
	static=$(pkg-config --cflags --libs --static ckptfmt | sed "s|-lckptfmt|$root/lib/libckptfmt.a|")
	[ "$(pkg-config --modversion ckptfmt)" = "$(sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)" ]
else
	shared="-I$root/include -L$root/lib -lckptfmt"
	static="-I$root/include $root/lib/libckptfmt.a -pthread"
	missing pkg-config pkg-config
fi

# The program of the page, and what it prints of a checkpoint that TensorFlow wrote.
sed -n '/^```c$/,/^```$/p' docs/c.md | sed '1d;$d' >"$scratch/list.c"
# shellcheck disable=SC2086
cc -std=c11 -Wall -Wextra "$scratch/list.c" $shared -o "$scratch/list"
"$scratch/list" tests/golden/merged/ckpt | grep -q '^part/float: 24 elements, 96 bytes' ||
	{ echo "languages: the program of docs/c.md prints something else" >&2; exit 1; }
# shellcheck disable=SC2086
cc -std=c11 -Wall -Wextra examples/plain_c.c $shared -o "$scratch/plain_c"
run c "$scratch/plain_c"
if command -v g++ >/dev/null; then
	# shellcheck disable=SC2086
	g++ -std=c++17 -Wall -Wextra examples/plain.cpp $static -o "$scratch/plain_cpp"
	run cpp "$scratch/plain_cpp"
else
	missing C++ g++
fi
if command -v rustc >/dev/null; then
	rustc --edition 2021 -L "$root/lib" -l dylib=ckptfmt -o "$scratch/plain_rust" examples/plain.rs
	run rust "$scratch/plain_rust"
else
	missing Rust rustc
fi
if command -v go >/dev/null; then
	CGO_CFLAGS="-I$root/include" CGO_LDFLAGS="-L$root/lib -lckptfmt" GOFLAGS=-trimpath GO111MODULE=off \
		GOCACHE="$scratch/go" go build -o "$scratch/plain_go" examples/plain.go
	run go "$scratch/plain_go"
else
	missing Go go
fi
if command -v cmake >/dev/null; then
	mkdir "$scratch/project"
	cp examples/plain_c.c "$scratch/project"
	cat >"$scratch/project/CMakeLists.txt" <<-'EOF'
		cmake_minimum_required(VERSION 3.13)
		project(example C)
		find_package(ckptfmt 0.1 REQUIRED)
		foreach(library ckptfmt ckptfmt_static)
		  add_executable(with_${library} plain_c.c)
		  target_link_libraries(with_${library} PRIVATE ckptfmt::${library})
		endforeach()
	EOF
	cmake -S "$scratch/project" -B "$scratch/cmake" -DCMAKE_PREFIX_PATH="$root" >"$scratch/output" &&
		cmake --build "$scratch/cmake" >>"$scratch/output" || { cat "$scratch/output" >&2; exit 1; }
	run cmake "$scratch/cmake/with_ckptfmt"
	run cmake-static "$scratch/cmake/with_ckptfmt_static"
else
	missing CMake cmake
fi

make -s uninstall PREFIX="$root"
left=$(find "$root" ! -type d)
[ -z "$left" ] || { echo "languages: make uninstall leaves $left" >&2; exit 1; }
