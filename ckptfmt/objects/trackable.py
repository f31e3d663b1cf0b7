# SPDX-License-Identifier: Apache-2.0
"""How Python objects are seen as nodes of an object graph: what children they have, and what is
saved of them.

    object                              children                        tensors
    bool, int, float, complex, str,     none                            VARIABLE_VALUE
      bytes, numpy scalar
    numpy array                         none                            VARIABLE_VALUE
    ParallelVariable                    none                            VARIABLE_VALUE,
                                                                        parallel_component_<i>
    dict with keys of type str          its values                      none
    list, tuple                         its elements: "0", "1", ...     none
    namedtuple                          its fields, then as a tuple     none
    dataclass                           its fields                      none
    Trackable, Checkpoint               its attributes                  none
    with trackable_children()           what that gives, by name        none
    with serialize_to_tensors() and     as above                        what that gives, by name
      restore_from_tensors(tensors)
    with serialize() and                as above, no fields             py_state
      deserialize(value)
    with get_slot_names() and           as above                        (slot variables)
      get_slot(variable, name)
    of a registered saver               as above                        what the saver writes

None is nothing: it is left out, and an attribute that is None is one that is not there yet. Every
other object is refused with the path to it.

Scalars, tuples and frozen dataclasses are values: they are what they are in the place where they
lie, and a restore replaces them there. All others are the same object wherever they are met; arrays
that can be written are restored in place.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import enum
import functools
import inspect
import weakref
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from ckptfmt.errors import InvalidError
from ckptfmt.saving.parallel import ParallelVariable
from ckptfmt.saving.registration import get_registered_saver_name

__all__ = ["Child", "Local", "Role", "Trackable", "View", "replace_child", "role_of"]


class Role(enum.Enum):
    """What is saved of an object itself."""

    SCALAR = enum.auto()
    ARRAY = enum.auto()
    PARALLEL = enum.auto()
    TENSORS = enum.auto()
    PYTHON = enum.auto()
    NOTHING = enum.auto()


class Expected(Protocol):
    """A value of a checkpoint that waits for an object."""

    def fill(self, holder: Any, name: str, value: Any) -> None:
        """Called when an object was attached under the name that it waits for."""


# ---- what waits for an attribute -----------------------------------------------------------------

_Names = dict[str | None, tuple[int, Expected]]


class _Waiting:
    """What waits for attributes, by object (not kept alive) and name; None stands for any name."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[weakref.ref[Any], _Names]] = {}

    def wait(self, holder: Any, name: str | None, number: int, expected: Expected) -> None:
        """Has something wait for an attribute, unless what waits for it has a higher number."""
        key = id(holder)
        if key not in self._found:
            gone = weakref.ref(holder, lambda _: self._found.pop(key, None))
            self._found[key] = gone, {}
        names = self._found[key][1]
        if name not in names or names[name][0] <= number:
            names[name] = number, expected

    def attached(self, holder: Any, name: str, value: Any) -> None:
        """Gives an attribute that was just set what waits for it."""
        if id(holder) not in self._found or value is None:
            return
        names = self._found[id(holder)][1]
        own, any_name = names.pop(name, None), names.get(None)
        found = sorted((one for one in (own, any_name) if one is not None), key=lambda one: one[0])
        for one in found:
            try:
                one[1].fill(holder, name, value)
            except BaseException:
                if one is own:  # it waits for the next one, which may fit
                    names.setdefault(name, one)
                raise


waiting = _Waiting()


class Trackable:
    """Base of objects whose attributes are saved with a checkpoint.

    What is set as an attribute after a restore gets at once what the checkpoint has for it, if the
    attribute was not there at that time.

    >>> class Dense(Trackable):
    ...     untracked = ("activation",)
    ...
    ...     def __init__(self):
    ...         self.activation = np.tanh
    ...         self.kernel = np.zeros((2, 3), np.float32)

    Attributes:
        untracked: names of attributes that are not saved. Of all others each must be an object that
            can be: see the list at the top of this module.
    """

    untracked: ClassVar[Collection[str]] = ()

    def trackable_children(self) -> Mapping[str, Any]:
        """The attributes that are saved, in the order in which they were first set; before them
        those in `__slots__`."""
        found = {name: getattr(self, name, None) for name in _slot_names(_type(self))}
        found.update(vars(self))
        return {name: value for name, value in found.items() if name not in self.untracked}

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        if name not in self.untracked:
            waiting.attached(self, name, value)


# ---- one object ----------------------------------------------------------------------------------

_SCALARS = (bool, int, float, complex, str, bytes, np.generic)
# Types that answers about are kept of.
TYPES_KEPT = 512


def _has(kind: type, *methods: str) -> bool:
    return all(callable(getattr(kind, method, None)) for method in methods)


def method_of(value: Any, name: str) -> Any:
    """A method of the protocols under our name or TensorFlow's, with an underscore; None if there
    is none."""
    for spelling in (name, f"_{name}"):
        method = getattr(value, spelling, None)
        if callable(method):
            return method
    return None


def _has_tensors(kind: type) -> bool:
    return any(
        _has(kind, f"{mark}serialize_to_tensors", f"{mark}restore_from_tensors")
        for mark in ("", "_")
    )


def _type(value: Any) -> Any:
    return type(value)  # for mypy, types are not hashable


@functools.lru_cache(TYPES_KEPT)
def _slot_names(kind: Any) -> tuple[str, ...]:
    """The names in `__slots__` of a type and its bases, but for our own."""
    found = []
    for base in reversed(kind.__mro__):
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            is_private = name.startswith("__") and not name.endswith("__")
            found.append(f"_{base.__name__.lstrip('_')}{name}" if is_private else name)
    own = ("_ckptfmt_", "__")
    return tuple(name for name in found if not name.startswith(own))


@functools.lru_cache(TYPES_KEPT)
def _has_slots(kind: Any) -> bool:
    return _has(kind, "get_slot_names", "get_slot")


def has_slots(value: Any) -> bool:
    """Whether it keeps variables for other variables, as optimizers do."""
    return _has_slots(_type(value))


@functools.lru_cache(TYPES_KEPT)
def _is_value(kind: Any) -> bool:
    parameters = getattr(kind, "__dataclass_params__", None)
    return issubclass(kind, (*_SCALARS, tuple)) or (parameters is not None and parameters.frozen)


def is_value(value: Any) -> bool:
    """Whether it is what it is only in the place where it lies."""
    return _is_value(_type(value))


def can_be_written(array: np.ndarray[Any, Any]) -> bool:
    """Whether a restore can write into this array whatever the texts in it are."""
    return array.flags.writeable and array.dtype.kind not in "SU"


@functools.lru_cache(TYPES_KEPT)
def _role_of(kind: Any) -> Role | None:
    """What is saved of objects of this type; None if that is not for the type to say."""
    roles = (
        (Role.ARRAY, issubclass(kind, np.ndarray)),
        (Role.SCALAR, issubclass(kind, _SCALARS)),
        (Role.PARALLEL, issubclass(kind, ParallelVariable)),
        (Role.NOTHING, issubclass(kind, (dict, list, tuple))),
        (Role.PYTHON, _has(kind, "serialize", "deserialize")),
        (Role.TENSORS, _has_tensors(kind)),
        (Role.NOTHING, _has(kind, "trackable_children") or _has_slots(kind)),
        (Role.NOTHING, dataclasses.is_dataclass(kind)),
    )
    return next((role for role, is_it in roles if is_it), None)


def role_of(value: Any, path: Iterable[str] = ()) -> Role:
    """What is saved of this object.

    Raises:
        InvalidError: nothing of this kind can be saved; it names the path.
    """
    role = None if isinstance(value, type) else _role_of(_type(value))
    if role is not None:
        return role
    if get_registered_saver_name(value) is not None:
        return Role.NOTHING
    raise InvalidError(
        f"{described(path)} is a {type(value).__name__}, which cannot be saved: it is no array, "
        "scalar, container, dataclass or ckptfmt.Trackable and has none of their methods; an "
        "attribute of a Trackable is left out if `untracked` names it"
    )


def described(path: Iterable[str]) -> str:
    """The words for an object in a message."""
    text = "/".join(path)
    return f"the object at '{text}'" if text else "the root object"


class Child(NamedTuple):
    """A child of an object: its name, and the place where it lies."""

    name: str
    value: Any
    holder: Any
    slot: Any


def children_of(value: Any, path: Iterable[str] = ()) -> list[Child]:
    """The children of an object that is none of None, in TensorFlow's order.

    Raises:
        InvalidError: a dict with a key that is no str, or children that are none.
    """
    role = _role_of(_type(value))
    if role in (Role.SCALAR, Role.ARRAY, Role.PARALLEL):
        return []
    if isinstance(value, dict):
        for key in value:
            if not isinstance(key, str):
                raise InvalidError(
                    f"{described(path)} is a dict with the key {key!r}: names of objects are str"
                )
        return [Child(key, item, value, key) for key, item in value.items() if item is not None]
    if isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", ()) if isinstance(value, tuple) else ()
        named = [Child(name, value[row], value, row) for row, name in enumerate(fields)]
        rows = [Child(str(row), item, value, row) for row, item in enumerate(value)]
        return [child for child in [*named, *rows] if child.value is not None]
    if _has(type(value), "trackable_children"):
        found = value.trackable_children()
        if not isinstance(found, Mapping):
            raise InvalidError(
                f"trackable_children() of {described(path)} is a mapping from names to objects, "
                f"not {type(found).__name__}"
            )
        return _of_names(value, found, path)
    if dataclasses.is_dataclass(value) and role is Role.NOTHING:
        names = [field.name for field in dataclasses.fields(value)]
        return _of_names(value, {name: getattr(value, name, None) for name in names}, path)
    return []


def _of_names(holder: Any, found: Mapping[Any, Any], path: Iterable[str]) -> list[Child]:
    children = []
    for name, item in found.items():
        if not isinstance(name, str):
            raise InvalidError(f"a child of {described(path)} is named {name!r}: names are str")
        value = item() if isinstance(item, weakref.ref) else item
        if value is not None:
            children.append(Child(name, value, holder, name))
    return children


# ---- a walk over all -----------------------------------------------------------------------------


# The names on the way to an object, from the last one to the first: shared by all that lie behind
# one another, and none of the objects is kept.
Trail = tuple[Any, str] | None


def trail_of(names: Iterable[str]) -> Trail:
    """The trail of these names."""
    trail: Trail = None
    for name in names:
        trail = trail, name
    return trail


class Local:
    """An object where a walk met it. As text, and when iterated over, its path.

    Attributes:
        value: the object.
        trail: the local names on the way to it from the root.
        parent: whose child it is; None for the root and slot variables.
        holder, slot: where it lies; a None for the holder if it cannot be replaced.
        key: what it is the same as, within one walk.
    """

    __slots__ = ("holder", "key", "parent", "slot", "trail", "value")

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
        self.key: Hashable = self.place if _is_value(_type(value)) else id(value)

    def child(self, child: Child) -> Local:
        """The child as an object of the same walk."""
        return Local(child.value, (self.trail, child.name), self, child.holder, child.slot)

    @property
    def path(self) -> tuple[str, ...]:
        """The local names on the way to it from the root."""
        names = []
        trail = self.trail
        while trail is not None:
            trail, name = trail
            names.append(name)
        return tuple(reversed(names))

    def __iter__(self) -> Iterator[str]:
        return iter(self.path)

    def __str__(self) -> str:
        return "/".join(self.path)

    @property
    def place(self) -> Hashable:
        """Where it lies, whatever lies there: the same for one that replaced it."""
        if self.parent is None:
            return id(self.value)
        # What lies in a value lies where that lies.
        around = self.parent.key if _is_value(_type(self.holder)) else id(self.holder)
        return around, self.slot

    @property
    def role(self) -> Role:
        """What is saved of it."""
        return role_of(self.value, self)

    @property
    def saver_name(self) -> str | None:
        """The registered saver that saves it."""
        if self.role in (Role.SCALAR, Role.PYTHON):
            return None
        return get_registered_saver_name(self.value)

    @property
    def full_name(self) -> str:
        """Its name in a name-based checkpoint."""
        name = None if self.role is Role.SCALAR else getattr(self.value, "name", None)
        return name if isinstance(name, str) and name else str(self)


class View:
    """The objects of a checkpoint: a root, with the attributes of an object beside it as if they
    were the root's.

    Args:
        root: the root object.
        beside: an object whose children are children of the root as well, or None.
    """

    def __init__(self, root: Any, beside: Any = None) -> None:
        self.root = root
        self.beside = beside

    def start(self) -> Local:
        """The root, with which every walk begins."""
        return Local(self.root)

    def children(self, local: Local) -> list[Child]:
        """The children of an object in TensorFlow's order.

        Raises:
            InvalidError: as `children_of`; two objects of one name, one of the root's own and one
                beside it.
        """
        found = children_of(local.value, local)
        if self.beside is None or local.value is not self.root:
            return found
        own = {child.name: child.value for child in found}
        for child in children_of(self.beside):
            if child.name not in own:
                found.append(child)
            elif own[child.name] is not child.value and child.value is not self.root:
                raise taken(child.name)
        return found

    def walk(self, start: Local | None = None) -> tuple[list[Local], list[list[tuple[str, int]]]]:
        """All objects, breadth first from the root or a start given, and the children of each as
        names and rows.

        Raises:
            InvalidError: as `children`, and for an object that cannot be saved.
        """
        start = start or self.start()
        found = [start]
        rows: dict[Hashable, int] = {start.key: 0}
        edges: list[list[tuple[str, int]]] = []
        to_visit = collections.deque([start])
        while to_visit:
            local = to_visit.popleft()
            role_of(local.value, local)
            named = []
            for child in self.children(local):
                met = local.child(child)
                if met.key not in rows:
                    rows[met.key] = len(found)
                    found.append(met)
                    to_visit.append(met)
                named.append((child.name, rows[met.key]))
            edges.append(named)
        return found, edges


def taken(name: str) -> InvalidError:
    """The error for two objects of one name."""
    return InvalidError(
        f"the root has another object as its own '{name}' than the Checkpoint; one of the two "
        "needs another name"
    )


# ---- replacing values ----------------------------------------------------------------------------


def cannot_replace(local: Local) -> str | None:
    """Why the object cannot be replaced where it lies; None if it can be."""
    while local.holder is not None and is_value(local.holder):
        assert local.parent is not None
        local = local.parent
    if local.holder is None:
        return "it does not lie in an object that can be changed"
    if isinstance(local.holder, (dict, list, Trackable)):
        return None
    if not hasattr(local.holder, local.slot):
        return f"a {type(local.holder).__name__} has no attribute '{local.slot}'"
    found = inspect.getattr_static(type(local.holder), local.slot, None)
    if isinstance(found, property) and found.fset is None:
        return f"the attribute '{local.slot}' of a {type(local.holder).__name__} is read-only"
    return None


def replace_child(holder: Any, slot: Any, value: Any) -> None:
    """Puts a value where a child lies, in an object that can be changed."""
    if isinstance(holder, (dict, list)):
        holder[slot] = value
    elif isinstance(holder, Trackable):
        object.__setattr__(holder, slot, value)  # nothing waits for it any more
    else:
        setattr(holder, slot, value)


def replace_values(changes: Iterable[tuple[Local, Any]]) -> None:
    """Puts values where objects lie. Tuples and frozen dataclasses that one lies in are replaced by
    changed copies."""
    depths: dict[int, dict[Hashable, tuple[Local, dict[Any, Any]]]] = {}

    def put(local: Local, value: Any) -> None:
        if not is_value(local.holder):
            replace_child(local.holder, local.slot, value)
            return
        assert local.parent is not None
        same_depth = depths.setdefault(len(local.parent.path), {})
        same_depth.setdefault(local.parent.key, (local.parent, {}))[1][local.slot] = value

    for local, value in changes:
        put(local, value)
    while depths:
        for local, values in depths.pop(max(depths)).values():
            put(local, _changed(local.value, values))


def _changed(value: Any, values: Mapping[Any, Any]) -> Any:
    if isinstance(value, tuple):
        # Past the constructors of subclasses, which may want other arguments.
        items = (values.get(row, item) for row, item in enumerate(value))
        again = tuple.__new__(type(value), items)
        if hasattr(value, "__dict__"):
            vars(again).update(vars(value))
        return again
    changed = copy.copy(value)
    for name, item in values.items():
        object.__setattr__(changed, name, item)
    return changed
