# SPDX-License-Identifier: Apache-2.0
"""What is read of a checkpoint for a report, within a limit of time or bytes.

Three steps, each as far as the limit allows: of every tensor all, or a sample of a large one; every
byte against its checksum, as `verify` does; the large tensors whole, the smallest first. Nothing is
kept of the values but what the report shows, so memory is bounded by a piece of a tensor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt._base.dtypes import plain_quantized
from ckptfmt.bundle.comparing import pieces
from ckptfmt.bundle.meanings import bits_of, has_values, meant
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.bundle.verify import Report, verify_all
from ckptfmt.errors import CkptfmtError
from ckptfmt.report.statistics import Statistics, gathered, statistics_of

# Values are read in pieces of so many bytes. Of a larger tensor the first step reads about so many,
# in SAMPLES boxes.
PIECE_BYTES = 1 << 20
SAMPLES = 8
# When the first and the second step end, as parts of the time.
SAMPLING, VERIFYING = 0.4, 0.8
# After so many seconds the rate of `verify` is known.
RATE_SECONDS = 0.2

Progress = Callable[[int, int], object]


class Budget:
    """How much may be read: a time, which begins with the first question, and a number of bytes;
    None is no limit."""

    def __init__(self, seconds: float | None, nbytes: int | None = None) -> None:
        self.seconds, self.nbytes = seconds, nbytes
        self._began: float | None = None
        self._read = 0

    def left(self, part: float = 1.0) -> float:
        """The seconds until a part of the time is over."""
        if self.seconds is None:
            return math.inf
        if self._began is None:
            self._began = time.monotonic()
        return part * self.seconds - (time.monotonic() - self._began)

    def allows(self, nbytes: int, part: float = 1.0) -> bool:
        """Return whether `nbytes` may be read now, and count them if so."""
        if self.left(part) <= 0 or (self.nbytes is not None and self._read + nbytes > self.nbytes):
            return False
        self._read += nbytes
        return True


@dataclass(slots=True)
class Measured:
    """What was found in the values of a tensor.

    Attributes:
        statistics: of all elements, or of a sample.
        sampled: whether they are of a sample.
        histogram: the statistics that have the histogram, which is of a sample of a large tensor.
        warnings: what may be wrong with the values, in words.
    """

    statistics: Statistics
    sampled: bool
    histogram: Statistics
    warnings: list[str]


@dataclass
class Measurements:
    """What was read of a checkpoint.

    Attributes:
        found: by the tensor's place in the index; without the tensors that could not be read, that
            are not numbers, and that there was no time for.
        errors: why a tensor could not be read.
        meant: tensors whose bits stand for values of another dtype.
        numbers: how many tensors are numbers.
        whole: how many of these were measured whole.
        sampled: the places of those of which only a sample was.
        damaged: how many of them could not be read.
        verified: how many tensors were read whole against their checksums.
        report: of `verify`, if there was time for all bytes.
    """

    found: dict[int, Measured] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    meant: dict[int, TensorHandle] = field(default_factory=dict)
    numbers: int = 0
    whole: int = 0
    sampled: set[int] = field(default_factory=set)
    damaged: int = 0
    verified: int = 0
    report: Report | None = None


def measure(
    reader: Reader, budget: Budget, progress: Progress | None = None, *, keep: bool = True
) -> Measurements:
    """Read what the budget allows.

    Args:
        reader: the checkpoint.
        budget: how much.
        progress: called with the parts done, and of all.
        keep: whether the statistics of tensors without warnings are kept.
    """
    results = Measurements()
    large: list[tuple[int, int, TensorHandle]] = []
    count = len(reader)
    told = progress if progress is not None else lambda done, total: None
    for row, stored in enumerate(reader.values()):
        told(row, 3 * count)
        try:
            values = meant(stored)
        except CkptfmtError as error:
            results.errors[row] = str(error)
            continue
        if values is not stored:
            results.meant[row] = values
        handle, is_numbers = bits_of(values), has_values(values)
        is_numbers = is_numbers and handle.dtype is not None and handle.dtype != np.dtype(object)
        results.numbers += is_numbers
        is_large = handle.nbytes > PIECE_BYTES
        if budget.allows(min(handle.nbytes, PIECE_BYTES), SAMPLING) and (
            is_numbers or not is_large
        ):
            _first_look(handle, row, results, is_numbers=is_numbers, is_large=is_large, keep=keep)
        if is_large and is_numbers:
            large.append((handle.nbytes, row, handle))
    results.report = _verify(reader, budget, lambda done, total: told(count + done, 3 * count))
    for number, (_, row, handle) in enumerate(sorted(large, key=lambda one: one[:2])):
        told(2 * count + number * count // len(large), 3 * count)
        if row not in results.errors and not _whole(handle, row, budget, results, keep=keep):
            break
    told(3 * count, 3 * count)
    return results


def _first_look(
    handle: TensorHandle,
    row: int,
    results: Measurements,
    *,
    is_numbers: bool,
    is_large: bool,
    keep: bool,
) -> None:
    rows = _Rows(handle.shape, whole=not is_large)
    parts: list[NDArray[Any]] = []
    try:
        for box in sample_boxes(handle, PIECE_BYTES) if is_large else [()]:
            part = handle[box] if is_large else handle.read()
            if is_numbers:
                parts.append(plain_quantized(part))
                rows.add(box, parts[-1])
    except CkptfmtError as error:
        results.errors[row] = str(error)
        results.damaged += is_numbers
        return
    results.verified += not is_large
    found = statistics_of(lambda: parts) if is_numbers else None
    if found is not None:
        warnings = list(_warnings(found, rows, whole=not is_large))
        _keep(results, row, Measured(found, is_large, found, warnings), keep=keep)


def _whole(
    handle: TensorHandle, row: int, budget: Budget, results: Measurements, *, keep: bool
) -> bool:
    """Read a large tensor whole; return whether the budget allowed it."""
    rows = _Rows(handle.shape, whole=True)
    assert handle.dtype is not None
    itemsize = handle.dtype.itemsize

    def values() -> Iterator[NDArray[Any]]:
        for box in pieces(handle.shape, itemsize, PIECE_BYTES):
            part = plain_quantized(handle[box])
            if not budget.allows(part.nbytes):
                raise OutOfBudget
            rows.add(box, part)
            yield part

    try:
        found = gathered(values())
    except OutOfBudget:
        return False
    except CkptfmtError as error:
        results.errors[row] = str(error)
        results.damaged += 1
        results.sampled.discard(row)
        return True
    assert found is not None, "only numbers are measured"
    rows.end()
    sample = results.found.get(row)
    histogram = sample.histogram if sample is not None else found
    warnings = list(_warnings(found, rows, whole=True))
    _keep(results, row, Measured(found, False, histogram, warnings), keep=keep)
    return True


def _keep(results: Measurements, row: int, measured: Measured, *, keep: bool) -> None:
    results.found.pop(row, None)
    results.sampled.discard(row)
    if measured.sampled:
        results.sampled.add(row)
    else:
        results.whole += 1
    if keep or measured.warnings:
        results.found[row] = measured


class OutOfBudget(Exception):  # noqa: N818 (it ends reading, and is no error)
    """Ends reading."""


def _verify(reader: Reader, budget: Budget, progress: Progress) -> Report | None:
    """Return the report of `verify`; None if the budget does not allow it."""
    stored = sum(reader.table(reserved=True)["stored_nbytes"].tolist()) + reader.header.index_size
    if not budget.allows(stored, VERIFYING):
        return None
    began, count = time.monotonic(), len(reader)

    def step(done: int, total: int) -> None:
        taken, left = time.monotonic() - began, budget.left(VERIFYING)
        if left <= 0 or (taken > RATE_SECONDS and taken * (total - done) > left * max(done, 1)):
            raise OutOfBudget
        progress(count * done // max(total, 1), count)

    try:
        return verify_all(reader.prefix, progress=step)
    except OutOfBudget:
        return None


class _Rows:
    """Counts rows (boxes of one step in the first dimension), and those that are zero."""

    def __init__(self, shape: tuple[int, ...], *, whole: bool) -> None:
        self.rows = self.dead = 0
        self._shape, self._whole = shape, whole
        # Of a row that is read in several pieces: where it is, and whether all were zero.
        self._place: int | None = None
        self._is_zero = True

    def add(self, box: tuple[slice, ...], part: NDArray[Any]) -> None:
        """Count a piece. Pieces of one row follow each other; of a sample they make no row."""
        if len(self._shape) < 2 or not part.size:
            return
        alive = (part != 0).reshape(len(part), -1).any(axis=1)
        if part.shape[1:] == self._shape[1:]:
            self.rows += len(part)
            self.dead += int((~alive).sum())
            return
        if not self._whole:
            return
        place = box[0].start
        if place != self._place:
            self.end()
            self._place, self._is_zero = place, True
        self._is_zero = self._is_zero and not alive.any()

    def end(self) -> None:
        """Count the last row, if all of its pieces were added."""
        if self._place is not None:
            self.rows += 1
            self.dead += self._is_zero
            self._place = None


def _warnings(found: Statistics, rows: _Rows, *, whole: bool) -> Iterator[str]:
    of = "" if whole else " in the sample"
    if found.nans:
        yield f"{found.nans:,} NaN{of}"
    if found.infinite:
        yield f"{found.infinite:,} infinite{of}"
    if found.zeros == found.count > 1:
        yield f"all zero{of}"
    elif rows.dead:
        yield f"{rows.dead:,} of {rows.rows:,} rows{of} are zero"


def sample_boxes(handle: TensorHandle, limit: int) -> list[tuple[slice, ...]]:
    """Return boxes of at most `limit` bytes together, spread over the tensor, that have no element
    in common. The elements of each follow each other in the data file."""
    assert handle.dtype is not None
    shape = handle.shape
    lengths, most = [1] * len(shape), max(limit // SAMPLES // handle.dtype.itemsize, 1)
    for axis in reversed(range(len(shape))):
        lengths[axis] = min(shape[axis], most)
        most //= lengths[axis]
        if lengths[axis] < shape[axis]:
            break
    last = math.prod(shape) - math.prod(lengths)
    boxes: dict[tuple[int, ...], tuple[slice, ...]] = {}
    for part in range(SAMPLES):
        place, box = last * part // (SAMPLES - 1), list[slice]()
        for dim, length in zip(reversed(shape), reversed(lengths), strict=True):
            place, at = divmod(place, dim)
            at = 0 if length == dim else at
            box.insert(0, slice(at, min(at + length, dim)))
        boxes[tuple(one.start for one in box)] = tuple(box)
    return list(boxes.values())
