# SPDX-License-Identifier: Apache-2.0
"""Processes at once, some of which die or fork, a few rounds of each; `make races` for more."""

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

# What each process does at least so often; kills and forking processes.
ROUNDS = int(os.environ.get("CKPTFMT_RACE_ROUNDS", "3"))
UNTIL_NOTICED = 10_000
NUMBERS = re.compile(r"([a-z]+(?: [a-z]+)?) ([0-9,]+)(?=[,;]|$)")


def run(
    race: str, rounds: int, root: Path, *more: str, preload: bool = False
) -> tuple[int, str, dict[str, int]]:
    """Returns the exit status, what was printed, the counts last, and these by their names."""
    path = os.pathsep.join(filter(None, sys.path))
    ran = subprocess.run(
        [
            *(sys.executable, "-m", f"races.{race}", str(rounds)),
            *(os.environ["CKPTFMT_TEST_SEED"], str(root), *more),
        ],
        env=environment() if preload else {**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    printed = ran.stderr[-3000:] + ran.stdout[-3000:].strip()
    summary = ran.stdout.splitlines()[-1] if ran.stdout else ""
    counts = {name: int(text.replace(",", "")) for name, text in NUMBERS.findall(summary)}
    return ran.returncode, printed, counts


def finished(result: tuple[int, str, dict[str, int]]) -> None:
    """Check that a race went well. It ends when all roles have done their rounds."""
    status, printed, _ = result
    assert status == 0, printed
    print(printed.splitlines()[-1])


def noticed(result: tuple[int, str, dict[str, int]]) -> None:
    status, printed, counts = result
    assert status == 1, printed
    assert counts["mixed"] + counts["error"] > 0, printed


def test_readers_and_verifiers_beside_a_writer(tmp_path: Path) -> None:
    finished(run("overwriting", ROUNDS, tmp_path))


def test_a_writer_in_place_is_noticed(tmp_path: Path) -> None:
    noticed(run("overwriting", UNTIL_NOTICED, tmp_path, "in-place"))


def test_managers_and_cleaners_beside_writers(tmp_path: Path) -> None:
    finished(run("managing", ROUNDS, tmp_path))


def test_a_greedy_manager_is_noticed(tmp_path: Path) -> None:
    noticed(run("managing", UNTIL_NOTICED, tmp_path, "greedy"))


@pytest.mark.skipif(
    shutil.which("cc") is None or not sys.platform.startswith("linux"),
    reason="NOT RUN: needs a C compiler and Linux",
)
def test_ranks_that_die(tmp_path: Path) -> None:
    finished(run("dying", ROUNDS, tmp_path, preload=True))


# A child that is forked beside a thread that frees memory waits for ever for the sanitizer's lock.
@pytest.mark.skipif(SANITIZED, reason="GCC's AddressSanitizer keeps its locks over a fork")
def test_forks_beside_first_calls(tmp_path: Path) -> None:
    finished(run("forks", ROUNDS, tmp_path))
