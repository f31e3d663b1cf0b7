# SPDX-License-Identifier: Apache-2.0
"""Trees come back as what they were: types, values, sharing, cycles; what cannot be saved is
refused with its path."""

from __future__ import annotations

import math
import random
import sys
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.arrays import CODES, assert_same, random_array, random_shape
from support.files import flip
from support.trees import assert_same_tree

import ckptfmt
from ckptfmt.bundle.graph import (
    OBJECT_GRAPH_KEY,
    Attribute,
    Node,
    ObjectGraph,
    attribute_key,
    decode_graph,
    encode_graph,
)
from ckptfmt.errors import InvalidError, UnsupportedError
from ckptfmt.objects.nodes import Slot, TreeNode
from ckptfmt.objects.trees import load_tree, save_tree
from ckptfmt.saving.parallel import ParallelVariable
from ckptfmt.sharded.coordinator import SingleProcess

keys = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=8)
    | st.binary(max_size=8)
)
arrays = st.builds(
    lambda seed, code: random_array(
        random.Random(seed), code, random_shape(random.Random(seed), 2, 3)
    ),
    st.integers(0, 2**32),
    st.sampled_from(CODES),
)
# The empty name of the root's child would make the root's own key.
trees = st.recursive(
    scalars | arrays,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)


def round_trip(tree: Any, folder: Path, **options: Any) -> Any:
    return load_tree(save_tree(folder / "ckpt", tree, durability="rename", **options))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(trees, st.sampled_from(["v2", "v2+"]))
def test_round_trips(tmp_path: Path, tree: Any, level: str) -> None:
    assert_same_tree(round_trip(tree, tmp_path, level=level), tree)


Point = namedtuple("Point", "x y")


@dataclass
class Settings:
    rate: float
    layers: list[int]


def test_an_unset_field_is_left_out(tmp_path: Path) -> None:
    unset = Settings.__new__(Settings)
    unset.rate = 0.5
    save_tree(tmp_path / "ckpt", {"settings": unset})
    assert load_tree(tmp_path / "ckpt") == {"settings": {"rate": 0.5}}


def test_kinds(tmp_path: Path) -> None:
    tree = {
        "int": [0, -1, 2**63 - 1, -(2**63), 2**64 - 1],
        "float": (0.5, math.inf, -0.0),
        "bool": [True, False],
        "text": ["", "ä\0b", "\udcff"],
        "bytes": [b"", b"\xff\0"],
        "none": None,
        "empty": [[], (), {}],
        "numbered": {"0": 1, "1": 2},
        "array": np.array(3),
    }
    found = round_trip(tree, tmp_path)
    assert_same_tree(found, tree)
    found = round_trip(
        OrderedDict(
            point=Point(1, np.zeros(2)),
            settings=Settings(0.5, [1]),
            proxy=MappingProxyType({"a": 1}),
            numpy=[np.float32(2), np.True_, np.True_],
        ),
        tmp_path,
    )
    expected = {
        "point": {"x": 1, "y": np.zeros(2)},
        "settings": {"rate": 0.5, "layers": [1]},
        "proxy": {"a": 1},
        "numpy": [np.array(2, np.float32), np.array(True), np.array(True)],
    }
    assert_same_tree(found, expected)


@pytest.mark.parametrize("root", [5, "text", None, [], (), {}, (1, [2]), np.arange(3), [None]])
def test_any_tree_may_be_the_root(tmp_path: Path, root: Any) -> None:
    assert_same_tree(round_trip(root, tmp_path), root)


def test_shared_objects_are_saved_once_under_the_shortest_path(tmp_path: Path) -> None:
    array, inner = np.arange(4.0), {"x": np.ones(2)}
    tree = {"deep": {"er": {"w": array}}, "list": [array, inner, inner], "tuple": (inner, [inner])}
    found = round_trip(tree, tmp_path)
    assert_same_tree(found, tree)
    assert found["deep"]["er"]["w"] is found["list"][0]
    with ckptfmt.open(tmp_path / "ckpt") as reader:
        assert [name for name in reader if name != OBJECT_GRAPH_KEY] == [
            "list/0/.ATTRIBUTES/VARIABLE_VALUE",
            "list/1/x/.ATTRIBUTES/VARIABLE_VALUE",
        ]


def test_cycles(tmp_path: Path) -> None:
    tree: dict[str, Any] = {"list": [1]}
    tree["self"] = tree
    tree["list"] += [tree["list"], (tree, (tree["list"],))]
    found = round_trip(tree, tmp_path)
    assert_same_tree(found, tree)
    assert found["self"] is found
    assert found["list"][2][1][0] is found["list"] is found["list"][1]


def test_a_long_chain_needs_no_deep_stack(tmp_path: Path) -> None:
    count = 10_000
    assert count > sys.getrecursionlimit()
    root: dict[str, Any] = {}
    at: Any = root
    for number in range(count):
        inner: Any = {} if number % 2 else []
        if isinstance(at, dict):
            at["n"] = inner
        else:
            at.append(inner)
        at = inner
    at["end"] = 7
    assert_same_tree(round_trip(root, tmp_path), root)


def test_metadata_and_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    tree = {"a": np.arange(30.0)}
    save_tree(tmp_path / "ckpt", tree, metadata={"epoch": 3}, progress=lambda *at: seen.append(at))
    with ckptfmt.open(tmp_path / "ckpt") as reader:
        assert reader.metadata == {"epoch": 3}
        assert seen[-1] == (240 + reader[OBJECT_GRAPH_KEY].read().item().__len__(),) * 2


def optimizer_tree() -> dict[str, Any]:
    kernel = np.ones((2, 3))
    value = TreeNode(
        {"part": np.arange(3)},
        attributes={"VARIABLE_VALUE": np.zeros(2), "py_state": np.array(b"{}", object)},
    )
    optimizer = TreeNode(
        {"step": np.array(3), "kernel": kernel},
        slots=[
            Slot(kernel, "m", np.full((2, 3), 2.0)),
            Slot(value, "m", np.full(2, 3.0)),
            Slot(kernel, "a/b", TreeNode(attributes={"VARIABLE_VALUE": np.ones(1)})),
        ],
    )
    return {"kernel": kernel, "optimizer": optimizer, "value": value}


def test_nodes_with_attributes_and_slots(tmp_path: Path) -> None:
    tree = optimizer_tree()
    found = round_trip(tree, tmp_path)
    # A node of nothing but a value is an array, and `TreeNode` where the tree has one.
    expected = dict(tree)
    expected["optimizer"].slots[2] = Slot(tree["kernel"], "a/b", np.ones(1))
    assert_same_tree(found, expected)
    assert_same_tree(round_trip(found, tmp_path), expected)
    with ckptfmt.open(tmp_path / "ckpt") as reader:
        assert "kernel/.OPTIMIZER_SLOT/optimizer/a.Sb/.ATTRIBUTES/VARIABLE_VALUE" in reader
        assert "value/.OPTIMIZER_SLOT/optimizer/m/.ATTRIBUTES/VARIABLE_VALUE" in reader
        stored = sorted(reader, key=lambda name: reader[name].offset or 0)
        assert stored[-2:] == ["value/.ATTRIBUTES/py_state", OBJECT_GRAPH_KEY]
        graph = decode_graph(reader[OBJECT_GRAPH_KEY].read().item())
    slots = [slot.slot_variable_node_id for node in graph.nodes for slot in node.slot_variables]
    assert slots == [len(graph.nodes) - 3 + i for i in range(3)]


def test_values_have_names_for_readers_of_names(tmp_path: Path) -> None:
    variable = np.zeros(1)
    optimizer = TreeNode(
        attributes={"VARIABLE_VALUE": np.zeros(2), "py_state": b"s"},
        slots=[Slot(variable, "m.1", np.ones(1))],
    )
    parallel = ParallelVariable([np.ones(1), np.zeros(1)])
    save_tree(tmp_path / "ckpt", {"o": optimizer, "d": {"x/y": [7, variable], "p": parallel}})
    graph = decode_graph(ckptfmt.load(tmp_path / "ckpt")[OBJECT_GRAPH_KEY].item())
    found = {a.checkpoint_key: a.full_name for node in graph.nodes for a in node.attributes}
    value = "/.ATTRIBUTES/VARIABLE_VALUE"
    assert {key: found.pop(key) for key in parallel.keys("d/p")[1:]} == {
        "d/p/.ATTRIBUTES/parallel_component_1": ""
    }
    assert found == {
        f"d/x.Sy/0{value}": "d/x/y/0",
        f"d/x.Sy/1{value}": "d/x/y/1",
        f"d/p{value}": "d/p",
        f"o{value}": "o",
        "o/.ATTRIBUTES/py_state": "",
        f"d/x.Sy/1/.OPTIMIZER_SLOT/o/m..1{value}": "d/x/y/1/m.1",
    }


def test_attributes_of_several_tensors(tmp_path: Path) -> None:
    table = {"-keys": np.array([b"a"], object), "-values": np.arange(1)}
    tree = {
        "t": TreeNode({"x": 1}, attributes={"table": table, "table-o": {"dd": np.ones(1)}}),
        "v": TreeNode(attributes={"VARIABLE_VALUE": {"_0": np.ones(1), "_1": np.ones(2)}}),
        "n": TreeNode(attributes={".TENSORS": {"one": np.ones(1)}}),
    }
    assert_same_tree(round_trip(tree, tmp_path), tree)
    with ckptfmt.open(tmp_path / "ckpt") as reader:
        assert [name for name in reader if name != OBJECT_GRAPH_KEY] == [
            "n/.ATTRIBUTES/one",
            "t/.ATTRIBUTES/table-keys",
            "t/.ATTRIBUTES/table-odd",
            "t/.ATTRIBUTES/table-values",
            "t/x/.ATTRIBUTES/VARIABLE_VALUE",
            "v/.ATTRIBUTES/VARIABLE_VALUE_0",
            "v/.ATTRIBUTES/VARIABLE_VALUE_1",
        ]
    found = load_tree(tmp_path / "ckpt", filter=lambda name: "values" in name or name == "t/x")
    assert_same_tree(
        found,
        {
            "t": TreeNode({"x": 1}, attributes={"table": {"-values": np.arange(1)}}),
            "v": TreeNode(),
            "n": TreeNode(),
        },
    )


def test_variants_stay_variants(tmp_path: Path) -> None:
    payloads = np.array([b"one", b"two"], object)
    with ckptfmt.Writer(tmp_path / "theirs") as writer:
        writer.add("it", payloads, "variant")
        writer.add("text", payloads)
    tree = load_tree(tmp_path / "theirs")
    assert_same_tree(tree, {"it": payloads, "text": payloads.copy()})
    save_tree(tmp_path / "ours", tree)
    with ckptfmt.open(tmp_path / "ours") as reader:
        dtypes = [reader[attribute_key(name)].dtype_code for name in tree]
        theirs = ckptfmt.open(tmp_path / "theirs")
        assert dtypes == [theirs[name].dtype_code for name in tree]
        theirs.close()
    assert_same_tree(load_tree(tmp_path / "ours"), tree)
    with pytest.raises(UnsupportedError, match=r"tensor 'it': variants cannot be saved on mesh"):
        save_tree(tmp_path / "mesh", tree, coordinator=SingleProcess())


def test_slots_may_be_of_the_tree_itself(tmp_path: Path) -> None:
    kernel, momentum = np.ones(2), np.zeros(2)
    optimizer = TreeNode({"m": momentum}, slots=[Slot(kernel, "m", momentum)])
    tree = {"kernel": kernel, "optimizer": optimizer}
    assert_same_tree(round_trip(tree, tmp_path), tree)


class Odd:
    def __repr__(self) -> str:
        return "odd"


def slots_of(*slots: Any) -> Any:
    return {"w": WEIGHT, "o": TreeNode(slots=slots)}


WEIGHT = np.ones(2)
REFUSED = {
    "int key": ({"a": [{3: 1}]}, r"at 'a/0' has a child named 3: keys and names must be str"),
    "int key of the root": ({3: 1}, r"the root object has a child named 3: keys"),
    "object": ({"a.b": {"c/d": Odd()}}, r"at 'a\.b/c/d' is of type Odd, which a tree"),
    "class": ({"a": Settings}, r"at 'a' is of type type, which a tree"),
    "set": ({"a": {1, 2}}, r"at 'a' is of type set, which a tree"),
    "complex": ({"a": 1j}, r"at 'a' is of type complex, which a tree"),
    "large int": ({"a": 2**64}, r"tensor 'a': an int must fit into int64"),
    "small int": ({"a": -(2**63) - 1}, r"an int must fit into int64 or uint64"),
    "lone surrogate": ({"a": "\ud800"}, r"tensor 'a': a str cannot be encoded"),
    "surrogate in a key": ({"\udcff": 1}, r"an object graph cannot hold the name"),
    "dtype": ({"a": np.array(["2020"], "M8[Y]")}, r"tensor 'a': dtype datetime64\[Y\] cannot"),
    "attribute": ({"a": TreeNode(attributes={3: WEIGHT})}, r"at 'a' has the attribute 3"),
    "tensors of an attribute": (
        {"a": TreeNode(attributes={"b": {"": WEIGHT}})},
        r"the attribute 'b' of the object at 'a' has a tensor ''",
    ),
    "foreign slot": (slots_of((np.ones(2), "m", WEIGHT)), r"at 'o' has the slot 'm' of a var"),
    "slot name": (slots_of((WEIGHT, 3, WEIGHT)), r"at 'o' has the slot 3: names must be str"),
    "slot twice": (
        slots_of((WEIGHT, "m", np.ones(1)), (WEIGHT, "m", np.ones(1))),
        r"at 'o' has the slot variable 'm' of the object at 'w' twice",
    ),
    "slot with children": (
        slots_of((WEIGHT, "m", {"a": 1})),
        r"'m' of the object at 'w' is of type dict: it must be a variable without",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_tree(tmp_path: Path, case: str) -> None:
    tree, message = REFUSED[case]
    with pytest.raises(InvalidError, match=message):
        save_tree(tmp_path / "ckpt", tree)
    assert list(tmp_path.iterdir()) == []


def test_two_objects_of_one_key(tmp_path: Path) -> None:
    root = TreeNode({"": np.ones(1)}, attributes={"VARIABLE_VALUE": np.ones(2)})
    with pytest.raises(InvalidError, match=r"tensor '/.ATTRIBUTES/.*two objects have"):
        save_tree(tmp_path / "ckpt", root)


def test_registered_savers_are_refused(tmp_path: Path) -> None:
    tree = {"a": [TreeNode(registered_saver=("pkg.one", "a"))]}
    with pytest.raises(UnsupportedError, match=r"was saved by the registered saver 'pkg.one'"):
        save_tree(tmp_path / "ckpt", tree)


def test_arguments_that_do_not_go_together(tmp_path: Path) -> None:
    for save in (save_tree, ckptfmt.save_tree_async):
        with pytest.raises(InvalidError, match="layouts need a coordinator"):
            save(tmp_path / "ckpt", {}, layouts={})
        with pytest.raises(InvalidError, match="coordinator and progress exclude"):
            save(tmp_path / "ckpt", {}, coordinator=SingleProcess(), progress=print)
    save_tree(tmp_path / "ckpt", {"a": 1})
    with pytest.raises(InvalidError, match="layouts need a coordinator"):
        load_tree(tmp_path / "ckpt", layouts={})
    with pytest.raises(InvalidError, match=r"filter must be a glob pattern, .*, not int"):
        load_tree(tmp_path / "ckpt", filter=3)  # type: ignore[arg-type]


# ---- what is loaded ------------------------------------------------------------------------------


def test_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    save_tree(tmp_path / "ckpt", {"a": np.arange(1000.0), "b": np.ones(3)}, durability="none")
    flip(tmp_path / "ckpt.data-00000-of-00001", 100)
    assert_same(load_tree(tmp_path / "ckpt", filter=lambda name: name != "a")["b"], np.ones(3))
    with pytest.raises(ckptfmt.CorruptError):
        load_tree(tmp_path / "ckpt")


def test_names_without_a_graph(tmp_path: Path) -> None:
    a, b, c = (np.full(2, i) for i in range(3))
    ckptfmt.save(tmp_path / "ckpt", {"m/0": a, "m/1": b, "/x": c, "m/1/Adam/v": c, "m/1!": a})
    expected = {
        "": {"x": c},
        "m": {
            "0": a,
            "1": TreeNode({"Adam": {"v": c}}, attributes={"VARIABLE_VALUE": b}),
            "1!": a.copy(),
        },
    }
    found = load_tree(tmp_path / "ckpt")
    assert_same_tree(found, {**expected, "": {"x": c.copy()}})
    found = load_tree(tmp_path / "ckpt", filter=lambda name: name == "m/1!")
    assert_same_tree(found, {"m": {"1!": a}})
    found = load_tree(tmp_path / "ckpt")
    assert_same_tree(round_trip(found, tmp_path / "again"), found)
    ckptfmt.save(tmp_path / "deep", {"a" + "/" * 100_000: a})
    assert load_tree(tmp_path / "deep").keys() == {"a"}


def test_background_saves_of_trees(tmp_path: Path) -> None:
    array = np.arange(4.0)
    seen: list[tuple[int, int]] = []
    for graph in (True, False):
        future = ckptfmt.save_tree_async(
            tmp_path / "ckpt",
            {"a": array},
            metadata={"epoch": 3},
            durability="none",
            progress=lambda *at: seen.append(at),
            graph=graph,
        )
        array += 1
        assert future.result(600) == str(tmp_path / "ckpt")
        with ckptfmt.open(tmp_path / "ckpt") as reader:
            assert reader.metadata == {"epoch": 3}
            assert (OBJECT_GRAPH_KEY in reader) == graph
        assert load_tree(tmp_path / "ckpt")["a"].tolist() == (array - 1).tolist()
    assert seen[-1] == (32, 32)


def test_names_of_a_loaded_tree_are_kept(tmp_path: Path) -> None:
    """As of a model of Keras, whose layers have two names each."""
    layer = {"kernel": np.ones(2)}
    save_tree(tmp_path / "a", {"layer_with_weights-0": layer, "layer-1": layer, "b": np.zeros(1)})
    before = list(ckptfmt.open(tmp_path / "a"))
    assert "layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE" in before
    save_tree(tmp_path / "b", load_tree(tmp_path / "a"))
    assert list(ckptfmt.open(tmp_path / "b")) == before


def test_without_a_graph(tmp_path: Path) -> None:
    stored = {"w": np.ones(2), "w/Adam": np.zeros(2), "a//b": np.array(3), "/c": np.array([b"x"])}
    ckptfmt.save(tmp_path / "a", stored)
    save_tree(tmp_path / "b", load_tree(tmp_path / "a"), graph=False, metadata={"epoch": 1})
    found = ckptfmt.load(tmp_path / "b")
    assert found.keys() == stored.keys()
    for name, array in stored.items():
        np.testing.assert_array_equal(found[name], array)
    cycle: dict[str, Any] = {"a": {}}
    cycle["a"]["b"] = cycle
    other = TreeNode(attributes={"other": np.ones(1)})
    trees: list[Any] = [[1], {"a": [1]}, {"a": None}, {1: np.ones(1)}, np.ones(1), {"a": other}]
    for tree in (*trees, cycle):
        with pytest.raises(InvalidError, match="needs an object graph"):
            save_tree(tmp_path / "c", tree, graph=False)
    with pytest.raises(InvalidError, match="two arrays of the tree have this name") as caught:
        save_tree(tmp_path / "c", {"a": {"b": 1}, "a/b": 2}, graph=False)
    assert caught.value.tensor == "a/b"
    with pytest.raises(InvalidError, match="coordinator and graph=False exclude each other"):
        save_tree(tmp_path / "c", {}, graph=False, coordinator=SingleProcess())


VALUE = "/.ATTRIBUTES/VARIABLE_VALUE"
SUFFIXES = ["", VALUE, "/.ATTRIBUTES/x", "/.ATTRIBUTES"]


def test_without_a_graph_options_use_stored_names(tmp_path: Path) -> None:
    """Also names that look like keys of a graph."""
    stored = {f"m/w{end}": np.full((2, 3), i + 0.5) for i, end in enumerate(SUFFIXES)}
    ckptfmt.save(tmp_path / "ckpt", stored)
    save_tree(tmp_path / "again", load_tree(tmp_path / "ckpt"), graph=False)
    found = ckptfmt.load(tmp_path / "again")
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in stored.items()
    }
    for name, array in stored.items():
        rename = {name: ("v", np.transpose)}
        wants: list[dict[str, Any]] = [{"names": [name]}, {"filter": name}]
        for want in wants:
            given = {**want, "rename": rename, "cast": {name: "float32"}}
            (one,) = load_tree(tmp_path / "ckpt", **given).values()
            assert one.dtype == np.float32
            assert one.tolist() == array.T.tolist()
            tree = {"v": np.zeros((3, 2), np.float32)}
            report = ckptfmt.load_tree_into(tmp_path / "ckpt", tree, **given)
            assert report.matched == ("v",)
            assert tree["v"].tolist() == array.T.tolist()
        tree = {"v": np.zeros(7)}
        report = ckptfmt.load_tree_into(tmp_path / "ckpt", tree, strict=False, rename={name: "v"})
        assert [one.stored_name for one in report.shape_mismatch] == [name]
        assert sorted(report.unexpected) == sorted(stored.keys() - {name})


def test_two_keys_of_one_leaf_in_a_graph(tmp_path: Path) -> None:
    graph = ObjectGraph(
        [
            Node(children=[("a", 1), ("b", 2)]),
            Node(attributes=[Attribute("VARIABLE_VALUE", "w", "w")]),
            Node(attributes=[Attribute("VARIABLE_VALUE", "w", "w" + VALUE)]),
        ]
    )
    tensors = {"w": np.ones(1), "w" + VALUE: np.zeros(1), OBJECT_GRAPH_KEY: encode_graph(graph)}
    ckptfmt.save(tmp_path / "ckpt", tensors)
    with pytest.raises(ckptfmt.CorruptError, match=f"'w' and 'w{VALUE}'"):
        load_tree(tmp_path / "ckpt")
