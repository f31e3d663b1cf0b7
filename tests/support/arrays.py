# SPDX-License-Identifier: Apache-2.0
"""Arrays of every dtype, and comparing them bit by bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
from interop.expected import dtype_name
from interop.values import KINDS, STRING
from numpy.typing import NDArray

CODES = tuple(KINDS)
NUMERIC = tuple(code for code in CODES if code != STRING)
NAMES = {code: dtype_name(code) for code in KINDS}


def random_array(chance: random.Random, code: int, shape: tuple[int, ...]) -> NDArray[Any]:
    """Elements of random bits (narrow types: of the bits that count; bool: 0 and 1)."""
    count = int(np.prod(shape, dtype=np.int64))
    if code == STRING:
        elements = np.empty(count, object)
        elements[:] = [chance.randbytes(chance.choice((0, 1, 3, 40))) for _ in range(count)]
        return elements.reshape(shape)
    kind = KINDS[code]
    raw = np.frombuffer(chance.randbytes(count * kind.size), np.uint8).copy()
    if kind.used_bits:
        raw &= (1 << kind.used_bits) - 1
    array: NDArray[Any] = raw.view(kind.numpy_type).reshape(shape)
    return array


def random_shape(chance: random.Random, rank_max: int = 4, size_max: int = 6) -> tuple[int, ...]:
    return tuple(chance.randint(0, size_max) for _ in range(chance.randint(0, rank_max)))


def bits(array: Any) -> tuple[Any, ...]:
    """What two arrays have in common if they hold the same: shape, dtype and bytes."""
    array = np.asarray(array)
    if array.dtype == np.dtype(object):
        return array.shape, "object", tuple(array.reshape(-1).tolist())
    return array.shape, array.dtype, np.ascontiguousarray(array).tobytes()


def narrow_bits(array: Any) -> tuple[Any, ...]:
    """As `bits`, with only the bits that count of types below 8 bits."""
    array = np.asarray(array)
    used = next((k.used_bits for k in KINDS.values() if k.numpy_type == array.dtype), 0)
    if not used or array.dtype == np.dtype(bool):
        return bits(array)
    raw = np.ascontiguousarray(array).view(np.uint8) & ((1 << used) - 1)
    return array.shape, array.dtype, raw.tobytes()


def assert_same(found: Any, expected: Any) -> None:
    assert bits(found) == bits(expected)


def random_key(chance: random.Random, shape: tuple[int, ...]) -> Any:
    """A basic index that numpy takes for an array of this shape."""
    keys: list[Any] = []
    for size in shape:
        if chance.random() < 0.3 and size:
            keys.append(chance.randrange(-size, size))
            continue
        step = chance.choice((None, 1, 2, 3, -1, -2, size + 1))
        bounds = [
            None if chance.random() < 0.3 else chance.randint(-size - 2, size + 2) for _ in "ab"
        ]
        keys.append(slice(bounds[0], bounds[1], step))
    drop = chance.randint(0, len(keys)) if keys and chance.random() < 0.3 else 0
    keys = keys[: len(keys) - drop]
    if chance.random() < 0.3:
        # Indices behind an ellipsis count from the last axis.
        at = len(keys) if drop else chance.randint(0, len(keys))
        keys.insert(at, Ellipsis)
        if not drop and at < len(keys) - 1 and chance.random() < 0.5:
            del keys[at + 1]
    if len(keys) == 1 and chance.random() < 0.5:
        return keys[0]
    return tuple(keys)
