# SPDX-License-Identifier: Apache-2.0
"""A worker of a training, for the tests of TrainingState."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt.manager.training_state import TrainingState
from ckptfmt.saving.options import CheckpointOptions
from support.files import flip

from .manager import files, there

QUICK = CheckpointOptions(durability="none")
STEPS = 10


class Job:
    """A worker of a training: a model of one array, and its state."""

    def __init__(self, path: Path, value: float = 0.0, size: int = 3, **more: Any) -> None:
        self.weights: NDArray[Any] = np.full(size, value)
        more.setdefault("options", QUICK)
        self.state = TrainingState({"w": self.weights}, path, **more)

    def back_up(self, value: float, epoch: int, batch: int | None = None) -> Any:
        self.weights[...] = value
        return self.state.back_up(epoch, batch)

    @property
    def position(self) -> tuple[int, int]:
        """Where it goes on; (100, 0) without a saved position."""
        return self.state.maybe_load_initial_counters_from_ckpt(STEPS, 100, "train")

    def has(self, value: float) -> bool:
        return bool((self.weights == value).all())


def backup(number: int) -> list[str]:
    """The files of a manager's directory with one checkpoint."""
    return ["checkpoint", f"ckpt-{number}.data-00000-of-00001", f"ckpt-{number}.index"]


def damage(path: Path) -> None:
    flip(path, path.stat().st_size // 2)


def options(**more: Any) -> CheckpointOptions:
    return CheckpointOptions(durability="none", **more)


def leave_behind(path: Path) -> None:
    """What killed workers may leave."""
    other = Job(path.parent / "elsewhere")
    for epoch in range(8):
        other.back_up(1.0, epoch)
    other.state.write_checkpoint_manager.save(options=QUICK, metrics={"loss": 1.0})
    (path.parent / "elsewhere" / "chief").rename(path)
    (path.parent / "elsewhere").rmdir()
    assert files(path)[:2] == ["checkpoint", "checkpoint.ckptfmt"]
    assert there(path) == ["ckpt-9"]
    for name in (
        "ckpt-3.data-00000-of-00001",
        "ckpt-4.data-00001-of-00002",
        "ckpt-5.merge-intent",
        "ckpt-6.index",
        "ckpt-7.index.tempstatea0123456789abcde",
        "ckpt-8.data-00000-of-00001.tempstatef0123456789abcde",
        "checkpoint.tempstateb0123456789abcde",
    ):
        (path / name).touch()
    (path / "ckpt-1_temp_0123456789abcdef").mkdir()
