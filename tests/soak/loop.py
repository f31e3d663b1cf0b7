# SPDX-License-Identifier: Apache-2.0
"""A training loop with many workers: `python -m soak.loop KILLS SEED DIRECTORY`.

A worker saves, overwrites, merges, prunes and restores, with full disks and forks among it, until
it is killed at a random moment; then everything is looked at, what it left is removed, and the next
worker goes on. What is found must be what the worker had saved last, or what it was saving.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import signal
import struct
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.files import file_size_limit

import ckptfmt
from ckptfmt.cli import main as cli

# What is saved; of each, a shared memory holds which generation was begun and which was done.
THINGS = ("model", "runs", "whole")
COUNTED = ("save", "async", "manager", "merge", "full disk", "fork", "restore")
LIFE = 12  # actions that a worker finishes, on average
MOMENT = 0.01  # seconds of the next action, at most, before it is killed
LEVEL = 1.25  # memory and descriptors at the end, of those after the first quarter


class Board:
    """Numbers that outlive a worker; to write one needs no system call."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, 8 * (2 * len(THINGS) + len(COUNTED)))

    def __getitem__(self, place: int) -> int:
        return int(struct.unpack_from("<q", self._memory, 8 * place)[0])

    def __setitem__(self, place: int, value: int) -> None:
        struct.pack_into("<q", self._memory, 8 * place, value)

    def begun(self, thing: str) -> int:
        return self[2 * THINGS.index(thing)]

    def done(self, thing: str) -> int:
        return self[2 * THINGS.index(thing) + 1]

    def begin(self, thing: str) -> int:
        place = 2 * THINGS.index(thing)
        self[place] += 1
        return self[place]

    def finish(self, thing: str) -> None:
        place = 2 * THINGS.index(thing)
        self[place + 1] = self[place]

    def count(self, what: str) -> None:
        self[2 * len(THINGS) + COUNTED.index(what)] += 1

    def counts(self) -> dict[str, int]:
        return {what: self[2 * len(THINGS) + at] for at, what in enumerate(COUNTED)}


def arrays(generation: int) -> dict[str, Any]:
    chance = np.random.default_rng(generation)
    return {"n": np.array(generation), "x": chance.normal(size=(37, 50)), "same": np.arange(4000)}


def load(prefix: Path) -> int:
    """Load a checkpoint, compare all of it, and return its generation; 0 if there is none."""
    try:
        found = ckptfmt.load(prefix)
    except ckptfmt.CheckpointNotFoundError:
        return 0
    generation = int(found["n"])
    for name, value in arrays(generation).items():
        np.testing.assert_array_equal(found[name], value)
    return generation


class Worker:
    """What runs until it is killed."""

    def __init__(self, root: Path, board: Board, chance: random.Random) -> None:
        self.root, self.board, self.chance = root, board, chance
        self.value = np.zeros(500)
        self.manager = ckptfmt.CheckpointManager(
            ckptfmt.Checkpoint(x=self.value), root / "runs", max_to_keep=2
        )
        self.manager.restore_latest()

    def run(self) -> None:
        actions: list[Callable[[], None]] = [
            self.save,
            self.background,
            self.manage,
            self.merge,
            self.full_disk,
            self.fork,
            self.restore,
        ]
        while True:
            self.chance.choice(actions)()

    def options(self) -> dict[str, Any]:
        kinds: list[dict[str, Any]] = [{}, {"compression": "zstd"}, {"shards": 3}, {"level": "v2"}]
        chosen = self.chance.choice(kinds)
        if not chosen and self.board.done("model"):
            return {"base": self.root / "model"}
        return chosen

    def save(self) -> None:
        generation = self.board.begin("model")
        ckptfmt.save(self.root / "model", arrays(generation), **self.options())
        self.board.finish("model")
        self.board.count("save")

    def background(self) -> None:
        generation = self.board.begin("model")
        ckptfmt.save_async(self.root / "model", arrays(generation)).result()
        self.board.finish("model")
        self.board.count("async")

    def manage(self) -> None:
        self.value[...] = self.board.begin("runs")
        self.manager.save()
        self.board.finish("runs")
        self.board.count("manager")

    def merge(self) -> None:
        generation = self.board.begin("whole")
        values = arrays(generation)
        parts = [{"n": values["n"], "x": values["x"]}, {"same": values["same"]}]
        places = [self.root / "part-0", self.root / "part-1"]
        for place, part in zip(places, parts, strict=True):
            ckptfmt.save(place, part)
        ckptfmt.merge(places, self.root / "whole", inputs="consume")
        self.board.finish("whole")
        self.board.count("merge")

    def full_disk(self) -> None:
        """A save for which there is no room: the old one stays."""
        before = load(self.root / "model")
        with file_size_limit(self.chance.randrange(1, 20000)):
            try:
                ckptfmt.save(self.root / "model", arrays(self.board.begin("model")))
                raise AssertionError("it was saved without room")
            except ckptfmt.StorageError:
                pass
        assert load(self.root / "model") == before
        self.board.count("full disk")

    def fork(self) -> None:
        """A process that is forked during a save reads what is there, and ends."""
        before = self.board.done("model")
        generation = self.board.begin("model")
        future = ckptfmt.save_async(self.root / "model", arrays(generation))
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = 0 if before <= load(self.root / "model") <= generation else 2
            finally:
                os._exit(status)
        future.result()
        self.board.finish("model")
        assert os.waitpid(child, 0)[1] == 0, "the fork read something else"
        self.board.count("fork")

    def restore(self) -> None:
        assert load(self.root / "model") >= self.board.done("model")
        self.board.count("restore")


def look(root: Path, board: Board) -> int:
    """Compare what is there with the board; returns how many restores that were."""
    for name in ("model", "whole"):
        found = load(root / name)
        assert board.done(name) <= found <= board.begun(name), (name, found)
        if found:
            assert ckptfmt.verify(root / name).ok
    value = np.zeros(500)
    manager = ckptfmt.CheckpointManager(ckptfmt.Checkpoint(x=value), root / "runs", max_to_keep=2)
    assert not manager.restore_latest().rejected
    assert (value == value[0]).all()
    assert board.done("runs") <= value[0] <= board.begun("runs"), ("runs", value[0])
    # What was found is what the next worker counts on: a save that was cut off is not begun again.
    for name, found in (("model", load(root / "model")), ("whole", load(root / "whole"))):
        place = 2 * THINGS.index(name)
        board[place + 1] = found
    return 3


def measured() -> tuple[int, int]:
    """Pages of memory and descriptors of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages, len(os.listdir("/proc/self/fd"))


def main(kills: int, seed: str, root: Path) -> None:
    warnings.simplefilter("ignore")
    chance, board, seen = random.Random(seed), Board(), Counter[str]()
    first = (0, 0)
    while seen["kill"] < kills:
        until = sum(board.counts().values()) + round(chance.expovariate(1 / LIFE))
        worker = os.fork()
        if worker == 0:
            status = 1
            try:
                Worker(root, board, random.Random(chance.random())).run()
            except BaseException as error:
                print(f"{type(error).__name__}: {error}", flush=True)
            finally:
                os._exit(status)
        ended = 0
        while not ended and sum(board.counts().values()) < until:
            time.sleep(0.001)
            ended, _ = os.waitpid(worker, os.WNOHANG)
        assert not ended, "the worker ended by itself"
        time.sleep(chance.random() * MOMENT)
        os.kill(worker, signal.SIGKILL)
        _, status = os.waitpid(worker, 0)
        assert os.WIFSIGNALED(status), "the worker ended by itself"
        seen["kill"] += 1
        seen["look"] += look(root, board)
        with contextlib.redirect_stdout(None):
            assert cli(["clean", str(root)]) == 0
        if not first[0] and seen["kill"] > kills / 4:
            first = measured()
    last = measured()
    did = ", ".join(f"{name} {count:,}" for name, count in board.counts().items())
    mib = [pages * mmap.PAGESIZE / 2**20 for pages, _ in (first, last)]
    print(
        f"soak: {did}; {seen['kill']:,} kills, {seen['look']:,} checkpoints "
        f"looked at, 0 differences; {mib[0]:.0f} to {mib[1]:.0f} MiB, "
        f"{first[1]} to {last[1]} descriptors"
    )
    assert last[0] <= LEVEL * first[0] and last[1] <= first[1]
    left = [name for name in os.listdir(root) if "temp" in name]
    assert not left, left


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2], Path(sys.argv[3]))
