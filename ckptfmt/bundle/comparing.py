# SPDX-License-Identifier: Apache-2.0
"""Compare two checkpoints tensor by tensor in key order. Nothing is printed here.

Values are compared bit by bit, or within a tolerance, large tensors piece by piece, so that memory
stays bounded by a few pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.casting import kind_of
from ckptfmt._base.dtypes import plain_quantized
from ckptfmt._base.names import tensor_bytes
from ckptfmt.bundle.meanings import alike, bits_of, meant
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError

# Bytes of one array in memory at a time.
PIECE_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between two tensors of one name.

    Attributes:
        kind: "only in A", "only in B", "dtype", "shape" (the dtypes may differ as well) or
            "values".
        a, b: the tensor in either; None where it is missing.
        elements: how many elements have other bits, or are farther apart than the tolerance; None
            where values were not compared. Tensors of different dtypes are compared if there is a
            tolerance and both are floating-point or complex.
        largest: of floating-point and complex values, the largest absolute difference of two
            numbers; infinite where one of them is. None for other dtypes.
        relative: of the same, the largest absolute difference divided by the absolute value in B.
        nans: how many elements are NaN in only one of the two.
    """

    name: str
    kind: str
    a: TensorHandle | None
    b: TensorHandle | None
    elements: int | None = None
    largest: float | None = None
    relative: float | None = None
    nans: int = 0

    @property
    def is_near(self) -> bool:
        """Whether only the dtypes differ, and all values are equal within the tolerance."""
        return self.kind == "dtype" and self.elements == 0


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers a, b are equal if |a - b| <= absolute + relative * |b|, as in numpy.isclose, or
    if both are NaN. Without a tolerance all bits must be equal."""

    relative: float = 0.0
    absolute: float = 0.0

    def __bool__(self) -> bool:
        return self.relative > 0 or self.absolute > 0


EXACT = Tolerance()


def compare(
    a: Reader,
    b: Reader,
    progress: Callable[[int], object] | None = None,
    *,
    chosen: Callable[[str], object] = lambda _: True,
    renamed: Callable[[str], str] | None = None,
    tolerance: Tolerance = EXACT,
    by_checksum: bool = False,
) -> Iterator[Difference | None]:
    """One item a tensor, in key order: a Difference, or None where the two are equal.

    Tensors that belong to the format are left out.

    Args:
        a, b: what is compared.
        progress: called with the bytes of the arrays that were just compared.
        chosen: whether a tensor is compared, by its name in B or the one that it is given.
        renamed: gives a tensor of A the name that it has in B.
        tolerance: of floating-point and complex numbers.
        by_checksum: whether tensors that are stored whole with the same checksum are equal, and are
            not read.
    """
    by_checksum = by_checksum and a.header.big_endian == b.header.big_endian
    for one, other in pairs(a, b, chosen, renamed):
        yield difference(one, other, progress, tolerance=tolerance, by_checksum=by_checksum)


def difference(
    one: TensorHandle | None,
    other: TensorHandle | None,
    progress: Callable[[int], object] | None = None,
    *,
    tolerance: Tolerance = EXACT,
    by_checksum: bool = False,
) -> Difference | None:
    """Compare two tensors, of which one may be missing; arguments as for compare.

    Raises:
        CkptfmtError: a value cannot be read.
    """
    if one is None or other is None:
        there = one if one is not None else other
        assert there is not None
        return Difference(there.name, "only in B" if one is None else "only in A", one, other)
    if one.shape != other.shape:
        return Difference(one.name, "shape", one, other)
    if not alike(one, other):
        if tolerance and _has_distances(one) and _has_distances(other):
            return _values(one, other, progress, tolerance)
        return Difference(one.name, "dtype", one, other)
    if by_checksum and checksums_equal(one, other):
        if progress is not None:
            progress(one.nbytes)
        return None
    return _values(one, other, progress, tolerance)


def pairs(
    a: Reader,
    b: Reader,
    chosen: Callable[[str], object] = lambda _: True,
    renamed: Callable[[str], str] | None = None,
) -> Iterator[tuple[TensorHandle | None, TensorHandle | None]]:
    """Yield pairs of tensors, in the byte order of their names in B."""
    ours: dict[str, str] = {}
    for name in a:
        new = name if renamed is None else renamed(name)
        if new in ours:
            raise InvalidError(f"{ours[new]!r} and {name!r} are both named {new!r}")
        ours[new] = name
    every = {*ours, *b}
    for name in sorted(every, key=tensor_bytes):
        if chosen(name):
            one, other = a[ours[name]] if name in ours else None, b.get(name)
            yield one and meant(one), other and meant(other)


def checksums_equal(a: TensorHandle, b: TensorHandle) -> bool:
    """Return whether the checksums in the indexes say that two tensors, which are `alike`, are
    equal: those of the bytes as they are stored, which are the elements unless they are compressed
    or strings."""
    whole = a.crc32c is not None and b.crc32c is not None
    plain = a.stored_nbytes == a.nbytes and b.stored_nbytes == b.nbytes and a.dtype is not None
    return whole and plain and a.dtype != np.dtype(object) and a.crc32c == b.crc32c


def pieces(
    shape: tuple[int, ...], itemsize: int, limit: int | None = None
) -> Iterator[tuple[slice, ...]]:
    """Divide an array into boxes of at most `limit` bytes, or one element (None: PIECE_BYTES), each
    of which is one run of its elements in row-major order; in that order."""
    limit = PIECE_BYTES if limit is None else limit
    row = math.prod(shape[1:]) * itemsize
    if not shape or row * shape[0] <= limit:
        yield ()
    elif row <= limit:
        step = limit // row
        for first in range(0, shape[0], step):
            yield (slice(first, min(first + step, shape[0])),)
    else:
        for first in range(shape[0]):
            for rest in pieces(shape[1:], itemsize, limit):
                yield (slice(first, first + 1), *rest)


def _has_distances(handle: TensorHandle) -> bool:
    return handle.dtype is not None and kind_of(handle.dtype) in ("f", "c")


def _values(
    a: TensorHandle,
    b: TensorHandle,
    progress: Callable[[int], object] | None,
    tolerance: Tolerance,
) -> Difference | None:
    stored = bits_of(a), bits_of(b)
    if stored[0].dtype is None:  # an unknown dtype has no elements
        different = a.stored_nbytes != b.stored_nbytes or not np.array_equal(a.read(), b.read())
        return Difference(a.name, "values", a, b) if different else None
    # Average size of the strings.
    itemsize = -(-max(a.nbytes, b.nbytes) // max(a.size, 1))
    elements = nans = 0
    largest = relative = 0.0
    numbers = _has_distances(a)
    retyped = not alike(a, b)
    for index in pieces(a.shape, itemsize):
        one, other = (plain_quantized(h[index] if index else h.read()) for h in stored)
        one, other = one.reshape(-1), other.reshape(-1)
        differs = np.arange(one.size) if retyped else np.flatnonzero(_differs(one, other))
        if differs.size and numbers:
            found = _distances(one[differs], other[differs], tolerance)
            elements += found.elements
            largest, relative = max(largest, found.largest), max(relative, found.relative)
            nans += found.nans
        else:
            elements += differs.size
        if progress is not None:
            progress(one.size * itemsize)
    if not elements and not retyped:
        return None
    if not numbers:
        return Difference(a.name, "values", a, b, elements)
    kind = "dtype" if retyped else "values"
    return Difference(a.name, kind, a, b, elements, largest, relative, nans)


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


class _Distances(NamedTuple):
    elements: int
    largest: float
    relative: float
    nans: int


def _distances(one: NDArray[Any], other: NDArray[Any], tolerance: Tolerance) -> _Distances:
    """Return how many elements are farther apart than allowed, their largest absolute and relative
    difference, and how many are NaN in only one."""
    wide = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
    left, right = one.astype(wide), other.astype(wide)
    lone = np.isnan(left) != np.isnan(right)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        apart, size = np.abs(left - right), np.abs(right)
        # An infinite part leaves the difference of two complex numbers undefined.
        apart[np.isnan(apart) & ~(np.isnan(left) | np.isnan(right)) & (left != right)] = np.inf
        relative = apart / size
        far = np.isinf(apart)
        if far.any():
            ours, theirs = left[far] / 4, right[far] / 4  # whose difference does not overflow
            finite = np.isfinite(ours) & np.isfinite(theirs)
            relative[far] = np.where(finite, np.abs(ours - theirs) / np.abs(theirs), np.inf)
        if tolerance:
            allowed = tolerance.absolute + tolerance.relative * size
            near = np.isfinite(apart) & (apart <= allowed)
            near |= (np.isnan(left) & np.isnan(right)) | (left == right)
            apart, relative = apart[~near], relative[~near]
    return _Distances(len(apart), _largest(apart), _largest(relative), int(lone.sum()))


def _largest(values: NDArray[Any]) -> float:
    known = values[~np.isnan(values)]
    return float(known.max()) if known.size else 0.0
