# SPDX-License-Identifier: Apache-2.0
"""Comparing arrays that must be replicas: within a process byte by byte, between processes by
checksum."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core
from ckptfmt._base import dtypes, names
from ckptfmt._base.arrays import Sources
from ckptfmt.errors import InvalidError
from ckptfmt.saving.mesh import Layout

Shape = tuple[int, ...]

# The assumed size of a string when work is distributed: a layout does not state the real one.
STRING_BYTES = 16
# The processes compare replicas up to this size without being asked.
SUMMED_BYTES = 1 << 20


def sums_of_replicas(
    name: str,
    code: int,
    layout: Layout | None,
    shapes: Mapping[int, Shape],
    arrays: Mapping[int, Any],
    labels: Mapping[int, str],
    check_all: bool,
) -> dict[int, int]:
    """Compare the local arrays of each block; return the checksums that the processes compare.

    Args:
        name, code, layout: of the tensor.
        shapes, arrays, labels: the local arrays by position, their shapes and devices.
        check_all: whether blocks of any size that several devices hold are compared. Otherwise
            those of at most 1 MiB are, and local ones of NumPy arrays.

    Returns:
        CRC-32C by the first position in the mesh that holds the block.
    """
    if dtypes.numpy_dtype(code) is None:
        return {}
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, shape in shapes.items():
        block = () if layout is None else layout.block_of(position)
        groups.setdefault((*block, *shape), []).append(position)
    firsts = dict.fromkeys(shapes, 0) if layout is None else _firsts(layout)
    sums: dict[int, int] = {}
    for first, *others in groups.values():
        pieces: list[NDArray[np.uint8]] | None = None
        checked = check_all or _size(code, shapes[first]) <= SUMMED_BYTES
        for other in others:
            pair = [arrays[first], arrays[other]]
            if pair[0] is pair[1] or not (checked or all(type(a) is np.ndarray for a in pair)):
                continue
            pieces = pieces or _pieces(name, arrays[first])
            if _bytes_differ(pieces, _pieces(name, arrays[other])):
                raise InvalidError(
                    f"{labels[first]} and {labels[other]} hold the same part of it, but their "
                    "arrays differ",
                    tensor=name,
                )
        if checked and first in firsts:
            total = 0
            for piece in pieces or _pieces(name, arrays[first]):
                total = _core.crc32c(piece, total)
            sums[firsts[first]] = total
    return sums


@functools.lru_cache(64)
def _firsts(layout: Layout) -> dict[int, int]:
    """Return the first position of its block for each position whose block has replicas."""
    groups = [group for group in layout.replica_groups if len(group) > 1]
    return {position: group[0] for group in groups for position in group}


def _size(code: int, shape: Shape) -> int:
    info = dtypes.info_of(code)
    return math.prod(shape) * (info.size if info is not None and info.size else STRING_BYTES)


def _pieces(name: str, data: Any) -> list[NDArray[np.uint8]]:
    """Return the bytes of an array as they would be stored; of strings, sizes and bytes."""
    sources = Sources()
    sources.add(names.tensor_bytes(name), data)
    if sources.elements:
        elements = sources.elements[0]
        sizes = np.fromiter(map(len, elements), np.uint64, len(elements)).view(np.uint8)
        return [sizes, np.frombuffer(b"".join(elements), np.uint8)]
    array = sources.arrays[0]
    if sources.swapped:
        array = array.astype(array.dtype.newbyteorder("="))
    return [np.ascontiguousarray(array).reshape(-1).view(np.uint8)]


def _bytes_differ(one: list[NDArray[np.uint8]], other: list[NDArray[np.uint8]]) -> bool:
    return any(
        left.size != right.size
        or any(
            not np.array_equal(left[at : at + SUMMED_BYTES], right[at : at + SUMMED_BYTES])
            for at in range(0, left.size, SUMMED_BYTES)
        )
        for left, right in zip(one, other, strict=True)
    )
