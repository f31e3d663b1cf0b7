#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# need.sh NEED...: says in one line what is missing on this machine, and fails if anything is.
#   python:COMMAND  Python >= 3.11 with venv, ensurepip and headers
#   cc:COMMAND      a C compiler that links
#   libfuzzer       clang with its libFuzzer and AddressSanitizer
#   COMMAND         any program
missing=
miss() { missing="$missing${missing:+; }$1"; }

for need in "$@"; do
	case $need in
	python:*)
		python=${need#python:}
		if ! command -v "$python" >/dev/null 2>&1; then
			miss "Python >= 3.11 (no command $python; PYTHON=... names another)"
		elif ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
			miss "Python >= 3.11 ($python is $("$python" -V 2>&1); PYTHON=... names another)"
		else
			"$python" -c 'import venv, ensurepip' 2>/dev/null || miss "the venv module of $python (Debian: python3-venv)"
			"$python" -c 'import os, sysconfig as s; raise SystemExit(not os.path.exists(
os.path.join(s.get_paths()["include"], "Python.h")))' || miss "Python.h of $python (Debian: python3-dev)"
		fi
		;;
	cc:*)
		cc=${need#cc:}
		program=$(mktemp) || exit 2
		# shellcheck disable=SC2086
		if ! command -v ${cc%% *} >/dev/null 2>&1; then
			miss "a C compiler (no command $cc; CC=... names another)"
		elif ! printf '#include <stdlib.h>\nint main(void){return 0;}\n' | $cc -x c -o "$program" - 2>/dev/null; then
			miss "a working C compiler ($cc cannot build a program; Debian: gcc libc6-dev)"
		fi
		rm -f "$program"
		;;
	libfuzzer)
		echo 'int LLVMFuzzerTestOneInput(void) { return 0; }' |
			clang -fsanitize=fuzzer,address -x c - -o /dev/null 2>/dev/null ||
			miss "clang with libFuzzer (Debian: clang libclang-rt-dev)"
		;;
	*)
		command -v "$need" >/dev/null 2>&1 || miss "$need"
		;;
	esac
done
[ -z "$missing" ] && exit 0
echo "missing on this machine: $missing" >&2
exit 1
