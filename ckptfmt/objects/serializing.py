# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint of objects holds: the object graph and the tensors, in TensorFlow's order.

Nodes are the objects breadth first, slot variables behind them. Tensors are in the order of their
nodes, the states of Python objects behind them, the graph itself last.
"""

from __future__ import annotations

import copy
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt.arguments import wrong
from ckptfmt.background import Line
from ckptfmt.errors import InvalidError, about
from ckptfmt.objects.graph import (
    OBJECT_GRAPH_KEY,
    PY_STATE,
    VARIABLE_VALUE,
    Attribute,
    Node,
    ObjectGraph,
    SlotVariable,
    attribute_key,
    encode_graph,
    escape,
    mark_checkpoint_values,
    slot_key,
)
from ckptfmt.objects.nodes import scalar_array, scalar_kind
from ckptfmt.objects.trackable import (
    Local,
    Role,
    View,
    children_of,
    described,
    has_slots,
    method_of,
    trail_of,
)
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.specs import SaveSpec

__all__ = ["Slot", "own_tensors", "saver_of", "slots_of"]

_KINDS: dict[type, str] = {
    kind: kind.__name__ for kind in (dict, list, tuple, int, float, bool, str, bytes)
}


@dataclass(slots=True)
class Slot:
    """A slot variable: rows of its optimizer and of the variable that it is for, and itself."""

    optimizer: int
    original: int
    name: str
    local: Local


def slot_of(optimizer: Any, variable: Any, name: str) -> Any:
    """A slot variable; None if the optimizer has none of this name for the variable."""
    try:
        return optimizer.get_slot(variable, name)
    except (AttributeError, KeyError):
        return None


def slots_of(found: list[Local]) -> Iterator[Slot]:
    """The slot variables of all optimizers among these objects, in TensorFlow's order.

    Raises:
        InvalidError: one that is met twice, is also an ordinary object of the checkpoint, has
            children, or is no object that can be a variable.
    """
    optimizers = [(row, local) for row, local in enumerate(found) if has_slots(local.value)]
    if not optimizers:
        return
    known: dict[Hashable, Any] = {local.key: local.value for local in found}
    variables = [(row, local) for row, local in enumerate(found) if _is_variable(local)]
    for optimizer_row, optimizer in optimizers:
        for name in optimizer.value.get_slot_names():
            for row, variable in variables:
                value = slot_of(optimizer.value, variable.value, name)
                if value is None:
                    continue
                local = Local(value, trail_of((*variable, *optimizer, name)))
                if not _is_variable(local) or children_of(value):
                    raise InvalidError(
                        f"the slot variable '{name}' of {described(variable)} is a "
                        f"{type(value).__name__}, no variable without children"
                    )
                if local.key in known:
                    raise InvalidError(
                        f"the slot variable '{name}' of {described(variable)} is an object of "
                        "the checkpoint in another place as well, which is not supported"
                    )
                known[local.key] = value
                yield Slot(optimizer_row, row, name, local)


def _is_variable(local: Local) -> bool:
    return local.role in (Role.ARRAY, Role.PARALLEL, Role.TENSORS)


# ---- tensors of one object -----------------------------------------------------------------------


def stored_scalar(value: Any) -> NDArray[Any]:
    """A scalar as it is stored.

    Raises:
        InvalidError: an int beyond 64 bits, or a text that cannot be encoded.
    """
    if isinstance(value, (str, bytes)):  # numpy's as well
        return scalar_array("str" if isinstance(value, str) else "bytes", value)
    kind = scalar_kind(value)
    return np.array(value) if kind is None else scalar_array(kind, value)


def own_tensors(local: Local) -> dict[str, Any]:
    """What an object's own protocol gives: name to array, SaveSpec or mapping from slices.

    Raises:
        InvalidError: it is no such mapping.
    """
    tensors = method_of(local.value, "serialize_to_tensors")()
    if not isinstance(tensors, Mapping):
        raise wrong(f"serialize_to_tensors() of {described(local)}", "a mapping", tensors)
    for name in tensors:
        if not isinstance(name, str) or not name:
            raise InvalidError(
                f"serialize_to_tensors() of {described(local)} has the name {name!r}, which "
                "is no text"
            )
    return dict(tensors)


def _tensors(local: Local, path: str) -> list[tuple[str, str, Any]]:
    """(attribute, key, what is saved) of everything in an object."""
    value, role = local.value, local.role
    key = attribute_key(path)
    if role is Role.SCALAR:
        with about(key):
            return [(VARIABLE_VALUE, key, stored_scalar(value))]
    if role is Role.ARRAY:
        return [(VARIABLE_VALUE, key, value)]
    if role is Role.PARALLEL:
        specs = value.serialize(path)
        return [(key.rpartition("/")[2], key, spec) for key, spec in specs.items()]
    if role is Role.PYTHON:
        state = value.serialize()
        if not isinstance(state, (str, bytes)):
            raise wrong(f"serialize() of {described(local)}", "a str or bytes", state)
        key = attribute_key(path, PY_STATE)
        with about(key):
            return [(PY_STATE, key, stored_scalar(state))]
    if role is Role.TENSORS:
        # The name is escaped, and once more in the key.
        found = [(escape(name), given) for name, given in own_tensors(local).items()]
        return [
            (name, key := attribute_key(path, name), _under(key, given)) for name, given in found
        ]
    return []


def _under(key: str, given: Any) -> Any:
    """What is saved of an object under the key that it gets."""
    if isinstance(given, Mapping):
        return {text: _under(key, value) for text, value in given.items()}
    if isinstance(given, SaveSpec):
        renamed = copy.copy(given)
        renamed.name = key
        return renamed
    return given


# ---- all of them ---------------------------------------------------------------------------------


class _ByIdentity(Mapping[Any, Mapping[str, Any]]):
    """Objects and their tensors as a Saver takes them; an object need not be hashable."""

    def __init__(self, pairs: list[tuple[Any, dict[str, Any]]]) -> None:
        self._pairs = pairs

    def __len__(self) -> int:
        return len(self._pairs)

    def __iter__(self) -> Iterator[Any]:
        return (owner for owner, _ in self._pairs)

    def __getitem__(self, owner: Any) -> Mapping[str, Any]:
        return next(tensors for other, tensors in self._pairs if other is owner)

    def items(self) -> Any:
        return self._pairs


def _paths(found: Iterable[Local]) -> list[str]:
    """The paths of all objects of a walk as they stand in keys."""
    paths: dict[Local | None, str] = {None: ""}
    for local in found:
        head = paths[local.parent]
        name = "" if local.trail is None else escape(local.trail[1])
        paths[local] = f"{head}/{name}" if local.parent is not None and local.parent.trail else name
    del paths[None]
    return list(paths.values())


def saver_of(view: View, line: Line) -> Saver:
    """A Saver of the objects of a checkpoint as they are now, their graph included.

    Args:
        view: the objects.
        line: of the owner of its background saves.

    Raises:
        InvalidError: an object that cannot be saved; the message names its path or its tensor.
    """
    found, edges = view.walk()
    slots = list(slots_of(found))
    paths = _paths(found)
    graph = ObjectGraph([Node(children=named) for named in edges])
    for slot in slots:
        graph.nodes[slot.optimizer].slot_variables.append(
            SlotVariable(slot.original, slot.name, len(graph.nodes))
        )
        graph.nodes.append(Node())
        paths.append(slot_key(paths[slot.original], paths[slot.optimizer], slot.name))
    found = [*found, *(slot.local for slot in slots)]

    pairs: list[tuple[Any, dict[str, Any]]] = []
    states: list[tuple[Any, dict[str, Any]]] = []
    registered: dict[str, dict[str, Any]] = {}
    for local, node, path in zip(found, graph.nodes, paths, strict=True):
        node.kind = _KINDS.get(type(local.value))
        saver_name = local.saver_name
        if saver_name is not None:
            node.registered_saver = saver_name, path
            registered.setdefault(saver_name, {})[path] = local.value
            continue
        tensors = _tensors(local, path)
        if not tensors:
            continue
        is_state = local.role is Role.PYTHON
        # Readers that know names only take one tensor for a name, so one attribute has it.
        node.attributes = [
            Attribute(name, local.full_name if name == VARIABLE_VALUE else "", key)
            for name, key, _ in tensors
        ]
        given = {key: value for _, key, value in tensors}
        (states if is_state else pairs).append((local.value, given))
    mark_checkpoint_values(graph)
    content = np.empty((), object)
    content[()] = encode_graph(graph)
    tensors_of = _ByIdentity([*pairs, *states, (None, {OBJECT_GRAPH_KEY: content})])
    return Saver(tensors_of, registered, line=line)
