# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C in the middle of a save: the temporary files go, the old checkpoint stays."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import ckptfmt

PROGRAM = """
import sys, numpy as np, ckptfmt
value = np.zeros(1 << 20, np.uint8)
with ckptfmt.Writer(sys.argv[1], durability="none") as writer:
    for i in range(1 << 30):
        writer.add(f"t{i}", value)
        if i == 3:
            print("writing", flush=True)
"""


def interrupted(prefix: Path, number: int) -> int:
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(prefix)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path)),
    )
    assert child.stdout is not None
    with child.stdout:
        assert child.stdout.readline() == b"writing\n"
        time.sleep(0.05)
        child.send_signal(number)
        return child.wait(30)


@pytest.mark.parametrize("old", [False, True])
def test_interrupt(tmp_path: Path, old: bool) -> None:
    prefix = tmp_path / "ck"
    if old:
        ckptfmt.save(prefix, {"x": np.arange(3)})
    before = sorted(path.name for path in tmp_path.iterdir())
    assert interrupted(prefix, signal.SIGINT) == -signal.SIGINT
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    if old:
        assert ckptfmt.load(prefix)["x"].tolist() == [0, 1, 2]


def test_kill_leaves_the_old_checkpoint(tmp_path: Path) -> None:
    prefix = tmp_path / "ck"
    ckptfmt.save(prefix, {"x": np.arange(3)})
    assert interrupted(prefix, signal.SIGKILL) == -signal.SIGKILL
    assert ckptfmt.load(prefix)["x"].tolist() == [0, 1, 2]
    ckptfmt.save(prefix, {"x": np.arange(4)})
    assert ckptfmt.load(prefix)["x"].tolist() == [0, 1, 2, 3]
    report = ckptfmt.verify(prefix)
    assert report.ok and any("tempstate" in str(finding.path) for finding in report.notes)
