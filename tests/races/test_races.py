# SPDX-License-Identifier: Apache-2.0
"""Processes at once, some of which die or fork, for some seconds each: `make races` for longer."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.preload import environment
from support.process import SANITIZED

SECONDS = float(os.environ.get("CKPTFMT_RACE_SECONDS", "2"))
NUMBERS = re.compile(r"([a-z]+(?: [a-z]+)?) ([0-9,]+)(?=[,;]|$)")


def run(
    race: str, seconds: float, root: Path, *more: str, preload: bool = False
) -> tuple[int, str, dict[str, int]]:
    """Returns the exit status, what was printed, the counts last, and these by their names."""
    path = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [
            *(sys.executable, "-m", f"races.{race}", str(seconds)),
            *(os.environ["CKPTFMT_TEST_SEED"], str(root), *more),
        ],
        env=environment() if preload else {**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=seconds + 120,
        check=False,
    )
    printed = ran.stderr[-3000:] + ran.stdout[-3000:].strip()
    summary = ran.stdout.splitlines()[-1] if ran.stdout else ""
    counts = {name: int(text.replace(",", "")) for name, text in NUMBERS.findall(summary)}
    return ran.returncode, printed, counts


def finished(result: tuple[int, str, dict[str, int]], *needed: str) -> None:
    """Check that a race went well, and that all of this was done in it."""
    status, printed, counts = result
    assert status == 0, printed
    for what in needed:
        assert counts[what] > 0, printed
    print(printed.splitlines()[-1])


def noticed(result: tuple[int, str, dict[str, int]]) -> None:
    status, printed, counts = result
    assert status == 1, printed
    assert counts["mixed"] + counts["error"] > 0, printed


def test_readers_and_verifiers_beside_a_writer(tmp_path: Path) -> None:
    result = run("overwriting", SECONDS, tmp_path)
    finished(result, "save", "merge", "load", "read", "list", "latest", "verify")


def test_a_writer_in_place_is_noticed(tmp_path: Path) -> None:
    noticed(run("overwriting", 1, tmp_path, "in-place"))


def test_managers_and_cleaners_beside_writers(tmp_path: Path) -> None:
    alone = ("kept done", "pruned done", "overwrite", "retained", "prune", "clean")
    finished(run("managing", SECONDS, tmp_path), "shared", "restore", "latest", *alone)


def test_a_greedy_manager_is_noticed(tmp_path: Path) -> None:
    noticed(run("managing", 1, tmp_path, "greedy"))


@pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"),
    reason="NOT RUN: needs a C compiler and Linux",
)
def test_ranks_that_die(tmp_path: Path) -> None:
    finished(run("dying", SECONDS, tmp_path, preload=True), "killed", "failed")


# A child that is forked beside a thread that frees memory waits for ever for the sanitizer's lock.
@pytest.mark.skipif(SANITIZED, reason="GCC's AddressSanitizer keeps its locks over a fork")
def test_forks_beside_first_calls(tmp_path: Path) -> None:
    finished(run("forks", SECONDS, tmp_path), "process", "child")
