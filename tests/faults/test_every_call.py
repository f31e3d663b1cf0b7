# SPDX-License-Identifier: Apache-2.0
"""Every call of the C library that a whole Python process makes fails in turn, or one in STEP, with
each error that it may give, once and always: a typed error or success, the old state or the new,
and no leak. A transient error is never taken for damage."""

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
STEP = 7


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks("faults.driver") as found:
        yield found


@pytest.mark.parametrize("step", [STEP, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call(operation: str, step: int, forks: Forks, tmp_path: Path) -> None:
    assert forks.run(operation, tmp_path, step) == 0
    *wrong, last = (tmp_path / "printed").read_text().splitlines()
    assert not wrong, "\n".join(wrong)
    print(last)
