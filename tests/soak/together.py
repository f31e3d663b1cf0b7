# SPDX-License-Identifier: Apache-2.0
"""All at once in one directory: `python -m soak.together SECONDS DIRECTORY [in-place]`.

A writer overwrites one checkpoint again and again, beside eight readers and eight verifiers of it;
two managers save to one directory of numbered checkpoints and remove old ones, beside loops of
`restore_latest` and `latest_checkpoint`. Every tensor of a checkpoint carries its version, so that
a mixture of two shows.

With "in-place" the writer copies its files over the old ones, as a plain program would: that must
be noticed.
"""

from __future__ import annotations

import itertools
import mmap
import os
import random
import shutil
import struct
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import ckptfmt

# "replaced": a verification or restore that gives up, as documented, because the checkpoint was
# replaced too often meanwhile. "removed": retention removed the checkpoint that
# latest_checkpoint had just named.
COUNTED = ("save", "merge", "load", "read", "verify", "replaced", "manager", "restore", "latest")
COUNTED += ("removed", "error")
THREADS = 2  # of a process that reads or verifies
KEPT = 3  # checkpoints that a manager retains
DIFFERENCES = (AssertionError, ckptfmt.CkptfmtError, ckptfmt.CkptfmtWarning, OSError)


class Counts:
    """Counters that all processes share: each process has its own row of them."""

    def __init__(self, processes: int) -> None:
        self._size = 8 * len(COUNTED)
        self._memory = mmap.mmap(-1, processes * self._size)
        self._lock = threading.Lock()
        self.row = 0
        self._rows = processes

    def add(self, what: str) -> None:
        at = self.row * self._size + 8 * COUNTED.index(what)
        with self._lock:
            (count,) = struct.unpack_from("<q", self._memory, at)
            struct.pack_into("<q", self._memory, at, count + 1)

    def total(self, what: str) -> int:
        place = 8 * COUNTED.index(what)
        rows = range(self._rows)
        return sum(
            struct.unpack_from("<q", self._memory, row * self._size + place)[0] for row in rows
        )


def tensors(version: int) -> dict[str, Any]:
    return {
        "a": np.full(3000, version),
        "b": np.full((40, 50), version, np.float64),
        "c": np.array(version),
        "same": np.arange(2000),
    }


def version_of(found: dict[str, Any]) -> int:
    """Compare all that was loaded with the one version that it must have."""
    version = int(found["c"])
    for name, value in tensors(version).items():
        assert np.array_equal(found[name], value), f"{name} is not of version {version}"
    return version


# ---- what the processes do -----------------------------------------------------------------------


def write(root: Path, counts: Counts) -> Iterator[None]:
    """Save, in every way there is."""
    model, parts = root / "model", [root / "part-0", root / "part-1"]
    kinds: list[dict[str, Any]] = [
        {},
        {"shards": 3},
        {"compression": "zstd"},
        {"base": model},
        {"level": "v2"},
    ]
    for version in itertools.count(2):
        kind = version % (len(kinds) + 1)
        durability = "full" if version % 10 == 0 else "rename"
        values = tensors(version)
        if kind < len(kinds):
            ckptfmt.save(model, values, durability=durability, **kinds[kind])
            counts.add("save")
        else:
            halves = [{"a": values["a"]}, {name: values[name] for name in ("b", "c", "same")}]
            for place, half in zip(parts, halves, strict=True):
                ckptfmt.save(place, half, durability=durability)
            keeps = random.random() < 0.5
            ckptfmt.merge(
                parts, model, inputs="keep" if keeps else "consume", durability=durability
            )
            counts.add("merge")
        yield


def write_in_place(root: Path, counts: Counts) -> Iterator[None]:
    """The canary."""
    other = root / "aside" / "model"
    for version in itertools.count(2):
        ckptfmt.tf.remove_checkpoint(other)
        ckptfmt.save(other, tensors(version), durability="none")
        for file in other.parent.iterdir():
            shutil.copyfile(file, root / file.name)
        counts.add("save")
        yield


def read(root: Path, counts: Counts) -> Iterator[None]:
    """Load whole versions, never an older one than before."""
    model, newest = root / "model", 0
    mine = tensors(0)
    while True:
        version = version_of(ckptfmt.load(model))
        assert version >= newest, f"version {version} after {newest}"
        newest = version
        counts.add("load")
        yield
        with ckptfmt.open(model) as reader:
            version = int(reader["c"].read())
            first = reader["a"][5:9].tolist()
            yield  # the open reader keeps its version
            found = {name: handle.read() for name, handle in reader.items()}
            assert version_of(found) == version and first == [version] * 4
            if not reader["a"].slices and not reader["a"].compressed:
                assert (reader["a"].map() == version).all()
        counts.add("read")
        yield
        ckptfmt.load_into(model, mine)
        assert version_of(mine) >= newest
        counts.add("load")
        yield


def verify(root: Path, counts: Counts) -> Iterator[None]:
    while True:
        problems = ckptfmt.verify(root / "model").problems
        if problems and problems[0].failure == "GENERATION_GONE":
            counts.add("replaced")
        else:
            assert not problems, problems
            counts.add("verify")
        yield


def manager(root: Path, values: Any) -> Any:
    checkpoint = ckptfmt.Checkpoint(x=values, y=np.arange(7.0))
    return ckptfmt.CheckpointManager(
        checkpoint,
        root / "runs",
        max_to_keep=KEPT,
        options=ckptfmt.tf.CheckpointOptions(durability="rename"),
    )


def manage(root: Path, counts: Counts) -> Iterator[None]:
    """Two managers: one saves even numbers, the other odd ones."""
    values = np.zeros(2000)
    mine = manager(root, values)
    mine.restore_latest()
    number = 0
    while True:
        values += 1
        # The newest of the state file may have a lower number than one that the other removes now.
        number = max(mine.latest_step() or 0, number) + 1
        number += (number + counts.row) % 2
        mine.save(number)
        counts.add("manager")
        yield


def restore(root: Path, counts: Counts) -> Iterator[None]:
    values = np.zeros(2000)
    mine = manager(root, values)
    while True:
        result = mine.restore_latest()
        assert result.path is not None and not result.rejected, result.rejected
        assert values[0] >= 1 and (values == values[0]).all(), "a mixture"
        counts.add("restore")
        yield


def latest(root: Path, counts: Counts) -> Iterator[None]:
    while True:
        prefix = ckptfmt.latest_checkpoint(root / "runs")
        assert prefix is not None, "no checkpoint"
        counts.add("latest")
        try:
            found = ckptfmt.load(prefix)
            (x,) = (value for name, value in found.items() if name.startswith("x/"))
            assert (x == x[0]).all(), "a mixture"
        except (ckptfmt.CheckpointNotFoundError, ckptfmt.errors.GenerationGoneError):
            counts.add("removed")
        yield


# ---- running them --------------------------------------------------------------------------------

Role = Callable[[Path, Counts], Iterator[None]]


def work(role: Role, root: Path, counts: Counts, until: float) -> None:
    """Go on, also after an error, until the time is over."""
    while time.monotonic() < until:
        try:
            for _ in role(root, counts):
                if time.monotonic() >= until:
                    return
        except DIFFERENCES as error:
            counts.add("error")
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{role.__name__}: {type(error).__name__}: {error} ({last.name}:{last.lineno})"
            os.write(1, text[:300].encode() + b"\n")  # in one piece, beside other processes


def child(roles: list[Role], root: Path, counts: Counts, until: float) -> int:
    process = os.fork()
    if process == 0:
        status = 1
        if len(roles) > 1:
            os.nice(5)  # so that the writers come to write
        try:
            threads = [
                threading.Thread(target=work, args=(role, root, counts, until)) for role in roles
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            status = 0
        finally:
            os._exit(status)
    return process


def main(seconds: float, root: Path, writer: Role) -> int:
    warnings.simplefilter("error", ckptfmt.CkptfmtWarning)
    ckptfmt.save(root / "model", tensors(1))
    manager(root, np.ones(2000)).save()
    processes: list[list[Role]] = [
        [writer],
        *[[read] * THREADS] * 4,
        *[[verify] * THREADS] * 4,
        *[[manage]] * 2,
        [restore, restore],
        [latest, latest],
    ]
    counts = Counts(len(processes))
    children = []
    until = time.monotonic() + seconds
    for row, roles in enumerate(processes):
        counts.row = row
        children.append(child(roles, root, counts, until))
    ended = [os.waitpid(process, 0)[1] for process in children]
    did = ", ".join(f"{what} {counts.total(what):,}" for what in COUNTED)
    print(f"together: {seconds:.0f} s: {did}")
    assert not any(ended), ended
    if writer is write_in_place:
        return counts.total("error")
    assert ckptfmt.verify(root / "model").ok
    version_of(ckptfmt.load(root / "model"))
    mine = manager(root, np.zeros(2000))
    assert 0 < len(mine.checkpoints) <= KEPT
    for prefix in mine.checkpoints:
        assert ckptfmt.verify(prefix).ok
    left = [str(path) for path in root.rglob("*") if "temp" in path.name]
    assert not left, left
    return counts.total("error")


if __name__ == "__main__":
    in_place = sys.argv[3:] == ["in-place"]
    sys.exit(main(float(sys.argv[1]), Path(sys.argv[2]), write_in_place if in_place else write) > 0)
