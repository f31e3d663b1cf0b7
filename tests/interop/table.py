# SPDX-License-Identifier: Apache-2.0
"""A second, small implementation of the index file, to make odd bundles and to name regions.

It trusts its input, which these tests made themselves, and shares nothing with what is under test.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import crcmod.predefined

from .values import KINDS, STRING, element_count

MAGIC = 0xDB4775248B80FB57
FOOTER_SIZE = 48
TRAILER_SIZE = 5
RAW, SNAPPY = 0, 1

crc32c = crcmod.predefined.mkPredefinedCrcFun("crc-32c")


def mask(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def put_varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def take_varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


# ---- messages ----------------------------------------------------------------------------------


def parse_message(data: bytes) -> list[tuple[int, int, int | bytes]]:
    """(field, wire type, value) in order; a nested message is its bytes."""
    fields: list[tuple[int, int, int | bytes]] = []
    position = 0
    while position < len(data):
        tag, position = take_varint(data, position)
        number, wire = tag >> 3, tag & 7
        value: int | bytes
        if wire == 0:
            value, position = take_varint(data, position)
        elif wire == 2:
            size, position = take_varint(data, position)
            value, position = data[position : position + size], position + size
        else:
            size = {1: 8, 5: 4}[wire]
            value = int.from_bytes(data[position : position + size], "little")
            position += size
        fields.append((number, wire, value))
    return fields


def build_message(fields: list[tuple[int, int, int | bytes]]) -> bytes:
    out = bytearray()
    for number, wire, value in fields:
        out += put_varint(number << 3 | wire)
        if isinstance(value, bytes):
            out += put_varint(len(value)) + value
        elif wire == 0:
            out += put_varint(value)
        else:
            out += value.to_bytes({1: 8, 5: 4}[wire], "little")
    return bytes(out)


@dataclass
class Entry:
    """The scalar fields of a BundleEntryProto; `fields` keeps the message whole."""

    fields: list[tuple[int, int, int | bytes]] = field(default_factory=list)

    @classmethod
    def parse(cls, data: bytes) -> Entry:
        return cls(parse_message(data))

    def build(self) -> bytes:
        return build_message(self.fields)

    def _scalar(self, number: int) -> int:
        found = 0
        for candidate, _, value in self.fields:
            if candidate == number and isinstance(value, int):
                found = value
        return found

    dtype = property(lambda self: self._scalar(1))
    shard = property(lambda self: self._scalar(3))
    offset = property(lambda self: self._scalar(4))
    size = property(lambda self: self._scalar(5))
    crc = property(lambda self: self._scalar(6))

    @property
    def partitioned(self) -> bool:
        return any(number == 7 for number, _, _ in self.fields)

    @property
    def shape(self) -> tuple[int, ...]:
        dims = []
        for number, _, value in self.fields:
            if number == 2 and isinstance(value, bytes):
                for inner, _, dim in parse_message(value):
                    if inner == 2 and isinstance(dim, bytes):
                        sizes = [size for which, _, size in parse_message(dim) if which == 1]
                        dims.append(int(sizes[-1]) if sizes else 0)
        return tuple(dims)

    def set_crc(self, masked: int) -> None:
        self.fields = [item for item in self.fields if item[0] != 6]
        at = sum(1 for number, _, _ in self.fields if number < 6)
        self.fields.insert(at, (6, 5, masked))


# ---- reading -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Region:
    name: str
    offset: int
    size: int

    def __contains__(self, position: int) -> bool:
        return self.offset <= position < self.offset + self.size


def _handles(index: bytes) -> tuple[tuple[int, int], tuple[int, int]]:
    footer = index[-FOOTER_SIZE:]
    assert int.from_bytes(footer[40:], "little") == MAGIC
    numbers = []
    position = 0
    for _ in range(4):
        value, position = take_varint(footer, position)
        numbers.append(value)
    return (numbers[0], numbers[1]), (numbers[2], numbers[3])


def snappy_decode(data: bytes) -> bytes:
    size, position = take_varint(data, 0)
    out = bytearray()
    while position < len(data):
        tag = data[position]
        position += 1
        if tag & 3 == 0:
            count = (tag >> 2) + 1
            if count > 60:
                extra = count - 60
                count = int.from_bytes(data[position : position + extra], "little") + 1
                position += extra
            out += data[position : position + count]
            position += count
            continue
        if tag & 3 == 1:
            count, offset = (tag >> 2 & 7) + 4, (tag >> 5) << 8 | data[position]
            position += 1
        else:
            width = 2 if tag & 3 == 2 else 4
            count = (tag >> 2) + 1
            offset = int.from_bytes(data[position : position + width], "little")
            position += width
        for _ in range(count):
            out.append(out[-offset])
    assert len(out) == size
    return bytes(out)


def _block(index: bytes, handle: tuple[int, int]) -> list[tuple[bytes, bytes]]:
    offset, size = handle
    content = index[offset : offset + size]
    kind = index[offset + size]
    stored = int.from_bytes(index[offset + size + 1 : offset + size + 5], "little")
    assert stored == mask(crc32c(content + bytes([kind])))
    if kind == SNAPPY:
        content = snappy_decode(content)
    restarts = int.from_bytes(content[-4:], "little")
    end = len(content) - 4 - 4 * restarts
    entries = []
    position = 0
    key = b""
    while position < end:
        shared, position = take_varint(content, position)
        fresh, position = take_varint(content, position)
        value_size, position = take_varint(content, position)
        key = key[:shared] + content[position : position + fresh]
        position += fresh
        entries.append((key, content[position : position + value_size]))
        position += value_size
    return entries


def _block_handles(index: bytes) -> list[tuple[int, int]]:
    handles = []
    for _, value in _block(index, _handles(index)[1]):
        offset, position = take_varint(value, 0)
        handles.append((offset, take_varint(value, position)[0]))
    return handles


def read_index(path: Path) -> list[tuple[bytes, bytes]]:
    """Every key and value of an index file, the header's first."""
    index = path.read_bytes()
    return [entry for handle in _block_handles(index) for entry in _block(index, handle)]


def block_count(path: Path) -> int:
    return len(_block_handles(path.read_bytes()))


def index_regions(path: Path) -> list[Region]:
    """The parts of an index file in file order, without a gap between them."""
    index = path.read_bytes()
    metaindex, top = _handles(index)
    regions = []
    for name, (offset, size) in (
        *(("data block", handle) for handle in _block_handles(index)),
        ("metaindex", metaindex),
        ("index block", top),
    ):
        regions.append(Region(name, offset, size))
        regions.append(Region(f"{name} trailer", offset + size, TRAILER_SIZE))
    footer = len(index) - FOOTER_SIZE
    used = footer
    for _ in range(4):
        _, used = take_varint(index, used)
    regions.append(Region("footer handles", footer, used - footer))
    regions.append(Region("footer padding", used, footer + 40 - used))
    regions.append(Region("footer magic", footer + 40, 8))
    return regions


# ---- writing -----------------------------------------------------------------------------------


def snappy_literal(data: bytes) -> bytes:
    """A Snappy stream that copies nothing."""
    out = bytearray(put_varint(len(data)))
    for start in range(0, len(data), 60):
        piece = data[start : start + 60]
        out += bytes([len(piece) - 1 << 2]) + piece
    return bytes(out)


def snappy_copies(data: bytes) -> bytes:
    """A Snappy stream with copies where the last 2 KiB hold the next four bytes or more."""
    out = bytearray(put_varint(len(data)))
    literal = bytearray()

    def flush() -> None:
        for start in range(0, len(literal), 60):
            piece = literal[start : start + 60]
            out.extend(bytes([len(piece) - 1 << 2]) + piece)
        literal.clear()

    position = 0
    while position < len(data):
        best = start = 0
        for size in range(4, 12):
            found = data.rfind(
                data[position : position + size],
                max(0, position - 2047),
                position + size - 1,
            )
            if found < 0 or found >= position or position + size > len(data):
                break
            best, start = size, found
        if best:
            flush()
            offset = position - start
            out += bytes([1 | best - 4 << 2 | offset >> 8 << 5, offset & 0xFF])
            position += best
        else:
            literal.append(data[position])
            position += 1
    flush()
    return bytes(out)


def _build_block(entries: list[tuple[bytes, bytes]], interval: int) -> bytes:
    out = bytearray()
    restarts = [0]
    previous = b""
    for row, (key, value) in enumerate(entries):
        shared = 0
        if row % interval:
            while shared < min(len(key), len(previous)) and key[shared] == previous[shared]:
                shared += 1
        elif row:
            restarts.append(len(out))
        out += put_varint(shared) + put_varint(len(key) - shared) + put_varint(len(value))
        out += key[shared:] + value
        previous = key
    for restart in (*restarts, len(restarts)):
        out += struct.pack("<I", restart)
    return bytes(out)


def _append_block(out: bytearray, content: bytes, kind: int) -> bytes:
    """Appends a block and its trailer; returns its handle."""
    handle = put_varint(len(out)) + put_varint(len(content))
    out += content + bytes([kind]) + struct.pack("<I", mask(crc32c(content + bytes([kind]))))
    return handle


def build_index(
    entries: list[tuple[bytes, bytes]],
    *,
    compress: Callable[[bytes], bytes] | None = None,
    per_block: int = 1 << 30,
) -> bytes:
    """An index file of the entries, which are sorted; `per_block` of them in a block.

    `compress` is one of the two Snappy encoders above, or None for raw blocks.
    """
    out = bytearray()
    handles = []
    for start in range(0, len(entries), per_block):
        part = entries[start : start + per_block]
        # The last key itself is as good a separator as any shorter one.
        block = _build_block(part, 16)
        handle = _append_block(
            out, compress(block) if compress else block, SNAPPY if compress else RAW
        )
        handles.append((part[-1][0], handle))
    metaindex = _append_block(out, _build_block([], 16), RAW)
    top = _append_block(out, _build_block(handles, 1), RAW)
    out += (metaindex + top).ljust(40, b"\0") + struct.pack("<Q", MAGIC)
    return bytes(out)


# ---- bundles -----------------------------------------------------------------------------------


def data_path(prefix: Path, shard: int, shards: int) -> Path:
    return prefix.with_name(f"{prefix.name}.data-{shard:05d}-of-{shards:05d}")


def index_path(prefix: Path) -> Path:
    return prefix.with_name(f"{prefix.name}.index")


def shard_count(prefix: Path) -> int:
    header = read_index(index_path(prefix))[0]
    assert header[0] == b""
    return sum(int(value) for number, _, value in parse_message(header[1]) if number == 1)


def _swap_strings(stored: bytes, count: int) -> tuple[bytes, int]:
    """A string tensor as a big-endian machine writes it, and its unmasked checksum."""
    position = 0
    sizes = []
    for _ in range(count):
        size, position = take_varint(stored, position)
        sizes.append(size)
    fed = b"".join(struct.pack(">I" if size <= 0xFFFFFFFF else ">Q", size) for size in sizes)
    sizes_crc = crc32c(fed)
    stored_crc = struct.pack(">I", mask(sizes_crc))
    tail = stored[position + 4 :]
    return stored[:position] + stored_crc + tail, crc32c(fed + stored_crc + tail)


def to_big_endian(source: Path, destination: Path) -> None:
    """Rewrites a little-endian bundle as a big-endian machine would have written it."""
    shards = shard_count(source)
    data = [bytearray(data_path(source, shard, shards).read_bytes()) for shard in range(shards)]
    rewritten = []
    for key, value in read_index(index_path(source)):
        if key == b"":
            fields = [item for item in parse_message(value) if item[0] != 2]
            fields.insert(1, (2, 0, 1))
            rewritten.append((key, build_message(fields)))
            continue
        entry = Entry.parse(value)
        if not entry.partitioned:
            file = data[entry.shard]
            stored = bytes(file[entry.offset : entry.offset + entry.size])
            if entry.dtype == STRING:
                swapped, crc = _swap_strings(stored, element_count(entry.shape))
            else:
                unit = KINDS[entry.dtype].unit
                swapped = b"".join(
                    stored[start : start + unit][::-1] for start in range(0, len(stored), unit)
                )
                crc = crc32c(swapped)
            assert len(swapped) == len(stored)
            file[entry.offset : entry.offset + entry.size] = swapped
            entry.set_crc(mask(crc))
        rewritten.append((key, entry.build()))
    index_path(destination).write_bytes(build_index(rewritten))
    for shard, content in enumerate(data):
        data_path(destination, shard, shards).write_bytes(content)
