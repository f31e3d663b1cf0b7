# SPDX-License-Identifier: Apache-2.0
"""What is read of a checkpoint for a report, within a limit of time or bytes.

Three steps, each as far as the limit allows: of every tensor all, or a sample of a large one; every
byte against its checksum, as `verify` does; the large tensors whole, the smallest first. Nothing is
kept of the values but what the report shows, so memory is bounded by a piece of a tensor.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
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
from ckptfmt.report.places import Places
from ckptfmt.report.statistics import Gathered, Statistics, histogram, json_number, percentiles

# Values are read in pieces of so many bytes. Of a larger tensor the first step reads about so many,
# in SAMPLES boxes.
PIECE_BYTES = 1 << 20
SAMPLES = 8
# When the first and the second step end, as parts of the time.
SAMPLING, VERIFYING = 0.4, 0.8
# After so many seconds the rate of `verify` is known.
RATE_SECONDS = 0.2

Progress = Callable[[int, int], object]
Total = Callable[[int, Statistics, int], object]


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


@dataclass
class Measurements:
    """What was read of a checkpoint.

    Attributes:
        total, keep: as in `measure`.
        found: what the page shows of the values, by the tensor's place in the index; without the
            tensors that could not be read, that are not numbers, and that there was no time for.
        warnings: of the same, kinds and texts of what may be wrong.
        errors: why a tensor could not be read.
        meant: tensors whose bits stand for values of another dtype.
        numbers: how many tensors are numbers.
        whole: how many of these were measured whole.
        sampled: the statistics of those of which only a sample was, by their places.
        damaged: how many of them could not be read.
        verified: how many tensors were read whole against their checksums.
        report: of `verify`, if there was time for all bytes.
    """

    total: Total
    keep: bool
    found: dict[int, dict[str, Any]] = field(default_factory=dict)
    warnings: dict[int, list[tuple[str, str]]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    meant: dict[int, TensorHandle] = field(default_factory=dict)
    numbers: int = 0
    whole: int = 0
    sampled: dict[int, Statistics] = field(default_factory=dict)
    damaged: int = 0
    verified: int = 0
    report: Report | None = None


def measure(
    reader: Reader,
    budget: Budget,
    total: Total,
    progress: Progress | None = None,
    *,
    keep: bool = True,
) -> Measurements:
    """Read what the budget allows.

    Args:
        reader: the checkpoint.
        budget: how much.
        total: called with the place in the index, the statistics and the number of elements of each
            tensor that was measured.
        progress: called with the parts done, and of all.
        keep: whether the statistics of tensors without warnings are kept.
    """
    results = Measurements(total, keep)
    large: list[tuple[int, int, TensorHandle]] = []
    skipped: list[int] = []
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
        if is_numbers or not is_large:
            if budget.allows(min(handle.nbytes, PIECE_BYTES), SAMPLING):
                _first_look(handle, row, results, is_numbers=is_numbers, is_large=is_large)
            elif is_numbers and not is_large:
                skipped.append(row)
        if is_large and is_numbers:
            large.append((handle.nbytes, row, handle))
    results.report = _verify(reader, budget, lambda done, total: told(count + done, 3 * count))
    _look_again(reader, skipped, budget, results)
    for number, (_, row, handle) in enumerate(sorted(large, key=lambda one: one[:2])):
        told(2 * count + number * count // len(large), 3 * count)
        if row not in results.errors and not _whole(handle, row, budget, results):
            break
    for _, row, handle in large:
        if row in results.sampled:
            total(row, results.sampled[row], handle.size)
    told(3 * count, 3 * count)
    return results


def _first_look(
    handle: TensorHandle,
    row: int,
    results: Measurements,
    *,
    is_numbers: bool,
    is_large: bool,
) -> None:
    gathered, places = Gathered(), Places(handle.shape, whole=not is_large)
    finite: list[NDArray[np.float64]] = []
    try:
        for box in sample_boxes(handle, PIECE_BYTES) if is_large else [()]:
            part = handle[box] if is_large else handle.read()
            if is_numbers:
                finite.append(_add(gathered, places, box, plain_quantized(part)))
    except CkptfmtError as error:
        results.errors[row] = str(error)
        results.damaged += is_numbers
        return
    results.verified += not is_large
    if is_numbers:
        sample = _sample(finite) if results.keep else {}
        _keep(results, row, handle.size, gathered, places, sample, whole=not is_large)


def _look_again(reader: Reader, skipped: list[int], budget: Budget, results: Measurements) -> None:
    """Read small tensors for which there was no time: verifying may be faster than reading one by
    one, and leave some."""
    names = list(reader) if skipped else []
    for row in skipped:
        handle = bits_of(results.meant.get(row, reader[names[row]]))
        if not budget.allows(handle.nbytes):
            return
        _first_look(handle, row, results, is_numbers=True, is_large=False)


def _sample(finite: list[NDArray[np.float64]]) -> dict[str, Any]:
    """Return what is shown of the finite elements that the first look reads."""
    ordered = np.sort(finite[0] if len(finite) == 1 else np.concatenate(finite))
    if not ordered.size:
        return {}
    found: dict[str, Any] = {"percentiles": list(map(json_number, percentiles(ordered)))}
    if (bars := histogram(after=ordered)) is not None:
        found["histogram"] = bars
    return found


def _add(
    gathered: Gathered, places: Places, box: tuple[slice, ...], part: NDArray[Any]
) -> NDArray[np.float64]:
    finite, zeros, unusual = gathered.add(part)
    places.add(box, part, zeros, unusual)
    return finite


def _whole(handle: TensorHandle, row: int, budget: Budget, results: Measurements) -> bool:
    """Read a large tensor whole; return whether the budget allowed it."""
    gathered, places = Gathered(), Places(handle.shape, whole=True)
    assert handle.dtype is not None
    try:
        for box in pieces(handle.shape, handle.dtype.itemsize, PIECE_BYTES):
            part = plain_quantized(handle[box])
            if not budget.allows(part.nbytes):
                return False
            _add(gathered, places, box, part)
    except CkptfmtError as error:
        results.errors[row] = str(error)
        results.damaged += 1
        results.sampled.pop(row, None)
        return True
    seen = results.found.get(row, {})
    kept = ("percentiles", "histogram")
    sample = {name: one for name, one in seen.items() if name in kept}
    _keep(results, row, handle.size, gathered, places, sample, whole=True)
    return True


def _keep(
    results: Measurements,
    row: int,
    size: int,
    gathered: Gathered,
    places: Places,
    sample: dict[str, Any],
    *,
    whole: bool,
) -> None:
    found = gathered.end()
    results.warnings.pop(row, None)
    results.sampled.pop(row, None)
    if whole:
        results.whole += 1
        results.total(row, found, found.count)
    else:
        results.sampled[row] = found
    warnings = list(places.warnings(found))
    if not (results.keep or warnings):
        return
    # Of a sample, scaled to all elements.
    stats = found.data(found.finite / max(found.count, 1) * size)
    data: dict[str, Any] = {"stats": stats, "sampled": not whole, **sample}
    if whole and (grids := places.grids(found)) is not None:
        data["places"] = grids
    if places.first:
        data["first"] = places.first
    if warnings:
        data["warnings"] = [text for _, text in warnings]
        results.warnings[row] = warnings
    results.found[row] = data


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


def sample_boxes(handle: TensorHandle, limit: int, count: int = SAMPLES) -> list[tuple[slice, ...]]:
    """Return at most `count` boxes of `limit` bytes together, spread over the tensor, that have no
    element in common. The elements of each follow each other in the data file."""
    assert handle.dtype is not None
    shape = handle.shape
    lengths, most = [1] * len(shape), max(limit // count // handle.dtype.itemsize, 1)
    for axis in reversed(range(len(shape))):
        lengths[axis] = min(shape[axis], most)
        most //= lengths[axis]
        if lengths[axis] < shape[axis]:
            break
    last = math.prod(shape) - math.prod(lengths)
    boxes: dict[tuple[int, ...], tuple[slice, ...]] = {}
    for part in range(count):
        place, box = last * part // (count - 1), list[slice]()
        for dim, length in zip(reversed(shape), reversed(lengths), strict=True):
            place, at = divmod(place, dim)
            at = 0 if length == dim else at
            box.insert(0, slice(at, min(at + length, dim)))
        boxes[tuple(one.start for one in box)] = tuple(box)
    return list(boxes.values())
