# SPDX-License-Identifier: Apache-2.0
"""Comparing arrays that must be replicas: within a process byte by byte, between processes by
checksum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ckptfmt import _core, dtypes, names
from ckptfmt.arrays import Sources
from ckptfmt.errors import InvalidError
from ckptfmt.saving.mesh import Layout

__all__ = ["STRING_BYTES", "sum_of_replicas"]

Shape = tuple[int, ...]

# The assumed size of a string when work is distributed: a layout does not state the real one.
STRING_BYTES = 16
# The processes compare checksums of replicated tensors up to this size.
SUMMED_BYTES = 1 << 20


def sum_of_replicas(
    name: str,
    code: int,
    layout: Layout | None,
    shapes: Mapping[int, Shape],
    arrays: Mapping[int, Any],
    labels: Mapping[int, str],
) -> int | None:
    """Compare the local arrays of each block; return the checksum of a small replicated tensor.

    Arrays that are not NumPy arrays are compared only if they are small.
    """
    if dtypes.numpy_dtype(code) is None:
        return None
    groups: dict[tuple[int, ...], list[int]] = {}
    for position, shape in shapes.items():
        block = () if layout is None else layout.block_of(position)
        groups.setdefault((*block, *shape), []).append(position)
    for first, *others in groups.values():
        small = _size(code, shapes[first]) <= SUMMED_BYTES
        for other in others:
            pair = [arrays[first], arrays[other]]
            if pair[0] is pair[1] or not (small or all(type(a) is np.ndarray for a in pair)):
                continue
            if _bytes_differ(*(_pieces(name, array) for array in pair)):
                raise InvalidError(
                    f"{labels[first]} and {labels[other]} hold the same part of it, but their "
                    "arrays differ",
                    tensor=name,
                )
    position = next(iter(shapes))
    whole = layout is None or layout.is_replicated
    if not whole or _size(code, shapes[position]) > SUMMED_BYTES:
        return None
    total = 0
    for piece in _pieces(name, arrays[position]):
        total = _core.crc32c(piece, total)
    return total


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
