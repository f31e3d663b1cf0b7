# SPDX-License-Identifier: Apache-2.0
"""Assigning the values of a checkpoint to objects. Everything is checked before anything is
written:

    1  plan what each object takes, and compare it with what is stored
    2  read the values that replace others, and convert them
    3  give Python objects their states
    4  read everything else in one batch, where possible into the arrays themselves, and give it to
       the methods of its objects
    5  put the replacing values in their places
    6  run the registered savers
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import (
    Callable,
    Collection,
    Hashable,
    Iterable,
    Mapping,
    MutableMapping,
    Sequence,
)
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base import dtypes, names
from ckptfmt._base.arrays import as_source
from ckptfmt._base.casting import can_cast, is_widening, kind_of
from ckptfmt._base.renaming import Transform, transformed, transformed_kind
from ckptfmt._base.targets import (
    Target,
    as_target,
    is_immutable,
    is_variable,
    like_of,
    variable_kind,
)
from ckptfmt.bundle.batch import box_of_text, select_batch
from ckptfmt.bundle.graph import PY_STATE, VARIABLE_VALUE, Node, attribute_key
from ckptfmt.bundle.reader import Reader
from ckptfmt.errors import InvalidError, TensorNotFoundError, about
from ckptfmt.objects.choice import refuse_casts_of_scalars
from ckptfmt.objects.nodes import TreeNode
from ckptfmt.objects.serializing import own_tensors
from ckptfmt.objects.trackable import Trackable
from ckptfmt.objects.traversal import Local, Role, described, is_array, is_value
from ckptfmt.recipe.changes import Changes
from ckptfmt.recipe.load import Mismatch
from ckptfmt.saving.mesh import Layout
from ckptfmt.saving.registration import get_registered_saver, validate_restore_function
from ckptfmt.saving.specs import SaveSpec

OBJECT = np.dtype(object)
_VALUE = (VARIABLE_VALUE,)
# Dtypes of elements that no cast makes numbers.
_TEXTS = ("string", "variant", "resource")
Done = Callable[[list[NDArray[Any]]], None]


@dataclass(slots=True)
class Wanted:
    """A tensor to be read.

    Attributes:
        key: its name.
        text: the slice, "" for the whole tensor.
        block: the layout of the tensor, and the position in its mesh whose block is read.
        shape, dtype: the required ones (of a block, its shape); None accepts any, also a size.
        kinds: NumPy's letters of further kinds of dtype that are accepted.
        target: memory to read into.
    """

    key: str
    text: str = ""
    block: tuple[Layout, int] | None = None
    shape: tuple[int | None, ...] | None = None
    dtype: np.dtype[Any] | None = None
    kinds: str = ""
    target: Target | None = None


@dataclass(slots=True)
class Assignment:
    """The tensors that one object takes, and how they are restored.

    Attributes:
        used: the attributes of the node that it takes.
        is_state: whether it is restored before all tensors.
        saver: the registered saver that restores it, and the name of the object with it.
        places: the places of a value that is replaced; None for any other object.
        replaced: these places and the new value, once it was read.
    """

    local: Local
    wanted: Sequence[Wanted] = ()
    done: Done | None = None
    used: Collection[str] = ()
    is_state: bool = False
    saver: tuple[str, str] | None = None
    places: list[Local] | None = None
    replaced: Sequence[tuple[Local, Any]] = ()


# ---- planning ------------------------------------------------------------------------------------


def plan(local: Local, node: Node, *, may_be_left: bool = False) -> Assignment | None:
    """Return what an object takes of a node; None if the node has nothing for it.

    Args:
        local: the object.
        node: the node.
        may_be_left: whether an object is left if its registered saver cannot restore it.

    Raises:
        InvalidError: the registered saver that saved it cannot restore it.
    """
    keys = {attribute.name: attribute.checkpoint_key for attribute in node.attributes}
    if node.registered_saver is not None:
        saver_name, object_name = node.registered_saver
        try:
            validate_restore_function(local.value, saver_name, described(local))
        except InvalidError:
            if _is_strict(saver_name) and not may_be_left:
                raise
            return None
        return Assignment(local, used=list(keys), saver=(saver_name, object_name))
    own_saver = local.saver_name if keys else None
    if own_saver is not None:
        return Assignment(local, used=list(keys), saver=(own_saver, next(iter(keys.values()))))
    return plan_tensors(local, keys)


def _is_strict(saver_name: str) -> bool:
    try:
        return get_registered_saver(saver_name).strict_predicate_restore
    except InvalidError:
        return True


def plan_tensors(local: Local, keys: Mapping[str, str]) -> Assignment | None:
    """Return what an object takes of the tensors stored for it, which are given by attribute."""
    value, role = local.value, local.role
    if role is Role.PYTHON and PY_STATE in keys:
        wanted = Wanted(keys[PY_STATE], shape=(), dtype=OBJECT)
        return Assignment(
            local,
            [wanted],
            lambda arrays: value.deserialize(arrays[0][()]),
            [PY_STATE],
            is_state=True,
        )
    if role is Role.TENSORS:
        return _plan_own(local, keys)
    if role is Role.NODE:
        return _plan_node(local, keys)
    if VARIABLE_VALUE not in keys:
        return None
    key = keys[VARIABLE_VALUE]
    if role is Role.SCALAR:
        return _plan_replaced(local, _wanted_scalar(key, value), _scalar_like(value))
    if role is Role.ARRAY:
        if is_variable(type(value)):
            dtype, shape = variable_kind(value)
            wanted = Wanted(key, shape=shape, dtype=dtype)
            return Assignment(local, (wanted,), lambda arrays: _assign(local, arrays[0]), _VALUE)
        if not is_immutable(value):
            return Assignment(local, (_wanted_array(key, value),), None, _VALUE)
        return _plan_replaced(local, *_replacing(key, value))
    if role is Role.PARALLEL:
        return _plan_parallel(local, keys)
    if role is Role.MESH:
        return _plan_mesh(local, key)
    return None


def _assign(local: Local, array: NDArray[Any]) -> None:
    """Give a variable of a framework its value."""
    try:
        local.value.assign(array)
    except Exception as error:  # whatever the framework raises
        raise InvalidError(f"{described(local)} does not take its value: {error}") from error


def _wanted_array(key: str, value: Any) -> Wanted:
    """Return the tensor of an array that can be written."""
    with about(key):
        target = as_target(value)
    return Wanted(key, shape=target.array.shape, dtype=target.array.dtype, target=target)


def _replacing(key: str, value: Any) -> tuple[Wanted, Callable[[NDArray[Any]], Any]]:
    """Return the tensor of an array that is replaced, and what makes the new array of it."""
    make = like_of(value)
    if make is not None:
        return Wanted(key, shape=value.shape, dtype=value.dtype), make
    with about(key):
        like = as_source(value)
    dtype = OBJECT if like.dtype.kind in "SUT" else like.dtype
    return Wanted(key, shape=like.shape, dtype=dtype), _array_like(like)


def _plan_replaced(
    local: Local, wanted: Wanted, convert: Callable[[NDArray[Any]], Any]
) -> Assignment:
    assignment = Assignment(local, (wanted,), used=_VALUE, places=[local])

    def done(arrays: list[NDArray[Any]]) -> None:
        try:
            value = convert(arrays[0])
        except (ValueError, TypeError, ArithmeticError) as error:
            kind = type(local.value).__name__
            raise InvalidError(
                f"the value cannot be converted to {described(local)}, which is of type {kind}: "
                f"{error}",
                tensor=wanted.key,
            ) from error
        assignment.replaced = [(place, value) for place in assignment.places or ()]

    assignment.done = done
    return assignment


def _is_python_scalar(local: Local) -> bool:
    """Return whether the object keeps its type under a cast; a NumPy scalar is an array."""
    return local.role is Role.SCALAR and not isinstance(local.value, np.generic)


def _wanted_scalar(key: str, value: Any) -> Wanted:
    if isinstance(value, (str, bytes)):
        return Wanted(key, shape=(), dtype=OBJECT)
    if isinstance(value, np.generic):
        return Wanted(key, shape=(), dtype=value.dtype)
    if isinstance(value, bool):
        return Wanted(key, shape=(), dtype=np.dtype(np.bool_))
    if isinstance(value, int):
        return Wanted(key, shape=(), dtype=np.dtype(np.int64), kinds="iu")
    if isinstance(value, float):
        return Wanted(key, shape=(), dtype=np.dtype(np.float64), kinds="f")
    return Wanted(key, shape=(), dtype=np.dtype(np.complex128), kinds="c")


def _scalar_like(value: Any) -> Callable[[NDArray[Any]], Any]:
    kind = type(value)

    def convert(array: NDArray[Any]) -> Any:
        item: Any = array[()]
        if isinstance(value, str):
            return kind(item.decode("utf-8", "surrogateescape"))
        if isinstance(value, np.generic) and not isinstance(value, bytes):
            return array.astype(value.dtype)[()]
        if isinstance(value, bytes):
            return kind(item)
        return kind(item.item() if hasattr(item, "item") else item)

    return convert


def _array_like(value: NDArray[Any]) -> Callable[[NDArray[Any]], Any]:
    """Return a function that converts what was read to an array like this one, which is read-only
    or of NumPy strings."""

    def convert(array: NDArray[Any]) -> Any:
        if value.dtype.kind in "UT":
            items: list[bytes] = array.ravel().tolist()
            texts = [item.decode("utf-8", "surrogateescape") for item in items]
            kind = np.str_ if value.dtype.kind == "U" else value.dtype
            array = np.array(texts, kind).reshape(array.shape)
        else:
            array = np.array(array, np.bytes_ if value.dtype.kind == "S" else value.dtype)
        array.flags.writeable = value.flags.writeable
        return array

    return convert


def _plan_parallel(local: Local, keys: Mapping[str, str]) -> Assignment:
    variable = local.value
    own = variable.keys("")
    suffixes = [key.rpartition("/")[2] for key in own]
    count = next((i for i, name in enumerate(suffixes) if name not in keys), len(suffixes))
    first = variable.components[0]
    wanted = [Wanted(keys[name], shape=first.shape, dtype=first.dtype) for name in suffixes[:count]]

    def done(arrays: list[NDArray[Any]]) -> None:
        variable.restore(dict(zip(own, arrays, strict=False)), "")

    return Assignment(local, wanted, done, suffixes[:count])


def _plan_mesh(local: Local, key: str) -> Assignment:
    """Local arrays are read into where they can be written, else they are replaced."""
    layout, arrays = local.layout, local.value
    assert layout is not None
    wanted = []
    makers: dict[Any, Callable[[NDArray[Any]], Any]] = {}
    for device, array in arrays.items():
        with about(key):
            position = layout.mesh.index_of(device)
        if is_array(array) and not is_immutable(array):
            one = _wanted_array(key, array)
        elif isinstance(arrays, MutableMapping):
            one, makers[device] = _replacing(key, array)
        else:
            raise InvalidError(
                f"{described(local)} has a local array on {device} that cannot be written",
                tensor=key,
            )
        one.block = layout, position
        wanted.append(one)

    def done(found: list[NDArray[Any]]) -> None:
        for device, array in zip(list(arrays), found, strict=True):
            if device in makers:
                arrays[device] = makers[device](array)

    return Assignment(local, wanted, done, _VALUE)


def _plan_node(local: Local, keys: Mapping[str, str]) -> Assignment | None:
    """A TreeNode takes the attributes that it has; arrays are read into."""
    node: TreeNode = local.value
    wanted: list[Wanted] = []
    places: list[tuple[MutableMapping[str, Any], str]] = []
    used: list[str] = []
    for name, given in node.attributes.items():
        if name not in keys:
            continue
        used.append(name)
        several = isinstance(given, MutableMapping)
        parts = [(given, suffix) for suffix in given] if several else [(node.attributes, name)]
        for holder, slot in parts:
            key = keys[name] + slot if several else keys[name]
            array = holder[slot]
            if is_array(array) and not is_immutable(array) and not isinstance(array, np.generic):
                wanted.append(_wanted_array(key, array))
            else:
                wanted.append(Wanted(key))
            places.append((holder, slot))
    if not used:
        return None

    def done(arrays: list[NDArray[Any]]) -> None:
        for (holder, slot), one, array in zip(places, wanted, arrays, strict=True):
            if one.target is None:
                holder[slot] = array

    return Assignment(local, wanted, done, used)


def _plan_own(local: Local, keys: Mapping[str, str]) -> Assignment | None:
    """An object with methods of its own takes what it would save now."""
    own = own_tensors(local, keys)
    used = {one.attribute for one in own.tensors if one.attribute in keys}
    if not used:
        return None
    wanted: list[Wanted] = []
    places: list[tuple[str, str]] = []
    may_be_missing = getattr(local.value, "may_be_missing", lambda key: False)
    for one in own.tensors:
        if one.attribute not in keys:
            if may_be_missing(one.key):
                continue
            raise TensorNotFoundError(
                f"{described(local)} takes its tensors together, and this one is not in the "
                "checkpoint or not chosen",
                tensor=one.key,
            )
        for text, value in one.parts():
            spec = value if isinstance(value, SaveSpec) else None
            where = text or (spec.slice_spec if spec is not None else "")
            dtype = spec.dtype if spec is not None else getattr(value, "dtype", None)
            known = _numpy_dtype(dtype)
            wanted.append(Wanted(one.key, where.strip(), dtype=known))
            places.append((one.key, text))

    def done(arrays: list[NDArray[Any]]) -> None:
        try:
            own.restore(dict(zip(places, arrays, strict=True)))
        except Exception as error:
            if not type(error).__module__.startswith("tensorflow."):
                raise
            raise InvalidError(f"{described(local)} does not take its value: {error}") from error

    return Assignment(local, wanted, done, used)


def _numpy_dtype(dtype: Any) -> np.dtype[Any] | None:
    """Return the dtype of the arrays that a tensor of NumPy or TensorFlow takes, if it is known."""
    if isinstance(dtype, np.dtype):
        return None if dtype.kind in "SUT" else dtype
    try:
        return dtypes.numpy_dtype(dtypes.code_of(str(getattr(dtype, "name", ""))))
    except InvalidError:
        return None


# ---- checks --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Conversion:
    """How stored values are converted: as the choice casts them, and by name of a value by the
    transform that `rename` gave. `name_of` returns the name of a value by its key."""

    choice: Changes
    transforms: Mapping[str, Transform]
    name_of: Callable[[str], str]


def _has_shape(shape: tuple[int, ...], wanted: tuple[int | None, ...] | None) -> bool:
    if wanted is None or shape == wanted:
        return True
    return len(shape) == len(wanted) and all(
        other in (None, size) for size, other in zip(shape, wanted, strict=True)
    )


def _is_fit(stored: np.dtype[Any] | None, wanted: Wanted, cast: bool) -> bool:
    if stored is None:
        return False  # a dtype of a later version: no object can take its bytes
    if wanted.dtype is None or stored == wanted.dtype:
        return True
    if (stored == OBJECT) != (wanted.dtype == OBJECT):
        return False
    if stored.kind in wanted.kinds or np.can_cast(stored, wanted.dtype, "equiv"):
        return True
    if "f" in wanted.kinds and dtypes.is_floating(dtypes.code_of(stored)):
        return True
    return cast and can_cast(stored, wanted.dtype)


@dataclass(slots=True)
class Misfit:
    """A tensor that its object cannot take because of its shape, or else of its dtype."""

    assignment: Assignment
    key: str
    mismatch: Mismatch
    is_shape: bool
    message: str


class _Part:
    """Objects whose tensors are read in one batch.

    Attributes:
        targets: for each tensor, the memory that it is cast into; None where it is read into its
            memory directly, or given to a method.
        misfits: the tensors that their objects cannot take.
        castable: the tensors that are no Python scalars, and their names in the options.
        may_fail: whether a value can turn out to be refused when it has been read.
    """

    def __init__(
        self, reader: Reader, assignments: Sequence[Assignment], conversion: Conversion
    ) -> None:
        self.reader = reader
        self.assignments = assignments
        keys = [names.tensor_bytes(wanted.key) for one in assignments for wanted in one.wanted]
        self.batch = select_batch(reader, keys)
        self.batch.refuse_meant()
        self.targets: list[Target | None] = []
        self.misfits: list[Misfit] = []
        self._names = list(map(conversion.name_of, self.batch.names))
        self._choice = conversion.choice
        self._casts_all = self._choice.cast is True
        self._casts = self._dtypes_to_cast_to(conversion.choice)
        # By position.
        self._transforms: dict[int, Transform] = {}
        for position, name in enumerate(self._names if conversion.transforms else ()):
            transform = conversion.transforms.get(name)
            if transform is not None:
                self._transforms[position] = transform
        self._compare()

    def _dtypes_to_cast_to(self, choice: Changes) -> dict[int, np.dtype[Any]]:
        local = (one.local for one in self.assignments for _ in one.wanted)
        scalars = {i for i, one in enumerate(local) if _is_python_scalar(one)}
        refuse_casts_of_scalars(choice, (self._names[i] for i in sorted(scalars)))
        arrays = [i for i in range(len(self._names)) if i not in scalars]
        self.castable = chosen, own = self.batch.only(arrays), [self._names[i] for i in arrays]
        found = choice.casts(own, chosen.dtypes, chosen.shapes, is_part=True)
        return {arrays[i]: dtype for i, dtype in found.items()}

    def _compare(self) -> None:
        batch, shapes = self.batch, self.batch.selection.shapes()
        position = 0
        for assignment in self.assignments:
            for wanted in assignment.wanted:
                stored = batch.dtypes[position]
                full = shape = shapes[batch.rows[position]]
                if wanted.text:
                    batch.boxes[position] = box_of_text(batch.handle(position), wanted.text)
                elif wanted.block is not None and len(shape) == wanted.block[0].rank:
                    shape = self._set_block(position, wanted.block, shape)
                given = self._casts.get(position, stored)
                is_cast = position in self._casts
                code = dtypes.code_of(given) if is_cast else batch.codes[position]
                kind = dtypes.name_of(code)
                transform = self._transforms.get(position)
                if transform is not None:
                    given, shape = self._transformed_kind(position, transform)
                    kind, full = str(given), shape
                bad_shape = not _has_shape(shape, wanted.shape)
                if bad_shape or not _is_fit(given, wanted, self._casts_all):
                    self._misfit(assignment, wanted, self._names[position], bad_shape, kind, full)
                target = wanted.target
                is_direct = transform is None and stored is not None and stored.isnative
                if target is not None and is_direct and stored == target.array.dtype:
                    batch.targets[position] = target
                    target = None
                self.targets.append(target)
                position += 1
        self.may_fail = self._may_fail()
        if self.may_fail:  # then all is read before anything is written
            for position in list(batch.targets):
                self.targets[position] = batch.targets.pop(position)

    def _may_fail(self) -> bool:
        """Return whether a value can turn out to be refused when it has been read."""
        if self._transforms:
            return True
        stored, casts = self.batch.dtypes, dict(self._casts)
        casts |= {i: one.array.dtype for i, one in enumerate(self.targets) if one is not None}
        known = ((stored[i], to) for i, to in casts.items() if stored[i] is not None)
        return not self._choice.allow_loss and not all(is_widening(*pair) for pair in known)

    def _transformed_kind(
        self, position: int, transform: Transform
    ) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return the dtype and shape that a transform makes of a tensor."""
        handle = self.batch.handle(position)
        if position in self.batch.boxes:
            raise InvalidError(
                "rename: a transform takes whole tensors, and this object takes a slice",
                tensor=handle.name,
            )
        stored, shape = handle._expected()
        return transformed_kind(handle.name, self._casts.get(position, stored), shape, transform)

    def _set_block(
        self, position: int, block: tuple[Layout, int], full: tuple[int, ...]
    ) -> tuple[int, ...]:
        """Read a block of a tensor of this full shape; return the shape of the block."""
        layout, place = block
        box = layout._slice_at(full, place)
        if box.shape != full:
            self.batch.boxes[position] = np.array([*box.start, *box.shape, 0], np.int64)
        return box.shape

    def _misfit(
        self,
        assignment: Assignment,
        wanted: Wanted,
        name: str,
        is_shape: bool,
        kind: str,
        shape: tuple[int, ...],
    ) -> None:
        what = described(assignment.local)
        if wanted.block is not None:
            layout, place = wanted.block
            what = f"the array on {layout.mesh.devices[place]} of {what}, {layout.text}"
        # TensorFlow's words, for which programs look.
        if is_shape:
            assert wanted.shape is not None
            message = (
                f"{what}: shape {list(wanted.shape)} does not match the shape stored in "
                f"checkpoint: {list(shape)}"
            )
        else:
            expected = "any known" if wanted.dtype is None else str(wanted.dtype)
            are_texts = kind in _TEXTS or getattr(wanted.dtype, "kind", "O") in "OSUT"
            hint = "" if self._casts_all or are_texts else "; cast=True converts numbers"
            message = (
                f"{what}: expected dtype {expected} does not equal original dtype {kind}{hint}"
            )
        pair = (shape, wanted.shape) if is_shape else (kind, wanted.dtype)
        mismatch = Mismatch(str(assignment.local), name, *pair)
        self.misfits.append(Misfit(assignment, wanted.key, mismatch, is_shape, message))

    def check_targets(self) -> None:
        """Refuse memory that is written twice with different values."""
        self.batch.check_targets({i: one for i, one in enumerate(self.targets) if one is not None})

    def read(self) -> list[NDArray[Any]]:
        """Read the tensors. Those that are cast or transformed, all if that may fail, are written
        into their arrays by `hand_out`."""
        arrays = self.batch.read(None) if self.assignments else []
        for position, dtype in self._casts.items():
            arrays[position] = self._converted(position, arrays[position], dtype)
        for position, transform in self._transforms.items():
            name, target = self.batch.names[position], self.targets[position]
            shape = None if target is None else target.array.shape
            arrays[position] = transformed(name, arrays[position], transform, shape)
        wanted = [one for assignment in self.assignments for one in assignment.wanted]
        for position, one in enumerate(wanted):
            arrays[position] = self._as_wanted(position, arrays[position], one)
        return arrays

    def _as_wanted(self, position: int, array: NDArray[Any], wanted: Wanted) -> NDArray[Any]:
        dtype = wanted.dtype
        if dtype is None or (wanted.kinds and kind_of(array.dtype) == kind_of(dtype)):
            return array
        return self._converted(position, array, dtype)

    def _converted(self, position: int, array: NDArray[Any], dtype: np.dtype[Any]) -> NDArray[Any]:
        box = self.batch.boxes.get(position)
        # Components of a parallel variable have one name.
        part = self.batch.names[position], None if box is None else tuple(box.tolist())
        return self._choice.converted(array, dtype, self._names[position], part)

    def hand_out(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Write what was read into arrays, and give it to the objects that take it by a method."""
        for array, target in zip(arrays, self.targets, strict=True):
            if target is not None:
                target.mark_written()
                target.array[...] = array
        position = 0
        for assignment in self.assignments:
            end = position + len(assignment.wanted)
            if assignment.done is not None:
                assignment.done(list(arrays[position:end]))
            position = end


def _check_cast(choice: Changes, parts: Sequence[_Part], may_be_more: bool) -> None:
    """Note what a cast to a dtype leaves, and refuse one that means nothing."""
    chosen, own = zip(*(part.castable for part in parts), strict=True)
    choice.casts(
        [name for part in own for name in part],
        [dtype for part in chosen for dtype in part.dtypes],
        lambda: [shape for part in chosen for shape in part.shapes()],
        may_mean_none=may_be_more,
    )


def misfits(
    reader: Reader, assignments: Iterable[Assignment], conversion: Conversion
) -> list[Misfit]:
    """Return the tensors that their objects cannot take."""
    return _Part(reader, [one for one in assignments if one.saver is None], conversion).misfits


# ---- replacing values ----------------------------------------------------------------------------


def _cannot_replace(local: Local) -> str | None:
    """Return why the object cannot be replaced in its place; None if it can be."""
    while local.holder is not None and is_value(local.holder):
        if not _can_be_changed(local.holder):
            return f"a {type(local.holder).__name__} cannot be made with other values"
        assert local.parent is not None
        local = local.parent
    if local.holder is None:
        return "no object that can be changed contains it"
    holder, slot, kind = local.holder, local.slot, type(local.holder).__name__
    is_item = isinstance(holder, (MutableMapping, list))
    if isinstance(holder, Mapping) and not (
        is_item or getattr(holder, str(slot), None) is holder[slot]
    ):
        return f"a {kind} cannot be changed"
    if not is_item and not hasattr(holder, slot):
        return f"a {kind} has no attribute '{slot}'"
    found = inspect.getattr_static(type(holder), slot, None) if isinstance(slot, str) else None
    if isinstance(found, property) and found.fset is None:
        return f"the attribute '{slot}' of a {kind} is read-only"
    return None


def _can_be_changed(value: Any) -> bool:
    """Return whether `_changed` can make a copy. It cannot of some tuples that are made in C, such
    as time.struct_time."""
    if isinstance(value, tuple):
        try:
            tuple.__new__(type(value), value)
        except TypeError:
            return False
    return True


def _replace_child(holder: Any, slot: Any, value: Any) -> None:
    """Put a value in the place of a child of an object that can be changed."""
    if isinstance(holder, (MutableMapping, list)):
        holder[slot] = value
    elif isinstance(holder, Trackable):
        object.__setattr__(holder, slot, value)  # no deferred value is to replace it
    else:
        setattr(holder, slot, value)


def _replace_values(changes: Iterable[tuple[Local, Any]]) -> None:
    """Put values in the places of objects. Tuples and frozen dataclasses around them are replaced
    by changed copies, the innermost first."""
    depths: dict[int, dict[Hashable, tuple[Local, dict[Any, Any]]]] = {}

    def put(local: Local, value: Any) -> None:
        if not is_value(local.holder):
            try:
                _replace_child(local.holder, local.slot, value)
            except Exception as error:  # whatever the class raises
                kind = type(local.holder).__name__
                message = f"{described(local)} cannot be set: a {kind} refuses it: {error}"
                raise InvalidError(message, tensor=attribute_key(local.key_path)) from error
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
        # Without the constructors of subclasses, which may take other arguments.
        items = (values.get(index, item) for index, item in enumerate(value))
        again = tuple.__new__(type(value), items)
        if hasattr(value, "__dict__"):
            vars(again).update(vars(value))
        return again
    changed = copy.copy(value)
    for name, item in values.items():
        object.__setattr__(changed, name, item)
    return changed


# ---- running -------------------------------------------------------------------------------------


def run(
    reader: Reader,
    assignments: Iterable[Assignment],
    conversion: Conversion,
    *,
    may_be_more: bool = True,
    ready: Callable[[], None] | None = None,
) -> None:
    """Restore these objects.

    Nothing is written if a tensor is missing or does not fit, or if a value cannot be replaced.

    Args:
        reader: the checkpoint.
        assignments: what is restored.
        conversion: how the stored values are converted.
        may_be_more: whether the checkpoint has, or had, values for other objects.
        ready: called once everything is checked, before anything is written.

    Raises:
        TensorNotFoundError: a tensor that the graph names is missing.
        InvalidError: another shape or dtype than the object has, or a value in a place where it
            cannot be replaced; a cast to a dtype means none of the tensors.
        What reading raises (arrays then have unspecified contents), and what the methods of the
        objects and registered savers raise.
    """
    every = list(assignments)
    for assignment in every:
        for place in assignment.places or ():
            if (why := _cannot_replace(place)) is not None:
                raise InvalidError(
                    f"{described(place)} is a value that cannot be replaced: {why}",
                    tensor=assignment.wanted[0].key,
                    path=reader.prefix,
                )
    parts = [
        [one for one in every if one.is_state],
        [one for one in every if one.places],
        [one for one in every if not one.is_state and not one.places and one.saver is None],
    ]
    states, values, others = (_Part(reader, part, conversion) for part in parts)
    for part in (states, values, others):
        for misfit in part.misfits:
            raise InvalidError(misfit.message, tensor=misfit.key, path=reader.prefix)
    _check_cast(conversion.choice, (states, values, others), may_be_more)
    others.check_targets()
    # Conversions may fail, so they come before anything is written.
    found = [states.read(), values.read()]
    refusable = others.read() if others.may_fail else None
    if ready is not None:
        ready()
    values.hand_out(found[1])
    states.hand_out(found[0])
    others.hand_out(others.read() if refusable is None else refusable)
    _replace_values([change for one in every for change in one.replaced])
    registered: dict[str, dict[str, Any]] = {}
    for assignment in every:
        if assignment.saver is not None:
            name, object_name = assignment.saver
            registered.setdefault(name, {})[object_name] = assignment.local.value
    for name, objects in registered.items():
        get_registered_saver(name).restore_fn(trackables=objects, merged_prefix=reader.prefix)
