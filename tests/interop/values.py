# SPDX-License-Identifier: Apache-2.0
"""Tensor values as both sides of a differential test see them: a dtype code, a shape and raw bytes.

Nothing here imports ckptfmt or TensorFlow, so that neither's idea of a dtype colours the other's.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

STRING = 7


@dataclass(frozen=True)
class Kind:
    """One storable dtype: its code in the format and how its elements lie in memory."""

    code: int
    name: str
    size: int
    unit: int
    used_bits: int
    numpy_type: np.dtype
    stitchable: bool
    swappable: bool


def _quantised(name: str, base: str) -> np.dtype:
    return np.dtype([(name, base)])


def _kinds() -> dict[int, Kind]:
    rows = [
        # code, name, unit of byte order, used bits of an element (0: all), numpy type
        (1, "float", 4, 0, np.dtype("<f4")),
        (2, "double", 8, 0, np.dtype("<f8")),
        (3, "int32", 4, 0, np.dtype("<i4")),
        (4, "uint8", 1, 0, np.dtype("u1")),
        (5, "int16", 2, 0, np.dtype("<i2")),
        (6, "int8", 1, 0, np.dtype("i1")),
        (8, "complex64", 4, 0, np.dtype("<c8")),
        (9, "int64", 8, 0, np.dtype("<i8")),
        (10, "bool", 1, 1, np.dtype("?")),
        (11, "qint8", 1, 0, _quantised("qint8", "i1")),
        (12, "quint8", 1, 0, _quantised("quint8", "u1")),
        (13, "qint32", 4, 0, _quantised("qint32", "<i4")),
        (14, "bfloat16", 2, 0, np.dtype(ml_dtypes.bfloat16)),
        (15, "qint16", 2, 0, _quantised("qint16", "<i2")),
        (16, "quint16", 2, 0, _quantised("quint16", "<u2")),
        (17, "uint16", 2, 0, np.dtype("<u2")),
        (18, "complex128", 8, 0, np.dtype("<c16")),
        (19, "half", 2, 0, np.dtype("<f2")),
        (22, "uint32", 4, 0, np.dtype("<u4")),
        (23, "uint64", 8, 0, np.dtype("<u8")),
        (24, "float8_e5m2", 1, 0, np.dtype(ml_dtypes.float8_e5m2)),
        (25, "float8_e4m3fn", 1, 0, np.dtype(ml_dtypes.float8_e4m3fn)),
        (26, "float8_e4m3fnuz", 1, 0, np.dtype(ml_dtypes.float8_e4m3fnuz)),
        (27, "float8_e4m3b11fnuz", 1, 0, np.dtype(ml_dtypes.float8_e4m3b11fnuz)),
        (28, "float8_e5m2fnuz", 1, 0, np.dtype(ml_dtypes.float8_e5m2fnuz)),
        (29, "int4", 1, 4, np.dtype(ml_dtypes.int4)),
        (30, "uint4", 1, 4, np.dtype(ml_dtypes.uint4)),
        (31, "int2", 1, 2, np.dtype(ml_dtypes.int2)),
        (32, "uint2", 1, 2, np.dtype(ml_dtypes.uint2)),
        (33, "float4_e2m1fn", 1, 4, np.dtype(ml_dtypes.float4_e2m1fn)),
    ]
    # What TensorFlow 2.21 can copy between stored slices, and what it can swap.
    stitchable = {1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14, 18, 29, 30}
    swappable = set(range(1, 20)) | {22, 23}
    kinds = {
        code: Kind(
            code,
            name,
            numpy_type.itemsize,
            unit,
            used,
            numpy_type,
            code in stitchable,
            code in swappable,
        )
        for code, name, unit, used, numpy_type in rows
    }
    kinds[STRING] = Kind(STRING, "string", 0, 1, 0, np.dtype(object), False, True)
    return dict(sorted(kinds.items()))


KINDS = _kinds()
CODES = tuple(KINDS)
assert len(CODES) == 31


def element_count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


@dataclass(frozen=True)
class Value:
    """A tensor: `content` is its row-major little-endian bytes, or a bytes object an element."""

    code: int
    shape: tuple[int, ...]
    content: bytes | tuple[bytes, ...]

    def __post_init__(self) -> None:
        count = element_count(self.shape)
        if self.code == STRING:
            assert isinstance(self.content, tuple)
            assert len(self.content) == count
        else:
            assert isinstance(self.content, bytes)
            assert len(self.content) == count * KINDS[self.code].size

    @property
    def kind(self) -> Kind:
        return KINDS[self.code]

    def array(self) -> np.ndarray:
        """The value as callers of TensorFlow and ckptfmt hold it."""
        if self.code == STRING:
            array = np.empty(element_count(self.shape), dtype=object)
            array[:] = self.content
            return array.reshape(self.shape)
        return np.frombuffer(self.content, dtype=self.kind.numpy_type).reshape(self.shape)

    def bits(self) -> np.ndarray:
        """The value as an array that compares bit for bit: of bytes objects, or of plain bytes."""
        if self.code == STRING:
            return self.array()
        return np.frombuffer(self.content, dtype=f"V{self.kind.size}").reshape(self.shape)

    def box(self, key: Any) -> Value:
        """The part of the value that numpy's basic slicing selects."""
        picked = self.bits()[key]
        if isinstance(picked, bytes):
            return Value(self.code, (), (picked,))
        return from_array(self.code, picked)

    def digest(self) -> str:
        """sha256 in the form of the corpus' expected.json."""
        return hashlib.sha256(self.packed()).hexdigest()

    def packed(self) -> bytes:
        """The bytes that cross the pipe to the oracle and that the corpus digests."""
        if isinstance(self.content, bytes):
            return self.content
        return b"".join(struct.pack("<Q", len(item)) + item for item in self.content)

    def describe(self) -> dict:
        return {"dtype": self.code, "shape": list(self.shape), "size": len(self.packed())}


def digest_of(found: list[Value]) -> str:
    """One digest for several values, shapes and dtypes included."""
    parts = (f"{value.code} {value.shape} {value.digest()}" for value in found)
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:16]


def unpacked(description: dict, blob: bytes) -> Value:
    """The inverse of `Value.describe` and `Value.packed`."""
    code = description["dtype"]
    shape = tuple(description["shape"])
    if code != STRING:
        return Value(code, shape, bytes(blob))
    items = []
    position = 0
    while position < len(blob):
        (size,) = struct.unpack_from("<Q", blob, position)
        items.append(bytes(blob[position + 8 : position + 8 + size]))
        position += 8 + size
    return Value(code, shape, tuple(items))


def from_array(code: int, array: np.ndarray) -> Value:
    """A numpy array in whatever spelling of the dtype, taken by its bytes."""
    if code == STRING:
        items = tuple(
            item if isinstance(item, bytes) else bytes(item, "utf-8")
            for item in np.asarray(array, dtype=object).reshape(-1).tolist()
        )
        return Value(code, tuple(array.shape), items)
    size = KINDS[code].size
    if array.dtype.itemsize != size:
        raise AssertionError(f"dtype {code} in elements of {array.dtype.itemsize} bytes")
    contiguous = np.ascontiguousarray(array).reshape(array.shape)
    return Value(code, tuple(array.shape), contiguous.tobytes())
