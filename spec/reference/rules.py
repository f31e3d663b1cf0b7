# SPDX-License-Identifier: Apache-2.0
"""How a rule fails, the limits (section 5), and section 1: varints and checksums."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from typing import TypeVar, cast

import crcmod.predefined

# Rules whose checks are skipped, for tests; what such a check guarded may then fail in any way.
DISABLED: set[str] = set()
LIMITS = {  # section 5, and OBJ-3
    "index": 4 << 30, "block": 64 << 20, "key": 16 << 20, "keys": 64 << 20, "entries": 1 << 24,
    "slices": 1 << 20, "value": 1 << 63, "expansion": 65536, "graph_bytes": 256 << 20,
    "nodes": 1 << 22, "node_fields": 1 << 23,
}  # fmt: skip

T = TypeVar("T")
Note = Callable[[str, int], None]  # takes a deviation and its offset


class Violation(Exception):  # noqa: N818
    """A rule that does not hold: its id, the failure class, and where."""

    def __init__(self, rule: str, failure: str, message: str = "") -> None:
        super().__init__(rule, failure, message)
        self.rule, self.failure, self.message, self.place = rule, failure, message, ""

    def __str__(self) -> str:
        return f"{self.rule} {self.failure}: {self.message} ({self.place})"


def need(condition: object, rule: str, failure: str, message: str = "") -> None:
    """The only way that a Violation comes about."""
    if not condition and rule not in DISABLED:
        raise Violation(rule, failure, message)


def found(value: T | None, rule: str, failure: str, message: str = "") -> T:
    """The value, which must not be None."""
    need(value is not None, rule, failure, message)
    return cast(T, value)


@contextlib.contextmanager
def at(place: str) -> Iterator[None]:
    """Names the file, and the offset or tensor, in a Violation from inside."""
    try:
        yield
    except Violation as violation:
        violation.place = ", ".join(filter(None, (place, violation.place)))
        raise


# --- Conventions ---
crc32c: Callable[..., int] = crcmod.predefined.mkCrcFun("crc-32c")  # crc32c(data, earlier)
u32 = struct.Struct("<I")
u64 = struct.Struct("<Q")


def mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def combine(first: int, second: int, size: int) -> int:
    """The checksum of bytes and of `size` bytes after them, from those of both."""
    shift, square = 1 << 31, 1 << 23  # 1, and x to the 8th
    for bit in range(size.bit_length()):
        if size >> bit & 1:
            shift = _times(shift, square)
        square = _times(square, square)
    return _times(shift, first) ^ second


def _times(one: int, other: int) -> int:
    """The product of two polynomials modulo that of CRC-32C; the highest bit is the power 0."""
    product = 0
    for bit in range(31, -1, -1):
        product ^= other if one >> bit & 1 else 0
        other = other >> 1 ^ (0x82F63B78 if other & 1 else 0)
    return product


def silent(_deviation: str, _offset: int) -> None:
    """Notes nothing."""


def varint(
    data: bytes,
    pos: int,
    end: int,
    bits: int,
    rule: str,
    failure: str,
    note: Note = silent,
    loose: bool = False,
) -> tuple[int, int]:
    """Returns the value and the position after it; loose is OBJ-2."""
    value, start = 0, pos
    for shift in range(0, 35 if bits == 32 else 70, 7):
        if pos >= end or pos >= len(data):
            break
        byte = data[pos]
        pos += 1
        value |= (byte & 127) << shift
        if byte < 128:
            value = value & (1 << 64) - 1 if loose else value
            need(value < 1 << bits, rule, failure, f"varint too large at {start}")
            if byte == 0 and shift:
                note("OVERLONG_VARINT", start)
            return value, pos
    need(False, rule, failure, f"unreadable varint at {start}")
    return value, pos


def put_varint(value: int) -> bytes:
    """A varint; negative numbers are of 64 bits."""
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
