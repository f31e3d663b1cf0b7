# SPDX-License-Identifier: Apache-2.0
"""Trees that a checkpoint is loaded into: what stays the same object, what is replaced, and what is
told of the rest."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from support.trees import assert_same_tree

import ckptfmt
import ckptfmt.bundle.reader
from ckptfmt.errors import InvalidError
from ckptfmt.objects.nodes import Slot, TreeNode
from ckptfmt.objects.trees import load_tree, load_tree_into, save_tree
from ckptfmt.saving.parallel import ParallelVariable

Point = namedtuple("Point", "x y")


@dataclass
class State:
    step: int
    weights: Any
    name: str = ""


def tree_of(value: float) -> dict[str, Any]:
    """Trees of one structure, with values of their own."""
    shared = np.full(3, value)
    optimizer = TreeNode(
        {"step": np.array(int(value))},
        attributes={"py_state": np.array(str(value).encode(), object)},
        slots=[Slot(shared, "m", np.full(3, -value))],
    )
    return {
        "a.b": [shared, {"c/d": np.full((2, 2), value, np.float32)}],
        "again": shared,
        "point": Point(np.full(1, value), np.array(value)),
        "state": State(int(value), np.full(2, value), f"n{value}"),
        "scalars": [int(value), value, value > 1, str(value).encode(), None],
        "numpy": [np.float32(value)],
        "optimizer": optimizer,
    }


def arrays_in(tree: Any) -> list[int]:
    weights = [tree["state"].weights, *tree["point"], *tree["a.b"], tree["optimizer"]]
    return [id(one) for one in (*weights, tree["again"], tree["optimizer"].slots[0].value)]


def test_arrays_stay_and_scalars_are_replaced(tmp_path: Path) -> None:
    save_tree(tmp_path / "ckpt", tree_of(2.0))
    tree = tree_of(1.0)
    before = arrays_in(tree)
    report = load_tree_into(tmp_path / "ckpt", tree)
    assert report
    assert arrays_in(tree) == before
    assert type(tree["numpy"][0]) is np.float32
    assert type(tree["scalars"][2]) is bool
    # What is saved of both is the same.
    save_tree(tmp_path / "again", tree)
    assert_same_tree(load_tree(tmp_path / "again"), load_tree(tmp_path / "ckpt"))
    assert set(report.matched) == {
        *("again", "a.b/1/c/d", "point/x", "point/y", "numpy/0"),
        *("state/step", "state/weights", "state/name"),
        *("scalars/0", "scalars/1", "scalars/2", "scalars/3"),
        *("optimizer", "optimizer/step"),
        "again/optimizer/m",
    }


def test_arrays_find_tensors_under_another_path(tmp_path: Path) -> None:
    shared = np.arange(3.0)
    save_tree(tmp_path / "ckpt", {"a": shared, "z": [shared]})
    tree = {"z": [np.zeros(3)]}
    report = load_tree_into(tmp_path / "ckpt", tree)
    assert report.matched == ("z/0",)
    assert tree["z"][0].tolist() == [0, 1, 2]
    # One tensor for two arrays.
    apart = {"a": np.zeros(3), "z": (np.zeros(3),)}
    report = load_tree_into(tmp_path / "ckpt", apart)
    assert sorted(report.matched) == ["a", "z/0"]
    assert apart["a"].tolist() == apart["z"][0].tolist() == [0, 1, 2]
    with pytest.raises(InvalidError, match=r"dtype \(1\): 'z/0' \(stored as 'a'\) is float64"):
        load_tree_into(tmp_path / "ckpt", {"a": np.zeros(3), "z": [np.zeros(3, np.float32)]})


def test_one_array_for_two_tensors_gets_the_first(tmp_path: Path) -> None:
    save_tree(tmp_path / "ckpt", {"a": np.ones(2), "b": np.zeros(2)})
    shared = np.full(2, 7.0)
    with pytest.raises(InvalidError, match=r"unexpected .*, without a target \(1\): 'b"):
        load_tree_into(tmp_path / "ckpt", {"a": shared, "b": shared})
    report = load_tree_into(tmp_path / "ckpt", {"a": shared, "b": shared}, strict=False)
    assert (report.matched, report.unexpected) == (("a",), ("b",))
    assert shared.tolist() == [1, 1]


def test_names_without_a_graph(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "ckpt", {"a.b/0": np.ones(2), "a.b/1": np.int64(3), "c/d": np.ones(1)})
    tree = {"a.b": [np.zeros(2), 0], "c/d": np.zeros(1)}
    assert load_tree_into(tmp_path / "ckpt", tree)
    assert_same_tree(tree, {"a.b": [np.ones(2), 3], "c/d": np.ones(1)})
    tree = {"x": [np.zeros(2), 0], "c": {"d": np.zeros(1)}}
    assert load_tree_into(tmp_path / "ckpt", tree, rename={"a.b/0": "x/0", "a.b/1": "x/1"})
    assert_same_tree(tree, {"x": [np.ones(2), 3], "c": {"d": np.ones(1)}})
    # And without a tree to load into.
    found = load_tree(tmp_path / "ckpt", rename=lambda name: None if "c" in name else name + "/v")
    assert_same_tree(found, {"a.b": {"0": {"v": np.ones(2)}, "1": {"v": np.array(3)}}})
    save_tree(tmp_path / "tree", {"a": 1})
    with pytest.raises(InvalidError, match="rename applies to names without a graph"):
        load_tree(tmp_path / "tree", rename={"a": "b"})


def test_attributes_of_several_tensors_and_parallel_variables(tmp_path: Path) -> None:
    def made(value: float) -> Any:
        parts = {"-keys": np.full(2, value), "-values": np.full(1, value)}
        return {
            "t": TreeNode(attributes={"table": parts}),
            "v": ParallelVariable([np.full(2, value), np.full(2, value + 1)]),
        }

    save_tree(tmp_path / "ckpt", made(3.0))
    tree = made(0.0)
    report = load_tree_into(tmp_path / "ckpt", tree)
    assert report
    assert tree["t"].attributes["table"]["-values"].tolist() == [3]
    assert [part.tolist() for part in tree["v"].components] == [[3, 3], [4, 4]]
    assert report.matched == ("t", "v")


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (MappingProxyType({"a": (1,)}), "at 'a/0' is a value that cannot be replaced"),
        ((1,), "at '0' is a value that cannot be replaced"),
        ({"a": {1}}, "at 'a' is of type set, which cannot be saved"),
        ({3: 1}, "the root object has a child named 3"),
    ],
)
def test_trees_that_cannot_be_loaded_into(tmp_path: Path, tree: Any, message: str) -> None:
    save_tree(tmp_path / "ckpt", [1] if isinstance(tree, tuple) else {"a": [1]})
    with pytest.raises(InvalidError, match=message):
        load_tree_into(tmp_path / "ckpt", tree)


def test_values_in_tuples_are_replaced_with_the_tuple(tmp_path: Path) -> None:
    save_tree(tmp_path / "ckpt", {"a": (1, [2.5]), "p": Point(0.5, "x")})
    inner = [0.0]
    tree = {"a": (0, inner), "p": Point(1.5, "")}
    assert load_tree_into(tmp_path / "ckpt", tree)
    assert tree == {"a": (1, [2.5]), "p": Point(0.5, "x")}
    assert tree["a"][1] is inner


class Foreign:
    """An array of another framework: writable memory behind DLPack."""

    def __init__(self, values: Any) -> None:
        self.memory = np.array(values)
        self.dtype, self.shape = "a dtype of its own", self.memory.shape

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return np.array(self.memory, dtype)

    def __dlpack__(self, **options: Any) -> Any:
        return self.memory.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.memory.__dlpack_device__()


def test_arrays_of_other_frameworks(tmp_path: Path) -> None:
    """Both engines save them and read into them."""
    save_tree(tmp_path / "tree", {"w": Foreign([1.0, 2.0])})
    ckptfmt.Checkpoint(w=Foreign([1.0, 2.0])).write(tmp_path / "objects")
    assert_same_tree(load_tree(tmp_path / "tree"), load_tree(tmp_path / "objects"))
    for path in (tmp_path / "tree", tmp_path / "objects"):
        one, other = Foreign([0.0, 0.0]), Foreign([0.0, 0.0])
        assert load_tree_into(path, {"w": one})
        ckptfmt.Checkpoint(w=other).read(path).assert_consumed()
        assert one.memory.tolist() == other.memory.tolist() == [1, 2]


def test_the_checkpoint_is_opened_once_and_checked_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tree(tmp_path / "ckpt", {"a": np.ones(2), "b": np.ones(2), "n": 1})
    opened: list[Any] = []
    real = ckptfmt.bundle.reader.open

    def counted(*args: Any, **options: Any) -> Any:
        opened.append(args)
        return real(*args, **options)

    monkeypatch.setattr(ckptfmt.bundle.reader, "open", counted)
    tree = {"a": np.zeros(2), "b": np.zeros(2), "n": 0}
    assert load_tree_into(tmp_path / "ckpt", tree)
    assert len(opened) == 1
    # A scalar that nothing can replace is found before the arrays are written.
    frozen = MappingProxyType({"a": np.zeros(2), "b": np.zeros(2), "n": 0})
    with pytest.raises(InvalidError, match="cannot be replaced"):
        load_tree_into(tmp_path / "ckpt", frozen)
    assert frozen["a"].tolist() == frozen["b"].tolist() == [0, 0]


NUMPY_SCALARS = [np.float32(1), np.float64(1), np.complex64(1), np.int8(1), np.bool_(1)]


@pytest.mark.parametrize("value", NUMPY_SCALARS, ids=lambda value: str(value.dtype))
@pytest.mark.parametrize("cast", [None, {"x": "float16"}, {"x": "complex128"}, True])
@pytest.mark.parametrize("graph", [True, False])
def test_numpy_scalars_are_cast_as_arrays_of_rank_0(
    tmp_path: Path, value: Any, cast: Any, graph: bool
) -> None:
    save_tree(tmp_path / "ckpt", {"x": value}, graph=graph)
    for blank in NUMPY_SCALARS:
        results = []
        for one in (blank * 0, np.array(blank * 0)):
            tree = {"x": one.astype(blank.dtype)}
            try:
                results.append(load_tree_into(tmp_path / "ckpt", tree, cast=cast))
            except InvalidError as error:
                results.append(error.report)
            assert tree["x"].dtype == blank.dtype
            assert bool(tree["x"]) == bool(results[-1])
        assert results[0] == results[1]
    if cast is not True:
        wanted = load_tree(tmp_path / "ckpt", cast=cast)["x"].dtype
        assert load_tree_into(tmp_path / "ckpt", {"x": np.zeros((), wanted)[()]}, cast=cast)


@pytest.mark.parametrize("value", [True, 2, 2.5, "x", b"x"])
def test_python_scalars_keep_their_types(tmp_path: Path, value: Any) -> None:
    save_tree(tmp_path / "ckpt", {"x": value, "a": np.ones(1)})

    def blank() -> dict[str, Any]:
        return {"x": type(value)(), "a": np.zeros(1, np.float32)}

    for cast in ("float32", {"a": "float32", "x": None}):
        tree = blank()
        load_tree_into(tmp_path / "ckpt", tree, cast=cast)
        for found in (tree, load_tree(tmp_path / "ckpt", cast=cast)):
            assert_same_tree(found, {"x": value, "a": np.ones(1, np.float32)})
    for strict in (True, False):
        given: dict[str, Any] = {"cast": {"x": "float32"}, "strict": strict}
        tree = blank()
        with pytest.raises(InvalidError, match="Python scalar") as caught:
            load_tree(tmp_path / "ckpt", **given)
        assert (caught.value.argument, caught.value.tensor) == ("cast", "x")
        with pytest.raises(InvalidError, match="Python scalar") as caught:
            load_tree_into(tmp_path / "ckpt", tree, **given)
        assert (caught.value.argument, caught.value.tensor) == ("cast", "x")
        assert_same_tree(tree, blank())
