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
# Replicas up to this size are compared without being asked.
COMPARED_BYTES = 1 << 20


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
        block = () if layout is None else layout._block_of(position)
        groups.setdefault((*block, *shape), []).append(position)
    firsts = dict.fromkeys(shapes, 0) if layout is None else _firsts(layout)
    sums: dict[int, int] = {}
    for first, *others in groups.values():
        pieces: list[NDArray[np.uint8]] | None = None
        checked = check_all or math.prod(shapes[first]) * element_bytes(code) <= COMPARED_BYTES
        for other in others:
            pair = [arrays[first], arrays[other]]
            if pair[0] is pair[1] or not (checked or all(type(a) is np.ndarray for a in pair)):
                continue
            pieces = pieces or stored_bytes(name, arrays[first])
            if not same_bytes(pieces, stored_bytes(name, arrays[other])):
                raise InvalidError(
                    f"{labels[first]} and {labels[other]} hold the same part of it, but their "
                    "arrays differ",
                    tensor=name,
                )
        if checked and first in firsts:
            total = 0
            for piece in pieces or stored_bytes(name, arrays[first]):
                total = _core.crc32c(piece, total)
            sums[firsts[first]] = total
    return sums


@functools.lru_cache(64)
def _firsts(layout: Layout) -> dict[int, int]:
    """Return the first position of its block for each position whose block has replicas."""
    groups = [group for group in layout._replica_groups if len(group) > 1]
    return {position: group[0] for group in groups for position in group}


def element_bytes(code: int) -> int:
    """Return the bytes of an element, for the distribution of work."""
    info = dtypes.info_of(code)
    return info.size if info is not None and info.size else STRING_BYTES


def stored_bytes(name: str, data: Any, dtype: Any = None) -> list[NDArray[np.uint8]]:
    """Return the bytes of an array as they would be stored; of strings, sizes and bytes."""
    sources = Sources()
    sources.add(names.tensor_bytes(name), data, dtype)
    if sources.elements:
        elements = sources.elements[0]
        sizes = np.fromiter(map(len, elements), np.uint64, len(elements)).view(np.uint8)
        return [sizes, np.frombuffer(b"".join(elements), np.uint8)]
    array = sources.arrays[0]
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    return [dtypes.little_endian(native, sources.codes[0])]


def same_bytes(one: list[NDArray[np.uint8]], other: list[NDArray[np.uint8]]) -> bool:
    """Return whether two arrays have the same `stored_bytes`, compared a MiB at a time."""
    return len(one) == len(other) and all(
        np.array_equal(left[at : at + COMPARED_BYTES], right[at : at + COMPARED_BYTES])
        for left, right in zip(one, other, strict=True)
        for at in range(0, max(left.size, right.size), COMPARED_BYTES)
    )
