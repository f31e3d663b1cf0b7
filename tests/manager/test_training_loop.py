# SPDX-License-Identifier: Apache-2.0
"""`examples/training.py`, killed with SIGKILL again and again: it goes on at the right place, and
the weights are those of a run that was not killed."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.child import Forked

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import training

EPOCHS, BATCHES, KILLS = 5, 4, 3
STEPS = EPOCHS * BATCHES


class Worker(Forked):
    """One process of the example, which trains one batch for each line that it is given."""

    def __init__(self, directory: Path, rank: int, world_size: int, run_id: str) -> None:
        def train() -> None:
            training.time = SimpleNamespace(sleep=lambda _: sys.stdin.readline())
            given = ["--epochs", EPOCHS, "--rank", rank, "--world-size", world_size]
            sys.argv = ["", str(directory), *map(str, given), "--run-id", run_id]
            training.main()

        super().__init__(train)


def start(directory: Path, world_size: int, run_id: str) -> list[Worker]:
    return [Worker(directory, rank, world_size, run_id) for rank in range(world_size)]


def finish(workers: list[Worker]) -> list[list[str]]:
    """What each prints that trains to the end."""
    for worker in workers:
        worker.go_on(STEPS)
    ended = [worker.finish() for worker in workers]
    assert [status for status, _ in ended] == [0] * len(workers)
    return [out.splitlines() for _, out in ended]


def steps(lines: list[str]) -> list[int]:
    """The batches that were trained, counted from the beginning of the training."""
    found = [re.fullmatch(r"epoch (\d+) batch (\d+) loss \S+", line) for line in lines]
    return [int(match[1]) * BATCHES + int(match[2]) for match in found if match is not None]


def begun(line: str, done: int) -> int:
    """The step that a run begins with, by the first line that it prints: behind what was backed up
    last, and that is the step whose line was seen last, or the one that the kill met."""
    match = re.fullmatch(r"(continues|starts) at epoch (\d+) batch (\d+)", line)
    assert match is not None, line
    begin = int(match[2]) * BATCHES + int(match[3])
    assert begin in (done, done + 1) and (match[1] == "continues" or begin == 0)
    return begin


@pytest.mark.parametrize("world_size", [1, 2])
def test_killed_three_times(tmp_path: Path, seed: int, world_size: int) -> None:
    choose = random.Random(f"training {seed} {world_size}")
    whole = finish(start(tmp_path / "whole", world_size, "only"))
    assert all(steps(lines) == list(range(STEPS)) for lines in whole)
    assert len({lines[-1] for lines in whole}) == 1

    directory, done = tmp_path / "killed", 0
    for run in range(KILLS):
        workers = start(directory, world_size, f"run{run}")
        begin, batches = begun(workers[0].line(), done), choose.randint(2, 6)
        for worker in workers:
            worker.go_on(batches)
        lines = [workers[0].line() for _ in range(batches - 1)]
        assert len(steps(lines)) == len(lines), lines
        # The last batch is being trained or backed up.
        victim = choose.choice(workers)
        for worker in dict.fromkeys([victim, *workers]):
            os.kill(worker.pid, signal.SIGKILL)
        rest = [(worker is victim, *worker.finish()) for worker in workers]
        for first, status, out in rest:
            assert status == -signal.SIGKILL or (not first and "PEERS_MISSING" in out), out
        lines += rest[0][2].splitlines()
        trained = steps(lines)
        assert trained == list(range(begin, begin + len(trained)))
        done = begin + len(trained)

    last = start(directory, world_size, "last")
    begin = begun(last[0].line(), done)
    ended = finish(last)
    assert all(steps(lines) == list(range(begin, STEPS)) for lines in ended)
    assert {lines[-1] for lines in ended} == {whole[0][-1]}
    assert not (directory / "chief").exists()
    assert not list(directory.glob("workertemp*"))
