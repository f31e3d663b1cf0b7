#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi.sh compare|record: the binary interface of build/abi/libckptfmt.so beside csrc/package/libckptfmt.abi, which was
# recorded on x86-64.
set -eu
recorded=csrc/package/libckptfmt.abi
found=build/abi/libckptfmt.abi
if [ "$(uname -m)" != x86_64 ] || ! command -v abidiff >/dev/null; then
	echo "abi: NOT RUN: needs x86-64 and abidiff (Debian: abigail-tools)"
	exit 0
fi
abidw --header-file csrc/ckptfmt.h --drop-private-types --drop-undefined-syms --no-show-locs --no-corpus-path \
	--no-comp-dir-path --type-id-style hash --out-file "$found" build/abi/libckptfmt.so
if [ "$1" = record ]; then
	cp "$found" "$recorded"
elif ! abidiff --leaf-changes-only "$recorded" "$found"; then
	echo "abi: the binary interface differs from the recorded one. Record additions by 'make abi-record'; for all" \
		"other changes raise SOVERSION in Makefile first." >&2
	exit 1
fi
echo "abi: $1 passed"
