#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the examples in other languages with the compilers that are installed, and runs each. They check their own
# results. Usage: languages.sh LIBRARIES (what to link beside build/libckptfmt.a, "-lzstd" or nothing).
set -eu
libraries=$1
root=$PWD
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

run() { # language
	"build/plain_$1" "$scratch/$1/model" >"$scratch/output"
	[ "$(cat "$scratch/output")" = "kernel
words" ] || { echo "languages: unexpected output of the $1 example:" >&2; cat "$scratch/output" >&2; exit 1; }
	echo "languages: $1 passed"
}

missing() {
	echo "languages: $1 NOT RUN: needs $2"
}

if command -v g++ >/dev/null; then
	# shellcheck disable=SC2086 # several libraries are several words
	g++ -std=c++17 -Wall -Wextra -Icsrc examples/plain.cpp build/libckptfmt.a $libraries -pthread -o build/plain_cpp
	run cpp
else
	missing C++ g++
fi
if command -v rustc >/dev/null; then
	links=
	for library in $libraries; do links="$links -C link-arg=$library"; done
	# shellcheck disable=SC2086
	rustc --edition 2021 -C link-arg=build/libckptfmt.a $links -o build/plain_rust examples/plain.rs
	run rust
else
	missing Rust rustc
fi
if command -v go >/dev/null; then
	CGO_CFLAGS="-I$root/csrc" CGO_LDFLAGS="$root/build/libckptfmt.a $libraries -lpthread" GOFLAGS=-trimpath \
		GO111MODULE=off go build -o build/plain_go examples/plain.go
	run go
else
	missing Go go
fi
