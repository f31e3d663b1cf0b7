# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager in a directory that others change, in forked children, after failed saves."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.manager import (
    Background,
    Checkpoint,
    Uncounted,
    files,
    manager_of,
    number_names,
    there,
)

import ckptfmt
from ckptfmt._base.background import wait_for_saves
from ckptfmt.errors import (
    BusyError,
    CheckpointNotFoundError,
    CkptfmtWarning,
    InvalidError,
    StorageError,
)
from ckptfmt.files.local_folder import LocalFolder
from ckptfmt.manager import latest
from ckptfmt.manager.manager import CheckpointManager
from ckptfmt.manager.retention import KeepBest
from ckptfmt.saving.options import CheckpointOptions


class Failing(Background):
    """Fails while `fails` is true."""

    fails = True

    def write(self, prefix: str, options: CheckpointOptions | None = None) -> Any:
        if not self.fails:
            return super().write(prefix, options)
        if options is not None and options.enable_async:
            return self.pool.submit(self.fail)
        return self.fail()

    def fail(self) -> str:
        raise StorageError("full")


# ---- saves that fail -----------------------------------------------------------------------------


def test_a_save_that_failed_is_no_step(tmp_path: Path) -> None:
    """It may be tried again at once, regardless of the interval."""
    checkpoint, step = Failing(), np.array(3)
    manager = manager_of(tmp_path, checkpoint=checkpoint, step_counter=step, checkpoint_interval=5)
    for _ in range(2):
        with pytest.raises(StorageError, match="full"):
            manager.save()
    checkpoint.fails = False
    assert manager.save() is not None
    checkpoint.fails = True
    step += 4
    assert manager.save() is None
    step += 1
    with pytest.raises(StorageError, match="full"):
        manager.save()
    checkpoint.fails = False
    assert manager.save() is not None
    assert manager.save() is None


def test_the_manager_does_not_hear_of_an_error_for_others(tmp_path: Path) -> None:
    """A SaveFuture keeps its error for the next save, though the manager looks at it."""
    manager = CheckpointManager(
        ckptfmt.Checkpoint(w=np.zeros(3)),
        tmp_path,
        3,
        step_counter=lambda: 1,
        checkpoint_interval=5,
    )

    def fail() -> None:
        raise StorageError("full")

    manager.save(options=CheckpointOptions(enable_async=True, experimental_write_callbacks=[fail]))
    wait_for_saves()
    with pytest.raises(StorageError, match="full"):
        manager.save()
    assert manager.save() is not None


def fails() -> None:
    raise StorageError("full")


@pytest.mark.parametrize("restore", ["restore_latest", "restore_or_initialize"])
def test_a_failed_background_save_does_not_affect_a_restore(tmp_path: Path, restore: str) -> None:
    value = np.ones(3)
    manager = CheckpointManager(ckptfmt.Checkpoint(w=value), tmp_path, 3)
    path = manager.save()
    failing = CheckpointOptions(enable_async=True, experimental_write_callbacks=[fails])
    manager.checkpoint.write(tmp_path / "elsewhere", failing)
    value[...] = 2
    found = getattr(manager, restore)()
    assert path == (found if isinstance(found, str) else found.path)
    assert value[0] == 1
    with pytest.raises(StorageError, match="full"):
        manager.save()


def test_a_refused_number_is_not_counted(tmp_path: Path) -> None:
    checkpoint = Checkpoint()
    manager = manager_of(tmp_path, checkpoint=checkpoint)
    with pytest.raises(InvalidError, match="checkpoint_number"):
        manager.save("7")
    assert checkpoint.save_counter == 0
    checkpoint.save_counter = 5  # type: ignore[assignment]
    with pytest.raises(InvalidError, match="save_counter must be an array of one"):
        manager.save()


# ---- callbacks that raise ------------------------------------------------------------------------


def refuse() -> None:
    raise StorageError("no")


REFUSED = CheckpointOptions(experimental_write_callbacks=[refuse])


def managed(manager: CheckpointManager) -> list[str]:
    return number_names(manager.checkpoints)


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_checkpoint_whose_callback_raised_is_never_removed(
    tmp_path: Path, asynchronous: bool
) -> None:
    checkpoint = ckptfmt.Checkpoint(w=np.zeros(3)) if asynchronous else Checkpoint()
    manager = manager_of(tmp_path, 1, checkpoint=checkpoint)
    manager.save(1)
    save = manager.save_async if asynchronous else manager.save
    with pytest.raises(StorageError, match="no"):
        save(2, options=REFUSED).result()  # type: ignore[union-attr]
    assert (there(tmp_path), managed(manager)) == (["ckpt-1", "ckpt-2"], ["ckpt-1"])
    manager.save(3)
    assert (there(tmp_path), managed(manager)) == (["ckpt-2", "ckpt-3"], ["ckpt-3"])


def test_what_was_not_saved_is_not_managed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another program's checkpoint is where a save failed before it was in place."""
    checkpoint = Checkpoint()
    checkpoint.write(str(tmp_path / "ckpt-1"))
    manager = manager_of(tmp_path, 1, checkpoint=checkpoint)
    with monkeypatch.context() as patch, pytest.raises(StorageError):
        patch.setattr(checkpoint, "write", lambda *_, **__: refuse())
        manager.save(1)
    manager.save(2)
    manager.save(3)
    assert there(tmp_path) == ["ckpt-1", "ckpt-3"]


# ---- others in the directory ---------------------------------------------------------------------


def test_numbers_that_others_took(tmp_path: Path) -> None:
    """Two that count by themselves never replace what the other one saved, or is writing."""
    managers = [manager_of(tmp_path, 9, checkpoint=Uncounted()) for _ in range(2)]
    saved = number_names([managers[turn % 2].save() for turn in range(4)])
    assert saved == [f"ckpt-{number}" for number in range(1, 5)]
    with ckptfmt.Writer(tmp_path / "ckpt-5", durability="none") as writer:
        writer.add("x", [1])
        assert number_names([managers[0].save()]) == ["ckpt-6"]


class Overtaken(Checkpoint):
    """One of which another manager saves the next, and removes the last, just before a restore."""

    def __init__(self, other: CheckpointManager, times: int) -> None:
        super().__init__()
        self.other, self.times = other, times

    def restore(self, path: str, options: CheckpointOptions | None = None) -> str:
        if self.times > 0:
            self.times -= 1
            self.other.save()
        return super().restore(path, options)


@pytest.mark.parametrize("times", [1, 5])
def test_restoring_while_others_save_and_remove(tmp_path: Path, times: int) -> None:
    """Nothing is said to be damaged that was only removed."""
    other = manager_of(tmp_path, 1)
    other.save()
    checkpoint = Overtaken(other, times)
    manager = manager_of(tmp_path, 1, checkpoint=checkpoint)
    assert manager.restore_or_initialize() == str(tmp_path / f"ckpt-{1 + times}")
    checkpoint.times = times
    found = manager.restore_latest(check_first=False)
    assert (found.path, found.rejected) == (str(tmp_path / f"ckpt-{1 + 2 * times}"), [])
    (tmp_path / f"ckpt-{1 + 2 * times}.index").unlink()
    with (
        pytest.warns(CkptfmtWarning, match="no checkpoint is complete"),
        pytest.raises(CheckpointNotFoundError, match="remove the state file to start again"),
    ):
        manager.restore_or_initialize()


def test_the_newest_while_others_save_and_remove(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = manager_of(tmp_path, 1)
    other.save()
    real, left = latest.why_incomplete, 5

    def look(prefix: str) -> str | None:
        nonlocal left
        if left > 0:
            left -= 1
            other.save()
        return real(prefix)

    monkeypatch.setattr(latest, "why_incomplete", look)
    assert (
        ckptfmt.latest_checkpoint(tmp_path) == other.latest_checkpoint == str(tmp_path / "ckpt-6")
    )


def test_restoring_in_a_directory_that_is_no_more(tmp_path: Path) -> None:
    manager = manager_of(tmp_path / "d")
    manager.save()
    for name in files(tmp_path / "d"):
        (tmp_path / "d" / name).unlink()
    (tmp_path / "d").rmdir()
    assert not manager.restore_latest()
    assert manager.restore_or_initialize() is None
    assert manager.save() == str(tmp_path / "d" / "ckpt-2")
    assert managed(manager) == ["ckpt-2"]


def test_a_backup_that_was_deleted_is_not_looked_for(tmp_path: Path) -> None:
    state = ckptfmt.tf.TrainingState({"w": np.zeros(3)}, tmp_path)
    late = ckptfmt.tf.TrainingState({"w": np.ones(3)}, tmp_path, task_id=1)
    state.back_up(4)
    assert late.restore()
    assert late.maybe_load_initial_epoch_from_ckpt(0, "train") == 5
    (tmp_path / "chief" / "notes").touch()
    state.delete_backup()
    assert not state.restore()
    (tmp_path / "chief" / "notes").unlink()
    (tmp_path / "chief").rmdir()
    assert not late.restore()


# ---- metrics of others ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value"),
    [("ckpt-1", "9" * 400), ("\ud800", "1"), ("a\0b", "1"), ("a" * 300, "1"), ("../x", "1")],
)
def test_hostile_metrics(tmp_path: Path, name: str, value: str) -> None:
    manager_of(tmp_path).save()
    (tmp_path / "checkpoint.ckptfmt").write_text(
        f'{{"ckptfmt_metrics": 1, "checkpoints": {{{json.dumps(name)}: '
        f'{{"metrics": {{"loss": {value}}}, "index": ""}}}}}}'
    )
    if name == "ckpt-1":
        with pytest.warns(CkptfmtWarning, match="no checkpoint that was saved before is removed"):
            manager = manager_of(tmp_path, keep_best=KeepBest("loss", "max"))
    else:
        manager = manager_of(tmp_path, keep_best=KeepBest("loss", "max"))
    assert manager.best_checkpoint is None
    manager.save(metrics={"loss": 2})
    assert manager.best_checkpoint == str(tmp_path / "ckpt-1")


def test_metrics_that_a_function_cannot_do_with(tmp_path: Path) -> None:
    """Removing goes on; what nobody can compare stays as long as it has the extreme of a metric."""
    manager_of(tmp_path, 1).save(metrics={"loss": 1})
    manager = manager_of(
        tmp_path,
        1,
        checkpoint_name="other",
        keep_best=KeepBest(lambda metrics: metrics["accuracy"], "max"),
    )
    with pytest.warns(CkptfmtWarning, match="'ckpt-1' cannot be compared by keep_best: KeyError"):
        manager.save(metrics={"accuracy": 1})
    assert there(tmp_path) == ["ckpt-1", "other-1"]
    strange = manager_of(tmp_path, 1, keep_best=KeepBest(lambda _: "best", "max"))
    with pytest.raises(InvalidError, match="the result of keep_best's function"):
        strange.save(metrics={"accuracy": 1})


# ---- forks ------------------------------------------------------------------------------------


def test_a_forked_child_excludes_its_parent(tmp_path: Path) -> None:
    ready, told = os.pipe()
    go, ended = os.pipe()
    with LocalFolder(str(tmp_path)).opened() as place:
        closed = LocalFolder(str(tmp_path)).opened()
        closed.close()
        with place.lock():
            child = os.fork()
            if not child:
                status = 1
                try:
                    try:
                        with place.lock(0):
                            pass
                    except BusyError:
                        os.write(told, b"b")
                    os.read(go, 1)
                    with place.lock():
                        os.write(told, b"l")
                        os.read(go, 1)
                        status = 0 if closed._fd == -1 else 2
                finally:
                    os._exit(status)
            assert os.read(ready, 1) == b"b"
        os.write(ended, b"x")
        assert os.read(ready, 1) == b"l"
        with pytest.raises(BusyError), place.lock(0):
            pass
        os.write(ended, b"x")
        assert os.waitpid(child, 0)[1] == 0
        with place.lock(0):
            pass
    for fd in (ready, told, go, ended):
        os.close(fd)
