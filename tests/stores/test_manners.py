# SPDX-License-Identifier: Apache-2.0
"""Servers that stall, cut, lie and go on for ever: a load gives the stored values or a typed error,
in time, and Ctrl-C ends it at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.manners import CALLS, LARGE_MANNERS, MANNERS, STALLS, WRONG, every


# In `make test`, every fifth.
@pytest.mark.parametrize("step", [5, pytest.param(1, marks=pytest.mark.slow)])
def test_a_load_from_each(tmp_path: Path, step: int) -> None:
    here = str(Path(__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-m", "support.manners", str(tmp_path), str(step)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    at, rows = json.loads(done.stdout.splitlines()[-1])
    assert time.time() - at < 300, "calls that are left behind do not delay the exit"
    kinds = (MANNERS, MANNERS, CALLS, LARGE_MANNERS)
    assert len(rows) == sum(len(every(kind, step)) for kind in kinds) > 90 // step
    for manner, suffix, outcome, seconds, after in rows:
        print(f"{manner}, {suffix}: {outcome[:100]} {seconds:.2f} s, interrupt: {after}")
        row = (manner, suffix, outcome, seconds, after)
        kind = outcome.partition(":")[0]
        assert kind == "right" or kind.endswith("Error"), row
        assert "CorruptError" not in kind or manner in WRONG, row
        assert seconds < 300 and (after is None or after < 300), row
        stalls = manner.startswith(("fsspec", "large")) or manner in STALLS
        assert not stalls or after is not None, row
    outcomes = {(manner, suffix): outcome for manner, suffix, outcome, *_ in rows}
    right = {"good", "drips", "no etag", "weak etag", "redirects elsewhere", "too much"}
    assert {outcome for (manner, _), outcome in outcomes.items() if manner in right} == {"right"}
