# SPDX-License-Identifier: Apache-2.0
"""Saving by name, as TensorFlow 1's Saver: a mapping or a list of things becomes SaveableObjects.

What can be saved: a SaveableObject; an array, or anything with a shape and a dtype; and a list of
slices of one tensor. A slice is an array with a SaveSliceInfo, as a pair or as its attribute
`save_slice_info`. By itself, under a name in a mapping, such an object is saved as a whole tensor,
as by TensorFlow; a pair is a list of one slice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt.errors import InvalidError
from ckptfmt.names import tensor_bytes, tensor_text
from ckptfmt.saving.specs import SaveableObject, SaveSpec
from ckptfmt.slices import SaveSliceInfo

__all__ = ["ArraySaveable", "op_list_to_dict", "validate_and_slice_inputs"]


class ArraySaveable(SaveableObject):
    """An array, or a slice of a tensor, that is restored in place; TensorFlow's
    `ResourceVariableSaveable`.

    Args:
        array: a numpy array, or anything with `shape` and `dtype` that `Writer.add` takes. It is
            looked at when it is saved, not before; but for its dtype.
        slice_spec: "" for a whole tensor, else the text of `SaveSliceInfo.spec`.
        name: the name in the checkpoint.

    Raises:
        InvalidError: a dtype that a checkpoint cannot hold.
    """

    def __init__(self, array: Any, slice_spec: str, name: str) -> None:
        super().__init__(array, [SaveSpec(array, slice_spec, name)], name)

    def restore(
        self,
        restored_tensors: Sequence[NDArray[Any]],
        restored_shapes: Sequence[Sequence[int]] | None,
    ) -> Any:
        """Copies the one tensor into the array; an object with a method `assign` gets it instead.

        Args:
            restored_tensors: one array, of the array's dtype. Strings are an object array of bytes.
            restored_shapes: the shape to give it first, or None.

        Returns:
            The object.

        Raises:
            InvalidError: another shape or dtype, or an object that cannot be changed.
        """
        if len(restored_tensors) != 1:
            raise self._error(f"takes one tensor, not {len(restored_tensors)}")
        restored = np.asarray(restored_tensors[0])
        target, shape = self.op, tuple(self.op.shape)
        if restored_shapes is not None:
            wanted = tuple(restored_shapes[0])
            try:
                restored = restored.reshape(wanted)
            except ValueError:
                raise self._error(f"has {restored.size} elements, not shape {wanted}") from None
        if restored.shape != shape:
            raise InvalidError(
                f"Received incompatible tensor with shape {restored.shape} when attempting to "
                f"restore variable with shape {shape} and name {self.name}.",
                tensor=self.name,
            )
        if hasattr(target, "assign"):
            target.assign(restored)
            return target
        if not isinstance(target, np.ndarray):
            raise self._error(f"is a {type(target).__name__}, which cannot be changed in place")
        if not target.flags.writeable:
            raise self._error("is a read-only array")
        if not np.can_cast(restored.dtype, target.dtype, "equiv"):
            raise self._error(f"has dtype {target.dtype}, and {restored.dtype} was read")
        np.copyto(target, restored, casting="equiv")
        return target

    def _error(self, what: str) -> InvalidError:
        return InvalidError(f"variable {self.name} {what}", tensor=self.name)


def validate_and_slice_inputs(
    names_to_saveables: Mapping[str, Any] | Iterable[Any],
) -> list[SaveableObject]:
    """The saveables of all objects, sorted by name; as TensorFlow's
    `saveable_object_util.validate_and_slice_inputs`.

    Args:
        names_to_saveables: {name: object}; or a list of objects, for `op_list_to_dict`.

    Returns:
        One saveable an object, and one a slice of an object that is a list of slices, all under the
        object's name.

    Raises:
        InvalidError: a name that is none; an object that cannot be saved; one object under two
            names; two for the same slice of one name, or a whole tensor beside slices; a list with
            what is no slice, or with slices of several tensors. TensorFlow raises TypeError for the
            first two, and ValueError.
    """
    if not isinstance(names_to_saveables, Mapping):
        names_to_saveables = op_list_to_dict(names_to_saveables)
    named = [(_checked(name), op) for name, op in names_to_saveables.items()]
    saveables: list[SaveableObject] = []
    seen_ops: set[int] = set()
    for name, op in sorted(named, key=lambda item: item[0]):
        for saveable in _saveables_of(op, name):
            if saveable.op is not None and id(saveable.op) in seen_ops:
                raise InvalidError(
                    f"The same saveable will be restored with two names: {saveable.name}",
                    tensor=saveable.name,
                )
            seen_ops.add(id(saveable.op))
            saveables.append(saveable)
    _check_specs(saveables)
    return saveables


def op_list_to_dict(op_list: Iterable[Any]) -> dict[str, Any]:
    """Objects by their names; as TensorFlow's `saveable_object_util.op_list_to_dict`.

    Args:
        op_list: SaveableObjects and objects with a `name`, in lists of any depth. Slices come under
            their tensor's name, `full_name`, in a list.

    Raises:
        InvalidError: no list, an object without a name, two of one name, or a whole tensor and a
            slice of one.
    """
    if not isinstance(op_list, (list, tuple, set)):
        raise InvalidError(
            f"Variables to save should be passed in a dict or a list. Got {type(op_list).__name__}"
        )
    found: dict[str, Any] = {}
    for op in sorted(_flattened(op_list), key=_name_of):
        array, info = _sliced(op)
        name = _name_of(op)
        if info is None:
            if isinstance(found.get(name), list):
                raise _mixed(name)
            if name in found:
                raise _repeated(name)
            found[name] = array
        elif isinstance(found.setdefault(name, []), list):
            found[name].append(op)
        else:
            raise _mixed(name)
    return found


def _flattened(ops: Iterable[Any]) -> Iterator[Any]:
    for op in ops:
        if isinstance(op, (list, tuple, set)) and not _is_pair(op):
            yield from _flattened(op)
        else:
            yield op


def _name_of(op: Any) -> str:
    _, info = _sliced(op)
    name = getattr(op, "name", None) if info is None else info.full_name
    if not isinstance(name, (str, bytes)):
        raise InvalidError(f"Variable to save has no name: a {type(op).__name__}")
    return _checked(name)


def _checked(name: Any) -> str:
    if not isinstance(name, (str, bytes)):
        raise InvalidError(
            "names_to_saveables must be a dict mapping string names to trackable operations. Name "
            f"is not a string: {name!r}"
        )
    tensor_bytes(name)
    return tensor_text(name)


def _is_pair(op: Any) -> bool:
    return isinstance(op, (list, tuple)) and len(op) == 2 and isinstance(op[1], SaveSliceInfo)


def _sliced(op: Any) -> tuple[Any, SaveSliceInfo | None]:
    """What is to be saved, and which slice of what it is; None for what is no slice."""
    if _is_pair(op):
        return op[0], op[1]
    info = getattr(op, "save_slice_info", None)
    return op, info if isinstance(info, SaveSliceInfo) else None


def _saveables_of(op: Any, name: str) -> Iterator[SaveableObject]:
    if isinstance(op, SaveableObject):
        yield op
        return
    if isinstance(op, (list, tuple)):
        yield from _slices_of([op] if _is_pair(op) else op, name)
        return
    yield ArraySaveable(_array(op, name), "", name)


def _slices_of(parts: Iterable[Any], name: str) -> Iterator[SaveableObject]:
    full_name: str | None = None
    first = True
    for part in parts:
        if isinstance(part, SaveableObject):
            yield part
            continue
        array, info = _sliced(part)
        if info is None:
            if not hasattr(part, "shape"):
                raise InvalidError(
                    f"Slices must all be Variables: {type(part).__name__}", tensor=name
                )
            raise InvalidError(f"Slices must all be slices: {type(part).__name__}", tensor=name)
        if not first and info.full_name != full_name:
            raise InvalidError(
                f"Slices must all be from the same tensor: {full_name} != {info.full_name}",
                tensor=name,
            )
        first, full_name = False, info.full_name
        yield ArraySaveable(_array(array, name), info.stripped_spec, name)


def _array(op: Any, name: str) -> Any:
    if hasattr(op, "shape") and hasattr(op, "dtype"):
        return op
    raise InvalidError(
        "names_to_saveables must be a dict mapping string names to Tensors/Variables. Not a "
        f"variable: {type(op).__name__}",
        tensor=name,
    )


def _check_specs(saveables: Iterable[SaveableObject]) -> None:
    """Refuses what would be one entry of the checkpoint twice, or a tensor both whole and cut."""
    seen: dict[str, set[Any]] = {}
    for saveable in saveables:
        for spec in saveable.specs:
            slices = seen.setdefault(spec.name, set())
            box = spec.box
            place = None if box is None else (box.full_shape, box.start, box.shape)
            if place in slices:
                raise _repeated(spec.name)
            if slices and (place is None or None in slices):
                raise _mixed(spec.name)
            slices.add(place)


def _repeated(name: str) -> InvalidError:
    return InvalidError(f"At least two variables have the same name: {name}", tensor=name)


def _mixed(name: str) -> InvalidError:
    return InvalidError(f"Mixing slices and non-slices with the same name: {name}", tensor=name)
