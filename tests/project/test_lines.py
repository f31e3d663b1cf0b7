# SPDX-License-Identifier: Apache-2.0
"""bench/results/lines.md: nobody writes more with ckptfmt than with the shortest other library.
tests/peers/test_lines.py runs the programs."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.bench import ROOT, module

LINES = module("count_lines")


def test_the_table_is_of_these_programs() -> None:
    committed = (ROOT / "bench" / "results" / "lines.md").read_text(encoding="utf-8")
    command = [sys.executable, str(ROOT / "bench" / "count_lines.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ran.stdout == committed, "python bench/count_lines.py > bench/results/lines.md"
    assert {path.stem for path in LINES.PROGRAMS.glob("*.py")} == {
        f"with_{side}" for side in LINES.SIDES
    }


@pytest.mark.parametrize("job", LINES.JOBS)
def test_ours_is_never_longer(job: str) -> None:
    counts = {side: LINES.counts(side) for side in LINES.SIDES}
    others = [one[job] for side, one in counts.items() if job in one and "ckptfmt" not in side]
    ours = {side: one[job] for side, one in counts.items() if job in one and "ckptfmt" in side}
    assert others
    assert {side: count for side, count in ours.items() if count > min(others)} == {}
