#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# fuzz.sh replay FOLDER                every corpus file through its target, and a fixed number of mutations
# fuzz.sh standalone FOLDER SECONDS    mutations by the targets' own driver
# fuzz.sh libfuzzer FOLDER SECONDS     coverage-guided, from a copy of the corpus
# fuzz.sh libfuzzer FOLDER RUNS runs   the same, RUNS executions of each target. libFuzzer also follows inode numbers
#   and times that it sees compared: one seed does not give one run
# FOLDER holds the built targets. The seconds are for all targets together. CKPTFMT_TEST_SEED is the seed. An input that
# fails stays in FOLDER.
set -eu
kind=$1
folder=$(cd "$2" && pwd)
seconds=${3:-0}
runs=${4:+-runs=$3}
seed=${CKPTFMT_TEST_SEED:-1}
corpus=$(cd "$(dirname "$0")/../fuzz/corpus" && pwd)
cd "$folder"

# The canary's property is false for its corpus. If that goes unnoticed, so would any other failure.
rm -f failed-input
if ./fuzz_canary "$corpus/canary/must_fail" >canary.log 2>&1; then
	echo "fuzz: the canary passed, so failures go unnoticed" >&2
	exit 1
fi
rm -f failed-input canary.log crash-*

targets=
count=0
for source in "$corpus"/../fuzz_*.c; do
	target=$(basename "$source" .c)
	name=${target#fuzz_}
	[ "$name" != canary ] || continue
	if ! [ -d "$corpus/$name" ]; then
		echo "fuzz: $target has no corpus at fuzz/corpus/$name; make_corpus.py writes one" >&2
		exit 1
	fi
	targets="$targets $name"
	count=$((count + 1))
done
[ "$count" -gt 0 ] || { echo "fuzz: no targets" >&2; exit 1; }
share=$((seconds / count))
[ "$share" -gt 0 ] || share=1

failed() {
	echo "fuzz: fuzz_$1 failed; the input is in $folder (seed $seed)" >&2
	exit 1
}

for name in $targets; do
	echo "fuzz: $name"
	case $kind in
	replay)
		"./fuzz_$name" --mutate 20000 --seed "$seed" "$corpus/$name" || failed "$name"
		;;
	standalone)
		end=$(($(date +%s) + share))
		round=0
		while [ "$(date +%s)" -lt "$end" ]; do
			"./fuzz_$name" --mutate 20000 --seed "$((seed + round))" "$corpus/$name" >run.log || failed "$name"
			round=$((round + 1))
		done
		echo "  $round rounds of 20000 mutations from --seed $seed"
		;;
	libfuzzer)
		[ -z "$runs" ] || rm -rf "grown/$name"
		mkdir -p "grown/$name"
		"./fuzz_$name" -seed="$((seed % 4294967295 + 1))" "${runs:--max_total_time=$share}" -rss_limit_mb=2048 -timeout=10 \
			-max_len=65536 -artifact_prefix=failed- -print_final_stats=1 "grown/$name" "$corpus/$name" \
			>"fuzz_$name.log" 2>&1 || { tail -n 40 "fuzz_$name.log" >&2; failed "$name"; }
		sed -n 's/^stat::number_of_executed_units: /  executed /p' "fuzz_$name.log"
		;;
	*)
		echo "fuzz: no kind $kind" >&2
		exit 2
		;;
	esac
done
