# SPDX-License-Identifier: Apache-2.0
"""Every call of the C library that a whole Python process makes fails in turn, or one in STEP, with
each error that it may give, once and always: a typed error or success, the old state or the new,
and no leak. A transient error is never taken for damage. And saves and merges are killed at any
call."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.preload import Forks

from faults.driver import OPERATIONS

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"),
    reason="NOT RUN: needs a C compiler and Linux",
)
STEP = 13


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks("faults.driver") as found:
        yield found


def report_of(forks: Forks, *arguments: object, folder: Path) -> str:
    """The last line of what a run writes, which finds nothing wrong."""
    assert forks.run(*arguments) == 0
    *wrong, last = (folder / "printed").read_text().splitlines()
    assert not wrong, "\n".join(wrong)
    print(last)
    return last


@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call(operation: str, step: int, forks: Forks, tmp_path: Path) -> None:
    report_of(forks, operation, tmp_path, step, folder=tmp_path)


@pytest.mark.parametrize("step", [131, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_merges(tmp_path: Path, step: int) -> None:
    """A merge that is killed and made again, to a fresh destination and over an older checkpoint,
    finishes, or raises CheckpointNotFoundError because it had finished, which the message says."""
    with Forks("faults.merges") as forks:
        last = report_of(forks, tmp_path.resolve(), step, folder=tmp_path)
    assert " 0 reported" not in last


@pytest.mark.parametrize("step", [37, pytest.param(1, marks=pytest.mark.slow)])
def test_killed_saves(tmp_path: Path, step: int) -> None:
    """The save after one that was killed leaves nothing but its own files, whatever wrote them."""
    with Forks("faults.killed_saves") as forks:
        last = report_of(forks, tmp_path.resolve(), step, folder=tmp_path)
    assert " 0 kills" not in last
