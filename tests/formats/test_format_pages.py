# SPDX-License-Identifier: Apache-2.0
"""The pages about other formats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from support.pages import run_console, run_page

import ckptfmt
from ckptfmt.cli import main


def test_safetensors(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "a", {"layer/bias": np.ones(2, np.float32), "layer/kernel": np.ones(9)})
    source = str(tmp_path / "a")
    assert main(["convert", "-q", source, str(tmp_path / "model.safetensors")]) == 0
    several = ["--max-shard-size", "75", str(tmp_path / "big.safetensors")]
    assert main(["convert", "-q", source, *several]) == 0
    assert (tmp_path / "big.safetensors.index.json").exists()
    run_console("docs/safetensors.md", tmp_path)
    assert "float32" in run_page("docs/safetensors.md", tmp_path)
