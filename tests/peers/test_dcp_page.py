# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/dcp.md."""

from __future__ import annotations

import sys
from pathlib import Path

from support.pages import run_page
from support.ranks import LOOPBACK


def test_page(tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--no-python"]
    launcher.append("--nproc-per-node=2")
    run_page("docs/dcp.md", tmp_path, "train.py", launcher, LOOPBACK)
    run_page("docs/dcp.md", tmp_path)
