# SPDX-License-Identifier: Apache-2.0
"""What processes that save together refuse, all of them, because only a part of it would be saved:
blocks without a layout, and a Checkpoint with its own coordinator in another one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.team import all_good, run_team
from support.training import QUICK

import ckptfmt
from ckptfmt.errors import InvalidError
from ckptfmt.saving.mesh import Layout, Mesh

Call = Callable[[Path, Any, dict[str, Any]], Any]


def checkpoint(model: Any, more: dict[str, Any]) -> ckptfmt.Checkpoint:
    return ckptfmt.Checkpoint(model=model, **more)


def restored(path: Path, model: Any, more: dict[str, Any]) -> None:
    """Restore a checkpoint that has a tensor of the name."""
    checkpoint(model, more).restore(path / "whole")


def resumed(path: Path, model: Any, more: dict[str, Any]) -> bool:
    return ckptfmt.tf.TrainingState(model, path / "backup", options=QUICK, **more).restore()


CALLS: dict[str, Call] = {
    "save": lambda path, model, more: checkpoint(model, more).save(path / "ck", QUICK),
    "write": lambda path, model, more: checkpoint(model, more).write(path / "ck", QUICK),
    "restore": restored,
    "manager": lambda path, model, more: ckptfmt.CheckpointManager(
        checkpoint(model, more), path / "ck", 1
    ).save(options=QUICK),
    "back_up": lambda path, model, more: ckptfmt.tf.TrainingState(
        model, path / "ck", options=QUICK, **more
    ).back_up(0),
    "resume": resumed,
    "save_tree": lambda path, model, more: ckptfmt.save_tree(
        path / "ck", {"model": model}, durability="none", **more
    ),
}


def fill(path: Path) -> Path:
    """Save what a restore finds, under all names of these tests."""
    inner = {"w": np.ones(4)}
    model = {"w": np.ones(4), "a": [0, inner], "b": inner}
    ckptfmt.Checkpoint(model=model).write(path / "whole", QUICK)
    ckptfmt.tf.TrainingState(model, path / "backup", options=QUICK).back_up(1)
    return path


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return fill(tmp_path)


def files(place: Path) -> list[Path]:
    return sorted(path for path in place.rglob("*") if path.is_file())


def refused(place: Path, count: int, call: Call, model: Callable[[Any], Any]) -> list[str]:
    """The messages of all processes; nothing may be written."""
    before = files(place)

    def run(member: Any) -> str:
        with pytest.raises(InvalidError) as caught:
            call(place, model(member), {"coordinator": member})
        return caught.value.message

    messages: list[str] = all_good(run_team(count, run))
    assert files(place) == before
    return messages


NAMES = [
    "/job:mesh/task:{}/device:CPU:0",
    "/job:mesh/replica:0/task:0/device:TPU:{}",
    "/gpu:{}",
    "CPU:{}",
    "/device:CUSTOM:{}",
]


@pytest.mark.parametrize("call", CALLS)
def test_blocks_without_a_layout(place: Path, call: str) -> None:
    for count, name in itertools.product([1, 2, 3], NAMES):

        def model(member: Any, name: str = name) -> Any:
            return {"w": {name.format(member.rank): np.zeros(2)}}

        for message in refused(place, count, CALLS[call], model):
            assert "the object at 'model/w' is {device: array} without a layout" in message
            assert "layouts=" in message, (count, name)


@pytest.mark.parametrize("block", [1.5, np.float32(1), "text", [1, 2], {"used": 3}])
def test_blocks_of_any_type(place: Path, block: Any) -> None:
    for message in refused(place, 2, CALLS["save"], lambda _: {"w": {"/gpu:0": block}}):
        assert "'model/w' is {device: array} without a layout" in message


@pytest.mark.parametrize("call", CALLS)
def test_blocks_without_a_layout_in_one_process(place: Path, call: str) -> None:
    for rank in range(3):

        def model(member: Any, rank: int = rank) -> Any:
            return {"w": {"/gpu:0": np.zeros(4)} if member.rank == rank else np.zeros(4)}

        for message in refused(place, 3, CALLS[call], model):
            assert "'model/w' is {device: array} without a layout" in message, rank


@pytest.mark.parametrize("layouts", [{"w": None}, {"w": {"a": None}}, {"v": "rows"}])
def test_layouts_of_other_objects(tmp_path: Path, layouts: Any) -> None:
    """The devices of the other layouts are known, whatever their names are."""

    def run(member: Any) -> None:
        mesh = Mesh({"x": 2}, ["a", "b"])
        rows = Layout(["x"], mesh)
        own = mesh.devices[member.rank]
        known = {name: rows if found == "rows" else found for name, found in layouts.items()}
        forgotten = own if "v" in layouts else f"/gpu:{member.rank}"
        model = {"w": {forgotten: np.zeros(2)}, "v": {own: np.zeros(2)} if "v" in layouts else 0}
        with pytest.raises(InvalidError, match=r"the object at 'w' is {device: array} without"):
            ckptfmt.Checkpoint(model, coordinator=member, layouts=known).save(tmp_path / "ck")

    all_good(run_team(2, run))
    assert list(tmp_path.iterdir()) == []


ORDINARY: list[Any] = [
    {"cpu": np.zeros(2)},
    {"/job:a/task:0": np.zeros(2)},
    {"/gpu:0": np.zeros(2), "total": np.zeros(2)},
    {"a": np.zeros(2)},
    {},
]


@pytest.mark.parametrize("number", range(len(ORDINARY)))
def test_dicts_that_are_not_blocks(tmp_path: Path, number: int) -> None:
    def run(member: Any) -> None:
        model = {"w": ORDINARY[number]}
        made = ckptfmt.Checkpoint(model, coordinator=member)
        made.restore(made.save(tmp_path / "ck", QUICK)).assert_consumed()

    all_good(run_team(2, run))


def test_without_a_coordinator_names_of_devices_are_names(tmp_path: Path) -> None:
    made = ckptfmt.Checkpoint(w={"/gpu:0": np.ones(2)})
    prefix = made.save(tmp_path / "ck", QUICK)
    made.w["/gpu:0"][...] = 0
    made.restore(prefix).assert_consumed()
    assert made.w["/gpu:0"].tolist() == [1.0, 1.0]


def blocks(member: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    mesh = Mesh({"x": member.world_size})
    return {mesh.devices[member.rank]: np.zeros(2)}, {"w": Layout(["x"], mesh)}


PLACES: dict[str, Callable[[Any], Any]] = {
    "model": lambda inner: inner,
    "model/a": lambda inner: {"a": inner},
    "model/a/1": lambda inner: {"a": [0, inner]},
    "model/b": lambda inner: ckptfmt.Checkpoint(b=inner),
}


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("call", CALLS)
def test_a_coordinator_inside(place: Path, call: str, count: int) -> None:
    """Of a Checkpoint in a Checkpoint, in one with a coordinator or without."""
    alone = [fill(place / str(rank)) for rank in range(count)]
    for path, outer in itertools.product(PLACES, ["with", "without"]):

        def run(member: Any, path: str = path, outer: str = outer) -> str:
            block, layouts = blocks(member)
            inner = ckptfmt.Checkpoint(w=block, coordinator=member, layouts=layouts)
            more = {"coordinator": member} if outer == "with" else {}
            with pytest.raises(InvalidError) as caught:
                where = place if outer == "with" else alone[member.rank]
                CALLS[call](where, PLACES[path](inner), more)
            return caught.value.message

        where = "b" if path == "model/b" else path  # the inner Checkpoint itself refuses it
        for message in all_good(run_team(count, run)):
            assert f"the object at '{where}' is a Checkpoint with a coordinator of its" in message


def test_the_root_and_the_checkpoint_itself(tmp_path: Path) -> None:
    def run(member: Any) -> None:
        inner = ckptfmt.Checkpoint(w=np.zeros(2), coordinator=member)
        with pytest.raises(InvalidError, match="the object at 'root' is a Checkpoint with a coord"):
            ckptfmt.Checkpoint(inner)
        inner.again = inner
        inner.deep = [inner]
        inner.restore(inner.save(tmp_path / "ck", QUICK)).assert_consumed()

    all_good(run_team(2, run))


def test_a_coordinator_that_is_attached_later(tmp_path: Path) -> None:
    class Model(ckptfmt.Trackable):
        pass

    ckptfmt.Checkpoint(model={"inner": {"w": np.ones(2)}}).write(tmp_path / "ck", QUICK)
    model: Any = Model()
    ckptfmt.Checkpoint(model=model).read(tmp_path / "ck", partial=True)
    with pytest.raises(InvalidError, match="'model/inner' is a Checkpoint with a coordinator"):
        model.inner = ckptfmt.Checkpoint(w=np.zeros(2), coordinator=ckptfmt.sharded.SingleProcess())
