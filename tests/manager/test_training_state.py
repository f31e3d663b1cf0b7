# SPDX-License-Identifier: Apache-2.0
"""TrainingState: where a training goes on, which files there are meanwhile, and what it takes."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.manager import files, there
from support.training import QUICK, STEPS, Job, backup, leave_behind, options

import ckptfmt
from ckptfmt._base.background import wait_for_saves
from ckptfmt.errors import InvalidError
from ckptfmt.manager.manager import CheckpointManager
from ckptfmt.manager.training_state import TrainingState
from ckptfmt.objects.checkpoint import Checkpoint
from ckptfmt.saving.options import CheckpointOptions

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


# ---- where the training goes on ------------------------------------------------------------------

LAST = (1 << 63) - 1

POSITIONS: list[Any] = [
    # What was backed up, the mode; the epoch to begin with, and the epoch and batch.
    ([], "train", 7, (7, 0)),
    ([(0, None)], "train", 1, (1, 0)),
    ([(4, None)], "train", 5, (5, 0)),
    ([(0, 0)], "train", 0, (0, 1)),
    ([(4, 3)], "train", 4, (4, 4)),
    ([(4, STEPS - 2)], "train", 4, (4, STEPS - 1)),
    ([(4, STEPS - 1)], "train", 4, (5, 0)),
    ([(4, STEPS + 5)], "train", 4, (5, 0)),
    ([(4, 3), (4, None)], "train", 5, (5, 0)),
    ([(4, None), (5, 2)], "train", 5, (5, 3)),
    ([(4, None), (1, None)], "train", 2, (2, 0)),
    ([(np.int32(4), np.array(3))], "train", 4, (4, 4)),
    ([(LAST, None)], "train", LAST + 1, (LAST + 1, 0)),
    ([(LAST, LAST)], "train", LAST, (LAST + 1, 0)),
    ([(4, None)], "test", 7, (7, 0)),
    ([(4, 3)], "predict", 7, (7, 0)),
    ([(4, 3)], "TRAIN", 7, (7, 0)),
    ([(4, 3)], "", 7, (7, 0)),
    ([(4, 3)], None, 7, (7, 0)),
    ([], None, 7, (7, 0)),
]


@pytest.mark.parametrize(("saved", "mode", "epoch", "counters"), POSITIONS)
def test_where_it_goes_on(
    tmp_path: Path, saved: list[Any], mode: str | None, epoch: int, counters: tuple[int, int]
) -> None:
    job = Job(tmp_path)
    for one in saved:
        job.back_up(1.0, *one)
    again = Job(tmp_path)
    assert again.state.restore() is bool(saved)
    for state in (job.state, again.state):
        found = state.maybe_load_initial_epoch_from_ckpt(7, mode)
        assert (found, type(found)) == (epoch, int)
        pair = state.maybe_load_initial_counters_from_ckpt(STEPS, 7, mode)
        assert (pair, [type(one) for one in pair]) == (counters, [int, int])


def test_without_a_restore_nothing_counts(tmp_path: Path) -> None:
    Job(tmp_path).back_up(1.0, 4)
    assert Job(tmp_path).position == (100, 0)


@pytest.mark.parametrize(("epoch", "batch"), [(-1, -1), (-7, 3), (-1, 3), (-(1 << 63), -2)])
def test_a_negative_epoch_is_none(tmp_path: Path, epoch: int, batch: int) -> None:
    """-1 before the first backup; all smaller values mean the same."""
    job = Job(tmp_path, 2.0)
    prefix = job.state.write_checkpoint_manager.save(options=QUICK)
    found = ckptfmt.load(prefix)
    assert (found[f"ckpt_saved_epoch{VALUE}"], found[f"ckpt_saved_batch{VALUE}"]) == (-1, -1)
    job.state._epoch[...], job.state._batch[...] = epoch, batch
    job.state.write_checkpoint_manager.save(options=QUICK)
    again = Job(tmp_path)
    assert again.state.restore()
    assert again.has(2.0)
    assert again.position == (100, 0)
    assert again.state.maybe_load_initial_epoch_from_ckpt(0, "train") == 0


def test_a_negative_batch_is_none(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.state._epoch[...], job.state._batch[...] = 3, -5
    job.state.write_checkpoint_manager.save(options=QUICK)
    assert job.state.restore()
    assert job.position == (4, 0)


def test_what_a_backup_holds(tmp_path: Path) -> None:
    prefix = Job(tmp_path).back_up(2.5, 4, 3)
    assert prefix == str(tmp_path / "chief" / "ckpt-1")
    found = ckptfmt.load(prefix)
    assert sorted(found) == [
        "_CHECKPOINTABLE_OBJECT_GRAPH",
        f"ckpt_saved_batch{VALUE}",
        f"ckpt_saved_epoch{VALUE}",
        f"model/w{VALUE}",
        f"save_counter{VALUE}",
    ]
    for name, value in (("ckpt_saved_epoch", 4), ("ckpt_saved_batch", 3), ("save_counter", 1)):
        array = found[name + VALUE]
        assert (array, array.shape, array.dtype) == (value, (), np.int64)
    assert found[f"model/w{VALUE}"].tolist() == [2.5] * 3


def test_a_backup_of_the_legacy_class(tmp_path: Path) -> None:
    """It has no batch; what was known of one is over."""
    weights = np.full(3, 6.0)
    legacy = Checkpoint(model={"w": weights}, ckpt_saved_epoch=np.array(4, np.int64))
    CheckpointManager(
        legacy, tmp_path / "chief", 1, options=ckptfmt.tf.CheckpointOptions(durability="none")
    ).save(options=QUICK)
    job = Job(tmp_path / "own")
    job.back_up(1.0, 2, 3)
    shutil.rmtree(tmp_path / "own" / "chief")
    (tmp_path / "chief").rename(tmp_path / "own" / "chief")
    assert job.state.restore()
    assert job.has(6.0)
    assert job.position == (5, 0)


# ---- which files there are -----------------------------------------------------------------------


ROLES: list[Any] = [
    ({}, "chief"),
    ({"task_id": 0}, "chief"),
    ({"task_id": np.int64(0)}, "chief"),
    ({"is_chief": True}, "chief"),
    ({"task_id": 3, "is_chief": True}, "chief"),
    ({"task_id": 1}, "workertemp_1"),
    ({"task_id": 12}, "workertemp_12"),
    ({"is_chief": False}, "workertemp_0"),
    ({"task_id": 0, "is_chief": False}, "workertemp_0"),
    ({"task_id": 2, "is_chief": False}, "workertemp_2"),
]


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize(("who", "place"), ROLES)
def test_where_workers_save(
    tmp_path: Path, who: dict[str, Any], place: str, asynchronous: bool
) -> None:
    seen: list[Any] = []

    def look(prefix: str) -> None:
        seen.append((prefix, threading.current_thread() is threading.main_thread()))
        assert ckptfmt.verify(prefix).ok

    how = options(enable_async=asynchronous, experimental_write_callbacks=[look])
    job = Job(tmp_path, options=how, **who)
    reads, writes = job.state.read_checkpoint_manager, job.state.write_checkpoint_manager
    assert (reads.directory, writes.directory) == (str(tmp_path / "chief"), str(tmp_path / place))
    assert (reads is writes) is (place == "chief")
    assert files(tmp_path) == []
    for number in (1, 2):
        saved = job.back_up(1.0, number)
        wait_for_saves()
        prefix = str(tmp_path / place / f"ckpt-{number}")
        assert saved == (prefix if place == "chief" else None)
        assert seen.pop() == (prefix, not (place == "chief" and asynchronous))
        assert files(tmp_path) == (["chief"] if place == "chief" else [])
    job.state.delete_backup()
    assert files(tmp_path) == []
    assert not seen


def test_other_workers_leave_the_chiefs_backup(tmp_path: Path) -> None:
    chief, other = Job(tmp_path), Job(tmp_path, task_id=1)
    chief.back_up(1.0, 0)
    other.back_up(2.0, 0)
    other.state.delete_backup()
    assert files(tmp_path) == ["chief"]
    assert files(tmp_path / "chief") == backup(1)
    again = Job(tmp_path, 5.0, task_id=1)
    assert again.state.restore()
    assert again.has(1.0)


def test_nothing_is_synced_for_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), real(fd))[1])
    full = CheckpointOptions()
    for who in ({"task_id": 1, "options": full}, {"task_id": 1, "options": None}, {}):
        job = Job(tmp_path, **who)
        job.back_up(1.0, 0)
        job.state.delete_backup()
    assert not synced
    Job(tmp_path, options=None).back_up(1.0, 0)
    assert synced


@pytest.mark.parametrize("first", ["they", "we"])
@pytest.mark.parametrize("when", ["back_up", "delete_backup"])
@pytest.mark.parametrize("place", ["workertemp_1", "chief"])
@pytest.mark.filterwarnings("ignore:.*of an earlier run is removed")
def test_what_killed_workers_left_goes(tmp_path: Path, place: str, when: str, first: str) -> None:
    who = {"task_id": 0 if place == "chief" else 1}
    job = Job(tmp_path, **who)
    leave_behind(tmp_path / place)
    if first == "they":
        job = Job(tmp_path, **who)
    if when == "back_up":
        job.back_up(1.0, 0)
    if when == "delete_backup" or place == "chief":
        job.state.delete_backup()
    assert files(tmp_path) == []


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_backup_that_was_killed_before_it_was_recorded(
    tmp_path: Path, asynchronous: bool
) -> None:
    """It is restored, and stays until a later one is recorded."""
    Job(tmp_path).back_up(1.0, 0)
    (tmp_path / "chief" / "checkpoint").unlink()
    again = Job(tmp_path, 5.0, options=options(enable_async=asynchronous))
    assert again.state.restore() and again.has(1.0)
    for epoch in (1, 2):
        again.back_up(1.0 + epoch, epoch)
        wait_for_saves()
    assert files(tmp_path / "chief") == backup(3)


FOREIGN = [
    "mine",
    "ckpt",
    "ckpt-1",
    "ckpt-1.backup",
    "ckpt-01.index",
    "ckpt-+1.index",
    "ckpt-1.5.index",
    "ckpt-x.index",
    "ckpt.index",
    "ckpt.data-00000-of-00001",
    "ckpt-1.index.bak",
    "ckpt-1.data-00000-of-00001x",
    "ckpt-1.data-00000-of-00001.tempstate123",
    "other-1.index",
    "other-1.data-00000-of-00001",
    "xckpt-1.index",
    "CKPT-1.index",
    "checkpoint.bak",
]


@pytest.mark.parametrize("place", ["workertemp_1", "chief"])
def test_what_is_not_ours_stays(tmp_path: Path, place: str) -> None:
    job = Job(tmp_path, task_id=0 if place == "chief" else 1)
    directory = tmp_path / place
    directory.mkdir()
    for name in FOREIGN:
        (directory / name).write_text(name)
    (directory / "ckpt-2.index.d").mkdir()
    stays = sorted([*FOREIGN, "ckpt-2.index.d"])
    for epoch in range(3):
        job.back_up(1.0, epoch)
        kept = backup(epoch + 1) if place == "chief" else []
        assert files(directory) == sorted(stays + kept)
    job.state.delete_backup()
    assert files(directory) == stays
    assert all((directory / name).read_text() == name for name in FOREIGN)
    if place == "chief":
        assert job.state.restore() is False
        job.back_up(2.0, 7)
        assert "ckpt-4" in there(directory)
        assert Job(tmp_path).state.restore()


def test_directories_of_our_names_stay(tmp_path: Path) -> None:
    job = Job(tmp_path)
    job.back_up(1.0, 0)
    (tmp_path / "chief" / "ckpt-5.index").mkdir()
    (tmp_path / "chief" / "ckpt-5.index" / "mine").touch()
    job.state.delete_backup()
    assert files(tmp_path / "chief") == ["ckpt-5.index"]
    assert files(tmp_path / "chief" / "ckpt-5.index") == ["mine"]


# ---- arguments -----------------------------------------------------------------------------------

ONE = ckptfmt.sharded.SingleProcess()
RANKED = "task_id and is_chief must not be given with a coordinator"
LAYOUTS = "layouts must be a tree of Layouts, or a mapping from paths to Layouts, not int"

WRONG: list[Any] = [
    ({"checkpoint_dir": 5}, "a path must be str, bytes or os.PathLike, not int"),
    ({"checkpoint_dir": "a\0b"}, "a path cannot contain a NUL byte"),
    ({"model": None}, "the object 'model' is None, which cannot be saved"),
    ({"coordinator": "x"}, "coordinator must be a Coordinator, not str"),
    ({"coordinator": ONE, "task_id": 0}, RANKED),
    ({"coordinator": ONE, "is_chief": True}, RANKED),
    ({"layouts": {}}, "layouts need a coordinator, which knows the processes"),
    ({"coordinator": ONE, "layouts": 5}, LAYOUTS),
    ({"task_id": "1"}, "task_id must be a whole number, not str"),
    ({"task_id": 1.0}, "task_id must be a whole number, not float"),
    ({"task_id": -1}, "task_id must not be negative, but is -1"),
    ({"is_chief": 1}, "is_chief must be True or False, not int"),
    ({"options": {}}, "options must be a CheckpointOptions, not dict"),
]


@pytest.mark.parametrize(("given", "message"), WRONG)
def test_wrong_arguments(tmp_path: Path, given: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"model": {"w": np.zeros(3)}, "checkpoint_dir": tmp_path, **given}
    with pytest.raises(InvalidError) as caught:
        TrainingState(**arguments)
    assert caught.value.message == message
    assert files(tmp_path) == []


BAD_NUMBERS: list[Any] = [
    (None, "must be a whole number, not NoneType"),
    ("1", "must be a whole number, not str"),
    (1.0, "must be a whole number, not float"),
    (-1, "must not be negative, but is -1"),
    (np.int8(-2), "must not be negative, but is -2"),
    (1 << 63, "must fit an int64, but is 9223372036854775808"),
]
# Calls with something wrong, by the name of what is wrong.
CALLS: dict[str, list[Callable[[TrainingState, Any], Any]]] = {
    "epoch": [lambda state, bad: state.back_up(bad), lambda state, bad: state.back_up(bad, 3)],
    "batch": [lambda state, bad: state.back_up(3, bad)],
    "initial_epoch": [
        lambda state, bad: state.maybe_load_initial_epoch_from_ckpt(bad, "train"),
        lambda state, bad: state.maybe_load_initial_counters_from_ckpt(3, bad, "train"),
    ],
    "steps_per_epoch": [
        lambda state, bad: state.maybe_load_initial_counters_from_ckpt(bad, 0, "train")
    ],
}


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize(("bad", "message"), BAD_NUMBERS)
def test_wrong_numbers(tmp_path: Path, what: str, bad: Any, message: str) -> None:
    job = Job(tmp_path)
    job.back_up(1.0, 4, 2)
    if (what, bad) == ("batch", None):
        return
    for call in CALLS[what]:
        with pytest.raises(InvalidError) as caught:
            call(job.state, bad)
        assert caught.value.message == f"{what} {message}"
    assert job.position == (4, 3)
    assert files(tmp_path / "chief") == backup(1)


@pytest.mark.parametrize("mode", [b"train", 1])
def test_wrong_modes(tmp_path: Path, mode: Any) -> None:
    state = Job(tmp_path).state
    message = f"mode must be a str or None, not {type(mode).__name__}"
    with pytest.raises(InvalidError) as caught:
        state.maybe_load_initial_epoch_from_ckpt(0, mode)
    assert caught.value.message == message
    with pytest.raises(InvalidError) as caught:
        state.maybe_load_initial_counters_from_ckpt(3, 0, mode)
    assert caught.value.message == message
