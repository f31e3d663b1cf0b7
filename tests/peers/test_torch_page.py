# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/torch.md, and the benchmark of its formats."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from support.pages import ROOT, run_page


def test_page(tmp_path: Path) -> None:
    run_page("docs/torch.md", tmp_path)


def test_readme(tmp_path: Path) -> None:
    run_page("README.md", tmp_path, "train.py")


@pytest.mark.slow
def test_benchmark() -> None:
    command = [sys.executable, str(ROOT / "bench" / "torch_formats.py"), "--smoke"]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    rows = [line for line in ran.stdout.splitlines() if line.startswith("| ")]
    assert len(rows) == 7 and "ckptfmt.torch" in rows[2]
