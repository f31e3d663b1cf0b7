# SPDX-License-Identifier: Apache-2.0
"""Restores that cannot be done: nothing is half restored, and a better object gets what waits."""

from __future__ import annotations

import enum
import math
import os
import time
import tracemalloc
import types
from collections import namedtuple
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import index as ix
from support.adversarial import table
from support.objects import Module, State

import ckptfmt
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY, Attribute, Node, ObjectGraph, encode_graph
from ckptfmt.bundle.graph_keys import graph_of, missing_keys
from ckptfmt.objects import traversal
from ckptfmt.objects.nodes import TreeNode
from ckptfmt.objects.trees import load_tree_into

Pair = namedtuple("Pair", "first second")


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Short(str):
    """Takes no longer texts."""

    def __new__(cls, text: str) -> Short:
        if len(text) > 3:
            raise ValueError(f"{text!r} is too long")
        return super().__new__(cls, text)


def written(tmp_path: Path, **objects: Any) -> str:
    path: str = ckptfmt.Checkpoint(**objects).write(tmp_path / "ck")
    return path


@pytest.mark.parametrize(
    ("stored", "target", "words"),
    [
        (7, Level.HIGH, "'n/0', which is of type Level: 7 is not a"),
        ("longer", Short("abc"), "'n/0', which is of type Short: 'longer' is too long"),
        (np.uint64(2**63), np.int8(0), "int8"),
    ],
)
def test_values_that_cannot_be_made(tmp_path: Path, stored: Any, target: Any, words: str) -> None:
    path = written(tmp_path, n=[stored], a=np.ones(2), s=State("saved"), m=[3])
    array, state, numbers = np.zeros(2), State("old"), [0]
    checkpoint = ckptfmt.Checkpoint(n=[target], a=array, s=state, m=numbers)
    with pytest.raises(ckptfmt.InvalidError, match=words) as caught:
        checkpoint.read(path)
    assert caught.value.tensor == "n/0/.ATTRIBUTES/VARIABLE_VALUE"
    assert array.tolist() == [0.0, 0.0] and state.text == "old" and numbers == [0]
    assert checkpoint.n == [target]


class Nested:
    """Makes new objects at each call: `depth` below one another, or without end."""

    def __init__(self, depth: float = math.inf, count: int = 1) -> None:
        self.depth, self.count = depth, count

    def trackable_children(self) -> dict[str, Any]:
        names = "ab"[: self.count] if self.depth else ""
        return {name: Nested(self.depth - 1, self.count) for name in names}


@pytest.mark.parametrize(("limit", "count"), [("DEPTH_MAX", 1), ("NODES_MAX", 2)])
def test_objects_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, count: int
) -> None:
    monkeypatch.setattr(traversal, limit, 32)
    path = ckptfmt.Checkpoint(m=[Nested(30 if count == 1 else 3, count)]).write(tmp_path / "ck")
    refused = ckptfmt.Checkpoint(m=[Nested(count=count)])
    for call in (refused.write, lambda path: refused.read(path, strict=True)):
        with pytest.raises(ckptfmt.errors.LimitError, match="the object at 'm/0/a/"):
            call(path)


class Fixed:
    """The property cannot be set."""

    def __init__(self, count: Any) -> None:
        self.__dict__["hidden"] = count

    @property
    def count(self) -> Any:
        return self.hidden

    def trackable_children(self) -> dict[str, Any]:
        return {"count": self.count}


class Frozen(Fixed):
    """No attribute can be set."""

    count = None

    def __init__(self, count: Any) -> None:
        self.__dict__["count"] = count

    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError(name)


class Once(dict[str, Any]):
    """No item can be set again."""

    def __init__(self, count: Any) -> None:
        super().__init__(count=count)

    def __setitem__(self, key: str, value: Any) -> None:
        raise KeyError(key)


@pytest.mark.parametrize("value", [1, (np.ones(1), 1), np.broadcast_to(1.0, 2)])
@pytest.mark.parametrize("kind", [Fixed, Frozen, Once])
def test_places_that_cannot_be_set(tmp_path: Path, kind: Any, value: Any) -> None:
    """They are refused with their path, what a property says before anything is written."""
    path = written(tmp_path, f=kind(value), w=np.ones(1))
    array = np.zeros(1)
    with pytest.raises(ckptfmt.InvalidError, match="the object at 'f/count") as caught:
        ckptfmt.Checkpoint(f=kind(value), w=array).read(path)
    assert caught.value.tensor is not None
    assert kind is not Fixed or array.tolist() == [0.0]


@pytest.mark.parametrize(
    ("stored", "target"),
    [
        (time.gmtime(0), time.gmtime(9)),
        ({"n": 1, "t": (time.gmtime(0),)}, {"n": 2, "t": (time.gmtime(9),)}),
        (os.stat_result(range(10)), os.stat_result([9] * 10)),
        (types.MappingProxyType({"get": 1}), types.MappingProxyType({"get": 2})),
        (types.MappingProxyType({"x": 1}), types.MappingProxyType({"x": 2})),
    ],
    ids=["struct_time", "nested", "stat_result", "a method's name", "proxy"],
)
def test_values_in_what_cannot_be_changed(tmp_path: Path, stored: Any, target: Any) -> None:
    """They are refused before anything is written."""
    path = written(tmp_path, s=stored, w=np.ones(2))
    array = np.zeros(2)
    with pytest.raises(ckptfmt.InvalidError, match="cannot be"):
        ckptfmt.Checkpoint(s=target, w=array).read(path)
    assert array.tolist() == [0.0, 0.0]


def test_a_mapping_over_its_attributes(tmp_path: Path) -> None:
    class Options(Mapping[str, Any]):
        def __init__(self, **values: Any) -> None:
            vars(self).update(values)

        def __getitem__(self, key: str) -> Any:
            return vars(self)[key]

        def __iter__(self) -> Iterator[str]:
            return iter(vars(self))

        def __len__(self) -> int:
            return len(vars(self))

    path = written(tmp_path, o=Options(rate=1.5, get=3))
    options = Options(rate=9.0, get=0)
    ckptfmt.Checkpoint(o=options).read(path)
    assert vars(options) == {"rate": 1.5, "get": 3}


def test_an_attribute_that_does_not_fit_leaves_the_value_waiting(tmp_path: Path) -> None:
    path = written(tmp_path, m=Module(), x=np.ones(2))
    checkpoint = ckptfmt.Checkpoint()
    checkpoint.read(path)
    with pytest.raises(ckptfmt.InvalidError, match=r"the object at 'x': "):
        checkpoint.x = np.zeros(3)
    checkpoint.x = np.zeros(2)
    assert checkpoint.x.tolist() == [1.0, 1.0]


def test_nothing_waits_after_a_restore_by_names_that_failed(tmp_path: Path) -> None:
    ckptfmt.save(tmp_path / "names", {"w": np.ones(2), "later": np.ones(1)})
    checkpoint = ckptfmt.Checkpoint(w=np.zeros(3))
    with pytest.raises(ckptfmt.InvalidError, match="the object at 'w': "):
        checkpoint.read(tmp_path / "names")
    checkpoint.later = np.zeros(1)
    assert checkpoint.later.tolist() == [0.0]


def test_tuples_whose_constructors_want_other_arguments(tmp_path: Path) -> None:
    class Twice(Pair):
        def __new__(cls, value: Any) -> Twice:
            return super().__new__(cls, value, value)

    class Noted(tuple):
        note = ""

    path = written(tmp_path, x=[Twice(3), (1, 2)])
    noted = Noted((0, 0))
    noted.note = "kept"
    checkpoint = ckptfmt.Checkpoint(x=[Twice(0), noted])
    checkpoint.read(path).assert_consumed()
    assert checkpoint.x == [(3, 3), (1, 2)]
    assert type(checkpoint.x[0]) is Twice and checkpoint.x[1].note == "kept"


# ---- graphs that are larger than the objects -----------------------------------------------------


def forged(tmp_path: Path, nodes: list[Node], **tensors: Any) -> str:
    """A checkpoint with this object graph."""
    content = np.array(encode_graph(ObjectGraph(nodes)), object)
    ckptfmt.save(tmp_path / "forged", {**tensors, OBJECT_GRAPH_KEY: content})
    return str(tmp_path / "forged")


def value(key: str) -> Node:
    return Node(attributes=[Attribute("VARIABLE_VALUE", "", key)])


def test_a_long_chain_of_nodes_around_one_cycle_costs_no_memory_squared(tmp_path: Path) -> None:
    """Every node is met with the object that holds itself, under a path that grows."""
    count = 2000
    nodes = [Node([("a", row + 1), ("b", row + 1), ("gone", count)]) for row in range(count)]
    path = forged(tmp_path, [*nodes, value("x")], x=np.ones(1))
    around: dict[str, Any] = {"n": 0, "t": (0,)}
    around.update(a=around, b=[])
    checkpoint = ckptfmt.Checkpoint(around)
    tracemalloc.start()
    with pytest.warns(ckptfmt.CkptfmtWarning, match="inconsistent references") as told:
        checkpoint.read(path, partial=True)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 << 20
    assert len(told) == 11
    assert f"{count - 10} more objects" in str(told[-1].message)


def test_a_place_of_two_nodes_gets_the_value_of_the_first(tmp_path: Path) -> None:
    nodes = [Node([("n", 1), ("a", 2)]), value("x"), Node([("n", 3)]), value("y")]
    path = forged(tmp_path, nodes, x=np.int64(1), y=np.int64(2))
    around: dict[str, Any] = {"n": 0}
    around["a"] = around
    ckptfmt.Checkpoint(around).read(path).assert_consumed()
    assert around["n"] == 1


def test_save_counter_takes_integers_only() -> None:
    checkpoint = ckptfmt.Checkpoint(a=np.zeros(1))
    checkpoint.save_counter = np.int32(7)
    for wrong, message in [
        (1.5, "save_counter must be an integer, not float"),
        ("3", "save_counter must be an integer, not str"),
        (np.zeros(2), "save_counter must be an integer, not ndarray"),
        (2**63, "save_counter must be between"),
    ]:
        with pytest.raises(ckptfmt.InvalidError, match=message):
            checkpoint.save_counter = wrong
    assert checkpoint.save_counter[()] == 7


class Anything(ckptfmt.Trackable):
    """Takes a tensor of any dtype by its own method."""

    def serialize_to_tensors(self) -> dict[str, Any]:
        return {"x": np.zeros(1)}

    def restore_from_tensors(self, tensors: dict[str, Any]) -> None:
        raise AssertionError("nothing can be read")


class Spec(Anything):
    def serialize_to_tensors(self) -> dict[str, Any]:
        return {"x": ckptfmt.SaveSpec(np.zeros(1), "", "x", "variant")}


@pytest.mark.parametrize(
    "target", [np.zeros(2), 1, "text", Anything(), Spec(), State(""), [np.zeros(3)]]
)
@pytest.mark.parametrize("size", [1 << 62, (1 << 63) - 1, 8])
def test_an_unknown_dtype_of_any_claimed_size(tmp_path: Path, target: Any, size: int) -> None:
    """A typed error, whatever the index claims, and no memory for the claim."""
    names = {"VARIABLE_VALUE", "x", "py_state"}
    attributes = [Attribute(name, "", f"t/.ATTRIBUTES/{name}") for name in sorted(names)]
    graph = encode_graph(ObjectGraph([Node([("t", 1)]), Node(attributes=attributes)]))
    value = ix.string_value([graph])
    rows = [
        (
            OBJECT_GRAPH_KEY.encode(),
            ix.entry(ix.STRING, (), size=len(value[0]), masked_crc=value[1]),
        )
    ]
    rows += [
        (a.checkpoint_key.encode(), ix.entry(134, [2], offset=0, size=size)) for a in attributes
    ]
    prefix = ix.write(tmp_path / "ck", table(*sorted(rows)), value[0])
    for strict in (None, True, False):
        checkpoint = ckptfmt.Checkpoint(t=target)
        try:
            checkpoint.read(prefix, strict=strict, partial=True)
        except ckptfmt.CkptfmtError:
            continue
        assert strict is False or isinstance(target, list)
    tree = {"t": TreeNode(attributes={"x": b"", "VARIABLE_VALUE": np.zeros(2)})}
    with pytest.raises(ckptfmt.CkptfmtError):
        load_tree_into(prefix, tree)


def test_tensors_that_the_graph_names_and_that_are_gone(tmp_path: Path) -> None:
    """As TensorFlow leaves them for an uninitialised variable."""
    ckptfmt.save_tree(
        tmp_path / "tree",
        {
            "a": np.ones(2),
            "b": [1, 2],
            "t": TreeNode(attributes={"table": {"-keys": np.zeros(1), "-values": np.ones(1)}}),
        },
    )
    tensors = ckptfmt.load(tmp_path / "tree")
    del tensors["b/0/.ATTRIBUTES/VARIABLE_VALUE"]
    ckptfmt.save(tmp_path / "part", tensors)
    for name, expected in (("tree", []), ("part", ["b/0/.ATTRIBUTES/VARIABLE_VALUE"])):
        with ckptfmt.open(tmp_path / name) as reader:
            graph = graph_of(reader)
            assert graph is not None
            assert missing_keys(reader, graph) == expected
    # What is there is restored; what is gone is missing.
    tree = {"a": np.zeros(2), "b": [5, 6]}
    status = ckptfmt.Checkpoint(a=tree["a"]).read(tmp_path / "part", partial=True)
    status.assert_existing_objects_matched()
    with pytest.raises(ckptfmt.TensorNotFoundError, match="b/0"):
        ckptfmt.Checkpoint(**tree).read(tmp_path / "part")
    report = load_tree_into(tmp_path / "part", tree, strict=False)
    assert (tree["b"], report.missing) == ([5, 2], ("b/0",))
