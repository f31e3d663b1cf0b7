# SPDX-License-Identifier: Apache-2.0
"""Trees whose leaves lie on meshes: saved by some processes, loaded by others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.team import all_good, run_team
from support.trees import assert_same_tree

import ckptfmt
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.errors import CorruptError, GenerationGoneError, InvalidError, TensorNotFoundError
from ckptfmt.objects import trees
from ckptfmt.objects.trees import load_tree, save_tree
from ckptfmt.saving.mesh import Layout, Mesh
from ckptfmt.sharded.coordinator import SingleProcess

FOUR, TWO = Mesh([("x", 4)]), Mesh([("x", 2)])
KERNEL, BIAS, TABLE = np.arange(48.0).reshape(8, 6), np.arange(6.0), np.arange(10)


def layouts_on(mesh: Mesh) -> dict[str, Any]:
    """As a tree, with the place of what is not cut left empty."""
    return {
        "layers": [{"kernel": Layout(["x", None], mesh), "bias": Layout([None], mesh)}, None],
        "table": Layout(["x"], mesh),
        "again": Layout(["x", None], mesh),
        "step": None,
    }


def paths_on(mesh: Mesh) -> dict[str, Layout | None]:
    return {
        "again": Layout(["x", None], mesh),
        "layers/0/bias": Layout([None], mesh),
        "table": Layout(["x"], mesh),
    }


def local(layout: Layout, array: Any, member: Any) -> dict[str, Any]:
    """What the devices of a process hold; replicas are one object."""
    blocks: dict[Any, Any] = {}
    found = {}
    for device in layout.mesh.local_devices(member.rank, member.world_size):
        box = layout.slice_of(array.shape, device)
        index = tuple(slice(at, at + n) for at, n in zip(box.start, box.shape, strict=True))
        found[device] = blocks.setdefault(str(index), array[index])
    return found


def tree_of(member: Any, mesh: Mesh) -> dict[str, Any]:
    kernel = local(Layout(["x", None], mesh), KERNEL, member)
    return {
        "layers": [
            {"kernel": kernel, "bias": local(Layout([None], mesh), BIAS, member)},
            (np.ones(3), "text"),
        ],
        "table": local(Layout(["x"], mesh), TABLE, member),
        "again": kernel,
        "step": 7,
    }


def whole() -> dict[str, Any]:
    kernel = KERNEL.copy()
    return {
        "layers": [{"kernel": kernel, "bias": BIAS}, (np.ones(3), "text")],
        "table": TABLE,
        "again": kernel,
        "step": 7,
    }


def save(prefix: Path, processes: int, mesh: Mesh, layouts: Any) -> list[Any]:
    def work(member: Any) -> str:
        return save_tree(
            prefix, tree_of(member, mesh), layouts=layouts, coordinator=member, durability="none"
        )

    return run_team(processes, work)


@pytest.mark.parametrize("layouts", [layouts_on, paths_on])
def test_saved_by_four_and_loaded_by_two(
    tmp_path: Path, layouts: Callable[[Mesh], dict[str, Any]]
) -> None:
    assert all_good(save(tmp_path / "ckpt", 4, FOUR, layouts(FOUR))) == [str(tmp_path / "ckpt")] * 4
    assert_same_tree(load_tree(tmp_path / "ckpt"), whole())
    with ckptfmt.open(tmp_path / "ckpt") as reader:
        assert len(reader["again/.ATTRIBUTES/VARIABLE_VALUE"].slices) == 4
        assert [name for name in reader if "kernel" in name] == []

    def work(member: Any) -> Any:
        found = load_tree(tmp_path / "ckpt", layouts=paths_on(TWO), coordinator=member)
        assert found["again"] is found["layers"][0]["kernel"]
        return found, tree_of(member, TWO)

    for found, expected in all_good(run_team(2, work)):
        assert_same_tree(found, expected)


def test_more_processes_than_devices(tmp_path: Path) -> None:
    all_good(save(tmp_path / "ckpt", 3, TWO, layouts_on(TWO)))
    assert_same_tree(load_tree(tmp_path / "ckpt"), whole())

    def work(member: Any) -> Any:
        found = load_tree(tmp_path / "ckpt", layouts=paths_on(TWO), coordinator=member)
        return found, tree_of(member, TWO)

    for found, expected in all_good(run_team(3, work)):
        assert_same_tree(found, expected)


def test_without_layouts_everything_is_replicated(tmp_path: Path) -> None:
    def work(member: Any) -> Any:
        save_tree(tmp_path / "ckpt", whole(), coordinator=member, metadata={"by": member.rank})
        return load_tree(tmp_path / "ckpt", coordinator=member)

    for found in all_good(run_team(2, work)):
        assert_same_tree(found, whole())
    with ckptfmt.open(tmp_path / "ckpt") as reader:
        assert reader.metadata == {"by": 0}


def test_names_without_a_graph_on_a_mesh(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ckpt", {"m/table": TABLE, "m/bias": BIAS})
    layout = Layout(["x"], TWO)

    def work(member: Any) -> Any:
        found = load_tree(tmp_path / "ckpt", layouts={"m/table": layout}, coordinator=member)
        return found, {"m": {"table": local(layout, TABLE, member), "bias": BIAS}}

    for found, expected in all_good(run_team(2, work)):
        assert_same_tree(found, expected)


def refused(outcomes: list[Any], kind: type[Exception], message: str) -> None:
    for outcome in outcomes:
        with pytest.raises(kind, match=message):
            raise outcome


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda tree: tree.update(more=1), "'more'"),
        (lambda tree: tree.update(step=7.0), "'step'"),
        (lambda tree: tree.pop("table"), "'table'"),
        (lambda tree: tree.update(again=None), "'again'"),
    ],
)
def test_processes_with_other_trees(tmp_path: Path, change: Any, where: str) -> None:
    def work(member: Any) -> Any:
        tree = whole()
        if member.rank == 2:
            change(tree)
        return save_tree(tmp_path / "ckpt", tree, coordinator=member)

    message = f"the trees of process 0 and process 2 have other structures, first at {where}"
    refused(run_team(3, work), InvalidError, message)
    assert list(tmp_path.iterdir()) == []


def test_processes_with_other_containers(tmp_path: Path) -> None:
    def work(member: Any) -> Any:
        return save_tree(tmp_path / "ckpt", {"a": [] if member.rank else ()}, coordinator=member)

    refused(run_team(2, work), InvalidError, "have other structures, or another order$")


def test_processes_with_other_values(tmp_path: Path) -> None:
    def work(member: Any) -> Any:
        return save_tree(tmp_path / "ckpt", {"a": member.rank}, coordinator=member)

    refused(run_team(2, work), InvalidError, "tensor 'a'")
    assert list(tmp_path.iterdir()) == []


def test_one_process_that_fails_makes_all_fail(tmp_path: Path) -> None:
    def work(member: Any) -> Any:
        return save_tree(tmp_path / "ckpt", {"a": {3: 1} if member.rank else 1}, coordinator=member)

    refused(run_team(2, work), InvalidError, "has a child named 3: keys and names must be str")
    assert list(tmp_path.iterdir()) == []

    def load(member: Any) -> Any:
        return load_tree(tmp_path / ("ckpt" if member.rank else "other"), coordinator=member)

    save_tree(tmp_path / "ckpt", {"a": 1})
    refused(run_team(2, load), ckptfmt.CheckpointNotFoundError, "Failed to find any matching files")


LAYOUT = Layout(["x"], TWO)


@pytest.mark.parametrize(
    ("layouts", "message"),
    [
        ({"b": LAYOUT}, "layouts names 'b', which is not a leaf of the tree"),
        ({"list": LAYOUT}, "at 'list' is of type list, which cannot have a layout"),
        ({"step": LAYOUT}, "at 'step' is of type int, which cannot have a layout"),
        ({"a": [LAYOUT], "list": []}, "layouts names 'a/0', which is not a leaf of the tree"),
        ({"a": {"b": 3}}, "layouts has no Layout at 'a/b'"),
        ({3: LAYOUT}, "a path of layouts must be a str, not int"),
        (
            LAYOUT,
            "layouts must be a tree of Layouts, or a mapping from paths to Layouts, not Layout",
        ),
    ],
)
def test_layouts_for_other_trees(tmp_path: Path, layouts: Any, message: str) -> None:
    tree = {"a": np.ones(3), "list": [np.ones(2)], "step": 3}
    with pytest.raises(InvalidError, match=message):
        save_tree(tmp_path / "ckpt", tree, layouts=layouts, coordinator=SingleProcess())
    assert list(tmp_path.iterdir()) == []


def test_layouts_that_nothing_loaded_has(tmp_path: Path) -> None:
    save_tree(tmp_path / "ckpt", {"a": [1, np.ones(2)]})
    for name, message in [
        ("b", "layouts names 'b', which is not a leaf of the tree"),
        ("a", "layouts names 'a', which is not a leaf of the tree"),
        ("a/0", "the Python scalar 'a/0' cannot have a layout"),
    ]:
        with pytest.raises(InvalidError, match=message):
            load_tree(tmp_path / "ckpt", layouts={name: LAYOUT}, coordinator=SingleProcess())
    with pytest.raises(InvalidError, match="coordinator and cast exclude"):
        load_tree(tmp_path / "ckpt", cast=np.float32, coordinator=SingleProcess())


def test_damage_and_gaps_reach_all_processes(tmp_path: Path) -> None:
    save_tree(tmp_path / "ckpt", {"a": np.ones(2)})
    tensors: dict[str, Any] = dict(ckptfmt.load(tmp_path / "ckpt"))
    del tensors["a/.ATTRIBUTES/VARIABLE_VALUE"]
    ckptfmt.save(tmp_path / "gap", tensors)
    ckptfmt.save(tmp_path / "bad", {OBJECT_GRAPH_KEY: b"\x0a"})

    def load(name: str, **options: Any) -> list[Any]:
        return run_team(2, lambda member: load_tree(tmp_path / name, coordinator=member, **options))

    refused(load("gap"), TensorNotFoundError, "tensor 'a'")
    assert load("gap", strict=False) == [{}, {}]
    refused(load("bad"), CorruptError, "a truncated number, at byte 1")
    refused(load("ckpt", filter="nothing"), TensorNotFoundError, "matches none of the 1 tensors")


def test_a_checkpoint_that_is_replaced_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tree(tmp_path / "ckpt", {"a": np.ones(2)})
    restore = trees.sharded.restore

    def late(*args: Any, **options: Any) -> Any:
        save_tree(tmp_path / "ckpt", {"a": np.ones(2), "b": 1})
        return restore(*args, **options)

    monkeypatch.setattr(trees.sharded, "restore", late)
    with pytest.raises(GenerationGoneError, match="was replaced while it was being loaded"):
        load_tree(tmp_path / "ckpt", coordinator=SingleProcess())


def test_processes_that_see_other_checkpoints(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_tree(tmp_path / name, {name: 1})

    def work(member: Any) -> Any:
        return load_tree(tmp_path / ("one", "two")[member.rank], coordinator=member)

    refused(run_team(2, work), GenerationGoneError, "was replaced while it was being loaded")
