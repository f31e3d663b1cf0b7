# SPDX-License-Identifier: Apache-2.0
"""Values of a checkpoint put into objects: all are checked first, then read in few batches, then
written.

    1  what each object takes is planned, and compared with what is stored
    2  values that are to be replaced are read and made
    3  the states of Python objects are handed out
    4  everything else is read in one batch, arrays that fit into where they lie, and handed out to
       the objects' own methods
    5  values are replaced in their places
    6  registered savers
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import dtypes, names
from ckptfmt.bundle.load import box_of_text, can_cast, casts_of, select_batch
from ckptfmt.bundle.matching import Mismatch
from ckptfmt.bundle.reader import Reader
from ckptfmt.errors import InvalidError
from ckptfmt.objects.graph import PY_STATE, VARIABLE_VALUE, Node, escape
from ckptfmt.objects.nodes import leaf_name
from ckptfmt.objects.serializing import own_tensors
from ckptfmt.objects.trackable import (
    Local,
    Role,
    can_be_written,
    cannot_replace,
    described,
    method_of,
    replace_values,
)
from ckptfmt.saving.registration import get_registered_saver, validate_restore_function
from ckptfmt.saving.specs import SaveSpec

__all__ = ["Assignment", "Misfit", "misfits", "plan", "run"]

OBJECT = np.dtype(object)
_VALUE = (VARIABLE_VALUE,)
Done = Callable[[list[NDArray[Any]]], None]


@dataclass(slots=True)
class Wanted:
    """One tensor to be read.

    Attributes:
        key: its name.
        text: the slice wanted, "" for all.
        shape, dtype: what it has to have; None for anything.
        kinds: numpy's letters of the kinds of dtype that will do as well.
        target: an array to read into.
    """

    key: str
    text: str = ""
    shape: tuple[int, ...] | None = None
    dtype: np.dtype[Any] | None = None
    kinds: str = ""
    target: NDArray[Any] | None = None


@dataclass(slots=True)
class Assignment:
    """What one object takes: the tensors to be read, and what is done with them.

    Attributes:
        used: the attributes of the node that it takes.
        is_state: whether it comes before all tensors.
        saver: a registered saver that restores it, and the object's name there.
        places: where a value lies that is to be replaced; None for what is not.
        replaced: these places and the new value, when it was read.
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


def plan(local: Local, node: Node) -> Assignment | None:
    """What an object takes of a node; None if there is nothing for it.

    Raises:
        InvalidError: the registered saver that saved it cannot restore it.
    """
    keys = {attribute.name: attribute.checkpoint_key for attribute in node.attributes}
    if node.registered_saver is not None:
        saver_name, object_name = node.registered_saver
        try:
            validate_restore_function(local.value, saver_name)
        except InvalidError:
            if _is_strict(saver_name):
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
    """What an object takes of the tensors that are there for it, attribute to key."""
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
    if VARIABLE_VALUE not in keys:
        return None
    key = keys[VARIABLE_VALUE]
    if role is Role.SCALAR:
        return _plan_replaced(local, _wanted_scalar(key, value), _scalar_like(value))
    if role is Role.ARRAY:
        if can_be_written(value):
            wanted = Wanted(key, shape=value.shape, dtype=value.dtype, target=value)
            return Assignment(local, (wanted,), None, _VALUE)
        dtype = OBJECT if value.dtype.kind in "SU" else value.dtype
        wanted = Wanted(key, shape=value.shape, dtype=dtype)
        return _plan_replaced(local, wanted, _array_like(value))
    if role is Role.PARALLEL:
        return _plan_parallel(local, keys)
    return None


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
                f"{described(local)} is a {kind}, which cannot be made of the value: {error}",
                tensor=wanted.key,
            ) from error
        assignment.replaced = [(place, value) for place in assignment.places or ()]

    assignment.done = done
    return assignment


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
    """Makes an array of what was read that is as the one there: read-only or of NumPy's texts."""

    def convert(array: NDArray[Any]) -> Any:
        if value.dtype.kind == "U":
            items: list[bytes] = array.ravel().tolist()
            texts = [item.decode("utf-8", "surrogateescape") for item in items]
            array = np.array(texts, np.str_).reshape(array.shape)
        else:
            array = np.array(array, np.bytes_ if value.dtype.kind == "S" else value.dtype)
        array.flags.writeable = value.flags.writeable
        return array

    return convert


def _plan_parallel(local: Local, keys: Mapping[str, str]) -> Assignment:
    variable = local.value
    own = variable.keys("")
    suffixes = [key.rpartition("/")[2] for key in own]
    count = next((row for row, name in enumerate(suffixes) if name not in keys), len(suffixes))
    first = variable.components[0]
    wanted = [Wanted(keys[name], shape=first.shape, dtype=first.dtype) for name in suffixes[:count]]

    def done(arrays: list[NDArray[Any]]) -> None:
        variable.restore(dict(zip(own, arrays, strict=False)), "")

    return Assignment(local, wanted, done, suffixes[:count])


def _plan_own(local: Local, keys: Mapping[str, str]) -> Assignment | None:
    """An object that has methods of its own takes what it would save now."""
    wanted: list[Wanted] = []
    places: list[tuple[str, str | None]] = []
    used: list[str] = []
    for name, given in own_tensors(local).items():
        attribute = escape(name)
        if attribute not in keys:
            continue
        used.append(attribute)
        key = keys[attribute]
        slices = given if isinstance(given, Mapping) else {None: given}
        for text, value in slices.items():
            spec = value if isinstance(value, SaveSpec) else None
            where = text or (spec.slice_spec if spec is not None else "")
            dtype = spec.dtype if spec is not None else getattr(value, "dtype", None)
            known = dtype if isinstance(dtype, np.dtype) and dtype.kind not in "SU" else None
            wanted.append(Wanted(key, where.strip(), dtype=known))
            places.append((name, text))
    if not used:
        return None
    restore = method_of(local.value, "restore_from_tensors")

    def done(arrays: list[NDArray[Any]]) -> None:
        restored: dict[str, Any] = {}
        for (name, text), array in zip(places, arrays, strict=True):
            if text is None:
                restored[name] = array
            else:
                restored.setdefault(name, {})[text] = array
        restore(restored)

    return Assignment(local, wanted, done, used)


# ---- checks --------------------------------------------------------------------------------------


def _is_fit(stored: np.dtype[Any] | None, wanted: Wanted, cast: bool) -> bool:
    if wanted.dtype is None or stored == wanted.dtype:
        return True
    if stored is None or (stored == OBJECT) != (wanted.dtype == OBJECT):
        return False
    if stored.kind in wanted.kinds or np.can_cast(stored, wanted.dtype, "equiv"):
        return True
    if "f" in wanted.kinds and dtypes.is_floating(dtypes.code_of(stored)):
        return True
    return cast and can_cast(stored, wanted.dtype)


@dataclass(slots=True)
class Misfit:
    """A tensor that its object cannot take: of another shape, or else of another dtype."""

    assignment: Assignment
    key: str
    mismatch: Mismatch
    is_shape: bool
    message: str


class _Part:
    """Objects whose tensors are read together.

    Attributes:
        targets: by tensor, the array that gets what was read; None where it is read into its place
            or handed out.
        misfits: the tensors that cannot be taken.
    """

    def __init__(self, reader: Reader, assignments: Sequence[Assignment], cast: Any) -> None:
        self.reader = reader
        self.assignments = assignments
        keys = [names.tensor_bytes(wanted.key) for one in assignments for wanted in one.wanted]
        self.batch = select_batch(reader, keys)
        self.targets: list[NDArray[Any] | None] = []
        self.misfits: list[Misfit] = []
        self._casts_all = cast is True
        self._casts = self._dtypes_to_cast_to(cast)
        self._compare()

    def _dtypes_to_cast_to(self, cast: Any) -> dict[int, np.dtype[Any]]:
        if cast is None or cast is True:
            return {}
        if isinstance(cast, Mapping):
            leaves = {key: leaf_name(key) for key in self.batch.names}
            return casts_of(
                self.batch, {k: cast[leaf] for k, leaf in leaves.items() if leaf in cast}
            )
        roles = [one.local.role for one in self.assignments for _ in one.wanted]
        found = casts_of(self.batch, cast)
        return {row: dtype for row, dtype in found.items() if roles[row] is not Role.SCALAR}

    def _compare(self) -> None:
        batch, shapes = self.batch, self.batch.selection.shapes()
        position = 0
        for assignment in self.assignments:
            for wanted in assignment.wanted:
                stored = batch.dtypes[position]
                shape = shapes[batch.rows[position]]
                if wanted.text:
                    batch.boxes[position] = box_of_text(batch.handle(position), wanted.text)
                bad_shape = wanted.shape is not None and shape != wanted.shape
                given = self._casts.get(position, stored)
                if bad_shape or not _is_fit(given, wanted, self._casts_all):
                    self._misfit(position, assignment, wanted, bad_shape)
                target = wanted.target
                if target is not None and stored == target.dtype and target.dtype.isnative:
                    batch.targets[position] = target
                    target = None
                self.targets.append(target)
                position += 1

    def _misfit(self, position: int, assignment: Assignment, wanted: Wanted, shape: bool) -> None:
        handle = self.batch.handle(position)
        kind = dtypes.numpy_name_of(self.batch.codes[position])
        hint = "" if shape or self._casts_all else " (cast=True converts numbers)"
        expected = "" if wanted.dtype is None else str(wanted.dtype)
        expected += "" if wanted.shape is None else str(list(wanted.shape))
        message = (
            f"the checkpoint has {kind}{list(handle.shape)}, {described(assignment.local)} is "
            f"{expected}{hint}"
        )
        pair = (handle.shape, wanted.shape) if shape else (kind, wanted.dtype)
        mismatch = Mismatch(str(assignment.local), leaf_name(wanted.key), *pair)
        self.misfits.append(Misfit(assignment, wanted.key, mismatch, shape, message))

    def read(self) -> list[NDArray[Any]]:
        """Reads the tensors, and writes them into arrays of other dtypes."""
        arrays = self.batch.read(None) if self.assignments else []
        for array, target in zip(arrays, self.targets, strict=True):
            if target is not None:
                target[...] = array
        return arrays

    def hand_out(self, arrays: Sequence[NDArray[Any]]) -> None:
        """Gives what was read to those that take it themselves."""
        position = 0
        for assignment in self.assignments:
            end = position + len(assignment.wanted)
            if assignment.done is not None:
                rows = zip(range(position, end), assignment.wanted, strict=True)
                assignment.done([self._as_wanted(arrays[row], row, one) for row, one in rows])
            position = end

    def _as_wanted(self, array: NDArray[Any], position: int, wanted: Wanted) -> NDArray[Any]:
        if position in self._casts:
            array = array.astype(self._casts[position])
        if wanted.dtype is None or array.dtype == wanted.dtype or wanted.kinds:
            return array
        return array.astype(wanted.dtype)


def misfits(reader: Reader, assignments: Iterable[Assignment], cast: Any) -> list[Misfit]:
    """The tensors that their objects cannot take."""
    return _Part(reader, [one for one in assignments if one.saver is None], cast).misfits


# ---- running -------------------------------------------------------------------------------------


def run(reader: Reader, assignments: Iterable[Assignment], *, cast: Any = None) -> None:
    """Restores these objects.

    Nothing is written if a tensor is not there, or one does not fit, or gives no value of a kind
    that is to be replaced.

    Raises:
        TensorNotFoundError: a tensor that the graph promises is not there.
        InvalidError: another shape or dtype than the object has, or a value in a place where it
            cannot be replaced.
        What reading raises (arrays then have unspecified contents), and what the objects' methods
        and registered savers raise.
    """
    every = list(assignments)
    for assignment in every:
        for place in assignment.places or ():
            if (why := cannot_replace(place)) is not None:
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
    states, values, others = (_Part(reader, part, cast) for part in parts)
    for part in (states, values, others):
        for misfit in part.misfits:
            raise InvalidError(misfit.message, tensor=misfit.key, path=reader.prefix)
    # What may be found to be no such value comes before all that writes.
    found = [states.read(), values.read()]
    values.hand_out(found[1])
    states.hand_out(found[0])
    others.hand_out(others.read())
    replace_values([change for one in every for change in one.replaced])
    registered: dict[str, dict[str, Any]] = {}
    for assignment in every:
        if assignment.saver is not None:
            name, object_name = assignment.saver
            registered.setdefault(name, {})[object_name] = assignment.local.value
    for name, objects in registered.items():
        get_registered_saver(name).restore_fn(trackables=objects, merged_prefix=reader.prefix)
