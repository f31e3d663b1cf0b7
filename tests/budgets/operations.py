# SPDX-License-Identifier: Apache-2.0
"""`operations.py NAME DIRECTORY`: does one operation between two marks, for a tracer to count.

A mark is a question about a file of that name in no directory. Before them the operation is done
once, so that what is loaded and asked for only once in a process is not counted.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from support.manager import Checkpoint

import ckptfmt
from ckptfmt.manager.manager import CheckpointManager

MIB = 1 << 20
Operation = Callable[[], Any]


def small(count: int, size: int = 256) -> dict[str, Any]:
    return {f"layer_{number:06d}/kernel": np.ones(size, np.uint8) for number in range(count)}


def save_of(
    tensors: Callable[[], dict[str, Any]], durability: str = "none"
) -> Callable[[Path], Operation]:
    """Saves at a prefix of its own each time, as a program does."""

    def prepare(directory: Path) -> Operation:
        made, numbers = tensors(), iter(range(10))
        return lambda: ckptfmt.save(directory / f"ck-{next(numbers)}", made, durability=durability)

    return prepare


def replace(directory: Path) -> Operation:
    tensors = small(1)
    return lambda: ckptfmt.save(directory / "ck", tensors, durability="none")


def open_and_close(directory: Path) -> Operation:
    ckptfmt.save(directory / "ck", small(10), durability="none")
    return lambda: ckptfmt.open(directory / "ck").close()


def open_and_read(directory: Path) -> Operation:
    ckptfmt.save(directory / "ck", small(10), durability="none")

    def operation() -> None:
        with ckptfmt.open(directory / "ck") as reader:
            reader["layer_000003/kernel"].read()

    return operation


def load_of(count: int) -> Callable[[Path], Operation]:
    def prepare(directory: Path) -> Operation:
        ckptfmt.save(directory / "ck", small(count), durability="none")
        return lambda: ckptfmt.load(directory / "ck")

    return prepare


def rows(level: str) -> Callable[[Path], Operation]:
    """Eight rows of a tensor of 16 MiB, of a reader that is open."""

    def prepare(directory: Path) -> Operation:
        value = np.ones((4096, 1024), np.float32)
        ckptfmt.save(directory / "ck", {"x": value}, level=level, durability="none")
        handle = ckptfmt.open(directory / "ck")["x"]
        return lambda: handle[1000:1008]

    return prepare


def merge_of(count: int, inputs: str) -> Callable[[Path], Operation]:
    def prepare(directory: Path) -> Operation:
        for attempt in range(2):
            for number in range(count):
                prefix = directory / f"{attempt}" / f"part-{number:03d}"
                ckptfmt.save(prefix, {f"x{number}": np.ones(4)}, durability="none")
        attempts = iter(range(2))

        def operation() -> None:
            folder = directory / f"{next(attempts)}"
            parts = [folder / f"part-{number:03d}" for number in range(count)]
            ckptfmt.merge(parts, folder / "all", inputs=inputs, durability="none")

        return operation

    return prepare


def manager_save(directory: Path) -> Operation:
    """A save by a manager that then removes its oldest checkpoint."""
    checkpoint = Checkpoint()
    manager = CheckpointManager(
        checkpoint, directory, 3, options=ckptfmt.tf.CheckpointOptions(durability="none")
    )
    for _ in range(4):
        manager.save()
    return manager.save


OPERATIONS: dict[str, Callable[[Path], Operation]] = {
    "save": save_of(lambda: small(1)),
    "save-synced": save_of(lambda: small(1), "full"),
    "save-1000": save_of(lambda: small(1000)),
    "save-64-mib": save_of(lambda: {"x": np.ones(64 * MIB, np.uint8)}),
    "save-100000": save_of(lambda: small(100_000)),
    "replace": replace,
    "open": open_and_close,
    "open-and-read": open_and_read,
    "load-1000": load_of(1000),
    "load-100000": load_of(100_000),
    "rows": rows("v2+"),
    "rows-v2": rows("v2"),
    "merge-20": merge_of(20, "consume"),
    "merge-120": merge_of(120, "consume"),
    "link-20": merge_of(20, "keep"),
    "link-120": merge_of(120, "keep"),
    "manager-save": manager_save,
}


def mark(name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.stat(name)


def main() -> None:
    operation = OPERATIONS[sys.argv[1]](Path(sys.argv[2]))
    operation()
    mark("mark-begin")
    operation()
    mark("mark-end")


if __name__ == "__main__":
    main()
