# SPDX-License-Identifier: Apache-2.0
"""A directory, of the file system and of a store, under two managers that take turns, with kills,
lost and damaged files, clocks, `prune` and `clean`. The model is the set of checkpoints that must
be there and sound."""

from __future__ import annotations

import contextlib
import io
import random
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from support.dict_client import DictClient, FileObjects
from support.faults import Fault, under
from support.files import flip
from support.strategies import LONG, SEEDS

import ckptfmt
from ckptfmt import stores
from ckptfmt.cli import main as cli

KILLS = st.one_of(
    st.builds(Fault, st.just("child killed at a call"), st.integers(1, 400)),
    st.builds(Fault, st.just("child killed at a time"), st.integers(0, 3000)),
)
WHICH = st.integers(0, 1)


class Directory(RuleBasedStateMachine):
    """Attributes:
    values: the value of every checkpoint that was saved, by number.
    losses: its metric, by number.
    sure: the numbers of those that must be there and sound.
    others: files of other programs, with their contents.
    pending: background saves: manager, value, metric and future.
    runs: where the files are.
    place: the directory as it is given to ckptfmt: its path or URL.
    """

    in_store = False

    def __init__(self) -> None:
        super().__init__()
        self.scratch = tempfile.TemporaryDirectory(prefix="directory-")
        self.runs = Path(self.scratch.name) / "runs"
        self.runs.mkdir()
        self.place = str(self.runs)
        if self.in_store:
            self.place = "files://here/runs"
            stores._mounted["files://here"] = DictClient(FileObjects(Path(self.scratch.name)))
        self.clock, self.real = 0.0, time.time
        time.time = lambda: self.real() + self.clock
        self.values: dict[int, float] = {}
        self.losses: dict[int, float] = {}
        self.sure: set[int] = set()
        self.others = {"notes.txt": b"mine", "ckpt-x.index": b"mine", "ckpt-99.txt": b"mine"}
        for name, content in self.others.items():
            (self.runs / name).write_bytes(content)
        ckptfmt.save(f"{self.place}/mine-7", {"x": np.arange(3)}, durability="none")
        self.pending: tuple[int, float, float, Any] | None = None

    @initialize(
        seed=SEEDS,
        kept=st.integers(1, 3),
        best=st.integers(0, 2),
        mode=st.sampled_from(["min", "max"]),
        named=st.booleans(),
        steps=st.none() | st.integers(2, 5),
        hours=st.none() | st.floats(0.001, 300),
    )
    def start(
        self, seed: int, kept: int, best: int, mode: Any, named: bool, **options: Any
    ) -> None:
        self.chance, self.kept, self.next = random.Random(seed), kept, 0.0
        self.best, self.sign, self.options = best, -1 if mode == "min" else 1, options
        metric: Any = "loss" if named else lambda metrics: metrics["loss"]
        self.keep_best = ckptfmt.KeepBest(metric, mode, best) if best else None
        self.writer: int | None = None
        self.changed = 0  # indexes, by damage
        self.weights = [np.zeros(4), np.zeros(4)]
        self.managers = [self.manager(which) for which in range(2)]

    def manager(self, which: int) -> ckptfmt.CheckpointManager:
        options = ckptfmt.tf.CheckpointOptions(durability="none")
        checkpoint = ckptfmt.Checkpoint(weights=self.weights[which])
        return ckptfmt.CheckpointManager(
            checkpoint,
            self.place,
            self.kept,
            keep_best=self.keep_best,
            keep_every_n_steps=self.options["steps"],
            keep_checkpoint_every_n_hours=self.options["hours"],
            options=options,
        )

    # ---- what is there

    def number(self, path: str | None) -> int:
        return 0 if path is None else int(path.rpartition("-")[2])

    def indexes(self) -> list[Path]:
        return [path for path in self.runs.glob("ckpt-*.index") if path.stem[5:].isdecimal()]

    def there(self) -> dict[int, bool]:
        """The checkpoints of the managers that have an index, and whether each is sound."""
        return {
            self.number(path.stem): ckptfmt.verify(f"{self.place}/{path.stem}").ok
            for path in self.indexes()
        }

    def saved(self, which: int, path: str | None, value: float, loss: float) -> None:
        """A save has returned: older ones than the newest `kept` that the state names may go."""
        number = self.number(path)
        assert number > max(self.sure, default=0), "an older number"
        self.values[number], self.losses[number] = value, loss
        managed = [self.number(one) for one in self.managers[which].checkpoints]
        # One whose index was changed stays: nothing says how good it is.
        assert managed[-1] == number and len(managed) <= self.kept + self.best + self.changed
        self.sure = self.retained([*self.sure, number], managed[-self.kept :])

    def retained(self, candidates: Any, newest: Any) -> set[int]:
        """Those of the candidates that stay: the newest, the best of all that had an index before,
        and one of so many steps."""
        there = self.before.union(candidates)
        ranked = sorted(there, key=lambda one: self.sign * self.losses[one], reverse=True)
        steps = self.options["steps"]
        stay = {
            *newest,
            *ranked[: self.best],
            *(one for one in there if steps and one % steps == 0),
        }
        return stay & set(candidates)

    def turn(self, which: int) -> None:
        """Another process takes over: it restores first, as a run that goes on does."""
        self.settle()
        self.before = set(self.there())
        if self.writer != which:
            self.managers[which] = self.manager(which)
            self.restored(self.managers[which])
        self.writer = which

    def restored(self, manager: ckptfmt.CheckpointManager) -> int:
        """Restore the newest sound one; return its number, 0 if there is none."""
        try:
            return self.number(manager.restore_latest(check_first=True).path)
        except ckptfmt.CorruptError:
            assert not self.sure, "none can be restored"
            return 0

    def new_value(self, which: int) -> float:
        self.next += 1
        self.weights[which][...] = self.next
        return self.next

    def settle(self) -> None:
        """Wait for the background save."""
        if self.pending is not None:
            which, value, loss, future = self.pending
            self.pending = None
            self.managers[which].sync()
            self.saved(which, future.result(), value, loss)

    # ---- saves

    @rule(which=WHICH)
    def save(self, which: int) -> None:
        self.turn(which)
        value, loss = self.new_value(which), self.chance.random()
        self.saved(which, self.managers[which].save(metrics={"loss": loss}), value, loss)

    @rule(which=WHICH)
    def save_async(self, which: int) -> None:
        self.turn(which)
        value, loss = self.new_value(which), self.chance.random()
        future = self.managers[which].save_async(metrics={"loss": loss})
        self.pending = which, value, loss, future
        self.weights[which][...] = -1

    @rule(which=WHICH, fault=KILLS)
    def killed_save(self, which: int, fault: Fault) -> None:
        """Another process goes on, saves and is killed: the old checkpoints or the new."""
        self.settle()
        before, self.writer = self.there(), None
        self.before = set(before)

        def work() -> None:
            manager = self.manager(which)
            self.restored(manager)
            self.weights[which][...] = value
            manager.save(metrics={"loss": loss})

        self.next += 1
        value, loss = self.next, self.chance.random()
        under(fault, work, DictClient())
        for number in self.there().keys() - before.keys():
            assert number > max(self.sure, default=0)
            self.values[number], self.losses[number] = value, loss
        # The one that the new one pushes out may be gone, if the new one is there.
        if self.there().keys() - before.keys():
            self.before |= self.there().keys()
            newest = sorted(self.sure)[-self.kept + 1 :] if self.kept > 1 else []
            self.sure = self.retained(self.sure, newest)

    @rule(which=WHICH)
    def open_again(self, which: int) -> None:
        """The process starts again."""
        self.writer = None
        self.turn(which)

    # ---- what happens to files

    @precondition(lambda self: self.sure)
    @rule(index=st.booleans(), damage=st.booleans())
    def lose(self, index: bool, damage: bool) -> None:
        self.settle()
        number = self.chance.choice(sorted(self.sure))
        self.sure.discard(number)
        pattern = f"ckpt-{number}.index" if index else f"ckpt-{number}.data-*"
        path = self.chance.choice(sorted(self.runs.glob(pattern)))
        if damage:
            self.changed += index
            flip(path, self.chance.randrange(path.stat().st_size))
        else:
            path.unlink()

    @rule(seconds=st.floats(-1e6, 1e6))
    def turn_the_clock(self, seconds: float) -> None:
        self.clock += seconds

    @rule(keep=st.integers(1, 3))
    def prune(self, keep: int) -> None:
        self.settle()
        self.before = set(self.there())
        # A flipped byte may be one that says nothing, as in the padding of a footer.
        sound = sorted(number for number, is_sound in self.there().items() if is_sound)
        status = self.command("prune", "--keep", str(keep), "-q", self.place)
        assert status in ((0, 1) if (self.runs / "checkpoint").exists() else (2,))
        if status != 2:
            self.before = set(sound)
            self.sure = self.retained(self.sure, sound[-keep:])

    @rule()
    def clean(self) -> None:
        self.settle()
        if self.in_store:  # the clock may be behind the time of an object
            status = self.command("clean", "--older-than", "1e-9", "--remove", self.place)
            assert status in (0, 2 if self.changed else 0), "beside a damaged index data files stay"
        else:
            assert self.command("clean", self.place) == 0
            assert not [path for path in self.runs.iterdir() if "_temp" in path.name]

    def command(self, *words: str) -> int:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            return cli(words)

    # ---- restoring

    @rule(which=WHICH)
    def restore(self, which: int) -> None:
        """The newest sound one, never a damaged one, and at least what must be there."""
        self.settle()
        sound = [number for number, is_sound in self.there().items() if is_sound]
        self.weights[which][...] = -2
        number = self.restored(self.managers[which])
        assert number >= max(self.sure, default=0) and (number in sound or number == 0)
        if number:
            assert (self.weights[which] == self.values[number]).all()
        else:
            assert not self.sure and (self.weights[which] == -2).all()

    # ---- what holds at any time

    @invariant()
    def nothing_is_lost(self) -> None:
        if self.pending is not None:
            return
        for number in self.sure:
            prefix = f"{self.place}/ckpt-{number}"
            found = ckptfmt.load(prefix)["weights/.ATTRIBUTES/VARIABLE_VALUE"]
            assert (found == self.values[number]).all() and ckptfmt.verify(prefix).ok
        for name, content in self.others.items():
            assert (self.runs / name).read_bytes() == content
        assert ckptfmt.load(f"{self.place}/mine-7")["x"].tolist() == [0, 1, 2]

    def teardown(self) -> None:
        try:
            self.settle()
        finally:
            time.time = self.real
            self.scratch.cleanup()


class Quiet(Directory):
    """Warnings about what the rules damage are right."""

    def __init__(self) -> None:
        warnings.simplefilter("ignore", ckptfmt.CkptfmtWarning)
        super().__init__()


class QuietStore(Quiet):
    in_store = True


TestDirectory = pytest.mark.properties(Quiet.TestCase)
TestStore = pytest.mark.properties(QuietStore.TestCase)
TestDirectory.settings = TestStore.settings = settings(
    max_examples=max(5, round(300 * LONG)),
    stateful_step_count=40 if LONG else 20,
    deadline=None,
    database=None,  # the seed repeats a failure
    suppress_health_check=list(HealthCheck),
)
