# SPDX-License-Identifier: Apache-2.0
"""Statistics and a histogram of numbers, gathered piece by piece."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["Statistics", "statistics_of"]

BINS, BAR_CELLS = 16, 40


@dataclass
class Statistics:
    """What is known of some numbers; of complex ones, of their absolute values.

    Attributes:
        count: how many.
        zeros, infinite, nans: how many of them are zero, infinite or NaN.
        low, high, mean, deviation: of the finite ones; NaN if there are none.
        counts: how many finite ones are in each of BINS equal intervals from `low` to `high`.
    """

    count: int = 0
    zeros: int = 0
    infinite: int = 0
    nans: int = 0
    low: float = math.nan
    high: float = math.nan
    mean: float = math.nan
    deviation: float = math.nan
    counts: tuple[int, ...] = ()

    def rows(self) -> Iterator[tuple[str, str]]:
        """Yield names and values, as text."""
        yield "elements", f"{self.count:,}"
        for name, value in (("zero", self.zeros), ("infinite", self.infinite), ("NaN", self.nans)):
            if value:
                yield name, f"{value:,} ({value / self.count:.1%})"
        if self.counts:
            yield "min", f"{self.low:.6g}"
            yield "max", f"{self.high:.6g}"
            yield "mean", f"{self.mean:.6g}"
            yield "std", f"{self.deviation:.6g}"

    def histogram(self, *, solid: bool) -> Iterator[str]:
        """Yield a line per interval: where it begins, its bar, its count."""
        if not self.counts or self.low == self.high:
            return
        most = max(self.counts)
        for number, count in enumerate(self.counts):
            part = number / BINS
            begin = self.low * (1 - part) + self.high * part  # the difference may overflow
            bar = ("█" if solid else "#") * math.ceil(count / most * BAR_CELLS)
            yield f"{begin:12.4g}  {bar:{BAR_CELLS}}  {count:,}".rstrip()


def statistics_of(
    pieces: Callable[[], Iterable[NDArray[np.generic]]],
) -> Statistics | None:
    """Return the statistics of all pieces; None if they are not numbers.

    Args:
        pieces: returns the pieces. It is called twice: the intervals depend on all values.
    """
    found = Statistics()
    known, mean, squares = 0, 0.0, 0.0
    for piece in pieces():
        if piece.dtype == np.dtype(object):
            return None
        flat = _numbers(piece)
        found.count += flat.size
        found.zeros += int((flat == 0).sum())
        found.nans += int(np.isnan(flat).sum())
        found.infinite += int(np.isinf(flat).sum())
        finite = flat[np.isfinite(flat)]
        if finite.size:
            # The mean and the sum of squared differences of two parts together. Both are infinite
            # or NaN if the values are too large.
            with np.errstate(over="ignore", invalid="ignore"):
                own_mean, own_squares = float(finite.mean()), float(finite.var()) * finite.size
            apart, total = own_mean - mean, known + finite.size
            squares += own_squares + apart * apart * known * finite.size / total
            mean += apart * finite.size / total
            known = total
            found.low = float(np.fmin(found.low, finite.min()))
            found.high = float(np.fmax(found.high, finite.max()))
    if known:
        found.mean, found.deviation = mean, math.sqrt(squares / known)
        counts = np.zeros(BINS, np.int64)
        for piece in pieces():
            flat = _numbers(piece)
            counts += _counts(flat[np.isfinite(flat)], found.low, found.high)
        found.counts = tuple(counts.tolist())
    return found


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
