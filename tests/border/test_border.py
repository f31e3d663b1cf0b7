# SPDX-License-Identifier: Apache-2.0
"""The mutants of run.py, in a process of their own. `make border` takes a minute."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SECONDS = os.environ.get("CKPTFMT_BORDER_SECONDS", "8")
RUNS = os.environ.get("CKPTFMT_BORDER_RUNS", "1000000000")


def run(seed: int, runs: str, seconds: str, place: Path, planted: str = "none") -> dict[str, Any]:
    """What a run prints; the end of the process by a signal is a finding as well."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [str(seed), runs, seconds, str(place), "0", planted]
    command = [sys.executable, "-m", "border.run", *words]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        found: dict[str, Any] = json.loads(ran.stdout)
        return found
    (number,) = struct.unpack("<q", (place / "board").read_bytes())
    died = f"{number}: status {ran.returncode}: {ran.stderr[-2000:]}"
    return {"seconds": 0, "outcomes": {"executions": number + 1}, "findings": [died]}


def test_every_mutant_ends_well(tmp_path: Path, seed: int) -> None:
    found = run(seed, RUNS, SECONDS, tmp_path / "border")
    outcomes = found["outcomes"]
    executions = outcomes.pop("executions")
    print(
        f"border: {executions:,} executions in {found['seconds']:.0f} s, {len(outcomes)} outcomes"
    )
    for outcome, count in sorted(outcomes.items()):
        print(f"border: {outcome}: {count:,}")
    assert not found["findings"], "\n".join(found["findings"])
    assert executions > 100


@pytest.mark.parametrize("planted", ["dies", "leaks", "unchecked"])
def test_a_planted_bug_is_found(planted: str, tmp_path: Path, seed: int) -> None:
    found = run(seed, "2000", "60", tmp_path / "border", planted)
    assert found["findings"]
