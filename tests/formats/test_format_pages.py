# SPDX-License-Identifier: Apache-2.0
"""The pages about other formats."""

from __future__ import annotations

from pathlib import Path

from support.pages import run_page


def test_safetensors(tmp_path: Path) -> None:
    assert "float32" in run_page("docs/safetensors.md", tmp_path)
