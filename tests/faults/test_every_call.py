# SPDX-License-Identifier: Apache-2.0
"""Every call of the C library that a whole Python process makes fails in turn, with each error that
it may give, once and always: a typed error or success, the old state or the new, and no leak. A
transient error is never taken for damage."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.preload import environment

from faults.driver import OPERATIONS

pytestmark = pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"),
    reason="NOT RUN: needs a C compiler and Linux",
)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_every_call(operation: str, tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "faults.driver", operation, str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    *wrong, last = ran.stdout.splitlines()
    assert not wrong, "\n".join(wrong)
    print(last)
