# SPDX-License-Identifier: Apache-2.0
"""Saves of one tree by several processes: what a save takes comes back bit for bit in every process
(the same number of processes, and another one), or the save is refused in every process.

The trees have arrays, scalars and blocks on meshes, in dicts, lists and Checkpoints. Some are wrong
(a layout is forgotten, None or given for another path, a Checkpoint inside has a coordinator of its
own, one process has other values).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from support.strategies import counted, property_test
from support.team import run_team
from support.training import QUICK

import ckptfmt
from ckptfmt.bundle.graph import object_path
from ckptfmt.errors import CkptfmtError
from ckptfmt.saving.mesh import Layout, Mesh

Names = tuple[str, ...]


@dataclass
class Leaf:
    """An array, which is equal in all processes or divided by `specs`: those of the save, and those
    of the restore on another number of processes.

    Attributes:
        fault: what is wrong with it in the save: "", "forgotten" (no layout), "None" (as layout),
            "misplaced" (a layout of another path), "other" (process `rank` has other values).
    """

    whole: Any
    specs: list[list[str | None]] | None = None
    fault: str = ""
    rank: int = 0
    is_scalar: bool = False


@dataclass
class Branch:
    """A container: "dict", "list", "checkpoint" or "coordinated", a Checkpoint with the coordinator
    and the layouts of what is in it. With `given_twice` the outer layouts have them as well."""

    kind: str
    children: dict[str, Any]
    given_twice: bool = False


@dataclass
class Side:
    """The processes of a save or a restore.

    Attributes:
        number: 0 is the save and the restore by the same processes, 1 the other restore.
        faulty: whether the tree has its faults.
    """

    world_size: int
    mesh: Mesh
    number: int
    faulty: bool = False


def leaves(node: Any, path: Names = ()) -> Iterator[tuple[Names, Leaf]]:
    if isinstance(node, Leaf):
        yield path, node
        return
    for name, child in node.children.items():
        yield from leaves(child, (*path, name))


def branches(node: Any) -> Iterator[Branch]:
    if isinstance(node, Branch):
        yield node
        for child in node.children.values():
            yield from branches(child)


def has_kind(tree: Any, kind: str) -> bool:
    return any(branch.kind == kind for branch in branches(tree))


def local(leaf: Leaf, side: Side, rank: int, whole: Any) -> Any:
    """What one process has of an array."""
    if leaf.specs is None:
        return whole.copy()
    layout = Layout(leaf.specs[side.number], side.mesh)
    return {
        device: np.array(whole[layout.slice_of(whole.shape, device).slices])
        for device in side.mesh.local_devices(rank, side.world_size)
    }


def other(array: Any) -> Any:
    """An array of which every element differs."""
    return np.asarray(~array if array.dtype == bool else array + array.dtype.type(1))


def given(leaf: Leaf, side: Side, rank: int) -> Any:
    """What one process saves of an array."""
    differs = side.faulty and leaf.fault == "other" and leaf.rank % side.world_size == rank
    value = local(leaf, side, rank, other(leaf.whole) if differs else leaf.whole)
    return value.item() if leaf.is_scalar else value


def build(
    node: Any, side: Side, member: Any, value_of: Callable[[Leaf], Any], path: Names = ()
) -> tuple[Any, dict[str, Any]]:
    """The object of one process, and the layouts by path."""
    if isinstance(node, Leaf):
        value, layouts = value_of(node), dict[str, Any]()
        if node.specs is not None:
            fault = node.fault if side.faulty else ""
            layout = Layout(node.specs[side.number], side.mesh)
            name = object_path((*path[:-1], "elsewhere") if fault == "misplaced" else path)
            if fault != "forgotten":
                layouts[name] = None if fault == "None" else layout
        return value, layouts
    is_apart = node.kind == "coordinated" and side.faulty
    start = () if is_apart else path
    objects: dict[str, Any] = {}
    layouts = {}
    for name, child in node.children.items():
        objects[name], found = build(child, side, member, value_of, (*start, name))
        layouts |= found
    if node.kind == "dict":
        return objects, layouts
    if node.kind == "list":
        return list(objects.values()), layouts
    if not is_apart:
        return ckptfmt.Checkpoint(**objects), layouts
    made = ckptfmt.Checkpoint(coordinator=member, layouts=layouts, **objects)
    prefix = object_path(path)
    return made, {f"{prefix}/{one}": layouts[one] for one in layouts if node.given_twice}


def value_at(value: Any, path: Names) -> Any:
    for name in path:
        if isinstance(value, ckptfmt.Checkpoint):
            value = getattr(value, name)
        else:
            value = value[int(name) if isinstance(value, list) else name]
    return value


def check(found: Any, wanted: Any, path: Names) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys(), path
        for device, array in wanted.items():
            check(found[device], array, (*path, device))
        return
    assert type(found) is type(wanted), path
    found, wanted = np.asarray(found), np.asarray(wanted)
    assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape), path
    assert found.tobytes() == wanted.tobytes(), (path, found, wanted)


# ---- calls that save and restore -----------------------------------------------------------------


class Call:
    """A way to save a tree that is at "model" and to restore it in place. `number` is that of the
    Side."""

    def __init__(self, place: Path, model: Any, layouts: Any, member: Any, number: int) -> None:
        self.place, self.model, self.layouts, self.member = place, model, layouts, member
        self.number = number

    def outer(self) -> ckptfmt.Checkpoint:
        layouts = {f"model/{path}": layout for path, layout in self.layouts.items()}
        return ckptfmt.Checkpoint(model=self.model, coordinator=self.member, layouts=layouts)

    def save(self) -> Any:
        return self.outer().write(self.place / "ck", QUICK)

    def restore(self) -> None:
        self.outer().read(self.place / "ck", partial=True)


class Alone(Call):
    """Each process saves its own checkpoint, without a coordinator. If a Checkpoint inside has one,
    the checkpoint of process 0 must have everything."""

    def save(self) -> Any:
        made = ckptfmt.Checkpoint(model=self.model)
        return made.write(self.place / str(self.member.rank) / "ck", QUICK)

    def restore(self) -> None:
        if self.number == 0:
            made = ckptfmt.Checkpoint(model=self.model)
            made.read(self.place / str(self.member.rank) / "ck").assert_consumed()
        else:
            self.outer().read(self.place / "0" / "ck", partial=True)


class ByRoot(Call):
    """The tree is the root."""

    def outer(self) -> ckptfmt.Checkpoint:
        return ckptfmt.Checkpoint(self.model, coordinator=self.member, layouts=self.layouts)

    def save(self) -> Any:
        return self.outer().save(self.place / "ck", QUICK)

    def restore(self) -> None:
        self.outer().restore(self.place / "ck-1", partial=True)


class ByManager(Call):
    def save(self) -> Any:
        return ckptfmt.CheckpointManager(self.outer(), self.place / "ck", 2).save(options=QUICK)

    def restore(self) -> None:
        ckptfmt.CheckpointManager(self.outer(), self.place / "ck", 2).restore_latest()


class ByState(Call):
    def state(self) -> ckptfmt.tf.TrainingState:
        how: Any = {"coordinator": self.member, "layouts": self.layouts, "options": QUICK}
        return ckptfmt.tf.TrainingState(self.model, self.place / "ck", **how)

    def save(self) -> Any:
        return self.state().back_up(3)

    def restore(self) -> None:
        state = self.state()
        assert state.restore()
        assert state.maybe_load_initial_epoch_from_ckpt(0, "train") == 4


class ByTree(Call):
    """`save_tree`; the restore is that of a Checkpoint."""

    def save(self) -> Any:
        how: Any = {"coordinator": self.member, "layouts": self.layouts, "durability": "none"}
        return ckptfmt.save_tree(self.place / "ck", self.model, **how)

    def restore(self) -> None:
        ckptfmt.Checkpoint(self.model, coordinator=self.member, layouts=self.layouts).read(
            self.place / "ck", partial=True
        )


# ---- what is drawn -------------------------------------------------------------------------------

DTYPES = ["float64", "float32", "int64", "uint8", "bool", "complex64"]
DEVICES: list[Callable[[int], str]] = [
    lambda i: f"/job:mesh/task:{i}/device:CPU:0",
    lambda i: f"/gpu:{i}",
    lambda i: f"TPU:{i}",
    lambda i: f"/job:a/replica:0/task:{i % 2}/device:GPU:{i // 2}",
]
NAMES = ["a", "b", "kernel", "x/y", "0", ".S"]
# What may be wrong with a tree. One thing alone is not hidden by the refusal of another.
LEAF_FAULTS = ["forgotten", "None", "misplaced", "other"]
FAULTS = ["", *LEAF_FAULTS, *["forgotten", "other", "coordinated"] * 2]


@st.composite
def sides(draw: st.DrawFn) -> list[Side]:
    naming = draw(st.sampled_from(DEVICES))
    found = []
    for number in range(2):
        shape = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (4, 1), (2, 2), (3, 1), (3, 2)]))
        devices = [naming(position) for position in range(shape[0] * shape[1])]
        mesh = Mesh({"x": shape[0], "y": shape[1]}, devices)
        found.append(Side(draw(st.integers(1, 4)), mesh, number))
    return found


@st.composite
def some_leaf(draw: st.DrawFn, fault: str) -> Leaf:
    kind = draw(st.sampled_from(["array", "scalar", "mesh", "mesh"]))
    rank = 0 if kind == "scalar" else draw(st.integers(0, 2))
    shape = draw(st.lists(st.integers(0, 5), min_size=rank, max_size=rank))
    size = int(np.prod(shape, dtype=int))
    start = draw(st.integers(1, 50))
    whole = np.arange(start, start + size).reshape(shape)
    if kind == "scalar":
        return Leaf(np.array(whole, np.int64), is_scalar=True)
    leaf = Leaf(whole.astype(draw(st.sampled_from(DTYPES))))
    if kind == "mesh":
        every = st.permutations(["x", "y", None, None]).map(lambda found: list(found[:rank]))
        leaf.specs = [draw(every), draw(every)]
    if fault in LEAF_FAULTS and kind == "mesh" and draw(st.booleans()):
        leaf.fault, leaf.rank = fault, draw(st.integers(0, 3))
    return leaf


@st.composite
def trees(draw: st.DrawFn, depth: int, fault: str) -> Any:
    kinds = ["dict", "list", "checkpoint", *["coordinated"] * 3 * (fault == "coordinated")]
    kind = draw(st.sampled_from(kinds if depth < 3 else ["dict"]))
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=3, unique=True))
    if kind == "list":
        names = [str(number) for number in range(len(names))]
    children = {}
    for name in names:
        is_leaf = depth == 0 or draw(st.booleans())
        children[name] = draw(some_leaf(fault) if is_leaf else trees(depth - 1, fault))
    return Branch(kind, children, draw(st.booleans()))


CALLS: list[type[Call]] = [Call, ByRoot, ByManager, ByState, ByState, ByTree, Alone]


# ---- the property --------------------------------------------------------------------------------


def restored(place: Path, call: type[Call], tree: Any, side: Side, wanted: Any) -> None:
    """Restore what was saved, and compare it in every process."""

    def run(member: Any) -> None:
        def empty(leaf: Leaf) -> Any:
            value = local(leaf, side, member.rank, np.zeros_like(leaf.whole))
            return value.item() if leaf.is_scalar else value

        model, layouts = build(tree, side, member, empty)
        call(place, model, layouts, member, side.number).restore()
        for path, leaf in leaves(tree):
            check(value_at(model, path), wanted(path, leaf, member.rank), path)

    outcomes = run_team(side.world_size, run)
    failed = [one for one in outcomes if one is not None]
    if failed:
        raise failed[0]


def assembled(tree: Any, side: Side) -> dict[Names, Any]:
    """The whole arrays of what all processes gave."""
    found = {}
    for path, leaf in leaves(tree):
        whole = leaf.whole.copy()
        for rank in range(side.world_size):
            value = given(leaf, side, rank)
            if leaf.specs is None:
                whole[...] = value
                continue
            layout = Layout(leaf.specs[side.number], side.mesh)
            for device, block in value.items():
                whole[layout.slice_of(whole.shape, device).slices] = block
        found[path] = whole
    return found


@property_test(30, 3000, data=st.data())
def test_a_save_by_processes_comes_back_or_is_refused(
    data: Any, tmp_path_factory: pytest.TempPathFactory
) -> None:
    first, second = data.draw(sides())
    tree = data.draw(trees(2, data.draw(st.sampled_from(FAULTS))))
    call = data.draw(st.sampled_from([*CALLS, *[Alone] * 3 * has_kind(tree, "coordinated")]))
    place = tmp_path_factory.getbasetemp() / "processes"
    shutil.rmtree(place, ignore_errors=True)
    first.faulty = True

    def save(member: Any) -> None:
        model, layouts = build(tree, first, member, lambda leaf: given(leaf, first, member.rank))
        call(place, model, layouts, member, 0).save()

    outcomes = run_team(first.world_size, save)
    refused = [one for one in outcomes if isinstance(one, BaseException)]
    kinds = {one.kind for one in branches(tree)}
    wrong = {leaf.fault for _, leaf in leaves(tree)} - {""} | kinds & {"coordinated"}
    counted("processes", **{"refused" if refused else "saved": 1, f"of {first.world_size}": 1})
    counted("processes", **dict.fromkeys(wrong, 1))
    for one in refused:
        if not isinstance(one, CkptfmtError):
            raise one
    assert len(refused) in (0, first.world_size), outcomes
    if refused:
        assert wrong or (call is ByTree and "checkpoint" in kinds), refused[0]
        return
    same = Side(first.world_size, first.mesh, 0)
    restored(place, call, tree, same, lambda path, leaf, rank: given(leaf, first, rank))
    if call is Alone and "coordinated" not in kinds:
        return
    whole = assembled(tree, first)

    def wanted(path: Names, leaf: Leaf, rank: int) -> Any:
        value = local(leaf, second, rank, whole[path])
        return value.item() if leaf.is_scalar else value

    restored(place, call, tree, second, wanted)
