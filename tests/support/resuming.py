# SPDX-License-Identifier: Apache-2.0
"""Trainings that are killed and go on, beside one that is not: both must end with the same bits."""

from __future__ import annotations

import mmap
import random
import select
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import ckptfmt
from ckptfmt.cli import main as cli
from ckptfmt.manager.manager import CheckpointManager

from .child import Forked

QUICK = ckptfmt.tf.CheckpointOptions(durability="rename")
# Of a training: its steps, the one with the best metric, how many of the newest stay.
BEST, KEPT = 5, 3
# Steps that a child makes before the moment of its end begins, and during that moment, at most; its
# seconds: several saves are that long.
STEPS_MAX, MOMENT = 3, 0.01

# Trains until a step, in steps of one checkpoint each, and sets the byte to each step.
Train = Callable[[Path, int, mmap.mmap], None]


def managed(checkpoint: Any, directory: Path) -> CheckpointManager:
    """The manager of such a training."""
    best = ckptfmt.KeepBest("distance", mode="min")
    return CheckpointManager(checkpoint, directory, KEPT, keep_best=best)


def metrics(step: int) -> dict[str, float]:
    return {"distance": abs(step - BEST)}


def killed_and_resumed(train: Train, folder: Path, kills: int, seed: int) -> Path:
    """Kill a training at drawn moments, let it end, and compare it with another one. Returns its
    directory."""
    chance = random.Random(seed)
    whole, killed = folder / "whole", folder / "killed"
    steps = 2 * STEPS_MAX * kills + 10
    with mmap.mmap(-1, 1) as shared:
        _finish(partial(train, whole, steps, shared))
        shared[0] = 0
        for _ in range(kills):
            target = shared[0] + chance.randint(0, STEPS_MAX)
            until = partial(train, killed, target + STEPS_MAX, shared)
            with Forked(lambda until=until: (until(), signal.pause())) as child:
                while shared[0] < target:
                    ended, _, _ = select.select([child.stdout], [], [], 0.0005)
                    assert not ended, child.line()
                select.select([], [], [], chance.uniform(0, MOMENT))
                child.kill()
                assert child.finish() == (-signal.SIGKILL, "")
        _finish(partial(train, killed, steps, shared))
    ours, theirs = (managed(_Nothing(), one) for one in (killed, whole))
    assert [Path(one).name for one in ours.checkpoints[-KEPT:]] == [
        f"ckpt-{step}" for step in range(steps - KEPT + 1, steps + 1)
    ]
    assert Path(ours.best_checkpoint or "").name == f"ckpt-{BEST}"
    for one, other in (
        (ours.best_checkpoint, theirs.best_checkpoint),
        (ours.latest_checkpoint, theirs.latest_checkpoint),
    ):
        assert one is not None and other is not None
        with ckptfmt.open(one) as reader, ckptfmt.open(other) as wanted:
            assert (reader.digest(), reader.metadata) == (wanted.digest(), wanted.metadata)
    return killed


def _finish(work: Callable[[], None]) -> None:
    with Forked(work) as child:
        status, text = child.finish()
    assert status == 0, text


class _Nothing:
    """For a manager that only looks."""

    def restore(self, path: str) -> None:
        raise AssertionError(path)


def check_commands(directory: Path, capsys: Any) -> None:
    """What `ckptfmt` says of such a directory."""
    newest = ckptfmt.latest_checkpoint(directory)
    assert cli(["latest", str(directory)]) == 0
    assert capsys.readouterr().out.split() == [newest]
    for arguments in (["verify", "-r"], ["clean"], ["report", "-o", f"{directory}.html"]):
        assert cli([*arguments, str(directory)]) == 0, arguments
    assert Path(f"{directory}.html").stat().st_size
    assert cli(["prune", "--keep", "1", str(directory)]) == 0
    assert ckptfmt.latest_checkpoint(directory) == newest
    left = {one.stem for one in directory.glob("*.index")}
    # A kill before the first record leaves the first checkpoint, which no manager removes.
    assert left - {"ckpt-1"} == {Path(str(newest)).name, f"ckpt-{BEST}"}, left
    assert ckptfmt.verify(newest).ok
