# SPDX-License-Identifier: Apache-2.0
"""The pieces of a checkpoint as bytes, by spec/format.md, and every way to make them wrong.

Nothing here checks anything: what is handed in stands in the file, with checksums that fit unless
they are given.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import crcmod.predefined

Row = tuple[bytes, bytes]
Extent = tuple[int, int]  # start and length; a length of -1 is the full dimension

MAGIC = bytes.fromhex("57fb808b247547db")

# ---- checksums and numbers


_crc = cast(Callable[[bytes, int], int], crcmod.predefined.mkCrcFun("crc-32c"))


def crc32c(data: bytes, crc: int = 0) -> int:
    """CRC-32C of the bytes, continuing `crc`."""
    return _crc(data, crc)


def mask(crc: int) -> int:
    """The stored form of a checksum."""
    return ((crc >> 15 | crc << 17 & 0xFFFFFFFF) + 0xA282EAD8) & 0xFFFFFFFF


def unmask(stored: int) -> int:
    """The checksum of a stored form."""
    rotated = (stored - 0xA282EAD8) & 0xFFFFFFFF
    return rotated >> 17 | rotated << 15 & 0xFFFFFFFF


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def varint(value: int, size: int = 0) -> bytes:
    """A varint of at least `size` bytes: overlong where `size` says so."""
    value &= 2**64 - 1
    out = bytearray()
    while value >= 0x80 or len(out) + 1 < size:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


# ---- messages


def num(field_number: int, value: int, size: int = 0) -> bytes:
    """A field of wire type 0."""
    return varint(field_number << 3) + varint(value, size)


def fixed(field_number: int, value: int) -> bytes:
    """A field of wire type 5."""
    return varint(field_number << 3 | 5) + u32(value)


def msg(field_number: int, content: bytes) -> bytes:
    """A field of wire type 2."""
    return varint(field_number << 3 | 2) + varint(len(content)) + content


def some(field_number: int, value: int) -> bytes:
    """A field of wire type 0, left out if it is 0."""
    return num(field_number, value) if value else b""


def header(
    num_shards: int = 1,
    endianness: int = 0,
    producer: int = 1,
    min_consumer: int = 0,
    *,
    version: bytes | None = None,
    tail: bytes = b"",
) -> bytes:
    """The value of key "". `version` replaces the content of that message."""
    if version is None:
        version = some(1, producer) + some(2, min_consumer)
    return some(1, num_shards) + some(2, endianness) + msg(3, version) + tail


COMPRESSED_HEADER = header(producer=2, min_consumer=2)


def shape(dims: Sequence[int]) -> bytes:
    """The content of a shape message."""
    return b"".join(msg(2, some(1, dim)) for dim in dims)


def entry(
    code: int,
    dims: Sequence[int] | bytes | None = (),
    size: int = 0,
    crc: int = 0,
    *,
    shard: int = 0,
    offset: int = 0,
    slices: Iterable[bytes] = (),
    tail: bytes = b"",
) -> bytes:
    """The message of an entry; `crc` not masked. Bytes for `dims` are the shape's content, None is
    no shape field."""
    content = dims if isinstance(dims, bytes) else shape(dims or ())
    return (
        some(1, code)
        + (b"" if dims is None else msg(2, content))
        + some(3, shard)
        + some(4, offset)
        + some(5, size)
        + fixed(6, mask(crc))
        + b"".join(msg(7, one) for one in slices)
        + tail
    )


def partitioned(code: int, dims: Sequence[int], *slices: bytes, tail: bytes = b"") -> bytes:
    """The entry of a partitioned tensor."""
    return some(1, code) + msg(2, shape(dims)) + b"".join(msg(7, one) for one in slices) + tail


def extent(start: int, length: int) -> bytes:
    return msg(1, some(1, start) + (b"" if length == -1 else num(2, length)))


def slice_(*extents: Extent) -> bytes:
    """The content of a slice message."""
    return b"".join(extent(*one) for one in extents)


def packed(numbers: Iterable[int]) -> bytes:
    return b"".join(map(varint, numbers))


def extension(content: bytes) -> bytes:
    """Field 100 of an entry."""
    return msg(100, content)


def chunked(data: bytes, size: int) -> bytes:
    """The extension of level v2+ for a stored value."""
    crcs = b"".join(u32(crc32c(data[at : at + size])) for at in range(0, len(data), size))
    return extension(num(2, size) + msg(3, crcs))


# ---- slice keys


def key_signed(value: int) -> bytes:
    """KEY-4."""
    bits = (value if value >= 0 else -1 - value).bit_length()
    size = 1 + bits // 7
    heads = ["80", "c0", "e0", "f0", "f8", "fc", "fe", "ff", "ff80", "ffc0"]
    raw = bytearray((value & (1 << 8 * size) - 1).to_bytes(size, "big"))
    for place, one in enumerate(bytes.fromhex(heads[size - 1])):
        raw[place] ^= one
    return bytes(raw)


def key_number(value: int) -> bytes:
    """KEY-2."""
    raw = value.to_bytes((value.bit_length() + 7) // 8, "big")
    return bytes([len(raw)]) + raw


def slice_key(name: bytes, *extents: Extent) -> bytes:
    """KEY-1."""
    escapes = {0: b"\0\xff", 255: b"\xff\0"}
    text = b"".join(escapes.get(one, bytes([one])) for one in name) + b"\0\1"
    numbers = b"".join(key_signed(start) + key_signed(length) for start, length in extents)
    return b"\0" + text + key_number(len(extents)) + numbers


# ---- string and variant values


def string_sizes(sizes: Sequence[int]) -> bytes:
    """The sizes of a string value and their checksum (STR-5)."""
    numbers = (struct.pack("<I" if one < 1 << 32 else "<Q", one) for one in sizes)
    return packed(sizes) + u32(mask(crc32c(b"".join(numbers))))


def string_value(
    elements: Sequence[bytes], *, big: bool = False, sizes: bytes | None = None
) -> tuple[bytes, int]:
    """The bytes of a string value and its checksum, not masked. `sizes` replaces the varints."""
    order = ">I" if big else "<I"
    crc = crc32c(b"".join(struct.pack(order, len(one)) for one in elements))
    stored = struct.pack(order, mask(crc))
    body = b"".join(elements)
    varints = packed(map(len, elements)) if sizes is None else sizes
    return varints + stored + body, crc32c(body, crc32c(stored, crc))


def variant_value(payloads: Sequence[bytes]) -> tuple[bytes, int]:
    """The bytes of a variant value and its checksum, not masked."""
    out, crc = b"", 0
    for payload in payloads:
        crc = crc32c(payload, crc32c(struct.pack("<Q", len(payload)), crc))
        stored = u32(mask(crc))
        out += varint(len(payload)) + payload + stored
        crc = crc32c(stored, crc)
    return out, crc


# ---- blocks


def common(a: bytes, b: bytes) -> int:
    """How many bytes two keys share at their beginning."""
    count = 0
    while count < min(len(a), len(b)) and a[count] == b[count]:
        count += 1
    return count


def one_entry(shared: int, rest: bytes, value: bytes) -> bytes:
    return varint(shared) + varint(len(rest)) + varint(len(value)) + rest + value


def block(
    rows: Sequence[Row],
    interval: int = 16,
    *,
    share: bool = True,
    restarts: Sequence[int] | None = None,
    count: int | None = None,
    tail: bytes = b"",
) -> bytes:
    """The contents of a block. `restarts` and `count` replace what they ought to be; `tail` stands
    between the last entry and the restarts."""
    out, starts, last = bytearray(), [0], b""
    for position, (key, value) in enumerate(rows):
        shared = 0
        if position and position % interval == 0:
            starts.append(len(out))
        elif position and share:
            shared = common(last, key)
        out += one_entry(shared, key[shared:], value)
        last = key
    given = starts if restarts is None else restarts
    ends = b"".join(map(u32, given)) + u32(len(given) if count is None else count)
    return bytes(out) + tail + ends


def trailed(stored: bytes, kind: int = 0, crc: int | None = None) -> bytes:
    """A block as it stands in the file."""
    body = stored + bytes([kind])
    return body + u32(mask(crc32c(body)) if crc is None else crc)


def separator(last: bytes, first: bytes | None) -> bytes:
    """TAB-7, and TAB-8 where no block follows."""
    if first is None:
        for at, one in enumerate(last):
            if one < 255:
                return last[:at] + bytes([one + 1])
        return last
    at = common(last, first)
    if at < min(len(last), len(first)) and last[at] < 255 and last[at] + 1 < first[at]:
        return last[:at] + bytes([last[at] + 1])
    return last


def handle(offset: int, size: int) -> bytes:
    return varint(offset) + varint(size)


EMPTY_BLOCK = block([])


@dataclass
class Table:
    """An index file, piece by piece; what is None is as it ought to be.

    Attributes:
        groups: the rows of each data block, or its contents.
        keys, handles: of the index block, by data block.
        kinds: the type of each data block, if it is not 0.
        order: the data blocks in the order in which they stand in the file.
    """

    groups: Sequence[Sequence[Row] | bytes]
    keys: Sequence[bytes] | None = None
    handles: dict[int, bytes] = field(default_factory=dict)
    handle_tail: bytes = b""
    kinds: dict[int, int] = field(default_factory=dict)
    crcs: dict[int, int] = field(default_factory=dict)
    order: Sequence[int] | None = None
    interval: int = 16
    share: bool = True
    gap: bytes = b""
    metaindex: bytes = EMPTY_BLOCK
    metaindex_handle: bytes | None = None
    index: bytes | None = None
    index_interval: int = 1
    index_share: bool = True
    index_first: bool = False
    index_kind: int = 0
    index_crc: int | None = None
    index_handle: bytes | None = None
    handles_in_footer: bytes | None = None
    padding: bytes | None = None
    magic: bytes = MAGIC

    def contents(self, number: int) -> bytes:
        group = self.groups[number]
        if isinstance(group, bytes):
            return group
        return block(group, self.interval, share=self.share)

    def key(self, number: int) -> bytes:
        if self.keys is not None:
            return self.keys[number]
        group = cast(Sequence[Row], self.groups[number])
        after = self.groups[number + 1] if number + 1 < len(self.groups) else None
        following = cast(Sequence[Row], after)[0][0] if after else None
        return separator(group[-1][0], following)

    def build(self) -> bytes:
        out = bytearray()
        offsets: dict[int, int] = {}
        for number in self.order or range(len(self.groups)):
            offsets[number] = len(out)
            out += trailed(self.contents(number), self.kinds.get(number, 0), self.crcs.get(number))
            out += self.gap
        rows = []
        for number in range(len(self.groups)):
            place = handle(offsets[number], len(self.contents(number)))
            rows.append((self.key(number), self.handles.get(number, place) + self.handle_tail))
        index = self.index
        if index is None:
            index = block(rows, self.index_interval, share=self.index_share)
        metaindex_at = len(out)
        out += trailed(self.metaindex)
        index_at = len(out)
        out += trailed(index, self.index_kind, self.index_crc)
        footer = self.metaindex_handle or handle(metaindex_at, len(self.metaindex))
        footer += self.index_handle or handle(index_at, len(index))
        if self.handles_in_footer is not None:
            footer = self.handles_in_footer
        padding = bytes(40 - len(footer)) if self.padding is None else self.padding
        return bytes(out) + (footer + padding)[:40].ljust(40, b"\0") + self.magic


def table(*rows: Row, head: bytes | None = None, **knobs: Any) -> bytes:
    """An index file of one data block: the header and these rows, in key order."""
    first: Row = (b"", header() if head is None else head)
    return Table([[first, *rows]], **knobs).build()


# ---- Snappy


def literal(data: bytes) -> bytes:
    size = len(data) - 1
    if size < 60:
        return bytes([size << 2]) + data
    extra = (size.bit_length() + 7) // 8
    return bytes([59 + extra << 2]) + size.to_bytes(extra, "little") + data


def snappy(data: bytes) -> bytes:
    """A stream of literals."""
    return varint(len(data)) + literal(data)


# ---- zstd frames and chunks


def zstd_block(kind: int, size: int, content: bytes, *, last: bool = True) -> bytes:
    """Kind 0: raw; 1: one byte `size` times; 2: compressed."""
    return (int(last) | kind << 1 | size << 3).to_bytes(3, "little") + content


def frame(
    blocks: bytes,
    content_size: int | None,
    *,
    window: int | None = None,
    dictionary: int = 0,
    checksum: bytes = b"",
) -> bytes:
    """A zstd frame by RFC 8878. Without `window` (the descriptor's byte) it is a single segment,
    which has a content size."""
    flags = (window is None) << 5 | bool(checksum) << 2 | bool(dictionary)
    sizes = b""
    if content_size is not None:
        if content_size < 256 and window is None:
            sizes = bytes([content_size])
        else:
            flags |= 0x80
            sizes = u32(content_size)
    head = bytes([flags]) + (b"" if window is None else bytes([window]))
    head += bytes([dictionary]) if dictionary else b""
    return bytes.fromhex("28b52ffd") + head + sizes + blocks + checksum


def run_frame(value: int, count: int) -> bytes:
    """A frame of one byte many times."""
    return frame(zstd_block(1, count, bytes([value])), count)


def runs_frame(data: bytes) -> bytes:
    """A frame of raw blocks and, for runs of 8 and more of one byte, runs."""
    pieces: list[tuple[int, bytes]] = []
    for one, run in itertools.groupby(data):
        same = bytes(list(run))
        if len(same) >= 8:
            pieces.append((len(same), bytes([one])))
        elif pieces and not pieces[-1][0]:
            pieces[-1] = (0, pieces[-1][1] + same)
        else:
            pieces.append((0, same))
    blocks = b"".join(
        zstd_block(int(count > 0), count or len(one), one, last=number == len(pieces))
        for number, (count, one) in enumerate(pieces, 1)
    )
    return frame(blocks, len(data))


def planes_of(data: bytes, unit: int, *, rotate: bool = False) -> list[bytes]:
    """CMP-15, CMP-17."""
    bits = 8 * unit
    units = [int.from_bytes(data[at : at + unit], "little") for at in range(0, len(data), unit)]
    if rotate:
        units = [(one << 1 | one >> (bits - 1)) & ((1 << bits) - 1) for one in units]
    rotated = [one.to_bytes(unit, "little") for one in units]
    return [bytes(one[plane] for one in rotated) for plane in range(unit)]


def planes_chunk(data: bytes, unit: int, frames: Sequence[bool], *, rotate: bool = False) -> bytes:
    """A chunk of method PLANES or ROTATED; the planes for which `frames` is true as frames."""
    stored = [
        runs_frame(plane) if framed else plane
        for plane, framed in zip(planes_of(data, unit, rotate=rotate), frames, strict=True)
    ]
    sizes = packed(2 * len(one) + framed for one, framed in zip(stored, frames, strict=True))
    return bytes([3 if rotate else 2]) + sizes + b"".join(stored)
