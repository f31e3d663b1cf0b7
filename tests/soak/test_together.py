# SPDX-License-Identifier: Apache-2.0
"""The processes of together.py, for some seconds: `make together` for a minute."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

SECONDS = float(os.environ.get("CKPTFMT_TOGETHER_SECONDS", "5"))
SUMMARY = re.compile(r"([a-z]+) ([0-9,]+)(?:, |$)")


def run(seconds: float, root: Path, *more: str) -> tuple[int, str, dict[str, int]]:
    """Returns the exit status, all that was printed, and the counts of the last line."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-m", "soak.together", str(seconds), str(root), *more],
        env=environment,
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
    )
    printed = ran.stdout[-3000:] + ran.stderr[-3000:]
    summary = ran.stdout.splitlines()[-1] if ran.stdout else ""
    counts = {name: int(text.replace(",", "")) for name, text in SUMMARY.findall(summary)}
    return ran.returncode, printed, counts


def test_together(tmp_path: Path) -> None:
    status, printed, counts = run(SECONDS, tmp_path)
    assert status == 0, printed
    for what in ("save", "merge", "load", "read", "verify", "manager", "restore", "latest"):
        assert counts[what] > 0, printed
    assert counts["error"] == 0
    print(printed.strip())


def test_a_writer_in_place_is_noticed(tmp_path: Path) -> None:
    status, printed, counts = run(2, tmp_path, "in-place")
    assert status == 1, printed
    assert counts["error"] > 0
