# SPDX-License-Identifier: Apache-2.0
"""The benchmark: ckptfmt beside TensorFlow and other libraries, and beside what the machine can do.

    python bench/run.py [--full | --smoke] [--tensorflow PYTHON] [--peers PYTHON]
                        [--folder FOLDER] [--results FOLDER] [--seed SEED] [--rounds N]
                        [--sides SIDE,...] [--cores N] [--before TREE] [CASE ...]
    python bench/run.py [--smoke] compression [options of bench/compression.py]

CASE is one of B1 to B14, or a row such as B2-P; default all. Writes latest.md, latest.svg and
latest.json: a run of all cases into bench/results, any other into build/bench. Ends with status 1
where a side has read other values than were saved, or ours has failed. bench/README.md tells how it
measures.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cases
import report
from limits import Limits
from measure import Measurer, Plan
from session import Sides

HERE = Path(__file__).resolve().parent
# Samples: of ours and of TensorFlow, whom the targets are about, and of the others.
ROUNDS = {"smoke": (2, 2), "quick": (7, 3), "full": (9, 9)}
BUDGET_SECONDS = {"smoke": 0.0, "quick": 4.0, "full": 60.0}
LIMIT_BYTES = {"smoke": 8 << 20, "quick": 1 << 30, "full": 1 << 30}
LIMIT_ROUNDS = {"smoke": 1, "quick": 3, "full": 5}


def compression(smoke: bool, tensorflow: str | None, options: list[str]) -> int:
    """The benchmark of compression, which is separate."""
    command = [sys.executable, str(HERE / "compression.py")]
    command += ["--runs", "1", "--save-mib", "2"] if smoke else []
    command += ["--tensorflow", tensorflow] if tensorflow else []
    return subprocess.run([*command, *options], check=False).returncode


def chosen(wanted: list[str], profile: str, sides: str | None) -> list[cases.Row]:
    """The rows asked for, with the sides asked for."""
    rows = cases.rows(profile)
    if sides:
        rows = [cases.only(row, {cases.OURS, *sides.split(",")}) for row in rows]
    known = {row.key for row in rows} | {row.case for row in rows}
    for name in wanted:
        if name not in known:
            sys.exit(f"{name} is no case; there are {', '.join(sorted(known))} and compression")
    if wanted:
        return [row for row in rows if {row.key, row.case} & set(wanted)]
    return [row for row in rows if profile != "quick" or not row.extra]


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="more samples, all settings")
    size.add_argument("--smoke", action="store_true", help="only whether everything works")
    parser.add_argument("--tensorflow", help="a Python that has TensorFlow; default this one")
    parser.add_argument("--peers", help="a Python that has the other libraries; default this one")
    parser.add_argument("--sides", help="some, with commas between; and tuned, if those are wanted")
    parser.add_argument(
        "--folder", type=Path, help="where files are saved; default a temporary one"
    )
    parser.add_argument("--results", type=Path, help="where the report goes")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--rounds", type=int, help="samples of each side, where time allows it")
    parser.add_argument("--before", type=Path, help="a built tree of ckptfmt to compare with")
    parser.add_argument("--cores", type=int, help="on so many of the processors, all sides")
    parser.add_argument("cases", nargs="*", metavar="CASE")
    return parser


def main() -> int:
    parser = options()
    given, rest = parser.parse_known_args()
    if given.cases[:1] == ["compression"]:
        return compression(given.smoke, given.tensorflow, [*given.cases[1:], *rest])
    if rest:
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    if given.cores is not None:  # for the workers as well: all of them are children
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: max(given.cores, 1)])
    profile = "smoke" if given.smoke else "full" if given.full else "quick"
    rows = chosen(given.cases, profile, given.sides)
    if given.before:
        rows = [cases.with_before(row) for row in rows]
    plan = Plan(
        profile,
        *((given.rounds, given.rounds) if given.rounds else ROUNDS[profile]),
        BUDGET_SECONDS[profile],
        given.seed,
    )
    pythons = {
        cases.OURS: sys.executable,
        cases.TENSORFLOW: given.tensorflow or sys.executable,
        **dict.fromkeys(cases.PEERS, given.peers or sys.executable),
    }
    homes = dict.fromkeys(pythons, HERE)
    if given.before:
        pythons[cases.BEFORE] = str(given.before.resolve() / ".venv" / "bin" / "python")
        homes[cases.BEFORE] = given.before.resolve() / "bench"
    whole = not (given.cases or given.smoke or given.sides or given.cores or given.before)
    results = given.results or (HERE / "results" if whole else HERE.parent / "build" / "bench")
    print(f"{profile}, seed {given.seed}", flush=True)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="bench-") as scratch:
        folder = Path(scratch)
        limits = Limits(folder, LIMIT_BYTES[profile])
        sides = Sides(pythons, homes, folder)
        measurer = Measurer(plan, sides, folder)
        found = report.Run(plan, limits, folder)
        try:
            for _ in range(LIMIT_ROUNDS[profile]):
                limits.measure()
            for row in rows:
                began = time.perf_counter()
                entries = measurer.row(row)
                found.add(row, entries)
                took = time.perf_counter() - began
                print(f"{row.key:16} {took:6.1f} s  {found.brief(row.key)}", flush=True)
            limits.measure()
        finally:  # of a run that was interrupted there is a report too
            sides.close()
            found.wrong, found.versions = measurer.wrong, sides.versions()
            found.write(results)
    print(f"\n{found.summary()}")
    for wrong in found.wrong:
        print(f"OTHER VALUES: {wrong}", file=sys.stderr)
    status = 1 if found.wrong or not found.complete() else 0
    if given.smoke and not given.cases:
        status = compression(True, given.tensorflow, []) or status
    return status


if __name__ == "__main__":
    sys.exit(main())
