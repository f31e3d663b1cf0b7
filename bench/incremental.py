# SPDX-License-Identifier: Apache-2.0
"""Saving upon an earlier checkpoint: beside a full save, and TensorFlow's.

    python bench/incremental.py [--mib 1024] [--tensors 1000] [--changed 0.01] [--runs 5]
                                [--folder FOLDER] [--tensorflow PYTHON]

Each measurement is a process of its own, the sides in turn, on arrays of which this share has
changed since the base was saved, whole tensors. Time is that of the call alone; before it all is
synced. "Written" is what the call gave to the system, "read" what came from the device during it:
that tells whether the base was in the page cache. Full saves and TensorFlow's hold the same.
TensorFlow does not sync. Prints a Markdown table with the median and the spread of each side.
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

RUN = """
import json, os, sys, time
import numpy as np
folder, mib, tensors, changed, side = sys.argv[1:]
count, size = int(tensors), int(mib) * 2**20 // int(tensors) // 4 * 4
rng = np.random.Generator(np.random.SFC64(7))
arrays = {f"layer_{i:06d}/kernel": np.frombuffer(rng.bytes(size), np.int32) for i in range(count)}
names = list(arrays)
if side != "base":
    for name in names[:: max(round(1 / float(changed)), 1)] if float(changed) else []:
        arrays[name] = arrays[name] + 1
base, target = f"{folder}/base", f"{folder}/new"
written = lambda: 0
if side == "TensorFlow":
    import tensorflow as tf
    texts, values = tf.constant(names), [tf.constant(array) for array in arrays.values()]
    specs = tf.constant([""] * count)
    call = lambda: tf.raw_ops.SaveV2(
        prefix=target, tensor_names=texts, shape_and_slices=specs, tensors=values)
else:
    import ckptfmt
    from ckptfmt import _core
    written = lambda: _core.counters()["bytes_written"]
    options = {} if "synced" in side or side == "base" else {"durability": "none"}
    if "upon" in side:
        options["base"] = base
    call = lambda: ckptfmt.save(base if side == "base" else target, arrays, **options)
os.sync()
data = [entry.path for entry in os.scandir(folder) if ".data-" in entry.name]
for path in data:
    with open(path, "rb") as file:
        if "cold" in side:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        else:
            while file.read(1 << 24):
                pass
def device():
    with open("/proc/self/io") as file:
        return int(dict(line.split(": ") for line in file)["read_bytes"])
bytes_before, device_before, began = written(), device(), time.perf_counter()
call()
seconds = time.perf_counter() - began
read, bytes_written = device() - device_before, written() - bytes_before
if side == "TensorFlow":
    bytes_written = sum(e.stat().st_size for e in os.scandir(folder) if e.name.startswith("new."))
print(json.dumps([seconds, bytes_written / 2**20, read / 2**20]))
"""

SIDES = (
    "full, synced",
    "upon the base, synced",
    "upon the base, synced, cold",
    "full",
    "upon the base",
    "TensorFlow",
)


def measure(python: str, folder: Path, given: argparse.Namespace, side: str) -> list[float]:
    """Seconds, MiB written and MiB read from the device."""
    for path in folder.glob("new.*"):
        path.unlink()
    numbers = [str(given.mib), str(given.tensors), str(given.changed)]
    command = [python, "-c", RUN, str(folder), *numbers, side]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(number) for number in json.loads(done.stdout.splitlines()[-1])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--tensors", type=int, default=1000)
    parser.add_argument("--changed", type=float, default=0.01, help="the share, 0 to 1")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to save; a temporary one by default")
    parser.add_argument("--tensorflow", help="a Python that has TensorFlow; without it only ours")
    given = parser.parse_args()
    sides = SIDES if given.tensorflow else SIDES[:-1]
    with tempfile.TemporaryDirectory(dir=given.folder) as scratch:
        folder = Path(scratch)
        measure(sys.executable, folder, given, "base")
        found: dict[str, list[list[float]]] = {side: [] for side in sides}
        for _ in range(given.runs):
            for side in sides:
                python = given.tensorflow if side == "TensorFlow" else sys.executable
                found[side].append(measure(python, folder, given, side))
        shutil.rmtree(folder)
        folder.mkdir()
    print(
        f"{given.mib} MiB in {given.tensors} tensors, {given.changed:.1%} changed, "
        f"{given.runs} runs, {platform.machine()}\n"
    )
    print("| side | median ms | least to most | MiB written | MiB read | of a full save's time |")
    print("| --- | --- | --- | --- | --- | --- |")
    medians = {
        side: [statistics.median(column) for column in zip(*runs, strict=True)]
        for side, runs in found.items()
    }
    for side in sides:
        seconds, written, read = medians[side]
        times = [run[0] * 1000 for run in found[side]]
        full = medians["full, synced" if "synced" in side else "full"][0]
        print(
            f"| {side} | {seconds * 1000:.0f} | {min(times):.0f} to {max(times):.0f} "
            f"| {written:.1f} | {read:.0f} | {seconds / full:.2f} |"
        )


if __name__ == "__main__":
    main()
