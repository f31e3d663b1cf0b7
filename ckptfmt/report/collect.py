# SPDX-License-Identifier: Apache-2.0
"""What a report shows of a checkpoint, as JSON values. Nothing is formatted here."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt.bundle.comparing import Difference, difference, pairs
from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.dtypes import plain_quantized
from ckptfmt.errors import CkptfmtError, masked
from ckptfmt.objects.roles import model_roles
from ckptfmt.report.statistics import Statistics, statistics_of

__all__ = ["SAMPLE_BYTES", "checkpoint_data", "comparison_data"]

# Of a tensor with more bytes, about so many are read, in SAMPLES boxes.
SAMPLE_BYTES = 1 << 20
SAMPLES = 8
# Slices of one tensor in its map.
SLICES_MAX = 2000

Progress = Callable[[int, int], object]


def checkpoint_data(
    reader: Reader, sample_bytes: int = SAMPLE_BYTES, progress: Progress | None = None
) -> dict[str, Any]:
    """Return the data of a checkpoint.

    Args:
        reader: the checkpoint.
        sample_bytes: how much of a tensor is read for its statistics; 0 reads nothing.
        progress: called with the number of tensors done, and of all.
    """
    roles = model_roles(reader)
    tensors = []
    for done, (name, handle) in enumerate(reader.items(), 1):
        tensors.append(_tensor(name, handle, roles.get(name, "other"), sample_bytes))
        if progress is not None:
            progress(done, len(reader))
    header = reader.header
    return {
        "path": masked(reader.prefix),
        "level": reader.level,
        "producer": header.producer,
        "files": header.num_shards,
        "index_bytes": header.index_size,
        "metadata": json.dumps(reader.metadata) if reader.metadata else "",
        "sample_bytes": sample_bytes,
        "tensors": tensors,
    }


def _tensor(name: str, handle: TensorHandle, role: str, sample_bytes: int) -> dict[str, Any]:
    data: dict[str, Any] = {
        "name": name,
        "dtype": handle.dtype_name,
        "shape": list(handle.shape),
        "bytes": handle.nbytes,
        "stored": handle.stored_nbytes,
        "shard": handle.shard,
        "role": role,
    }
    slices = handle.slices
    if handle.shard is None:
        data["slices"] = [
            [list(one.start), list(one.shape), one.shard] for one in slices[:SLICES_MAX]
        ]
        data["slice_count"] = len(slices)
    try:
        parts, whole = _parts(handle, sample_bytes)
    except CkptfmtError as error:
        data["error"] = str(error)
        return data
    if parts:
        found = statistics_of(lambda: parts)
        assert found is not None, "strings have no parts"
        data["stats"] = _numbers(found)
        data["sampled"] = not whole
        data["warnings"] = list(_warnings(found, *_rows(parts, handle), whole=whole))
    return data


def _numbers(found: Statistics) -> dict[str, Any]:
    """Return the fields; numbers that JSON lacks are None."""
    fields = {
        name: getattr(found, name)
        for name in ("count", "zeros", "infinite", "nans", "low", "high", "mean", "deviation")
    }
    return {
        **{name: _json(value) for name, value in fields.items()},
        "counts": list(found.counts),
    }


def _warnings(found: Statistics, rows: int, dead: int, *, whole: bool) -> Iterator[str]:
    of = "" if whole else " in the sample"
    if found.nans:
        yield f"{found.nans:,} NaN{of}"
    if found.infinite:
        yield f"{found.infinite:,} infinite{of}"
    if found.zeros == found.count > 1:
        yield f"all zero{of}"
    elif dead:
        yield f"{dead:,} of {rows:,} rows{of} are zero"


def _parts(handle: TensorHandle, limit: int) -> tuple[list[NDArray[Any]], bool]:
    """Return what is read of a tensor of numbers, and whether that is all of it."""
    if not limit or handle.dtype is None or handle.dtype == np.dtype(object):
        return [], False
    if handle.nbytes <= limit:
        return [plain_quantized(handle.read())], True
    return [plain_quantized(handle[box]) for box in sample_boxes(handle, limit)], False


def _rows(parts: list[NDArray[Any]], handle: TensorHandle) -> tuple[int, int]:
    """Return how many rows (boxes of one step in the first dimension) are whole in the parts, and
    how many of them are zero."""
    rows = dead = 0
    for part in parts:
        if part.ndim > 1 and part.size and part.shape[1:] == handle.shape[1:]:
            rows += len(part)
            dead += int((~(part != 0).reshape(len(part), -1).any(axis=1)).sum())
    return rows, dead


def sample_boxes(handle: TensorHandle, limit: int) -> list[tuple[slice, ...]]:
    """Return boxes of about `limit` bytes together, spread along the longest dimension."""
    assert handle.dtype is not None
    lengths = list(handle.shape)
    axis = int(np.argmax(lengths))
    while math.prod(lengths) * handle.dtype.itemsize > max(limit // SAMPLES, handle.dtype.itemsize):
        longest = int(np.argmax(lengths))
        lengths[longest] = -(-lengths[longest] // 2)
    last = handle.shape[axis] - lengths[axis]
    starts = sorted({round(last * part / (SAMPLES - 1)) for part in range(SAMPLES)})
    box = [slice(0, length) for length in lengths]
    return [
        (*box[:axis], slice(start, start + lengths[axis]), *box[axis + 1 :]) for start in starts
    ]


# ---- two checkpoints -----------------------------------------------------------------------------


CHANGES = {"only in A": "removed", "only in B": "added", "values": "changed"}


def comparison_data(a: Reader, b: Reader, progress: Progress | None = None) -> dict[str, Any]:
    """Return what became of the tensors from A to B: how many are the "same", and a row for each of
    the others: "changed", "added", "removed", "retyped" (another dtype or shape) or "unreadable".
    Values are compared whole, in pieces."""
    every = len({*a, *b})
    same, rows = 0, []
    for done, (one, other) in enumerate(pairs(a, b), 1):
        try:
            found = difference(one, other)
        except CkptfmtError as error:
            there = one if one is not None else other
            assert there is not None
            rows.append({"name": there.name, "change": "unreadable", "error": str(error)})
        else:
            if found is None:
                same += 1
            else:
                rows.append(_row(found))
        if progress is not None:
            progress(done, every)
    return {"same": same, "rows": rows}


def _row(found: Difference) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": found.name,
        "change": CHANGES.get(found.kind, "retyped"),
    }
    if row["change"] == "retyped":
        assert found.a is not None
        row["before"] = [found.a.dtype_name, list(found.a.shape)]
    elif found.kind == "values":
        row |= {"elements": found.elements, "nans": found.nans}
        row |= {"largest": _json(found.largest), "relative": _json(found.relative)}
    return row


def _json(value: object) -> object:
    """Return the value; None for a number that JSON lacks."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
