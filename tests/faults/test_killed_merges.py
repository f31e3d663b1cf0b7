# SPDX-License-Identifier: Apache-2.0
"""A merge that is killed at any call and made again finishes, or raises CheckpointNotFoundError
because it had finished, which the message says; and the destination is right."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.preload import environment

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"),
    reason="NOT RUN: needs a C compiler and Linux",
)


@pytest.mark.parametrize("step", [67, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_merges(tmp_path: Path, step: int) -> None:
    """Through `merge`, `merge_v2_checkpoints` and the commands; to a fresh destination and over an
    older checkpoint."""
    ran = subprocess.run(
        [sys.executable, "-m", "faults.merges", str(tmp_path), str(step)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    *wrong, last = ran.stdout.splitlines()
    assert not wrong, "\n".join(wrong)
    assert " 0 reported" not in last, last
    print(last)
