# SPDX-License-Identifier: Apache-2.0
"""Random search with fresh seeds (`make explore SECONDS=600`).

    python tools/explore.py SECONDS [NAME...]

Takes the searches in turns, each with a new seed, until the time is over. A finding is printed with
the command that repeats it. Exits with 1 if there was one.
"""

from __future__ import annotations

import itertools
import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTEST = "-m pytest -q -p no:cacheprovider -n 2"
ROWS = 6  # of mutants in a turn

# What a turn runs: variables, then a command, as in a shell. Each takes half a minute to two.
SEARCHES = {
    "properties": f"CKPTFMT_PROPERTIES=0.02 PY {PYTEST} -m properties --ignore=tests/peers tests",
    "machines": f"CKPTFMT_PROPERTIES=0.1 PY {PYTEST} tests/properties/test_machine.py "
    "tests/manager/test_directory_machine.py",
    "races": f"CKPTFMT_RACE_ROUNDS=20 PY {PYTEST} tests/races",
    "border": f"CKPTFMT_BORDER_RUNS=1500 PY {PYTEST} tests/border",
    "soak": f"CKPTFMT_SOAK_KILLS=40 PY {PYTEST} tests/soak",
    "powerloss": f"CKPTFMT_POWERLOSS_IMAGES=500 CKPTFMT_POWERLOSS_KILLS=1 PY {PYTEST} "
    "tests/powerloss",
    "c": "make c-test",
    "fuzz": "make fuzz FUZZ_SECONDS=60",
    "mutants": "make mutants ROWS=FIRST:COUNT",
}


def turn(name: str, number: int, end: float) -> bool | None:
    """Run a search once. Returns whether it passed; None if the time was over before."""
    text = SEARCHES[name].replace("PY", sys.executable)
    text = text.replace("FIRST", str(number * ROWS)).replace("COUNT", str(ROWS))
    text = f"CKPTFMT_TEST_SEED={random.SystemRandom().randrange(1 << 32)} {text}"
    began = time.monotonic()
    search = subprocess.Popen(
        ["env", *shlex.split(text)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = search.communicate(timeout=max(end - began, 0))
    except subprocess.TimeoutExpired:
        os.killpg(search.pid, signal.SIGKILL)
        search.communicate()
        return None
    word = "passed" if search.returncode == 0 else "FINDING"
    print(f"{name}: {word} in {time.monotonic() - began:.0f} s: {text}", flush=True)
    if search.returncode:
        print("\n".join(output.splitlines()[-60:]), flush=True)
    return search.returncode == 0


def main() -> int:
    end = time.monotonic() + float(sys.argv[1])
    names = sys.argv[2:] or list(SEARCHES)
    done: Counter[str] = Counter()
    found: Counter[str] = Counter()
    for name in itertools.cycle(names):
        passed = turn(name, done[name], end)
        if passed is None:
            break
        done[name] += 1
        found[name] += not passed
    for name in names:
        print(f"explore: {name}: {done[name]} turns, {found[name]} with a finding")
    return int(found.total() > 0)


if __name__ == "__main__":
    sys.exit(main())
