# SPDX-License-Identifier: Apache-2.0
"""From Python objects to an object graph and the tensors that it names, in TensorFlow's order.

Nodes are the objects breadth first, then the slot variables. Tensors are in the order of their
nodes, then the states of Python objects; the graph itself is the last.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.arguments import wrong
from ckptfmt._base.arrays import Sources
from ckptfmt._base.background import SaveQueue
from ckptfmt._base.dtypes import VARIANT
from ckptfmt._base.names import VALUE_SUFFIX, user_name
from ckptfmt.bundle.graph import (
    NONE,
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
from ckptfmt.errors import InvalidError, UnsupportedError, about
from ckptfmt.objects.nodes import TreeNode, scalar_array, scalar_kind
from ckptfmt.objects.traversal import (
    GATHER,
    Local,
    Role,
    View,
    called,
    children_of,
    described,
    has_slots,
    kind_of,
    method_of,
    optimizers_among,
    slots_of,
    trail_of,
)
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.saver import Saver
from ckptfmt.saving.specs import SaveSpec

# ---- slot variables ------------------------------------------------------------------------------


@dataclass(slots=True)
class FoundSlot:
    """A slot variable: indices of its optimizer and of the variable that it belongs to, its name,
    itself, and its own index if it is an object of the checkpoint already."""

    optimizer: int
    original: int
    name: str
    local: Local
    index: int | None = None


def slot_locals(found: list[Local], *, is_part: bool = False) -> list[FoundSlot]:
    """Return the slot variables of all optimizers among these objects, in TensorFlow's order. One
    that is {device: array} has the layout of its variable. `is_part` leaves out those whose
    variable is not among the objects.

    Raises:
        InvalidError: a slot variable that has children, is not a variable or belongs to none of the
            objects; one of an optimizer with `get_slot` that is an object of the checkpoint in
            another place as well.
    """
    optimizers = optimizers_among(found)
    if not optimizers:
        return []
    slots: list[FoundSlot] = []
    named: dict[str, Local] = {}
    indices: dict[Hashable, int] = {local.key: index for index, local in enumerate(found)}
    by_identity = {id(local.value): index for index, local in enumerate(found)}
    variables = [local.value for local in found if _is_variable(local)]
    count = len(found)
    for optimizer_index, optimizer in optimizers:
        names: set[tuple[int, str]] = set()
        for slot in slots_of(optimizer.value, variables):
            original = by_identity.get(id(slot.variable))
            if original is None and is_part:
                continue
            if not isinstance(slot.name, str) or original is None:
                raise InvalidError(
                    f"{described(optimizer)} has the slot {slot.name!r} of a variable that is not "
                    "an object of the checkpoint"
                    if original is None
                    else f"{described(optimizer)} has the slot {slot.name!r}: names must be str"
                )
            variable = found[original]
            what = f"the slot variable '{slot.name}' of {described(variable)}"
            if (original, slot.name) in names:
                raise InvalidError(f"{described(optimizer)} has {what} twice")
            names.add((original, slot.name))
            local = Local(slot.value, trail_of((*variable, *optimizer, slot.name)))
            local.path_text = slot_key(variable.key_path, optimizer.key_path, slot.name)
            # As TensorFlow 1; its further optimizers of a variable have other names.
            local.default_name = f"{variable.full_name}/{slot.name}"
            first = named.setdefault(local.default_name, local)
            if first is not local:
                first.default_name = local.default_name = None
            if isinstance(slot.value, Mapping):
                local.layout = variable.layout
            has_children = local.layout is None and children_of(slot.value)
            if not _is_variable(local) or has_children or has_slots(slot.value):
                raise InvalidError(
                    f"{what} is of type {type(slot.value).__name__}: it must be a variable "
                    "without children"
                )
            known = indices.get(local.key)
            if known is None:
                indices[local.key] = count
                count += 1
            elif not isinstance(optimizer.value, TreeNode):
                raise InvalidError(
                    f"{what} is also an object of the checkpoint in another place, which is not "
                    "supported"
                )
            slots.append(FoundSlot(optimizer_index, original, slot.name, local, known))
    return slots


def _is_variable(local: Local) -> bool:
    if local.value is None:
        return False
    return local.role in (Role.ARRAY, Role.MESH, Role.PARALLEL, Role.NODE, Role.TENSORS)


# ---- tensors of one object -----------------------------------------------------------------------


def stored_scalar(value: Any) -> NDArray[Any]:
    """Return a scalar as it is stored.

    Raises:
        InvalidError: an int beyond 64 bits, or a str that cannot be encoded.
    """
    if isinstance(value, (str, bytes)):  # numpy's as well
        return scalar_array("str" if isinstance(value, str) else "bytes", value)
    kind = scalar_kind(value)
    return np.array(value) if kind is None else scalar_array(kind, value)


class OwnTensor(NamedTuple):
    """A tensor that an object gives.

    Attributes:
        attribute, attribute_key: its attribute in the graph, and the key that the graph has for it.
        key: its name; several tensors may belong to one attribute.
        value: an array, a SaveSpec, or a mapping of these by slice.
    """

    attribute: str
    attribute_key: str
    key: str
    value: Any

    def parts(self) -> list[tuple[str, Any]]:
        """Return the arrays and SaveSpecs by slice, "" for the whole tensor."""
        return list(self.value.items()) if isinstance(self.value, Mapping) else [("", self.value)]


class OwnTensors(NamedTuple):
    """The tensors that an object gives, and the function that gives it back arrays by key and
    slice."""

    tensors: list[OwnTensor]
    restore: Callable[[Mapping[tuple[str, str], NDArray[Any]]], object]


def own_tensors(local: Local, keys: Mapping[str, str] | None = None) -> OwnTensors:
    """Return the tensors that an object gives by `serialize_to_tensors`, or by TensorFlow's methods
    for that.

    Args:
        local: the object.
        keys: by attribute, the keys of a checkpoint that it is restored from; default those that
            it is saved under.

    Raises:
        InvalidError: it does not give what it must.
    """
    given = method_of(local.value, "serialize_to_tensors")
    restore = method_of(local.value, "restore_from_tensors")
    if given is None or restore is None:
        return _saveables(local, keys or {})
    named = called(given, local.value, local)
    if not isinstance(named, Mapping):
        raise wrong(f"serialize_to_tensors() of {described(local)}", "a mapping", named)
    # TensorFlow's tables have one attribute for several tensors, whose keys begin with its key.
    common = getattr(local.value, "_LEGACY_SAVEABLE_NAME", "")
    found: dict[str, OwnTensor] = {}
    for name, value in named.items():
        if not isinstance(name, str) or not name:
            raise InvalidError(
                f"serialize_to_tensors() of {described(local)} has the name {name!r}: names must "
                "be nonempty str"
            )
        attribute = common or escape(name)
        start = _key_of(local, attribute, keys or {})
        key = start + escape(name) if common else start
        found[name] = OwnTensor(attribute, start, key, value)

    def give(arrays: Mapping[tuple[str, str], NDArray[Any]]) -> None:
        restored: dict[str, Any] = {}
        for name, own in found.items():
            parts = {
                text: arrays[own.key, text] for text, _ in own.parts() if (own.key, text) in arrays
            }
            if not parts and own.parts():
                continue  # it may be missing
            restored[name] = parts if isinstance(own.value, Mapping) else parts[""]
        restore(restored)

    return OwnTensors(list(found.values()), give)


def _key_of(local: Local, attribute: str, keys: Mapping[str, str]) -> str:
    return keys.get(attribute) or attribute_key(local.key_path, attribute)


def _saveables(local: Local, keys: Mapping[str, str]) -> OwnTensors:
    """Return the tensors of an object that gives TensorFlow's SaveableObjects by attribute."""
    found: list[OwnTensor] = []
    saveables = []
    for attribute, make in called(getattr(local.value, GATHER), local.value, local).items():
        start = _key_of(local, attribute, keys)
        made = make(name=start) if callable(make) else make
        parts: dict[str, dict[str, Any]] = {}
        for saveable in made if isinstance(made, (list, tuple)) else [made]:
            if not hasattr(saveable, "specs") or not hasattr(saveable, "restore"):
                raise wrong(f"{GATHER}() of {described(local)}", "SaveableObjects", saveable)
            saveables.append(saveable)
            for spec in saveable.specs:
                parts.setdefault(spec.name, {})[spec.slice_spec] = spec.tensor
        found += [
            OwnTensor(attribute, start, key, value.get("", value)) for key, value in parts.items()
        ]

    def give(arrays: Mapping[tuple[str, str], NDArray[Any]]) -> None:
        for one in saveables:
            one.restore([arrays[spec.name, spec.slice_spec] for spec in one.specs], None)

    return OwnTensors(found, give)


def _tensors(local: Local, role: Role) -> tuple[list[Attribute], dict[str, Any]]:
    """Return the attributes of an object with this role, and what is saved by key."""
    value, path, name = local.value, local.key_path, local.full_name
    key = path + VALUE_SUFFIX
    whole = [Attribute(VARIABLE_VALUE, name, key)]
    if role is Role.MESH:
        return whole, {key: value}
    if role is Role.SCALAR:
        with about(key):
            return whole, {key: stored_scalar(value)}
    if role is Role.ARRAY:
        return whole, {key: _with_dtype(key, value)}
    if role is Role.PARALLEL:
        # Readers that know names only find one tensor by a name.
        specs = value.serialize(path)
        names = [one.rpartition("/")[2] for one in specs]
        full_names = [name if one == VARIABLE_VALUE else "" for one in names]
        return list(map(Attribute, names, full_names, specs)), specs
    if role is Role.NODE:
        return _node_tensors(local, path, name)
    if role is Role.PYTHON:
        state = called(value.serialize, value, local)
        if not isinstance(state, (str, bytes)):
            raise wrong(f"serialize() of {described(local)}", "a str or bytes", state)
        key = attribute_key(path, PY_STATE)
        with about(key):
            return [Attribute(PY_STATE, "", key)], {key: stored_scalar(state)}
    if role is Role.TENSORS:
        attributes: dict[str, Attribute] = {}
        tensors = {}
        for own in own_tensors(local).tensors:
            full_name = name if own.attribute == VARIABLE_VALUE else ""
            attributes[own.attribute] = Attribute(own.attribute, full_name, own.attribute_key)
            tensors[own.key] = _under(own.key, own.value)
        return list(attributes.values()), tensors
    return [], {}


def _node_tensors(
    local: Local, path: str, full_name: str
) -> tuple[list[Attribute], dict[str, Any]]:
    node: TreeNode = local.value
    if node.registered_saver is not None:
        raise UnsupportedError(
            f"{described(local)} was saved by the registered saver {node.registered_saver[0]!r}, "
            "whose tensors a tree does not contain"
        )
    attributes: list[Attribute] = []
    tensors: dict[str, Any] = {}
    for name, given in node.attributes.items():
        if not isinstance(name, str):
            raise InvalidError(f"{described(local)} has the attribute {name!r}: it must be a str")
        key = attribute_key(path, name)
        several = isinstance(given, Mapping)
        is_value = name == VARIABLE_VALUE and not several
        attributes.append(Attribute(name, full_name if is_value else "", key))
        if not several:
            tensors[key] = _with_dtype(key, given)
            continue
        for suffix, array in given.items():
            if not isinstance(suffix, str) or not suffix:
                raise InvalidError(
                    f"the attribute {name!r} of {described(local)} has a tensor {suffix!r}: its "
                    "tensors must be named by nonempty str"
                )
            tensors[key + suffix] = _with_dtype(key + suffix, array)
    return attributes, tensors


def _with_dtype(key: str, value: Any) -> Any:
    """Return a SaveSpec for an array of variant payloads; any other value as it is."""
    metadata = getattr(getattr(value, "dtype", None), "metadata", None)
    is_variants = metadata is not None and metadata.get("ckptfmt") == VARIANT
    return SaveSpec(value, "", key, VARIANT) if is_variants else value


def _under(key: str, given: Any) -> Any:
    """Return the values of an object that are saved, with specs under this key."""
    if isinstance(given, Mapping):
        return {text: _under(key, value) for text, value in given.items()}
    if isinstance(given, SaveSpec):
        renamed = copy.copy(given)
        renamed.name = key
        return renamed
    return given


# ---- all objects ---------------------------------------------------------------------------------


@dataclass
class Content:
    """The content of a checkpoint of objects.

    Attributes:
        graph: the encoded object graph.
        owners: objects and their tensors by key, in the order of the data file.
        registered: name of a registered saver -> key of an object -> object.
        layouts: the layouts of tensors on meshes, by key.
    """

    graph: bytes = b""
    owners: list[tuple[Any, dict[str, Any]]] = field(default_factory=list)
    registered: dict[str, dict[str, Any]] = field(default_factory=dict)
    layouts: dict[str, Layout] = field(default_factory=dict)

    @property
    def tensors(self) -> dict[str, Any]:
        """All tensors by key.

        Raises:
            InvalidError: two objects have one key.
        """
        found: dict[str, Any] = {}
        for _, tensors in self.owners:
            for key, value in tensors.items():
                if key in found:
                    raise InvalidError("two objects have this key", tensor=key)
                found[key] = value
        return found

    def sources(self) -> Sources:
        """Return the tensors and the graph as the writer takes them, for one shard."""
        found = Sources()
        for key, value in self.tensors.items():
            is_spec = isinstance(value, SaveSpec)
            tensor, dtype = (value.tensor, value.dtype) if is_spec else (value, None)
            found.add(user_name(key), tensor, dtype)
        found.add(OBJECT_GRAPH_KEY.encode(), self.graph)
        return found


def content_of(view: View) -> Content:
    """Return what is saved of these objects as they are now.

    Raises:
        InvalidError: an object that cannot be saved, or a layout of something that is not a leaf;
            the message names its path or its tensor.
        UnsupportedError: a TreeNode that was saved by a registered saver.
    """
    walked = view.walk()
    view.check_layouts(walked)
    found, edges = walked
    slots = slot_locals(found)
    graph = ObjectGraph([Node(children=named) for named in edges])
    found = list(found)
    for slot in slots:
        index = slot.index
        if index is None:
            index = len(graph.nodes)
            graph.nodes.append(Node())
            found.append(slot.local)
        graph.nodes[slot.optimizer].slot_variables.append(
            SlotVariable(slot.original, slot.name, index)
        )
    content = Content()
    states: list[tuple[Any, dict[str, Any]]] = []
    for local, node in zip(found, graph.nodes, strict=True):
        if local.value is None:
            node.kind = NONE
            continue
        if local.layout is not None:
            content.layouts[local.key_path + VALUE_SUFFIX] = local.layout
        role, saver_name = local.role, local.saver_name
        node.kind = kind_of(local.value, role)
        if saver_name is not None:
            node.registered_saver = saver_name, local.key_path
            content.registered.setdefault(saver_name, {})[local.key_path] = local.value
            continue
        if role is Role.NOTHING:
            continue
        node.attributes, tensors = _tensors(local, role)
        state = {}
        if role in (Role.PYTHON, Role.NODE):
            keys = [one.checkpoint_key for one in node.attributes if one.name == PY_STATE]
            state = {key: tensors.pop(key) for key in keys if key in tensors}
        content.owners += [(local.value, tensors)] * bool(tensors)
        states += [(local.value, state)] * bool(state)
    content.owners += states
    mark_checkpoint_values(graph)
    content.graph = encode_graph(graph)
    return content


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


def saver_of(content: Content, queue: SaveQueue) -> Saver:
    """Return a Saver of this content, with the save queue of its owner."""
    graph = np.empty((), object)
    graph[()] = content.graph
    owners = [*content.owners, (None, {OBJECT_GRAPH_KEY: graph})]
    return Saver(_ByIdentity(owners), content.registered, queue=queue)
