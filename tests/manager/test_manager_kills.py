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
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.child import Forked
from support.manager import Checkpoint, files, there

import ckptfmt
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.manager.manager import CheckpointManager

KILLS, KILLS_SLOW = 8, 500
KEPT = 2
QUICK = ckptfmt.tf.CheckpointOptions(durability="rename")
UNSAFE = ckptfmt.tf.CheckpointOptions(durability="none")

# What the child is doing, in one byte of memory that both processes share; beside it whether it
# saves yet, and the number that was saved last. A write to it needs no system call, and survives
# the kill.
PHASES = ("other", "save", "record", "remove", "sweep")


class Model:
    """What the child saves."""

    def __init__(self, kind: str) -> None:
        self.save_counter, self.value = np.array(0), np.zeros(40000, np.int64)
        self.tensors = {"a": self.value, "b": self.value[::-1], "n": self.save_counter}
        self.kind = kind

    def write(self, prefix: str, options: Any = None) -> str:
        self.value[...] = self.save_counter
        if self.kind == "saver":
            ckptfmt.Saver({None: self.tensors}).save(prefix, options)
        else:
            ckptfmt.save(prefix, self.tensors, durability=options.durability)
        return prefix

    def restore(self, path: str, options: object = None) -> None:
        self.save_counter[...] = ckptfmt.load(path)["n"]


def save_forever(shared: mmap.mmap, directory: Path, kind: str) -> None:
    """What the child does."""

    @contextmanager
    def phase(number: int) -> Iterator[None]:
        before, shared[0] = shared[0], number
        try:
            yield
        finally:
            shared[0] = before

    for number, owner, name in (
        (2, CheckpointManager, "_record"),
        (3, LocalFolder, "remove_all"),
        (4, LocalFolder, "sweep"),
    ):
        setattr(owner, name, phase(number)(getattr(owner, name)))
    manager = CheckpointManager(Model(kind), directory, KEPT, options=QUICK)
    manager.restore_or_initialize()
    shared[1] = 1
    while True:
        with phase(1):
            manager.save()
        shared[8:16] = struct.pack("<q", int(manager.checkpoint.save_counter))


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
    manager = CheckpointManager(reader, directory, KEPT, options=UNSAFE)
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
    directory = tmp_path / "d"
    directory.mkdir()
    sentinel = outside(tmp_path / "outside")
    before = tree(sentinel)
    deaths: Counter[str] = Counter()
    with mmap.mmap(-1, 16) as shared:
        for _ in range(kills):
            with Forked(partial(save_forever, shared, directory, kind)) as child:
                # At any moment, which is read afterwards. Some are killed as they start.
                early = chance.random() < 0.1
                while not early and not shared[1]:
                    ended, _, _ = select.select([child.stdout], [], [], 0.001)
                    assert not ended, "it ended by itself"
                select.select([], [], [], chance.uniform(0, 0.05))
                child.kill()
                assert child.finish() == (-signal.SIGKILL, "")
            deaths[PHASES[shared[0]]] += 1
            shared[0] = shared[1] = 0
            (saved,) = struct.unpack("<q", shared[8:16])
            number = check(directory, saved)
            shared[8:16] = struct.pack("<q", number)
            assert tree(sentinel) == before
    # The next save ends what was begun.
    ending = CheckpointManager(Checkpoint(), directory, KEPT, options=UNSAFE)
    for number in (10**9, 10**9 + 1, 10**9 + 2):
        ending.save(number)
    assert left_over(directory) == []
    return deaths


@pytest.mark.parametrize("kind", ["save", "saver"])
@pytest.mark.parametrize("kills", [KILLS, pytest.param(KILLS_SLOW, marks=pytest.mark.slow)])
def test_kills(tmp_path: Path, seed: int, kind: str, kills: int) -> None:
    deaths = run(tmp_path, kind, kills, seed)
    inside = kills - deaths["other"]
    print(f"{kind}: {inside} of {kills} kills inside save or delete: {dict(deaths)}")
    assert inside >= (kills // 2 if kills == KILLS_SLOW else 1)
