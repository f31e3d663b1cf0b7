# SPDX-License-Identifier: Apache-2.0
"""Runs the benchmarks, in turn or one.

    python bench/run.py [--smoke] [--tensorflow PYTHON] [NAME [options of that one]]

With `--smoke` each does as little as shows that it works.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

# What each does for `--smoke`.
BENCHES = {
    "merge": ["--inputs", "20", "--keys", "20", "--runs", "1"],
    "async_save": ["--mib", "8", "--arrays", "10", "--calls", "2", "--runs", "1"],
    "compression": ["--mib", "2", "--runs", "1", "--save-mib", "2"],
    "incremental": ["--mib", "8", "--tensors", "20", "--runs", "1"],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--smoke", action="store_true")
    parser.add_argument("--tensorflow", help="a Python that has TensorFlow; without it only ours")
    parser.add_argument("name", nargs="?", choices=BENCHES)
    parser.add_argument("options", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    for name in [given.name] if given.name else BENCHES:
        command = [sys.executable, str(Path(__file__).with_name(f"{name}.py"))]
        command += BENCHES[name] if given.smoke else []
        command += ["--tensorflow", given.tensorflow] if given.tensorflow else []
        print(f"## {name}\n", flush=True)
        subprocess.run([*command, *given.options], check=True)
        print(flush=True)


if __name__ == "__main__":
    main()
