# SPDX-License-Identifier: Apache-2.0
"""docs/stores.md does what it says."""

from __future__ import annotations

from pathlib import Path

from support.pages import run_page


def test_page(tmp_path: Path) -> None:
    run_page("docs/stores.md", tmp_path)
