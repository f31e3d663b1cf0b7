# SPDX-License-Identifier: Apache-2.0
"""docs/internals/: the files, functions and layers that its pages name exist."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.pages import run_console
from test_layers import PARTS
from test_tidy import LAYERS

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs" / "internals").glob("*.md"))
FOLDERS = ("csrc", "ckptfmt", "tests", "tools", "fuzz", "examples", "spec")


def terms(page: Path) -> Iterator[str]:
    """What is in backticks, outside of blocks."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    yield from re.findall(r"`([^`\n]+)`", text)


def words() -> set[str]:
    paths = [one for folder in FOLDERS for one in (ROOT / folder).rglob("*.*")]
    kinds = {".c", ".h", ".py", ".sh", ".toml"}
    found = {"Makefile": (ROOT / "Makefile").read_text(encoding="utf-8")}
    found |= {str(one): one.read_text(encoding="utf-8") for one in paths if one.suffix in kinds}
    return {word for text in found.values() for word in re.findall(r"\w+", text)}


def test_files_and_functions_exist() -> None:
    known, wrong = words(), []
    for page in PAGES:
        for term in terms(page):
            if re.fullmatch(r"[\w.-]+(/[\w.-]+)*/?\.?\w+", term) and "/" in term:
                wrong += [] if (ROOT / term).exists() else [(page.name, term)]
            elif re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", term):
                wrong += [(page.name, one) for one in term.split(".") if one not in known]
    assert wrong == []


@pytest.mark.parametrize(("first", "expected"), [("Folder", LAYERS), ("Part", PARTS)])
def test_layers_are_those_of_the_tests(first: str, expected: list[str]) -> None:
    page = (ROOT / "docs" / "internals" / "architecture.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"^\| {first} .*\n\| ---.*\n((?:\|.*\n)+)", page, re.M)
    cells = [row.split("|")[1] for row in table.splitlines()]
    named = [one.rstrip("/") for cell in cells for one in re.findall(r"`([^`]+)`", cell)]
    hidden = {"_ckptfmt", "__init__", "__main__"}
    assert named == [one for one in expected if one not in hidden]


@pytest.mark.slow  # make and gdb
def test_hacking() -> None:
    if not (ROOT / ".venv" / ".built").exists() or shutil.which("gdb") is None:
        pytest.skip("no checkout that make built, or no gdb")
    traced = subprocess.run(
        ["gdb", "-batch", "-ex", "run", "true"], capture_output=True, check=False
    )
    if b"exited normally" not in traced.stdout:
        pytest.skip("gdb may not trace")
    environment = {"MAKEFLAGS": "--no-print-directory", "CKPTFMT_TEST_SEED": "1"}
    build = ["make", "python", "build/release/test_block"]  # else the page's first `make` does
    subprocess.run(
        build, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, check=True
    )
    run_console("docs/internals/hacking.md", ROOT, environment)
