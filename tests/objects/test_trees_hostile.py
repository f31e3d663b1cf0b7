# SPDX-License-Identifier: Apache-2.0
"""Malformed graphs: those that describe a tree give that tree, all others a typed error."""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.trees import assert_same_tree

import ckptfmt
from ckptfmt.bundle.graph import (
    OBJECT_GRAPH_KEY,
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    encode_graph,
)
from ckptfmt.errors import CkptfmtError, CorruptError, TensorNotFoundError
from ckptfmt.objects.nodes import Slot, TreeNode
from ckptfmt.objects.trees import load_tree, save_tree

TENSORS = {
    "v": np.arange(2.0),
    "int": np.array(7),
    "float": np.array(0.5, np.float32),
    "bool": np.array(True),
    "text": np.array(b"\xff", object),
    "ints": np.arange(3),
}


def leaf(key: str, kind: str | None = None, name: str = "VARIABLE_VALUE") -> Node:
    return Node([], [Attribute(name, "", key)], kind=kind)


def write(prefix: Path, *nodes: Node) -> Path:
    content = {OBJECT_GRAPH_KEY: encode_graph(ObjectGraph(list(nodes)))}
    ckptfmt.save(prefix, {**TENSORS, **content}, durability="none")
    return prefix


def both(first: Node, second: Node) -> list[Node]:
    return [Node([("a", 1), ("b", 2)]), first, second]


def test_a_key_may_have_any_name_and_any_number_of_nodes(tmp_path: Path) -> None:
    found = load_tree(write(tmp_path / "ckpt", *both(leaf("v"), leaf("v"))))
    assert found["a"] is found["b"]
    assert_same_tree(found["a"], TENSORS["v"])


def test_tensors_outside_the_graph_are_left_alone(tmp_path: Path) -> None:
    assert load_tree(write(tmp_path / "ckpt", Node())) == {}


def test_nodes_that_the_root_does_not_lead_to_are_not_read(tmp_path: Path) -> None:
    found = load_tree(write(tmp_path / "ckpt", Node([("a", 0)]), leaf("nothing"), Node([("b", 1)])))
    assert found["a"] is found
    assert len(found) == 1


@pytest.mark.parametrize("key", ["nothing", "", "_CKPTFMT_METADATA", "v\0"])
def test_keys_that_are_missing(tmp_path: Path, key: str) -> None:
    write(tmp_path / "ckpt", *both(leaf(key), leaf("v")))
    with pytest.raises(TensorNotFoundError) as caught:
        load_tree(tmp_path / "ckpt")
    assert caught.value.tensor == (key or None)
    assert_same_tree(load_tree(tmp_path / "ckpt", strict=False), {"b": TENSORS["v"]})


def test_the_graph_as_a_leaf_of_its_own(tmp_path: Path) -> None:
    found = load_tree(write(tmp_path / "ckpt", leaf(OBJECT_GRAPH_KEY)))
    assert found.item() == encode_graph(ObjectGraph([leaf(OBJECT_GRAPH_KEY)]))


def test_cycles_of_all_containers(tmp_path: Path) -> None:
    optimizer = Node([("up", 0)], [], [SlotVariable(1, "m", 1)])
    nodes = [
        Node([("0", 0), ("1", 1), ("2", 2), ("3", 3)]),
        optimizer,
        Node([("1", 2), ("0", 0)]),
        Node([("0", 0)], kind="tuple"),
    ]
    found = load_tree(write(tmp_path / "ckpt", *nodes))
    expected: list[Any] = []
    node = TreeNode({"up": expected})
    node.slots.append(Slot(node, "m", node))
    inner = [expected]
    inner.append(inner)  # type: ignore[arg-type]
    expected += [expected, node, inner, (expected,)]
    assert_same_tree(found, expected)


CONTRADICTIONS = {
    "tuple in itself": [Node([("0", 0)], kind="tuple")],
    "tuples in each other": [Node([("0", 1)], kind="tuple"), Node([("0", 0)], kind="tuple")],
    "list with a hole": [Node([("1", 0)], kind="list")],
    "list of names": [Node([("a", 0)], kind="list")],
    "list of odd numbers": [Node([("00", 0)], kind="list")],
    "tuple with a tensor": [leaf("v", "tuple")],
    "dict with a tensor": [leaf("v", "dict")],
    "dict with slots": [Node([], [], [SlotVariable(0, "m", 0)], kind="dict")],
    "int without a value": [Node(kind="int")],
    "int with another attribute": [leaf("int", "int", "py_state")],
    "int with children": [Node([("a", 0)], leaf("int").attributes, kind="int")],
    "none with children": [Node([("a", 0)], kind="none")],
    "none with a value": [leaf("v", "none")],
    "registered list": [Node(registered_saver=("a.b", "c"), kind="list")],
}


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_kinds_that_contradict_their_nodes(tmp_path: Path, case: str) -> None:
    nodes = CONTRADICTIONS[case]
    write(tmp_path / "ckpt", *nodes)
    with pytest.raises(CorruptError, match=f"has the kind '{nodes[0].kind}") as caught:
        load_tree(tmp_path / "ckpt")
    assert caught.value.message.startswith("OBJ-13: ") and caught.value.failure == "BAD_PROTO"
    assert caught.value.tensor == OBJECT_GRAPH_KEY
    assert caught.value.path == str(tmp_path / "ckpt")


@pytest.mark.parametrize(
    ("kind", "key"),
    [("int", "float"), ("int", "ints"), ("float", "int"), ("bool", "int"), ("str", "int")],
)
def test_kinds_that_contradict_their_tensors(tmp_path: Path, kind: str, key: str) -> None:
    write(tmp_path / "ckpt", leaf(key, kind))
    with pytest.raises(CorruptError, match=f"a tensor of dtype .* for one {kind}") as caught:
        load_tree(tmp_path / "ckpt")
    assert caught.value.message.startswith("OBJ-13: ") and caught.value.failure == "BAD_PROTO"
    assert caught.value.tensor == key


def test_kinds_that_are_unknown_count_for_nothing(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", Node([("0", 1)], kind="deque"), leaf("int", "decimal"))
    assert_same_tree(load_tree(tmp_path / "ckpt"), [TENSORS["int"]])


def test_scalars_of_other_widths_and_texts_of_other_bytes(tmp_path: Path) -> None:
    write(tmp_path / "ckpt", *both(leaf("float", "float"), leaf("text", "str")))
    assert load_tree(tmp_path / "ckpt") == {"a": 0.5, "b": "\udcff"}


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (np.array(3), r"int64\[\]"),
        (np.array([b"a"], object), r"string\[1\]"),
        (np.array([], object), r"string\[0\]"),
        (np.zeros(2, np.uint8), r"uint8\[2\]"),
    ],
)
def test_a_graph_that_is_no_string(tmp_path: Path, value: Any, found: str) -> None:
    ckptfmt.save(tmp_path / "ckpt", {OBJECT_GRAPH_KEY: value})
    message = f"^OBJ-1: the object graph is {found}, not one string$"
    for read in (load_tree, ckptfmt.Checkpoint().restore):
        with pytest.raises(CorruptError) as caught:
            read(tmp_path / "ckpt")
        assert re.match(message, caught.value.message)
        assert (caught.value.failure, caught.value.tensor) == ("BAD_ENTRY", OBJECT_GRAPH_KEY)


def test_a_graph_in_a_variant(tmp_path: Path) -> None:
    with ckptfmt.Writer(tmp_path / "ckpt") as writer:
        writer.add(
            OBJECT_GRAPH_KEY, np.array(encode_graph(ObjectGraph([Node()])), object), "variant"
        )
    with pytest.raises(CorruptError, match=r"^BAD_ENTRY.*OBJ-1: .* is variant\[\], not"):
        load_tree(tmp_path / "ckpt")


def test_damaged_graphs_end_in_typed_errors(tmp_path: Path, seed: int) -> None:
    rng = random.Random(f"trees {seed}")
    kernel = np.ones(2)
    optimizer = TreeNode({"k": kernel}, attributes={"s": kernel}, slots=[Slot(kernel, "m", kernel)])
    tree = {"a": [1, (2.5, "x"), {}], "o": optimizer, "k": kernel}
    save_tree(tmp_path / "ckpt", tree, durability="none")
    tensors: dict[str, Any] = dict(ckptfmt.load(tmp_path / "ckpt"))
    content = tensors[OBJECT_GRAPH_KEY].item()
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        tensors[OBJECT_GRAPH_KEY] = bytes(damaged)
        ckptfmt.save(tmp_path / "bad", tensors, durability="none")
        try:
            load_tree(tmp_path / "bad")
        except CkptfmtError:
            refused += 1
    assert 100 < refused < 400


def test_a_long_chain_of_tuples_and_slots(tmp_path: Path) -> None:
    count = 5_000
    nodes = [Node([("0", number + 1)], kind="tuple") for number in range(count)]
    found = load_tree(write(tmp_path / "tuples", *nodes, leaf("v")))
    for _ in range(count):
        (found,) = found
    assert_same_tree(found, TENSORS["v"])
    nodes = [Node([], [], [SlotVariable(0, "m", number + 1)]) for number in range(count)]
    found = root = load_tree(write(tmp_path / "slots", *nodes, leaf("v")))
    for _ in range(count):
        ((variable, _, found),) = found.slots
        assert variable is root
    assert_same_tree(found, TENSORS["v"])


def test_nodes_with_one_key_share_their_tensors(tmp_path: Path) -> None:
    """Memory is linear in the file if many nodes name one key that stands for several tensors."""
    nodes = [Node([], [Attribute("VARIABLE_VALUE", "", "p/x")]) for _ in range(3)]
    nodes[0].children = [("a", 1), ("b", 2)]
    graph = np.array(encode_graph(ObjectGraph(nodes)), object)
    names = [OBJECT_GRAPH_KEY, "p/x1", "p/x2"]
    ckptfmt.save_v2(tmp_path / "m", names, [""] * 3, [graph, np.zeros(2), np.ones(2)])
    root = load_tree(tmp_path / "m")
    first, second = (root[name].attributes["VARIABLE_VALUE"] for name in "ab")
    assert first is second
    assert sorted(first) == ["1", "2"]
