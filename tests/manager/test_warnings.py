# SPDX-License-Identifier: Apache-2.0
"""One warning for one event: a problem of a directory is reported once by each call."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptfmt
from ckptfmt import Checkpoint, CheckpointManager
from ckptfmt.tf import TrainingState

QUICK = ckptfmt.tf.CheckpointOptions(durability="none")


def manager(directory: Path, **more: Any) -> CheckpointManager:
    checkpoint = Checkpoint(x=np.zeros(4, np.float32))
    return CheckpointManager(
        checkpoint, directory, 3, options=ckptfmt.tf.CheckpointOptions(durability="none"), **more
    )


def state(directory: Path) -> TrainingState:
    return TrainingState({"x": np.zeros(4, np.float32)}, directory.parent, options=QUICK)


def saved(directory: Path) -> None:
    """Save three checkpoints with metrics."""
    one = manager(directory, keep_best=ckptfmt.KeepBest("loss", "min"))
    for loss in (1.0, 2.0, 3.0):
        one.save(metrics={"loss": loss})


# ---- events --------------------------------------------------------------------------------------


def index_gone(directory: Path) -> None:
    (directory / "ckpt-3.index").unlink()


def data_gone(directory: Path) -> None:
    (directory / "ckpt-3.data-00000-of-00001").unlink()


def bytes_damaged(directory: Path) -> None:
    data = directory / "ckpt-3.data-00000-of-00001"
    data.write_bytes(b"?" * data.stat().st_size)


def index_damaged(directory: Path) -> None:
    (directory / "ckpt-3.index").write_bytes(b"?" * 100)


def all_gone(directory: Path) -> None:
    for path in directory.iterdir():
        if path.name != "checkpoint":
            path.unlink()


def state_damaged(directory: Path) -> None:
    (directory / "checkpoint").write_bytes(b"?" * 10)


def state_gone(directory: Path) -> None:
    (directory / "checkpoint").unlink()


def metrics_damaged(directory: Path) -> None:
    (directory / "checkpoint.ckptfmt").write_bytes(b"?" * 10)


def nothing(directory: Path) -> None:
    """No event."""


EVENTS = [
    *(index_gone, data_gone, bytes_damaged, index_damaged),
    *(all_gone, state_damaged, state_gone, metrics_damaged),
]
EVENTS_OF_RESTORES = [index_gone, data_gone, index_damaged, all_gone, state_damaged]

# ---- calls ---------------------------------------------------------------------------------------

CALLS: dict[str, Callable[[Path], object]] = {
    "latest_checkpoint": ckptfmt.latest_checkpoint,
    "checkpoints_iterator": lambda path: next(
        iter(ckptfmt.tf.checkpoints_iterator(path, timeout=0)), None
    ),
    "manager": manager,
    "manager.latest_checkpoint": lambda path: manager(path).latest_checkpoint,
    "manager.checkpoints": lambda path: manager(path).checkpoints,
    "restore_or_initialize": lambda path: manager(path).restore_or_initialize(),
    "restore_latest": lambda path: manager(path).restore_latest(),
    "restore_latest(False)": lambda path: manager(path).restore_latest(check_first=False),
    "save": lambda path: manager(path, keep_best=ckptfmt.KeepBest("loss", "min")).save(
        9, metrics={"loss": 0.0}
    ),
    "TrainingState.restore": lambda path: state(path).restore(),
    "Checkpoint.restore": lambda path: Checkpoint(x=np.zeros(4, np.float32)).restore(path),
}


def caught_by(*calls: Callable[[], object]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for call in calls:
            with contextlib.suppress(ckptfmt.CkptfmtError):
                call()
    return [str(one.message) for one in caught]


@pytest.mark.parametrize("event", [nothing, *EVENTS])
@pytest.mark.parametrize("name", CALLS)
def test_one_warning(name: str, event: Callable[[Path], None], tmp_path: Path) -> None:
    directory = tmp_path / "chief"
    saved(directory)
    event(directory)
    found = caught_by(lambda: CALLS[name](directory))
    is_restore = "restore" in name and "Checkpoint" not in name
    if event is nothing:
        assert found == []
    elif is_restore and event in EVENTS_OF_RESTORES:
        assert len(found) == 1
    else:
        assert len(found) <= 1, "\n".join(found)


@pytest.mark.parametrize("event", EVENTS)
def test_one_manager_warns_once(event: Callable[[Path], None], tmp_path: Path) -> None:
    saved(tmp_path)
    one = manager(tmp_path)
    event(tmp_path)
    found = caught_by(
        one.latest_step, one.restore_latest, one.latest_step, one.restore_or_initialize
    )
    # The damage of bytes is found again by reading them; it is part of each restore's result.
    if event is not bytes_damaged:
        assert len(found) == len(set(found)) <= 1, "\n".join(found)


def test_an_event_that_repeats_is_another_event(tmp_path: Path) -> None:
    saved(tmp_path)
    one, index = manager(tmp_path), tmp_path / "ckpt-3.index"
    content = index.read_bytes()
    calls = [index.unlink, one.latest_step, one.latest_step, lambda: index.write_bytes(content)]
    assert len(caught_by(*calls, one.latest_step, *calls)) == 2


def test_metrics_of_others_that_cannot_be_compared(tmp_path: Path) -> None:
    saved(tmp_path)
    best = ckptfmt.KeepBest(lambda metrics: metrics["accuracy"], "max")
    one = CheckpointManager(
        Checkpoint(x=np.zeros(4)),
        tmp_path,
        9,
        keep_best=best,
        options=ckptfmt.tf.CheckpointOptions(durability="none"),
    )
    save = functools.partial(one.save, metrics={"accuracy": 1})
    every = caught_by(save, save, lambda: one.best_checkpoint)
    found = [text for text in every if "keep_best" in text]
    assert found and len(found) == len(set(found))
    assert all("cannot be compared by keep_best: KeyError" in text for text in found)
