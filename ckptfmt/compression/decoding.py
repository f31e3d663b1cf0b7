# SPDX-License-Identifier: Apache-2.0
"""Reading compressed values: threads share the runs of chunks that the requests need."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core, dtypes
from ckptfmt.compression import coding
from ckptfmt.errors import LimitError
from ckptfmt.threads import Stop, share, thread_count

__all__ = ["check", "finish", "plan", "read_runs", "read_strings"]

# Raw bytes of a run: what a thread holds three times over, as stored, decoded and on its way.
RUN_BYTES = 2 << 20


# New memory costs more than what is done with it: each thread keeps what it has.
_mine = threading.local()


class Target(NamedTuple):
    """Where the raw bytes of a tensor's compressed values go: to memory of this address and size,
    laid out as the box asks."""

    row: int
    box: NDArray[np.int64] | None
    address: int
    size: int


class _Value:
    """A stored value that is read whole, with the checksums of the raw chunks as they come."""

    __slots__ = ("crcs", "part", "row")

    def __init__(self, row: int, part: int, count: int) -> None:
        self.row, self.part = row, part
        self.crcs = np.zeros(count, np.uint32)


class _Job(NamedTuple):
    target: Target
    run: NDArray[Any]
    value: _Value | None


def finish(
    handle: _core.ReaderHandle, selection: _core.Selection, requests: NDArray[Any], verify: int
) -> None:
    """Serves what of an array of REQUEST is compressed."""
    targets = []
    for request in requests:
        box = None
        if request["box"]:
            rank = int(selection.rows["rank"][request["row"]])
            box = _core.numbers_at(int(request["box"]), 2 * rank + 1)
        numbers = [int(request[name]) for name in ("row", "destination", "destination_size")]
        targets.append(Target(numbers[0], box, numbers[1], numbers[2]))
    read_runs(handle, selection, targets, verify)


def read_strings(
    handle: _core.ReaderHandle,
    selection: _core.Selection,
    row: int,
    box: NDArray[np.int64] | None,
    verify: int,
) -> list[bytes]:
    """The elements of a string or variant tensor, or of a box of it, compressed values included."""
    runs = handle.plan_chunks(selection, row, box, verify, RUN_BYTES)
    record = selection.rows[row]
    raws = np.zeros(max(int(record["slice_count"]), 1), _core.BYTES)
    owners: dict[int, NDArray[np.uint8]] = {}
    jobs: list[_Job] = []
    try:
        for part in np.unique(runs["slice"]).tolist():
            chosen = runs[runs["slice"] == part]
            raw = np.empty(int(chosen["raw_size"].sum()), np.uint8)
            place = 0 if part == _core.WHOLE else part
            owners[place] = raw
            raws["data"][place], raws["size"][place] = _core.address(raw), len(raw)
            target = Target(row, None, _core.address(raw), len(raw))
            jobs += [_Job(target, chosen[at : at + 1], None) for at in range(len(chosen))]
        _work_off(handle, selection, jobs, verify)
        return handle.read_strings(selection, row, box, verify, raws)
    except MemoryError:
        size = sum(map(len, owners.values()))
        message = f"there is no memory for strings that take {size} bytes, or more"
        raise LimitError(message, tensor=selection.name(row), path=handle.path) from None


def plan(
    handle: _core.ReaderHandle, selection: _core.Selection, row: int, part: int
) -> NDArray[Any]:
    """The runs of all chunks of one compressed value; what is wrong with it before that is raised.

    Args:
        part: number of its slice; WHOLE.
    """
    return handle.plan_value(selection, row, part, RUN_BYTES)


def check(
    handle: _core.ReaderHandle, selection: _core.Selection, row: int, runs: NDArray[Any]
) -> None:
    """Decodes a compressed value, of which these runs are all, and raises what is wrong with it.
    However large it is, little of it is held."""
    part, mode = int(runs["slice"][0]), _core.VERIFY["full"]
    info = dtypes.info_of(int(selection.rows["dtype"][row]))
    if info is not None and info.storage == _core.STORAGE_FIXED:
        value = _Value(row, part, int(runs["count"].sum()))
        target = Target(row, None, 0, 0)
        jobs = [_Job(target, runs[at : at + 1], value) for at in range(len(runs))]
        _work_off(handle, selection, jobs, mode)
        handle.check_raw(selection, row, part, value.crcs)
        return
    scan = handle.scan_open(selection, row, part)
    raw = np.empty(int(runs["raw_size"].max()), np.uint8)
    for at in range(len(runs)):
        piece = raw[: int(runs["raw_size"][at])]
        target = Target(row, None, _core.address(piece), len(piece))
        _serve(handle, selection, _Job(target, runs[at : at + 1], None), mode)
        handle.scan_take(selection, scan, piece)


def read_runs(
    handle: _core.ReaderHandle,
    selection: _core.Selection,
    targets: Sequence[Target],
    verify: int,
) -> None:
    """Reads what the targets need of compressed values; checks those that are read whole."""
    jobs: list[_Job] = []
    values: list[_Value] = []
    for target in targets:
        runs = handle.plan_chunks(selection, target.row, target.box, verify, RUN_BYTES)
        whole: dict[int, _Value] = {}
        if verify != _core.VERIFY["off"]:
            taken = runs
            if target.box is not None and verify != _core.VERIFY["full"]:
                taken = runs[_inside(selection, target.row, target.box, runs["slice"])]
            whole = _whole_values(target.row, taken)
            values += whole.values()
        parts = runs["slice"].tolist()
        jobs += [_Job(target, runs[at : at + 1], whole.get(part)) for at, part in enumerate(parts)]
    _work_off(handle, selection, jobs, verify)
    for value in values:
        handle.check_raw(selection, value.row, value.part, value.crcs)


def _inside(
    selection: _core.Selection, row: int, box: NDArray[np.int64], parts: NDArray[np.uint64]
) -> NDArray[np.bool_]:
    """Which of these slices of a tensor (WHOLE: all of it) lie in the box with all that they
    have."""
    record = selection.rows[row]
    rank = int(record["rank"])
    starts, ends = box[:rank], box[:rank] + box[rank : 2 * rank]
    shape = selection.dims(int(record["dims_first"]), rank)
    if not record["slice_count"]:
        return np.full(len(parts), bool((starts <= 0).all() and (ends >= shape).all()))
    numbers, inverse = np.unique(parts, return_inverse=True)
    firsts = selection.slice_rows["extents_first"][int(record["slices_first"]) + numbers]
    inside = []
    for first in firsts.tolist():
        extents = selection.dims(first, 2 * rank)
        lengths = np.where(extents[rank:] < 0, shape, extents[rank:])
        begins = extents[:rank]
        inside.append(bool((starts <= begins).all() and (begins + lengths <= ends).all()))
    return np.array(inside, np.bool_)[inverse]


def _whole_values(row: int, runs: NDArray[Any]) -> dict[int, _Value]:
    """The stored values of which the runs are all, by number of the slice."""
    parts, inverse = np.unique(runs["slice"], return_inverse=True)
    counts = np.bincount(inverse, runs["count"].astype(np.int64), len(parts)).astype(np.int64)
    pairs = zip(parts.tolist(), counts.tolist(), strict=True)
    return {part: _Value(row, part, count) for part, count in pairs}


def _work_off(
    handle: _core.ReaderHandle, selection: _core.Selection, jobs: Sequence[_Job], verify: int
) -> None:
    def work(number: int) -> None:
        _serve(handle, selection, jobs[number], verify)

    share(len(jobs), work, thread_count(coding.THREADS_MAX), "ckptfmt-decode", Stop())


def _staging(size: int) -> NDArray[np.uint8]:
    """Memory of this thread for the stored bytes of a run, until the next call."""
    staging: NDArray[np.uint8] | None = getattr(_mine, "staging", None)
    if staging is None or len(staging) < size:
        staging = _mine.staging = np.empty(max(size, 2 * RUN_BYTES), np.uint8)
    return staging


def _serve(handle: _core.ReaderHandle, selection: _core.Selection, job: _Job, verify: int) -> None:
    target, run, value = job
    stored = _staging(int(run["stored_size"][0]))
    frames = handle.read_chunks(selection, target.row, run, verify, stored)
    contents: Any = ()
    if len(frames):
        pieces = np.column_stack((frames["offset"], frames["size"]))
        contents = coding.decompress(stored, pieces, frames["raw_size"].tolist())
        if isinstance(contents, int):
            chunk = int(frames["chunk"][contents])
            handle.bad_frame(selection, target.row, int(run["slice"][0]), chunk)
            return
    crcs = None
    if value is not None:
        first = int(run["first"][0])
        crcs = value.crcs[first : first + int(run["count"][0])]
    where = (target.address, target.size)
    handle.place_chunks(selection, target.row, run, stored, contents, target.box, where, crcs)
