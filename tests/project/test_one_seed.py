# SPDX-License-Identifier: Apache-2.0
"""One seed draws the same in every run, whatever else the process has loaded."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st


def drawn() -> list[tuple[int, str]]:
    found = []

    @seed(1)
    @settings(max_examples=400, database=None)
    @given(st.integers(0, 2**32), st.text())
    def draw(number: int, text: str) -> None:
        found.append((number, text))

    draw()
    return found


def test_draws_do_not_depend_on_loaded_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = drawn()
    path = tmp_path / "loaded.py"
    path.write_text(
        "".join(f"A{number} = {number}, 'text {number}'\n" for number in range(200, 600))
    )
    module = ModuleType("loaded")
    module.__dict__.update(runpy.run_path(str(path)), __file__=str(path))
    monkeypatch.setitem(sys.modules, "loaded", module)
    assert drawn() == before


def test_ci_draws_what_everybody_draws() -> None:
    program = "import conftest, hypothesis; print(hypothesis.settings.default)"
    tests = Path(__file__).parents[1]
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(tests), name: "true"},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for name in ("NOT_CI", "CI", "GITHUB_ACTIONS")
    }
    assert len(printed) == 1
