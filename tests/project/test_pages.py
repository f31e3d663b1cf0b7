# SPDX-License-Identifier: Apache-2.0
"""The pages in docs/: linked from the README, run by a test, and their links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from support.pages import ROOT, blocks, run_console, run_page

import ckptfmt
from ckptfmt.cli import COMMANDS, command_parser

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES)
def test_page(page: str) -> None:
    assert f"]({page})" in (ROOT / "README.md").read_text(encoding="utf-8")
    if re.search("^```python", (ROOT / page).read_text(encoding="utf-8"), re.M):
        tests = (path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
        assert any(f'"{page}"' in text for text in tests), "write a test with run_page"


@pytest.mark.parametrize("page", ["README.md", *PAGES])
def test_links(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
        if "://" not in target:
            assert (ROOT / page).parent.joinpath(target).exists(), target


def test_coming_from_tensorflow(tmp_path: Path) -> None:
    for path in (ROOT / "tests" / "golden" / "merged").glob("ckpt.*"):  # TensorFlow wrote them
        shutil.copy(path, tmp_path / path.name.replace("ckpt.", "model.ckpt-1000."))
    run_page("docs/coming-from-tensorflow.md", tmp_path)


def test_engines(tmp_path: Path) -> None:
    assert len(blocks("docs/engines.md", "python")) == 1
    run_page("docs/engines.md", tmp_path)


def test_guide(tmp_path: Path) -> None:
    assert len(blocks("docs/guide.md", "python")) == 3
    run_page("docs/guide.md", tmp_path)


def test_recipes(tmp_path: Path) -> None:
    run_page("docs/recipes.md", tmp_path)
    run_console("docs/recipes.md", tmp_path)


def test_operators(tmp_path: Path) -> None:
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(x=np.zeros(3)), tmp_path / "runs", 10)
    for _ in range(4):
        manager.save()
    run_console("docs/operators.md", tmp_path)


def test_options(tmp_path: Path) -> None:
    run_page("docs/options.md", tmp_path)


def test_every_option_of_edit() -> None:
    text = (ROOT / "docs" / "recipes.md").read_text(encoding="utf-8")
    _, commands = command_parser()
    for action in commands["edit"]._actions:
        for option in action.option_strings:
            assert option in ("-h", "--help") or f"`{option}" in text, option


@pytest.mark.parametrize("tool", ["commands", "api"])
def test_reference(tool: str) -> None:
    """Of these pages of the site nothing is missing; `make docs` has sphinx check them."""
    command = [sys.executable, str(ROOT / "tools" / f"{tool}.py")]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    wanted = COMMANDS
    if tool == "api":
        wanted = tuple(name for name in ckptfmt.__all__ if callable(getattr(ckptfmt, name)))
    assert not [name for name in wanted if name not in ran.stdout]
