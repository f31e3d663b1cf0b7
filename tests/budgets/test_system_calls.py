# SPDX-License-Identifier: Apache-2.0
"""System calls that operations take, of the whole process and counted by strace: exact bounds.

`operations.py` says what each operation is. What a process asks for memory and for its threads is
left out: the C library and Python decide that.
"""

from __future__ import annotations

import collections
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import Ledger
from .operations import OPERATIONS

HERE = Path(__file__).resolve().parent

# Measured counts, and the aim if it is lower: 12 per save and one for every 8 MiB, 6 per open, one
# per slice. A save or merge takes 7 to look for files of killed writers. A reader asks for its
# process id once per open, so that it works after a fork.
BUDGETS: dict[str, tuple[int, int | None]] = {
    "save": (39, 12),
    "save-synced": (47, None),
    "save-1000": (39, 12),
    "save-64-mib": (103, 12 + 8),
    "save-100000": (67, 12 + 25_600_000 // (8 << 20)),
    "replace": (81, None),  # a checkpoint of one data file, by another
    "open": (15, 6),
    "open-and-read": (16, None),
    "load-1000": (17, None),
    "load-100000": (55, None),  # 25.6 MB of data and an index of 5 MB
    "rows": (1, 1),
    "rows-v2": (1, 1),
    "merge-20": (292, None),
    "link-20": (215, None),
    "manager-save": (115, None),  # with its state file, and the removal of the oldest checkpoint
}
# What one input more takes.
INPUT_BUDGETS: dict[str, tuple[int, int]] = {"merge": (11, 6), "link": (8, 6)}

LEFT_OUT = {"brk", "mmap", "munmap", "mremap", "madvise", "mprotect", "futex", "sched_yield"}
LEFT_OUT |= {"clone", "clone3", "set_robust_list", "rseq", "rt_sigprocmask", "exit"}
STRACE = ["strace", "-f", "-qq", "-e", "signal=none", "-o"]
LINE = re.compile(r"^\d+ +(?:<\.\.\. )?(\w+)(?:\(| resumed)(.*)$")


def counts(name: str, rest: str) -> bool:
    if name == "getrandom":
        return ", 1, " not in rest  # a letter of a random name, drawn until it is one
    return name not in LEFT_OUT or (name == "mmap" and "MAP_ANONYMOUS" not in rest)


def calls(trace: str) -> collections.Counter[str]:
    """By name, between the marks."""
    found: collections.Counter[str] = collections.Counter()
    counting = False
    for line in trace.splitlines():
        parsed = LINE.match(line)
        if parsed is None or "resumed>" in line:
            continue
        name, rest = parsed.groups()
        if '"mark-' in rest:
            counting = "begin" in rest
        elif counting and counts(name, rest):
            found[name] += 1
    assert not counting, "the operation did not end"
    return found


def traced(folder: Path, operation: str) -> collections.Counter[str]:
    trace = folder / "trace"
    work = folder / "work"
    work.mkdir()
    ran = subprocess.run(
        [*STRACE, str(trace), sys.executable, str(HERE / "operations.py"), operation, str(work)],
        check=False,
        env={**os.environ, "PYTHONPATH": f"{HERE.parent}:{HERE.parents[1]}"},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return calls(trace.read_text(errors="replace"))


def test_every_operation_has_a_budget() -> None:
    assert set(BUDGETS) | {f"{name}-120" for name in INPUT_BUDGETS} == set(OPERATIONS)


@pytest.mark.parametrize("operation", BUDGETS)
def test_an_operation_keeps_to_its_budget(tmp_path: Path, ledger: Ledger, operation: str) -> None:
    found = traced(tmp_path, operation)
    try:
        ledger.check(f"{operation}: system calls", found.total(), *BUDGETS[operation])
    except AssertionError as error:
        raise AssertionError(f"{error}: {dict(found)}") from None


@pytest.mark.parametrize("operation", INPUT_BUDGETS)
def test_an_input_of_a_merge_keeps_to_its_budget(
    tmp_path: Path, ledger: Ledger, operation: str
) -> None:
    for count in (20, 120):
        (tmp_path / f"{count}").mkdir()
    few, many = (traced(tmp_path / f"{count}", f"{operation}-{count}") for count in (20, 120))
    many.subtract(few)
    try:
        budget = INPUT_BUDGETS[operation]
        ledger.check(f"{operation}: system calls an input", many.total() / 100, *budget)
    except AssertionError as error:
        raise AssertionError(f"{error}; a hundred more: {dict(many)}") from None
