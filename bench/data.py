# SPDX-License-Identifier: Apache-2.0
"""What is saved and loaded: named float32 arrays, the same in every process that asks for them.

A kind of data is a number of tensors, a shape and a style of names. Values come from one seed, so
that a process can return a digest of what it loaded, and arrays need not be passed around.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

SEED = 20

# Arrays up to this many bytes are hashed as they are, larger ones by sums over both axes.
HASHED_WHOLE = 1 << 16
COLUMNS = 1024


def names(count: int) -> list[str]:
    """Names in key order, a hundred to a layer."""
    return [f"layer_{i // 100:05d}.variable_{i % 100:02d}" for i in range(count)]


def one(shape: list[int], number: int) -> np.ndarray[Any, Any]:
    """The array of that number: random bits, none of them a NaN or an infinity."""
    random = np.random.Generator(np.random.SFC64([SEED, number]))
    bits = random.integers(0, 1 << 32, size=int(np.prod(shape, dtype=np.int64)), dtype=np.uint32)
    bits &= np.uint32(0xBFFFFFFF)
    return bits.view(np.float32).reshape(shape)


def some(count: int, shape: list[int], wanted: list[str]) -> dict[str, np.ndarray[Any, Any]]:
    """Those of that many arrays. Small ones are cut from one stream, but each has memory of its
    own."""
    size = int(np.prod(shape, dtype=np.int64))
    number = {name: i for i, name in enumerate(names(count))}
    if 4 * size > HASHED_WHOLE:
        return {name: one(shape, number[name]) for name in wanted}
    block = one([count, size], count)
    return {name: block[number[name]].reshape(shape).copy() for name in wanted}


def arrays(count: int, shape: list[int]) -> dict[str, np.ndarray[Any, Any]]:
    """All of them."""
    return some(count, shape, names(count))


def _large(array: np.ndarray[Any, Any]) -> bytes:
    flat = np.ascontiguousarray(array).reshape(-1).view(np.uint32)
    body = flat[: flat.size // COLUMNS * COLUMNS].reshape(-1, COLUMNS)
    columns, rows = np.zeros(COLUMNS, np.uint64), []
    for first in range(0, len(body), 4096):  # in pieces that stay in the cache
        piece = body[first : first + 4096]
        columns += piece.sum(axis=0, dtype=np.uint64)
        rows.append(zlib.crc32(piece.sum(axis=1, dtype=np.uint64)))
    return b"".join([columns.tobytes(), repr(rows).encode(), flat[body.size :].tobytes()])


def _pieces(value: Any) -> Iterator[bytes]:
    if isinstance(value, dict):
        for name in sorted(value):
            yield f"{name}\n".encode()
            yield from _pieces(value[name])
    elif isinstance(value, list) and value and isinstance(value[0], str):
        yield "\n".join(sorted(value)).encode()
    elif isinstance(value, list):
        for part in value:
            yield from _pieces(part)
    else:
        array = np.asarray(value)
        yield f"{array.dtype.name}{array.shape}".encode()
        yield array.tobytes() if array.nbytes <= HASHED_WHOLE else _large(array)


def digest(value: Any) -> str:
    """Of names, of an array, or of arrays by name or in a row: the same for the same values."""
    found = hashlib.blake2b(digest_size=8)
    for piece in _pieces(value):
        found.update(piece)
    return found.hexdigest()
