# SPDX-License-Identifier: Apache-2.0
"""A FIFO in the place of a checkpoint's file is refused; opening it must not wait for a writer."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ckptfmt

PROGRAM = """
import sys, ckptfmt
try:
    ckptfmt.load(sys.argv[1])
except ckptfmt.CkptfmtError as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("file", ["m.index", "m.data-00000-of-00001"])
def test_a_fifo_does_not_block(tmp_path: Path, file: str) -> None:
    ckptfmt.save(tmp_path / "m", {"w": np.arange(5)})
    (tmp_path / file).unlink()
    os.mkfifo(tmp_path / file)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, tmp_path / "m"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout in ("StorageError\n", "CheckpointNotFoundError\n")
