# SPDX-License-Identifier: Apache-2.0
"""Every opener beside every hostile thing: a result or a typed error, in time and memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.hostile import OPENERS
from support.strategies import LONG

MUTANTS = max(25, round(3000 * LONG))


@pytest.mark.parametrize("opener", OPENERS)
def test_every_opener(opener: str, tmp_path: Path, seed: int) -> None:
    here = str(Path(__file__).parent.parent)
    done = subprocess.run(
        [sys.executable, "-m", "support.hostile", opener, str(seed), str(MUTANTS), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    found = json.loads(done.stdout.splitlines()[-1])
    seconds, slowest = found["slowest"]
    print(
        f"{opener}: opened {found['opened']}, refused {found['refused']}, peak "
        f"{found['peak'] >> 20} MiB, slowest {seconds:.2f} s ({slowest:.40})"
    )
    assert found["wrong"] == []
    assert found["opened"] + found["refused"] > 30
