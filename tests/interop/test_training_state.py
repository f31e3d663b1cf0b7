# SPDX-License-Identifier: Apache-2.0
"""The legacy Keras class that keeps the state of a training, and TrainingState: each goes on from
what the other backed up, in the same directories. The model may be on a mesh of many processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.manager import files
from support.team import all_good, run_team

import ckptfmt
from ckptfmt.errors import InvalidError, MatchError
from ckptfmt.manager.training_state import TrainingState
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.saving.options import CheckpointOptions

from .workers import Worker

VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture(scope="module")
def theirs() -> Iterator[Worker]:
    worker = Worker("tf_training_state.py")
    yield worker
    worker.close()


class Ours:
    """A model as theirs, and its state."""

    def __init__(self, path: Path, level: str = "v2+", **more: Any) -> None:
        self.weights, self.steps = np.zeros(3, np.float32), np.array(0, np.int64)
        options = CheckpointOptions(durability="none", level=level)
        model = {"w": self.weights, "layers": [self.steps]}
        self.state = TrainingState(model, path, options=options, **more)

    def back_up(self, value: float, steps: int, epoch: int, batch: int | None = None) -> Any:
        self.weights[...], self.steps[...] = value, steps
        return self.state.back_up(epoch, batch)

    @property
    def values(self) -> tuple[list[float], int]:
        return self.weights.tolist(), int(self.steps)

    @property
    def epoch(self) -> int:
        return self.state.maybe_load_initial_epoch_from_ckpt(100, "train")


def backup(number: int) -> list[str]:
    return ["checkpoint", f"ckpt-{number}.data-00000-of-00001", f"ckpt-{number}.index"]


def test_ours_goes_on_from_theirs(tmp_path: Path, theirs: Worker) -> None:
    theirs("make", directory=str(tmp_path))
    for epoch in range(4):
        theirs("back_up", value=2.0 * epoch, steps=epoch, epoch=epoch)
    assert files(tmp_path / "chief") == backup(4)
    ours = Ours(tmp_path)
    assert ours.state.restore() is True
    assert ours.values == ([6.0] * 3, 3)
    assert ours.epoch == 4
    assert ours.state.maybe_load_initial_epoch_from_ckpt(100, "test") == 100
    assert ours.state.maybe_load_initial_counters_from_ckpt(10, 100, "train") == (4, 0)
    assert ours.back_up(7.0, 4, 4) == str(tmp_path / "chief" / "ckpt-5")
    assert files(tmp_path / "chief") == backup(5)
    ours.state.delete_backup()
    assert files(tmp_path) == []


@pytest.mark.parametrize("level", ["v2", "v2+"])
def test_theirs_goes_on_from_ours(tmp_path: Path, theirs: Worker, level: str) -> None:
    ours = Ours(tmp_path, level)
    for epoch in range(4):
        ours.back_up(2.0 * epoch, epoch, epoch)
    theirs("make", directory=str(tmp_path))
    answer = theirs("restore")
    assert (answer["w"], answer["steps"]) == ([6.0] * 3, 3)
    assert (answer["epoch"], answer["test"]) == (4, 100)
    theirs("back_up", value=7.0, steps=4, epoch=4)
    assert files(tmp_path / "chief") == backup(5)
    theirs("delete_backup")
    assert files(tmp_path) == []


def test_back_and_forth(tmp_path: Path, theirs: Worker) -> None:
    for number in range(1, 9):
        ours = Ours(tmp_path)
        theirs("make", directory=str(tmp_path))
        expected = ([float(number - 1)] * 3, number - 1)
        assert ours.state.restore() is (number > 1)
        answer = theirs("restore")
        assert ours.values == expected == (answer["w"], answer["steps"])
        assert ours.epoch == answer["epoch"] == (number + 9 if number > 1 else 100)
        if number % 2:
            ours.back_up(float(number), number, number + 9)
        else:
            theirs("back_up", value=float(number), steps=number, epoch=number + 9)
        assert files(tmp_path) == ["chief"]
        assert files(tmp_path / "chief") == backup(number)
        assert ckptfmt.verify(tmp_path / "chief" / f"ckpt-{number}").ok


def test_theirs_knows_of_no_batches(tmp_path: Path, theirs: Worker) -> None:
    """The position within an epoch is left alone; to it the epoch is over."""
    ours = Ours(tmp_path)
    ours.back_up(1.0, 1, 6, batch=2)
    theirs("make", directory=str(tmp_path))
    answer = theirs("restore")
    assert (answer["w"], answer["epoch"]) == ([1.0] * 3, 7)
    again = Ours(tmp_path)
    assert again.state.restore()
    assert again.epoch == 6


def test_the_same_keys(tmp_path: Path, theirs: Worker) -> None:
    theirs("make", directory=str(tmp_path / "theirs"))
    theirs("back_up", value=1.0, steps=2, epoch=3)
    Ours(tmp_path / "ours").back_up(1.0, 2, 3)
    found = [ckptfmt.load(tmp_path / who / "chief" / "ckpt-1") for who in ("theirs", "ours")]
    batch = found[1].pop(f"ckpt_saved_batch{VALUE}")
    assert (batch, batch.dtype) == (-1, np.int64)
    assert list(found[0]) == list(found[1])
    for name, array in found[0].items():
        if name != "_CHECKPOINTABLE_OBJECT_GRAPH":
            same = found[1][name]
            assert (array.dtype, array.shape, array.tolist()) == (
                same.dtype,
                same.shape,
                same.tolist(),
            )


def test_other_workers_use_the_same_directories(tmp_path: Path, theirs: Worker) -> None:
    theirs("make", directory=str(tmp_path))
    theirs("back_up", value=1.0, steps=2, epoch=3)
    answer = theirs("make", directory=str(tmp_path), task=2)
    ours = Ours(tmp_path, task_id=2)
    assert answer["writes_to"] == ours.state.write_checkpoint_manager.directory
    for number in range(3):
        answer = theirs("restore")
        assert ours.state.restore() is True
        assert ours.values == (answer["w"], answer["steps"]) == ([1.0] * 3, 2)
        theirs("back_up", value=9.0, steps=9, epoch=number)
        assert ours.back_up(9.0, 9, number) is None
        assert files(tmp_path) == ["chief"]
        assert files(tmp_path / "chief") == backup(1)
    theirs("delete_backup")
    ours.state.delete_backup()
    assert files(tmp_path / "chief") == backup(1)


# ---- a model on a mesh ---------------------------------------------------------------------------

KERNEL, BIAS = np.arange(96.0).reshape(8, 12), np.arange(12.0)
ROWS, COLUMNS = ["x", None], [None, "x"]


@pytest.fixture(scope="module")
def on_mesh() -> Iterator[Worker]:
    worker = Worker("tf_dtensor.py")
    yield worker
    worker.close()


class Blocks:
    """The blocks of one process of a model as theirs on a mesh, and its state."""

    def __init__(self, path: Path, member: Any, specs: list[str | None], factor: int) -> None:
        mesh = Mesh({"x": member.world_size})
        self.layouts = {"kernel": Layout(specs, mesh), "bias": Layout([None], mesh)}
        devices = mesh.local_devices(member.rank, member.world_size)
        self.parts = {
            name: {device: whole[layout.slice_of(whole.shape, device).slices] for device in devices}
            for name, whole, layout in zip(
                self.layouts, (KERNEL, BIAS), self.layouts.values(), strict=True
            )
        }
        self.model = {
            name: {device: part * factor for device, part in parts.items()}
            for name, parts in self.parts.items()
        }
        self.state = TrainingState(
            self.model,
            path,
            coordinator=member,
            layouts=self.layouts,
            options=CheckpointOptions(durability="none"),
        )

    def check(self, factor: int) -> None:
        for name, parts in self.parts.items():
            for device, part in parts.items():
                np.testing.assert_array_equal(self.model[name][device], part * factor)


@pytest.mark.parametrize("theirs_specs", [ROWS, COLUMNS])
@pytest.mark.parametrize(("processes", "specs"), [(4, ROWS), (3, COLUMNS), (2, ROWS), (1, ROWS)])
def test_on_a_mesh_back_and_forth(
    tmp_path: Path, on_mesh: Worker, theirs_specs: Any, processes: int, specs: Any
) -> None:
    on_mesh("make_state", directory=str(tmp_path), specs=theirs_specs, factor=3)
    on_mesh("back_up", epoch=4)

    def go_on(member: Any) -> None:
        ours = Blocks(tmp_path, member, specs, -1)
        assert ours.state.restore() is True
        ours.check(3)
        assert ours.state.maybe_load_initial_epoch_from_ckpt(100, "train") == 5
        ours = Blocks(tmp_path, member, specs, 5)
        ours.state.write_checkpoint_manager.checkpoint.save_counter[...] = 1
        ours.state.back_up(7)

    all_good(run_team(processes, go_on))
    on_mesh("make_state", directory=str(tmp_path), specs=theirs_specs, factor=0)
    answer = on_mesh("restore_state")
    np.testing.assert_array_equal(answer["kernel"], KERNEL * 5)
    np.testing.assert_array_equal(answer["bias"], BIAS * 5)
    assert answer["epoch"] == 8
    on_mesh("back_up", epoch=9)
    assert ckptfmt.latest_checkpoint(tmp_path / "chief") == str(tmp_path / "chief" / "ckpt-3")


def test_on_a_mesh_the_forgotten_layout_is_an_error(tmp_path: Path, on_mesh: Worker) -> None:
    on_mesh("make_state", directory=str(tmp_path), specs=ROWS, factor=3)
    on_mesh("back_up", epoch=4)

    def restore(member: Any) -> None:
        (device, *_) = Mesh({"x": member.world_size}).local_devices(member.rank, member.world_size)
        model = {"kernel": {device: np.zeros((4, 12))}, "bias": np.zeros(12)}
        state = TrainingState(model, tmp_path, coordinator=member)
        with pytest.raises(InvalidError, match=r"'model/kernel'.*layouts="):
            state.restore()
        assert not model["bias"].any()

    all_good(run_team(2, restore))
    all_good(run_team(1, restore))
    model = {"kernel": {"/job:mesh/task:0/device:CPU:0": np.zeros((8, 12))}, "bias": np.zeros(12)}
    with pytest.raises(MatchError, match="it has no value for 'model/kernel//job:mesh"):
        TrainingState(model, tmp_path).restore()
