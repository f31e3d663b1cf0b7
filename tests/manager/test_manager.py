# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager: the cases of TensorFlow's own tests of its manager, and what is like there."""

from __future__ import annotations

import os
import time
import types
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.manager import (
    Checkpoint,
    Uncounted,
    files,
    manager_of,
    number_names,
    there,
)

import ckptfmt
from ckptfmt.errors import CkptfmtWarning, InvalidError
from ckptfmt.manager.manager import CheckpointManager

HOUR = 3600.0


class Clock:
    """What `time.time` gives in a test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, now: float) -> None:
        self.now = now
        monkeypatch.setattr(time, "time", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch, 3.0)


# ---- TensorFlow's cases --------------------------------------------------------------------------


def test_deletion(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    paths = [manager.save() for _ in range(4)]
    assert paths == [str(tmp_path / f"ckpt-{n}") for n in (1, 2, 3, 4)]
    assert manager.checkpoints == paths[1:]
    assert there(tmp_path) == ["ckpt-2", "ckpt-3", "ckpt-4"]
    assert manager.latest_checkpoint == paths[3] == ckptfmt.latest_checkpoint(tmp_path)
    data = [f"ckpt-{n}.data-00000-of-00001" for n in (2, 3, 4)]
    assert files(tmp_path) == sorted(
        ["checkpoint", *data, "ckpt-2.index", "ckpt-3.index", "ckpt-4.index"]
    )


def test_the_state_survives(tmp_path: Path, clock: Clock) -> None:
    checkpoint = Checkpoint()
    first = manager_of(tmp_path, 2, checkpoint=checkpoint)
    moments = [3.0 * HOUR, 4.0 * HOUR, 5.0 * HOUR, 5.5 * HOUR]
    clock.now = 3.0 * HOUR
    paths = []
    for moment in moments:
        clock.now = moment
        paths.append(first.save(checkpoint_number=None))
    assert first.checkpoints == paths[2:]
    assert there(tmp_path) == ["ckpt-3", "ckpt-4"]
    state = ckptfmt.tf.get_checkpoint_state(tmp_path)
    assert state is not None
    assert state.model_checkpoint_path == paths[3]
    assert state.all_model_checkpoint_paths == tuple(paths[2:])
    assert state.all_model_checkpoint_timestamps == tuple(moments[2:])
    assert state.last_preserved_timestamp == 3.0 - 1.0

    # Now with a permanent one every 1.5 hours: the third was saved hours after 2.0.
    clock.now = 6.0 * HOUR
    second = manager_of(tmp_path, 2, checkpoint=checkpoint, keep_checkpoint_every_n_hours=1.5)
    assert second.checkpoints == paths[2:]
    assert second.latest_checkpoint == paths[3]
    paths.append(second.save())
    assert second.checkpoints == paths[3:]
    assert "ckpt-3" in there(tmp_path)
    state = ckptfmt.tf.get_checkpoint_state(tmp_path)
    assert state is not None
    assert state.last_preserved_timestamp == moments[2]
    # The next is removed, because it is too new. No manager lists permanent ones.
    clock.now = 7.0 * HOUR
    third = manager_of(tmp_path, 1, checkpoint=checkpoint, keep_checkpoint_every_n_hours=1.5)
    assert third.checkpoints == paths[3:]
    paths.append(third.save())
    assert third.checkpoints == paths[5:]
    assert there(tmp_path) == ["ckpt-3", "ckpt-6"]


def test_saves_of_others_between(tmp_path: Path) -> None:
    """`Checkpoint.save` beside a manager: the state file has only that one for a while."""
    checkpoint = Checkpoint()
    manager = manager_of(tmp_path, 2, checkpoint=checkpoint)
    first = [manager.save(), manager.save()]
    other = checkpoint.save(tmp_path / "other")
    state = ckptfmt.tf.get_checkpoint_state(tmp_path)
    assert state is not None
    assert state.all_model_checkpoint_paths == (other,)
    path = manager.save()
    assert manager.checkpoints == [first[1], path]
    assert there(tmp_path) == ["ckpt-2", "ckpt-4", "other-3"]


def test_clock_reset(tmp_path: Path, clock: Clock) -> None:
    checkpoint = Checkpoint()
    clock.now = 10 * HOUR
    first = manager_of(tmp_path, 1, checkpoint=checkpoint, keep_checkpoint_every_n_hours=1)
    paths = []
    for hour in (10, 11, 12):
        clock.now = hour * HOUR
        paths.append(first.save())
    state = ckptfmt.tf.get_checkpoint_state(tmp_path)
    assert state is not None
    assert state.last_preserved_timestamp == 11 * HOUR
    clock.now = 5 * HOUR
    with pytest.warns(CkptfmtWarning, match=r"the clock is 21600\.000000 seconds behind") as caught:
        second = CheckpointManager(checkpoint, tmp_path, 1, keep_checkpoint_every_n_hours=1)
    assert [one.filename for one in caught] == [__file__]
    # What was saved in the future counts as saved now, and is not managed for once.
    assert second.checkpoints == []
    clock.now = 5.5 * HOUR
    paths.append(second.save())
    clock.now = 6.5 * HOUR
    paths.append(second.save())
    assert second.checkpoints == [paths[4]]
    assert there(tmp_path) == ["ckpt-2", "ckpt-3", "ckpt-5"]


def test_custom_numbers(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    manager = manager_of(tmp_path, 2, checkpoint=checkpoint)
    step = np.array(0)
    for number in range(5):
        path = manager.save(checkpoint_number=step)
        assert path == str(tmp_path / f"ckpt-{number}")
        assert checkpoint.save_counter == number + 1
        step += 1
    assert there(tmp_path) == ["ckpt-3", "ckpt-4"]
    # One that is saved again goes to the end of the queue.
    assert manager.save(3) == str(tmp_path / "ckpt-3")
    assert number_names(manager.checkpoints) == ["ckpt-4", "ckpt-3"]
    assert manager.latest_checkpoint == str(tmp_path / "ckpt-3")
    assert number_names([manager.save(np.int32(9)), manager.save(0)]) == ["ckpt-9", "ckpt-0"]
    assert there(tmp_path) == ["ckpt-0", "ckpt-9"]
    assert number_names([manager.save(-5)]) == ["ckpt--5"]


def test_restore_or_initialize(tmp_path: Path) -> None:
    checkpoint, called = Checkpoint(5.0), []
    manager = manager_of(
        tmp_path / "new", 2, checkpoint=checkpoint, init_fn=lambda: called.append(1)
    )
    assert manager.restore_or_initialize() is None
    assert (called, checkpoint.restored) == ([1], [])
    path = manager.save()
    checkpoint.value[...] = 6.0
    assert manager.restore_or_initialize() == path
    assert (called, checkpoint.restored) == ([1], [path])
    assert checkpoint.value == 5.0
    assert manager_of(tmp_path / "other").restore_or_initialize() is None
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("kind", [Path, str, lambda path: str(path).encode()])
def test_directories_of_every_kind(tmp_path: Path, kind: Callable[[Path], Any]) -> None:
    manager = CheckpointManager(Checkpoint(), kind(tmp_path / "a" / "b"), max_to_keep=1)
    assert manager.directory == str(tmp_path / "a" / "b")
    assert manager.save() == str(tmp_path / "a" / "b" / "ckpt-1")
    assert manager.checkpoints == [manager.latest_checkpoint]


def test_relative_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for directory in ("d", "./d/", "", "."):
        manager = CheckpointManager(
            Checkpoint(), directory, 1, options=ckptfmt.tf.CheckpointOptions(durability="none")
        )
        assert manager.save() == os.path.join(directory, "ckpt-1")
        assert manager.latest_checkpoint == os.path.join(directory, "ckpt-1")
        state = Path(directory, "checkpoint").read_text()
        assert state.startswith('model_checkpoint_path: "ckpt-1"\n')
        again = CheckpointManager(
            Checkpoint(), directory, 1, options=ckptfmt.tf.CheckpointOptions(durability="none")
        )
        assert again.checkpoints == manager.checkpoints


@pytest.mark.parametrize("is_async", [False, True])
def test_a_program_that_leaves_its_directory_while_it_saves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """The directory of another run under the same relative name stays as it is."""
    runs = {}
    for run in ("mine", "other"):
        (tmp_path / run).mkdir()
        monkeypatch.chdir(tmp_path / run)
        runs[run] = CheckpointManager(ckptfmt.Checkpoint(x=np.zeros(2)), "run", 2)
        for _ in range(3 if run == "other" else 2):
            runs[run].save()
    other = tmp_path / "other" / "run"
    before = {path.name: path.read_bytes() for path in other.iterdir()}
    monkeypatch.chdir(tmp_path / "mine")
    leave = ckptfmt.tf.CheckpointOptions(
        experimental_write_callbacks=[lambda: os.chdir(tmp_path / "other")]
    )
    if is_async:
        future = runs["mine"].save_async(options=leave)
        assert future is not None
        assert future.result() == os.path.join("run", "ckpt-3")
    else:
        assert runs["mine"].save(options=leave) == os.path.join("run", "ckpt-3")
    assert Path.cwd() == tmp_path / "other"
    assert {path.name: path.read_bytes() for path in other.iterdir()} == before
    again = CheckpointManager(ckptfmt.Checkpoint(x=np.zeros(2)), tmp_path / "mine" / "run", 2)
    assert number_names(again.checkpoints) == ["ckpt-2", "ckpt-3"]
    assert ckptfmt.latest_checkpoint(tmp_path / "mine" / "run") == again.latest_checkpoint


def test_checkpoint_interval(tmp_path: Path) -> None:
    step = np.array(0)
    manager = manager_of(tmp_path, None, step_counter=step, checkpoint_interval=2)
    assert manager.checkpoint_interval == 2
    assert number_names([manager.save()]) == ["ckpt-1"]
    assert manager.save() is None
    step += 1
    assert manager.save() is None
    assert manager.save(check_interval=False) == str(tmp_path / "ckpt-2")
    assert manager.save(check_interval=False) is None
    step += 1
    assert manager.save() is None
    step += 1
    assert number_names([manager.save()]) == ["ckpt-3"]
    assert manager.checkpoint.save_counter == 3


def test_checkpoint_interval_from_a_step(tmp_path: Path) -> None:
    step = [0]
    manager = manager_of(
        tmp_path,
        step_counter=lambda: step[0],
        checkpoint_interval=2,
        last_checkpoint_step=-1,
    )
    assert manager.save() is None
    step[0] = 1
    assert manager.save() is not None
    assert manager.save() is None


def test_checkpoint_interval_and_restoring(tmp_path: Path) -> None:
    step = np.array(0)
    checkpoint = Checkpoint()
    first = manager_of(tmp_path, checkpoint=checkpoint, step_counter=step, checkpoint_interval=2)
    step += 5
    path = first.save()
    second = manager_of(tmp_path, checkpoint=checkpoint, step_counter=step, checkpoint_interval=2)
    assert second.restore_or_initialize() == path
    step += 1
    assert second.save() is None
    step += 1
    assert second.save() is not None
    third = manager_of(tmp_path, checkpoint=checkpoint, step_counter=step, checkpoint_interval=2)
    assert third.restore_latest().path == second.latest_checkpoint
    assert third.save() is None


# ---- arguments -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("max_to_keep", [0, -1, True, "3"]),
        ("checkpoint_name", ["a/b", ""]),
        ("keep_every_n_steps", [0, 1.5]),
        ("options", ["some"]),
        ("keep_checkpoint_every_n_hours", ["1"]),
        ("last_checkpoint_step", ["1"]),
        ("init_fn", [3]),
        ("step_counter", ["3", [1, 2], np.float32(3)]),
        ("keep_best", [3, "loss"]),
    ],
)
def test_what_is_refused(tmp_path: Path, argument: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(InvalidError) as caught:
            CheckpointManager(Checkpoint(), tmp_path, **{"max_to_keep": 3, argument: value})
        assert isinstance(caught.value, ValueError)
        assert caught.value.argument == argument
    assert files(tmp_path) == []


def test_an_interval_is_a_number_and_needs_a_counter(tmp_path: Path) -> None:
    with pytest.raises(InvalidError) as caught:
        manager_of(tmp_path, checkpoint_interval=3)
    assert caught.value.argument == "step_counter"
    with pytest.raises(InvalidError) as caught:
        manager_of(tmp_path, checkpoint_interval=[5], step_counter=1)
    assert caught.value.argument == "checkpoint_interval"


@pytest.mark.parametrize(
    ("given", "hint"),
    [
        (None, ""),
        (3, ""),
        (np.zeros(3), "wrap it"),
        ({"w": np.zeros(3)}, "wrap it, as in ckptfmt.Checkpoint(state=state)"),
        ([1], "wrap it, as in ckptfmt.Checkpoint(state=state)"),
        ("run", "Are the arguments swapped?"),
        (Path("run"), "Are the arguments swapped?"),
        (ckptfmt.Checkpoint, "not the class Checkpoint"),
        (types.SimpleNamespace(read=print), ""),
        (types.SimpleNamespace(write="w", restore=1), ""),
    ],
)
def test_what_cannot_be_managed(tmp_path: Path, given: Any, hint: str) -> None:
    with pytest.raises(InvalidError) as caught:
        CheckpointManager(given, tmp_path, 3)
    assert caught.value.argument == "checkpoint" and hint in caught.value.message
    assert files(tmp_path) == []


def test_one_that_is_only_saved_or_only_restored(tmp_path: Path) -> None:
    whole = Checkpoint()
    saving = manager_of(tmp_path, checkpoint=types.SimpleNamespace(write=whole.write))
    reading = manager_of(tmp_path, checkpoint=types.SimpleNamespace(restore=whole.restore))
    assert saving.save() == reading.restore_latest().path
    for call in (
        *(reading.save, reading.save_async),
        *(saving.restore_latest, saving.restore_or_initialize),
    ):
        with pytest.raises(InvalidError, match=r"checkpoint must be a ckptfmt\."):
            call()
    assert there(tmp_path) == ["ckpt-1"]


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("checkpoint_number", [1.5, "7", [1, 2]]),
        ("options", [{}]),
        ("metrics", [[1], {"a": "1"}, {1: 1}]),
    ],
)
def test_what_save_refuses(tmp_path: Path, argument: str, values: list[Any]) -> None:
    manager = manager_of(tmp_path)
    for value in values:
        with pytest.raises(InvalidError) as caught:
            manager.save(**{argument: value})
        assert caught.value.argument == argument
    assert files(tmp_path) == []


def test_without_a_counter(tmp_path: Path) -> None:
    """The manager counts by itself, from the largest number that there is."""
    manager = manager_of(tmp_path, 2, checkpoint=Uncounted())
    assert number_names([manager.save() for _ in range(3)]) == ["ckpt-1", "ckpt-2", "ckpt-3"]
    assert number_names([manager.save(10), manager.save()]) == ["ckpt-10", "ckpt-11"]
    assert there(tmp_path) == ["ckpt-10", "ckpt-11"]
    ckptfmt.save(tmp_path / "ckpt-20", {"x": [1]})
    again = manager_of(tmp_path, 2, checkpoint=Uncounted())
    assert number_names([again.save()]) == ["ckpt-21"]


def test_attributes(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    manager = manager_of(tmp_path, checkpoint=checkpoint)
    assert manager.checkpoint is checkpoint
    assert manager.checkpoint_interval is None
    assert manager.checkpoints == []
    assert manager.latest_checkpoint is None
    assert manager.best_checkpoint is None
    manager.sync()


@pytest.mark.parametrize("restored", [False, True])
def test_a_run_that_begins_again(tmp_path: Path, restored: bool) -> None:
    """What an earlier run saved goes: that is said before, unless it was restored."""
    earlier = manager_of(tmp_path, 2)
    for _ in range(3):
        earlier.save()
    again, other = manager_of(tmp_path, 2), manager_of(tmp_path, 2, checkpoint_name="other")
    if restored:
        assert again.restore_or_initialize() == again.latest_checkpoint
        again.save()
        assert there(tmp_path) == ["ckpt-3", "ckpt-4"]
    else:
        with pytest.raises(CkptfmtWarning, match="ckpt-2' of an earlier run is removed"):
            again.save(1)
        assert there(tmp_path) == ["ckpt-1", "ckpt-2", "ckpt-3"]
    other.save(1)


def test_what_another_manager_saved_is_replaced(tmp_path: Path) -> None:
    one, other = manager_of(tmp_path, 5), manager_of(tmp_path, 5)
    one.save(3)
    one.save(3)
    with warnings.catch_warnings(), pytest.raises(CkptfmtWarning, match="ckpt-3' is replaced, and"):
        warnings.simplefilter("error")
        other.save(3)
