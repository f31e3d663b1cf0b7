# SPDX-License-Identifier: Apache-2.0
"""Instructions that the hot paths take, counted by callgrind: a change that makes one slower shows
on any machine, however busy.

`tests/c/hot_paths.c` says what each path is. The counts are of x86-64, of the checksum with SSE4.2
and PCLMULQDQ (valgrind 3.19 dies of AVX-512), and of a compiler and a C library: a new one may
take all budgets to be measured anew.
"""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from .conftest import Ledger

PROGRAM = Path(__file__).resolve().parents[2] / "build" / "release" / "measure_paths"

# What one unit of a path may take: as measured, and 5% more; and what it ought to take, where that
# is less. The aims for these budgets are 150 a key of an index that is built, 120 a key that is
# listed, 3000 a lookup, 500 a key that is merged, and 400 and a sixteenth of its bytes a small
# tensor that is saved. A budget only ever comes down, to its aim in the end.
BUDGETS: dict[str, tuple[int, int | None]] = {
    "catalog": (360, None),  # a key entered in the catalog of a writer
    "index": (290, 150),  # a key of an index that is built, all being in order already
    "index-shuffled": (620, None),  # and where they are to be sorted
    "open": (1_023_000, None),  # an open of an index of 100,000 keys, and its close
    "list": (442, 120),  # a key of a listing
    "names": (331, 120),  # a key whose name is all that is listed
    "lookup": (3770, 3000),  # a name selected by itself among 100,000
    "find": (1340, None),  # one that is found as a plain tensor
    "select": (1410, None),  # one of 10,000 names looked up at once
    "merge": (762, 500),  # a key of a merge of bundles of 100 keys each
    "add-256": (1750, 400 + 256 // 16),  # a tensor of 256 bytes, handed over with 10,000
    "add-1024": (2340, 400 + 1024 // 16),
    "save": (2140, None),  # a tensor of 256 bytes in a save: the above, its key, the commit
    "read": (1120, None),  # a tensor of 256 bytes of 10,000 that are read at once
    "slice": (5570, None),  # 8 rows of 4 KiB
    "columns": (11_900, None),  # 64 pieces of 256 bytes
}

# Copies by `rep movsb` count as an instruction a byte: without, they count as on a real machine.
ENVIRONMENT = {
    "CKPTFMT_ISA": "pclmul",
    "GLIBC_TUNABLES": "glibc.cpu.x86_rep_movsb_threshold=0x40000000"
    ":glibc.cpu.x86_rep_stosb_threshold=0x40000000",
}


def callgrind(folder: Path, path: str, *options: str) -> Path:
    """Runs a path under callgrind; returns the profile without the number of its part."""
    out = folder / "profile"
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out}", *options]
    ran = subprocess.run(
        [*command, str(PROGRAM), path],
        check=False,
        env={**os.environ, **ENVIRONMENT, "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 0, ran.stderr
    return out


def instructions(folder: Path, path: str) -> int:
    """All threads' between the beginning of the path and its end."""
    out = callgrind(folder, path, "--zero-before=hot_path_run", "--dump-after=hot_path_run")
    part = out.with_name("profile.1").read_text()
    found = re.search(r"^summary: (\d+)$", part, re.MULTILINE)
    assert found is not None, part[:2000]
    return int(found[1])


def costliest(folder: Path, path: str) -> str:
    """The functions that take most of it, of the thread that asked."""
    out = callgrind(folder, path, "--toggle-collect=hot_path_run")
    command = ["callgrind_annotate", str(out)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = re.findall(r"^ *([\d,]+) \(.*?\) +\S*:(\S+) \[", ran.stdout, re.MULTILINE)
    return ", ".join(f"{name} {count}" for count, name in rows[:6])


def paths() -> dict[str, tuple[int, str]]:
    """What the program knows: how many units a path has and what one is."""
    ran = subprocess.run([str(PROGRAM)], capture_output=True, text=True, check=True)
    rows = [line.split("\t") for line in ran.stdout.splitlines()]
    return {name: (int(count), unit) for name, count, unit, _ in rows}


def test_every_path_has_a_budget() -> None:
    assert list(paths()) == list(BUDGETS)


@pytest.mark.parametrize("path", BUDGETS)
def test_a_path_keeps_to_its_budget(tmp_path: Path, ledger: Ledger, path: str) -> None:
    count, unit = paths()[path]
    budget, aim = BUDGETS[path]
    measured = instructions(tmp_path, path) / count
    try:
        ledger.check(f"{path}: instructions a {unit}", measured, budget, aim)
    except AssertionError as error:
        raise AssertionError(f"{error}; of all {count}: {costliest(tmp_path, path)}") from None
