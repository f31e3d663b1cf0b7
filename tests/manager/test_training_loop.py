# SPDX-License-Identifier: Apache-2.0
"""`examples/training.py`, killed with SIGKILL again and again: it goes on at the right place, and
the weights are those of a run that was not killed."""

from __future__ import annotations

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "training.py"
EPOCHS, BATCHES, KILLS = 6, 4, 3
STEPS = EPOCHS * BATCHES
# On a busy machine a kill may come so late that there is nothing left to train.
RUNS_MAX = 10 * KILLS


class Worker:
    """One process of the example, read line by line."""

    def __init__(self, directory: Path, rank: int, world_size: int, run_id: str) -> None:
        command = [sys.executable, str(EXAMPLE), str(directory), "--epochs", str(EPOCHS)]
        command += ["--rank", str(rank), "--world-size", str(world_size), "--run-id", run_id]
        pipe = subprocess.PIPE
        # Without a buffer of ours: communicate() does not see what would be in there.
        self.process = subprocess.Popen(command, stdout=pipe, stderr=pipe, bufsize=0)
        self.lines: list[str] = []

    def line(self) -> str:
        """The next line that it prints; "" once it has ended."""
        assert self.process.stdout is not None
        text = self.process.stdout.readline().decode().rstrip("\n")
        self.lines += [text] if text else []
        return text

    def kill(self) -> None:
        self.process.kill()
        out, _ = self.process.communicate(timeout=600)
        self.lines += out.decode().splitlines()

    def finish(self) -> list[str]:
        out, err = self.process.communicate(timeout=600)
        assert (self.process.returncode, err) == (0, b"")
        return [*self.lines, *out.decode().splitlines()]


def start(directory: Path, world_size: int, run_id: str) -> list[Worker]:
    return [Worker(directory, rank, world_size, run_id) for rank in range(world_size)]


def steps(lines: list[str]) -> list[int]:
    """The batches that were trained, counted from the beginning of the training."""
    found = [re.fullmatch(r"epoch (\d+) batch (\d+) loss \S+", line) for line in lines]
    return [int(match[1]) * BATCHES + int(match[2]) for match in found if match is not None]


def begun(line: str, done: int) -> int:
    """The step that a run begins with, by the first line that it prints: behind what was backed up
    last, and that is the step whose line was seen last, or the one that the kill met. Where all
    were trained the backup may be gone."""
    match = re.fullmatch(r"(continues|starts) at epoch (\d+) batch (\d+)", line)
    assert match is not None, line
    begin = int(match[2]) * BATCHES + int(match[3])
    if match[1] == "starts":
        assert (begin, done % STEPS) == (0, 0)
    else:
        assert done > 0 and begin in (done, done + 1)
    return begin


@pytest.mark.parametrize("world_size", [1, 2])
def test_killed_three_times(tmp_path: Path, seed: int, world_size: int) -> None:
    choose = random.Random(f"training {seed} {world_size}")
    whole = [worker.finish() for worker in start(tmp_path / "whole", world_size, "only")]
    assert all(steps(lines) == list(range(STEPS)) for lines in whole)
    assert len({lines[-1] for lines in whole}) == 1

    directory, done, kills = tmp_path / "killed", 0, 0
    for run in range(RUNS_MAX):
        workers = start(directory, world_size, f"run{run}")
        begin = begun(workers[0].line(), done)
        for _ in range(choose.randint(2, 6)):
            workers[0].line()
        victim = choose.choice(workers)
        for worker in dict.fromkeys([victim, *workers]):
            worker.kill()
        trained = steps(workers[0].lines)
        assert trained == list(range(begin, begin + len(trained)))
        done = begin + len(trained)
        kills += done < STEPS
        if kills == KILLS:
            break
    assert kills == KILLS

    last = start(directory, world_size, "last")
    begin = begun(last[0].line(), done)
    ended = [worker.finish() for worker in last]
    assert all(steps(lines) == list(range(begin, STEPS)) for lines in ended)
    assert {lines[-1] for lines in ended} == {whole[0][-1]}
    assert not (directory / "chief").exists()
    assert not list(directory.glob("workertemp*"))
