# SPDX-License-Identifier: Apache-2.0
"""Statistics and a histogram of numbers, gathered piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

BINS, BAR_CELLS = 16, 40
# Values whose squares, and the sums of these, are neither infinite nor 0.
SQUARED_MIN, SQUARED_MAX = 1e-120, 1e120
# Elements of integers that are added at once: the sums of their halves then fit into 64 bits.
SUMMED = 1 << 30

# What a statistic is: an int of integers and booleans.
Number = float | int


@dataclass
class Statistics:
    """What is known of some numbers; of complex ones, of their absolute values.

    Attributes:
        count: how many.
        zeros, infinite, nans: how many of them are zero, infinite or NaN.
        low, high, mean: of the finite ones; NaN if there are none. Of integers and booleans all
            three are exact; the mean is an int if it is a whole number.
        deviation: the standard deviation of the finite ones.
        counts: how many finite ones are in each of BINS equal intervals from `low` to `high`.
    """

    count: int = 0
    zeros: int = 0
    infinite: int = 0
    nans: int = 0
    low: Number = math.nan
    high: Number = math.nan
    mean: Number = math.nan
    deviation: float = math.nan
    counts: tuple[int, ...] = ()

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and values, as text."""
        yield "elements", f"{self.count:,}"
        for name, value in (("zero", self.zeros), ("infinite", self.infinite), ("NaN", self.nans)):
            if value:
                yield name, f"{value:,} ({value / self.count:.1%})"
        if self.counts:
            yield "min", number_text(self.low)
            yield "max", number_text(self.high)
            yield "mean", number_text(self.mean)
            yield "std", number_text(self.deviation)

    def histogram(self, *, solid: bool) -> Iterator[str]:
        """Yield a line per interval: where it begins, its bar, its count."""
        if not self.counts or self.low == self.high:
            return
        most = max(self.counts)
        low, high = float(self.low), float(self.high)
        for number, count in enumerate(self.counts):
            part = number / BINS
            begin = low * (1 - part) + high * part  # the difference may overflow
            bar = ("█" if solid else "#") * math.ceil(count / most * BAR_CELLS)
            yield f"{begin:12.4g}  {bar:{BAR_CELLS}}  {count:,}".rstrip()


def number_text(value: Number) -> str:
    """Return a statistic as text: integers exactly, others with seven digits."""
    return str(value) if isinstance(value, int) else f"{value:.7g}"


def json_number(value: Number | None) -> float | str | None:
    """Return the value; as text an integer, which JavaScript would round, and what JSON lacks."""
    if isinstance(value, int):
        return str(value)
    if value is None or math.isfinite(value):
        return value
    return None if math.isnan(value) else f"{'-' * (value < 0)}Infinity"


def statistics_of(
    pieces: Callable[[], Iterable[NDArray[np.generic]]],
) -> Statistics | None:
    """Return the statistics of all pieces; None if they are not numbers.

    Args:
        pieces: returns the pieces. It is called twice: the intervals depend on all values.
    """
    found = gathered(pieces())
    if found is not None and not math.isnan(found.low):
        counts = np.zeros(BINS, np.int64)
        for piece in pieces():
            flat = _numbers(piece)
            counts += _counts(flat[np.isfinite(flat)], float(found.low), float(found.high))
        found.counts = tuple(counts.tolist())
    return found


def gathered(pieces: Iterable[NDArray[np.generic]]) -> Statistics | None:
    """Return the statistics of all pieces without the histogram; None if they are not numbers."""
    found = Statistics()
    known, mean, squares, total, unit = 0, 0.0, 0.0, 0, 1.0
    exact = False
    for piece in pieces:
        if piece.dtype == np.dtype(object):
            return None
        exact = _is_exact(piece.dtype)
        flat = _numbers(piece)
        found.count += flat.size
        found.zeros += int((flat == 0).sum())
        finite = flat
        if not exact:
            is_finite = np.isfinite(flat)
            if not is_finite.all():
                nans = int(np.isnan(flat).sum())
                found.nans += nans
                found.infinite += flat.size - int(is_finite.sum()) - nans
                finite = flat[is_finite]
        if not finite.size:
            continue
        bounds = float(finite.min()), float(finite.max())
        most = max(map(abs, bounds))
        # Where squares would overflow or vanish, all is divided by a power of two.
        is_usual = SQUARED_MIN < most < SQUARED_MAX
        own = 1.0 if is_usual else math.ldexp(1.0, math.frexp(most)[1] - 1) if most else unit
        if not (mean or squares):
            unit = own
        elif own > unit:
            mean, squares, unit = mean * (unit / own), squares * (unit / own) ** 2, own
        scaled = finite if unit == 1 else finite / unit
        # The mean and the sum of squared differences of two parts together.
        own_mean, own_squares = float(scaled.mean()), float(scaled.var()) * finite.size
        apart, together = own_mean - mean, known + finite.size
        squares += own_squares + apart * apart * known * finite.size / together
        mean += apart * finite.size / together
        known = together
        low: Number
        high: Number
        if exact:
            whole = piece.reshape(-1)
            if whole.dtype.kind not in "iu":  # booleans, and the narrow ones of ml_dtypes
                whole = whole.astype(np.int64)
            low, high = int(whole.min()), int(whole.max())
            total += sum(map(_sum, np.array_split(whole, -(-whole.size // SUMMED))))
        else:
            low, high = bounds
        found.low = low if math.isnan(found.low) else min(found.low, low)
        found.high = high if math.isnan(found.high) else max(found.high, high)
    if known:
        found.mean, found.deviation = mean * unit, math.sqrt(squares / known) * unit
        if exact:
            exactly = Fraction(total, known)
            found.mean = total // known if exactly.denominator == 1 else float(exactly)
    return found


def _is_exact(dtype: np.dtype[np.generic]) -> bool:
    """Return whether these are integers or booleans."""
    return dtype.kind in "biu" or dtype.name.startswith(("int", "uint"))


def _sum(values: NDArray[np.generic]) -> int:
    """Return the sum of integers, of any size."""
    wide = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64)
    high, low = wide >> np.asarray(32, wide.dtype), wide & np.asarray(0xFFFFFFFF, wide.dtype)
    return (int(high.sum()) << 32) + int(low.sum())


def _numbers(piece: NDArray[np.generic]) -> NDArray[np.float64]:
    with np.errstate(over="ignore"):
        values = np.abs(piece) if piece.dtype.kind == "c" else piece
    return values.reshape(-1).astype(np.float64)


def _counts(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.int64]:
    """Return how many values are in each interval. Unlike numpy.histogram for any two numbers: the
    difference of `low` and `high` may overflow, or be less than BINS steps of a float."""
    scale = max(abs(low), abs(high)) or 1.0
    first, last = low / scale, high / scale
    if first == last:
        return np.bincount(np.zeros(values.size, np.intp), minlength=BINS)
    places = (values / scale - first) / (last - first) * BINS
    return np.bincount(np.clip(places.astype(np.intp), 0, BINS - 1), minlength=BINS)
