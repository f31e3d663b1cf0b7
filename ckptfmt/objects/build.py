# SPDX-License-Identifier: Apache-2.0
"""Building a tree from an object graph or from names.

A graph is not trusted: it may have cycles, chains of millions of nodes, and kinds that contradict
its nodes. Nothing here recurses, and the cost is linear in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ckptfmt._base.names import in_order
from ckptfmt.bundle import state_tree
from ckptfmt.bundle.graph import (
    NONE,
    OBJECT_GRAPH_KEY,
    VARIABLE_VALUE,
    Node,
    ObjectGraph,
)
from ckptfmt.errors import CorruptError, InvalidError, UnsupportedError
from ckptfmt.objects.nodes import CONTAINERS, SCALARS, Slot, TreeNode, scalar_value
from ckptfmt.objects.traversal import described, is_array

ARRAY, OBJECT = "array", "object"
# Deeper names are not split further: every byte of a name may be a slash.
DEPTH_MAX = 1000


class _Omitted:
    """Stands for a leaf that is excluded or missing, until its container is filled."""


OMITTED = _Omitted()


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


def pytree_of(
    tensors: Mapping[str, Any],
    metadata: Mapping[str, Any],
    path: str,
    leaf: Callable[[Any, str, str], Any],
) -> Any:
    """Return the tree of a checkpoint without a graph, with the containers that `ckptfmt.jax` noted
    of a pytree. Tensors that it does not know, after an edit, have the places that their names say;
    a container of which nothing is left is omitted.

    Args:
        tensors: by name.
        metadata: of the checkpoint, which are not trusted.
        path: of the checkpoint, for errors.
        leaf: makes a leaf of a tensor, of the kind of the noted leaf ("tensor", "array" or
            "scalar") and the type of a Python scalar, or "".
    """
    names = list(tensors)
    tree = from_names({names[at]: tensors[names[at]] for at in in_order(names)})
    if state_tree.PYTREE not in metadata:
        return tree
    try:
        node = state_tree.parse(metadata[state_tree.PYTREE])["state"]
        is_leaf = state_tree.tag_of(node)[1].kind == "leaf"
        found = _Pytree(leaf).built(tree, {"value": node} if is_leaf else node)
    except UnsupportedError as error:
        error.path = path
        raise
    except state_tree.DAMAGED as error:
        raise CorruptError(
            f"the structure of the pytree is damaged: {error!r}", failure="BAD_ENTRY", path=path
        ) from None
    if is_leaf and isinstance(found, dict) and found.keys() == {"value"}:
        return found["value"]
    return {} if found is OMITTED else found


class _Pytree:
    """Gives a tree of names the containers of a state."""

    def __init__(self, leaf: Callable[[Any, str, str], Any]) -> None:
        self._leaf = leaf
        self._noted = self._found = 0  # leaves

    def built(self, tree: Any, node: Any) -> Any:
        """Return what a node is, of which the names gave `tree`, or OMITTED."""
        tag, row = state_tree.tag_of(node)
        if row.kind == "leaf":
            self._noted += 1
            self._found += tree is not OMITTED
            if tree is OMITTED or isinstance(tree, dict):
                return tree
            return self._leaf(tree, tag.removeprefix("$"), str(node.get("dtype", "")))
        if row.kind == "value":
            return state_tree.decode(node) if tree is OMITTED else tree
        if tree is not OMITTED and type(tree) is not dict:
            return tree  # a tensor that was renamed to a container
        noted, found = self._noted, self._found
        rest = dict(tree) if type(tree) is dict else {}
        pairs = state_tree.children(node)
        keys = [state_tree.path_key(key) for key, _ in pairs]
        parts = [rest.pop(state_tree.slashed(key), OMITTED) for key in keys]
        values = [self.built(part, one) for part, (_, one) in zip(parts, pairs, strict=True)]
        if tree is OMITTED and self._noted > noted and self._found == found:
            return OMITTED
        if row.kind == "dict" or rest:
            own = keys if rest else [state_tree.decode(key) for key, _ in pairs]
            return {
                key: one for key, one in zip(own, values, strict=True) if one is not OMITTED
            } | rest
        values = [None if one is OMITTED else one for one in values]
        return tuple(values) if tag == "$tuple" else values


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
