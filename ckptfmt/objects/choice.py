# SPDX-License-Identifier: Apache-2.0
"""Which values of a checkpoint are restored, under what names and as what dtypes.

`Choice.applied` changes an object graph into that of a checkpoint with the chosen values only under
their new names, so that matching does not need to know of the choice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ckptfmt._base import dtypes
from ckptfmt._base.arguments import wrong
from ckptfmt.bundle.batch import check_used
from ckptfmt.bundle.graph import (
    ATTRIBUTES,
    OPTIMIZER_SLOT,
    TENSORS,
    VARIABLE_VALUE,
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    mark_checkpoint_values,
    unescape,
)
from ckptfmt.bundle.selecting import (
    Filter,
    Rename,
    Transform,
    by_text,
    check_distinct,
    filter_function,
    no_match,
    renamed,
)
from ckptfmt.errors import InvalidError
from ckptfmt.objects.nodes import leaf_name


@dataclass(frozen=True)
class Choice:
    """Which values of a checkpoint are restored, under what names and as what dtypes.

    A value has the name that it has in a tree (`nodes.leaf_name`); an object of a registered saver
    has the name that the saver knows.

    Attributes:
        cast: True converts numbers to the dtypes of their objects; otherwise a dtype for all
            floating-point values, a mapping from names to dtypes, or None.
        strict: True refuses anything that does not match, False restores what matches; None refuses
            only a value that does not fit its object.
        rename: name in the checkpoint to name here.
        passes: whether to restore the value of a name in the checkpoint; None restores all.
        filter: the caller's argument that became `passes`, for messages.
    """

    cast: Any = None
    strict: bool | None = None
    rename: Rename | None = None
    passes: Callable[[str], object] | None = None
    filter: Filter | None = None

    @classmethod
    def of(cls, cast: Any, strict: Any, rename: Rename | None, wanted: Filter | None) -> Choice:
        """Return the choice of a caller.

        Raises:
            InvalidError: an argument of the wrong type.
        """
        if strict is not None and not isinstance(strict, bool):
            raise wrong("strict", "True, False or None", strict)
        if isinstance(rename, Mapping):
            rename = by_text("rename", rename)
        renamed([], rename)  # checks the argument before anything is read
        if cast is False:
            cast = None
        elif isinstance(cast, Mapping):
            cast = by_text("cast", cast)
        elif cast is not None and cast is not True:
            dtypes.code_of(cast)
        return cls(cast, strict, rename, filter_function(wanted), wanted)

    def check_casts(self, graph: ObjectGraph) -> None:
        """Refuse a cast of a value that the checkpoint does not have, unless `strict` is False."""
        if isinstance(self.cast, Mapping) and self.strict is not False:
            check_used("cast", self.cast, [name for name, _, _ in _values(graph)])

    def names(self, stored: list[str]) -> tuple[dict[str, str], dict[str, Transform]]:
        """Return the new names by the stored names, without those that are dropped, and by stored
        name the transforms of those that have one.

        Raises:
            InvalidError: two would get one name, or as `renamed`.
        """
        new_names, transforms = renamed(stored, self.rename)
        pairs = zip(stored, new_names, strict=True)
        found = {old: new for old, new in pairs if new is not None}
        check_distinct(list(found), list(found.values()))
        return found, transforms

    def applied(self, graph: ObjectGraph) -> tuple[frozenset[int], dict[str, Transform]]:
        """Change a graph into that of a checkpoint with the chosen values under their new names;
        return the nodes of the values that the filter excludes, and the transforms by name.

        Raises:
            TensorNotFoundError: the filter matches no value.
            InvalidError: two values would get one name.
        """
        if self.rename is None and self.passes is None:
            return frozenset(), {}
        values = list(_values(graph))
        every = list(dict.fromkeys(name for name, _, _ in values))
        new_names, transforms = self.names(every)
        left_out = {name for name in every if self.passes is not None and not self.passes(name)}
        if every and len(left_out) == len(every):
            raise no_match(self.filter, len(every))
        changed = [one for one in values if one[0] in left_out or new_names.get(one[0]) != one[0]]
        _remove(graph, changed)
        editor = _Editor(graph)
        filtered = set()
        for old, node_id, value in changed:
            new = new_names.get(old)
            if new is None:
                continue
            if old not in left_out:
                editor.put(new, value)
            else:
                filtered.add(node_id if new == old else editor.place(new)[0])
        mark_checkpoint_values(graph)
        return frozenset(filtered), transforms


# An attribute, or the name of a registered saver and the name of the object with it.
_Value = Attribute | tuple[str, str]


def _values(graph: ObjectGraph) -> Iterator[tuple[str, int, _Value]]:
    """Yield all values with their names and nodes."""
    for node_id, node in enumerate(graph.nodes):
        if node.registered_saver is not None:
            yield node.registered_saver[1], node_id, node.registered_saver
        for attribute in node.attributes:
            yield leaf_name(attribute.checkpoint_key), node_id, attribute


def _remove(graph: ObjectGraph, values: Iterable[tuple[str, int, _Value]]) -> None:
    by_node: dict[int, set[int]] = {}
    for _, node_id, value in values:
        by_node.setdefault(node_id, set()).add(id(value))
    for node_id, removed in by_node.items():
        node = graph.nodes[node_id]
        node.attributes = [one for one in node.attributes if id(one) not in removed]
        if id(node.registered_saver) in removed:
            node.registered_saver = None


class _Editor:
    """Adds values to a graph under new names; missing nodes are created."""

    def __init__(self, graph: ObjectGraph) -> None:
        self.nodes = graph.nodes
        self.children: dict[int, dict[str, int]] = {}
        self.slots: dict[int, dict[tuple[int, str], int]] = {}
        self.attributes: dict[int, set[str]] = {}

    def put(self, name: str, value: _Value) -> None:
        node_id, attribute = self.place(name)
        node = self.nodes[node_id]
        taken = InvalidError("rename gives a name to two values of one object", tensor=name)
        if not isinstance(value, Attribute):
            if node.registered_saver is not None:
                raise taken
            node.registered_saver = value
            return
        if node_id not in self.attributes:
            self.attributes[node_id] = {one.name for one in node.attributes}
        if attribute in self.attributes[node_id]:
            raise taken
        self.attributes[node_id].add(attribute)
        node.attributes.append(Attribute(attribute, value.full_name, value.checkpoint_key))

    def place(self, name: str) -> tuple[int, str]:
        """Return the node and the attribute that a name refers to."""
        path, slash, attribute = name.partition(f"/{ATTRIBUTES}/")
        if not slash:
            return self.node(path), VARIABLE_VALUE
        return self.node(path), unescape(attribute) if attribute else TENSORS

    def node(self, path: str) -> int:
        variable, slash, rest = path.partition(f"/{OPTIMIZER_SLOT}/")
        if not slash:
            return self.object(path)
        optimizer, _, slot = rest.rpartition("/")
        return self.slot(self.object(variable), self.object(optimizer), unescape(slot))

    def object(self, path: str) -> int:
        node_id = 0
        for name in map(unescape, path.split("/") if path else ()):
            children = self.children.get(node_id)
            if children is None:
                children = self.children[node_id] = dict(self.nodes[node_id].children)
            if name not in children:
                children[name] = self.new_node()
                self.nodes[node_id].children.append((name, children[name]))
            node_id = children[name]
        return node_id

    def slot(self, variable: int, optimizer: int, name: str) -> int:
        stored = self.nodes[optimizer].slot_variables
        if optimizer not in self.slots:
            self.slots[optimizer] = {
                (one.original_variable_node_id, one.slot_name): one.slot_variable_node_id
                for one in stored
            }
        slots = self.slots[optimizer]
        if (variable, name) not in slots:
            slots[variable, name] = self.new_node()
            stored.append(SlotVariable(variable, name, slots[variable, name]))
        return slots[variable, name]

    def new_node(self) -> int:
        self.nodes.append(Node())
        return len(self.nodes) - 1
