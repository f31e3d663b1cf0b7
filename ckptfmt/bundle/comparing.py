# SPDX-License-Identifier: Apache-2.0
"""Compare two checkpoints tensor by tensor in key order. Nothing is printed here.

Values are compared bit by bit, or within a tolerance, large tensors piece by piece, so that memory
stays bounded by a few pieces. Norms are in float64.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.casting import kind_of
from ckptfmt._base.dtypes import plain_quantized
from ckptfmt._base.names import tensor_bytes
from ckptfmt.bundle.graph import OBJECT_GRAPH_KEY
from ckptfmt.bundle.meanings import alike, bits_of, has_values, meant
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.errors import InvalidError

# Bytes of one array in memory at a time, and elements of which float64 are computed at a time.
PIECE_BYTES, BLOCK = 64 << 20, 1 << 15
# Tensors of at most so many elements differ by their values.
FEW = 4
# Squares of numbers between these neither overflow nor vanish.
SQUARED_MIN, SQUARED_MAX = 1e-140, 1e140


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
        within: how many elements are different numbers within the tolerance.
        largest: of floating-point, complex and integer values, the largest absolute difference of
            two numbers; infinite where one of them is. None for other dtypes.
        norm_a, norm_change: of the same, the L2 norm of A and of B - A, infinities and NaN left
            out.
        nans, infinite: how many elements are NaN or infinite, in A and in B.
    """

    name: str
    kind: str
    a: TensorHandle | None
    b: TensorHandle | None
    elements: int | None = None
    within: int = 0
    largest: float | None = None
    norm_a: float | None = None
    norm_change: float | None = None
    nans: tuple[int, int] = (0, 0)
    infinite: tuple[int, int] = (0, 0)

    @property
    def is_near(self) -> bool:
        """Whether all values are equal within the tolerance."""
        return self.elements == 0

    @property
    def relative(self) -> float | None:
        """The norm of the change divided by the norm of A."""
        return None if self.norm_change is None else ratio(self.norm_change, self.norm_a or 0.0)

    def values(self) -> tuple[NDArray[Any], NDArray[Any]] | None:
        """Read the values in A and in B if they are few and not the object graph; else None."""
        both = [one for one in (self.a, self.b) if one is not None]
        few = len(both) == 2 and all(one.size <= FEW and has_values(one) for one in both)
        if not few or self.name == OBJECT_GRAPH_KEY:
            return None
        old, new = (plain_quantized(one.read()) for one in both)
        return old, new


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Two numbers a, b are equal if |a - b| <= absolute + relative * |b|, as in numpy.isclose, or
    if both are NaN."""

    relative: float = 0.0
    absolute: float = 0.0


def ratio(norm_change: float, norm_a: float) -> float:
    """Return the ratio of two norms; that of a change of zeros is infinite."""
    return norm_change / norm_a if norm_a else math.inf if norm_change else 0.0


def norms(found: Iterable[Difference]) -> tuple[float, float] | None:
    """Return the norms of A and of the change over all floating-point and complex tensors of at
    least one dimension whose values were compared and differ, or None without such tensors. Most
    scalars are counters."""
    parts = [
        (one.norm_a, one.norm_change)
        for one in found
        if one.norm_a is not None and one.norm_change is not None
        if one.a is not None and one.a.shape and is_float(one.a)
    ]
    if not parts:
        return None
    return math.hypot(*(a for a, _ in parts)), math.hypot(*(change for _, change in parts))


def changed_metadata(
    a: Mapping[str, Any], b: Mapping[str, Any]
) -> dict[str, tuple[str | None, str | None]]:
    """Return the members of the metadata that differ, in A and in B as JSON; None where one is
    missing. 1, 1.0 and true differ."""
    texts = [{name: json.dumps(one[name], sort_keys=True) for name in one} for one in (a, b)]
    pairs = {name: (texts[0].get(name), texts[1].get(name)) for name in sorted({*a, *b})}
    return {name: (old, new) for name, (old, new) in pairs.items() if old != new}


def compare(
    a: Reader,
    b: Reader,
    progress: Callable[[int], object] | None = None,
    *,
    chosen: Callable[[str], object] = lambda _: True,
    renamed: Callable[[str], str] | None = None,
    tolerance: Tolerance | None = None,
    by_checksum: bool = False,
    graphs_equal: Callable[[], bool] | None = None,
) -> Iterator[Difference | None]:
    """One item a tensor, in key order: a Difference, or None where the two are equal.

    Tensors that belong to the format are left out.

    Args:
        a, b: what is compared.
        progress: called with the bytes of the arrays that were just compared.
        chosen: whether a tensor is compared, by its name in B or the one that it is given.
        renamed: gives a tensor of A the name that it has in B.
        tolerance: of floating-point and complex numbers; None compares bits.
        by_checksum: whether tensors that are stored whole with the same checksum are equal, and are
            not read.
        graphs_equal: compares the object graphs, if both have one; None compares the bytes.
    """
    by_checksum = by_checksum and a.header.big_endian == b.header.big_endian
    for stored, there in pairs(a, b, chosen, renamed):
        one, other = stored and meant(stored), there and meant(there)
        if graphs_equal and one and other and one.name == OBJECT_GRAPH_KEY:
            yield None if graphs_equal() else Difference(one.name, "values", one, other, 1)
        else:
            yield difference(one, other, progress, tolerance=tolerance, by_checksum=by_checksum)


def difference(
    one: TensorHandle | None,
    other: TensorHandle | None,
    progress: Callable[[int], object] | None = None,
    *,
    tolerance: Tolerance | None = None,
    by_checksum: bool = False,
    seen: Callable[[NDArray[Any], NDArray[Any]], object] | None = None,
) -> Difference | None:
    """Compare two tensors, of which one may be missing.

    Args:
        one, other, progress, tolerance, by_checksum: as for compare.
        seen: called with the elements that are read of both, one-dimensional and in row-major
            order, piece by piece.

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
        if tolerance is not None and is_float(one) and is_float(other):
            return _values(one, other, progress, tolerance, seen)
        return Difference(one.name, "dtype", one, other)
    if by_checksum and checksums_equal(one, other):
        if progress is not None:
            progress(one.nbytes)
        return None
    return _values(one, other, progress, tolerance, seen)


def pairs(
    a: Reader,
    b: Reader,
    chosen: Callable[[str], object] = lambda _: True,
    renamed: Callable[[str], str] | None = None,
) -> Iterator[tuple[TensorHandle | None, TensorHandle | None]]:
    """Yield pairs of tensors as they are stored, in the byte order of their names in B."""
    ours: dict[str, str] = {}
    for name in a:
        new = name if renamed is None else renamed(name)
        if new in ours:
            raise InvalidError(f"{ours[new]!r} and {name!r} are both named {new!r}")
        ours[new] = name
    every = {*ours, *b}
    for name in sorted(every, key=tensor_bytes):
        if chosen(name):
            yield a[ours[name]] if name in ours else None, b.get(name)


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


def _kind(handle: TensorHandle) -> str:
    return "" if handle.dtype is None else kind_of(handle.dtype)


def is_float(handle: TensorHandle) -> bool:
    """Return whether these are floating-point or complex numbers."""
    return _kind(handle) in ("f", "c")


def _values(
    a: TensorHandle,
    b: TensorHandle,
    progress: Callable[[int], object] | None,
    tolerance: Tolerance | None,
    seen: Callable[[NDArray[Any], NDArray[Any]], object] | None,
) -> Difference | None:
    stored = bits_of(a), bits_of(b)
    if stored[0].dtype is None:  # an unknown dtype has no elements
        different = a.stored_nbytes != b.stored_nbytes or not np.array_equal(a.read(), b.read())
        return Difference(a.name, "values", a, b) if different else None
    # Average size of the strings.
    itemsize = -(-max(a.nbytes, b.nbytes) // max(a.size, 1))
    is_number, retyped = _kind(a) in ("f", "c", "i"), not alike(a, b)
    sums = _Sums(tolerance if is_float(a) else None)
    equal: list[tuple[slice, ...]] = []
    for index in pieces(a.shape, itemsize):
        one, other = (plain_quantized(h[index] if index else h.read()) for h in stored)
        one, other = one.reshape(-1), other.reshape(-1)
        if seen is not None:
            seen(one, other)
        differs = None if retyped else _differs(one, other)
        if differs is not None and not differs.any():
            equal.append(index)
        elif is_number:
            sums.add(one, other, differs)
        else:
            sums.elements += _count(np.asarray(differs))
        if progress is not None:
            progress(one.size * itemsize)
    if not (sums.elements or sums.within or retyped):
        return None
    if not is_number:
        return Difference(a.name, "values", a, b, sums.elements)
    for index in equal:  # of which only the norm is missing
        one = (stored[0][index] if index else stored[0].read()).reshape(-1)
        sums.add(one, one, np.zeros(one.size, np.bool_))
    return Difference(
        a.name,
        "dtype" if retyped else "values",
        a,
        b,
        sums.elements,
        sums.within,
        sums.largest,
        sums.norm_a,
        sums.norm_change,
        (sums.nans[0], sums.nans[1]),
        (sums.infinite[0], sums.infinite[1]),
    )


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


class _Sums:
    """What adds up over the elements of two tensors of numbers; see Difference."""

    def __init__(self, tolerance: Tolerance | None) -> None:
        self.tolerance = tolerance
        self.elements = self.within = 0
        self.largest = self.norm_a = self.norm_change = 0.0
        self.nans, self.infinite = [0, 0], [0, 0]

    def add(
        self, one: NDArray[Any], other: NDArray[Any], differs: NDArray[np.bool_] | None
    ) -> None:
        """Add one-dimensional arrays, of which `differs` says whose bits differ; None if they have
        different dtypes."""
        add = self._add_integers if kind_of(one.dtype) == "i" else self._add_floats
        for first in range(0, one.size, BLOCK):
            part = slice(first, first + BLOCK)
            if self.tolerance is None and differs is not None:
                self.elements += _count(differs[part])
            add(one[part], other[part])

    def _add_integers(self, one: NDArray[Any], other: NDArray[Any]) -> None:
        wide = np.uint64 if one.dtype == np.uint64 else np.int64
        left, right = one.astype(wide), other.astype(wide)
        # Exact modulo 2**64.
        apart = np.maximum(left, right).view(np.uint64) - np.minimum(left, right).view(np.uint64)
        self._add_norms(np.abs(left.astype(np.float64)), apart.astype(np.float64))

    def _add_floats(self, one: NDArray[Any], other: NDArray[Any]) -> None:
        wide = np.complex128 if "c" in (one.dtype.kind, other.dtype.kind) else np.float64
        left, right = one.astype(wide), other.astype(wide)
        with np.errstate(invalid="ignore", over="ignore"):
            apart, size = np.abs(left - right), np.abs(left)
            finite = np.isfinite(left), np.isfinite(right)
            both = finite[0] & finite[1]
            if both.all():
                self._add_norms(size, apart)
            else:
                nan = np.isnan(left), np.isnan(right)
                for at in (0, 1):
                    self.nans[at] += _count(nan[at])
                    self.infinite[at] += _count(~(finite[at] | nan[at]))
                self._add_norms(size[finite[0]], apart[both])
                # Infinities are apart, but for equal ones; NaN are near NaN.
                same = (left == right) | (nan[0] & nan[1])
                apart[~both] = np.where(same, 0.0, np.inf)[~both]
                if np.any(~both & ~(nan[0] | nan[1] | same)):
                    self.largest = math.inf
            if self.tolerance is not None:
                allowed = self.tolerance.absolute + self.tolerance.relative * np.abs(right)
                near = (apart == 0) | (np.isfinite(apart) & (apart <= allowed))
                self.elements += _count(~near)
                self.within += _count(near & (apart != 0))

    def _add_norms(self, sizes: NDArray[Any], apart: NDArray[Any]) -> None:
        self.largest = max(self.largest, float(apart.max(initial=0.0)))
        self.norm_a = math.hypot(self.norm_a, _norm(sizes))
        self.norm_change = math.hypot(self.norm_change, _norm(apart))


def _count(mask: NDArray[np.bool_]) -> int:
    return int(np.count_nonzero(mask))


def _norm(sizes: NDArray[Any]) -> float:
    """Return the L2 norm of numbers that are not negative."""
    most = float(sizes.max(initial=0.0))
    if not SQUARED_MIN < most < SQUARED_MAX and 0 < most < math.inf:
        unit = math.ldexp(1.0, math.frexp(most)[1] - 1)
        return _norm(sizes / unit) * unit
    return most if most in (0.0, math.inf) else math.sqrt(float(np.square(sizes).sum()))
