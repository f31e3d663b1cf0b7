# SPDX-License-Identifier: Apache-2.0
"""Index files taken apart and put together again: entries, regions, Snappy, big-endian bundles.

It trusts its input, which these tests made themselves. Blocks and files are those of
`support.index`, which shares nothing with what is under test.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from support import index as ix
from support.index import TRAILER_SIZE, crc32c, mask
from support.index import read_varint as take_varint
from support.index import varint as put_varint

from .values import KINDS, STRING, element_count

RAW, SNAPPY = 0, 1


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


def _block(index: bytes, offset: int, size: int) -> list[tuple[bytes, bytes]]:
    content, kind = index[offset : offset + size], index[offset + size]
    assert ix.with_trailer(content, kind) == index[offset : offset + size + TRAILER_SIZE]
    if kind == SNAPPY:
        content = snappy_decode(content)
    return [(key, value) for _, key, _, value in ix.block_rows(content)]


def read_index(path: Path) -> list[tuple[bytes, bytes]]:
    """Every key and value of an index file, the header's first."""
    index = path.read_bytes()
    return [entry for place in ix.regions(index).data_blocks for entry in _block(index, *place)]


def block_count(path: Path) -> int:
    return len(ix.regions(path.read_bytes()).data_blocks)


def index_regions(path: Path) -> list[Region]:
    """The parts of an index file in file order, without a gap between them."""
    found = ix.regions(path.read_bytes())
    regions = []
    for name, (offset, size) in (
        *(("data block", place) for place in found.data_blocks),
        ("metaindex", found.metaindex),
        ("index block", found.index),
    ):
        regions.append(Region(name, offset, size))
        regions.append(Region(f"{name} trailer", offset + size, TRAILER_SIZE))
    footer, used = found.footer, found.handles_end
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


def build_index(
    entries: list[tuple[bytes, bytes]],
    *,
    compress: Callable[[bytes], bytes] | None = None,
    per_block: int = 1 << 30,
) -> bytes:
    """An index file of the entries, which are sorted; `per_block` of them in a block.

    `compress` is one of the two Snappy encoders above, or None for raw blocks.
    """
    parts = [entries[start : start + per_block] for start in range(0, len(entries), per_block)]
    blocks = [ix.block(part) for part in parts]
    if compress is not None:
        blocks = [ix.Block(compress(one.contents)) for one in blocks]
    kinds = dict.fromkeys(range(len(blocks)), SNAPPY if compress else RAW)
    # The last key itself is as good a separator as any shorter one.
    return ix.Index(blocks, kinds, last_keys=[part[-1][0] for part in parts]).build()


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
