# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/dcp.md."""

from __future__ import annotations

from pathlib import Path

from support.pages import program, run_console, run_page
from support.ranks import LEAVE, LOOPBACK


def test_page(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(program("docs/dcp.md", "train.py") + LEAVE, encoding="utf-8")
    run_console("docs/dcp.md", tmp_path, LOOPBACK)
    run_page("docs/dcp.md", tmp_path)
