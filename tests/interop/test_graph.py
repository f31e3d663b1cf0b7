# SPDX-License-Identifier: Apache-2.0
"""Object graphs of TensorFlow's are decoded, and encoded again to the byte; equal trees have equal
graphs; and TensorFlow restores graphs with kinds."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

import ckptfmt
from ckptfmt.bundle.graph import (
    OBJECT_GRAPH_KEY,
    ObjectGraph,
    decode_graph,
    encode_graph,
    mark_checkpoint_values,
)
from ckptfmt.objects import serializing
from ckptfmt.objects.traversal import TreeView

from .generate import seed_from_environment
from .trees import Nodes, Ours, ask_about, random_tree

COUNT = 60
Theirs = tuple[Path, dict[str, Nodes]]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Theirs:
    """A folder with one checkpoint a tree, and the trees."""
    rng = random.Random(f"graphs {seed_from_environment()}")
    folder = tmp_path_factory.mktemp("theirs")
    trees = {f"tree{number}": random_tree(rng) for number in range(COUNT)}
    ask_about(trees, "write", folder)
    return folder, trees


def content_of(prefix: Path) -> bytes:
    with ckptfmt.open(prefix) as reader:
        content = reader[OBJECT_GRAPH_KEY].read().item()
    assert isinstance(content, bytes)
    return content


def without_kinds(graph: ObjectGraph) -> ObjectGraph:
    for node in graph.nodes:
        node.kind = None
        for attribute in node.attributes:
            attribute.full_name = ""
    return graph


def test_graphs_are_encoded_again_to_the_byte(theirs: Theirs) -> None:
    folder, trees = theirs
    seen: Counter[str] = Counter()
    for name in trees:
        content = content_of(folder / name)
        graph = decode_graph(content)
        assert encode_graph(graph) == content
        marked = decode_graph(content)
        for node in marked.nodes:
            node.has_checkpoint_values = None
        mark_checkpoint_values(marked)
        assert encode_graph(marked) == content
        seen["slots"] += any(node.slot_variables for node in graph.nodes)
        seen["empty"] += any(node.has_checkpoint_values is False for node in graph.nodes)
        edges = [child for node in graph.nodes for _, child in node.children]
        seen["shared"] += len(set(edges)) < len(edges)
        seen["cycles"] += 0 in edges or any(
            child <= parent for parent, node in enumerate(graph.nodes) for _, child in node.children
        )
    assert min(seen.values()) > COUNT // 10, seen
    assert len(seen) == 4


def test_equal_trees_have_equal_graphs_and_places(theirs: Theirs, tmp_path: Path) -> None:
    folder, trees = theirs
    for name, nodes in trees.items():
        ours = serializing.content_of(TreeView(Ours(nodes, tuples=True).root))
        assert without_kinds(decode_graph(ours.graph)) == without_kinds(
            decode_graph(content_of(folder / name))
        )
        with ckptfmt.open(folder / name) as reader:
            keys = [key for key in reader if key != OBJECT_GRAPH_KEY]
            stored = sorted(keys, key=lambda key: reader[key].offset or 0)
            # Those of no bytes tell nothing of their order.
            assert [k for k in ours.tensors if reader[k].nbytes] == [
                k for k in stored if reader[k].nbytes
            ]


def test_tensorflow_restores_graphs_with_kinds(theirs: Theirs, tmp_path: Path) -> None:
    folder, trees = theirs
    for name in trees:
        graph = decode_graph(content_of(folder / name))
        for number, node in enumerate(graph.nodes):
            node.kind = ("dict", "list", "tuple", "int", "none")[number % 5]
        tensors = ckptfmt.load(folder / name)
        tensors[OBJECT_GRAPH_KEY][()] = encode_graph(graph)
        ckptfmt.save(tmp_path / name, tensors, durability="rename")
    restored = ask_about(trees, "read", tmp_path)
    for name, nodes in trees.items():
        variables = {str(i): node["variable"] for i, node in enumerate(nodes) if "variable" in node}
        assert restored[name] == variables
