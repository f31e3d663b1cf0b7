# SPDX-License-Identifier: Apache-2.0
"""Sections 16 and 17: slices and their keys; section 7 of lifecycle.md: their texts."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from .messages import decode, put_field, schema
from .rules import Note, found, need, put_varint, silent

# Start and length for each dimension; the length of a full extent is None.
Extents: TypeAlias = Sequence[tuple[int, int | None]]
Box: TypeAlias = Sequence[tuple[int, int]]
Shape: TypeAlias = Sequence[int]

# --- SLC: partitioned tensors ---
EXTENT = schema("1 start int64, 2 length int64")
SLICE = schema("1 extent EXTENT*", EXTENT=EXTENT)


def read_slice(data: bytes, pos: int, end: int, rank: int, note: Note) -> Extents:
    message = decode(data, pos, end, SLICE, silent)
    extents = [(one.get("start", 0), one.get("length")) for one in message.get("extent", [])]
    extents = [(start, None if length == -1 else length) for start, length in extents]
    if data[pos:end] != put_slice(extents):
        note("FIELD_ORDER", pos)  # MSG-15, SLC-3: the only deviation of a slice message
    need(len(extents) == rank, "SLC-2", "BAD_SLICE", f"{len(extents)} extents for rank {rank}")
    return extents


def put_slice(extents: Extents) -> bytes:
    out = b""
    for start, length in extents:
        message = b"\x08" + put_varint(start) if start else b""
        message += b"" if length is None else b"\x10" + put_varint(length)
        out += put_field(1, message)
    return out


def check_extents(extents: Extents, shape: Shape) -> None:
    for (start, length), size in zip(extents, shape, strict=True):
        if length is None:
            need(start == 0, "SLC-3", "BAD_SLICE", f"full extent from {start}")
        else:
            good = start >= 0 and length >= 1 and start + length <= size
            need(good, "SLC-4", "BAD_SLICE", f"extent {start},{length} of {size}")
    need(any(length is not None for _, length in extents), "SLC-5", "BAD_SLICE", "all extents full")


def check_overlaps(
    slices: Sequence[Extents], rule: str = "SLC-6", failure: str = "BAD_SLICE"
) -> None:
    """Sweeps along the dimension with the most starts; LIMIT where that would not be enough."""
    if len(slices) < 2:
        return
    boxes = [
        [(0, 1 << 63) if length is None else (s, s + length) for s, length in extents]
        for extents in slices
    ]
    axis = max(range(len(boxes[0])), key=lambda d: len({box[d][0] for box in boxes}))
    boxes.sort(key=lambda box: box[axis])
    active: list[list[tuple[int, int]]] = []
    work = 0
    for box in boxes:
        active = [other for other in active if other[axis][1] > box[axis][0]]
        work += len(active)
        need(work <= 1 << 22 or work <= 256 * len(boxes), rule, "LIMIT", "slices side by side")
        for other in active:
            apart = any(a1 <= b0 or b1 <= a0 for (a0, a1), (b0, b1) in zip(box, other, strict=True))
            need(apart, rule, failure, f"slices {box} and {other} overlap")
        active.append(box)


def slice_box(extents: Extents, shape: Shape) -> Box:
    """A slice as (start, length) of every dimension, none of them full."""
    return [
        (0, size) if length is None else (s, length)
        for (s, length), size in zip(extents, shape, strict=True)
    ]


def intersection(one: Box, other: Box) -> Box:
    starts = [max(a, b) for (a, _), (b, _) in zip(one, other, strict=True)]
    ends = [min(a + n, b + m) for (a, n), (b, m) in zip(one, other, strict=True)]
    return [(start, max(end - start, 0)) for start, end in zip(starts, ends, strict=True)]


def elements(box: Box) -> int:
    return math.prod(length for _, length in box)


def missing_box(box: Box, boxes: Sequence[Box]) -> Box:
    """A box of which no element is in the boxes (SLC-11); the request itself if they are many."""
    boxes = [part for part in (intersection(box, other) for other in boxes) if elements(part)]
    if not boxes or len(boxes) > 500:
        return box
    for d, ((start, length), (s, n)) in enumerate(zip(box, boxes[0], strict=True)):
        for low, high in ((start, s), (s + n, start + length)):
            piece = [*boxes[0][:d], (low, high - low), *box[d + 1 :]]
            inside = sum(elements(intersection(piece, other)) for other in boxes)
            if high > low and inside < elements(piece):
                return missing_box(piece, boxes)
    return box


def runs(shape: Shape, box: Box) -> Iterator[tuple[int, int]]:
    """The runs of consecutive elements of a box, ascending: first element and number."""
    if not shape:
        yield 0, 1
        return
    if not elements(box):
        return
    inner = len(shape) - 1
    while inner and box[inner] == (0, shape[inner]):
        inner -= 1
    strides = [math.prod(shape[d + 1 :]) for d in range(inner + 1)]
    for outer in itertools.product(*(range(start, start + n) for start, n in box[:inner])):
        first = sum(i * stride for i, stride in zip((*outer, box[inner][0]), strides, strict=True))
        yield first, box[inner][1] * strides[inner]


# --- KEY: slice keys ---
def put_number(value: int) -> bytes:  # KEY-2
    size = (value.bit_length() + 7) // 8
    return bytes([size]) + value.to_bytes(size, "big")


def put_signed(v: int) -> bytes:  # KEY-4
    n = 1 + (v if v >= 0 else -1 - v).bit_length() // 7
    leading = ((1 << n) - 1) << (8 * n - n)
    return ((v & (1 << 8 * n) - 1) ^ leading).to_bytes(n, "big")


def slice_key(name: bytes, extents: Extents) -> bytes:
    escape = {b"\0": b"\0\xff", b"\xff": b"\xff\0"}
    out = b"\0" + re.sub(rb"[\0\xff]", lambda m: escape[m[0]], name) + b"\0\1"  # KEY-3
    out += put_number(len(extents))
    for start, length in extents:  # KEY-5
        out += b"\x80\x7f" if length is None else put_signed(start) + put_signed(length)
    return out


def key_name(key: bytes) -> tuple[bytes, int] | None:
    """The tensor's name in what may be a slice key, and the position after it; else None."""
    pos, name = 1, bytearray()
    while key[:1] == b"\0" and pos < len(key):
        pair = key[pos : pos + 2]
        if pair == b"\0\1":
            return bytes(name), pos + 2
        if pair[0] in (0, 255) and pair not in (b"\0\xff", b"\xff\0"):
            return None
        name.append(pair[0])
        pos += 2 if pair[0] in (0, 255) else 1
    return None


def signed_size(first: int, second: int) -> int:
    """n of an encoded signed number from its first two bytes."""
    word = first << 8 | second
    word = word if word >> 15 else word ^ 0xFFFF
    return 16 - (word ^ 0xFFFF).bit_length()


def split_slice_key(key: bytes) -> tuple[bytes, Extents]:
    """Name and extents of a key in the one spelling, of slices too that cannot be (KEY-6)."""
    name, pos = found(key_name(key), "KEY-8", "BAD_SLICE", "no name")
    width = key[pos] if pos < len(key) else 9
    rank = int.from_bytes(key[pos + 1 : pos + 1 + width], "big")
    need(width <= 8 and rank <= 254, "KEY-8", "BAD_SLICE", f"rank {rank}")
    pos += 1 + width
    numbers: list[int] = []
    while pos < len(key) and len(numbers) < 2 * rank:
        n = signed_size(key[pos], key[pos + 1] if pos + 1 < len(key) else 0)
        raw = key[pos : pos + n]
        need(n <= 10 and len(raw) == n, "KEY-8", "BAD_SLICE", f"number at {pos}")
        value = int.from_bytes(raw, "big") ^ ((1 << n) - 1) << (8 * n - n)
        value -= 1 << 8 * n if value >> (8 * n - 1) else 0
        need(-(1 << 63) <= value < 1 << 63, "KEY-8", "BAD_SLICE", f"number at {pos}")
        numbers.append(value)
        pos += n
    pairs = zip(numbers[::2], numbers[1::2], strict=False)
    extents = [(start, None if (start, n) == (0, -1) else n) for start, n in pairs]
    need(slice_key(name, extents) == key, "KEY-8", "BAD_SLICE", "another spelling")
    return name, extents


def decode_slice_key(key: bytes) -> tuple[bytes, Extents]:
    """Name and extents of exactly the keys that the rules write (KEY-8)."""
    name, extents = split_slice_key(key)
    need(extents, "KEY-8", "BAD_SLICE", "rank 0")
    for start, n in extents:
        good = n is None or (start >= 0 and n >= 1 and start + n < 1 << 63)
        need(good, "KEY-8", "BAD_SLICE", f"extent {start},{n}")
    return name, extents


# --- TXT: slice text ---
NUMBER = re.compile(r"[\t\n\v\f\r]*[+-]?[0-9]+[\t\n\v\f\r]*")


def parse_slice_text(text: str) -> tuple[Shape, Extents] | None:
    """Dimensions and extents of a slice text; None of the empty one (TXT-1)."""
    if text == "":
        return None

    def number(part: str, rule: str) -> int:
        need(NUMBER.fullmatch(part), rule, "ARGUMENT", f"{part!r} is no number")
        value = int(part.strip("\t\n\v\f\r"))
        need(-(1 << 63) <= value < 1 << 63, rule, "ARGUMENT", f"{part!r} does not fit int64")
        return value

    *dims, last = text.split(" ")
    need(dims, "TXT-2", "ARGUMENT", f"{text!r} has no dimensions")
    shape = [number(part, "TXT-3") for part in dims]
    need(all(size >= 0 for size in shape), "TXT-3", "ARGUMENT", "negative dimension")
    pieces = [piece for piece in last.split(":") if piece]
    need(len(pieces) == len(shape), "TXT-4", "ARGUMENT", f"{len(pieces)} pieces")
    extents: list[tuple[int, int | None]] = []
    for piece, size in zip(pieces, shape, strict=True):
        if piece == "-":
            extents.append((0, None))
            continue
        numbers = [number(part, "TXT-5") for part in piece.split(",") if part]
        need(len(numbers) == 2, "TXT-5", "ARGUMENT", f"piece {piece!r}")
        start, length = numbers
        good = start >= 0 and length >= 1 and start + length <= size
        need(good, "TXT-6", "ARGUMENT", f"piece {piece!r} of {size}")
        extents.append((start, length))
    products = itertools.accumulate(shape, lambda a, b: a * b)
    need(len(shape) <= 254 and all(p < 1 << 63 for p in products), "TXT-7", "ARGUMENT", "size")
    return shape, extents


def print_slice_text(shape: Shape, extents: Extents) -> str:  # TXT-8
    pieces = ("-" if length is None else f"{start},{length}" for start, length in extents)
    return " ".join([*map(str, shape), ":".join(pieces)])
