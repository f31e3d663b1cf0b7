# SPDX-License-Identifier: Apache-2.0
"""The nodes of trees: containers, leaves, and their kinds in a graph.

dict, list, tuple   nodes with children; those of lists and tuples are named 0, 1, ...
int, float, bool,   nodes with one value: a scalar tensor of dtype int64 (uint64 for larger
str, bytes          values), float64, bool or string
none                a node without children or values
no kind             arrays, and objects of other writers: see `TreeNode`
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.dtypes import VARIANT
from ckptfmt.bundle.graph import NONE
from ckptfmt.errors import InvalidError

CONTAINERS = frozenset({"dict", "list", "tuple"})
SCALARS = frozenset({"int", "float", "bool", "str", "bytes"})
# Variant payloads are object arrays of bytes, as strings are; this dtype distinguishes them.
VARIANTS = np.dtype(object, metadata={"ckptfmt": VARIANT})


class Slot(NamedTuple):
    """A variable that an optimizer stores for another variable of the tree: that variable (the same
    object), the slot's name, and its value."""

    variable: Any
    name: str
    value: Any


class TreeNode(dict[str, Any]):
    """An object of a checkpoint that is more than a container: a dict of its children, with tensors
    and slot variables of its own.

    Args:
        children: name to child, or pairs of these.
        attributes: name to array; the value of a variable is `VARIABLE_VALUE`. An attribute of
            several tensors (the keys and values of a table) is a dict from the suffixes that their
            names add to the attribute's key to arrays.
        slots: slot variables of this object, an optimizer.
        registered_saver: if a registered saver saved the object, the name of the saver and its name
            of the object; the tree does not contain its tensors.

    Attributes: as the arguments.
    """

    attributes: dict[str, Any]
    slots: list[Slot]
    registered_saver: tuple[str, str] | None

    def __init__(
        self,
        children: Mapping[str, Any] | Iterable[tuple[str, Any]] = (),
        *,
        attributes: Mapping[str, Any] | None = None,
        slots: Iterable[Slot] = (),
        registered_saver: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(children)
        self.attributes = dict(attributes or {})
        self.slots = [Slot(*slot) for slot in slots]
        self.registered_saver = registered_saver

    def __repr__(self) -> str:
        about = [f"attributes of {', '.join(map(repr, self.attributes))}"] * bool(self.attributes)
        about += [f"{len(self.slots)} slots"] * bool(self.slots)
        about += [f"saved by {self.registered_saver[0]!r}"] if self.registered_saver else []
        return f"<TreeNode {super().__repr__()}{''.join(f', {text}' for text in about)}>"


TreeNode.__module__ = "ckptfmt.types"


_TYPES = {"bool": bool, "int": int, "float": float, "str": str, "bytes": bytes}
# Fast path: other types are looked up by their base classes.
_KNOWN: dict[type, str | None] = {
    **{one: kind for kind, one in _TYPES.items()},
    **dict.fromkeys((np.ndarray, dict, list, tuple, TreeNode)),
    type(None): NONE,
}


def scalar_kind(value: object) -> str | None:
    """Return the kind of a Python scalar; None for any other object, NumPy scalars included."""
    if type(value) in _KNOWN:
        return _KNOWN[type(value)]
    if isinstance(value, np.generic):
        return None
    return next((kind for kind, one in _TYPES.items() if isinstance(value, one)), None)


def scalar_array(kind: str, value: Any) -> NDArray[Any]:
    """Return a Python scalar as it is stored.

    Raises:
        InvalidError: an int beyond 64 bits, or a str that cannot be encoded.
    """
    if kind == "str":
        try:
            # Of an enum this is its value, where str(value) can be its name.
            value = str.encode(value, "utf-8", "surrogateescape")
        except UnicodeEncodeError as error:
            raise InvalidError(f"a str cannot be encoded: {error.reason}") from None
    if kind in ("str", "bytes"):
        array = np.empty((), object)
        array[()] = bytes(value)
        return array
    if kind == "int":
        for dtype in (np.int64, np.uint64):
            if np.iinfo(dtype).min <= value <= np.iinfo(dtype).max:
                return np.array(int(value), dtype)
        raise InvalidError("an int must fit into int64 or uint64")
    return np.array(value, np.bool_ if kind == "bool" else np.float64)


_STORED = {"int": "iu", "float": "f", "complex": "c", "bool": "b", "str": "O", "bytes": "O"}


def holds_scalar(kind: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    """Return whether a scalar of this kind may be stored as such a tensor."""
    return not shape and dtype.kind in _STORED.get(kind, "")


def scalar_value(kind: str, array: NDArray[Any]) -> Any:
    """Return the Python scalar that is stored as this array.

    Raises:
        InvalidError: the array cannot be a scalar of this kind.
    """
    if not holds_scalar(kind, array.dtype, array.shape):
        raise InvalidError(
            f"a tensor of dtype {array.dtype} and shape {array.shape} for one {kind}"
        )
    value = array.item()
    return value.decode("utf-8", "surrogateescape") if kind == "str" else value
