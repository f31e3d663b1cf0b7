# SPDX-License-Identifier: Apache-2.0
"""Changes an object graph into that of a checkpoint with the chosen values only, under their new
names, so that matching does not need to know of the choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckptfmt._base.arguments import invalid
from ckptfmt._base.renaming import (
    Transform,
)
from ckptfmt.bundle.graph import (
    ATTRIBUTES,
    OPTIMIZER_SLOT,
    TENSORS,
    VARIABLE_VALUE,
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    leaf_name,
    mark_checkpoint_values,
    unescape,
)
from ckptfmt.errors import InvalidError
from ckptfmt.recipe.changes import Changes
from ckptfmt.saving.parallel import OTHERS, is_further_component


def choose(
    choice: Changes, graph: ObjectGraph, prefix: str | None
) -> tuple[frozenset[int], dict[str, Transform]]:
    """Change a graph into that of a checkpoint with the chosen values under their new names; return
    the nodes of the values that are left out, and the transforms by name.

    Raises:
        TensorNotFoundError, InvalidError: as `Changes.chosen`.
    """
    values = list(_values(graph))
    every = list(value_names(graph))
    loaded, left_out, transforms = choice.chosen(every, prefix)
    if choice.rename is None and not left_out:
        return frozenset(), {}
    changed = [one for one in values if loaded.get(one[0]) != one[0]]
    _remove(graph, changed)
    editor = _Editor(graph)
    filtered = set()
    for old, node_id, value in changed:
        if old in loaded:
            editor.put(loaded[old], value)
        elif old in left_out:
            new = left_out[old]
            filtered.add(node_id if new == old else editor.place(new)[0])
    mark_checkpoint_values(graph)
    return frozenset(filtered), transforms


def refuse_casts_of_scalars(choice: Changes, names: Iterable[str]) -> None:
    """Refuse a mapping `cast` that means one of these Python scalars, which keep their types.

    Raises:
        InvalidError: it does.
    """
    for name in names:
        if name in choice.done.wanted:
            message = "cast means a Python scalar, which keeps its type: leave it out of the cast"
            raise invalid("cast", message, tensor=name)


# An attribute, or the name of a registered saver and the name of the object with it.
_Value = Attribute | tuple[str, str]


def value_name(key: str) -> str:
    """Return the name that a tensor has in the options and in reports: the one of `leaf_name`. All
    components of a ParallelVariable have that of the variable."""
    path, is_component, _ = key.partition(OTHERS)
    return path if is_component else leaf_name(key)


def value_names(graph: ObjectGraph) -> Iterable[str]:
    """Return the names of all values, each once."""
    return dict.fromkeys(name for name, _, _ in _values(graph))


def _values(graph: ObjectGraph) -> Iterator[tuple[str, int, _Value]]:
    """Yield all values with their names and nodes."""
    for node_id, node in enumerate(graph.nodes):
        if node.registered_saver is not None:
            yield node.registered_saver[1], node_id, node.registered_saver
        for attribute in node.attributes:
            yield value_name(attribute.checkpoint_key), node_id, attribute


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
        if is_further_component(value.name):
            attribute = value.name
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
