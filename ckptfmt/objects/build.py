# SPDX-License-Identifier: Apache-2.0
"""Building a tree from an object graph or from names, and checking a graph against the tensors.

A graph is not trusted: it may have cycles, chains of millions of nodes, and kinds that contradict
its nodes. Nothing here recurses, and the cost is linear in the graph.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ckptfmt.bundle.reader import Reader
from ckptfmt.dtypes import STRING
from ckptfmt.errors import CorruptError, InvalidError, LimitError, UnsupportedError
from ckptfmt.objects.graph import (
    ATTRIBUTES,
    OBJECT_CONFIG_JSON,
    OBJECT_GRAPH_KEY,
    VARIABLE_VALUE,
    Node,
    ObjectGraph,
    decode_graph,
)
from ckptfmt.objects.nodes import (
    CONTAINERS,
    NONE,
    SCALARS,
    Slot,
    TreeNode,
    scalar_value,
)
from ckptfmt.objects.traversal import described, is_array

__all__ = [
    "OMITTED",
    "build",
    "from_names",
    "graph_of",
    "key_groups",
    "missing_keys",
    "missing_tensors",
    "reachable",
    "read_graph_bytes",
    "to_names",
    "wanted_keys",
]

ARRAY, OBJECT = "array", "object"
# Deeper names are not split further: every byte of a name may be a slash.
DEPTH_MAX = 1000
# The longest suffix that the names of an attribute's tensors add to its key.
SUFFIX_MAX = 256


class _Omitted:
    """Stands for a leaf that is excluded or missing, until its container is filled."""


OMITTED = _Omitted()


def read_graph_bytes(reader: Reader) -> bytes:
    """Return the encoded object graph of a checkpoint that has one.

    Raises:
        CorruptError: the tensor of that name is not a string.
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


def graph_of(reader: Reader) -> ObjectGraph | None:
    """Return the object graph of a checkpoint; None if it has none."""
    if OBJECT_GRAPH_KEY not in reader:
        return None
    return decode_graph(read_graph_bytes(reader), reader.prefix)


def missing_keys(reader: Reader, graph: ObjectGraph) -> list[str]:
    """Return the tensors that the object graph names and the checkpoint does not have.

    TensorFlow saves an uninitialised variable so: its object is in the graph, its value is not
    stored. Restoring it fails, restoring the other objects does not. Otherwise the checkpoint lost
    these tensors. The configurations of Keras objects, which nothing restores, do not count.
    """
    found = reachable(graph)
    missing, groups = _absent(reader, wanted_keys(graph, found))
    if not missing:
        return []
    configurations = {
        one.checkpoint_key
        for number in found
        for one in graph.nodes[number].attributes
        if one.name == OBJECT_CONFIG_JSON
    }
    return [key for key in missing if key not in groups and key not in configurations]


def missing_tensors(reader: Reader) -> tuple[str, ...]:
    """Return the tensors that the object graph names and the checkpoint does not have; none if
    there is no graph, or it cannot be decoded."""
    try:
        graph = graph_of(reader)
    except (CorruptError, LimitError, UnsupportedError):
        return ()
    return () if graph is None else tuple(missing_keys(reader, graph))


def _absent(reader: Reader, keys: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Return the keys that are not tensors, and the tensors of those that stand for several."""
    stored = set(reader)
    missing = [key for key in keys if key not in stored]
    if not missing:
        return [], {}
    return missing, key_groups(missing, sorted(stored.difference(keys)))


def stored_keys(
    reader: Reader, graph: ObjectGraph, found: Iterable[int], strict: bool
) -> tuple[list[str], dict[str, list[str]]]:
    """Return the tensors of these nodes, and those of keys that stand for several.

    Args:
        strict: whether a missing key is returned as well, so that reading it fails.
    """
    keys = wanted_keys(graph, found)
    missing, groups = _absent(reader, keys)
    if not strict:
        absent = set(missing).difference(groups)
        keys = [key for key in keys if key not in absent]
    return [name for key in keys for name in groups.get(key, [key])], groups


def _is_numbered(node: Node) -> bool:
    """Return whether the children have the names of a list's elements, in any order."""
    count = len(node.children)
    return {name for name, _ in node.children} == set(map(str, range(count)))


def kind_of(node: Node, node_id: int, path: str | None = None) -> str:
    """Return what a node becomes: its kind, "array", or "object" for a TreeNode.

    Raises:
        CorruptError: the kind of the node contradicts its contents.
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
                f"OBJ-13: node {node_id} of the object graph has the kind {kind!r}, which "
                "contradicts its contents",
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
    """Return the nodes that the root reaches through children and slot variables, breadth
    first."""
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
    """Return the keys of these nodes, each once."""
    keys = (one.checkpoint_key for node_id in found for one in graph.nodes[node_id].attributes)
    return list(dict.fromkeys(keys))


def key_groups(keys: Iterable[str], names: Iterable[str]) -> dict[str, list[str]]:
    """Return the tensors of keys that are not tensors themselves: those whose names are the key and
    a suffix without a slash, or the key of an attribute and `/...`. A name belongs to the longest
    key that it begins with.

    An object of TensorFlow with several tensors has one key in the graph; for a table the tensors
    are `<key>-keys` and `<key>-values`.
    """
    found: dict[str, list[str]] = {key: [] for key in keys if "/" in key}
    for name in names if found else ():
        for end in _group_ends(name):
            if name[:end] in found:
                found[name[:end]].append(name)
                break
    return {key: group for key, group in found.items() if group}


def _group_ends(name: str) -> Iterator[int]:
    """Yield the lengths of the keys of which a tensor may be one of several, the longest first."""
    shortest = max(0, len(name) - SUFFIX_MAX)
    slash = name.rfind("/")
    yield from range(len(name) - 1, max(slash, shortest - 1), -1)
    attribute = name.find(f"/{ATTRIBUTES}/")
    while 0 <= attribute < slash - len(ATTRIBUTES) - 1 and slash >= shortest:
        yield slash
        slash = name.rfind("/", 0, slash)


def build(
    graph: ObjectGraph,
    found: list[int],
    tensors: Mapping[str, Any],
    groups: Mapping[str, list[str]],
    path: str | None = None,
) -> Any:
    """Return the tree of a graph.

    Args:
        graph: the graph.
        found: the nodes that the root reaches.
        tensors: key to array; the tree omits a missing key, and lists and tuples have None in its
            place.
        groups: the tensors of keys that stand for several.
        path: the checkpoint, for errors.

    Raises:
        CorruptError: kinds that contradict the nodes or the tensors, or a tuple that contains
            itself through tuples only.
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
        self.made_groups: dict[str, dict[str, Any]] = {}

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
        """Return the object of a node; a container is empty."""
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
            if key in self.tensors:
                made.attributes[one.name] = self.tensors[key]
            elif group := self.group(key):
                made.attributes[one.name] = group
        return made

    def group(self, key: str) -> dict[str, Any]:
        """Return the tensors of a key that stands for several. Nodes with the same key share the
        dict, so that the cost is linear however many there are."""
        if key not in self.made_groups:
            self.made_groups[key] = {
                name[len(key) :]: self.tensors[name]
                for name in self.groups.get(key, ())
                if name in self.tensors
            }
        return self.made_groups[key]

    def items(self, node: Node) -> list[Any]:
        """Return the elements of a list or tuple."""
        ordered: list[Any] = [None] * len(node.children)
        for name, child in node.children:
            value = self.objects[child]
            ordered[int(name)] = None if value is OMITTED else value
        return ordered

    def make_tuples(self, tuples: list[int]) -> None:
        """Make each tuple after the tuples in it, because a tuple cannot be filled later."""
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
                f"OBJ-13: node {lost} of the object graph has the kind 'tuple' and contains itself",
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


def to_names(tree: Any) -> dict[str, Any]:
    """Return the arrays of a tree by names joined by slashes, the inverse of `from_names`.

    Raises:
        InvalidError: something that only an object graph can hold, or two arrays of one name.
    """
    found: dict[str, Any] = {}
    waiting: list[tuple[str | None, Any, frozenset[int]]] = [(None, tree, frozenset())]
    while waiting:
        name, value, around = waiting.pop()
        is_node = isinstance(value, TreeNode)
        attributes = value.attributes if is_node else {}
        is_dict = isinstance(value, Mapping)
        if (
            not (is_dict or is_array(value) or isinstance(value, (int, float, str, bytes)))
            or (name is None and (attributes or not is_dict))
            or (is_node and (value.slots or value.registered_saver))
            or set(attributes) - {VARIABLE_VALUE}
            or not all(isinstance(key, str) for key in (value if is_dict else ()))
            or id(value) in around
        ):
            raise InvalidError(
                f"{described([name or ''])} is of type {type(value).__name__}, which needs an "
                "object graph"
            )
        if attributes or not is_dict:
            assert name is not None
            if name in found:
                raise InvalidError("two arrays of the tree have this name", tensor=name)
            found[name] = attributes[VARIABLE_VALUE] if attributes else value
        if is_dict:
            base, inside = "" if name is None else f"{name}/", around | {id(value)}
            waiting += [(base + key, value[key], inside) for key in reversed(list(value))]
    return found


def from_names(tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Return the tree of a checkpoint without a graph: names split at slashes.

    A name that also begins others (`w` and `w/Adam`) becomes a TreeNode with the tensor as its
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
