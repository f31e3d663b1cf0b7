# SPDX-License-Identifier: Apache-2.0
"""Basic numpy indexing as a box to read and what is left to do on the box."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ckptfmt.errors import InvalidError


class Box(NamedTuple):
    """A box of a tensor, and the index that selects the requested elements from it."""

    start: tuple[int, ...]
    shape: tuple[int, ...]
    rest: tuple[Any, ...]


def box_of(key: Any, shape: tuple[int, ...]) -> Box:
    """Return the smallest box that holds what `array[key]` would give for an array of this shape.

    Takes integers, slices of any step and an Ellipsis.

    Raises:
        IndexError: an integer out of range, or more indices than dimensions.
        InvalidError: anything that is not basic indexing, and None, which would add a dimension.
    """
    keys = key if isinstance(key, tuple) else (key,)
    dots = [position for position, one in enumerate(keys) if one is Ellipsis]
    if len(dots) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if len(keys) - len(dots) > len(shape):
        raise IndexError(
            f"too many indices: {len(keys) - len(dots)} for a tensor of {len(shape)} dimensions"
        )
    at = dots[0] if dots else len(keys)
    missing = len(shape) - (len(keys) - len(dots))
    full = (slice(None),)
    # The ellipsis is replaced by whole dimensions here; it stays in `rest`, where it makes
    # numpy return an array instead of a scalar, as it does for arrays.
    spread = keys[:at] + full * missing + keys[at + len(dots) :]
    start, lengths, rest = [], [], []
    for axis, (one, size) in enumerate(zip(spread, shape, strict=True)):
        if isinstance(one, slice):
            first, length, left = _slice_box(one, size)
        else:
            first, length, left = _integer(one, axis, size), 1, 0
        start.append(first)
        lengths.append(length)
        rest.append(left)
    if dots:
        rest.insert(at, Ellipsis)
    return Box(tuple(start), tuple(lengths), tuple(rest))


def is_all(key: Any, shape: tuple[int, ...]) -> bool:
    """Return whether a key that `box_of` takes gives all of the tensor, as it is."""
    box = box_of(key, shape)
    as_it_is = all(
        one is Ellipsis or one in (slice(None), slice(None, None, 1)) for one in box.rest
    )
    return box.shape == shape and as_it_is


def _slice_box(one: slice, size: int) -> tuple[int, int, Any]:
    try:
        first, stop, step = one.indices(size)
    except (TypeError, ValueError) as error:
        raise InvalidError(f"{one!r}: {error}") from None
    count = len(range(first, stop, step))
    if count == 0:
        return 0, 0, slice(None)
    last = first + (count - 1) * step
    low, high = min(first, last), max(first, last)
    return low, high - low + 1, slice(None, None, step)


def _integer(one: Any, axis: int, size: int) -> int:
    if one is None:
        raise InvalidError(
            "None (a new dimension) cannot be an index here: reshape the returned array"
        )
    if isinstance(one, bool) or not hasattr(one, "__index__") or isinstance(one, np.ndarray):
        raise InvalidError(
            f"indices must be integers, slices or an ellipsis, not {type(one).__name__}: "
            "index the array of read() instead"
        )
    try:
        index = int(one.__index__())
    except TypeError:
        raise InvalidError(
            f"indices must be integers, slices or an ellipsis, not {type(one).__name__}"
        ) from None
    if not -size <= index < size:
        raise IndexError(f"index {index} is out of bounds for dimension {axis} of size {size}")
    return index + size if index < 0 else index
