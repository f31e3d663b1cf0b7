# SPDX-License-Identifier: Apache-2.0
"""TrainingState of a model that is divided over processes: a backup has all blocks, and is restored
on other numbers of processes. A backup of other objects is an error."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.forking import forked, wait_for
from support.job import PipeCoordinator
from support.manager import files
from support.team import all_good, run_team
from support.training import QUICK, backup, options

import ckptfmt
from ckptfmt._base.background import wait_for_saves
from ckptfmt.errors import InvalidError, MatchError
from ckptfmt.saving.mesh import Layout, Mesh

TABLE, BIAS = np.arange(77.0).reshape(7, 11), np.arange(5, dtype=np.int32)
SPECS: dict[str, Any] = {"rows": ["x", None], "columns": [None, "x"], "every": [None, None]}
VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"


class Rank:
    """A process of a training, and its blocks of the model times `factor`."""

    def __init__(self, path: Path, member: Any, factor: int, **more: Any) -> None:
        self.member = member
        self.mesh = Mesh({"x": member.world_size})
        self.layouts = {f"net/{name}": Layout(spec, self.mesh) for name, spec in SPECS.items()}
        self.model: Any = {"net": {name: self.blocks(name, factor) for name in SPECS}}
        self.model["bias"], self.model["steps"] = BIAS * factor, factor
        self.state = ckptfmt.tf.TrainingState(
            self.model,
            path,
            coordinator=member,
            **{"layouts": self.layouts, "options": QUICK, **more},
        )

    def blocks(self, name: str, factor: int) -> dict[str, Any]:
        layout = self.layouts[f"net/{name}"]
        return {
            device: TABLE[layout.slice_of(TABLE.shape, device).slices] * factor
            for device in self.mesh.local_devices(self.member.rank, self.member.world_size)
        }

    def check(self, factor: int) -> None:
        for name in SPECS:
            for device, block in self.blocks(name, factor).items():
                np.testing.assert_array_equal(self.model["net"][name][device], block)
        np.testing.assert_array_equal(self.model["bias"], BIAS * factor)
        assert self.model["steps"] == factor

    @property
    def epoch(self) -> int:
        return self.state.maybe_load_initial_epoch_from_ckpt(100, "train")


def next_epoch(where: Path, member: Any, epoch: int, **more: Any) -> None:
    """Restore what the job before this one backed up, and back up the next epoch."""
    job = Rank(where, member, -1, **more)
    assert job.state.restore() is (epoch > 0)
    job.check(epoch or -1)
    assert job.epoch == (epoch or 100)
    job = Rank(where, member, epoch + 1, **more)
    job.state.restore()
    for name in SPECS:
        job.model["net"][name].update(job.blocks(name, epoch + 1))
    job.model["bias"][...], job.model["steps"] = BIAS * (epoch + 1), epoch + 1
    saved = job.state.back_up(epoch)
    assert saved == (None if member.rank else str(where / "chief" / f"ckpt-{epoch + 1}"))
    wait_for_saves()


def check_backup(where: Path, epoch: int) -> None:
    assert files(where) == ["chief"]
    assert {one.split(".")[0] for one in files(where / "chief")} == {"checkpoint", f"ckpt-{epoch}"}
    prefix = where / "chief" / f"ckpt-{epoch}"
    found = ckptfmt.load(prefix)
    for name in SPECS:
        np.testing.assert_array_equal(found[f"model/net/{name}{VALUE}"], TABLE * epoch)
    assert ckptfmt.verify(prefix).ok


@pytest.mark.parametrize("asynchronous", [False, True])
def test_jobs_of_processes(tmp_path: Path, asynchronous: bool) -> None:
    how, where = options(enable_async=asynchronous), tmp_path / "ckpt"
    for epoch, count in enumerate([4, 2, 1, 3]):
        meeting = str(tmp_path / f"job{epoch}")

        def run(rank: int, meeting: str = meeting, epoch: int = epoch, count: int = count) -> None:
            with PipeCoordinator(meeting, rank, count) as member:
                next_epoch(where, member, epoch, options=how)

        children = [forked(functools.partial(run, rank)) for rank in range(count)]
        assert [wait_for(child) for child in children] == [0] * count
        check_backup(where, epoch + 1)


def test_layouts_as_a_tree_and_of_the_model_itself(tmp_path: Path) -> None:
    def run(member: Any) -> None:
        mesh = Mesh({"x": 2})
        rows = Layout(["x"], mesh)
        (device,) = mesh.local_devices(member.rank, 2)
        block = np.arange(4.0)[rows.slice_of([4], device).slices].copy()
        cases: list[Any] = [
            ({"w": [{device: block}]}, {"w": [rows]}),
            ({device: block}, {"": rows}),
        ]
        for number, (model, layouts) in enumerate(cases):
            more = {"coordinator": member, "layouts": layouts, "options": QUICK}
            state = ckptfmt.tf.TrainingState(model, tmp_path / str(number), **more)
            before = block.copy()
            state.back_up(0)
            block[...] = -1
            assert state.restore()
            np.testing.assert_array_equal(block, before)

    all_good(run_team(2, run))
    names = [[*ckptfmt.open(tmp_path / one / "chief" / "ckpt-1")] for one in "01"]
    assert f"model/w/0{VALUE}" in names[0]
    assert f"model{VALUE}" in names[1]


POSITIONS: list[Any] = [
    ([(3, None), (4, None)], "would save different checkpoints: epoch 3 (process 0); epoch 4"),
    (
        [(3, 2), (3, None)],
        "would save different checkpoints: epoch 3, batch 2 (process 0); epoch 3",
    ),
    ([(3, None), (-1, None)], "epoch must not be negative, but is -1"),
    ([("3", None), (3, None)], "epoch must be a whole number, not str"),
    ([(3, 1.5), (3, 1)], "batch must be a whole number, not float"),
]


@pytest.mark.parametrize(("given", "message"), POSITIONS)
def test_a_wrong_position_is_an_error_in_all(tmp_path: Path, given: Any, message: str) -> None:
    def run(member: Any) -> str:
        job = Rank(tmp_path, member, 1)
        job.state.back_up(0)
        with pytest.raises(InvalidError) as caught:
            job.state.back_up(*given[member.rank])
        assert job.epoch == 1
        job.state.back_up(7)
        assert job.epoch == 8
        return caught.value.message

    for found in all_good(run_team(2, run)):
        assert message in found


def other_models() -> list[Any]:
    return [
        {"v": np.zeros(3)},
        {"w": np.zeros(3), "v": np.zeros(3)},
        [np.zeros(3)],
        {"w": {"w": 1}},
    ]


@pytest.mark.parametrize("number", range(len(other_models())))
@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_backup_of_other_objects_is_an_error(tmp_path: Path, count: int, number: int) -> None:
    ckptfmt.tf.TrainingState({"w": np.ones(3)}, tmp_path, options=QUICK).back_up(4)

    def run(member: Any) -> None:
        model = other_models()[number]
        state = ckptfmt.tf.TrainingState(model, tmp_path, coordinator=member, options=QUICK)
        with pytest.raises(MatchError, match="has no value for"):
            state.restore()
        assert repr(model) == repr(other_models()[number])
        assert state.maybe_load_initial_counters_from_ckpt(10, 100, "train") == (100, 0)

    if count:
        all_good(run_team(count, run))
    else:
        run(None)
    assert files(tmp_path / "chief") == backup(1)


def test_attributes_that_are_set_later_get_their_values(tmp_path: Path) -> None:
    class Model(ckptfmt.Trackable):
        pass

    model: Any = Model()
    model.w, model.v = np.ones(3), np.full(2, 4.0)
    ckptfmt.tf.TrainingState(model, tmp_path, options=QUICK).back_up(0)
    again: Any = Model()
    again.w = np.zeros(3)
    assert ckptfmt.tf.TrainingState(again, tmp_path, options=QUICK).restore()
    again.v = np.zeros(2)
    assert again.w.tolist() == [1.0] * 3
    assert again.v.tolist() == [4.0] * 2
