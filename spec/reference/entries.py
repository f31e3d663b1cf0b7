# SPDX-License-Identifier: Apache-2.0
"""Sections 12 to 15: the header, entries, shapes and data types."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes as ml
import numpy as np

from .index import Place
from .messages import Message, decode, schema
from .rules import need
from .slices import Extents, read_slice

# --- HDR: the header ---
VERSION = schema("1 producer int32, 2 min_consumer int32, 3 bad_consumers int32*")
HEADER = schema("1 num_shards int32, 2 endianness int32, 3 version VERSION", VERSION=VERSION)


def read_header(place: Place, consumer: int) -> Message:
    data, pos, end, note = place
    header: Message = {"num_shards": 0, "endianness": 0} | decode(data, pos, end, HEADER, note)
    version: Message = {"producer": 0, "min_consumer": 0, "bad_consumers": []}  # HDR-6
    version |= header.get("version", {})
    need(version["producer"] >= 0, "HDR-7", "UNSUPPORTED", f"producer {version['producer']}")
    least = version["min_consumer"]
    need(least <= consumer, "HDR-8", "UNSUPPORTED", f"min_consumer {least}, here {consumer}")
    need(consumer not in version["bad_consumers"], "HDR-9", "UNSUPPORTED", "bad consumer")
    need(header["num_shards"] >= 1, "HDR-3", "BAD_HEADER", f"{header['num_shards']} shards")
    need(header["endianness"] in (0, 1), "HDR-4", "BAD_HEADER", "endianness")
    if header["endianness"] == 1:
        note("BIG_ENDIAN", pos)  # HDR-5
    return header | {"version": version}


# --- ENT and SHP: entries and shapes ---
DIM = schema("1 size int64, 2 name string")
SHAPE = schema("2 dim DIM*, 3 unknown_rank bool", DIM=DIM)
EXTENSION = schema(
    "1 feature_flags uint64, 2 chunk_size uint64, 3 chunk_crcs range, 4 chunk_sizes range,"
    "5 raw_size uint64, 6 raw_crc32c fixed32"
)
ENTRY = schema(
    "1 dtype int32, 2 shape SHAPE, 3 shard_id int32, 4 offset int64, 5 size int64,"
    "6 crc32c fixed32, 7 slices range*, 100 extension EXTENSION",
    SHAPE=SHAPE,
    EXTENSION=EXTENSION,
)


@dataclass
class Entry:
    """A decoded entry; slices hold (start, length) for each dimension, length None if full."""

    at: Place  # of its message
    dtype: int = 0
    shape: list[int] = field(default_factory=list)
    shard_id: int = 0
    offset: int = 0
    size: int = 0
    crc32c: int = 0
    slices: list[Extents] = field(default_factory=list)
    ext: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def compressed(self) -> bool:
        return bool(self.ext.get("feature_flags", 0) & 1)

    @property
    def raw_size(self) -> int:
        return self.ext.get("raw_size", 0) if self.compressed else self.size

    @property
    def type(self) -> Type:
        return Type(*TYPES.get(self.dtype, UNKNOWN))


def read_entry(place: Place, own: bool = False) -> Entry:
    """Decode an entry: steps 1 to 3 of *entry* in section 4; own: it is that of a slice."""
    data, pos, end, note = place
    message = decode(data, pos, end, ENTRY, note)
    extension = message.get("extension", {})
    for name in ("chunk_crcs", "chunk_sizes"):
        if name in extension:
            extension[name] = data[slice(*extension[name])]
    known = ("dtype", "shard_id", "offset", "size", "crc32c")
    plain = {name: message[name] for name in known if name in message}
    entry = Entry(place, **plain, ext=extension)
    if "shape" not in message:
        note("NO_SHAPE", pos)  # ENT-2
    shape = message.get("shape", {})
    if shape.get("unknown_rank"):
        note("UNKNOWN_RANK", pos)  # SHP-5
    if any("name" in dim for dim in shape.get("dim", [])):
        note("DIM_NAME", pos)  # SHP-6
    entry.shape = [dim.get("size", 0) for dim in shape.get("dim", [])]
    product = 1
    for size in entry.shape:
        need(size >= 0, "SHP-2", "BAD_SHAPE", f"dimension of {size}")
        product *= size
        need(product < 1 << 63, "SHP-4", "BAD_SHAPE", f"{entry.shape} has too many elements")
    if entry.dtype not in TYPES and not no_value(entry.dtype):
        note("UNKNOWN_DTYPE", pos)  # DTY-6
    slices = message.get("slices", [])
    if own and slices:
        note("NESTED_SLICES", pos)  # SLC-10
    elif slices:
        entry.slices = [
            read_slice(data, start, stop, len(entry.shape), note) for start, stop in slices
        ]
    return entry


# --- DTY: data types ---
class Type(NamedTuple):
    """A row of the table; the size is 0 if not FIXED, the swap size is that of a unit."""

    name: str
    size: int
    unit: int
    kind: Any  # numpy's


STRING, VARIANT = 7, 21
UNKNOWN = ("", 0, 1, np.uint8)  # the stored bytes (DTY-6)
TYPES: dict[int, tuple[str, int, int, Any]] = {
    1: ("float", 4, 4, np.float32), 2: ("double", 8, 8, np.float64), 3: ("int32", 4, 4, np.int32),
    4: ("uint8", 1, 1, np.uint8), 5: ("int16", 2, 2, np.int16), 6: ("int8", 1, 1, np.int8),
    7: ("string", 0, 1, object), 8: ("complex64", 8, 4, np.complex64), 9: ("int64", 8, 8, np.int64),
    10: ("bool", 1, 1, np.bool_), 11: ("qint8", 1, 1, np.int8), 12: ("quint8", 1, 1, np.uint8),
    13: ("qint32", 4, 4, np.int32), 14: ("bfloat16", 2, 2, ml.bfloat16),
    15: ("qint16", 2, 2, np.int16), 16: ("quint16", 2, 2, np.uint16),
    17: ("uint16", 2, 2, np.uint16), 18: ("complex128", 16, 8, np.complex128),
    19: ("half", 2, 2, np.float16), 21: ("variant", 0, 1, object), 22: ("uint32", 4, 4, np.uint32),
    23: ("uint64", 8, 8, np.uint64), 24: ("float8_e5m2", 1, 1, ml.float8_e5m2),
    25: ("float8_e4m3fn", 1, 1, ml.float8_e4m3fn),
    26: ("float8_e4m3fnuz", 1, 1, ml.float8_e4m3fnuz),
    27: ("float8_e4m3b11fnuz", 1, 1, ml.float8_e4m3b11fnuz),
    28: ("float8_e5m2fnuz", 1, 1, ml.float8_e5m2fnuz), 29: ("int4", 1, 1, ml.int4),
    30: ("uint4", 1, 1, ml.uint4), 31: ("int2", 1, 1, ml.int2), 32: ("uint2", 1, 1, ml.uint2),
    33: ("float4_e2m1fn", 1, 1, ml.float4_e2m1fn),
}  # fmt: skip


def no_value(code: int) -> bool:  # DTY-5
    return code < 1 or code == 20 or 101 <= code <= 133
