# SPDX-License-Identifier: Apache-2.0
"""Kills saves of each kind before calls of the operating system, and saves again: see `main`."""

from __future__ import annotations

import ctypes
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.forking import forked, wait_for
from support.preload import serve

import ckptfmt
from ckptfmt import cli
from ckptfmt._base.names import data_name

from .driver import KINDS

ANY, KILL = len(KINDS), -1
ARRAYS = {"x": np.arange(9), "y": np.ones(5)}
SOURCE = "source/model"


def saver(root: Path) -> None:
    ckptfmt.Saver({None: dict(ARRAYS)}).save(root / "model")


def sharded(root: Path) -> None:
    ckptfmt.sharded.save(root / "model", ARRAYS, {}, ckptfmt.sharded.SingleProcess())


def converted(root: Path) -> None:
    out = str(root / "model.npz")
    assert cli.main(["convert", "--quiet", "--overwrite", str(root / SOURCE), out]) == 0


def backed_up(root: Path) -> None:
    """The first backup of a training that is killed again and again."""
    ckptfmt.tf.TrainingState({"w": np.zeros(3)}, root).back_up(0)


# By name, the call and the file that it writes, if that is not a checkpoint.
SAVES: dict[str, tuple[Callable[[Path], object], str]] = {
    "save": (lambda root: ckptfmt.save(root / "model", ARRAYS), ""),
    "shards": (lambda root: ckptfmt.save(root / "model", ARRAYS, shards=3), ""),
    "saver": (saver, ""),
    "sharded": (sharded, ""),
    "backup": (backed_up, ""),
    "npz": (converted, "model.npz"),
    "safetensors": (
        lambda root: ckptfmt.safetensors.save_file(ARRAYS, root / "model.safetensors"),
        "model.safetensors",
    ),
}


def too_many(root: Path, file: str) -> list[str]:
    """The names that a save does not leave that is not killed."""
    place = root / "chief" if (root / "chief").exists() else root
    names = {one.name for one in place.iterdir()} - {"source", "checkpoint"}
    if file:
        return sorted(names ^ {file})
    prefix = max(name.removesuffix(".index") for name in names if name.endswith(".index"))
    count = ckptfmt.open(place / prefix).header.num_shards
    files = {data_name(prefix, shard, count) for shard in range(count)}
    return sorted(names ^ files ^ {f"{prefix}.index"})


def kill(at: int, root: Path, name: str, over: bool) -> tuple[bool, list[str]]:
    """Whether the save made so many calls, and the names that the next one leaves too many."""
    call, file = SAVES[name]
    library = ctypes.CDLL(None)
    root.mkdir()
    ckptfmt.save(root / SOURCE, ARRAYS, durability="none")
    if over:
        call(root)

    def work() -> None:
        library.fault_arm(ANY, at, 1, KILL, 0)
        call(root)
        library.fault_disarm()

    status = wait_for(forked(work))
    assert status in (0, -signal.SIGKILL), status
    call(root)
    left = too_many(root, file)
    shutil.rmtree(root)
    return status != 0, left


def main(scratch: str, step: str) -> None:
    """Of all calls one in `step` is taken. The file `printed` gets what went wrong, and a last line
    with the count."""
    root, wrong, killed = Path(scratch) / "root", list[str](), 0
    for name in SAVES:
        kill(1 << 20, root, name, False)  # what is imported late is imported now
        for over in (False, True):
            at, hit = 1, True
            while hit:
                hit, left = kill(at, root, name, over)
                if left:
                    wrong.append(f"{name}, over={over}, killed before call {at}: {left}")
                killed += hit
                at += int(step)
    wrong.append(f"faults: {killed:,} kills of saves")
    Path(scratch, "printed").write_text("\n".join(wrong))


if __name__ == "__main__":
    serve(main)
