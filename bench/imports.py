# SPDX-License-Identifier: Apache-2.0
"""The time of importing ckptfmt, beside numpy: the fastest of some new processes.

python bench/imports.py [--smoke] > bench/results/imports.md
"""

import subprocess
import sys

STEPS = ["import numpy", "import ckptfmt", "ckptfmt.open", "ckptfmt.save", "ckptfmt.Checkpoint"]
CODE = """
import time
times = [time.perf_counter()]
for step in {steps!r}:
    exec(step)
    times.append(time.perf_counter())
print(*(after - before for before, after in zip(times, times[1:])))
"""


def main() -> None:
    runs = []
    for _ in range(2 if "--smoke" in sys.argv else 20):
        command = [sys.executable, "-c", CODE.format(steps=STEPS)]
        ran = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append([float(text) for text in ran.stdout.split()])
    print("# Time of imports\n\nOne after the other in one process; the fastest of new ones.\n")
    print("| step | ms |\n| --- | --- |")
    for step, *times in zip(STEPS, *runs, strict=True):
        print(f"| `{step}` | {1000 * min(times):.1f} |")


if __name__ == "__main__":
    main()
