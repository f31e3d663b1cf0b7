# SPDX-License-Identifier: Apache-2.0
"""From an object graph, or from bare names, to a tree.

A graph is not trusted: it may have cycles, millions of nodes in a row, and kinds that its nodes do
not have. Nothing here recurses, and what it costs is linear in the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ckptfmt.bundle.reader import Reader
from ckptfmt.dtypes import STRING
from ckptfmt.errors import CorruptError, InvalidError
from ckptfmt.objects.graph import OBJECT_GRAPH_KEY, VARIABLE_VALUE, Node, ObjectGraph
from ckptfmt.objects.nodes import (
    CONTAINERS,
    NONE,
    SCALARS,
    Slot,
    TreeNode,
    scalar_value,
)

__all__ = [
    "OMITTED",
    "build",
    "from_names",
    "key_groups",
    "reachable",
    "read_graph_bytes",
    "wanted_keys",
]

ARRAY, OBJECT = "array", "object"
# Deeper names are not split any further; a name may have a slash in every byte.
DEPTH_MAX = 1000
# What the names of an attribute's tensors have behind its key is no longer than this.
SUFFIX_MAX = 256


class _Omitted:
    """Stands for a leaf that is not wanted or not there, until its container is filled."""


OMITTED = _Omitted()


def read_graph_bytes(reader: Reader) -> bytes:
    """The object graph of a checkpoint that has one, undecoded.

    Raises:
        CorruptError: the tensor of its name is no string.
    """
    handle = reader[OBJECT_GRAPH_KEY]
    if handle.dtype_name != STRING or handle.shape:
        raise CorruptError(
            f"OBJ-1: the object graph is {handle.dtype_name}{list(handle.shape)}, not one string",
            failure="BAD_ENTRY",
            path=reader.prefix,
            tensor=OBJECT_GRAPH_KEY,
        )
    content: bytes = handle.read().item()
    return content


def _is_numbered(node: Node) -> bool:
    """Whether the children have the names of a list's, whatever their order."""
    count = len(node.children)
    return {name for name, _ in node.children} == set(map(str, range(count)))


def kind_of(node: Node, node_id: int, path: str | None = None) -> str:
    """What a node becomes: its kind, "array", or "object" for a TreeNode.

    Raises:
        CorruptError: a node that is not what its kind says.
    """
    bare = not node.slot_variables and node.registered_saver is None
    one_value = bare and not node.children and [a.name for a in node.attributes] == [VARIABLE_VALUE]
    container = bare and not node.attributes
    numbered = _is_numbered(node) if container else False
    kind = node.kind
    if kind in CONTAINERS or kind in SCALARS or kind == NONE:
        sound = (
            (kind in SCALARS and one_value)
            or (kind == "dict" and container)
            or (kind in CONTAINERS and numbered)
            or (kind == NONE and container and not node.children)
        )
        if not sound:
            raise CorruptError(
                f"OBJ-13: node {node_id} of the object graph is said to be a {kind}, and is none",
                failure="BAD_PROTO",
                path=path,
                tensor=OBJECT_GRAPH_KEY,
            )
        return kind
    if one_value:
        return ARRAY
    if not container:
        return OBJECT
    return "list" if numbered and node.children else "dict"


def reachable(graph: ObjectGraph) -> list[int]:
    """The nodes that the root leads to over children and slot variables, breadth first."""
    seen = bytearray(len(graph.nodes))
    seen[0] = 1
    found = [0]
    for node_id in found:
        node = graph.nodes[node_id]
        following = [child for _, child in node.children]
        for slot in node.slot_variables:
            following += (slot.original_variable_node_id, slot.slot_variable_node_id)
        for one in following:
            if not seen[one]:
                seen[one] = 1
                found.append(one)
    return found


def wanted_keys(graph: ObjectGraph, found: Iterable[int]) -> list[str]:
    """The keys of these nodes, each once."""
    keys = (one.checkpoint_key for node_id in found for one in graph.nodes[node_id].attributes)
    return list(dict.fromkeys(keys))


def key_groups(keys: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """The tensors of keys that are none themselves: those whose names go on behind the key, without
    a slash, and behind no longer one of the keys.

    TensorFlow's objects with several tensors have one key in the graph: the names in the checkpoint
    are `<key>-keys` and `<key>-values` for a table.
    """
    found: dict[str, list[str]] = {key: [] for key in keys if "/" in key}
    for name in names if found else ():
        for cut in range(1, min(SUFFIX_MAX, len(name) - 1 - name.rfind("/")) + 1):
            if name[:-cut] in found:
                found[name[:-cut]].append(name)
                break
    return {key: group for key, group in found.items() if group}


def build(
    graph: ObjectGraph,
    found: list[int],
    tensors: Mapping[str, Any],
    groups: Mapping[str, list[str]],
    path: str | None = None,
) -> Any:
    """The tree of a graph.

    Args:
        graph: the graph.
        found: the nodes that the root leads to.
        tensors: key to array; a key that is not there is left out of the tree: lists and tuples
            have None in its place.
        groups: the tensors of keys that are several.
        path: the checkpoint, for errors.

    Raises:
        CorruptError: kinds that contradict the nodes or the tensors, or tuples in a cycle of their
            own.
    """
    return _Builder(graph, tensors, groups, path).build(found)


class _Builder:
    def __init__(
        self,
        graph: ObjectGraph,
        tensors: Mapping[str, Any],
        groups: Mapping[str, list[str]],
        path: str | None,
    ) -> None:
        self.nodes, self.tensors, self.groups, self.path = graph.nodes, tensors, groups, path
        self.objects: dict[int, Any] = {}

    def build(self, found: list[int]) -> Any:
        kinds = {node_id: kind_of(self.nodes[node_id], node_id, self.path) for node_id in found}
        for node_id, kind in kinds.items():
            if kind != "tuple":
                self.objects[node_id] = self.made(self.nodes[node_id], kind)
        self.make_tuples([node_id for node_id in found if kinds[node_id] == "tuple"])
        for node_id, kind in kinds.items():
            self.fill(self.nodes[node_id], kind, self.objects[node_id])
        root = self.objects[0]
        return None if root is OMITTED else root

    def made(self, node: Node, kind: str) -> Any:
        """The object of a node; a container without its children."""
        if kind == ARRAY or kind in SCALARS:
            key = node.attributes[0].checkpoint_key
            array = self.tensors.get(key, OMITTED)
            if kind == ARRAY and key in self.groups:
                return self.object_of(node)
            if array is OMITTED or kind == ARRAY:
                return array
            try:
                return scalar_value(kind, array)
            except InvalidError as error:
                message = f"OBJ-13: {error.message}"
                raise CorruptError(
                    message, failure="BAD_PROTO", path=self.path, tensor=key
                ) from None
        if kind == NONE:
            return None
        if kind == "list":
            return []
        if kind == "dict":
            return {}
        return self.object_of(node)

    def object_of(self, node: Node) -> TreeNode:
        made = TreeNode(registered_saver=node.registered_saver)
        for one in node.attributes:
            key = one.checkpoint_key
            group = [name for name in self.groups.get(key, ()) if name in self.tensors]
            if key in self.tensors:
                made.attributes[one.name] = self.tensors[key]
            elif group:
                made.attributes[one.name] = {name[len(key) :]: self.tensors[name] for name in group}
        return made

    def items(self, node: Node) -> list[Any]:
        """The elements of a list or tuple in their order."""
        ordered: list[Any] = [None] * len(node.children)
        for name, child in node.children:
            value = self.objects[child]
            ordered[int(name)] = None if value is OMITTED else value
        return ordered

    def make_tuples(self, tuples: list[int]) -> None:
        """Tuples cannot be filled later: each is made once all tuples in it are."""
        inside: dict[int, list[int]] = {}
        missing: dict[int, int] = {}
        members = set(tuples)
        for node_id in tuples:
            inner = [child for _, child in self.nodes[node_id].children if child in members]
            missing[node_id] = len(inner)
            for child in inner:
                inside.setdefault(child, []).append(node_id)
        ready = [node_id for node_id in tuples if not missing[node_id]]
        for node_id in ready:
            self.objects[node_id] = tuple(self.items(self.nodes[node_id]))
            for outer in inside.get(node_id, ()):
                missing[outer] -= 1
                if not missing[outer]:
                    ready.append(outer)
        if len(ready) < len(tuples):
            lost = next(node_id for node_id in tuples if node_id not in self.objects)
            raise CorruptError(
                f"OBJ-13: node {lost} of the object graph is said to be a tuple that holds itself",
                failure="BAD_PROTO",
                path=self.path,
                tensor=OBJECT_GRAPH_KEY,
            )

    def fill(self, node: Node, kind: str, target: Any) -> None:
        if kind == "list":
            target.extend(self.items(node))
        elif kind in ("dict", OBJECT):
            for name, child in node.children:
                value = self.objects[child]
                if value is not OMITTED:
                    target[name] = value
        for slot in node.slot_variables:
            variable = self.objects[slot.original_variable_node_id]
            value = self.objects[slot.slot_variable_node_id]
            if variable is not OMITTED and value is not OMITTED:
                target.slots.append(Slot(variable, slot.slot_name, value))


def from_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """The tree of a checkpoint without a graph: names split at slashes.

    A name that is a part of others as well (`w` and `w/Adam`) is a TreeNode with the tensor as its
    value.
    """
    root: dict[str, Any] = {}
    containers = {id(root)}

    def hold(target: dict[str, Any], name: str, container: dict[str, Any]) -> dict[str, Any]:
        target[name] = container
        containers.add(id(container))
        return container

    for name, array in tensors.items():
        *branches, last = name.split("/", DEPTH_MAX)
        target = root
        for branch in branches:
            there = target.get(branch)
            if branch not in target:
                target = hold(target, branch, {})
            elif id(there) in containers:
                target = target[branch]
            else:
                target = hold(target, branch, TreeNode(attributes={VARIABLE_VALUE: there}))
        if last in target:
            hold(target, last, TreeNode(target[last], attributes={VARIABLE_VALUE: array}))
        else:
            target[last] = array
    return root
