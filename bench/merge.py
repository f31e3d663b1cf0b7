# SPDX-License-Identifier: Apache-2.0
"""Merging many bundles: ckptfmt beside TensorFlow's MergeV2Checkpoints.

    python bench/merge.py [--inputs 1000] [--keys 1000] [--runs 5] [--tensorflow PYTHON]

Each measurement is a process of its own on a fresh copy of the inputs, the sides in turn. Time is
that of the call alone, memory what the process's peak grew by during it. No side syncs unless it
says so. Prints a Markdown table with the median and the spread of each side.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

MAKE = """
import sys, numpy as np, ckptfmt
folder, inputs, keys, order = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
for i in range(inputs):
    with ckptfmt.Writer(f"{folder}/part-{i:05d}", level="v2", durability="none") as writer:
        for k in range(keys):
            layer, variable = (i, k) if order == "blocked" else (k, i)
            name = f"model/layer_{layer:05d}/variable_{variable:05d}/.ATTRIBUTES/VARIABLE_VALUE"
            writer.add(name, np.float32(k))
"""

MERGE = """
import json, resource, sys, time
folder, inputs, side = sys.argv[1], int(sys.argv[2]), sys.argv[3]
prefixes = [f"{folder}/part-{i:05d}" for i in range(inputs)]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
if side == "TensorFlow":
    import tensorflow as tf
    call = lambda: tf.raw_ops.MergeV2Checkpoints(
        checkpoint_prefixes=tf.constant(prefixes), destination_prefix=tf.constant(f"{folder}/out"))
else:
    import ckptfmt
    durability = "full" if side == "ckptfmt, synced" else "none"
    call = lambda: ckptfmt.merge(prefixes, f"{folder}/out", inputs="consume", durability=durability)
before, began = peak(), time.perf_counter()
call()
print(json.dumps([time.perf_counter() - began, (peak() - before) / 1024]))
"""

SIDES = ("ckptfmt", "ckptfmt, synced", "TensorFlow")


def measure(python: str, source: Path, scratch: Path, inputs: int, side: str) -> list[float]:
    """Seconds and MiB of one merge."""
    folder = scratch / "run"
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(source, folder)
    command = [python, "-c", MERGE, str(folder), str(inputs), side]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(number) for number in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--keys", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--tensorflow", help="a Python that has TensorFlow; without it only ours")
    given = parser.parse_args()
    sides = SIDES if given.tensorflow else SIDES[:2]
    print(f"{given.inputs} inputs of {given.keys} keys, {given.runs} runs, {platform.machine()}\n")
    print("| names | side | median ms | least to most | peak MiB | times TensorFlow |")
    print("| --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory() as scratch:
        for order in ("blocked", "interleaved"):
            source = Path(scratch) / order
            command = [sys.executable, "-c", MAKE, source, given.inputs, given.keys, order]
            subprocess.run([str(part) for part in command], check=True)
            found: dict[str, list[list[float]]] = {side: [] for side in sides}
            for _ in range(given.runs):
                for side in sides:
                    python = given.tensorflow if side == "TensorFlow" else sys.executable
                    found[side].append(measure(python, source, Path(scratch), given.inputs, side))
            other = statistics.median(run[0] for run in found[sides[-1]]) * 1000
            for side in sides:
                times = [run[0] * 1000 for run in found[side]]
                middle = statistics.median(times)
                memory = statistics.median(run[1] for run in found[side])
                ratio = f"{other / middle:.1f}" if given.tensorflow else "-"
                print(
                    f"| {order} | {side} | {middle:.0f} | {min(times):.0f} to {max(times):.0f} "
                    f"| {memory:.0f} | {ratio} |"
                )


if __name__ == "__main__":
    main()
