# SPDX-License-Identifier: Apache-2.0
"""Loading a checkpoint into a tree that exists already.

The tree and the object graph are gone through side by side, from name to name, as TensorFlow
restores objects; so an array finds its tensor also where the checkpoint has it under another path.
Then all tensors are read at once into the arrays.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt import dtypes
from ckptfmt.bundle import reader as reading
from ckptfmt.bundle.load import Path, check_used
from ckptfmt.bundle.matching import MatchReport, load_into
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.selecting import Filter, Rename, by_text, filter_function, renamed
from ckptfmt.errors import GenerationGoneError, InvalidError
from ckptfmt.objects.build import read_graph_bytes
from ckptfmt.objects.graph import (
    OBJECT_GRAPH_KEY,
    VARIABLE_VALUE,
    Node,
    ObjectGraph,
    attribute_key,
    decode_graph,
    object_path,
    slot_key,
)
from ckptfmt.objects.nodes import (
    NONE,
    TreeNode,
    holds_scalar,
    leaf_name,
    scalar_array,
    scalar_kind,
    scalar_value,
)
from ckptfmt.objects.tree_flatten import children_of, is_array
from ckptfmt.saving.parallel import ParallelVariable

__all__ = ["load_into_tree"]

Setter = Callable[[Any], None]


class _Scalar(NamedTuple):
    """A Python or numpy scalar of the tree: how it is replaced, and its kind (None for numpy's)."""

    put: Setter
    kind: str | None


@dataclass
class _Places:
    """What a tree has a place for.

    Attributes:
        arrays: by name.
        keys: name of the tensor to name here, where the graph tells.
        scalars: those of the arrays that stand for scalars, by name.
        copies: arrays that get what another one gets.
    """

    arrays: dict[str, Any] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    scalars: dict[str, _Scalar] = field(default_factory=dict)
    copies: list[tuple[str, str, NDArray[Any]]] = field(default_factory=list)


def load_into_tree(
    path: Path,
    tree: Any,
    *,
    strict: bool,
    rename: Rename | None,
    cast: Any,
    filter: Filter | None,  # noqa: A002 (as in `load_into`)
    verify: str,
    limits: Mapping[str, int] | None,
) -> MatchReport:
    """`load_tree` with `into`, which see.

    Raises:
        InvalidError, TensorNotFoundError: as `load_into`; a scalar where it cannot be replaced.
        GenerationGoneError: the checkpoint was replaced meanwhile; what is in the tree is then
            unspecified.
    """
    passes = filter_function(filter)
    with reading.open(path, verify=verify, limits=limits) as reader:
        content = read_graph_bytes(reader) if OBJECT_GRAPH_KEY in reader else None
        graph = None if content is None else decode_graph(content, reader.prefix)
        places = _Walk(reader, graph).places(tree)
        stored = [key for key in reader if key != OBJECT_GRAPH_KEY]
        casts = _casts_by_key(reader, stored, places, cast)
    new_names = _new_names(stored, places, rename, has_graph=graph is not None)
    report = load_into(
        path,
        places.arrays,
        strict=strict,
        rename=new_names.get,
        cast=casts,
        filter=None if passes is None else lambda key: passes(leaf_name(key)),
        verify=verify,
        limits=limits,
    )
    if content is not None:
        _check_same_graph(path, content, verify, limits)
    matched, loaded = list(report.matched), set(report.matched)
    for first, name, array in places.copies:
        if first in loaded:
            array[...] = places.arrays[first]
            places.arrays[name] = array
            matched.append(name)
    for name in places.scalars.keys() & set(matched):
        array, scalar = places.arrays[name], places.scalars[name]
        scalar.put(array[()] if scalar.kind is None else scalar_value(scalar.kind, array))
    return dataclasses.replace(
        report, matched=tuple(matched), unexpected=tuple(map(leaf_name, report.unexpected))
    )


def _casts_by_key(reader: Reader, stored: list[str], places: _Places, cast: Any) -> Any:
    """`cast` by the names of tensors; scalars are none of those that one dtype is for."""
    if cast is None or cast is True:
        return cast
    if isinstance(cast, Mapping):
        keys = {leaf_name(key): key for key in stored}
        wishes = by_text("cast", cast)
        check_used("cast", wishes, list(keys))
        return {keys[name]: wish for name, wish in wishes.items()}
    scalars = {key for key, name in places.keys.items() if name in places.scalars}
    scalars.update(places.scalars)
    table = reader.table()
    pairs = zip(table["name"].tolist(), table["dtype_code"].tolist(), strict=True)
    return {name: cast for name, code in pairs if dtypes.is_floating(code) and name not in scalars}


def _new_names(
    stored: list[str], places: _Places, rename: Rename | None, *, has_graph: bool
) -> dict[str, str]:
    """What each tensor is called here: what the user says, else what the graph says."""
    rename = by_text("rename", rename) if isinstance(rename, Mapping) else rename
    leaves = list(map(leaf_name, stored))
    found = {}
    for key, leaf, new in zip(stored, leaves, renamed(leaves, rename), strict=True):
        if new is None:
            continue
        if new != leaf:
            found[key] = new
        elif key in places.keys:
            found[key] = places.keys[key]
        else:
            # With a graph, a name that happens to be the same means nothing.
            found[key] = key if has_graph and leaf in places.arrays else leaf
    return found


def _check_same_graph(
    path: Path, content: bytes, verify: str, limits: Mapping[str, int] | None
) -> None:
    with reading.open(path, verify=verify, limits=limits) as reader:
        if OBJECT_GRAPH_KEY not in reader or read_graph_bytes(reader) != content:
            raise GenerationGoneError(
                "the checkpoint was replaced while it was being loaded; load it again", path=path
            )


# ---- side by side --------------------------------------------------------------------------------


class _Met(NamedTuple):
    value: Any
    node_id: int | None
    names: tuple[str, ...]
    put: Setter | None


class _Walk:
    def __init__(self, reader: Reader, graph: ObjectGraph | None) -> None:
        self.reader, self.graph = reader, graph
        self.found = _Places()
        self.seen: dict[int, int | None] = {}
        self.paths: dict[int, str] = {}
        self.children: dict[int, dict[str, int]] = {}

    def places(self, tree: Any) -> _Places:
        optimizers: list[tuple[TreeNode, int | None]] = []
        waiting = [_Met(tree, None if self.graph is None else 0, (), None)]
        for met in waiting:  # which grows
            kind = scalar_kind(met.value)
            if kind is not None or isinstance(met.value, np.generic):
                if kind != NONE:
                    self.scalar(met, kind)
                continue
            if id(met.value) in self.seen:
                continue
            self.seen[id(met.value)] = met.node_id
            self.paths[id(met.value)] = self.path(met.names)
            inner = children_of(met.value)
            if inner is None:
                self.leaf(met)
                continue
            if isinstance(met.value, TreeNode):
                self.attributes(met.value, met.node_id, self.path(met.names))
                optimizers.append((met.value, met.node_id))
            for name, child in inner[1]:
                if not isinstance(name, str):
                    raise self.invalid(met, f"the key {name!r} is no str")
                put = _setter(met.value, name)
                waiting.append(_Met(child, self.child(met.node_id, name), (*met.names, name), put))
        for optimizer, node_id in optimizers:
            self.slots(optimizer, node_id)
        return self.found

    def path(self, names: tuple[str, ...]) -> str:
        return "/".join(names) if self.graph is None else object_path(names)

    def invalid(self, met: _Met, message: str) -> InvalidError:
        return InvalidError(f"at {self.path(met.names)!r}: {message}")

    def node(self, node_id: int | None) -> Node:
        return Node() if self.graph is None or node_id is None else self.graph.nodes[node_id]

    def child(self, node_id: int | None, name: str) -> int | None:
        if node_id is None:
            return None
        if node_id not in self.children:
            self.children[node_id] = dict(self.node(node_id).children)
        return self.children[node_id].get(name)

    def key(self, node_id: int | None, attribute: str = VARIABLE_VALUE) -> str | None:
        attributes = self.node(node_id).attributes
        return next((one.checkpoint_key for one in attributes if one.name == attribute), None)

    def name(self, path: str, attribute: str = VARIABLE_VALUE) -> str:
        if self.graph is None and attribute == VARIABLE_VALUE:
            return path
        return leaf_name(attribute_key(path, attribute))

    def add(self, name: str, key: str | None, array: Any) -> None:
        first = None if key is None else self.found.keys.get(key)
        if first is not None:
            # One tensor for two arrays: it is read into the first.
            if not _alike(array, self.found.arrays[first]):
                raise InvalidError(
                    f"{first!r} and {name!r} are one in the checkpoint, and differ in the tree"
                )
            self.found.copies.append((first, name, array))
            return
        if name in self.found.arrays:
            raise InvalidError(f"two arrays of the tree have the name {name!r}")
        self.found.arrays[name] = array
        if key is not None:
            self.found.keys[key] = name

    def leaf(self, met: _Met) -> None:
        path = self.path(met.names)
        if isinstance(met.value, ParallelVariable):
            for key, component in zip(met.value.keys(""), met.value.components, strict=True):
                attribute = key.rpartition("/")[2]
                self.add(self.name(path, attribute), self.key(met.node_id, attribute), component)
        elif is_array(met.value):
            self.add(self.name(path), self.key(met.node_id), met.value)
        else:
            raise self.invalid(met, f"a {type(met.value).__name__} is no part of a tree")

    def scalar(self, met: _Met, kind: str | None) -> None:
        """A scalar is read into an array that stands for it."""
        if met.put is None:
            raise self.invalid(
                met, f"a {type(met.value).__name__} that cannot be replaced in what holds it"
            )
        name = self.name(self.path(met.names))
        key = self.key(met.node_id) if self.graph is not None else name
        array = np.array(met.value) if kind is None else scalar_array(kind, met.value)
        if kind is not None and key is not None and key in self.reader:
            handle = self.reader[key]
            if handle.dtype is not None and holds_scalar(kind, handle.dtype, handle.shape):
                array = np.empty((), handle.dtype)
        self.found.scalars[name] = _Scalar(met.put, kind)
        self.add(name, key, array)

    def attributes(self, value: TreeNode, node_id: int | None, path: str) -> None:
        for attribute, given in value.attributes.items():
            key, name = self.key(node_id, attribute), self.name(path, attribute)
            if not isinstance(given, Mapping):
                self.add(name, key, given)
                continue
            for suffix, array in given.items():
                self.add(f"{name}{suffix}", None if key is None else f"{key}{suffix}", array)

    def slots(self, optimizer: TreeNode, node_id: int | None) -> None:
        known = {
            (slot.original_variable_node_id, slot.slot_name): slot.slot_variable_node_id
            for slot in self.node(node_id).slot_variables
        }
        for variable, slot_name, value in optimizer.slots:
            if id(value) in self.seen:
                continue
            original = self.seen.get(id(variable))
            slot_id = None if original is None else known.get((original, slot_name))
            variable_path = self.paths.get(id(variable), "")
            path = slot_key(variable_path, self.paths[id(optimizer)], slot_name)
            self.seen[id(value)] = slot_id
            if isinstance(value, TreeNode):
                self.attributes(value, slot_id, path)
            else:
                self.add(self.name(path), self.key(slot_id), value)


def _alike(array: Any, other: Any) -> bool:
    return all(isinstance(one, np.ndarray) and one.flags.writeable for one in (array, other)) and (
        array.dtype,
        array.shape,
    ) == (other.dtype, other.shape)


def _setter(container: Any, name: str) -> Setter | None:
    """What replaces a child of a container; None where nothing can."""

    def put_item(value: Any) -> None:
        container[int(name) if isinstance(container, list) else name] = value

    if isinstance(container, (list, MutableMapping)):
        return put_item
    frozen = getattr(type(container), "__dataclass_params__", None)
    if frozen is None or frozen.frozen:
        return None
    return lambda value: setattr(container, name, value)
