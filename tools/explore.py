# SPDX-License-Identifier: Apache-2.0
"""Random search with fresh seeds (`make explore SECONDS=600`).

    python tools/explore.py SECONDS [NAME...]

Takes the searches in turns, each with a new seed, until the time is over. A finding is printed with
the command that repeats it. Exits with 1 if there was one, or no time for one search.
"""

from __future__ import annotations

import contextlib
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
PYTEST = "-m pytest -q -p no:cacheprovider -n 2 --timeout 0"
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
    "fuzz": "make fuzz FUZZ_RUNS=20000",
    "mutants": "make mutants ROWS=FIRST:COUNT",
}


def turn(name: str, row: int, end: float) -> bool | None:
    """Run a search once, mutants from this row. Returns whether it passed; None if it was cut at
    the end of the time without a finding."""
    text = SEARCHES[name].replace("PY", sys.executable)
    text = text.replace("FIRST", str(row)).replace("COUNT", str(ROWS))
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
    passed: bool | None = None
    try:
        output, _ = search.communicate(timeout=max(end - began, 0))
        passed = search.returncode == 0
    except subprocess.TimeoutExpired:
        os.killpg(search.pid, signal.SIGKILL)
        output, _ = search.communicate()
        if "FAILED" in output:
            passed = False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(search.pid, signal.SIGKILL)
    word = {True: "passed", False: "FINDING", None: "cut"}[passed]
    print(f"{name}: {word} after {time.monotonic() - began:.0f} s: {text}", flush=True)
    if passed is False:
        print("\n".join(output.splitlines()[-60:]), flush=True)
    return passed


def main() -> int:
    end = time.monotonic() + float(sys.argv[1])
    names = sys.argv[2:] or list(SEARCHES)
    done: Counter[str] = Counter()
    found: Counter[str] = Counter()
    first = random.SystemRandom().randrange(1000)
    for name in itertools.cycle(names):
        passed = turn(name, first + done[name] * ROWS, end)
        found[name] += passed is False
        if time.monotonic() >= end:
            break
        done[name] += 1
    for name in names:
        print(f"explore: {name}: {done[name]} turns, {found[name]} with a finding")
    return int(found.total() > 0 or not done)


if __name__ == "__main__":
    sys.exit(main())
