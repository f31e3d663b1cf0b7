# SPDX-License-Identifier: Apache-2.0
"""TrainingState: what is restored, saves in the background, failures, damage, and workers that a
coordinator joins."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.background import PATIENCE, Gate, waiting_for
from support.manager import files, there
from support.team import all_good, run_team
from support.training import Job, backup, damage, leave_behind, options

import ckptfmt
from ckptfmt._base.background import wait_for_saves
from ckptfmt.bundle import writer
from ckptfmt.errors import CkptfmtWarning, CorruptError, InvalidError, StorageError
from ckptfmt.manager.records import Records

ASYNC = options(enable_async=True)
# What is made where an index is damaged warns of it.
INCOMPLETE = "ignore:.*is not complete"


# ---- saves in the background ---------------------------------------------------------------------


@pytest.mark.parametrize("before", [False, True])
def test_restore_waits_for_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: bool
) -> None:
    """The save removes the backup that was the newest when `restore` was called."""
    if before:
        Job(tmp_path).back_up(1.0, 0)
    gate = Gate(monkeypatch)
    job = Job(tmp_path, options=ASYNC)
    job.state.restore()
    job.back_up(2.0, 5)
    job.weights[...] = 3.0
    with waiting_for(job.state.restore) as outcome:
        gate.open()
    assert outcome == [True]
    assert job.has(2.0)
    assert job.position == (6, 0)


def test_delete_backup_waits_for_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(monkeypatch)
    job = Job(tmp_path, options=ASYNC)
    job.back_up(1.0, 0)
    assert gate.reached.wait(PATIENCE)
    outcome: list[Any] = []
    thread = threading.Thread(target=lambda: outcome.append(job.state.delete_backup()))
    thread.start()
    assert not outcome
    gate.open()
    thread.join(PATIENCE)
    assert outcome == [None]
    assert files(tmp_path) == []


def test_a_failure_in_the_background(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path, options=ASYNC)
    job.back_up(1.0, 0)
    wait_for_saves()
    with monkeypatch.context() as patch:
        patch.setattr(writer, "write_sources", full_disk)
        job.back_up(2.0, 1)
        wait_for_saves()
    assert files(tmp_path / "chief") == backup(1)
    assert job.state.restore()
    assert job.has(1.0)
    assert job.position == (1, 0)
    with pytest.raises(StorageError, match="the disk is full"):
        job.back_up(3.0, 1)
    assert job.position == (1, 0)
    job.state.delete_backup()
    assert files(tmp_path) == []


# ---- failures ------------------------------------------------------------------------------------


def full_disk(*given: Any, **more: Any) -> None:
    raise StorageError("the disk is full", path="x", errno=28)


def interrupted() -> None:
    raise KeyboardInterrupt


def fail_while_writing(job: Job, patch: pytest.MonkeyPatch) -> type[BaseException]:
    patch.setattr(writer, "write_sources", full_disk)
    return StorageError


def fail_after(job: Job, patch: pytest.MonkeyPatch) -> type[BaseException]:
    job.state._options = options(experimental_write_callbacks=[interrupted])
    return KeyboardInterrupt


def fail_to_record(job: Job, patch: pytest.MonkeyPatch) -> type[BaseException]:
    patch.setattr(Records, "write", full_disk)
    return StorageError


def fail_of_the_model(job: Job, patch: pytest.MonkeyPatch) -> type[BaseException]:
    job.state._checkpoint.model["w"] = object()
    return InvalidError


Failing = Callable[[Job, pytest.MonkeyPatch], type[BaseException]]
FAILING: list[Failing] = [
    fail_while_writing,
    fail_after,
    fail_to_record,
    fail_of_the_model,
]


@pytest.mark.parametrize("fail", FAILING)
def test_a_backup_that_fails_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Failing
) -> None:
    job = Job(tmp_path)
    job.back_up(1.0, 3, 2)
    sound = {name: (tmp_path / "chief" / name).read_bytes() for name in backup(1)}
    with monkeypatch.context() as patch, pytest.raises(fail(job, patch)):
        job.back_up(2.0, 4)
    assert job.position == (3, 3)
    assert {name: (tmp_path / "chief" / name).read_bytes() for name in backup(1)} == sound
    again = Job(tmp_path)
    assert again.state.restore()
    assert again.has(1.0)
    assert again.position == (3, 3)
    # The number is that of the failure: what that left is written over.
    again.back_up(3.0, 4)
    assert files(tmp_path / "chief")[0] == "checkpoint"
    assert there(tmp_path / "chief") == ["ckpt-2"]
    assert ckptfmt.verify(tmp_path / "chief" / "ckpt-2").ok


@pytest.mark.parametrize("fail", FAILING)
def test_a_failure_of_another_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fail: Failing
) -> None:
    job = Job(tmp_path, task_id=1)
    job.back_up(1.0, 3)
    with monkeypatch.context() as patch, pytest.raises(fail(job, patch)):
        job.back_up(2.0, 4)
    assert job.position == (4, 0)
    assert files(tmp_path) == []


def test_what_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job = Job(tmp_path)
    job.back_up(1.0, 0)

    def refuse(*paths: Any, **more: Any) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", refuse)
        patch.setattr(os, "unlink", refuse)
        with pytest.raises(StorageError, match="the file cannot be removed: Permission denied"):
            job.state.delete_backup()
    assert files(tmp_path / "chief") == backup(1)
    assert job.state.restore()
    job.state.delete_backup()
    assert files(tmp_path) == []


# ---- restoring -----------------------------------------------------------------------------------


def nothing_there(path: Path) -> None:
    pass


def empty_directory(path: Path) -> None:
    (path / "chief").mkdir()


def files_of_others(path: Path) -> None:
    empty_directory(path)
    (path / "chief" / "other-1.index").touch()
    (path / "chief" / "ckpt-1.data-00000-of-00001").touch()


def a_file(path: Path) -> None:
    (path / "chief").touch()


def workers_only(path: Path) -> None:
    leave_behind(path / "workertemp_0")


@pytest.mark.parametrize(
    "make", [nothing_there, empty_directory, files_of_others, a_file, workers_only]
)
def test_no_backup(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path)
    job = Job(tmp_path, 5.0)
    before = files(tmp_path)
    assert job.state.restore() is False
    assert job.has(5.0)
    assert job.position == (100, 0)
    assert files(tmp_path) == before


@pytest.mark.filterwarnings(INCOMPLETE)
@pytest.mark.parametrize("part", backup(1)[1:])
def test_a_damaged_backup(tmp_path: Path, part: str) -> None:
    Job(tmp_path).back_up(1.0, 4, 2)
    damage(tmp_path / "chief" / part)
    job = Job(tmp_path, 5.0)
    with (
        pytest.warns(CkptfmtWarning, match="^not restored: .*/chief/ckpt-1: "),
        pytest.raises(CorruptError) as caught,
    ):
        job.state.restore()
    assert caught.value.message == "none of the 1 checkpoints can be restored"
    assert caught.value.path == str(tmp_path / "chief")
    assert job.position == (100, 0)
    if part.endswith(".index"):
        assert job.has(5.0)
    # A training that begins anew takes its place.
    job.back_up(7.0, 0)
    assert files(tmp_path / "chief")[-1:] == ["ckpt-1.index"]
    again = Job(tmp_path)
    assert again.state.restore()
    assert again.has(7.0)


@pytest.mark.filterwarnings(INCOMPLETE)
@pytest.mark.parametrize(
    ("part", "warning"),
    [
        ("ckpt-2.data-00000-of-00001", "^not restored: .*/chief/ckpt-2: "),
        ("ckpt-2.index", "/chief/ckpt-2', the newest it names, is not complete"),
    ],
)
def test_an_older_backup_is_a_way_out(tmp_path: Path, part: str, warning: str) -> None:
    job = Job(tmp_path)
    job.back_up(1.0, 0)
    for name in backup(1)[1:]:
        shutil.copy(tmp_path / "chief" / name, tmp_path / name)
    job.back_up(2.0, 1, 3)
    for name in backup(1)[1:]:
        (tmp_path / name).rename(tmp_path / "chief" / name)
    damage(tmp_path / "chief" / part)
    with pytest.warns(CkptfmtWarning, match=warning):
        again = Job(tmp_path)
        assert again.state.restore()
    assert again.has(1.0)
    assert again.position == (1, 0)
    again.back_up(5.0, 1)
    assert ckptfmt.latest_checkpoint(tmp_path / "chief") == str(tmp_path / "chief" / "ckpt-2")
    assert ckptfmt.verify(tmp_path / "chief" / "ckpt-2").ok
    again.state.delete_backup()
    assert files(tmp_path) == []


# ---- coordinators --------------------------------------------------------------------------------

WORLD = 3


def test_all_restore_the_same(tmp_path: Path) -> None:
    def run(coordinator: Any) -> list[Any]:
        seen = []
        for epoch in range(6):
            job = Job(tmp_path, -1.0, coordinator=coordinator)
            seen.append((job.state.restore(), float(job.weights[0]), job.position))
            # The chief removes the backup that the others have just restored.
            assert (job.back_up(float(epoch), epoch) is None) is (coordinator.rank > 0)
            coordinator.barrier("epoch")
        coordinator.barrier("over")
        job.state.delete_backup()
        return seen

    expected = [(False, -1.0, (100, 0)), *((True, float(n), (n + 1, 0)) for n in range(5))]
    assert all_good(run_team(WORLD, run)) == [expected] * WORLD
    assert files(tmp_path) == []


def restored_by(path: Path, sizes: list[int]) -> tuple[list[Any], list[Job]]:
    """What `restore` gave or raised in all workers, whose models have these sizes."""
    jobs: dict[int, Job] = {}

    def run(coordinator: Any) -> bool:
        job = Job(path, 5.0, sizes[coordinator.rank], coordinator=coordinator)
        jobs[coordinator.rank] = job
        return job.state.restore()

    return run_team(len(sizes), run), [jobs[rank] for rank in range(len(sizes))]


@pytest.mark.filterwarnings("ignore:not restored", INCOMPLETE)
def test_a_damaged_backup_is_an_error_in_all(tmp_path: Path) -> None:
    Job(tmp_path).back_up(1.0, 4)
    damage(tmp_path / "chief" / "ckpt-1.index")
    outcomes, jobs = restored_by(tmp_path, [3] * WORLD)
    text = "none of the 1 checkpoints can be restored"
    assert [one.message for one in outcomes] == [text] * WORLD
    assert [type(one) for one in outcomes] == [CorruptError] * WORLD
    assert {one.path for one in outcomes} == {str(tmp_path / "chief")}
    assert all(job.has(5.0) and job.position == (100, 0) for job in jobs)
