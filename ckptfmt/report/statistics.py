# SPDX-License-Identifier: Apache-2.0
"""Statistics and a histogram of numbers, gathered piece by piece."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

BINS, BAR_CELLS = 16, 40
# Values whose squares, and the sums of these, are neither infinite nor 0.
SQUARED_MIN, SQUARED_MAX = 1e-120, 1e120
# Elements of integers that are added at once: the sums of their halves then fit into 64 bits.
SUMMED = 1 << 30

# How many times p5 is p95 where intervals are logarithmic; the percentiles that are shown.
WIDE, PERCENTILES = 100.0, (1, 5, 25, 50, 75, 95, 99)
_PARTS = np.arange(BINS + 1) / BINS

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

    @property
    def is_exact(self) -> bool:
        """Whether they are integers or booleans."""
        return isinstance(self.low, int)

    @property
    def finite(self) -> int:
        """How many are finite."""
        return self.count - self.nans - self.infinite

    @property
    def rms(self) -> float:
        """The root of the mean square of the finite ones; NaN if there are none."""
        return math.hypot(self.mean, self.deviation)

    def data(self, finite: float) -> dict[str, Any]:
        """Return what a page shows of a tensor, or a layer, that has so many finite elements."""
        counts = {name: getattr(self, name) for name in ("count", "zeros", "infinite", "nans")}
        numbers = {name: getattr(self, name) for name in ("low", "high", "mean", "deviation")}
        numbers["norm"] = self.rms * math.sqrt(finite)
        return counts | {name: json_number(value) for name, value in numbers.items()}

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
    gathered = Gathered()
    for piece in pieces():
        if piece.dtype == np.dtype(object):
            return None
        gathered.add(piece)
    found = gathered.end()
    if not math.isnan(found.low):
        counts = np.zeros(BINS, np.int64)
        for piece in pieces():
            flat = numbers_of(piece)
            counts += _counts(flat[np.isfinite(flat)], float(found.low), float(found.high))
        found.counts = tuple(counts.tolist())
    return found


class Gathered:
    """The statistics of numbers that are added piece by piece, without the histogram."""

    def __init__(self) -> None:
        self._found = Statistics()
        self._known, self._mean, self._squares, self._unit = 0, 0.0, 0.0, 1.0
        self._total, self._exact = 0, False
        # Reused: memory that is mapped anew for each piece takes longer than the sum.
        self._apart: NDArray[np.float64] | None = None

    def add(self, piece: NDArray[np.generic]) -> tuple[NDArray[np.float64], int, int]:
        """Add a piece; return its finite numbers, how many are zero, and how many not finite."""
        found = self._found
        self._exact = exact = _is_exact(piece.dtype)
        flat = finite = numbers_of(piece)
        zeros, unusual = flat.size - int(np.count_nonzero(flat)), 0
        if not exact:
            is_finite = np.isfinite(flat)
            unusual = flat.size - int(np.count_nonzero(is_finite))
            if unusual:
                nans = int(np.count_nonzero(np.isnan(flat)))
                found.nans += nans
                found.infinite += unusual - nans
                finite = flat[is_finite]
        found.count += flat.size
        found.zeros += zeros
        if finite.size:
            self._add_finite(piece, finite)
        return finite, zeros, unusual

    def _add_finite(self, piece: NDArray[np.generic], finite: NDArray[np.float64]) -> None:
        found, size = self._found, finite.size
        low: Number = float(np.minimum.reduce(finite))
        high: Number = float(np.maximum.reduce(finite))
        most = max(abs(low), abs(high))
        # Where squares would overflow or vanish, all is divided by a power of two.
        is_usual = SQUARED_MIN < most < SQUARED_MAX
        own = 1.0 if is_usual else math.ldexp(1.0, math.frexp(most)[1] - 1) if most else self._unit
        if not (self._mean or self._squares):
            self._unit = own
        elif own > self._unit:
            part = self._unit / own
            self._mean, self._squares, self._unit = self._mean * part, self._squares * part**2, own
        scaled = finite if self._unit == 1 else finite / self._unit
        # The mean and the sum of squared differences of two parts together.
        own_mean = float(np.add.reduce(scaled)) / size
        reused = self._apart if self._apart is not None and self._apart.size == size else None
        self._apart = apart = np.subtract(scaled, own_mean, out=reused)
        apart *= apart
        difference, together = own_mean - self._mean, self._known + size
        self._squares += float(np.add.reduce(apart))
        self._squares += difference * difference * self._known * size / together
        self._mean += difference * size / together
        self._known = together
        if self._exact:
            whole = piece.reshape(-1)
            if whole.dtype.kind not in "iu":  # booleans, and the narrow ones of ml_dtypes
                whole = whole.astype(np.int64)
            low, high = int(whole.min()), int(whole.max())
            self._total += sum(map(_sum, np.array_split(whole, -(-whole.size // SUMMED))))
        found.low = low if math.isnan(found.low) else min(found.low, low)
        found.high = high if math.isnan(found.high) else max(found.high, high)

    def end(self) -> Statistics:
        """Return the statistics of all that was added."""
        found = self._found
        if self._known:
            found.mean = self._mean * self._unit
            found.deviation = math.sqrt(self._squares / self._known) * self._unit
            if self._exact:
                exactly = Fraction(self._total, self._known)
                is_whole = exactly.denominator == 1
                found.mean = exactly.numerator if is_whole else float(exactly)
        return found


def histogram(**sides: NDArray[np.float64]) -> dict[str, Any] | None:
    """Return a histogram of finite numbers; None if all are equal.

    Where the numbers have one sign and span powers of ten, the intervals are equal in the logarithm
    of their absolute values: "scale" is "log", and "zeros" are left out.

    Args:
        sides: sorted numbers, by the name of their counts.
    """
    several = [*sides.values()]
    every = several[0] if len(several) == 1 else np.sort(np.concatenate(several))
    if not every.size or every[0] == every[-1]:
        return None
    count, is_log, is_negative = every.size, False, bool(every[-1] <= 0)
    if every[0] >= 0 or is_negative:
        sizes = _sizes(every, is_negative=is_negative)
        small, large = percentiles(sizes, (5, 95))
        is_log = large > WIDE * small
    if is_log:
        every, several = sizes, [_sizes(side, is_negative=is_negative) for side in several]
    low, high = float(every[0]), float(every[-1])
    if is_log:
        edges = np.exp(np.linspace(math.log(low), math.log(high), BINS + 1))
    else:
        edges = low * (1 - _PARTS) + high * _PARTS  # the difference may overflow
    found: dict[str, Any] = {"low": low, "high": high, "scale": "log" if is_log else "linear"}
    found |= {"zeros": count - every.size, "negative": is_log and is_negative}
    for name, ordered in zip(sides, several, strict=True):
        places = ordered.searchsorted(edges[1:-1]).tolist()
        found[name] = [b - a for a, b in itertools.pairwise([0, *places, ordered.size])]
    return found


def _sizes(ordered: NDArray[np.float64], *, is_negative: bool) -> NDArray[np.float64]:
    """Return the absolute values that are not 0 of numbers of one sign, sorted."""
    ordered = -ordered[::-1] if is_negative else ordered
    return ordered[ordered.searchsorted(0, "right") :]


def percentiles(ordered: NDArray[np.float64], which: Sequence[float] = PERCENTILES) -> list[float]:
    """Return percentiles of some finite numbers, which are sorted; between two by their parts."""
    found = []
    for one in which:
        part, first = math.modf((ordered.size - 1) * one / 100)
        low = float(ordered[int(first)])
        high = float(ordered[int(first) + 1]) if part else low
        found.append(low * (1 - part) + high * part)
    return found


def _is_exact(dtype: np.dtype[np.generic]) -> bool:
    """Return whether these are integers or booleans."""
    return dtype.kind in "biu" or dtype.name.startswith(("int", "uint"))


def _sum(values: NDArray[np.generic]) -> int:
    """Return the sum of integers, of any size."""
    wide = values.astype(np.int64 if values.dtype.kind == "i" else np.uint64)
    high, low = wide >> np.asarray(32, wide.dtype), wide & np.asarray(0xFFFFFFFF, wide.dtype)
    return (int(high.sum()) << 32) + int(low.sum())


def numbers_of(piece: NDArray[np.generic]) -> NDArray[np.float64]:
    """Return the numbers of an array, of complex ones the absolute values."""
    with np.errstate(over="ignore"):
        values = np.abs(piece) if piece.dtype.kind == "c" else piece
    return values.reshape(-1).astype(np.float64, copy=False)


def _counts(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.int64]:
    """Return how many values are in each interval. Unlike numpy.histogram for any two numbers: the
    difference of `low` and `high` may overflow, or be less than BINS steps of a float."""
    scale = max(abs(low), abs(high)) or 1.0
    first, last = low / scale, high / scale
    if first == last:
        return np.bincount(np.zeros(values.size, np.intp), minlength=BINS)
    places = (values / scale - first) / (last - first) * BINS
    return np.bincount(np.clip(places.astype(np.intp), 0, BINS - 1), minlength=BINS)
