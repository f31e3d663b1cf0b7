# SPDX-License-Identifier: Apache-2.0
"""`ckptfmt latest`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import ckptfmt
from ckptfmt.cli import main


def test_latest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(v=np.zeros(3)), run, max_to_keep=3)
    for _ in range(2):
        manager.save()
    assert main(["latest", str(run)]) == 0
    assert capsys.readouterr() == (f"{run / 'ckpt-2'}\n", "")
    (run / "ckpt-2.index").unlink()
    assert main(["latest", str(run)]) == 0
    out, err = capsys.readouterr()
    assert out == f"{run / 'ckpt-1'}\n"
    assert err.startswith("ckptfmt: ") and "ckpt-2" in err


def test_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["latest", str(tmp_path)]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "no complete checkpoint" in err
    assert main(["latest", str(tmp_path / "typo")]) == 2
    assert "no such directory" in capsys.readouterr().err


def test_url(capsys: pytest.CaptureFixture[str]) -> None:
    url = "memory://latest/run"
    ckptfmt.CheckpointManager(ckptfmt.Checkpoint(v=np.zeros(3)), url, max_to_keep=3).save()
    assert main(["latest", url]) == 0
    assert capsys.readouterr().out == f"{url}/ckpt-1\n"
