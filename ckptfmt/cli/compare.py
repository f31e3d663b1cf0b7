# SPDX-License-Identifier: Apache-2.0
"""Compare two checkpoints tensor by tensor in key order. Nothing is printed here.

Values are compared bit by bit, large tensors piece by piece, so that memory stays bounded by a few
pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import Reader, TensorHandle
from ckptfmt.dtypes import is_floating, plain_quantized

__all__ = ["Difference", "compare", "pieces"]

# Bytes of one array in memory at a time.
PIECE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two tensors of one name.

    Attributes:
        kind: "only in A", "only in B", "dtype", "shape" (the dtypes may differ as well) or
            "values".
        a, b: the tensor in either; None where it is missing.
        elements: how many elements have other bits; None where values were not compared.
        largest: of floating-point and complex values, the largest absolute difference of two
            numbers; infinite where one of them is. None for other dtypes.
        nans: how many elements are NaN in only one of the two.
    """

    name: str
    kind: str
    a: TensorHandle | None
    b: TensorHandle | None
    elements: int | None = None
    largest: float | None = None
    nans: int = 0


def compare(
    a: Reader, b: Reader, progress: Callable[[int], object] | None = None
) -> Iterator[Difference | None]:
    """One item a tensor, in key order: a Difference, or None where the two are equal.

    Tensors that belong to the format are left out. `progress` is called with the bytes of the
    arrays that were just compared.
    """
    for one, other in _pairs(a, b):
        if one is None or other is None:
            there = one if one is not None else other
            assert there is not None
            yield Difference(there.name, "only in B" if one is None else "only in A", one, other)
        elif one.shape != other.shape:
            yield Difference(one.name, "shape", one, other)
        elif one.dtype_code != other.dtype_code:
            yield Difference(one.name, "dtype", one, other)
        else:
            yield _values(one, other, progress)


def _pairs(a: Reader, b: Reader) -> Iterator[tuple[TensorHandle | None, TensorHandle | None]]:
    """Yield pairs of tensors by name, by merging the two orders."""
    ours, theirs = iter(a.values()), iter(b.values())
    one, other = next(ours, None), next(theirs, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one.raw_name < other.raw_name):
            yield one, None
            one = next(ours, None)
        elif one is None or other.raw_name < one.raw_name:
            yield None, other
            other = next(theirs, None)
        else:
            yield one, other
            one, other = next(ours, None), next(theirs, None)


def pieces(shape: tuple[int, ...], itemsize: int) -> Iterator[tuple[slice, ...]]:
    """Yield indices that divide an array into boxes of PIECE_BYTES or one element."""
    row = math.prod(shape[1:]) * itemsize
    if not shape or row * shape[0] <= PIECE_BYTES:
        yield ()
    elif row <= PIECE_BYTES:
        step = PIECE_BYTES // row
        for first in range(0, shape[0], step):
            yield (slice(first, first + step),)
    else:
        for first in range(shape[0]):
            for rest in pieces(shape[1:], itemsize):
                yield (slice(first, first + 1), *rest)


def _values(
    a: TensorHandle, b: TensorHandle, progress: Callable[[int], object] | None
) -> Difference | None:
    if a.dtype is None:  # an unknown dtype has no elements
        different = a.stored_nbytes != b.stored_nbytes or not np.array_equal(a.read(), b.read())
        return Difference(a.name, "values", a, b) if different else None
    # Average size of the strings.
    itemsize = -(-max(a.nbytes, b.nbytes) // max(a.size, 1))
    elements = nans = 0
    largest = 0.0
    numbers = is_floating(a.dtype_code) or a.dtype.kind == "c"
    for index in pieces(a.shape, itemsize):
        one, other = (plain_quantized(h[index] if index else h.read()) for h in (a, b))
        one, other = one.reshape(-1), other.reshape(-1)
        differs = np.flatnonzero(_differs(one, other))
        if differs.size:
            elements += differs.size
            if numbers:
                apart, lone = _distance(one[differs], other[differs])
                largest, nans = max(largest, apart), nans + lone
        if progress is not None:
            progress(one.size * itemsize)
    if not elements:
        return None
    return Difference(a.name, "values", a, b, elements, largest if numbers else None, nans)


def _differs(one: NDArray[Any], other: NDArray[Any]) -> NDArray[np.bool_]:
    """Return a mask of the elements whose bits differ."""
    if one.dtype == np.dtype(object):
        return np.fromiter(map(bytes.__ne__, one, other), np.bool_, len(one))
    if one.dtype.itemsize == 16:
        halves = one.view(np.uint64) != other.view(np.uint64)
        different: NDArray[np.bool_] = halves[::2] | halves[1::2]
    else:
        bits = np.dtype(f"u{one.dtype.itemsize}")
        different = one.view(bits) != other.view(bits)
    return different


def _distance(one: NDArray[Any], other: NDArray[Any]) -> tuple[float, int]:
    """Return the largest absolute difference, and how many elements are NaN in only one."""
    wide = np.complex128 if one.dtype.kind == "c" else np.float64
    left, right = one.astype(wide), other.astype(wide)
    lone = np.isnan(left) != np.isnan(right)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(left - right)
    known = apart[~np.isnan(apart)]
    return float(known.max()) if known.size else 0.0, int(lone.sum())
