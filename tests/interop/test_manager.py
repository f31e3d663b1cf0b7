# SPDX-License-Identifier: Apache-2.0
"""Managers of either kind in one directory, and the same decisions by the same clock."""

from __future__ import annotations

import random
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.manager import COUNTER, VALUE, Checkpoint, files, number_names, there

import ckptfmt
from ckptfmt.manager.manager import CheckpointManager
from ckptfmt.saving.options import CheckpointOptions

from .workers import Worker

GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
HOUR = 3600.0


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Worker]:
    worker = Worker("tf_manager.py")
    worker("manager", now=1.0, directory=str(tmp_path_factory.mktemp("graph")), max_to_keep=1)
    worker("save", now=2.0, value=1.0)
    yield worker
    worker.close()


class Ours(Checkpoint):
    """A checkpoint with the object graph that TensorFlow asks for."""

    def __init__(self, theirs: Worker) -> None:
        super().__init__(0.0)
        if not hasattr(theirs, "graph"):
            found = theirs("restore", now=3.0)["latest"]
            theirs.graph = ckptfmt.load(found)[GRAPH]  # type: ignore[attr-defined]
        self.graph = theirs.graph  # type: ignore[attr-defined]

    def write(self, prefix: str, options: CheckpointOptions | None = None) -> Any:
        options = options or CheckpointOptions()
        tensors = {VALUE: self.value, COUNTER: self.save_counter, GRAPH: self.graph}
        ckptfmt.save(prefix, tensors, durability="none")
        options.after_write(prefix)
        return prefix


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e6
        monkeypatch.setattr(time, "time", lambda: self.now)

    def later(self, seconds: float) -> float:
        self.now += seconds
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def same_state(directory: Path, answer: dict[str, Any]) -> None:
    """Both read the same in the state file."""
    state = ckptfmt.tf.get_checkpoint_state(directory)
    assert state is not None
    assert answer["state"] == [
        state.model_checkpoint_path,
        list(state.all_model_checkpoint_paths),
        list(state.all_model_checkpoint_timestamps),
        state.last_preserved_timestamp,
    ]


@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_one_directory_back_and_forth(
    tmp_path: Path, theirs: Worker, clock: Clock, first: str
) -> None:
    checkpoint = Ours(theirs)
    theirs(
        "manager", now=clock.later(1), directory=str(tmp_path / "none"), max_to_keep=3, fresh=True
    )
    count = 0
    for turn in range(6):
        if (turn % 2 == 0) == (first == "theirs"):
            answer = theirs(
                "manager", now=clock.later(60), directory=str(tmp_path), max_to_keep=3, fresh=True
            )
            expected = answer["checkpoints"]
            if count:
                answer = theirs("restore", now=clock.now)
                assert (answer["value"], answer["counter"]) == (10.0 * count, count)
            for _ in range(2):
                count += 1
                answer = theirs("save", now=clock.later(60), value=10.0 * count)
            managed, latest = answer["checkpoints"], answer["latest"]
        else:
            checkpoint = Ours(theirs)
            clock.later(60)
            manager = CheckpointManager(
                checkpoint, tmp_path, 3, options=ckptfmt.tf.CheckpointOptions(durability="none")
            )
            expected = manager.checkpoints
            if count:
                assert manager.restore_latest().path == manager.latest_checkpoint
                assert (checkpoint.value, checkpoint.save_counter) == (10.0 * count, count)
            for _ in range(2):
                count += 1
                checkpoint.value[...] = 10.0 * count
                clock.later(60)
                manager.save()
            managed, latest = manager.checkpoints, manager.latest_checkpoint
            answer = theirs("manager", now=clock.now, directory=str(tmp_path), max_to_keep=3)
        newest = [f"ckpt-{n}" for n in range(max(1, count - 2), count + 1)]
        assert number_names(expected) == [f"ckpt-{n}" for n in range(max(1, count - 4), count - 1)]
        assert number_names(managed) == newest
        assert latest == str(tmp_path / f"ckpt-{count}") == ckptfmt.latest_checkpoint(tmp_path)
        assert there(tmp_path) == sorted(newest)
        assert {name.partition(".data-")[0] for name in files(tmp_path) if ".data-" in name} == set(
            newest
        )
        same_state(tmp_path, answer)
        for name in newest:
            assert ckptfmt.verify(tmp_path / name).ok


class Pair:
    """The same done to a manager of each kind, each in its directory, by one clock."""

    def __init__(self, path: Path, theirs: Worker, clock: Clock, chance: random.Random) -> None:
        self.theirs, self.clock, self.chance = theirs, clock, chance
        self.there, self.here = path / "theirs", path / "ours"
        for directory in (self.there, self.here):
            directory.mkdir(parents=True)
        self.checkpoint = Ours(theirs)
        self.restart(fresh=True)

    def restart(self, *, fresh: bool = False) -> None:
        arguments = {
            "max_to_keep": self.chance.choice([1, 2, 3, 5, None]),
            "keep_checkpoint_every_n_hours": self.chance.choice([None, None, 0.5, 1, 2.25]),
            "checkpoint_name": self.chance.choice(["ckpt", "ckpt", "model"]),
        }
        self.answer = self.theirs(
            "manager", now=self.clock.now, directory=str(self.there), fresh=fresh, **arguments
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the clock
            self.manager = CheckpointManager(
                self.checkpoint,
                self.here,
                options=ckptfmt.tf.CheckpointOptions(durability="none"),
                **arguments,
            )

    def save(self) -> None:
        number = self.chance.choice([None, None, None, self.chance.randrange(4)])
        self.answer = self.theirs("save", now=self.clock.now, value=1.0, number=number)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of a run that begins again
            self.manager.save(number)

    def foreign(self) -> None:
        name = self.chance.choice(["ckpt", "other"])
        self.answer = self.theirs("foreign", now=self.clock.now, name=name)
        self.checkpoint.save(self.here / name)

    def step(self) -> str:
        self.clock.later(self.chance.choice([1, 600, HOUR, 1.5 * HOUR, 3 * HOUR]))
        if self.chance.random() < 0.05:
            self.clock.later(-self.chance.choice([10, 5 * HOUR]))
        kind = self.chance.choices(["save", "restart", "foreign"], [8, 2, 1])[0]
        getattr(self, kind)()
        return kind

    def compare(self) -> None:
        assert self.manager.checkpoints == [
            path.replace(str(self.there), str(self.here)) for path in self.answer["checkpoints"]
        ]
        latest = self.answer["latest"]
        assert self.manager.latest_checkpoint == (
            latest and latest.replace(str(self.there), str(self.here))
        )
        assert there(self.here) == there(self.there)
        state = self.there / "checkpoint"
        if state.exists():
            assert (self.here / "checkpoint").read_bytes() == state.read_bytes()


def test_the_same_decisions(tmp_path: Path, theirs: Worker, clock: Clock, seed: int) -> None:
    """Random schedules of saves, restarts with other settings, saves without a manager, and a clock
    that goes back now and then: the state files are equal byte for byte after every step."""
    chance = random.Random(seed)
    steps = 0
    for schedule in range(20):
        pair = Pair(tmp_path / str(schedule), theirs, clock, chance)
        done = []
        for _ in range(25):
            done.append(pair.step())
            try:
                pair.compare()
            except AssertionError as error:
                error.add_note(f"schedule {schedule}: {done}")
                raise
            steps += 1
    print(f"{steps} steps of 20 schedules")
