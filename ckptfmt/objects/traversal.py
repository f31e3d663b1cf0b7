# SPDX-License-Identifier: Apache-2.0
"""Traversal of Python objects as the nodes of an object graph: which children an object has, and
what is saved of the object itself.

    object                              children                        tensors
    bool, int, float, complex, str,     none                            VARIABLE_VALUE
      bytes, numpy scalar
    array of any framework, buffer      none                            VARIABLE_VALUE
    {device: array} with a layout       none                            VARIABLE_VALUE
    ParallelVariable                    none                            VARIABLE_VALUE,
                                                                        parallel_component_<i>
    TreeNode                            its items                       its attributes
    mapping with keys of type str       its values                      none
    list, tuple                         its elements: "0", "1", ...     none
    namedtuple                          its fields, then as a tuple     none
    dataclass                           its fields that are set         none
    Trackable, Checkpoint               its attributes                  none
    with trackable_children()           the mapping it returns          none
    with serialize_to_tensors() and     as above                        the mapping it returns
      restore_from_tensors(tensors),
      or TensorFlow's
      _gather_saveables_for_checkpoint()
    with serialize() and                as above, without fields        py_state
      deserialize(value)
    with get_slot_names() and           as above                        (slot variables)
      get_slot(variable, name)
    with a registered saver             as above                        what the saver writes

An attribute that is None counts as missing. Any other object raises InvalidError with its path.

Scalars, tuples and frozen dataclasses are values. A value belongs to the place where it is stored:
equal values in two places are two nodes, and a restore replaces the value in its place. Every other
object is one node, even if it is found in several places. A restore writes into it, or replaces it
if it is a read-only array.

`TreeView` has the rules of `save_tree`, which keep everything that `load_tree` returns: None is a
node, a namedtuple has its fields only, a tuple found twice is one node.
"""

from __future__ import annotations

import array
import collections
import dataclasses
import enum
import functools
import inspect
import sys
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from ckptfmt._base.adapters import adapter_for, is_refused, named_type
from ckptfmt._base.arguments import invalid
from ckptfmt._base.targets import is_variable
from ckptfmt.bundle.graph import NODES_MAX, object_path
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError, LimitError
from ckptfmt.objects.nodes import Slot, TreeNode, scalar_kind
from ckptfmt.objects.trackable import TYPES_CACHED, Trackable
from ckptfmt.saving.devices import names_one_device
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.options import CheckpointOptions
from ckptfmt.saving.parallel import ParallelVariable
from ckptfmt.saving.registration import get_registered_saver_name


class Role(enum.Enum):
    """The way in which an object itself is saved."""

    SCALAR = enum.auto()
    ARRAY = enum.auto()
    PARALLEL = enum.auto()
    MESH = enum.auto()
    NODE = enum.auto()
    TENSORS = enum.auto()
    PYTHON = enum.auto()
    NOTHING = enum.auto()


# ---- one object ----------------------------------------------------------------------------------

_SCALARS = (bool, int, float, complex, str, bytes, np.generic)
_CONTAINERS = (Mapping, list, tuple)
_TF_BASE = "tensorflow.python.trackable.base"
# TensorFlow's method of objects that give SaveableObjects.
GATHER = "_gather_saveables_for_checkpoint"
_STATE = ("serialize", "deserialize")
_BUFFERS = (bytearray, memoryview, array.array)
_Answer = TypeVar("_Answer")


def _of_type(function: Callable[..., _Answer]) -> Callable[..., _Answer]:
    """Remember what a function says about types. As lru_cache, but mypy lets it take a type."""
    return functools.lru_cache(TYPES_CACHED)(function)


@_of_type
def _has(kind: type, *methods: str) -> bool:
    return all(_implements(getattr(kind, method, None)) for method in methods)


def _implements(method: Any) -> bool:
    """Return whether this is a method other than those with which TensorFlow's base class says that
    the object has no tensors: they raise NotImplementedError."""
    return callable(method) and getattr(method, "__module__", "") != _TF_BASE


@_of_type
def _restores(kind: type, saves: str, restores: str) -> bool:
    """Return whether the type has both methods, and the second is one of its objects: a classmethod
    or staticmethod makes a new object."""
    method = inspect.getattr_static(kind, restores, None)
    return _has(kind, saves, restores) and not isinstance(method, (classmethod, staticmethod))


def method_of(value: Any, name: str) -> Any:
    """Return a method under our name or TensorFlow's (with an underscore); None if missing."""
    for spelling in (name, f"_{name}"):
        method = getattr(value, spelling, None)
        if _implements(method):
            return method
    return None


def _has_tensors(kind: type) -> bool:
    return _has(kind, GATHER) or any(
        _restores(kind, f"{mark}serialize_to_tensors", f"{mark}restore_from_tensors")
        for mark in ("", "_")
    )


def _has_more(value: Any) -> bool:
    """Return whether an object of TensorFlow has children, beside what its methods give."""
    kind = getattr(sys.modules.get(_TF_BASE), "Trackable", None)
    children = getattr(value, "_trackable_children", None)
    return isinstance(kind, type) and isinstance(value, kind) and bool(children and children())


def has_slots(value: Any) -> bool:
    """Return whether the object holds variables for other variables, as optimizers do."""
    has_own = isinstance(value, TreeNode) and bool(value.slots)
    return has_own or _has(type(value), "get_slot_names", "get_slot")


@_of_type
def _is_value(kind: Any) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, (*_SCALARS, tuple)) or (parameters is not None and parameters.frozen)


def is_value(value: Any) -> bool:
    """Return whether the object is a value, which belongs to the place where it is stored."""
    return _is_value(type(value))


def is_array(value: object) -> bool:
    """Return whether the object is an array of any framework, a tensor handle, a buffer, a range,
    or has a method `__array__`."""
    if isinstance(value, (*_BUFFERS, range)):
        return True
    if isinstance(value, (type, types.ModuleType)):  # numpy has a `shape` and a `dtype`
        return False
    if hasattr(value, "__array__") or hasattr(value, "__array_interface__"):
        return True
    # Last, as some raise when "shape" is read: torch's lazy parameters.
    return hasattr(value, "shape") and hasattr(value, "dtype")


@_of_type
def _role_of(kind: Any) -> Role | None:
    """Return the role of objects of this type; None if the type does not decide it."""
    if is_refused(kind):
        return None
    roles = (
        (Role.ARRAY, issubclass(kind, np.ndarray) or is_variable(kind)),
        (Role.SCALAR, issubclass(kind, _SCALARS)),
        (Role.PARALLEL, issubclass(kind, ParallelVariable)),
        (Role.NODE, issubclass(kind, TreeNode)),
        (Role.NOTHING, issubclass(kind, (dict, list, tuple))),
        (Role.PYTHON, _restores(kind, *_STATE)),
        (Role.TENSORS, _has_tensors(kind)),
        (Role.NOTHING, _has(kind, "trackable_children")),
        (Role.NOTHING, _has(kind, "get_slot_names", "get_slot")),
        (Role.NOTHING, dataclasses.is_dataclass(kind) or issubclass(kind, Mapping)),
    )
    return next((role for role, is_it in roles if is_it), None)


@_of_type
def _uncalled(kind: Any) -> tuple[str, str]:
    """Return a method of this type that a save would not call, "" if none, and why."""
    container = next((one for one in (dict, list) if issubclass(kind, one)), None)
    if container is None and _role_of(kind) is not Role.PYTHON:
        return "", ""
    own = [] if container is None else [_STATE, ("trackable_children",) * 2]
    pairs = [*own, ("serialize_to_tensors", "restore_from_tensors")]
    method = next((pair[0] for pair in pairs if _restores(kind, *pair)), "")
    return method, "has serialize()" if container is None else f"is a {container.__name__}"


def role_of(value: Any, path: Iterable[str] = ()) -> Role:
    """Return what is saved of this object.

    Raises:
        InvalidError: objects of this type cannot be saved; the message names the path.
    """
    if isinstance(value, CheckpointOptions):
        remedy = ": pass it to write, save, CheckpointManager or TrainingState"
        raise refusal(value, path, "must not be saved as an object", remedy)
    if not isinstance(value, type) and not is_refused(type(value)):
        role = _role_of(type(value))
        by_methods = role in (Role.TENSORS, Role.PYTHON) or _has(type(value), "get_slot")
        if by_methods and _has_more(value):
            raise refusal(value, path, "has children and cannot be saved")
        if role is not None:
            return role
        if get_registered_saver_name(value) is not None:
            return Role.NOTHING
        if is_array(value):
            return Role.ARRAY
    raise refusal(
        value,
        path,
        "cannot be saved",
        ": it must be an array, a scalar, a container, a dataclass or a ckptfmt.Trackable, or have "
        "their methods; a Trackable excludes an attribute by naming it in `untracked`, and may "
        "store it by `serialize`",
    )


def refusal(value: Any, path: Iterable[str], reason: str, remedy: str = "") -> InvalidError:
    """Return the error for an object that "cannot be saved". If it is an object of a framework, or
    below one, the remedy is the calls that save and load that."""
    calls = adapter_for(value)
    if calls is not None:
        kind = named_type(value)
        return InvalidError(f"{described(path)} is of type {kind}, which {reason} here: {calls}")
    message = f"{described(path)} is of type {type(value).__name__}, which {reason}"
    place = path.parent if isinstance(path, Local) else None
    while place is not None:
        is_plain = isinstance(place.value, (Mapping, list)) or type(place.value) is tuple
        calls = None if is_plain else adapter_for(place.value)
        if calls is not None:
            whole = f"{described(place)}, of type {type(place.value).__name__}"
            return InvalidError(f"{message}; it belongs to {whole}: {calls}")
        place = place.parent
    return InvalidError(message + remedy)


def described(path: Iterable[str]) -> str:
    """Return the words for an object in a message."""
    text = "/".join(path)
    return f"the object at '{text}'" if text else "the root object"


def called(method: Callable[[], Any], value: Any, path: Iterable[str]) -> Any:
    """Return the result of a method of an object that is saved.

    Raises:
        InvalidError: the method raises NotImplementedError.
    """
    try:
        return method()
    except NotImplementedError as error:
        name = getattr(method, "__name__", "a method")
        text = f": {error}" if str(error) else ""
        remedy = f": its {name}() raises NotImplementedError{text}"
        raise refusal(value, path, "cannot be saved", remedy) from error


def refuse_coordinated(value: Any, path: Iterable[str]) -> None:
    """Raise InvalidError for a Checkpoint with a coordinator in an object that is saved: its
    coordinator and its layouts would be ignored."""
    if isinstance(value, Trackable) and getattr(value, "_ckptfmt_coordinator", None) is not None:
        raise InvalidError(
            f"{described(path)} is a {type(value).__name__} with a coordinator of its own, which "
            "would not be used here: make it without, and pass coordinator= and layouts= to the "
            "outermost call"
        )


class Child(NamedTuple):
    """A child of an object: its name, and the place where it is stored."""

    name: str
    value: Any
    holder: Any
    slot: Any


def children_of(value: Any, path: Iterable[str] = (), *, of_tree: bool = False) -> list[Child]:
    """Return the children of an object in TensorFlow's order.

    Args:
        value: the object.
        path: its path, for messages.
        of_tree: whether the rules of `TreeView` apply; else children that are None are left out.

    Raises:
        InvalidError: a key or name that is not a str.
    """
    role = _role_of(type(value))
    if value is None or role in (Role.SCALAR, Role.ARRAY, Role.PARALLEL):
        return []
    if isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", ()) if isinstance(value, tuple) else ()
        found = [Child(name, value[index], value, index) for index, name in enumerate(fields)]
        if not (of_tree and fields):
            found += [Child(str(index), item, value, index) for index, item in enumerate(value)]
    elif not isinstance(value, dict) and _has(type(value), "trackable_children"):
        named = called(value.trackable_children, value, path)
        if not isinstance(named, Mapping):
            raise InvalidError(
                f"trackable_children() of {described(path)} must return a mapping from names to "
                f"objects, not {type(named).__name__}"
            )
        found = _children_by_name(value, named, path)
    elif isinstance(value, Mapping):
        found = _children_by_name(value, value, path)
    elif dataclasses.is_dataclass(value) and role is Role.NOTHING:
        names = [field.name for field in dataclasses.fields(value)]
        fields = {name: getattr(value, name) for name in names if hasattr(value, name)}
        found = _children_by_name(value, fields, path)
    else:
        return []
    return found if of_tree else [child for child in found if child.value is not None]


def _children_by_name(holder: Any, found: Mapping[Any, Any], path: Iterable[str]) -> list[Child]:
    children = []
    for name, item in found.items():
        if not isinstance(name, str):
            raise InvalidError(
                f"{described(path)} has a child named {name!r}: keys and names must be str"
            )
        value = item() if isinstance(item, weakref.ref) else item
        children.append(Child(name, value, holder, name))
    return children


def slot_of(optimizer: Any, variable: Any, name: str) -> Any:
    """Return a slot variable; None if the optimizer has none of this name for the variable."""
    if isinstance(optimizer, TreeNode):
        found = (one for one in optimizer.slots if one.variable is variable and one.name == name)
        return next((one.value for one in found), None)
    try:
        return optimizer.get_slot(variable, name)
    except (AttributeError, KeyError):
        return None


def slots_of(optimizer: Any, variables: Iterable[Any]) -> Iterator[Slot]:
    """Yield the slot variables of an optimizer in TensorFlow's order."""
    if isinstance(optimizer, TreeNode):
        yield from optimizer.slots
        return
    for name in optimizer.get_slot_names():
        for variable in variables:
            value = slot_of(optimizer, variable, name)
            if value is not None:
                yield Slot(variable, name, value)


# Objects without end are refused before they fill the memory.
DEPTH_MAX, PATH_SHOWN = 100_000, 10

# ---- the traversal -------------------------------------------------------------------------------


# The names on the path to an object, from the last to the first. Objects below one another share
# the common part, and no object is kept alive.
Trail = tuple[Any, str] | None


def trail_of(names: Iterable[str]) -> Trail:
    """Return the trail of these names."""
    trail: Trail = None
    for name in names:
        trail = trail, name
    return trail


class Local:
    """An object at the place where a traversal found it. Its text and its iterator are its path.

    Attributes:
        value: the object.
        trail: the local names on the path from the root.
        parent: the object of which it is a child; None for the root and for slot variables.
        holder, slot: the object that it is stored in and the key there; the holder is None if it
            cannot be replaced.
        key: identifies the object within one traversal.
        layout: the layout of an array on a mesh, which is {device: local array}.
        path_text: its escaped path, if that is not the one of the trail (slot variables).
        default_name: the full name of a slot variable that has no name of its own; None for the
            path.
    """

    __slots__ = (
        "_role",
        "default_name",
        "holder",
        "key",
        "layout",
        "parent",
        "path_text",
        "slot",
        "trail",
        "value",
    )

    def __init__(
        self,
        value: Any,
        trail: Trail = None,
        parent: Local | None = None,
        holder: Any = None,
        slot: Any = None,
    ) -> None:
        self.value = value
        self.trail = trail
        self.parent = parent
        self.holder = holder
        self.slot = slot
        self.path_text: str | None = None
        self.default_name: str | None = None
        self.layout: Layout | None = None
        self._role: Role | None = None
        self.key: Hashable = self.place if _is_value(type(value)) else id(value)

    def child(self, child: Child) -> Local:
        """Return the child as an object of the same traversal."""
        return Local(child.value, (self.trail, child.name), self, child.holder, child.slot)

    @property
    def path(self) -> tuple[str, ...]:
        """The local names on the path from the root."""
        names = []
        trail = self.trail
        while trail is not None:
            trail, name = trail
            names.append(name)
        return tuple(reversed(names))

    @property
    def key_path(self) -> str:
        """The escaped path, as checkpoint keys have it."""
        return object_path(self.path) if self.path_text is None else self.path_text

    def __iter__(self) -> Iterator[str]:
        return iter(self.path)

    def __str__(self) -> str:
        return "/".join(self.path)

    @property
    def place(self) -> Hashable:
        """The place of the object, which is also the place of one that replaced it."""
        if self.parent is None:
            return id(self.value)
        around = self.parent.key if is_value(self.holder) else id(self.holder)
        return around, self.slot

    @property
    def role(self) -> Role:
        """The way in which the object is saved."""
        if self._role is None:
            self._role = Role.MESH if self.layout else role_of(self.value, self)
        return self._role

    @property
    def saver_name(self) -> str | None:
        """The name of the registered saver that saves the object."""
        if self.role in (Role.SCALAR, Role.PYTHON):
            return None
        return get_registered_saver_name(self.value)

    @property
    def full_name(self) -> str:
        """The name of the object in a name-based checkpoint."""
        unnamed = self.role is Role.SCALAR or isinstance(self.value, TensorHandle)
        # The name of a TensorFlow variable ends with ":0", and not in checkpoints.
        for attribute in () if unnamed else ("_shared_name", "name"):
            name = getattr(self.value, attribute, None)
            if isinstance(name, str) and name:
                return name
        return self.default_name or str(self)


class Edges(NamedTuple):
    """The result of a traversal: the objects, and the children of each as names and indices."""

    objects: list[Local]
    children: list[list[tuple[str, int]]]


class View:
    """The objects of a checkpoint: a root, and optionally a second object whose attributes count as
    the root's.

    Args:
        root: the root object.
        beside: an object whose children are children of the root as well, or None.
        layouts: where processes save together, escaped path to Layout, for leaves that are
            {device: array}; else None. A leaf whose layout is None is an ordinary array, and so is
            one array with a replicated layout.
    """

    def __init__(
        self, root: Any, beside: Any = None, layouts: Mapping[str, Layout | None] | None = None
    ) -> None:
        self.root = root
        self.beside = beside
        self.layouts = layouts
        self._used: set[str] = set()
        self._known: dict[int, Layout | None] = {}

    def start(self) -> Local:
        """Return the root, where every traversal begins."""
        return Local(self.root)

    def check(self, local: Local) -> None:
        """Raise InvalidError if an object cannot be saved."""
        local.role  # noqa: B018 (computed at the first access)
        method, reason = _uncalled(type(local.value))
        if method:
            what = f"cannot be saved: its {method}() would not be called, because it {reason}"
            raise refusal(local.value, local, what)

    def children(self, local: Local) -> list[Child]:
        """Return the children of an object in TensorFlow's order.

        Raises:
            InvalidError: as `children_of`; the root and the object beside it have different
                children of one name.
        """
        if local.layout is not None:
            return []
        found = children_of(local.value, local)
        if self.beside is None or local.value is not self.root:
            return found
        own = {child.name: child.value for child in found}
        for child in children_of(self.beside):
            if child.name not in own:
                found.append(child)
            elif own[child.name] is not child.value and child.value is not self.root:
                raise name_conflict(child.name)
        return found

    def found(self, local: Local) -> Local:
        """Return an object with its layout, and with the key by which this view identifies it.

        Raises:
            InvalidError: a layout of an object that is neither an array nor {device: array}; where
                processes save together, {device: array} without a layout; a Checkpoint with a
                coordinator that is not the root.
        """
        value = local.value
        if value is not self.root and value is not self.beside:
            refuse_coordinated(value, local)
        if self.layouts is None:
            return local
        path = local.key_path
        if path in self.layouts:
            self._used.add(path)
            layout = self.layouts[path]
            if layout is not None and not isinstance(value, Mapping) and is_array(value):
                if not layout.is_replicated:
                    raise InvalidError(
                        f"{described(local)} is divided by its layout {layout.text}: it must be "
                        "its local arrays, {device: array}, not one array"
                    )
                layout = None
            self._known[id(value)] = layout
        local.layout = self._known.get(id(value))
        if local.layout is not None and (
            isinstance(value, TreeNode) or not isinstance(value, Mapping)
        ):
            raise InvalidError(
                f"{described(local)} is of type {type(value).__name__}, which cannot have a layout"
            )
        if local.layout is None and isinstance(value, Mapping) and self._has_blocks(value):
            raise InvalidError(
                f"{described(local)} is {{device: array}} without a layout, so that its blocks "
                "would be saved under the names of devices: pass its Layout in layouts=, or one "
                "array if it is replicated; or rename keys that do not mean devices"
            )
        return local

    @functools.cached_property
    def _devices(self) -> frozenset[str]:
        """The devices of all meshes of the layouts."""
        meshes = {layout.mesh for layout in (self.layouts or {}).values() if layout is not None}
        return frozenset(device for mesh in meshes for device in mesh.devices)

    def _has_blocks(self, value: Mapping[Any, Any]) -> bool:
        """Return whether all keys are devices."""
        return bool(value) and all(
            isinstance(key, str) and (key in self._devices or names_one_device(key))
            for key in value
        )

    def walk(self, start: Local | None = None) -> Edges:
        """Return all objects, breadth first from the root or from `start`.

        Raises:
            InvalidError: as `children` and `found`, and for an object that cannot be saved.
            LimitError: more objects than a graph may have, or more below one another than
                DEPTH_MAX; the message names the path.
        """
        start = self.found(start or self.start())
        found = [start]
        indices: dict[Hashable, int] = {start.key: 0}
        edges: list[list[tuple[str, int]]] = []
        to_visit = collections.deque([start])
        depth = last = 0  # the index of the last object that is so deep
        while to_visit:
            local = to_visit.popleft()
            self.check(local)
            if len(edges) > last:
                depth, last = depth + 1, len(found) - 1
            if depth > DEPTH_MAX or len(found) > NODES_MAX:
                raise _endless(local)
            named = []
            for child in self.children(local):
                below = self.found(local.child(child))
                index = indices.get(below.key)
                if index is None:
                    index = indices[below.key] = len(found)
                    found.append(below)
                    to_visit.append(below)
                named.append((child.name, index))
            edges.append(named)
        return Edges(found, edges)

    def check_layouts(self, edges: Edges) -> None:
        """Raise InvalidError for a layout of a path that is not a leaf.

        Args:
            edges: what `walk` returned.
        """
        for path in sorted(set(self.layouts or ()).difference(self._used)):
            # It may be another path to a leaf that was found under a shorter one.
            index = found_at(edges, path)
            if index is None or edges.objects[index].key_path not in self._used:
                raise invalid("layouts", f"layouts names {path!r}, which is not a leaf of the tree")


def _endless(local: Local) -> LimitError:
    names = local.path[:PATH_SHOWN]
    return LimitError(
        f"{described((*names, '...'))} does not end: the limits are {NODES_MAX} objects, and "
        f"{DEPTH_MAX} below one another. A trackable_children() must return the same objects at "
        "each call"
    )


def name_conflict(name: str) -> InvalidError:
    """Return the error for two objects of one name."""
    return InvalidError(
        f"the root and the Checkpoint have different objects named '{name}'; rename one of them"
    )


# ---- trees ---------------------------------------------------------------------------------------


class TreeView(View):
    """The objects of a tree as `save_tree` saves them."""

    def found(self, local: Local) -> Local:
        """Identify everything but scalars and None by identity: a tuple found twice is one node."""
        is_shared = local.value is not None and not isinstance(local.value, _SCALARS)
        local.key = id(local.value) if is_shared else local.place
        return super().found(local)

    def check(self, local: Local) -> None:
        """Raise InvalidError for what `load_tree` could not return."""
        value = local.value
        if local.layout is not None or value is None:
            return
        if scalar_kind(value) is not None or isinstance(value, np.generic):
            return
        role = None if isinstance(value, type) else _role_of(type(value))
        is_container = isinstance(value, _CONTAINERS) or dataclasses.is_dataclass(value)
        if (
            role in (Role.ARRAY, Role.PARALLEL, Role.NODE)
            or (role is Role.NOTHING and is_container)
            or (role is None and is_array(value))
        ):
            return
        remedy = "; ckptfmt.Checkpoint saves objects"
        raise refusal(value, local, "a tree cannot contain", remedy)

    def children(self, local: Local) -> list[Child]:
        """Return the children, None included."""
        return [] if local.layout is not None else children_of(local.value, local, of_tree=True)


def found_at(edges: Edges, path: str) -> int | None:
    """Return the index of the object at an escaped path; None if missing."""
    index: int | None = 0
    for name in path.split("/"):
        if index is None:
            return None
        found = {object_path([child]): number for child, number in edges.children[index]}
        index = found.get(name)
    return index


def kind_of(value: Any, role: Role) -> str | None:
    """Return the kind of Python object that the graph records of an object with this role."""
    if role is Role.SCALAR:
        return scalar_kind(value)
    if role is not Role.NOTHING or is_array(value):
        return None
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return "tuple"
    if isinstance(value, list):
        return "list"
    is_dict = isinstance(value, (Mapping, tuple)) or dataclasses.is_dataclass(value)
    return "dict" if is_dict and _role_of(type(value)) is Role.NOTHING else None


def optimizers_among(found: Iterable[Local]) -> list[tuple[int, Local]]:
    """Return the objects that have slot variables, with their indices."""
    return [(index, local) for index, local in enumerate(found) if has_slots(local.value)]
