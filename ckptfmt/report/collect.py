# SPDX-License-Identifier: Apache-2.0
"""What a report shows of a checkpoint, as JSON values. Nothing is formatted here."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt.bundle.reader import Reader
from ckptfmt.bundle.tensor import TensorHandle
from ckptfmt.dtypes import plain_quantized
from ckptfmt.errors import CkptfmtError
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
        "path": reader.prefix,
        "level": reader.level,
        "producer": header.producer,
        "files": header.num_shards,
        "index_bytes": header.index_size,
        "metadata": reader.metadata,
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
        statistics, whole, dead = _statistics(handle, sample_bytes)
    except CkptfmtError as error:
        data["error"] = str(error)
        return data
    if statistics is not None:
        data["stats"] = _numbers(statistics)
        data["sampled"] = not whole
        data["warnings"] = list(_warnings(statistics, handle, dead, whole=whole))
    return data


def _numbers(found: Statistics) -> dict[str, Any]:
    """Return the fields; numbers that JSON lacks are None."""
    fields = {
        name: getattr(found, name)
        for name in ("count", "zeros", "infinite", "nans", "low", "high", "mean", "deviation")
    }
    plain = {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in fields.items()
    }
    return {**plain, "counts": list(found.counts)}


def _warnings(found: Statistics, handle: TensorHandle, dead: int, *, whole: bool) -> Iterator[str]:
    if found.nans:
        yield f"{found.nans:,} NaN"
    if found.infinite:
        yield f"{found.infinite:,} infinite"
    if whole and found.zeros == found.count > 1:
        yield "all zero"
    elif whole and dead:
        yield f"{dead:,} of {handle.shape[0]:,} rows are zero"


def _statistics(handle: TensorHandle, limit: int) -> tuple[Statistics | None, bool, int]:
    """Return statistics, whether they are of all elements, and how many rows are zero."""
    if not limit or handle.dtype is None or handle.dtype == np.dtype(object):
        return None, False, 0
    if handle.nbytes <= limit:
        values = plain_quantized(handle.read())
        dead = 0
        if values.ndim > 1 and values.size:
            dead = int((~(values != 0).reshape(len(values), -1).any(axis=1)).sum())
        return statistics_of(lambda: [values]), True, dead
    parts = [plain_quantized(handle[box]) for box in sample_boxes(handle, limit)]
    return statistics_of(lambda: parts), False, 0


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


def comparison_data(a: Reader, b: Reader, progress: Progress | None = None) -> list[dict[str, Any]]:
    """Return what became of each tensor from A to B: "same", "changed", "added", "removed" or
    "retyped" (another dtype or shape). Values are compared whole, one tensor at a time."""
    names = sorted({*a, *b})
    found = []
    for done, name in enumerate(names, 1):
        one, other = a.get(name), b.get(name)
        row: dict[str, Any] = {"name": name}
        if one is None or other is None:
            row["change"] = "added" if one is None else "removed"
        elif one.shape != other.shape or one.dtype_code != other.dtype_code:
            row["change"] = "retyped"
            row["before"] = [one.dtype_name, list(one.shape)]
        else:
            row |= _change(one, other)
        found.append(row)
        if progress is not None:
            progress(done, len(names))
    return found


def _change(a: TensorHandle, b: TensorHandle) -> dict[str, Any]:
    one, other = a.read(), b.read()
    if one.dtype == np.dtype(object) or a.dtype is None:
        return {"change": "same" if np.array_equal(one, other) else "changed"}
    one, other = plain_quantized(one), plain_quantized(other)
    if one.tobytes() == other.tobytes():
        return {"change": "same"}
    left, right = _wide(one), _wide(other)
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(right - left)
        size = float(np.sqrt(np.nansum(np.abs(left) ** 2)))
        moved = float(np.sqrt(np.nansum(apart**2)))
    known = apart[np.isfinite(apart)]
    return {
        "change": "changed",
        "elements": int((left != right).sum()),
        "largest": float(known.max()) if known.size else None,
        "relative": moved / size if size and math.isfinite(moved / size) else None,
    }


def _wide(values: NDArray[Any]) -> NDArray[Any]:
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
