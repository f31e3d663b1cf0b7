# SPDX-License-Identifier: Apache-2.0
"""The mutants of run.py, in a process of their own; `make border` runs many more."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

RUNS = os.environ.get("CKPTFMT_BORDER_RUNS", "80")


def run(seed: int, runs: str, place: Path, planted: str = "none") -> dict[str, Any]:
    """What a run prints; the end of the process by a signal is a finding as well."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = [str(seed), runs, str(place), "0", planted]
    command = [sys.executable, "-m", "border.run", *words]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if ran.returncode == 0:
        found: dict[str, Any] = json.loads(ran.stdout)
        return found
    (number,) = struct.unpack("<q", (place / "board").read_bytes())
    died = f"{number}: status {ran.returncode}: {ran.stderr[-2000:]}"
    return {"outcomes": {"executions": number + 1}, "findings": [died]}


def test_every_mutant_ends_well(tmp_path: Path, seed: int) -> None:
    found = run(seed, RUNS, tmp_path / "border")
    outcomes = found["outcomes"]
    executions = outcomes.pop("executions")
    print(f"border: {executions:,} executions, {len(outcomes)} outcomes")
    for outcome, count in sorted(outcomes.items()):
        print(f"border: {outcome}: {count:,}")
    assert not found["findings"], "\n".join(found["findings"])
    assert executions == int(RUNS)


@pytest.mark.parametrize("planted", ["dies", "leaks", "unchecked"])
def test_a_planted_bug_is_found(planted: str, tmp_path: Path, seed: int) -> None:
    found = run(seed, "2000", tmp_path / "border", planted)
    assert found["findings"]
