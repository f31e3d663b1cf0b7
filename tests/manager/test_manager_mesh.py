# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager of many processes with one checkpoint: process 0 records, removes and chooses,
and all return the same."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.files import flip
from support.team import all_good, run_team

import ckptfmt
from ckptfmt.errors import CheckpointNotFoundError, CorruptError, InvalidError, StorageError
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded.coordinator import SingleProcess

ROWS = Layout(["x"], Mesh({"x": 2}))


def manager_of(member: Any, directory: Path, value: float, **options: Any) -> Any:
    devices = ROWS.mesh.local_devices(member.rank, member.world_size)
    arrays = {device: np.full(2, value) for device in devices}
    checkpoint = ckptfmt.Checkpoint(coordinator=member, layouts={"w": ROWS}, w=arrays)
    return ckptfmt.CheckpointManager(checkpoint, directory, **{"max_to_keep": 2, **options})


def values(manager: Any) -> set[float]:
    return {float(value) for array in manager.checkpoint.w.values() for value in array}


def fill(manager: Any, value: float) -> None:
    for array in manager.checkpoint.w.values():
        array[:] = value


def saved(directory: Path) -> None:
    def work(member: Any) -> None:
        manager = manager_of(member, directory, 0)
        for number in (1, 2, 3):
            fill(manager, number)
            assert manager.save() == str(directory / f"ckpt-{number}")
            assert manager.latest_checkpoint == str(directory / f"ckpt-{number}")
        assert manager.checkpoints == [str(directory / f"ckpt-{number}") for number in (2, 3)]

    all_good(run_team(2, work))


def test_saves_are_recorded_once_and_old_ones_removed(tmp_path: Path) -> None:
    saved(tmp_path)
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {
        "checkpoint",
        "ckpt-2",
        "ckpt-3",
    }
    state = ckptfmt.tf.get_checkpoint_state(tmp_path)
    assert list(state.all_model_checkpoint_paths) == [str(tmp_path / f"ckpt-{n}") for n in (2, 3)]


def test_metrics_decide_in_process_0(tmp_path: Path) -> None:
    def work(member: Any) -> None:
        best = ckptfmt.KeepBest("loss", mode="min")
        manager = manager_of(member, tmp_path, 0, max_to_keep=1, keep_best=best)
        for loss in (1.0, 2.0, 3.0):
            manager.save(metrics={"loss": loss})
        assert manager.best_checkpoint == str(tmp_path / "ckpt-1")
        assert manager.all_steps() == [1, 3]

    all_good(run_team(2, work))


def test_all_restore_what_process_0_chooses(tmp_path: Path) -> None:
    saved(tmp_path)

    def work(member: Any) -> None:
        manager = manager_of(member, tmp_path, 0)
        assert manager.restore_or_initialize() == str(tmp_path / "ckpt-3")
        assert values(manager) == {3}
        fill(manager, 0)
        assert manager.restore_latest().path == str(tmp_path / "ckpt-3")
        assert values(manager) == {3}
        assert manager.save() == str(tmp_path / "ckpt-4")

    all_good(run_team(2, work))


@pytest.mark.parametrize("first", [True, False])
def test_all_reject_a_checkpoint_of_which_one_process_reads_a_damaged_part(
    tmp_path: Path, first: bool
) -> None:
    saved(tmp_path)
    with ckptfmt.open(tmp_path / "ckpt-3") as reader:
        damaged = reader["w/.ATTRIBUTES/VARIABLE_VALUE"].slices[1]
        count = reader.header.num_shards
    data = ckptfmt.sharded_filename(str(tmp_path / "ckpt-3.data"), damaged.shard, count)
    flip(Path(data), damaged.offset)

    # A context that catches warnings is one for all threads.
    outcomes = []
    with pytest.warns(ckptfmt.CkptfmtWarning, match="not restored: .*ckpt-3"):

        def work(member: Any) -> None:
            manager = manager_of(member, tmp_path, 0)
            found = manager.restore_latest(check_first=first)
            outcomes.append((found, values(manager)))

        all_good(run_team(2, work))
    for found, restored in outcomes:
        assert found.path == str(tmp_path / "ckpt-2")
        assert [one.path for one in found.rejected] == [str(tmp_path / "ckpt-3")]
        assert isinstance(found.rejected[0].error, CorruptError)
        assert restored == {2}


def test_nothing_to_restore(tmp_path: Path) -> None:
    called = []

    def work(member: Any) -> None:
        manager = manager_of(member, tmp_path, 0, init_fn=lambda: called.append(member.rank))
        assert manager.restore_or_initialize() is None
        assert not manager.restore_latest()

    all_good(run_team(2, work))
    assert sorted(called) == [0, 1]
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "gone-1"\n')
    with pytest.warns(ckptfmt.CkptfmtWarning, match="no checkpoint is complete"):
        outcomes = run_team(2, work)
    for outcome in outcomes:
        with pytest.raises(CheckpointNotFoundError, match="the state file names 'gone-1'"):
            raise outcome


def refused(outcomes: list[Any], kind: type[BaseException], message: str) -> None:
    for outcome in outcomes:
        with pytest.raises(kind, match=message):
            raise outcome


def test_arguments_that_are_wrong_in_one_process_end_a_save_in_all(tmp_path: Path) -> None:
    managers: dict[int, Any] = {}

    def work(member: Any) -> None:
        manager = managers[member.rank] = manager_of(member, tmp_path, 0)
        manager.save(metrics={"loss": "high" if member.rank else 1.0})

    refused(run_team(2, work), InvalidError, "the metric 'loss' must be a number")
    assert [int(manager.checkpoint.save_counter) for manager in managers.values()] == [0, 0]


def test_processes_of_which_only_one_has_a_checkpoint_due(tmp_path: Path) -> None:
    def work(member: Any) -> None:
        options = {"checkpoint_interval": 2, "last_checkpoint_step": 2}
        manager_of(member, tmp_path, 0, step_counter=5 - 2 * member.rank, **options).save()

    message = r"would save different checkpoints: ckpt-1 \(process 0\); none \(process 1\)"
    refused(run_team(2, work), InvalidError, message)


@pytest.mark.parametrize("error", [RuntimeError("mine"), FileNotFoundError(2, "mine")])
@pytest.mark.parametrize("method", ["restore_or_initialize", "restore_latest"])
def test_an_object_that_fails_in_one_process_ends_a_restore_in_all(
    tmp_path: Path, error: Exception, method: str
) -> None:
    class Bad:
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def serialize_to_tensors(self) -> dict[str, Any]:
            return {"x": np.zeros(2)}

        def restore_from_tensors(self, _: Any) -> None:
            if self.rank:
                raise error

    def work(member: Any) -> None:
        manager = manager_of(member, tmp_path, 0)
        manager.checkpoint.bad = Bad(member.rank)
        manager.save()
        getattr(manager, method)()

    outcomes = run_team(2, work)
    assert outcomes[1] is error
    refused(outcomes[:1], StorageError, "process 1 of 2 failed: .*mine")


def test_a_restore_waits_for_the_background_save(tmp_path: Path) -> None:
    with SingleProcess() as alone:
        manager = manager_of(alone, tmp_path, 1)
        begun, go = threading.Event(), threading.Event()

        def hold() -> None:
            begun.set()
            assert go.wait(600)

        used = []
        gather = alone.gather

        def counted(data: bytes, root: int = 0) -> Any:
            used.append(threading.current_thread() is threading.main_thread() and not go.is_set())
            return gather(data, root)

        alone.gather = counted  # type: ignore[method-assign]
        options = ckptfmt.tf.CheckpointOptions(experimental_write_callbacks=[hold])
        manager.save_async(options=options)
        assert begun.wait(600)
        used.clear()
        threading.Timer(0.2, go.set).start()
        assert manager.restore_or_initialize() == str(tmp_path / "ckpt-1")
        assert used
        assert not any(used)


def test_a_save_raises_what_failed_in_the_background_not_what_follows_from_it(
    tmp_path: Path,
) -> None:
    class Lost(SingleProcess):
        lost = False

        def gather(self, data: bytes, root: int = 0) -> list[bytes] | None:
            if self.lost:
                raise InvalidError("coordinator has failed")
            if threading.current_thread() is not threading.main_thread():
                self.lost = True
                raise StorageError("the network is gone")
            return super().gather(data, root)

    with Lost() as alone:
        manager = manager_of(alone, tmp_path, 1)
        manager.save_async()
        with pytest.raises(StorageError):
            manager.save()
        with pytest.raises(InvalidError):
            manager.save()
