# SPDX-License-Identifier: Apache-2.0
"""What a save costs a training loop: in the background and not, beside TensorFlow's.

    python bench/async_save.py [--mib 1024] [--arrays 100] [--calls 4] [--runs 3]
        [--folder DIRECTORY] [--tensorflow PYTHON]

Each measurement is a process of its own, the sides in turn. It makes float32 arrays, sees how fast
a loop of Python and small numpy products goes on its own, and saves several times to fresh
prefixes, going on with the loop until the index is in place, after one update of all arrays in
place, as a training step makes it: whoever shares memory with the model pays there. Blocked is the
time until the call returned. Lost is by how much the loop came later than without the save, the
time blocked included. The first call of a process stands apart: it makes the memory that later ones
use again. Prints a Markdown table of medians, with the least and the most; ratios are to the first
side of TensorFlow, or of ours that waits.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

PROGRAM = """
import json, os, shutil, sys, time
import numpy as np
side, folder, mib, count, calls = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
size = (mib << 20) // count // 4
arrays = {f"layer_{i:04d}": np.full(size, i, np.float32) for i in range(count)}
if side.startswith("TensorFlow"):
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    import tensorflow as tf
    holder = tf.train.Checkpoint(**{name: tf.Variable(value) for name, value in arrays.items()})
    arrays.clear()
    one = tf.ones([size])
    variables = [getattr(holder, f"layer_{i:04d}") for i in range(count)]
    def update():
        for variable in variables:
            variable.assign_add(one)
        variables[-1][0].numpy()
    options = tf.train.CheckpointOptions(enable_async="async" in side)
    save = lambda prefix: holder.write(prefix, options=options)
    finish = lambda result: holder.sync() if "async" in side else None
else:
    import ckptfmt
    one = np.ones(size, np.float32)
    def update():
        for array in arrays.values():
            np.add(array, one, out=array)
    call = ckptfmt.save_async if "async" in side else ckptfmt.save
    durability = side.split()[-1]
    save = lambda prefix: call(prefix, arrays, durability=durability)
    finish = lambda result: result.result() if "async" in side else None

left, right = np.ones((96, 96), np.float32), np.ones((96, 96), np.float32)
def iterate():
    total = 0
    for i in range(300):
        total += i
    return left @ right

def rate(seconds):
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        iterate()
        steps += 1
    return steps / (time.perf_counter() - began)

def update_time():
    began = time.perf_counter()
    update()
    return time.perf_counter() - began

rate(0.2)
update()
found = []
for number in range(calls):
    where = os.path.join(folder, str(number))
    os.mkdir(where)
    os.sync()
    usual, usual_update = rate(0.5), min(update_time() for _ in range(3))
    prefix = os.path.join(where, "ck")
    began, steps = time.perf_counter(), 0
    result = save(prefix)
    blocked = time.perf_counter() - began
    update()
    while not os.path.exists(prefix + ".index"):
        iterate()
        steps += 1
    wall = time.perf_counter() - began
    finish(result)
    found.append([blocked, max(wall - usual_update - steps / usual, 0.0), wall])
    shutil.rmtree(where)
print(json.dumps(found))
"""

OURS = ("ckptfmt async full", "ckptfmt async rename", "ckptfmt full", "ckptfmt rename")
THEIRS = ("TensorFlow", "TensorFlow async")


def measure(python: str, side: str, given: argparse.Namespace) -> list[list[float]]:
    """Seconds blocked, lost and until in place of each call in one process."""
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        numbers = map(str, (given.mib, given.arrays, given.calls))
        command = [python, "-c", PROGRAM, side, folder, *numbers]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [list(map(float, call)) for call in json.loads(done.stdout.splitlines()[-1])]


def spread(times: list[float]) -> str:
    middle, low, high = (f(times) * 1000 for f in (statistics.median, min, max))
    return f"{middle:.0f} ({low:.0f} to {high:.0f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--arrays", type=int, default=100)
    parser.add_argument("--calls", type=int, default=4, help="saves in one process, at least 2")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where the checkpoints go")
    parser.add_argument("--tensorflow", help="a Python that has TensorFlow; without it only ours")
    given = parser.parse_args()
    sides = OURS + THEIRS if given.tensorflow else OURS
    print(
        f"{given.mib} MiB in {given.arrays} arrays, {given.runs} runs of {given.calls} calls, "
        f"{platform.machine()}; milliseconds\n"
    )
    first: dict[str, list[list[float]]] = {side: [] for side in sides}
    later: dict[str, list[list[float]]] = {side: [] for side in sides}
    for _ in range(given.runs):
        for side in sides:
            python = given.tensorflow if side in THEIRS else sys.executable
            calls = measure(python, side, given)
            first[side].append(calls[0])
            later[side] += calls[1:]
    base = THEIRS[0] if given.tensorflow else "ckptfmt full"
    other = [statistics.median(call[what] for call in later[base]) for what in range(2)]
    print(f"| side | call | blocked | lost | in place after | {base} blocked, lost: times ours |")
    print("| --- | --- | --- | --- | --- | --- |")
    for side in sides:
        for name, calls in (("first", first[side]), ("later", later[side])):
            columns = [[call[what] for call in calls] for what in range(3)]
            ratios = [
                f"{theirs / max(statistics.median(ours), 1e-6):.1f}"
                for theirs, ours in zip(other, columns, strict=False)
            ]
            told = " | ".join(map(spread, columns))
            print(f"| {side} | {name} | {told} | {', '.join(ratios)} |")


if __name__ == "__main__":
    main()
