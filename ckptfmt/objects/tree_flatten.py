# SPDX-License-Identifier: Apache-2.0
"""From a tree to an object graph and the tensors that it names.

Objects are numbered breadth first from the root, as TensorFlow does: the root's children by name,
`save_counter` last, all others in their own order; slot variables after everything else. A mutable
object that is met again is the same node, under the path that it had first.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ckptfmt.arguments import wrong
from ckptfmt.errors import InvalidError, UnsupportedError, about
from ckptfmt.objects.graph import (
    OPTIMIZER_SLOT,
    PY_STATE,
    VARIABLE_VALUE,
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    attribute_key,
    mark_checkpoint_values,
    object_path,
    slot_key,
    unescape,
)
from ckptfmt.objects.nodes import NONE, TreeNode, leaf_name, scalar_array, scalar_kind
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.parallel import ParallelVariable

__all__ = ["Flat", "flatten", "layouts_by_path"]

SAVE_COUNTER = "save_counter"


@dataclass
class Flat:
    """A tree as it is saved: its graph, the tensors by key in the order of the data file, and the
    layouts of those that lie on meshes."""

    graph: ObjectGraph
    tensors: dict[str, Any] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)


@dataclass(slots=True)
class _Met:
    """An object of the tree: where it was met first."""

    value: Any
    parent: int
    local_name: str
    path: str | None = None  # once it is known


def is_array(value: object) -> bool:
    """Whether this is an array to its owner: numpy's, a handle, or one of another framework."""
    return hasattr(value, "dtype") and hasattr(value, "shape")


def children_of(value: object) -> tuple[str | None, Iterable[tuple[Any, Any]]] | None:
    """The kind and the children of a container, names as they are; None for what is none."""
    if isinstance(value, TreeNode):
        return None, value.items()
    if isinstance(value, Mapping):
        return "dict", value.items()
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return "dict", zip(value._fields, value, strict=True)
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return kind, ((str(number), child) for number, child in enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return "dict", [(one.name, getattr(value, one.name)) for one in fields]
    return None


def flatten(tree: Any, layouts: Mapping[str, Layout | None] | None = None) -> Flat:
    """The graph and the tensors of a tree.

    Args:
        tree: what `save_tree` takes.
        layouts: those of leaves that are {device: array}, by path.

    Raises:
        InvalidError: a key that is no str, an object that is no part of trees, a scalar that
            cannot be stored, a slot of a variable that is not in the tree, or a layout for none of
            the leaves; the path is named.
        UnsupportedError: a node of a registered saver.
    """
    flattener = _Flattener(layouts or {})
    flattener.walk(tree)
    flattener.add_slots()
    return flattener.finish()


class _Flattener:
    def __init__(self, layouts: Mapping[str, Layout | None]) -> None:
        self.layouts = layouts
        self.used: set[str] = set()
        self.flat = Flat(ObjectGraph())
        self.nodes = self.flat.graph.nodes
        self.met: list[_Met] = []
        self.ids: dict[int, int] = {}
        self.late: list[tuple[str, Any]] = []  # py_state, after all tensors

    def path(self, node_id: int) -> str:
        """The path of a node; those of its parents are not kept, because there may be many."""
        names: list[str] = []
        at = node_id
        while at and self.met[at].path is None:
            names.append(self.met[at].local_name)
            at = self.met[at].parent
        tail = object_path(reversed(names))
        head = self.met[at].path or ""
        # Below the root there is no slash before the first name.
        found = f"{head}/{tail}" if names and at else tail or head
        if node_id:
            self.met[node_id].path = found
        return found

    def invalid(self, node_id: int, message: str) -> InvalidError:
        return InvalidError(f"at {self.path(node_id)!r}: {message}")

    def node_of(self, value: Any, parent: int, local_name: str) -> int:
        """The node of an object, a new one if it was not met before."""
        shared = scalar_kind(value) is None and not isinstance(value, np.generic)
        node_id = self.ids.get(id(value)) if shared else None
        if node_id is None:
            node_id = len(self.met)
            self.met.append(_Met(value, parent, local_name))
            self.nodes.append(Node())
            if shared:
                self.ids[id(value)] = node_id
        return node_id

    def walk(self, tree: Any) -> None:
        self.node_of(tree, 0, "")
        at = 0
        while at < len(self.met):
            self.visit(at, self.met[at].value)
            at += 1
        for path in sorted(set(self.layouts).difference(self.used)):
            node_id = self.resolved(path)
            if node_id is None or self.path(node_id) not in self.used:
                raise InvalidError(f"layouts names {path!r}, which is no leaf of the tree")

    def resolved(self, path: str) -> int | None:
        """The node that another path than its first leads to."""
        node_id = 0
        for name in map(unescape, path.split("/")):
            found = dict(self.nodes[node_id].children).get(name)
            if found is None:
                return None
            node_id = found
        return node_id

    def visit(self, node_id: int, value: Any) -> None:
        node = self.nodes[node_id]
        found = None if self.on_mesh(node_id, value) else children_of(value)
        if found is None:
            self.leaf(node_id, node, value)
            return
        node.kind, pairs = found
        if isinstance(value, TreeNode):
            self.attributes(node_id, node, value)
        elif not node_id and node.kind == "dict":
            pairs = _as_root(pairs)
        for name, child in pairs:
            if not isinstance(name, str):
                raise self.invalid(node_id, f"the key {name!r} is no str")
            node.children.append((name, self.node_of(child, node_id, name)))

    def on_mesh(self, node_id: int, value: Any) -> bool:
        """Whether a layout says that this is a leaf, which may be {device: array}."""
        if not self.layouts:
            return False
        path = self.path(node_id)
        if path not in self.layouts:
            return False
        self.used.add(path)
        layout = self.layouts[path]
        if layout is not None:
            if scalar_kind(value) is not None or isinstance(value, (list, tuple, TreeNode)):
                raise self.invalid(node_id, f"a layout for a {type(value).__name__}")
            self.flat.layouts[attribute_key(path)] = layout
        return layout is not None

    def leaf(self, node_id: int, node: Node, value: Any) -> None:
        kind = scalar_kind(value)
        if kind == NONE:
            node.kind = kind
        elif kind is not None:
            node.kind = kind
            key = attribute_key(self.path(node_id))
            with about(key):
                self.add(node, VARIABLE_VALUE, key, scalar_array(kind, value))
        elif isinstance(value, ParallelVariable):
            keys = value.keys(self.path(node_id))
            for key, component in zip(keys, value.components, strict=True):
                self.add(node, key.rpartition("/")[2], key, component)
        elif is_array(value) or isinstance(value, Mapping):
            self.add(node, VARIABLE_VALUE, attribute_key(self.path(node_id)), value)
        else:
            raise self.invalid(node_id, f"a {type(value).__name__} is no part of a tree")

    def attributes(self, node_id: int, node: Node, value: TreeNode) -> None:
        if value.registered_saver is not None:
            raise UnsupportedError(
                f"at {self.path(node_id)!r}: the object was saved by the registered saver "
                f"{value.registered_saver[0]!r}, whose tensors a tree does not have"
            )
        for name, array in value.attributes.items():
            if not isinstance(name, str):
                raise self.invalid(node_id, f"the attribute {name!r} is no str")
            key = attribute_key(self.path(node_id), name)
            if isinstance(array, Mapping):
                self.several(node_id, node, name, key, array)
            else:
                self.add(node, name, key, array)

    def several(
        self, node_id: int, node: Node, name: str, key: str, tensors: Mapping[Any, Any]
    ) -> None:
        """An attribute of several tensors."""
        node.attributes.append(Attribute(name, "", key))
        for suffix, array in tensors.items():
            if not isinstance(suffix, str) or not suffix:
                raise self.invalid(node_id, f"the attribute {name!r} has a tensor {suffix!r}")
            self.put(key + suffix, array)

    def add(self, node: Node, name: str, key: str, value: Any) -> None:
        full_name = _full_name(leaf_name(key)) if name == VARIABLE_VALUE else ""
        node.attributes.append(Attribute(name, full_name, key))
        self.put(key, value)
        if name == PY_STATE:
            self.late.append((key, value))

    def put(self, key: str, value: Any) -> None:
        if key in self.flat.tensors:
            raise InvalidError("two objects of the tree have this key", tensor=key)
        self.flat.tensors[key] = value

    def add_slots(self) -> None:
        """The slot variables of all optimizers, after all that can be reached otherwise."""
        for node_id in range(len(self.met)):
            value = self.met[node_id].value
            if isinstance(value, TreeNode) and value.slots:
                self.add_slots_of(node_id, value)

    def add_slots_of(self, node_id: int, optimizer: TreeNode) -> None:
        seen: set[tuple[int, str]] = set()
        for variable, name, value in optimizer.slots:
            if not isinstance(name, str):
                raise self.invalid(node_id, f"the slot {name!r} is no str")
            original = self.ids.get(id(variable))
            if original is None:
                raise self.invalid(
                    node_id, f"the slot {name!r} is one of a variable that is not in the tree"
                )
            if (original, name) in seen:
                raise self.invalid(
                    node_id, f"two slots {name!r} of the variable at {self.path(original)!r}"
                )
            seen.add((original, name))
            count = len(self.met)
            slot_id = self.node_of(value, node_id, name)
            if slot_id == count:
                path = slot_key(self.path(original), self.path(node_id), name)
                self.met[slot_id].path = path
                self.visit_slot(slot_id, value)
            self.nodes[node_id].slot_variables.append(SlotVariable(original, name, slot_id))

    def visit_slot(self, slot_id: int, value: Any) -> None:
        found = children_of(value)
        if found is not None and (not isinstance(value, TreeNode) or value or value.slots):
            raise self.invalid(slot_id, "a slot variable has no children and no slots")
        self.visit(slot_id, value)

    def finish(self) -> Flat:
        for key, value in self.late:
            del self.flat.tensors[key]
            self.flat.tensors[key] = value
        mark_checkpoint_values(self.flat.graph)
        return self.flat


def _full_name(path: str) -> str:
    """What a value at a path is called by those who know names only, as TensorFlow 1's Saver."""
    if "." not in path:
        return path
    return "/".join(unescape(name) for name in path.split("/") if name != OPTIMIZER_SLOT)


def _as_root(pairs: Iterable[tuple[Any, Any]]) -> Iterable[tuple[Any, Any]]:
    """The root's children in the order of `tf.train.Checkpoint(**children)`, whose save counter is
    made last."""
    listed = list(pairs)
    if not all(isinstance(name, str) for name, _ in listed):
        return listed
    return sorted(listed, key=lambda pair: (pair[0] == SAVE_COUNTER, pair[0]))


# ---- layouts -------------------------------------------------------------------------------------


def layouts_by_path(layouts: Any) -> dict[str, Layout | None]:
    """Layouts by the paths of their leaves.

    Args:
        layouts: a mapping from paths ("model/kernel") to Layout or None, or a tree of these with
            the shape of the tree that is saved.

    Raises:
        InvalidError: neither.
    """
    if not isinstance(layouts, Mapping) and children_of(layouts) is None:
        raise wrong("layouts", "a tree of Layouts, or a mapping from paths to Layouts", layouts)
    if isinstance(layouts, Mapping) and all(map(_is_layout, layouts.values())):
        for path in layouts:
            if not isinstance(path, str):
                raise wrong("a path of layouts", "a str", path)
        return dict(layouts)
    found: dict[str, Layout | None] = {}
    waiting: list[tuple[list[str], Any, frozenset[int]]] = [([], layouts, frozenset())]
    while waiting:
        names, value, around = waiting.pop()
        inner = children_of(value)
        if _is_layout(value):
            found[object_path(names)] = value
        elif inner is None or id(value) in around:
            raise InvalidError(f"layouts has no Layout at {object_path(names)!r}")
        else:
            for name, child in inner[1]:
                if not isinstance(name, str):
                    raise InvalidError(f"layouts at {object_path(names)!r}: {name!r} is no str")
                waiting.append(([*names, name], child, around | {id(value)}))
    return found


def _is_layout(value: object) -> bool:
    return value is None or isinstance(value, Layout)
