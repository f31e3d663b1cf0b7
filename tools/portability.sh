#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the library without libzstd with each compiler that is installed and runs the plain C
# example that is linked with it; installs a cross build. Run by `make portability`.
set -eu
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

build() { # name, emulator or "", compiler and options
	name=$1 emulator=$2
	shift 2
	if ! command -v "$1" >/dev/null || { [ -n "$emulator" ] && ! command -v "$emulator" >/dev/null; }; then
		echo "portability: $name NOT RUN: needs $1${emulator:+ and $emulator}"
		return
	fi
	if ! printf '#include <stdio.h>\nint main(void) { return 0; }\n' | "$@" -x c - -o "$scratch/probe" 2>/dev/null; then
		echo "portability: $name NOT RUN: $* makes no program here"
		return
	fi
	"$@" -std=c11 -O2 -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -Icsrc -pthread \
		csrc/[!p]*/*.c csrc/proto/*.c examples/plain_c.c -o "$scratch/$name"
	$emulator "$scratch/$name" "$scratch/$name-files/model" >/dev/null
	echo "portability: $name passed"
}

build lto '' cc -flto=auto
build clang '' clang
# Debian keeps asm/ out of the 32-bit include path unless gcc-multilib, which excludes cross compilers, is installed.
build m32 '' cc -m32 -Wno-psabi -idirafter "/usr/include/$(uname -m)-linux-gnu"
build musl '' musl-gcc -static
build aarch64 qemu-aarch64 aarch64-linux-gnu-gcc -static

# The installed library of a cross build, with binutils that are named.
cross=aarch64-linux-gnu
if command -v $cross-gcc >/dev/null && command -v qemu-aarch64 >/dev/null; then
	mkdir "$scratch/source"
	cp -R Makefile pyproject.toml csrc examples tools "$scratch/source"
	make -s -C "$scratch/source" install-strip WITH_ZSTD= CC=$cross-gcc LD=$cross-ld OBJCOPY=$cross-objcopy \
		AR=$cross-ar STRIP=$cross-strip PREFIX="$scratch/cross" >/dev/null
	$cross-gcc -std=c11 -I"$scratch/cross/include" examples/plain_c.c -L"$scratch/cross/lib" -lckptfmt \
		-o "$scratch/installed"
	qemu-aarch64 -L /usr/$cross -E LD_LIBRARY_PATH="$scratch/cross/lib" "$scratch/installed" \
		"$scratch/installed-files/model" >/dev/null
	# The compiler of the host makes the objects anew: its linker takes them.
	object=build/release/csrc/base/error.o
	make -s -C "$scratch/source" WITH_ZSTD= CC=cc $object
	cc -nostdlib -r -o "$scratch/relinked" "$scratch/source/$object"
	echo "portability: aarch64 installed passed"
else
	echo "portability: aarch64 installed NOT RUN: needs $cross-gcc and qemu-aarch64"
fi
