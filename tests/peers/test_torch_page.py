# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/torch.md."""

from __future__ import annotations

from pathlib import Path

from support.pages import run_console, run_page


def test_page(tmp_path: Path) -> None:
    run_page("docs/torch.md", tmp_path)
    run_console("docs/torch.md", tmp_path)


def test_readme(tmp_path: Path) -> None:
    run_page("README.md", tmp_path, "train.py")
