# SPDX-License-Identifier: Apache-2.0
"""Managers killed with SIGKILL at any moment of saving and removing: the next one finds the last
checkpoint that was saved, or the one that was being saved, complete."""

from __future__ import annotations

import mmap
import os
import random
import select
import signal
import struct
import time
from collections import Counter
from pathlib import Path

import pytest
from support.child import Child
from support.manager import Checkpoint, files, there

import ckptfmt
from ckptfmt.manager.manager import CheckpointManager

KILLS, KILLS_SLOW = 30, 500
KEPT = 2

# What the child is doing, in one byte of a file that both processes have mapped; beside it whether
# it saves yet, and the number that was saved last. A write to the mapping needs no system call, and
# survives the kill.
PHASES = ("other", "save", "record", "remove", "sweep")

PROGRAM = """
import mmap, os, struct, sys
import numpy as np
from ckptfmt.manager import manager as managing
from ckptfmt.manager.directory import CheckpointDirectory
from ckptfmt.saving.options import CheckpointOptions
import ckptfmt

directory, board, kept, kind = sys.argv[1:]
with open(board, "r+b") as file:
    shared = mmap.mmap(file.fileno(), 16)

class phase:
    def __init__(self, number): self.number = number
    def __enter__(self): self.before, shared[0] = shared[0], self.number
    def __exit__(self, *_): shared[0] = self.before

def around(owner, name, number):
    usual = getattr(owner, name)
    def call(*arguments, **more):
        with phase(number):
            return usual(*arguments, **more)
    setattr(owner, name, call)

around(managing.CheckpointManager, "_record", 2)
around(CheckpointDirectory, "remove_all", 3)
around(CheckpointDirectory, "sweep", 4)

class Model:
    def __init__(self):
        self.save_counter, self.value = np.array(0), np.zeros(40000, np.int64)
    def tensors(self):
        return {"a": self.value, "b": self.value[::-1], "n": self.save_counter}
    def write(self, prefix, options=None):
        self.value[...] = self.save_counter
        if kind.startswith("saver"):
            ckptfmt.Saver({None: self.tensors()}).save(prefix, options)
        else:
            ckptfmt.save(prefix, self.tensors(), durability=options.durability)
        return prefix
    def restore(self, path, options=None):
        found = ckptfmt.load(path)
        self.save_counter[...] = found["n"]
        assert (found["a"] == found["n"]).all() and (found["b"] == found["n"]).all()

def work():
    quick = ckptfmt.tf.CheckpointOptions(durability="rename")
    manager = managing.CheckpointManager(Model(), directory, int(kept), options=quick)
    manager.restore_or_initialize()
    shared[1] = 1
    while True:
        with phase(1):
            manager.save()
        shared[8:16] = struct.pack("<q", int(manager.checkpoint.save_counter))

# One process imports everything and makes those that are killed.
for _ in sys.stdin:
    pid = os.fork()
    if pid == 0:
        work()
    print(pid, flush=True)
    os.waitpid(pid, 0)
    print("dead", flush=True)
"""


class Reader:
    """A model that is only restored."""

    def __init__(self) -> None:
        self.number = 0

    def restore(self, path: str, options: object = None) -> None:
        found = ckptfmt.load(path)
        self.number = int(found["n"])
        assert (found["a"] == self.number).all()
        assert (found["b"] == self.number).all()


def tree(path: Path) -> dict[str, tuple[bytes, int]]:
    """Everything in a directory: bytes and time of change by name."""
    return {
        str(one.relative_to(path)): (one.read_bytes(), one.stat().st_mtime_ns)
        for one in sorted(path.rglob("*"))
        if one.is_file()
    }


def outside(path: Path) -> Path:
    """A tree of files that no manager has to do with, named as those that it removes."""
    for name in ("ckpt-1", "ckpt-2", "sub/ckpt-1"):
        ckptfmt.save(path / name, {"x": [1]})
    (path / "ckpt-3.data-00000-of-00001").touch()
    (path / "ckpt-4.index.tempstatea123456789abcdef").touch()
    return path


def left_over(directory: Path) -> list[str]:
    """Files that belong to no checkpoint with an index."""
    whole = there(directory)
    return [
        name
        for name in files(directory)
        if ".tempstate" in name
        or "_temp_" in name
        or (".data-" in name and name.partition(".data-")[0] not in whole)
    ]


def check(directory: Path, saved: int) -> int:
    """What a start after a kill finds: the number that was restored."""
    reader = Reader()
    manager = CheckpointManager(
        reader, directory, KEPT, options=ckptfmt.tf.CheckpointOptions(durability="none")
    )
    restored = manager.restore_or_initialize()
    if restored is None:
        assert saved == 0
        return 0
    assert os.path.basename(restored) == f"ckpt-{reader.number}"
    assert reader.number in (saved, saved + 1), (reader.number, saved)
    for path in manager.checkpoints:
        assert ckptfmt.verify(path).ok, path
    return reader.number


def run(tmp_path: Path, kind: str, kills: int, seed: int) -> Counter[str]:
    """Kills `kills` children; where they were when they died."""
    chance = random.Random(seed)
    directory, board = tmp_path / "d", tmp_path / "board"
    directory.mkdir()
    sentinel = outside(tmp_path / "outside")
    before = tree(sentinel)
    board.write_bytes(bytes(16))
    deaths: Counter[str] = Counter()
    with (
        open(board, "r+b") as file,
        mmap.mmap(file.fileno(), 16) as shared,
        Child(PROGRAM, directory, board, str(KEPT), kind) as nursery,
    ):
        for _ in range(kills):
            nursery.go_on()
            child = int(nursery.line())
            # Any moment will do: which it was is read afterwards. Some are killed as they start.
            early = chance.random() < 0.1
            while not early and not shared[1]:
                ended, _, _ = select.select([nursery.process.stdout], [], [], 0.001)
                assert not ended, "it ended by itself"
            select.select([], [], [], chance.uniform(0, 0.05))
            os.kill(child, signal.SIGKILL)
            assert nursery.line() == "dead"
            deaths[PHASES[shared[0]]] += 1
            shared[0] = shared[1] = 0
            (saved,) = struct.unpack("<q", shared[8:16])
            number = check(directory, saved)
            shared[8:16] = struct.pack("<q", number)
            assert tree(sentinel) == before
    # The next save ends what was begun.
    ending = CheckpointManager(
        Checkpoint(), directory, KEPT, options=ckptfmt.tf.CheckpointOptions(durability="none")
    )
    for number in (10**9, 10**9 + 1, 10**9 + 2):
        ending.save(number)
    assert left_over(directory) == []
    return deaths


@pytest.mark.parametrize("kind", ["save", "saver"])
@pytest.mark.parametrize("kills", [KILLS, pytest.param(KILLS_SLOW, marks=pytest.mark.slow)])
def test_kills(tmp_path: Path, seed: int, kind: str, kills: int) -> None:
    began = time.monotonic()
    deaths = run(tmp_path, kind, kills, seed)
    inside = kills - deaths["other"]
    print(
        f"{kind}: {kills} kills in {time.monotonic() - began:.0f} s, {inside} of them inside "
        f"save or delete: {dict(deaths)}"
    )
    assert 2 * inside >= kills
