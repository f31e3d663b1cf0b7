# SPDX-License-Identifier: Apache-2.0
"""A checkpoint for the managers of tests: one array, saved by `ckptfmt.save`."""

from __future__ import annotations

import concurrent.futures
import os
from pathlib import Path
from typing import Any

import numpy as np

import ckptfmt
from ckptfmt.manager.manager import CheckpointManager
from ckptfmt.saving.options import CheckpointOptions

COUNTER = "save_counter/.ATTRIBUTES/VARIABLE_VALUE"
VALUE = "v/.ATTRIBUTES/VARIABLE_VALUE"


class Checkpoint:
    """The object that a manager saves: the array `value` and the counter."""

    def __init__(self, value: float = 1.0) -> None:
        self.value = np.array(value)
        self.save_counter = np.array(0, np.int64)
        self.restored: list[str] = []

    def write(self, prefix: str, options: CheckpointOptions | None = None) -> Any:
        options = options or CheckpointOptions()
        tensors = {VALUE: self.value, COUNTER: self.save_counter}
        ckptfmt.save(prefix, tensors, durability=options.durability)
        options.after_write(prefix)
        return prefix

    def restore(self, path: str, options: CheckpointOptions | None = None) -> str:
        found = ckptfmt.load(path)
        self.value[...] = found[VALUE]
        self.save_counter[...] = found[COUNTER]
        self.restored.append(path)
        return f"status of {os.path.basename(path)}"

    def save(self, prefix: Path) -> str:
        """As `tf.train.Checkpoint.save`: with a state file that knows of nothing else."""
        self.save_counter += 1
        path = f"{prefix}-{self.save_counter}"
        self.write(path)
        ckptfmt.tf.update_checkpoint_state(
            prefix.parent, path, durability="none", save_relative_paths=True
        )
        return path


class Background(Checkpoint):
    """A checkpoint that saves on a thread if the options say `enable_async`."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = concurrent.futures.ThreadPoolExecutor(1)

    def write(self, prefix: str, options: CheckpointOptions | None = None) -> Any:
        if options is None or not options.enable_async:
            return super().write(prefix, options)
        copy = Checkpoint(float(self.value))
        copy.save_counter[...] = self.save_counter
        return self.pool.submit(copy.write, prefix, options)


class Uncounted:
    """A checkpoint without a counter, whose `write` ignores callbacks."""

    def write(self, prefix: str, options: CheckpointOptions | None = None) -> str:
        ckptfmt.save(prefix, {"x": [1]}, durability="none")
        return prefix

    def restore(self, path: str, options: CheckpointOptions | None = None) -> None:
        ckptfmt.load(path)


def number_names(paths: list[str]) -> list[str]:
    """Last parts of paths."""
    return [os.path.basename(path) for path in paths]


def there(directory: Path) -> list[str]:
    """The checkpoints with an index in the directory, sorted."""
    return sorted(path.name.removesuffix(".index") for path in directory.glob("*.index"))


def files(directory: Path) -> list[str]:
    """All names in the directory, sorted."""
    return sorted(os.listdir(directory))


def manager_of(path: Path, max_to_keep: int | None = 3, **more: Any) -> CheckpointManager:
    checkpoint = more.pop("checkpoint", None) or Checkpoint()
    more.setdefault("options", ckptfmt.tf.CheckpointOptions(durability="none"))
    return CheckpointManager(checkpoint, path, max_to_keep, **more)
